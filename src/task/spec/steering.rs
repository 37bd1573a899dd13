//! The bodies of requests that steer: pause of a lane `{"note"?, "until"?}`; pause `{"note"?}`, resume `{"missed"?}` and skip
//! `{"due"?}` of a task; and bulk requests that cancel, pause or resume tasks.

use super::Fault;
use super::filter::read_all_and_dry_run;
use super::object::{self, Field};
use super::task_query::{SELECTING, TaskQuery, members};
use super::time::{self, Rounding};
use crate::clock::Timestamp;

/// Maximum length of a note, in characters.
const MAX_NOTE_CHARS: usize = 200;

/// A request to pause a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LanePauseBody {
    /// Why.
    pub note: String,
    /// When the pause ends by itself.
    pub until: Option<Timestamp>,
}

/// Parses the body of a pause that begins at `now`. An empty body is `{}`.
///
/// # Errors
/// Every fault of the document.
pub fn read_lane_pause(json: &[u8], now: Timestamp) -> Result<LanePauseBody, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let note = object.optional("note", note).unwrap_or_default();
        let until = object.optional("until", |field| {
            let path = field.path;
            let until = time::read(field, Rounding::Up)?;
            if until <= now {
                return path.fault("out_of_range", format!("`until` is not in the future: it is {now}"));
            }
            Some(until)
        });
        object.end();
        Some(LanePauseBody { note, until })
    })
}

/// Parses the body of a request to pause a task. Returns the note.
///
/// # Errors
/// Every fault of the document.
pub fn read_task_pause(json: &[u8]) -> Result<String, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let note = object.optional("note", note).unwrap_or_default();
        object.end();
        Some(note)
    })
}

/// What happens to the occurrences that a paused task has missed when it is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// The catch-up of the task decides, as after an outage.
    #[default]
    CatchUp,
    /// They are passed over.
    Skip,
}

/// Parses the body of a request to resume a task.
///
/// # Errors
/// Every fault of the document.
pub fn read_resume(json: &[u8]) -> Result<Missed, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let missed = object.optional("missed", missed);
        object.end();
        Some(missed.unwrap_or_default())
    })
}

/// Parses the body of a request to skip an occurrence. Returns the due that it must have.
///
/// # Errors
/// Every fault of the document.
pub fn read_skip(json: &[u8]) -> Result<Option<Timestamp>, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let due = object.optional("due", |field| time::read(field, Rounding::Up));
        object.end();
        Some(due)
    })
}

/// A bulk request for tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TasksRequest {
    /// Which ones.
    pub query: TaskQuery,
    /// Whether it only counts them.
    pub dry_run: bool,
    /// Why they are paused; only for a pause.
    pub note: String,
    /// What happens to what they missed; only for a resume.
    pub missed: Missed,
}

/// What a bulk request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TasksVerb {
    /// Cancels.
    Cancel,
    /// Pauses; takes a `note`.
    Pause,
    /// Resumes; takes `missed`.
    Resume,
}

/// Parses a bulk request for tasks: the members that select, or `"all": true`; `"dry_run"?`, `"cursor"?`, and what the verb
/// takes.
///
/// # Errors
/// Every fault of the document.
pub fn read_tasks(json: &[u8], verb: TasksVerb, statuses: &[&str]) -> Result<TasksRequest, Vec<Fault>> {
    object::read(json, "filter", |field| {
        let mut object = field.object()?;
        let selects = SELECTING.into_iter().any(|name| object.has(name));
        let query = members(&mut object, statuses);
        let dry_run = read_all_and_dry_run(&mut object, selects, &SELECTING);
        let note = if verb == TasksVerb::Pause { object.optional("note", note) } else { None };
        let missed = if verb == TasksVerb::Resume { object.optional("missed", missed) } else { None };
        object.end();
        Some(TasksRequest { query, dry_run, note: note.unwrap_or_default(), missed: missed.unwrap_or_default() })
    })
}

fn missed(field: Field<'_, '_>) -> Option<Missed> {
    let path = field.path;
    match field.text()?.as_ref() {
        "catch_up" => Some(Missed::CatchUp),
        "skip" => Some(Missed::Skip),
        _ => path.fault("bad_value", "`catch_up` or `skip` is expected"),
    }
}

fn note(field: Field<'_, '_>) -> Option<String> {
    let path = field.path;
    let text = field.text()?;
    if text.chars().count() > MAX_NOTE_CHARS {
        return path.fault("too_large", format!("at most {MAX_NOTE_CHARS} characters are expected"));
    }
    if text.chars().any(char::is_control) {
        return path.fault("bad_value", "control characters and line breaks are not expected in a note");
    }
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_a_short_note_and_ends_in_the_future() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let read = |json: &str| {
            let named = |faults: Vec<Fault>| {
                faults.into_iter().map(|fault| format!("{} {}", fault.pointer, fault.code)).collect::<Vec<_>>()
            };
            read_lane_pause(json.as_bytes(), now).map_err(named)
        };
        assert_eq!(read(""), Ok(LanePauseBody::default()));
        assert_eq!(read("{}"), Ok(LanePauseBody::default()));
        let whole = read(r#"{"note":"broker moves – ü","until":"2026-11-21T12:00:00.001Z"}"#).unwrap();
        assert_eq!(
            whole,
            LanePauseBody {
                note: "broker moves – ü".into(), until: Some(Timestamp::from_millis(now.as_millis() + 1))
            }
        );
        let long = format!(r#"{{"note":"{}"}}"#, "ü".repeat(201));
        assert_eq!(read(&long), Err(vec!["/note too_large".to_owned()]));
        assert!(read(&long.replacen('ü', "", 1)).is_ok());
        assert_eq!(
            (read_task_pause(b""), read_task_pause(br#"{"note":"x"}"#)),
            (Ok(String::new()), Ok("x".to_owned()))
        );
        assert_eq!(read_task_pause(br#"{"until":"2026-11-21T12:00:01Z"}"#).unwrap_err()[0].code, "unknown_field");
        assert_eq!((read_resume(b""), read_resume(br#"{"missed":"skip"}"#)), (Ok(Missed::CatchUp), Ok(Missed::Skip)));
        assert_eq!(read_resume(br#"{"missed":"all"}"#).unwrap_err()[0].code, "bad_value");
        let tasks = |verb, json: &str| read_tasks(json.as_bytes(), verb, &["paused"]);
        let codes =
            |verb, json: &str| tasks(verb, json).unwrap_err().into_iter().map(|fault| fault.code).collect::<Vec<_>>();
        let paused = tasks(TasksVerb::Pause, r#"{"prefix":"a","status":"paused","note":"x","dry_run":true}"#).unwrap();
        assert_eq!((paused.query.prefix.as_str(), paused.note.as_str(), paused.dry_run), ("a", "x", true));
        assert_eq!(tasks(TasksVerb::Resume, r#"{"all":true,"missed":"skip"}"#).unwrap().missed, Missed::Skip);
        for nothing in ["{}", r#"{"all":false}"#, r#"{"cursor":"c"}"#, r#"{"dry_run":true}"#] {
            assert_eq!(codes(TasksVerb::Cancel, nothing), ["missing_field"], "{nothing}");
        }
        assert_eq!(codes(TasksVerb::Cancel, r#"{"all":true,"prefix":"a"}"#), ["exclusive_fields"]);
        assert_eq!(codes(TasksVerb::Cancel, r#"{"all":true,"note":"a","missed":"skip"}"#), ["unknown_field"; 2]);
        assert_eq!((read_skip(b""), read_skip(br#"{"due":"2026-11-21T12:00:00Z"}"#)), (Ok(None), Ok(Some(now))));
        let wrong = read(r#"{"note":"a\nb","until":"2026-11-21T12:00:00Z","for":1}"#).unwrap_err();
        assert_eq!(wrong, ["/note bad_value", "/until out_of_range", "/for unknown_field"]);
    }
}
