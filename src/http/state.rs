//! `/v1/stats`, `/healthz`, `/readyz`, `/metrics`: the state of the instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::caller::Caller;
use super::lanes::LanePauseView;
use super::openapi::enums;
use crate::clock::Timestamp;
use crate::doors::{DoorState, DoorStatus};
use crate::engine::intake::RefusedPuts;
use crate::engine::{BreakerState, EngineState, FailingDestination, InstanceState, LaneState, PublishRate, SinkState};
use crate::timeline::Link;

/// A loop without a step for this long is stuck. Waiting loops make a step at least every ten seconds.
const STUCK_TIME: Duration = Duration::from_secs(30);

/// The answer of `/v1/stats`.
#[derive(Serialize, ToSchema)]
#[schema(as = Stats)]
struct StatsView {
    instance: String,
    version: &'static str,
    #[schema(format = DateTime)]
    now: String,
    /// When lanes and dead were last read, while the timeline is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    as_of: Option<String>,
    timeline: TimelineView,
    lanes: BTreeMap<String, LaneView>,
    sinks: BTreeMap<String, SinkView>,
    /// The doors of this instance; missing without any, and for tokens with limits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    doors: BTreeMap<String, DoorView>,
    /// The instances that share the timeline, this one first; missing for tokens with limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    instances: Option<Vec<InstanceView>>,
    /// Number of dead occurrences; missing for tokens with limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead: Option<u64>,
}

/// Whether the timeline is reachable.
#[derive(Serialize, ToSchema)]
#[schema(as = TimelineState)]
struct TimelineView {
    #[schema(value_type = enums::TimelineStatus)]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
    /// Shards that are not reachable, if others are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    away: Vec<AwayView>,
    /// When this instance found the timeline gone from Redis with all its tasks; shown for an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    lost: Option<String>,
}

impl TimelineView {
    /// Without addresses, which are not for tokens with limits.
    fn without_detail(self) -> TimelineView {
        TimelineView { detail: None, away: Vec::new(), ..self }
    }
}

/// Shards that are not reachable for the same reason.
#[derive(Serialize, ToSchema)]
#[schema(as = AwayShards)]
struct AwayView {
    shards: Vec<u16>,
    detail: String,
}

/// A lane.
#[derive(Serialize, ToSchema)]
#[schema(as = LaneState)]
struct LaneView {
    /// Null if this instance does not serve the lane.
    sink: Option<String>,
    waiting: u64,
    /// Of these, the ones that were due 1 s ago or earlier.
    overdue: u64,
    in_flight: u64,
    /// Number of paused tasks.
    paused: u64,
    /// The earliest due that waits.
    #[schema(format = DateTime)]
    head: Option<String>,
    head_ms: Option<i64>,
    /// The earliest due that waits or is in flight.
    oldest_ms: Option<i64>,
    /// Messages that a broker took, per second, of all instances in the last 10 s.
    published_per_s: f64,
    /// How late these messages were; missing if there were none. More than 10 minutes are shown as 10 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lateness_ms: Option<LatenessView>,
    /// Missing unless it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pause: Option<LanePauseView>,
}

/// Milliseconds from the due of messages to their acceptance, estimated within the buckets of `punctual_lateness_seconds`.
#[derive(Serialize, ToSchema)]
#[schema(as = Lateness)]
struct LatenessView {
    /// Half of them were at most this late.
    p50: f64,
    /// 99 % of them were at most this late.
    p99: f64,
}

/// An instance, as it said of itself in the last three seconds.
#[derive(Serialize, ToSchema)]
#[schema(as = InstanceState)]
struct InstanceView {
    id: String,
    /// Empty if it sends none.
    version: String,
    /// The lanes that it serves and whose sink it does not find unavailable.
    lanes: Vec<String>,
    /// The sinks that it finds unavailable.
    unavailable_sinks: Vec<String>,
}

/// A door: it reads messages, and puts or cancels a task for each.
#[derive(Serialize, ToSchema)]
#[schema(as = DoorState)]
struct DoorView {
    /// The kind of broker.
    kind: &'static str,
    /// What it reads.
    from: String,
    #[schema(value_type = enums::DoorStatusSchema)]
    status: &'static str,
    /// Why it reads nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

/// A sink.
#[derive(Serialize, ToSchema)]
#[schema(as = SinkState)]
struct SinkView {
    kind: &'static str,
    #[schema(value_type = enums::BreakerSchema)]
    breaker: &'static str,
    /// Why the sink counts as unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
    /// Seconds for which the sink has answered none of the messages under way on this instance; missing below 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unanswered_s: Option<f64>,
    /// Number of destinations at which messages fail, as this instance sees it; missing if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    failing_count: Option<usize>,
    /// Up to 100 of them, the worst first. Missing for tokens with limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    failing: Vec<FailingView>,
}

/// A destination at which messages fail.
#[derive(Serialize, ToSchema)]
#[schema(as = FailingDestination)]
struct FailingView {
    destination: String,
    #[schema(value_type = enums::FailingStatus)]
    status: &'static str,
    /// When the first message failed.
    #[schema(format = DateTime)]
    since: String,
    /// Occurrences in flight on this instance that are published again.
    waiting: u64,
    /// The broker's last error text.
    detail: String,
}

/// The answer of `/readyz`. Callers without the scope `read`, or with limits, see `ready` only.
#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
struct ReadyView {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timeline: Option<TimelineView>,
    /// Unavailable sinks with the reason; their tasks wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unavailable_sinks: Option<BTreeMap<String, String>>,
    /// Number of destinations at which messages fail, of each sink that has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    failing_destinations: Option<BTreeMap<String, usize>>,
    /// Lanes with tasks that this instance does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unserved_lanes: Option<Vec<String>>,
    /// Doors that read nothing at the moment, with the reason; missing if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stopped_doors: Option<BTreeMap<String, String>>,
}

/// The answer of `/healthz`.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
struct HealthView {
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    slowest_loop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_step_seconds: Option<f64>,
}

/// `GET /v1/stats`: lanes, sinks, timeline, doors, instances, dead.
#[utoipa::path(
    get,
    path = "/v1/stats",
    operation_id = "stats",
    summary = "Get statistics",
    tag = "instance",
    responses((status = 200, body = StatsView, description = "Lanes, sinks, doors, instances and the timeline.",
        example = json!({"instance": "4f1c2ab90d3e", "version": "0.1.0", "now": "2026-11-21T12:00:00.000Z", "timeline": {"status": "up"},
            "lanes": {"default": {"sink": "orders", "waiting": 3, "overdue": 0, "in_flight": 0, "paused": 0, "head": "2026-11-21T12:15:00.000Z",
                "head_ms": 1_795_263_300_000_i64, "oldest_ms": 1_795_263_300_000_i64, "published_per_s": 41.5, "lateness_ms": {"p50": 0.7, "p99": 2.4}}},
            "sinks": {"orders": {"kind": "kafka", "breaker": "closed"}},
            "instances": [{"id": "4f1c2ab90d3e", "version": "0.1.0", "lanes": ["default"], "unavailable_sinks": []}], "dead": 0}))),
)]
pub(super) async fn stats(State(api): State<Arc<Api>>, Extension(caller): Extension<Arc<Caller>>) -> Response {
    let mut state = (api.engine)();
    state.lanes.retain(|lane| caller.may_use(&lane.lane));
    if caller.is_limited() {
        let own = |sink: &SinkState| state.lanes.iter().any(|lane| lane.sink.as_ref() == Some(&sink.name));
        state.sinks.retain(own);
    }
    let (timeline, now) = (timeline(&api, &state), api.intake.clock().now());
    let sink = |sink: &SinkState| (sink.name.clone(), sink_view(sink, now, caller.is_limited()));
    let view = StatsView {
        instance: api.instance.clone(),
        version: env!("CARGO_PKG_VERSION"),
        now: now.to_string(),
        as_of: state.as_of.map(|as_of| as_of.to_string()),
        timeline: if caller.is_limited() { timeline.without_detail() } else { timeline },
        lanes: state.lanes.into_iter().map(|state| lane(state, &caller)).collect(),
        sinks: state.sinks.iter().map(sink).collect(),
        doors: if caller.is_limited() { BTreeMap::new() } else { (api.doors)().into_iter().map(door).collect() },
        instances: (!caller.is_limited()).then(|| state.instances.iter().map(|one| instance(one)).collect()),
        dead: (!caller.is_limited()).then_some(state.dead),
    };
    Json(view).into_response()
}

/// `GET /healthz`: 503 if a loop is stuck, so that a supervisor restarts the instance.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    summary = "Whether the instance should be restarted",
    tag = "instance",
    responses(
        (status = 200, body = HealthView, description = "It should not.", example = json!({"healthy": true})),
        (status = 503, body = HealthView, description = "A loop has made no step for 30 s.",
            example = json!({"healthy": false, "slowest_loop": "claim default", "last_step_seconds": 31.5})),
    ),
)]
pub(super) async fn healthz(State(api): State<Arc<Api>>) -> Response {
    let slowest = (api.engine)().slowest_loop;
    let healthy = slowest.as_ref().is_none_or(|(_, since)| *since < STUCK_TIME);
    let view = HealthView {
        healthy,
        last_step_seconds: slowest.as_ref().map(|(_, since)| since.as_secs_f64()),
        slowest_loop: slowest.map(|(name, _)| name),
    };
    (if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(view)).into_response()
}

/// `GET /readyz`: 503 only while tasks cannot be accepted, because the timeline is unreachable or refused the last
/// puts. Unavailable sinks do not change the status. They are listed, with their addresses, only for callers that may
/// read all.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    summary = "Whether tasks can be accepted",
    tag = "instance",
    responses(
        (status = 200, body = ReadyView, description = "They can. Unavailable sinks and lanes without a sink are listed.",
            example = json!({"ready": true, "timeline": {"status": "up"}, "unavailable_sinks": {},
                "failing_destinations": {}, "unserved_lanes": []})),
        (status = 503, body = ReadyView, description = "The timeline is unreachable or refuses.",
            example = json!({"ready": false, "timeline": {"status": "down", "detail": "connection refused"}, "unavailable_sinks": {},
                "failing_destinations": {}, "unserved_lanes": []})),
    ),
)]
pub(super) async fn readyz(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    let state = (api.engine)();
    let view = ready(&api, &state, api.access.may_read_all(&headers));
    (if view.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(view)).into_response()
}

/// `GET /metrics`: all metrics in the OpenMetrics text format.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    summary = "All metrics",
    tag = "instance",
    responses((status = 200, body = String, description = "OpenMetrics text.",
        content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8",
        example = json!("# TYPE punctual_timeline_up gauge\npunctual_timeline_up 1\n# EOF\n"))),
    extensions(("x-codes" = json!(["limited_token"]))),
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let up = matches!((api.engine)().link, Link::Up(_));
    api.metrics.timeline_up.set(i64::from(up));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], api.metrics.text()).into_response()
}

/// The readiness, with the reasons if the caller may see them.
fn ready(api: &Api, state: &EngineState, may_read: bool) -> ReadyView {
    let unavailable = |sink: &SinkState| match &sink.breaker {
        BreakerState::Open { detail, .. } => Some((sink.name.clone(), detail.clone())),
        BreakerState::Closed | BreakerState::HalfOpen { .. } => None,
    };
    let failing = |sink: &SinkState| Some((sink.name.clone(), sink.failing_count)).filter(|(_, count)| *count > 0);
    let unserved = |lane: &&LaneState| lane.sink.is_none();
    let stopped = |door: DoorState| Some((door.name, door.detail?)).filter(|_| door.status != DoorStatus::Up);
    let stopped: BTreeMap<_, _> = (api.doors)().into_iter().filter_map(stopped).collect();
    let timeline = timeline(api, state);
    ReadyView {
        ready: matches!(timeline.status, "up" | "degraded"),
        timeline: may_read.then_some(timeline),
        unavailable_sinks: may_read.then(|| state.sinks.iter().filter_map(unavailable).collect()),
        failing_destinations: may_read.then(|| state.sinks.iter().filter_map(failing).collect()),
        unserved_lanes: may_read
            .then(|| state.lanes.iter().filter(unserved).map(|lane| lane.lane.to_string()).collect()),
        stopped_doors: Some(stopped).filter(|stopped| may_read && !stopped.is_empty()),
    }
}

fn timeline(api: &Api, state: &EngineState) -> TimelineView {
    let (status, detail) = match (&state.link, api.intake.refused()) {
        (Link::Up(_), None) if state.away.is_empty() => ("up", None),
        (Link::Up(_), None) => ("degraded", None),
        (Link::Up(_), Some(RefusedPuts { everywhere, detail })) => {
            (if everywhere { "refusing" } else { "degraded" }, Some(detail))
        }
        (Link::Down(detail), _) => ("down", Some(detail.clone())),
    };
    let away = state.away.iter().map(|away| AwayView {
        shards: away.shards.iter().map(|shard| shard.number()).collect(),
        detail: super::problem::without_secrets(&away.detail),
    });
    TimelineView {
        status,
        detail: detail.as_deref().map(super::problem::without_secrets),
        away: away.collect(),
        lost: state.lost.map(|lost| lost.to_string()),
    }
}

fn lane(state: LaneState, caller: &Caller) -> (String, LaneView) {
    let PublishRate { per_second, lateness } = state.published;
    let view = LaneView {
        sink: state.sink,
        waiting: state.waiting,
        overdue: state.overdue,
        in_flight: state.in_flight,
        paused: state.paused,
        head: state.head.map(|head| head.to_string()),
        head_ms: state.head.map(Timestamp::as_millis),
        oldest_ms: state.oldest.map(Timestamp::as_millis),
        published_per_s: rounded(per_second),
        lateness_ms: lateness.map(|(p50, p99)| LatenessView { p50: millis(p50), p99: millis(p99) }),
        pause: state.pause.map(|paused| LanePauseView::of(paused, caller)),
    };
    (state.lane.to_string(), view)
}

fn instance(state: &InstanceState) -> InstanceView {
    let InstanceState { id, version, lanes, unavailable_sinks } = state.clone();
    InstanceView { id, version, lanes: lanes.iter().map(ToString::to_string).collect(), unavailable_sinks }
}

fn door(state: DoorState) -> (String, DoorView) {
    let DoorState { name, kind, from, status, detail } = state;
    (name, DoorView { kind, from, status: status.as_str(), detail })
}

fn millis(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}

/// With one decimal.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// The view of a sink. Tokens with limits do not see the detail of an unavailable sink, which contains addresses. Nor
/// do they see the failing destinations, which may belong to other callers.
fn sink_view(sink: &SinkState, now: Timestamp, is_limited: bool) -> SinkView {
    let (breaker, detail) = match &sink.breaker {
        BreakerState::Closed => ("closed", None),
        BreakerState::HalfOpen { .. } => ("half-open", None),
        BreakerState::Open { detail, .. } => ("open", Some(detail.clone())),
    };
    let failing = |(failing, waiting): &(FailingDestination, u64)| FailingView {
        destination: failing.destination.clone(),
        status: failing.status,
        since: now.minus(failing.failing_for).whole_second().to_string(),
        waiting: *waiting,
        detail: failing.detail.clone(),
    };
    SinkView {
        kind: sink.kind,
        breaker,
        detail: detail.filter(|_| !is_limited),
        unanswered_s: sink.unanswered_for.map(|silent| rounded(silent.as_secs_f64())),
        failing_count: Some(sink.failing_count).filter(|count| *count > 0),
        failing: if is_limited { Vec::new() } else { sink.failing.iter().map(failing).collect() },
    }
}
