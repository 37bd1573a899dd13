//! The verb pause_lane.

use super::twin::{AnswerWithWakes, Twin};
use crate::clock::Timestamp;
use crate::task::Lane;
use crate::timeline::{CountRequest, LanePause, LanePauseAnswer, LanePauseRequest, LanePauseResult, TimelineError};

impl Twin {
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
