//! The schema of problems, and the problems that each operation may answer.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AllOfBuilder, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Object, ObjectBuilder, Ref, ResponseBuilder};

use super::CODES_EXTENSION;
use crate::http::problem::{self, Problem};
use crate::task::spec::MAX_FAULTS;

/// What went wrong, after RFC 9457.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(super) struct ProblemSchema {
    #[schema(schema_with = about_blank)]
    r#type: String,
    /// The text of the status.
    title: String,
    status: u16,
    #[schema(schema_with = codes)]
    code: String,
    /// What was found and what is expected.
    detail: String,
    /// Every fault of the input.
    #[schema(required = false, min_items = 1, max_items = 100)]
    errors: Vec<FaultSchema>,
    /// With `in_flight`, `last` and `not_next`: the idempotency key of the occurrence that the problem is about.
    #[schema(required = false)]
    key: String,
    /// With `unknown`: the idempotency key of a dead occurrence of the task. Missing if there is none, if more than 1000
    /// are dead in all, or if the search takes longer than 200 ms.
    #[schema(required = false)]
    dead_key: String,
}

/// A fault of the input.
#[derive(ToSchema)]
#[schema(as = Fault)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct FaultSchema {
    /// JSON pointer to the fault; empty for the whole document.
    pointer: String,
    #[schema(schema_with = fault_codes)]
    code: String,
    detail: String,
}

const _: () = assert!(MAX_FAULTS == 100, "the schema of `errors` names the maximum");

/// A string that is one of the words.
fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words))
}

fn about_blank() -> Object {
    one_of(["about:blank"]).build()
}

fn codes() -> Object {
    let codes = problem::CODES.iter().map(|(code, ..)| *code);
    one_of(codes).description(Some("What kind of problem it is; stable.")).build()
}

fn fault_codes() -> Object {
    one_of(problem::FAULTS.iter().copied()).description(Some("What kind of fault it is; stable.")).build()
}

/// Adds the problems with these codes, and with those that the operation lists: one answer per status.
pub(super) fn add(operation: &mut Operation, codes: &[&[&str]]) {
    let own = operation.extensions.as_mut().and_then(|extensions| extensions.remove(CODES_EXTENSION));
    let own = own.as_ref().and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut statuses: BTreeMap<u16, Vec<(&str, &str)>> = BTreeMap::new();
    for code in own.chain(codes.iter().copied().flatten().copied()) {
        let known = problem::CODES.iter().find(|(known, ..)| *known == code);
        let (code, status, detail) = known.unwrap_or_else(|| panic!("`{code}` is no code of a problem"));
        statuses.entry(*status).or_default().push((code, detail));
    }
    for (status, codes) in statuses {
        let answer = answer(status, &codes);
        operation.responses.responses.insert(status.to_string(), answer.into());
    }
}

/// The answer with a status, and its possible codes with their meanings.
fn answer(status: u16, codes: &[(&'static str, &str)]) -> utoipa::openapi::Response {
    let detail: Vec<_> = codes.iter().map(|(code, detail)| format!("`{code}`: {detail}.")).collect();
    let this = ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .property("status", ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([status])))
        .property("code", one_of(codes.iter().map(|(code, _)| *code)));
    let schema = AllOfBuilder::new().item(Ref::from_schema_name("Problem")).item(this);
    let content = ContentBuilder::new().schema(Some(schema)).example(Some(example(status, codes[0].0, codes[0].1)));
    let answer = ResponseBuilder::new().description(detail.join(" "));
    let answer = match status {
        401 => {
            let bearer =
                HeaderBuilder::new().schema(Some(one_of(["Bearer"]))).description(Some("How to authenticate."));
            answer.header("www-authenticate", bearer.build())
        }
        429 | 503 => {
            let seconds = HeaderBuilder::new().schema(Some(Object::with_type(Type::Integer)));
            answer.header("retry-after", seconds.description(Some("Seconds to wait before the next attempt.")).build())
        }
        _ => answer,
    };
    answer.content("application/problem+json", content.build()).build()
}

fn example(status: u16, code: &'static str, detail: &str) -> Value {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let mut problem = match code {
        "invalid" => Problem::fault("/id", "bad_id", "begins with none of `A-Z a-z 0-9`"),
        _ => Problem::new(status, code, detail),
    };
    problem.key = (code == "in_flight").then(|| "order-1:1795266000000".into());
    serde_json::to_value(problem).unwrap_or_default()
}
