//! Moves of a task to another due: trigger and skip.

use crate::clock::Timestamp;
use crate::task::Counts;
use crate::task::record::Record;

/// The request to give a waiting task another due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveRequest {
    /// Publish once now, normally under a key that was never used. A paused task publishes this message and stays paused.
    Trigger {
        /// For a paused task whose due has passed: `true` publishes under a new key; `false` under the key of that due, and
        /// the schedule goes on from there.
        new_key: bool,
    },
    /// Gives the task a later due. A paused task stays paused.
    Skip(Skip),
}

/// The request to pass over the next occurrence of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The due that the task must have.
    pub from: Timestamp,
    /// The revision that the task must have, for which `to` was computed.
    pub revision: TaskRevision,
    /// Its new due, later than `from`.
    pub to: Timestamp,
    /// Its new counts.
    pub counts: Counts,
}

/// The answer to a [`MoveRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveAnswer {
    /// The task has this due now. A trigger of a paused task may keep the due that it had.
    Moved {
        /// The due.
        due: Timestamp,
        /// Its former due, if that occurrence was handed out before: its message may still arrive.
        handed_out: Option<Timestamp>,
    },
    /// The answer to a trigger: nothing was written, because the task was due already.
    Unchanged {
        /// Its due.
        due: Timestamp,
    },
    /// A claim holds it.
    InFlight {
        /// The due in flight.
        due: Timestamp,
    },
    /// The answer to a skip: nothing was written, because the task has another due or another revision.
    Mismatch {
        /// Its due.
        due: Timestamp,
    },
    /// There is no such task.
    Unknown,
}

/// Names one revision of one task. A task that was removed and put again has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskRevision {
    /// When the task was created.
    pub created: Timestamp,
    /// 1 when created, one more at each replacement.
    pub number: u32,
}

impl TaskRevision {
    /// The revision of a record.
    #[must_use]
    pub fn of(record: &Record) -> TaskRevision {
        TaskRevision { created: record.created, number: record.revision }
    }

    /// Its bytes in a record, see [`layout`](crate::task::layout).
    pub(super) fn bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.number.to_be_bytes());
        bytes[4..].copy_from_slice(&self.created.as_millis().to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Lane, When, layout, samples};

    #[test]
    fn the_bytes_of_a_revision_are_those_in_the_record() {
        let created = Timestamp::from_millis(1_795_262_400_123);
        let task = samples::task(When::At(created));
        let record = Record { revision: 7, ..Record::new(task, Lane::default(), created) };
        let bytes = record.clone().encode();
        assert_eq!(TaskRevision::of(&record).bytes(), bytes[layout::REVISION.start..layout::CREATED.end]);
    }
}
