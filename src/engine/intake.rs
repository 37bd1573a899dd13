//! The write API of the engine: puts, cancels and reads tasks, for HTTP and for programs that embed punctual. `dead.rs` has what
//! it does to the dead.
//!
//! Resolves what a user asked for (first due, shard, record) and turns the timeline's answers into definite ones. A
//! request that failed with [`TimelineError::Unknown`] either took effect before the answer or never will.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::clock::{Backoff, Clock, Timestamp};
use crate::task::schedule::ScheduleError;
use crate::task::{Key, Lane, Record, Shard, Task, TaskId, Traceparent};
use crate::timeline::{
    self, CancelAnswer, Held, MAX_PUT_BYTES, MAX_PUTS, PutAnswer, PutMode, PutResult, Timeline, TimelineError,
};

/// How long a put that meets its own task in flight is tried again before it is refused.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long a refused put says that others would be refused: then one has to try, or nobody ever would.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// A put that is taken ends that only this long after the last refusal: at the brink, every other one is refused.
const REFUSED_AT_LEAST: Duration = Duration::from_secs(1);

/// What is told of a task that is not known to be kept where others of its call were refused.
const UNKEPT: &str = "it took effect, but is not known to be kept: no confirmation came in time";

/// How many of the dues that follow are shown in the answer to a put.
const SHOWN: usize = 3;

/// The way in; cheap to clone.
#[derive(Clone)]
pub struct Intake {
    pub(super) timeline: Arc<dyn Timeline>,
    /// By lane, where messages go that name no destination.
    pub(super) destinations: Arc<BTreeMap<Lane, String>>,
    pub(super) lanes: Arc<BTreeMap<Lane, LaneRule>>,
    pub(super) scan_lock: ScanLock,
    /// When the timeline last refused a put, or could not say that it is kept, and its words; `None` once it has taken one
    /// since.
    refused: Arc<Mutex<Option<(Instant, String)>>>,
}

/// When the next scan of the dead may begin. The caller that scans holds it: one scan runs at a time, so that publishing finds
/// the timeline free at least half of the time.
pub(super) type ScanLock = Arc<AsyncMutex<Option<Instant>>>;

/// What a lane asks of the tasks that are put into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRule {
    /// Whether a task has to name a destination: the lane names none and its sink needs one.
    pub destination_required: bool,
}

/// A put that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectivePut {
    /// Created, replaced or unchanged.
    pub result: PutResult,
    /// What the task is due at next.
    pub due: Timestamp,
    /// Up to three dues that follow; only worked out when a single task was put.
    pub next: Vec<Timestamp>,
    /// The key of an occurrence with the former message that may still arrive.
    pub in_flight: Option<Key>,
}

/// A put that did not take effect, or is not known to have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// It would give another message a key that is in flight.
    #[error("the occurrence `{0}` is in flight; another message cannot take its key")]
    InFlight(Key),
    /// Another task stands under this id ([`PutMode::Post`] only).
    #[error("the idempotency key was used for another body")]
    KeyReused,
    /// No lane of this name is configured.
    #[error("the lane `{0}` is not configured")]
    UnknownLane(Lane),
    /// Neither the task nor its lane names a destination.
    #[error("neither the message nor the lane `{0}` names a destination")]
    NoDestination(Lane),
    /// The schedule has no occurrence (any more).
    #[error("the schedule has no occurrence")]
    Never,
    /// The due is out of range.
    #[error("the due is out of range")]
    BadDue,
    /// The schedule cannot be read.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The timeline's word.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

/// A look-up that failed.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The timeline's word.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// What stands there cannot be read by this version.
    #[error(transparent)]
    Record(#[from] crate::task::record::RecordError),
}

/// A put on its way: where it stands in the request, and what goes to the timeline.
struct Prepared {
    index: usize,
    put: timeline::Put,
}

impl Intake {
    /// A way into `timeline` for tasks of `lanes`.
    #[must_use]
    pub fn new(timeline: Arc<dyn Timeline>, lanes: BTreeMap<Lane, LaneRule>) -> Intake {
        Intake {
            timeline,
            destinations: Arc::default(),
            lanes: Arc::new(lanes),
            scan_lock: ScanLock::default(),
            refused: Arc::default(),
        }
    }

    /// The timeline's words if it refuses what is put (it is full, read-only), or cannot say that it is kept: it did so in
    /// the last 5 s, and since then has taken nothing.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().as_ref().filter(|(at, _)| at.elapsed() < REFUSED_FOR).map(|(_, detail)| detail.clone())
    }

    /// The clock that decides what is due.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.timeline.clock()
    }

    /// Puts tasks, in their order, and answers each. A call of the timeline takes at most `deadline`, and never effect
    /// after it; there are several one after the other only where an id comes twice, or for more than a call takes.
    ///
    /// A task that meets itself in flight is tried again for up to a second.
    pub async fn put(
        &self,
        mode: PutMode,
        tasks: Vec<(TaskId, Lane, Task)>,
        deadline: Duration,
    ) -> Vec<Result<EffectivePut, PutError>> {
        self.put_traced(mode, tasks, None, deadline).await
    }

    /// As [`put`](Intake::put), for a request that is part of a trace: its messages carry it on.
    pub async fn put_traced(
        &self,
        mode: PutMode,
        tasks: Vec<(TaskId, Lane, Task)>,
        trace: Option<Traceparent>,
        deadline: Duration,
    ) -> Vec<Result<EffectivePut, PutError>> {
        let now = self.clock().now();
        let show = (tasks.len() == 1).then(|| tasks[0].clone());
        let mut answers: Vec<Result<EffectivePut, PutError>> = Vec::with_capacity(tasks.len());
        let mut shards: BTreeMap<Shard, Vec<Prepared>> = BTreeMap::new();
        for (index, (id, lane, task)) in tasks.into_iter().enumerate() {
            match self.prepare(index, id, lane, task, now, trace) {
                Ok(prepared) => {
                    let shard = Shard::of(&prepared.put.id, self.timeline.shards());
                    shards.entry(shard).or_default().push(prepared);
                    answers.push(Err(PutError::Timeline(TimelineError::Broken("no answer".into()))));
                }
                Err(error) => answers.push(Err(error)),
            }
        }
        let shards = shards.into_iter().map(|(shard, prepared)| self.put_shard(shard, mode, prepared, deadline));
        for (index, answer) in join_all(shards).await.into_iter().flatten() {
            answers[index] = answer;
        }
        if let (Some((id, _, task)), [Ok(put)]) = (show, answers.as_mut_slice()) {
            put.next = self.upcoming(&id, &task, put, now).await;
        }
        answers
    }

    /// Takes a task out, or lets it end with the claim that holds it.
    ///
    /// # Errors
    /// The timeline's word.
    pub async fn cancel(&self, id: &TaskId, deadline: Duration) -> Result<CancelAnswer, TimelineError> {
        let not_after = self.clock().now().plus(deadline);
        self.timeline.cancel(Shard::of(id, self.timeline.shards()), id, not_after).await
    }

    /// Looks a task up.
    ///
    /// # Errors
    /// The timeline's word, or a record that this version cannot read.
    pub async fn get(&self, id: &TaskId) -> Result<Option<(Record, Held)>, GetError> {
        match self.timeline.get(Shard::of(id, self.timeline.shards()), id).await? {
            Some(held) => Ok(Some((Record::decode(&held.record)?, held))),
            None => Ok(None),
        }
    }

    /// Whether there is such a lane, and it takes a task that names a destination, or none.
    ///
    /// # Errors
    /// [`PutError::UnknownLane`] and [`PutError::NoDestination`].
    pub fn check(&self, lane: &Lane, names_destination: bool) -> Result<(), PutError> {
        match self.lanes.get(lane) {
            None => Err(PutError::UnknownLane(lane.clone())),
            Some(rule) if rule.destination_required && !names_destination => Err(PutError::NoDestination(lane.clone())),
            Some(_) => Ok(()),
        }
    }

    /// Resolves what was asked for at `now`.
    fn prepare(
        &self,
        index: usize,
        id: TaskId,
        lane: Lane,
        task: Task,
        now: Timestamp,
        trace: Option<Traceparent>,
    ) -> Result<Prepared, PutError> {
        self.check(&lane, task.message.destination.is_some())?;
        let due = task.schedule.first(&id, now)?.ok_or(PutError::Never)?;
        if !due.is_due() {
            return Err(PutError::BadDue);
        }
        let record = Record { trace, ..Record::new(task, lane.clone(), now) }.encode();
        Ok(Prepared { index, put: timeline::Put { id, lane, due, record } })
    }

    /// Puts what belongs to one shard, call by call, so that an id that comes twice keeps its order.
    async fn put_shard(
        &self,
        shard: Shard,
        mode: PutMode,
        prepared: Vec<Prepared>,
        deadline: Duration,
    ) -> Vec<(usize, Result<EffectivePut, PutError>)> {
        let mut answers = Vec::with_capacity(prepared.len());
        for call in calls(prepared) {
            // The call before may have waited for what was in flight: each has a time of its own.
            let not_after = self.clock().now().plus(deadline);
            answers.extend(self.put_call(shard, mode, call, not_after).await);
        }
        answers
    }

    /// One call, and again for what was in flight, for up to a second.
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
                    self.note_taken(&answers);
                    if answers.iter().any(|answer| answer.result == PutResult::Unkept) {
                        self.note_refused(&TimelineError::Unkept(UNKEPT.to_owned()));
                    }
                    answers
                }
                Err(error) => {
                    self.note_refused(&error);
                    done.extend(call.into_iter().map(|prepared| (prepared.index, Err(error.clone().into()))));
                    return done;
                }
            };
            // From the first answer on: it came late where others of the call had to be kept first.
            let pause = backoff.next();
            let give_up = *give_up.get_or_insert_with(|| Instant::now() + IN_FLIGHT_TIMEOUT);
            let last = Instant::now() + pause >= give_up || self.clock().now().plus(pause) > not_after;
            let mut again = Vec::new();
            for (prepared, answer) in call.into_iter().zip(answers) {
                if answer.result == PutResult::InFlight && !last {
                    again.push(prepared);
                } else {
                    done.push((prepared.index, read_answer(&prepared.put.id, answer)));
                }
            }
            if again.is_empty() {
                return done;
            }
            call = again;
            tokio::time::sleep(pause).await;
        }
    }

    /// Notes that the timeline refuses what is put, or cannot say that it is kept, and says so once.
    fn note_refused(&self, error: &TimelineError) {
        let (TimelineError::Refused(detail) | TimelineError::Unkept(detail)) = error else { return };
        if self.refused.lock().replace((Instant::now(), detail.clone())).is_some() {
            return;
        }
        if matches!(error, TimelineError::Unkept(_)) {
            warn!(words = detail, "redis does not confirm writes; puts are answered 503 timeline_unknown");
        } else {
            warn!(words = detail, "redis refuses puts; waiting tasks are still published");
        }
    }

    /// Notes that the timeline takes what is put. Only what was written tells: a full one still answers `unchanged`.
    fn note_taken(&self, answers: &[PutAnswer]) {
        let written = |answer: &PutAnswer| matches!(answer.result, PutResult::Created | PutResult::Replaced);
        if answers.iter().any(written)
            && self.refused.lock().take_if(|(at, _)| at.elapsed() >= REFUSED_AT_LEAST).is_some()
        {
            info!("redis accepts puts again");
        }
    }

    /// The dues that follow the one a put was answered with. An unchanged task counts from its own put, not this one.
    async fn upcoming(&self, id: &TaskId, task: &Task, put: &EffectivePut, now: Timestamp) -> Vec<Timestamp> {
        if !task.schedule.is_recurring() {
            return Vec::new();
        }
        let (anchor, came_due) = match put.result {
            PutResult::Unchanged => match self.get(id).await {
                Ok(Some((record, held))) => (record.anchor, held.counts.came_due()),
                _ => return Vec::new(),
            },
            _ => (now, 0),
        };
        let mut after = put.due;
        // One of those that the limit leaves is the due of the answer.
        let left = |limit: u64| usize::try_from(limit.saturating_sub(came_due.saturating_add(1))).unwrap_or(SHOWN);
        let left = task.schedule.limit.map_or(SHOWN, |limit| left(limit).min(SHOWN));
        let mut next = Vec::with_capacity(left);
        while next.len() < left {
            let Ok(Some(due)) = task.schedule.next_after(id, anchor, after) else { break };
            next.push(due);
            after = due;
        }
        next
    }
}

/// Splits puts of one shard into calls: each within the limits of one call, and no id twice in one.
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

/// Turns the timeline's answer for one task into the user's.
fn read_answer(id: &TaskId, answer: PutAnswer) -> Result<EffectivePut, PutError> {
    let key = |due| Key { task: id.clone(), due };
    match answer.result {
        PutResult::Created | PutResult::Replaced | PutResult::Unchanged => Ok(EffectivePut {
            result: answer.result,
            due: answer.due,
            next: Vec::new(),
            in_flight: answer.in_flight.map(key),
        }),
        PutResult::KeyReused => Err(PutError::KeyReused),
        PutResult::InFlight => Err(PutError::InFlight(key(answer.in_flight.unwrap_or(answer.due)))),
        PutResult::BadDue => Err(PutError::BadDue),
        PutResult::Unkept => Err(TimelineError::Unkept(UNKEPT.to_owned()).into()),
    }
}
