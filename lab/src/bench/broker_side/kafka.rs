//! Kafka topics: <https://kafka.apache.org/documentation/>

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::{ANSWER_TIMEOUT, BrokerSide, Take};

/// Partitions of each topic.
const PARTITIONS: i32 = 4;

/// Poll timeout, after which the thread checks whether it is still needed; and how often leaders are asked for.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// A Kafka cluster with topics.
pub(super) struct Topics {
    config: ClientConfig,
    /// The consumer that reads watermarks and leaders.
    metadata_consumer: Arc<BaseConsumer>,
}

/// A key, and when its message arrived.
type Arrival = Result<(String, Instant), rdkafka::error::KafkaError>;

impl Topics {
    pub(super) fn open(url: &SecretString) -> Result<Topics> {
        let url = url.expose_secret();
        let brokers = url.strip_prefix("kafka://").filter(|brokers| !brokers.contains('@'));
        let brokers =
            brokers.context("the bench reads Kafka only without TLS and without a login: `kafka://host:9092`")?;
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers.trim_end_matches('/'))
            .set("group.id", "punctual-bench")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set_log_level(RDKafkaLogLevel::Emerg);
        let metadata_consumer = config.create().context("a client of Kafka")?;
        Ok(Topics { config, metadata_consumer: Arc::new(metadata_consumer) })
    }

    /// Waits until each partition has a leader: brokers learn of a topic a moment after it was made.
    async fn await_leaders(&self, topic: &str) -> Result<()> {
        loop {
            let (metadata_consumer, name) = (Arc::clone(&self.metadata_consumer), topic.to_owned());
            let metadata =
                tokio::task::spawn_blocking(move || metadata_consumer.fetch_metadata(Some(&name), ANSWER_TIMEOUT))
                    .await??;
            let partitions = metadata.topics().first().map_or(&[][..], |topic| topic.partitions());
            let led = partitions.iter().filter(|partition| partition.leader() >= 0).count();
            if i32::try_from(led)? == PARTITIONS {
                return Ok(());
            }
            sleep(POLL_TIMEOUT).await;
        }
    }
}

#[async_trait]
impl BrokerSide for Topics {
    async fn make(&self, destination: &str) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.config.create().context("a client of Kafka")?;
        let topic = NewTopic::new(destination, PARTITIONS, TopicReplication::Fixed(1));
        let made = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(ANSWER_TIMEOUT))).await;
        match made.context("making a topic")?.into_iter().next() {
            Some(Ok(_)) => {
                let led = timeout(ANSWER_TIMEOUT, self.await_leaders(destination)).await;
                led.with_context(|| format!("the topic `{destination}` has no leaders within {ANSWER_TIMEOUT:?}"))?
            }
            Some(Err((name, error))) => bail!("making the topic `{name}`: {error}"),
            None => bail!("Kafka does not say that the topic `{destination}` was made"),
        }
    }

    async fn make_source(&self, destination: &str) -> Result<String> {
        Ok(destination.to_owned())
    }

    async fn held(&self, destination: &str) -> Result<u64> {
        let (metadata_consumer, topic) = (Arc::clone(&self.metadata_consumer), destination.to_owned());
        let counted = tokio::task::spawn_blocking(move || {
            (0..PARTITIONS).try_fold(0, |sum, partition| {
                let (low, high) = metadata_consumer.fetch_watermarks(&topic, partition, ANSWER_TIMEOUT)?;
                Ok::<_, rdkafka::error::KafkaError>(sum + u64::try_from(high - low).unwrap_or(0))
            })
        });
        Ok(counted.await??)
    }

    async fn follow(&self, destination: &str, take: Take<'_>) -> Result<()> {
        let (arrivals_sender, mut arrivals) = mpsc::unbounded_channel();
        let (config, topic) = (self.config.clone(), destination.to_owned());
        // The library polls and is dropped outside of the runtime. The thread ends when no receiver is left.
        std::thread::Builder::new().name("bench-kafka".to_owned()).spawn(move || {
            if let Err(error) = read(&config, &topic, &arrivals_sender) {
                arrivals_sender.send(Err(error)).ok();
            }
        })?;
        while let Some(message) = arrivals.recv().await {
            let (key, at) = message.context("reading Kafka")?;
            take(&key, at);
        }
        bail!("the thread that reads Kafka has ended")
    }
}

fn read(
    config: &ClientConfig,
    topic: &str,
    arrivals_sender: &mpsc::UnboundedSender<Arrival>,
) -> rdkafka::error::KafkaResult<()> {
    let consumer: BaseConsumer = config.create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    while !arrivals_sender.is_closed() {
        let message = match consumer.poll(POLL_TIMEOUT) {
            None => continue,
            Some(message) => message?,
        };
        let at = Instant::now();
        let mut headers = message.headers().into_iter().flat_map(Headers::iter);
        let key = headers.find(|header| header.key == "idempotency-key").and_then(|header| header.value);
        let key = key.map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
        if arrivals_sender.send(Ok((key, at))).is_err() {
            break;
        }
    }
    Ok(())
}
