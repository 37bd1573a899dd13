//! Published messages, read without any code of punctual from the server or the consumer that received them.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::consumer::Consumer;
use super::kafka::{KafkaServer, Record};
use super::nats::{NatsServer, Stored};
use super::patient;

/// A message that a broker stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Its idempotency key.
    pub(crate) key: String,
    /// Its payload.
    pub(crate) payload: String,
    /// When the broker received it, in ms, by the broker's clock. If a consumer read it: when it arrived there, by this
    /// machine's clock.
    pub(crate) stamp: i64,
}

impl Published {
    /// Task and due from its key.
    pub(crate) fn parts(&self) -> (&str, i64) {
        let (task, due) = self.key.rsplit_once(':').unwrap_or_else(|| panic!("`{}` is no key", self.key));
        (task, due.parse().unwrap_or_else(|_| panic!("`{}` is no key", self.key)))
    }
}

/// All entries of a Redis stream, read with `redis-cli`, page by page.
pub(crate) fn read_stream(port: u16, stream: &str) -> Vec<Published> {
    let mut all = Vec::new();
    let mut from = "-".to_owned();
    loop {
        let page = redis_cli(port, &["XRANGE", stream, &from, "+", "COUNT", "5000"]);
        let page = page.as_array().expect("a list of entries");
        for entry in page {
            let id = entry[0].as_str().expect("an id");
            let fields = entry[1].as_array().expect("fields");
            let field = |name: &str| {
                let found =
                    fields.chunks(2).find(|pair| pair[0] == name).unwrap_or_else(|| panic!("`{name}`: {entry}"));
                found[1].as_str().expect("a text").to_owned()
            };
            let stamp = id.split_once('-').and_then(|(ms, _)| ms.parse().ok()).expect("an id with a time");
            all.push(Published { key: field("idempotency-key"), payload: field("payload"), stamp });
        }
        match page.last() {
            Some(last) => from = format!("({}", last[0].as_str().expect("an id")),
            None => return all,
        }
    }
}

/// All messages of a JetStream stream, read with the tests' own client.
pub(crate) fn read_subject(nats: &NatsServer, stream: &str) -> Vec<Published> {
    let message = |stored: &Stored| Published {
        key: stored.header("idempotency-key").unwrap_or_else(|| panic!("no key: {stored:?}")).to_owned(),
        payload: String::from_utf8(stored.payload.clone()).expect("text"),
        stamp: stored.stored_ns / 1_000_000,
    };
    nats.connect().stream_messages(stream).iter().map(message).collect()
}

/// All messages of a Kafka topic, each partition in order, read with `kcat`. The topic stamps them with the broker's
/// time.
pub(crate) fn read_topic(kafka: &KafkaServer, topic: &str) -> Vec<Published> {
    let message = |record: Record| Published {
        key: record.header("idempotency-key").unwrap_or_else(|| panic!("no key: {record:?}")).to_owned(),
        payload: String::from_utf8(record.payload).expect("text"),
        stamp: record.stamp,
    };
    kafka.records(topic).into_iter().map(message).collect()
}

/// All messages at a consumer that ran throughout. Waits for the expected number of keys, 60 s at most. Then
/// returns when no message has come for a second. The consumer's clock stands in for a broker that stamps no time.
pub(crate) fn read_arrivals(consumer: &Consumer, expected: usize) -> Vec<Published> {
    // If some never arrive, the comparison names them.
    patient(Duration::from_secs(60), || {
        let keys: BTreeSet<String> = consumer.deliveries().into_iter().map(|delivery| delivery.key).collect();
        keys.len() >= expected
    });
    let mut before = 0;
    loop {
        let deliveries = consumer.wait(before);
        if deliveries.len() == before {
            return deliveries.into_iter().map(Published::from).collect();
        }
        before = deliveries.len();
    }
}

/// Runs one command with `redis-cli`.
fn redis_cli(port: u16, command: &[&str]) -> Value {
    let port = port.to_string();
    let output =
        Command::new("redis-cli").args(["-p", &port, "--json"]).args(command).output().expect("redis-cli runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "redis-cli {command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("redis-cli {command:?}: {error}: {text}"))
}
