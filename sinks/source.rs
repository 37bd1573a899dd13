//! Reading from a broker: the [`Source`] trait and what it returns.
//!
//! A source reads messages in order, and reads them again until they are acknowledged. Like a sink, it knows nothing of
//! tasks, timelines or HTTP.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::Away;
use crate::native::NativeHeaders;

/// Where to read, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// What to read: a topic of Kafka, a queue of RabbitMQ, `stream/consumer` of JetStream, `stream/group` of Redis.
    pub from: String,
    /// Maximum number of messages of one read.
    pub batch: usize,
    /// The consumer group. Only for Kafka.
    pub group: String,
    /// Whether messages are deleted once they are acknowledged. Only for Redis Streams, which keep them otherwise.
    pub delete: bool,
}

/// A topic, queue or stream to read messages from.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Reads up to `max` messages, in the order of the source. Waits up to about a second for the first one, and returns
    /// none if none comes. Messages that were returned before and are not acknowledged may come again.
    ///
    /// Dropped before it returns, it may have read messages, which come again later.
    ///
    /// # Errors
    /// If nothing can be read at the moment. Call it again after a pause.
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError>;

    /// Acknowledges messages, so that they do not come again. After a lost connection they may come again although there was
    /// no error.
    ///
    /// # Errors
    /// If the broker did not take them. Call it again with the same receipts.
    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError>;

    /// Whether another reader has the message now. It reads the message, too, so a caller that has done nothing for it yet
    /// leaves it to that reader. `false` if that is not known.
    fn has_another_reader(&self, _receipt: &Receipt) -> bool {
        false
    }

    /// Checks that the broker answers and has what is to be read. Reads and writes nothing. Returns what of its settings
    /// may lose messages or delay them.
    ///
    /// # Errors
    /// What is missing.
    async fn check(&self) -> Result<Vec<String>, SourceError>;

    /// Ends its connections. Takes at most `deadline`.
    async fn close(&self, deadline: Duration);

    /// The kind of broker, as its sink names it.
    fn kind(&self) -> &'static str;
}

/// A message that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Incoming {
    /// Its place, which identifies it in the source: the id of an entry; partition, offset and time; number and time;
    /// or, for RabbitMQ, a UUID of what the producer wrote.
    pub place: String,
    /// Whether the place is another one when it is read again, because nothing in the message tells it from others.
    pub is_place_random: bool,
    /// When it was sent, in epoch milliseconds; `None` if the broker does not tell.
    pub time_ms: Option<i64>,
    /// The record key of Kafka.
    pub key: Option<Bytes>,
    /// Its body; `None` if it has no value at all.
    pub body: Option<Bytes>,
    /// Its headers as text, in order.
    pub headers: Vec<(String, Bytes)>,
    /// All headers, if they say more than their text.
    pub native: Option<NativeHeaders>,
    /// Exchange and routing key that it was sent to; only for RabbitMQ.
    pub route: Option<(String, String)>,
    /// To acknowledge it with.
    pub receipt: Receipt,
}

/// What a source needs to acknowledge a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt(pub(crate) String);

/// Why a source cannot be read at the moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// There is no usable connection.
    #[error("{0}")]
    Away(Away),
    /// The broker has no such topic, queue, stream or group, or does not let this user read it.
    #[error("{0}")]
    Missing(String),
}

impl From<Away> for SourceError {
    fn from(away: Away) -> SourceError {
        SourceError::Away(away)
    }
}
