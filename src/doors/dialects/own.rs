//! The dialect `own`: headers that begin with `punctual-` say what to do, and the body is the payload.
//!
//! The headers become the JSON of a task, which is read as that of a request: rules, limits and codes are those of the API.

use std::collections::BTreeMap;

use bytes::Bytes;
use punctual_sinks::headers as sink_headers;
use punctual_sinks::source::Incoming;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Instruction, Rejection, id_of_name, id_of_place};
use crate::clock::Timestamp;
use crate::doors::{ABOUT_TASK, Door};
use crate::engine::Intake;
use crate::engine::intake::NewTask;
use crate::task::spec::{self, ReadOptions};
use crate::task::{Fault, Payload, Traceparent, duration};

/// The beginning of the names of headers that say what to do.
const PREFIX: &str = "punctual-";

/// These, without the prefix, and where they are in the JSON of a task.
const FIELDS: [(&str, &str); 14] = [
    ("in", "/schedule/in"),
    ("at", "/schedule/at"),
    ("every", "/schedule/every"),
    ("cron", "/schedule/cron"),
    ("zone", "/schedule/zone"),
    ("start", "/schedule/start"),
    ("end", "/schedule/end"),
    ("limit", "/schedule/limit"),
    ("spread", "/schedule/spread"),
    ("destination", "/message/destination"),
    ("key", "/message/key"),
    ("lane", "/lane"),
    ("catch-up", "/catch_up"),
    ("retry", "/retry"),
];

/// The first of them, which select the schedule. A message has exactly one.
const SCHEDULES: [&str; 4] = ["in", "at", "every", "cron"];

/// The headers of a message.
#[derive(Default)]
struct Headers {
    /// Those of [`FIELDS`], by name without the prefix.
    fields: BTreeMap<&'static str, String>,
    id: Option<String>,
    verb: Option<String>,
    content_type: Option<String>,
    trace: Option<Traceparent>,
    /// All others.
    own: Map<String, Value>,
    faults: Vec<Fault>,
    /// Those of the others, which native headers do not have.
    own_faults: Vec<Fault>,
}

/// Reads a message.
///
/// # Errors
/// Every fault of it.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let mut headers = Headers::of(message);
    match headers.verb.as_deref().unwrap_or("put") {
        "put" => put(door, intake, message, headers, now),
        "cancel" => cancel(door, headers),
        verb => {
            let detail = format!("`{verb}` is not known: `put` and `cancel` are");
            headers.fault("punctual-do", "bad_value", detail);
            Err(Rejection::of(&headers.faults))
        }
    }
}

fn cancel(door: &Door, mut headers: Headers) -> Result<Instruction, Rejection> {
    let surplus = headers.fields.keys().next().map(|field| format!("{PREFIX}{field}"));
    if let Some(header) = surplus {
        headers.fault(&header, "not_applicable", "it goes with `put` only");
    }
    let id = match &headers.id {
        Some(name) => id_of_name(door, "punctual-id", name).map_err(|fault| headers.faults.push(fault)).ok(),
        None => {
            headers.fault("punctual-id", "missing_field", "a cancel names the id of a task");
            None
        }
    };
    match id {
        Some(id) if headers.faults.is_empty() => Ok(Instruction::Cancel(id)),
        _ => Err(Rejection::of(&headers.faults)),
    }
}

fn put(
    door: &Door,
    intake: &Intake,
    message: &Incoming,
    mut headers: Headers,
    now: Timestamp,
) -> Result<Instruction, Rejection> {
    let sent = message.time_ms.map(Timestamp::from_millis).filter(|sent| sent.is_valid_due());
    let id = match &headers.id {
        Some(name) => id_of_name(door, "punctual-id", name),
        None => id_of_place(door, message),
    };
    let id = id.map_err(|fault| headers.faults.push(fault)).ok();
    let lane = headers.fields.get("lane").and_then(|lane| lane.parse().ok()).unwrap_or_else(|| door.default_lane());
    let native = super::native(door, intake, &lane, message, |native| native.retain(travels_on))?;
    if native.is_some() {
        headers.own.clear();
    } else {
        headers.faults.append(&mut headers.own_faults);
    }
    let task = json(door, &mut headers, sent).to_string();
    let options =
        ReadOptions { limits: &door.limits, expect_id: false, lane: door.default_lane(), zone: door.zone.as_deref() };
    let read = spec::read_checked(task.as_bytes(), &options, now, &|_, _| None);
    // A schedule that was left out for its fault is not missing.
    let has_bad_schedule = headers.faults.iter().any(|fault| is_schedule(&fault.pointer));
    let is_news = |fault: &Fault| !(has_bad_schedule && fault.pointer == "/schedule" && fault.code == "missing_field");
    let read = read.map_err(|faults| {
        headers.faults.extend(faults.into_iter().filter(is_news).map(by_header));
    });
    let read = read.ok();
    let payload = super::body(door, message).map(|body| payload(body, headers.content_type.take()));
    let payload = payload.map_err(|fault| headers.faults.push(fault)).ok();
    let (Some(id), Some(read), Some(payload), []) = (id, read, payload, headers.faults.as_slice()) else {
        return Err(Rejection::of(&headers.faults));
    };
    let mut task = read.task;
    task.message.payload = payload;
    task.message.native = native;
    task.catch_up = task.catch_up.or(door.catch_up);
    let new = NewTask { id, lane: read.lane, task, trace: headers.trace };
    super::put(door, intake, new, headers.id.is_some(), now)
}

impl Headers {
    fn of(message: &Incoming) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in &message.headers {
            let lower = name.to_ascii_lowercase();
            match lower.strip_prefix(PREFIX) {
                _ if ABOUT_TASK.contains(&lower.as_str()) => {}
                Some(of_copy) if of_copy.starts_with("dead-") || of_copy.starts_with("rejected-") => {}
                None if lower.starts_with("nats-") => {}
                field => match std::str::from_utf8(value) {
                    Ok(value) => headers.add(name, &lower, field, value),
                    Err(_) => headers.fault_of(field.is_none(), name, "bad_header", "the value is no text in UTF-8"),
                },
            }
        }
        headers
    }

    /// Adds a header: its name, the same in lower case, and that without the prefix.
    fn add(&mut self, name: &str, lower: &str, field: Option<&str>, value: &str) {
        let former = match field {
            Some("id") => self.id.replace(value.to_owned()).is_some(),
            Some("do") => self.verb.replace(value.to_owned()).is_some(),
            Some(field) => match FIELDS.iter().find(|(known, _)| *known == field) {
                Some((field, _)) => self.fields.insert(field, value.to_owned()).is_some(),
                None => {
                    let known = FIELDS.map(|(field, _)| field).join(", ");
                    let detail = format!("it is not known; these are, after `{PREFIX}`: id, do, {known}");
                    return self.fault(name, "unknown_field", detail);
                }
            },
            None if lower == sink_headers::CONTENT_TYPE => self.content_type.replace(value.to_owned()).is_some(),
            None if lower == Traceparent::HEADER => {
                // As in a request, one that is not valid counts as none.
                self.trace = value.parse().ok();
                false
            }
            None => self.own.insert(name.to_owned(), Value::from(value)).is_some(),
        };
        if former {
            let is_own = field.is_none() && lower != sink_headers::CONTENT_TYPE;
            self.fault_of(is_own, name, "duplicate_field", "this header is repeated");
        }
    }

    /// Notes a fault, of one of the others or not.
    fn fault_of(&mut self, is_own: bool, header: &str, code: &'static str, detail: &str) {
        let fault = Fault { pointer: header.to_owned(), code, detail: detail.to_owned() };
        if is_own { &mut self.own_faults } else { &mut self.faults }.push(fault);
    }

    fn fault(&mut self, header: &str, code: &'static str, detail: impl Into<String>) {
        self.faults.push(Fault { pointer: header.to_owned(), code, detail: detail.into() });
    }
}

/// The JSON of a task without its payload. Times that are relative to the message become absolute, so that a message that is
/// read again gives the same task.
fn json(door: &Door, headers: &mut Headers, sent: Option<Timestamp>) -> Value {
    let mut task = json!({"schedule": {}, "message": {"headers": std::mem::take(&mut headers.own)}});
    if let Some(destination) = &door.destination {
        task["message"]["destination"] = Value::from(destination.as_str());
    }
    if let Some(content_type) = &headers.content_type {
        task["message"]["payload_base64"] = Value::from("");
        task["message"]["content_type"] = Value::from(content_type.as_str());
    }
    for (field, value) in std::mem::take(&mut headers.fields) {
        let value = match field {
            "limit" => value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from),
            "retry" => match serde_json::from_str(&value) {
                Ok(retry) => retry,
                Err(error) => {
                    headers.fault("punctual-retry", "not_json", format!("it is not JSON: {error}"));
                    continue;
                }
            },
            "at" | "start" | "end" if is_in_seconds(&value) => {
                let detail = format!("`{value}` looks like seconds; milliseconds since 1970 are expected, or RFC 3339");
                headers.fault(&format!("{PREFIX}{field}"), "bad_time", detail);
                continue;
            }
            "at" | "start" | "end" => Value::from(as_time(&value).unwrap_or(value)),
            _ => Value::from(value),
        };
        let place = FIELDS.iter().find(|(known, _)| *known == field).and_then(|(_, place)| place.rsplit_once('/'));
        if let Some((object, member)) = place
            && let Some(object) = task.pointer_mut(object)
        {
            object[member] = value;
        }
    }
    if let (Some(sent), Value::Object(schedule)) = (sent, &mut task["schedule"]) {
        from_sent(schedule, sent);
    }
    task
}

/// Whether a number is a time in seconds: as milliseconds, it would be in the first months of 1970.
fn is_in_seconds(text: &str) -> bool {
    text.len() <= 10 && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A time in epoch milliseconds as RFC 3339.
fn as_time(text: &str) -> Option<String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = Timestamp::from_millis(if is_number { text.parse().ok()? } else { return None });
    time.is_valid_due().then(|| time.to_string())
}

/// `in` counts from the moment of the message, and so does `every` without a start.
fn from_sent(schedule: &mut Map<String, Value>, sent: Timestamp) {
    let delay = schedule.get("in").and_then(Value::as_str).and_then(|text| duration::parse(text).ok());
    let at = delay.map(|delay| sent.plus(delay)).filter(|at| at.is_valid_due());
    if let (Some(at), None) = (at, schedule.get("at")) {
        schedule.remove("in");
        schedule.insert("at".to_owned(), Value::from(at.to_string()));
    }
    if schedule.contains_key("every") && !schedule.contains_key("start") {
        schedule.insert("start".to_owned(), Value::from(sent.to_string()));
    }
}

/// Whether a header is one of those of which a message has exactly one.
fn is_schedule(header: &str) -> bool {
    header.strip_prefix(PREFIX).is_some_and(|field| SCHEDULES.contains(&field))
}

/// Whether a native header travels on, by its name in lower case: it has no place of its own in a task.
fn travels_on(name: &str) -> bool {
    ![sink_headers::CONTENT_TYPE, Traceparent::HEADER].contains(&name)
}

/// The payload, byte for byte. JSON of the type `application/json` is shown as JSON.
fn payload(body: Option<Bytes>, content_type: Option<String>) -> Payload {
    let Some(bytes) = body else { return Payload::Tombstone };
    let is_json = || serde_json::from_slice::<&RawValue>(&bytes).is_ok_and(|json| json.get().len() == bytes.len());
    if bytes.is_empty() {
        Payload::Empty
    } else if content_type.as_deref() == Some("application/json") && is_json() {
        Payload::Json(bytes)
    } else {
        Payload::Raw { bytes, content_type }
    }
}

/// A fault of the JSON with the header that caused it.
fn by_header(fault: Fault) -> Fault {
    let pointer = fault.pointer.as_str();
    let of_field = FIELDS.iter().find(|(_, place)| pointer == *place || pointer.starts_with(&format!("{place}/")));
    let header = match of_field {
        Some((field, _)) => format!("{PREFIX}{field}"),
        None => match pointer {
            "/schedule" => SCHEDULES.map(|schedule| format!("{PREFIX}{schedule}")).join(", "),
            "/message/content_type" => sink_headers::CONTENT_TYPE.to_owned(),
            other => other
                .trim_start_matches("/message/headers")
                .trim_start_matches('/')
                .replace("~1", "/")
                .replace("~0", "~"),
        },
    };
    Fault { pointer: header, ..fault }
}
