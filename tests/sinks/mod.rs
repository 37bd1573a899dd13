//! One suite for every sink: a function per capability, run for each sink that has it, against real servers, read back
//! by a client that shares nothing with the sink.

mod capabilities;
mod kafka;
mod kafka_strict;
mod kafka_stuck;
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

/// Where a test waits for it to pass.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Where every answer comes by itself, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is told at once comes within this; whatever is waited for in vain under [`PATIENCE`] takes 14 s and more.
const SOON: Duration = Duration::from_secs(10);

/// The other side of a sink.
trait Broker: Sized {
    /// Starts one that takes messages to `a`, `b` and `c`; none if its program is missing.
    fn start() -> Option<Self>;
    /// A sink that publishes to it.
    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink>;
    /// What it has, in its order; `destination` only.
    fn received(&self, destination: &str) -> Vec<Received>;
}

/// A broker that is a process of its own.
trait Process: Broker {
    /// The process.
    fn server(&mut self) -> &mut crate::support::server::Server;
}

/// A message at the other side.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    key: String,
    headers: BTreeMap<String, String>,
    payload: Vec<u8>,
}

/// A message with headers, and a payload that is its key.
fn message(destination: &str, number: usize) -> Message {
    let task = format!("{destination}-{number}");
    Message {
        key: format!("{task}:1700000000123"),
        due_ms: 1_700_000_000_123,
        attempt: 2,
        destination: destination.to_owned(),
        record_key: None,
        headers: vec![("tenant".to_owned(), "acme & söhne".to_owned())],
        content_type: Some("text/plain".to_owned()),
        payload: Bytes::from(task.clone()),
        task,
    }
}

fn batch(destination: &str, numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers.map(|number| message(destination, number)).collect()
}

/// Publishes and takes down the outcome of each index; panics if one has two or none.
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

/// Publishes until all is accepted, as the scheduler would; at most for 30 s.
async fn publish_until_accepted(sink: &Arc<dyn Sink>, batch: Vec<Message>) {
    publish_until(sink, batch, |outcome| *outcome == Outcome::Accepted).await;
}

/// Publishes until all outcomes are as they are to be; at most for 30 s.
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

/// What comes of `doing`, which is to take no longer than `limit`. Counted in beats of this process: however long that
/// stands still on a busy machine, it is one beat.
async fn in_time<T>(what: &str, limit: Duration, doing: impl Future<Output = T>) -> T {
    const BEAT: Duration = Duration::from_millis(50);
    let beats = limit.as_millis() / BEAT.as_millis();
    let mut beating = tokio::spawn(async move {
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first comes at once.
        for _ in 0..=beats {
            ticks.tick().await;
        }
    });
    let done = tokio::select! {
        biased;
        _ = &mut beating => None,
        done = doing => Some(done),
    };
    // It may have kept its thread until the time was up.
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
