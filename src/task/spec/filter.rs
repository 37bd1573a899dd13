//! Selects dead occurrences: `{"lane"?, "reason"?, "from"?, "to"?, "cursor"?, "limit"?}`. A bulk request has `"all"?` and
//! `"dry_run"?` instead of `limit`.

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

/// A bulk request for dead occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkRequest {
    /// Which ones.
    pub filter: Filter,
    /// Whether it only counts them.
    pub dry_run: bool,
}

/// Parses the filter of a list. `limit` is at most `max_limit`.
///
/// # Errors
/// Every fault of the document.
pub fn read_filter(json: &[u8], reasons: &[&str], max_limit: u64) -> Result<Filter, Vec<Fault>> {
    object::read(json, "filter", |field| {
        let mut object = field.object()?;
        let filter = members(&mut object, reasons);
        let limit = object.optional("limit", |field| field.number(1, max_limit));
        object.end();
        Some(Filter { limit: limit.and_then(|limit| usize::try_from(limit).ok()), ..filter })
    })
}

/// Parses a bulk request. It selects by a filter or says `"all": true`, so that a forgotten member does not select
/// everything.
///
/// # Errors
/// Every fault of the document.
pub fn read_bulk(json: &[u8], reasons: &[&str]) -> Result<BulkRequest, Vec<Fault>> {
    object::read(json, "filter", |field| {
        let mut object = field.object()?;
        let selecting = ["lane", "reason", "from", "to"];
        let selects = selecting.into_iter().any(|name| object.has(name));
        let filter = members(&mut object, reasons);
        let dry_run = read_all_and_dry_run(&mut object, selects, &selecting);
        object.end();
        Some(BulkRequest { filter, dry_run })
    })
}

/// Takes `all` and `dry_run` of a bulk request, which selects by a filter of these members or says `"all": true`. Returns
/// `dry_run`.
pub(super) fn read_all_and_dry_run(object: &mut Object<'_, '_>, selects: bool, selecting: &[&str]) -> bool {
    let all = object.optional("all", |field| field.truth());
    let dry_run = object.optional("dry_run", |field| field.truth()).unwrap_or_default();
    match all {
        Some(true) if selects => {
            object.path.member("all").fault::<()>("exclusive_fields", "`all` and a filter exclude each other");
        }
        None | Some(false) if !selects => {
            let (last, others) = selecting.split_last().unwrap_or((&"", &[]));
            let detail = format!(
                "a filter is missing: `{}` or `{last}`; or `\"all\": true` for all of them",
                others.join("`, `")
            );
            object.path.fault::<()>("missing_field", detail);
        }
        _ => {}
    }
    dry_run
}

/// Parses an empty body, or `{}`.
///
/// # Errors
/// Every fault of the document.
pub fn read_nothing(json: &[u8]) -> Result<(), Vec<Fault>> {
    object::read_body(json, |field| field.object().map(Object::end))
}

/// Takes the members that select, and the cursor.
fn members(object: &mut Object<'_, '_>, reasons: &[&str]) -> Filter {
    let lane = object.optional("lane", lane);
    let reason = object.optional("reason", |field| word(field, reasons));
    // Both round up: the timeline stores times of death, rounded down to the millisecond.
    let mut time = |name| object.optional(name, |field| time::read(field, Rounding::Up));
    let (from, to) = (time("from"), time("to"));
    let cursor = object.optional("cursor", |field| field.text().map(Cow::into_owned));
    if let (Some(from), Some(to)) = (from, to)
        && to <= from
    {
        object.path.member("to").fault::<()>("out_of_range", "`to` has to be later than `from`");
    }
    Filter { lane, reason, from, to, cursor, limit: None }
}

/// One of these words.
pub(super) fn word(field: Field<'_, '_>, words: &[&str]) -> Option<String> {
    let text = field.text()?;
    if words.contains(&&*text) {
        return Some(text.into_owned());
    }
    let hint = object::hint(&text, words.iter().copied());
    let detail = format!("`{}` is none of `{}`{hint}", object::shown(&text), words.join("`, `"));
    field.path.fault("bad_value", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Filter, Vec<(String, &'static str)>> {
        let named = |faults: Vec<Fault>| faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
        read_filter(json.as_bytes(), &["rejected", "too late"], 1000).map_err(named)
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
            ("/to", "out_of_range"),
            ("/limit", "out_of_range"),
            ("/z", "unknown_field"),
        ];
        assert_eq!(faults, expected.map(|(pointer, code)| (pointer.to_owned(), code)));
    }

    #[test]
    fn a_bulk_request_selects_by_a_filter_or_says_all() {
        let bulk = |json: &str| read_bulk(json.as_bytes(), &["rejected"]);
        let codes = |json: &str| bulk(json).unwrap_err().into_iter().map(|fault| fault.code).collect::<Vec<_>>();
        assert_eq!(bulk(r#"{"all":true,"cursor":"c"}"#).unwrap().filter.cursor, Some("c".to_owned()));
        let lane = bulk(r#"{"lane":"a","all":false,"dry_run":true}"#).unwrap();
        assert_eq!((lane.filter.lane, lane.dry_run), ("a".parse().ok(), true));
        for nothing in ["{}", r#"{"all":false}"#, r#"{"cursor":"c"}"#, r#"{"dry_run":true}"#] {
            assert_eq!(codes(nothing), ["missing_field"], "{nothing}");
        }
        assert_eq!(codes(r#"{"all":true,"reason":"rejected"}"#), ["exclusive_fields"]);
        assert_eq!(codes(r#"{"lane":"a","all":1}"#), ["wrong_type"]);
        assert_eq!(codes(r#"{"lane":"a","limit":1}"#), ["unknown_field"]);
    }
}
