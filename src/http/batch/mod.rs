//! `/v1/tasks:batch`: puts a stream of tasks, one per line, and answers each with one line, in order.
//!
//! Memory is bounded whatever the length. Lines are read into groups with the size of one timeline call; at most two
//! groups exist besides the one that is put. An invalid line does not affect the others.
//!
//! A body of unknown length is answered while its lines still arrive, so its client must read while it sends; otherwise
//! its connection is closed. The answers to a body of known length are kept back until it has ended, because most clients
//! read only then. The query parameter `answers` overrides this choice.

mod kept_back;
mod lines;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Query, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};

use self::kept_back::KeptBack;
use self::lines::{Group, Line, LineReader};
use super::Api;
use super::caller::Caller;
use super::openapi::enums;
use super::problem::Problem;
use super::server::body;
use super::tasks::is_overdue;
use crate::clock::Timestamp;
use crate::engine::intake::{EffectivePut, NewTask, PutError};
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
    /// The last line, if successes were only counted because their answers would take too much memory.
    Counts {
        /// The first line whose success is not listed. Faults after it are listed until all answers take 2 MiB, and then only counted.
        counted_from_line: u64,
        /// How many lines had which result, from that line on: `created`, `replaced`, `unchanged`, or the code of a problem.
        counts: BTreeMap<&'static str, u64>,
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

/// The query parameter in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct AnswersQuery {
    /// When the answers arrive.
    #[param(required = false, nullable = false, value_type = enums::AnswersMode)]
    answers: Option<String>,
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
    description = "Each line gets an answer, in order. An invalid line does not affect the others. If the body ends early, \
        a last answer reports it. With `answers=each`, answers arrive while lines are still being sent, so read while you \
        send. With `answers=end`, they arrive once the body has ended; beyond 1 MiB only faults are listed, and a last line \
        counts the rest. Without the parameter it is `end` if the request has a `content-length`, else `each`.",
    tag = "tasks",
    params(body::Trace, AnswersQuery),
    request_body(content = String, content_type = "application/x-ndjson", description = "A task with its `id` on each line.",
        extensions(("x-item-schema" = json!({"$ref": "#/components/schemas/Line"}))),
        example = json!("{\"id\":\"order-1\",\"schedule\":{\"in\":\"15m\"},\"message\":{\"destination\":\"orders\"}}\n{\"id\":\"order-2\",\"schedule\":{},\"message\":{}}\n")),
    responses((status = 200, body = String, content_type = "application/x-ndjson", description = "An answer to each line.",
        extensions(("x-item-schema" = json!({"$ref": "#/components/schemas/LineAnswer"}))),
        example = json!("{\"line\":1,\"id\":\"order-1\",\"result\":\"created\",\"due_ms\":1795263300000}\n{\"line\":2,\"id\":\"order-2\",\"error\":{\"type\":\"about:blank\",\"title\":\"Unprocessable Entity\",\"status\":422,\"code\":\"invalid\",\"detail\":\"/schedule: one of `at`, `in`, `every` and `cron` is needed\",\"errors\":[{\"pointer\":\"/schedule\",\"code\":\"missing_field\",\"detail\":\"one of `at`, `in`, `every` and `cron` is needed\"}]}}\n"))),
    extensions(("x-codes" = json!(["unsupported_media_type", "invalid"]))),
)]
pub(super) async fn put(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    body::check_media_type(&parts.headers, &[NDJSON])?;
    let at_end = answers_at_end(&parts)?;
    let trace = body::trace(&parts.headers);
    let (groups, inbox) = mpsc::channel(1);
    tokio::spawn(LineReader::new(Arc::clone(&api), caller, groups).run(body));
    let answers = if at_end {
        let answers = async move { Ok::<Bytes, Infallible>(put_all(&api, inbox, trace).await) };
        Body::from_stream(stream::once(answers))
    } else {
        let answers = stream::unfold((api, inbox), move |(api, mut inbox)| async move {
            let group = inbox.recv().await?;
            let mut answers = Vec::new();
            put_group(&api, group, trace, |_, _, _, answer| answers.extend_from_slice(answer)).await;
            Some((Ok::<Bytes, Infallible>(answers.into()), (api, inbox)))
        });
        Body::from_stream(answers)
    };
    Ok(([(header::CONTENT_TYPE, NDJSON)], answers).into_response())
}

/// Whether the answers are kept back until the body has ended.
fn answers_at_end(parts: &Parts) -> Result<bool, Problem> {
    let query = Query::<BTreeMap<String, String>>::try_from_uri(&parts.uri).map(|Query(query)| query);
    match query.as_ref().map(|query| query.get("answers").map(String::as_str)) {
        Ok(None) => Ok(parts.headers.contains_key(header::CONTENT_LENGTH)),
        Ok(Some("end")) => Ok(true),
        Ok(Some("each")) => Ok(false),
        _ => Err(Problem::fault("/answers", "bad_value", "`each` or `end` is expected")),
    }
}

/// Puts all groups. Returns the answers that are kept back.
async fn put_all(api: &Api, mut inbox: mpsc::Receiver<Group>, trace: Option<Traceparent>) -> Bytes {
    let (mut kept, mut held) = (KeptBack::default(), api.bodies.open());
    while let Some(group) = inbox.recv().await {
        put_group(api, group, trace, |line, result, is_fault, answer| {
            let fits = held.hold(kept.len() + answer.len()).is_ok();
            kept.add(line, result, is_fault, answer, fits);
        })
        .await;
    }
    kept.finish().into()
}

/// Puts a group. Calls `answered` for each line with its number, its result, whether that is a fault, and the answer.
async fn put_group(
    api: &Api,
    group: Group,
    trace: Option<Traceparent>,
    mut answered: impl FnMut(u64, &'static str, bool, &[u8]),
) {
    let _until_it_is_put = group.held;
    let mut asked = Vec::with_capacity(group.lines.len());
    let mut puts = Vec::with_capacity(group.lines.len());
    for (number, line) in group.lines {
        match line {
            Line::Task(id, lane, task) => {
                asked.push((number, Ok(id.clone())));
                puts.push(NewTask { id, lane, task: *task, trace });
            }
            Line::Wrong(id, problem) => asked.push((number, Err((id, *problem)))),
        }
    }
    let mut put = Vec::new();
    if !puts.is_empty() {
        put = api.intake.put_traced(PutMode::Put, puts, api.limits.timeline_timeout).await;
    }
    let (mut put, now) = (put.into_iter(), api.intake.clock().now());
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut answer = Vec::with_capacity(128);
    for (number, asked) in asked {
        answer.clear();
        let (result, is_fault) = match asked {
            Ok(id) => write_put(&mut answer, number, &id, put.next(), now),
            Err((id, problem)) => (write_problem(&mut answer, number, id.as_deref(), &problem), true),
        };
        answered(number, result, is_fault, &answer);
        *counts.entry(result).or_default() += 1;
    }
    for (result, count) in counts {
        api.metrics.put(result, count);
    }
}

/// Writes the answer to a put; returns its result, and whether that is a fault.
fn write_put(
    answers: &mut Vec<u8>,
    line: u64,
    id: &TaskId,
    put: Option<Result<EffectivePut, PutError>>,
    now: Timestamp,
) -> (&'static str, bool) {
    match put {
        Some(Ok(put)) => {
            let result = put.result.as_str();
            let (due_ms, overdue) = (put.due.as_millis(), is_overdue(put.due, now));
            let in_flight = put.in_flight.map(|key| key.to_string());
            write(answers, &AnswerView::Put { line, id, result, due_ms, overdue, in_flight });
            (result, false)
        }
        Some(Err(error)) => (write_problem(answers, line, Some(id.as_str()), &Problem::from(error)), true),
        None => (write_problem(answers, line, Some(id.as_str()), &Problem::unanswered()), true),
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
