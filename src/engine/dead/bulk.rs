//! Requeues, discards or counts all dead occurrences that match a filter.
//!
//! Every request has a time limit; if some are left, the answer contains the position to continue from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::engine::dead::{DeadSummary, shown_position};
use crate::engine::intake::Intake;
use crate::timeline::{DeadCursor, DeadFilter, RequeueAnswer, TimelineError};

/// Maximum number of concurrent requeues or discards.
const MAX_CONCURRENT: usize = 64;

/// Number of dead occurrences that one step of a bulk request reads.
const SLICE_ENTRIES: usize = 1000;

/// Result of a bulk request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkResult {
    /// Number of occurrences that were requeued, discarded or counted.
    pub done: u64,
    /// Number of occurrences that stay dead because their key waits or is in flight.
    pub in_flight: u64,
    /// Number of occurrences that stay dead because their lane is not configured, so no instance would publish them.
    pub unserved: u64,
    /// Number of occurrences that stay dead because this version cannot parse them.
    pub unreadable: u64,
    /// Where to continue, if the time limit was reached.
    pub next: Option<BulkPosition>,
}

/// Where a bulk request continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkPosition {
    /// The last position that was handled; `None` starts at the first.
    pub after: Option<DeadCursor>,
    /// When the request began. Later entries are skipped; otherwise messages that die again at once would keep it running.
    pub until: Timestamp,
}

/// What a bulk request does.
#[derive(Clone, Copy)]
enum BulkAction {
    Requeue,
    Discard,
    Count,
}

/// Result of one entry of a bulk request.
enum EntryResult {
    /// It was requeued, discarded or counted.
    Changed,
    InFlight,
    Unserved,
    Unreadable,
    /// Another request was faster. An entry under this key is now a later death.
    Gone,
}

/// How a slice of a bulk request ended.
enum SliceEnd {
    Complete,
    TimedOut,
    Failed(TimelineError),
}

impl Intake {
    /// Requeues all matching occurrences that were dead at the start, the oldest first. Nothing is changed later than
    /// `time_limit` from now; the result then says where to continue.
    ///
    /// # Errors
    /// An error of the timeline, if no occurrence was requeued before it. A later error ends the request with its
    /// results and the position to continue from.
    pub async fn requeue_all(
        &self,
        filter: &DeadFilter,
        from: Option<BulkPosition>,
        time_limit: Duration,
    ) -> Result<BulkResult, TimelineError> {
        self.bulk(BulkAction::Requeue, filter, from, time_limit).await
    }

    /// Deletes all matching occurrences that were dead at the start, like [`requeue_all`](Intake::requeue_all).
    ///
    /// # Errors
    /// As there.
    pub async fn discard_all(
        &self,
        filter: &DeadFilter,
        from: Option<BulkPosition>,
        time_limit: Duration,
    ) -> Result<BulkResult, TimelineError> {
        self.bulk(BulkAction::Discard, filter, from, time_limit).await
    }

    /// Counts all matching occurrences that were dead at the start, and changes nothing.
    ///
    /// # Errors
    /// As for [`requeue_all`](Intake::requeue_all).
    pub async fn count_dead(
        &self,
        filter: &DeadFilter,
        from: Option<BulkPosition>,
        time_limit: Duration,
    ) -> Result<BulkResult, TimelineError> {
        self.bulk(BulkAction::Count, filter, from, time_limit).await
    }

    async fn bulk(
        &self,
        action: BulkAction,
        filter: &DeadFilter,
        from: Option<BulkPosition>,
        time_limit: Duration,
    ) -> Result<BulkResult, TimelineError> {
        let give_up = Instant::now() + time_limit;
        let not_after = self.all_shards_until(time_limit);
        let until =
            from.as_ref().map_or_else(|| self.clock().now().plus(Duration::from_millis(1)), |position| position.until);
        let filter = DeadFilter { to: Some(filter.to.map_or(until, |to| to.min(until))), ..filter.clone() };
        let mut after = from.and_then(|position| position.after);
        let mut result = BulkResult::default();
        // The first few are tried even if reading them took all the time, so that repeated counts make progress.
        let (mut at_least, mut last_match) = (MAX_CONCURRENT, None);
        loop {
            let looked = self
                .browse_all_shards(&filter, after.clone(), SLICE_ENTRIES, matches!(action, BulkAction::Requeue))
                .await;
            let end = match looked {
                Ok((dead, next)) => {
                    let begins = |index| index < at_least || Instant::now() < give_up;
                    let (last, end) = self.bulk_slice(action, &dead, begins, &not_after, &mut result).await;
                    last_match = dead.last().map(|dead| dead.cursor.clone()).or(last_match);
                    match end {
                        SliceEnd::Complete if next.is_none() => return Ok(result),
                        SliceEnd::Complete => after = next,
                        _ => after = last.or(after),
                    }
                    end
                }
                Err(error) => SliceEnd::Failed(error),
            };
            match end {
                SliceEnd::Failed(error) if result.done == 0 => return Err(error),
                SliceEnd::Complete if Instant::now() < give_up => {}
                _ => {
                    let after = shown_position(&filter, after, last_match.as_ref());
                    result.next = Some(BulkPosition { after, until });
                    return Ok(result);
                }
            }
            at_least = 0;
        }
    }

    /// Requeues, discards or counts the entries of a slice, several at a time. Returns the position of the last entry
    /// before the first entry without a definite result.
    async fn bulk_slice(
        &self,
        action: BulkAction,
        dead: &[DeadSummary],
        begins: impl Fn(usize) -> bool + Sync,
        not_after: &[Timestamp],
        result: &mut BulkResult,
    ) -> (Option<DeadCursor>, SliceEnd) {
        // After one failure the others would only wait for their timeouts.
        let failed = AtomicBool::new(false);
        let (begins, failed) = (&begins, &failed);
        let actions = stream::iter(0..dead.len()).map(|index| async move {
            if failed.load(Ordering::Relaxed) || !begins(index) {
                return (index, None);
            }
            let done = self.act(action, &dead[index], not_after).await;
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            (index, Some(done))
        });
        let (mut stayed, mut stop, mut end) = (Vec::new(), dead.len(), SliceEnd::Complete);
        let mut actions = actions.buffer_unordered(MAX_CONCURRENT);
        while let Some((index, done)) = actions.next().await {
            match done {
                Some(Ok(EntryResult::Changed)) => result.done += 1,
                Some(Ok(EntryResult::Gone)) => {}
                Some(Ok(done)) => stayed.push((index, done)),
                None => (stop, end) = (stop.min(index), end.or(SliceEnd::TimedOut)),
                Some(Err(error)) => (stop, end) = (stop.min(index), end.or(SliceEnd::Failed(error))),
            }
        }
        // The next request handles the entries from `stop` on again.
        for (_, done) in stayed.iter().filter(|(index, _)| *index < stop) {
            match done {
                EntryResult::InFlight => result.in_flight += 1,
                EntryResult::Unserved => result.unserved += 1,
                EntryResult::Unreadable => result.unreadable += 1,
                EntryResult::Changed | EntryResult::Gone => {}
            }
        }
        (dead[..stop].last().map(|dead| dead.cursor.clone()), end)
    }

    async fn act(
        &self,
        action: BulkAction,
        dead: &DeadSummary,
        not_after: &[Timestamp],
    ) -> Result<EntryResult, TimelineError> {
        let (key, died) = (&dead.cursor.key, Some(dead.cursor.died));
        let shard = self.shard(key);
        let not_after = not_after[usize::from(shard.number())];
        Ok(match (action, &dead.lane) {
            (BulkAction::Count, _) => EntryResult::Changed,
            (BulkAction::Discard, _) => match self.timeline.discard(shard, key, died, not_after).await? {
                true => EntryResult::Changed,
                false => EntryResult::Gone,
            },
            (BulkAction::Requeue, None) => EntryResult::Unreadable,
            (BulkAction::Requeue, Some(lane)) if !self.lanes.contains_key(lane) => EntryResult::Unserved,
            (BulkAction::Requeue, Some(_)) => match self.timeline.requeue(shard, key, died, not_after).await? {
                RequeueAnswer::Requeued => EntryResult::Changed,
                RequeueAnswer::InFlight => EntryResult::InFlight,
                RequeueAnswer::Unknown => EntryResult::Gone,
                RequeueAnswer::Unreadable => EntryResult::Unreadable,
            },
        })
    }
}

impl SliceEnd {
    /// Which of two ends is reported: first an error with an unknown effect, then a reply that cannot be parsed, then
    /// any other error, then the time limit.
    fn or(self, other: SliceEnd) -> SliceEnd {
        let rank = |end: &SliceEnd| match end {
            SliceEnd::Failed(TimelineError::Unknown(_) | TimelineError::Unconfirmed(_)) => 0,
            SliceEnd::Failed(TimelineError::Broken(_)) => 1,
            SliceEnd::Failed(_) => 2,
            SliceEnd::TimedOut => 3,
            SliceEnd::Complete => 4,
        };
        if rank(&other) < rank(&self) { other } else { self }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
