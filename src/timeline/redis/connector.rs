//! Opens the connections to a server: one for commands, one for wake-ups, and with `redis.durability` one that confirms
//! writes.

use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::RedisAccess;
use punctual_sinks::redis_access::RedisSocket;
use redis::aio::PubSub;
use redis::{AsyncConnectionConfig, Value};

use super::call::load_scripts;
use super::cluster::{Server, SlotsError, ask_slots, is_in_cluster};
use super::durable::{ConfirmError, Durability, can_confirm};
use super::layout::Layout;
use super::node::Node;
use super::nodes::Nodes;
use super::routes::Slot;
use super::server::advice;
use super::session::{Confirmations, Session};
use super::wait_connection::WaitConnection;
use super::{RedisConfig, RedisError, cluster};
use crate::task::Shard;
use crate::timeline::keys::{self, Keys};

/// Keep-alive settings of the sockets, in case Redis dies without closing them.
pub(super) const SOCKET: RedisSocket = RedisSocket {
    probe_after: Duration::from_secs(10),
    probe_every: Duration::from_secs(3),
    acknowledged_in: Duration::from_secs(10),
    discard_unsent: false,
};

/// Why a node of a cluster is not used: it is a replica, or a master of other slots.
const NO_SLOTS: &str = "it has no slot of this timeline";

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    access: RedisAccess,
    pub(super) layout: Layout,
    /// For each slot of the timeline, a key that never exists.
    nothing: Vec<String>,
    strict: bool,
    /// The channels of wake-ups.
    wake_channels: Vec<(String, Shard)>,
    pub(super) beat_channel: String,
    pub(super) durability: Durability,
    connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

impl Connector {
    pub(super) fn new(access: RedisAccess, config: &RedisConfig, keys: &[Keys], layout: Layout) -> Connector {
        Connector {
            access,
            layout,
            nothing: cluster::slots(&config.namespace, keys),
            strict: config.strict,
            wake_channels: keys.iter().map(Keys::wake).zip(Shard::all(config.shards)).collect(),
            beat_channel: keys::beats(&config.namespace),
            durability: config.durability,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        }
    }

    /// Whether the URL names a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.access.is_cluster()
    }

    /// The servers in the URL.
    pub(super) fn servers(&self) -> Vec<Server> {
        self.access.servers().to_vec()
    }

    /// A server of a cluster, or the URL, for logs: without user and password.
    pub(super) fn address_of(&self, server: Option<&Server>) -> String {
        server.map_or_else(|| self.access.address(), |server| self.access.address_of(server))
    }

    /// A key of this slot that never exists.
    pub(super) fn nothing(&self, slot: Slot) -> &str {
        &self.nothing[slot.number()]
    }

    /// The shard of a channel of wake-ups.
    pub(super) fn shard_of(&self, channel: &str) -> Option<Shard> {
        self.wake_channels.iter().find(|(name, _)| name == channel).map(|(_, shard)| *shard)
    }

    /// The channels of wake-ups of these slots. The slot of the namespace has no channel.
    pub(super) fn channels<'a>(&'a self, slots: &'a [Slot]) -> impl Iterator<Item = &'a str> {
        slots.iter().filter_map(|slot| self.wake_channels.get(slot.number()).map(|(name, _)| name.as_str()))
    }

    /// Opens the connection for commands and checks the server. Another layout refuses this Redis for good. Another
    /// lasting fault does so only before all shards were up once. After that, missing slots fail only this attempt, and
    /// a server that cannot confirm writes serves the calls that need no confirmation.
    pub(super) async fn open(&self, nodes: &Arc<Nodes>, node: &Arc<Node>) -> Result<Session, String> {
        let first = !nodes.routes.were_all_up();
        let connecting = match &node.server {
            Some(server) => self.access.connect_to(server, SOCKET, connection(), self.connect_timeout).await,
            None => self.access.connect(SOCKET, connection(), self.connect_timeout).await,
        };
        let mut session = Session::new(connecting.map_err(|away| away.detail)?, node.time.clone());
        if self.is_cluster() {
            session = session.in_cluster();
            self.find_slots(nodes, node, &session, first).await?;
        } else {
            self.check_slots(&session, first).await?;
        }
        load_scripts(&session, self.response_timeout).await.map_err(|failure| failure.to_string())?;
        let has_layout = nodes.routes.is_at(nodes.routes.namespace(), node);
        let layout = if has_layout { self.layout.check(&session, self.layout.is_found()).await? } else { Ok(()) };
        session.confirmations = self.confirmations(nodes, node, &session).await?;
        let checked = match &session.confirmations {
            Confirmations::Impossible(detail) if first => {
                layout.and_then(|()| Err(RedisError::Durability(detail.clone())))
            }
            Confirmations::Impossible(detail) => {
                let address = &node.address;
                tracing::warn!(detail, address, "redis cannot confirm writes; requests that need it are refused");
                layout
            }
            _ if first && self.strict && layout.is_ok() => {
                let found = advice(&session, self.durability, self.response_timeout).await;
                let found = found.map_err(|failure| failure.to_string())?;
                if found.is_empty() { Ok(()) } else { Err(RedisError::Unfit(found)) }
            }
            _ => layout,
        };
        if self.is_cluster() && (has_layout || checked.is_err()) {
            self.layout.publish_of_node(checked.clone());
        } else if has_layout {
            self.layout.publish(checked.clone());
        }
        checked.map_err(|error| error.to_string())?;
        session.ask_time(self.response_timeout).await.map_err(|failure| failure.to_string())?;
        Ok(session)
    }

    /// Checks that the server has all slots.
    async fn check_slots(&self, session: &Session, first: bool) -> Result<(), String> {
        match ask_slots(session, &self.nothing, self.response_timeout).await {
            Ok(()) => Ok(()),
            Err(SlotsError::Unanswered(failure)) => Err(failure.to_string()),
            Err(SlotsError::Elsewhere { error, passes }) => {
                let detail = error.to_string();
                if first && !passes {
                    self.layout.publish(Err(error));
                }
                Err(detail)
            }
        }
    }

    /// Asks the node of a cluster for its slots, and for those that no other node serves at the moment.
    async fn find_slots(
        &self,
        nodes: &Arc<Nodes>,
        node: &Arc<Node>,
        session: &Session,
        first: bool,
    ) -> Result<(), String> {
        if !is_in_cluster(session, self.response_timeout).await? {
            let error = RedisError::NoCluster(node.address.clone());
            let detail = error.to_string();
            if first {
                self.layout.publish(Err(error));
            }
            return Err(detail);
        }
        let mut asked = nodes.routes.wanted();
        asked.extend(nodes.routes.slots_of(node));
        asked.sort_unstable();
        asked.dedup();
        nodes.ask(node, session, &asked, self.response_timeout).await;
        if nodes.routes.slots_of(node).is_empty() { Err(NO_SLOTS.to_owned()) } else { Ok(()) }
    }

    /// Opens the connection that confirms writes, beside this session and to the same process.
    async fn confirmations(
        &self,
        nodes: &Arc<Nodes>,
        node: &Arc<Node>,
        session: &Session,
    ) -> Result<Confirmations, String> {
        if self.durability == Durability::Memory {
            return Ok(Confirmations::NotNeeded);
        }
        let wait_session = self.second_session(session).await?;
        let can = can_confirm(self.durability, session, Some(&wait_session), self.response_timeout).await;
        Ok(match can {
            Ok(()) => {
                let (nodes, node) = (Arc::downgrade(nodes), Arc::downgrade(node));
                Confirmations::By(Arc::new(WaitConnection::new(self, session, wait_session, nodes, node)))
            }
            Err(ConfirmError::Unsupported(detail)) => Confirmations::Impossible(detail),
            Err(ConfirmError::Temporary(reason)) => return Err(reason),
        })
    }

    /// Opens another connection to the address of this session.
    pub(super) async fn second_session(&self, session: &Session) -> Result<Session, String> {
        let connecting = self.access.connect_beside(&session.commands, SOCKET, connection(), self.connect_timeout);
        Ok(session.beside(connecting.await.map_err(|away| away.detail)?))
    }

    /// Opens the subscription on the server of this session to the beats and to the wake-ups of these slots, and returns
    /// once it is confirmed.
    pub(super) async fn subscribe(&self, session: &Session, slots: &[Slot]) -> Result<PubSub, String> {
        let subscribing = self.access.subscribe(&session.commands, SOCKET, self.connect_timeout);
        let mut subscription = subscribing.await.map_err(|away| away.detail)?;
        let names: Vec<&str> = self.channels(slots).chain([self.beat_channel.as_str()]).collect();
        self.in_time(subscription.subscribe(names)).await?;
        Ok(subscription)
    }

    pub(super) async fn in_time<T>(&self, attempt: impl Future<Output = redis::RedisResult<T>>) -> Result<T, String> {
        match tokio::time::timeout(self.connect_timeout, attempt).await {
            Ok(made) => made.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.connect_timeout)),
        }
    }

    pub(super) async fn ask(&self, session: &Session, command: &redis::Cmd) -> Result<Value, String> {
        session.ask(command, self.response_timeout, None).await.map_err(|failure| failure.to_string())
    }
}

/// No timeouts here: callers have their own, and a shorter one would drop replies that they still wait for.
pub(super) fn connection() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
        .set_write_backpressure_boundary(64 * 1024)
}
