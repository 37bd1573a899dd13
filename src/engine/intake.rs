//! The write API of the engine: puts, cancels and reads tasks, for HTTP and for programs that embed punctual. The API
//! for dead occurrences is in `dead/`.
//!
//! It computes the first due, the shard and the record of a task, and turns the timeline's answers into definite ones.
//! A request that failed with [`TimelineError::Unknown`] either took effect before the answer or never will.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use punctual_sinks::Sink;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::clock::{Backoff, Clock, Timestamp};
use crate::engine::put_refusals::PutRefusals;
use crate::task::schedule::ScheduleError;
use crate::task::{Counts, Key, Lane, Message, Record, Shard, Task, TaskId, Traceparent, When};
use crate::timeline::{
    self, CancelAnswer, MAX_PUT_BYTES, MAX_PUTS, PutAnswer, PutMode, PutResult, StoredTask, TaskRevision, Timeline,
    TimelineError,
};

/// How long a put is retried while its task is in flight, before it is refused.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(1);

/// The error of a task whose write is not confirmed while other tasks of the call were refused.
const UNCONFIRMED: &str = "it took effect, but its durability was not confirmed in time";

/// Number of following dues in the answer to a put.
const SHOWN_DUES: usize = 3;

/// The write API. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    pub(super) timeline: Arc<dyn Timeline>,
    pub(super) lanes: Arc<BTreeMap<Lane, LaneRequirements>>,
    pub(super) bulk_read_lock: BulkReadLock,
    refusals: Arc<PutRefusals>,
}

/// When the next call that reads much may begin: a browse of the dead, or a list or count of tasks. A caller holds this
/// lock during its call, so only one runs at a time. A pause follows, as long as the call took and at most 0.1 s, so
/// that the timeline is free for publishing.
pub(super) type BulkReadLock = Arc<AsyncMutex<Option<Instant>>>;

/// What a lane requires of its tasks.
#[derive(Clone, Default)]
pub struct LaneRequirements {
    /// The destination of messages that name none.
    pub destination: Option<String>,
    /// Whether a task must name a destination, because the lane has none and its sink needs one.
    pub destination_required: bool,
    /// The sink, which refuses destinations that it can never publish to; `None` refuses none.
    pub sink: Option<Arc<dyn Sink>>,
}

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

/// The lane is not configured. Names those that are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lane `{lane}` is not configured; configured are `{}`", configured.join("`, `"))]
pub struct UnknownLane {
    lane: Lane,
    configured: Vec<String>,
}

impl UnknownLane {
    /// Its name.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }
}

/// Why a task could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// This version cannot parse the record.
    #[error(transparent)]
    Record(#[from] crate::task::record::RecordError),
}

/// Puts that the timeline refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPuts {
    /// Whether all servers of the timeline refused one.
    pub everywhere: bool,
    /// The error text of one of them.
    pub detail: String,
}

/// A put with its index in the request, ready to be sent.
struct Prepared {
    index: usize,
    put: timeline::Put,
}

impl Intake {
    /// An intake for tasks of `lanes`.
    #[must_use]
    pub fn new(timeline: Arc<dyn Timeline>, lanes: BTreeMap<Lane, LaneRequirements>) -> Intake {
        Intake { timeline, lanes: Arc::new(lanes), bulk_read_lock: BulkReadLock::default(), refusals: Arc::default() }
    }

    /// Whether the timeline refused a put, or did not confirm one, in the last 5 s. A put that it accepts at least 1 s
    /// after the last refusal ends this.
    #[must_use]
    pub fn refused(&self) -> Option<RefusedPuts> {
        let nodes: BTreeSet<_> = Shard::all(self.timeline.shards()).map(|shard| self.timeline.node(shard)).collect();
        let refused: Vec<_> = nodes.iter().filter_map(|node| self.refusals.lately(*node)).collect();
        let everywhere = refused.len() == nodes.len();
        refused.into_iter().next().map(|detail| RefusedPuts { everywhere, detail })
    }

    /// The clock of a shard that is reachable, for what concerns no task in particular.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.timeline.any_clock()
    }

    /// The shard of a task, and this moment plus `time_limit` on its clock.
    pub(in crate::engine) fn shard_until(&self, id: &TaskId, time_limit: Duration) -> (Shard, Timestamp) {
        let shard = Shard::of(id, self.timeline.shards());
        (shard, self.timeline.clock(shard).now().plus(time_limit))
    }

    /// This moment plus `time_limit` on the clock of each shard, by the number of the shard.
    pub(in crate::engine) fn all_shards_until(&self, time_limit: Duration) -> Vec<Timestamp> {
        let shards = Shard::all(self.timeline.shards());
        shards.map(|shard| self.timeline.clock(shard).now().plus(time_limit)).collect()
    }

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

    /// Removes a task. If a claim holds it, the task ends with that claim.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn cancel(&self, id: &TaskId, time_limit: Duration) -> Result<CancelAnswer, TimelineError> {
        self.cancel_if(id, None, time_limit).await
    }

    /// Like [`cancel`](Intake::cancel); with `revision`, only if the task has this one.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn cancel_if(
        &self,
        id: &TaskId,
        revision: Option<TaskRevision>,
        time_limit: Duration,
    ) -> Result<CancelAnswer, TimelineError> {
        let (shard, not_after) = self.shard_until(id, time_limit);
        self.timeline.cancel(shard, id, revision, not_after).await
    }

    /// Reads a task.
    ///
    /// # Errors
    /// An error of the timeline, or a record that this version cannot parse.
    pub async fn get(&self, id: &TaskId) -> Result<Option<(Record, StoredTask)>, GetError> {
        match self.timeline.get(Shard::of(id, self.timeline.shards()), id).await? {
            Some(held) => Ok(Some((Record::decode(&held.record)?, held))),
            None => Ok(None),
        }
    }

    /// Checks that the lane exists. If the message is known, also checks that it names a destination where one is
    /// required, that the sink can publish to this destination, and that the sink takes a tombstone.
    ///
    /// # Errors
    /// [`PutError::UnknownLane`], [`PutError::NoDestination`], [`PutError::BadDestination`] and
    /// [`PutError::NoTombstones`].
    pub fn check(&self, lane: &Lane, message: Option<&Message>) -> Result<(), PutError> {
        let required = self.requirements(lane)?;
        if let (Some(message), Some(sink)) = (message, &required.sink)
            && message.payload.is_tombstone()
            && !sink.takes_tombstones()
        {
            return Err(PutError::NoTombstones(lane.clone()));
        }
        match message.map(|message| message.destination.as_deref()) {
            Some(None) if required.destination_required => Err(PutError::NoDestination(lane.clone())),
            Some(Some(destination)) => match &required.sink {
                Some(sink) => sink.check_destination(destination).map_err(PutError::BadDestination),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The kind of the sink of a lane.
    #[must_use]
    pub fn sink_kind(&self, lane: &Lane) -> Option<&'static str> {
        self.lanes.get(lane)?.sink.as_ref().map(|sink| sink.kind())
    }

    /// Checks that the lane is configured.
    ///
    /// # Errors
    /// [`PutError::UnknownLane`].
    pub fn check_lane(&self, lane: &Lane) -> Result<(), PutError> {
        self.requirements(lane).map(|_| ()).map_err(PutError::from)
    }

    fn requirements(&self, lane: &Lane) -> Result<&LaneRequirements, UnknownLane> {
        self.lanes.get(lane).ok_or_else(|| self.unknown_lane(lane))
    }

    pub(in crate::engine) fn unknown_lane(&self, lane: &Lane) -> UnknownLane {
        UnknownLane { lane: lane.clone(), configured: self.lanes.keys().map(ToString::to_string).collect() }
    }

    /// The destination of a message: its own, else that of the lane.
    #[must_use]
    pub fn destination<'a>(&'a self, lane: &Lane, message: &'a Message) -> Option<&'a str> {
        message.destination.as_deref().or_else(|| self.lanes.get(lane)?.destination.as_deref())
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
