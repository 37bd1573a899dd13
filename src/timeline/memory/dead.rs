//! The dead: kept for a while, requeued or discarded by a person.

use std::sync::Arc;

use super::twin::{Change, Told, Twin, lane_of};
use crate::clock::Timestamp;
use crate::task::{Key, Member};
use crate::timeline::{RequeueAnswer, TimelineError};

impl Twin {
    /// Puts a dead occurrence back, due now, under its old key.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn requeue(
        &mut self,
        now: Timestamp,
        key: &Key,
        not_after: Timestamp,
    ) -> Result<Told<RequeueAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let member = Member::requeued(key);
        if self.tasks.contains_key(&member) {
            return Ok(Told::quietly(RequeueAnswer::InFlight));
        }
        let parent = Member::from(&key.task);
        let has_due = self.place(&parent).is_some_and(|(_, score)| {
            score.abs() == key.due.as_millis() || self.changes.get(&parent) == Some(&Change::Due(key.due))
        });
        if has_due {
            return Ok(Told::quietly(RequeueAnswer::InFlight));
        }
        let text: Arc<str> = key.to_string().into();
        let buried = self.dead_records.get(&text).map(|burial| burial.record.clone());
        let Some((record, lane)) = buried.and_then(|record| lane_of(&record).map(|lane| (record, lane))) else {
            return Ok(Told::quietly(RequeueAnswer::Unknown));
        };
        let before = self.head(&lane);
        self.forget_dead(&text);
        self.tasks.insert(member.clone(), record);
        self.set_score(&lane, &member, now.as_millis());
        self.lanes.insert(lane.clone());
        Ok(Told { answer: RequeueAnswer::Requeued, wakes: self.earlier(&lane, before).into_iter().collect() })
    }

    /// Forgets a dead occurrence; whether there was one.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn discard(&mut self, now: Timestamp, key: &Key, not_after: Timestamp) -> Result<Told<bool>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        Ok(Told::quietly(self.forget_dead(&key.to_string().into())))
    }

    /// Drops the oldest of the dead that are more than `cap`, up to `max`; how many.
    pub(super) fn drop_dead_over(&mut self, cap: u64, max: usize) -> u64 {
        let over = (self.dead.len() as u64).saturating_sub(cap);
        let over = usize::try_from(over).unwrap_or(max).min(max);
        let oldest: Vec<_> = self.dead.iter().take(over).map(|(_, key)| key.clone()).collect();
        for key in &oldest {
            self.forget_dead(key);
        }
        oldest.len() as u64
    }

    /// Drops the dead that were buried at `time` or before, up to `max`; how many, and whether there are more.
    pub(super) fn drop_dead_until(&mut self, time: Timestamp, max: usize) -> (u64, bool) {
        let old = self.dead.iter().take(max + 1).take_while(|(at, _)| *at <= time.as_millis());
        let mut old: Vec<_> = old.map(|(_, key)| key.clone()).collect();
        let more = old.len() > max;
        old.truncate(max);
        for key in &old {
            self.forget_dead(key);
        }
        (old.len() as u64, more)
    }

    fn forget_dead(&mut self, key: &Arc<str>) -> bool {
        self.dead_records.remove(key);
        self.dead.remove(key)
    }
}
