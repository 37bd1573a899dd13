//! The dialect `etf1`: records for the Kafka message scheduler of etf1, whose producers stay as they are.
//! <https://github.com/etf1/kafka-message-scheduler>
//!
//! - The record key is the id of the schedule. A record without a value cancels it.
//! - `scheduler-epoch` is the due in seconds, `scheduler-target-topic` and `scheduler-target-key` are topic and record key of
//!   the message.
//! - The message has all headers of the record, and what that scheduler adds: `scheduler-timestamp`, `scheduler-key` and
//!   `scheduler-topic`.

use std::collections::BTreeMap;

use punctual_sinks::source::Incoming;

use super::{Instruction, Rejection, id_of_foreign_name};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::engine::intake::NewTask;
use crate::task::spec::{self, is_header};
use crate::task::{Message, Payload, Schedule, Task, When};

const EPOCH: &str = "scheduler-epoch";
const TARGET_TOPIC: &str = "scheduler-target-topic";
const TARGET_KEY: &str = "scheduler-target-key";

/// Reads a record.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, record: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let blank = |key: &[u8]| key.iter().all(u8::is_ascii_whitespace);
    let Some(key) = record.key.as_deref().filter(|key| !blank(key)) else {
        return Err(Rejection::new("no_key", "the record has no key, which is the id of the schedule"));
    };
    let id = id_of_foreign_name(door, key).map_err(|fault| Rejection::of(&[fault]))?;
    let Some(body) = record.body.clone() else { return Ok(Instruction::Cancel(id)) };
    if body.len() > door.limits.payload {
        let detail = format!("the value has {} bytes, `limits.payload` allows {}", body.len(), door.limits.payload);
        return Err(Rejection::new("too_large", detail));
    }
    let due = epoch(header(record, EPOCH).as_deref())?;
    let destination = header(record, TARGET_TOPIC).or_else(|| door.destination.clone());
    let Some(destination) = destination.filter(|destination| !destination.is_empty()) else {
        let detail = format!("neither `{TARGET_TOPIC}` nor the door names a destination");
        return Err(Rejection::new("no_destination", detail));
    };
    let content_type = header(record, "content-type").filter(|text| !text.chars().any(char::is_control));
    let payload = if body.is_empty() { Payload::Empty } else { Payload::Raw { bytes: body, content_type } };
    let message = Message {
        destination: Some(destination),
        key: Some(header(record, TARGET_KEY).unwrap_or_else(|| id.as_str().to_owned())),
        headers: headers(door, record, now)?,
        payload,
    };
    let schedule = Schedule { when: When::At(due), end: None, limit: None, spread: None };
    let task = Task { schedule, message, retry: None, catch_up: door.catch_up };
    super::put(door, intake, NewTask { id, lane: door.default_lane(), task, trace: None }, true, now)
}

/// The value of a header as text; `None` if there is none, or it is no text.
fn header(record: &Incoming, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(known, _)| known == name)?;
    std::str::from_utf8(value).ok().map(str::to_owned)
}

fn epoch(text: Option<&str>) -> Result<Timestamp, Rejection> {
    let expected = format!("`{EPOCH}` is the due in seconds since 1970");
    let Some(text) = text else { return Err(Rejection::new("bad_epoch", format!("{expected}, and is missing"))) };
    let seconds = text.trim().parse::<i64>().ok().filter(|seconds| *seconds >= 0);
    let due = seconds.and_then(|seconds| seconds.checked_mul(1000)).map(Timestamp::from_millis);
    due.filter(|due| due.is_valid_due()).ok_or_else(|| Rejection::new("bad_epoch", format!("{expected}, not `{text}`")))
}

/// The headers of the message. Those that no message can have are left out.
///
/// # Errors
/// If there are too many, or they are too large.
fn headers(door: &Door, record: &Incoming, now: Timestamp) -> Result<BTreeMap<String, String>, Rejection> {
    let text = |value: &[u8]| std::str::from_utf8(value).ok().map(str::to_owned);
    let mut headers: BTreeMap<String, String> =
        record.headers.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
    let sent = record.time_ms.map_or(now, Timestamp::from_millis);
    headers.insert("scheduler-timestamp".to_owned(), sent.as_millis().div_euclid(1000).to_string());
    headers.insert("scheduler-key".to_owned(), record.key.as_deref().and_then(text).unwrap_or_default());
    headers.insert("scheduler-topic".to_owned(), door.from.clone());
    headers.retain(|name, value| is_header(name, value));
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let excess = spec::too_many_headers(headers.len(), &door.limits);
    match excess.or_else(|| spec::too_large_headers(bytes, &door.limits)) {
        Some((code, detail)) => Err(Rejection::new(code, detail)),
        None => Ok(headers),
    }
}
