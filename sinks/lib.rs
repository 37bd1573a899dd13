//! Where messages go: the [`Sink`] trait, what it takes ([`Message`]) and what it answers ([`Outcome`]).
//!
//! A sink publishes batches and reports, message by message, what the system on the other side said of them. It knows
//! nothing of tasks, timelines or HTTP, decides nothing about retries, and never guesses: what was not answered is
//! [`Outcome::Retry`].

mod answers;
mod away;
mod config;
#[cfg(feature = "kafka")]
mod kafka;
mod link;
pub mod memory;
#[cfg(feature = "nats")]
mod nats;
mod networked;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
pub mod redis_access;
mod redis_streams;
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
pub use redis_access::RedisAccess;
pub use tls::Tls;

/// One message to publish: an occurrence of a task, ready for any sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The idempotency key, `<task id>:<due ms>`; the same for every copy of an occurrence.
    pub key: String,
    /// Id of the task (of a requeued occurrence its parent); travels as header `punctual-task`.
    pub task: String,
    /// The due in the key, in epoch milliseconds; travels as header `punctual-due`.
    pub due_ms: i64,
    /// Which publish of this claim it is, from 1; travels as header `punctual-attempt`.
    pub attempt: u32,
    /// Topic, subject, `exchange/routing-key` or stream inside the sink.
    pub destination: String,
    /// What Kafka partitions by; without it the task id.
    pub record_key: Option<String>,
    /// The task's own headers; none of the reserved names is among them.
    pub headers: Vec<(String, String)>,
    /// Media type of the payload; without it the payload is empty.
    pub content_type: Option<String>,
    /// The value, byte for byte.
    pub payload: Bytes,
}

impl Message {
    /// Whether it is a copy of one that is dead. What deduplicates by the key must tell the two apart: the message itself
    /// may come yet.
    #[must_use]
    pub fn is_dead_copy(&self) -> bool {
        self.headers.iter().any(|(name, _)| name == headers::DEAD_REASON)
    }

    /// Every header that travels with the message, in the order of the wire: `idempotency-key`, `punctual-task`,
    /// `punctual-due` (epoch milliseconds), `punctual-attempt`, the task's own, and `content-type` if there is one.
    ///
    /// A sink that has a place of its own for the key or the content type leaves that header out.
    pub fn all_headers(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let standard = [
            (headers::KEY, Cow::Borrowed(self.key.as_str())),
            (headers::TASK, Cow::Borrowed(self.task.as_str())),
            (headers::DUE, Cow::Owned(self.due_ms.to_string())),
            (headers::ATTEMPT, Cow::Owned(self.attempt.to_string())),
        ];
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str())));
        let content_type = self.content_type.iter().map(|value| (headers::CONTENT_TYPE, Cow::Borrowed(value.as_str())));
        standard.into_iter().chain(own).chain(content_type)
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
    /// Which publish of its claim it is, from 1.
    pub const ATTEMPT: &str = "punctual-attempt";
    /// The media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
    /// Why the message is dead: it is a copy, which no broker may take for the message itself.
    pub const DEAD_REASON: &str = "punctual-dead-reason";
    /// The broker's own words, of a copy.
    pub const DEAD_WORDS: &str = "punctual-dead-words";
}

/// What the sink said of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other side's own word that it has the message.
    Accepted,
    /// Not known to be accepted; the same message may be accepted later.
    Retry(Trouble),
    /// This message can never be accepted; the other side's own words.
    Reject(String),
}

/// Why a message was not known to be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Whose fault it is, as far as the answer tells.
    pub fault: Fault,
    /// Whether the answer proves that this publish did not take effect and never will.
    /// `false` for time-outs and lost connections: the message may have arrived.
    pub definite: bool,
    /// The other side's own words, or what was waited for in vain; never a secret.
    pub detail: String,
}

impl Trouble {
    /// A trouble that proves that the publish did not take effect and never will.
    pub fn definite(fault: Fault, detail: impl Into<String>) -> Trouble {
        Trouble { fault, definite: true, detail: detail.into() }
    }

    /// A trouble that leaves open whether the message arrived.
    pub fn open(fault: Fault, detail: impl Into<String>) -> Trouble {
        Trouble { fault, definite: false, detail: detail.into() }
    }
}

/// Whose fault a [`Trouble`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The answer does not tell: a time-out, a nack, a closed channel.
    Unclear,
    /// The destination: unknown, without a stream, unroutable, not authorised there.
    Destination,
    /// The whole sink: refused, closed, log-in refused, loading, out of memory.
    Sink,
}

/// A system that messages are published to.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Publishes a batch and yields `(index into the batch, outcome)`, each index at most once, as soon as it is known.
    ///
    /// # Contract
    /// What is unanswered when the stream ends, or when [`answer_timeout`](Sink::answer_timeout) has passed since the
    /// call, is to be taken as [`Outcome::Retry`] with [`Fault::Unclear`], not definite. The stream ends within
    /// `answer_timeout`. Nothing is sent before the stream is polled for the first time; a dropped stream hands nothing
    /// more to the client library, and what that holds already ends within `answer_timeout`. Messages to one
    /// destination are handed over in the order of the batch.
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)>;

    /// Whether the other side answers and would let us in. Writes nothing, ends within `answer_timeout`, and connects no
    /// more once the sink is closed.
    ///
    /// # Errors
    /// Says what was asked, of whom (without secrets), and what came back.
    async fn check(&self) -> Result<(), SinkError>;

    /// Flushes what is under way and closes; takes at most `deadline`. What is published afterwards is `Retry`.
    ///
    /// # Errors
    /// When the deadline passed before everything was flushed.
    async fn close(&self, deadline: Duration) -> Result<(), SinkError>;

    /// The longest time for which a publish can be without an answer; bounds what the client library may hold back.
    fn answer_timeout(&self) -> Duration;

    /// What kind of sink it is, `kafka`, `rabbitmq`, `nats`, `redis`, `stdout` or `memory`.
    fn kind(&self) -> &'static str;

    /// Whether it can do nothing with a message whose destination is empty.
    fn needs_destination(&self) -> bool {
        true
    }

    /// Looks whether a destination can be one of this kind of sink at all, without asking the other side. What passes
    /// may still be unknown there; what does not would be [`Outcome::Reject`] for every message.
    ///
    /// # Errors
    /// Says what is wrong with it, in words for whoever chose it.
    fn check_destination(&self, _destination: &str) -> Result<(), String> {
        Ok(())
    }
}

/// What can go wrong with a sink as a whole.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// An option cannot be used.
    #[error("{detail}")]
    Config {
        /// Its name in the sink's section: `url`, `credentials_file`, `properties.acks`.
        option: String,
        /// Why; never a secret.
        detail: String,
    },
    /// There is no connection that takes messages. The text names the address, never a secret.
    #[error("{} the sink at `{address}`: {away}", match away.cause {
        Cause::Unreachable => "cannot reach",
        Cause::LogIn => "cannot log in to",
        Cause::Untrusted => "cannot trust",
        Cause::Refused => "nothing is taken by",
    })]
    Away {
        /// Host and port, without user or password.
        address: String,
        /// Why, and what came back.
        away: Away,
    },
    /// A deadline passed.
    #[error("{doing} took longer than {limit:?}")]
    Timeout {
        /// What was being done.
        doing: &'static str,
        /// The limit that passed.
        limit: Duration,
    },
}

impl SinkError {
    /// The URL cannot be used.
    pub(crate) fn url(detail: impl Into<String>) -> SinkError {
        SinkError::option("url", detail)
    }

    /// An option beside the URL cannot be used.
    pub(crate) fn option(option: impl Into<String>, detail: impl Into<String>) -> SinkError {
        SinkError::Config { option: option.into(), detail: detail.into() }
    }
}
