//! Waits until Redis confirms that a write has reached a replica (`WAIT`) or the disk (`WAITAOF`).
//!
//! Both commands block their connection and confirm only the writes of that connection. Therefore a session has a
//! second connection for them, to the same Redis process. It is made before the first write.
//!
//! Redis versions differ in what counts as a connection's writes. Before 7.2 it is everything that the server had
//! written when the last command of the connection ended. Since 7.2 it is only the last write of the connection itself.
//! Therefore each wait is sent behind a small write of its own, which comes after every write that was answered before.
//!
//! Callers share waits: all that ask during one wait share the next one. If the second connection is lost, another one
//! is made to the same process and the wait is repeated there. Calls on the first connection are not affected.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::RedisTimeline;
use super::call::{CallError, detail};
use super::link::Connector;
use super::server::Advice;
use super::session::Session;
use crate::clock::Timestamp;
use crate::timeline::{CancelAnswer, PutAnswer, PutResult, RequeueAnswer, TimelineError};

/// Writes a field and deletes it again, so that nothing is left. It begins with HDEL because a full Redis allows HDEL
/// as the first write of a script, and after it the others.
const WRITE: &str =
    "redis.call('HDEL', KEYS[1], '') redis.call('HSET', KEYS[1], '', '') return redis.call('HDEL', KEYS[1], '')";

/// Upper bound of one wait.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// How often an idle connection is used, so that no proxy or firewall closes it.
const KEPT_ALIVE: Duration = Duration::from_secs(1);

/// A warning is logged if the first write is not confirmed within this time, which is well above `appendfsync
/// everysec`.
const PROOF_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause before the next attempt to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

words! {
    /// Where a put, cancel, requeue or discard must have been written before it is answered.
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
    fn is_reached(self, answer: &Value) -> bool {
        let number = match (self, answer) {
            (Durability::Fsync, Value::Array(numbers)) => numbers.first(),
            (_, answer) => Some(answer),
        };
        matches!(number, Some(Value::Int(1..)))
    }

    fn not_reached(self) -> &'static str {
        match self {
            Durability::Memory => "it is in memory alone",
            Durability::Replica => "no replica has confirmed it in time",
            Durability::Fsync => "Redis did not confirm in time that it is on its disk",
        }
    }
}

/// Confirms writes of a session.
pub(super) struct WaitConnection {
    ask: mpsc::UnboundedSender<Asked>,
    waiting: AbortHandle,
}

struct Asked {
    until: Instant,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Drop for WaitConnection {
    fn drop(&mut self) {
        self.waiting.abort();
    }
}

impl WaitConnection {
    /// Waits on `line`, a connection beside `session` to the same process.
    pub(super) fn new(connector: &Connector, session: &Session, line: Session, key: String) -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        let mut write = redis::cmd("EVAL");
        write.arg(WRITE).arg(1).arg(key);
        debug_assert!(session.witness.is_none(), "otherwise both would keep each other alive");
        let line = Line { connector: connector.clone(), beside: session.clone(), line, write };
        WaitConnection { ask, waiting: tokio::spawn(line.serve(asked)).abort_handle() }
    }

    /// Returns once every write that was answered before this call is confirmed, or an error text if it is not.
    pub(super) async fn confirm(&self, durability: Durability, until: Instant) -> Result<(), String> {
        let (answer, said) = oneshot::channel();
        let lost = || "the connection was lost meanwhile".to_owned();
        self.ask.send(Asked { until, answer }).map_err(|_| lost())?;
        match timeout_at(until, said).await {
            Ok(said) => said.unwrap_or_else(|_| Err(lost())),
            Err(_) => Err(durability.not_reached().to_owned()),
        }
    }
}

/// The task that waits on the second connection.
struct Line {
    connector: Connector,
    /// The session whose writes are confirmed.
    beside: Session,
    line: Session,
    write: Cmd,
}

impl Line {
    /// Answers callers until the session is lost.
    async fn serve(mut self, mut asked: mpsc::UnboundedReceiver<Asked>) {
        while !self.beside.broken() {
            let first = tokio::select! {
                first = asked.recv() => first,
                () = tokio::time::sleep(KEPT_ALIVE) => {
                    if let Err(CallError::Unanswered(reason)) = self.ask(&redis::cmd("PING"), Duration::ZERO).await {
                        self.renew(&reason).await;
                    }
                    continue;
                }
            };
            let Some(first) = first else { return };
            let mut together = vec![first];
            while let Ok(next) = asked.try_recv() {
                together.push(next);
            }
            self.answer(together).await;
        }
    }

    /// Waits once for all callers. If the connection is lost, it repeats the wait on another one.
    async fn answer(&mut self, mut together: Vec<Asked>) {
        let said = loop {
            together.retain(|one| !one.answer.is_closed());
            let Some(until) = together.iter().map(|one| one.until).max() else { return };
            match self.wait(until).await {
                Err(CallError::Unanswered(reason)) if !self.beside.broken() => self.renew(&reason).await,
                Ok(true) => break Ok(()),
                Ok(false) => break Err(self.connector.durability.not_reached().to_owned()),
                Err(failure) => break Err(failure.to_string()),
            }
        };
        for one in together {
            // An error means that the caller has stopped waiting.
            drop(one.answer.send(said.clone()));
        }
    }

    /// Whether the writes are confirmed before `until`.
    async fn wait(&self, until: Instant) -> Result<bool, CallError> {
        self.ask(&self.write, Duration::ZERO).await?;
        let left = until.saturating_duration_since(Instant::now());
        let durability = self.connector.durability;
        let answer = self.ask(&durability.wait(left), left.min(MAX_WAIT)).await?;
        Ok(durability.is_reached(&answer))
    }

    /// Sends a command. Waits for `longer` in addition to the usual response timeout.
    async fn ask(&self, command: &Cmd, longer: Duration) -> Result<Value, CallError> {
        let answer = self.line.ask(command, longer + self.connector.response_timeout, None).await;
        if matches!(answer, Err(CallError::Refused(_))) && self.line.broken() {
            // The server has become a replica, so the writes of the session may be lost.
            self.beside.break_off(&self.line.reason());
        }
        answer
    }

    /// Makes another connection to the same process.
    async fn renew(&mut self, reason: &str) {
        tracing::debug!(reason, "lost the connection that confirms writes; reconnecting");
        while !self.beside.broken() {
            if let Ok(line) = self.connector.beside(&self.beside).await {
                let patience = self.connector.response_timeout;
                match (process(&self.beside, patience).await, process(&line, patience).await) {
                    (Ok(one), Ok(other)) if one == other => {
                        self.line = line;
                        return;
                    }
                    (Ok(_), Ok(_)) => self.beside.break_off(TWO_SERVERS),
                    _ => {}
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

const TWO_SERVERS: &str = "two connections to it lead to two servers";

/// Why a Redis cannot confirm writes.
pub(super) enum Unable {
    /// It does not support the command, or its ACL forbids it.
    Never(String),
    /// It replied with another error now.
    Now(String),
}

/// Checks that Redis can confirm writes, and that `line` leads to the same process as `session`. Two connections to one
/// address can lead to two processes.
pub(super) async fn able(
    durability: Durability,
    session: &Session,
    line: Option<&Session>,
    patience: Duration,
) -> Result<(), Unable> {
    let probe = match durability {
        Durability::Memory => return Ok(()),
        Durability::Replica => redis::cmd("WAIT").arg(0).arg(1).to_owned(),
        // Requests one confirmation, so that Redis replies with an error if it has no append-only file.
        Durability::Fsync => durability.wait(Duration::ZERO),
    };
    let told = |failure| unable(durability, failure);
    if let Some(line) = line {
        let (one, other) =
            (process(session, patience).await.map_err(told)?, process(line, patience).await.map_err(told)?);
        if one != other {
            return Err(Unable::Now(TWO_SERVERS.to_owned()));
        }
    }
    session.ask(&probe, patience, None).await.map(drop).map_err(told)
}

fn unable(durability: Durability, failure: CallError) -> Unable {
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
            Unable::Never(format!(
                "`redis.durability = \"{name}\"` needs {needs} and `INFO`; this Redis answered: {}",
                detail(&error)
            ))
        }
        failure => Unable::Now(failure.to_string()),
    }
}

/// The `run_id` of the server's process, which changes at each restart.
async fn process(session: &Session, patience: Duration) -> Result<String, CallError> {
    let info = session.ask(redis::cmd("INFO").arg("server"), patience, None).await?;
    let info: String = redis::from_redis_value(info).unwrap_or_default();
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned());
    id.ok_or_else(|| CallError::Unanswered("its `INFO` has no `run_id`".to_owned()))
}

/// An answer that is given only once the write behind it is confirmed. An answer that finds an earlier write must wait
/// too: its caller may have been told that this write was not confirmed.
pub(super) trait Promise: Sized {
    /// The beginning of the error if the write is not confirmed. `None` if the answer does not depend on a write.
    fn unsure(&self) -> Option<&'static str>;

    /// The result when the write is not confirmed.
    fn unkept(self, detail: &str) -> Result<Self, TimelineError> {
        match self.unsure() {
            Some(unsure) => Err(TimelineError::Unkept(format!("{unsure}: {detail}"))),
            None => Ok(self),
        }
    }
}

const DONE: &str = "it took effect, but its durability is not confirmed";

/// Used when an earlier call may have removed the task.
const GONE: &str = "there is none, but the durability of that is not confirmed";

impl Promise for PutAnswer {
    fn unsure(&self) -> Option<&'static str> {
        matches!(self.result, PutResult::Created | PutResult::Replaced | PutResult::Unchanged).then_some(DONE)
    }
}

impl Promise for Vec<PutAnswer> {
    fn unsure(&self) -> Option<&'static str> {
        self.iter().find_map(Promise::unsure)
    }

    /// Refused tasks stay refused; only the written ones become `unkept`.
    fn unkept(mut self, detail: &str) -> Result<Self, TimelineError> {
        if self.iter().all(|answer| answer.unsure().is_some()) {
            return Err(TimelineError::Unkept(format!("{DONE}: {detail}")));
        }
        let unsure = self.iter_mut().filter(|answer| answer.unsure().is_some());
        unsure.for_each(|answer| answer.result = PutResult::Unkept);
        Ok(self)
    }
}

impl Promise for CancelAnswer {
    fn unsure(&self) -> Option<&'static str> {
        Some(if *self == CancelAnswer::Unknown { GONE } else { DONE })
    }
}

impl Promise for RequeueAnswer {
    fn unsure(&self) -> Option<&'static str> {
        match self {
            RequeueAnswer::Requeued => Some(DONE),
            RequeueAnswer::InFlight | RequeueAnswer::Unreadable => None,
            RequeueAnswer::Unknown => Some(GONE),
        }
    }
}

/// The answer of a discard.
impl Promise for bool {
    fn unsure(&self) -> Option<&'static str> {
        Some(if *self { DONE } else { GONE })
    }
}

/// The advice for a Redis that does not confirm even one write, for example with `appendfsync no`.
pub(super) async fn unproven(session: &Session, durability: Durability) -> Option<Advice> {
    if durability == Durability::Memory {
        return None;
    }
    // A Redis that cannot confirm at all is reported elsewhere.
    let detail = session.witness().ok()?.confirm(durability, Instant::now() + PROOF_TIMEOUT).await.err()?;
    Some(Advice::unproven(durability, &detail, PROOF_TIMEOUT)).filter(|_| !session.broken())
}

impl RedisTimeline {
    /// Runs a call and returns its answer only once the write behind it is confirmed.
    pub(super) async fn durably<T: Promise>(
        &self,
        not_after: Timestamp,
        call: impl Future<Output = Result<T, TimelineError>>,
    ) -> Result<T, TimelineError> {
        if self.durability == Durability::Memory {
            return call.await;
        }
        // Taken before the call is sent: a later session may lead to another process, which does not know of the write.
        let session = self.hub.session().map_err(TimelineError::Away)?;
        let witness = session.witness().map_err(|detail| TimelineError::Refused(detail.to_owned()))?;
        let answer = call.await?;
        if answer.unsure().is_none() {
            return Ok(answer);
        }
        let until = Instant::now() + not_after.since(self.clock.now()).min(MAX_WAIT);
        match witness.confirm(self.durability, until).await {
            Err(detail) => answer.unkept(&detail),
            // The call may have run on a later session, which is only made after this one is given up.
            Ok(()) if session.broken() => answer.unkept(&session.reason()),
            Ok(()) => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_and_its_answer_counted() {
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
