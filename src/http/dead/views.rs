//! What is answered about the dead, as JSON.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::engine::dead::DeadSummary;
use crate::http::openapi::task::MessageSchema;
use crate::http::openapi::words;
use crate::task::{Record, spec};

/// A page of the dead.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadList)]
pub(super) struct DeadListView {
    /// The oldest burial first.
    pub(super) items: Vec<DeadView>,
    /// The `cursor` of the next page; nothing on the last.
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
    /// Not there where it was buried by another version that this one cannot read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lane: Option<String>,
    /// Its own, or its lane's as that is configured now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    destination: Option<String>,
    #[schema(value_type = words::ReasonSchema)]
    reason: String,
    /// The broker's own words.
    #[serde(rename = "words")]
    detail: String,
    #[schema(format = DateTime)]
    buried: String,
    /// The same in ms since 1970.
    buried_ms: i64,
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
    /// Its own, or its lane's as that is configured now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    destination: Option<String>,
    #[schema(value_type = words::ReasonSchema)]
    reason: String,
    /// The broker's own words.
    #[serde(rename = "words")]
    detail: String,
    #[schema(format = DateTime)]
    buried: String,
    /// The same in ms since 1970.
    buried_ms: i64,
    /// The trace of the request that put it; its messages carry it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
    traceparent: Option<String>,
    /// As it was put.
    #[schema(value_type = MessageSchema)]
    message: &'a RawValue,
}

/// What was done with one of the dead.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadAnswer)]
pub(super) struct DoneView {
    pub(super) key: String,
    #[schema(value_type = words::DeadResult)]
    pub(super) result: &'static str,
}

/// What is seldom so is not told where it is not.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was done with many of the dead.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadRequeued)]
pub(super) struct RequeuedView {
    /// They wait, and are due. Those of which no answer came are not counted.
    pub(super) requeued: u64,
    /// They stayed dead: their keys wait or are in flight.
    pub(super) in_flight: u64,
    /// They stayed dead: their lane is not configured.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(super) unserved: u64,
    /// They stayed dead: what is kept of them cannot be read.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(super) unreadable: u64,
    /// The time was up before all were looked through.
    pub(super) more: bool,
    /// The `cursor` to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) next_cursor: Option<String>,
}

/// What was done with many of the dead.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadDiscarded)]
pub(super) struct DiscardedView {
    /// Those of which no answer came are not counted.
    pub(super) discarded: u64,
    /// The time was up before all were looked through.
    pub(super) more: bool,
    /// The `cursor` to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) next_cursor: Option<String>,
}

/// A body that says nothing more than the path.
#[derive(ToSchema)]
#[schema(as = NothingMore)]
#[serde(deny_unknown_fields)]
pub(super) struct NothingMore {}

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
            buried: dead.cursor.buried.to_string(),
            buried_ms: dead.cursor.buried.as_millis(),
        }
    }
}

/// The message among a task's members, byte for byte.
#[derive(Deserialize)]
struct OfTask<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
}

/// A dead occurrence with its message, whose own bytes stay as they are.
pub(super) fn whole_view(dead: DeadSummary, record: &Record) -> Result<String, serde_json::Error> {
    let DeadView { key, task, due, due_ms, destination, reason, detail, buried, buried_ms, .. } = dead.into();
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
        buried,
        buried_ms,
        traceparent: record.trace.map(|trace| trace.to_string()),
        message,
    };
    serde_json::to_string(&view)
}
