//! The storage layer: the [`Timeline`] trait with the requests and answers of its verbs.
//!
//! There are two implementations: [`redis`] for production and [`memory`], its twin without Redis. Both follow the
//! rules in `lua/README.md` and pass the same tests.

mod calls;
mod claims;
pub mod dead;
pub mod keys;
pub mod memory;
mod moves;
mod pauses;
pub mod redis;
pub mod scan;
pub mod scripts;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{broadcast, watch};

pub use self::calls::Verb;
pub use self::claims::{
    ClaimRequest, Claimed, DeadCap, DeadRecord, DuePosition, MAX_HOLDERS, Occurrence, ReapRequest, Reaped, RestOfClaim,
    Settle, Settled, Settlement, SuspectsRequest, Token, Verdict,
};
pub use self::dead::{BrowseRequest, Browsed, Dead, DeadCursor, DeadFilter, MAX_BROWSED, MAX_BROWSED_BYTES};
pub use self::moves::{MoveAnswer, MoveRequest, Skip, TaskRevision};
pub use self::pauses::{
    LanePause, LanePauseAnswer, LanePauseRequest, LanePauseResult, PauseNote, TaskPause, TaskPauseAnswer,
    TaskPauseRequest,
};
pub use self::scan::{
    CountRequest, LaneCounts, MAX_UPCOMING, SCAN_COUNT, ScanRequest, Scanned, ScannedTask, TaskFilter, TaskStatus,
    Upcoming, UpcomingRequest,
};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metrics;
use crate::task::{Counts, Key, Lane, Shard, TaskId};

/// Maximum number of occurrences in one call of claim, settle or reap.
pub const MAX_BATCH: usize = 1000;

/// Maximum number of tasks in one put call.
pub const MAX_PUTS: usize = 1000;

/// Maximum total size of the records in one put call, in bytes. A single larger record is put in a call of its own.
pub const MAX_PUT_BYTES: usize = 1 << 20;

/// Maximum total size of the records of one claim, in bytes. A claim takes the first one whatever its size.
pub const MAX_CLAIM_BYTES: usize = 4 << 20;

/// The largest beat that is sent or accepted.
pub const MAX_BEAT_BYTES: usize = 4096;

/// Stores tasks until they are due. Every verb is one atomic step, except that a put or an extend may take several
/// calls: each of its tasks or leases is written in one step.
///
/// # Contract
/// A verb that takes `not_after` writes nothing once the timeline's clock has passed that time. If it returns
/// [`TimelineError::Unknown`], it either took effect before the error, perhaps for some tasks only, or never will.
/// A settle or an extend can be repeated at any time.
#[async_trait]
pub trait Timeline: Send + Sync + 'static {
    /// The clock that decides which tasks of a shard are due.
    fn clock(&self, shard: Shard) -> Arc<dyn Clock>;

    /// The clock of a shard that is reachable, for what concerns no shard in particular.
    fn any_clock(&self) -> Arc<dyn Clock>;

    /// Number of shards, at least 1.
    fn shards(&self) -> u16;

    /// Whether a shard is reachable. The receiver may miss a short outage, but then sees another number in
    /// [`Link::Up`].
    fn link(&self, shard: Shard) -> watch::Receiver<Link>;

    /// The number of the server that has a shard; `None` if one server has all shards.
    fn node(&self, _shard: Shard) -> Option<u64> {
        None
    }

    /// How long ago the stored timeline was found to be lost, with all its tasks; `None` if it never was.
    fn lost_for(&self) -> Option<Duration> {
        None
    }

    /// Wake-ups; see [`Wake`] for when one is sent. A wake-up can be lost (a glance then shows the head), but it is
    /// never sent without a reason.
    fn wakes(&self) -> broadcast::Receiver<Wake>;

    /// Sends a beat to all instances on this timeline, also to this one. It may be lost. It has at most [`MAX_BEAT_BYTES`].
    async fn send_beat(&self, beat: String) -> Result<(), TimelineError>;

    /// The beats of all instances.
    fn beats(&self) -> broadcast::Receiver<Arc<str>>;

    /// Counts and times all later calls, by verb and result.
    fn count_calls(&self, metrics: Arc<Metrics>);

    /// Creates or replaces up to [`MAX_PUTS`] tasks of one shard. No id may appear twice. Returns one answer per task,
    /// in order.
    async fn put(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: Vec<Put>,
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError>;

    /// Removes a task; with `revision`, only if it has this one. If a claim holds it, the task ends with that claim.
    async fn cancel(
        &self,
        shard: Shard,
        id: &TaskId,
        revision: Option<TaskRevision>,
        not_after: Timestamp,
    ) -> Result<CancelAnswer, TimelineError>;

    /// Reads a task. Returns `None` if there is no such task, or if it was cancelled and only its last claim still
    /// holds it.
    async fn get(&self, shard: Shard, id: &TaskId) -> Result<Option<StoredTask>, TimelineError>;

    /// Claims due occurrences of a lane under one new lease and returns them.
    async fn claim(&self, shard: Shard, lane: &Lane, request: ClaimRequest) -> Result<Claimed, TimelineError>;

    /// Claims due occurrences that ordinary claims leave out: either suspects or unreadable ones.
    async fn claim_suspects(
        &self,
        shard: Shard,
        lane: &Lane,
        request: SuspectsRequest,
    ) -> Result<Claimed, TimelineError>;

    /// Writes verdicts. [`Settle::rest`] decides whether the other occurrences stay in the claim or return to the lane.
    async fn settle(&self, shard: Shard, lane: &Lane, settle: Settle) -> Result<Settled, TimelineError>;

    /// Renews leases. Returns for each token whether its claim still exists.
    async fn extend(&self, shard: Shard, tokens: &[(Lane, Token)], lease: Duration)
    -> Result<Vec<bool>, TimelineError>;

    /// Ends expired claims. Their occurrences return to the lane with the due they had.
    async fn reap(&self, shard: Shard, lane: &Lane, request: ReapRequest) -> Result<Reaped, TimelineError>;

    /// Reads the heads, leases and lanes of a shard. When a reap is due, exactly one caller is asked to do it.
    async fn glance(&self, shard: Shard, request: GlanceRequest) -> Result<Glance, TimelineError>;

    /// Returns a dead occurrence to its lane, due now, under its old key. With `died`, only if it died at that time.
    async fn requeue(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError>;

    /// Deletes a dead occurrence; with `died`, only if it died at that time. Returns whether there was one.
    async fn discard(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError>;

    /// Lists dead occurrences of a shard in the order of their deaths. One call reads only a few, however many there
    /// are.
    async fn browse(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError>;

    /// Reads a part of the tasks of a lane, in no order. A task that stays in the lane from the first part to the last
    /// comes at least once.
    async fn scan(&self, shard: Shard, lane: &Lane, request: ScanRequest) -> Result<Scanned, TimelineError>;

    /// Lists the tasks of a lane that wait, by due and id. One call reads only a few, however many there are.
    async fn upcoming(&self, shard: Shard, lane: &Lane, request: UpcomingRequest) -> Result<Upcoming, TimelineError>;

    /// Counts the tasks of a lane.
    async fn count(&self, shard: Shard, lane: &Lane, request: CountRequest) -> Result<LaneCounts, TimelineError>;

    /// Pauses a task, or resumes it. After the answer to a pause, no claim takes it until it is resumed or triggered.
    async fn pause(
        &self,
        shard: Shard,
        id: &TaskId,
        request: TaskPauseRequest,
        not_after: Timestamp,
    ) -> Result<TaskPauseAnswer, TimelineError>;

    /// Gives a task that no claim holds another due. Its new due is later than every due of it that was claimed.
    async fn move_due(
        &self,
        shard: Shard,
        id: &TaskId,
        request: MoveRequest,
        not_after: Timestamp,
    ) -> Result<MoveAnswer, TimelineError>;

    /// Pauses a lane in one shard, or resumes it. After the answer to a pause, no claim takes anything of it.
    async fn pause_lane(
        &self,
        shard: Shard,
        lane: &Lane,
        request: LanePauseRequest,
        not_after: Timestamp,
    ) -> Result<LanePauseAnswer, TimelineError>;

    /// Reads one dead occurrence.
    async fn show(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError>;
}

/// Whether a shard is reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Connected, for the n-th time.
    Up(u64),
    /// Not connected, and the reason.
    Down(String),
}

/// Wakes the claimers of a lane: its head became earlier, a due was added while its head was due already, or a claim
/// left due tasks behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The shard.
    pub shard: Shard,
    /// The lane.
    pub lane: Lane,
    /// The new head; the earliest added due if the head was due already.
    pub due: Timestamp,
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineError {
    /// Nothing was written: the call arrived after its `not_after`.
    #[error("the call arrived too late to take effect")]
    Late,
    /// Nothing was written: the timeline refused the call (full, read-only, loading). Carries its error text.
    #[error("the timeline refused: {0}")]
    Refused(String),
    /// Nothing was written: the task was found in a different lane at each attempt. Other tasks are not affected.
    #[error("the task kept moving between lanes")]
    LaneChanged,
    /// Nothing was written: there is no connection.
    #[error("the timeline is unavailable: {0}")]
    Unavailable(String),
    /// The outcome is unknown, usually because no reply arrived. A call with a `not_after` took effect before this
    /// error, perhaps for some tasks only, or it never will. Any other call may still take effect.
    #[error("the timeline did not answer: {0}")]
    Unknown(String),
    /// The call took effect, or found the effect of an earlier one, but the configured durability is not confirmed.
    #[error("{0}")]
    Unconfirmed(String),
    /// The reply cannot be parsed. This is a bug in punctual.
    #[error("the timeline's answer cannot be parsed: {0}")]
    Broken(String),
}

impl TimelineError {
    /// The kind of error, as a label of metrics.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            TimelineError::Late => "late",
            TimelineError::Refused(_) => "refused",
            TimelineError::LaneChanged => "lane_changed",
            TimelineError::Unavailable(_) => "unavailable",
            TimelineError::Unknown(_) => "unknown",
            TimelineError::Unconfirmed(_) => "unconfirmed",
            TimelineError::Broken(_) => "broken",
        }
    }
}

/// When a put may replace an existing task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutMode {
    /// `PUT`: replaces the task. An equal body leaves it unchanged, unless its schedule is `in`.
    Put,
    /// `POST` with an idempotency key: an equal body leaves the task unchanged, even with `in`; a different body is
    /// refused.
    Post,
    /// `PUT` with `if-match`: like `Put`, but only if the task has this revision.
    Match(TaskRevision),
    /// `PUT` with `if-none-match: *`: only if there is no such task.
    Absent,
}

/// One task of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its id.
    pub id: TaskId,
    /// The lane it waits in.
    pub lane: Lane,
    /// Its first due.
    pub due: Timestamp,
    /// The encoded [`Record`](crate::task::Record).
    pub record: Bytes,
}

/// The answer of a put for one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutAnswer {
    /// What the put did.
    pub result: PutResult,
    /// The due that is now valid. For `InFlight`, `KeyReused`, `Mismatch` and `BadDue`: the requested one.
    pub due: Timestamp,
    /// The due of an occurrence with the former message that may still be delivered. Also set for `Unchanged` if such
    /// an occurrence is in flight.
    pub in_flight: Option<Timestamp>,
    /// Whether the task is replaced or unchanged, and paused: a put does not end a pause.
    pub paused: bool,
}

string_enum! {
    /// What a put did with one task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PutResult {
        /// There was no such task.
        Created = "created",
        /// The task replaced an existing one.
        Replaced = "replaced",
        /// An equal task exists; nothing was written.
        Unchanged = "unchanged",
        /// Nothing was written: the task has another revision, there is none ([`PutMode::Match`]), or there is one
        /// ([`PutMode::Absent`]).
        Mismatch = "mismatch",
        /// Nothing was written: a task with another body exists under this key ([`PutMode::Post`] only).
        KeyReused = "key_reused",
        /// Nothing was written: another message in flight, or already handed out, has the same key.
        InFlight = "in_flight",
        /// Nothing written: the due is out of range.
        BadDue = "bad_due",
        /// The task was written, or found unchanged, but the configured durability is not confirmed. Only refused
        /// tasks of the call have another result.
        Unconfirmed = "unconfirmed",
    }
}

/// The answer of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelAnswer {
    /// The task is removed. No publish of it starts from now on.
    Cancelled {
        /// The due of an occurrence that was handed out before and may still be delivered.
        handed_out: Option<Timestamp>,
    },
    /// The task is removed, but one occurrence is in flight and may still be delivered.
    InFlight {
        /// Its due.
        due: Timestamp,
    },
    /// There is no such task.
    Unknown,
    /// Nothing was written: the task has another revision.
    Mismatch,
}

/// A stored task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTask {
    /// The encoded record.
    pub record: Bytes,
    /// The due it waits for, or the due of the occurrence in flight.
    pub due: Timestamp,
    /// Whether a claim holds it.
    pub in_flight: bool,
    /// The next due once the current claim ends, if a put changed the task while it was in flight.
    pub due_after_claim: Option<Timestamp>,
    /// Counters of its past occurrences, for recurring tasks.
    pub counts: Counts,
    /// An instance could not parse the record; ordinary claims leave the task out.
    pub unreadable: bool,
    /// Its pause, if it is paused.
    pub pause: Option<TaskPause>,
}

/// The request of a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlanceRequest {
    /// Lanes to read, each with whether the caller's configuration names it.
    pub lanes: Vec<(Lane, bool)>,
    /// The lease of the caller's claims.
    pub lease: Duration,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// Whether to count waiting and in-flight occurrences.
    pub depth: bool,
}

/// The answer of a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// One entry for each requested lane, in order.
    pub lanes: Vec<LaneGlance>,
    /// The lanes that had a task in this shard, sorted by name. A reap removes an empty lane that its caller does not
    /// serve.
    pub known: Vec<Lane>,
    /// Number of dead occurrences.
    pub dead: u64,
}

/// State of one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneGlance {
    /// The earliest due that waits.
    pub head: Option<Timestamp>,
    /// The earliest end of a lease.
    pub first_lease: Option<Timestamp>,
    /// The latest end of a lease.
    pub last_lease: Option<Timestamp>,
    /// Whether occurrences are marked as claimed although the lane has no lease.
    pub stranded: bool,
    /// Whether the caller has to reap this lane now.
    pub reap: bool,
    /// Numbers of waiting and in-flight occurrences, if requested.
    pub depth: Option<(u64, u64)>,
    /// The earliest due in flight; `None` unless the depth was requested.
    pub held: Option<Timestamp>,
    /// Number of waiting occurrences that were due at least [`OVERDUE_AFTER`] ago; 0 unless the depth was requested.
    pub overdue: u64,
    /// Number of paused tasks; 0 unless the depth was requested.
    pub paused: u64,
    /// The pause of the lane, if it is paused.
    pub pause: Option<LanePause>,
}

/// An occurrence that waits counts as overdue this long after its due.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// The answer of a requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequeueAnswer {
    /// The occurrence is due now, under its old key.
    Requeued,
    /// It was requeued before and has not ended, or its task currently has the same due.
    InFlight,
    /// There is no such dead occurrence.
    Unknown,
    /// Its record is damaged and cannot be published. It stays dead.
    Unreadable,
}
