//! `GET /v1/upcoming`: the tasks that wait, by due.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::list::{DEFAULT_LIMIT, MAX_LIMIT, own_prefix};
use super::views::is_overdue;
use crate::clock::Timestamp;
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::TIMELINE;
use crate::http::problem::Problem;
use crate::http::query;
use crate::task::{Lane, TaskId, spec};

/// The query parameters in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct UpcomingParameters {
    /// Of this lane.
    #[param(required = false, nullable = false, pattern = "^[a-z0-9-]{1,32}$", example = "default")]
    lane: Option<String>,
    /// Whose ids begin with this.
    #[param(required = false, nullable = false, min_length = 1, max_length = 200, example = "order-")]
    prefix: Option<String>,
    /// Due at this time or later; without it also what is overdue. A `+` has to be written `%2B`.
    #[param(required = false, nullable = false, format = DateTime)]
    from: Option<String>,
    /// Maximum number of entries.
    #[param(required = false, nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// The tasks that wait, the earliest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Upcoming)]
pub(in crate::http) struct UpcomingView {
    /// The time of the timeline.
    #[schema(format = DateTime)]
    now: String,
    /// By due and then by id.
    items: Vec<UpcomingTaskView>,
    /// Whether others follow. Go on with `from` = the last due.
    more: bool,
}

/// A task that waits.
#[derive(Serialize, ToSchema)]
#[schema(as = UpcomingTask)]
struct UpcomingTaskView {
    id: String,
    lane: String,
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// It waits although it was due at least 1 s ago.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    overdue: bool,
}

/// `GET`: the tasks that wait, by due.
#[utoipa::path(
    get,
    path = "/v1/upcoming",
    operation_id = "list_upcoming",
    summary = "List the tasks that wait, by due",
    description = "The earliest first, so what is overdue comes before the rest. Tasks in flight are not listed. A task \
        whose due changes meanwhile may be missing; `GET /v1/tasks` lists all that stay.",
    tag = "tasks",
    params(UpcomingParameters),
    responses((status = 200, body = UpcomingView, description = "The first tasks that wait.",
        example = json!({"now": "2026-11-21T12:00:00.000Z", "items": [{"id": "order-1", "lane": "default",
            "due": "2026-11-21T13:00:00.000Z", "due_ms": 1_795_266_000_000_i64}], "more": false}))),
    extensions(("x-codes" = json!([TIMELINE, &["foreign_lane", "invalid"]].concat()))),
)]
pub(in crate::http) async fn upcoming(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = query::as_json(request.uri())?;
    let asked = spec::read_upcoming_query(asked.as_bytes(), MAX_LIMIT).map_err(Problem::invalid)?;
    let now = api.intake.clock().now();
    let answer = |items, more| Ok(Json(UpcomingView { now: now.to_string(), items, more }).into_response());
    let may_list = caller.lanes(asked.lane.as_ref())?;
    // No id has both beginnings.
    let Some(prefix) = own_prefix(&caller, asked.prefix) else { return answer(Vec::new(), false) };
    let (from, limit) = (asked.from.unwrap_or(Timestamp::from_millis(1)), asked.limit.unwrap_or(DEFAULT_LIMIT));
    let time_limit = api.limits.timeline_timeout / 2;
    let page = api.intake.upcoming_tasks(may_list, &prefix, from, limit, time_limit).await?;
    if let Some(lane) = asked.lane.as_ref().filter(|_| page.tasks.is_empty()) {
        // Its name may be mistyped.
        api.intake.check_lane(lane)?;
    }
    let view = |(due, id, lane): (Timestamp, TaskId, Lane)| UpcomingTaskView {
        id: id.to_string(),
        lane: lane.to_string(),
        due: due.to_string(),
        due_ms: due.as_millis(),
        overdue: is_overdue(due, now),
    };
    answer(page.tasks.into_iter().map(view).collect(), page.more)
}
