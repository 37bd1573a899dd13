//! `/v1/tasks/{id}`: puts, shows and cancels one task.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::Problem;
use super::{Api, body, json};
use crate::clock::Timestamp;
use crate::engine::intake;
use crate::task::spec::{self, Fault};
use crate::task::{Record, TaskId, Traceparent};
use crate::timeline::{CancelAnswer, Held, PutMode, PutResult};

/// A task's id as it stands in the path.
type IdInPath = Result<Path<String>, PathRejection>;

/// A due, in both forms.
#[derive(Serialize)]
pub(super) struct Due {
    due: String,
    due_ms: i64,
}

impl From<Timestamp> for Due {
    fn from(due: Timestamp) -> Due {
        Due { due: due.to_string(), due_ms: due.as_millis() }
    }
}

/// What a put answers.
#[derive(Serialize)]
struct PutView<'a> {
    id: &'a TaskId,
    result: &'static str,
    status: &'static str,
    #[serde(flatten)]
    due: Due,
    next: Vec<Due>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<String>,
}

/// What a cancel answers.
#[derive(Serialize)]
struct CancelView<'a> {
    id: &'a TaskId,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    handed_out: bool,
}

/// What a look-up shows before the task itself.
#[derive(Serialize)]
struct TaskView<'a> {
    id: &'a TaskId,
    status: &'static str,
    #[serde(flatten)]
    due: Due,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<String>,
    created: String,
    updated: String,
    revision: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<CountsView>,
}

/// What has happened to the occurrences of a recurring task.
#[derive(Serialize)]
struct CountsView {
    accepted: u64,
    dead: u64,
    passed_over: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_due: Option<String>,
}

/// `PUT`: creates the task or replaces the one that stands there.
pub(super) async fn put(State(api): State<Arc<Api>>, id: IdInPath, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body, &api.limits).await?;
    put_one(&api, PutMode::Put, read_id(id), body::trace(&parts.headers), &body).await
}

/// `GET`: the task as it was put, and how it stands.
pub(super) async fn get(State(api): State<Arc<Api>>, id: IdInPath) -> Result<Response, Problem> {
    let id = read_id(id).map_err(|fault| Problem::invalid(vec![fault]))?;
    match api.intake.get(&id).await? {
        Some((record, held)) => Ok(json(StatusCode::OK, task_view(&id, &record, &held))),
        None => Err(Problem::unknown(id.as_str())),
    }
}

/// `DELETE`: cancels the task.
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

/// Puts the task of a body. Faults of the id and of the body are told together.
pub(super) async fn put_one(
    api: &Api,
    mode: PutMode,
    id: Result<TaskId, Fault>,
    trace: Option<Traceparent>,
    body: &[u8],
) -> Result<Response, Problem> {
    let read = spec::read_checked(body, &api.limits.task, false, api.intake.clock().now(), &api.lanes());
    let (id, read) = match (id, read) {
        (Ok(id), Ok(read)) => (id, read),
        (id, read) => {
            let mut faults: Vec<Fault> = id.err().into_iter().collect();
            faults.extend(read.err().unwrap_or_default());
            return Err(Problem::invalid(faults));
        }
    };
    let tasks = vec![(id.clone(), read.lane, read.task)];
    let answer = api.intake.put_traced(mode, tasks, trace, api.limits.timeline_timeout).await.pop();
    let put = match answer {
        Some(Ok(put)) => put,
        Some(Err(error)) => {
            let problem = Problem::from(error);
            api.metrics.put(problem.code, 1);
            return Err(problem);
        }
        None => return Err(Problem::unanswered()),
    };
    api.metrics.put(result(put.result), 1);
    Ok(put_view(&id, put))
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
    let view = PutView {
        id,
        result: result(put.result),
        status: if put.in_flight.is_some() { "in_flight" } else { "scheduled" },
        due: put.due.into(),
        next: put.next.into_iter().map(Due::from).collect(),
        in_flight: put.in_flight.map(|key| key.to_string()),
    };
    let place = format!("/v1/tasks/{id}");
    (status, [(header::LOCATION, place)], axum::Json(view)).into_response()
}

/// The view and the task in one object; the task's own bytes stay as they are.
fn task_view(id: &TaskId, record: &Record, held: &Held) -> String {
    let counts = record.task.schedule.is_recurring().then(|| CountsView {
        accepted: held.counts.accepted,
        dead: held.counts.dead,
        passed_over: held.counts.passed_over,
        last_due: held.counts.last_due.map(|due| due.to_string()),
    });
    let view = TaskView {
        id,
        status: if held.in_flight { "in_flight" } else { "scheduled" },
        due: held.changed.unwrap_or(held.due).into(),
        in_flight: held.in_flight.then(|| crate::task::Key { task: id.clone(), due: held.due }.to_string()),
        created: record.created.to_string(),
        updated: record.updated.to_string(),
        revision: record.revision,
        traceparent: record.trace.map(|trace| trace.to_string()),
        counts,
    };
    let mut text = serde_json::to_string(&view).unwrap_or_default();
    let task = spec::write(&record.task, &record.lane);
    // Both are objects with members: the one's closing brace and the other's opening one become a comma.
    text.pop();
    text.push(',');
    text.push_str(task.get().trim_start().strip_prefix('{').unwrap_or("}"));
    text
}
