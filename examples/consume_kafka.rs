//! Consumes a Kafka topic that punctual publishes to, and detects repeats by their idempotency key.
//!
//! ```sh
//! cargo run --example consume_kafka -- 127.0.0.1:9092 orders.cancel
//! ```
//! Prints each delivery as JSON until it is killed. After an error the client reconnects by itself.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example for copying")]

use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{collections::HashSet, error::Error};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, error::KafkaError};
use serde_json::json;

/// How long a key is remembered: the longest outage after which a repeat must not have a second effect. It must be more than 52 s.
/// A real service stores the key together with the effect, in one transaction, so that no crash can separate them.
const REMEMBER: Duration = Duration::from_secs(3600);
/// Maximum number of keys in each of the two sets; a key takes some 200 bytes. Beyond that the oldest are forgotten early.
const MAX_KEYS: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic] = &arguments[..] else { return Err("usage: consume_kafka BROKERS TOPIC".into()) };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // Each partition is read by one consumer of the group.
        .set("group.id", "cancellations")
        .set("auto.offset.reset", "earliest")
        // Twice a second the client commits the offsets that are stored below, not those that were delivered.
        .set("enable.auto.offset.store", "false")
        .set("auto.commit.interval.ms", "500")
        .create()?;
    consumer.subscribe(&[topic])?;
    let mut keys = Keys { recent: HashSet::new(), older: HashSet::new(), since: Instant::now() };
    loop {
        let message = match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(message)) => message,
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => return Err(code.into()),
            Some(Err(error)) => {
                eprintln!("{error}");
                continue;
            }
            None => continue,
        };
        let mut headers = message.headers().into_iter().flat_map(Headers::iter);
        let key = headers.find(|header| header.key == "idempotency-key").and_then(|header| header.value);
        let key = key.map(String::from_utf8_lossy);
        let repeat = keys.know(key.as_deref());
        // Unless it is a repeat, handle the message here. If that fails, its key is not remembered.
        let now = UNIX_EPOCH.elapsed()?.as_millis();
        let payload = String::from_utf8_lossy(message.payload().unwrap_or_default());
        println!("{}", json!({"key": key, "repeat": repeat, "received_ms": now, "payload": payload}));
        keys.remember(key.as_deref());
        consumer.store_offset_from_message(&message)?;
    }
}

/// The keys of the last `REMEMBER`, and some older ones.
struct Keys {
    recent: HashSet<String>,
    older: HashSet<String>,
    since: Instant,
}

impl Keys {
    fn know(&self, key: Option<&str>) -> bool {
        key.is_some_and(|key| self.recent.contains(key) || self.older.contains(key))
    }

    fn remember(&mut self, key: Option<&str>) {
        if self.since.elapsed() > REMEMBER || self.recent.len() >= MAX_KEYS {
            (self.older, self.since) = (std::mem::take(&mut self.recent), Instant::now());
        }
        self.recent.extend(key.map(str::to_owned));
    }
}
