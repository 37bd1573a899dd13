//! Reads the sink's messages back over RabbitMQ's HTTP API. Other readers use the same client library as the sink and
//! would share its errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use punctual_sinks::Sink;
use serde_json::{Value, json};

use super::super::{Broker, Received, suite};
use super::sink;
use crate::support::rabbitmq::RabbitServer;
use crate::support::{have, patient};

/// A node with its management plugin.
struct Managed {
    server: RabbitServer,
    port: u16,
}

impl Managed {
    /// Sends one request to the API as `guest`.
    fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let credentials = format!("Basic {}", STANDARD.encode("guest:guest"));
        let mut response = ureq::post(url).header("authorization", credentials).send(body.to_string()).ok()?;
        serde_json::from_str(&response.body_mut().read_to_string().ok()?).ok()
    }
}

impl Broker for Managed {
    fn start() -> Option<Managed> {
        if !have("rabbitmq-server") {
            return None;
        }
        let (server, port) = RabbitServer::start_managed();
        server.declare_queues("", &["a", "b", "c"]);
        Some(Managed { server, port })
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.server.url(""), answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let asked = json!({"count": 1000, "ackmode": "ack_requeue_true", "encoding": "base64"});
        let mut answer = None;
        // The API may start a moment later than the broker.
        patient(Duration::from_secs(30), || {
            answer = self.post(&format!("/api/queues/%2F/{destination}/get"), &asked);
            answer.is_some()
        });
        answer.expect("an answer").as_array().expect("messages").iter().map(as_received).collect()
    }
}

fn as_received(message: &Value) -> Received {
    let properties = &message["properties"];
    assert_eq!(properties["delivery_mode"], 2, "it would not survive a restart");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let headers = properties["headers"].as_object().expect("headers");
    let mut headers: BTreeMap<String, String> =
        headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    headers.extend(properties["content_type"].as_str().map(|kind| ("content-type".to_owned(), kind.to_owned())));
    let payload = STANDARD.decode(text(&message["payload"])).expect("base64");
    assert!(message["payload_encoding"] == "base64" && message["routing_key"] == "a", "{message}");
    Received { key: text(&properties["message_id"]), headers, payload }
}

suite!(Managed: capabilities::key_headers_and_payload_arrive_intact);
