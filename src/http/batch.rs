//! `/v1/tasks:batch`: puts a stream of tasks, a line each, and answers with a line each, in order.
//!
//! Memory stays bounded whatever the length: lines are read into groups the size of one call of the timeline, at most
//! two of which exist beside the one that is put. Answers stream while lines still come, so a client has to read while
//! it sends; one that takes no answers is cut off. A line that is wrong harms no other.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::openapi::words;
use super::problem::Problem;
use super::{Api, body, tasks};
use crate::engine::intake::{Put, PutError};
use crate::task::{Fault, Lane, Task, TaskId, Traceparent, spec};
use crate::timeline::{MAX_PUT_BYTES, MAX_PUTS, PutMode};

/// The media type of a line each.
const NDJSON: &str = "application/x-ndjson";

/// How long a group waits for more once there is nothing to read: a client that sends line by line gets its answers.
const IDLE: Duration = Duration::from_millis(5);

/// For how long lines are read without letting others run.
const AT_A_STRETCH: Duration = Duration::from_millis(1);

/// Bytes of what stands for an id in a line with faults that its answer shows at most: more than any id has.
const LONGEST_ECHO: usize = 256;

/// What one line asks for.
enum Line {
    Task(TaskId, Lane, Box<Task>),
    Wrong(Option<String>, Box<Problem>),
}

/// Lines that go to the timeline together, each with its number from 1.
#[derive(Default)]
struct Group {
    lines: Vec<(u64, Line)>,
    bytes: usize,
}

impl Group {
    fn is_full(&self) -> bool {
        self.lines.len() >= MAX_PUTS || self.bytes >= MAX_PUT_BYTES
    }
}

/// The answer to a line: what was done, or the `error`.
#[derive(Serialize, ToSchema)]
#[schema(as = LineAnswer)]
pub(super) struct AnswerView<'a> {
    /// The number of the line, from 1.
    line: u64,
    /// The task, as far as the line names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<words::PutResult>)]
    result: Option<&'static str>,
    /// When it is due next, in ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    due_ms: Option<i64>,
    /// The idempotency key of an occurrence with the former message, which may still arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    in_flight: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = problem_ref)]
    error: Option<&'a Problem>,
}

/// The schema of a problem, as the document has it.
fn problem_ref() -> utoipa::openapi::Ref {
    utoipa::openapi::Ref::from_schema_name("Problem")
}

/// `POST`: puts every line and answers it.
#[utoipa::path(
    post,
    path = "/v1/tasks:batch",
    operation_id = "put_tasks",
    summary = "Put many tasks, a line each",
    description = "Answers come in order while lines are still sent: read while you send. A line that is wrong harms no \
        other. Should the body end before its time, a last line says so.",
    tag = "tasks",
    params(body::Trace),
    request_body(content = String, content_type = "application/x-ndjson", description = "A task with its `id` on each line.",
        example = json!("{\"id\":\"order-1\",\"schedule\":{\"in\":\"15m\"},\"message\":{\"destination\":\"orders\"}}\n{\"id\":\"order-2\",\"schedule\":{},\"message\":{}}\n")),
    responses((status = 200, body = String, content_type = "application/x-ndjson", description = "An answer to each line.",
        example = json!("{\"line\":1,\"id\":\"order-1\",\"result\":\"created\",\"due_ms\":1795263300000}\n{\"line\":2,\"id\":\"order-2\",\"error\":{\"type\":\"about:blank\",\"title\":\"Unprocessable Entity\",\"status\":422,\"code\":\"invalid\",\"detail\":\"/schedule: one of `at`, `in`, `every` and `cron` is needed\",\"errors\":[{\"pointer\":\"/schedule\",\"code\":\"missing_field\",\"detail\":\"one of `at`, `in`, `every` and `cron` is needed\"}]}}\n"))),
    extensions(("x-codes" = json!(["unsupported_media_type"]))),
)]
pub(super) async fn put(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    body::media_type(&parts.headers, &[NDJSON])?;
    let trace = body::trace(&parts.headers);
    let (groups, inbox) = mpsc::channel(1);
    tokio::spawn(Reader::new(Arc::clone(&api), groups).run(body));
    let answers = stream::unfold((api, inbox), move |(api, mut inbox)| async move {
        let group = inbox.recv().await?;
        let answers = put_group(&api, group, trace).await;
        Some((Ok::<Bytes, Infallible>(answers), (api, inbox)))
    });
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(answers)).into_response())
}

/// Cuts the body into lines, reads them, and hands them on in groups.
struct Reader {
    api: Arc<Api>,
    line: u64,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    /// The line is too long and has been answered: what is left of it is passed by.
    skipping: bool,
    /// When others were last let run.
    breathed: Instant,
    group: Group,
    groups: mpsc::Sender<Group>,
}

/// The client is gone, or takes no answers.
struct Gone;

impl Reader {
    fn new(api: Arc<Api>, groups: mpsc::Sender<Group>) -> Reader {
        let (rest, breathed) = (Vec::new(), Instant::now());
        Reader { api, line: 0, rest, skipping: false, breathed, group: Group::default(), groups }
    }

    async fn run(mut self, body: Body) {
        let mut parts = body.into_data_stream();
        if let Err(Gone) = self.read_all(&mut parts).await {
            tracing::debug!(line = self.line, "the client of a batch went before its end");
        }
    }

    async fn read_all(&mut self, parts: &mut BodyDataStream) -> Result<(), Gone> {
        let patience = self.api.limits.body_timeout;
        loop {
            let part = match timeout(IDLE.min(patience), parts.next()).await {
                Ok(part) => part,
                Err(_) => {
                    self.hand_on().await?;
                    match timeout(patience, parts.next()).await {
                        Ok(part) => part,
                        Err(_) => return self.end(body::too_slow(patience)).await,
                    }
                }
            };
            match part {
                Some(Ok(part)) => self.take(&part).await?,
                Some(Err(error)) => return self.end(body::broken(&error)).await,
                None => break,
            }
        }
        let last = std::mem::take(&mut self.rest);
        if !last.is_empty() {
            self.complete(&last).await?;
        }
        self.hand_on().await
    }

    /// Takes in a part of the body.
    async fn take(&mut self, mut part: &[u8]) -> Result<(), Gone> {
        while let Some(end) = part.iter().position(|&byte| byte == b'\n') {
            let (head, tail) = (&part[..end], &part[end + 1..]);
            if self.skipping {
                self.skipping = false;
            } else if self.rest.is_empty() {
                self.complete(head).await?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(head);
                self.complete(&whole).await?;
                whole.clear();
                self.rest = whole;
            }
            part = tail;
        }
        if !self.skipping {
            self.rest.extend_from_slice(part);
            if self.rest.len() > self.api.limits.body {
                self.skipping = true;
                self.rest = Vec::new();
                self.line += 1;
                self.wrong(None, body::too_large(self.api.limits.body)).await?;
            }
        }
        Ok(())
    }

    /// Reads a whole line.
    async fn complete(&mut self, line: &[u8]) -> Result<(), Gone> {
        self.line += 1;
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        if line.len() > self.api.limits.body {
            return self.wrong(None, body::too_large(self.api.limits.body)).await;
        }
        // Every line counts, right or wrong: what is held of it is bounded by what it was.
        self.group.bytes += line.len();
        self.breathe().await;
        let api = Arc::clone(&self.api);
        let read = spec::read_checked(line, &api.limits.task, true, api.intake.clock().now(), &api.lanes());
        match read {
            Ok(spec::Read { id: Some(id), lane, task }) => self.add(Line::Task(id, lane, Box::new(task))).await,
            Ok(_) => self.wrong(None, Problem::fault("/id", "missing_field", "a line of a batch names its task")).await,
            Err(faults) => self.wrong(id_of(line), Problem::invalid(faults)).await,
        }
    }

    /// Lets others run once reading has taken long: cron takes far longer to read than its line is.
    async fn breathe(&mut self) {
        if self.breathed.elapsed() > AT_A_STRETCH {
            tokio::task::yield_now().await;
            self.breathed = Instant::now();
        }
    }

    async fn wrong(&mut self, id: Option<String>, problem: Problem) -> Result<(), Gone> {
        let words = |fault: &Fault| fault.pointer.len() + fault.detail.len();
        self.group.bytes += problem.errors.iter().map(words).sum::<usize>();
        self.add(Line::Wrong(id, Box::new(problem))).await
    }

    async fn add(&mut self, line: Line) -> Result<(), Gone> {
        self.group.lines.push((self.line, line));
        if self.group.is_full() { self.hand_on().await } else { Ok(()) }
    }

    /// The body ends before its time: says so on a line of its own.
    async fn end(&mut self, problem: Problem) -> Result<(), Gone> {
        self.line += 1;
        self.wrong(None, problem).await?;
        self.hand_on().await
    }

    async fn hand_on(&mut self) -> Result<(), Gone> {
        if self.group.lines.is_empty() {
            return Ok(());
        }
        self.groups.send(std::mem::take(&mut self.group)).await.map_err(|_| Gone)
    }
}

/// Puts a group and writes its answers, a line each.
async fn put_group(api: &Api, group: Group, trace: Option<Traceparent>) -> Bytes {
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
    let mut put = put.into_iter();
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut answers = Vec::with_capacity(asked.len() * 96);
    for (number, asked) in asked {
        let result = match asked {
            Ok(id) => write_put(&mut answers, number, &id, put.next()),
            Err((id, problem)) => write_problem(&mut answers, number, id.as_deref(), &problem),
        };
        *counts.entry(result).or_default() += 1;
    }
    for (result, count) in counts {
        api.metrics.put(result, count);
    }
    answers.into()
}

/// Writes the answer to a put; returns the word to count it by.
fn write_put(answers: &mut Vec<u8>, line: u64, id: &TaskId, put: Option<Result<Put, PutError>>) -> &'static str {
    match put {
        Some(Ok(put)) => {
            let result = tasks::result(put.result);
            let in_flight = put.in_flight.map(|key| key.to_string());
            let due_ms = Some(put.due.as_millis());
            let view = AnswerView { line, id: Some(id.as_str()), result: Some(result), due_ms, in_flight, error: None };
            write(answers, &view);
            result
        }
        Some(Err(error)) => write_problem(answers, line, Some(id.as_str()), &Problem::from(error)),
        None => write_problem(answers, line, Some(id.as_str()), &Problem::unanswered()),
    }
}

fn write_problem(answers: &mut Vec<u8>, line: u64, id: Option<&str>, problem: &Problem) -> &'static str {
    let view = AnswerView { line, id, result: None, due_ms: None, in_flight: None, error: Some(problem) };
    write(answers, &view);
    problem.code
}

fn write(answers: &mut Vec<u8>, view: &AnswerView<'_>) {
    // The view holds strings and numbers alone, and a Vec takes everything: this does not fail.
    if serde_json::to_writer(&mut *answers, view).is_ok() {
        answers.push(b'\n');
    }
}

/// The id of a line that has faults, as far as there is one: its client finds the line by it.
fn id_of(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: String,
    }
    let mut id = serde_json::from_slice::<OnlyId>(line).ok()?.id;
    id.truncate(id.floor_char_boundary(LONGEST_ECHO));
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::engine::{EngineState, Intake};
    use crate::http::ApiLimits;
    use crate::metrics::Metrics;
    use crate::task::Limits;
    use crate::timeline::Link;
    use crate::timeline::memory::MemoryTimeline;

    fn reader() -> (Reader, mpsc::Receiver<Group>) {
        let timeline = Arc::new(MemoryTimeline::new(Arc::new(ManualClock::new(Timestamp::from_millis(1))), 1));
        let state =
            EngineState { link: Link::Up(1), lanes: Vec::new(), sinks: Vec::new(), dead: 0, slowest_loop: None };
        let second = Duration::from_secs(1);
        let limits =
            ApiLimits { body: 1 << 20, body_timeout: second, timeline_timeout: second, task: Limits::default() };
        let api = Api {
            intake: Intake::new(timeline, BTreeMap::new()),
            engine: Box::new(move || state.clone()),
            access: crate::http::Access::default(),
            metrics: Arc::new(Metrics::new("0", "i0")),
            limits,
            instance: "i0".into(),
        };
        let (groups, inbox) = mpsc::channel(1);
        (Reader::new(Arc::new(api), groups), inbox)
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_are_wrong_fill_a_group_too() {
        let long = format!("{{\"{}\":1}}", "x".repeat(600_000));
        let many = format!("{{{}}}", (0..200).map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(","));
        for (line, most) in [(long, 6), (many, 250)] {
            let (mut reader, _inbox) = reader();
            // Nobody takes groups: one is on its way, and one waits to be.
            let mut taken = 0;
            while timeout(Duration::from_secs(1), reader.complete(line.as_bytes())).await.is_ok() {
                taken += 1;
                assert!(taken <= most, "{taken} lines of {} bytes are held", line.len());
            }
        }
    }
}
