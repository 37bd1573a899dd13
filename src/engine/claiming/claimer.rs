//! Claims due occurrences of one lane in one shard, one call at a time, and starts a task for each claim.
//!
//! It sleeps until the time that [`NextClaim`] gives; a wake-up only moves that time. It makes no call while the lane's
//! sink is unavailable, the timeline is unreachable, or too many occurrences are in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::engine::claiming::capacity::CapacityShare;
use crate::engine::claiming::claim::{self, ClaimContext};
use crate::engine::claiming::next_claim::{ClaimKind, LaneNow, NextClaim};
use crate::engine::claiming::settling;
use crate::engine::claiming::wake_signal::WakeSignal;
use crate::engine::context::{Context, LaneContext, ShardContext};
use crate::engine::fault::{self, Point};
use crate::engine::leases::Moment;
use crate::timeline::{
    ClaimRequest, Claimed, DuePosition, MAX_BATCH, MAX_CLAIM_BYTES, RestOfClaim, Settle, SuspectsRequest,
    TimelineError, Token,
};

/// Deadline of a claim call. A claim that Redis runs later takes nothing.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of suspects in one claim, for occurrences whose claims expired twice. If one of them kills the
/// instance, all of them have three crashes, and suspects with three crashes are claimed one by one.
const MAX_SUSPECTS: usize = 64;

/// The number of suspects to claim together, given the poison limit. An innocent occurrence must not become poison
/// because of another one: after a shared claim it needs at least two claims of its own. With a lower limit, suspects
/// are always claimed one by one.
fn suspects_at_once(poison_limit: u32) -> usize {
    if poison_limit < 4 { 1 } else { MAX_SUSPECTS }
}

/// Upper bound of every wait, so that the loop reports regularly that it is alive.
const MAX_SLEEP: Duration = Duration::from_secs(10);

/// Claims one lane of one shard.
pub(in crate::engine) struct Claimer {
    pub(in crate::engine) context: Arc<Context>,
    pub(in crate::engine) shard: Arc<ShardContext>,
    pub(in crate::engine) lane: Arc<LaneContext>,
    pub(in crate::engine) signal: Arc<WakeSignal>,
}

impl Claimer {
    /// Claims until the engine stops. A claim call is never cancelled, because it may have taken occurrences.
    pub(in crate::engine) async fn run(self) {
        let pulse = self.context.pulses.start(format!("claimer {} {}", self.shard.shard, self.lane.lane));
        let mut next_claim = NextClaim::default();
        // Since when the timeline refuses claims.
        let mut refused = None;
        loop {
            pulse.beat();
            let Some(trial) = self.unless_stopping(self.admitted(&mut next_claim)).await else {
                if self.context.stopping.is_cancelled() {
                    return;
                }
                continue;
            };
            let claimed = match self.unless_stopping(self.capacity()).await.flatten() {
                // The sink may have become unavailable while this waited for capacity.
                Some((_permit, shares)) if self.lane.sink.breaker.admits(trial) => {
                    self.claim(&mut next_claim, &mut refused, shares, trial).await
                }
                _ => false,
            };
            if let (Some(trial), false) = (trial, claimed) {
                self.lane.sink.breaker.trial_unused(trial);
            }
        }
    }

    /// Waits for a future, at most `MAX_SLEEP`, so that the loop reports that it is alive. Returns `None` after that
    /// time, or once the engine stops.
    async fn unless_stopping<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.context.stopping.cancelled() => None,
            done = tokio::time::timeout(MAX_SLEEP, wait) => done.ok(),
        }
    }

    /// Waits until a task is due and may be claimed. A returned number is a trial of the breaker.
    async fn admitted(&self, next_claim: &mut NextClaim) -> Option<u64> {
        let mut ready = self.shard.ready.subscribe();
        loop {
            self.until_due(next_claim).await;
            if let Some(until) = self.lane.claims.paused_until() {
                tokio::time::sleep_until(until).await;
                continue;
            }
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            let trial = self.lane.sink.breaker.admit().await;
            match trial {
                // The lane began a pause in the meantime; leave the trial to another lane.
                Some(trial) if self.lane.claims.paused_until().is_some() => self.lane.sink.breaker.trial_unused(trial),
                trial => return trial,
            }
        }
    }

    /// Waits until the next claim is due.
    async fn until_due(&self, next_claim: &mut NextClaim) {
        loop {
            if let Some(notice) = self.signal.take() {
                next_claim.notified(notice);
            }
            let now = self.shard.clock.now();
            match next_claim.asks_at(self.signal.rank().get(), self.lane.has_returns(), now) {
                Some(at) if now >= at => return,
                Some(at) => tokio::select! {
                    () = self.shard.clock.sleep_until(at) => {}
                    () = self.signal.notified() => {}
                },
                None => self.signal.notified().await,
            }
        }
    }

    /// Makes one claim call. Returns whether it took occurrences; a task of its own then drives them.
    async fn claim(
        &self,
        next_claim: &mut NextClaim,
        refused: &mut Option<Instant>,
        mut shares: [CapacityShare; 2],
        trial: Option<u64>,
    ) -> bool {
        // Take the signal before the call is sent. A wake-up that arrives later is kept for the next claim, whatever
        // the reply says. An earlier one must be noted now, because a claim behind a position would not see its task.
        if let Some(notice) = self.signal.take() {
            next_claim.notified(notice);
        }
        let permit = next_claim.asks_for_suspects().then(|| self.context.suspects.take(&self.signal)).flatten();
        let lane = LaneNow {
            now: self.shard.clock.now(),
            has_returns: self.lane.has_returns(),
            may_take_suspects: permit.is_some(),
        };
        let (kind, after) = next_claim.next(lane);
        let token = self.context.token();
        let sent = Moment::now();
        let claimed = match self.ask(kind, after.clone(), token.clone(), &shares).await {
            Ok(claimed) => claimed,
            Err(error) => {
                drop(permit);
                self.failed(refused, token, error).await;
                return false;
            }
        };
        if !claimed.occurrences.is_empty() {
            fault::reached(Point::AfterClaim);
        }
        if let Some(since) = refused.take() {
            let outage_s = since.elapsed().as_secs();
            info!(lane = %self.lane.lane, shard = %self.shard.shard, outage_s, "redis accepts claims again");
        }
        self.learn(next_claim, kind, after, &claimed);
        if claimed.occurrences.is_empty() {
            self.lane.metrics.claims_empty.inc();
            return false;
        }
        let bytes = claimed.occurrences.iter().map(|occurrence| occurrence.record.len()).sum();
        shares.iter_mut().for_each(|share| share.fit_to(claimed.occurrences.len(), bytes));
        self.lane.metrics.claims.inc();
        self.lane.metrics.claimed.inc_by(claimed.occurrences.len() as u64);
        let lease = self.shard.leases.open(token, self.lane.lane.clone(), self.context.config.lease, sent);
        let claim = ClaimContext {
            context: Arc::clone(&self.context),
            shard: Arc::clone(&self.shard),
            lane: Arc::clone(&self.lane),
            signal: Arc::clone(&self.signal),
            lease,
            shares,
            _suspects: permit,
            trial,
        };
        self.context.holders.spawn(claim::run(claim, claimed));
        true
    }

    /// Claims as many occurrences as there is capacity for; half as many if it takes the newest.
    async fn ask(
        &self,
        kind: ClaimKind,
        after: Option<DuePosition>,
        token: Token,
        [lane_share, sink_share]: &[CapacityShare; 2],
    ) -> Result<Claimed, TimelineError> {
        let config = &self.context.config;
        let (timeline, shard, lane, lease) = (&self.context.timeline, self.shard.shard, &self.lane.lane, config.lease);
        let max = lane_share.occurrences().min(sink_share.occurrences()).min(config.batch).min(MAX_BATCH);
        let max_bytes = lane_share.bytes().min(sink_share.bytes()).min(MAX_CLAIM_BYTES);
        let not_after = self.shard.clock.now().plus(CLAIM_TIMEOUT);
        match kind {
            ClaimKind::Suspects | ClaimKind::Unreadable => {
                let unreadable = kind == ClaimKind::Unreadable;
                let max = if unreadable { max } else { max.min(suspects_at_once(config.poison_limit)) };
                let request = SuspectsRequest { token, max, max_bytes, lease, not_after, unreadable, after };
                timeline.claim_suspects(shard, lane, request).await
            }
            ClaimKind::Newest | ClaimKind::Oldest | ClaimKind::Ordinary => {
                let newest_first = kind == ClaimKind::Newest;
                let (max, max_bytes) =
                    if newest_first { (max.div_ceil(2), max_bytes.div_ceil(2)) } else { (max, max_bytes) };
                let request = ClaimRequest { token, max, max_bytes, lease, not_after, newest_first, after };
                timeline.claim(shard, lane, request).await
            }
        }
    }

    /// Waits until the server of the shard may be asked, and for capacity in the lane and at its sink.
    async fn capacity(&self) -> Option<(Option<OwnedSemaphorePermit>, [CapacityShare; 2])> {
        let permit = self.lane.claims_per_node.permit(self.context.timeline.as_ref(), self.shard.shard).await;
        let batch = self.context.config.batch.min(MAX_BATCH);
        let lane = self.lane.capacity.take(batch, MAX_CLAIM_BYTES).await?;
        let sink = self.lane.sink.capacity.take(lane.occurrences(), lane.bytes()).await?;
        Some((permit, [lane, sink]))
    }

    /// Updates the next claim and the metrics from a reply.
    fn learn(&self, next_claim: &mut NextClaim, kind: ClaimKind, after: Option<DuePosition>, claimed: &Claimed) {
        self.lane.metrics.removed.inc_by(claimed.removed);
        if claimed.removed > 0 {
            error!(lane = %self.lane.lane, removed = claimed.removed, "members without a record were removed");
        }
        let unreadable = next_claim.unreadable();
        let lock = &self.context.suspects;
        next_claim.learn(kind, after, claimed, |suspects| {
            if !suspects {
                lock.leave(&self.signal);
            }
            suspects && lock.join(&self.signal)
        });
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.lane.metrics.unreadable.inc_by(count(next_claim.unreadable()) - count(unreadable));
    }

    /// Handles a failed claim: returns the occurrences that it may have taken, or pauses before the next claim.
    async fn failed(&self, refused: &mut Option<Instant>, token: Token, error: TimelineError) {
        match error {
            TimelineError::Unavailable(_) | TimelineError::Late | TimelineError::LaneChanged => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            TimelineError::Refused(detail) => {
                // Logged once: the claimer asks twice a second until Redis accepts claims again.
                if refused.is_none() {
                    *refused = Some(Instant::now());
                    warn!(lane = %self.lane.lane, shard = %self.shard.shard, detail, "redis refuses claims");
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            TimelineError::Unknown(detail) | TimelineError::Unconfirmed(detail) => {
                warn!(lane = %self.lane.lane, detail, "no reply to a claim; returning its occurrences");
                self.context.holders.spawn(return_claim(
                    Arc::clone(&self.context),
                    Arc::clone(&self.shard),
                    Arc::clone(&self.lane),
                    token,
                ));
            }
            TimelineError::Broken(detail) => {
                error!(lane = %self.lane.lane, detail, "cannot parse the reply to a claim; returning its occurrences");
                let (context, shard, lane) = (&self.context, &self.shard, &self.lane);
                return_claim(Arc::clone(context), Arc::clone(shard), Arc::clone(lane), token).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Returns the occurrences that an unanswered claim may have taken. Its `not_after` has passed, so it cannot take any
/// later.
async fn return_claim(context: Arc<Context>, shard: Arc<ShardContext>, lane: Arc<LaneContext>, token: Token) {
    let settle = Settle {
        token,
        verdicts: Vec::new(),
        rest: RestOfClaim::Back,
        lease: context.config.lease,
        dead_cap: context.config.dead_cap,
        quiet: false,
    };
    settling::settle_until_answered(context, shard, lane, settle, None).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_claimed_one_at_a_time_if_one_more_claim_would_be_too_many() {
        let at_once = [1, 2, 3, 4, 5, 1000].map(suspects_at_once);
        assert_eq!(at_once, [1, 1, 1, MAX_SUSPECTS, MAX_SUSPECTS, MAX_SUSPECTS]);
    }
}
