//! The Kafka sink: publishes with librdkafka. <https://kafka.apache.org/protocol>
//!
//! - The idempotency key travels as header `idempotency-key`. The record key is the message's own, or the id of the
//!   task. The partition follows from it as in Java's clients (murmur2).
//! - A message is accepted when its delivery report says so: all in-sync replicas have it. It is rejected when its
//!   destination cannot be a topic, when its native headers cannot be decoded, when it is over the client's
//!   `message.max.bytes`, or when it is refused as too large or invalid while alone in its record batch. Every other
//!   outcome is `Retry`. An unknown topic, or one without permission to write, is the destination's fault.
//! - Kafka refuses whole record batches. A message that was refused with others is sent again alone, by a second
//!   producer with one message per batch.
//! - The producer is idempotent: messages that librdkafka sends again arrive once and in order. The second producer is
//!   not, because after each refusal it would wait for all messages under way. Its retries can be duplicated and out of
//!   order. A message that punctual publishes again is a new message to Kafka, so consumers must drop it by its key.
//! - librdkafka's memory is bounded, and one topic gets at most a quarter of it. No message stays there for longer than
//!   the answer timeout: librdkafka gives up earlier, and a publish hands over no message that it might still send
//!   later. With an answer timeout below 7 s it might; messages left over are then purged with the producer.
//! - librdkafka never forgets a topic, and each costs some kB until the producer ends. So it gets messages only for
//!   topics that the brokers list (`topics`), unless it may create them.

mod context;
mod producer;
mod round;
mod settings;
pub(crate) mod source;
mod topics;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use producer::Producer;
use rdkafka::ClientConfig;
use round::{PublishRound, PublishTimeouts};
use secrecy::ExposeSecret;
use settings::Settings;
use tokio::time::{Instant, timeout_at};
use topics::Topics;

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{Connection as _, SharedConnection};
use crate::native::HeaderList;
use crate::networked::{Broker, Peer};
use crate::window::Window;
use crate::{Away, DestinationState, Fault, Message, Outcome, Password, SinkError};

/// The window of librdkafka: 8 Ki messages and 8 MiB. A quarter, the share of one destination, is about 20 ms of a
/// broker's work. Other destinations wait that long behind it, because the requests of a connection are answered in
/// order.
const WINDOW_UNITS: usize = 8 << 10;
const UNIT_BYTES: usize = 1 << 10;

/// A Kafka cluster.
pub(crate) struct Kafka {
    settings: Arc<Settings>,
    peer: Peer,
    window: Window,
    /// The second producer, which puts each message into a batch of its own.
    alone: SharedConnection<Producer>,
    topics: Topics,
    /// The topic for metadata requests.
    metadata_topic: Mutex<Option<String>>,
    /// The password of the user in the URL, unless a property sets one.
    password: Option<Password>,
}

impl Kafka {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the URL has a path or only half a login, or a property cannot be used.
    pub(crate) fn new(config: &SinkConfig) -> Result<Kafka, SinkError> {
        let settings = Settings::new(config)?;
        for client in [settings.client.clone(), settings.alone()] {
            let refused = |detail: String| {
                // An error about several properties names those that it means.
                let named = config.properties().keys().find(|name| detail.contains(&format!("`{name}`")));
                let option = named.map_or("url".to_owned(), |name| format!("properties.{name}"));
                SinkError::option(option, format!("the client library of Kafka refuses its settings: {detail}"))
            };
            Producer::try_out(client, &settings).map_err(refused)?;
        }
        let of_url = !config.properties().contains_key("sasl.password");
        let password = config.target().password.clone().filter(|_| of_url);
        Ok(Kafka {
            settings: Arc::new(settings),
            peer: Peer::new(config),
            window: Window::new(WINDOW_UNITS, UNIT_BYTES),
            alone: SharedConnection::new(),
            topics: Topics::default(),
            metadata_topic: Mutex::default(),
            password,
        })
    }

    /// The second producer.
    async fn producer_alone(&self) -> Result<Arc<Producer>, Away> {
        let connect = || async {
            let connected = self.connect_with(self.settings.alone()).await;
            connected.map_err(|away| self.peer.not_connected(away))
        };
        let producer = self.alone.get(connect()).await?;
        if self.check_or_end(&producer).await { Ok(producer) } else { self.alone.get(connect()).await }
    }

    async fn connect_with(&self, mut client: ClientConfig) -> Result<Producer, Away> {
        if let Some(password) = &self.password {
            client.set("sasl.password", password.for_login()?.expose_secret());
        }
        let answer_timeout = self.peer.answer_timeout;
        // Long enough for a broker that only closed an idle connection to be back.
        let reconnect_time = (answer_timeout / 4).min(Duration::from_secs(1));
        Producer::connect(client, Arc::clone(&self.settings), self.metadata_topic(), reconnect_time, answer_timeout / 2)
            .await
    }

    /// The topic for metadata requests: the one that was last published to.
    fn metadata_topic(&self) -> Option<String> {
        self.metadata_topic.lock().clone()
    }

    /// Makes it the topic for metadata requests.
    fn set_metadata_topic(&self, topic: &str) {
        let mut current = self.metadata_topic.lock();
        if current.as_deref() != Some(topic) {
            *current = Some(topic.to_owned());
        }
    }
}

#[async_trait]
impl Broker for Kafka {
    type Connection = Producer;

    const KIND: &'static str = "kafka";

    const TAKES_TOMBSTONES: bool = true;

    // librdkafka may have connected, and only the reply to the next request may be missing.
    const UNCONNECTED: Fault = Fault::Unanswered;

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_topic(destination)
    }

    async fn connect(&self) -> Result<Producer, Away> {
        self.connect_with(self.settings.client.clone()).await
    }

    /// Rejects destinations that cannot be topics, even without a connection. Before the first publish, the first valid one
    /// becomes the topic for metadata requests.
    fn prepare(&self, batch: &[Message], answers: &Answers) {
        let mut first = None;
        for (index, message) in batch.iter().enumerate() {
            match check(message) {
                Ok(()) => first = first.or(Some(message.destination.as_str())),
                Err(detail) => answers.set(index, Outcome::Reject(detail)),
            }
        }
        let mut topic = self.metadata_topic.lock();
        *topic = topic.take().or_else(|| first.map(str::to_owned));
    }

    async fn check_or_end(&self, producer: &Producer) -> bool {
        producer.check_or_end(self.metadata_topic().as_deref()).await
    }

    async fn publish(&self, producer: &Arc<Producer>, batch: Vec<Message>, answers: &Answers, deadline: Instant) {
        let times = PublishTimeouts { hand_over: deadline - settings::longest(self.peer.answer_timeout), deadline };
        let call = || Call { broker: self, batch: &batch, answers, times, round: None };
        let (mut for_listed, mut for_unlisted) = (call(), call());
        let fits = (0..batch.len()).filter(|&index| check(&batch[index]).is_ok());
        let (at_once, later) = for_listed.split_by_listed(fits.collect());
        if let Some(&index) = at_once.first() {
            self.set_metadata_topic(&batch[index].destination);
        }
        let after_the_list = async {
            let found = for_unlisted.look_for(producer, later).await;
            for_unlisted.run(producer, found).await;
        };
        let both = async { tokio::join!(for_listed.run(producer, at_once), after_the_list) };
        if timeout_at(deadline, both).await.is_err() {
            let troubles = [for_listed.give_up(), for_unlisted.give_up()];
            let unavailable = || (Fault::Unavailable, self.peer.no_answer());
            let (fault, detail) = troubles.into_iter().flatten().next().unwrap_or_else(unavailable);
            answers.give_up(fault, &detail);
        }
    }

    async fn look_for(&self, producer: &Producer, topic: &str, deadline: Instant) -> Result<DestinationState, Away> {
        let topics = producer.topics(deadline - Instant::now()).await?;
        Ok(match topics.iter().any(|known| known == topic) {
            true => DestinationState::Exists,
            false => DestinationState::Missing(
                "no such topic, or this user may not describe it; the broker may make it at the first message"
                    .to_owned(),
            ),
        })
    }

    async fn ask(&self, producer: &Producer, deadline: Instant) -> Result<(), Away> {
        let (topic, limit) = (self.metadata_topic(), deadline - Instant::now());
        tokio::select! {
            answer = producer.ask(topic.clone(), limit) => answer,
            () = producer.lost(topic.as_deref()) => {
                Err(producer.away().unwrap_or_else(|| self.peer.no_answer().into()))
            }
        }
    }

    async fn close(&self, until: Instant) {
        self.alone.close(until).await;
    }
}

/// Some messages of a publish: all of them first, then one by one those that were refused with others.
struct Call<'a> {
    broker: &'a Kafka,
    batch: &'a [Message],
    answers: &'a Answers,
    times: PublishTimeouts,
    round: Option<PublishRound<'a>>,
}

impl Call<'_> {
    /// The messages for listed topics, and the others. If librdkafka may create topics, all count as listed.
    fn split_by_listed(&self, indices: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        // Looked up once per topic: another publish may get a new list in the meantime, and the messages for one
        // destination must stay together.
        let mut known: HashMap<&str, bool> = HashMap::new();
        let contain = |topic| self.broker.settings.creates_topics || self.broker.topics.contain(topic);
        indices.into_iter().partition(|index| {
            let topic = self.batch[*index].destination.as_str();
            *known.entry(topic).or_insert_with(|| contain(topic))
        })
    }

    /// Gets a list. Returns the messages whose topics are in it, and answers the others. Without a list, returns all.
    async fn look_for(&self, producer: &Producer, indices: Vec<usize>) -> Vec<usize> {
        let limit = self.broker.peer.answer_timeout / 4;
        if indices.is_empty() || !self.broker.topics.renew(producer, limit).await {
            return indices;
        }
        let (found, unknown) = self.split_by_listed(indices);
        unknown.into_iter().for_each(|index| self.answers.set(index, verdict::unlisted()));
        found
    }

    async fn run(&mut self, together: &Arc<Producer>, mut indices: Vec<usize>) {
        let (batch, answers) = (self.batch, self.answers);
        for alone in [false, true] {
            if indices.is_empty() {
                return;
            }
            let producer = if alone { self.broker.producer_alone().await } else { Ok(Arc::clone(together)) };
            let producer = match producer {
                Ok(producer) => producer,
                Err(away) => return answers.give_up_these(indices, Fault::Sink, &away.detail),
            };
            let round = self.round.insert(PublishRound::new(producer, alone, batch, answers, self.times, indices));
            if !round.run(&self.broker.window).await {
                return;
            }
            indices = std::mem::take(&mut round.again);
            indices.sort_unstable();
        }
    }

    /// The deadline has passed: purges the messages that librdkafka still holds. Returns the trouble with the brokers.
    fn give_up(&mut self) -> Option<(Fault, String)> {
        let mut round = self.round.take()?;
        round.take();
        let trouble = round.producer.trouble();
        if round.held > 0 {
            round.producer.end();
        }
        trouble
    }
}

/// Checks what Kafka can never accept of a message.
fn check(message: &Message) -> Result<(), String> {
    check_topic(&message.destination)?;
    HeaderList::of(message, Kafka::KIND).map(drop)
}

/// Checks the name of a topic. Kafka's internal topics are refused.
fn check_topic(topic: &str) -> Result<(), String> {
    let named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if topic.is_empty() || topic.len() > 249 || topic == "." || topic == ".." || !topic.chars().all(named) {
        let shown = topic.escape_debug();
        return Err(format!("`{shown}` is no name of a topic: 1 to 249 of `A-Z a-z 0-9 . _ -`, not `.` or `..`"));
    }
    // `__consumer_offsets`, `__transaction_state`, `__cluster_metadata`.
    if topic.starts_with("__") {
        return Err(format!("`{topic}` is a topic of Kafka's own"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn an_invalid_topic_name_is_rejected_even_without_a_broker() {
        let sink = SinkConfig::parse("kafka://127.0.0.1:1").unwrap().build().unwrap();
        let message = Message {
            key: "a:1".to_owned(),
            task: "a".to_owned(),
            due_ms: 1,
            attempt: 1,
            destination: "a b".to_owned(),
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: bytes::Bytes::new(),
        };
        let outcomes: Vec<_> = sink.publish(vec![message]).collect().await;
        assert!(matches!(outcomes[..], [(0, Outcome::Reject(_))]), "{outcomes:?}");
    }

    #[test]
    fn topic_names_follow_the_rules_of_kafka() {
        let longest = "x".repeat(249);
        for good in ["orders.timeout", "A_b-9", "_private", "...", &longest] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
        let too_long = "x".repeat(250);
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\0", "__consumer_offsets", &too_long] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
    }
}
