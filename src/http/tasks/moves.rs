//! `POST /v1/tasks/{id}/trigger` and `/skip`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Id, IdInPath, read_id, unknown};
use crate::clock::Timestamp;
use crate::engine::steering::SkipError;
use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::openapi::enums::{SkipResult, TriggerResult};
use crate::http::openapi::task::{NothingMore, SkipSchema};
use crate::http::openapi::{BODY, TIMELINE};
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::task::spec;
use crate::task::{Key, TaskId};
use crate::timeline::MoveAnswer;

/// The answer to a trigger.
#[derive(Serialize, ToSchema)]
#[schema(as = TriggerAnswer)]
struct TriggerAnswerView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = TriggerResult)]
    result: &'static str,
    /// The idempotency key of the message.
    key: String,
    /// Its due: now, or the earlier due for which the task waited already.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// The key that the task waited for, if that was handed out before and may still be published.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
    /// True if the lane is paused, so that the message waits for its resume.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    lane_paused: bool,
}

/// The answer to a skip.
#[derive(Serialize, ToSchema)]
#[schema(as = SkipAnswer)]
struct SkipAnswerView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = SkipResult)]
    result: &'static str,
    /// The idempotency key of the skipped occurrence.
    key: String,
    /// The due that the task waits for now.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// The skipped key, if it was handed out before and may still be published.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
}

/// `POST`: makes a task due now.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/trigger",
    operation_id = "trigger_task",
    summary = "Publish a task now",
    description = "It is due at once, under a new key; if its due has passed, under the key of that due, unless its `catch_up` is \
        `none`. Afterwards its schedule goes on with the due it had. It counts for the `limit` of the schedule. A task that is due once ends with it. A paused task publishes this message and stays paused. \
        After an error, read the task before you repeat the request: it may have been triggered.",
    tag = "tasks",
    params(Id),
    request_body(content = NothingMore, example = json!({})),
    responses((status = 200, body = TriggerAnswerView, description = "It is due now, or was due already.",
        example = json!({"id": "order-1", "result": "triggered", "key": "order-1:1795262400001",
            "due": "2026-11-21T12:00:00.001Z", "due_ms": 1_795_262_400_001_i64}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_id", "full", "too_many_puts", "unknown", "in_flight"]].concat()))),
)]
pub(in crate::http) async fn trigger(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (id, ()) = body::path_and_small_json(&api, read_id(id), request, spec::read_nothing).await?;
    caller.check_id(&id)?;
    caller.count_put(&api)?;
    let counted = |result: &'static str| api.metrics.action("trigger_task", result);
    let (result, due, handed_out) = match api.intake.trigger(&id, caller.name(), api.limits.timeline_timeout).await? {
        MoveAnswer::Moved { due, handed_out } => ("triggered", due, handed_out),
        MoveAnswer::Unchanged { due } => ("unchanged", due, None),
        MoveAnswer::InFlight { due } | MoveAnswer::Mismatch { due } => {
            counted("in_flight");
            return Err(SkipError::InFlight(Key { task: id, due }).into());
        }
        MoveAnswer::Unknown => {
            counted("unknown");
            return Err(unknown(&api, &id).await);
        }
    };
    counted(result);
    let key = |due: Timestamp| Key { task: id.clone(), due }.to_string();
    let view = TriggerAnswerView {
        id: &id,
        result,
        key: key(due),
        due: due.to_string(),
        due_ms: due.as_millis(),
        in_flight: handed_out.map(key),
        lane_paused: is_lane_paused(&api, &id).await,
    };
    Ok(Json(view).into_response())
}

/// Whether the lane of a triggered task is paused. The task is read only if some lane is.
async fn is_lane_paused(api: &Api, id: &TaskId) -> bool {
    if (api.engine)().lanes.iter().all(|lane| lane.pause.is_none()) {
        return false;
    }
    let task = api.intake.get(id).await.ok().flatten();
    task.is_some_and(|(record, _)| (api.is_lane_paused)(&record.lane))
}

/// `POST`: skips the next occurrence.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/skip",
    operation_id = "skip_task",
    summary = "Skip the next occurrence of a task",
    description = "It is not published, counts as passed over, and the task waits for the occurrence after it. What is overdue \
        is skipped up to now, and counts once. With `due`, only the occurrence that is due then is skipped, so that a repeated \
        request skips no second one.",
    tag = "tasks",
    params(Id),
    request_body(content = SkipSchema, example = json!({"due": "2026-11-21T13:00:00.000Z"})),
    responses((status = 200, body = SkipAnswerView, description = "It is skipped.",
        example = json!({"id": "order-1", "result": "skipped", "key": "order-1:1795266000000",
            "due": "2026-11-21T14:00:00.000Z", "due_ms": 1_795_269_600_000_i64}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["foreign_id", "unknown", "unreadable", "in_flight", "last", "not_next"]].concat()))),
)]
pub(in crate::http) async fn skip(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    id: IdInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (id, due) = body::path_and_small_json(&api, read_id(id), request, spec::read_skip).await?;
    caller.check_id(&id)?;
    let counted = |result: &'static str| api.metrics.action("skip_task", result);
    let skipped = match api.intake.skip(&id, due, caller.name(), api.limits.timeline_timeout).await {
        Ok(skipped) => skipped,
        Err(SkipError::Unknown(_)) => {
            counted("unknown");
            return Err(unknown(&api, &id).await);
        }
        Err(error) => {
            let problem = Problem::from(error);
            if problem.status == StatusCode::CONFLICT {
                counted(problem.code);
            }
            return Err(problem);
        }
    };
    counted("skipped");
    let key = skipped.key.to_string();
    let view = SkipAnswerView {
        id: &id,
        result: "skipped",
        in_flight: skipped.handed_out.then(|| key.clone()),
        key,
        due: skipped.due.to_string(),
        due_ms: skipped.due.as_millis(),
    };
    Ok(Json(view).into_response())
}
