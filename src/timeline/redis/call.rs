//! Runs one script: sends the call, waits for the reply, and tells after a failure whether anything may have been
//! written.
//!
//! Calls for users ([`Call::for_user`]) wait for a connection that is being replaced. If the connection ends before the
//! reply, they are sent again on the next one while their `not_after` allows it; not a trigger, whose second copy would
//! publish a second message.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};
use tokio::time::Instant;

use super::RedisTimeline;
use super::expiry::{CallExpiry, last_send};
use super::redirects::Redirects;
use super::reply::Reply;
use super::routes::Slot;
use super::session::{CallError, Session, detail};
use super::time::Time;
use crate::clock::Timestamp;
use crate::task::{Lane, Shard};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{ALL, Code, Script};
use crate::timeline::{Timeline, TimelineError, Verb};

/// Maximum number of times a call is sent. The call itself may make a proxy end the connection, and then all other
/// calls on this connection fail too.
const MAX_SENDS: u32 = 3;

static SHAS: LazyLock<HashMap<Verb, String>> = LazyLock::new(|| {
    ALL.iter().map(|script| (script.verb, redis::Script::new(script.source).get_hash().to_owned())).collect()
});

/// A call that is ready to send: keys, then arguments.
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
    slot: Slot,
    /// Whether it waits for a connection.
    waits: bool,
    /// Whether it is sent again if the connection ends.
    repeats: bool,
    /// Number of named arguments so far.
    named: usize,
}

impl Call {
    /// A call with its keys and its first argument, the time. The last key is the one of the shard that never exists,
    /// so that a cluster refuses the call while it moves the slot (rule 1 of `lua/README.md`).
    pub(super) fn new(script: &'static Script, time: &Time, slot: Slot, shard: &Keys, lanes: &[Lane]) -> Call {
        let keys = shard.of_script(script, lanes);
        let mut command = redis::cmd("EVALSHA");
        command.arg(SHAS[&script.verb].as_str()).arg(keys.len() + 1).arg(keys);
        command.arg(shard.nothing());
        let mut call = Call { script, command, slot, waits: false, repeats: false, named: 0 };
        call.arg("now", time.argument());
        call
    }

    /// Lets the call wait for a connection, and with `repeats` sends it again if the connection ends. The reply then says
    /// that an earlier copy may have run ([`Reply::is_repeated`]).
    pub(super) fn for_user(mut self, repeats: bool) -> Call {
        (self.waits, self.repeats) = (true, repeats);
        self
    }

    /// Adds the next argument.
    pub(super) fn arg(&mut self, name: &str, argument: impl ToRedisArgs) -> &mut Call {
        self.expect(name);
        self.command.arg(argument);
        self
    }

    /// Adds a flag: "1" or "".
    pub(super) fn flag(&mut self, name: &str, is_set: bool) -> &mut Call {
        self.arg(name, if is_set { "1" } else { "" })
    }

    /// Adds a duration in milliseconds.
    pub(super) fn millis(&mut self, name: &str, duration: Duration) -> &mut Call {
        self.arg(name, duration.as_millis().to_string())
    }

    /// Adds a time in milliseconds, "" for none.
    pub(super) fn time(&mut self, name: &str, time: impl Into<Option<Timestamp>>) -> &mut Call {
        self.arg(name, time.into().map(|time| time.as_millis().to_string()).unwrap_or_default())
    }

    /// Begins the next list of arguments, any number of which follow.
    pub(super) fn list(&mut self, name: &str) -> &mut Call {
        self.expect(name);
        self
    }

    /// Adds an argument to the list.
    pub(super) fn push(&mut self, argument: impl ToRedisArgs) -> &mut Call {
        self.command.arg(argument);
        self
    }

    /// Adds the list of lanes, in the order of their keys.
    pub(super) fn lanes(&mut self, lanes: &[Lane]) {
        self.list("lane..");
        lanes.iter().for_each(|lane| _ = self.push(lane.as_str()));
    }

    fn expect(&mut self, name: &str) {
        debug_assert_eq!(self.script.arguments.get(self.named), Some(&name), "of `{}`", self.script.verb.as_str());
        self.named += 1;
    }

    fn is_complete(&self) -> bool {
        self.named == self.script.arguments.len()
    }
}

/// Maximum number of times one call loads its script, in case another client keeps flushing the scripts.
const MAX_LOADS: u32 = 5;

impl RedisTimeline {
    /// Sends a call. With `not_after`, it returns [`TimelineError::Unknown`] only after that time.
    pub(super) async fn call(&self, call: Call, not_after: Option<Timestamp>) -> Result<Reply, TimelineError> {
        debug_assert!(call.is_complete(), "`{}` lacks an argument", call.script.verb.as_str());
        let last_send = match not_after {
            Some(not_after) => last_send(self.clocks[call.slot.number()].as_ref(), not_after),
            None => Instant::now() + self.response_timeout,
        };
        let (mut redirects, mut lost, mut sends) = (Redirects::default(), LostReplies::default(), 0);
        loop {
            let session = match call.waits {
                true => self.nodes.routes.session_by(call.slot, last_send).await,
                false => self.nodes.routes.session(call.slot),
            };
            let session = match session {
                Ok(session) => session,
                Err(reason) => return Err(lost.unknown_or(TimelineError::Unavailable(reason)).await),
            };
            // On the clock of the server that gets the call.
            let expiry = not_after.map(|not_after| CallExpiry::new(session.time.clock(), not_after));
            let error = match session.run(&call, self.response_timeout, expiry.as_ref()).await {
                Ok((sent, value)) => {
                    let mut reply = Reply::read(value).map_err(|error| named(call.script, error))?;
                    session.time.observe(sent, reply.micros);
                    if reply.code != Code::Late {
                        reply.is_repeated = lost.reason.is_some();
                        return Ok(reply);
                    }
                    TimelineError::Late
                }
                Err(CallError::Refused(error)) => {
                    if self.nodes.follows(call.slot, &session, &error, last_send, &mut redirects).await {
                        continue;
                    }
                    TimelineError::Refused(detail(&error))
                }
                Err(CallError::Unsent(reason)) => TimelineError::Unavailable(reason),
                Err(CallError::Ended(reason)) => {
                    sends += 1;
                    lost.add(reason, expiry);
                    if call.repeats && sends < MAX_SENDS && Instant::now() < last_send {
                        continue;
                    }
                    TimelineError::LaneChanged
                }
                Err(CallError::Unanswered(reason)) => {
                    lost.add(reason, expiry);
                    TimelineError::LaneChanged
                }
            };
            return Err(lost.unknown_or(error).await);
        }
    }

    /// The error of a repeated call whose reply does not tell what the first copy did.
    pub(super) async fn unknown(&self, shard: Shard, not_after: Timestamp) -> TimelineError {
        CallExpiry::new(self.clock(shard), not_after).surely_past().await;
        TimelineError::Unknown("the connection ended before the first answer".to_owned())
    }
}

/// Copies of a call that may have run, and whose replies were lost.
#[derive(Default)]
struct LostReplies {
    /// Why the last one was lost.
    reason: Option<String>,
    /// Until when they can take effect.
    expiries: Vec<CallExpiry>,
}

impl LostReplies {
    fn add(&mut self, reason: String, expiry: Option<CallExpiry>) {
        self.reason = Some(reason);
        self.expiries.extend(expiry);
    }

    /// The error of the call. If there are such copies, waits until none can take effect any more.
    async fn unknown_or(self, error: TimelineError) -> TimelineError {
        let Some(reason) = self.reason else { return error };
        for expiry in self.expiries {
            expiry.surely_past().await;
        }
        TimelineError::Unknown(reason)
    }
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
                Ok(value) => return Ok((sent, value)),
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

fn named(script: &Script, error: TimelineError) -> TimelineError {
    match error {
        TimelineError::Broken(what) => TimelineError::Broken(format!("`{}` answered {what}", script.verb.as_str())),
        other => other,
    }
}
