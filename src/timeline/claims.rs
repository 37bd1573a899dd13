//! Requests and answers of the verbs that handle claims: claim, settle and reap.

use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::task::{Counts, Member};

/// The unique name of a claim: `<instance id>.<n>.<lease ms>`. Every write of its holder is checked against it. Other
/// instances read the length of the lease from its last part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub String);

impl Token {
    /// The token of an instance's n-th claim. `instance` must not contain a dot.
    #[must_use]
    pub fn new(instance: &str, n: u64, lease: Duration) -> Token {
        Token(format!("{instance}.{n}.{}", lease.as_millis()))
    }

    /// The instance that made the claim.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }

    /// The length of the lease, or `None` if the token has no such part.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        let mut parts = self.0.split('.').skip(1);
        let (n, lease) = (parts.next()?, parts.next()?);
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let whole = digits(n) && digits(lease) && parts.next().is_none();
        whole.then(|| lease.parse().ok().map(Duration::from_millis)).flatten()
    }
}

/// A position in a lane, which is sorted by due and then by member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DuePosition {
    /// The due.
    pub due: Timestamp,
    /// The member at this position. `None` is the position before the first member of that due.
    pub member: Option<Member>,
}

/// The request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// A token that was never used before.
    pub token: Token,
    /// Maximum number of occurrences, up to [`MAX_BATCH`](super::MAX_BATCH).
    pub max: usize,
    /// Maximum size of all records in bytes, up to [`MAX_CLAIM_BYTES`](super::MAX_CLAIM_BYTES).
    pub max_bytes: usize,
    /// How long the claim is valid unless it is renewed.
    pub lease: Duration,
    /// Nothing is claimed after this time of the timeline's clock.
    pub not_after: Timestamp,
    /// Take the occurrences with the latest due instead of the oldest ones.
    pub newest_first: bool,
    /// Take only occurrences behind this position. Cannot be combined with `newest_first`.
    pub after: Option<DuePosition>,
}

/// The request for occurrences that ordinary claims leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectsRequest {
    /// A token that was never used before.
    pub token: Token,
    /// Maximum number of occurrences, up to [`MAX_BATCH`](super::MAX_BATCH).
    pub max: usize,
    /// Maximum size of all records in bytes, up to [`MAX_CLAIM_BYTES`](super::MAX_CLAIM_BYTES).
    pub max_bytes: usize,
    /// How long the claim is valid unless it is renewed.
    pub lease: Duration,
    /// Nothing is claimed after this time of the timeline's clock.
    pub not_after: Timestamp,
    /// Take unreadable occurrences ([`Verdict::Unreadable`]) instead of suspects. A suspect is an occurrence whose
    /// claims expired twice or more. Suspects with exactly two crashes are claimed together, other suspects one by one.
    /// Unreadable occurrences are claimed together.
    pub unreadable: bool,
    /// Take only occurrences behind this position.
    pub after: Option<DuePosition>,
}

/// The answer of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The server's time of the claim.
    pub now: Timestamp,
    /// The lane is paused. Nothing was read, and all other values are empty.
    pub paused: bool,
    /// The claimed occurrences. If there are none, no claim exists.
    pub occurrences: Vec<Occurrence>,
    /// The due of the first waiting occurrence behind `last`. It is in the past if more occurrences are due. With
    /// `newest_first`: the due of the first waiting occurrence of the lane. After a claim of suspects or unreadable
    /// occurrences: the due of the first ordinary occurrence that was read, if there was one.
    pub head: Option<Timestamp>,
    /// The last position that was read; `None` with `newest_first`.
    pub last: Option<DuePosition>,
    /// Number of due suspects that were read and left out; 0 with `newest_first`.
    pub suspects: u64,
    /// Number of due unreadable occurrences that were read and left out; 0 with `newest_first`.
    pub unreadable: u64,
    /// Number of members without a record that were removed. Always 0 unless the data in Redis was damaged.
    pub removed: u64,
}

impl Claimed {
    /// The answer while the lane is paused.
    pub(crate) fn paused(now: Timestamp) -> Claimed {
        Claimed {
            now,
            paused: true,
            occurrences: Vec::new(),
            head: None,
            last: None,
            suspects: 0,
            unreadable: 0,
            removed: 0,
        }
    }
}

/// One claimed occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The task, or the requeued occurrence.
    pub member: Member,
    /// The due it was claimed with.
    pub due: Timestamp,
    /// The encoded record.
    pub record: Bytes,
    /// Counters of the task's past occurrences, for recurring tasks.
    pub counts: Counts,
    /// How many of its claims expired. Only set for suspects, else 0.
    pub crashes: u32,
}

/// The request of a settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The token of the claim.
    pub token: Token,
    /// One verdict per occurrence, at most [`MAX_BATCH`](super::MAX_BATCH). No member may appear twice.
    pub verdicts: Vec<Settlement>,
    /// What happens to the occurrences without a verdict.
    pub rest: RestOfClaim,
    /// The new lease, if occurrences stay in the claim.
    pub lease: Duration,
    /// How many dead occurrences of a lane a shard keeps.
    pub dead_cap: DeadCap,
    /// Sends no wake-up for occurrences that return to the lane, because a new claim could not publish them either.
    pub quiet: bool,
}

/// How many dead occurrences of a lane a shard keeps; the oldest are dropped beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadCap {
    /// Maximum number, 1 or more.
    pub entries: u64,
    /// Maximum size of all together, in bytes. A single one is kept whatever its size.
    pub bytes: u64,
}

impl DeadCap {
    /// Limits only the number, not the size.
    #[must_use]
    pub fn of(entries: u64) -> DeadCap {
        DeadCap { entries, bytes: u64::MAX >> 12 }
    }
}

/// One occurrence and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The member.
    pub member: Member,
    /// The due it was claimed with.
    pub due: Timestamp,
    /// The verdict.
    pub verdict: Verdict,
}

/// What happens to an occurrence when it leaves its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task has ended.
    Finished,
    /// The occurrence has ended and the task has a next due.
    Next {
        /// The next due, later than the one that ended.
        due: Timestamp,
        /// The new counters of the task.
        counts: Counts,
    },
    /// The occurrence is dead and the task has ended with it.
    Dead(DeadRecord),
    /// The occurrence is dead and the task has a next due.
    DeadNext {
        /// The entry for the list of the dead.
        dead_record: DeadRecord,
        /// The next due, later than the one that died.
        due: Timestamp,
        /// The new counters of the task.
        counts: Counts,
    },
    /// The occurrence returns to the lane with the same due.
    Back {
        /// Whether a publish was started and has no definite outcome.
        begun: bool,
    },
    /// The occurrence returns to the lane with the same due, and ordinary claims leave it out: this instance cannot
    /// parse its record or its schedule.
    Unreadable,
}

/// What is stored about a dead occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeadRecord {
    /// The record, which a requeue stores again.
    pub record: Bytes,
    /// Why it is dead: `rejected`, `retries`, `destination`, `poison` or `too late`.
    pub reason: String,
    /// The error text of the broker, or of a check of punctual.
    pub detail: String,
}

/// What happens to the occurrences that a settle does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestOfClaim {
    /// They stay in the claim, with a renewed lease.
    Keep,
    /// They return to the lane with the due they had.
    Back,
}

/// The answer of a settle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The claim does not exist any more. Nothing was written and its holder must stop publishing.
    pub lost: bool,
    /// Members that were named but are not in the claim.
    pub skipped: Vec<Member>,
    /// Members for which a put or cancel made in the meantime replaced the verdict.
    pub changed: Vec<Member>,
    /// Number of dead occurrences that were dropped because the shard keeps no more.
    pub dropped: u64,
}

/// The request of a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapRequest {
    /// The lease of claims whose token does not contain one. A lease that ends later than a new one would was written
    /// before the clock stepped back, and is shortened.
    pub lease: Duration,
    /// Whether the caller's configuration names the lane. A lane without tasks that no configuration names is
    /// forgotten.
    pub served: bool,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// The reap must not take effect after this time. Otherwise a Redis that was stopped for a while would end claims
    /// that their holders could not renew.
    pub not_after: Timestamp,
}

/// Maximum number of instances that a reap names.
pub const MAX_HOLDERS: usize = 10;

/// The answer of a reap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Number of claims that were ended.
    pub claims: u64,
    /// Number of occurrences in them.
    pub occurrences: u64,
    /// The instances that held the claims, up to [`MAX_HOLDERS`], in the order in which their leases ended.
    pub holders: Vec<String>,
    /// Number of occurrences that were marked as claimed although the lane has no lease. Always 0 unless the data in
    /// Redis was damaged.
    pub stranded: u64,
    /// Number of dead occurrences that were dropped because of their age.
    pub dropped: u64,
    /// Whether more work is left for another reap at once.
    pub more: bool,
}
