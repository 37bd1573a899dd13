//! Reads Kafka topics from their first message on, without a group: <https://kafka.apache.org/documentation/>

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{Inlet, ReadHeaders};
use crate::verify::Place;

/// Partitions of each topic.
const PARTITIONS: i32 = 4;

/// How long a call may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Poll timeout before the brokers are asked whether there are more messages.
const POLL: Duration = Duration::from_millis(300);

/// The next offset by topic and partition.
type Places = BTreeMap<(String, i32), i64>;

/// Creates the topics; the broker stamps their messages.
pub(super) async fn attach(place: &Place, inlet: Arc<Inlet>) -> Result<()> {
    let mut config = client(place)?;
    config
        .set("group.id", "punctual-verify")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("fetch.wait.max.ms", "50");
    let admin: AdminClient<DefaultClientContext> = config.create().context("a client of Kafka")?;
    let names = place.read();
    let topics: Vec<NewTopic<'_>> = names
        .iter()
        .map(|name| {
            NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1))
                .set("message.timestamp.type", "LogAppendTime")
                .set("segment.bytes", "67108864")
                .set("retention.ms", "1800000")
        })
        .collect();
    let made = admin.create_topics(&topics, &AdminOptions::new().operation_timeout(Some(LIMIT))).await;
    for made in made.context("making topics")? {
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((name, error)) => anyhow::bail!("making the topic `{name}`: {error}"),
        }
    }
    let places: Places =
        names.iter().flat_map(|name| (0..PARTITIONS).map(move |partition| ((name.clone(), partition), 0))).collect();
    // The library polls and is dropped outside of the runtime.
    std::thread::Builder::new().name("verify-kafka".to_owned()).spawn(move || {
        let mut places = places;
        while !inlet.stop.is_cancelled() {
            if let Err(error) = read(&config, &mut places, &inlet) {
                inlet.unknown();
                tracing::debug!(%error, "Kafka cannot be read");
                std::thread::sleep(POLL);
            }
        }
    })?;
    Ok(())
}

/// How clients of the campaign reach Kafka.
pub(in crate::verify::account) fn client(place: &Place) -> Result<ClientConfig> {
    let url = place.url.expose_secret();
    let (_, brokers) = url.split_once("://").context("the address of Kafka")?;
    anyhow::ensure!(url.starts_with("kafka://") && !brokers.contains('@'), "Kafka is read without TLS and login only");
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers.trim_end_matches('/'))
        .set("broker.address.family", "v4")
        .set("reconnect.backoff.max.ms", "500")
        .set_log_level(RDKafkaLogLevel::Emerg);
    Ok(config)
}

fn read(config: &ClientConfig, places: &mut Places, inlet: &Inlet) -> KafkaResult<()> {
    let consumer: BaseConsumer = config.create()?;
    let mut assignment = TopicPartitionList::new();
    for ((topic, partition), next) in &*places {
        assignment.add_partition_offset(topic, *partition, Offset::Offset(*next))?;
    }
    consumer.assign(&assignment)?;
    while !inlet.stop.is_cancelled() {
        match consumer.poll(POLL) {
            Some(Ok(message)) => {
                let place = (message.topic().to_owned(), message.partition());
                let next = places.entry(place).or_default();
                if message.offset() < *next {
                    continue;
                }
                *next = message.offset() + 1;
                let header = |name: &str| {
                    let mut all = message.headers().into_iter().flat_map(|headers| headers.iter());
                    all.find(|header| header.key == name)?.value.map(String::from_utf8_lossy)
                };
                let (key, trace, rejected) =
                    (header("idempotency-key"), header("traceparent"), header("punctual-rejected"));
                let headers =
                    ReadHeaders { key: key.as_deref(), trace: trace.as_deref(), rejected: rejected.as_deref() };
                let payload = message.payload().unwrap_or_default();
                inlet.take(message.topic(), headers, payload, message.timestamp().to_millis(), false);
            }
            Some(Err(error)) => {
                // It reconnects by itself.
                inlet.unknown();
                tracing::debug!(%error, "Kafka cannot be read");
            }
            None => {
                let began = Instant::now();
                match all_read(&consumer, places) {
                    Ok(true) => inlet.nothing_more(began),
                    Ok(false) | Err(_) => inlet.unknown(),
                }
            }
        }
    }
    Ok(())
}

/// Whether all messages in the brokers were read.
fn all_read(consumer: &BaseConsumer, places: &Places) -> KafkaResult<bool> {
    for ((topic, partition), next) in places {
        let (_, end) = consumer.fetch_watermarks(topic, *partition, Duration::from_secs(1))?;
        if end > *next {
            return Ok(false);
        }
    }
    Ok(true)
}
