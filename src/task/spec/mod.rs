//! A task as JSON: reads one and names every fault at once, writes one back.
//!
//! The codes of faults are stable:
//!
//! | code | what is wrong |
//! |---|---|
//! | `not_json` | the document, or a text in it, is not JSON |
//! | `wrong_type` | another kind of value is expected there |
//! | `unknown_field`, `duplicate_field`, `missing_field` | a member is unknown, repeated, or missing |
//! | `exclusive_fields` | members that exclude each other |
//! | `not_applicable` | a member that has no meaning together with the others |
//! | `bad_id`, `bad_key`, `bad_lane`, `bad_time`, `bad_duration`, `bad_cron`, `bad_zone`, `bad_value` | a text that breaks its rule |
//! | `bad_header`, `reserved_header`, `bad_base64` | likewise, in a message |
//! | `unknown_lane` | the lane is not configured |
//! | `bad_destination` | the sink of the lane can never publish to this destination |
//! | `out_of_range` | a number or time outside its bounds |
//! | `too_many`, `too_large` | a limit on number or size is exceeded |
//! | `never_due` | the schedule has no occurrence |
//! | `end_before_first` | the first occurrence would be due after `end` |
//! | `spread_too_long` | `spread` is not shorter than the shortest gap |
//! | `retry_too_long` | the retries may take longer than 30 s, or than the shortest gap |

mod filter;
mod message;
mod object;
mod preview;
mod retry;
mod schedule;
mod steering;
mod task_query;
mod time;
pub(crate) mod write;
mod zone;

use serde::Serialize;

use self::object::Field;
use super::schedule::ScheduleError;
use super::{CatchUp, Lane, Message, Task};
use crate::clock::Timestamp;

pub use filter::{BulkRequest, Filter, read_bulk, read_filter, read_nothing};
pub use message::{is_header, is_name, is_reserved, unfit_headers};
pub use object::MAX_FAULTS;
pub use preview::{Preview, read_preview};
pub use steering::{
    LanePauseBody, Missed, TasksRequest, TasksVerb, read_lane_pause, read_resume, read_skip, read_task_pause,
    read_tasks,
};
pub use task_query::{
    CountQuery, TaskQuery, UpcomingQuery, read_count_query, read_next, read_task_query, read_upcoming_query,
};
pub use time::parse as parse_time;
pub use write::write;

/// One thing wrong with a task, in the form of `errors` in a problem document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// JSON pointer to the value that is wrong; empty for the whole document.
    pub pointer: String,
    /// What kind of fault it is; stable.
    pub code: &'static str,
    /// What was found and what is expected.
    pub detail: String,
}

/// The maximum sizes of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of payload, after base64; default 512 KiB.
    pub payload: usize,
    /// Number of headers; default 64.
    pub headers: usize,
    /// Bytes of all header names and values together; default 16 KiB.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { payload: 512 * 1024, headers: 64, header_bytes: 16 * 1024 }
    }
}

/// Reads a task from JSON. `now` is the time of the put, with which dues, `end` and gaps are checked.
///
/// `expect_id`: whether a member `id` is part of the document (batch lines) or refused as unknown (the path names it).
///
/// # Errors
/// Every fault of the document, at least one and at most 100, each with its pointer.
pub fn read(json: &[u8], limits: &Limits, expect_id: bool, now: Timestamp) -> Result<Read, Vec<Fault>> {
    let options = ReadOptions { limits, expect_id, lane: Lane::default(), zone: None };
    read_checked(json, &options, now, &|_, _| None)
}

/// How to read a task.
#[derive(Clone, Debug)]
pub struct ReadOptions<'a> {
    /// The maximum sizes of the task.
    pub limits: &'a Limits,
    /// Whether a member `id` is part of the document; see [`read`].
    pub expect_id: bool,
    /// The lane of a task that names none.
    pub lane: Lane,
    /// The zone of a cron schedule that names none; `None` is UTC.
    pub zone: Option<&'a str>,
}

/// Like [`read`], and also calls `check` with the lane, and with the message if it and its destination can be read. A
/// fault that `check` returns is reported together with the others.
///
/// # Errors
/// As [`read`].
pub fn read_checked(
    json: &[u8],
    options: &ReadOptions<'_>,
    now: Timestamp,
    check: &dyn Fn(&Lane, Option<&Message>) -> Option<Fault>,
) -> Result<Read, Vec<Fault>> {
    object::read(json, "task", |field| document(field, options, now, check))
}

/// A task that was read, not yet resolved against lanes that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The `id` of a batch line.
    pub id: Option<super::TaskId>,
    /// The lane of the task, or the lane of the options if the task names none.
    pub lane: Lane,
    /// The task.
    pub task: Task,
}

fn document(
    field: Field<'_, '_>,
    options: &ReadOptions<'_>,
    now: Timestamp,
    check: &dyn Fn(&Lane, Option<&Message>) -> Option<Fault>,
) -> Option<Read> {
    let path = field.path;
    let mut object = field.object()?;
    let id = if options.expect_id { object.required("id", id) } else { None };
    let schedule = object.required("schedule", |field| schedule::read(field, now, options.zone));
    let message = object.required("message", |field| message::read(field, options.limits));
    let named = object.has("lane");
    let lane = object.optional("lane", lane).or_else(|| (!named).then(|| options.lane.clone()));
    if let Some(lane) = &lane {
        let readable = message.as_ref().filter(|_| !path.names("/message/destination"));
        if let Some(fault) = check(lane, readable) {
            path.note(fault);
        }
    }
    let retry = object.optional("retry", retry::read);
    let catch_up = object.optional("catch_up", catch_up);
    if !options.expect_id && object.has("id") {
        object.drop("id");
        let detail = "the id is in the path or generated by the server, not in the task";
        path.member("id").fault::<()>("unknown_field", detail);
    }
    object.end();
    let task = Task { schedule: schedule?, message: message?, retry, catch_up };
    if path.count() == 0 {
        retry::check_room(&task, path, now);
    }
    Some(Read { id, lane: lane.unwrap_or_default(), task })
}

fn id(field: Field<'_, '_>) -> Option<super::TaskId> {
    field.text()?.parse().map_err(|error| field.path.fault::<()>("bad_id", format!("{error}"))).ok()
}

fn lane(field: Field<'_, '_>) -> Option<Lane> {
    let text = field.text()?;
    let bad = |error| format!("`{}` is not a lane: {error}", object::shown(&text));
    text.parse().map_err(|error: super::id::BadName| field.path.fault::<()>("bad_lane", bad(error))).ok()
}

fn catch_up(field: Field<'_, '_>) -> Option<CatchUp> {
    let text = field.text()?;
    CatchUp::of(&text).or_else(|| {
        let known = object::hint(&text, CatchUp::ALL.iter().map(|policy| policy.as_str()));
        let detail = format!("`{}` is no catch-up: use `once`, `all` or `none`{known}", object::shown(&text));
        field.path.fault("bad_value", detail)
    })
}

#[cfg(test)]
mod tests;
