//! The JSON answers about dead occurrences.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::engine::dead::DeadSummary;
use crate::http::openapi::enums;
use crate::http::openapi::task::MessageSchema;
use crate::task::{Record, spec};

/// A page of dead occurrences.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadList)]
pub(super) struct DeadListView {
    /// The entries, the oldest first.
    pub(super) items: Vec<DeadView>,
    /// The `cursor` for the next page; missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) next_cursor: Option<String>,
}

/// A dead occurrence.
#[derive(Serialize, ToSchema)]
#[schema(as = Dead)]
pub(super) struct DeadView {
    /// Its idempotency key.
    key: String,
    task: String,
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    /// Missing if another version wrote the record and this one cannot parse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lane: Option<String>,
    /// That of the task, or the current one of its lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    destination: Option<String>,
    #[schema(value_type = enums::ReasonSchema)]
    reason: String,
    /// The error text of the broker, or of a check of punctual.
    detail: String,
    #[schema(format = DateTime)]
    died: String,
    /// The same in ms since 1970.
    died_ms: i64,
}

/// A dead occurrence with its message.
#[derive(Serialize, ToSchema)]
#[schema(as = WholeDead)]
pub(super) struct WholeDeadView<'a> {
    /// Its idempotency key.
    key: String,
    task: String,
    #[schema(format = DateTime)]
    due: String,
    /// The same in ms since 1970.
    due_ms: i64,
    lane: String,
    /// That of the task, or the current one of its lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    destination: Option<String>,
    #[schema(value_type = enums::ReasonSchema)]
    reason: String,
    /// The error text of the broker, or of a check of punctual.
    detail: String,
    #[schema(format = DateTime)]
    died: String,
    /// The same in ms since 1970.
    died_ms: i64,
    /// The trace of the request that put it; its messages carry it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    traceparent: Option<String>,
    /// The message as it was put.
    #[schema(value_type = MessageSchema)]
    message: &'a RawValue,
}

/// The result for one dead occurrence.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadAnswer)]
pub(super) struct DoneView {
    pub(super) key: String,
    #[schema(value_type = enums::DeadResult)]
    pub(super) result: &'static str,
}

/// Rare counts are omitted if zero.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires the reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The result of a bulk requeue.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = DeadRequeued)]
pub(super) struct RequeuedView {
    /// With `dry_run` only: occurrences that match. Nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) matched: Option<u64>,
    /// Occurrences that are due now. Requeues without an answer are not counted.
    pub(super) requeued: u64,
    /// Occurrences that stay dead because their keys wait or are in flight.
    pub(super) in_flight: u64,
    /// Occurrences that stay dead because their lane is not configured.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(super) unserved: u64,
    /// Occurrences that stay dead because their records cannot be parsed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(super) unreadable: u64,
    /// Whether the time limit ended the request early.
    pub(super) more: bool,
    /// The `cursor` to continue with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) next_cursor: Option<String>,
}

/// The result of a bulk discard.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadDiscarded)]
pub(super) struct DiscardedView {
    /// With `dry_run` only: occurrences that match. Nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) matched: Option<u64>,
    /// Deleted occurrences. Discards without an answer are not counted.
    pub(super) discarded: u64,
    /// Whether the time limit ended the request early.
    pub(super) more: bool,
    /// The `cursor` to continue with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) next_cursor: Option<String>,
}

impl From<DeadSummary> for DeadView {
    fn from(dead: DeadSummary) -> DeadView {
        let due = dead.cursor.key.due;
        DeadView {
            key: dead.cursor.key.to_string(),
            task: dead.cursor.key.task.to_string(),
            due: due.to_string(),
            due_ms: due.as_millis(),
            lane: dead.lane.map(|lane| lane.to_string()),
            destination: dead.destination,
            reason: dead.reason,
            detail: dead.detail,
            died: dead.cursor.died.to_string(),
            died_ms: dead.cursor.died.as_millis(),
        }
    }
}

/// The message of a task, byte for byte.
#[derive(Deserialize)]
struct OfTask<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
}

/// A dead occurrence with its message, whose bytes are unchanged.
pub(super) fn whole_view(dead: DeadSummary, record: &Record) -> Result<String, serde_json::Error> {
    let DeadView { key, task, due, due_ms, destination, reason, detail, died, died_ms, .. } = dead.into();
    let whole = spec::write(&record.task, &record.lane);
    let OfTask { message } = serde_json::from_str(whole.get())?;
    let view = WholeDeadView {
        key,
        task,
        due,
        due_ms,
        lane: record.lane.to_string(),
        destination,
        reason,
        detail,
        died,
        died_ms,
        traceparent: record.trace.map(|trace| trace.to_string()),
        message,
    };
    serde_json::to_string(&view)
}
