//! The state of one claim: its occurrences, and the parts that work on them.

use std::collections::HashMap;
use std::sync::Arc;

use super::dead_copies::DeadCopies;
use super::flight::Flight;
use super::next_dues::NextDueSearches;
use super::outbox::Outbox;
use super::trials::DestinationTrials;
use super::verdicts::Verdicts;
use crate::engine::claiming::capacity::CapacityShare;
use crate::engine::claiming::judge::Reason;
use crate::engine::claiming::suspect_lock::SuspectPermit;
use crate::engine::claiming::wake_signal::WakeSignal;
use crate::engine::context::{Context, LaneContext, ShardContext};
use crate::engine::leases::Lease;
use crate::timeline::Claimed;

/// Where a claim comes from, and what it holds until it ends.
pub(in crate::engine) struct ClaimContext {
    pub(in crate::engine) context: Arc<Context>,
    pub(in crate::engine) shard: Arc<ShardContext>,
    pub(in crate::engine) lane: Arc<LaneContext>,
    pub(in crate::engine) signal: Arc<WakeSignal>,
    pub(in crate::engine) lease: Arc<Lease>,
    pub(in crate::engine) shares: [CapacityShare; 2],
    /// Held by a claim of suspects.
    pub(in crate::engine) _suspects: Option<SuspectPermit>,
    /// The number of the breaker's trial, if this claim is one.
    pub(in crate::engine) trial: Option<u64>,
}

impl Drop for ClaimContext {
    /// Closes the lease however the claim ends, also after a panic.
    fn drop(&mut self) {
        self.shard.leases.close(&self.lease.token);
        // Has no effect if the trial has had an answer.
        if let Some(trial) = self.trial {
            self.lane.sink.breaker.trial_unused(trial);
        }
    }
}

/// The state of one claim. Each part owns its fields and refers to flights by their index.
pub(super) struct ClaimState {
    pub(super) claim: ClaimContext,
    pub(super) flights: Vec<Flight>,
    /// Number of flights without a verdict.
    pub(super) open: usize,
    /// Publishes under way, and flights that wait to be published again.
    pub(super) outbox: Outbox,
    /// Copies of dead messages.
    pub(super) dead_copies: DeadCopies,
    /// Verdicts that are not written yet.
    pub(super) verdicts: Verdicts,
    /// Next dues that take long to compute.
    pub(super) next_due_searches: NextDueSearches,
    /// Decisions of flights whose next due is not known yet.
    pub(super) decisions: HashMap<usize, Decision>,
    /// Trials of destinations that are given up.
    pub(super) trials: DestinationTrials,
    /// Why the sink is unavailable, if it is.
    pub(super) unavailable: Option<String>,
    /// Whether publishing has ended.
    pub(super) ending: bool,
    /// Number of records that cannot be parsed.
    pub(super) unreadable: usize,
}

/// What happens to an occurrence once its next due is known.
pub(super) enum Decision {
    /// The sink accepted it.
    Accepted,
    /// Its own catch-up passes it over.
    PassedOver,
    /// It is dead.
    Dead(Reason, String),
}

impl ClaimState {
    pub(super) fn new(claim: ClaimContext, claimed: Claimed) -> ClaimState {
        let now = claimed.now;
        let flights: Vec<Flight> =
            claimed.occurrences.into_iter().map(|occurrence| Flight::new(occurrence, now)).collect();
        ClaimState {
            claim,
            open: flights.len(),
            verdicts: Verdicts::new(flights.len()),
            flights,
            outbox: Outbox::default(),
            dead_copies: DeadCopies::default(),
            next_due_searches: NextDueSearches::default(),
            decisions: HashMap::new(),
            trials: DestinationTrials::default(),
            unavailable: None,
            ending: false,
            unreadable: 0,
        }
    }
}
