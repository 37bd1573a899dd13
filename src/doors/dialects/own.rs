//! The dialect `own`: headers that begin with `punctual-` say what to do, and the body is the payload.
//!
//! The headers become the JSON of a task, which is read as that of a request: rules, limits and codes are those of the API.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use punctual_sinks::headers as sink_headers;
use punctual_sinks::source::Incoming;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

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
struct Headers<'m> {
    /// Those of [`FIELDS`], with their names without the prefix, in the order of the message. If one is repeated, the first counts.
    fields: Vec<(&'static str, Cow<'m, str>)>,
    id: Option<&'m str>,
    verb: Option<&'m str>,
    content_type: Option<&'m str>,
    trace: Option<Traceparent>,
    /// All others.
    others: BTreeMap<&'m str, &'m str>,
    faults: Vec<Fault>,
    /// Faults of the other headers. They do not count if the headers are kept in their native form.
    other_faults: Vec<Fault>,
}

/// Reads a message.
///
/// # Errors
/// All its faults. If `punctual-do` is not known, or the native headers are too many or too large, only that one.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let mut headers = Headers::of(message);
    match headers.verb.unwrap_or("put") {
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
    let surplus = headers.fields.first().map(|(field, _)| format!("{PREFIX}{field}"));
    if let Some(header) = surplus {
        headers.fault(&header, "not_applicable", "it goes with `put` only");
    }
    let id = match headers.id {
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
    let id = match headers.id {
        Some(name) => id_of_name(door, "punctual-id", name),
        None => id_of_place(door, message),
    };
    let id = id.map_err(|fault| headers.faults.push(fault)).ok();
    let lane = headers.field("lane").and_then(|lane| lane.parse().ok()).unwrap_or_else(|| door.default_lane());
    let native = super::native(door, intake, &lane, message, |native| native.retain(travels_on))?;
    if native.is_some() {
        headers.others.clear();
    } else {
        headers.faults.append(&mut headers.other_faults);
    }
    headers.count_from(sent);
    let task = json(door, &mut headers)?;
    let options =
        ReadOptions { limits: &door.limits, expect_id: false, lane: door.default_lane(), zone: door.zone.as_deref() };
    let read = spec::read_checked(&task, &options, now, &|_, _| None);
    // A schedule that was left out for its fault is not missing.
    let has_bad_schedule = headers.faults.iter().any(|fault| is_schedule(&fault.pointer));
    let is_news = |fault: &Fault| !(has_bad_schedule && fault.pointer == "/schedule" && fault.code == "missing_field");
    let read = read.map_err(|faults| {
        headers.faults.extend(faults.into_iter().filter(is_news).map(by_header));
    });
    let read = read.ok();
    let payload = super::body(door, message).map(|body| payload(body, headers.content_type));
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

impl<'m> Headers<'m> {
    fn of(message: &'m Incoming) -> Headers<'m> {
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

    /// Adds a header. `lower` is its name in lower case, and `field` that without the prefix, if it has the prefix.
    fn add(&mut self, name: &'m str, lower: &str, field: Option<&str>, value: &'m str) {
        let is_repeated = match field {
            Some("id") => self.id.replace(value).is_some(),
            Some("do") => self.verb.replace(value).is_some(),
            Some(field) => match FIELDS.iter().find(|(known, _)| *known == field) {
                Some((field, _)) => {
                    let is_repeated = self.field(field).is_some();
                    self.fields.push((field, Cow::from(value)));
                    is_repeated
                }
                None => {
                    let known = FIELDS.map(|(field, _)| field).join(", ");
                    let detail = format!("it is not known; these are, after `{PREFIX}`: id, do, {known}");
                    return self.fault(name, "unknown_field", detail);
                }
            },
            None if lower == sink_headers::CONTENT_TYPE => self.content_type.replace(value).is_some(),
            None if lower == Traceparent::HEADER => {
                // As in a request, one that is not valid counts as none.
                self.trace = value.parse().ok();
                false
            }
            None => self.others.insert(name, value).is_some(),
        };
        if is_repeated {
            let is_other = field.is_none() && lower != sink_headers::CONTENT_TYPE;
            self.fault_of(is_other, name, "duplicate_field", "this header is repeated");
        }
    }

    /// The value of a field, by its name without the prefix.
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_ref())
    }

    /// Makes times absolute that are relative to the message, so that a message that is read again gives the same task: `in`
    /// counts from the moment when it was sent, and so does `every` without a start.
    fn count_from(&mut self, sent: Option<Timestamp>) {
        let Some(sent) = sent else { return };
        let delay = self.field("in").and_then(|text| duration::parse(text).ok());
        let at = delay.map(|delay| sent.plus(delay)).filter(|at| at.is_valid_due());
        if let (Some(at), None) = (at, self.field("at")) {
            self.fields.retain(|(field, _)| *field != "in");
            self.fields.push(("at", Cow::from(at.to_string())));
        }
        if self.field("every").is_some() && self.field("start").is_none() {
            self.fields.push(("start", Cow::from(sent.to_string())));
        }
    }

    /// Notes a fault. `is_other`: of a header that says nothing to punctual.
    fn fault_of(&mut self, is_other: bool, header: &str, code: &'static str, detail: &str) {
        let fault = Fault { pointer: header.to_owned(), code, detail: detail.to_owned() };
        if is_other { &mut self.other_faults } else { &mut self.faults }.push(fault);
    }

    fn fault(&mut self, header: &str, code: &'static str, detail: impl Into<String>) {
        self.faults.push(Fault { pointer: header.to_owned(), code, detail: detail.into() });
    }
}

/// A value in the JSON of a task.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Json(&'a RawValue),
    Headers(&'a BTreeMap<&'a str, &'a str>),
    Object(Members<'a>),
}

/// An object in the JSON of a task.
#[derive(Default)]
struct Members<'a>(Vec<(&'static str, Member<'a>)>);

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The JSON of a task without its payload. It is written once and read once for each message: a tree of values would cost more
/// than the rest of the dialect.
fn json(door: &Door, headers: &mut Headers) -> Result<Vec<u8>, Rejection> {
    let (mut schedule, mut message, mut task) = (Members::default(), Members::default(), Members::default());
    let mut faults = Vec::new();
    for (field, place) in FIELDS {
        let Some(value) = headers.field(field) else { continue };
        let member = member(field, value).map_err(|(code, detail)| {
            faults.push(Fault { pointer: format!("{PREFIX}{field}"), code, detail });
        });
        let (object, name) = place.rsplit_once('/').unwrap_or_default();
        let object = match object {
            "/schedule" => &mut schedule,
            "/message" => &mut message,
            _ => &mut task,
        };
        object.0.extend(member.ok().map(|member| (name, member)));
    }
    if let (None, Some(destination)) = (headers.field("destination"), &door.destination) {
        message.0.push(("destination", Member::Text(Cow::from(destination.as_str()))));
    }
    if let Some(content_type) = headers.content_type {
        message.0.push(("payload_base64", Member::Text(Cow::from(""))));
        message.0.push(("content_type", Member::Text(Cow::from(content_type))));
    }
    message.0.push(("headers", Member::Headers(&headers.others)));
    task.0.push(("schedule", Member::Object(schedule)));
    task.0.push(("message", Member::Object(message)));
    let json = serde_json::to_vec(&task).map_err(|error| Rejection::new("internal", error.to_string()));
    headers.faults.append(&mut faults);
    json
}

/// The value of a field in JSON.
///
/// # Errors
/// Code and detail of the fault.
fn member<'a>(field: &str, value: &'a str) -> Result<Member<'a>, (&'static str, String)> {
    Ok(match field {
        "limit" => value.parse().map_or(Member::Text(Cow::from(value)), Member::Number),
        "retry" => {
            let not_json = |error| ("not_json", format!("it is not JSON: {error}"));
            Member::Json(serde_json::from_str(value).map_err(not_json)?)
        }
        "at" | "start" | "end" if is_in_seconds(value) => {
            let detail = format!("`{value}` looks like seconds; milliseconds since 1970 are expected, or RFC 3339");
            return Err(("bad_time", detail));
        }
        "at" | "start" | "end" => Member::Text(as_time(value).map_or(Cow::from(value), Cow::from)),
        _ => Member::Text(Cow::from(value)),
    })
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

/// Whether a header is one of those of which a message has exactly one.
fn is_schedule(header: &str) -> bool {
    header.strip_prefix(PREFIX).is_some_and(|field| SCHEDULES.contains(&field))
}

/// Whether a native header travels on, by its name in lower case: it has no place of its own in a task.
fn travels_on(name: &str) -> bool {
    ![sink_headers::CONTENT_TYPE, Traceparent::HEADER].contains(&name)
}

/// The payload, byte for byte. JSON of the type `application/json` is shown as JSON.
fn payload(body: Option<Bytes>, content_type: Option<&str>) -> Payload {
    let Some(bytes) = body else { return Payload::Tombstone };
    let is_json = || serde_json::from_slice::<&RawValue>(&bytes).is_ok_and(|json| json.get().len() == bytes.len());
    if bytes.is_empty() {
        Payload::Empty
    } else if content_type == Some("application/json") && is_json() {
        Payload::Json(bytes)
    } else {
        Payload::Raw { bytes, content_type: content_type.map(str::to_owned) }
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
