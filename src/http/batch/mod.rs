//! `/v1/tasks:batch`: puts a stream of tasks, one per line, and answers each with one line, in order.
//!
//! Memory is bounded whatever the length. Lines are read into groups with the size of one timeline call; at most two
//! groups exist besides the one that is put. Answers are sent while lines still arrive, so a client must read while it
//! sends; otherwise its connection is closed. An invalid line does not affect the others.

mod lines;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use self::lines::{Group, Line, LineReader};
use super::Api;
use super::caller::Caller;
use super::openapi::enums;
use super::problem::Problem;
use super::server::body;
use super::tasks::is_overdue;
use crate::clock::Timestamp;
use crate::engine::intake::{EffectivePut, PutError};
use crate::task::{TaskId, Traceparent};
use crate::timeline::PutMode;

/// The media type of one JSON value per line.
const NDJSON: &str = "application/x-ndjson";

/// The answer to one line.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = LineAnswer)]
pub(super) enum AnswerView<'a> {
    /// What the put did.
    Put {
        /// The number of the line, from 1.
        line: u64,
        #[schema(value_type = String)]
        id: &'a TaskId,
        #[schema(value_type = enums::PutResultSchema)]
        result: &'static str,
        /// The next due, in ms since 1970.
        due_ms: i64,
        /// Whether it was due at least 1 s before this answer. It is then published at once.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        #[schema(required = false)]
        overdue: bool,
        /// The idempotency key of an occurrence with the former message that may still be delivered.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        in_flight: Option<String>,
    },
    /// Why the line was not put.
    Wrong {
        /// The number of the line, from 1.
        line: u64,
        /// The id of the task, if the line has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        id: Option<&'a str>,
        #[schema(schema_with = problem_ref)]
        error: &'a Problem,
    },
}

/// A reference to the schema of problems.
fn problem_ref() -> utoipa::openapi::Ref {
    utoipa::openapi::Ref::from_schema_name("Problem")
}

/// `POST`: puts and answers every line.
#[utoipa::path(
    post,
    path = "/v1/tasks:batch",
    operation_id = "put_tasks",
    summary = "Put many tasks, a line each",
    description = "Answers arrive in order while lines are still being sent, so read while you send. An invalid line \
        does not affect the others. If the body ends early, a last answer reports it.",
    tag = "tasks",
    params(body::Trace),
    request_body(content = String, content_type = "application/x-ndjson", description = "A task with its `id` on each line.",
        extensions(("x-item-schema" = json!({"$ref": "#/components/schemas/Line"}))),
        example = json!("{\"id\":\"order-1\",\"schedule\":{\"in\":\"15m\"},\"message\":{\"destination\":\"orders\"}}\n{\"id\":\"order-2\",\"schedule\":{},\"message\":{}}\n")),
    responses((status = 200, body = String, content_type = "application/x-ndjson", description = "An answer to each line.",
        extensions(("x-item-schema" = json!({"$ref": "#/components/schemas/LineAnswer"}))),
        example = json!("{\"line\":1,\"id\":\"order-1\",\"result\":\"created\",\"due_ms\":1795263300000}\n{\"line\":2,\"id\":\"order-2\",\"error\":{\"type\":\"about:blank\",\"title\":\"Unprocessable Entity\",\"status\":422,\"code\":\"invalid\",\"detail\":\"/schedule: one of `at`, `in`, `every` and `cron` is needed\",\"errors\":[{\"pointer\":\"/schedule\",\"code\":\"missing_field\",\"detail\":\"one of `at`, `in`, `every` and `cron` is needed\"}]}}\n"))),
    extensions(("x-codes" = json!(["unsupported_media_type"]))),
)]
pub(super) async fn put(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    body::check_media_type(&parts.headers, &[NDJSON])?;
    let trace = body::trace(&parts.headers);
    let (groups, inbox) = mpsc::channel(1);
    tokio::spawn(LineReader::new(Arc::clone(&api), caller, groups).run(body));
    let answers = stream::unfold((api, inbox), move |(api, mut inbox)| async move {
        let group = inbox.recv().await?;
        let answers = put_group(&api, group, trace).await;
        Some((Ok::<Bytes, Infallible>(answers), (api, inbox)))
    });
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(answers)).into_response())
}

/// Puts a group and writes its answers, one per line.
async fn put_group(api: &Api, group: Group, trace: Option<Traceparent>) -> Bytes {
    let _until_it_is_put = group.held;
    let mut asked = Vec::with_capacity(group.lines.len());
    let mut puts = Vec::with_capacity(group.lines.len());
    for (number, line) in group.lines {
        match line {
            Line::Task(id, lane, task) => {
                asked.push((number, Ok(id.clone())));
                puts.push((id, lane, *task));
            }
            Line::Wrong(id, problem) => asked.push((number, Err((id, *problem)))),
        }
    }
    let mut put = Vec::new();
    if !puts.is_empty() {
        put = api.intake.put_traced(PutMode::Put, puts, trace, api.limits.timeline_timeout).await;
    }
    let (mut put, now) = (put.into_iter(), api.intake.clock().now());
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut answers = Vec::with_capacity(asked.len() * 96);
    for (number, asked) in asked {
        let result = match asked {
            Ok(id) => write_put(&mut answers, number, &id, put.next(), now),
            Err((id, problem)) => write_problem(&mut answers, number, id.as_deref(), &problem),
        };
        *counts.entry(result).or_default() += 1;
    }
    for (result, count) in counts {
        api.metrics.put(result, count);
    }
    answers.into()
}

/// Writes the answer to a put; returns its result for the metrics.
fn write_put(
    answers: &mut Vec<u8>,
    line: u64,
    id: &TaskId,
    put: Option<Result<EffectivePut, PutError>>,
    now: Timestamp,
) -> &'static str {
    match put {
        Some(Ok(put)) => {
            let result = put.result.as_str();
            let (due_ms, overdue) = (put.due.as_millis(), is_overdue(put.due, now));
            let in_flight = put.in_flight.map(|key| key.to_string());
            write(answers, &AnswerView::Put { line, id, result, due_ms, overdue, in_flight });
            result
        }
        Some(Err(error)) => write_problem(answers, line, Some(id.as_str()), &Problem::from(error)),
        None => write_problem(answers, line, Some(id.as_str()), &Problem::unanswered()),
    }
}

fn write_problem(answers: &mut Vec<u8>, line: u64, id: Option<&str>, problem: &Problem) -> &'static str {
    write(answers, &AnswerView::Wrong { line, id, error: problem });
    problem.code
}

fn write(answers: &mut Vec<u8>, view: &AnswerView<'_>) {
    // Strings and numbers can always be written to a Vec.
    if serde_json::to_writer(&mut *answers, view).is_ok() {
        answers.push(b'\n');
    }
}
