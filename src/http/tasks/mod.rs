//! `/v1/tasks/{id}`: puts, shows and cancels one task.

pub(super) mod bulk;
mod conditions;
pub(super) mod count;
pub(super) mod list;
pub(super) mod moves;
pub(super) mod pause;
pub(super) mod upcoming;
mod views;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use tracing::info;
use utoipa::IntoParams;

use self::conditions::{CancelCondition, PutConditions};
use self::views::{CancelView, HeldTaskView, Shown, put_view, task_view};
use super::caller::Caller;
use super::openapi::{self, BODY, LIMITED_PUT, TIMELINE};
use super::problem::Problem;
use super::server::body;
use super::server::body::WholeBody;
use super::{Api, json, query};
use crate::engine::dead::MAX_SEARCHED;
use crate::engine::intake::{EffectivePut, NewTask};
use crate::task::TaskId;
use crate::task::spec::{self, Fault};
use crate::timeline::{CancelAnswer, PutMode, TaskRevision};

pub(super) use self::views::{Due, PutView, is_overdue};

/// Maximum number of dues that are shown of one task.
const MAX_NEXT: u64 = 100;

/// How long a dead occurrence is searched for the answer to a request for an unknown task.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(200);

/// A task's id in a path.
type IdInPath = Result<Path<String>, PathRejection>;

/// The path parameter in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct Id {
    /// 1 to 200 of `A-Z a-z 0-9 . _ : -`, the first a letter or digit.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$", example = "order-1")]
    id: String,
}

/// The query parameter of a get in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct NextQuery {
    /// Also show this many dues after the one it waits for.
    #[param(required = false, nullable = false, minimum = 1, maximum = 100)]
    next: Option<u32>,
}

/// `PUT`: creates the task or replaces an existing one.
#[utoipa::path(
    put,
    path = "/v1/tasks/{id}",
    operation_id = "put_task",
    summary = "Create or replace a task",
    description = "An equal body is `unchanged` and keeps its due. With the schedule `in`, the time starts again.",
    tag = "tasks",
    params(Id, body::Trace, PutConditions),
    request_body(content = openapi::task::TaskSchema,
        example = json!({"schedule": {"every": "1h", "limit": 2}, "message": {"destination": "orders.report", "payload": {"order": 1}}})),
    responses(
        (status = 201, body = PutView, description = "The task was created.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "order-1", "result": "created", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
                "due_ms": 1_795_266_000_000_i64, "next": [{"due": "2026-11-21T14:00:00.000Z", "due_ms": 1_795_269_600_000_i64}]})),
        (status = 200, body = PutView, description = "It was replaced, or exists already.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "order-1", "result": "unchanged", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
                "due_ms": 1_795_266_000_000_i64, "next": [{"due": "2026-11-21T14:00:00.000Z", "due_ms": 1_795_269_600_000_i64}]})),
    ),
    extensions(("x-codes" = json!([BODY, TIMELINE, LIMITED_PUT, &["busy", "in_flight", "changed", "exists"]].concat()))),
)]
pub(super) async fn put(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let mode = conditions::put_mode(request.headers()).map_err(|fault| Problem::invalid(vec![fault]))?;
    put_one(&api, &caller, mode, read_id(id), request).await
}

/// `GET`: the task as it was put, and its state.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}",
    operation_id = "get_task",
    summary = "Get a task",
    tag = "tasks",
    params(Id, NextQuery),
    responses((status = 200, body = HeldTaskView, description = "The task.",
        example = json!({"id": "order-1", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
            "due_ms": 1_795_266_000_000_i64, "created": "2026-11-21T12:00:00.000Z", "updated": "2026-11-21T12:00:00.000Z",
            "revision": 1, "etag": "\"1795262400000-1\"", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "counts": {"accepted": 0, "dead": 0, "passed_over": 0}, "schedule": {"every": "1h", "limit": 2},
            "message": {"destination": "orders.report", "payload": {"order": 1}}, "lane": "default"}))),
    extensions(("x-codes" = json!([TIMELINE, &["foreign_id", "unknown", "invalid", "unreadable", "busy"]].concat()))),
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let asked = query::as_json(request.uri())?;
    let (id, count) = Problem::both_or_faults(read_id(id), spec::read_next(asked.as_bytes(), MAX_NEXT))?;
    caller.check_id(&id)?;
    match api.intake.get(&id).await? {
        Some((record, held)) => {
            let failed = if held.in_flight { (api.failed_attempt)(&id) } else { None };
            let next = match count {
                Some(count) => {
                    let (id, schedule, anchor) = (id.clone(), record.task.schedule.clone(), record.anchor);
                    let due = held.due_after_claim.unwrap_or(held.due);
                    let (after, came_due) = (held.counts.search_from(due), held.counts.came_due());
                    let dues = move || schedule.dues_after(&id, anchor, after, came_due, count);
                    Some(api.blocking.run(dues).await?.unwrap_or_default())
                }
                None => None,
            };
            let lane_paused = (api.is_lane_paused)(&record.lane);
            let sink_unavailable = (api.is_sink_unavailable)(&record.lane);
            let shown = Shown { failed, next, lane_paused, sink_unavailable, now: api.intake.clock().now() };
            match task_view(&id, &record, held, shown, &caller) {
                Ok(view) => {
                    let tag = conditions::entity_tag(TaskRevision::of(&record));
                    Ok(([(header::ETAG, tag)], json(StatusCode::OK, view)).into_response())
                }
                Err(error) => Err(Problem::unreadable(&error)),
            }
        }
        None => Err(unknown(&api, &id).await),
    }
}

/// `DELETE`: cancels the task.
#[utoipa::path(
    delete,
    path = "/v1/tasks/{id}",
    operation_id = "cancel_task",
    summary = "Cancel a task",
    tag = "tasks",
    params(Id, CancelCondition),
    responses((status = 200, body = CancelView, description = "The task is gone.",
        example = json!({"id": "order-1", "result": "cancelled"}))),
    extensions(("x-codes" = json!([TIMELINE, &["foreign_id", "unknown", "invalid", "changed"]].concat()))),
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let revision = conditions::if_match(&headers).map_err(|fault| vec![fault]);
    let (id, revision) = Problem::both_or_faults(read_id(id), revision)?;
    caller.check_id(&id)?;
    let key = |due| crate::task::Key { task: id.clone(), due }.to_string();
    let view = match api.intake.cancel_if(&id, revision, api.limits.timeline_timeout).await? {
        CancelAnswer::Cancelled { handed_out } => {
            CancelView { id: &id, result: "cancelled", key: handed_out.map(key), handed_out: handed_out.is_some() }
        }
        CancelAnswer::InFlight { due } => {
            CancelView { id: &id, result: "in_flight", key: Some(key(due)), handed_out: false }
        }
        CancelAnswer::Mismatch => {
            api.metrics.cancel("changed");
            return Err(Problem::changed());
        }
        CancelAnswer::Unknown => {
            api.metrics.cancel("unknown");
            return Err(unknown(&api, &id).await);
        }
    };
    api.metrics.cancel(view.result);
    let by = caller.name().unwrap_or("-");
    info!(target: "punctual::audit", task = %id, by, in_flight = view.key, "task cancelled");
    Ok(axum::Json(view).into_response())
}

/// There is no such task. Names a dead occurrence of it, unless the search for one would take long.
async fn unknown(api: &Api, id: &TaskId) -> Problem {
    let dead = usize::try_from((api.engine)().dead).unwrap_or(usize::MAX);
    let dead_key = match dead {
        1..=MAX_SEARCHED => match timeout(SEARCH_TIMEOUT, api.intake.dead_of(id)).await {
            Ok(found) => found.unwrap_or_default(),
            Err(_) => None,
        },
        _ => None,
    };
    let detail = match &dead_key {
        Some(key) => format!("there is no task `{id}`; its occurrence `{key}` is dead"),
        None => format!("there is no task `{id}`"),
    };
    let problem = Problem::new(StatusCode::NOT_FOUND, "unknown", detail);
    Problem { dead_key: dead_key.map(|key| key.to_string().into()), ..problem }
}

/// Puts the task in the body of a request, and counts the result.
pub(super) async fn put_one(
    api: &Arc<Api>,
    caller: &Arc<Caller>,
    mode: PutMode,
    id: Result<TaskId, Fault>,
    request: Request,
) -> Result<Response, Problem> {
    let put = read_and_put(api, caller, mode, id, request).await;
    api.metrics.put(put.as_ref().map_or_else(|problem| problem.code, |(_, put)| put.result.as_str()), 1);
    put.map(|(id, put)| put_view(&id, put, api.intake.clock().now()))
}

/// Reports faults of the id and of the body together.
async fn read_and_put(
    api: &Arc<Api>,
    caller: &Arc<Caller>,
    mode: PutMode,
    id: Result<TaskId, Fault>,
    request: Request,
) -> Result<(TaskId, EffectivePut), Problem> {
    let (parts, body) = request.into_parts();
    let WholeBody { bytes, held: _until_it_is_put } = body::json(&parts.headers, body, api).await?;
    let (id, read) = Problem::both_or_faults(id, api.read_task(caller, bytes).await?)?;
    caller.admit_put(api, &id, &read.lane, &read.task.message)?;
    let task = NewTask { id: id.clone(), lane: read.lane, task: read.task, trace: body::trace(&parts.headers) };
    match api.intake.put_traced(mode, vec![task], api.limits.timeline_timeout).await.pop() {
        Some(put) => Ok((id, put?)),
        None => Err(Problem::unanswered()),
    }
}

fn read_id(id: IdInPath) -> Result<TaskId, Fault> {
    let fault = |detail: String| Fault { pointer: "/id".to_owned(), code: "bad_id", detail };
    let Path(id) = id.map_err(|_| fault("the id in the path cannot be read".to_owned()))?;
    id.parse().map_err(|bad: crate::task::id::BadName| fault(bad.to_string()))
}
