//! Consumes a JetStream stream that punctual publishes to, and tells repeats by their idempotency key.
//!
//! ```sh
//! cargo run --example consume_nats -- nats://127.0.0.1:4222 ORDERS
//! ```
//! Prints each delivery as JSON, until it is killed. After an error it says which and goes on in a second; lost
//! connections the client makes anew by itself.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example for copying")]

use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{collections::HashSet, convert::Infallible};

use async_nats::Error;
use async_nats::jetstream::{self, consumer::pull::Config};
use futures_util::StreamExt;
use serde_json::json;

/// How long a key is remembered: the longest outage that shall not cause a second effect, and more than 52 s.
/// A real service keeps the key where it keeps the effect, in the same transaction: no crash gets between them.
const REMEMBER: Duration = Duration::from_secs(3600);
/// How many keys are remembered (200 bytes each) even if more come in that time: then the oldest are forgotten early.
const MOST: usize = 1_000_000;
/// Who reads together: of all that read under this name, one gets a message.
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
    // It acknowledges each message by itself; what it does not within 30 s is delivered again.
    let config = Config { durable_name: Some(DURABLE.to_owned()), ..Config::default() };
    let consumer = stream.get_or_create_consumer(DURABLE, config).await?;
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let key = message.headers.as_ref().and_then(|headers| headers.get("idempotency-key")).map(|key| key.as_str());
        let repeat = keys.know(key);
        // Here, unless it is a repeat, is done what the message asks for; if that fails, the key is not yet known.
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
        if self.since.elapsed() > REMEMBER || self.recent.len() >= MOST {
            (self.older, self.since) = (std::mem::take(&mut self.recent), Instant::now());
        }
        self.recent.extend(key.map(str::to_owned));
    }
}
