//! Runs one script: sends the call, waits for the reply, and tells after a failure whether anything may have been
//! written.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, ServerError, ToRedisArgs, Value};
use tokio::time::Instant;

use super::RedisTimeline;
use super::reply::Reply;
use super::session::Session;
use crate::clock::{Clock, ManualClock, RedisClock, Timestamp};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{ALL, Code, Script};
use crate::timeline::{TimelineError, Verb};

/// Added to each wait for `not_after`, because scripts and timestamps round times down to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// Upper bound of the extra wait when the estimate of the server's clock is uncertain.
const DOUBT_MAX: Duration = Duration::from_secs(5);

static SHAS: LazyLock<HashMap<Verb, String>> = LazyLock::new(|| {
    ALL.iter().map(|script| (script.verb, redis::Script::new(script.source).get_hash().to_owned())).collect()
});

/// The clock that scripts use.
#[derive(Clone)]
pub(super) enum Time {
    /// The server's clock. Every reply updates the estimate of it.
    Server(Arc<RedisClock>),
    /// The clock of a test.
    Given(Arc<ManualClock>),
}

impl Time {
    /// The first argument of every script: empty for the server's clock.
    fn argument(&self) -> String {
        match self {
            Time::Server(_) => String::new(),
            Time::Given(clock) => clock.now().as_millis().to_string(),
        }
    }

    /// Updates the estimate of the server's clock from a reply.
    pub(super) fn observe(&self, sent: Instant, micros: i64) {
        if let Time::Server(clock) = self {
            clock.observe(sent, Instant::now(), micros);
        }
    }
}

/// A call that is ready to send: keys, then arguments.
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    /// A call with its keys and its first argument, the time. The last key is the one of the shard that never exists,
    /// so that a cluster refuses the call while it moves the slot (rule 1 of `lua/README.md`).
    pub(super) fn new(script: &'static Script, time: &Time, shard: &Keys, keys: &[String]) -> Call {
        debug_assert!(script.takes_keys(keys.len()), "{} does not take {} keys", script.verb.as_str(), keys.len());
        let mut command = redis::cmd("EVALSHA");
        command.arg(SHAS[&script.verb].as_str()).arg(keys.len() + 1).arg(keys);
        command.arg(shard.nothing());
        command.arg(time.argument());
        Call { script, command }
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Call {
        self.command.arg(argument);
        self
    }

    /// Adds an argument in place.
    pub(super) fn push(&mut self, argument: impl ToRedisArgs) {
        self.command.arg(argument);
    }
}

/// Why a command has no usable reply.
pub(super) enum CallError {
    /// The server replied with an error: nothing was written.
    Refused(ServerError),
    /// No reply arrived.
    Unanswered(String),
}

/// Maximum number of times one call loads its script, in case another client keeps flushing the scripts.
const MAX_LOADS: u32 = 5;

impl RedisTimeline {
    /// Starts a call of a script.
    pub(super) fn script(&self, script: &'static Script, shard: &Keys, keys: &[String]) -> Call {
        Call::new(script, &self.time, shard, keys)
    }

    /// Sends a call. With `not_after`, it returns [`TimelineError::Unknown`] only after that time.
    pub(super) async fn call(&self, call: Call, not_after: Option<Timestamp>) -> Result<Reply, TimelineError> {
        let expiry = not_after.map(|not_after| CallExpiry::new(self.clock.clone(), not_after));
        let session = self.hub.session().map_err(TimelineError::Away)?;
        let mut loads = 0;
        loop {
            let sent = Instant::now();
            match session.ask(&call.command, self.response_timeout, expiry.as_ref()).await {
                Ok(value) => {
                    session.answered();
                    let reply = Reply::read(value).map_err(|error| named(call.script, error))?;
                    self.time.observe(sent, reply.micros);
                    return if reply.code == Code::Late { Err(TimelineError::Late) } else { Ok(reply) };
                }
                Err(CallError::Refused(error)) if error.code() == "NOSCRIPT" && loads < MAX_LOADS => {
                    // After SCRIPT FLUSH or a failover the script is missing. Nothing ran, so the call can be sent
                    // again once the script is loaded. Other scripts are loaded by their own calls.
                    loads += 1;
                    let loaded = load(&session, call.script, self.response_timeout).await;
                    loaded.map_err(|failure| match failure {
                        CallError::Refused(error) => TimelineError::Refused(detail(&error)),
                        CallError::Unanswered(reason) => TimelineError::Away(reason),
                    })?;
                }
                Err(CallError::Refused(error)) => return Err(TimelineError::Refused(detail(&error))),
                Err(CallError::Unanswered(reason)) => {
                    if let Some(expiry) = expiry {
                        expiry.surely_past().await;
                    }
                    return Err(TimelineError::Unknown(reason));
                }
            }
        }
    }
}

impl Session {
    /// Sends a command and waits for the reply until `timeout` has passed or `expiry` ends, whichever is later.
    pub(super) async fn ask(
        &self,
        command: &Cmd,
        timeout: Duration,
        expiry: Option<&CallExpiry>,
    ) -> Result<Value, CallError> {
        let mut connection = self.connection();
        let answer = connection.send_packed_command(command);
        tokio::pin!(answer);
        let answer = match tokio::time::timeout(timeout, &mut answer).await {
            Ok(answer) => Some(answer),
            Err(_) => {
                self.timed_out(timeout);
                match expiry {
                    None => None,
                    Some(expiry) => tokio::select! {
                        answer = &mut answer => Some(answer),
                        () = expiry.surely_past() => None,
                    },
                }
            }
        };
        match answer {
            None => Err(CallError::Unanswered(format!("no answer within {timeout:?}"))),
            Some(Ok(Value::ServerError(error))) => Err(self.refused(error)),
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => match ServerError::try_from(error) {
                Ok(error) => Err(self.refused(error)),
                Err(error) => {
                    let reason = error.to_string();
                    self.break_off(&reason);
                    Err(CallError::Unanswered(reason))
                }
            },
        }
    }

    fn refused(&self, error: ServerError) -> CallError {
        self.answered();
        // Redis before 7.0 wraps an error that a script met into a message of its own.
        let in_script = error.code() == "ERR" && error.details().is_some_and(|details| details.contains("-READONLY"));
        // The server has become a replica, or no longer serves a slot. The address may already lead to its successor,
        // so connect again. The next connection checks all slots.
        if in_script || matches!(error.code(), "READONLY" | "MASTERDOWN" | "MOVED" | "ASK" | "CLUSTERDOWN") {
            self.break_off(&detail(&error));
        }
        CallError::Refused(error)
    }
}

/// Loads all scripts.
pub(super) async fn load_scripts(session: &Session, timeout: Duration) -> Result<(), CallError> {
    for script in ALL {
        load(session, script, timeout).await?;
    }
    Ok(())
}

async fn load(session: &Session, script: &Script, timeout: Duration) -> Result<(), CallError> {
    let answer = session.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script.source), timeout, None).await?;
    debug_assert_eq!(answer, Value::BulkString(SHAS[&script.verb].clone().into_bytes()));
    Ok(())
}

/// The error text of the server, beginning with its code.
pub(super) fn detail(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

fn named(script: &Script, error: TimelineError) -> TimelineError {
    match error {
        TimelineError::Broken(what) => TimelineError::Broken(format!("`{}` answered {what}", script.verb.as_str())),
        other => other,
    }
}

/// Waits until a call can no longer take effect.
pub(super) struct CallExpiry {
    clock: Arc<dyn Clock>,
    not_after: Timestamp,
    // Ends the wait in any case, even if the estimate of the server's clock is wrong.
    bound: Instant,
}

impl CallExpiry {
    fn new(clock: Arc<dyn Clock>, not_after: Timestamp) -> CallExpiry {
        let not_after = not_after.plus(ROUNDING);
        let doubt = clock.uncertainty().saturating_mul(2).min(DOUBT_MAX) + Duration::from_secs(1);
        let bound = Instant::now() + not_after.since(clock.now()) + doubt;
        CallExpiry { clock, not_after, bound }
    }

    async fn surely_past(&self) {
        while !self.clock.surely_past(self.not_after) {
            let target = self.not_after.plus(self.clock.uncertainty()).plus(ROUNDING);
            tokio::select! {
                () = tokio::time::sleep_until(self.bound) => return,
                // The pause prevents a busy loop if the estimate became less certain during the wait.
                () = async { tokio::join!(self.clock.sleep_until(target), tokio::time::sleep(ROUNDING)); } => {}
            }
        }
    }
}
