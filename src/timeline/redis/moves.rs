//! The request that gives a task another due.

use super::call::Call;
use super::reply::Reply;
use super::request::Request;
use super::verbs::revision_bytes;
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, TaskId};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{MoveAnswer, MoveRequest, TimelineError};

/// Gives a task another due.
pub(super) struct MoveDue<'a> {
    pub(super) id: &'a TaskId,
    pub(super) request: &'a MoveRequest,
    pub(super) not_after: Timestamp,
}

impl Request for MoveDue<'_> {
    type Answer = MoveAnswer;

    const SCRIPT: &'static Script = &scripts::MOVE_DUE;
    const IS_FOR_USER: bool = true;
    /// The first copy may have moved the task, which may have been claimed and have ended since.
    const UNSURE: &'static [Code] = &[Code::Unchanged, Code::InFlight, Code::Mismatch, Code::Unknown];

    /// A second trigger would publish a second message.
    fn may_be_repeated(&self) -> bool {
        matches!(self.request, MoveRequest::Skip(_))
    }

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        let (skip, due) = match self.request {
            MoveRequest::Skip(skip) => (Some(skip), skip.to.as_millis().to_string()),
            MoveRequest::Trigger { new_key } => (None, if *new_key { "new".to_owned() } else { String::new() }),
        };
        call.time("not_after", self.not_after)
            .arg("id", self.id.as_str())
            .arg("due", due)
            .time("expected", skip.map(|skip| skip.from))
            .arg("revision", revision_bytes(skip.map(|skip| skip.revision)))
            .arg("counts", skip.map(|skip| Counts::pack(&skip.counts)).unwrap_or_default())
            .arg("wake", keys.wake())
            .lanes(lanes);
    }

    fn decode(&self, mut reply: Reply) -> Result<MoveAnswer, TimelineError> {
        let code = reply.code;
        let fields = reply.fields();
        match code {
            Code::Unknown => Ok(MoveAnswer::Unknown),
            Code::Moved => Ok(MoveAnswer::Moved { due: fields.time()?, handed_out: fields.optional_time()? }),
            Code::Unchanged => Ok(MoveAnswer::Unchanged { due: fields.time()? }),
            Code::InFlight => Ok(MoveAnswer::InFlight { due: fields.time()? }),
            Code::Mismatch => Ok(MoveAnswer::Mismatch { due: fields.time()? }),
            _ => Err(reply.unexpected()),
        }
    }
}
