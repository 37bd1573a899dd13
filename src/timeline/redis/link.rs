//! Keeps two connections to Redis, one for commands and one for wake-ups, and replaces them when they fail.
//!
//! TCP notices a dead peer only after a quarter of an hour, so timeouts count here. Three replies in a row that exceed
//! the response timeout end the connection for commands. One missed ping ends the subscription. [`Link::Up`] is sent
//! once the scripts are loaded, the layout is checked and the subscription is confirmed. It is sent again, with the
//! next number, whenever wake-ups may have been missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use punctual_sinks::RedisAccess;
use punctual_sinks::redis_access::RedisSocket;
use redis::aio::{PubSub, PubSubSink};
use redis::{AsyncConnectionConfig, Msg, Value};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::call::{Time, load_scripts};
use super::cluster::{SlotsError, ask_slots};
use super::durable::{ConfirmError, Durability, can_confirm};
use super::layout::{LastKnown, Layout};
use super::server::advice;
use super::session::{Confirmations, Session};
use super::wait_connection::WaitConnection;
use super::{RedisConfig, RedisError, cluster};
use crate::clock::{Backoff, Timestamp};
use crate::task::{Namespace, Shard};
use crate::timeline::MAX_BEAT_BYTES;
use crate::timeline::calls::Calls;
use crate::timeline::keys::{self, Keys};
use crate::timeline::{Link, Wake};

/// How often the subscription is pinged. A lost subscription costs wake-ups but no tasks, because a glance finds them
/// too.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The pauses between two attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// How long calls of users wait for a new connection. Usually it takes less than 100 ms.
const RECONNECT_TIME: Duration = Duration::from_secs(2);

/// The pause between two log lines while Redis is unreachable.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// How many wake-ups a slow receiver may fall behind before it misses some.
const MAX_WAKES: usize = 1024;

/// How many beats a slow receiver may fall behind before it misses some.
const MAX_BEATS: usize = 2048;

/// Keep-alive settings of the sockets, in case Redis dies without closing them.
pub(super) const SOCKET: RedisSocket = RedisSocket {
    probe_after: Duration::from_secs(10),
    probe_every: Duration::from_secs(3),
    acknowledged_in: Duration::from_secs(10),
    discard_unsent: false,
};

/// The reason of [`Link::Down`] before the first attempt has ended.
const CONNECTING: &str = "connecting";

/// What the link task publishes to the rest of the timeline.
pub(super) struct LinkState {
    pub(super) link: watch::Sender<Link>,
    pub(super) wakes: broadcast::Sender<Wake>,
    pub(super) beats: broadcast::Sender<Arc<str>>,
    /// The result of the layout check, once there is one.
    pub(super) layout: watch::Sender<Option<Result<(), RedisError>>>,
    session: watch::Sender<Option<Session>>,
    /// Since when there is no connection.
    away_since: Mutex<Option<Instant>>,
}

impl LinkState {
    pub(super) fn new() -> LinkState {
        LinkState {
            link: watch::Sender::new(Link::Down(CONNECTING.to_owned())),
            wakes: broadcast::Sender::new(MAX_WAKES),
            beats: broadcast::Sender::new(MAX_BEATS),
            layout: watch::Sender::new(None),
            session: watch::Sender::new(None),
            away_since: Mutex::new(Some(Instant::now())),
        }
    }

    /// The connection for commands, or the reason why there is none.
    pub(super) fn session(&self) -> Result<Session, String> {
        match &*self.session.borrow() {
            Some(session) if !session.broken() => Ok(session.clone()),
            Some(session) => Err(session.reason()),
            None => match &*self.link.borrow() {
                Link::Down(reason) => Err(reason.clone()),
                Link::Up(_) => Err(CONNECTING.to_owned()),
            },
        }
    }

    /// The connection for commands. Waits for a new one until `deadline`, or until there has been none for
    /// [`RECONNECT_TIME`].
    pub(super) async fn session_by(&self, deadline: Instant) -> Result<Session, String> {
        let since = self.away_since.lock().unwrap_or_else(Instant::now);
        let mut sessions = self.session.subscribe();
        let usable = sessions.wait_for(|session| session.as_ref().is_some_and(|session| !session.broken()));
        drop(tokio::time::timeout_at(deadline.min(since + RECONNECT_TIME), usable).await);
        self.session()
    }

    /// The result of the first attempt to connect.
    pub(super) async fn first_attempt(&self) -> Link {
        let mut link = self.link.subscribe();
        let tried = link.wait_for(|link| !matches!(link, Link::Down(reason) if reason == CONNECTING)).await;
        tried.map_or(Link::Down(CONNECTING.to_owned()), |link| link.clone())
    }
}

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    access: RedisAccess,
    /// The URL for logs, without user and password.
    address: String,
    namespace: Namespace,
    pub(super) layout: Layout,
    /// One key that never exists for each slot of the timeline.
    slots: Vec<String>,
    strict: bool,
    /// The channels of wake-ups.
    channels: Vec<(String, Shard)>,
    beat_channel: String,
    time: Time,
    pub(super) durability: Durability,
    connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

impl Connector {
    pub(super) fn new(
        access: RedisAccess,
        config: &RedisConfig,
        keys: &[Keys],
        time: Time,
        last_known: Arc<LastKnown>,
        calls: Arc<Calls>,
    ) -> Connector {
        let address = access.address();
        let shards = u16::try_from(keys.len()).unwrap_or(u16::MAX);
        let channels = keys.iter().map(Keys::wake).zip(Shard::all(shards)).collect();
        let (connect_timeout, response_timeout) = (config.connect_timeout, config.response_timeout);
        let (namespace, durability, strict) = (config.namespace.clone(), config.durability, config.strict);
        Connector {
            access,
            slots: cluster::slots(&namespace, keys),
            layout: Layout::new(&address, &namespace, keys, last_known, calls, response_timeout),
            address,
            namespace,
            strict,
            channels,
            beat_channel: keys::beats(&config.namespace),
            time,
            durability,
            connect_timeout,
            response_timeout,
        }
    }

    /// Opens the connection for commands and checks the server. If a check fails at the `first` connection, the
    /// timeline refuses this Redis for good. Later it waits while the server does not serve all slots. A later server
    /// that cannot confirm writes still serves all calls that need no confirmation.
    async fn open(&self, link_state: &LinkState, first: bool) -> Result<Session, String> {
        let connecting = self.access.connect(SOCKET, connection(), self.connect_timeout);
        let mut session = Session::new(connecting.await.map_err(|away| away.detail)?);
        // This is the one write that a full Redis allows. A replica, or a server whose disk failed, refuses it.
        match ask_slots(&session, &self.slots, self.response_timeout).await {
            Ok(()) => {}
            Err(SlotsError::Unanswered(failure)) => return Err(failure.to_string()),
            Err(SlotsError::Elsewhere { error, passes }) => {
                let detail = error.to_string();
                if first && !passes {
                    link_state.layout.send_replace(Some(Err(error)));
                }
                return Err(detail);
            }
        }
        load_scripts(&session, self.response_timeout).await.map_err(|failure| failure.to_string())?;
        let layout = self.layout.check(&session, !first).await?;
        session.confirmations = self.confirmations(&session).await?;
        let layout = match &session.confirmations {
            Confirmations::Impossible(detail) if first => {
                layout.and_then(|()| Err(RedisError::Durability(detail.clone())))
            }
            Confirmations::Impossible(detail) => {
                tracing::warn!(detail, "redis cannot confirm writes; requests that need it are refused");
                layout
            }
            _ if first && self.strict && layout.is_ok() => {
                let found = advice(&session, self.durability, self.response_timeout).await;
                let found = found.map_err(|failure| failure.to_string())?;
                if found.is_empty() { Ok(()) } else { Err(RedisError::Unfit(found)) }
            }
            _ => layout,
        };
        link_state.layout.send_replace(Some(layout.clone()));
        layout.map_err(|error| error.to_string())?;
        self.ask_time(&session).await?;
        Ok(session)
    }

    /// Opens the connection that confirms writes, beside this session and to the same process.
    async fn confirmations(&self, session: &Session) -> Result<Confirmations, String> {
        if self.durability == Durability::Memory {
            return Ok(Confirmations::NotNeeded);
        }
        let wait_session = self.second_session(session).await?;
        let can = can_confirm(self.durability, session, Some(&wait_session), self.response_timeout).await;
        Ok(match can {
            Ok(()) => {
                let key = keys::nothing(&self.namespace);
                Confirmations::By(Arc::new(WaitConnection::new(self, session, wait_session, key)))
            }
            Err(ConfirmError::Unsupported(detail)) => Confirmations::Impossible(detail),
            Err(ConfirmError::Temporary(reason)) => return Err(reason),
        })
    }

    /// Opens another connection to the address of this session.
    pub(super) async fn second_session(&self, session: &Session) -> Result<Session, String> {
        let connecting = self.access.connect_beside(&session.commands, SOCKET, connection(), self.connect_timeout);
        Ok(Session::new(connecting.await.map_err(|away| away.detail)?))
    }

    /// Opens the subscription on the server of this session, and returns once it is confirmed.
    async fn subscribe(&self, session: &Session) -> Result<PubSub, String> {
        let subscribing = self.access.subscribe(&session.commands, SOCKET, self.connect_timeout);
        let mut subscription = subscribing.await.map_err(|away| away.detail)?;
        let wakes = self.channels.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = wakes.chain([self.beat_channel.as_str()]).collect();
        self.in_time(subscription.subscribe(names)).await?;
        Ok(subscription)
    }

    async fn in_time<T>(&self, attempt: impl Future<Output = redis::RedisResult<T>>) -> Result<T, String> {
        match tokio::time::timeout(self.connect_timeout, attempt).await {
            Ok(made) => made.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.connect_timeout)),
        }
    }

    /// Takes the first sample of the server's clock. Before that the estimate has no bound.
    async fn ask_time(&self, session: &Session) -> Result<(), String> {
        let sent = Instant::now();
        let time = self.ask(session, &redis::cmd("TIME")).await?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(time).map_err(|error| error.to_string())?;
        self.time.observe(sent, seconds * 1_000_000 + micros);
        Ok(())
    }

    async fn ask(&self, session: &Session, command: &redis::Cmd) -> Result<Value, String> {
        session.ask(command, self.response_timeout, None).await.map_err(|failure| failure.to_string())
    }
}

/// No timeouts here: callers have their own, and a shorter one would drop replies that they still wait for.
fn connection() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
        .set_write_backpressure_boundary(64 * 1024)
}

/// Connects, and reconnects after each failure. Runs until it is aborted.
pub(super) async fn keep(connector: Connector, link_state: Arc<LinkState>) {
    let mut link_task = LinkTask { connector, link_state, generation: 0, logged: None };
    let mut backoff = BACKOFF;
    loop {
        let opened = link_task.connector.open(&link_task.link_state, link_task.generation == 0).await;
        let opened = match opened {
            Ok(session) => link_task.connector.subscribe(&session).await.map(|subscription| (session, subscription)),
            Err(reason) => Err(reason),
        };
        match opened {
            Ok((session, subscription)) => {
                backoff = BACKOFF;
                link_task.up(&session);
                let reason = link_task.hold(&session, subscription).await;
                link_task.down(&reason);
            }
            Err(reason) => link_task.down(&reason),
        }
        tokio::time::sleep(jittered(backoff.next())).await;
    }
}

struct LinkTask {
    connector: Connector,
    link_state: Arc<LinkState>,
    generation: u64,
    /// When the log last said that Redis is unreachable.
    logged: Option<Instant>,
}

impl LinkTask {
    fn up(&mut self, session: &Session) {
        self.generation += 1;
        *self.link_state.away_since.lock() = None;
        self.link_state.session.send_replace(Some(session.clone()));
        self.link_state.link.send_replace(Link::Up(self.generation));
        tracing::info!(address = self.connector.address, link = self.generation, "connected to redis");
    }

    /// Reports that there is no connection: at once, and then every minute.
    fn down(&mut self, reason: &str) {
        self.link_state.session.send_replace(None);
        let away_since = *self.link_state.away_since.lock().get_or_insert_with(Instant::now);
        let reason = format!("redis at `{}`: {reason}", self.connector.address);
        let is_new = self.link_state.link.send_if_modified(|link| {
            let is_new = *link != Link::Down(reason.clone());
            *link = Link::Down(reason.clone());
            is_new
        });
        if is_new {
            tracing::warn!(reason, "redis is unavailable; retrying");
        } else if self.logged.is_some_and(|logged| logged.elapsed() >= LOG_PAUSE) {
            tracing::warn!(
                reason,
                outage_s = away_since.elapsed().as_secs(),
                tasks = self.connector.layout.last_known.latest_tasks(),
                "redis is still unavailable; no tasks are accepted or claimed"
            );
        } else {
            return;
        }
        self.logged = Some(Instant::now());
    }

    /// Serves both connections until the one for commands is lost; returns the reason.
    async fn hold(&mut self, session: &Session, mut subscription: PubSub) -> String {
        let layout = self.connector.layout.clone();
        let layout = layout.changed(session);
        tokio::pin!(layout);
        loop {
            let lost = tokio::select! {
                reason = session.lost() => return reason,
                error = &mut layout => return self.refuse(session, error),
                lost = self.listen(subscription) => lost,
            };
            tracing::warn!(
                address = self.connector.address,
                reason = lost,
                "lost the subscription to wake-ups; subscribing again"
            );
            let mut backoff = BACKOFF;
            subscription = loop {
                // The failure may have ended the other connection too, and perhaps no call uses that connection at the
                // moment.
                let ping = redis::cmd("PING");
                let subscribing = self.connector.subscribe(session);
                let renewed = async { tokio::join!(self.connector.ask(session, &ping), subscribing).1 };
                tokio::select! {
                    reason = session.lost() => return reason,
                    error = &mut layout => return self.refuse(session, error),
                    renewed = renewed => if let Ok(renewed) = renewed { break renewed },
                }
                tokio::time::sleep(jittered(backoff.next())).await;
            };
            // Wake-ups of the meantime are lost, so every claimer has to look again.
            self.up(session);
        }
    }

    /// Gives the session up for good, because another layout is stored.
    fn refuse(&self, session: &Session, error: RedisError) -> String {
        let reason = error.to_string();
        session.break_off(&reason);
        self.link_state.layout.send_replace(Some(Err(error)));
        reason
    }

    /// Forwards wake-ups until the subscription is lost; returns the reason.
    async fn listen(&self, subscription: PubSub) -> String {
        let (sink, mut messages) = subscription.split();
        let silence = check(sink, self.connector.response_timeout);
        tokio::pin!(silence);
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) if message.get_channel_name() == self.connector.beat_channel => self.pass_on(&message),
                    Some(message) => self.wake(&message),
                    None => return "the connection was closed".to_owned(),
                },
                reason = &mut silence => return reason,
            }
        }
    }

    fn pass_on(&self, beat: &Msg) {
        let bytes = beat.get_payload_bytes();
        if let Ok(text) = std::str::from_utf8(bytes)
            && bytes.len() <= MAX_BEAT_BYTES
        {
            // An error means that there is no receiver yet.
            drop(self.link_state.beats.send(text.into()));
        }
    }

    fn wake(&self, message: &Msg) {
        let shard = self.connector.channels.iter().find(|(name, _)| name == message.get_channel_name());
        let text = std::str::from_utf8(message.get_payload_bytes()).unwrap_or_default();
        let wake = text.split_once(' ').and_then(|(lane, due)| Some((lane.parse().ok()?, due.parse().ok()?)));
        if let (Some((_, shard)), Some((lane, due))) = (shard, wake) {
            // An error means that there is no receiver yet.
            drop(self.link_state.wakes.send(Wake { shard: *shard, lane, due: Timestamp::from_millis(due) }));
        }
    }
}

/// Pings the subscription until a ping fails; returns the reason.
async fn check(mut sink: PubSubSink, timeout: Duration) -> String {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        match tokio::time::timeout(timeout, sink.ping::<Value>()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("no answer within {timeout:?}"),
        }
    }
}

/// Between half of a pause and the whole of it, so that instances do not reconnect all at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
