//! The form in which a task waits in the timeline: a header that scripts read at fixed places, then the body.
//!
//! ```text
//! bytes   1      layout version, 1
//!         2      flags: 1 recurring, 2 `in` (a repeated put counts anew), 4 requeued
//!         3-6    revision, big-endian: 1 when created, one more at each replacement
//!         7-14   created, epoch ms, big-endian
//!        15-22   updated, epoch ms
//!        23-30   anchor, epoch ms: the time of the put, from which `every` and `in` count
//!        31      length of the lane's name
//!        32-     the lane's name
//!         then, of a requeued occurrence only: one byte length and its idempotency key
//!         then   the body: the task as its user asked for it, MessagePack with named fields
//! ```
//! What stands from byte 31 on is equal exactly when the same was asked for: scripts compare it as it is.

use bytes::Bytes;

use super::{Key, Lane, Task};
use crate::clock::Timestamp;

/// A task as it waits in the timeline: what the server resolved, and what the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How often it was put with another content since it was created, from 1.
    pub revision: u32,
    /// When it was first put.
    pub created: Timestamp,
    /// When it was last replaced.
    pub updated: Timestamp,
    /// The time of the put that the schedule counts from.
    pub anchor: Timestamp,
    /// The lane it waits in.
    pub lane: Lane,
    /// Of a requeued occurrence, the key it is published with.
    pub requeued: Option<Key>,
    /// What the user asked for.
    pub task: Task,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Written by a version of punctual that this one does not know.
    #[error("the record has layout version {0}, this version reads 1")]
    Version(u8),
    /// Cut off, or not a record at all.
    #[error("the record is damaged: {0}")]
    Damaged(String),
}

impl Record {
    /// The record of a task put at `now` into `lane`.
    #[must_use]
    pub fn new(task: Task, lane: Lane, now: Timestamp) -> Record {
        Record { revision: 1, created: now, updated: now, anchor: now, lane, requeued: None, task }
    }

    /// The bytes that stand in the timeline.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        todo!()
    }

    /// Reads what [`encode`](Record::encode) wrote. The payload is a slice of `bytes`, not a copy, where that can be.
    ///
    /// # Errors
    /// When it was written by a newer version, or is damaged.
    pub fn decode(bytes: &Bytes) -> Result<Record, RecordError> {
        let _ = bytes;
        todo!()
    }
}

/// serde for byte strings as MessagePack `bin`.
pub(super) mod raw {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::task) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(in crate::task) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| Bytes::from(bytes.into_vec()))
    }
}
