//! `/v1/tasks/{id}`: puts, shows and cancels one task.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::openapi::task::{CatchUp, Message, Retry, Schedule};
use super::openapi::{self, BODY, TIMELINE, words};
use super::problem::Problem;
use super::{Api, body, json};
use crate::clock::Timestamp;
use crate::engine::intake;
use crate::task::spec::{self, Fault};
use crate::task::{Record, TaskId};
use crate::timeline::{CancelAnswer, Held, PutMode, PutResult};

/// A task's id as it stands in the path.
type IdInPath = Result<Path<String>, PathRejection>;

/// The parameter of the path, as the document has it.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only stands in the document")]
struct Id {
    /// 1 to 200 of `A-Z a-z 0-9 . _ : -`, the first a letter or digit.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$", example = "order-1")]
    id: String,
}

/// A due, in both forms.
#[derive(Serialize, ToSchema)]
pub(super) struct Due {
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
}

impl From<Timestamp> for Due {
    fn from(due: Timestamp) -> Due {
        Due { due: due.to_string(), due_ms: due.as_millis() }
    }
}

/// What a put answers.
#[derive(Serialize, ToSchema)]
#[schema(as = PutAnswer)]
pub(super) struct PutView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = words::PutResult)]
    result: &'static str,
    #[schema(value_type = words::Status)]
    status: &'static str,
    /// When it is due next.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// Up to three dues that follow.
    next: Vec<Due>,
    /// The idempotency key of an occurrence with the former message, which may still arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
}

/// What a cancel answers.
#[derive(Serialize, ToSchema)]
#[schema(as = CancelAnswer)]
struct CancelView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    /// `cancelled`: no publish of it starts from now on. `in_flight`: the one occurrence now held may still arrive.
    #[schema(value_type = words::CancelResult)]
    result: &'static str,
    /// The idempotency key of what may still arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// A publish was started before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    handed_out: bool,
}

/// A task as it was put, and how it stands.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskAnswer)]
struct TaskView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = words::Status)]
    status: &'static str,
    /// What comes next.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// The idempotency key of the occurrence in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
    #[schema(format = DateTime)]
    created: String,
    #[schema(format = DateTime)]
    updated: String,
    /// How often it was put anew, from 1.
    revision: u32,
    /// The trace of the request that put it; its messages carry it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    counts: Option<CountsView>,
    #[schema(value_type = Schedule)]
    schedule: &'a RawValue,
    #[schema(value_type = Message)]
    message: &'a RawValue,
    lane: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Retry>, nullable = false)]
    retry: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CatchUp>, nullable = false)]
    catch_up: Option<&'a RawValue>,
}

/// A task's own members, byte for byte.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    schedule: &'a RawValue,
    #[serde(borrow)]
    message: &'a RawValue,
    #[serde(borrow)]
    retry: Option<&'a RawValue>,
    #[serde(borrow)]
    catch_up: Option<&'a RawValue>,
}

/// What has happened to the occurrences of a recurring task.
#[derive(Serialize, ToSchema)]
#[schema(as = Counts)]
struct CountsView {
    accepted: u64,
    dead: u64,
    passed_over: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    last_due: Option<String>,
}

/// `PUT`: creates the task or replaces the one that stands there.
#[utoipa::path(
    put,
    path = "/v1/tasks/{id}",
    operation_id = "put_task",
    summary = "Create or replace a task",
    description = "An equal body is `unchanged` and keeps its due, unless its schedule is `in`, which counts anew.",
    tag = "tasks",
    params(Id, body::Trace),
    request_body(content = openapi::task::Task,
        example = json!({"schedule": {"every": "1h", "limit": 2}, "message": {"destination": "orders.report", "payload": {"order": 1}}})),
    responses(
        (status = 201, body = PutView, description = "The task was created.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "order-1", "result": "created", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
                "due_ms": 1_795_266_000_000_i64, "next": [{"due": "2026-11-21T14:00:00.000Z", "due_ms": 1_795_269_600_000_i64}]})),
        (status = 200, body = PutView, description = "It was replaced, or stands there already.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "order-1", "result": "unchanged", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
                "due_ms": 1_795_266_000_000_i64, "next": [{"due": "2026-11-21T14:00:00.000Z", "due_ms": 1_795_269_600_000_i64}]})),
    ),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["in_flight"]].concat()))),
)]
pub(super) async fn put(State(api): State<Arc<Api>>, id: IdInPath, request: Request) -> Result<Response, Problem> {
    put_one(&api, PutMode::Put, read_id(id), request).await
}

/// `GET`: the task as it was put, and how it stands.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}",
    operation_id = "get_task",
    summary = "Look a task up",
    tag = "tasks",
    params(Id),
    responses((status = 200, body = TaskView, description = "The task.",
        example = json!({"id": "order-1", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z",
            "due_ms": 1_795_266_000_000_i64, "created": "2026-11-21T12:00:00.000Z", "updated": "2026-11-21T12:00:00.000Z",
            "revision": 1, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "counts": {"accepted": 0, "dead": 0, "passed_over": 0}, "schedule": {"every": "1h", "limit": 2},
            "message": {"destination": "orders.report", "payload": {"order": 1}}, "lane": "default"}))),
    extensions(("x-codes" = json!([TIMELINE, &["unknown", "invalid", "unreadable"]].concat()))),
)]
pub(super) async fn get(State(api): State<Arc<Api>>, id: IdInPath) -> Result<Response, Problem> {
    let id = read_id(id).map_err(|fault| Problem::invalid(vec![fault]))?;
    match api.intake.get(&id).await? {
        Some((record, held)) => match task_view(&id, &record, &held) {
            Ok(view) => Ok(json(StatusCode::OK, view)),
            Err(error) => Err(Problem::unreadable(&error)),
        },
        None => Err(Problem::unknown(id.as_str())),
    }
}

/// `DELETE`: cancels the task.
#[utoipa::path(
    delete,
    path = "/v1/tasks/{id}",
    operation_id = "cancel_task",
    summary = "Cancel a task",
    tag = "tasks",
    params(Id),
    responses((status = 200, body = CancelView, description = "The task is gone.",
        example = json!({"id": "order-1", "result": "cancelled"}))),
    extensions(("x-codes" = json!([TIMELINE, &["unknown", "invalid"]].concat()))),
)]
pub(super) async fn cancel(State(api): State<Arc<Api>>, id: IdInPath) -> Result<Response, Problem> {
    let id = read_id(id).map_err(|fault| Problem::invalid(vec![fault]))?;
    let key = |due| crate::task::Key { task: id.clone(), due }.to_string();
    let view = match api.intake.cancel(&id, api.limits.timeline_timeout).await? {
        CancelAnswer::Cancelled { handed_out } => {
            CancelView { id: &id, result: "cancelled", key: handed_out.map(key), handed_out: handed_out.is_some() }
        }
        CancelAnswer::InFlight { due } => {
            CancelView { id: &id, result: "in_flight", key: Some(key(due)), handed_out: false }
        }
        CancelAnswer::Unknown => {
            api.metrics.cancel("unknown");
            return Err(Problem::unknown(id.as_str()));
        }
    };
    api.metrics.cancel(view.result);
    Ok(axum::Json(view).into_response())
}

/// Puts the task of a request's body, and counts what came of it.
pub(super) async fn put_one(
    api: &Api,
    mode: PutMode,
    id: Result<TaskId, Fault>,
    request: Request,
) -> Result<Response, Problem> {
    let put = put_read(api, mode, id, request).await;
    api.metrics.put(put.as_ref().map_or_else(|problem| problem.code, |(_, put)| result(put.result)), 1);
    put.map(|(id, put)| put_view(&id, put))
}

/// Faults of the id and of the body are told together.
async fn put_read(
    api: &Api,
    mode: PutMode,
    id: Result<TaskId, Fault>,
    request: Request,
) -> Result<(TaskId, intake::Put), Problem> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body, &api.limits).await?;
    let read = spec::read_checked(&body, &api.limits.task, false, api.intake.clock().now(), &api.lanes());
    let (id, read) = match (id, read) {
        (Ok(id), Ok(read)) => (id, read),
        (id, read) => {
            let mut faults: Vec<Fault> = id.err().into_iter().collect();
            faults.extend(read.err().unwrap_or_default());
            faults.truncate(spec::MAX_FAULTS);
            return Err(Problem::invalid(faults));
        }
    };
    let tasks = vec![(id.clone(), read.lane, read.task)];
    let trace = body::trace(&parts.headers);
    match api.intake.put_traced(mode, tasks, trace, api.limits.timeline_timeout).await.pop() {
        Some(put) => Ok((id, put?)),
        None => Err(Problem::unanswered()),
    }
}

/// The word for what a put did.
pub(super) fn result(result: PutResult) -> &'static str {
    match result {
        PutResult::Created => "created",
        PutResult::Replaced => "replaced",
        PutResult::Unchanged => "unchanged",
        PutResult::KeyReused => "key_reused",
        PutResult::InFlight => "in_flight",
        PutResult::BadDue => "bad_due",
    }
}

fn read_id(id: IdInPath) -> Result<TaskId, Fault> {
    let fault = |detail: String| Fault { pointer: "/id".to_owned(), code: "bad_id", detail };
    let Path(id) = id.map_err(|_| fault("the id in the path cannot be read".to_owned()))?;
    id.parse().map_err(|bad: crate::task::id::BadName| fault(bad.to_string()))
}

fn put_view(id: &TaskId, put: intake::Put) -> Response {
    let status = if put.result == PutResult::Created { StatusCode::CREATED } else { StatusCode::OK };
    let Due { due, due_ms } = put.due.into();
    let view = PutView {
        id,
        result: result(put.result),
        status: if put.in_flight.is_some() { "in_flight" } else { "scheduled" },
        due,
        due_ms,
        next: put.next.into_iter().map(Due::from).collect(),
        in_flight: put.in_flight.map(|key| key.to_string()),
    };
    let place = format!("/v1/tasks/{id}");
    (status, [(header::LOCATION, place)], axum::Json(view)).into_response()
}

/// The task and how it stands; the task's own bytes stay as they are.
fn task_view(id: &TaskId, record: &Record, held: &Held) -> Result<String, serde_json::Error> {
    let counts = record.task.schedule.is_recurring().then(|| CountsView {
        accepted: held.counts.accepted,
        dead: held.counts.dead,
        passed_over: held.counts.passed_over,
        last_due: held.counts.last_due.map(|due| due.to_string()),
    });
    let Due { due, due_ms } = held.changed.unwrap_or(held.due).into();
    let task = spec::write(&record.task, &record.lane);
    let Members { schedule, message, retry, catch_up } = serde_json::from_str(task.get())?;
    let view = TaskView {
        id,
        status: if held.in_flight { "in_flight" } else { "scheduled" },
        due,
        due_ms,
        in_flight: held.in_flight.then(|| crate::task::Key { task: id.clone(), due: held.due }.to_string()),
        created: record.created.to_string(),
        updated: record.updated.to_string(),
        revision: record.revision,
        traceparent: record.trace.map(|trace| trace.to_string()),
        counts,
        schedule,
        message,
        lane: record.lane.as_str(),
        retry,
        catch_up,
    };
    serde_json::to_string(&view)
}
