//! The verbs pause and pause_lane.

use super::twin::{AnswerWithWakes, Change, Twin};
use crate::clock::Timestamp;
use crate::task::{Lane, Member, TaskId};
use crate::timeline::pauses::{due_of_score, paused_score};
use crate::timeline::{
    CountRequest, LanePause, LanePauseAnswer, LanePauseRequest, LanePauseResult, TaskPause, TaskPauseAnswer,
    TaskPauseRequest, TimelineError,
};

impl Twin {
    /// Pauses or resumes a task.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn pause(
        &mut self,
        now: Timestamp,
        id: &TaskId,
        request: &TaskPauseRequest,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<TaskPauseAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let member = Member::from(id);
        let change = self.changes.get(&member).copied();
        let Some((lane, score)) = self.place(&member).filter(|_| change != Some(Change::Cancelled)) else {
            return Ok(AnswerWithWakes::quietly(TaskPauseAnswer::Unknown));
        };
        let (held, in_flight) = (due_of_score(score), score < 0);
        let due = if let Some(Change::Due(due)) = change { due } else { held };
        let (before, pause) = (self.head(&lane), self.pauses.get(&member));
        match request {
            TaskPauseRequest::Pause(about) if !pause.is_some_and(|pause| pause.keeps_back(held)) => {
                let pause = TaskPause { pass: None, at: now, about: about.clone() };
                self.pauses.insert(member.clone(), pause);
                if !in_flight {
                    self.turn(&lane, &member, paused_score(held));
                }
                let handed_out = self.mark(&member, held).is_some_and(|mark| mark.count.is_some());
                let in_flight = (in_flight || handed_out).then_some(held);
                Ok(AnswerWithWakes::quietly(TaskPauseAnswer::Paused { due, in_flight }))
            }
            TaskPauseRequest::Resume if pause.is_some() => {
                self.pauses.remove(&member);
                let answer = TaskPauseAnswer::Resumed { due, in_flight: in_flight.then_some(held) };
                if in_flight {
                    return Ok(AnswerWithWakes::quietly(answer));
                }
                self.turn(&lane, &member, held.as_millis());
                let wakes = self.wake_for(now, &lane, before, &[held]).into_iter().collect();
                Ok(AnswerWithWakes { answer, wakes })
            }
            TaskPauseRequest::Pause(_) | TaskPauseRequest::Resume => {
                Ok(AnswerWithWakes::quietly(TaskPauseAnswer::Unchanged { due }))
            }
        }
    }

    /// Pauses or resumes a lane.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn pause_lane(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        request: &LanePauseRequest,
        not_after: Timestamp,
    ) -> Result<AnswerWithWakes<LanePauseAnswer>, TimelineError> {
        if now > not_after {
            return Err(TimelineError::Late);
        }
        let in_flight = self.count(now, lane, &CountRequest::default()).in_flight;
        let result = match request {
            LanePauseRequest::Pause { until, about } => {
                let pause = LanePause { until: *until, at: now, about: about.clone() };
                self.paused_lanes.insert(lane.clone(), pause);
                LanePauseResult::Paused
            }
            LanePauseRequest::Resume => match self.paused_lanes.remove(lane).filter(|pause| pause.holds(now)) {
                Some(_) => LanePauseResult::Resumed,
                None => LanePauseResult::Unchanged,
            },
        };
        Ok(AnswerWithWakes::quietly(LanePauseAnswer { result, in_flight }))
    }

    /// The pause of a lane, if it is paused at `now`.
    pub(super) fn pause_of(&self, now: Timestamp, lane: &Lane) -> Option<&LanePause> {
        self.paused_lanes.get(lane).filter(|pause| pause.holds(now))
    }
}
