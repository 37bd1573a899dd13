//! The Kafka sink: publishes by librdkafka. <https://kafka.apache.org/protocol>
//!
//! - Key: header `idempotency-key`. The record key is the message's own or the id of the task; the partition follows
//!   from it as Java's clients have it (murmur2).
//! - Accepted when the delivery report says so: every replica in sync has it. Rejected: what alone in its record batch
//!   is too large for the topic or no valid record, and what can be no topic. All else is `Retry`; an unknown topic, or
//!   one that we may not write to, is the destination's fault.
//! - Kafka refuses whole record batches. What was refused among others goes out again alone, by a second producer that
//!   puts each message into a batch of its own.
//! - The producer is idempotent: what the library sends again by itself arrives once, and in order. The second one is not,
//!   since each refusal would make it wait for all that is under way; what it sends again can be there twice, and out of
//!   order. What we publish again is another message to Kafka, too: consumers drop it by its key.
//! - What the library holds is bounded, and one topic has a quarter of that at most. Nothing stays in it for longer than
//!   the answer timeout: it gives up before that, and a call hands nothing over for which the library might still try
//!   when it ends. With an answer timeout of less than 7 s it may: what is left in it then is purged with the producer.
//! - The library never forgets a topic: some kB each, until the producer is ended.

mod context;
mod producer;
mod round;
mod settings;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use producer::Producer;
use rdkafka::ClientConfig;
use round::{PublishRound, Times};
use settings::Settings;
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{Connection as _, SharedConnection};
use crate::networked::{Broker, Peer};
use crate::window::Window;
use crate::{Away, Fault, Message, Outcome, SinkError};

/// What the library may hold: 8 Ki messages and 8 MiB. A quarter of it, what one destination may have, is some 20 ms of a
/// broker's work: so long others wait behind it, for a connection's requests are answered one after the other.
const WINDOW_UNITS: usize = 8 << 10;
const UNIT: usize = 1 << 10;

/// A cluster.
pub(crate) struct Kafka {
    settings: Arc<Settings>,
    peer: Peer,
    window: Window,
    /// Beside the connection of all: the producer that leaves each message alone.
    alone: SharedConnection<Producer>,
    /// What to ask brokers for.
    topic: Mutex<Option<String>>,
}

impl Kafka {
    /// As the configuration names it.
    ///
    /// # Errors
    /// [`SinkError::Config`] when the URL has a path or half a log-in, a property cannot be used, or properties do not go
    /// together.
    pub(crate) fn new(config: &SinkConfig) -> Result<Kafka, SinkError> {
        let settings = Settings::new(config)?;
        for client in [settings.client.clone(), settings.alone()] {
            let refused = |detail: String| {
                // Of properties that do not go together it names those that it means.
                let named = config.properties().keys().find(|name| detail.contains(&format!("`{name}`")));
                let option = named.map_or("url".to_owned(), |name| format!("properties.{name}"));
                SinkError::option(option, format!("the client library of Kafka refuses its settings: {detail}"))
            };
            Producer::try_out(client, &settings).map_err(refused)?;
        }
        Ok(Kafka {
            settings: Arc::new(settings),
            peer: Peer::new(config),
            window: Window::new(WINDOW_UNITS, UNIT),
            alone: SharedConnection::new(),
            topic: Mutex::default(),
        })
    }

    /// The producer that leaves each message alone.
    async fn producer_alone(&self) -> Result<Arc<Producer>, Away> {
        let connect = || async {
            let connected = self.connect_with(self.settings.alone()).await;
            connected.map_err(|away| self.peer.not_connected(away))
        };
        let producer = self.alone.get(connect()).await?;
        if self.there(&producer).await { Ok(producer) } else { self.alone.get(connect()).await }
    }

    async fn connect_with(&self, client: ClientConfig) -> Result<Producer, Away> {
        let answer_timeout = self.peer.answer_timeout;
        // Long enough for a broker to be back that only closed a connection.
        let patience = (answer_timeout / 4).min(Duration::from_secs(1));
        Producer::connect(client, Arc::clone(&self.settings), self.topic(), patience, answer_timeout / 2).await
    }

    /// The topic that was published to last.
    fn topic(&self) -> Option<String> {
        self.topic.lock().clone()
    }
}

#[async_trait]
impl Broker for Kafka {
    type Connection = Producer;

    const KIND: &'static str = "kafka";

    // The library may have connected, and only the answer to what was asked next be missing.
    const UNCONNECTED: Fault = Fault::Unclear;

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_topic(destination)
    }

    async fn connect(&self) -> Result<Producer, Away> {
        self.connect_with(self.settings.client.clone()).await
    }

    /// What can be no topic is rejected whether or not a broker is there; of the others the first is what to ask for.
    fn prepare(&self, batch: &[Message], answers: &Answers) {
        let mut topic = None;
        for (index, message) in batch.iter().enumerate() {
            match check_topic(&message.destination) {
                Ok(()) => topic = topic.or(Some(message.destination.as_str())),
                Err(detail) => answers.set(index, Outcome::Reject(detail)),
            }
        }
        let mut known = self.topic.lock();
        if topic.is_some() && known.as_deref() != topic {
            *known = topic.map(str::to_owned);
        }
    }

    async fn there(&self, producer: &Producer) -> bool {
        producer.there(self.topic().as_deref()).await
    }

    async fn publish(&self, producer: &Arc<Producer>, batch: Vec<Message>, answers: &Answers, deadline: Instant) {
        let times = Times { hand_over: deadline - settings::longest(self.peer.answer_timeout), deadline };
        let mut call = Call { broker: self, batch: &batch, answers, times, round: None };
        if timeout_at(deadline, call.run(producer)).await.is_err() {
            call.give_up();
        }
    }

    async fn ask(&self, producer: &Producer, deadline: Instant) -> Result<(), Away> {
        let (topic, limit) = (self.topic(), deadline - Instant::now());
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

/// One publish: all of the batch first, and then again alone what was refused with others.
struct Call<'a> {
    broker: &'a Kafka,
    batch: &'a [Message],
    answers: &'a Answers,
    times: Times,
    round: Option<PublishRound<'a>>,
}

impl Call<'_> {
    async fn run(&mut self, together: &Arc<Producer>) {
        let (batch, answers) = (self.batch, self.answers);
        let fits = |&index: &usize| check_topic(&batch[index].destination).is_ok();
        let mut indices: Vec<usize> = (0..batch.len()).filter(fits).collect();
        for alone in [false, true] {
            if indices.is_empty() {
                return;
            }
            let producer = if alone { self.broker.producer_alone().await } else { Ok(Arc::clone(together)) };
            let producer = match producer {
                Ok(producer) => producer,
                Err(away) => return answers.give_up(Fault::Sink, &away.detail),
            };
            let round = self.round.insert(PublishRound::new(producer, alone, batch, answers, self.times));
            if !round.run(&self.broker.window, &indices).await {
                return;
            }
            indices = std::mem::take(&mut round.again);
            indices.sort_unstable();
        }
    }

    /// The time is up: what the library still has it is not to send any more.
    fn give_up(&mut self) {
        let trouble = self.round.take().and_then(|mut round| {
            round.take();
            let trouble = round.producer.trouble();
            if round.away > 0 {
                round.producer.end();
            }
            trouble
        });
        match trouble {
            Some((fault, detail)) => self.answers.give_up(fault, &detail),
            None => self.answers.give_up(Fault::Unclear, &self.broker.peer.no_answer()),
        }
    }
}

/// What a topic can be named. Those of Kafka's own are no place to publish to.
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
    async fn what_can_be_no_topic_is_rejected_whether_or_not_a_broker_is_there() {
        let sink = SinkConfig::parse("kafka://127.0.0.1:1").unwrap().build().unwrap();
        let message = Message {
            key: "a:1".to_owned(),
            task: "a".to_owned(),
            due_ms: 1,
            attempt: 1,
            destination: "a b".to_owned(),
            record_key: None,
            headers: Vec::new(),
            content_type: None,
            payload: bytes::Bytes::new(),
        };
        let outcomes: Vec<_> = sink.publish(vec![message]).collect().await;
        assert!(matches!(outcomes[..], [(0, Outcome::Reject(_))]), "{outcomes:?}");
    }

    #[test]
    fn topics_are_named_as_kafka_has_it() {
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
