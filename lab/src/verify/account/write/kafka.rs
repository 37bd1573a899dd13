//! Produces records of a Kafka topic, each once: <https://kafka.apache.org/documentation/#producerconfigs_retries>

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;

use super::{CREATE_TIMEOUT, Outgoing, SEND_TIMEOUT, Sent};
use crate::verify::account::read::kafka_client;
use crate::verify::{Door, Place};

/// Partitions of the topic: more than some campaigns have instances.
const PARTITIONS: i32 = 4;

/// Tells whether a record is in the topic.
struct Confirmations;

impl ClientContext for Confirmations {}

impl ProducerContext for Confirmations {
    type DeliveryOpaque = Box<oneshot::Sender<bool>>;

    fn delivery(&self, result: &DeliveryResult<'_>, confirmed: Self::DeliveryOpaque) {
        confirmed.send(result.is_ok()).ok();
    }
}

pub(super) struct Writer {
    producer: ThreadedProducer<Confirmations>,
    topic: String,
}

impl Writer {
    /// Creates the topic, whose records have the time that producers name.
    pub(super) async fn open(place: &Place, door: &Door) -> Result<Writer> {
        let mut config = kafka_client(place)?;
        let admin: AdminClient<DefaultClientContext> = config.create().context("a client of Kafka")?;
        let topic = NewTopic::new(&door.source, PARTITIONS, TopicReplication::Fixed(1));
        let created = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(CREATE_TIMEOUT))).await;
        for created in created.context("creating a topic")? {
            if let Err((name, error)) = created {
                bail!("creating the topic `{name}`: {error}");
            }
        }
        config
            // Without retries. Even with an idempotent producer, a retry may add the record a second time if the
            // broker was killed, and the door would read two messages.
            .set("message.send.max.retries", "0")
            .set("linger.ms", "0")
            .set("message.timeout.ms", SEND_TIMEOUT.as_millis().to_string());
        let producer = config.create_with_context(Confirmations).context("a producer of Kafka")?;
        Ok(Writer { producer, topic: door.source.clone() })
    }
}

#[async_trait]
impl super::Writer for Writer {
    async fn send(&self, message: Outgoing) -> Result<Sent> {
        let headers = message.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value.as_str()) })
        });
        let (confirmed, confirmation) = oneshot::channel();
        let record = BaseRecord::with_opaque_to(&self.topic, Box::new(confirmed))
            .key(&message.name)
            .payload(&message.payload)
            .timestamp(message.now)
            .headers(headers);
        self.producer.send(record).map_err(|(error, _)| error).context("producing a record")?;
        Ok(Sent { is_accepted: confirmation.await.unwrap_or(false), time: Some(message.now) })
    }
}
