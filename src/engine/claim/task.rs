//! One claim in hand: its occurrences, and the parts that work on them.

use std::collections::HashMap;
use std::sync::Arc;

use super::copies::Copies;
use super::flight::Flight;
use super::following::Followings;
use super::outbox::Outbox;
use super::trials::Trials;
use super::verdicts::Verdicts;
use crate::engine::context::{Context, LaneContext, ShardContext};
use crate::engine::judge::Reason;
use crate::engine::leases::Lease;
use crate::engine::room::Share;
use crate::engine::signal::Signal;
use crate::engine::suspect_lock::SuspectPermit;
use crate::timeline::Claimed;

/// Where a claim comes from, and what it takes until it ends.
pub(in crate::engine) struct ClaimContext {
    pub(in crate::engine) context: Arc<Context>,
    pub(in crate::engine) shard: Arc<ShardContext>,
    pub(in crate::engine) lane: Arc<LaneContext>,
    pub(in crate::engine) signal: Arc<Signal>,
    pub(in crate::engine) lease: Arc<Lease>,
    pub(in crate::engine) shares: [Share; 2],
    /// Held by a claim of suspects.
    pub(in crate::engine) _suspects: Option<SuspectPermit>,
    /// The number of the trial of a half-open breaker that this claim is.
    pub(in crate::engine) trial: Option<u64>,
}

impl Drop for ClaimContext {
    /// However the claim ends, by a panic too: its lease is not renewed any more.
    fn drop(&mut self) {
        self.shard.leases.close(&self.lease.token);
        if let Some(trial) = self.trial {
            self.lane.sink.breaker.trial_unused(trial);
        }
    }
}

/// A claim in hand. Each part owns its fields; the flights are known to the parts by their index.
pub(super) struct ClaimTask {
    pub(super) claim: ClaimContext,
    pub(super) flights: Vec<Flight>,
    /// Flights without a verdict.
    pub(super) open: usize,
    /// Publishes under way, and flights that wait to be published again.
    pub(super) outbox: Outbox,
    /// Copies of dead messages.
    pub(super) copies: Copies,
    /// Verdicts that are not written yet.
    pub(super) verdicts: Verdicts,
    /// Schedules whose next due time takes long to work out.
    pub(super) followings: Followings,
    /// Fates of flights whose next due time is not known yet.
    pub(super) fates: HashMap<usize, Fate>,
    /// Destinations that are given up and tried once more.
    pub(super) trials: Trials,
    /// How it was noticed that the sink is absent.
    pub(super) absent: Option<String>,
    /// Nothing is published any more.
    pub(super) ending: bool,
    /// Records that cannot be read.
    pub(super) unreadable: usize,
}

/// What becomes of an occurrence once its next due time is known.
pub(super) enum Fate {
    /// The sink accepted it.
    Accepted,
    /// Its own catch-up passes it over.
    Passed,
    /// It is not tried again by itself.
    Dead(Reason, String),
}

impl ClaimTask {
    pub(super) fn new(claim: ClaimContext, claimed: Claimed) -> ClaimTask {
        let now = claimed.now;
        let flights: Vec<Flight> =
            claimed.occurrences.into_iter().map(|occurrence| Flight::new(occurrence, now)).collect();
        ClaimTask {
            claim,
            open: flights.len(),
            verdicts: Verdicts::new(flights.len()),
            flights,
            outbox: Outbox::default(),
            copies: Copies::default(),
            followings: Followings::default(),
            fates: HashMap::new(),
            trials: Trials::default(),
            absent: None,
            ending: false,
            unreadable: 0,
        }
    }
}
