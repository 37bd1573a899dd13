//! `/openapi.json`: the OpenAPI 3.1 document, generated from the routes and from the types of their bodies.
//!
//! Each route lists the codes of [`CODES`](super::problem::CODES) that it may answer. The answers with their schemas
//! follow from that, as each operation's scopes follow from the rules of access.

pub(super) mod bulk;
pub(super) mod enums;
mod problems;
pub(super) mod task;

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use utoipa::openapi::SecurityRequirement;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::access::{self, Need, Scope};

/// Codes of requests with a body.
pub(super) const BODY: &[&str] = &["malformed", "broken", "too_slow", "too_large", "unsupported_media_type", "invalid"];

/// Codes of requests that use the timeline.
pub(super) const TIMELINE: &[&str] =
    &["internal", "timeline_late", "timeline_refused", "timeline_unavailable", "timeline_unknown"];

/// Codes of requests that require a token.
const ACCESS: &[&str] = &["no_token", "unknown_token", "missing_scope"];

/// Codes of puts by a token with limits.
pub(super) const LIMITED_PUT: &[&str] = &["foreign_id", "foreign_lane", "foreign_destination", "full", "too_many_puts"];

/// Codes of all requests.
const ALWAYS: &[&str] = &["foreign_host", "foreign_origin"];

/// The extension in which a route lists its codes; its answers replace it.
const CODES_EXTENSION: &str = "x-codes";

/// What a token is and where it comes from.
const TOKEN: &str = "A token of the configuration, with the scopes `read` (get tasks, the dead and the state), `write` \
                     (put, cancel, pause, resume, trigger and skip tasks, requeue the dead), `discard` (discard the dead) or `operate` (pause and \
                     resume lanes, and change many tasks at once). It may be limited to \
                     lanes, ids and destinations. An instance on loopback may have no tokens; then any caller that \
                     uses an IP address or `localhost` has all scopes.";

/// What the document says beside the routes, and the schemas that no route refers to: a batch's lines and their
/// answers, and problems.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "punctual",
        description = "Publishes messages on time: tasks are put here, and published to a broker when they are due. A \
            request whose head is malformed or too large is answered 400, 414 or 431 without a body, and its connection closed.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "/", description = "The instance that serves this document.")),
    tags(
        (name = "tasks", description = "What to publish, and when."),
        (name = "lanes", description = "Named groups of tasks, each with one sink."),
        (name = "dead", description = "Dead occurrences."),
        (name = "instance", description = "The state of the instance."),
    ),
    components(schemas(task::LineSchema, super::batch::AnswerView, problems::ProblemSchema)),
)]
struct More;

/// The document without routes.
pub(super) fn more() -> utoipa::openapi::OpenApi {
    <More as utoipa::OpenApi>::openapi()
}

/// `GET`: the document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "document",
    tag = "instance",
    responses((status = 200, description = "This document.", body = Object, content_type = "application/json",
        example = json!({"openapi": "3.1.0"}))),
)]
pub(super) async fn document() -> Response {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone()).into_response()
}

/// The OpenAPI 3.1 document that `/openapi.json` serves.
#[must_use]
pub fn openapi() -> Value {
    let mut document = super::routes().into_openapi();
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(TOKEN)).build();
    document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(token));
    for (path, item) in &mut document.paths.paths {
        guard(path, item);
    }
    serde_json::to_value(document).unwrap_or_default()
}

/// Adds to each operation of a path what it requires of its caller, and the problems that it may answer.
fn guard(path: &str, item: &mut PathItem) {
    let PathItem { get, put, post, delete, .. } = item;
    for (method, operation) in [("GET", get), ("PUT", put), ("POST", post), ("DELETE", delete)] {
        let Some(operation) = operation else { continue };
        let need = access::need(method, path);
        let scopes: Option<Vec<&str>> = match need {
            Need::Nothing => None,
            Need::Known => Some(Vec::new()),
            Need::Scope(scope) => Some(vec![scope.as_str()]),
            Need::All => Some(Scope::ALL.iter().map(|scope| scope.as_str()).collect()),
        };
        let token = scopes.map(|scopes| SecurityRequirement::new("token", scopes));
        operation.security = Some(token.into_iter().collect());
        let access = if need == Need::Nothing { &[] } else { ACCESS };
        problems::add(operation, &[access, ALWAYS]);
    }
}
