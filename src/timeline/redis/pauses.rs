//! The request that pauses or resumes a lane.

use super::call::Call;
use super::reply::Reply;
use super::request::Request;
use super::verbs::lane;
use crate::clock::Timestamp;
use crate::task::Lane;
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{LanePauseAnswer, LanePauseRequest, LanePauseResult, TimelineError};

/// Pauses or resumes a lane.
pub(super) struct PauseLane<'a> {
    pub(super) request: &'a LanePauseRequest,
    pub(super) not_after: Timestamp,
}

impl Request for PauseLane<'_> {
    type Answer = LanePauseAnswer;

    const SCRIPT: &'static Script = &scripts::PAUSE_LANE;
    const IS_FOR_USER: bool = true;
    /// The first copy may have resumed the lane.
    const UNSURE: &'static [Code] = &[Code::Unchanged];

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, _: &Keys, lanes: &[Lane]) {
        let (verb, until, about) = match self.request {
            LanePauseRequest::Pause { until, about } => ("pause", *until, about.pack()),
            LanePauseRequest::Resume => ("resume", None, String::new()),
        };
        call.time("not_after", self.not_after)
            .arg("lane", lane(lanes))
            .arg("verb", verb)
            .arg("until", until.map_or(0, Timestamp::as_millis))
            .arg("about", about);
    }

    fn decode(&self, mut reply: Reply) -> Result<LanePauseAnswer, TimelineError> {
        let result = match reply.code {
            Code::Paused => LanePauseResult::Paused,
            Code::Resumed => LanePauseResult::Resumed,
            Code::Unchanged => LanePauseResult::Unchanged,
            _ => return Err(reply.unexpected()),
        };
        Ok(LanePauseAnswer { result, in_flight: reply.fields().count()? })
    }
}
