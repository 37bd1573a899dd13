//! Consumes a RabbitMQ queue that punctual publishes to, and detects repeats by their idempotency key.
//!
//! ```sh
//! cargo run --example consume_rabbitmq -- amqp://guest:guest@127.0.0.1:5672 orders.cancel
//! ```
//! Prints each delivery as JSON until it is killed. After an error it prints the error and reconnects in a second. For
//! `amqps://`, give lapin its feature `rustls`.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example for copying")]

use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{collections::HashSet, convert::Infallible, error::Error};

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use serde_json::json;

/// How long a key is remembered: the longest outage after which a repeat must not have a second effect. It must be more than 52 s.
/// A real service stores the key together with the effect, in one transaction, so that no crash can separate them.
const REMEMBER: Duration = Duration::from_secs(3600);
/// Maximum number of keys in each of the two sets; a key takes some 200 bytes. Beyond that the oldest are forgotten early.
const MAX_KEYS: usize = 1_000_000;
/// Maximum number of deliveries without acknowledgement. After a crash these are delivered again.
const PREFETCH: u16 = 200;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, queue] = &arguments[..] else { return Err("usage: consume_rabbitmq URL QUEUE".into()) };
    let mut keys = Keys { recent: HashSet::new(), older: HashSet::new(), since: Instant::now() };
    loop {
        let Err(error) = consume(url, queue, &mut keys).await;
        eprintln!("{error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn consume(url: &str, queue: &str, keys: &mut Keys) -> Result<Infallible, Box<dyn Error>> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    // The queue must exist. Its owner declares it as durable.
    let (name, options) = ("".into(), BasicConsumeOptions::default());
    let mut deliveries = channel.basic_consume(queue.into(), name, options, FieldTable::default()).await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let key = delivery.properties.message_id().as_ref().map(|key| key.as_str());
        let repeat = keys.know(key);
        // Unless it is a repeat, handle the message here. If that fails, its key is not remembered.
        let now = UNIX_EPOCH.elapsed()?.as_millis();
        let payload = String::from_utf8_lossy(&delivery.data);
        println!("{}", json!({"key": key, "repeat": repeat, "received_ms": now, "payload": payload}));
        keys.remember(key);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Err("RabbitMQ ended the subscription".into())
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
