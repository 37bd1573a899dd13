//! Limits the claim calls of a lane to one server of the timeline. A claimer takes capacity of the lane before it asks.
//! Otherwise the claimers of a server that does not answer would hold all capacity, and leave none for other servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::task::Shard;
use crate::timeline::Timeline;

/// Maximum number of calls at the same time.
const MAX_CALLS: usize = 2;

/// Maximum number of servers that are remembered.
const MAX_NODES: usize = 100;

/// The limits of one lane, by the number of the server.
#[derive(Default)]
pub(in crate::engine) struct ClaimsPerNode(Mutex<BTreeMap<u64, Arc<Semaphore>>>);

impl ClaimsPerNode {
    /// Waits until a claim of this shard may ask its server. Returns `None` if all shards have one server: then there is no
    /// limit.
    pub(in crate::engine) async fn permit(
        &self,
        timeline: &dyn Timeline,
        shard: Shard,
    ) -> Option<OwnedSemaphorePermit> {
        let mut link = timeline.link(shard);
        loop {
            let limit = self.of(timeline.node(shard)?);
            tokio::select! {
                permit = limit.acquire_owned() => return permit.ok(),
                // The shard may have another server now.
                changed = link.changed() => changed.ok()?,
            }
        }
    }

    fn of(&self, node: u64) -> Arc<Semaphore> {
        let mut limits = self.0.lock();
        let limit = Arc::clone(limits.entry(node).or_insert_with(|| Arc::new(Semaphore::new(MAX_CALLS))));
        if limits.len() > MAX_NODES {
            // Servers that were replaced have smaller numbers.
            limits.pop_first();
        }
        limit
    }
}
