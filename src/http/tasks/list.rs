//! `GET /v1/tasks`: lists tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::views::is_overdue;
use crate::clock::Timestamp;
use crate::engine::list::{ListError, ListPosition};
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::TIMELINE;
use crate::http::openapi::enums::{self, ListStatus};
use crate::http::problem::Problem;
use crate::http::query;
use crate::task::Lane;
use crate::task::spec::{self, Fault, TaskQuery};
use crate::timeline::{ScannedTask, TaskFilter, TaskStatus};

/// Default of the parameter `limit`.
pub(super) const DEFAULT_LIMIT: usize = 100;

/// Largest value of the parameter `limit`. A page of the list may have some more entries.
pub(super) const MAX_LIMIT: u64 = 1000;

/// The query parameters of the list in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct TaskListQuery {
    /// Of this lane.
    #[param(required = false, nullable = false, pattern = "^[a-z0-9-]{1,32}$", example = "default")]
    lane: Option<String>,
    /// With this status. An overdue task is scheduled, too.
    #[param(required = false, nullable = false, value_type = ListStatus)]
    status: Option<String>,
    /// Whose ids begin with this.
    #[param(required = false, nullable = false, min_length = 1, max_length = 200, example = "order-")]
    prefix: Option<String>,
    /// Whose ids contain this.
    #[param(required = false, nullable = false, min_length = 1, max_length = 200)]
    contains: Option<String>,
    /// Due at this time or later. A `+` has to be written `%2B`.
    #[param(required = false, nullable = false, format = DateTime)]
    due_from: Option<String>,
    /// Due before this time.
    #[param(required = false, nullable = false, format = DateTime)]
    due_to: Option<String>,
    /// About how many entries; a page may have some more.
    #[param(required = false, nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(required = false, nullable = false)]
    cursor: Option<String>,
}

/// A page of tasks.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskList)]
pub(in crate::http) struct TaskListView {
    /// The entries, in no order.
    items: Vec<ListedTaskView>,
    /// The `cursor` for the next page; missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// A task in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedTask)]
struct ListedTaskView {
    id: String,
    lane: String,
    #[schema(value_type = enums::Status)]
    status: &'static str,
    /// Of the occurrence that waits or is in flight.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// It waits although it was due at least 1 s ago.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    overdue: bool,
}

/// `GET`: lists tasks.
#[utoipa::path(
    get,
    path = "/v1/tasks",
    operation_id = "list_tasks",
    summary = "List tasks",
    description = "In no order. A task that stays in its lane is listed at least once, whatever happens to others \
        meanwhile; one that changes its lane may come twice or not at all. A page may be empty although later entries \
        match. The list ends when `next_cursor` is missing. Requeued dead occurrences are not listed.",
    tag = "tasks",
    params(TaskListQuery),
    responses((status = 200, body = TaskListView, description = "A page of the list.",
        example = json!({"items": [{"id": "order-1", "lane": "default", "status": "scheduled",
            "due": "2026-11-21T13:00:00.000Z", "due_ms": 1_795_266_000_000_i64}]}))),
    extensions(("x-codes" = json!([TIMELINE, &["foreign_lane", "cursor_gone", "invalid"]].concat()))),
)]
pub(in crate::http) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = query::as_json(request.uri())?;
    let asked = spec::read_task_query(asked.as_bytes(), &statuses(), MAX_LIMIT).map_err(Problem::invalid)?;
    let position = position_from(asked.cursor.as_deref())?;
    let (lane, limit) = (asked.lane.clone(), asked.limit.unwrap_or(DEFAULT_LIMIT));
    let may_list = caller.lanes(lane.as_ref())?;
    // No id has both beginnings.
    let Some(filter) = filter_for(&caller, asked) else {
        return Ok(Json(TaskListView { items: Vec::new(), next_cursor: None }).into_response());
    };
    let is_first = position.is_none();
    let page = api.intake.list(may_list, &filter, position, limit, api.limits.timeline_timeout / 2).await;
    let page = page.map_err(list_error)?;
    if let Some(lane) = lane.as_ref().filter(|_| is_first && page.tasks.is_empty() && page.next.is_none()) {
        // Its name may be mistyped.
        api.intake.check_lane(lane)?;
    }
    let now = api.intake.clock().now();
    let items = page.tasks.into_iter().map(|(lane, task)| view(&lane, &task, now)).collect();
    let next_cursor = page.next.map(|position| position_text(&position));
    Ok(Json(TaskListView { items, next_cursor }).into_response())
}

/// Why a list ends early.
pub(super) fn list_error(error: ListError) -> Problem {
    match error {
        ListError::PositionLost => Problem::new(StatusCode::GONE, "cursor_gone", error.to_string()),
        ListError::Timeline(error) => error.into(),
    }
}

/// The words for a status.
pub(super) fn statuses() -> Vec<&'static str> {
    TaskStatus::ALL.iter().map(|status| status.as_str()).collect()
}

/// The filter of a request, limited to ids that the caller may use; `None` if there are none.
pub(super) fn filter_for(caller: &Caller, asked: TaskQuery) -> Option<TaskFilter> {
    let TaskQuery { status, prefix, contains, due_from, due_to, .. } = asked;
    let prefix = own_prefix(caller, prefix)?;
    let status = status.and_then(|word| TaskStatus::of(&word));
    Some(TaskFilter { status, prefix, contains, due_from, due_to })
}

/// The beginning of ids that were asked for and belong to the caller; `None` if there are none.
pub(super) fn own_prefix(caller: &Caller, asked: String) -> Option<String> {
    match caller.prefix() {
        own if asked.starts_with(own) => Some(asked),
        own if own.starts_with(&asked) => Some(own.to_owned()),
        _ => None,
    }
}

fn view(lane: &Lane, task: &ScannedTask, now: Timestamp) -> ListedTaskView {
    let status = TaskStatus::of_task(task.in_flight, task.paused);
    ListedTaskView {
        id: task.id.to_string(),
        lane: lane.to_string(),
        status: status.as_str(),
        due: task.due.to_string(),
        due_ms: task.due.as_millis(),
        overdue: status == TaskStatus::Scheduled && is_overdue(task.due, now),
    }
}

/// A position as a cursor: shard, lane, cursor of the timeline, server process. It contains no id.
pub(super) fn position_text(position: &ListPosition) -> String {
    let ListPosition { shard, lane, cursor, process } = position;
    format!("{shard}.{lane}.{cursor}.{process:08x}")
}

/// Where a request continues.
pub(super) fn position_from(cursor: Option<&str>) -> Result<Option<ListPosition>, Problem> {
    cursor.map(parse_position).transpose().map_err(|fault| Problem::invalid(vec![fault]))
}

fn parse_position(cursor: &str) -> Result<ListPosition, Fault> {
    let read = || {
        let parts: [&str; 4] = cursor.split('.').collect::<Vec<_>>().try_into().ok()?;
        let [shard, lane, cursor, process] = parts;
        let (shard, lane) = (shard.parse().ok()?, lane.parse().ok()?);
        Some(ListPosition {
            shard,
            lane,
            cursor: cursor.parse().ok()?,
            process: u32::from_str_radix(process, 16).ok()?,
        })
    };
    read().ok_or_else(query::bad_cursor)
}
