//! Where the calls of each slot go. A timeline has one hash slot for each shard, and one for its namespace, where the
//! layout is stored. With one Redis all slots have the same node for ever; in a cluster, [`Nodes`](super::nodes::Nodes)
//! learns which node has each slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::node::Node;
use super::session::Session;
use crate::task::Shard;
use crate::timeline::Link;

/// How long calls of users wait for a connection that is being replaced. Usually it takes less than 100 ms.
const RECONNECT_TIME: Duration = Duration::from_secs(2);

/// How long the other hosts of the URL have to answer once the first has failed.
const FIRST_TIME: Duration = Duration::from_secs(1);

/// The reason of [`Link::Down`] before the first attempt to connect has ended.
const CONNECTING: &str = "connecting";

/// A hash slot of the timeline: that of a shard, or that of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(usize);

impl Slot {
    /// The slot of a shard.
    pub(super) fn of(shard: Shard) -> Slot {
        Slot(usize::from(shard.number()))
    }

    /// Its place in the order of all slots: those of the shards, then that of the namespace.
    pub(super) fn number(self) -> usize {
        self.0
    }
}

/// The routes of all slots.
pub(super) struct Routes {
    /// Those of the shards, then that of the namespace.
    slots: Vec<SlotEntry>,
    /// Held during each change, which may concern several slots and the session of a node.
    changing: Mutex<()>,
    /// Whether all links have been up at the same time.
    were_all_up: AtomicBool,
    /// Notified when a slot loses its connection.
    pub(super) lost: Notify,
}

struct SlotEntry {
    route: watch::Sender<SlotRoute>,
    link: watch::Sender<Link>,
}

/// Where the calls of a slot go.
#[derive(Clone)]
pub(super) struct SlotRoute {
    /// The node that has the slot, as far as known.
    pub(super) node: Option<Arc<Node>>,
    /// Its connection for commands, unless the slot is away.
    session: Option<Session>,
    /// The last node that was connected when it had the slot, which tells the time. The clock of a new node is not known
    /// before its first answer.
    pub(super) timed_by: Option<Arc<Node>>,
    /// Whether the slot is away although its node is connected, because that refuses its calls.
    is_refused: bool,
    /// Why there is no connection.
    detail: String,
    away_since: Option<Instant>,
    /// Whether the node's subscription includes the wake-ups of the slot.
    listens: bool,
    /// How often the link was up.
    ups: u64,
}

impl SlotRoute {
    /// The connection, unless it is broken.
    fn usable(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| !session.broken())
    }

    fn is_at(&self, node: &Node) -> bool {
        self.node.as_ref().is_some_and(|at| at.number == node.number)
    }
}

impl Routes {
    /// Routes without nodes.
    pub(super) fn new(shards: u16) -> Routes {
        let unknown = || SlotRoute {
            node: None,
            session: None,
            timed_by: None,
            is_refused: false,
            detail: CONNECTING.to_owned(),
            away_since: Some(Instant::now()),
            listens: false,
            ups: 0,
        };
        let slot = |_| SlotEntry {
            route: watch::Sender::new(unknown()),
            link: watch::Sender::new(Link::Down(CONNECTING.to_owned())),
        };
        Routes {
            slots: (0..=shards).map(slot).collect(),
            changing: Mutex::new(()),
            were_all_up: AtomicBool::new(false),
            lost: Notify::new(),
        }
    }

    /// The slot of the namespace.
    pub(super) fn namespace(&self) -> Slot {
        Slot(self.slots.len() - 1)
    }

    /// All slots.
    pub(super) fn all(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots.len()).map(Slot)
    }

    /// Whether a slot is reachable. The receiver sees the latest value.
    pub(super) fn link(&self, slot: Slot) -> watch::Receiver<Link> {
        self.slots[slot.0].link.subscribe()
    }

    /// Where the calls of a slot go. The receiver sees the latest value.
    pub(super) fn route(&self, slot: Slot) -> watch::Receiver<SlotRoute> {
        self.slots[slot.0].route.subscribe()
    }

    /// The node that has a slot, as far as known.
    pub(super) fn node(&self, slot: Slot) -> Option<Arc<Node>> {
        self.slots[slot.0].route.borrow().node.clone()
    }

    /// Whether calls of this slot go to this node.
    pub(super) fn is_at(&self, slot: Slot, node: &Node) -> bool {
        self.slots[slot.0].route.borrow().is_at(node)
    }

    /// The slots of a node.
    pub(super) fn slots_of(&self, node: &Node) -> Vec<Slot> {
        self.all().filter(|slot| self.is_at(*slot, node)).collect()
    }

    /// The connection for commands, or the reason why there is none.
    pub(super) fn session(&self, slot: Slot) -> Result<Session, String> {
        let route = self.slots[slot.0].route.borrow();
        match &route.session {
            Some(session) if !session.broken() => Ok(session.clone()),
            Some(session) => Err(session.reason()),
            None => Err(route.detail.clone()),
        }
    }

    /// The connection for commands. Waits for a new one until `deadline`, or until there has been none for
    /// [`RECONNECT_TIME`].
    pub(super) async fn session_by(&self, slot: Slot, deadline: Instant) -> Result<Session, String> {
        let mut routes = self.route(slot);
        let since = routes.borrow().away_since.unwrap_or_else(Instant::now);
        let usable = routes.wait_for(|route| route.usable().is_some());
        drop(tokio::time::timeout_at(deadline.min(since + RECONNECT_TIME), usable).await);
        self.session(slot)
    }

    /// A slot whose node answers; if there is none, one whose node is connected; else any.
    pub(super) fn any(&self) -> Slot {
        let usable = |slot: &Slot| self.slots[slot.0].route.borrow().usable().is_some();
        self.all().find(|slot| self.is_well(*slot)).or_else(|| self.all().find(usable)).unwrap_or(self.namespace())
    }

    /// Whether the node of a slot is connected and answers.
    fn is_well(&self, slot: Slot) -> bool {
        self.slots[slot.0].route.borrow().usable().is_some_and(|session| !session.is_silent())
    }

    /// Whether all links have been up at the same time.
    pub(super) fn were_all_up(&self) -> bool {
        self.were_all_up.load(Ordering::Relaxed)
    }

    /// Whether calls of this slot still go to this connection.
    pub(super) fn is_current(&self, slot: Slot, session: &Session) -> bool {
        self.session(slot).is_ok_and(|current| current.is_same(session))
    }

    /// The slots without a usable connection, and those whose node has left a call without an answer.
    pub(super) fn wanted(&self) -> Vec<Slot> {
        self.all().filter(|slot| !self.is_well(*slot)).collect()
    }

    /// The result of the first attempt to connect. If several servers can be tried, the others get a while once one has
    /// failed.
    pub(super) async fn first_attempt(&self, has_several_servers: bool) -> Link {
        let mut link = self.link(self.namespace());
        let is_tried = |link: &Link| !matches!(link, Link::Down(reason) if reason.ends_with(CONNECTING));
        let tried = link.wait_for(is_tried).await;
        let tried = tried.map_or(Link::Down(CONNECTING.to_owned()), |link| link.clone());
        if has_several_servers && matches!(tried, Link::Down(_)) {
            let up = link.wait_for(|link| matches!(link, Link::Up(_)));
            if let Ok(Ok(up)) = tokio::time::timeout(FIRST_TIME, up).await {
                return up.clone();
            }
        }
        tried
    }

    /// A node has a connection, and its subscription includes the wake-ups of `heard`. Their links are up, for another
    /// time.
    pub(super) fn node_up(&self, node: &Arc<Node>, session: &Session, heard: &[Slot]) {
        let _changing = self.changing.lock();
        *node.session.lock() = Some(session.clone());
        for slot in self.slots_of(node).into_iter().filter(|slot| !self.is_refused(*slot)) {
            self.change(slot, |route| {
                (route.session, route.away_since) = (Some(session.clone()), None);
                route.timed_by = Some(Arc::clone(node));
                if heard.contains(&slot) {
                    route.listens = true;
                    route.ups += 1;
                }
            });
            if heard.contains(&slot) {
                self.set_up(slot);
            }
        }
        if self.slots.iter().all(|slot| matches!(*slot.link.borrow(), Link::Up(_))) {
            self.were_all_up.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any slot has never had a node.
    pub(super) fn is_any_unknown(&self) -> bool {
        self.all().any(|slot| self.node(slot).is_none())
    }

    /// A node has no connection any more, or could not make one.
    pub(super) fn node_down(&self, node: &Arc<Node>, detail: &str) {
        let _changing = self.changing.lock();
        *node.session.lock() = None;
        for slot in self.all() {
            // Without a node, the slot is looked for, and this is why it is not found.
            let node_of_slot = self.node(slot);
            if node_of_slot.is_none_or(|at| at.number == node.number) {
                self.set_away(slot, detail);
            }
        }
        self.lost.notify_one();
    }

    /// The slots of a node whose wake-ups its subscription does not include yet.
    pub(super) fn unheard(&self, node: &Node) -> Vec<Slot> {
        let is_left = |slot: &Slot| {
            let route = self.slots[slot.0].route.borrow();
            !route.listens && !route.is_refused
        };
        self.slots_of(node).into_iter().filter(is_left).collect()
    }

    /// Whether the wake-ups of a slot count that this node's subscription receives. After a move the former node counts
    /// until the subscription of the new one includes the slot.
    pub(super) fn counts_wakes_of(&self, slot: Slot, node: &Node) -> bool {
        let route = self.slots[slot.0].route.borrow();
        route.is_at(node) || !route.listens
    }

    fn is_refused(&self, slot: Slot) -> bool {
        self.slots[slot.0].route.borrow().is_refused
    }

    /// Sends the calls of a slot to this node from now on. The link is up once the node's subscription includes the slot.
    pub(super) fn assign(&self, slot: Slot, node: &Arc<Node>) {
        let _changing = self.changing.lock();
        let session = node.session.lock().clone().filter(|session| !session.broken());
        let (is_first, is_same) = (self.node(slot).is_none(), self.is_at(slot, node));
        let is_usable = self.slots[slot.0].route.borrow().usable().is_some();
        if is_same && is_usable == session.is_some() && !self.is_refused(slot) {
            return;
        }
        self.change(slot, |route| {
            (route.node, route.listens, route.is_refused) = (Some(Arc::clone(node)), false, false);
            if session.is_some() {
                route.timed_by = Some(Arc::clone(node));
            }
            route.away_since = if session.is_some() { None } else { route.away_since.or_else(|| Some(Instant::now())) };
            route.session = session.clone();
        });
        if session.is_none() && !is_first {
            self.set_away(slot, &node.failure(CONNECTING));
        }
        node.assigned.notify_one();
        if session.is_none() {
            node.retry.notify_one();
        }
    }

    /// This node has the slot but does not serve it at the moment.
    pub(super) fn assign_away(&self, slot: Slot, node: &Arc<Node>, detail: &str) {
        let _changing = self.changing.lock();
        self.change(slot, |route| (route.node, route.is_refused) = (Some(Arc::clone(node)), true));
        self.set_away(slot, detail);
    }

    /// A connection does not serve this slot at the moment.
    pub(super) fn away(&self, slot: Slot, session: &Session, detail: &str) {
        let _changing = self.changing.lock();
        if self.slots[slot.0].route.borrow().session.as_ref().is_some_and(|current| current.is_same(session)) {
            self.change(slot, |route| route.is_refused = true);
            self.set_away(slot, detail);
            self.lost.notify_one();
        }
    }

    fn set_up(&self, slot: Slot) {
        let ups = self.slots[slot.0].route.borrow().ups;
        self.slots[slot.0].link.send_replace(Link::Up(ups));
    }

    fn set_away(&self, slot: Slot, detail: &str) {
        self.change(slot, |route| {
            (route.session, route.listens) = (None, false);
            route.detail = detail.to_owned();
            route.away_since.get_or_insert_with(Instant::now);
        });
        let down = Link::Down(detail.to_owned());
        self.slots[slot.0].link.send_if_modified(|link| std::mem::replace(link, down.clone()) != down);
    }

    fn change(&self, slot: Slot, change: impl FnOnce(&mut SlotRoute)) {
        self.slots[slot.0].route.send_modify(change);
    }
}
