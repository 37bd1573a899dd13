//! Writes a task as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::task::duration::format;
use crate::task::{Lane, Message, Payload, RetryPolicy, Schedule, StoredHeaders, Task, When};

/// The task as JSON, with `lane`; payloads byte for byte. [`read`](super::read) parses this form, except
/// native headers.
#[must_use]
pub fn write(task: &Task, lane: &Lane) -> Box<RawValue> {
    let view = TaskView {
        schedule: ScheduleView::of(&task.schedule),
        message: MessageView::of(&task.message),
        lane: Some(lane.as_str()),
        retry: task.retry.as_ref().map(RetryView::of),
        catch_up: task.catch_up.map(|policy| policy.as_str()),
    };
    to_raw_value(&view).expect("texts and numbers are JSON")
}

/// A task in JSON. Missing values are omitted.
#[derive(Default, Serialize)]
pub(crate) struct TaskView<'a> {
    pub(crate) schedule: ScheduleView<'a>,
    pub(crate) message: MessageView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) catch_up: Option<&'a str>,
}

#[derive(Default, Serialize)]
pub(crate) struct ScheduleView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "in")]
    pub(crate) after: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) every: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cron: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<String>,
}

#[derive(Default, Serialize)]
pub(crate) struct MessageView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<&'a BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) native: Option<NativeView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tombstone: bool,
}

/// Native headers; only shown, because requests cannot write them.
#[derive(Serialize)]
pub(crate) struct NativeView<'a> {
    pub(crate) kind: &'a str,
    pub(crate) base64: String,
}

#[derive(Default, Serialize)]
pub(crate) struct RetryView {
    pub(crate) max: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jitter: Option<String>,
}

impl ScheduleView<'_> {
    fn of(schedule: &Schedule) -> ScheduleView<'_> {
        let view = ScheduleView {
            end: schedule.end.map(|time| time.to_string()),
            limit: schedule.limit,
            spread: schedule.spread.map(format),
            ..ScheduleView::default()
        };
        match &schedule.when {
            When::At(at) => ScheduleView { at: Some(at.to_string().into()), ..view },
            When::In(span) => ScheduleView { after: Some(format(*span).into()), ..view },
            When::Every { gap, start } => {
                ScheduleView { every: Some(format(*gap).into()), start: start.map(|time| time.to_string()), ..view }
            }
            When::Cron { expression, zone, start } => {
                let start = start.map(|time| time.to_string());
                ScheduleView { cron: Some(expression), zone: zone.as_deref(), start, ..view }
            }
        }
    }
}

impl MessageView<'_> {
    fn of(message: &Message) -> MessageView<'_> {
        let (payload, raw, content_type) = match &message.payload {
            Payload::Empty | Payload::Tombstone => (None, None, None),
            // It was JSON when it was put. A damaged payload is still shown.
            Payload::Json(bytes) => match serde_json::from_slice(bytes) {
                Ok(json) => (Some(json), None, None),
                Err(_) => (None, Some(bytes), None),
            },
            Payload::Raw { bytes, content_type } => (None, Some(bytes), content_type.as_deref()),
        };
        MessageView {
            destination: message.destination.as_deref(),
            key: message.key.as_deref(),
            headers: Some(&message.headers).filter(|headers| !headers.is_empty()),
            native: message.native.as_ref().map(NativeView::of),
            payload,
            payload_base64: raw.map(|bytes| STANDARD.encode(bytes)),
            content_type,
            tombstone: message.payload.is_tombstone(),
        }
    }
}

impl NativeView<'_> {
    fn of(native: &StoredHeaders) -> NativeView<'_> {
        NativeView { kind: &native.kind, base64: STANDARD.encode(&native.bytes) }
    }
}

impl RetryView {
    fn of(policy: &RetryPolicy) -> RetryView {
        let (interval, jitter) = (Some(format(policy.interval)), Some(format(policy.jitter)));
        RetryView { max: policy.max, interval, jitter }
    }
}
