//! Holds one claim: publishes what is in it, judges the outcomes, settles.
//!
//! Settles when all verdicts are known, or no more come for a while; what is missing stays under the token and is retried
//! here, so that stragglers do not hold up the others. Lets go at once when the lease is lost, and gives back what it
//! holds when the sink turns out absent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::context::{Context, LaneContext, ShardContext, lock};
use super::copies::{Copied, Mourned};
use super::destinations::Gate;
use super::flight::{Flight, Stage};
use super::judge::Reason;
use super::leases::Lease;
use super::publishing::Answer;
use super::room::Share;
use super::settling::{Counted, Settling, settled};
use super::signal::Signal;
use super::turn::Turn;
use crate::clock::Timestamp;
use crate::task::{Follow, Following, Record};
use crate::timeline::{Claimed, Settlement};

/// How long a lane rests after a record that this version cannot read.
const REST: Duration = Duration::from_secs(60);

/// Answers taken in at one go.
const GULP: usize = 1000;

/// Occurrences that are passed over in one slice of working out what follows.
const SLICE: u32 = 256;

/// A claim's surroundings.
pub(super) struct Dispatch {
    pub(super) context: Arc<Context>,
    pub(super) shard: Arc<ShardContext>,
    pub(super) lane: Arc<LaneContext>,
    pub(super) signal: Arc<Signal>,
    pub(super) lease: Arc<Lease>,
    pub(super) shares: [Share; 2],
    /// It holds suspects.
    pub(super) turn: Option<Turn>,
    /// It is this trial of a half-open breaker.
    pub(super) trial: Option<u64>,
}

impl Drop for Dispatch {
    /// Whatever ends the holder, a panic too: nobody renews its lease any more, and others get their turn.
    fn drop(&mut self) {
        self.shard.leases.close(&self.lease.token);
        if self.turn.take().is_some() {
            // The next suspects may have waited for these to end.
            self.signal.raise(Timestamp::MIN_DUE);
        }
        if let Some(trial) = self.trial {
            self.lane.sink.breaker.trial_unused(trial);
        }
    }
}

/// A claim in hand.
pub(super) struct Holder {
    pub(super) dispatch: Dispatch,
    pub(super) flights: Vec<Flight>,
    /// Flights without a verdict.
    pub(super) open: usize,
    pub(super) answers: SelectAll<BoxStream<'static, Answer>>,
    /// When which flight is to be published (again).
    pub(super) retries: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The copies under way to the lane's dead-letter destination, ...
    pub(super) copies: BoxStream<'static, Copied>,
    /// ... the occurrences that they are of, and those whose copies are to be sent.
    pub(super) mourned: Vec<Mourned>,
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
    /// How many records could not be read.
    unreadable: usize,
}

/// Why an occurrence is not published.
enum Withheld {
    PassedOver,
    Dead(Reason, String),
}

/// Holds a claim until nothing is left in it.
pub(super) async fn run(dispatch: Dispatch, claimed: Claimed) {
    Holder::new(dispatch, claimed).hold().await;
}

impl Holder {
    fn new(dispatch: Dispatch, claimed: Claimed) -> Holder {
        let now = claimed.now;
        let flights: Vec<Flight> =
            claimed.occurrences.into_iter().map(|occurrence| Flight::new(occurrence, now)).collect();
        Holder {
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
            unreadable: 0,
        }
    }

    async fn hold(mut self) {
        if !self.begin().await {
            return self.let_go();
        }
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
                settled = settled(&mut self.settling) => match settled {
                    Some(settled) if settled.lost => return self.let_go(),
                    Some(settled) => self.settled(&settled),
                    // The engine is closed, or the timeline takes no answer: the rest is up to the lease.
                    None => return,
                },
                () = sink.breaker.opened(), if !self.ending => self.give_back(),
                () = context.deadline.cancelled(), if self.open > 0 => self.give_back(),
                () = context.stopping.cancelled(), if !self.ending => self.stop(),
                () = sleep_until(timer) => self.publish_due(),
            }
        }
    }

    /// Reads the records, publishes, and works out what follows while the sink is busy. `false`: the lease was lost.
    async fn begin(&mut self) -> bool {
        let overdue = self.dispatch.context.config.overdue;
        let (mut records, mut ahead) = (Vec::new(), Vec::new());
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            let record = flight.record().map_err(|error| error.to_string());
            match record.and_then(|record| Ok((flight.following(&record, overdue)?, record))) {
                Ok((following, record)) => {
                    let withheld = self.withheld(index, &record);
                    ahead.push((index, following));
                    records.push((index, record, withheld));
                }
                Err(words) => self.unreadable(index, &words),
            }
        }
        if self.dispatch.lane.sink.breaker.admits(self.dispatch.trial) {
            let batch = records.iter().filter(|(_, _, withheld)| withheld.is_none());
            self.publish(batch.map(|(index, record, _)| (*index, record)));
        }
        let mut early = Vec::new();
        if !self.look_ahead(ahead, &mut early).await {
            return false;
        }
        for (index, record, withheld) in records {
            match withheld {
                _ if self.flights[index].stage == Stage::Judged => {}
                Some(Withheld::Dead(reason, words)) => self.bury(index, Some(&record), reason, words),
                Some(Withheld::PassedOver) if record.is_recurring() => {
                    let verdict = self.flights[index].passed();
                    self.verdict(index, verdict, None);
                }
                Some(Withheld::PassedOver) => {
                    self.bury(index, Some(&record), Reason::TooLate, "overdue by more than its catch-up allows".into());
                }
                // The breaker closed the way since the claim: it goes back unsent.
                None if self.flights[index].publishes == 0 && self.retries.is_empty() => {
                    let verdict = self.flights[index].back();
                    self.verdict(index, verdict, None);
                }
                None => {}
            }
        }
        early.into_iter().for_each(|answer| self.take_in(answer));
        self.turn_away_if_absent();
        true
    }

    /// Works out what follows each occurrence, in slices; answers that come meanwhile wait in `early`. `false`: the lease
    /// was lost. What is not known when the engine's deadline passes goes back.
    async fn look_ahead(&mut self, ahead: Vec<(usize, Following)>, early: &mut Vec<Answer>) -> bool {
        let deadline = self.dispatch.context.deadline.clone();
        let lost = self.dispatch.lease.lost.clone();
        let mut working = std::pin::pin!(follow_all(ahead));
        let follows = loop {
            tokio::select! {
                biased;
                () = lost.cancelled() => return false,
                Some(answer) = self.answers.next() => early.push(answer),
                follows = &mut working => break follows,
                () = deadline.cancelled() => {
                    self.give_back();
                    return true;
                }
            }
        };
        for (index, follow) in follows {
            match follow {
                Ok(follow) => self.flights[index].followed_by(follow),
                Err(words) => self.unreadable(index, &words),
            }
        }
        true
    }

    /// Whether an occurrence is not published: poison, passed over by its own catch-up, or its destination given up.
    fn withheld(&self, index: usize, record: &Record) -> Option<Withheld> {
        let flight = &self.flights[index];
        let crashes = flight.occurrence.crashes;
        if crashes > self.dispatch.context.config.poison_limit {
            let words = format!("{crashes} of its claims ended without a word from their holder");
            return Some(Withheld::Dead(Reason::Poison, words));
        }
        if flight.is_passed_over(record, self.dispatch.context.config.overdue) {
            return Some(Withheld::PassedOver);
        }
        let mut destinations = lock(&self.dispatch.lane.sink.destinations);
        if destinations.all_well() {
            return None;
        }
        let destination = Flight::destination(record, self.dispatch.lane.destination.as_deref());
        match destinations.gate(destination, Instant::now()) {
            Gate::Open => None,
            Gate::GivenUp(words) => Some(Withheld::Dead(Reason::Destination, words)),
        }
    }

    /// A record that this version cannot read, or whose schedule it cannot: others may. Never dead.
    fn unreadable(&mut self, index: usize, words: &str) {
        let flight = &mut self.flights[index];
        let (lane, member) = (&self.dispatch.lane.lane, &flight.occurrence.member);
        self.unreadable += 1;
        // Once for the claim: where there is one, there may be a thousand.
        if self.unreadable == 1 {
            error!(%lane, words, "records cannot be read, written by a newer version? The lane rests here for a minute");
        }
        debug!(%lane, %member, words, "a record cannot be read");
        self.dispatch.lane.rest(REST);
        let verdict = flight.back();
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

    /// Gives back all that has no verdict. What is under way may still arrive.
    pub(super) fn give_back(&mut self) {
        self.ending = true;
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            self.take_in(answer);
        }
        self.answers = SelectAll::new();
        self.absent = None;
        self.give_up_copies();
        self.back(|_| true);
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
    }

    fn take_in_all(&mut self, first: Answer) {
        self.take_in(first);
        for _ in 1..GULP {
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

/// What follows each occurrence, by flight; in slices between which others get their turn.
async fn follow_all(ahead: Vec<(usize, Following)>) -> Vec<(usize, Result<Follow, String>)> {
    let mut follows = Vec::with_capacity(ahead.len());
    for (index, mut following) in ahead {
        let follow = loop {
            match following.advance(SLICE) {
                Ok(Some(follow)) => break Ok(follow),
                Ok(None) => tokio::task::yield_now().await,
                Err(error) => break Err(error.to_string()),
            }
        };
        follows.push((index, follow));
    }
    follows
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
