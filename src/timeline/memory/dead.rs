//! The verbs for dead occurrences: browse, show, requeue and discard.

use std::sync::Arc;

use super::twin::{AnswerWithWakes, Change, OccurrenceMark, Twin};
use crate::clock::Timestamp;
use crate::task::layout::lane_of;
use crate::task::{Key, Lane, Member};
use crate::timeline::pauses::due_of_score;
use crate::timeline::{
    BrowseRequest, Browsed, Dead, DeadCap, DeadCursor, DeadFilter, DeadRecord, MAX_BROWSED, MAX_BROWSED_BYTES,
    RequeueAnswer, TimelineError,
};

/// How many bytes of dead occurrences past their retention one reap reads, as in `reap.lua`.
const MAX_DROPPED_BYTES: usize = 1 << 20;

impl Twin {
    /// Returns a dead occurrence to its lane, due now, under its old key. With `died`, only if it died at that time.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn requeue(
        &mut self,
        now: Timestamp,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<RequeueAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let text: Arc<str> = key.to_string().into();
        if !self.died_at(&text, died) {
            return Ok(AnswerWithWakes::quietly(RequeueAnswer::Unknown));
        }
        let member = Member::requeued(key);
        if self.tasks.contains_key(&member) {
            return Ok(AnswerWithWakes::quietly(RequeueAnswer::InFlight));
        }
        let parent = Member::from(&key.task);
        let has_due = self.place(&parent).is_some_and(|(_, score)| {
            due_of_score(score) == key.due || self.changes.get(&parent) == Some(&Change::Due(key.due))
        });
        if has_due {
            return Ok(AnswerWithWakes::quietly(RequeueAnswer::InFlight));
        }
        let Some(record) = self.dead_records.get(&text).map(|dead_record| dead_record.record.clone()) else {
            return Ok(AnswerWithWakes::quietly(RequeueAnswer::Unknown));
        };
        let Some(lane) = lane_of(&record) else { return Ok(AnswerWithWakes::quietly(RequeueAnswer::Unreadable)) };
        self.forget_dead(&text);
        self.note_size(record.len());
        self.tasks.insert(member.clone(), record);
        // The occurrence was handed out before. The mark also tells puts that its key is taken.
        self.crashes.insert(member.clone(), OccurrenceMark::crashed(now, 0));
        self.set_score(&lane, &member, now.as_millis());
        self.lanes.insert(lane.clone());
        // Wake claimers even if the head was due already, because a claimer may have gone past it.
        Ok(AnswerWithWakes { answer: RequeueAnswer::Requeued, wakes: vec![(lane, now)] })
    }

    /// Deletes a dead occurrence; with `died`, only if it died at that time. Returns whether there was one.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn discard(
        &mut self,
        now: Timestamp,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<bool>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let text: Arc<str> = key.to_string().into();
        Ok(AnswerWithWakes::quietly(self.died_at(&text, died) && self.forget_dead(&text)))
    }

    /// Lists dead occurrences, in the order of their deaths.
    #[must_use]
    pub fn browse(&self, request: &BrowseRequest) -> Browsed {
        let DeadFilter { from, to, .. } = request.filter;
        let reads = request.whole || request.filter.lane.is_some() || request.filter.reason.is_some();
        let after = request.after.as_ref().map(|cursor| (cursor.died.as_millis(), cursor.key.to_string()));
        let meant = self.dead.iter().filter(|(at, key)| {
            from.is_none_or(|from| *at >= from.as_millis())
                && to.is_none_or(|to| *at < to.as_millis())
                && after.as_ref().is_none_or(|after| (*at, &***key) > (after.0, &*after.1))
        });
        let (mut browsed, mut last, mut read, mut bytes) = (Browsed::default(), None, 0, 0);
        for (looked, (at, key)) in meant.enumerate() {
            let is_asked_for = request.filter.has_prefix(key);
            let dead_record = self.dead_records.get(key).filter(|_| reads && is_asked_for);
            bytes += dead_record.map_or(0, size);
            let full = browsed.dead.len() >= request.max || (bytes > MAX_BROWSED_BYTES && read > 0);
            if looked >= MAX_BROWSED || (is_asked_for && full) {
                browsed.last = last;
                break;
            }
            let Ok(key) = key.parse() else { continue };
            let cursor = DeadCursor { died: Timestamp::from_millis(at), key };
            last = Some(cursor.clone());
            if !is_asked_for {
                continue;
            }
            read += 1;
            if !reads || dead_record.is_some_and(|dead_record| is_meant(&request.filter, dead_record)) {
                browsed.dead.push(Dead { cursor, dead_record: dead_record.filter(|_| request.whole).cloned() });
            }
        }
        browsed
    }

    /// Reads one dead occurrence.
    #[must_use]
    pub fn show(&self, key: &Key) -> Option<Dead> {
        let text: Arc<str> = key.to_string().into();
        let died = Timestamp::from_millis(self.dead.score(&text)?);
        let dead_record = self.dead_records.get(&text)?.clone();
        Some(Dead { cursor: DeadCursor { died, key: key.clone() }, dead_record: Some(dead_record) })
    }

    /// The dead of a lane, the oldest first, each with its size.
    fn dead_of(&self, lane: &Lane) -> Vec<(Arc<str>, u64)> {
        let of_lane = |(_, key): (i64, &Arc<str>)| {
            let dead_record = self.dead_records.get(key)?;
            let is_one = lane_of(&dead_record.record).as_ref() == Some(lane);
            is_one.then(|| (key.clone(), size(dead_record) as u64))
        };
        self.dead.iter().filter_map(of_lane).collect()
    }

    /// Drops the oldest dead occurrences of a lane beyond `cap`, at most `max` of them. Returns how many.
    pub(super) fn drop_dead_over(&mut self, lane: &Lane, cap: DeadCap, max: usize) -> u64 {
        let dead = self.dead_of(lane);
        let (mut left, mut bytes) = (dead.len() as u64, dead.iter().map(|(_, size)| size).sum::<u64>());
        let mut dropped = 0;
        for (key, size) in dead.into_iter().take(max) {
            if left <= cap.entries && (bytes <= cap.bytes || left <= 1) {
                break;
            }
            self.forget_dead(&key);
            (left, bytes, dropped) = (left - 1, bytes - size, dropped + 1);
        }
        dropped
    }

    /// Drops the occurrences that died at `time` or before, at most `max` of them and [`MAX_DROPPED_BYTES`].
    /// Returns how many, and whether more are left.
    pub(super) fn drop_dead_until(&mut self, time: Timestamp, max: usize) -> (u64, bool) {
        let old = self.dead.iter().take(max + 1).take_while(|(at, _)| *at <= time.as_millis());
        let (mut gone, mut read) = (Vec::new(), 0);
        let mut more = false;
        for (_, key) in old {
            read += self.dead_records.get(key).map_or(0, size);
            if gone.len() == max || (read > MAX_DROPPED_BYTES && !gone.is_empty()) {
                more = true;
                break;
            }
            gone.push(key.clone());
        }
        for key in &gone {
            self.forget_dead(key);
        }
        (gone.len() as u64, more)
    }

    /// Whether the occurrence died at `died`. Without `died` it is always true, even if there is no such dead
    /// occurrence.
    fn died_at(&self, key: &Arc<str>, died: Option<Timestamp>) -> bool {
        died.is_none_or(|died| self.dead.score(key) == Some(died.as_millis()))
    }

    fn forget_dead(&mut self, key: &Arc<str>) -> bool {
        self.dead_records.remove(key);
        self.dead.remove(key)
    }
}

/// The size of an entry in Redis, in bytes.
fn size(dead_record: &DeadRecord) -> usize {
    4 + dead_record.record.len() + dead_record.reason.len() + 1 + dead_record.detail.len()
}

/// Whether an entry has the lane and the reason of the filter.
fn is_meant(filter: &DeadFilter, dead_record: &DeadRecord) -> bool {
    let lane = filter.lane.as_ref().is_none_or(|lane| lane_of(&dead_record.record).as_ref() == Some(lane));
    lane && filter.reason.as_ref().is_none_or(|reason| *reason == dead_record.reason)
}
