//! Keeps the connections to one server, one for commands and one for wake-ups, and replaces them when they fail.
//!
//! TCP notices a dead peer only after a quarter of an hour, so timeouts count here. Three replies in a row that exceed
//! the response timeout end the connection for commands. One missed ping ends the subscription. The link of a shard is up
//! once the scripts are loaded, the layout is checked and the subscription is confirmed. It is up again, with the next
//! number, whenever wake-ups may have been missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink};
use redis::{Msg, Value};
use tokio::time::Instant;

use super::RedisError;
use super::connector::Connector;
use super::node::Node;
use super::nodes::Nodes;
use super::routes::Slot;
use super::session::Session;
use crate::clock::{Backoff, Timestamp};
use crate::timeline::{MAX_BEAT_BYTES, Wake};

/// How often the subscription is pinged. A lost subscription costs wake-ups but no tasks, because a glance finds them
/// too.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The pauses between two attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// The least pause between two attempts to connect.
const MIN_PAUSE: Duration = Duration::from_millis(20);

/// How often a node is asked again for slots before the layout is found.
const SLOT_ASK_INTERVAL: Duration = Duration::from_millis(500);

/// The pause between two log lines while Redis is unreachable.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Connects, and reconnects after each failure. Runs until it is aborted.
pub(super) async fn keep(connector: Connector, nodes: Arc<Nodes>, node: Arc<Node>) {
    let mut link_task =
        LinkTask { connector, nodes, node, ups: 0, away_since: Some(Instant::now()), logged: None, reason: None };
    let mut backoff = BACKOFF;
    loop {
        match link_task.open().await {
            Ok((session, slots, subscription)) => {
                backoff = BACKOFF;
                link_task.up(&session, &slots);
                let reason = link_task.hold(&session, subscription).await;
                link_task.down(&reason);
            }
            Err(reason) => link_task.down(&reason),
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(backoff.next())) => {}
            () = link_task.node.retry.notified() => {
                backoff = BACKOFF;
                tokio::time::sleep(MIN_PAUSE).await;
            }
        }
    }
}

struct LinkTask {
    connector: Connector,
    nodes: Arc<Nodes>,
    node: Arc<Node>,
    /// How often it was connected, or has lost its subscription.
    ups: u64,
    /// Since when there is no connection.
    away_since: Option<Instant>,
    /// When the log last said that Redis is unreachable, and why.
    logged: Option<Instant>,
    reason: Option<String>,
}

impl LinkTask {
    /// Opens both connections. Returns the slots whose wake-ups the subscription includes.
    async fn open(&self) -> Result<(Session, Vec<Slot>, PubSub), String> {
        let session = self.connector.open(&self.nodes, &self.node).await?;
        tokio::select! {
            reason = session.lost() => return Err(reason),
            found = self.until_layout(&session) => found?,
        }
        let slots = self.nodes.routes.slots_of(&self.node);
        let subscription = self.connector.subscribe(&session, &slots).await?;
        Ok((session, slots, subscription))
    }

    /// Waits until the layout was found once, which may be at another node.
    async fn until_layout(&self, session: &Session) -> Result<(), String> {
        let mut result = self.connector.layout.result();
        loop {
            if self.connector.layout.is_found() {
                return Ok(());
            }
            let routes = &self.nodes.routes;
            if routes.is_at(routes.namespace(), &self.node) {
                let layout = self.connector.layout.check(session, false).await?;
                self.connector.layout.publish(layout.clone());
                return layout.map_err(|error| error.to_string());
            }
            tokio::select! {
                changed = result.changed() => changed.map_err(|error| error.to_string())?,
                () = self.node.assigned.notified() => {}
                // The node with the layout may be replaced, and perhaps no other node is connected that can be asked for it.
                () = tokio::time::sleep(SLOT_ASK_INTERVAL) => {
                    let wanted = routes.wanted();
                    self.nodes.ask(&self.node, session, &wanted, self.connector.response_timeout).await;
                }
            }
        }
    }

    /// The number of shards that the node has.
    fn shards(&self) -> usize {
        let slots = self.nodes.routes.slots_of(&self.node);
        slots.into_iter().filter(|slot| *slot != self.nodes.routes.namespace()).count()
    }

    fn up(&mut self, session: &Session, slots: &[Slot]) {
        (self.away_since, self.reason) = (None, None);
        self.ups += 1;
        self.nodes.routes.node_up(&self.node, session, slots);
        let shards = self.shards();
        tracing::info!(address = self.node.address, shards, link = self.ups, "connected to redis");
    }

    /// Reports that there is no connection: at once, and then every minute.
    fn down(&mut self, reason: &str) {
        let away_since = *self.away_since.get_or_insert_with(Instant::now);
        let reason = self.node.failure(reason);
        self.nodes.routes.node_down(&self.node, &reason);
        if self.nodes.routes.slots_of(&self.node).is_empty() && !self.nodes.routes.is_any_unknown() {
            // A replica, or a master that has been replaced.
            tracing::debug!(reason, "a node of the cluster is not used");
            return;
        }
        if self.reason.as_ref() != Some(&reason) {
            self.reason = Some(reason.clone());
            if self.nodes.is_cluster() {
                let shards = self.shards();
                tracing::warn!(
                    reason,
                    shards,
                    "a node of the cluster is unavailable, and its shards with it; retrying"
                );
            } else {
                tracing::warn!(reason, "redis is unavailable; retrying");
            }
        } else if self.logged.is_some_and(|logged| logged.elapsed() >= LOG_PAUSE) {
            tracing::warn!(
                reason,
                outage_s = away_since.elapsed().as_secs(),
                tasks = self.connector.layout.last_known.latest_tasks(),
                "redis is still unavailable; no tasks of its shards are accepted or claimed"
            );
        } else {
            return;
        }
        self.logged = Some(Instant::now());
    }

    /// Serves both connections until the one for commands is lost; returns the reason.
    async fn hold(&mut self, session: &Session, mut subscription: PubSub) -> String {
        let (nodes, node) = (Arc::clone(&self.nodes), Arc::clone(&self.node));
        let has_layout = || nodes.routes.is_at(nodes.routes.namespace(), &node);
        let layout = self.connector.layout.clone();
        let failed = |detail: &str| {
            // A connection that is lost is noticed by the calls of others.
            if nodes.is_cluster() {
                nodes.routes.away(nodes.routes.namespace(), session, detail);
            }
        };
        let layout = layout.changed(session, has_layout, failed);
        tokio::pin!(layout);
        loop {
            let lost = tokio::select! {
                reason = session.lost() => return reason,
                error = &mut layout => return self.refuse(session, error),
                lost = self.listen(session, subscription) => lost,
            };
            tracing::warn!(
                address = self.node.address,
                reason = lost,
                "lost the subscription to wake-ups; subscribing again"
            );
            let mut backoff = BACKOFF;
            let slots;
            (slots, subscription) = loop {
                // The failure may have ended the other connection too, and perhaps no call uses that connection at the
                // moment.
                let ping = redis::cmd("PING");
                let slots = self.nodes.routes.slots_of(&self.node);
                let subscribing = self.connector.subscribe(session, &slots);
                let renewed = async { tokio::join!(self.connector.ask(session, &ping), subscribing).1 };
                let renewed = tokio::select! {
                    reason = session.lost() => return reason,
                    error = &mut layout => return self.refuse(session, error),
                    renewed = renewed => renewed,
                };
                if let Ok(renewed) = renewed {
                    break (slots, renewed);
                }
                tokio::time::sleep(jittered(backoff.next())).await;
            };
            // Wake-ups of the meantime are lost, so every claimer has to look again.
            self.up(session, &slots);
        }
    }

    /// Gives the session up for good, because another layout is stored.
    fn refuse(&self, session: &Session, error: RedisError) -> String {
        let reason = error.to_string();
        session.break_off(&reason);
        self.connector.layout.publish(Err(error));
        reason
    }

    /// Forwards wake-ups until the subscription is lost; returns the reason.
    async fn listen(&self, session: &Session, subscription: PubSub) -> String {
        let (sink, mut messages) = subscription.split();
        let lost = self.tend(session, sink);
        tokio::pin!(lost);
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) if message.get_channel_name() == self.connector.beat_channel => self.pass_on(&message),
                    Some(message) => self.wake(&message),
                    None => return "the connection was closed".to_owned(),
                },
                reason = &mut lost => return reason,
            }
        }
    }

    /// Pings the subscription, and adds the wake-ups of slots that are assigned to the node, until that fails; returns the
    /// reason.
    async fn tend(&self, session: &Session, mut sink: PubSubSink) -> String {
        let timeout = self.connector.response_timeout;
        loop {
            tokio::select! {
                () = tokio::time::sleep(PING_INTERVAL) => match tokio::time::timeout(timeout, sink.ping::<Value>()).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return format!("no answer within {timeout:?}"),
                },
                () = self.node.assigned.notified() => {
                    let slots = self.nodes.routes.unheard(&self.node);
                    let names: Vec<&str> = self.connector.channels(&slots).collect();
                    if !names.is_empty() && let Err(reason) = self.connector.in_time(sink.subscribe(names)).await {
                        return reason;
                    }
                    self.nodes.routes.node_up(&self.node, session, &slots);
                }
            }
        }
    }

    fn pass_on(&self, beat: &Msg) {
        let bytes = beat.get_payload_bytes();
        if let Ok(text) = std::str::from_utf8(bytes)
            && bytes.len() <= MAX_BEAT_BYTES
            && self.nodes.passes_beats_on(&self.node)
        {
            // An error means that there is no receiver yet.
            drop(self.nodes.beats.send(text.into()));
        }
    }

    fn wake(&self, message: &Msg) {
        let shard = self.connector.shard_of(message.get_channel_name());
        let text = std::str::from_utf8(message.get_payload_bytes()).unwrap_or_default();
        let wake = text.split_once(' ').and_then(|(lane, due)| Some((lane.parse().ok()?, due.parse().ok()?)));
        if let (Some(shard), Some((lane, due))) = (shard, wake)
            && self.nodes.routes.counts_wakes_of(Slot::of(shard), &self.node)
        {
            // An error means that there is no receiver yet.
            drop(self.nodes.wakes.send(Wake { shard, lane, due: Timestamp::from_millis(due) }));
        }
    }
}

/// Between half of a pause and the whole of it, so that instances do not reconnect all at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
