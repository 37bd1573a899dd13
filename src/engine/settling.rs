//! The half of a holder that writes verdicts: when they are due, together, and again until the timeline has answered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;
use tracing::{debug, error};

use super::context::{Context, LaneContext, ShardContext};
use super::dispatcher::ClaimTask;
use super::fault::{self, Point};
use super::judge::Reason;
use super::leases::{Lease, Moment};
use crate::clock::{Backoff, Timestamp};
use crate::task::{CatchUp, Member};
use crate::timeline::{Rest, Settle, Settled, Settlement, TimelineError, Verdict};

/// How long verdicts wait for the next one: those of a batch come close together once they begin to come, but a broker at its
/// limit may answer in bursts a tenth of a second apart, ...
const GATHER: Duration = Duration::from_millis(250);

/// ... and how long the first waits at most.
const GATHER_MOST: Duration = Duration::from_millis(500);

/// How long one waits whose occurrence, or the next of its task, is due before that: it cannot be claimed until it is written.
const GATHER_DUE: Duration = Duration::from_millis(50);

/// How often a settle is sent that the timeline says makes no sense.
const MAX_SENSELESS_TRIES: u32 = 5;

/// The waits between tries to settle while the timeline does not answer.
const SETTLE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// A settle under way, and what follows from it.
pub(super) struct Settling {
    answer: BoxFuture<'static, Option<Settled>>,
    /// The earliest due that it writes.
    head: Option<Timestamp>,
    tally: Vec<Counted>,
}

/// What is counted of one verdict: a death, and occurrences passed over.
pub(super) struct Counted {
    member: Member,
    dead: Option<Reason>,
    passed_over: u64,
    catch_up: CatchUp,
}

impl ClaimTask {
    /// Notes a verdict; it waits a little for the others.
    pub(super) fn verdict(&mut self, index: usize, verdict: Settlement, dead: Option<Reason>) {
        let passed_over = self.flights[index].tally(&verdict.verdict);
        if dead.is_some() || passed_over > 0 {
            let catch_up = self.flights[index].catch_up;
            self.tally.push(Counted { member: verdict.member.clone(), dead, passed_over, catch_up });
        }
        self.open -= 1;
        self.verdicts.push((index, verdict));
        let now = Instant::now();
        let wait = self
            .verdicts
            .last()
            .and_then(|(_, verdict)| waits_until(verdict))
            .map_or(GATHER_MOST, |due| due.since(self.dispatch.context.clock.now()).clamp(GATHER_DUE, GATHER_MOST));
        let latest = self.settle_by.map_or(now + wait, |by| by.min(now + wait));
        self.settle_by = Some(latest);
        self.settle_at = Some(latest.min(now + GATHER));
    }

    /// Begins to write the verdicts, if it is time and nothing is being written.
    pub(super) fn settle_if_due(&mut self) {
        let due = self.open == 0 || self.settle_at.is_some_and(|at| at <= Instant::now());
        if self.settling.is_some() || self.verdicts.is_empty() || !due {
            return;
        }
        (self.settle_at, self.settle_by) = (None, None);
        if self.open == 0 {
            fault::reached(Point::AfterPublish);
        }
        // In the claim's order: what it begins with is settled for less.
        self.verdicts.sort_unstable_by_key(|(place, _)| *place);
        let flights = &self.flights;
        let others =
            || self.verdicts.iter().filter(|(index, _)| !flights[*index].turned_back).map(|(_, verdict)| verdict);
        let head = others().filter_map(waits_until).min();
        // Whoever hears of what was turned back would claim it for nothing. What goes back for another reason is told of.
        let goes_back = |settlement: &Settlement| matches!(settlement.verdict, Verdict::Back { .. });
        let quiet = others().count() < self.verdicts.len() && !others().any(goes_back);
        let verdicts: Vec<Settlement> = self.verdicts.drain(..).map(|(_, verdict)| verdict).collect();
        let (context, lease) = (&self.dispatch.context, &self.dispatch.lease);
        let settle = Settle {
            token: lease.token.clone(),
            verdicts,
            rest: Rest::Keep,
            lease: context.config.lease,
            dead_cap: context.config.dead_cap,
            quiet,
        };
        let (shard, lane) = (Arc::clone(&self.dispatch.shard), Arc::clone(&self.dispatch.lane));
        let (context, lease, whole) = (Arc::clone(context), Arc::clone(lease), self.open == 0);
        let answer = settle_until_answered(context, shard, lane, settle, Some((lease, whole))).boxed();
        self.settling = Some(Settling { answer, head, tally: std::mem::take(&mut self.tally) });
    }

    /// The verdicts were written: others take the room, and what waits again is told of.
    pub(super) fn settled(&mut self, settled: &Settled) {
        let Some(settling) = self.settling.take() else { return };
        if let Some(head) = settling.head {
            self.dispatch.signal.raise(head);
        }
        let (lane, metrics) = (self.dispatch.lane.lane.as_str(), &self.dispatch.context.metrics);
        for counted in settling.tally {
            if settled.skipped.contains(&counted.member) || settled.changed.contains(&counted.member) {
                continue;
            }
            metrics.passed_over(lane, counted.catch_up.as_str(), counted.passed_over);
            if let Some(reason) = counted.dead {
                metrics.dead(lane, reason.as_str(), 1);
            }
        }
        metrics.dead_dropped.inc_by(settled.dropped);
        let bytes = self.flights.iter().map(|flight| flight.occurrence.record.len()).sum();
        let left = self.open + self.verdicts.len();
        self.dispatch.shares.iter_mut().for_each(|share| share.fit_to(left, bytes));
    }
}

/// The due under which an occurrence waits after its verdict, if it does.
fn waits_until(settlement: &Settlement) -> Option<Timestamp> {
    match settlement.verdict {
        Verdict::Next { due, .. } | Verdict::DeadNext { due, .. } => Some(due),
        Verdict::Back { .. } => Some(settlement.due),
        Verdict::Finished | Verdict::Dead(_) | Verdict::Unreadable => None,
    }
}

/// The answer to the settle under way; never, if there is none.
pub(super) async fn settled(settling: &mut Option<Settling>) -> Option<Settled> {
    match settling {
        Some(settling) => (&mut settling.answer).await,
        None => std::future::pending().await,
    }
}

/// Settles, again and again until the timeline has answered: a repeat changes nothing. `None` once the engine is closed,
/// or when the timeline keeps refusing what it is sent: then the claim is left to its lease.
///
/// `lease`: the claim's, and whether all that is left in it is named; then a repeat may find that the first try took
/// effect and the claim is gone.
pub(super) async fn settle_until_answered(
    context: Arc<Context>,
    shard: Arc<ShardContext>,
    lane: Arc<LaneContext>,
    settle: Settle,
    lease: Option<(Arc<Lease>, bool)>,
) -> Option<Settled> {
    let (mut backoff, mut repeated, mut senseless) = (SETTLE_BACKOFF, false, 0);
    loop {
        let sent = Moment::now();
        fault::reached(Point::BeforeSettle);
        let error = match context.timeline.settle(shard.shard, &lane.lane, settle.clone()).await {
            Ok(settled) => {
                let whole = lease.as_ref().is_some_and(|(_, whole)| *whole);
                match &lease {
                    // Nothing was written.
                    Some(_) if settled.lost && !(repeated && whole) => {}
                    Some(_) if whole => fault::reached(Point::AfterSettle),
                    Some(_) => fault::part_settled(settle.verdicts.len()),
                    None => {}
                }
                if settled.lost && repeated && whole {
                    return Some(Settled::default());
                }
                if let Some((lease, _)) = lease.filter(|_| !settled.lost) {
                    lease.confirm(sent);
                }
                return Some(settled);
            }
            Err(error) => error,
        };
        debug!(token = settle.token.0, %error, "not settled, trying again");
        repeated |= matches!(error, TimelineError::Unknown(_));
        senseless += u32::from(is_senseless(&error));
        if senseless >= MAX_SENSELESS_TRIES {
            error!(token = settle.token.0, %error, "verdicts cannot be written: the claim is left to its lease");
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = context.closed.cancelled() => return None,
        }
    }
}

/// Whether an error says that what was sent makes no sense, so that sending it again is in vain.
fn is_senseless(error: &TimelineError) -> bool {
    match error {
        TimelineError::Broken(_) => true,
        TimelineError::Refused(words) => words.starts_with("BADCALL") || words.starts_with("bad_due"),
        _ => false,
    }
}
