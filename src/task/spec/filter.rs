//! Which of the dead are meant: `{"lane"?, "reason"?, "from"?, "to"?, "cursor"?, "limit"?}`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::object::{self, Faults, Object, Place};
use super::time::{self, Round};
use super::{Fault, lane};
use crate::clock::Timestamp;
use crate::task::Lane;

/// Which are meant; what is not said means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this lane.
    pub lane: Option<Lane>,
    /// Dead for this reason, one of the words that were given.
    pub reason: Option<String>,
    /// Buried then or later.
    pub from: Option<Timestamp>,
    /// Buried before.
    pub to: Option<Timestamp>,
    /// Where to go on.
    pub cursor: Option<String>,
    /// How many to show at most.
    pub limit: Option<usize>,
}

/// Reads a filter. `most`: what `limit` may be at most; without it there is no such member.
///
/// # Errors
/// Every fault of the document.
pub fn read_filter(json: &[u8], reasons: &[&str], most: Option<u64>) -> Result<Filter, Vec<Fault>> {
    let mut faults = Faults::default();
    match document(json, reasons, most, &mut faults) {
        Some(filter) if faults.count() == 0 => Ok(filter),
        _ => Err(faults.into_list()),
    }
}

/// Reads a body that says nothing more than its request's path: `{}`.
///
/// # Errors
/// Every fault of the document.
pub fn read_nothing(json: &[u8]) -> Result<(), Vec<Fault>> {
    let mut faults = Faults::default();
    if let Some(object) = object::whole(json, "body", &mut faults)
        && let Some(object) = Object::read(object, &Place::ROOT, &mut faults)
    {
        object.end(&Place::ROOT, &mut faults);
    }
    if faults.count() == 0 { Ok(()) } else { Err(faults.into_list()) }
}

fn document(json: &[u8], reasons: &[&str], most: Option<u64>, faults: &mut Faults) -> Option<Filter> {
    let root = Place::ROOT;
    let mut object = Object::read(object::whole(json, "filter", faults)?, &root, faults)?;
    let lane = object.may("lane", &root, faults, lane);
    let reason = object.may("reason", &root, faults, |raw, place, faults| reason(raw, reasons, place, faults));
    // Up, both: what was buried in the middle of a millisecond stands in the timeline as buried at its beginning.
    let mut time =
        |name| object.may(name, &root, faults, |raw, place, faults| time::read(raw, Round::Up, place, faults));
    let (from, to) = (time("from"), time("to"));
    let cursor =
        object.may("cursor", &root, faults, |raw, place, faults| object::text(raw, place, faults).map(Cow::into_owned));
    let limit = most.and_then(|most| {
        object.may("limit", &root, faults, |raw, place, faults| object::number(raw, 1, most, place, faults))
    });
    if let (Some(from), Some(to)) = (from, to)
        && to <= from
    {
        faults.add::<()>(&root.member("to"), "out_of_range", "`to` has to be later than `from`");
    }
    object.end(&root, faults);
    Some(Filter { lane, reason, from, to, cursor, limit: limit.and_then(|limit| usize::try_from(limit).ok()) })
}

fn reason(raw: &RawValue, reasons: &[&str], place: &Place<'_>, faults: &mut Faults) -> Option<String> {
    let text = object::text(raw, place, faults)?;
    if reasons.contains(&&*text) {
        return Some(text.into_owned());
    }
    let hint = object::hint(&text, reasons.iter().copied());
    let detail = format!("`{}` is none of `{}`{hint}", object::shown(&text), reasons.join("`, `"));
    faults.add(place, "bad_value", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Filter, Vec<(String, &'static str)>> {
        let named = |faults: Vec<Fault>| faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
        read_filter(json.as_bytes(), &["rejected", "too late"], Some(1000)).map_err(named)
    }

    #[test]
    fn what_is_not_said_means_any() {
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
