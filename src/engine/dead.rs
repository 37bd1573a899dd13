//! The API for dead occurrences of all shards: list, show, requeue and discard, one by one or in bulk.
//!
//! It keeps only a few slices in memory, however many occurrences are dead. Every request has a time limit; if some are
//! left, the answer contains the position to continue from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;

use super::intake::{GetError, Intake};
use crate::clock::Timestamp;
use crate::task::record::RecordError;
use crate::task::{Key, Lane, Record, Shard};
use crate::timeline::{
    BrowseRequest, Browsed, Dead, DeadCursor, DeadFilter, DeadRecord, MAX_BROWSED, RequeueAnswer, TimelineError,
};

/// Maximum number of concurrent requeues or discards.
const SIDE_BY_SIDE: usize = 64;

/// Number of dead occurrences that one step of a bulk request reads.
const SLICE: usize = 1000;

/// How many more than its share a shard is asked for, because the dead are seldom spread evenly.
const SPARE: usize = 8;

/// After a scan the timeline gets a pause as long as the scan took, but at most this long.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Timeout of a scan over all shards.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// A page of dead occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPage {
    /// The occurrences, in the order of their burial.
    pub dead: Vec<DeadSummary>,
    /// Where to continue, if more follow.
    pub next: Option<DeadCursor>,
}

/// A dead occurrence without its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadSummary {
    /// Its key and burial time.
    pub cursor: DeadCursor,
    /// Its lane; `None` if this version cannot parse the record. Reason and detail may then be empty.
    pub lane: Option<Lane>,
    /// Its destination; `None` if neither the task nor its lane names one.
    pub destination: Option<String>,
    /// Why it is dead.
    pub reason: String,
    /// The error text of the broker.
    pub detail: String,
}

/// Result of a bulk request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of occurrences that were requeued or discarded.
    pub done: u64,
    /// Number of occurrences that stay dead because their key waits or is in flight.
    pub in_flight: u64,
    /// Number of occurrences that stay dead because their lane is not configured, so no instance would publish them.
    pub unserved: u64,
    /// Number of occurrences that stay dead because this version cannot parse them.
    pub unreadable: u64,
    /// Where to continue, if the time limit was reached.
    pub next: Option<Sweep>,
}

/// Where a bulk request continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The last position that was handled; `None` starts at the first.
    pub after: Option<DeadCursor>,
    /// Start of the scan. Later entries are skipped; otherwise messages that die again at once would keep it running.
    pub until: Timestamp,
}

/// What a bulk request does.
#[derive(Clone, Copy)]
enum Act {
    Requeue,
    Discard,
}

/// Result of one entry of a bulk request.
enum Done {
    /// It was requeued or discarded.
    Changed,
    InFlight,
    Unserved,
    Unreadable,
    /// Another request was faster. An entry under this key is now a later burial.
    Gone,
}

/// How a page of a bulk request ended.
enum PageEnd {
    Complete,
    TimedOut,
    Failed(TimelineError),
}

/// Why a requeue did not take effect, or is not known to have taken effect.
#[derive(Debug, thiserror::Error)]
pub enum RequeueError {
    /// No instance would publish it.
    #[error("the lane `{0}` is not configured")]
    UnknownLane(Lane),
    /// This version cannot parse the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl Intake {
    /// The same intake with the default destination of each lane.
    #[must_use]
    pub fn with_destinations(mut self, destinations: impl IntoIterator<Item = (Lane, String)>) -> Intake {
        self.destinations = Arc::new(destinations.into_iter().collect());
        self
    }

    /// Lists up to `max` dead occurrences after `after`, the oldest first. Starts no further scan once `patience` has
    /// passed, so a page can be empty although more follow.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn dead(
        &self,
        filter: &DeadFilter,
        mut after: Option<DeadCursor>,
        max: usize,
        patience: Duration,
    ) -> Result<DeadPage, TimelineError> {
        let begun = Instant::now();
        let mut dead = Vec::new();
        loop {
            let (found, next) = self.look_through(filter, after, max - dead.len(), true).await?;
            dead.extend(found);
            if next.is_none() || dead.len() >= max || begun.elapsed() >= patience {
                return Ok(DeadPage { dead, next });
            }
            after = next;
        }
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
    /// If no instance serves its lane, or an error of the timeline.
    pub async fn requeue(&self, key: &Key, deadline: Duration) -> Result<RequeueAnswer, RequeueError> {
        let not_after = self.clock().now().plus(deadline);
        match self.dead_one(key).await {
            Ok(Some((dead, record))) if !self.lanes.contains_key(&record.lane) => {
                Err(RequeueError::UnknownLane(dead.lane.unwrap_or(record.lane)))
            }
            // If it is not dead, its key may wait or be in flight; the timeline tells.
            Ok(_) => Ok(self.timeline.requeue(self.shard(key), key, None, not_after).await?),
            Err(GetError::Record(error)) => Err(error.into()),
            Err(GetError::Timeline(error)) => Err(error.into()),
        }
    }

    /// Deletes a dead occurrence. Returns whether there was one.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn discard(&self, key: &Key, deadline: Duration) -> Result<bool, TimelineError> {
        self.timeline.discard(self.shard(key), key, None, self.clock().now().plus(deadline)).await
    }

    /// Requeues all matching occurrences that were dead at the start, the oldest first. Nothing takes effect after
    /// `deadline`. After that it starts only the first few, so that repeated requests make progress.
    ///
    /// # Errors
    /// An error of the timeline, if it came before the first result. A later error ends the request with its results
    /// and the position to continue from.
    pub async fn requeue_all(
        &self,
        filter: &DeadFilter,
        from: Option<Sweep>,
        deadline: Duration,
    ) -> Result<Swept, TimelineError> {
        self.sweep(Act::Requeue, filter, from, deadline).await
    }

    /// Deletes all matching occurrences that were dead at the start, like [`requeue_all`](Intake::requeue_all).
    ///
    /// # Errors
    /// As there.
    pub async fn discard_all(
        &self,
        filter: &DeadFilter,
        from: Option<Sweep>,
        deadline: Duration,
    ) -> Result<Swept, TimelineError> {
        self.sweep(Act::Discard, filter, from, deadline).await
    }

    async fn sweep(
        &self,
        act: Act,
        filter: &DeadFilter,
        from: Option<Sweep>,
        deadline: Duration,
    ) -> Result<Swept, TimelineError> {
        let give_up = Instant::now() + deadline;
        let not_after = self.clock().now().plus(deadline);
        let until =
            from.as_ref().map_or_else(|| self.clock().now().plus(Duration::from_millis(1)), |sweep| sweep.until);
        let filter = DeadFilter { to: Some(filter.to.map_or(until, |to| to.min(until))), ..filter.clone() };
        let mut after = from.and_then(|sweep| sweep.after);
        let mut swept = Swept::default();
        // The first few of the first slice are always started, so that each request makes progress.
        let mut at_least = SIDE_BY_SIDE;
        loop {
            let looked = self.look_through(&filter, after.clone(), SLICE, matches!(act, Act::Requeue)).await;
            let end = match looked {
                Ok((dead, next)) => {
                    let begins = |index| index < at_least || Instant::now() < give_up;
                    let (last, end) = self.sweep_slice(act, &dead, begins, not_after, &mut swept).await;
                    match end {
                        PageEnd::Complete if next.is_none() => return Ok(swept),
                        PageEnd::Complete => after = next,
                        _ => after = last.or(after),
                    }
                    end
                }
                Err(error) => PageEnd::Failed(error),
            };
            match end {
                PageEnd::Failed(error) if swept.done == 0 => return Err(error),
                PageEnd::Complete if Instant::now() < give_up => {}
                _ => {
                    swept.next = Some(Sweep { after, until });
                    return Ok(swept);
                }
            }
            at_least = 0;
        }
    }

    /// Requeues or discards a slice, in order. Returns the last position before the first one without a definite
    /// result.
    async fn sweep_slice(
        &self,
        act: Act,
        dead: &[DeadSummary],
        begins: impl Fn(usize) -> bool + Sync,
        not_after: Timestamp,
        swept: &mut Swept,
    ) -> (Option<DeadCursor>, PageEnd) {
        // After one failure the others would only wait for their timeouts.
        let failed = AtomicBool::new(false);
        let (begins, failed) = (&begins, &failed);
        let acts = stream::iter(0..dead.len()).map(|index| async move {
            if failed.load(Ordering::Relaxed) || !begins(index) {
                return (index, None);
            }
            let done = self.act(act, &dead[index], not_after).await;
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            (index, Some(done))
        });
        let (mut stayed, mut stop, mut end) = (Vec::new(), dead.len(), PageEnd::Complete);
        let mut acts = acts.buffer_unordered(SIDE_BY_SIDE);
        while let Some((index, done)) = acts.next().await {
            match done {
                Some(Ok(Done::Changed)) => swept.done += 1,
                Some(Ok(Done::Gone)) => {}
                Some(Ok(done)) => stayed.push((index, done)),
                None => (stop, end) = (stop.min(index), end.or(PageEnd::TimedOut)),
                Some(Err(error)) => (stop, end) = (stop.min(index), end.or(PageEnd::Failed(error))),
            }
        }
        // Later ones are handled again by the next request.
        for (_, done) in stayed.iter().filter(|(index, _)| *index < stop) {
            match done {
                Done::InFlight => swept.in_flight += 1,
                Done::Unserved => swept.unserved += 1,
                Done::Unreadable => swept.unreadable += 1,
                Done::Changed | Done::Gone => {}
            }
        }
        (dead[..stop].last().map(|dead| dead.cursor.clone()), end)
    }

    async fn act(&self, act: Act, dead: &DeadSummary, not_after: Timestamp) -> Result<Done, TimelineError> {
        let (key, buried) = (&dead.cursor.key, Some(dead.cursor.buried));
        Ok(match (act, &dead.lane) {
            (Act::Discard, _) => match self.timeline.discard(self.shard(key), key, buried, not_after).await? {
                true => Done::Changed,
                false => Done::Gone,
            },
            (Act::Requeue, None) => Done::Unreadable,
            (Act::Requeue, Some(lane)) if !self.lanes.contains_key(lane) => Done::Unserved,
            (Act::Requeue, Some(_)) => match self.timeline.requeue(self.shard(key), key, buried, not_after).await? {
                RequeueAnswer::Requeued => Done::Changed,
                RequeueAnswer::InFlight => Done::InFlight,
                RequeueAnswer::Unknown => Done::Gone,
                RequeueAnswer::Unreadable => Done::Unreadable,
            },
        })
    }

    /// Scans all shards, one after the other. Returns the matches, the oldest first, and the position up to which all
    /// shards were scanned.
    async fn look_through(
        &self,
        filter: &DeadFilter,
        after: Option<DeadCursor>,
        max: usize,
        whole: bool,
    ) -> Result<(Vec<DeadSummary>, Option<DeadCursor>), TimelineError> {
        let (max, shards) = (max.max(1), self.timeline.shards());
        let share = max.min(max.div_ceil(usize::from(shards)) + SPARE).min(MAX_BROWSED);
        let request = BrowseRequest { filter: filter.clone(), after, max: share, whole };
        let give_up = Instant::now() + LONGEST_LOOK;
        let (mut dead, mut last) = (Vec::new(), None);
        for shard in Shard::all(shards) {
            if Instant::now() >= give_up {
                return Err(TimelineError::Late);
            }
            let looked = self.look(shard, request.clone()).await?;
            // Keeps only the summary, because messages may be large.
            dead.extend(looked.dead.into_iter().map(|dead| self.summary(dead)));
            // A shard may have more entries behind its last one, and they may precede those of another shard.
            last = [last, looked.last].into_iter().flatten().min();
        }
        dead.retain(|dead| last.as_ref().is_none_or(|last| dead.cursor <= *last));
        dead.sort_by_cached_key(|dead| (dead.cursor.buried, dead.cursor.key.to_string()));
        if dead.len() > max {
            dead.truncate(max);
            last = dead.last().map(|dead| dead.cursor.clone());
        }
        Ok((dead, last))
    }

    /// Scans one shard, after the previous scan and its pause.
    async fn look(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError> {
        let mut rests_until = self.scan_lock.lock().await;
        if let Some(until) = *rests_until {
            tokio::time::sleep_until(until).await;
        }
        let begun = Instant::now();
        let looked = self.timeline.browse(shard, request).await;
        *rests_until = Some(Instant::now() + begun.elapsed().min(LONGEST_REST));
        looked
    }

    fn summary(&self, dead: Dead) -> DeadSummary {
        let unread = || DeadRecord { record: bytes::Bytes::new(), reason: String::new(), detail: String::new() };
        let DeadRecord { record, reason, detail } = dead.dead_record.unwrap_or_else(unread);
        let (lane, own) = match Record::decode(&record) {
            Ok(record) => (Some(record.lane), record.task.message.destination),
            Err(_) => (None, None),
        };
        let destination = own.or_else(|| self.destinations.get(lane.as_ref()?).cloned());
        DeadSummary { cursor: dead.cursor, lane, destination, reason, detail }
    }

    fn shard(&self, key: &Key) -> Shard {
        Shard::of(&key.task, self.timeline.shards())
    }
}

impl PageEnd {
    /// Combines two results. A result that may have taken effect takes precedence over one that did not.
    fn or(self, other: PageEnd) -> PageEnd {
        let promise = |end: &PageEnd| match end {
            PageEnd::Failed(TimelineError::Unknown(_) | TimelineError::Unkept(_)) => 0,
            PageEnd::Failed(TimelineError::Broken(_)) => 1,
            PageEnd::Failed(_) => 2,
            PageEnd::TimedOut => 3,
            PageEnd::Complete => 4,
        };
        if promise(&other) < promise(&self) { other } else { self }
    }
}

#[cfg(test)]
#[path = "dead_tests.rs"]
mod tests;
