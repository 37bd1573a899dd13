//! `GET /v1/tasks:count`: how many tasks wait, are overdue, in flight or paused.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::clock::Timestamp;
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::TIMELINE;
use crate::http::problem::Problem;
use crate::http::query;
use crate::task::{Lane, spec};
use crate::timeline::LaneCounts;

/// The query parameters in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct CountParameters {
    /// Of this lane.
    #[param(required = false, nullable = false, pattern = "^[a-z0-9-]{1,32}$", example = "default")]
    lane: Option<String>,
    /// Where the first window begins; together with `to`. A `+` has to be written `%2B`.
    #[param(required = false, nullable = false, format = DateTime)]
    from: Option<String>,
    /// The end of the last window, which does not belong to it.
    #[param(required = false, nullable = false, format = DateTime)]
    to: Option<String>,
    /// Number of windows of the same length.
    #[param(required = false, nullable = false, minimum = 1, maximum = 120, default = 1)]
    windows: Option<u32>,
}

/// How many tasks there are.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskCounts)]
pub(in crate::http) struct TaskCountsView {
    /// The time of the timeline.
    #[schema(format = DateTime)]
    now: String,
    /// The tasks of each lane.
    lanes: BTreeMap<String, LaneCountsView>,
    /// With `from` and `to`: those that wait, by due, over all these lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    windows: Option<Vec<WindowView>>,
}

/// How many tasks of a lane there are, with requeued dead occurrences.
#[derive(Serialize, ToSchema)]
#[schema(as = LaneCounts)]
struct LaneCountsView {
    /// Those that wait.
    waiting: u64,
    /// Those of them that were due at least 1 s ago.
    overdue: u64,
    /// Those in flight: being published, or waiting for a retry.
    in_flight: u64,
    /// Those that are paused.
    paused: u64,
}

/// How many tasks that wait are due in a window.
#[derive(Serialize, ToSchema)]
#[schema(as = Window)]
struct WindowView {
    /// Where it begins.
    #[schema(format = DateTime)]
    from: String,
    /// Where the next one begins.
    #[schema(format = DateTime)]
    to: String,
    /// Those that wait.
    waiting: u64,
}

/// `GET`: counts tasks.
#[utoipa::path(
    get,
    path = "/v1/tasks:count",
    operation_id = "count_tasks",
    summary = "Count tasks",
    description = "By lane, and between `from` and `to` by due. Requeued dead occurrences count, too. Lanes are counted \
        one after the other, so a task that changes its lane meanwhile may count twice or not at all.",
    tag = "tasks",
    params(CountParameters),
    responses((status = 200, body = TaskCountsView, description = "The numbers.",
        example = json!({"now": "2026-11-21T12:00:00.000Z", "lanes": {"default": {"waiting": 1, "overdue": 0, "in_flight": 0, "paused": 0}}}))),
    extensions(("x-codes" = json!([TIMELINE, &["foreign_lane", "invalid"]].concat()))),
)]
pub(in crate::http) async fn count(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = query::as_json(request.uri())?;
    let asked = spec::read_count_query(asked.as_bytes()).map_err(Problem::invalid)?;
    let may_count = caller.lanes(asked.lane.as_ref())?;
    let now = api.intake.clock().now();
    let counts = api.intake.count_tasks(may_count, &asked.borders, api.limits.timeline_timeout / 2).await?;
    if let Some(lane) = asked.lane.as_ref().filter(|_| counts.is_empty()) {
        // Its name may be mistyped.
        api.intake.check_lane(lane)?;
    }
    let lane_view = |(lane, counted): (Lane, LaneCounts)| {
        let LaneCounts { waiting, overdue, in_flight, paused, .. } = counted;
        (lane.to_string(), LaneCountsView { waiting, overdue, in_flight, paused })
    };
    let window_view = |(place, borders): (usize, &[Timestamp])| WindowView {
        from: borders[0].to_string(),
        to: borders[1].to_string(),
        waiting: counts.values().map(|counted| counted.windows[place]).sum(),
    };
    let windows = asked.borders.windows(2).enumerate().map(window_view).collect();
    let windows = Some(windows).filter(|_| !asked.borders.is_empty());
    let lanes = counts.into_iter().map(lane_view).collect();
    Ok(Json(TaskCountsView { now: now.to_string(), lanes, windows }).into_response())
}
