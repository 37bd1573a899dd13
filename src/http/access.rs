//! Access control: tokens with scopes, stored as hashes. What a token reaches besides is in [`caller`](super::caller).
//!
//! A request is checked before its body is read. Only the header `authorization: Bearer ...` can carry a token, because
//! URLs end up in logs. Each request is compared with all tokens in constant time, so that the time of an answer
//! reveals nothing about them. If no token is configured, every client that uses an IP address or `localhost` has all
//! scopes. On loopback, requests with another host name are refused even with a token. Requests from pages of other
//! sites are always refused.

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

use super::caller::{Caller, TokenLimits};
use super::problem::Problem;

/// What a route requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: probes, and the description of the API.
    Nothing,
    /// A token with any scope: paths without a route.
    Known,
    /// A scope.
    Scope(Scope),
    /// All scopes: routes that are missing in [`ROUTES`].
    All,
}

string_enum! {
    /// What a token may do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Scope {
        /// Read tasks, the dead, and the state.
        Read = "read",
        /// Put, cancel, pause, trigger and skip tasks, requeue the dead.
        Write = "write",
        /// Discard the dead.
        Discard = "discard",
        /// Pause and resume lanes; cancel, pause and resume many tasks at once.
        Operate = "operate",
    }
}

/// What a token with limits may do on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    /// The same as others: the route concerns no task.
    Anything,
    /// Only lanes, tasks and dead occurrences within its limits. The handler checks them with the [`Caller`].
    Own,
    /// Nothing: the route concerns the tasks of all callers.
    Nothing,
}

/// What each route requires. A route that is not listed requires all scopes, and a token without limits.
const ROUTES: &[(&str, &str, Need, Limited)] = &[
    ("GET", "/v1/tasks/{id}", Need::Scope(Scope::Read), Limited::Own),
    ("PUT", "/v1/tasks/{id}", Need::Scope(Scope::Write), Limited::Own),
    ("DELETE", "/v1/tasks/{id}", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks/{id}/pause", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks/{id}/resume", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks/{id}/trigger", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks/{id}/skip", Need::Scope(Scope::Write), Limited::Own),
    ("GET", "/v1/tasks", Need::Scope(Scope::Read), Limited::Own),
    ("POST", "/v1/tasks", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks:batch", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/tasks:cancel", Need::Scope(Scope::Operate), Limited::Own),
    ("POST", "/v1/tasks:pause", Need::Scope(Scope::Operate), Limited::Own),
    ("POST", "/v1/tasks:resume", Need::Scope(Scope::Operate), Limited::Own),
    ("GET", "/v1/tasks:count", Need::Scope(Scope::Read), Limited::Own),
    ("GET", "/v1/upcoming", Need::Scope(Scope::Read), Limited::Own),
    ("POST", "/v1/lanes/{lane}/pause", Need::Scope(Scope::Operate), Limited::Own),
    ("POST", "/v1/lanes/{lane}/resume", Need::Scope(Scope::Operate), Limited::Own),
    ("POST", "/v1/preview", Need::Scope(Scope::Read), Limited::Anything),
    ("GET", "/v1/dead", Need::Scope(Scope::Read), Limited::Own),
    ("GET", "/v1/dead/{key}", Need::Scope(Scope::Read), Limited::Own),
    ("DELETE", "/v1/dead/{key}", Need::Scope(Scope::Discard), Limited::Own),
    ("POST", "/v1/dead/{key}/requeue", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/dead:requeue", Need::Scope(Scope::Write), Limited::Own),
    ("POST", "/v1/dead:discard", Need::Scope(Scope::Discard), Limited::Own),
    ("GET", "/v1/stats", Need::Scope(Scope::Read), Limited::Own),
    ("GET", "/metrics", Need::Scope(Scope::Read), Limited::Nothing),
    ("GET", "/healthz", Need::Nothing, Limited::Anything),
    ("GET", "/readyz", Need::Nothing, Limited::Anything),
    ("GET", "/openapi.json", Need::Nothing, Limited::Anything),
];

/// A configured token, by its hash.
#[derive(Clone)]
pub struct KnownToken {
    /// Its name in the configuration, for the log and for pauses.
    pub name: String,
    /// The SHA-256 of the token.
    pub sha256: [u8; 32],
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// What it is limited to.
    pub limits: TokenLimits,
}

/// Does not show the hash, because it helps to guess the token.
impl fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownToken")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Without the tokens, whose hashes help to guess them.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("on_loopback", &self.on_loopback).finish_non_exhaustive()
    }
}

/// A token and its caller.
struct TokenEntry {
    sha256: [u8; 32],
    scopes: Vec<Scope>,
    caller: Arc<Caller>,
}

/// The configured tokens.
#[derive(Clone)]
pub struct Access {
    tokens: Arc<[TokenEntry]>,
    /// A caller without limits, for requests without a token.
    anyone: Arc<Caller>,
    /// Whether the API listens on loopback.
    on_loopback: bool,
}

impl Default for Access {
    fn default() -> Access {
        Access::by_tokens([])
    }
}

impl Access {
    /// With these tokens; without any, every caller may do everything.
    #[must_use]
    pub fn by_tokens(tokens: impl IntoIterator<Item = KnownToken>) -> Access {
        let entry = |KnownToken { name, sha256, scopes, limits }| TokenEntry {
            sha256,
            scopes,
            caller: Arc::new(Caller::new(Some(name), limits)),
        };
        let anyone = Arc::new(Caller::new(None, TokenLimits::default()));
        Access { tokens: tokens.into_iter().map(entry).collect(), anyone, on_loopback: false }
    }

    /// For an API that listens on loopback: requests must name it by an IP address or `localhost`, with a token too.
    #[must_use]
    pub fn on_loopback(self, on_loopback: bool) -> Access {
        Access { on_loopback, ..self }
    }

    /// Whether the caller has the scope `read` and no limits, on a route that shows others less.
    pub(super) fn may_read_all(&self, headers: &HeaderMap) -> bool {
        self.check_token(Need::Scope(Scope::Read), headers).is_ok_and(|caller| !caller.is_limited())
    }

    /// The caller, if the headers of a request satisfy the requirement.
    fn check(&self, need: Need, limited: Limited, headers: &HeaderMap) -> Result<Arc<Caller>, Problem> {
        own_origin(headers)?;
        if self.tokens.is_empty() || self.on_loopback {
            own_host(headers)?;
        }
        let caller = self.check_token(need, headers)?;
        if limited == Limited::Nothing && caller.is_limited() {
            let detail = "the token has limits, and this route concerns the tasks of all callers";
            return Err(Problem::new(StatusCode::FORBIDDEN, "limited_token", detail));
        }
        Ok(caller)
    }

    fn check_token(&self, need: Need, headers: &HeaderMap) -> Result<Arc<Caller>, Problem> {
        if self.tokens.is_empty() || need == Need::Nothing {
            return Ok(Arc::clone(&self.anyone));
        }
        let given = token(headers)?;
        let hash = digest(&SHA256, given);
        let mut found = None;
        for entry in self.tokens.iter() {
            // All are compared, however early one is found.
            if verify_slices_are_equal(hash.as_ref(), &entry.sha256).is_ok() {
                found = Some(entry);
            }
        }
        let Some(entry) = found else { return Err(unauthorized("unknown_token", "the token is not known here")) };
        let needed = match &need {
            Need::Scope(scope) => std::slice::from_ref(scope),
            Need::All => Scope::ALL,
            Need::Nothing | Need::Known => &[],
        };
        if let Some(missing) = needed.iter().find(|scope| !entry.scopes.contains(scope)) {
            let detail = format!("the token has no scope `{}`, which this needs", missing.as_str());
            return Err(Problem::new(StatusCode::FORBIDDEN, "missing_scope", detail));
        }
        Ok(Arc::clone(&entry.caller))
    }
}

/// Passes a request on, or answers it with an error.
///
/// Handlers find the [`Caller`] in the extensions of the request.
pub(super) async fn guard(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let required = request.extensions().get::<MatchedPath>().map(|path| required(method, path.as_str()));
    let (need, limited) = required.unwrap_or((Need::Known, Limited::Anything));
    match access.check(need, limited, request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => {
            tracing::debug!(code = problem.code, path = request.uri().path(), "a request was not allowed");
            problem.into_response()
        }
    }
}

/// What a method requires on a path, in the router's form.
pub(super) fn need(method: &str, path: &str) -> Need {
    required(method, path).0
}

fn required(method: &str, path: &str) -> (Need, Limited) {
    let known = ROUTES.iter().find(|(known, route, ..)| *known == method && *route == path);
    known.map_or((Need::All, Limited::Nothing), |(_, _, need, limited)| (*need, *limited))
}

/// The path of a route with a static lifetime.
pub(super) fn route(path: &str) -> Option<&'static str> {
    ROUTES.iter().map(|(_, route, ..)| *route).find(|route| *route == path)
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
