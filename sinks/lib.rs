//! The sinks: the [`Sink`] trait, its [`Message`] and its [`Outcome`]; and reading from the same brokers ([`source`]).
//!
//! A sink publishes batches and reports for each message what the broker answered. It knows nothing of tasks, timelines
//! or HTTP, and decides nothing about retries. It never guesses: a message without an answer is [`Outcome::Retry`].

mod allow_list;
mod answers;
mod away;
mod config;
#[cfg(feature = "kafka")]
mod kafka;
mod kinds;
mod link;
pub mod memory;
mod memory_source;
pub mod native;
#[cfg(feature = "nats")]
mod nats;
mod networked;
mod password;
mod patterns;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod recent_map;
pub mod redis_access;
mod redis_replies;
mod redis_streams;
pub mod source;
pub mod stdout;
mod target;
pub mod tls;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
mod window;

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

pub use away::{Away, Cause};
pub use config::SinkConfig;
pub use memory::MemorySink;
pub use memory_source::MemorySource;
pub use native::Native;
pub use password::Password;
pub use patterns::DestinationPatterns;
pub use recent_map::RecentMap;
pub use redis_access::RedisAccess;
pub use tls::Tls;

/// One message to publish: an occurrence of a task in the form that every sink understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The idempotency key, `<task id>:<due ms>`, which is the same for every publish of an occurrence.
    pub key: String,
    /// The id of the task (of a requeued occurrence: its original task). Sent as header `punctual-task`. Empty for the copy
    /// of a message that a door has rejected: it then has no headers about a task.
    pub task: String,
    /// The due in the key, in epoch milliseconds. Sent as header `punctual-due`.
    pub due_ms: i64,
    /// The number of this publish within its claim, from 1. Sent as header `punctual-attempt`.
    pub attempt: u32,
    /// Topic, subject, queue, `exchange/routing-key` or stream.
    pub destination: String,
    /// The key for Kafka's partitioner; the default is the task id.
    pub record_key: Option<String>,
    /// The headers of the task, which have none of the reserved names. A copy of a dead or rejected message also has
    /// headers that say why.
    pub headers: Vec<(String, String)>,
    /// More headers, which a sink of the same kind publishes and others omit.
    pub native: Option<Native>,
    /// Media type of the payload; `None` if there is no payload, or none was given for its bytes.
    pub content_type: Option<String>,
    /// The payload, byte for byte.
    pub payload: Bytes,
    /// Whether it has no value at all, which Kafka tells from an empty one. The payload is then empty.
    pub is_tombstone: bool,
}

impl Message {
    /// Whether this is a copy of a dead message. Deduplication must not mix the two up, because the message itself may
    /// be requeued.
    #[must_use]
    pub fn is_dead_copy(&self) -> bool {
        self.headers.iter().any(|(name, _)| name == headers::DEAD_REASON)
    }

    /// Number of bytes of the native headers.
    #[must_use]
    pub fn native_bytes(&self) -> usize {
        self.native.as_ref().map_or(0, |native| native.bytes.len())
    }

    /// All headers of the message in wire order: `idempotency-key`, `punctual-task`, `punctual-due` (epoch
    /// milliseconds), `punctual-attempt`, the task's own headers, and `content-type` if there is one.
    ///
    /// A sink that sends the key or the content type in another place omits that header.
    pub fn all_headers(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let standard = [
            (headers::KEY, Cow::Borrowed(self.key.as_str())),
            (headers::TASK, Cow::Borrowed(self.task.as_str())),
            (headers::DUE, Cow::Owned(self.due_ms.to_string())),
            (headers::ATTEMPT, Cow::Owned(self.attempt.to_string())),
        ];
        let of_task = !self.task.is_empty();
        let standard = standard.into_iter().filter(move |(name, _)| of_task || *name == headers::KEY);
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str())));
        let content_type = self.content_type.iter().map(|value| (headers::CONTENT_TYPE, Cow::Borrowed(value.as_str())));
        standard.chain(own).chain(content_type)
    }
}

/// Names of the headers that punctual adds.
pub mod headers {
    /// The idempotency key.
    pub const KEY: &str = "idempotency-key";
    /// The id of the task.
    pub const TASK: &str = "punctual-task";
    /// The due in the key, in epoch milliseconds.
    pub const DUE: &str = "punctual-due";
    /// The number of this publish within its claim, from 1.
    pub const ATTEMPT: &str = "punctual-attempt";
    /// The property `message_id` that the producer gave a message which a door read from RabbitMQ. In the published
    /// message that property holds the idempotency key.
    pub const MESSAGE_ID: &str = "punctual-message-id";
    /// The media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
    /// Why the message is dead. It marks a copy, which brokers must not treat as the message itself.
    pub const DEAD_REASON: &str = "punctual-dead-reason";
    /// The broker's error text; only in copies.
    pub const DEAD_DETAIL: &str = "punctual-dead-detail";
}

/// The result of publishing one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker confirmed that it has the message.
    Accepted,
    /// The broker confirmed that it has a message with this key, and dropped this one. Counts as accepted.
    Duplicate,
    /// Not known to be accepted. The same message may be accepted later.
    Retry(Trouble),
    /// The broker can never accept this message. Carries its error text.
    Reject(String),
}

/// Why a message is not known to be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The cause, as far as the answer tells.
    pub fault: Fault,
    /// Whether the answer proves that this publish did not take effect and never will. `false` for timeouts and lost
    /// connections: the message may have been delivered.
    pub definite: bool,
    /// The broker's error text, or which answer is missing; never a secret.
    pub detail: String,
}

impl Trouble {
    /// A trouble that proves that the publish did not take effect and never will.
    pub fn definite(fault: Fault, detail: impl Into<String>) -> Trouble {
        Trouble { fault, definite: true, detail: detail.into() }
    }

    /// A trouble after which the message may or may not have been delivered.
    pub fn open(fault: Fault, detail: impl Into<String>) -> Trouble {
        Trouble { fault, definite: false, detail: detail.into() }
    }
}

/// The cause of a [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Unknown: a refusal that no rule explains, a closed channel. The message itself may be the cause.
    Unclear,
    /// Unknown, because no answer arrived in time. The message itself may be the cause if others, sent later, were
    /// answered.
    Unanswered,
    /// The part of the destination that would take the message cannot take any at present: a partition without a leader
    /// or with too few replicas, a quota. The message is not the cause.
    Unavailable,
    /// The destination exists and takes no more messages at present: a full queue or stream, a nack. The message is not
    /// the cause.
    Refusing,
    /// The destination: it is unknown, unroutable, has no stream, or is not authorised. The message is not the cause.
    Destination,
    /// The whole sink: connection refused or closed, login refused, server loading or out of memory.
    Sink,
}

/// A system to publish messages to.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Publishes a batch. Yields `(index in the batch, outcome)` as soon as it is known, at most once per index.
    ///
    /// # Contract
    /// A message without an outcome when the stream ends, or once [`answer_timeout`](Sink::answer_timeout) has passed,
    /// counts as [`Outcome::Retry`] with [`Fault::Unanswered`], not definite. The stream ends within `answer_timeout`.
    /// Nothing is sent before the stream is first polled. Once it is dropped, no more messages are handed to the client
    /// library, and those that the library holds end within `answer_timeout`. Messages for one destination are handed
    /// over in the order of the batch.
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)>;

    /// Checks that the broker answers and accepts the login. Writes nothing, ends within `answer_timeout`, and does not
    /// connect once the sink is closed.
    ///
    /// # Errors
    /// Contains the request, the address (without secrets) and the answer.
    async fn check(&self) -> Result<(), SinkError>;

    /// Asks the broker whether it would accept messages for a destination. Publishes and writes nothing, and ends within
    /// `answer_timeout`.
    ///
    /// # Errors
    /// As for [`check`](Sink::check).
    async fn look_for(&self, _destination: &str) -> Result<DestinationState, SinkError> {
        Ok(DestinationState::Exists)
    }

    /// Waits for messages under way, then closes the sink; takes at most `deadline`. Messages that are published
    /// afterwards are `Retry`.
    ///
    /// # Errors
    /// If the deadline passed before all messages were answered.
    async fn close(&self, deadline: Duration) -> Result<(), SinkError>;

    /// The longest time that a publish may take. It also limits how long the client library holds a message.
    fn answer_timeout(&self) -> Duration;

    /// The kind of sink: `kafka`, `rabbitmq`, `nats`, `redis`, `stdout` or `memory`.
    fn kind(&self) -> &'static str;

    /// Whether every message needs a destination.
    fn needs_destination(&self) -> bool {
        true
    }

    /// Whether it can publish a message without a value: a tombstone of Kafka.
    fn takes_tombstones(&self) -> bool {
        false
    }

    /// Checks the form of a destination without asking the broker. A destination that passes may still be unknown to
    /// the broker. One that fails would be [`Outcome::Reject`] for every message.
    ///
    /// # Errors
    /// Explains what is wrong, for the user who chose it.
    fn check_destination(&self, _destination: &str) -> Result<(), String> {
        Ok(())
    }
}

/// What a broker says of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationState {
    /// It exists, or the first message makes it.
    Exists,
    /// Messages would be refused; the text says why.
    Missing(String),
    /// The broker does not tell; the text says why.
    Unknown(String),
}

/// An error of a whole sink.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// An option cannot be used.
    #[error("{detail}")]
    Config {
        /// Its name in the section of the sink: `url`, `credentials_file`, `properties.acks`.
        option: String,
        /// Why; never a secret.
        detail: String,
    },
    /// There is no usable connection. The text names the address, never a secret.
    #[error("{}", named(address, away))]
    Away {
        /// Host and port, without user or password.
        address: String,
        /// The cause, and the error text.
        away: Away,
    },
    /// A deadline has passed.
    #[error("{doing} took longer than {limit:?}")]
    Timeout {
        /// What was being done.
        doing: &'static str,
        /// The limit that passed.
        limit: Duration,
    },
}

/// The error text of a failed connection, with the address once.
fn named(address: &str, away: &Away) -> String {
    if away.detail.contains(address) {
        return away.detail.clone();
    }
    format!("{}the sink at `{address}`: {away}", away.cause.beginning())
}

impl SinkError {
    /// The URL cannot be used.
    pub(crate) fn url(detail: impl Into<String>) -> SinkError {
        SinkError::option("url", detail)
    }

    /// An option other than the URL cannot be used.
    pub(crate) fn option(option: impl Into<String>, detail: impl Into<String>) -> SinkError {
        SinkError::Config { option: option.into(), detail: detail.into() }
    }
}
