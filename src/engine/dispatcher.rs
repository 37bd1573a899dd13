//! Holds one claim: publishes what is in it, judges the outcomes, settles.
//!
//! Settles when all verdicts are known, or 50 ms after the first; what is missing stays under the token and is retried
//! here, so that stragglers do not hold up the others. Lets go at once when the lease is lost, and gives back what it
//! holds when the sink turns out absent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{BoxStream, SelectAll, StreamExt};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::context::{Context, LaneContext, ShardContext, lock};
use super::destinations::Gate;
use super::flight::{Flight, Stage};
use super::judge::Reason;
use super::leases::Lease;
use super::publishing::Answer;
use super::room::Share;
use super::signal::Signal;
use crate::clock::Timestamp;
use crate::task::{Follow, Following, Member, Record};
use crate::timeline::{Claimed, Rest, Settle, Settled, Settlement, TimelineError, Verdict};

/// How long the first verdict waits for the others.
const GATHER: Duration = Duration::from_millis(50);

/// How long a lane rests after a record that this version cannot read.
const REST: Duration = Duration::from_secs(60);

/// Answers taken in at one go.
const GULP: usize = 1000;

/// Occurrences that are passed over in one slice of working out what follows.
const SLICE: u32 = 256;

/// How often a settle is sent that the timeline says makes no sense.
const SENSELESS: u32 = 5;

/// The waits between tries to settle while the timeline does not answer.
const SETTLE_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A claim's surroundings.
pub(super) struct Dispatch {
    pub(super) context: Arc<Context>,
    pub(super) shard: Arc<ShardContext>,
    pub(super) lane: Arc<LaneContext>,
    pub(super) signal: Arc<Signal>,
    pub(super) lease: Arc<Lease>,
    pub(super) shares: [Share; 2],
    /// Set while it holds a lone suspect; cleared at the end.
    pub(super) lone: Option<Arc<AtomicBool>>,
    /// It is this trial of a half-open breaker.
    pub(super) trial: Option<u64>,
}

impl Drop for Dispatch {
    /// Whatever ends the holder, a panic too: nobody renews its lease any more, and others get their turn.
    fn drop(&mut self) {
        self.shard.leases.close(&self.lease.token);
        if let Some(lone) = &self.lone {
            lone.store(false, Ordering::Release);
            // The next suspect may have waited for this one to end.
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
    open: usize,
    pub(super) answers: SelectAll<BoxStream<'static, Answer>>,
    /// When which flight is to be published (again).
    pub(super) retries: BinaryHeap<Reverse<(Instant, usize)>>,
    verdicts: Vec<Settlement>,
    /// What is to be counted once they are written.
    tally: Vec<Counted>,
    /// When the verdicts are written although some are missing.
    settle_at: Option<Instant>,
    settling: Option<Settling>,
    /// The sink turned out absent; how that was noticed.
    pub(super) absent: Option<String>,
    /// Nothing is published any more.
    pub(super) ending: bool,
}

/// A settle under way, and what follows from it.
struct Settling {
    answer: BoxFuture<'static, Option<Settled>>,
    /// The earliest due that it writes.
    head: Option<Timestamp>,
    tally: Vec<Counted>,
}

/// What is counted of one verdict: a death, and occurrences passed over.
struct Counted {
    member: Member,
    dead: Option<Reason>,
    passed_over: u64,
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
            retries: BinaryHeap::new(),
            settle_at: None,
            settling: None,
            absent: None,
            ending: false,
        }
    }

    async fn hold(mut self) {
        if !self.begin().await {
            return self.let_go();
        }
        let (context, sink) = (Arc::clone(&self.dispatch.context), Arc::clone(&self.dispatch.lane.sink));
        let lost = self.dispatch.lease.lost.clone();
        while self.open > 0 || !self.verdicts.is_empty() || self.settling.is_some() {
            self.settle_if_due();
            let timer = self.next_timer();
            // While the last settle is under way its own answer tells whether the claim was lost.
            let last = self.settling.is_some() && self.open == 0;
            tokio::select! {
                biased;
                () = lost.cancelled(), if !last => return self.let_go(),
                Some(answer) = self.answers.next() => self.take_in_all(answer),
                settled = settled(&mut self.settling) => match settled {
                    Some(settled) if !settled.lost => self.settled(&settled),
                    _ => return self.let_go(),
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
            let flight = &self.flights[index];
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
        error!(
            lane = %self.dispatch.lane.lane, member = %flight.occurrence.member, words,
            "a record cannot be read, written by a newer version? The lane rests here for a minute"
        );
        self.dispatch.lane.rest(REST);
        let verdict = flight.back();
        self.verdict(index, verdict, None);
    }

    /// An occurrence will not be tried again by itself.
    pub(super) fn bury(&mut self, index: usize, record: Option<&Record>, reason: Reason, words: String) {
        let flight = &mut self.flights[index];
        let lane = self.dispatch.lane.lane.as_str();
        debug!(lane, member = %flight.occurrence.member, reason = reason.as_str(), words, "an occurrence is dead");
        let verdict = flight.dead(record, reason, words);
        self.verdict(index, verdict, Some(reason));
    }

    /// Notes a verdict; the first one waits a little for the others.
    pub(super) fn verdict(&mut self, index: usize, verdict: Settlement, dead: Option<Reason>) {
        let passed_over = self.flights[index].tally(&verdict.verdict);
        if dead.is_some() || passed_over > 0 {
            self.tally.push(Counted { member: verdict.member.clone(), dead, passed_over });
        }
        self.open -= 1;
        self.verdicts.push(verdict);
        self.settle_at.get_or_insert_with(|| Instant::now() + GATHER);
    }

    /// Begins to write the verdicts, if it is time and nothing is being written.
    fn settle_if_due(&mut self) {
        let due = self.open == 0 || self.settle_at.is_some_and(|at| at <= Instant::now());
        if self.settling.is_some() || self.verdicts.is_empty() || !due {
            return;
        }
        self.settle_at = None;
        let verdicts = std::mem::take(&mut self.verdicts);
        let head = verdicts.iter().filter_map(waits_until).min();
        let (context, lease) = (&self.dispatch.context, &self.dispatch.lease);
        let settle = Settle {
            token: lease.token.clone(),
            verdicts,
            rest: Rest::Keep,
            lease: context.config.lease,
            dead_cap: context.config.dead_cap,
        };
        let (shard, lane) = (Arc::clone(&self.dispatch.shard), Arc::clone(&self.dispatch.lane));
        let (context, lease, whole) = (Arc::clone(context), Arc::clone(lease), self.open == 0);
        let answer = settle_until_answered(context, shard, lane, settle, Some((lease, whole))).boxed();
        self.settling = Some(Settling { answer, head, tally: std::mem::take(&mut self.tally) });
    }

    /// The verdicts were written: others take the room, and what waits again is told of.
    fn settled(&mut self, settled: &Settled) {
        let Some(settling) = self.settling.take() else { return };
        if let Some(head) = settling.head {
            self.dispatch.signal.raise(head);
        }
        let lane = &self.dispatch.lane;
        for counted in settling.tally {
            if settled.skipped.contains(&counted.member) || settled.changed.contains(&counted.member) {
                continue;
            }
            lane.metrics.passed_over.inc_by(counted.passed_over);
            if let Some(reason) = counted.dead {
                self.dispatch.context.metrics.dead(lane.lane.as_str(), reason.as_str(), 1);
            }
        }
        self.dispatch.context.metrics.dead_dropped.inc_by(settled.dropped);
        let bytes = self.flights.iter().map(|flight| flight.occurrence.record.len()).sum();
        let left = self.open + self.verdicts.len();
        self.dispatch.shares.iter_mut().for_each(|share| share.shrink_to(left, bytes));
    }

    /// The lease is gone: others hold what was in it, and nothing is written.
    fn let_go(self) {
        self.dispatch.lane.metrics.claims_lost.inc();
        if !self.dispatch.context.closed.is_cancelled() {
            let (token, open) = (&self.dispatch.lease.token.0, self.open);
            warn!(token, open, "a claim was lost before it was settled: its occurrences may be published again");
        }
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

/// The due under which an occurrence waits after its verdict, if it does.
fn waits_until(settlement: &Settlement) -> Option<Timestamp> {
    match settlement.verdict {
        Verdict::Next { due, .. } | Verdict::DeadNext { due, .. } => Some(due),
        Verdict::Back { .. } => Some(settlement.due),
        Verdict::Finished | Verdict::Dead(_) => None,
    }
}

async fn settled(settling: &mut Option<Settling>) -> Option<Settled> {
    match settling {
        Some(settling) => (&mut settling.answer).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
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
    let (mut pause, mut repeated, mut senseless) = (SETTLE_PAUSES.0, false, 0);
    loop {
        let sent = Instant::now();
        let error = match context.timeline.settle(shard.shard, &lane.lane, settle.clone()).await {
            Ok(settled) => {
                let whole = lease.as_ref().is_some_and(|(_, whole)| *whole);
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
        if senseless >= SENSELESS {
            error!(token = settle.token.0, %error, "verdicts cannot be written: the claim is left to its lease");
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = context.closed.cancelled() => return None,
        }
        pause = (pause * 2).min(SETTLE_PAUSES.1);
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
