//! Reads a queue: `basic.consume` with acknowledgements. <https://www.rabbitmq.com/docs/confirms#consumer-acknowledgements>
//!
//! - The queue exists already. Messages that are not acknowledged come again, to any instance, when the connection ends.
//! - RabbitMQ gives messages neither a place nor a time. The place is a UUID of what the producer wrote: exchange, routing
//!   key, properties, headers and body. A message without the property `message_id` gets a random place, and becomes another
//!   task if it is read again.
//! - The time is the header `timestamp_in_ms`, which a server can set itself, or the end of the second in the property
//!   `timestamp`.
//! - Texts, numbers and booleans become headers as text. A header of another type is left out, unless its name begins
//!   with `punctual-`; the reader refuses such a header.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Consumer};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Rabbit;
use super::carry::MAX_TEXT_BYTES;
use super::connection::Failed;
use super::login::LoggedIn;
use super::native;
use super::refusal::{Blame, Refusal, blame};
use crate::native::NativeHeaders;
use crate::networked::Broker;
use crate::source::{Incoming, Receipt, Source, SourceError, SourceOptions};
use crate::{Away, SinkConfig, SinkError, headers};

/// How long a read waits for a message.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of bytes of one read, beyond the first message.
const MAX_READ_BYTES: usize = 8 << 20;

/// The beginning of the names of headers that doors read.
const OWN: &str = "punctual-";

/// The header with the time in ms.
const TIME: &str = "timestamp_in_ms";

/// A property `timestamp` from this one on is in ms: as seconds, it would be in the year 5138.
const MIN_MS: i64 = 100_000_000_000;

/// Maximum number of messages of one read. Twice as many may be unacknowledged. lapin holds all of them in memory.
const MAX_BATCH: usize = 128;

/// Headers that the server writes for this delivery.
pub(super) const OF_DELIVERY: [&str; 3] = [TIME, "x-delivery-count", "x-acquired-count"];

/// A queue.
pub(crate) struct RabbitSource {
    rabbit: Rabbit,
    queue: String,
    /// Maximum number of messages that are not acknowledged.
    prefetch: u16,
    reading: tokio::sync::Mutex<Option<Consumption>>,
    /// The channel of that consumption, for acknowledgements, which do not wait for messages.
    channel: Mutex<Option<(u64, lapin::Channel)>>,
    /// Number of connections so far.
    connections: AtomicU64,
}

/// A consumer on a connection of its own.
struct Consumption {
    consumer: Consumer,
    /// Its number: delivery tags of other connections mean other messages.
    number: u64,
    /// Dropping it ends the connection.
    _logged_in: LoggedIn,
}

impl RabbitSource {
    /// Reads the options. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if `from` is no name of a queue, or the URL cannot be used.
    pub(crate) fn new(config: &SinkConfig, options: &SourceOptions) -> Result<RabbitSource, SinkError> {
        if options.from.is_empty() || options.from.len() > MAX_TEXT_BYTES {
            return Err(SinkError::option("from", format!("a queue is expected: 1 to {MAX_TEXT_BYTES} bytes")));
        }
        Ok(RabbitSource {
            rabbit: Rabbit::new(config)?,
            queue: options.from.clone(),
            // One batch is read while another one is put.
            prefetch: 2 * u16::try_from(options.batch.clamp(1, MAX_BATCH)).unwrap_or(1),
            reading: tokio::sync::Mutex::default(),
            channel: Mutex::default(),
            connections: AtomicU64::new(0),
        })
    }

    async fn consume(&self) -> Result<Consumption, SourceError> {
        let peer = self.rabbit.peer();
        let logged_in = self.rabbit.login.connect(peer.answer_timeout / 2).await;
        let logged_in = logged_in.map_err(|away| peer.not_connected(away))?;
        let opened = timeout(peer.answer_timeout, async {
            let channel = logged_in.lapin.create_channel().await?;
            channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
            let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
            let consumer = channel.basic_consume(self.queue.as_str().into(), "".into(), options, table).await?;
            Ok::<_, lapin::Error>((channel, consumer))
        });
        let (channel, consumer) = match opened.await {
            Ok(opened) => opened.map_err(|error| failed(&error))?,
            Err(_) => return Err(Away::from(peer.no_answer()).into()),
        };
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        *self.channel.lock() = Some((number, channel));
        Ok(Consumption { consumer, number, _logged_in: logged_in })
    }
}

impl Consumption {
    /// Takes up to `max` messages. Waits for the first one, up to `READ_TIMEOUT`.
    ///
    /// # Errors
    /// Once the consumer has ended.
    async fn take(&mut self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let Ok(mut next) = timeout(READ_TIMEOUT, self.consumer.next()).await else { return Ok(taken) };
        loop {
            match next {
                Some(Ok(delivery)) => {
                    bytes += delivery.data.len();
                    taken.push(incoming(delivery, self.number));
                }
                Some(Err(error)) => return Err(failed(&error)),
                // The queue was deleted, or the connection has ended.
                None => return Err(Away::from("the server has ended the consumer".to_owned()).into()),
            }
            if taken.len() >= max || bytes >= MAX_READ_BYTES {
                return Ok(taken);
            }
            match self.consumer.next().now_or_never() {
                Some(more) => next = more,
                None => return Ok(taken),
            }
        }
    }
}

/// The meaning of an error.
fn failed(error: &lapin::Error) -> SourceError {
    match Refusal::of(error) {
        Some(refusal) if blame(refusal.code) == Blame::Destination => SourceError::Missing(refusal.to_string()),
        Some(refusal) => Away::from(refusal.to_string()).into(),
        None => Away::from(format!("the connection was lost: {error}")).into(),
    }
}

fn incoming(delivery: Delivery, connection: u64) -> Incoming {
    let Delivery { delivery_tag, exchange, routing_key, properties, data, .. } = delivery;
    let mut texts = Vec::new();
    for (name, value) in properties.headers().iter().flat_map(|table| table.inner()) {
        let name = name.as_str();
        // The property of the same meaning counts.
        let is_content_type = name.eq_ignore_ascii_case(headers::CONTENT_TYPE);
        if OF_DELIVERY.contains(&name) || is_content_type {
            continue;
        }
        match text(value) {
            Some(text) => texts.push((name.to_owned(), text)),
            // A value that cannot be text is refused by the reader.
            None if name.to_ascii_lowercase().starts_with(OWN) => texts.push((name.to_owned(), vec![0xff].into())),
            None => {}
        }
    }
    if let Some(content_type) = properties.content_type() {
        texts.push((headers::CONTENT_TYPE.to_owned(), Bytes::copy_from_slice(content_type.as_str().as_bytes())));
    }
    let (exchange, key) = (exchange.as_str().to_owned(), routing_key.as_str().to_owned());
    let kept = native::of(&properties);
    let place = place(&kept, &exchange, &key, &data);
    Incoming {
        is_place_random: kept.message_id().is_none(),
        place: place.to_string(),
        time_ms: time(&properties),
        key: None,
        body: Some(data.into()),
        headers: texts,
        native: Some(NativeHeaders::RabbitMq(Box::new(kept))),
        route: Some((exchange, key)),
        receipt: Receipt(format!("{connection} {delivery_tag}")),
    }
}

/// A scalar as text.
fn text(value: &AMQPValue) -> Option<Bytes> {
    let number = |number: String| Some(Bytes::from(number));
    match value {
        AMQPValue::LongString(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        AMQPValue::ShortString(text) => Some(Bytes::copy_from_slice(text.as_str().as_bytes())),
        AMQPValue::Boolean(truth) => number(truth.to_string()),
        AMQPValue::Float(float) => number(float.to_string()),
        AMQPValue::Double(double) => number(double.to_string()),
        whole => number(native::integer(whole)?.to_string()),
    }
}

/// When it was sent, in ms. A time in seconds counts as the end of its second, so that nothing is early. Some clients write ms
/// instead.
fn time(properties: &BasicProperties) -> Option<i64> {
    let stamped = properties.headers().as_ref().and_then(|table| native::integer(table.inner().get(TIME)?));
    let of_producer = |time: u64| match i64::try_from(time).ok()? {
        ms @ MIN_MS.. => Some(ms),
        seconds => Some(seconds * 1000 + 999),
    };
    stamped.or_else(|| of_producer((*properties.timestamp())?))
}

/// The place of a message: the same each time that it is read, if it has a `message_id`; otherwise random.
fn place(kept: &BasicProperties, exchange: &str, key: &str, body: &[u8]) -> uuid::Uuid {
    if kept.message_id().is_none() {
        return uuid::Uuid::now_v7();
    }
    let mut context = Context::new(&SHA256);
    for part in [exchange.as_bytes(), key.as_bytes(), &native::encode(kept), body] {
        // Each behind its length, so that no two lists of parts are the same bytes.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&context.finish().as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[async_trait]
impl Source for RabbitSource {
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let mut reading = self.reading.lock().await;
        let consumption = match reading.take() {
            Some(consumption) => reading.insert(consumption),
            None => reading.insert(self.consume().await?),
        };
        let taken = consumption.take(max.clamp(1, MAX_BATCH)).await;
        if taken.is_err() {
            *reading = None;
            self.channel.lock().take();
        }
        taken
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError> {
        let Some((number, channel)) = self.channel.lock().clone() else { return Ok(()) };
        // Messages of an earlier connection come again anyway.
        let tag = |Receipt(receipt): &Receipt| {
            let (of, tag) = receipt.split_once(' ')?;
            tag.parse::<u64>().ok().filter(|_| of == number.to_string())
        };
        let Some(last) = receipts.iter().filter_map(tag).max() else { return Ok(()) };
        if let Err(error) = channel.basic_ack(last, BasicAckOptions { multiple: true }).await {
            // The connection has ended, and the messages come again. The next read makes another connection.
            tracing::debug!(%error, "messages of a door are not acknowledged");
            self.channel.lock().take_if(|(of, _)| *of == number);
        }
        Ok(())
    }

    async fn check(&self) -> Result<Vec<String>, SourceError> {
        let limit = self.rabbit.peer().answer_timeout;
        let asked = timeout(limit, async {
            let connection = self.rabbit.connect().await?;
            Ok::<_, Away>(match connection.declare_queue_passively(&self.queue).await {
                // A user who may read a queue need not be allowed to declare it.
                Ok(()) | Err(Failed::Refused(Refusal { code: 403, .. })) => Ok(Vec::new()),
                Err(Failed::Refused(refusal)) => Err(SourceError::Missing(refusal.to_string())),
                Err(Failed::Lost) => Err(Away::from(connection.end_words()).into()),
            })
        });
        asked.await.unwrap_or_else(|_| Err(self.rabbit.peer().no_answer().into()))?
    }

    async fn close(&self, deadline: Duration) {
        let consumption = self.reading.lock().await.take();
        self.channel.lock().take();
        if let Some(Consumption { _logged_in: logged_in, .. }) = consumption {
            // The acknowledgements are sent before the close. A timeout ends the connection anyway.
            drop(timeout(deadline, logged_in.lapin.close(200, "done".into())).await);
        }
        self.rabbit.close(Instant::now() + deadline).await;
    }

    fn kind(&self) -> &'static str {
        Rabbit::KIND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(id: Option<&str>, timestamp: Option<u64>, headers: &[(&str, AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let properties = BasicProperties::default().with_headers(table);
        let properties = id.map_or(properties.clone(), |id| properties.with_message_id(id.into()));
        timestamp.map_or(properties.clone(), |time| properties.with_timestamp(time))
    }

    #[test]
    fn the_time_is_that_of_the_server_or_the_end_of_the_second_of_the_producer() {
        let stamped = ("timestamp_in_ms", AMQPValue::LongLongInt(1_795_262_400_123));
        assert_eq!(time(&properties(None, Some(1_795_262_400), &[stamped])), Some(1_795_262_400_123));
        assert_eq!(time(&properties(None, Some(1_795_262_400), &[])), Some(1_795_262_400_999));
        assert_eq!(time(&properties(None, None, &[])), None);
        assert_eq!(time(&properties(None, Some(1_795_262_400_123), &[])), Some(1_795_262_400_123));
        assert_eq!(time(&properties(None, Some(u64::MAX), &[])), None);
    }

    #[test]
    fn the_place_is_the_same_each_time_and_another_for_another_message() {
        let place = |id: Option<&str>, time: u64, delay: &str, key: &str, body: &[u8]| {
            let headers = [("x-delay", AMQPValue::LongString(delay.into()))];
            place(&properties(id, Some(time), &headers), "", key, body)
        };
        let first = place(Some("a"), 1, "15", "in", b"x");
        assert_eq!(place(Some("a"), 1, "15", "in", b"x"), first);
        for other in [
            place(Some("b"), 1, "15", "in", b"x"),
            place(Some("a"), 2, "15", "in", b"x"),
            place(Some("a"), 1, "16", "in", b"x"),
            place(Some("a"), 1, "15", "out", b"x"),
            place(Some("a"), 1, "15", "in", b"y"),
            place(None, 1, "15", "in", b"x"),
            place(None, 1, "15", "in", b"x"),
        ] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn a_message_that_a_quorum_queue_delivers_again_has_the_same_place() {
        let place = |deliveries: Option<i64>| {
            let count = deliveries.map(|count| ("x-delivery-count", AMQPValue::LongLongInt(count)));
            place(&native::of(&properties(Some("a"), Some(1), count.as_slice())), "", "in", b"x")
        };
        assert_eq!([place(None), place(Some(1)), place(Some(2))], [place(None); 3]);
    }

    #[test]
    fn scalars_become_text() {
        for (value, expected) in [
            (AMQPValue::LongString("a".into()), Some("a")),
            (AMQPValue::LongInt(-7), Some("-7")),
            (AMQPValue::LongUInt(7), Some("7")),
            (AMQPValue::Boolean(true), Some("true")),
            (AMQPValue::Double(1.5), Some("1.5")),
            (AMQPValue::Void, None),
            (AMQPValue::FieldTable(FieldTable::default()), None),
        ] {
            assert_eq!(text(&value).as_deref(), expected.map(str::as_bytes), "{value:?}");
        }
    }
}
