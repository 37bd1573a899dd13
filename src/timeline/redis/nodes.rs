//! The servers of the timeline. With one Redis there is one. In a cluster each master is one; which of them has a slot is
//! learnt from the nodes themselves: a node answers a command on a key of a slot, or `MOVED` and the address of the node
//! that has it. So there is no need to compute slots, to read the topology of the cluster, or for a right to `CLUSTER`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::SliceRandom;
use tokio::sync::{Notify, broadcast};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::cluster::{IS_MOVING, Server, SlotAnswer, probe};
use super::connector::Connector;
use super::durable::Durability;
use super::link;
use super::node::Node;
use super::routes::{Routes, Slot};
use super::server::{Advice, advice};
use super::session::{CallError, Session};
use super::time::Time;
use crate::timeline::Wake;
use crate::timeline::calls::Calls;

/// How many wake-ups a slow receiver may fall behind before it misses some.
const MAX_WAKES: usize = 1024;

/// How many beats a slow receiver may fall behind before it misses some.
const MAX_BEATS: usize = 2048;

/// The pause between two rounds of questions for lost slots.
const FIND_PAUSE: Duration = Duration::from_millis(100);

/// The pause once the search has taken [`FIND_LONG`].
const FIND_LONG_PAUSE: Duration = Duration::from_secs(1);

const FIND_LONG: Duration = Duration::from_secs(10);

/// How long a node has to answer such a question.
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);

/// How often the routes are checked for nodes that do not answer and for nodes without slots.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A node without slots is closed after this time.
const UNUSED_TIMEOUT: Duration = Duration::from_secs(60);

/// The servers of the timeline, and which of them has which slot.
pub(super) struct Nodes {
    pub(super) routes: Routes,
    pub(super) wakes: broadcast::Sender<Wake>,
    pub(super) beats: broadcast::Sender<Arc<str>>,
    pub(super) connector: Connector,
    time: Time,
    pub(super) calls: Arc<Calls>,
    known: Mutex<Known>,
}

/// The nodes that are connected to, or tried.
#[derive(Default)]
struct Known {
    next: u64,
    open: BTreeMap<Option<Server>, OpenNode>,
    finder: Option<AbortHandle>,
    /// No node is opened any more.
    is_closed: bool,
}

struct OpenNode {
    node: Arc<Node>,
    task: AbortHandle,
    /// When it was first seen without slots.
    unused_since: Option<Instant>,
}

impl OpenNode {
    /// Ends its task and its connections.
    fn close(&self) {
        self.task.abort();
        *self.node.session.lock() = None;
    }
}

impl Nodes {
    /// Starts to connect. Must be called inside a Tokio runtime.
    pub(super) fn open(connector: Connector, time: Time, calls: Arc<Calls>, shards: u16) -> Arc<Nodes> {
        let nodes = Arc::new(Nodes {
            routes: Routes::new(shards),
            wakes: broadcast::Sender::new(MAX_WAKES),
            beats: broadcast::Sender::new(MAX_BEATS),
            connector,
            time,
            calls,
            known: Mutex::default(),
        });
        if nodes.is_cluster() {
            nodes.known.lock().finder = Some(tokio::spawn(find(Arc::clone(&nodes))).abort_handle());
        } else {
            let node = nodes.at(None);
            nodes.routes.all().for_each(|slot| nodes.routes.assign(slot, &node));
        }
        nodes
    }

    /// Ends all tasks and connections.
    pub(super) fn close(&self) {
        let mut known = self.known.lock();
        known.is_closed = true;
        known.finder.iter().for_each(AbortHandle::abort);
        std::mem::take(&mut known.open).values().for_each(OpenNode::close);
    }

    /// Whether the URL names a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.connector.is_cluster()
    }

    /// The node there. It is opened if it is new.
    fn at(self: &Arc<Self>, server: Option<Server>) -> Arc<Node> {
        let mut known = self.known.lock();
        if let Some(open) = known.open.get(&server) {
            return Arc::clone(&open.node);
        }
        let node = Arc::new(Node {
            number: known.next,
            address: self.connector.address_of(server.as_ref()),
            server: server.clone(),
            time: self.time.of_another_server(),
            session: Mutex::new(None),
            assigned: Notify::new(),
            retry: Notify::new(),
        });
        known.next += 1;
        if known.is_closed {
            return node;
        }
        let task = tokio::spawn(link::keep(self.connector.clone(), Arc::clone(self), Arc::clone(&node)));
        let open = OpenNode { node: Arc::clone(&node), task: task.abort_handle(), unused_since: None };
        known.open.insert(server, open);
        node
    }

    /// Whether the beats that this node's subscription receives are passed on. Every node sends each beat, so only one
    /// node's subscription counts.
    pub(super) fn passes_beats_on(&self, node: &Node) -> bool {
        let known = self.known.lock();
        let answers = |open: &&OpenNode| open.node.session.lock().as_ref().is_some_and(|session| !session.is_silent());
        let up = known.open.values().filter(answers);
        up.map(|open| open.node.number).min().is_none_or(|first| first == node.number)
    }

    /// Notes that a node named another server for a slot.
    pub(super) fn moved(self: &Arc<Self>, slot: Slot, server: Server) {
        let node = self.at(Some(server));
        if !self.routes.is_at(slot, &node) {
            tracing::debug!(?slot, node = node.address, "a slot has moved");
            self.routes.assign(slot, &node);
        }
    }

    /// Asks a node which of these slots it has, and notes what it answers.
    pub(super) async fn ask(self: &Arc<Self>, node: &Arc<Node>, session: &Session, slots: &[Slot], timeout: Duration) {
        let answers = probe(session, slots.iter().map(|slot| self.connector.nothing(*slot)), timeout).await;
        // Another node may have been found in the meantime.
        let wanted = self.routes.wanted();
        let may_change = |slot: &Slot| wanted.contains(slot) || self.routes.is_at(*slot, node);
        for (slot, answer) in slots.iter().zip(answers).filter(|(slot, _)| may_change(slot)) {
            match answer {
                SlotAnswer::Here => self.routes.assign(*slot, node),
                SlotAnswer::Moving => self.routes.assign_away(*slot, node, &node.failure(IS_MOVING)),
                SlotAnswer::At(server) => self.moved(*slot, server),
                SlotAnswer::Unknown(detail) => {
                    tracing::debug!(?slot, node = node.address, detail, "a node does not say who has a slot");
                }
            }
        }
    }

    /// Whether calls of a slot go to this connection, and its node says that it has the slot.
    pub(super) async fn has_slot(&self, session: &Session, slot: Slot) -> bool {
        let answers = probe(session, [self.connector.nothing(slot)], self.connector.response_timeout).await;
        matches!(answers[..], [SlotAnswer::Here]) && self.routes.is_current(slot, session)
    }

    /// The settings that are dangerous for a timeline, of all connected servers.
    pub(super) async fn advice(&self, durability: Durability, timeout: Duration) -> Result<Vec<Advice>, CallError> {
        let mut all = Vec::new();
        for (node, session) in self.connected() {
            let advice = advice(&session, durability, timeout).await?;
            all.extend(
                advice.into_iter().map(|advice| if self.is_cluster() { advice.of(&node.address) } else { advice }),
            );
        }
        Ok(all)
    }

    /// The nodes that are connected, in random order.
    fn connected(&self) -> Vec<(Arc<Node>, Session)> {
        let known = self.known.lock();
        let session = |open: &OpenNode| {
            let session = open.node.session.lock().clone().filter(|session| !session.broken())?;
            Some((Arc::clone(&open.node), session))
        };
        let mut connected: Vec<_> = known.open.values().filter_map(session).collect();
        connected.shuffle(&mut rand::rng());
        connected
    }

    /// Closes nodes that have had no slot for long.
    fn close_unused(&self) {
        self.known.lock().open.retain(|_, open| {
            if !self.routes.slots_of(&open.node).is_empty() {
                open.unused_since = None;
                return true;
            }
            let is_kept = open.unused_since.get_or_insert_with(Instant::now).elapsed() < UNUSED_TIMEOUT;
            if !is_kept {
                tracing::debug!(node = open.node.address, "closing a node without slots");
                open.close();
            }
            is_kept
        });
    }
}

/// Looks for the nodes of slots that have none, or whose node is silent. Runs until it is aborted.
async fn find(nodes: Arc<Nodes>) {
    let mut since: Option<Instant> = None;
    loop {
        nodes.close_unused();
        if nodes.routes.wanted().is_empty() {
            since = None;
            drop(tokio::time::timeout(CHECK_INTERVAL, nodes.routes.lost.notified()).await);
            continue;
        }
        let connected = nodes.connected();
        if connected.is_empty() {
            // Nobody can be asked, so begin anew with the hosts of the URL.
            for server in nodes.connector.servers() {
                nodes.at(Some(server)).retry.notify_one();
            }
        }
        for (node, session) in connected {
            // A silent node says nothing about its own slots.
            let is_asked = |slot: &Slot| !(session.is_silent() && nodes.routes.is_at(*slot, &node));
            let asked: Vec<Slot> = nodes.routes.wanted().into_iter().filter(is_asked).collect();
            if !asked.is_empty() {
                nodes.ask(&node, &session, &asked, PROBE_TIMEOUT).await;
            }
        }
        let is_long = since.get_or_insert_with(Instant::now).elapsed() >= FIND_LONG;
        tokio::time::sleep(if is_long { FIND_LONG_PAUSE } else { FIND_PAUSE }).await;
    }
}
