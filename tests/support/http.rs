//! An API client that keeps its connections, follows no redirects and never repeats a request by itself.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;

/// The API of one instance.
#[derive(Clone)]
pub(crate) struct Api {
    agent: Agent,
    port: u16,
}

/// An answer of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The body, byte for byte.
    pub(crate) text: String,
}

/// No answer came.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// No instance listens: the request was not sent.
    NotSent,
    /// The request may have been sent, and may have taken effect.
    Unknown(String),
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The body's lines as JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let line = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        self.text.lines().map(line).collect()
    }
}

impl Api {
    /// The address for command lines.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A client of the instance on this port.
    pub(crate) fn new(port: u16) -> Api {
        let config = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(60)))
            .timeout_connect(Some(Duration::from_secs(10)))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections_per_host(16)
            .build();
        Api { agent: config.into(), port }
    }

    /// Sends one request, once.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&str>) -> Result<Answer, NoAnswer> {
        let uri = format!("http://127.0.0.1:{}{path}", self.port);
        let content = if path.ends_with(":batch") { "application/x-ndjson" } else { "application/json" };
        let request = Request::builder().method(method).uri(uri);
        let response = match body {
            Some(body) => self.agent.run(request.header("content-type", content).body(body).expect("a request")),
            None => self.agent.run(request.body(()).expect("a request")),
        };
        let mut response = response.map_err(|error| match error {
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => NoAnswer::NotSent,
            error => NoAnswer::Unknown(error.to_string()),
        })?;
        let text = response.body_mut().with_config().limit(64 << 20).read_to_string();
        let text = text.map_err(|error| NoAnswer::Unknown(error.to_string()))?;
        Ok(Answer { status: response.status().as_u16(), text })
    }

    /// Puts a task.
    pub(crate) fn put(&self, id: &str, body: &str) -> Result<Answer, NoAnswer> {
        self.send("PUT", &format!("/v1/tasks/{id}"), Some(body))
    }

    /// Value of a line of `/metrics` by name and labels, `punctual_claims_total{lane="a"}`; 0 if there is no such line.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.send("GET", "/metrics", None).expect("an answer").text;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Answer of `/readyz`; `None` if none came, whatever the reason.
    pub(crate) fn ready(&self) -> Option<Answer> {
        self.send("GET", "/readyz", None).ok()
    }
}
