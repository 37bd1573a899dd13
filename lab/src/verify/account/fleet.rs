//! The instances' API: sends one request once to one instance, and interprets the answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use rand::RngExt;
use serde::Deserialize;
use tokio::sync::{Semaphore, watch};

use super::entry::DefiniteAnswer;
use super::ledger::{parts, trace_of};

/// Timeout of an answer, longer than a working instance needs, so that one that was stopped for a moment can still
/// answer.
const LIMIT: Duration = Duration::from_secs(12);

/// Maximum number of requests under way; idle connections per instance, and their lifetime.
const REQUESTS: usize = 1000;
const IDLE: usize = 100;
const IDLE_FOR: Duration = Duration::from_secs(5);

/// The first and the longest pause before a request is repeated, so that repeated requests do not keep instances from
/// recovering.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pause after `tries` attempts, at least 1.
pub(super) fn pause(tries: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// Several instances.
pub(super) struct Fleet {
    client: Client<HttpConnector, Full<Bytes>>,
    room: Semaphore,
    apis: watch::Receiver<Vec<SocketAddr>>,
    /// Requests under way, by instance.
    waiting: Mutex<HashMap<SocketAddr, usize>>,
    /// Requests without a definite answer.
    pub(super) repeated: AtomicU64,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Reply {
    /// It was not sent.
    NotSent,
    /// It was sent and not answered.
    None,
    /// An answer, whose body may be incomplete.
    Answer { status: u16, body: String },
}

/// The meaning of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerMeaning {
    /// A definite answer, and the id.
    DefiniteAnswer(DefiniteAnswer, String),
    /// It had no effect, and never will.
    NoEffect,
    /// It took effect before this answer, or never will.
    Maybe,
    /// No correct instance gives this answer.
    Impossible(String),
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    /// `Idempotency-Key`.
    pub(super) key: Option<String>,
    pub(super) body: String,
}

/// A request to an instance without an answer yet.
struct Waiting<'a>(&'a Fleet, SocketAddr);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0.waiting.lock().get_mut(&self.1) {
            *count -= 1;
        }
    }
}

impl Fleet {
    /// `apis` are the instances believed to be up.
    pub(super) fn new(apis: watch::Receiver<Vec<SocketAddr>>) -> Fleet {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE)
            .build(connector);
        Fleet { client, room: Semaphore::new(REQUESTS), apis, waiting: Mutex::default(), repeated: AtomicU64::new(0) }
    }

    /// Sends a request to one instance, once.
    pub(super) async fn send(&self, ask: &Ask) -> Reply {
        let Ok(_room) = self.room.acquire().await else { return Reply::NotSent };
        let Some(api) = self.choose() else { return Reply::NotSent };
        let waiting = Waiting(self, api);
        let batch = ask.path.ends_with(":batch");
        let content = if batch { "application/x-ndjson" } else { "application/json" };
        let mut request = Request::builder().method(&ask.method).uri(format!("http://{api}{}", ask.path));
        if !ask.body.is_empty() {
            request = request.header("content-type", content);
        }
        if let (&Method::PUT, Some(id)) = (&ask.method, ask.path.strip_prefix("/v1/tasks/")) {
            request = request.header("traceparent", trace_of(id));
        }
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        let Ok(request) = request.body(Full::from(ask.body.clone())) else { return Reply::NotSent };
        let reply = tokio::time::timeout(LIMIT, self.client.request(request)).await;
        let reply = match reply {
            Ok(Ok(answer)) => {
                let (status, mut rest, mut body) = (answer.status().as_u16(), answer.into_body(), Vec::new());
                let whole = loop {
                    match tokio::time::timeout(LIMIT, rest.frame()).await {
                        Ok(Some(Ok(frame))) => body.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                        Ok(None) => break true,
                        Ok(Some(Err(_))) | Err(_) => break false,
                    }
                };
                // In a batch each complete line is an answer; for one task, an incomplete answer is none.
                match whole || batch {
                    true => Reply::Answer { status, body: String::from_utf8_lossy(&body).into_owned() },
                    false => Reply::None,
                }
            }
            Ok(Err(error)) if error.is_connect() => Reply::NotSent,
            Ok(Err(_)) | Err(_) => Reply::None,
        };
        drop(waiting);
        if !matches!(&reply, Reply::Answer { status, .. } if *status != 503) {
            self.repeated.fetch_add(1, Ordering::Relaxed);
        }
        reply
    }

    /// Of two instances the one with fewer requests under way, so that a stopped one gets few.
    fn choose(&self) -> Option<SocketAddr> {
        let apis = self.apis.borrow();
        if apis.is_empty() {
            return None;
        }
        let mut waiting = self.waiting.lock();
        let random = || apis[rand::rng().random_range(0..apis.len())];
        let (one, other) = (random(), random());
        let of = |api| waiting.get(&api).copied().unwrap_or(0);
        let api = if of(one) <= of(other) { one } else { other };
        *waiting.entry(api).or_default() += 1;
        Some(api)
    }
}

/// The members of answers that are read here.
#[derive(Deserialize)]
struct View {
    id: Option<String>,
    result: Option<String>,
    due_ms: Option<i64>,
    in_flight: Option<String>,
    key: Option<String>,
    #[serde(default)]
    handed_out: bool,
    code: Option<String>,
    status: Option<serde_json::Value>,
    error: Option<Box<View>>,
    #[serde(default)]
    errors: Vec<View>,
}

impl View {
    fn is_over(&self) -> bool {
        matches!(self.code.as_deref(), Some("never_due" | "end_before_first"))
    }
}

/// Interprets the answer to a put or a cancel; `id` is that of the task, empty if the server generates it.
pub(super) fn read(status: u16, body: &str, id: &str) -> AnswerMeaning {
    let Ok(view) = serde_json::from_str::<View>(body) else {
        return if status < 400 {
            AnswerMeaning::Maybe
        } else {
            AnswerMeaning::Impossible(format!("{status}: {body}"))
        };
    };
    word(status, view, id).unwrap_or_else(|| AnswerMeaning::Impossible(format!("{status}: {body}")))
}

/// Interprets a line of a batch's answer.
pub(super) fn read_line(line: &str, id: &str) -> AnswerMeaning {
    let strange = || AnswerMeaning::Impossible(line.to_owned());
    let Ok(mut view) = serde_json::from_str::<View>(line) else { return strange() };
    if view.id.as_deref() != Some(id) {
        return strange();
    }
    match view.error.take() {
        Some(error) => {
            let status = error.status.as_ref().and_then(serde_json::Value::as_u64).unwrap_or(0);
            word(u16::try_from(status).unwrap_or(0), *error, id)
        }
        None => word(200, view, id),
    }
    .unwrap_or_else(strange)
}

fn word(status: u16, view: View, id: &str) -> Option<AnswerMeaning> {
    let named = view.id.clone().unwrap_or_else(|| id.to_owned());
    // The key must be one of this task.
    let due_of = |key: &Option<String>| match key.as_deref().map(parts) {
        None => Some(None),
        Some(Some((task, due))) if task == named => Some(Some(due)),
        Some(_) => None,
    };
    let answer = match (status, view.code.as_deref(), view.result.as_deref()) {
        (503, Some("timeline_late" | "timeline_refused" | "timeline_unavailable"), _) | (408, ..) => {
            return Some(AnswerMeaning::NoEffect);
        }
        (503, ..) => return Some(AnswerMeaning::Maybe),
        (409, Some("in_flight"), _) if due_of(&view.key)?.is_some() => DefiniteAnswer::Refused,
        // It arrived after its last occurrence.
        (422, ..) if matches!(view.errors.as_slice(), [fault] if fault.is_over()) => DefiniteAnswer::Refused,
        (404, Some("unknown"), _) => DefiniteAnswer::Unknown,
        (200 | 201, _, Some("created")) => {
            DefiniteAnswer::Created { due: view.due_ms?, in_flight: due_of(&view.in_flight)? }
        }
        (200, _, Some("replaced")) => {
            DefiniteAnswer::Replaced { due: view.due_ms?, in_flight: due_of(&view.in_flight)? }
        }
        (200, _, Some("unchanged")) => DefiniteAnswer::Unchanged { due: view.due_ms? },
        (200, _, Some("cancelled")) if view.handed_out => {
            DefiniteAnswer::Cancelled { handed_out: Some(due_of(&view.key)??) }
        }
        (200, _, Some("cancelled")) => DefiniteAnswer::Cancelled { handed_out: None },
        (200, _, Some("in_flight")) => DefiniteAnswer::CancelledInFlight { due: due_of(&view.key)?? },
        _ => return None,
    };
    Some(AnswerMeaning::DefiniteAnswer(answer, named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definite(answer: DefiniteAnswer) -> AnswerMeaning {
        AnswerMeaning::DefiniteAnswer(answer, "a".to_owned())
    }

    #[test]
    fn api_answers_are_parsed_as_documented() {
        let cases = [
            (
                201,
                r#"{"id":"a","result":"created","due_ms":5}"#,
                definite(DefiniteAnswer::Created { due: 5, in_flight: None }),
            ),
            (
                200,
                r#"{"id":"a","result":"replaced","due_ms":5,"in_flight":"a:3"}"#,
                definite(DefiniteAnswer::Replaced { due: 5, in_flight: Some(3) }),
            ),
            (200, r#"{"id":"a","result":"unchanged","due_ms":5}"#, definite(DefiniteAnswer::Unchanged { due: 5 })),
            (200, r#"{"id":"a","result":"cancelled"}"#, definite(DefiniteAnswer::Cancelled { handed_out: None })),
            (
                200,
                r#"{"id":"a","result":"cancelled","key":"a:3","handed_out":true}"#,
                definite(DefiniteAnswer::Cancelled { handed_out: Some(3) }),
            ),
            (
                200,
                r#"{"id":"a","result":"in_flight","key":"a:3"}"#,
                definite(DefiniteAnswer::CancelledInFlight { due: 3 }),
            ),
            (404, r#"{"status":404,"code":"unknown"}"#, definite(DefiniteAnswer::Unknown)),
            (409, r#"{"status":409,"code":"in_flight","key":"a:3"}"#, definite(DefiniteAnswer::Refused)),
            (503, r#"{"status":503,"code":"timeline_unavailable"}"#, AnswerMeaning::NoEffect),
            (503, r#"{"status":503,"code":"timeline_unknown"}"#, AnswerMeaning::Maybe),
        ];
        for (status, body, word) in cases {
            assert_eq!(read(status, body, "a"), word, "{body}");
        }
        for (status, body) in [
            (500, r#"{"code":"internal"}"#),
            (200, r#"{"id":"a","result":"in_flight","key":"b:3"}"#),
            (409, r#"{"code":"in_flight","key":"b:3"}"#),
            (200, r#"{"id":"a","result":"created"}"#),
        ] {
            assert!(matches!(read(status, body, "a"), AnswerMeaning::Impossible(_)), "{body}");
        }
        let line = r#"{"line":1,"id":"a","error":{"status":503,"code":"timeline_late"}}"#;
        assert_eq!(read_line(line, "a"), AnswerMeaning::NoEffect);
        let line = r#"{"line":1,"id":"a","result":"created","due_ms":5}"#;
        assert_eq!(read_line(line, "a"), definite(DefiniteAnswer::Created { due: 5, in_flight: None }));
        assert!(matches!(read_line(line, "b"), AnswerMeaning::Impossible(_)));
    }
}
