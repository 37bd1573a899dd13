//! What the verbs of a claim's life take and answer: claim, settle, reap.

use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::task::{Counts, Member};

/// The name of a claim, `<instance id>.<n>.<lease ms>`: the fence of everything its holder writes. Never used for a second
/// claim. Others tell by its end how long its lease may be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub String);

impl Token {
    /// The name of an instance's n-th claim; `instance` holds no dot.
    #[must_use]
    pub fn new(instance: &str, n: u64, lease: Duration) -> Token {
        Token(format!("{instance}.{n}.{}", lease.as_millis()))
    }

    /// The lease that the token ends in; `None` where it has no such end.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        let mut parts = self.0.split('.').skip(1);
        let (n, lease) = (parts.next()?, parts.next()?);
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let whole = digits(n) && digits(lease) && parts.next().is_none();
        whole.then(|| lease.parse().ok().map(Duration::from_millis)).flatten()
    }
}

/// A place in a lane: what is due earlier stands before it, what is due at the same time in the order of its members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The due.
    pub due: Timestamp,
    /// The member that stands there, or stood there; `None` is the place before the first member of that due.
    pub member: Option<Member>,
}

/// What to claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// A name that was never used before.
    pub token: Token,
    /// Occurrences at most, up to [`MAX_BATCH`](super::MAX_BATCH).
    pub max: usize,
    /// Bytes of records after which to stop, up to [`MAX_CLAIM_BYTES`](super::MAX_CLAIM_BYTES).
    pub max_bytes: usize,
    /// How long the claim lasts unless it is extended.
    pub lease: Duration,
    /// The timeline's time after which nothing shall be claimed.
    pub not_after: Timestamp,
    /// Take what has become due last instead of what has been due for longest.
    pub newest_first: bool,
    /// Take only what stands behind this place. Not together with `newest_first`.
    pub after: Option<Place>,
}

/// What to claim of what ordinary claims leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectsRequest {
    /// A name that was never used before.
    pub token: Token,
    /// Occurrences at most, up to [`MAX_BATCH`](super::MAX_BATCH).
    pub max: usize,
    /// Bytes of records after which to stop, up to [`MAX_CLAIM_BYTES`](super::MAX_CLAIM_BYTES).
    pub max_bytes: usize,
    /// How long the claim lasts unless it is extended.
    pub lease: Duration,
    /// The timeline's time after which nothing shall be claimed.
    pub not_after: Timestamp,
    /// Take what could not be read ([`Verdict::Unreadable`]) instead of suspects (occurrences whose claims ended without word
    /// twice or more: the first one, and if it was twice, more of those along with it).
    pub unreadable: bool,
    /// Look only behind this place.
    pub after: Option<Place>,
}

/// What was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The server's time of the claim.
    pub now: Timestamp,
    /// The occurrences; none means that no claim exists.
    pub occurrences: Vec<Occurrence>,
    /// The due of the first that waits behind what was looked at; in the past when there is more. After a claim with `newest_first`: of the first that waits.
    pub head: Option<Timestamp>,
    /// The last place that was looked at; `None` with `newest_first`.
    pub last: Option<Place>,
    /// Due suspects that were looked at and left out; 0 with `newest_first`.
    pub suspects: u64,
    /// Due ones that were looked at and left out because they cannot be read; 0 with `newest_first`.
    pub unreadable: u64,
    /// Members without a record that were removed; stays 0.
    pub removed: u64,
}

/// An occurrence in a claim's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The task, or the requeued occurrence.
    pub member: Member,
    /// When it is due: the score it was claimed with.
    pub due: Timestamp,
    /// The encoded record.
    pub record: Bytes,
    /// What has happened to the task's occurrences so far; of recurring tasks.
    pub counts: Counts,
    /// How many of its claims ended without word; only told of suspects, else 0.
    pub crashes: u32,
}

/// Verdicts to write back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The claim.
    pub token: Token,
    /// One per occurrence, no member twice, at most [`MAX_BATCH`](super::MAX_BATCH).
    pub verdicts: Vec<Settlement>,
    /// What becomes of the occurrences that are not named.
    pub rest: Rest,
    /// How long the claim lasts from now if something stays in it.
    pub lease: Duration,
    /// How many dead occurrences a shard keeps.
    pub dead_cap: u64,
    /// What goes back wakes nobody: it would be claimed for nothing.
    pub quiet: bool,
}

/// One occurrence and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The member.
    pub member: Member,
    /// The due it was claimed with.
    pub due: Timestamp,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// What becomes of an occurrence when it leaves its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task has ended.
    Finished,
    /// The occurrence has ended; the task is due again.
    Next {
        /// Later than the one that ended.
        due: Timestamp,
        /// What has happened so far.
        counts: Counts,
    },
    /// The occurrence is dead, and the task has ended with it.
    Dead(DeadRecord),
    /// The occurrence is dead; the task is due again.
    DeadNext {
        /// What is kept of the dead.
        dead_record: DeadRecord,
        /// Later than the one that died.
        due: Timestamp,
        /// What has happened so far.
        counts: Counts,
    },
    /// It waits again under the same due.
    Back {
        /// Whether a publish of it had begun and was not answered definitely.
        begun: bool,
    },
    /// It waits again under the same due, and claims leave it out: its record, or the schedule in it, cannot be read here.
    Unreadable,
}

/// What is kept of a dead occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeadRecord {
    /// The record that requeue will put back.
    pub record: Bytes,
    /// Why, in one word of a fixed few: `rejected`, `retries`, `destination`, `poison`, `too late`.
    pub reason: String,
    /// The broker's own words.
    pub detail: String,
}

/// What becomes of the occurrences that a settle does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rest {
    /// They stay in the claim, with a fresh lease.
    Keep,
    /// They wait again, under the due they had.
    Back,
}

/// What a settle says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The claim was not there (any more): nothing was written, its holder lets go.
    pub lost: bool,
    /// Members that were named but not in the claim (any more).
    pub skipped: Vec<Member>,
    /// Members that took what their user asked meanwhile instead of their verdict.
    pub changed: Vec<Member>,
    /// Dead occurrences dropped because the shard keeps no more.
    pub dropped: u64,
}

/// What to reap with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReapRequest {
    /// The lease of claims whose token does not tell theirs: an end further ahead means that the clock stepped back.
    pub lease: Duration,
    /// Whether some configuration here names the lane: one that is not and has become empty is forgotten.
    pub served: bool,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// After that it must not take effect: a timeline that stood still would end claims whose holders could not extend.
    pub not_after: Timestamp,
}

/// What a reap did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Claims that were ended.
    pub claims: u64,
    /// Occurrences that were in them.
    pub occurrences: u64,
    /// Occurrences found claimed without any lease; stays 0.
    pub stranded: u64,
    /// Dead occurrences dropped because they were older than `dead_keep`.
    pub dropped: u64,
    /// Whether there is more to do at once.
    pub more: bool,
}
