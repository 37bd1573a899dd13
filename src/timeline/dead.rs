//! Requests and answers of the verbs that read dead occurrences.

use super::DeadRecord;
use crate::clock::Timestamp;
use crate::task::{Key, Lane};

/// Maximum number of dead occurrences that one browse call reads. The number is small because Redis does nothing else
/// in the meantime.
pub const MAX_BROWSED: usize = 128;

/// Maximum size of the entries that one browse call reads, in bytes. The first one is read whatever its size.
pub const MAX_BROWSED_BYTES: usize = 256 << 10;

/// Position of a dead occurrence in the list of the dead, which is sorted by time of death and then by the bytes of the
/// key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeadCursor {
    /// When it died.
    pub died: Timestamp,
    /// Its idempotency key.
    pub key: Key,
}

impl Ord for DeadCursor {
    fn cmp(&self, other: &DeadCursor) -> std::cmp::Ordering {
        let order = self.died.cmp(&other.died);
        order.then_with(|| self.key.to_string().cmp(&other.key.to_string()))
    }
}

impl PartialOrd for DeadCursor {
    fn partial_cmp(&self, other: &DeadCursor) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Selects dead occurrences; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Only those of this lane.
    pub lane: Option<Lane>,
    /// Only those of tasks whose ids begin with this.
    pub prefix: String,
    /// Only those with this reason.
    pub reason: Option<String>,
    /// Only those that died at this time or later.
    pub from: Option<Timestamp>,
    /// Only those that died before this time.
    pub to: Option<Timestamp>,
}

impl DeadFilter {
    /// Whether a key belongs to an id with the prefix.
    #[must_use]
    pub fn has_prefix(&self, key: &str) -> bool {
        self.prefix.is_empty() || key.rsplit_once(':').is_some_and(|(id, _)| id.starts_with(&self.prefix))
    }
}

/// The request of a browse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowseRequest {
    /// Which occurrences to return.
    pub filter: DeadFilter,
    /// Where the last call ended.
    pub after: Option<DeadCursor>,
    /// Maximum number to return, 1 to [`MAX_BROWSED`].
    pub max: usize,
    /// Whether to return the whole entries, or only their positions.
    pub whole: bool,
}

/// The answer of a browse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Browsed {
    /// The matching occurrences, in the order of their deaths.
    pub dead: Vec<Dead>,
    /// The last position that was read, if more follow.
    pub last: Option<DeadCursor>,
}

/// A dead occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Its position.
    pub cursor: DeadCursor,
    /// Its entry, if it was requested and is not damaged.
    pub dead_record: Option<DeadRecord>,
}
