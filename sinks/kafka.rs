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

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use producer::Producer;
use round::{Round, Times};
use settings::Settings;
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{self, Connection as _, Door, Link};
use crate::window::Window;
use crate::{Away, Cause, Fault, Message, Outcome, Sink, SinkError, Trouble};

/// What the library may hold: 8 Ki messages and 8 MiB. A quarter of it, what one destination may have, is some 20 ms of a
/// broker's work: so long others wait behind it, for a connection's requests are answered one after the other.
const WINDOW_UNITS: usize = 8 << 10;
const UNIT: usize = 1 << 10;

/// A sink that publishes to Kafka.
pub struct KafkaSink {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Arc<Settings>,
    address: String,
    answer_timeout: Duration,
    window: Window,
    together: Link<Producer>,
    alone: Link<Producer>,
    door: Door,
    /// What to ask brokers for.
    topic: Mutex<Option<String>>,
}

impl KafkaSink {
    /// A sink for a cluster; connects when it is first used.
    ///
    /// # Errors
    /// [`SinkError::Config`] when the URL has a path or half a log-in, a property cannot be used, or properties do not go
    /// together.
    pub fn new(config: &SinkConfig) -> Result<KafkaSink, SinkError> {
        let settings = Settings::new(config)?;
        for client in [settings.client.clone(), settings.alone()] {
            let refused =
                |words| SinkError::Config(format!("the client library of Kafka refuses its settings: {words}"));
            Producer::try_out(client, &settings).map_err(refused)?;
        }
        let inner = Inner {
            settings: Arc::new(settings),
            address: config.address(),
            answer_timeout: config.answer_timeout(),
            window: Window::new(WINDOW_UNITS, UNIT),
            together: Link::new(),
            alone: Link::new(),
            door: Door::new(),
            topic: Mutex::default(),
        };
        Ok(KafkaSink { inner: Arc::new(inner) })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (inner, deadline) = (Arc::clone(&self.inner), link::deadline(self.inner.answer_timeout));
        Answers::stream(batch.len(), move |answers| async move {
            let _pass = match inner.door.enter() {
                Ok(pass) => pass,
                Err(trouble) => return answers.give_up(trouble.fault, &trouble.words),
            };
            let hand_over = deadline - settings::longest(inner.answer_timeout);
            let times = Times { hand_over, deadline };
            let mut call = Call { inner: &inner, batch: &batch, answers: &answers, times, round: None };
            if timeout_at(deadline, call.run()).await.is_err() {
                call.give_up();
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let inner = &self.inner;
        let closed = |trouble: Trouble| Away::new(Cause::Refused, trouble.words).of_sink(&inner.address);
        inner.door.look().map_err(closed)?;
        let deadline = link::deadline(inner.answer_timeout);
        let asked = timeout_at(deadline, async {
            let producer = inner.producer(false).await?;
            let (topic, limit) = (inner.topic(), deadline - Instant::now());
            tokio::select! {
                answer = producer.ask(topic.clone(), limit) => answer,
                () = producer.lost(topic.as_deref()) => {
                    Err(producer.away().unwrap_or_else(|| inner.no_answer().into()))
                }
            }
        });
        let asked = asked.await.unwrap_or_else(|_| Err(inner.no_answer().into()));
        asked.map_err(|away| away.of_sink(&inner.address))
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        let until = Instant::now() + deadline;
        let shut = self.inner.door.shut(deadline).await;
        self.inner.together.close(until).await;
        self.inner.alone.close(until).await;
        shut
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_topic(destination)
    }
}

impl Inner {
    /// The producer that makes record batches, or the one that leaves each message alone.
    async fn producer(&self, alone: bool) -> Result<Arc<Producer>, Away> {
        let link = if alone { &self.alone } else { &self.together };
        let producer = link.get(self.connect(alone)).await?;
        if producer.there(self.topic().as_deref()).await {
            return Ok(producer);
        }
        link.get(self.connect(alone)).await
    }

    async fn connect(&self, alone: bool) -> Result<Producer, Away> {
        let client = if alone { self.settings.alone() } else { self.settings.client.clone() };
        // Long enough for a broker to be back that only closed a connection.
        let patience = (self.answer_timeout / 4).min(Duration::from_secs(1));
        let limit = self.answer_timeout / 2;
        let made = Producer::connect(client, Arc::clone(&self.settings), self.topic(), patience, limit).await;
        made.map_err(|away| away.behind(format!("cannot connect to `{}`: ", self.address)))
    }

    /// The topic that was published to last.
    fn topic(&self) -> Option<String> {
        self.topic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_topic(&self, topic: &str) {
        let mut known = self.topic.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != Some(topic) {
            *known = Some(topic.to_owned());
        }
    }

    fn no_answer(&self) -> String {
        link::no_answer(&self.address, self.answer_timeout)
    }
}

/// One publish: all of the batch first, and then again alone what was refused with others.
struct Call<'a> {
    inner: &'a Inner,
    batch: &'a [Message],
    answers: &'a Answers,
    times: Times,
    round: Option<Round<'a>>,
}

impl Call<'_> {
    async fn run(&mut self) {
        let (batch, answers) = (self.batch, self.answers);
        let fits = |&index: &usize| {
            let checked = check_topic(&batch[index].destination);
            checked.map_err(|words| answers.set(index, Outcome::Reject(words))).is_ok()
        };
        let mut indices: Vec<usize> = (0..batch.len()).filter(fits).collect();
        if let Some(&index) = indices.first() {
            self.inner.set_topic(&batch[index].destination);
        }
        for alone in [false, true] {
            if indices.is_empty() {
                return;
            }
            let producer = match self.inner.producer(alone).await {
                Ok(producer) => producer,
                Err(away) => return answers.give_up(Fault::Sink, &away.words),
            };
            let round = self.round.insert(Round::new(producer, alone, batch, answers, self.times));
            if !round.run(&self.inner.window, &indices).await {
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
            Some((fault, words)) => self.answers.give_up(fault, &words),
            None => self.answers.give_up(Fault::Unclear, &self.inner.no_answer()),
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
    use super::*;

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
