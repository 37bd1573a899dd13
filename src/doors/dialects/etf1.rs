//! The dialect `etf1`: records for the Kafka message scheduler of etf1, whose producers stay as they are.
//! <https://github.com/etf1/kafka-message-scheduler>
//!
//! - The record key is the id of the schedule. A record without a value cancels it.
//! - `scheduler-epoch` is the due in seconds, `scheduler-target-topic` and `scheduler-target-key` are topic and record key of
//!   the message.
//! - The message has all headers of the record, and what that scheduler adds: `scheduler-timestamp`, `scheduler-key` and
//!   `scheduler-topic`.

use punctual_sinks::native::HeaderValue;
use punctual_sinks::source::Incoming;

use super::foreign::ForeignTask;
use super::{Instruction, Rejection, id_of_record_key};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::task::When;

const EPOCH: &str = "scheduler-epoch";
const TARGET_TOPIC: &str = "scheduler-target-topic";
const TARGET_KEY: &str = "scheduler-target-key";

/// Reads a record.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, record: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let id = id_of_record_key(door, record)?;
    if record.body.is_none() {
        return Ok(Instruction::Cancel(id));
    }
    let due = epoch(header(record, EPOCH).as_deref())?;
    let destination = header(record, TARGET_TOPIC).or_else(|| door.destination.clone());
    let Some(destination) = destination.filter(|destination| !destination.is_empty()) else {
        let detail = format!("neither `{TARGET_TOPIC}` nor the door names a destination");
        return Err(Rejection::new("no_destination", detail));
    };
    let sent = record.time_ms.map_or(now, Timestamp::from_millis).as_millis().div_euclid(1000);
    let text = |text: String| HeaderValue::Text(text.into());
    let headers = vec![
        ("scheduler-timestamp", text(sent.to_string())),
        (
            "scheduler-key",
            text(record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default().to_owned()),
        ),
        ("scheduler-topic", text(door.from.clone())),
    ];
    let key = Some(header(record, TARGET_KEY).unwrap_or_else(|| id.as_str().to_owned()));
    let task = ForeignTask::new(door, intake, record, now, When::At(due), destination);
    ForeignTask { id: Some(id), key, headers, ..task }.put()
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
