//! `/v1/tasks:cancel`, `/v1/tasks:pause` and `/v1/tasks:resume`: bulk requests for tasks.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::list::{filter_for, list_error, position_from, position_text, statuses};
use crate::engine::steering::{TaskAction, TasksChange, TasksResult};
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::bulk::{TasksCancelSchema, TasksPauseSchema, TasksResumeSchema};
use crate::http::openapi::{BODY, TIMELINE};
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::task::spec::{self, Missed, TasksRequest, TasksVerb};
use crate::timeline::PauseNote;

/// The result of a bulk request.
#[derive(Serialize, ToSchema)]
#[schema(as = TasksAnswer)]
struct TasksAnswerView {
    /// How many matched.
    matched: u64,
    /// How many were changed, without those of `in_flight`. Missing for a dry run, as the next three.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    done: Option<u64>,
    /// How many were changed and have an occurrence that may still be published: it is in flight or was handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<u64>,
    /// How many were in that state already.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unchanged: Option<u64>,
    /// How many ended before they could be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    gone: Option<u64>,
    /// The first ids, of a dry run only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_items = 10)]
    sample: Option<Vec<String>>,
    /// The time limit has ended the request early: continue with `next_cursor`.
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// `POST`: cancels all that match.
#[utoipa::path(
    post,
    path = "/v1/tasks:cancel",
    operation_id = "cancel_many_tasks",
    summary = "Cancel tasks in bulk",
    description = "Cancels all tasks of a filter, or all with `\"all\": true`. A task that is put while the request runs may \
        be cancelled or not. It may be repeated, also after an error.",
    tag = "tasks",
    request_body(content = TasksCancelSchema, example = json!({"prefix": "order-", "due_to": "2026-12-01T00:00:00Z", "dry_run": true})),
    responses((status = 200, body = TasksAnswerView, description = "The result.",
        example = json!({"matched": 1, "sample": ["order-1"], "more": false}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_lane", "cursor_gone"]].concat()))),
)]
pub(in crate::http) async fn cancel(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = read(&api, request, TasksVerb::Cancel).await?;
    answer(&api, &caller, asked, "cancel_tasks", TaskAction::Cancel).await
}

/// `POST`: pauses all that match.
#[utoipa::path(
    post,
    path = "/v1/tasks:pause",
    operation_id = "pause_many_tasks",
    summary = "Pause tasks in bulk",
    description = "Pauses all tasks of a filter, or all with `\"all\": true`. It may be repeated, also after an error.",
    tag = "tasks",
    request_body(content = TasksPauseSchema, example = json!({"prefix": "order-", "note": "wrong figures"})),
    responses((status = 200, body = TasksAnswerView, description = "The result.",
        example = json!({"matched": 1, "done": 1, "in_flight": 0, "unchanged": 0, "gone": 0, "more": false}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_lane", "cursor_gone"]].concat()))),
)]
pub(in crate::http) async fn pause(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = read(&api, request, TasksVerb::Pause).await?;
    let about = PauseNote { by: caller.name().map(str::to_owned), note: asked.note.clone() };
    answer(&api, &caller, asked, "pause_tasks", TaskAction::Pause(about)).await
}

/// `POST`: resumes all that match.
#[utoipa::path(
    post,
    path = "/v1/tasks:resume",
    operation_id = "resume_many_tasks",
    summary = "Resume tasks in bulk",
    description = "Resumes all tasks of a filter, or all with `\"all\": true`. A task whose due has passed is published at once, \
        and its `catch_up` applies. With `\"missed\": \"skip\"`, a recurring task waits for its first due in the \
        future instead. It may be repeated, also after an error.",
    tag = "tasks",
    request_body(content = TasksResumeSchema, example = json!({"status": "paused", "missed": "skip"})),
    responses((status = 200, body = TasksAnswerView, description = "The result.",
        example = json!({"matched": 1, "done": 1, "in_flight": 0, "unchanged": 0, "gone": 0, "more": false}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_lane", "cursor_gone"]].concat()))),
)]
pub(in crate::http) async fn resume(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = read(&api, request, TasksVerb::Resume).await?;
    let action = TaskAction::Resume(asked.missed == Missed::Skip);
    answer(&api, &caller, asked, "resume_tasks", action).await
}

async fn read(api: &Api, request: Request, verb: TasksVerb) -> Result<TasksRequest, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::small_json(&parts.headers, body, api).await?;
    spec::read_tasks(&body, verb, &statuses()).map_err(Problem::invalid)
}

async fn answer(
    api: &Api,
    caller: &Caller,
    asked: TasksRequest,
    name: &'static str,
    action: TaskAction,
) -> Result<Response, Problem> {
    let TasksRequest { query, dry_run, .. } = asked;
    let position = position_from(query.cursor.as_deref())?;
    let (lane, is_first) = (query.lane.clone(), position.is_none());
    let may_change = caller.lanes(lane.as_ref())?;
    let result = match filter_for(caller, query) {
        Some(filter) => {
            let action = (!dry_run).then_some(&action);
            let change = TasksChange { action, filter: &filter, lane: lane.as_ref(), by: caller.name() };
            let changed = api.intake.change_tasks(change, may_change, position, api.limits.timeline_timeout);
            changed.await.map_err(list_error)?
        }
        // No id has both the prefix of the token and that of the request.
        None => TasksResult::default(),
    };
    if let Some(lane) = lane.as_ref().filter(|_| is_first && result == TasksResult::default()) {
        // Its name may be mistyped.
        api.intake.check_lane(lane)?;
    }
    for (word, count) in [
        ("done", result.done),
        ("in_flight", result.in_flight),
        ("unchanged", result.unchanged),
        ("unknown", result.gone),
    ] {
        api.metrics.actions(name, word, count);
    }
    let counted = |count: u64| (!dry_run).then_some(count);
    let view = TasksAnswerView {
        matched: result.matched,
        done: counted(result.done),
        in_flight: counted(result.in_flight),
        unchanged: counted(result.unchanged),
        gone: counted(result.gone),
        sample: dry_run.then(|| result.sample.iter().map(ToString::to_string).collect()),
        more: result.next.is_some(),
        next_cursor: result.next.as_ref().map(position_text),
    };
    Ok(Json(view).into_response())
}
