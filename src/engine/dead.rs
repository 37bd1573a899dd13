//! The dead, for a person: looked through over all shards, shown, requeued and discarded, one by one or many at once.
//!
//! Nothing here holds more than a few slices in memory, whatever is kept, and no request goes on for ever: what is left
//! is said, with the place to go on from.

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

/// Requeues or discards that are under way at a time.
const SIDE_BY_SIDE: usize = 64;

/// How many of a sweep are looked for at a time.
const SLICE: usize = 1000;

/// How many more than its share of what is looked for a shard is asked for: they are seldom spread evenly.
const SPARE: usize = 8;

/// The rest after a look is as long as the look, up to this.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// A look into all shards that takes longer has failed.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// A part of the dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPage {
    /// In the order of their burial.
    pub dead: Vec<DeadSummary>,
    /// Where to go on, if not all was looked through.
    pub next: Option<DeadCursor>,
}

/// A dead occurrence without its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadSummary {
    /// Its key, and when it was buried.
    pub cursor: DeadCursor,
    /// Its lane; nothing where this version cannot read it. The reason and the words may be empty then.
    pub lane: Option<Lane>,
    /// Where it goes; nothing where neither it nor its lane names a destination.
    pub destination: Option<String>,
    /// Why it is dead.
    pub reason: String,
    /// The broker's own words.
    pub detail: String,
}

/// Result of a bulk request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many were requeued, or discarded.
    pub done: u64,
    /// How many stayed dead, since their key waits or is in flight.
    pub in_flight: u64,
    /// How many stayed dead, since their lane is not configured: nobody would publish them.
    pub unserved: u64,
    /// How many stayed dead, since this version cannot read them.
    pub unreadable: u64,
    /// Where to go on, if the time was up before all were looked through.
    pub next: Option<Sweep>,
}

/// Where a sweep goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The last that was looked at; nothing: from the first.
    pub after: Option<DeadCursor>,
    /// Start of the scan. Later entries are skipped; otherwise messages that die again at once would keep it running.
    pub until: Timestamp,
}

/// What is done with many.
#[derive(Clone, Copy)]
enum Act {
    Requeue,
    Discard,
}

/// Result of one entry of a bulk request.
enum Done {
    /// It is requeued, or discarded.
    Changed,
    InFlight,
    Unserved,
    Unreadable,
    /// Another was faster; what is dead under its key by now is another burial.
    Gone,
}

/// How a page of a bulk request ended.
enum PageEnd {
    Complete,
    TimedOut,
    Failed(TimelineError),
}

/// A requeue that did not take effect, or is not known to have.
#[derive(Debug, thiserror::Error)]
pub enum RequeueError {
    /// Nobody would publish it.
    #[error("the lane `{0}` is not configured")]
    UnknownLane(Lane),
    /// What is kept of it cannot be read by this version.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The timeline's word.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl Intake {
    /// The same way in, which knows where messages go that name no destination, by lane.
    #[must_use]
    pub fn with_destinations(mut self, destinations: impl IntoIterator<Item = (Lane, String)>) -> Intake {
        self.destinations = Arc::new(destinations.into_iter().collect());
        self
    }

    /// Looks through the dead from `after` on, the oldest first, up to `max` of them. Begins nothing more once `patience`
    /// has passed: where few are meant among many, a page may be empty and yet not the last.
    ///
    /// # Errors
    /// The timeline's word.
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

    /// Looks at one dead occurrence, with the message that it would be published with; what kept it from being published
    /// stands in its burial.
    ///
    /// # Errors
    /// The timeline's word, or a record that this version cannot read.
    pub async fn dead_one(&self, key: &Key) -> Result<Option<(DeadSummary, Record)>, GetError> {
        let Some(dead) = self.timeline.show(self.shard(key), key).await? else { return Ok(None) };
        // What is damaged is no record.
        let bytes = dead.dead_record.as_ref().map(|dead_record| dead_record.record.clone());
        let record = Record::decode(&bytes.unwrap_or_default())?;
        Ok(Some((self.summary(dead), record)))
    }

    /// Puts a dead occurrence back: it is due now, under its old key.
    ///
    /// # Errors
    /// Where it would be published by nobody, or the timeline's word.
    pub async fn requeue(&self, key: &Key, deadline: Duration) -> Result<RequeueAnswer, RequeueError> {
        let not_after = self.clock().now().plus(deadline);
        match self.dead_one(key).await {
            Ok(Some((dead, record))) if !self.lanes.contains_key(&record.lane) => {
                Err(RequeueError::UnknownLane(dead.lane.unwrap_or(record.lane)))
            }
            // Where none is dead, its key may wait or be in flight.
            Ok(_) => Ok(self.timeline.requeue(self.shard(key), key, None, not_after).await?),
            Err(GetError::Record(error)) => Err(error.into()),
            Err(GetError::Timeline(error)) => Err(error.into()),
        }
    }

    /// Forgets a dead occurrence; whether there was one.
    ///
    /// # Errors
    /// The timeline's word.
    pub async fn discard(&self, key: &Key, deadline: Duration) -> Result<bool, TimelineError> {
        self.timeline.discard(self.shard(key), key, None, self.clock().now().plus(deadline)).await
    }

    /// Puts all back that are meant and were dead when it began, the oldest first. Nothing of it takes effect after
    /// `deadline`. Once that has passed it begins no more, but a few of the first slice.
    ///
    /// # Errors
    /// The timeline's word, where nothing was done before it. Else what was done is told, and where to go on.
    pub async fn requeue_all(
        &self,
        filter: &DeadFilter,
        from: Option<Sweep>,
        deadline: Duration,
    ) -> Result<Swept, TimelineError> {
        self.sweep(Act::Requeue, filter, from, deadline).await
    }

    /// Forgets all that are meant and were dead when it began, as [`requeue_all`](Intake::requeue_all) requeues them.
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
        // So that each request comes further, some of its first slice are begun whatever the time is.
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

    /// Does what is to be done with these, in their order; the last of those before the first that was not done, or is not
    /// known to be.
    async fn sweep_slice(
        &self,
        act: Act,
        dead: &[DeadSummary],
        begins: impl Fn(usize) -> bool + Sync,
        not_after: Timestamp,
        swept: &mut Swept,
    ) -> (Option<DeadCursor>, PageEnd) {
        // Where one call is not answered, the others would wait for nothing.
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
        // The others are met again.
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

    /// One look into every shard, one after the other; those found, the oldest first, and how far was looked in all of them.
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
            // Not kept as they are: messages may be large.
            dead.extend(looked.dead.into_iter().map(|dead| self.summary(dead)));
            // Beyond where the look into one shard ended it may have others that come before those of another shard.
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

    /// One look, once those before it have ended and the timeline has had its rest.
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
    /// Of two, the one that promises least of what was done: what may have taken effect hides what did not.
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
