//! Holds one claim: publishes what is in it, judges the outcomes, settles.
//!
//! Settles when all verdicts are known, or no more come for a while; what is missing stays under the token and is retried
//! here, so that stragglers do not hold up the others. Lets go at once when the lease is lost, and gives back what it
//! holds when the sink turns out absent.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use futures_util::future::FutureExt;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use tokio::time::Instant;
use tracing::{error, warn};

use super::context::{Context, LaneContext, ShardContext};
use super::copies::{AwaitingCopy, Copied};
use super::flight::{Flight, Stage};
use super::following::Followings;
use super::judge::Reason;
use super::leases::Lease;
use super::publishing::Answer;
use super::room::Share;
use super::settling::{Counted, Settling, settled};
use super::signal::Signal;
use super::trial::Trials;
use super::turn::Turn;
use crate::task::Follow;
use crate::timeline::{Claimed, Settlement};

/// Answers taken in at one go.
const MAX_ANSWERS_AT_ONCE: usize = 1000;

/// A claim's surroundings.
pub(super) struct ClaimContext {
    pub(super) context: Arc<Context>,
    pub(super) shard: Arc<ShardContext>,
    pub(super) lane: Arc<LaneContext>,
    pub(super) signal: Arc<Signal>,
    pub(super) lease: Arc<Lease>,
    pub(super) shares: [Share; 2],
    /// It holds suspects, until it is dropped.
    pub(super) _turn: Option<Turn>,
    /// It is this trial of a half-open breaker.
    pub(super) trial: Option<u64>,
}

impl Drop for ClaimContext {
    /// Whatever ends the holder, a panic too: nobody renews its lease any more, and others get their turn.
    fn drop(&mut self) {
        self.shard.leases.close(&self.lease.token);
        if let Some(trial) = self.trial {
            self.lane.sink.breaker.trial_unused(trial);
        }
    }
}

/// A claim in hand.
pub(super) struct ClaimTask {
    pub(super) dispatch: ClaimContext,
    pub(super) flights: Vec<Flight>,
    /// Flights without a verdict.
    pub(super) open: usize,
    pub(super) answers: SelectAll<BoxStream<'static, Answer>>,
    /// When which flight is to be published (again).
    pub(super) retries: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The copies under way to the lane's dead-letter destination, ...
    pub(super) copies: BoxStream<'static, Copied>,
    /// ... the occurrences that they are of, and those whose copies are to be sent.
    pub(super) mourned: Vec<AwaitingCopy>,
    /// Those that are not written yet, each with the place of its occurrence in the claim.
    pub(super) verdicts: Vec<(usize, Settlement)>,
    /// What is to be counted once they are written.
    pub(super) tally: Vec<Counted>,
    /// When the verdicts are written although some are missing.
    pub(super) settle_at: Option<Instant>,
    /// Until when others put that off.
    pub(super) settle_by: Option<Instant>,
    pub(super) settling: Option<Settling>,
    /// The sink turned out absent; how that was noticed.
    pub(super) absent: Option<String>,
    /// Nothing is published any more.
    pub(super) ending: bool,
    /// What is still being worked out, ...
    pub(super) followings: Followings,
    /// ... and what becomes of those that wait for it.
    fates: HashMap<usize, Fate>,
    /// Destinations that are given up and tried.
    pub(super) trials: Trials,
    /// How many records could not be read.
    pub(super) unreadable: usize,
}

/// What becomes of an occurrence once what follows it is known.
pub(super) enum Fate {
    /// The sink has it.
    Accepted,
    /// Its own catch-up passes it over.
    Passed,
    /// It is not tried again by itself.
    Dead(Reason, String),
}

/// Holds a claim until nothing is left in it.
pub(super) async fn run(dispatch: ClaimContext, claimed: Claimed) {
    ClaimTask::new(dispatch, claimed).hold().await;
}

impl ClaimTask {
    fn new(dispatch: ClaimContext, claimed: Claimed) -> ClaimTask {
        let now = claimed.now;
        let flights: Vec<Flight> =
            claimed.occurrences.into_iter().map(|occurrence| Flight::new(occurrence, now)).collect();
        ClaimTask {
            dispatch,
            open: flights.len(),
            verdicts: Vec::with_capacity(flights.len()),
            tally: Vec::new(),
            flights,
            answers: SelectAll::new(),
            copies: stream::empty().boxed(),
            mourned: Vec::new(),
            retries: BinaryHeap::new(),
            settle_at: None,
            settle_by: None,
            settling: None,
            absent: None,
            ending: false,
            followings: Followings::default(),
            fates: HashMap::new(),
            trials: Trials::default(),
            unreadable: 0,
        }
    }

    async fn hold(mut self) {
        self.begin();
        let (context, sink) = (Arc::clone(&self.dispatch.context), Arc::clone(&self.dispatch.lane.sink));
        let lost = self.dispatch.lease.lost.clone();
        while self.open > 0 || !self.verdicts.is_empty() || self.settling.is_some() {
            self.send_copies();
            self.settle_if_due();
            let timer = self.next_timer();
            // While the last settle is under way its own answer tells whether the claim was lost.
            let last = self.settling.is_some() && self.open == 0;
            tokio::select! {
                biased;
                () = lost.cancelled(), if !last => return self.let_go(),
                Some(answer) = self.answers.next() => self.take_in_all(answer),
                Some(copied) = self.copies.next() => self.copied(copied),
                (index, follow) = self.followings.next() => self.followed(index, follow),
                settled = settled(&mut self.settling) => match settled {
                    Some(settled) if settled.lost => return self.let_go(),
                    Some(settled) => self.settled(&settled),
                    // The engine is closed, or the timeline takes no answer: the rest is up to the lease.
                    None => return,
                },
                () = sink.breaker.opened(), if !self.ending => self.give_back(),
                () = context.deadline.cancelled(), if self.open > 0 => self.give_up(),
                () = context.stopping.cancelled(), if !self.ending => self.stop(),
                () = sleep_until(timer) => self.publish_due(),
            }
        }
    }

    /// What becomes of an occurrence is known; that is written once what follows it is known too.
    pub(super) fn decide(&mut self, index: usize, fate: Fate) {
        let flight = &mut self.flights[index];
        if flight.stage == Stage::Judged {
            return;
        }
        if flight.is_followed() {
            return self.conclude(index, fate);
        }
        flight.decided();
        self.fates.insert(index, fate);
    }

    /// What follows an occurrence is known.
    pub(super) fn followed(&mut self, index: usize, follow: Result<Follow, String>) {
        // What went back meanwhile has its verdict.
        if self.flights[index].stage == Stage::Judged {
            return;
        }
        match follow {
            Ok(follow) => {
                self.flights[index].followed_by(follow);
                if let Some(fate) = self.fates.remove(&index) {
                    self.conclude(index, fate);
                }
            }
            Err(words) => {
                let (lane, member) = (&self.dispatch.lane.lane, &self.flights[index].occurrence.member);
                error!(%lane, %member, words, "what follows an occurrence cannot be worked out: it goes back");
                self.fates.remove(&index);
                let verdict = self.flights[index].back();
                self.verdict(index, verdict, None);
            }
        }
    }

    fn conclude(&mut self, index: usize, fate: Fate) {
        let verdict = match fate {
            Fate::Accepted => self.flights[index].accepted(),
            Fate::Passed => self.flights[index].passed(),
            Fate::Dead(reason, words) => {
                let record = self.flights[index].record().ok();
                return self.bury(index, record.as_ref(), reason, words);
            }
        };
        self.verdict(index, verdict, None);
    }

    /// The lease is gone: others hold what was in it, and nothing is written.
    fn let_go(self) {
        self.dispatch.lane.metrics.claims_lost.inc();
        let (lane, token, open) = (&self.dispatch.lane.lane, &self.dispatch.lease.token.0, self.open);
        warn!(%lane, token, open, "a claim was lost before it was settled: its occurrences may be published again");
    }

    /// When something is to be done although nobody answers.
    fn next_timer(&self) -> Option<Instant> {
        let retry = self.retries.peek().map(|Reverse((at, _))| *at);
        let settle = self.settle_at.filter(|_| self.settling.is_none());
        retry.into_iter().chain(settle).min()
    }

    /// Gives back whatever has no verdict.
    fn give_up(&mut self) {
        self.give_back();
        self.back(|_| true);
    }

    /// Gives back all that nothing is decided of. What is under way may still arrive.
    fn give_back(&mut self) {
        self.ending = true;
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            self.take_in(answer);
        }
        self.answers = SelectAll::new();
        self.absent = None;
        self.give_up_copies();
        self.back(|stage| !matches!(stage, Stage::Decided { .. }));
    }

    /// The engine stops: what waits for a retry goes back, what is under way is waited for.
    fn stop(&mut self) {
        self.ending = true;
        self.back(|stage| stage == Stage::Waiting);
    }

    fn back(&mut self, which: impl Fn(Stage) -> bool) {
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.stage != Stage::Judged && which(flight.stage) {
                let verdict = flight.back();
                self.verdict(index, verdict, None);
            }
        }
        self.retries.clear();
        self.followings.retain(|index| self.flights[index].stage != Stage::Judged);
    }

    fn take_in_all(&mut self, first: Answer) {
        self.take_in(first);
        for _ in 1..MAX_ANSWERS_AT_ONCE {
            let Some(Some(answer)) = self.answers.next().now_or_never() else { break };
            self.take_in(answer);
        }
        self.turn_away_if_absent();
    }

    /// The sink turned out absent: all that is held for it goes back.
    fn turn_away_if_absent(&mut self) {
        if let Some(words) = self.absent.take() {
            self.dispatch.lane.sink.trip(&words);
            self.give_back();
        }
    }
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
