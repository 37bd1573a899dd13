//! What messages say: each dialect is a function from a message to an [`Instruction`], or to the reason why there is none.

mod celery;
mod etf1;
mod expiration;
mod foreign;
mod masstransit;
mod own;
mod sky;
mod x_delay;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use punctual_sinks::native::NativeHeaders;
use punctual_sinks::source::Incoming;
use uuid::Builder;

use super::{ABOUT_TASK, Dialect, Door, rejected};
use crate::clock::Timestamp;
use crate::engine::intake::{NewTask, PutError};
use crate::engine::{Intake, NotAllowed};
use crate::task::{Fault, Lane, StoredHeaders, TaskId, Traceparent, When, spec};

/// Maximum length of a detail, in bytes.
const MAX_DETAIL_BYTES: usize = 1024;

/// What to do for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// Put this task.
    Put(Box<PutInstruction>),
    /// Cancel the task with this id.
    Cancel(TaskId),
    /// Cancel the task with this id, because the message puts one that was due too long ago.
    CancelTooLate(TaskId),
    /// Only acknowledge it, and count it as this.
    Skip(&'static str),
}

/// A task to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PutInstruction {
    pub(super) new: NewTask,
    /// Whether the message names the id. Otherwise no other message has this id.
    pub(super) names_id: bool,
    /// The first due.
    pub(super) due: Timestamp,
}

impl PutInstruction {
    /// Whether the message would put a task with another id or due if it were read again.
    pub(super) fn is_unidentified(&self, message: &Incoming) -> bool {
        let counts_from_put = matches!(self.new.task.schedule.when, When::In(_) | When::Every { start: None, .. });
        counts_from_put || message.is_place_random && !self.names_id
    }

    /// How many headers of the message its task does not have, because they are no text.
    pub(super) fn dropped_headers(&self, message: &Incoming) -> usize {
        let task = &self.new.task.message;
        if task.native.is_some() {
            return 0;
        }
        let is_dropped = |name: &str| {
            !spec::is_reserved(name)
                && !name.eq_ignore_ascii_case(Traceparent::HEADER)
                && !task.headers.contains_key(name)
        };
        match &message.native {
            Some(native) => native.names().filter(|name| is_dropped(name)).count(),
            None => message.headers.iter().filter(|(name, _)| is_dropped(name)).count(),
        }
    }
}

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Stable, as in the API.
    pub(super) code: &'static str,
    /// What was found and what is expected.
    pub(super) detail: String,
}

impl Rejection {
    pub(super) fn new(code: &'static str, detail: impl Into<String>) -> Rejection {
        // Brokers refuse line breaks in headers.
        let mut detail = detail.into().replace(char::is_control, " ");
        if detail.len() > MAX_DETAIL_BYTES {
            let end = (0..=MAX_DETAIL_BYTES).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
            detail.truncate(end);
        }
        Rejection { code, detail }
    }

    /// All faults of a message; the code is that of the first one. A pointer is the name of a header.
    fn of(faults: &[Fault]) -> Rejection {
        let text = |fault: &Fault| match fault.pointer.as_str() {
            "" => fault.detail.clone(),
            header => format!("{header}: {}", fault.detail),
        };
        let detail: Vec<String> = faults.iter().map(text).collect();
        Rejection::new(faults.first().map_or("bad_value", |fault| fault.code), detail.join("; "))
    }
}

/// Lets a delay count from the due of the occurrence that a consumer forwards, if that is later than the time of its
/// message. Consumers that try again forward all properties, in RabbitMQ also the time of the first message.
pub(super) fn count_from_last_due(message: &mut Incoming) {
    let is_due = |(name, _): &&(String, Bytes)| name.eq_ignore_ascii_case(punctual_sinks::headers::DUE);
    let due = message.headers.iter().find(is_due).and_then(|(_, due)| std::str::from_utf8(due).ok()?.parse().ok());
    let due = due.filter(|due| Timestamp::from_millis(*due).is_valid_due());
    message.time_ms = message.time_ms.map(|time| due.map_or(time, |due| time.max(due)));
}

/// Reads a message at `now`.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let is_copy = |(name, _): &(String, Bytes)| name.eq_ignore_ascii_case(rejected::CODE);
    if message.headers.iter().any(is_copy) {
        return Ok(Instruction::Skip("loop"));
    }
    match door.dialect {
        Dialect::Own => own::read(door, intake, message, now),
        Dialect::Etf1 => etf1::read(door, intake, message, now),
        Dialect::Sky => sky::read(door, intake, message, now),
        Dialect::XDelay => x_delay::read(door, intake, message, now),
        Dialect::Expiration => expiration::read(door, intake, message, now),
        Dialect::Celery => celery::read(door, intake, message, now),
        Dialect::MassTransit => masstransit::read(door, intake, message, now),
    }
}

/// The id of the task of a message that names none.
///
/// # Errors
/// If the place cannot be a part of an id.
fn id_of_place(door: &Door, message: &Incoming) -> Result<TaskId, Fault> {
    let id = format!("{}{}.{}", door.allowed.prefix.as_str(), door.name, message.place);
    id.parse().map_err(|bad| Fault { pointer: String::new(), code: "bad_id", detail: format!("`{id}`: {bad}") })
}

/// The id that a message names.
///
/// # Errors
/// If it is no id.
fn id_of_name(door: &Door, header: &str, name: &str) -> Result<TaskId, Fault> {
    let id = format!("{}{name}", door.allowed.prefix.as_str());
    id.parse().map_err(|bad: crate::task::id::BadName| Fault {
        pointer: header.to_owned(),
        code: "bad_id",
        detail: bad.to_string(),
    })
}

/// The id for a name that another program chose. If it is no id, a version 8 UUID of its bytes takes its place.
///
/// # Errors
/// Never, because a prefix leaves room for a UUID.
fn id_of_foreign_name(door: &Door, name: &[u8]) -> Result<TaskId, Fault> {
    let text = std::str::from_utf8(name).ok();
    if let Some(id) = text.and_then(|name| id_of_name(door, "", name).ok()) {
        return Ok(id);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(&SHA256, name).as_ref()[..16]);
    id_of_name(door, "", &Builder::from_custom_bytes(bytes).into_uuid().to_string())
}

/// The body of a message.
///
/// # Errors
/// If it is too large.
fn body(door: &Door, message: &Incoming) -> Result<Option<Bytes>, Fault> {
    let (bytes, limit) = (message.body.as_ref().map_or(0, Bytes::len), door.limits.payload);
    if bytes > limit {
        let detail = format!("the body has {bytes} bytes, `limits.payload` allows {limit}");
        return Err(Fault { pointer: String::new(), code: "too_large", detail });
    }
    Ok(message.body.clone())
}

/// The native headers of the task of a message, if the message has some and the sink of this lane publishes them; `adapt` adds
/// and leaves out.
///
/// # Errors
/// If there are too many, or they are too large.
fn native(
    door: &Door,
    intake: &Intake,
    lane: &Lane,
    message: &Incoming,
    adapt: impl FnOnce(NativeHeaders) -> NativeHeaders,
) -> Result<Option<StoredHeaders>, Rejection> {
    let Some(native) = message.native.clone().filter(|native| intake.sink_kind(lane) == Some(native.kind())) else {
        return Ok(None);
    };
    // As in a request, no header may look like one that punctual writes, or do something in NATS.
    let is_free = |name: &str| ["punctual-", "nats-", "kv-"].iter().all(|start| !name.starts_with(start));
    let native = adapt(native.retain(|name| is_free(name) && !ABOUT_TASK.contains(&name)));
    let (count, encoded) = (native.len(), native.encode());
    match spec::unfit_headers(count, encoded.bytes.len(), &door.limits) {
        Some((code, detail)) => Err(Rejection::new(code, detail)),
        None => Ok(Some(StoredHeaders { kind: encoded.kind, bytes: encoded.bytes })),
    }
}

/// The id for the key of a record.
///
/// # Errors
/// If it has none.
fn id_of_record_key(door: &Door, record: &Incoming) -> Result<TaskId, Rejection> {
    let is_blank = |key: &Bytes| key.iter().all(u8::is_ascii_whitespace);
    match record.key.as_ref().filter(|key| !is_blank(key)) {
        Some(key) => id_of_foreign_name(door, key).map_err(|fault| Rejection::of(&[fault])),
        None => Err(Rejection::new("no_key", "the record has no key, which is the id of the schedule")),
    }
}

/// The instruction for a task of a message. If the task was due too long ago, it is not put.
///
/// # Errors
/// If the limits of the door do not allow the task, or the timeline's checks of a put would refuse it.
fn put(door: &Door, intake: &Intake, new: NewTask, names_id: bool, now: Timestamp) -> Result<Instruction, Rejection> {
    let not_allowed = |error: NotAllowed| Rejection::new(error.code(), format!("the door is {error}"));
    door.allowed.check_message(intake, &new.lane, &new.task.message).map_err(not_allowed)?;
    let rejection = |error: PutError| Rejection::new(error.code().unwrap_or("internal"), error.to_string());
    // A put that would be refused is rejected here. Otherwise it could supersede an earlier put of its batch, and then
    // be refused itself.
    intake.check(&new.lane, Some(&new.task.message)).map_err(rejection)?;
    let first = new.task.schedule.first(&new.id, now).map_err(|error| rejection(error.into()))?;
    let due = first.ok_or_else(|| rejection(PutError::Never))?;
    if !due.is_valid_due() {
        return Err(rejection(PutError::BadDue));
    }
    if door.max_overdue.is_some_and(|max| now.since(due) > max) {
        return Ok(if names_id { Instruction::CancelTooLate(new.id) } else { Instruction::Skip("too_late") });
    }
    Ok(Instruction::Put(Box::new(PutInstruction { new, names_id, due })))
}

#[cfg(test)]
mod tests;
