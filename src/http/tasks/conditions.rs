//! The entity tag of a task, and the conditions `if-match` and `if-none-match` of a put or a cancel.

use axum::http::{HeaderMap, HeaderName, header};
use utoipa::IntoParams;

use crate::clock::Timestamp;
use crate::task::Fault;
use crate::timeline::{PutMode, TaskRevision};

/// The conditions of a put in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct PutConditions {
    /// Put only if the task has this entity tag, which a `GET` has shown: 412 `changed` if somebody has put another one, or
    /// removed it.
    #[param(rename = "if-match", required = false, nullable = false, pattern = "^\"[0-9]+-[0-9]+\"$")]
    if_match: String,
    /// `*`: put only if there is no such task, else 412 `exists`.
    #[param(rename = "if-none-match", required = false, nullable = false, pattern = "^\\*$")]
    if_none_match: String,
}

/// The condition of a cancel in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct CancelCondition {
    /// Cancel only if the task has this entity tag: 412 `changed` if somebody has put another one.
    #[param(rename = "if-match", required = false, nullable = false, pattern = "^\"[0-9]+-[0-9]+\"$")]
    if_match: String,
}

/// The entity tag of a task: when it was created, in ms, and its revision.
pub(super) fn entity_tag(revision: TaskRevision) -> String {
    format!("\"{}-{}\"", revision.created.as_millis(), revision.number)
}

/// How a request puts.
pub(super) fn put_mode(headers: &HeaderMap) -> Result<PutMode, Fault> {
    let none_match = one(headers, header::IF_NONE_MATCH)?;
    match (if_match(headers)?, none_match) {
        (None, None) => Ok(PutMode::Put),
        (Some(revision), None) => Ok(PutMode::Match(revision)),
        (None, Some("*")) => Ok(PutMode::Absent),
        (None, Some(_)) => Err(fault(&header::IF_NONE_MATCH, "bad_value", "`*` is expected")),
        (Some(_), Some(_)) => {
            Err(fault(&header::IF_NONE_MATCH, "exclusive_fields", "`if-match` and `if-none-match` exclude each other"))
        }
    }
}

/// The revision that the task must have.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<TaskRevision>, Fault> {
    let Some(tag) = one(headers, header::IF_MATCH)? else { return Ok(None) };
    let read = || {
        let (created, number) = tag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
        Some(TaskRevision { created: Timestamp::from_millis(created.parse().ok()?), number: number.parse().ok()? })
    };
    // Written as it is read: `+1` or `01` would be another tag.
    let revision = read().filter(|revision| entity_tag(*revision) == tag);
    let detail = "one entity tag of a task is expected, with its quotes: \"1795262400000-1\"";
    revision.map(Some).ok_or_else(|| fault(&header::IF_MATCH, "bad_value", detail))
}

/// The value of a header that may be given once.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Fault> {
    let mut given = headers.get_all(&name).iter();
    let Some(value) = given.next() else { return Ok(None) };
    match (value.to_str(), given.next()) {
        (Ok(value), None) => Ok(Some(value.trim())),
        _ => Err(fault(&name, "bad_value", "one value is expected, in ASCII")),
    }
}

fn fault(name: &HeaderName, code: &'static str, detail: &str) -> Fault {
    Fault { pointer: format!("/{name}"), code, detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(given: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_condition_is_one_entity_tag_or_a_star() {
        let revision = TaskRevision { created: Timestamp::from_millis(1_795_262_400_000), number: 3 };
        let tag = entity_tag(revision);
        assert_eq!(tag, "\"1795262400000-3\"");
        let (when, none) = (header::IF_MATCH, header::IF_NONE_MATCH);
        let mode =
            |given: &[(HeaderName, &str)]| put_mode(&headers(given)).map_err(|fault| (fault.pointer, fault.code));
        assert_eq!(mode(&[]), Ok(PutMode::Put));
        assert_eq!(mode(&[(when.clone(), &tag)]), Ok(PutMode::Match(revision)));
        assert_eq!(mode(&[(none.clone(), " * ")]), Ok(PutMode::Absent));
        let both = mode(&[(when.clone(), &tag), (none.clone(), "*")]);
        assert_eq!(both, Err(("/if-none-match".to_owned(), "exclusive_fields")));
        for wrong in
            ["*", "", "1795262400000-3", "\"x\"", "\"1-2\", \"1-3\"", "W/\"1-2\"", "\"+1-2\"", "\"1-02\"", "\"1--2\""]
        {
            assert_eq!(mode(&[(when.clone(), wrong)]), Err(("/if-match".to_owned(), "bad_value")), "{wrong}");
        }
        assert_eq!(mode(&[(none.clone(), &tag)]), Err(("/if-none-match".to_owned(), "bad_value")));
        assert_eq!(mode(&[(when.clone(), &tag), (when, &tag)]), Err(("/if-match".to_owned(), "bad_value")));
    }
}
