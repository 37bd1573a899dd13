//! Consumes a Redis stream that punctual publishes to, and detects repeats by their idempotency key.
//!
//! ```sh
//! cargo run --example consume_redis -- redis://127.0.0.1:6379 orders.cancel
//! ```
//! Prints each delivery as JSON until it is killed. After an error it prints the error and reconnects in a second.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example for copying")]

use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{collections::HashSet, convert::Infallible, error::Error};

use redis::{TypedCommands, streams::StreamReadOptions};
use serde_json::json;

/// How long a key is remembered: the longest outage after which a repeat must not have a second effect. It must be more than 52 s.
/// A real service stores the key together with the effect, in one transaction, so that no crash can separate them.
const REMEMBER: Duration = Duration::from_secs(3600);
/// Maximum number of keys in each of the two sets (200 bytes each). Beyond that the oldest are forgotten early.
const MAX_KEYS: usize = 1_000_000;
/// Each entry goes to one consumer of the group. Each consumer has a name of its own.
const GROUP: &str = "cancellations";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, stream] = &arguments[..] else { return Err("usage: consume_redis URL STREAM".into()) };
    let mut keys = Keys { recent: HashSet::new(), older: HashSet::new(), since: Instant::now() };
    loop {
        let Err(error) = consume(url, stream, &mut keys);
        eprintln!("{error}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn consume(url: &str, stream: &str, keys: &mut Keys) -> Result<Infallible, Box<dyn Error>> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    // A server that is silent for longer than the block timeout is gone.
    redis.set_read_timeout(Some(Duration::from_secs(10)))?;
    let created = redis.xgroup_create_mkstream(stream, GROUP, "0");
    created.or_else(|error| if error.code() == Some("BUSYGROUP") { Ok(()) } else { Err(error) })?;
    let options = StreamReadOptions::default().group(GROUP, "consumer-1").count(100).block(5000);
    // First the entries that were delivered before and not acknowledged ("0"), then new ones (">").
    let mut from = "0";
    loop {
        let reply = redis.xread_options(&[stream], &[from], &options)?.unwrap_or_default();
        let entries: Vec<_> = reply.keys.into_iter().flat_map(|stream| stream.ids).collect();
        from = if entries.is_empty() { ">" } else { from };
        for entry in entries {
            let key: Option<String> = entry.get("idempotency-key");
            let repeat = keys.know(key.as_deref());
            // Unless it is a repeat, handle the message here. If that fails, its key is not remembered.
            let now = UNIX_EPOCH.elapsed()?.as_millis();
            let payload = entry.get::<Vec<u8>>("payload").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            println!("{}", json!({"key": key, "repeat": repeat, "received_ms": now, "payload": payload}));
            keys.remember(key.as_deref());
            redis.xack(stream, GROUP, &[entry.id])?;
        }
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
