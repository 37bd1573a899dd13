//! The requests that pause or resume a task or a lane.

use tokio::time::Instant;

use super::RedisTimeline;
use super::call::Call;
use super::reply::Reply;
use super::request::Request;
use super::verbs::lane;
use crate::clock::Timestamp;
use crate::task::{Lane, TaskId};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{
    LanePauseAnswer, LanePauseRequest, LanePauseResult, TaskPauseAnswer, TaskPauseRequest, TimelineError,
};

/// Pauses or resumes a task.
pub(super) struct PauseTask<'a> {
    pub(super) id: &'a TaskId,
    pub(super) request: &'a TaskPauseRequest,
    pub(super) not_after: Timestamp,
}

impl Request for PauseTask<'_> {
    type Answer = TaskPauseAnswer;

    const SCRIPT: &'static Script = &scripts::PAUSE;
    const IS_FOR_USER: bool = true;
    /// The first copy may have paused the task, or have resumed it, and then it may have been published and have ended.
    const UNSURE: &'static [Code] = &[Code::Unchanged, Code::Unknown];

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        let (verb, about) = match self.request {
            TaskPauseRequest::Pause(about) => ("pause", about.pack()),
            TaskPauseRequest::Resume => ("resume", String::new()),
        };
        call.time("not_after", self.not_after)
            .arg("id", self.id.as_str())
            .arg("action", verb)
            .arg("about", about)
            .arg("wake", keys.wake())
            .lanes(lanes);
    }

    fn decode(&self, mut reply: Reply) -> Result<TaskPauseAnswer, TimelineError> {
        let code = reply.code;
        let fields = reply.fields();
        match code {
            Code::Unknown => Ok(TaskPauseAnswer::Unknown),
            Code::Unchanged => Ok(TaskPauseAnswer::Unchanged { due: fields.time()? }),
            Code::Paused => Ok(TaskPauseAnswer::Paused { due: fields.time()?, in_flight: fields.optional_time()? }),
            Code::Resumed => Ok(TaskPauseAnswer::Resumed { due: fields.time()?, in_flight: fields.optional_time()? }),
            _ => Err(reply.unexpected()),
        }
    }
}

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
            .arg("action", verb)
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

impl RedisTimeline {
    /// See [`Layout::allow_pauses`]. Does nothing if the stored layout allows them, or if `exists` finds nothing to pause:
    /// a mistyped id must not make older versions refuse this Redis. Returns whether pauses are allowed.
    pub(super) async fn allow_pauses(
        &self,
        exists: impl Future<Output = Result<bool, TimelineError>> + Send,
    ) -> Result<bool, TimelineError> {
        let (routes, until) = (&self.nodes.routes, Instant::now() + self.response_timeout);
        let namespace = routes.namespace();
        let mut session = routes.session_by(namespace, until).await.map_err(TimelineError::Unavailable)?;
        let mut allowed = self.layout.allows_pauses(&session).await;
        if let Err(TimelineError::Unavailable(detail)) = &allowed
            && self.nodes.is_cluster()
        {
            // Another node may have the layout now.
            routes.away(namespace, &session, detail);
            session = routes.session_by(namespace, until).await.map_err(TimelineError::Unavailable)?;
            allowed = self.layout.allows_pauses(&session).await;
        }
        if allowed? {
            return Ok(true);
        }
        if !exists.await? {
            return Ok(false);
        }
        self.layout.allow_pauses(&session).await.map(|()| true)
    }
}
