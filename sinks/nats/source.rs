//! Reads a stream by a pull consumer of JetStream. <https://docs.nats.io/nats-concepts/jetstream/consumers>
//!
//! - Stream and consumer exist already; the consumer is durable, has no delivery subject and acknowledges each message. A
//!   message that is not acknowledged comes again after the consumer's `ack_wait`, to any instance.
//! - A message that this door has read comes again, too, if its batch takes longer than `ack_wait`. It is left out then,
//!   because it would take effect after messages that were sent later.
//! - The place of a message is its number in the stream and the time at which the stream stored it, which is also its time.
//! - An acknowledgement may be lost with its connection; the message then comes again, and changes nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{HeaderMap, StatusCode, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::inbox::{NatsConnection, NatsReply};
use super::read_messages::ReadMessages;
use super::{Nats, request};
use crate::link::Connection as _;
use crate::native::HeaderList;
use crate::networked::Broker;
use crate::source::{Incoming, Receipt, Source, SourceError, SourceOptions};
use crate::{Away, SinkConfig, SinkError};

/// How long a pull waits for messages at the server.
const PULL_TIMEOUT: Duration = Duration::from_secs(1);

/// How much longer a pull may take until the server reports that no messages arrived.
const PULL_MARGIN: Duration = Duration::from_millis(500);

/// How long a read that has messages waits for the next one of its pull. The server sends them one by one, and small reads
/// would cost the timeline and the server more calls.
const GATHER_PAUSE: Duration = Duration::from_millis(1);

/// Maximum time from the first message of a read to its end.
const MAX_GATHER_TIME: Duration = Duration::from_millis(10);

/// Maximum number of bytes of one read, beyond the first message.
const MAX_READ_BYTES: usize = 8 << 20;

/// Maximum number of bytes of one pull. No message may be larger.
const MAX_PULL_BYTES: usize = 64 << 20;

/// A consumer that waits less for an acknowledgement sends messages again in a short outage.
const MIN_ACK_WAIT: Duration = Duration::from_secs(10);

/// A stream and its consumer.
pub(crate) struct NatsSource {
    nats: Nats,
    stream: String,
    consumer: String,
    /// How many messages a read may return.
    batch: usize,
    reading: tokio::sync::Mutex<Option<Pulling>>,
    /// For the connection in `reading`. Acknowledgements use it, so that they do not wait for a read.
    acknowledging: Mutex<Option<Acknowledging>>,
    /// Number of connections so far.
    connections: AtomicU64,
}

/// What acknowledgements need.
struct Acknowledging {
    client: async_nats::Client,
    /// The number of its connection.
    number: u64,
    messages: ReadMessages,
}

/// A connection with an inbox for the messages of pulls.
struct Pulling {
    connection: NatsConnection,
    /// Its number.
    number: u64,
    inbox: Subject,
    messages: async_nats::Subscriber,
    /// How many messages the last pull may still bring.
    expected: usize,
}

impl NatsSource {
    /// Reads the options. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if `from` does not name stream and consumer, or the sink's options cannot be used.
    pub(crate) fn new(config: &SinkConfig, options: &SourceOptions) -> Result<NatsSource, SinkError> {
        let is_name =
            |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c));
        let Some((stream, consumer)) =
            options.from.split_once('/').filter(|(one, other)| is_name(one) && is_name(other))
        else {
            return Err(SinkError::option("from", "a stream and its consumer are expected: `STREAM/CONSUMER`"));
        };
        Ok(NatsSource {
            nats: Nats::new(config)?,
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            batch: options.batch,
            reading: tokio::sync::Mutex::default(),
            acknowledging: Mutex::default(),
            connections: AtomicU64::new(0),
        })
    }

    fn pull_subject(&self) -> String {
        format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.consumer)
    }

    async fn open(&self) -> Result<Pulling, SourceError> {
        let peer = self.nats.peer();
        let connection = self.nats.connect().await.map_err(|away| peer.not_connected(away))?;
        self.look(&connection).await?;
        let inbox = Subject::from(connection.client.new_inbox());
        let messages =
            connection.client.subscribe(inbox.clone()).await.map_err(|error| Away::from(error.to_string()))?;
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let client = connection.client.clone();
        *self.acknowledging.lock() = Some(Acknowledging { client, number, messages: ReadMessages::default() });
        Ok(Pulling { connection, number, inbox, messages, expected: 0 })
    }

    /// Checks that this user may pull, and that the consumer exists and can be used, if the user may ask for it. Returns
    /// what of its settings may lose messages or delay them.
    async fn look(&self, connection: &NatsConnection) -> Result<Vec<String>, SourceError> {
        let (stream, consumer) = (&self.stream, &self.consumer);
        let ask = async |subject: String, payload: &'static str| {
            let asked = timeout(self.nats.peer().answer_timeout, request(connection, subject, payload.into())).await;
            asked.unwrap_or_else(|_| Err(self.nats.peer().no_answer().into()))
        };
        let answer = ask(format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"), "").await?;
        let warnings = match &answer {
            NatsReply::Message(_, message) => self.check_consumer(message)?,
            NatsReply::Denied(..) => Vec::new(),
        };
        // A pull that is no JSON takes no message. A denied one has no other answer than this, and one for a consumer that
        // does not exist has none at all.
        match ask(self.pull_subject(), "{").await? {
            NatsReply::Denied(_, detail) => Err(SourceError::Missing(detail)),
            NatsReply::Message(..) => Ok(warnings),
        }
    }

    /// Checks what the server says of the consumer.
    fn check_consumer(&self, message: &async_nats::Message) -> Result<Vec<String>, SourceError> {
        let (stream, consumer) = (&self.stream, &self.consumer);
        let missing = |detail: String| Err(SourceError::Missing(detail));
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return missing("JetStream is not enabled".to_owned());
        }
        let info: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        if let Some(detail) = info["error"]["description"].as_str() {
            return missing(format!("`{stream}/{consumer}`: {detail}"));
        }
        let config = &info["config"];
        if config["deliver_subject"].is_string() {
            return missing(format!("the consumer `{consumer}` pushes; a door needs one that is pulled"));
        }
        if config["ack_policy"] != "explicit" {
            return missing(format!("the consumer `{consumer}` needs `ack_policy` explicit"));
        }
        Ok(warnings(config, self.batch))
    }
}

/// What of a consumer's settings may lose messages, or delay them. Its `max_deliver` and `max_ack_pending` are -1 if they have
/// no limit, and its `ack_wait` is in nanoseconds.
fn warnings(config: &Value, batch: usize) -> Vec<String> {
    let number = |name: &str| config[name].as_i64();
    let max_deliver = number("max_deliver").filter(|max| *max > 0).map(|max| {
        format!("JetStream drops a message after {max} deliveries, for example in an outage of Redis: set `max_deliver` to -1")
    });
    let ack_wait = number("ack_wait").map(|nanos| Duration::from_nanos(nanos.unsigned_abs()));
    let ack_wait = ack_wait.filter(|wait| *wait < MIN_ACK_WAIT).map(|wait| {
        format!(
            "`ack_wait` is {wait:?}: in a short outage messages already come again; at least {MIN_ACK_WAIT:?} are better"
        )
    });
    let is_below = |max: &i64| usize::try_from(*max).is_ok_and(|max| max > 0 && max < batch);
    let max_ack_pending = number("max_ack_pending").filter(is_below).map(|max| {
        format!("`max_ack_pending` is {max}, and the door reads up to {batch} messages at once: it waits for its own acknowledgements")
    });
    max_deliver.into_iter().chain(ack_wait).chain(max_ack_pending).collect()
}

impl Pulling {
    /// Takes up to `max` messages. Waits for the first one.
    async fn take(&mut self, max: usize, subject: &str) -> Result<Vec<Incoming>, SourceError> {
        if self.expected == 0 {
            let (expires, max_bytes) = (PULL_TIMEOUT.as_nanos(), MAX_PULL_BYTES);
            let pull = serde_json::json!({ "batch": max, "expires": expires, "max_bytes": max_bytes }).to_string();
            let pulled = self.connection.client.publish_with_reply(subject.to_owned(), self.inbox.clone(), pull.into());
            pulled.await.map_err(|error| Away::from(error.to_string()))?;
            self.expected = max;
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let mut next = timeout(PULL_TIMEOUT + PULL_MARGIN, self.messages.next()).await.ok();
        if next.is_none() {
            // The answer of the pull was lost.
            self.expected = 0;
        }
        let end = Instant::now() + MAX_GATHER_TIME;
        while let Some(arrived) = next {
            if !self.connection.alive() {
                return Err(Away::from(self.connection.end_words()).into());
            }
            let Some(message) = arrived else { return Err(Away::from(self.connection.end_words()).into()) };
            match message.status {
                None => {
                    self.expected = self.expected.saturating_sub(1);
                    bytes += message.payload.len();
                    taken.extend(incoming(message, self.number));
                }
                Some(StatusCode::IDLE_HEARTBEAT) => {}
                // No messages, or not all that were asked for, within the time of the pull.
                Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => self.expected = 0,
                Some(status) => {
                    self.expected = 0;
                    let detail = message.description.unwrap_or_else(|| "no such consumer".to_owned());
                    return Err(SourceError::Missing(format!("the pull is answered {status}: {detail}")));
                }
            }
            let is_full = taken.len() >= max || bytes >= MAX_READ_BYTES || self.expected == 0;
            if is_full {
                break;
            }
            let until = end.min(Instant::now() + GATHER_PAUSE);
            next = timeout_at(until, self.messages.next()).await.ok();
        }
        Ok(taken)
    }
}

/// A message of the stream; `None` if its reply subject does not say which one it is.
fn incoming(message: async_nats::Message, connection: u64) -> Option<Incoming> {
    let reply = message.reply.unwrap_or_else(|| Subject::from_static(""));
    let Some((sequence, time_ms)) = place(reply.as_str()) else {
        tracing::warn!(reply = reply.as_str(), "a message of a door cannot be acknowledged, and is left out");
        return None;
    };
    let headers = message.headers.iter().flat_map(HeaderMap::iter);
    let values = headers.flat_map(|(name, values)| {
        values.iter().map(move |value| (name.to_string(), Bytes::copy_from_slice(value.as_str().as_bytes())))
    });
    let headers: Vec<(String, Bytes)> = values.collect();
    let list = headers.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    Some(Incoming {
        place: format!("{sequence}-{time_ms}"),
        time_ms: Some(time_ms),
        headers,
        native: HeaderList::if_needed(Nats::KIND, list),
        body: Some(message.payload),
        receipt: Receipt(format!("{connection} {sequence}-{time_ms} {reply}")),
        ..Incoming::default()
    })
}

/// The place of a message that this connection has read, and the subject for its acknowledgement.
fn read_receipt(Receipt(text): &Receipt, connection: u64) -> Option<(&str, &str)> {
    let (number, rest) = text.split_once(' ')?;
    (number.parse() == Ok(connection)).then(|| rest.split_once(' '))?
}

/// Number in the stream and time of a message, from the subject for its acknowledgement:
/// `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<number>.<number at the consumer>.<nanoseconds>.<pending>`.
fn place(reply: &str) -> Option<(u64, i64)> {
    let tokens: Vec<&str> = reply.split('.').collect();
    let stream = if tokens.len() >= 11 { 4 } else { 2 };
    let nanos: i64 = tokens.get(stream + 5)?.parse().ok()?;
    // Up, so that nothing is early.
    let time_ms = nanos.div_euclid(1_000_000) + i64::from(nanos.rem_euclid(1_000_000) > 0);
    Some((tokens.get(stream + 3)?.parse().ok()?, time_ms))
}

#[async_trait]
impl Source for NatsSource {
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let mut reading = self.reading.lock().await;
        // Without a client, an acknowledgement has failed. What was not acknowledged comes again, to a new inbox.
        let former = reading.take().filter(|_| self.acknowledging.lock().is_some());
        let pulling = match former {
            Some(pulling) => reading.insert(pulling),
            None => reading.insert(self.open().await?),
        };
        if pulling.expected == 0
            && let Some(used) = &mut *self.acknowledging.lock()
        {
            used.messages.begin_pull();
        }
        let taken = pulling.take(max.max(1), &self.pull_subject()).await;
        if !pulling.connection.alive() || matches!(taken, Err(SourceError::Away(_))) {
            *reading = None;
            self.acknowledging.lock().take();
        }
        let mut taken = taken?;
        if let Some(Acknowledging { messages, .. }) = &mut *self.acknowledging.lock() {
            taken.retain(|message| messages.add(&message.place));
        }
        Ok(taken)
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError> {
        // Messages of an earlier connection come again anyway; with a later one acknowledged, they would come out of order.
        let used = self.acknowledging.lock().as_ref().map(|used| (used.number, used.client.clone()));
        let Some((number, client)) = used else { return Ok(()) };
        let (places, mut subjects): (Vec<&str>, Vec<String>) = receipts
            .iter()
            .filter_map(|receipt| read_receipt(receipt, number))
            .map(|(place, subject)| (place, subject.to_owned()))
            .unzip();
        let Some(last) = subjects.pop() else { return Ok(()) };
        let sent = async {
            for subject in subjects {
                client.publish(subject, Bytes::new()).await.map_err(|error| error.to_string())?;
            }
            // The server answers the last one, and reads all in their order.
            client.request(last, Bytes::new()).await.map(drop).map_err(|error| error.to_string())
        };
        match timeout(self.nats.peer().answer_timeout, sent).await {
            Ok(Ok(())) => {
                if let Some(used) = self.acknowledging.lock().as_mut().filter(|used| used.number == number) {
                    places.iter().for_each(|place| used.messages.acknowledge(place));
                }
                Ok(())
            }
            Ok(Err(error)) => {
                tracing::debug!(error, "messages of a door are not acknowledged");
                self.acknowledging.lock().take_if(|used| used.number == number);
                Ok(())
            }
            Err(_) => {
                let detail =
                    "the server does not answer acknowledgements; this user may need the right to publish to $JS.ACK.>";
                Err(SourceError::Missing(detail.to_owned()))
            }
        }
    }

    async fn check(&self) -> Result<Vec<String>, SourceError> {
        let peer = self.nats.peer();
        let connected = timeout(peer.answer_timeout, self.nats.connect()).await;
        let connection = connected.unwrap_or_else(|_| Err(peer.no_answer().into()))?;
        self.look(&connection).await
    }

    async fn close(&self, deadline: Duration) {
        let pulling = self.reading.lock().await.take();
        self.acknowledging.lock().take();
        if let Some(pulling) = pulling {
            // The acknowledgements are sent before the end.
            drop(timeout(deadline, pulling.connection.client.flush()).await);
        }
        self.nats.close(Instant::now() + deadline).await;
    }

    fn kind(&self) -> &'static str {
        Nats::KIND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_or_delay_messages_are_named() {
        let of = |config: Value| warnings(&config, 500);
        let unlimited = serde_json::json!({"max_deliver": -1, "ack_wait": 30_000_000_000_u64, "max_ack_pending": -1});
        assert_eq!((of(unlimited), of(Value::Null)), (Vec::new(), Vec::new()));
        let limited = serde_json::json!({"max_deliver": 5, "ack_wait": 2_000_000_000_u64, "max_ack_pending": 499});
        let starts = ["JetStream drops a message after 5 deliveries", "`ack_wait` is 2s", "`max_ack_pending` is 499"];
        let found = of(limited);
        assert!(found.len() == 3 && found.iter().zip(starts).all(|(one, start)| one.starts_with(start)), "{found:?}");
        let enough = serde_json::json!({"max_ack_pending": 500});
        assert_eq!(of(enough), Vec::<String>::new());
    }

    #[test]
    fn the_place_of_a_message_is_read_from_both_forms_of_its_reply_subject() {
        let short = "$JS.ACK.events.durable.3.100.7.1790230470084404000.42";
        assert_eq!(place(short), Some((100, 1_790_230_470_085)), "rounded up");
        let long = "$JS.ACK._.hash.events.durable.3.100.7.1790230470084000000.42";
        assert_eq!(place(long), Some((100, 1_790_230_470_084)));
        let longer = format!("{long}.token");
        assert_eq!(place(&longer), Some((100, 1_790_230_470_084)));
        for other in ["", "_INBOX.a", "$JS.ACK.events.durable.3.x.7.1790230470084404000.42"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
