//! Publishes flights and judges the answers of the sink.
//!
//! It starts a publish only if the sink's whole `answer_timeout` fits into the lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Fault, Outcome, Trouble};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::flight::{Flight, FlightStage};
use super::outbox::{PublishBatch, SinkAnswer};
use super::task::{ClaimContext, ClaimState, Decision};
use crate::engine::claiming::judge::{Facts, Judgement, Reason, judge};
use crate::engine::context::LaneContext;
use crate::engine::destinations::failure_quota::QuotaReason;
use crate::engine::destinations::{FailedPublish, FailureContext, Health};
use crate::engine::event_log::LOG_PAUSE;
use crate::engine::fault::{self, Point};
use crate::task::{Record, RetryPolicy};

/// The pause before a publish that did not fit into the lease; the lease will be renewed soon.
const LEASE_PAUSE: Duration = Duration::from_millis(100);

/// How long a lane pauses after a trial of its sink without an answer.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);

/// Why a tombstone is refused.
const NO_TOMBSTONES: &str = "a tombstone is for Kafka; this sink has no messages without a value";

/// Maximum number of answers that are handled in one step.
const MAX_ANSWERS_AT_ONCE: usize = 1000;

/// Warns if a message loses headers, because the lane has got another kind of sink since a door put its task.
fn log_other_kind(record: &Record, lane: &LaneContext) {
    let Some(native) = &record.task.message.native else { return };
    let kind = lane.sink.sink.kind();
    if native.kind != kind && lane.sink.native_log.passes(LOG_PAUSE) {
        warn!(sink = lane.sink.name, lane = %lane.lane, kind, "messages lose their headers: these are for {}", native.kind);
    }
}

/// Warns if the broker has dropped the first publish of an occurrence as a duplicate, because the consumers will not
/// get this message. Does not warn if an earlier publish is likely. That is after an expired lease, after a requeue,
/// and for one lease after any trouble with the sink, when occurrences may have returned to the lane.
fn log_duplicate(claim: &ClaimContext, flight: &Flight) {
    let sink = &claim.lane.sink;
    if flight.publishes == 1
        && flight.is_fresh(claim.context.config.lease)
        && sink.troubled.paused_until().is_none()
        && sink.duplicate_log.passes(LOG_PAUSE)
    {
        let key = flight.occurrence.member.key(flight.occurrence.due);
        warn!(
            sink = sink.name,
            lane = %claim.lane.lane,
            destination = flight.destination,
            %key,
            hint = "another task, another installation with this namespace, or an instance that was stopped has used the key",
            "the broker dropped a message as a duplicate although it was published for the first time"
        );
    }
}

impl ClaimState {
    /// Publishes flights, one batch per destination.
    pub(super) fn publish<'a>(&mut self, batch: impl Iterator<Item = (usize, &'a Record)>) {
        let sink = &Arc::clone(&self.claim.lane.sink);
        let now = Instant::now();
        if !self.claim.lease.fits(sink.sink.answer_timeout()) {
            debug!(token = self.claim.lease.token.0, "waiting for the lease to be renewed before publishing");
            batch.for_each(|(index, _)| self.outbox.retry_at(now + LEASE_PAUSE, index));
            return;
        }
        let mut by_destination: BTreeMap<String, PublishBatch> = BTreeMap::new();
        for (index, record) in batch {
            // The lane may have got another sink since the task was put.
            if record.task.message.payload.is_tombstone() && !sink.sink.takes_tombstones() {
                self.decide(index, Decision::Dead(Reason::Rejected, NO_TOMBSTONES.to_owned()));
                continue;
            }
            log_other_kind(record, &self.claim.lane);
            let flight = &mut self.flights[index];
            if flight.publishes > 0 {
                sink.metrics.retries.inc();
            }
            let message = flight.message(record, self.claim.lane.destination.as_deref());
            flight.stage = FlightStage::UnderWay(now);
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
            self.outbox.send(sink, now, batch);
        }
    }

    /// Publishes the flights whose retry is due.
    pub(super) fn publish_due(&mut self) {
        let waits = |index: &usize| self.flights[*index].stage == FlightStage::Waiting;
        let due = self.outbox.due(Instant::now()).into_iter().filter(waits);
        let batch: Vec<_> = due.filter_map(|index| Some((index, self.flights[index].record().ok()?))).collect();
        if !batch.is_empty() {
            self.publish(batch.iter().map(|(index, record)| (*index, record)));
        }
    }

    /// Handles an answer of the sink, and those that are already available.
    pub(super) fn take_in_all(&mut self, first: SinkAnswer) {
        self.take_in(first);
        for _ in 1..MAX_ANSWERS_AT_ONCE {
            let Some(answer) = self.outbox.try_answer() else { break };
            self.take_in(answer);
        }
    }

    /// Handles one answer of the sink.
    pub(super) fn take_in(&mut self, answer: SinkAnswer) {
        match answer {
            SinkAnswer::Outcome(index, publish, outcome) => {
                self.judge(index, publish, outcome);
                if self.open > 0 {
                    fault::reached(Point::MidBatch);
                }
            }
            SinkAnswer::Ended(sent, flights) => self.ended(sent, &flights),
        }
    }

    /// A batch has ended; messages without an answer may have been delivered. If the sink has answered nothing since
    /// the batch was sent, it is probed.
    fn ended(&mut self, sent: Instant, flights: &[(usize, u32)]) {
        let sink = &self.claim.lane.sink;
        if !sink.answered_since(sent) {
            sink.breaker.request_probe();
            // These messages stay in the claim; the claim of another lane can be the trial of the sink.
            if let Some(trial) = self.claim.trial.take() {
                self.claim.lane.claims.pause(TRIAL_PAUSE);
                sink.breaker.trial_unused(trial);
            }
        }
        let detail = format!("no answer within {:?}", sink.sink.answer_timeout());
        for (index, publish) in flights {
            let trouble = Trouble::open(Fault::Unanswered, detail.as_str());
            self.judge(*index, *publish, Outcome::Retry(trouble));
        }
    }

    /// Acts on an outcome. A repeated outcome, or one of an earlier publish, has no effect.
    fn judge(&mut self, index: usize, publish: u32, outcome: Outcome) {
        let flight = &mut self.flights[index];
        let FlightStage::UnderWay(sent) = flight.stage else { return };
        if flight.publishes != publish {
            return;
        }
        let now = Instant::now();
        self.claim.lane.sink.metrics.publish_seconds.observe(now.duration_since(sent).as_secs_f64());
        let facts = self.facts(index, sent, &outcome, now);
        let judgement = judge(outcome, &facts);
        self.end_trial(index, &judgement);
        match judgement {
            Judgement::Accepted => self.decide(index, Decision::Accepted),
            Judgement::Dead(reason, detail) => self.decide(index, Decision::Dead(reason, detail)),
            Judgement::Again { .. } if self.ending => {
                let verdict = self.flights[index].back();
                self.verdict(index, verdict, None);
            }
            Judgement::Again { after, counted: true } => {
                self.flights[index].retries += 1;
                self.outbox.retry_at(now + after, index);
            }
            Judgement::Again { after, .. } if self.may_wait(index, &facts.destination) => {
                self.outbox.retry_at(now + after, index);
            }
            Judgement::Again { .. } => self.return_over_quota(index),
            Judgement::SinkUnavailable(detail) => self.unavailable = Some(detail),
        }
    }

    /// Whether a failed flight may wait in the claim for a retry. Its destination has accepted nothing since it failed.
    fn may_wait(&mut self, index: usize, destination: &FailureContext) -> bool {
        let flight = &mut self.flights[index];
        let at_fault = destination.health >= Health::AtFault;
        if let Some(share) = flight.quota_share.as_mut().filter(|share| !share.is_first_try()) {
            return !at_fault || share.is_within_at_fault();
        }
        let name = std::mem::take(&mut flight.destination);
        let reason = if at_fault { QuotaReason::AtFault } else { QuotaReason::Failing };
        flight.take_quota(&self.claim.lane, &name, reason, destination.is_new)
    }

    /// Notes an outcome for the sink and the destination, and collects the facts for the judge.
    fn facts(&mut self, index: usize, sent: Instant, outcome: &Outcome, now: Instant) -> Facts {
        let sink = &self.claim.lane.sink;
        let flight = &mut self.flights[index];
        let mut facts = Facts {
            policy: RetryPolicy::DEFAULT,
            retries: flight.retries,
            publishes: flight.publishes,
            destination: FailureContext::default(),
            random: rand::random(),
        };
        match outcome {
            Outcome::Accepted | Outcome::Duplicate => {
                let late = self.claim.shard.clock.now().since(flight.occurrence.due);
                self.claim.lane.metrics.lateness.observe(late.as_secs_f64());
                if *outcome == Outcome::Duplicate {
                    sink.metrics.duplicate.inc();
                    self.claim.lane.outcomes.duplicate(late);
                    log_duplicate(&self.claim, flight);
                } else {
                    sink.metrics.accepted.inc();
                    self.claim.lane.outcomes.accepted(late);
                }
                sink.answered();
                let acceptance = sink.destinations.lock().accepted(&flight.destination, sent);
                if let Some(failing_for) = acceptance.recovered_after {
                    sink.log_recovered(&flight.destination, failing_for);
                }
                // Occurrences that returned over quota can be published now, so claims start at the oldest again.
                if acceptance.is_change && self.claim.lane.forget_returns(&flight.destination) {
                    self.claim.context.wake(&self.claim.lane.lane);
                }
            }
            Outcome::Reject(_) => {
                sink.metrics.rejected.inc();
                self.claim.lane.outcomes.rejected();
                sink.answered();
            }
            Outcome::Retry(trouble) => {
                sink.metrics.retry.inc();
                self.claim.lane.outcomes.retry();
                sink.troubled.pause(self.claim.context.config.lease);
                let first_failure = flight.failed(trouble, &sink.failed_attempts, now);
                if matches!(trouble.fault, Fault::Destination | Fault::Refusing) {
                    sink.answered();
                }
                if trouble.fault != Fault::Sink {
                    let server_now = self.claim.shard.clock.now();
                    let mut destinations = sink.destinations.lock();
                    let waits_forever = self.claim.lane.waits_forever;
                    let is_spared = waits_forever || flight.is_spared(server_now, destinations.patience());
                    facts.destination = destinations.failed(FailedPublish {
                        destination: &flight.destination,
                        trouble,
                        sent,
                        first_failure,
                        now,
                        is_spared,
                    });
                    let patience = destinations.patience();
                    drop(destinations);
                    if let Some(health) = facts.destination.news {
                        self.claim.lane.log_destination(&flight.destination, health, patience, trouble);
                    }
                    let policy = flight.record().ok().and_then(|record| record.retry_policy(server_now).ok());
                    facts.policy = policy.unwrap_or(RetryPolicy::DEFAULT);
                }
            }
        }
        facts
    }

    /// If the flight was a trial, the flights that waited for it are dead too or are published.
    pub(super) fn end_trial(&mut self, index: usize, judgement: &Judgement) {
        let Some(mut trial) = self.trials.end(index) else { return };
        match judgement {
            Judgement::Dead(Reason::Destination, detail) => {
                for index in trial.waiting {
                    self.decide(index, Decision::Dead(Reason::Destination, detail.clone()));
                }
            }
            // The message was refused, which says nothing about the destination. The next message becomes the trial.
            Judgement::Dead(Reason::Rejected, _) => {
                if let Some(next) = trial.waiting.pop_front() {
                    trial.index = next;
                    self.outbox.retry_at(Instant::now(), next);
                    self.trials.put_back(trial);
                }
            }
            // All occurrences return to the lane.
            Judgement::SinkUnavailable(_) => {}
            Judgement::Accepted | Judgement::Again { .. } | Judgement::Dead(..) => {
                trial.waiting.into_iter().for_each(|index| self.outbox.retry_at(Instant::now(), index));
            }
        }
    }
}
