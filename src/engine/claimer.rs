//! Claims what is due in one lane of one shard, one call at a time, and hands each claim to a dispatcher.
//!
//! Sleeps until the lane's head is due; a wake-up only moves that time. Asks nothing while the lane's sink is absent,
//! the timeline is away, or too much is in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::context::{Context, LaneContext, ShardContext, lock};
use super::dispatcher::{self, Dispatch};
use super::fault::{self, Point};
use super::room::Share;
use super::settling;
use super::signal::Signal;
use crate::clock::Timestamp;
use crate::timeline::{ClaimRequest, Claimed, MAX_BATCH, MAX_CLAIM_BYTES, Rest, Settle, TimelineError, Token};

/// How long a claim may be on its way: later than that it takes nothing.
const CLAIM_LIMIT: Duration = Duration::from_secs(2);

/// After this many wake-ups for nothing in a row, others are as fast: wait a little before asking again.
const IDLE_WAKES: u32 = 3;

/// Suspects that are claimed together at most, after two claims that ended without word. One among them that ends its holders
/// makes the others suspects of a third time, and those are claimed one by one.
const SUSPECTS: usize = 64;

/// How many suspects are claimed together, where an occurrence is poison after more than so many claims. Nobody is to be dead
/// because of another: whoever was claimed with others has two claims of its own left at least, or is alone from the first
/// suspicion on.
fn suspects_at_once(poison_limit: u32) -> usize {
    if poison_limit < 4 { 1 } else { SUSPECTS }
}

/// The wait before the next claim while there are suspects, and it is another claim's turn to hold some.
const SUSPECTS_PAUSE: Duration = Duration::from_millis(200);

/// No wait is longer, so that the loop shows that it lives.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// One lane of one shard.
pub(super) struct Claimer {
    pub(super) context: Arc<Context>,
    pub(super) shard: Arc<ShardContext>,
    pub(super) lane: Arc<LaneContext>,
    pub(super) signal: Arc<Signal>,
}

/// What the claimer knows between two claims.
#[derive(Default)]
struct Outlook {
    /// The due of the next head, as far as it is known.
    head: Option<Timestamp>,
    /// Suspects are due that ordinary claims leave out.
    suspects: bool,
    /// The next claim is for suspects.
    suspects_next: bool,
    /// Wake-ups in a row that found nothing.
    idle: u32,
    /// The timeline refuses claims, and that was said.
    refused: bool,
}

impl Claimer {
    /// Claims until the engine stops. A claim that is on its way is never dropped: it may have taken something.
    pub(super) async fn run(self) {
        let pulse = self.context.pulses.start(format!("claimer {} {}", self.shard.shard, self.lane.lane));
        let mut outlook = Outlook::default();
        loop {
            pulse.beat();
            let Some(trial) = self.unless_stopping(self.admitted(&mut outlook)).await else {
                if self.context.stopping.is_cancelled() {
                    return;
                }
                continue;
            };
            let claimed = match self.unless_stopping(self.room()).await.flatten() {
                // Waiting for room takes time: the sink may be gone by now.
                Some(shares) if self.lane.sink.breaker.admits(trial) => self.claim(&mut outlook, shares, trial).await,
                _ => false,
            };
            if let (Some(trial), false) = (trial, claimed) {
                self.lane.sink.breaker.trial_unused(trial);
            }
        }
    }

    /// Waits for something, but not for long, so that the loop shows that it lives; not at all once the engine stops.
    async fn unless_stopping<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.context.stopping.cancelled() => None,
            done = tokio::time::timeout(LONGEST_WAIT, wait) => done.ok(),
        }
    }

    /// Waits until something is due and may be claimed; with a number it is a breaker's trial.
    async fn admitted(&self, outlook: &mut Outlook) -> Option<u64> {
        let mut ready = self.shard.ready.subscribe();
        loop {
            self.until_due(outlook).await;
            if let Some(until) = self.rests_until() {
                tokio::time::sleep_until(until).await;
                continue;
            }
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            let trial = self.lane.sink.breaker.admit().await;
            match trial {
                // It has come to rest while it waited: others have their turn.
                Some(trial) if self.rests_until().is_some() => self.lane.sink.breaker.trial_unused(trial),
                trial => return trial,
            }
        }
    }

    /// Until when the lane rests, if it does.
    fn rests_until(&self) -> Option<Instant> {
        (*lock(&self.lane.rests_until)).filter(|until| *until > Instant::now())
    }

    /// Waits until the lane's head is due.
    async fn until_due(&self, outlook: &mut Outlook) {
        loop {
            if let Some(told) = self.signal.take() {
                outlook.head = Some(outlook.head.map_or(told, |head| head.min(told)));
            }
            match outlook.head {
                Some(head) if self.context.clock.now() >= head => return,
                Some(head) => tokio::select! {
                    () = self.context.clock.sleep_until(head) => {}
                    () = self.signal.told() => {}
                },
                None => self.signal.told().await,
            }
        }
    }

    /// One claim; whether anything was taken (and handed to a dispatcher).
    async fn claim(&self, outlook: &mut Outlook, mut shares: [Share; 2], trial: Option<u64>) -> bool {
        if outlook.idle >= IDLE_WAKES {
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..3000))).await;
        }
        let turn = outlook.suspects_next.then(|| self.context.turns.take()).flatten();
        let suspects_only = turn.is_some();
        let [lane_share, sink_share] = &shares;
        let most = if suspects_only { suspects_at_once(self.context.config.poison_limit) } else { MAX_BATCH };
        let request = ClaimRequest {
            token: self.context.token(),
            max: lane_share.occurrences().min(sink_share.occurrences()).min(self.context.config.batch).min(most),
            max_bytes: lane_share.bytes().min(sink_share.bytes()).min(MAX_CLAIM_BYTES),
            lease: self.context.config.lease,
            not_after: self.context.clock.now().plus(CLAIM_LIMIT),
            suspects_only,
        };
        // Cleared before the claim is sent: what is told from here on is news, whatever the claim's reply says.
        self.signal.take();
        let (token, sent) = (request.token.clone(), Instant::now());
        let claimed = match self.context.timeline.claim(self.shard.shard, &self.lane.lane, request).await {
            Ok(claimed) => claimed,
            Err(error) => {
                drop(turn);
                self.failed(outlook, token, error).await;
                return false;
            }
        };
        if !claimed.occurrences.is_empty() {
            fault::reached(Point::AfterClaim);
        }
        if std::mem::take(&mut outlook.refused) {
            info!(lane = %self.lane.lane, shard = %self.shard.shard, "the timeline takes claims again");
        }
        self.look_ahead(outlook, &claimed, suspects_only);
        if claimed.occurrences.is_empty() {
            return false;
        }
        let bytes = claimed.occurrences.iter().map(|occurrence| occurrence.record.len()).sum();
        shares.iter_mut().for_each(|share| share.shrink_to(claimed.occurrences.len(), bytes));
        self.lane.metrics.claims.inc();
        self.lane.metrics.claimed.inc_by(claimed.occurrences.len() as u64);
        let lease = self.shard.leases.open(token, self.lane.lane.clone(), self.context.config.lease, sent);
        let dispatch = Dispatch {
            context: Arc::clone(&self.context),
            shard: Arc::clone(&self.shard),
            lane: Arc::clone(&self.lane),
            signal: Arc::clone(&self.signal),
            lease,
            shares,
            turn,
            trial,
        };
        self.context.holders.spawn(dispatcher::run(dispatch, claimed));
        true
    }

    /// Waits for room in the lane and at its sink.
    async fn room(&self) -> Option<[Share; 2]> {
        let batch = self.context.config.batch.min(MAX_BATCH);
        let lane = self.lane.room.take(batch, MAX_CLAIM_BYTES).await?;
        let sink = self.lane.sink.room.take(lane.occurrences(), lane.bytes()).await?;
        Some([lane, sink])
    }

    /// Draws from a claim's reply when to claim next, and whether for suspects.
    fn look_ahead(&self, outlook: &mut Outlook, claimed: &Claimed, suspects_only: bool) {
        self.lane.metrics.removed.inc_by(claimed.removed);
        if claimed.removed > 0 {
            error!(lane = %self.lane.lane, removed = claimed.removed, "members without a record were removed");
        }
        outlook.idle = if claimed.occurrences.is_empty() { outlook.idle.saturating_add(1) } else { 0 };
        outlook.suspects = claimed.suspects > 0;
        // Every second call is for suspects while any are due and it can be this claimer's turn.
        outlook.suspects_next = outlook.suspects && !suspects_only && self.context.turns.is_free();
        outlook.head = if outlook.suspects_next {
            Some(claimed.now)
        } else if outlook.suspects {
            // A head that is due and was not taken stands behind more suspects than a claim looks at.
            let again = claimed.now.plus(SUSPECTS_PAUSE);
            let head = claimed.head.filter(|head| *head > claimed.now || !claimed.occurrences.is_empty());
            Some(head.map_or(again, |head| head.min(again)))
        } else {
            claimed.head
        };
    }

    /// A claim failed: what it may have taken unseen goes back, and the next one waits a little.
    async fn failed(&self, outlook: &mut Outlook, token: Token, error: TimelineError) {
        match error {
            TimelineError::Away(_) | TimelineError::Late | TimelineError::Moving => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            TimelineError::Refused(words) => {
                // Said once: it is asked twice a second until it takes them again.
                if !std::mem::replace(&mut outlook.refused, true) {
                    warn!(lane = %self.lane.lane, shard = %self.shard.shard, words, "the timeline refuses claims");
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            TimelineError::Unknown(words) | TimelineError::Unkept(words) => {
                warn!(lane = %self.lane.lane, words, "a claim was not answered: what it took goes back");
                self.context.holders.spawn(give_back(
                    Arc::clone(&self.context),
                    Arc::clone(&self.shard),
                    Arc::clone(&self.lane),
                    token,
                ));
            }
            TimelineError::Broken(words) => {
                error!(lane = %self.lane.lane, words, "a claim's answer cannot be read: what it took goes back");
                let (context, shard, lane) = (&self.context, &self.shard, &self.lane);
                give_back(Arc::clone(context), Arc::clone(shard), Arc::clone(lane), token).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Gives back whatever an unanswered claim took; its `not_after` has passed, so it takes nothing more.
async fn give_back(context: Arc<Context>, shard: Arc<ShardContext>, lane: Arc<LaneContext>, token: Token) {
    let settle = Settle {
        token,
        verdicts: Vec::new(),
        rest: Rest::Back,
        lease: context.config.lease,
        dead_cap: context.config.dead_cap,
    };
    settling::settle_until_answered(context, shard, lane, settle, None).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_alone_where_one_more_claim_would_be_too_many() {
        let at_once = [1, 2, 3, 4, 5, 1000].map(suspects_at_once);
        assert_eq!(at_once, [1, 1, 1, SUSPECTS, SUSPECTS, SUSPECTS]);
    }
}
