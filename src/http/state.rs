//! `/v1/stats`, `/healthz`, `/readyz`, `/metrics`: how the instance does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Api;
use crate::engine::{BreakerState, EngineState, LaneState};
use crate::timeline::Link;

/// A loop that made no step for this long is stuck. Loops that wait for something step at least once a second.
const STUCK: Duration = Duration::from_secs(30);

/// What `/v1/stats` shows.
#[derive(Serialize)]
struct StatsView {
    instance: String,
    version: &'static str,
    now: String,
    timeline: TimelineView,
    lanes: BTreeMap<String, LaneView>,
    sinks: BTreeMap<String, SinkView>,
    dead: u64,
}

/// Whether the timeline can be reached.
#[derive(Serialize)]
struct TimelineView {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
}

/// A lane.
#[derive(Serialize)]
struct LaneView {
    /// Null: nobody here serves it.
    sink: Option<String>,
    waiting: u64,
    in_flight: u64,
    /// The smallest due that waits.
    head: Option<String>,
    head_ms: Option<i64>,
}

/// A sink.
#[derive(Serialize)]
struct SinkView {
    kind: &'static str,
    #[serde(flatten)]
    breaker: BreakerView,
}

/// A sink's breaker, and how it was noticed that it is absent.
#[derive(Serialize)]
struct BreakerView {
    breaker: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
}

/// What `/readyz` shows.
#[derive(Serialize)]
struct ReadyView {
    ready: bool,
    timeline: TimelineView,
    /// Sinks that are absent, with the reason; their tasks wait.
    absent_sinks: BTreeMap<String, String>,
    /// Lanes that hold tasks and that nobody here serves.
    unserved_lanes: Vec<String>,
}

/// What `/healthz` shows.
#[derive(Serialize)]
struct HealthView {
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    slowest_loop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_step_seconds: Option<f64>,
}

/// `GET /v1/stats`: lanes, sinks, timeline.
pub(super) async fn stats(State(api): State<Arc<Api>>) -> Response {
    let state = (api.engine)();
    let view = StatsView {
        instance: api.instance.clone(),
        version: env!("CARGO_PKG_VERSION"),
        now: api.intake.clock().now().to_string(),
        timeline: timeline(&api, &state.link),
        lanes: state.lanes.iter().map(lane).collect(),
        sinks: state
            .sinks
            .iter()
            .map(|sink| (sink.name.clone(), SinkView { kind: sink.kind, breaker: breaker(&sink.breaker) }))
            .collect(),
        dead: state.dead,
    };
    Json(view).into_response()
}

/// `GET /healthz`: 503 when a loop is stuck, so that whoever watches starts the instance anew.
pub(super) async fn healthz(State(api): State<Arc<Api>>) -> Response {
    let slowest = (api.engine)().slowest_loop;
    let healthy = slowest.as_ref().is_none_or(|(_, since)| *since < STUCK);
    let view = HealthView {
        healthy,
        last_step_seconds: slowest.as_ref().map(|(_, since)| since.as_secs_f64()),
        slowest_loop: slowest.map(|(name, _)| name),
    };
    (if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(view)).into_response()
}

/// `GET /readyz`: 503 only while tasks cannot be taken in: the timeline is away, or refused the last puts. Absent sinks
/// cost nothing and are named.
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Response {
    let state = (api.engine)();
    let view = ready(&api, &state);
    (if view.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(view)).into_response()
}

/// `GET /metrics`: everything that is counted, as OpenMetrics text.
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let up = matches!((api.engine)().link, Link::Up(_));
    api.metrics.timeline_up.set(i64::from(up));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], api.metrics.text()).into_response()
}

fn ready(api: &Api, state: &EngineState) -> ReadyView {
    let absent = |sink: &crate::engine::SinkState| match &sink.breaker {
        BreakerState::Open { words, .. } => Some((sink.name.clone(), words.clone())),
        BreakerState::Closed | BreakerState::HalfOpen { .. } => None,
    };
    let unserved = |lane: &&LaneState| lane.sink.is_none();
    let timeline = timeline(api, &state.link);
    ReadyView {
        ready: timeline.status == "up",
        timeline,
        absent_sinks: state.sinks.iter().filter_map(absent).collect(),
        unserved_lanes: state.lanes.iter().filter(unserved).map(|lane| lane.lane.to_string()).collect(),
    }
}

fn timeline(api: &Api, link: &Link) -> TimelineView {
    let (status, words) = match (link, api.intake.refused()) {
        (Link::Up(_), None) => ("up", None),
        (Link::Up(_), Some(words)) => ("refusing", Some(words)),
        (Link::Down(words), _) => ("down", Some(words.clone())),
    };
    TimelineView { status, words: words.as_deref().map(super::problem::without_secrets) }
}

fn lane(state: &LaneState) -> (String, LaneView) {
    let view = LaneView {
        sink: state.sink.clone(),
        waiting: state.waiting,
        in_flight: state.in_flight,
        head: state.head.map(|head| head.to_string()),
        head_ms: state.head.map(crate::clock::Timestamp::as_millis),
    };
    (state.lane.to_string(), view)
}

fn breaker(state: &BreakerState) -> BreakerView {
    match state {
        BreakerState::Closed => BreakerView { breaker: "closed", words: None },
        BreakerState::HalfOpen { .. } => BreakerView { breaker: "half-open", words: None },
        BreakerState::Open { words, .. } => BreakerView { breaker: "open", words: Some(words.clone()) },
    }
}
