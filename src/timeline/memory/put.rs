//! The verbs put, cancel and get.

use std::collections::BTreeMap;

use super::twin::{AnswerWithWakes, Change, Twin};
use crate::clock::Timestamp;
use crate::task::layout::{CREATED, RESETS, REVISION, has, lane_of, tail};
use crate::task::record::replacing;
use crate::task::{Key, Lane, Member, TaskId};
use crate::timeline::pauses::{due_of_score, paused_score};
use crate::timeline::{CancelAnswer, Put, PutAnswer, PutMode, PutResult, StoredTask, TaskRevision, TimelineError};

impl Twin {
    /// Creates or replaces tasks. Returns one answer per task, in order.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn put(
        &mut self,
        now: Timestamp,
        mode: PutMode,
        puts: &[Put],
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<Vec<PutAnswer>>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let heads: BTreeMap<&Lane, _> = puts.iter().map(|put| (&put.lane, self.head(&put.lane))).collect();
        let mut new_dues = BTreeMap::new();
        let answer = puts.iter().map(|put| self.put_one(mode, put, &mut new_dues)).collect();
        let wakes =
            new_dues.into_iter().filter_map(|(lane, due)| self.wake_for(now, lane, heads[lane], &[due])).collect();
        Ok(AnswerWithWakes { answer, wakes })
    }

    /// Puts one task. `new_dues` collects the earliest new due of each lane.
    fn put_one<'a>(&mut self, mode: PutMode, put: &'a Put, new_dues: &mut BTreeMap<&'a Lane, Timestamp>) -> PutAnswer {
        let refused = |result, in_flight| PutAnswer { result, due: put.due, in_flight, paused: false };
        if !put.due.is_valid_due() {
            return refused(PutResult::BadDue, None);
        }
        let member = Member::from(&put.id);
        let key = Key { task: put.id.clone(), due: put.due };
        // A requeued occurrence has a mark as long as it exists.
        let is_requeued = self.crashes.contains_key(&Member::requeued(&key));
        if !self.may_put(mode, &member) {
            return refused(PutResult::Mismatch, None);
        }
        let mut waits = || {
            new_dues.entry(&put.lane).and_modify(|due| *due = put.due.min(*due)).or_insert(put.due);
        };
        let Some((lane, score)) = self.place(&member) else {
            if is_requeued {
                return refused(PutResult::InFlight, Some(put.due));
            }
            waits();
            self.write(&member, put, false);
            self.crashes.remove(&member);
            self.pauses.remove(&member);
            self.set_score(&put.lane, &member, put.due.as_millis());
            return PutAnswer { result: PutResult::Created, due: put.due, in_flight: None, paused: false };
        };
        let (held, paused) = (due_of_score(score), self.pauses.contains_key(&member));
        let in_flight = score < 0;
        let change = self.changes.get(&member).copied();
        let mark = self.mark(&member, held).filter(|_| !in_flight);
        // An unreadable occurrence was published only if its mark has a count.
        let marked = mark.is_some_and(|mark| mark.count.is_some());
        let cancelled = change == Some(Change::Cancelled);
        let equal = self.tasks.get(&member).is_some_and(|old| tail(old) == tail(&put.record));
        if !cancelled {
            let comes = match change {
                Some(Change::Due(due)) => due,
                _ => held,
            };
            let former = change.map(|_| held);
            let unchanged = PutAnswer { result: PutResult::Unchanged, due: comes, in_flight: former, paused };
            if mode == PutMode::Post && !equal {
                return refused(PutResult::KeyReused, None);
            }
            if equal && (mode == PutMode::Post || !has(&put.record, RESETS)) {
                return unchanged;
            }
            // An `in` that leads to the same due changes nothing: a second message, with another trace, must not use the
            // key, and a call that is sent twice is one put.
            if equal && change.is_none() && put.due == held {
                return unchanged;
            }
        }
        if in_flight {
            // Refused: another message would use the key of the one in flight, or a claim would hold a task of another
            // lane.
            if put.due == held || put.lane != lane {
                return refused(PutResult::InFlight, Some(held));
            }
            if is_requeued {
                return refused(PutResult::InFlight, Some(put.due));
            }
            self.write(&member, put, !cancelled);
            self.changes.insert(member, Change::Due(put.due));
            let result = if cancelled { PutResult::Created } else { PutResult::Replaced };
            return PutAnswer { result, due: put.due, in_flight: Some(held), paused };
        }
        if (marked && put.due == held) || is_requeued {
            return refused(PutResult::InFlight, Some(put.due));
        }
        let named = marked.then_some(held);
        if put.due != held || mark.is_some() {
            self.crashes.remove(&member);
        }
        if !paused {
            waits();
        }
        self.write(&member, put, true);
        if put.lane != lane {
            self.remove_score(&lane, &member);
        }
        self.set_score(&put.lane, &member, if paused { paused_score(put.due) } else { put.due.as_millis() });
        PutAnswer { result: PutResult::Replaced, due: put.due, in_flight: named, paused }
    }

    /// Whether the task is one that the mode allows to put.
    fn may_put(&self, mode: PutMode, member: &Member) -> bool {
        let stands = self.place(member).is_some() && self.changes.get(member) != Some(&Change::Cancelled);
        match mode {
            PutMode::Put | PutMode::Post => true,
            PutMode::Match(revision) => stands && self.has_revision(member, revision),
            PutMode::Absent => !stands,
        }
    }

    /// Whether a task has this revision.
    pub(super) fn has_revision(&self, member: &Member, revision: TaskRevision) -> bool {
        let record = self.tasks.get(member);
        record.and_then(|record| record.get(REVISION.start..CREATED.end)) == Some(&revision.bytes()[..])
    }

    /// Stores the record and resets the counters. With `replaces`, the revision continues from the stored record.
    fn write(&mut self, member: &Member, put: &Put, replaces: bool) {
        let old = self.tasks.get(member).filter(|_| replaces);
        let replaced = old.and_then(|old| replacing(&put.record, old).ok());
        self.note_size(put.record.len());
        self.tasks.insert(member.clone(), replaced.unwrap_or_else(|| put.record.clone()));
        self.counts.remove(member);
        self.lanes.insert(put.lane.clone());
    }

    /// Removes a task; with `revision`, only if it has this one. If a claim holds it, the task ends with that claim.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn cancel(
        &mut self,
        now: Timestamp,
        id: &TaskId,
        revision: Option<TaskRevision>,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<CancelAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let member = Member::from(id);
        let Some((lane, score)) = self.place(&member) else {
            return Ok(AnswerWithWakes::quietly(CancelAnswer::Unknown));
        };
        if revision.is_some_and(|revision| !self.has_revision(&member, revision)) {
            let is_cancelled = self.changes.get(&member) == Some(&Change::Cancelled);
            let answer = if is_cancelled { CancelAnswer::Unknown } else { CancelAnswer::Mismatch };
            return Ok(AnswerWithWakes::quietly(answer));
        }
        let due = due_of_score(score);
        self.pauses.remove(&member);
        if score < 0 {
            self.changes.insert(member.clone(), Change::Cancelled);
            self.counts.remove(&member);
            return Ok(AnswerWithWakes::quietly(CancelAnswer::InFlight { due }));
        }
        let handed_out = self.mark(&member, due).filter(|mark| mark.count.is_some()).map(|mark| mark.due);
        self.end(&lane, &member);
        Ok(AnswerWithWakes::quietly(CancelAnswer::Cancelled { handed_out }))
    }

    /// Reads a task.
    #[must_use]
    pub fn get(&self, id: &TaskId) -> Option<StoredTask> {
        let member = Member::from(id);
        let record = self.tasks.get(&member)?;
        let score = self.score_in(&lane_of(record)?, &member)?;
        let changed = match self.changes.get(&member) {
            Some(Change::Cancelled) => return None,
            Some(Change::Due(due)) => Some(*due),
            None => None,
        };
        let due = due_of_score(score);
        Some(StoredTask {
            record: record.clone(),
            due,
            in_flight: score < 0,
            due_after_claim: changed,
            counts: self.counts.get(&member).copied().unwrap_or_default(),
            unreadable: score > 0 && self.mark(&member, due).is_some_and(|it| it.unreadable),
            pause: self.pauses.get(&member).cloned(),
        })
    }
}
