//! The JSON answers about tasks.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::conditions::entity_tag;
use super::pause::TaskPauseView;
use crate::clock::Timestamp;
use crate::engine::{FailedAttempt, intake};
use crate::http::caller::Caller;
use crate::http::openapi::enums;
use crate::http::openapi::task::{CatchUpSchema, MessageSchema, Retry, ScheduleSchema};
use crate::task::{Record, TaskId, spec};
use crate::timeline::{OVERDUE_AFTER, PutResult, StoredTask, TaskRevision, TaskStatus};

/// A due, in both forms.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Due {
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

/// The answer of a put.
#[derive(Serialize, ToSchema)]
#[schema(as = PutAnswer)]
pub(in crate::http) struct PutView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = enums::PutResultSchema)]
    result: &'static str,
    #[schema(value_type = enums::Status)]
    status: &'static str,
    /// The next due.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// Whether it was due at least 1 s before this answer. It is then published at once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    overdue: bool,
    /// Up to three dues after it.
    next: Vec<Due>,
    /// The idempotency key of an occurrence with the former message that may still be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
}

/// The answer of a cancel.
#[derive(Serialize, ToSchema)]
#[schema(as = CancelAnswer)]
pub(super) struct CancelView<'a> {
    #[schema(value_type = String)]
    pub(super) id: &'a TaskId,
    /// `cancelled`: no publish of it starts from now on. `in_flight`: the occurrence in flight may still be delivered.
    #[schema(value_type = enums::CancelResult)]
    pub(super) result: &'static str,
    /// The idempotency key of an occurrence that may still be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) key: Option<String>,
    /// Whether an earlier claim may have published it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(super) handed_out: bool,
}

/// A task as it was put, and its state.
#[derive(Serialize, ToSchema)]
#[schema(as = TaskAnswer)]
pub(super) struct HeldTaskView<'a> {
    #[schema(value_type = String)]
    id: &'a TaskId,
    #[schema(value_type = enums::Status)]
    status: &'static str,
    /// The next due.
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// Whether it waits although it was due at least 1 s ago.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    overdue: bool,
    /// With `?next`: the dues after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<Vec<Due>>,
    /// The idempotency key of the occurrence in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
    /// Number of publishes of the occurrence in flight that failed; only shown by the instance that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    attempts: Option<u32>,
    /// The error text of the broker about the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<String>,
    /// Missing unless it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pause: Option<TaskPauseView>,
    /// Whether its lane is paused, so that it waits even when it is due.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    lane_paused: bool,
    /// Whether the sink of its lane is unavailable, as the asked instance sees it, so that it waits even when it is due.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    sink_unavailable: bool,
    /// An instance could not parse its record, because a newer version wrote it or its time zone is unknown. Claims
    /// leave it out until an instance starts that can parse it, or the task is put again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    unreadable: bool,
    #[schema(format = DateTime)]
    created: String,
    #[schema(format = DateTime)]
    updated: String,
    /// Number of puts that created or replaced the task, from 1.
    revision: u32,
    /// The entity tag for `if-match`, also in the header `etag`.
    etag: String,
    /// The trace of the request that put it; its messages carry it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    counts: Option<CountsView>,
    #[schema(value_type = ScheduleSchema)]
    schedule: &'a RawValue,
    #[schema(value_type = MessageSchema)]
    message: &'a RawValue,
    lane: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Retry>, nullable = false)]
    retry: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CatchUpSchema>, nullable = false)]
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

/// Counters of the past occurrences of a recurring task.
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

/// Whether a task with this due is late.
pub(in crate::http) fn is_overdue(due: Timestamp, now: Timestamp) -> bool {
    due.plus(OVERDUE_AFTER) <= now
}

/// The answer of a put.
pub(super) fn put_view(id: &TaskId, put: intake::EffectivePut, now: Timestamp) -> Response {
    let status = if put.result == PutResult::Created { StatusCode::CREATED } else { StatusCode::OK };
    let overdue = is_overdue(put.due, now);
    let Due { due, due_ms } = put.due.into();
    let view = PutView {
        id,
        result: put.result.as_str(),
        status: TaskStatus::of_task(put.in_flight.is_some(), put.paused).as_str(),
        due,
        due_ms,
        overdue: overdue && !put.paused,
        next: put.next.into_iter().map(Due::from).collect(),
        in_flight: put.in_flight.map(|key| key.to_string()),
    };
    let place = format!("/v1/tasks/{id}");
    (status, [(header::LOCATION, place)], axum::Json(view)).into_response()
}

/// What is shown of a task beside what the timeline stores.
pub(super) struct Shown {
    pub(super) failed: Option<FailedAttempt>,
    pub(super) next: Option<Vec<Timestamp>>,
    pub(super) lane_paused: bool,
    pub(super) sink_unavailable: bool,
    pub(super) now: Timestamp,
}

/// The task and its state; the task's own bytes are unchanged.
pub(super) fn task_view(
    id: &TaskId,
    record: &Record,
    held: StoredTask,
    Shown { failed, next, lane_paused, sink_unavailable, now }: Shown,
    caller: &Caller,
) -> Result<String, serde_json::Error> {
    let counts = record.task.schedule.is_recurring().then(|| CountsView {
        accepted: held.counts.accepted,
        dead: held.counts.dead,
        passed_over: held.counts.passed_over,
        last_due: held.counts.last_due.map(|due| due.to_string()),
    });
    let Due { due, due_ms } = held.due_after_claim.unwrap_or(held.due).into();
    let task = spec::write(&record.task, &record.lane);
    let Members { schedule, message, retry, catch_up } = serde_json::from_str(task.get())?;
    let view = HeldTaskView {
        id,
        status: TaskStatus::of_task(held.in_flight, held.pause.is_some()).as_str(),
        due,
        due_ms,
        overdue: !held.in_flight && held.pause.is_none() && is_overdue(held.due, now),
        next: next.map(|dues| dues.into_iter().map(Due::from).collect()),
        in_flight: held.in_flight.then(|| crate::task::Key { task: id.clone(), due: held.due }.to_string()),
        attempts: failed.as_ref().map(|failed| failed.attempts),
        last_error: failed.map(|failed| failed.detail),
        pause: held.pause.map(|pause| TaskPauseView::of(pause, caller)),
        lane_paused,
        sink_unavailable,
        unreadable: held.unreadable,
        created: record.created.to_string(),
        updated: record.updated.to_string(),
        revision: record.revision,
        etag: entity_tag(TaskRevision::of(record)),
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
