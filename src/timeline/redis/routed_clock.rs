//! The clock of a slot: that of the server that has it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::nodes::Nodes;
use super::routes::{Slot, SlotRoute};
use crate::clock::{Clock, RedisClock, Timestamp};

/// Follows a slot from node to node.
pub(super) struct RoutedClock {
    route: watch::Receiver<SlotRoute>,
    /// The clock before any node was connected.
    unknown: Arc<RedisClock>,
}

impl RoutedClock {
    /// The clock of a slot. If there is one server, its own.
    pub(super) fn of(nodes: &Nodes, slot: Slot) -> Arc<dyn Clock> {
        match nodes.routes.node(slot) {
            Some(node) if !nodes.is_cluster() => node.time.clock(),
            _ => Arc::new(RoutedClock { route: nodes.routes.route(slot), unknown: Arc::default() }),
        }
    }

    fn current(&self) -> Arc<dyn Clock> {
        match &self.route.borrow().timed_by {
            Some(node) => node.time.clock(),
            None => self.unknown.clone(),
        }
    }
}

#[async_trait]
impl Clock for RoutedClock {
    fn now(&self) -> Timestamp {
        self.current().now()
    }

    fn uncertainty(&self) -> Duration {
        self.current().uncertainty()
    }

    fn wall_difference_micros(&self) -> Option<i64> {
        self.current().wall_difference_micros()
    }

    async fn sleep_until(&self, due: Timestamp) {
        let mut route = self.route.clone();
        loop {
            let node = route.borrow_and_update().timed_by.as_ref().map(|node| node.number);
            let clock = self.current();
            let is_other = |route: &SlotRoute| route.timed_by.as_ref().map(|node| node.number) != node;
            tokio::select! {
                () = clock.sleep_until(due) => return,
                changed = changed_to(&mut route, is_other) => if !changed { return std::future::pending().await },
            }
        }
    }
}

/// Waits for such a route. Returns false if the timeline ends before.
async fn changed_to(route: &mut watch::Receiver<SlotRoute>, is_such: impl FnMut(&SlotRoute) -> bool) -> bool {
    route.wait_for(is_such).await.is_ok()
}
