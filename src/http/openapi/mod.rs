//! `/openapi.json`: the OpenAPI 3.1 document, generated from the routes.
//!
//! Each route lists the codes of [`problem::CODES`] that it may answer. The answers with their schemas follow from
//! that.

pub(super) mod task;
pub(super) mod words;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::access::{self, Need};
use super::problem::{self, Problem};
use crate::task::spec::MAX_FAULTS;

/// Codes of requests with a body.
pub(super) const BODY: &[&str] = &["malformed", "broken", "too_slow", "too_large", "unsupported_media_type", "invalid"];

/// Codes of requests that use the timeline.
pub(super) const TIMELINE: &[&str] =
    &["internal", "timeline_late", "timeline_refused", "timeline_away", "timeline_unknown"];

/// Codes of requests that require a token.
const ACCESS: &[&str] = &["no_token", "unknown_token", "missing_scope"];

/// Codes of all requests.
const ALWAYS: &[&str] = &["foreign_host"];

/// Where a route lists its codes, until they are replaced by answers.
const CODES: &str = "x-codes";

/// The schema that no route refers to: the lines of a batch's answer.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(super::batch::AnswerView)))]
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
    let mut document = serde_json::to_value(super::routes().into_openapi()).unwrap_or_default();
    document["info"] = json!({
        "title": "punctual",
        "description": "Publishes messages on time: tasks are put here, and published to a broker when they are due. A \
            request whose head is malformed or too large is answered 400, 414 or 431 without a body, and its connection closed.",
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        "version": env!("CARGO_PKG_VERSION"),
    });
    document["tags"] = json!([
        {"name": "tasks", "description": "What to publish, and when."},
        {"name": "dead", "description": "Dead occurrences."},
        {"name": "instance", "description": "The state of the instance."},
    ]);
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let need = access::need(&method.to_uppercase(), path);
            operation["security"] = match need {
                Need::Nothing => json!([]),
                Need::Known => json!([{"token": []}]),
                Need::Read => json!([{"token": ["read"]}]),
                Need::Write => json!([{"token": ["write"]}]),
                Need::Both => json!([{"token": ["read", "write"]}]),
            };
            add_problems(operation, need != Need::Nothing);
        }
    }
    let components = &mut document["components"];
    // A line is a task with its id.
    let mut line = components["schemas"]["Task"].clone();
    line["description"] = json!("A line of a batch: a task with its id.");
    line["properties"]["id"] = json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$"});
    line["required"].as_array_mut().into_iter().for_each(|needed| needed.push(json!("id")));
    components["schemas"]["Line"] = line;
    components["schemas"]["LineAnswer"]["oneOf"] =
        json!([{"required": ["id", "result", "due_ms"]}, {"required": ["error"]}]);
    components["schemas"]["Problem"] = problem_schema();
    // Types cannot express that members exclude each other.
    components["schemas"]["Message"]["not"] = json!({"required": ["payload", "payload_base64"]});
    components["schemas"]["Message"]["dependentRequired"] = json!({"content_type": ["payload_base64"]});
    components["securitySchemes"] = json!({"token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the configuration, with the scope `read` (what shows) or `write` (what changes). \
            An instance on loopback may be configured without any: then everybody may who calls it by an IP address or as \
            `localhost`.",
    }});
    let batch = &mut document["paths"]["/v1/tasks:batch"]["post"];
    let lines = |schema: &str| json!({"$ref": format!("#/components/schemas/{schema}")});
    batch["requestBody"]["content"]["application/x-ndjson"]["x-item-schema"] = lines("Line");
    batch["responses"]["200"]["content"]["application/x-ndjson"]["x-item-schema"] = lines("LineAnswer");
    document
}

/// Adds the problems of an operation, one answer per status with its possible codes.
fn add_problems(operation: &mut Value, guarded: bool) {
    let own = operation.as_object_mut().and_then(|operation| operation.remove(CODES)).unwrap_or_default();
    let own = own.as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut statuses: BTreeMap<u16, Vec<(&str, &str)>> = BTreeMap::new();
    for code in own.chain(if guarded { ACCESS } else { &[] }.iter().chain(ALWAYS).copied()) {
        let known = problem::CODES.iter().find(|(known, ..)| *known == code);
        let (code, status, detail) = known.unwrap_or_else(|| panic!("`{code}` is no code of a problem"));
        statuses.entry(*status).or_default().push((code, detail));
    }
    for (status, codes) in statuses {
        let detail: Vec<_> = codes.iter().map(|(code, detail)| format!("`{code}`: {detail}.")).collect();
        let names: Vec<_> = codes.iter().map(|(code, _)| *code).collect();
        let example = example(status, names[0], codes[0].1);
        let schema = json!({"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": {"status": {"const": status}, "code": {"enum": names}}}]});
        operation["responses"][status.to_string()] = json!({
            "description": detail.join(" "),
            "content": {"application/problem+json": {"schema": schema, "example": example}},
        });
        let header = |detail: &str, schema: Value| json!({"description": detail, "schema": schema});
        match status {
            401 => {
                let bearer = header("How to authenticate.", json!({"const": "Bearer"}));
                operation["responses"]["401"]["headers"] = json!({"www-authenticate": bearer});
            }
            503 => {
                let seconds = header("Seconds to wait before the next attempt.", json!({"type": "integer"}));
                operation["responses"]["503"]["headers"] = json!({"retry-after": seconds});
            }
            _ => {}
        }
    }
}

fn example(status: u16, code: &'static str, detail: &str) -> Value {
    let status = axum::http::StatusCode::from_u16(status).unwrap_or_default();
    let mut problem = match code {
        "invalid" => Problem::fault("/id", "bad_id", "begins with none of `A-Z a-z 0-9`"),
        _ => Problem::new(status, code, detail),
    };
    problem.key = (code == "in_flight").then(|| "order-1:1795266000000".to_owned());
    serde_json::to_value(problem).unwrap_or_default()
}

fn problem_schema() -> Value {
    let codes: Vec<_> = problem::CODES.iter().map(|(code, ..)| code).collect();
    json!({
        "description": "What went wrong, after RFC 9457.",
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"const": "about:blank"},
            "title": {"type": "string", "description": "The text of the status."},
            "status": {"type": "integer"},
            "code": {"enum": codes, "description": "What kind of problem it is; stable."},
            "detail": {"type": "string", "description": "What was found and what is expected."},
            "errors": {
                "type": "array",
                "description": "Every fault of the input.",
                "minItems": 1,
                "maxItems": MAX_FAULTS,
                "items": {
                    "type": "object",
                    "required": ["pointer", "code", "detail"],
                    "properties": {
                        "pointer": {"type": "string", "description": "JSON pointer to the fault; empty for the whole document."},
                        "code": {"enum": problem::FAULTS, "description": "What kind of fault it is; stable."},
                        "detail": {"type": "string"},
                    },
                },
            },
            "key": {"type": "string", "description": "The idempotency key that is in flight."},
        },
    })
}
