//! The half of a holder that talks to the sink: sends messages, takes in what is answered, judges it.
//!
//! Starts no publish unless the sink's whole `answer_timeout` fits into the lease.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt};
use punctual_sinks::{Fault, Message, Outcome, Sink, Trouble};
use tokio::time::Instant;
use tracing::debug;

use super::destinations::FailureContext;
use super::dispatcher::{ClaimTask, Fate};
use super::fault::{self, Point};
use super::flight::Stage;
use super::held::Hold;
use super::judge::{Facts, Judgement, judge};
use crate::task::{Record, RetryPolicy};

/// How soon a publish is tried again that did not fit into the lease: an extension is due any moment.
const LEASE_PAUSE: Duration = Duration::from_millis(100);

/// How long a lane stands back after a trial of its sink that was not answered.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);

/// The net below a sink that does not keep to its `answer_timeout`.
const SLACK: Duration = Duration::from_millis(500);

/// What a sink's stream tells.
pub(super) enum Answer {
    /// The outcome of a flight's publish number so-and-so.
    Outcome(usize, u32, Outcome),
    /// A batch sent at that time has ended: what was not answered never will be.
    Ended(Instant, Vec<(usize, u32)>),
}

/// Messages for one destination, and the flight and publish number of each.
#[derive(Default)]
struct Batch {
    flights: Vec<(usize, u32)>,
    messages: Vec<Message>,
}

impl ClaimTask {
    /// Publishes flights, side by side by destination.
    pub(super) fn publish<'a>(&mut self, batch: impl Iterator<Item = (usize, &'a Record)>) {
        let sink = &self.dispatch.lane.sink;
        let now = Instant::now();
        if !self.dispatch.lease.fits(sink.sink.answer_timeout()) {
            debug!(token = self.dispatch.lease.token.0, "a publish waits for its lease to be extended");
            self.retries.extend(batch.map(|(index, _)| Reverse((now + LEASE_PAUSE, index))));
            return;
        }
        let mut by_destination: BTreeMap<String, Batch> = BTreeMap::new();
        for (index, record) in batch {
            let flight = &mut self.flights[index];
            if flight.publishes > 0 {
                sink.metrics.retries.inc();
            }
            let message = flight.message(record, self.dispatch.lane.destination.as_deref());
            flight.stage = Stage::UnderWay(now);
            let batch = match by_destination.get_mut(&message.destination) {
                Some(batch) => batch,
                None => by_destination.entry(message.destination.clone()).or_default(),
            };
            batch.flights.push((index, flight.publishes));
            batch.messages.push(message);
        }
        let messages = || by_destination.values().flat_map(|batch| &batch.messages);
        fault::reached_with(Point::BeforePublish, || messages().map(|message| message.task.as_str()));
        for batch in by_destination.into_values() {
            self.answers.push(answers(&sink.sink, now, batch));
        }
    }

    /// Publishes what is to be tried again by now.
    pub(super) fn publish_due(&mut self) {
        let now = Instant::now();
        let mut batch = Vec::new();
        while let Some(Reverse((at, index))) = self.retries.peek().copied()
            && at <= now
        {
            self.retries.pop();
            if self.flights[index].stage == Stage::Waiting
                && let Ok(record) = self.flights[index].record()
            {
                batch.push((index, record));
            }
        }
        if !batch.is_empty() {
            self.publish(batch.iter().map(|(index, record)| (*index, record)));
        }
    }

    /// Takes in one answer of the sink.
    pub(super) fn take_in(&mut self, answer: Answer) {
        match answer {
            Answer::Outcome(index, publish, outcome) => {
                self.judge(index, publish, outcome);
                if self.open > 0 {
                    fault::reached(Point::MidBatch);
                }
            }
            Answer::Ended(sent, flights) => self.ended(sent, &flights),
        }
    }

    /// A batch has ended: what was not answered may have arrived. When the sink said nothing since, it is suspect.
    fn ended(&mut self, sent: Instant, flights: &[(usize, u32)]) {
        let sink = &self.dispatch.lane.sink;
        if !sink.answered_since(sent) {
            sink.breaker.suspect();
            // What is not answered stays here; another lane's claim may show whether the sink is there.
            if let Some(trial) = self.dispatch.trial.take() {
                self.dispatch.lane.claims.rest(TRIAL_PAUSE);
                sink.breaker.trial_unused(trial);
            }
        }
        let words = format!("no answer within {:?}", sink.sink.answer_timeout());
        for (index, publish) in flights {
            let trouble = Trouble { fault: Fault::Unclear, definite: false, words: words.clone() };
            self.judge(*index, *publish, Outcome::Retry(trouble));
        }
    }

    /// Draws the consequence of an outcome; one that comes twice, or for an earlier publish, has none.
    fn judge(&mut self, index: usize, publish: u32, outcome: Outcome) {
        let flight = &mut self.flights[index];
        let Stage::UnderWay(sent) = flight.stage else { return };
        if flight.publishes != publish {
            return;
        }
        let now = Instant::now();
        self.dispatch.lane.sink.metrics.publish_seconds.observe(now.duration_since(sent).as_secs_f64());
        let facts = self.weigh(index, sent, &outcome, now);
        let judgement = judge(outcome, &facts);
        self.tried(index, &judgement);
        match judgement {
            Judgement::Accepted => {
                let late = self.dispatch.context.clock.now().since(self.flights[index].occurrence.due);
                self.dispatch.lane.metrics.lateness.observe(late.as_secs_f64());
                self.decide(index, Fate::Accepted);
            }
            Judgement::Dead(reason, words) => self.decide(index, Fate::Dead(reason, words)),
            Judgement::Again { .. } if self.ending => {
                let verdict = self.flights[index].back();
                self.verdict(index, verdict, None);
            }
            Judgement::Again { after, counted: true } => {
                self.flights[index].retries += 1;
                self.publish_at(now + after, index);
            }
            Judgement::Again { after, .. } if self.may_wait(index, facts.destination.at_fault) => {
                self.publish_at(now + after, index);
            }
            Judgement::Again { .. } => self.turn_back(index),
            Judgement::Absent(words) => self.absent = Some(words),
        }
    }

    /// A flight is published then.
    pub(super) fn publish_at(&mut self, at: Instant, index: usize) {
        self.retries.push(Reverse((at, index)));
    }

    /// Whether a flight may wait here to be tried again at its destination, where nothing has been accepted since it failed.
    fn may_wait(&mut self, index: usize, at_fault: bool) -> bool {
        let flight = &mut self.flights[index];
        if let Some(hold) = &flight.hold {
            return !at_fault || hold.is_within();
        }
        let (lane, bytes) = (&self.dispatch.lane, flight.occurrence.record.len());
        flight.hold = Hold::take(&lane.held, &lane.sink.held, &flight.destination, bytes, at_fault);
        flight.hold.is_some()
    }

    /// Notes an outcome where sinks and destinations are kept account of, and gathers what the judge needs to know.
    fn weigh(&mut self, index: usize, sent: Instant, outcome: &Outcome, now: Instant) -> Facts {
        let sink = &self.dispatch.lane.sink;
        let flight = &mut self.flights[index];
        let mut facts = Facts {
            policy: RetryPolicy::DEFAULT,
            retries: flight.retries,
            publishes: flight.publishes,
            destination: FailureContext::default(),
            random: rand::random(),
        };
        match outcome {
            Outcome::Accepted => {
                sink.metrics.accepted.inc();
                sink.answered();
                let forgiven = sink.destinations.lock().accepted(&flight.destination, sent);
                // What was turned back need not wait any more. Claims begin at the oldest again, and find it.
                if forgiven && self.dispatch.lane.turns_back_no_more(&flight.destination) {
                    self.dispatch.context.wake(&self.dispatch.lane.lane);
                }
            }
            Outcome::Reject(_) => {
                sink.metrics.rejected.inc();
                sink.answered();
            }
            Outcome::Retry(trouble) => {
                sink.metrics.retry.inc();
                let first = flight.failed(trouble.definite, now);
                let told = trouble.fault == Fault::Destination;
                if told {
                    sink.answered();
                }
                if trouble.fault != Fault::Sink {
                    let mut destinations = sink.destinations.lock();
                    facts.destination = destinations.failed(&flight.destination, first, now, told, &trouble.words);
                    let patience = destinations.patience();
                    drop(destinations);
                    let now = self.dispatch.context.clock.now();
                    facts.destination.given_up &= !flight.is_spared(now, patience);
                    let policy = flight.record().ok().and_then(|record| record.retry_policy(now).ok());
                    facts.policy = policy.unwrap_or(RetryPolicy::DEFAULT);
                }
            }
        }
        facts
    }
}

/// The outcomes of a batch, and word of its end.
fn answers(sink: &Arc<dyn Sink>, sent: Instant, batch: Batch) -> BoxStream<'static, Answer> {
    let net = tokio::time::sleep(sink.answer_timeout() + SLACK);
    let flights = batch.flights.clone();
    outcomes(sink, batch.messages)
        .filter_map(move |(at, outcome)| {
            ready(flights.get(at).map(|(index, publish)| Answer::Outcome(*index, *publish, outcome)))
        })
        .take_until(net)
        .chain(stream::once(ready(Answer::Ended(sent, batch.flights))))
        .boxed()
}

/// What the sink says of each message.
#[cfg(not(feature = "fault-points"))]
fn outcomes(sink: &Arc<dyn Sink>, messages: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
    sink.publish(messages)
}

/// What the sink says of each message; of half of them, where a fault point between the halves of a batch is asked for.
#[cfg(feature = "fault-points")]
fn outcomes(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
    let Some(half) = fault::first_half(messages.len()) else { return sink.publish(messages) };
    messages.truncate(half);
    let never = async {
        fault::reached(Point::MidPublish);
        std::future::pending().await
    };
    sink.publish(messages).chain(stream::once(never)).boxed()
}
