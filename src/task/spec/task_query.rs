//! The queries of the lists and counts of tasks, and of one task.

use std::borrow::Cow;

use super::filter::word;
use super::object::{self, Field, Object};
use super::time::{self, Rounding};
use super::{Fault, lane};
use crate::clock::Timestamp;
use crate::task::Lane;

/// Maximum length of a text to search for in ids, in bytes: no id is longer.
const MAX_TEXT_BYTES: usize = 200;

/// Maximum number of windows of a count.
const MAX_WINDOWS: u64 = 120;

/// The query of a list of tasks; a missing member means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// Of this lane.
    pub lane: Option<Lane>,
    /// With this status, one of the given words.
    pub status: Option<String>,
    /// Whose ids begin with this.
    pub prefix: String,
    /// Whose ids contain this.
    pub contains: String,
    /// Due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Due before this time.
    pub due_to: Option<Timestamp>,
    /// Where to continue.
    pub cursor: Option<String>,
    /// About how many to return.
    pub limit: Option<usize>,
}

/// Parses the query of a list of tasks: `{"lane"?, "status"?, "prefix"?, "contains"?, "due_from"?, "due_to"?,
/// "cursor"?, "limit"?}`. `limit` is at most `max_limit`.
///
/// # Errors
/// Every fault of the document.
pub fn read_task_query(json: &[u8], statuses: &[&str], max_limit: u64) -> Result<TaskQuery, Vec<Fault>> {
    object::read(json, "query", |field| {
        let mut object = field.object()?;
        let query = members(&mut object, statuses);
        let limit = object.optional("limit", |field| field.number(1, max_limit));
        object.end();
        Some(TaskQuery { limit: limit.and_then(|limit| usize::try_from(limit).ok()), ..query })
    })
}

/// The names of the members that select tasks.
pub(super) const SELECTING: [&str; 6] = ["lane", "status", "prefix", "contains", "due_from", "due_to"];

/// Takes the members that select tasks, and the cursor.
pub(super) fn members(object: &mut Object<'_, '_>, statuses: &[&str]) -> TaskQuery {
    let lane = object.optional("lane", lane);
    let status = object.optional("status", |field| word(field, statuses));
    let (prefix, contains) = (object.optional("prefix", part_of_id), object.optional("contains", part_of_id));
    // Both round up, because dues are whole milliseconds.
    let mut time = |name| object.optional(name, |field| time::read(field, Rounding::Up));
    let (due_from, due_to) = (time("due_from"), time("due_to"));
    if let (Some(from), Some(to)) = (due_from, due_to)
        && to <= from
    {
        object.path.member("due_to").fault::<()>("out_of_range", "`due_to` has to be later than `due_from`");
    }
    let cursor = object.optional("cursor", |field| field.text().map(Cow::into_owned));
    let (prefix, contains) = (prefix.unwrap_or_default(), contains.unwrap_or_default());
    TaskQuery { lane, status, prefix, contains, due_from, due_to, cursor, limit: None }
}

/// The query of a list by due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpcomingQuery {
    /// Of this lane.
    pub lane: Option<Lane>,
    /// Whose ids begin with this.
    pub prefix: String,
    /// Due at this time or later.
    pub from: Option<Timestamp>,
    /// Maximum number to return.
    pub limit: Option<usize>,
}

/// Parses the query of a list by due: `{"lane"?, "prefix"?, "from"?, "limit"?}`. `limit` is at most `max_limit`.
///
/// # Errors
/// Every fault of the document.
pub fn read_upcoming_query(json: &[u8], max_limit: u64) -> Result<UpcomingQuery, Vec<Fault>> {
    object::read(json, "query", |field| {
        let mut object = field.object()?;
        let lane = object.optional("lane", lane);
        let prefix = object.optional("prefix", part_of_id).unwrap_or_default();
        let from = object.optional("from", |field| time::read(field, Rounding::Up));
        let limit = object.optional("limit", |field| field.number(1, max_limit));
        object.end();
        Some(UpcomingQuery { lane, prefix, from, limit: limit.and_then(|limit| usize::try_from(limit).ok()) })
    })
}

/// The query of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountQuery {
    /// Of this lane.
    pub lane: Option<Lane>,
    /// The borders of the windows, in order; none without windows.
    pub borders: Vec<Timestamp>,
}

/// Parses the query of a count: `{"lane"?, "from"?, "to"?, "windows"?}`. The time between `from` and `to` is divided
/// into windows of the same length, one by default.
///
/// # Errors
/// Every fault of the document.
pub fn read_count_query(json: &[u8]) -> Result<CountQuery, Vec<Fault>> {
    object::read(json, "query", |field| {
        let mut object = field.object()?;
        let lane = object.optional("lane", lane);
        // Windows lie between two times.
        let has_windows = ["from", "to", "windows"].iter().any(|name| object.has(name));
        let read_time = |field: Field<'_, '_>| time::read(field, Rounding::Up);
        let [from, to] = ["from", "to"].map(|name| match has_windows {
            true => object.required(name, read_time),
            false => object.optional(name, read_time),
        });
        let windows = object.optional("windows", |field| field.number(1, MAX_WINDOWS));
        let count = windows.and_then(|windows| i64::try_from(windows).ok()).unwrap_or(1);
        let mut borders = Vec::new();
        if let (Some(from), Some(to)) = (from.map(Timestamp::as_millis), to.map(Timestamp::as_millis)) {
            if to - from < count {
                let detail = format!("`to` has to be later than `from`, by 1 ms or more for each of {count} windows");
                object.path.member("to").fault::<()>("out_of_range", detail);
            }
            borders.extend((0..=count).map(|window| Timestamp::from_millis(from + (to - from) * window / count)));
        }
        object.end();
        Some(CountQuery { lane, borders })
    })
}

/// Parses the query of one task: `{"next"?}`, how many dues to show, at most `max_next`.
///
/// # Errors
/// Every fault of the document.
pub fn read_next(json: &[u8], max_next: u64) -> Result<Option<usize>, Vec<Fault>> {
    object::read(json, "query", |field| {
        let mut object = field.object()?;
        let next = object.optional("next", |field| field.number(1, max_next));
        object.end();
        Some(next.and_then(|next| usize::try_from(next).ok()))
    })
}

fn part_of_id(field: Field<'_, '_>) -> Option<String> {
    let path = field.path;
    let text = field.text()?;
    if text.is_empty() || text.len() > MAX_TEXT_BYTES {
        return path.fault("out_of_range", format!("1 to {MAX_TEXT_BYTES} bytes are expected"));
    }
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_query_is_named_at_once() {
        let read = |json: &str| read_task_query(json.as_bytes(), &["scheduled"], 1000);
        assert_eq!(read("{}"), Ok(TaskQuery::default()));
        let whole = r#"{"lane":"a","status":"scheduled","prefix":"p","contains":"c","due_from":"1970-01-01T00:00:00.0011Z","due_to":"1970-01-01T00:00:01Z","cursor":"x","limit":7}"#;
        let query = read(whole).unwrap();
        assert_eq!((query.prefix.as_str(), query.contains.as_str(), query.limit), ("p", "c", Some(7)));
        assert_eq!(query.due_from, Some(Timestamp::from_millis(2)));
        let long = "x".repeat(201);
        let wrong = format!(
            r#"{{"lane":"A","status":"late","prefix":"","contains":"{long}","due_from":"2027-01-01T00:00:00Z","due_to":"2026-01-01T00:00:00Z","limit":0,"z":1}}"#
        );
        let faults: Vec<_> = read(&wrong).unwrap_err().into_iter().map(|fault| (fault.pointer, fault.code)).collect();
        let expected = [
            ("/lane", "bad_lane"),
            ("/status", "bad_value"),
            ("/prefix", "out_of_range"),
            ("/contains", "out_of_range"),
            ("/due_to", "out_of_range"),
            ("/limit", "out_of_range"),
            ("/z", "unknown_field"),
        ];
        assert_eq!(faults, expected.map(|(pointer, code)| (pointer.to_owned(), code)));
    }
    #[test]
    fn windows_divide_the_time_between_two_others() {
        let read = |json: &str| {
            let faults = |faults: Vec<Fault>| {
                faults.into_iter().map(|fault| format!("{} {}", fault.pointer, fault.code)).collect::<Vec<_>>()
            };
            read_count_query(json.as_bytes())
                .map(|query| query.borders.iter().map(|border| border.as_millis()).collect::<Vec<_>>())
                .map_err(faults)
        };
        let times = r#""from":"1970-01-01T00:00:00.001Z","to":"1970-01-01T00:00:00.011Z""#;
        assert_eq!(read(r#"{"lane":"default"}"#), Ok(vec![]));
        assert_eq!(read(&format!("{{{times}}}")), Ok(vec![1, 11]));
        assert_eq!(read(&format!(r#"{{{times},"windows":3}}"#)), Ok(vec![1, 4, 7, 11]));
        assert_eq!(read(&format!(r#"{{{times},"windows":10}}"#)).unwrap().len(), 11);
        for (json, faults) in [
            (format!(r#"{{{times},"windows":11}}"#), &["/to out_of_range"][..]),
            (format!(r#"{{{times},"windows":121}}"#), &["/windows out_of_range"]),
            (r#"{"windows":2}"#.to_owned(), &["/from missing_field", "/to missing_field"]),
            (r#"{"to":"1970-01-01T00:00:01Z"}"#.to_owned(), &["/from missing_field"]),
            (r#"{"from":"x","tu":1}"#.to_owned(), &["/from bad_time", "/to missing_field", "/tu unknown_field"]),
        ] {
            assert_eq!(read(&json), Err(faults.iter().map(|&fault| fault.to_owned()).collect()), "{json}");
        }
    }
}
