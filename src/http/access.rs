//! Access control: tokens with the scopes `read` and `write`, stored as hashes.
//!
//! A request is checked before its body is read. Only the header `authorization: Bearer ...` can carry a token, because
//! URLs end up in logs. Each request is compared with all tokens in constant time, so that the time of an answer
//! reveals nothing about them. If no token is configured, every client may do everything that reaches the instance by
//! an IP address or as `localhost`. On loopback, requests by another name are refused with a token too, and pages of other
//! sites are refused everywhere.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// What a route requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: probes, and the description of the API.
    Nothing,
    /// A token with any scope: paths without a route.
    Known,
    /// The scope `read`.
    Read,
    /// The scope `write`.
    Write,
    /// Both scopes: routes that are missing in [`ROUTES`].
    Both,
}

/// What each route requires; a route that is not listed requires both scopes.
const ROUTES: &[(&str, &str, Need)] = &[
    ("GET", "/v1/tasks/{id}", Need::Read),
    ("PUT", "/v1/tasks/{id}", Need::Write),
    ("DELETE", "/v1/tasks/{id}", Need::Write),
    ("POST", "/v1/tasks", Need::Write),
    ("POST", "/v1/tasks:batch", Need::Write),
    ("POST", "/v1/preview", Need::Read),
    ("GET", "/v1/dead", Need::Read),
    ("GET", "/v1/dead/{key}", Need::Read),
    ("DELETE", "/v1/dead/{key}", Need::Write),
    ("POST", "/v1/dead/{key}/requeue", Need::Write),
    ("POST", "/v1/dead:requeue", Need::Write),
    ("POST", "/v1/dead:discard", Need::Write),
    ("GET", "/v1/stats", Need::Read),
    ("GET", "/metrics", Need::Read),
    ("GET", "/healthz", Need::Nothing),
    ("GET", "/readyz", Need::Nothing),
    ("GET", "/openapi.json", Need::Nothing),
];

/// A configured token, by its hash.
#[derive(Clone, Copy)]
pub struct KnownToken {
    /// The SHA-256 of the token.
    pub sha256: [u8; 32],
    /// Whether it has the scope `read`.
    pub read: bool,
    /// Whether it has the scope `write`.
    pub write: bool,
}

/// Does not show the hash, because it helps to guess the token.
impl fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownToken").field("read", &self.read).field("write", &self.write).finish_non_exhaustive()
    }
}

/// The configured tokens.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tokens: Arc<[KnownToken]>,
    /// Whether the API listens on loopback.
    on_loopback: bool,
}

impl Access {
    /// With these tokens; without any, every caller may do everything.
    #[must_use]
    pub fn by_tokens(tokens: impl IntoIterator<Item = KnownToken>) -> Access {
        Access { tokens: tokens.into_iter().collect(), on_loopback: false }
    }

    /// For an API that listens on loopback: requests must name it by an IP address or `localhost`, with a token too.
    #[must_use]
    pub fn on_loopback(self, on_loopback: bool) -> Access {
        Access { on_loopback, ..self }
    }

    /// Whether the caller has the scope `read`, on a route that shows others less.
    pub(super) fn may_read(&self, headers: &HeaderMap) -> bool {
        self.check_token(Need::Read, headers).is_ok()
    }

    /// Whether the headers of a request satisfy the requirement.
    fn check(&self, need: Need, headers: &HeaderMap) -> Result<(), Problem> {
        own_origin(headers)?;
        if self.tokens.is_empty() || self.on_loopback {
            own_host(headers)?;
        }
        self.check_token(need, headers)
    }

    fn check_token(&self, need: Need, headers: &HeaderMap) -> Result<(), Problem> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        if need == Need::Nothing {
            return Ok(());
        }
        let given = token(headers)?;
        let hash = digest(&SHA256, given);
        let (mut known, mut read, mut write) = (false, false, false);
        for token in self.tokens.iter() {
            let same = verify_slices_are_equal(hash.as_ref(), &token.sha256).is_ok();
            known |= same;
            read |= same & token.read;
            write |= same & token.write;
        }
        if !known {
            return Err(unauthorized("unknown_token", "the token is not known here"));
        }
        let missing = match need {
            Need::Read | Need::Both if !read => "read",
            Need::Write | Need::Both if !write => "write",
            _ => return Ok(()),
        };
        let detail = format!("the token has no scope `{missing}`, which this needs");
        Err(Problem::new(StatusCode::FORBIDDEN, "missing_scope", detail))
    }
}

/// Passes a request on, or answers it with an error.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let need = request.extensions().get::<MatchedPath>().map(|path| need(method, path.as_str()));
    match access.check(need.unwrap_or(Need::Known), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            tracing::debug!(code = problem.code, path = request.uri().path(), "a request was not allowed");
            problem.into_response()
        }
    }
}

/// What a method requires on a path, in the router's form.
pub(super) fn need(method: &str, path: &str) -> Need {
    let known = ROUTES.iter().find(|(known, route, _)| *known == method && *route == path);
    known.map_or(Need::Both, |(.., need)| *need)
}

/// The path of a route with a static lifetime.
pub(super) fn route(path: &str) -> Option<&'static str> {
    ROUTES.iter().map(|(_, route, _)| *route).find(|route| *route == path)
}

/// Whether the request was sent to an IP address or to `localhost`, or has no host.
///
/// A page of another site can let its own name resolve to loopback; the browser then treats this instance as part of
/// that site. But the request contains that name.
fn own_host(headers: &HeaderMap) -> Result<(), Problem> {
    let own = |host: &HeaderValue| {
        let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        host.is_some_and(|host| {
            let name = host.host();
            let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            address.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
        })
    };
    if headers.get_all(header::HOST).iter().all(own) {
        return Ok(());
    }
    let detail = "on loopback, and while no token is configured, `host` has to be an IP address or `localhost`";
    Err(Problem::new(StatusCode::FORBIDDEN, "foreign_host", detail))
}

/// Whether the request is not from a page of another site. A browser sends the site of the page in `origin`.
fn own_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let own = |origin: &HeaderValue| {
        let origin = origin.as_bytes();
        let site = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        site.is_some_and(|site| site.eq_ignore_ascii_case(host))
    };
    if headers.get_all(header::ORIGIN).iter().all(own) {
        return Ok(());
    }
    let detail = "the request is from a page of another site, as its `origin` says";
    Err(Problem::new(StatusCode::FORBIDDEN, "foreign_origin", detail))
}

/// The token of a request. Two tokens count as none, because a proxy may have checked the other one.
fn token(headers: &HeaderMap) -> Result<&[u8], Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(no_token()) };
    let value = value.as_bytes().trim_ascii();
    let (scheme, token) = value.split_at(value.iter().position(|&byte| byte == b' ').unwrap_or(value.len()));
    let token = token.trim_ascii();
    if token.is_empty() || !scheme.eq_ignore_ascii_case(b"bearer") { Err(no_token()) } else { Ok(token) }
}

fn no_token() -> Problem {
    unauthorized("no_token", "a token is expected, in one header `authorization: Bearer TOKEN`")
}

fn unauthorized(code: &'static str, detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
}
