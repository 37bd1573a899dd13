//! Puts: the first due and the record of each task, the calls to the timeline, and what a put is answered.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Intake, UnknownLane};
use crate::clock::{Backoff, Timestamp};
use crate::task::schedule::ScheduleError;
use crate::task::{Counts, Key, Lane, Record, Shard, Task, TaskId, Traceparent, When};
use crate::timeline::{self, MAX_PUT_BYTES, MAX_PUTS, PutAnswer, PutMode, PutResult, TimelineError};

/// How long a put is retried while its task is in flight, before it is refused.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(1);

/// The error of a task whose write is not confirmed while other tasks of the call were refused.
const UNCONFIRMED: &str = "it took effect, but its durability was not confirmed in time";

/// Number of following dues in the answer to a put.
const SHOWN_DUES: usize = 3;

/// A task to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// Its lane.
    pub lane: Lane,
    /// The task.
    pub task: Task,
    /// The trace that its messages carry on.
    pub trace: Option<Traceparent>,
}

/// A put that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectivePut {
    /// Created, replaced or unchanged.
    pub result: PutResult,
    /// The next due of the task.
    pub due: Timestamp,
    /// Up to three dues after it; only computed if a single task was put.
    pub next: Vec<Timestamp>,
    /// The key of an occurrence with the former message that may still be delivered.
    pub in_flight: Option<Key>,
    /// Whether the task is paused.
    pub paused: bool,
}

/// Why a put did not take effect, or is not known to have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Another message with the same key is in flight.
    #[error("the occurrence `{0}` is in flight; another message cannot take its key")]
    InFlight(Key),
    /// Another task exists under this id ([`PutMode::Post`] only).
    #[error("the idempotency key was used for another body")]
    KeyReused,
    /// The task has another revision, or is gone ([`PutMode::Match`]).
    #[error("the task has another revision, or is gone")]
    Changed,
    /// There is such a task ([`PutMode::Absent`]).
    #[error("there is such a task")]
    Exists,
    /// The lane is not configured.
    #[error(transparent)]
    UnknownLane(#[from] UnknownLane),
    /// Neither the task nor its lane names a destination.
    #[error("neither the message nor the lane `{0}` names a destination")]
    NoDestination(Lane),
    /// The sink of the lane can never publish to this destination. Contains its explanation.
    #[error("{0}")]
    BadDestination(String),
    /// The message is a tombstone, and the sink of the lane is not Kafka.
    #[error("the sink of the lane `{0}` publishes no tombstones: only Kafka has messages without a value")]
    NoTombstones(Lane),
    /// The schedule has no occurrence left.
    #[error("the schedule has no occurrence")]
    Never,
    /// The due is out of range.
    #[error("the due is out of range")]
    BadDue,
    /// The schedule cannot be parsed.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl PutError {
    /// The stable code of a fault of the task, or of a conflict with another put; `None` for an error of the timeline.
    #[must_use]
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            PutError::InFlight(_) => "in_flight",
            PutError::KeyReused => "key_reused",
            PutError::Changed => "changed",
            PutError::Exists => "exists",
            PutError::UnknownLane(_) => "unknown_lane",
            PutError::NoDestination(_) => "missing_field",
            PutError::BadDestination(_) => "bad_destination",
            PutError::NoTombstones(_) => "not_applicable",
            PutError::Never => "never_due",
            PutError::BadDue => "out_of_range",
            PutError::Schedule(ScheduleError::Cron(_)) => "bad_cron",
            PutError::Schedule(ScheduleError::Zone(_)) => "bad_zone",
            PutError::Timeline(_) => return None,
        })
    }
}

/// A put with its index in the request, ready to be sent.
struct Prepared {
    index: usize,
    put: timeline::Put,
}

impl Intake {
    /// Puts tasks in order and answers each. A call to the timeline takes at most `time_limit` and has no effect after
    /// it. Several calls are made in sequence only if an id appears twice, or if the tasks exceed the limits of one
    /// call.
    ///
    /// A put of a task that is in flight is retried for up to a second.
    pub async fn put(
        &self,
        mode: PutMode,
        tasks: Vec<(TaskId, Lane, Task)>,
        time_limit: Duration,
    ) -> Vec<Result<EffectivePut, PutError>> {
        let tasks = tasks.into_iter().map(|(id, lane, task)| NewTask { id, lane, task, trace: None }).collect();
        self.put_traced(mode, tasks, time_limit).await
    }

    /// Like [`put`](Intake::put), for tasks that may be part of a trace. Their messages carry the trace on.
    pub async fn put_traced(
        &self,
        mode: PutMode,
        tasks: Vec<NewTask>,
        time_limit: Duration,
    ) -> Vec<Result<EffectivePut, PutError>> {
        let nows = self.all_shards_until(Duration::ZERO);
        let show = (tasks.len() == 1).then(|| tasks[0].clone());
        let mut answers: Vec<Result<EffectivePut, PutError>> = Vec::with_capacity(tasks.len());
        let mut shards: BTreeMap<Shard, Vec<Prepared>> = BTreeMap::new();
        for (index, new) in tasks.into_iter().enumerate() {
            // The search for the first due may take long, so let other tasks of the runtime run.
            if matches!(new.task.schedule.when, When::Cron { .. }) {
                tokio::task::yield_now().await;
            }
            let shard = Shard::of(&new.id, self.timeline.shards());
            match self.prepare(index, new, nows[usize::from(shard.number())]) {
                Ok(prepared) => {
                    shards.entry(shard).or_default().push(prepared);
                    answers.push(Err(PutError::Timeline(TimelineError::Broken("no answer".into()))));
                }
                Err(error) => answers.push(Err(error)),
            }
        }
        let shards = shards.into_iter().map(|(shard, prepared)| self.put_shard(shard, mode, prepared, time_limit));
        for (index, answer) in join_all(shards).await.into_iter().flatten() {
            answers[index] = answer;
        }
        if let (Some(NewTask { id, task, .. }), [Ok(put)]) = (show, answers.as_mut_slice()) {
            let now = nows[usize::from(Shard::of(&id, self.timeline.shards()).number())];
            put.next = self.upcoming(&id, &task, put, now).await;
        }
        answers
    }

    /// Computes the record and the first due of a task.
    fn prepare(&self, index: usize, new: NewTask, now: Timestamp) -> Result<Prepared, PutError> {
        let NewTask { id, lane, task, trace } = new;
        self.check(&lane, Some(&task.message))?;
        let due = task.schedule.first(&id, now)?.ok_or(PutError::Never)?;
        if !due.is_valid_due() {
            return Err(PutError::BadDue);
        }
        let record = Record { trace, ..Record::new(task, lane.clone(), now) }.encode();
        Ok(Prepared { index, put: timeline::Put { id, lane, due, record } })
    }

    /// Puts the tasks of one shard in sequential calls, so that an id that appears twice keeps its order.
    async fn put_shard(
        &self,
        shard: Shard,
        mode: PutMode,
        prepared: Vec<Prepared>,
        time_limit: Duration,
    ) -> Vec<(usize, Result<EffectivePut, PutError>)> {
        let mut answers = Vec::with_capacity(prepared.len());
        for call in calls(prepared) {
            // Each call has the whole time, because the call before may have waited for a task in flight.
            let not_after = self.timeline.clock(shard).now().plus(time_limit);
            answers.extend(self.put_call(shard, mode, call, not_after).await);
        }
        answers
    }

    /// Makes one call, and repeats it for tasks in flight for up to a second.
    async fn put_call(
        &self,
        shard: Shard,
        mode: PutMode,
        mut call: Vec<Prepared>,
        not_after: Timestamp,
    ) -> Vec<(usize, Result<EffectivePut, PutError>)> {
        let mut give_up = None;
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
        let mut done = Vec::with_capacity(call.len());
        loop {
            let puts = call.iter().map(|prepared| prepared.put.clone()).collect();
            let answers = match self.timeline.put(shard, mode, puts, not_after).await {
                Ok(answers) => {
                    self.refusals.answered(self.timeline.node(shard), &answers);
                    if answers.iter().any(|answer| answer.result == PutResult::Unconfirmed) {
                        let unconfirmed = TimelineError::Unconfirmed(UNCONFIRMED.to_owned());
                        self.refusals.note(self.timeline.node(shard), &unconfirmed);
                    }
                    answers
                }
                Err(error) => {
                    self.refusals.note(self.timeline.node(shard), &error);
                    done.extend(call.into_iter().map(|prepared| (prepared.index, Err(error.clone().into()))));
                    return done;
                }
            };
            // The limit counts from the first answer, which may be late if other tasks of the call had to be confirmed.
            let pause = backoff.next();
            let give_up = *give_up.get_or_insert_with(|| Instant::now() + IN_FLIGHT_TIMEOUT);
            let last = Instant::now() + pause >= give_up || self.timeline.clock(shard).now().plus(pause) > not_after;
            let mut in_flight = Vec::new();
            for (prepared, answer) in call.into_iter().zip(answers) {
                if answer.result == PutResult::InFlight && !last {
                    in_flight.push(prepared);
                } else {
                    done.push((prepared.index, read_answer(mode, &prepared.put.id, answer)));
                }
            }
            if in_flight.is_empty() {
                return done;
            }
            call = in_flight;
            tokio::time::sleep(pause).await;
        }
    }

    /// The dues after the one in the answer. For an unchanged task, they count from the put that stored it.
    async fn upcoming(&self, id: &TaskId, task: &Task, put: &EffectivePut, now: Timestamp) -> Vec<Timestamp> {
        if !task.schedule.is_recurring() {
            return Vec::new();
        }
        let (anchor, counts) = match put.result {
            PutResult::Unchanged => match self.get(id).await {
                Ok(Some((record, held))) => (record.anchor, held.counts),
                _ => return Vec::new(),
            },
            _ => (now, Counts::default()),
        };
        let after = counts.search_from(put.due);
        task.schedule.dues_after(id, anchor, after, counts.came_due(), SHOWN_DUES).unwrap_or_default()
    }
}

/// Splits the puts of one shard into calls. Each call respects the limits and contains no id twice.
fn calls(prepared: Vec<Prepared>) -> Vec<Vec<Prepared>> {
    let mut calls: Vec<Vec<Prepared>> = Vec::new();
    let mut open: Vec<Prepared> = Vec::new();
    let (mut bytes, mut ids) = (0, HashSet::new());
    for next in prepared {
        let size = next.put.record.len();
        let full = open.len() >= MAX_PUTS || (bytes + size > MAX_PUT_BYTES && !open.is_empty());
        if full || ids.contains(&next.put.id) {
            calls.push(std::mem::take(&mut open));
            ids.clear();
            bytes = 0;
        }
        bytes += size;
        ids.insert(next.put.id.clone());
        open.push(next);
    }
    if !open.is_empty() {
        calls.push(open);
    }
    calls
}

/// Turns the timeline's answer for one task into the answer for the user.
fn read_answer(mode: PutMode, id: &TaskId, answer: PutAnswer) -> Result<EffectivePut, PutError> {
    let key = |due| Key { task: id.clone(), due };
    match answer.result {
        PutResult::Created | PutResult::Replaced | PutResult::Unchanged => Ok(EffectivePut {
            result: answer.result,
            due: answer.due,
            next: Vec::new(),
            in_flight: answer.in_flight.map(key),
            paused: answer.paused,
        }),
        PutResult::KeyReused => Err(PutError::KeyReused),
        PutResult::Mismatch if mode == PutMode::Absent => Err(PutError::Exists),
        PutResult::Mismatch => Err(PutError::Changed),
        PutResult::InFlight => Err(PutError::InFlight(key(answer.in_flight.unwrap_or(answer.due)))),
        PutResult::BadDue => Err(PutError::BadDue),
        PutResult::Unconfirmed => Err(TimelineError::Unconfirmed(UNCONFIRMED.to_owned()).into()),
    }
}
