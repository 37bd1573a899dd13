//! Selects dead occurrences: `{"lane"?, "reason"?, "from"?, "to"?, "cursor"?, "limit"?}`.

use std::borrow::Cow;

use super::object::{self, Field, Object};
use super::time::{self, Rounding};
use super::{Fault, lane};
use crate::clock::Timestamp;
use crate::task::Lane;

/// A filter; a missing member means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this lane.
    pub lane: Option<Lane>,
    /// With this reason, one of the given words.
    pub reason: Option<String>,
    /// Died at this time or later.
    pub from: Option<Timestamp>,
    /// Died before this time.
    pub to: Option<Timestamp>,
    /// Where to continue.
    pub cursor: Option<String>,
    /// Maximum number to return.
    pub limit: Option<usize>,
}

/// Parses a filter. `most` is the maximum of `limit`; with `None` there is no such member.
///
/// # Errors
/// Every fault of the document.
pub fn read_filter(json: &[u8], reasons: &[&str], most: Option<u64>) -> Result<Filter, Vec<Fault>> {
    object::read(json, "filter", |field| document(field, reasons, most))
}

/// Parses an empty body: `{}`.
///
/// # Errors
/// Every fault of the document.
pub fn read_nothing(json: &[u8]) -> Result<(), Vec<Fault>> {
    object::read(json, "body", |field| field.object().map(Object::end))
}

fn document(field: Field<'_, '_>, reasons: &[&str], most: Option<u64>) -> Option<Filter> {
    let mut object = field.object()?;
    let lane = object.optional("lane", lane);
    let reason = object.optional("reason", |field| reason(field, reasons));
    // Both round up: the timeline stores time of deaths rounded down to the millisecond.
    let mut time = |name| object.optional(name, |field| time::read(field, Rounding::Up));
    let (from, to) = (time("from"), time("to"));
    let cursor = object.optional("cursor", |field| field.text().map(Cow::into_owned));
    let limit = most.and_then(|most| object.optional("limit", |field| field.number(1, most)));
    if let (Some(from), Some(to)) = (from, to)
        && to <= from
    {
        field.path.member("to").fault::<()>("out_of_range", "`to` has to be later than `from`");
    }
    object.end();
    Some(Filter { lane, reason, from, to, cursor, limit: limit.and_then(|limit| usize::try_from(limit).ok()) })
}

fn reason(field: Field<'_, '_>, reasons: &[&str]) -> Option<String> {
    let text = field.text()?;
    if reasons.contains(&&*text) {
        return Some(text.into_owned());
    }
    let hint = object::hint(&text, reasons.iter().copied());
    let detail = format!("`{}` is none of `{}`{hint}", object::shown(&text), reasons.join("`, `"));
    field.path.fault("bad_value", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Filter, Vec<(String, &'static str)>> {
        let named = |faults: Vec<Fault>| faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
        read_filter(json.as_bytes(), &["rejected", "too late"], Some(1000)).map_err(named)
    }

    #[test]
    fn an_omitted_filter_field_matches_any_value() {
        assert_eq!(read("{}"), Ok(Filter::default()));
        let whole = r#"{"lane":"a","reason":"too late","from":"1970-01-01T00:00:00.0011Z","to":"1970-01-01T00:00:00.002001Z","cursor":"c","limit":7}"#;
        let at = |ms| Some(Timestamp::from_millis(ms));
        let (lane, reason, cursor) = ("a".parse().ok(), Some("too late".to_owned()), Some("c".to_owned()));
        assert_eq!(read(whole), Ok(Filter { lane, reason, from: at(2), to: at(3), cursor, limit: Some(7) }));
    }

    #[test]
    fn every_fault_of_a_filter_is_named_at_once() {
        let json = r#"{"lane":"A","reason":"rejectd","from":"2027-01-01T00:00:00Z","to":"2026-01-01T00:00:00Z","limit":0,"z":1}"#;
        let faults = read(json).unwrap_err();
        let expected = [
            ("/lane", "bad_lane"),
            ("/reason", "bad_value"),
            ("/limit", "out_of_range"),
            ("/to", "out_of_range"),
            ("/z", "unknown_field"),
        ];
        assert_eq!(faults, expected.map(|(pointer, code)| (pointer.to_owned(), code)));
        let limit = read_filter(br#"{"limit":1}"#, &[], None).unwrap_err();
        assert_eq!((limit.len(), limit[0].code), (1, "unknown_field"));
    }
}
