//! One occurrence of a claim: its message, its history within the claim, and its verdict.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::{Message, Trouble};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::engine::claiming::judge::Reason;
use crate::engine::context::LaneContext;
use crate::engine::destinations::failed_attempts::{FailedAttemptEntry, FailedAttempts};
use crate::engine::destinations::failure_quota::{QuotaReason, QuotaRequest, QuotaShare};
use crate::task::record::RecordError;
use crate::task::{CatchUp, CatchUpLimits, Counts, NextDue, NextDueSearch, Record, StoredHeaders, Traceparent};
use crate::timeline::{DeadRecord, Occurrence, Settlement, Verdict};

/// An occurrence from its claim to its verdict. The record stays encoded and is parsed again only for a retry or a
/// death.
pub(super) struct Flight {
    pub(super) occurrence: Occurrence,
    /// The destination of its message.
    pub(super) destination: String,
    /// The server's time of the claim, from which catch-up counts.
    claimed: Timestamp,
    next_due: Option<NextDue>,
    /// How its task catches up on overdue occurrences.
    pub(super) catch_up: CatchUp,
    pub(super) stage: FlightStage,
    /// Publishes so far.
    pub(super) publishes: u32,
    /// Counted retries.
    pub(super) retries: u32,
    pub(super) first_failure: Option<Instant>,
    /// The part of the failure quota that it holds while its destination fails.
    pub(super) quota_share: Option<QuotaShare>,
    /// Shows its last failure in the API.
    failed_attempt: Option<FailedAttemptEntry>,
    /// Whether it returns to the lane because its destination holds all it may.
    pub(super) over_quota: bool,
    /// Whether an earlier publish may have been delivered, because it had no definite outcome.
    unclear: bool,
}

/// The state of an occurrence within its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightStage {
    /// No publish is under way.
    Waiting,
    /// Handed to the sink at this time.
    UnderWay(Instant),
    /// It is decided, but its next due is not known. `begun` is whether a publish of it may have been delivered.
    Decided { begun: bool },
    /// Its verdict is known.
    HasVerdict,
}

impl Flight {
    /// An occurrence that was claimed at `claimed`, on the server's clock.
    pub(super) fn new(occurrence: Occurrence, claimed: Timestamp) -> Flight {
        Flight {
            occurrence,
            destination: String::new(),
            claimed,
            next_due: None,
            catch_up: CatchUp::default(),
            stage: FlightStage::Waiting,
            publishes: 0,
            retries: 0,
            first_failure: None,
            quota_share: None,
            failed_attempt: None,
            over_quota: false,
            unclear: false,
        }
    }

    /// Parses the record.
    pub(super) fn record(&self) -> Result<Record, RecordError> {
        Record::decode(&self.occurrence.record)
    }

    /// Whether its own catch-up `none` passes it over, because it is overdue by more than `grace`.
    pub(super) fn is_passed_over(&self, record: &Record, overdue: CatchUpLimits) -> bool {
        record.requeued.is_none()
            && record.task.catch_up == Some(CatchUp::None)
            && self.claimed.since(self.occurrence.due) > overdue.grace
    }

    /// Whether it was never requeued, and was claimed so soon after its due that no earlier claim can have expired.
    pub(super) fn is_fresh(&self, lease: Duration) -> bool {
        self.occurrence.member.requeued_key().is_none() && self.claimed.since(self.occurrence.due) < lease
    }

    /// The destination of a message: that of the task, else that of its lane.
    pub(super) fn destination<'a>(record: &'a Record, lane: Option<&'a str>) -> &'a str {
        record.task.message.destination.as_deref().or(lane).unwrap_or_default()
    }

    /// Builds the message of the next publish.
    pub(super) fn message(&mut self, record: &Record, lane_destination: Option<&str>) -> Message {
        Flight::destination(record, lane_destination).clone_into(&mut self.destination);
        self.publishes += 1;
        self.message_to(record, self.destination.clone(), headers(record))
    }

    /// Builds the copy for the dead-letter destination. It does not count as a publish.
    pub(super) fn copy(&self, record: &Record, destination: &str, more: [(String, String); 2]) -> Message {
        self.message_to(record, destination.to_owned(), headers(record).into_iter().chain(more).collect())
    }

    /// The key comes from the due of the claim, or from the record if it was requeued.
    fn message_to(&self, record: &Record, destination: String, headers: Vec<(String, String)>) -> Message {
        let own = || self.occurrence.member.key(self.occurrence.due);
        let key = record.requeued.clone().unwrap_or_else(own);
        let message = &record.task.message;
        Message {
            key: key.to_string(),
            task: key.task.as_str().to_owned(),
            due_ms: key.due.as_millis(),
            attempt: self.publishes,
            destination,
            record_key: message.key.clone(),
            native: message.native.as_ref().map(sink_form),
            headers,
            content_type: message.payload.content_type().map(str::to_owned),
            payload: message.payload.bytes(),
            is_tombstone: message.payload.is_tombstone(),
        }
    }

    /// Starts to compute the next due. Fails if this version cannot parse the schedule.
    pub(super) fn next_due_search(&mut self, record: &Record, overdue: CatchUpLimits) -> Result<NextDueSearch, String> {
        self.catch_up = record.task.catch_up.unwrap_or_default();
        let Occurrence { member, due, counts, .. } = &self.occurrence;
        NextDueSearch::begin(member, record, *due, self.claimed, *counts, overdue).map_err(|error| error.to_string())
    }

    /// Notes the next due.
    pub(super) fn set_next_due(&mut self, next_due: NextDue) {
        self.next_due = Some(next_due);
    }

    /// Whether the next due is known.
    pub(super) fn knows_next_due(&self) -> bool {
        self.next_due.is_some()
    }

    /// Notes that it is decided and waits for the next due.
    pub(super) fn decided(&mut self) {
        self.stage = FlightStage::Decided { begun: self.begun() };
    }

    /// Whether it was requeued less than `patience` ago. The health of its destination then cannot make it dead,
    /// because the destination may have been repaired.
    pub(super) fn is_spared(&self, now: Timestamp, patience: Duration) -> bool {
        self.occurrence.member.requeued_key().is_some() && now.since(self.occurrence.due) < patience
    }

    /// How many occurrences its catch-up passes over. An occurrence that is dead does not count as passed over too.
    fn passed_over(&self, dead: bool) -> u64 {
        self.next_due.map_or(0, |next_due| next_due.passed_over - u64::from(dead && !next_due.publish))
    }

    /// Notes a failed publish that will be retried. Returns the time of the first failure.
    pub(super) fn failed(&mut self, trouble: &Trouble, attempts: &Arc<FailedAttempts>, now: Instant) -> Instant {
        self.stage = FlightStage::Waiting;
        self.unclear |= !trouble.definite;
        let (member, destination) = (&self.occurrence.member, &self.destination);
        self.failed_attempt = Some(attempts.note(member, destination, self.publishes, &trouble.detail));
        *self.first_failure.get_or_insert(now)
    }

    /// Takes a part of the failure quotas of lane and sink for the time that it waits. Returns whether it fits.
    pub(super) fn take_quota(
        &mut self,
        lane: &LaneContext,
        destination: &str,
        reason: QuotaReason,
        is_new: bool,
    ) -> bool {
        destination.clone_into(&mut self.destination);
        let request = QuotaRequest { destination, bytes: self.occurrence.record.len(), reason, is_new };
        self.quota_share = QuotaShare::take(&lane.failure_quota, &lane.sink.failure_quota, request);
        self.quota_share.is_some()
    }

    /// The destination accepted it.
    pub(super) fn accepted(&mut self) -> Settlement {
        let mut counts = self.counts(false);
        counts.accepted += 1;
        let verdict = self.and_next(counts);
        self.judged(verdict)
    }

    /// An occurrence of a recurring task is passed over by its own catch-up.
    pub(super) fn passed(&mut self) -> Settlement {
        let verdict = self.and_next(self.counts(false));
        self.judged(verdict)
    }

    /// It is dead. If the record cannot be parsed, its bytes are kept as they are.
    pub(super) fn dead(&mut self, record: Option<&Record>, reason: Reason, detail: String) -> Settlement {
        let key = self.occurrence.member.key(self.occurrence.due);
        let died = record.map_or_else(|| self.occurrence.record.clone(), |record| record.of_dead(key).encode());
        let dead_record = DeadRecord { record: died, reason: reason.as_str().to_owned(), detail };
        let mut counts = self.counts(true);
        counts.dead += 1;
        let verdict = match self.next_due.and_then(|next_due| next_due.next) {
            Some(due) => Verdict::DeadNext { dead_record, due, counts },
            None => Verdict::Dead(dead_record),
        };
        self.judged(verdict)
    }

    /// It returns to the lane with the same due.
    pub(super) fn back(&mut self) -> Settlement {
        let begun = self.begun();
        self.judged(Verdict::Back { begun })
    }

    /// It returns to the lane with the same due and is left out of claims. It was not published.
    pub(super) fn unreadable(&mut self) -> Settlement {
        self.judged(Verdict::Unreadable)
    }

    /// Whether a publish of it may have been delivered.
    fn begun(&self) -> bool {
        self.unclear || matches!(self.stage, FlightStage::UnderWay(_) | FlightStage::Decided { begun: true })
    }

    /// The number of passed-over occurrences to count once the verdict is written.
    pub(super) fn tally(&self, verdict: &Verdict) -> u64 {
        match verdict {
            Verdict::Back { .. } | Verdict::Unreadable => 0,
            Verdict::Dead(_) | Verdict::DeadNext { .. } => self.passed_over(true),
            Verdict::Finished | Verdict::Next { .. } => self.passed_over(false),
        }
    }

    fn counts(&self, dead: bool) -> Counts {
        let mut counts = self.occurrence.counts;
        counts.passed_over += self.passed_over(dead);
        counts.ended(self.occurrence.due);
        counts
    }

    fn and_next(&self, counts: Counts) -> Verdict {
        match self.next_due.and_then(|next_due| next_due.next) {
            Some(due) => Verdict::Next { due, counts },
            None => Verdict::Finished,
        }
    }

    fn judged(&mut self, verdict: Verdict) -> Settlement {
        self.stage = FlightStage::HasVerdict;
        self.quota_share = None;
        self.failed_attempt = None;
        self.occurrence.record = Bytes::new();
        Settlement { member: self.occurrence.member.clone(), due: self.occurrence.due, verdict }
    }
}

/// Native headers as a sink takes them.
fn sink_form(native: &StoredHeaders) -> punctual_sinks::Native {
    punctual_sinks::Native { kind: native.kind.clone(), bytes: native.bytes.clone() }
}

/// The headers of the task, and the trace of the request that put it unless the task has a trace header of its own.
fn headers(record: &Record) -> Vec<(String, String)> {
    let own = &record.task.message.headers;
    let trace = record.trace.filter(|_| !own.keys().any(|name| name.eq_ignore_ascii_case(Traceparent::HEADER)));
    let trace = trace.map(|trace| (Traceparent::HEADER.to_owned(), trace.to_string()));
    own.iter().map(|(name, value)| (name.clone(), value.clone())).chain(trace).collect()
}
