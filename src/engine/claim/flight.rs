//! One occurrence of a claim: its message, what happened to it so far, and the verdict it leaves with.

use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::Message;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::engine::held::Hold;
use crate::engine::judge::Reason;
use crate::task::record::RecordError;
use crate::task::{CatchUp, Counts, Follow, Following, Overdue, Record, Traceparent};
use crate::timeline::{DeadRecord, Occurrence, Settlement, Verdict};

/// An occurrence from its claim to its verdict. The record stays encoded: it is read again in the rare case of a retry
/// or a death.
pub(super) struct Flight {
    pub(super) occurrence: Occurrence,
    /// Where its message goes.
    pub(super) destination: String,
    /// The server's time of the claim, from which catch-up counts.
    claimed: Timestamp,
    follow: Option<Follow>,
    /// What becomes of its task's overdue occurrences.
    pub(super) catch_up: CatchUp,
    pub(super) stage: Stage,
    /// Publishes so far.
    pub(super) publishes: u32,
    /// Retries that counted.
    pub(super) retries: u32,
    pub(super) first_failure: Option<Instant>,
    /// Its part of what its destination, which fails, may hold.
    pub(super) hold: Option<Hold>,
    /// It goes back because its destination holds all that it may.
    pub(super) turned_back: bool,
    /// A publish of it may have arrived: it began and was not answered definitely.
    unclear: bool,
}

/// Where an occurrence stands within its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing of it is under way.
    Waiting,
    /// Handed to the sink at that time.
    UnderWay(Instant),
    /// What becomes of it is known, what follows it is not; whether a publish of it had begun.
    Decided { begun: bool },
    /// Its verdict is known.
    Judged,
}

impl Flight {
    /// An occurrence as it was claimed at `claimed`, on the server's time.
    pub(super) fn new(occurrence: Occurrence, claimed: Timestamp) -> Flight {
        Flight {
            occurrence,
            destination: String::new(),
            claimed,
            follow: None,
            catch_up: CatchUp::default(),
            stage: Stage::Waiting,
            publishes: 0,
            retries: 0,
            first_failure: None,
            hold: None,
            turned_back: false,
            unclear: false,
        }
    }

    /// Reads the record.
    pub(super) fn record(&self) -> Result<Record, RecordError> {
        Record::decode(&self.occurrence.record)
    }

    /// Whether its own catch-up passes it over: overdue by more than `grace`, with `none`.
    pub(super) fn is_passed_over(&self, record: &Record, overdue: Overdue) -> bool {
        record.requeued.is_none()
            && record.task.catch_up == Some(CatchUp::None)
            && self.claimed.since(self.occurrence.due) > overdue.grace
    }

    /// Where a record's message goes: where the task says, else where its lane does.
    pub(super) fn destination<'a>(record: &'a Record, lane: Option<&'a str>) -> &'a str {
        record.task.message.destination.as_deref().or(lane).unwrap_or_default()
    }

    /// The message of the next publish.
    pub(super) fn message(&mut self, record: &Record, lane_destination: Option<&str>) -> Message {
        Flight::destination(record, lane_destination).clone_into(&mut self.destination);
        self.publishes += 1;
        self.message_to(record, self.destination.clone(), headers(record))
    }

    /// A copy of its message for those who look after the dead; not a publish of it.
    pub(super) fn copy(&self, record: &Record, destination: &str, more: [(String, String); 2]) -> Message {
        self.message_to(record, destination.to_owned(), headers(record).into_iter().chain(more).collect())
    }

    /// Its key is the one of the claimed score, or the one that a requeued record carries.
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
            headers,
            content_type: message.payload.content_type().map(str::to_owned),
            payload: message.payload.bytes(),
        }
    }

    /// Begins to work out what follows this occurrence. Notices a schedule that this version cannot read.
    pub(super) fn following(&mut self, record: &Record, overdue: Overdue) -> Result<Following, String> {
        self.catch_up = record.task.catch_up.unwrap_or_default();
        let Occurrence { member, due, counts, .. } = &self.occurrence;
        Following::begin(member, record, *due, self.claimed, *counts, overdue).map_err(|error| error.to_string())
    }

    /// Notes what follows this occurrence.
    pub(super) fn followed_by(&mut self, follow: Follow) {
        self.follow = Some(follow);
    }

    /// Whether it is known what follows.
    pub(super) fn is_followed(&self) -> bool {
        self.follow.is_some()
    }

    /// What becomes of it is known, and waits for what follows it.
    pub(super) fn decided(&mut self) {
        self.stage = Stage::Decided { begun: self.begun() };
    }

    /// Whether it was requeued less than `patience` ago: then it is not dead for its destination, which may have been mended.
    pub(super) fn is_spared(&self, now: Timestamp, patience: Duration) -> bool {
        self.occurrence.member.requeued_key().is_some() && now.since(self.occurrence.due) < patience
    }

    /// How many occurrences its catch-up passes over. One that is dead is not passed over as well.
    fn passed_over(&self, dead: bool) -> u64 {
        self.follow.map_or(0, |follow| follow.passed_over - u64::from(dead && !follow.publish))
    }

    /// Notes how a publish ended that is to be tried again.
    pub(super) fn failed(&mut self, definite: bool, now: Instant) -> Instant {
        self.stage = Stage::Waiting;
        self.unclear |= !definite;
        *self.first_failure.get_or_insert(now)
    }

    /// It has reached its destination.
    pub(super) fn accepted(&mut self) -> Settlement {
        let mut counts = self.counts(false);
        counts.accepted += 1;
        let verdict = self.and_next(counts);
        self.judged(verdict)
    }

    /// A recurring task's occurrence is passed over itself, by its own catch-up.
    pub(super) fn passed(&mut self) -> Settlement {
        let verdict = self.and_next(self.counts(false));
        self.judged(verdict)
    }

    /// It will not be tried again by itself. Without a record that can be read, the bytes are kept as they are.
    pub(super) fn dead(&mut self, record: Option<&Record>, reason: Reason, detail: String) -> Settlement {
        let key = self.occurrence.member.key(self.occurrence.due);
        let buried = record.map_or_else(|| self.occurrence.record.clone(), |record| record.buried(key).encode());
        let dead_record = DeadRecord { record: buried, reason: reason.as_str().to_owned(), detail };
        let mut counts = self.counts(true);
        counts.dead += 1;
        let verdict = match self.follow.and_then(|follow| follow.next) {
            Some(due) => Verdict::DeadNext { dead_record, due, counts },
            None => Verdict::Dead(dead_record),
        };
        self.judged(verdict)
    }

    /// It waits again under the same due.
    pub(super) fn back(&mut self) -> Settlement {
        let begun = self.begun();
        self.judged(Verdict::Back { begun })
    }

    /// It waits again under the same due, and is left out of claims: nothing of it was published.
    pub(super) fn unreadable(&mut self) -> Settlement {
        self.judged(Verdict::Unreadable)
    }

    /// Whether a publish of it may have arrived.
    fn begun(&self) -> bool {
        self.unclear || matches!(self.stage, Stage::UnderWay(_) | Stage::Decided { begun: true })
    }

    /// What is to be counted in the metrics once the verdict is written: occurrences passed over.
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
        counts.last_due = Some(self.occurrence.due);
        counts
    }

    fn and_next(&self, counts: Counts) -> Verdict {
        match self.follow.and_then(|follow| follow.next) {
            Some(due) => Verdict::Next { due, counts },
            None => Verdict::Finished,
        }
    }

    fn judged(&mut self, verdict: Verdict) -> Settlement {
        self.stage = Stage::Judged;
        self.hold = None;
        self.occurrence.record = Bytes::new();
        Settlement { member: self.occurrence.member.clone(), due: self.occurrence.due, verdict }
    }
}

/// The task's own headers, and the trace of the request that put it unless one of them names its own.
fn headers(record: &Record) -> Vec<(String, String)> {
    let own = &record.task.message.headers;
    let trace = record.trace.filter(|_| !own.keys().any(|name| name.eq_ignore_ascii_case(Traceparent::HEADER)));
    let trace = trace.map(|trace| (Traceparent::HEADER.to_owned(), trace.to_string()));
    own.iter().map(|(name, value)| (name.clone(), value.clone())).chain(trace).collect()
}
