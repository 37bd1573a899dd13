//! Tasks and their times: pure values without I/O, without async and without a clock.
//!
//! A [`Task`] is what a user puts, without its lane: schedule, message, retry policy, catch-up. [`spec`] parses one from
//! JSON and reports every fault at once. [`record`] is the form in which it is stored. [`next_due`] decides about a due
//! occurrence and computes the next due.

mod cron;
pub mod duration;
pub mod id;
pub mod layout;
pub mod next_due;
pub mod record;
pub mod retry;
#[cfg(test)]
pub(crate) mod samples;
pub mod schedule;
pub mod spec;
mod task_dues;
pub mod trace;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use cron::zones::local_time;
pub use id::{Key, Lane, Member, Namespace, Shard, TaskId};
pub use next_due::{CatchUp, CatchUpLimits, Counts, NextDue, NextDueSearch};
pub use record::Record;
pub use retry::RetryPolicy;
pub use schedule::{Schedule, When};
pub use spec::{Fault, Limits};
pub use trace::Traceparent;

/// What a user puts: what to publish, and when.
///
/// It contains only what the user sent. The server's part (created, updated) is in the header of the [`Record`], the
/// lane's destination in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// When it is due, once or repeatedly.
    pub schedule: Schedule,
    /// What to publish.
    pub message: Message,
    /// The user's retry policy. The default is shortened to the retries that fit between two occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// How to handle occurrences that are overdue by more than `grace`; the default is `once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
}

/// The message of a task, as its user sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Topic, subject, `exchange/routing-key`, queue or stream; the default is that of the lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The key for Kafka's partitioner; the default is the task id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The user's own headers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// More headers, from a message that a door has read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<StoredHeaders>,
    /// The payload.
    #[serde(default, skip_serializing_if = "Payload::is_empty")]
    pub payload: Payload,
}

/// Headers in the form of a broker, which says more than a text for each name. Only a sink of the same kind publishes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredHeaders {
    /// The kind of broker.
    pub kind: String,
    /// The encoded headers.
    #[serde(with = "record::raw")]
    pub bytes: Bytes,
}

/// The payload of a message, byte for byte as the user sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// No payload was given, or the body of a door's message is empty.
    #[default]
    Empty,
    /// `tombstone`: no value at all, for Kafka.
    Tombstone,
    /// `payload`: the bytes of the JSON in the request; content type `application/json`.
    Json(#[serde(with = "record::raw")] Bytes),
    /// `payload_base64`, decoded, with its `content_type` if given.
    Raw {
        /// The bytes.
        #[serde(with = "record::raw")]
        bytes: Bytes,
        /// Media type.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_type: Option<String>,
    },
}

impl Payload {
    /// Whether there is no value at all, which Kafka tells from an empty one.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        matches!(self, Payload::Tombstone)
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Payload::Empty)
    }

    /// The bytes to publish.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self {
            Payload::Empty | Payload::Tombstone => Bytes::new(),
            Payload::Json(bytes) | Payload::Raw { bytes, .. } => bytes.clone(),
        }
    }

    /// Number of bytes to publish.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty | Payload::Tombstone => 0,
            Payload::Json(bytes) | Payload::Raw { bytes, .. } => bytes.len(),
        }
    }

    /// The media type to publish with, if any.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        match self {
            Payload::Empty | Payload::Tombstone => None,
            Payload::Json(_) => Some("application/json"),
            Payload::Raw { content_type, .. } => content_type.as_deref(),
        }
    }
}
