//! The verb move_due.

use std::time::Duration;

use super::twin::{AnswerWithWakes, Change, Twin};
use crate::clock::Timestamp;
use crate::task::{Member, TaskId};
use crate::timeline::pauses::{due_of_score, paused_score};
use crate::timeline::{MoveAnswer, MoveRequest, TimelineError};

impl Twin {
    /// Gives a task that no claim holds another due.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn move_due(
        &mut self,
        now: Timestamp,
        id: &TaskId,
        request: &MoveRequest,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<MoveAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let member = Member::from(id);
        let is_cancelled = self.changes.get(&member) == Some(&Change::Cancelled);
        let Some((lane, score)) = self.place(&member).filter(|_| !is_cancelled) else {
            return Ok(AnswerWithWakes::quietly(MoveAnswer::Unknown));
        };
        let held = due_of_score(score);
        if score < 0 {
            return Ok(AnswerWithWakes::quietly(MoveAnswer::InFlight { due: held }));
        }
        let (due, is_trigger) = match request {
            MoveRequest::Skip(skip) if skip.from != held || !self.has_revision(&member, skip.revision) => {
                return Ok(AnswerWithWakes::quietly(MoveAnswer::Mismatch { due: held }));
            }
            MoveRequest::Skip(skip) => (skip.to, false),
            // The clock has reached every due that was claimed, so the next millisecond is later than all of them.
            MoveRequest::Trigger { new_key } => {
                let soon = now.plus(Duration::from_millis(1));
                let keeps_due = held <= soon && (!new_key || score == held.as_millis());
                (if keeps_due { held } else { soon }, true)
            }
        };
        if due == held && (!is_trigger || score == held.as_millis()) {
            return Ok(AnswerWithWakes::quietly(MoveAnswer::Unchanged { due }));
        }
        let before = self.head(&lane);
        let pause = self.pauses.get_mut(&member);
        let stays = pause.is_some() && !is_trigger;
        if let Some(pause) = pause.filter(|_| is_trigger) {
            pause.pass = Some(due);
        }
        self.turn(&lane, &member, if stays { paused_score(due) } else { due.as_millis() });
        if let MoveRequest::Skip(skip) = request {
            self.counts.insert(member.clone(), skip.counts);
        }
        let mut handed_out = None;
        if due != held {
            handed_out = self.mark(&member, held).filter(|mark| mark.count.is_some()).map(|_| held);
            self.crashes.remove(&member);
        }
        let wakes = if stays { Vec::new() } else { self.wake_for(now, &lane, before, &[due]).into_iter().collect() };
        Ok(AnswerWithWakes { answer: MoveAnswer::Moved { due, handed_out }, wakes })
    }
}
