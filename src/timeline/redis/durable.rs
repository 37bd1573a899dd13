//! Waits until Redis confirms that a write has reached a replica (`WAIT`) or the disk (`WAITAOF`).
//!
//! Both commands block their connection and confirm only the writes of that connection. Therefore a session has a
//! second connection for them, to the same Redis process ([`wait_connection`](super::wait_connection)). It is made before
//! the first write.
//!
//! Puts, cancels, requeues, discards, pauses and moves are answered only after this confirmation.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::RedisTimeline;
use super::cluster::IS_MOVING;
use super::routes::Slot;
use super::server::Advice;
use super::session::{CallError, Session, detail};
use super::wait_connection::{TWO_SERVERS, server_process};
use crate::clock::Timestamp;
use crate::task::Shard;
use crate::timeline::{
    CancelAnswer, LanePauseAnswer, MoveAnswer, PutAnswer, PutResult, RequeueAnswer, TaskPauseAnswer, Timeline,
    TimelineError,
};

/// Upper bound of one wait.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(3600);

/// A test write that is not confirmed within this time causes a warning, or with `strict` the refusal of this Redis. It
/// is well above `appendfsync everysec`.
const PROOF_TIMEOUT: Duration = Duration::from_secs(3);

string_enum! {
    /// Where a put, cancel, requeue, discard, pause or move must have been written before it is answered.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Durability {
        /// In the memory of Redis. How much a crash loses depends on the persistence of Redis.
        #[default]
        Memory = "memory",
        /// On at least one replica.
        Replica = "replica",
        /// On the disk of Redis. Needs `WAITAOF` (Redis 7.2) and `appendonly yes`.
        Fsync = "fsync",
    }
}

impl Durability {
    /// The command that waits at most this long.
    pub(super) fn wait(self, limit: Duration) -> Cmd {
        let mut wait = redis::cmd(if self == Durability::Fsync { "WAITAOF" } else { "WAIT" });
        wait.arg(1);
        if self == Durability::Fsync {
            wait.arg(0);
        }
        // 0 would wait for ever.
        wait.arg(u64::try_from(limit.min(MAX_WAIT).as_millis()).unwrap_or(u64::MAX).max(1));
        wait
    }

    /// Whether the reply confirms the write.
    pub(super) fn is_reached(self, answer: &Value) -> bool {
        let number = match (self, answer) {
            (Durability::Fsync, Value::Array(numbers)) => numbers.first(),
            (_, answer) => Some(answer),
        };
        matches!(number, Some(Value::Int(1..)))
    }

    pub(super) fn not_reached(self) -> &'static str {
        match self {
            Durability::Memory => "it is in memory alone",
            Durability::Replica => "no replica has confirmed it in time",
            Durability::Fsync => "Redis did not confirm in time that it is on its disk",
        }
    }
}

/// Why a Redis cannot confirm writes.
pub(super) enum ConfirmError {
    /// It does not support the command, or its ACL forbids it.
    Unsupported(String),
    /// Another error. The next attempt may succeed.
    Temporary(String),
}

/// Checks that Redis can confirm writes, and that `wait_session` leads to the same process as `session`. Two connections to one
/// address can lead to two processes.
pub(super) async fn can_confirm(
    durability: Durability,
    session: &Session,
    wait_session: Option<&Session>,
    answer_timeout: Duration,
) -> Result<(), ConfirmError> {
    let probe = match durability {
        Durability::Memory => return Ok(()),
        Durability::Replica => redis::cmd("WAIT").arg(0).arg(1).to_owned(),
        // Requests one confirmation, so that Redis replies with an error if it has no append-only file.
        Durability::Fsync => durability.wait(Duration::ZERO),
    };
    let describe = |failure| confirm_error(durability, failure);
    if let Some(wait_session) = wait_session {
        let (one, other) = (
            server_process(session, answer_timeout).await.map_err(describe)?,
            server_process(wait_session, answer_timeout).await.map_err(describe)?,
        );
        if one != other {
            return Err(ConfirmError::Temporary(TWO_SERVERS.to_owned()));
        }
    }
    session.ask(&probe, answer_timeout, None).await.map(drop).map_err(describe)
}

fn confirm_error(durability: Durability, failure: CallError) -> ConfirmError {
    match failure {
        // A server that has just become a replica also answers `WAIT` with `ERR`; that is temporary.
        CallError::Refused(error)
            if matches!(error.code(), "ERR" | "NOPERM") && !detail(&error).contains("replica instances") =>
        {
            let needs = match durability {
                Durability::Fsync => "`appendonly yes`, `WAITAOF`, which there is since Redis 7.2,",
                _ => "`WAIT`",
            };
            let name = durability.as_str();
            ConfirmError::Unsupported(format!(
                "`redis.durability = \"{name}\"` needs {needs} and `INFO`; this Redis answered: {}",
                detail(&error)
            ))
        }
        failure => ConfirmError::Temporary(failure.to_string()),
    }
}

/// An answer that is given only once its write is confirmed. An answer that depends on an earlier write waits too,
/// because the caller may have received the error that this earlier write is not confirmed.
pub(super) trait DurableAnswer: Sized {
    /// The beginning of the error if the write is not confirmed. `None` if the answer does not depend on a write.
    fn unsure(&self) -> Option<&'static str>;

    /// The result when the write is not confirmed.
    fn unconfirmed(self, detail: &str) -> Result<Self, TimelineError> {
        match self.unsure() {
            Some(unsure) => Err(TimelineError::Unconfirmed(format!("{unsure}: {detail}"))),
            None => Ok(self),
        }
    }
}

const UNCONFIRMED: &str = "it took effect, but its durability is not confirmed";

/// Used when an earlier call may have removed the task.
const UNCONFIRMED_ABSENCE: &str = "there is no such task, but it is not confirmed that this is durable";

impl DurableAnswer for PutAnswer {
    fn unsure(&self) -> Option<&'static str> {
        matches!(self.result, PutResult::Created | PutResult::Replaced | PutResult::Unchanged).then_some(UNCONFIRMED)
    }
}

impl DurableAnswer for Vec<PutAnswer> {
    fn unsure(&self) -> Option<&'static str> {
        self.iter().find_map(DurableAnswer::unsure)
    }

    /// Refused tasks stay refused; all others become `unconfirmed`, also unchanged ones.
    fn unconfirmed(mut self, detail: &str) -> Result<Self, TimelineError> {
        if self.iter().all(|answer| answer.unsure().is_some()) {
            return Err(TimelineError::Unconfirmed(format!("{UNCONFIRMED}: {detail}")));
        }
        let unsure = self.iter_mut().filter(|answer| answer.unsure().is_some());
        unsure.for_each(|answer| answer.result = PutResult::Unconfirmed);
        Ok(self)
    }
}

impl DurableAnswer for CancelAnswer {
    fn unsure(&self) -> Option<&'static str> {
        match self {
            CancelAnswer::Cancelled { .. } | CancelAnswer::InFlight { .. } => Some(UNCONFIRMED),
            CancelAnswer::Unknown => Some(UNCONFIRMED_ABSENCE),
            CancelAnswer::Mismatch => None,
        }
    }
}

impl DurableAnswer for RequeueAnswer {
    fn unsure(&self) -> Option<&'static str> {
        match self {
            RequeueAnswer::Requeued => Some(UNCONFIRMED),
            RequeueAnswer::InFlight | RequeueAnswer::Unreadable => None,
            RequeueAnswer::Unknown => Some(UNCONFIRMED_ABSENCE),
        }
    }
}

impl DurableAnswer for TaskPauseAnswer {
    fn unsure(&self) -> Option<&'static str> {
        Some(if *self == TaskPauseAnswer::Unknown { UNCONFIRMED_ABSENCE } else { UNCONFIRMED })
    }
}

impl DurableAnswer for MoveAnswer {
    fn unsure(&self) -> Option<&'static str> {
        match self {
            MoveAnswer::Moved { .. } | MoveAnswer::Unchanged { .. } => Some(UNCONFIRMED),
            MoveAnswer::InFlight { .. } | MoveAnswer::Mismatch { .. } => None,
            MoveAnswer::Unknown => Some(UNCONFIRMED_ABSENCE),
        }
    }
}

impl DurableAnswer for LanePauseAnswer {
    fn unsure(&self) -> Option<&'static str> {
        Some(UNCONFIRMED)
    }
}

/// The answer of a discard.
impl DurableAnswer for bool {
    fn unsure(&self) -> Option<&'static str> {
        Some(if *self { UNCONFIRMED } else { UNCONFIRMED_ABSENCE })
    }
}

/// The advice for a Redis that does not confirm even one write, for example with `appendfsync no`.
pub(super) async fn unproven(session: &Session, durability: Durability) -> Option<Advice> {
    if durability == Durability::Memory {
        return None;
    }
    // A Redis that cannot confirm at all is reported elsewhere.
    let detail = session.confirmations().ok()?.confirm(durability, Instant::now() + PROOF_TIMEOUT).await.err()?;
    Some(Advice::unproven(durability, &detail, PROOF_TIMEOUT)).filter(|_| !session.broken())
}

impl RedisTimeline {
    /// Runs a call and returns its answer only once the write behind it is confirmed.
    pub(super) async fn durably<T: DurableAnswer>(
        &self,
        shard: Shard,
        not_after: Timestamp,
        call: impl Future<Output = Result<T, TimelineError>>,
    ) -> Result<T, TimelineError> {
        if self.durability == Durability::Memory {
            return call.await;
        }
        // Taken before the call is sent: a later session may lead to another process, which does not know of the write.
        let until = Instant::now() + not_after.since(self.clock(shard).now());
        let routes = &self.nodes.routes;
        let session = routes.session_by(Slot::of(shard), until).await.map_err(TimelineError::Unavailable)?;
        let confirmations = session.confirmations().map_err(|detail| TimelineError::Refused(detail.to_owned()))?;
        let answer = call.await?;
        if answer.unsure().is_none() {
            return Ok(answer);
        }
        let until = Instant::now() + not_after.since(self.clock(shard).now()).min(MAX_WAIT);
        match confirmations.confirm(self.durability, until).await {
            Err(detail) => answer.unconfirmed(&detail),
            // The call may have run on a later session, which is only made after this one is given up.
            Ok(()) if session.broken() => answer.unconfirmed(&session.reason()),
            // Or on that of another node, because the slot has moved, which may be unknown here.
            Ok(()) if self.nodes.is_cluster() && !self.nodes.has_slot(&session, Slot::of(shard)).await => {
                answer.unconfirmed(IS_MOVING)
            }
            Ok(()) => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durability_wait_is_bounded_and_its_reply_is_evaluated() {
        let packed = |wait: Cmd| String::from_utf8(wait.get_packed_command()).unwrap();
        assert!(packed(Durability::Replica.wait(Duration::ZERO)).ends_with("WAIT\r\n$1\r\n1\r\n$1\r\n1\r\n"));
        assert!(packed(Durability::Fsync.wait(Duration::MAX)).ends_with("\r\n$1\r\n1\r\n$1\r\n0\r\n$7\r\n3600000\r\n"));
        let two = |local, replicas| Value::Array(vec![Value::Int(local), Value::Int(replicas)]);
        for (durability, answer, reached) in [
            (Durability::Replica, Value::Int(0), false),
            (Durability::Replica, Value::Int(2), true),
            (Durability::Fsync, two(0, 3), false),
            (Durability::Fsync, two(1, 0), true),
            (Durability::Fsync, Value::Array(Vec::new()), false),
        ] {
            assert_eq!(durability.is_reached(&answer), reached, "{durability:?} {answer:?}");
        }
    }
}
