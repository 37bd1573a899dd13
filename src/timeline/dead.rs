//! What is asked about the dead, and what is answered.

use super::DeadRecord;
use crate::clock::Timestamp;
use crate::task::{Key, Lane};

/// Dead occurrences that one call of browse looks at, and returns, at most. Few: nothing else is done meanwhile.
pub const MAX_BROWSED: usize = 128;

/// Bytes of what is kept of the dead that one call of browse reads at most; the first is read whatever its size.
pub const MAX_BROWSED_BYTES: usize = 256 << 10;

/// Where a dead occurrence stands among all of a timeline: in the order of their burial, those of one millisecond in that
/// of their keys' bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeadCursor {
    /// When it was buried.
    pub buried: Timestamp,
    /// Its idempotency key.
    pub key: Key,
}

impl Ord for DeadCursor {
    fn cmp(&self, other: &DeadCursor) -> std::cmp::Ordering {
        let order = self.buried.cmp(&other.buried);
        order.then_with(|| self.key.to_string().cmp(&other.key.to_string()))
    }
}

impl PartialOrd for DeadCursor {
    fn partial_cmp(&self, other: &DeadCursor) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Which of the dead are meant; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Those that were published to this lane's sink.
    pub lane: Option<Lane>,
    /// Those that are dead for this reason.
    pub reason: Option<String>,
    /// Those buried then or later.
    pub from: Option<Timestamp>,
    /// Those buried before.
    pub to: Option<Timestamp>,
}

/// What to look through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowseRequest {
    /// Which are meant.
    pub filter: DeadFilter,
    /// Where the last look ended.
    pub after: Option<DeadCursor>,
    /// How many to return, 1 to [`MAX_BROWSED`].
    pub max: usize,
    /// Whether what is kept of them is wanted, or only where they stand.
    pub whole: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsed {
    /// In the order of their burial.
    pub dead: Vec<Dead>,
    /// How far was looked, if there are others beyond.
    pub last: Option<DeadCursor>,
}

/// A dead occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Where it stands.
    pub cursor: DeadCursor,
    /// What is kept of it, if that was asked for and is whole.
    pub dead_record: Option<DeadRecord>,
}
