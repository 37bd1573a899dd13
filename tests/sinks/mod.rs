//! One suite for every sink: one function per capability, run for each sink that has it. Brokers are real servers, and
//! tests read messages back from them without code of the sink. For Kafka (`kcat`), RabbitMQ and Redis the reader uses
//! the same client library as the sink.

mod capabilities;
mod kafka;
mod kafka_strict;
mod kafka_stuck;
mod least_privileges;
mod nats;
mod outages;
mod own;
mod rabbitmq;
mod redis;
mod secured;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use punctual_sinks::{Message, Outcome, Sink};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// For tests that wait until it expires.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// For tests in which every answer arrives, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// An immediate outcome arrives within this time; waiting in vain under [`PATIENCE`] takes 14 s and more.
const SOON: Duration = Duration::from_secs(10);

/// The server that a sink publishes to.
trait Broker: Sized {
    /// Starts a server that accepts messages to `a`, `b` and `c`; `None` if its program is not installed.
    fn start() -> Option<Self>;
    /// A sink that publishes to this server.
    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink>;
    /// Messages of this destination, in the server's order.
    fn received(&self, destination: &str) -> Vec<Received>;
}

/// A broker that is a process.
trait Process: Broker {
    /// The broker's process.
    fn server(&mut self) -> &mut crate::support::server::Server;
}

/// A message as the broker has it.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    key: String,
    headers: BTreeMap<String, String>,
    payload: Vec<u8>,
}

/// A message with headers; its payload is its key.
fn message(destination: &str, number: usize) -> Message {
    let task = format!("{destination}-{number}");
    Message {
        key: format!("{task}:1700000000123"),
        due_ms: 1_700_000_000_123,
        attempt: 2,
        destination: destination.to_owned(),
        record_key: None,
        native: None,
        headers: vec![("tenant".to_owned(), "acme & söhne".to_owned())],
        is_tombstone: false,
        content_type: Some("text/plain".to_owned()),
        payload: Bytes::from(task.clone()),
        task,
    }
}

fn batch(destination: &str, numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers.map(|number| message(destination, number)).collect()
}

/// Publishes and returns the outcome of each index; panics if one has two or none.
async fn publish(sink: &Arc<dyn Sink>, batch: Vec<Message>) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
    let mut answers = sink.publish(batch);
    while let Some((index, outcome)) = answers.next().await {
        assert_eq!(outcomes[index].replace(outcome), None, "index {index} is answered twice");
    }
    outcomes
        .into_iter()
        .enumerate()
        .map(|(index, outcome)| outcome.unwrap_or_else(|| panic!("{index} has no answer")))
        .collect()
}

/// Publishes until every message is accepted, as the engine would; for 30 s at most.
async fn publish_until_accepted(sink: &Arc<dyn Sink>, batch: Vec<Message>) {
    publish_until(sink, batch, |outcome| *outcome == Outcome::Accepted).await;
}

/// Publishes until all outcomes match; for 30 s at most.
async fn publish_until(sink: &Arc<dyn Sink>, batch: Vec<Message>, is: impl Fn(&Outcome) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcomes = publish(sink, batch.clone()).await;
        if outcomes.iter().all(&is) {
            return;
        }
        assert!(Instant::now() < deadline, "after 30 s it still is {:?}", outcomes[0]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Result of `doing`, which must take at most `limit`. Time is counted in ticks of this process, so that a pause of a
/// busy machine counts as one tick.
async fn in_time<T>(what: &str, limit: Duration, doing: impl Future<Output = T>) -> T {
    const BEAT: Duration = Duration::from_millis(50);
    let beats = limit.as_millis() / BEAT.as_millis();
    let mut beating = tokio::spawn(async move {
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate.
        for _ in 0..=beats {
            ticks.tick().await;
        }
    });
    let done = tokio::select! {
        biased;
        _ = &mut beating => None,
        done = doing => Some(done),
    };
    // `doing` may have blocked the thread until the time was up.
    let done = done.filter(|_| !beating.is_finished());
    beating.abort();
    done.unwrap_or_else(|| panic!("{what} took longer than {limit:?}"))
}

fn accepted(count: usize) -> Vec<Outcome> {
    vec![Outcome::Accepted; count]
}

fn keys(received: &[Received]) -> Vec<&str> {
    received.iter().map(|message| message.key.as_str()).collect()
}

/// Runs capabilities as tests of one sink.
macro_rules! suite {
    ($broker:ty: $($module:ident :: $capability:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $capability() {
                if let Some(broker) = <$broker as crate::sinks::Broker>::start() {
                    crate::sinks::$module::$capability(broker).await;
                }
            }
        )+
    };
}
use suite;
