//! `/v1/lanes/{lane}/pause` and `/resume`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::caller::Caller;
use super::openapi::enums::LaneResult;
use super::openapi::task::{LanePauseSchema, NothingMore};
use super::openapi::{BODY, TIMELINE};
use super::problem::Problem;
use super::server::body;
use crate::engine::PausedLane;
use crate::task::Lane;
use crate::task::id::BadName;
use crate::task::spec::{self, Fault, LanePauseBody};
use crate::timeline::{LanePauseRequest, PauseNote};

/// The name of a lane in a path.
type LaneInPath = Result<Path<String>, PathRejection>;

/// The path parameter in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct LaneName {
    /// The lane.
    #[param(pattern = "^[a-z0-9-]{1,32}$", example = "default")]
    lane: String,
}

/// The answer to a pause or a resume.
#[derive(Serialize, ToSchema)]
#[schema(as = LaneAnswer)]
struct LaneAnswerView<'a> {
    #[schema(value_type = String)]
    lane: &'a Lane,
    #[schema(value_type = LaneResult)]
    result: &'static str,
    /// Number of its occurrences in flight, which may still be published.
    in_flight: u64,
}

/// Why and since when a lane is paused.
#[derive(Serialize, ToSchema)]
#[schema(as = LanePause)]
pub(super) struct LanePauseView {
    /// When it was paused.
    #[schema(format = DateTime)]
    at: String,
    /// The name of the token that paused it. Missing without tokens, and for tokens with limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    note: String,
    /// When the pause ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    until: Option<String>,
    /// In how many shards it is paused, if not in all: a request to pause or resume it failed. Repeat it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    shards: Option<u16>,
}

impl LanePauseView {
    pub(super) fn of(paused: PausedLane, caller: &Caller) -> LanePauseView {
        let PausedLane { pause, shards, everywhere } = paused;
        LanePauseView {
            at: pause.at.to_string(),
            by: pause.about.by.filter(|_| !caller.is_limited()),
            note: pause.about.note,
            until: pause.until.map(|until| until.to_string()),
            shards: (!everywhere).then_some(shards),
        }
    }
}

/// `POST`: pauses a lane.
#[utoipa::path(
    post,
    path = "/v1/lanes/{lane}/pause",
    operation_id = "pause_lane",
    summary = "Pause a lane",
    description = "After the answer, no instance claims anything of the lane; what is in flight may still be published and, for about a second, \
        retried. \
        Its tasks wait, and other lanes go on. A repeated request replaces note and end. After an error, repeat it: some \
        shards may be paused.",
    tag = "lanes",
    params(LaneName),
    request_body(content = LanePauseSchema, example = json!({"note": "broker moves", "until": "2026-11-21T14:00:00Z"})),
    responses((status = 200, body = LaneAnswerView, description = "It is paused.",
        example = json!({"lane": "default", "result": "paused", "in_flight": 0}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["limited_token", "foreign_lane", "unknown"]].concat()))),
)]
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    lane: LaneInPath,
    request: Request,
) -> Result<Response, Problem> {
    let now = api.intake.clock().now();
    let read_body = |body: &[u8]| spec::read_lane_pause(body, now);
    let (lane, LanePauseBody { note, until }) =
        body::path_and_small_json(&api, read_lane(lane), request, read_body).await?;
    let about = PauseNote { by: caller.name().map(str::to_owned), note };
    answer(&api, &caller, &lane, "pause_lane", LanePauseRequest::Pause { until, about }).await
}

/// `POST`: resumes a lane.
#[utoipa::path(
    post,
    path = "/v1/lanes/{lane}/resume",
    operation_id = "resume_lane",
    summary = "Resume a lane",
    description = "Within a second, instances publish its messages again, those that became due meanwhile at once. The \
        `catch_up` of each task applies, as after an outage.",
    tag = "lanes",
    params(LaneName),
    request_body(content = NothingMore, example = json!({})),
    responses((status = 200, body = LaneAnswerView, description = "It is not paused any more.",
        example = json!({"lane": "default", "result": "resumed", "in_flight": 0}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["limited_token", "foreign_lane", "unknown"]].concat()))),
)]
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    lane: LaneInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (lane, ()) = body::path_and_small_json(&api, read_lane(lane), request, spec::read_nothing).await?;
    answer(&api, &caller, &lane, "resume_lane", LanePauseRequest::Resume).await
}

fn read_lane(lane: LaneInPath) -> Result<Lane, Fault> {
    let fault = |detail: String| Fault { pointer: "/lane".into(), code: "bad_lane", detail };
    let Path(lane) = lane.map_err(|rejection| fault(rejection.to_string()))?;
    lane.parse().map_err(|bad: BadName| fault(bad.to_string()))
}

async fn answer(
    api: &Api,
    caller: &Caller,
    lane: &Lane,
    action: &'static str,
    request: LanePauseRequest,
) -> Result<Response, Problem> {
    caller.check_lane_to_steer(lane)?;
    let answer = api.intake.pause_lane(lane, request, caller.name(), api.limits.timeline_timeout).await?;
    let result = answer.result.as_str();
    api.metrics.action(action, result);
    Ok(Json(LaneAnswerView { lane, result, in_flight: answer.in_flight }).into_response())
}
