//! What a task is, and when: pure values without I/O, without async and without a clock.
//!
//! A [`Task`] is what a user puts: schedule, message, lane, retry policy, catch-up. [`spec`] reads one from JSON and
//! names every fault at once; [`record`] is the form in which it waits in the timeline; [`follow`] says what becomes of
//! an occurrence whose time has come and which due follows it.

mod cron;
pub mod duration;
pub mod follow;
mod horizon;
pub mod id;
pub mod layout;
mod plan;
pub mod record;
pub mod retry;
#[cfg(test)]
pub(crate) mod samples;
pub mod schedule;
pub mod spec;
pub mod trace;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use follow::{CatchUp, Counts, Follow, Following, Overdue};
pub use id::{Key, Lane, Member, Namespace, Shard, TaskId};
pub use record::Record;
pub use retry::RetryPolicy;
pub use schedule::{Schedule, When};
pub use spec::{Fault, Limits};
pub use trace::Traceparent;

/// What a user puts: what to publish, and when.
///
/// Holds only what was asked for; what the server resolves (created, updated, the lane's destination) stands in the
/// [`Record`]'s header or in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// When it is due, once or again and again.
    pub schedule: Schedule,
    /// What is published.
    pub message: Message,
    /// The policy the user wrote; without one the default, shortened to the retries that fit between two occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// What becomes of occurrences that are overdue by more than `grace`; without it `once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
}

/// What a task publishes, as its user wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Topic, subject, `exchange/routing-key` or stream; without it the lane's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// What Kafka partitions by; without it the task id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The user's own headers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The value.
    #[serde(default, skip_serializing_if = "Payload::is_empty")]
    pub payload: Payload,
}

/// The value of a message, byte for byte as the user gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Neither `payload` nor `payload_base64` was given.
    #[default]
    Empty,
    /// `payload`: the very bytes of the JSON that stood in the request; content type `application/json`.
    Json(#[serde(with = "record::raw")] Bytes),
    /// `payload_base64`, decoded, with its `content_type` if one was given.
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
    /// Whether nothing was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Payload::Empty)
    }

    /// The bytes to publish.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self {
            Payload::Empty => Bytes::new(),
            Payload::Json(bytes) | Payload::Raw { bytes, .. } => bytes.clone(),
        }
    }

    /// How many bytes are published.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty => 0,
            Payload::Json(bytes) | Payload::Raw { bytes, .. } => bytes.len(),
        }
    }

    /// The media type to publish with, if there is one.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        match self {
            Payload::Empty => None,
            Payload::Json(_) => Some("application/json"),
            Payload::Raw { content_type, .. } => content_type.as_deref(),
        }
    }
}
