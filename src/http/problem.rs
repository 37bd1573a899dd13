//! Errors in the form of RFC 9457: `application/problem+json` with a stable `code` and one entry per fault.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::engine::intake::{GetError, PutError};
use crate::engine::steering::{SkipError, SteerError};
use crate::task::schedule::ScheduleError;
use crate::task::spec::MAX_FAULTS;
use crate::task::{Fault, Key};
use crate::timeline::TimelineError;

/// The media type of a problem.
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Every code of a problem, with its status and meaning.
pub(super) const CODES: &[(&str, u16, &str)] = &[
    ("malformed", 400, "the body is not JSON"),
    ("broken", 400, "the body broke off"),
    ("no_token", 401, "the request has no token"),
    ("unknown_token", 401, "the token is not known"),
    ("missing_scope", 403, "the token may not do this"),
    ("limited_token", 403, "the limits of the token do not allow this request"),
    ("foreign_id", 403, "the token is limited to ids with another beginning"),
    ("foreign_lane", 403, "the token is limited to other lanes"),
    ("foreign_destination", 403, "the token is limited to other destinations"),
    ("foreign_host", 403, "on loopback or without tokens, and `host` is neither an IP address nor `localhost`"),
    ("foreign_origin", 403, "the request is from a page of another site"),
    ("unknown", 404, "there is no such task, dead occurrence or lane"),
    ("no_route", 404, "there is nothing at this path"),
    ("no_method", 405, "the path does not take this method"),
    ("too_slow", 408, "the body did not come in time"),
    (
        "in_flight",
        409,
        "the key is in flight, or may have been handed out before, and another message must not use it; a task in flight cannot be triggered or skipped, and a key that still waits cannot be requeued",
    ),
    ("last", 409, "no occurrence of the task follows the one to skip"),
    ("not_next", 409, "the task has another next due than the one to skip"),
    ("cursor_gone", 410, "Redis was restarted or replaced, and the position in the list is lost: begin again"),
    ("changed", 412, "the task has another entity tag than `if-match` names, or is gone"),
    ("exists", 412, "there is such a task, and `if-none-match` is `*`"),
    ("too_large", 413, "the body is too large"),
    ("unsupported_media_type", 415, "the body is of another media type"),
    ("invalid", 422, "the input is invalid; `errors` lists every fault"),
    ("key_reused", 422, "the idempotency key was used for another body"),
    ("full", 429, "the lanes of the token hold as many tasks as its `pending_max` allows"),
    ("too_many_puts", 429, "the token puts more often than it may"),
    ("internal", 500, "a bug in punctual"),
    ("unreadable", 500, "this instance cannot parse the task"),
    ("busy", 503, "other requests use all the memory for bodies, or too many wait for their schedules to be computed"),
    ("timeline_late", 503, "the request reached the timeline too late, and took no effect"),
    ("timeline_refused", 503, "the timeline refused, and the request took no effect"),
    ("timeline_unavailable", 503, "the timeline is unavailable, and the request took no effect"),
    ("timeline_unknown", 503, "the request took effect before this answer, or never will"),
];

/// Every code of a fault. Those of tasks are explained in [`crate::task::spec`].
pub(super) const FAULTS: &[&str] = &[
    "not_json",
    "wrong_type",
    "unknown_field",
    "duplicate_field",
    "missing_field",
    "exclusive_fields",
    "not_applicable",
    "bad_id",
    "bad_key",
    "bad_lane",
    "unknown_lane",
    "bad_destination",
    "bad_time",
    "bad_duration",
    "bad_cron",
    "bad_zone",
    "bad_value",
    "bad_header",
    "reserved_header",
    "bad_base64",
    "bad_idempotency_key",
    "out_of_range",
    "too_many",
    "too_large",
    "never_due",
    "end_before_first",
    "spread_too_long",
    "retry_too_long",
];

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The kind of problem; stable.
    pub code: &'static str,
    /// What was found and what is expected, without secrets.
    pub detail: String,
    /// Every fault of the input, each with its position.
    pub errors: Vec<Fault>,
    /// The idempotency key of the occurrence that the problem is about: with `in_flight`, `last` and `not_next`.
    pub key: Option<Box<str>>,
    /// The idempotency key of a dead occurrence of a task that is gone.
    pub dead_key: Option<Box<str>>,
    /// After how many seconds the request may be repeated.
    pub retry_after: Option<u64>,
}

/// A problem in JSON.
#[derive(Serialize)]
struct ProblemView<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_key: Option<&'a str>,
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let view = ProblemView {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
            key: self.key.as_deref(),
            dead_key: self.dead_key.as_deref(),
        };
        view.serialize(serializer)
    }
}

impl Problem {
    /// A problem without faults; its title is the text of the status.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        let known = |(known, its, _): &(&str, u16, &str)| *known == code && *its == status.as_u16();
        debug_assert!(CODES.iter().any(known), "`{code}` with {status} is not in `CODES`");
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Problem { status, code, detail: detail.into(), errors: Vec::new(), key: None, dead_key: None, retry_after }
    }

    /// Input with faults.
    #[must_use]
    pub fn invalid(errors: Vec<Fault>) -> Problem {
        let known = |fault: &Fault| FAULTS.contains(&fault.code);
        debug_assert!(errors.iter().all(known), "{errors:?} are not all in `FAULTS`");
        let detail = match errors.as_slice() {
            [only] if only.pointer.is_empty() => only.detail.clone(),
            [only] => format!("{}: {}", only.pointer, only.detail),
            several => format!("{} faults, each named in `errors`", several.len()),
        };
        // A document that is not JSON has another status than one with invalid values.
        let (status, code) = match errors.as_slice() {
            [only] if only.code == "not_json" && only.pointer.is_empty() => (StatusCode::BAD_REQUEST, "malformed"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
        };
        Problem { errors, ..Problem::new(status, code, detail) }
    }

    /// Input with one fault.
    #[must_use]
    pub fn fault(pointer: &str, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::invalid(vec![Fault { pointer: pointer.to_owned(), code, detail: detail.into() }])
    }

    /// What a path and a body say, or all faults of both.
    ///
    /// # Errors
    /// Up to [`MAX_FAULTS`] faults.
    pub(super) fn both_or_faults<A, B>(path: Result<A, Fault>, body: Result<B, Vec<Fault>>) -> Result<(A, B), Problem> {
        match (path, body) {
            (Ok(path), Ok(body)) => Ok((path, body)),
            (path, body) => {
                let faults = path.err().into_iter().chain(body.err().unwrap_or_default());
                Err(Problem::invalid(faults.take(MAX_FAULTS).collect()))
            }
        }
    }

    /// Other requests take what this one needs; it may be sent again.
    pub(super) fn busy(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }

    /// A bug in punctual: a put without an answer.
    pub(super) fn unanswered() -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the put was not answered")
    }

    /// The task is not the one that the caller has read.
    pub(super) fn changed() -> Problem {
        let detail = "the task has another entity tag, or is gone: get it again";
        Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail)
    }

    /// This version cannot parse the stored task.
    pub(super) fn unreadable(error: &dyn std::error::Error) -> Problem {
        tracing::error!(%error, "a task cannot be read");
        let detail = "this instance cannot parse the task: another version of punctual wrote it, it is damaged, or its \
            time zone is unknown here";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status;
        // Strings and numbers can always be written.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<TimelineError> for Problem {
    /// 503: the request either took effect before this answer or never will. 500 if the timeline's answer cannot be
    /// parsed.
    fn from(error: TimelineError) -> Problem {
        let code = match &error {
            TimelineError::Late => "timeline_late",
            TimelineError::Refused(_) | TimelineError::LaneChanged => "timeline_refused",
            TimelineError::Unavailable(_) => "timeline_unavailable",
            TimelineError::Unknown(_) | TimelineError::Unconfirmed(_) => "timeline_unknown",
            TimelineError::Broken(_) => {
                tracing::error!(%error, "a request failed");
                let detail = "punctual could not parse the timeline's answer; its log has the details";
                return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
            }
        };
        tracing::debug!(%error, "a request was not done");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, without_secrets(&error.to_string()))
    }
}

impl From<GetError> for Problem {
    fn from(error: GetError) -> Problem {
        match error {
            GetError::Timeline(error) => error.into(),
            GetError::Record(error) => Problem::unreadable(&error),
        }
    }
}

impl From<SteerError> for Problem {
    fn from(error: SteerError) -> Problem {
        match error {
            SteerError::UnknownLane(error) => Problem::new(StatusCode::NOT_FOUND, "unknown", error.to_string()),
            SteerError::Timeline(error) => error.into(),
        }
    }
}

impl From<SkipError> for Problem {
    fn from(error: SkipError) -> Problem {
        let detail = error.to_string();
        let conflict = |code, key: Key| Problem {
            key: Some(key.to_string().into()),
            ..Problem::new(StatusCode::CONFLICT, code, detail.clone())
        };
        match error {
            SkipError::Unknown(_) => Problem::new(StatusCode::NOT_FOUND, "unknown", detail),
            SkipError::InFlight(key) => conflict("in_flight", key),
            SkipError::Last(key) => conflict("last", key),
            SkipError::NotNext(key) => conflict("not_next", key),
            SkipError::Schedule(error) => Problem::unreadable(&error),
            SkipError::Get(error) => error.into(),
            SkipError::Timeline(error) => error.into(),
        }
    }
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Problem {
        let (code, detail) = (error.code().unwrap_or("internal"), error.to_string());
        let pointer = match error {
            PutError::InFlight(key) => {
                return Problem {
                    key: Some(key.to_string().into()),
                    ..Problem::new(StatusCode::CONFLICT, code, detail)
                };
            }
            PutError::Changed => return Problem::changed(),
            PutError::Exists => return Problem::new(StatusCode::PRECONDITION_FAILED, code, detail),
            PutError::KeyReused => return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail),
            PutError::Timeline(error) => return error.into(),
            PutError::UnknownLane(_) => "/lane",
            PutError::NoDestination(_) | PutError::BadDestination(_) => "/message/destination",
            PutError::NoTombstones(_) => "/message/tombstone",
            PutError::Never | PutError::BadDue => "/schedule",
            PutError::Schedule(ScheduleError::Cron(_)) => "/schedule/cron",
            PutError::Schedule(ScheduleError::Zone(_)) => "/schedule/zone",
        };
        Problem::fault(pointer, code, detail)
    }
}

/// A text without possible users and passwords in URLs.
pub(super) fn without_secrets(detail: &str) -> String {
    let mut safe = String::with_capacity(detail.len());
    for (i, word) in detail.split(' ').enumerate() {
        if i > 0 {
            safe.push(' ');
        }
        match (word.split_once("://"), word.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => safe.push_str(&format!("{scheme}://***@{place}")),
            _ => safe.push_str(word),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_503_shows_no_password() {
        let error = TimelineError::Unavailable("cannot reach redis://me:hunter2@host:1/: refused".into());
        let problem = Problem::from(error);
        assert_eq!((problem.status.as_u16(), problem.code), (503, "timeline_unavailable"));
        assert_eq!(problem.detail, "the timeline is unavailable: cannot reach redis://***@host:1/: refused");
    }
}
