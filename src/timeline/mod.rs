//! Where tasks wait: the [`Timeline`] trait and what its verbs take and answer.
//!
//! Two implementations obey the same rules and the same conformance suite: [`redis`], for real, and [`memory`], its
//! twin without Redis. The rules are written down in `lua/README.md`.

mod calls;
mod claims;
pub mod dead;
pub mod keys;
pub mod memory;
pub mod redis;
pub mod scripts;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{broadcast, watch};

pub use self::calls::Verb;
pub use self::claims::{
    ClaimRequest, Claimed, DeadRecord, Occurrence, Place, ReapRequest, Reaped, Rest, Settle, Settled, Settlement,
    SuspectsRequest, Token, Verdict,
};
pub use self::dead::{BrowseRequest, Browsed, Dead, DeadCursor, DeadFilter, MAX_BROWSED, MAX_BROWSED_BYTES};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metrics;
use crate::task::{Counts, Key, Lane, Shard, TaskId};

/// Occurrences that one call of claim, settle or reap touches at most.
pub const MAX_BATCH: usize = 1000;

/// Tasks that one put call takes at most.
pub const MAX_PUTS: usize = 1000;

/// Bytes of records that one put call takes at most; a single larger record goes alone.
pub const MAX_PUT_BYTES: usize = 1 << 20;

/// Bytes of records after which a claim stops taking more; the first is taken whatever its size.
pub const MAX_CLAIM_BYTES: usize = 4 << 20;

/// Where tasks wait until they are due, and what may be done to them. Every verb is one atomic step.
///
/// # Contract
/// Verbs that take `not_after` write nothing once the timeline's clock has passed it. They return
/// [`TimelineError::Unknown`] only after that time has surely passed: a call that failed so either took effect
/// before the error or never will. Verbs fenced by a token may be repeated at any time.
#[async_trait]
pub trait Timeline: Send + Sync + 'static {
    /// The clock that decides what is due.
    fn clock(&self) -> Arc<dyn Clock>;

    /// How many shards the timeline has, at least 1.
    fn shards(&self) -> u16;

    /// Whether the timeline can be reached: sees every change.
    fn link(&self) -> watch::Receiver<Link>;

    /// Wake-ups: a lane's head became earlier. May be lost (then a glance tells), never invented.
    fn wakes(&self) -> broadcast::Receiver<Wake>;

    /// From now on calls are counted, by verb and result, and timed.
    fn count_calls(&self, metrics: Arc<Metrics>);

    /// Creates or replaces up to [`MAX_PUTS`] tasks of one shard, no member twice; one answer each, in order.
    async fn put(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: Vec<Put>,
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError>;

    /// Takes a task out, or lets it end with the claim that holds it.
    async fn cancel(&self, shard: Shard, id: &TaskId, not_after: Timestamp) -> Result<CancelAnswer, TimelineError>;

    /// Looks at a task; `None` when there is none, or it ends with the claim that holds it.
    async fn get(&self, shard: Shard, id: &TaskId) -> Result<Option<Held>, TimelineError>;

    /// Locks due occurrences of a lane under one new lease and returns them.
    async fn claim(&self, shard: Shard, lane: &Lane, request: ClaimRequest) -> Result<Claimed, TimelineError>;

    /// Locks due occurrences that ordinary claims leave out: suspects, or what could not be read.
    async fn claim_suspects(
        &self,
        shard: Shard,
        lane: &Lane,
        request: SuspectsRequest,
    ) -> Result<Claimed, TimelineError>;

    /// Writes verdicts back; what is not named stays under the token with a fresh lease, or goes back.
    async fn settle(&self, shard: Shard, lane: &Lane, settle: Settle) -> Result<Settled, TimelineError>;

    /// Renews leases; says of each token whether it still lives.
    async fn extend(&self, shard: Shard, tokens: &[(Lane, Token)], lease: Duration)
    -> Result<Vec<bool>, TimelineError>;

    /// Ends claims whose lease has passed: what they held is waiting again, under the due it had.
    async fn reap(&self, shard: Shard, lane: &Lane, request: ReapRequest) -> Result<Reaped, TimelineError>;

    /// One look at a shard: heads, leases, lanes; tells one caller when a reap is due.
    async fn glance(&self, shard: Shard, request: GlanceRequest) -> Result<Glance, TimelineError>;

    /// Puts a dead occurrence back, due now, under its old key; with `buried` only the one that was buried then.
    async fn requeue(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError>;

    /// Forgets a dead occurrence, with `buried` only the one that was buried then; whether there was one.
    async fn discard(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError>;

    /// Looks through the dead of a shard, in the order of their burial; a few at a time, however many there are.
    async fn browse(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError>;

    /// Looks at one dead occurrence.
    async fn show(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError>;
}

/// Whether the timeline can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Yes, for the n-th time.
    Up(u64),
    /// No; why.
    Down(String),
}

/// A lane's head became earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The shard.
    pub shard: Shard,
    /// The lane.
    pub lane: Lane,
    /// Its new head.
    pub due: Timestamp,
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineError {
    /// Nothing was written: the call arrived after its `not_after`.
    #[error("the call arrived too late to take effect")]
    Late,
    /// Nothing was written: the timeline answered that it can't, in its own words (full, read-only, loading).
    #[error("the timeline refused: {0}")]
    Refused(String),
    /// Nothing was written: the task was found in another lane each time it was asked for. Of this task alone.
    #[error("the task kept moving between lanes")]
    Moving,
    /// Nothing was written: there is no connection.
    #[error("the timeline cannot be reached: {0}")]
    Away(String),
    /// No answer came: the call took effect before this error, or never will.
    #[error("the timeline did not answer: {0}")]
    Unknown(String),
    /// The call took effect, or found that an earlier one had, but whether that is kept as the configuration asks is not
    /// known.
    #[error("{0}")]
    Unkept(String),
    /// The answer makes no sense: a fault of punctual's own.
    #[error("the timeline's answer cannot be read: {0}")]
    Broken(String),
}

impl TimelineError {
    /// Its kind in one word.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            TimelineError::Late => "late",
            TimelineError::Refused(_) => "refused",
            TimelineError::Moving => "moving",
            TimelineError::Away(_) => "away",
            TimelineError::Unknown(_) => "unknown",
            TimelineError::Unkept(_) => "unkept",
            TimelineError::Broken(_) => "broken",
        }
    }
}

/// Whether a put that finds a task replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutMode {
    /// `PUT`: the task is replaced; with an equal body it is unchanged, unless its schedule is `in`.
    Put,
    /// `POST` under an idempotency key: an equal body is unchanged, `in` included; another is refused.
    Post,
}

/// One task to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its id.
    pub id: TaskId,
    /// The lane it shall wait in.
    pub lane: Lane,
    /// Its (first) due.
    pub due: Timestamp,
    /// The encoded [`Record`](crate::task::Record).
    pub record: Bytes,
}

/// What a put says of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutAnswer {
    /// What was done.
    pub result: PutResult,
    /// The due that now holds (of `InFlight`, `KeyReused` and `BadDue`: the one that was asked for).
    pub due: Timestamp,
    /// The due of an occurrence with the former message that may still arrive; of `Unchanged`, too, where the put that is
    /// repeated found one in flight.
    pub in_flight: Option<Timestamp>,
}

words! {
    /// What a put did with one task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PutResult {
        /// There was none.
        Created = "created",
        /// There was one, and now this one stands in its place.
        Replaced = "replaced",
        /// It stood there already; nothing was touched.
        Unchanged = "unchanged",
        /// Nothing written: a task with another body stands under this key ([`PutMode::Post`] only).
        KeyReused = "key_reused",
        /// Nothing written: it would give another message the key of one that is in flight or was handed out.
        InFlight = "in_flight",
        /// Nothing written: the due is out of range.
        BadDue = "bad_due",
        /// It took effect, but is not known to be kept; of others in the same call something else is true.
        Unkept = "unkept",
    }
}

/// What a cancel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelAnswer {
    /// The task is gone, no publish of it starts from now on.
    Cancelled {
        /// The due of an occurrence that had been handed out before and may still arrive.
        handed_out: Option<Timestamp>,
    },
    /// The task is gone; the one occurrence now held may still arrive.
    InFlight {
        /// Its due.
        due: Timestamp,
    },
    /// There is no such task.
    Unknown,
}

/// A task as it stands in the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The encoded record.
    pub record: Bytes,
    /// Its score without the sign: the due that is waited for, or in flight.
    pub due: Timestamp,
    /// Whether a claim holds it.
    pub in_flight: bool,
    /// The due that comes once the claim that holds it ends: a put changed it meanwhile.
    pub changed: Option<Timestamp>,
    /// What has happened to its occurrences; of recurring tasks.
    pub counts: Counts,
    /// An instance could not read it: claims leave it out.
    pub unreadable: bool,
}

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlanceRequest {
    /// The lanes the caller knows, each with whether it is configured.
    pub lanes: Vec<(Lane, bool)>,
    /// The lease that claims are made with.
    pub lease: Duration,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// Whether to count what waits and what is in flight.
    pub depth: bool,
}

/// What a look shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// Of each lane asked for, in order.
    pub lanes: Vec<LaneGlance>,
    /// Every lane that ever held a task here, sorted by name.
    pub known: Vec<Lane>,
    /// How many dead occurrences are kept.
    pub dead: u64,
}

/// What a look shows of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneGlance {
    /// The smallest due that waits.
    pub head: Option<Timestamp>,
    /// The first end of a lease.
    pub first_lease: Option<Timestamp>,
    /// The last end of a lease.
    pub last_lease: Option<Timestamp>,
    /// Whether occurrences stand claimed without any lease.
    pub stranded: bool,
    /// Whether the caller is to reap this lane now.
    pub reap: bool,
    /// How many wait and how many are in flight, if it was asked.
    pub depth: Option<(u64, u64)>,
    /// The smallest due in flight, if it was asked with the depth.
    pub held: Option<Timestamp>,
}

/// What a requeue says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequeueAnswer {
    /// It is due again, now, under its old key.
    Requeued,
    /// It was requeued before and has not ended yet, or its task has that very due.
    InFlight,
    /// No such dead occurrence (any more).
    Unknown,
    /// What is kept of it is damaged: nothing can be put back, it stays dead.
    Unreadable,
}
