//! The HTTP API over the in-memory timeline, spoken to byte by byte.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod answers;
mod bad_input;
mod batch;
mod limits;
mod state;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use punctual::clock::{Clock, ManualClock, Timestamp};
use punctual::engine::{EngineState, Intake, LaneRule};
use punctual::http::server::{self, ServerLimits};
use punctual::http::{Api, ApiLimits};
use punctual::metrics::Metrics;
use punctual::task::{Lane, Limits, Shard};
use punctual::timeline::memory::MemoryTimeline;
use punctual::timeline::{ClaimRequest, Claimed, Link, MAX_BATCH, MAX_CLAIM_BYTES, Timeline, Token};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// 2026-11-21T12:00:00Z, the time of these tests.
const NOON: i64 = 1_795_262_400_000;

/// An API over a timeline of one shard, without an engine.
struct Stage {
    clock: Arc<ManualClock>,
    timeline: Arc<MemoryTimeline>,
    metrics: Arc<Metrics>,
    state: Arc<std::sync::Mutex<EngineState>>,
    address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<bool>,
}

/// What a stage may have otherwise.
struct Terms {
    api: ApiLimits,
    server: ServerLimits,
    deadline: Duration,
}

/// An answer, taken apart.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Stage {
    async fn start() -> Stage {
        Stage::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Terms)) -> Stage {
        let mut terms = Terms {
            api: ApiLimits {
                body: 1 << 20,
                body_timeout: Duration::from_secs(20),
                timeline_timeout: Duration::from_secs(5),
                task: Limits::default(),
            },
            server: ServerLimits {
                header_timeout: Duration::from_secs(20),
                write_timeout: Duration::from_secs(20),
                connections: 100,
            },
            deadline: Duration::from_secs(20),
        };
        change(&mut terms);
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOON)));
        let timeline = Arc::new(MemoryTimeline::new(clock.clone(), 1));
        let rules = [("default", false), ("alerts", true)]
            .map(|(lane, destination_required)| (lane.parse().unwrap(), LaneRule { destination_required }));
        let metrics = Arc::new(Metrics::new("0", "i0"));
        let link = Link::Up(1);
        let state = EngineState { link, lanes: Vec::new(), sinks: Vec::new(), dead: 0, slowest_loop: None };
        let state = Arc::new(std::sync::Mutex::new(state));
        let shown = Arc::clone(&state);
        let api = Api {
            intake: Intake::new(timeline.clone(), BTreeMap::from(rules)),
            engine: Box::new(move || shown.lock().unwrap().clone()),
            metrics: Arc::clone(&metrics),
            limits: terms.api,
            instance: "i0".into(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = server::serve(listener, api.router(), terms.server, stop.clone(), terms.deadline);
        Stage { clock, timeline, metrics, state, address, stop, server: tokio::spawn(serving) }
    }

    async fn put(&self, id: &str, task: &str) -> Answer {
        self.call("PUT", &format!("/v1/tasks/{id}"), "application/json", task).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "", "").await
    }

    async fn delete(&self, id: &str) -> Answer {
        self.call("DELETE", &format!("/v1/tasks/{id}"), "", "").await
    }

    async fn batch(&self, lines: &str) -> Answer {
        self.call("POST", "/v1/tasks:batch", "application/x-ndjson", lines).await
    }

    /// One request on a connection of its own; no content-type when it is empty.
    async fn call(&self, method: &str, path: &str, content_type: &str, body: &str) -> Answer {
        let kind = if content_type.is_empty() { String::new() } else { format!("content-type: {content_type}\r\n") };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{kind}content-length: {}\r\n\r\n",
            body.len()
        );
        let (mut from, mut to) = self.connect().await.into_split();
        let request = [head.as_bytes(), body.as_bytes()].concat();
        // Sent while the answer is read, and dropped unsent when the server has said enough: it may refuse early.
        let sending = tokio::spawn(async move { to.write_all(&request).await.map(|()| to) });
        let mut bytes = Vec::new();
        let read = from.read_to_end(&mut bytes).await;
        sending.abort();
        assert!(read.is_ok() || !bytes.is_empty(), "{read:?}");
        Answer::read(&bytes)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Claims what is due of the default lane, as an instance would.
    async fn claim(&self, token: &str) -> Claimed {
        let request = ClaimRequest {
            token: Token(token.into()),
            max: MAX_BATCH,
            max_bytes: MAX_CLAIM_BYTES,
            lease: Duration::from_secs(15),
            not_after: self.clock.now().plus(Duration::from_secs(1)),
            lone: false,
        };
        self.timeline.claim(shard(), &Lane::default(), request).await.unwrap()
    }

    async fn end(self) -> bool {
        self.stop.cancel();
        self.server.await.unwrap()
    }
}

impl Answer {
    fn read(bytes: &[u8]) -> Answer {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Answer { status, head, body }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn lines(&self) -> Vec<Value> {
        self.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The status and code of a problem; checks its form.
    fn problem(&self) -> (u16, String) {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status, "{json}");
        assert_eq!(json["type"], "about:blank");
        assert!(json["title"].is_string() && json["detail"].as_str().is_some_and(|words| !words.is_empty()), "{json}");
        (self.status, json["code"].as_str().unwrap().to_owned())
    }
}

fn shard() -> Shard {
    Shard::all(1).next().unwrap()
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}
