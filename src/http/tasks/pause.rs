//! `POST /v1/tasks/{id}/pause` and `/resume`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Id, IdInPath, read_id, unknown};
use crate::clock::Timestamp;
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::enums::TaskPauseResult;
use crate::http::openapi::task::{TaskPauseSchema, TaskResumeSchema};
use crate::http::openapi::{BODY, TIMELINE};
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::task::spec::{self, Missed};
use crate::task::{Key, TaskId};
use crate::timeline::{PauseNote, TaskPause, TaskPauseAnswer, TaskPauseRequest};

/// The answer to a pause or a resume.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskPauseAnswer)]
struct TaskPauseAnswerView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = TaskPauseResult)]
    result: &'static str,
    /// The due that the task keeps.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// The idempotency key of an occurrence that may still be published: it is in flight, or was handed out before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
}

/// Why and since when a task is paused.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskPause)]
pub(super) struct TaskPauseView {
    /// When it was paused.
    #[schema(format = DateTime)]
    at: String,
    /// The name of the token that paused it. Missing if it was paused without a token, or if the token of this request has limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    note: String,
}

impl TaskPauseView {
    pub(super) fn of(pause: TaskPause, caller: &Caller) -> TaskPauseView {
        let PauseNote { by, note } = pause.about;
        TaskPauseView { at: pause.at.to_string(), by: by.filter(|_| !caller.is_limited()), note }
    }
}

/// `POST`: pauses a task.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/pause",
    operation_id = "pause_task",
    summary = "Pause a task",
    description = "After the answer, no instance claims it; `in_flight` names an occurrence that may still be published, because it \
        was claimed before. The task keeps its due, also if it is put again: only a resume ends the pause, or a cancel. The \
        pause does not hold back an occurrence of it that was dead and is requeued.",
    tag = "tasks",
    params(Id),
    request_body(content = TaskPauseSchema, example = json!({"note": "wrong figures"})),
    responses((status = 200, body = TaskPauseAnswerView, description = "It is paused.",
        example = json!({"id": "order-1", "result": "paused", "due": "2026-11-21T13:00:00.000Z", "due_ms": 1_795_266_000_000_i64}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_id", "unknown"]].concat()))),
)]
pub(in crate::http) async fn pause(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (id, note) = body::path_and_small_json(&api, read_id(id), request, spec::read_task_pause).await?;
    let about = PauseNote { by: caller.name().map(str::to_owned), note };
    answer(&api, &caller, &id, "pause_task", TaskPauseRequest::Pause(about)).await
}

/// `POST`: resumes a task.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/resume",
    operation_id = "resume_task",
    summary = "Resume a task",
    description = "It waits for its due again. If that has passed, it is published at once, and its `catch_up` applies as \
        after an outage. With `\"missed\": \"skip\"`, a recurring task waits for its first due in the future instead.",
    tag = "tasks",
    params(Id),
    request_body(content = TaskResumeSchema, example = json!({"missed": "skip"})),
    responses((status = 200, body = TaskPauseAnswerView, description = "It is not paused any more.",
        example = json!({"id": "order-1", "result": "resumed", "due": "2026-11-21T13:00:00.000Z", "due_ms": 1_795_266_000_000_i64}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_id", "unknown", "unreadable"]].concat()))),
)]
pub(in crate::http) async fn resume(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (id, missed) = body::path_and_small_json(&api, read_id(id), request, spec::read_resume).await?;
    if missed == Missed::Skip {
        caller.check_id(&id)?;
        api.intake.skip_missed(&id, caller.name(), api.limits.timeline_timeout).await?;
    }
    answer(&api, &caller, &id, "resume_task", TaskPauseRequest::Resume).await
}

async fn answer(
    api: &Api,
    caller: &Caller,
    id: &TaskId,
    action: &'static str,
    request: TaskPauseRequest,
) -> Result<Response, Problem> {
    caller.check_id(id)?;
    let answer = api.intake.pause_task(id, request, caller.name(), api.limits.timeline_timeout).await?;
    let (result, due, in_flight) = match answer {
        TaskPauseAnswer::Paused { due, in_flight } => ("paused", due, in_flight),
        TaskPauseAnswer::Resumed { due, in_flight } => ("resumed", due, in_flight),
        TaskPauseAnswer::Unchanged { due } => ("unchanged", due, None),
        TaskPauseAnswer::Unknown => {
            api.metrics.action(action, "unknown");
            return Err(unknown(api, id).await);
        }
    };
    api.metrics.action(action, result);
    let key = |due: Timestamp| Key { task: id.clone(), due }.to_string();
    let view = TaskPauseAnswerView {
        id,
        result,
        due: due.to_string(),
        due_ms: due.as_millis(),
        in_flight: in_flight.map(key),
    };
    Ok(Json(view).into_response())
}
