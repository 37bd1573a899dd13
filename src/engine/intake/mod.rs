//! The engine's API for tasks: puts, cancels and reads them, for HTTP and for programs that embed punctual. The API
//! for dead occurrences is in `dead/`.
//!
//! It computes the first due, the shard and the record of a task, and turns the timeline's answers into definite ones.
//! A request that failed with [`TimelineError::Unknown`] either took effect before the answer or never will.

mod put_refusals;
mod puts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::Sink;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use self::put_refusals::PutRefusals;
pub use self::puts::{EffectivePut, NewTask, PutError};
use crate::clock::{Clock, Timestamp};
use crate::task::{Lane, Message, Record, Shard, TaskId};
use crate::timeline::{CancelAnswer, StoredTask, TaskRevision, Timeline, TimelineError};

/// The API for tasks. Cheap to clone.
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
}
