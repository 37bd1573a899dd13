//! Consumes a JetStream stream that punctual publishes to, and detects repeats by their idempotency key.
//!
//! ```sh
//! cargo run --example consume_nats -- nats://127.0.0.1:4222 ORDERS
//! ```
//! Prints each delivery as JSON until it is killed. After an error it prints the error and continues in a second. The
//! client reconnects by itself.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example for copying")]

use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{collections::HashSet, convert::Infallible};

use async_nats::Error;
use async_nats::jetstream::{self, consumer::pull::Config};
use futures_util::StreamExt;
use serde_json::json;

/// How long a key is remembered: the longest outage after which a repeat must not have a second effect. It must be more than 52 s.
/// A real service stores the key together with the effect, in one transaction, so that no crash can separate them.
const REMEMBER: Duration = Duration::from_secs(3600);
/// Maximum number of keys in each of the two sets; a key takes some 200 bytes. Beyond that the oldest are forgotten early.
const MAX_KEYS: usize = 1_000_000;
/// Each message goes to one of the consumers with this name.
const DURABLE: &str = "cancellations";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, stream] = &arguments[..] else { return Err("usage: consume_nats URL STREAM".into()) };
    let mut keys = Keys { recent: HashSet::new(), older: HashSet::new(), since: Instant::now() };
    loop {
        let Err(error) = consume(url, stream, &mut keys).await;
        eprintln!("{error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn consume(url: &str, stream: &str, keys: &mut Keys) -> Result<Infallible, Error> {
    let jetstream = jetstream::new(async_nats::connect(url).await?);
    let stream = jetstream.get_stream(stream).await?;
    // Messages are acknowledged one by one. Without an acknowledgement within 30 s a message is delivered again.
    let config = Config { durable_name: Some(DURABLE.to_owned()), ..Config::default() };
    let consumer = stream.get_or_create_consumer(DURABLE, config).await?;
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let key = message.headers.as_ref().and_then(|headers| headers.get("idempotency-key")).map(|key| key.as_str());
        let repeat = keys.know(key);
        // Unless it is a repeat, handle the message here. If that fails, its key is not remembered.
        let now = UNIX_EPOCH.elapsed()?.as_millis();
        let payload = String::from_utf8_lossy(&message.payload);
        println!("{}", json!({"key": key, "repeat": repeat, "received_ms": now, "payload": payload}));
        keys.remember(key);
        message.ack().await?;
    }
    Err("the server ended the subscription".into())
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
