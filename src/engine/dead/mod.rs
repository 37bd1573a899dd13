//! The API for dead occurrences of all shards: list, show, requeue and discard. [`bulk`] does the same with many.
//!
//! It keeps only a few slices in memory, however many occurrences are dead. Every request has a time limit; if some are
//! left, the answer contains the position to continue from.

pub mod bulk;

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::intake::{GetError, Intake, UnknownLane};
use crate::task::record::RecordError;
use crate::task::{Key, Lane, Record, Shard, TaskId};
use crate::timeline::{
    BrowseRequest, Browsed, Dead, DeadCursor, DeadFilter, DeadRecord, MAX_BROWSED, RequeueAnswer, TimelineError,
};

/// How many more than its share a shard is asked for, because the dead are seldom spread evenly.
const SPARE_ENTRIES: usize = 8;

/// After one shard was browsed the timeline gets a pause as long as that took, but at most this long.
pub(in crate::engine) const MAX_BULK_READ_PAUSE: Duration = Duration::from_millis(100);

/// Timeout of browsing all shards.
const BROWSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of dead occurrences among which the one of a task is searched.
pub const MAX_SEARCHED: usize = 1000;

/// A page of dead occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPage {
    /// The occurrences, in the order of their deaths.
    pub dead: Vec<DeadSummary>,
    /// Where to continue, if more follow.
    pub next: Option<DeadCursor>,
}

/// A dead occurrence without its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadSummary {
    /// Its key and time of death.
    pub cursor: DeadCursor,
    /// Its lane; `None` if the record was not read, or this version cannot parse it. Reason and detail may then be empty.
    pub lane: Option<Lane>,
    /// Its destination; `None` without a lane here, or if neither the task nor its lane names one.
    pub destination: Option<String>,
    /// Why it is dead.
    pub reason: String,
    /// The error text of the broker, or of a check of punctual.
    pub detail: String,
}

/// Why a requeue did not take effect, or is not known to have taken effect.
#[derive(Debug, thiserror::Error)]
pub enum RequeueError {
    /// No instance would publish it.
    #[error(transparent)]
    UnknownLane(#[from] UnknownLane),
    /// This version cannot parse the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

/// The position to continue from, as the caller may see it: a token may be limited to a prefix of ids, and a position must
/// not show it another id. If `next` has one, this is the position of the last match. Without a match, it is a made-up key
/// behind all that died in the millisecond before, so that none is missed.
pub(in crate::engine) fn shown_position(
    filter: &DeadFilter,
    next: Option<DeadCursor>,
    last_match: Option<&DeadCursor>,
) -> Option<DeadCursor> {
    let next = next?;
    if filter.has_prefix(&next.key.to_string()) {
        return Some(next);
    }
    Some(last_match.cloned().unwrap_or_else(|| DeadCursor {
        died: next.died.minus(Duration::from_millis(1)),
        key: Key { task: last_id(), due: next.died },
    }))
}

/// The last id in the order of bytes.
fn last_id() -> TaskId {
    "z".repeat(200).parse().expect("an id has up to 200 characters")
}

impl Intake {
    /// Lists up to `max` dead occurrences after `after`, the oldest first. Does not go on once `time_limit` has
    /// passed, so a page can be empty although more follow.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn dead(
        &self,
        filter: &DeadFilter,
        mut after: Option<DeadCursor>,
        max: usize,
        time_limit: Duration,
    ) -> Result<DeadPage, TimelineError> {
        let begun = Instant::now();
        let mut dead = Vec::new();
        loop {
            let (found, next) = self.browse_all_shards(filter, after, max - dead.len(), true).await?;
            dead.extend(found);
            if next.is_none() || dead.len() >= max || begun.elapsed() >= time_limit {
                let next = shown_position(filter, next, dead.last().map(|dead| &dead.cursor));
                return Ok(DeadPage { dead, next });
            }
            after = next;
        }
    }

    /// The key of a dead occurrence of this task, among the first [`MAX_SEARCHED`] of its shard.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn dead_of(&self, id: &TaskId) -> Result<Option<Key>, TimelineError> {
        let shard = Shard::of(id, self.timeline.shards());
        let filter = DeadFilter { prefix: id.to_string(), ..DeadFilter::default() };
        let mut after = None;
        for _ in 0..MAX_SEARCHED.div_ceil(MAX_BROWSED) {
            let request = BrowseRequest { filter: filter.clone(), after, max: MAX_BROWSED, whole: false };
            let browsed = self.timeline.browse(shard, request).await?;
            // The filter finds all ids that begin like this one.
            let mut keys = browsed.dead.into_iter().map(|dead| dead.cursor.key);
            if let Some(key) = keys.find(|key| key.task == *id) {
                return Ok(Some(key));
            }
            if browsed.last.is_none() {
                break;
            }
            after = browsed.last;
        }
        Ok(None)
    }

    /// Reads one dead occurrence with its message and the reason of its death.
    ///
    /// # Errors
    /// An error of the timeline, or a record that this version cannot parse.
    pub async fn dead_one(&self, key: &Key) -> Result<Option<(DeadSummary, Record)>, GetError> {
        let Some(dead) = self.timeline.show(self.shard(key), key).await? else { return Ok(None) };
        // A damaged entry gives an empty record, which fails to decode.
        let bytes = dead.dead_record.as_ref().map(|dead_record| dead_record.record.clone());
        let record = Record::decode(&bytes.unwrap_or_default())?;
        Ok(Some((self.summary(dead), record)))
    }

    /// Returns a dead occurrence to its lane: it is due now, under its old key.
    ///
    /// # Errors
    /// If its lane is not configured, if this version cannot parse the record, or an error of the timeline.
    pub async fn requeue(&self, key: &Key, time_limit: Duration) -> Result<RequeueAnswer, RequeueError> {
        let (shard, not_after) = self.shard_until(&key.task, time_limit);
        match self.dead_one(key).await {
            Ok(Some((dead, record))) if !self.lanes.contains_key(&record.lane) => {
                Err(self.unknown_lane(dead.lane.as_ref().unwrap_or(&record.lane)).into())
            }
            // If it is not dead, its key may wait or be in flight; the timeline tells.
            Ok(_) => Ok(self.timeline.requeue(shard, key, None, not_after).await?),
            Err(GetError::Record(error)) => Err(error.into()),
            Err(GetError::Timeline(error)) => Err(error.into()),
        }
    }

    /// Deletes a dead occurrence. Returns whether there was one.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn discard(&self, key: &Key, time_limit: Duration) -> Result<bool, TimelineError> {
        let (shard, not_after) = self.shard_until(&key.task, time_limit);
        self.timeline.discard(shard, key, None, not_after).await
    }

    /// Browses all shards, one after the other. Returns the matches, the oldest first, and the position up to which all
    /// shards were browsed.
    pub(in crate::engine) async fn browse_all_shards(
        &self,
        filter: &DeadFilter,
        after: Option<DeadCursor>,
        max: usize,
        whole: bool,
    ) -> Result<(Vec<DeadSummary>, Option<DeadCursor>), TimelineError> {
        let (max, shards) = (max.max(1), self.timeline.shards());
        let share = max.min(max.div_ceil(usize::from(shards)) + SPARE_ENTRIES).min(MAX_BROWSED);
        let request = BrowseRequest { filter: filter.clone(), after, max: share, whole };
        let give_up = Instant::now() + BROWSE_TIMEOUT;
        let (mut dead, mut last) = (Vec::new(), None);
        for shard in Shard::all(shards) {
            if Instant::now() >= give_up {
                return Err(TimelineError::Late);
            }
            let looked = self.browse_shard(shard, request.clone()).await?;
            // Keeps only the summary, because messages may be large.
            dead.extend(looked.dead.into_iter().map(|dead| self.summary(dead)));
            // A shard may have more entries behind its last one, and they may precede those of another shard.
            last = [last, looked.last].into_iter().flatten().min();
        }
        dead.retain(|dead| last.as_ref().is_none_or(|last| dead.cursor <= *last));
        dead.sort_by_cached_key(|dead| (dead.cursor.died, dead.cursor.key.to_string()));
        if dead.len() > max {
            dead.truncate(max);
            last = dead.last().map(|dead| dead.cursor.clone());
        }
        Ok((dead, last))
    }

    /// Browses one shard, after the previous one and its pause.
    async fn browse_shard(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError> {
        self.one_at_a_time(self.timeline.browse(shard, request)).await
    }

    fn summary(&self, dead: Dead) -> DeadSummary {
        let empty = || DeadRecord { record: bytes::Bytes::new(), reason: String::new(), detail: String::new() };
        let DeadRecord { record, reason, detail } = dead.dead_record.unwrap_or_else(empty);
        let (lane, own) = match Record::decode(&record) {
            Ok(record) => (Some(record.lane), record.task.message.destination),
            Err(_) => (None, None),
        };
        let destination = own.or_else(|| self.lanes.get(lane.as_ref()?)?.destination.clone());
        DeadSummary { cursor: dead.cursor, lane, destination, reason, detail }
    }

    pub(in crate::engine) fn shard(&self, key: &Key) -> Shard {
        Shard::of(&key.task, self.timeline.shards())
    }
}
