//! Runs one script: sends the call, waits for the reply, and tells after a failure whether anything may have been
//! written.
//!
//! Calls for users ([`Call::again`]) wait for a connection that is being replaced. If the connection ends before the
//! reply, they are sent again on the next one while their `not_after` allows it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, ServerError, ToRedisArgs, Value};
use tokio::time::Instant;

use super::RedisTimeline;
use super::reply::Reply;
use super::session::Session;
use crate::clock::{Clock, ManualClock, RedisClock, Timestamp};
use crate::timeline::calls::Calls;
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{ALL, Code, Script};
use crate::timeline::{TimelineError, Verb};

/// Added to each wait for `not_after`, because scripts and timestamps round times down to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// Upper bound of the extra wait when the estimate of the server's clock is uncertain.
const DOUBT_MAX: Duration = Duration::from_secs(5);

/// Maximum number of times a call is sent. It may be the call itself that makes a proxy end the connection, which then
/// ends for all others too.
const MAX_SENDS: u32 = 3;

/// A call is sent at least this long before its `not_after`, so that its reply can arrive in time.
const REPLY_TIME: Duration = Duration::from_millis(100);

static SHAS: LazyLock<HashMap<Verb, String>> = LazyLock::new(|| {
    ALL.iter().map(|script| (script.verb, redis::Script::new(script.source).get_hash().to_owned())).collect()
});

/// The clock that scripts use.
#[derive(Clone)]
pub(super) enum Time {
    /// The server's clock. Every reply updates the estimate of it. Steps are counted.
    Server(Arc<RedisClock>, Arc<Calls>),
    /// The clock of a test.
    Given(Arc<ManualClock>),
}

impl Time {
    /// The first argument of every script: empty for the server's clock.
    fn argument(&self) -> String {
        match self {
            Time::Server(..) => String::new(),
            Time::Given(clock) => clock.now().as_millis().to_string(),
        }
    }

    /// Updates the estimate of the server's clock from a reply.
    pub(super) fn observe(&self, sent: Instant, micros: i64) {
        if let Time::Server(clock, calls) = self
            && let Some(step) = clock.observe(sent, Instant::now(), micros)
        {
            calls.clock_stepped(step);
        }
    }
}

/// A call that is ready to send: keys, then arguments.
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
    again: bool,
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
        Call { script, command, again: false }
    }

    /// Lets the call wait for a connection, and sends it again if the connection ends. The reply then says that an
    /// earlier copy may have run ([`Reply::is_repeated`]).
    pub(super) fn again(mut self) -> Call {
        self.again = true;
        self
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
    /// No reply arrived in time. The server may still run the command.
    Unanswered(String),
    /// The connection ended. The server has run the command, or it never will, because it reads nothing more from a
    /// connection that it has closed. What a proxy still passes on arrives while the next connection logs in and loads
    /// the scripts.
    Ended(String),
    /// The command was not sent.
    Unsent(String),
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
        let last_send = expiry.as_ref().map_or(Instant::now() + self.response_timeout, CallExpiry::last_send);
        // Why the reply to a copy was lost that may have run.
        let mut lost = None;
        let mut sends = 0;
        loop {
            sends += 1;
            let session = match call.again {
                true => self.hub.session_by(last_send).await,
                false => self.hub.session(),
            };
            let answer = match session {
                Ok(session) => session.run(&call, self.response_timeout, expiry.as_ref()).await,
                Err(reason) => Err(CallError::Unsent(reason)),
            };
            let error = match answer {
                Ok((sent, value)) => {
                    let mut reply = Reply::read(value).map_err(|error| named(call.script, error))?;
                    self.time.observe(sent, reply.micros);
                    if reply.code != Code::Late {
                        reply.is_repeated = lost.is_some();
                        return Ok(reply);
                    }
                    TimelineError::Late
                }
                Err(CallError::Ended(reason)) if call.again && sends < MAX_SENDS && Instant::now() < last_send => {
                    lost = Some(reason);
                    continue;
                }
                Err(CallError::Refused(error)) => TimelineError::Refused(detail(&error)),
                Err(CallError::Unsent(reason)) => TimelineError::Away(reason),
                Err(CallError::Unanswered(reason) | CallError::Ended(reason)) => {
                    lost = Some(reason);
                    TimelineError::Moving
                }
            };
            let Some(reason) = lost else { return Err(error) };
            return Err(unknown(expiry.as_ref(), reason).await);
        }
    }

    /// The error of a repeated call whose reply does not tell what the first copy did.
    pub(super) async fn unknown(&self, not_after: Timestamp) -> TimelineError {
        let expiry = CallExpiry::new(self.clock.clone(), not_after);
        unknown(Some(&expiry), "the connection ended before the first answer".to_owned()).await
    }
}

/// Waits until no copy of a call can take effect any more.
async fn unknown(expiry: Option<&CallExpiry>, reason: String) -> TimelineError {
    if let Some(expiry) = expiry {
        expiry.surely_past().await;
    }
    TimelineError::Unknown(reason)
}

impl Session {
    /// Runs a call and returns when it was sent, and the reply. Loads its script if the server does not know it.
    async fn run(
        &self,
        call: &Call,
        timeout: Duration,
        expiry: Option<&CallExpiry>,
    ) -> Result<(Instant, Value), CallError> {
        let mut loads = 0;
        loop {
            let sent = Instant::now();
            match self.ask(&call.command, timeout, expiry).await {
                Ok(value) => {
                    self.answered();
                    return Ok((sent, value));
                }
                Err(CallError::Refused(error)) if error.code() == "NOSCRIPT" && loads < MAX_LOADS => {
                    // After SCRIPT FLUSH or a failover the script is missing. Nothing ran, so the call can be sent
                    // again once the script is loaded. Other scripts are loaded by their own calls.
                    loads += 1;
                    load(self, call.script, timeout).await.map_err(|failure| match failure {
                        CallError::Unanswered(reason) | CallError::Ended(reason) => CallError::Unsent(reason),
                        failure => failure,
                    })?;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

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
                    Err(CallError::Ended(reason))
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

    /// When the call may be sent for the last time.
    fn last_send(&self) -> Instant {
        Instant::now() + self.not_after.since(self.clock.now()).saturating_sub(REPLY_TIME)
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
