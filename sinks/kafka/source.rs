//! Reads a topic as a member of a consumer group. <https://kafka.apache.org/documentation/#consumerconfigs>
//!
//! - A group without a committed offset begins at the earliest message. librdkafka commits what is acknowledged every
//!   200 ms, when partitions are revoked, and at the end. What was read and not committed is read again, by any instance.
//! - A thread polls the consumer all the time, so that it stays in its group while messages are processed. While the door takes
//!   no messages, the thread pauses the partitions.
//! - The time of a message is its timestamp: the producer's clock, or the broker's with `message.timestamp.type =
//!   LogAppendTime`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message as _, Timestamp};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use secrecy::ExposeSecret;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::context::{BrokerHealth, KafkaContext};
use super::producer::{on_thread, refusal};
use super::{Kafka, check_topic, verdict};
use crate::native::HeaderList;
use crate::networked::Broker;
use crate::source::{Incoming, Receipt, Source, SourceError, SourceOptions};
use crate::{Away, DestinationState, SinkConfig, SinkError};

/// How long a read waits for a message.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How long one poll waits for a message.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Partitions are paused once the door has taken no message for this time. A pause discards what was fetched.
const PAUSE_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of messages that wait to be taken, and of their bytes beyond the first.
const MAX_WAITING: usize = 1000;
const MAX_WAITING_BYTES: usize = 8 << 20;

/// How long all brokers may be unreachable before they are asked for the topic, and how often.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Properties of producers, which a consumer would only warn of.
const OF_PRODUCERS: [&str; 9] = [
    "acks",
    "enable.idempotence",
    "delivery.timeout.ms",
    "partitioner",
    "linger.ms",
    "batch.num.messages",
    "compression.type",
    "compression.codec",
    "queue.buffering.max.ms",
];

/// A topic, and a consumer group.
pub(crate) struct KafkaSource {
    kafka: Kafka,
    topic: String,
    client: ClientConfig,
    membership: tokio::sync::Mutex<Option<Membership>>,
    /// The consumer of that membership, for acknowledgements, which do not wait for messages.
    consumer: Mutex<Option<Arc<BaseConsumer<KafkaContext>>>>,
}

/// A consumer in its group.
struct Membership {
    waiting: mpsc::Receiver<Incoming>,
    shared: Arc<Shared>,
    /// Completes once the thread has left the group.
    ended: oneshot::Receiver<()>,
}

/// What the thread and the source share.
#[derive(Default)]
struct Shared {
    /// Bytes of the messages that wait to be taken.
    bytes: AtomicUsize,
    /// Whether to leave the group.
    stop: AtomicBool,
    /// Why nothing is read at the moment.
    trouble: Mutex<Option<SourceError>>,
}

/// The thread that polls.
struct Poller {
    consumer: Arc<BaseConsumer<KafkaContext>>,
    health: Arc<BrokerHealth>,
    topic: String,
    group: String,
    outbox: mpsc::Sender<Incoming>,
    shared: Arc<Shared>,
    /// Messages that do not fit into the outbox.
    held: VecDeque<Incoming>,
    /// Since when it is full.
    full: Option<Instant>,
    is_paused: bool,
    /// Whether the group is refused to this user. The library says so once; metadata of the topic tell nothing about it.
    is_refused: bool,
    asked: Option<Instant>,
}

impl ConsumerContext for KafkaContext {
    fn pre_rebalance(&self, _: &BaseConsumer<KafkaContext>, rebalance: &Rebalance<'_>) {
        let mut partitions = self.health.partitions.lock();
        match rebalance {
            Rebalance::Assign(list) => partitions.extend(list.elements().iter().map(|one| one.partition())),
            Rebalance::Revoke(list) => list.elements().iter().for_each(|one| _ = partitions.remove(&one.partition())),
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<KafkaContext>, rebalance: &Rebalance<'_>) {
        if matches!(rebalance, Rebalance::Assign(_)) {
            self.health.is_assigned.store(true, Ordering::Relaxed);
        }
    }
}

impl KafkaSource {
    /// Reads the options. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if `from` is no name of a topic, or the sink's options cannot be used.
    pub(crate) fn new(config: &SinkConfig, options: &SourceOptions) -> Result<KafkaSource, SinkError> {
        check_topic(&options.from).map_err(|detail| SinkError::option("from", detail))?;
        let kafka = Kafka::new(config)?;
        let mut client = kafka.settings.client.clone();
        for name in OF_PRODUCERS {
            client.remove(name);
        }
        for (name, value) in [
            ("auto.commit.interval.ms", "200"),
            ("auto.offset.reset", "earliest"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("session.timeout.ms", "10000"),
            ("queued.max.messages.kbytes", "16384"),
        ] {
            if !config.properties().contains_key(name) {
                client.set(name, value);
            }
        }
        // Only what is acknowledged may be committed.
        client.set("enable.auto.offset.store", "false").set("enable.auto.commit", "true");
        client.set("group.id", &options.group);
        Ok(KafkaSource {
            kafka,
            topic: options.from.clone(),
            client,
            membership: tokio::sync::Mutex::default(),
            consumer: Mutex::default(),
        })
    }

    /// Joins the group.
    async fn join(&self) -> Result<Membership, SourceError> {
        let (mut client, settings) = (self.client.clone(), Arc::clone(&self.kafka.settings));
        if let Some(password) = &self.kafka.password {
            client.set("sasl.password", password.for_login()?.expose_secret());
        }
        let (outbox, waiting) = mpsc::channel(MAX_WAITING);
        let (shared, health) = (Arc::<Shared>::default(), Arc::new(BrokerHealth::new()));
        let context = KafkaContext { health: Arc::clone(&health), settings: Arc::clone(&settings) };
        let topic = self.topic.clone();
        let made = on_thread(move || -> Result<BaseConsumer<KafkaContext>, KafkaError> {
            let consumer: BaseConsumer<KafkaContext> = client.create_with_context(context)?;
            consumer.subscribe(&[&topic])?;
            Ok(consumer)
        });
        let made = made.await.map_err(|_| Away::from("the client library did not finish".to_owned()))?;
        let consumer = Arc::new(made.map_err(|error| Away::from(refusal(error, &settings)))?);
        let poller = Poller {
            consumer: Arc::clone(&consumer),
            health,
            topic: self.topic.clone(),
            group: self.client.get("group.id").unwrap_or_default().to_owned(),
            outbox,
            shared: Arc::clone(&shared),
            held: VecDeque::new(),
            full: None,
            is_paused: false,
            is_refused: false,
            asked: None,
        };
        *self.consumer.lock() = Some(consumer);
        let ended = on_thread(move || poller.run());
        Ok(Membership { waiting, shared, ended })
    }

    /// Commits, and leaves the group.
    async fn leave(&self, membership: Membership, deadline: Duration) {
        // The thread ends the consumer, which blocks.
        self.consumer.lock().take();
        membership.shared.stop.store(true, Ordering::Relaxed);
        // An error means that the thread has ended; a timeout, that it ends by itself later.
        drop(timeout(deadline, membership.ended).await);
    }
}

impl Membership {
    /// Takes up to `max` messages. Waits for the first one. Returns `None` once the thread has ended.
    async fn take(&mut self, max: usize) -> Option<Vec<Incoming>> {
        let mut taken = Vec::new();
        let Ok(first) = timeout(READ_TIMEOUT, self.waiting.recv()).await else { return Some(taken) };
        let mut next = Some(first?);
        while let Some(message) = next {
            self.shared.bytes.fetch_sub(size(&message), Ordering::Relaxed);
            taken.push(message);
            next = if taken.len() < max { self.waiting.try_recv().ok() } else { None };
        }
        Some(taken)
    }
}

impl Poller {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) && !self.outbox.is_closed() {
            self.hand_over();
            if self.held.is_empty() {
                // A partition that left while it was paused, and came back, is still paused.
                if self.health.is_assigned.swap(false, Ordering::Relaxed) || self.is_paused {
                    self.set_paused(false);
                }
                self.poll(POLL_TIMEOUT);
            } else if self.full.get_or_insert_with(Instant::now).elapsed() < PAUSE_AFTER {
                std::thread::sleep(Duration::from_millis(2));
            } else {
                // At each turn, because new partitions are not paused.
                self.set_paused(true);
                self.poll(POLL_TIMEOUT);
            }
            self.ask();
        }
        // What is acknowledged is committed before the group is left.
        if let Err(error) = self.consumer.commit_consumer_state(CommitMode::Sync)
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            tracing::debug!(%error, "the last offsets of a door are not committed");
        }
    }

    fn hand_over(&mut self) {
        while let Some(message) = self.held.pop_front() {
            let (bytes, waiting) = (size(&message), self.shared.bytes.load(Ordering::Relaxed));
            if waiting > 0 && waiting + bytes > MAX_WAITING_BYTES {
                return self.held.push_front(message);
            }
            // Before the send; otherwise the receiver could subtract it first.
            self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            if let Err(error) = self.outbox.try_send(message) {
                self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
                return self.held.push_front(error.into_inner());
            }
            self.full = None;
        }
    }

    fn set_paused(&mut self, pauses: bool) {
        self.is_paused = pauses;
        let set = self.consumer.assignment().and_then(|assigned| match pauses {
            true => self.consumer.pause(&assigned),
            false => self.consumer.resume(&assigned),
        });
        if let Err(error) = set {
            tracing::debug!(%error, pauses, "the partitions of a door are not paused or resumed");
        }
    }

    fn poll(&mut self, limit: Duration) {
        match self.consumer.poll(limit) {
            None => {}
            Some(Ok(message)) => {
                self.health.set_well();
                self.set_trouble(None);
                self.is_refused = false;
                let message = incoming(&message);
                self.held.push_back(message);
            }
            Some(Err(error)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                let trouble = match code {
                    // It polls again, and joins the group again.
                    RDKafkaErrorCode::PollExceeded => return,
                    RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::TopicAuthorizationFailed => {
                        SourceError::Missing(format!("the topic `{}`: {}", self.topic, verdict::detail(code)))
                    }
                    RDKafkaErrorCode::GroupAuthorizationFailed => {
                        SourceError::Missing(format!("the group `{}`: {}", self.group, verdict::detail(code)))
                    }
                    code => SourceError::Away(self.health.away().unwrap_or_else(|| verdict::detail(code).into())),
                };
                self.is_refused = code == RDKafkaErrorCode::GroupAuthorizationFailed;
                self.set_trouble(Some(trouble));
            }
        }
    }

    /// If all brokers seem unreachable, or there is another trouble, asks for the topic: without messages, nothing else tells
    /// that the trouble is over.
    fn ask(&mut self) {
        let overdue = self.health.overdue(PROBE_INTERVAL);
        if overdue {
            self.set_trouble(Some(SourceError::Away(self.health.away().unwrap_or_else(no_broker))));
        }
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= PROBE_INTERVAL);
        if !is_due || self.is_refused || self.shared.trouble.lock().is_none() {
            return;
        }
        self.asked = Some(Instant::now());
        let found = self.consumer.client().fetch_metadata(Some(&self.topic), PROBE_INTERVAL);
        if let Ok(metadata) = found
            && metadata.topics().iter().all(|topic| topic.error().is_none())
        {
            self.health.set_well();
            self.set_trouble(None);
        }
    }

    fn set_trouble(&self, trouble: Option<SourceError>) {
        *self.shared.trouble.lock() = trouble;
    }
}

fn no_broker() -> Away {
    "no broker can be reached".to_owned().into()
}

fn size(message: &Incoming) -> usize {
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    message.body.as_ref().map_or(0, Bytes::len) + message.key.as_ref().map_or(0, Bytes::len) + headers + 200
}

/// The headers of a message. The client library panics at a name that is not UTF-8; such a message has one header without a
/// valid name.
fn headers(message: &BorrowedMessage<'_>) -> Vec<(String, Option<Bytes>)> {
    let read = || {
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        headers.map(|header| (header.key.to_owned(), header.value.map(Bytes::copy_from_slice))).collect()
    };
    let invalid = || vec![(char::REPLACEMENT_CHARACTER.to_string(), Some(Bytes::new()))];
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|_| invalid())
}

fn incoming(message: &BorrowedMessage<'_>) -> Incoming {
    let time_ms = match message.timestamp() {
        Timestamp::NotAvailable => None,
        Timestamp::CreateTime(ms) | Timestamp::LogAppendTime(ms) => Some(ms).filter(|ms| *ms >= 0),
    };
    let (partition, offset) = (message.partition(), message.offset());
    let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
    let list = headers(message);
    Incoming {
        // Offsets begin anew if a topic is made again under its name.
        place: format!("{partition}-{offset}-{}", time_ms.unwrap_or_default()),
        time_ms,
        key: bytes(message.key()),
        body: bytes(message.payload()),
        headers: list.iter().map(|(name, value)| (name.clone(), value.clone().unwrap_or_default())).collect(),
        native: HeaderList::if_needed(Kafka::KIND, list),
        receipt: Receipt(format!("{partition} {offset}")),
        ..Incoming::default()
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let mut membership = self.membership.lock().await;
        let joined = match membership.take() {
            Some(joined) => membership.insert(joined),
            None => membership.insert(self.join().await?),
        };
        let Some(taken) = joined.take(max.max(1)).await else {
            if let Some(ended) = membership.take() {
                self.leave(ended, READ_TIMEOUT).await;
            }
            return Err(Away::from("the consumer has ended".to_owned()).into());
        };
        let trouble = joined.shared.trouble.lock().clone();
        match trouble {
            Some(trouble) if taken.is_empty() => {
                // The password may have changed.
                if let SourceError::Away(Away { cause: crate::Cause::LogIn, .. }) = trouble
                    && let Some(refused) = membership.take()
                {
                    self.leave(refused, READ_TIMEOUT).await;
                }
                Err(trouble)
            }
            _ => Ok(taken),
        }
    }

    fn has_another_reader(&self, Receipt(place): &Receipt) -> bool {
        let Some(consumer) = self.consumer.lock().clone() else { return false };
        let partition = place.split(' ').next().and_then(|partition| partition.parse().ok());
        partition.is_some_and(|partition| !consumer.context().health.partitions.lock().contains(&partition))
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError> {
        // The next offset of each partition: a batch is acknowledged as a whole.
        let mut next: BTreeMap<i32, i64> = BTreeMap::new();
        for Receipt(place) in receipts {
            let (partition, offset) = place.split_once(' ').unwrap_or_default();
            if let (Ok(partition), Ok(offset)) = (partition.parse(), offset.parse::<i64>()) {
                let next = next.entry(partition).or_default();
                *next = (*next).max(offset + 1);
            }
        }
        let Some(consumer) = self.consumer.lock().clone() else { return Ok(()) };
        for (partition, offset) in next {
            let mut list = TopicPartitionList::with_capacity(1);
            let stored = list
                .add_partition_offset(&self.topic, partition, Offset::Offset(offset))
                .and_then(|()| consumer.store_offsets(&list));
            // Another instance has the partition now, and reads its messages again.
            if let Err(error) = stored {
                tracing::debug!(%error, partition, "the offset of a door is not stored");
            }
        }
        Ok(())
    }

    async fn check(&self) -> Result<Vec<String>, SourceError> {
        let limit = self.kafka.peer().answer_timeout;
        let asked = timeout(limit, async {
            let producer = self.kafka.connect().await?;
            self.kafka.look_for(&producer, &self.topic, Instant::now() + limit).await
        });
        match asked.await.unwrap_or_else(|_| Err(self.kafka.peer().no_answer().into()))? {
            DestinationState::Exists => Ok(Vec::new()),
            DestinationState::Missing(_) | DestinationState::Unknown(_) => {
                let detail = format!("there is no topic `{}`, or this user may not describe it", self.topic);
                Err(SourceError::Missing(detail))
            }
        }
    }

    async fn close(&self, deadline: Duration) {
        if let Some(membership) = self.membership.lock().await.take() {
            self.leave(membership, deadline).await;
        }
        self.kafka.close(Instant::now() + deadline).await;
    }

    fn kind(&self) -> &'static str {
        Kafka::KIND
    }
}
