//! Splits the body of a batch into lines, parses them, and passes them on in groups.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::http::server::body_budget::{FREE_BYTES, HeldBytes};
use crate::task::{Fault, Lane, Task, TaskId, spec};
use crate::timeline::{MAX_PUT_BYTES, MAX_PUTS};

/// How long an incomplete group waits for more input, so that a client that sends line by line gets its answers.
const IDLE_PAUSE: Duration = Duration::from_millis(5);

/// How long lines are parsed before other tasks get to run.
const MAX_PARSE_TIME: Duration = Duration::from_millis(1);

/// Maximum length of an invalid id in an answer, in bytes; more than any valid id.
const MAX_ECHO_BYTES: usize = 256;

/// A parsed line.
pub(super) enum Line {
    Task(TaskId, Lane, Box<Task>),
    Wrong(Option<String>, Box<Problem>),
}

/// Lines that are put together, each with its number from 1. At most as many as one call to the timeline takes.
#[derive(Default)]
pub(super) struct Group {
    pub(super) lines: Vec<(u64, Line)>,
    bytes: usize,
    /// What it holds of the budget.
    pub(super) held: Option<HeldBytes>,
}

impl Group {
    fn is_full(&self) -> bool {
        self.lines.len() >= MAX_PUTS || self.bytes >= MAX_PUT_BYTES
    }
}

/// Reads the lines of one batch.
pub(super) struct LineReader {
    api: Arc<Api>,
    caller: Arc<Caller>,
    line: u64,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    /// What that holds of the budget.
    rest_held: HeldBytes,
    /// Since when it is long.
    long_since: Option<Instant>,
    /// The line is too long and has been answered; the rest of it is ignored.
    skipping: bool,
    /// When this task last yielded to other tasks.
    yielded_at: Instant,
    group: Group,
    groups: mpsc::Sender<Group>,
}

/// The client has gone, or does not read its answers, or has received the last line.
struct Gone;

impl LineReader {
    pub(super) fn new(api: Arc<Api>, caller: Arc<Caller>, groups: mpsc::Sender<Group>) -> LineReader {
        let (rest, yielded_at, rest_held) = (Vec::new(), Instant::now(), api.bodies.open());
        LineReader {
            api,
            caller,
            line: 0,
            rest,
            rest_held,
            long_since: None,
            skipping: false,
            yielded_at,
            group: Group::default(),
            groups,
        }
    }

    pub(super) async fn run(mut self, body: Body) {
        let mut parts = body.into_data_stream();
        let groups = self.groups.clone();
        tokio::select! {
            biased;
            // Nobody waits for the answers any more.
            () = groups.closed() => {}
            ended = self.read_all(&mut parts) => {
                if ended.is_ok() {
                    return;
                }
            }
        }
        tracing::info!(
            line = self.line,
            hint = "a client that reads only after it has written sends a `content-length`; see docs/http.md",
            "a batch ended before its last line: its client is gone, or does not read the answers"
        );
    }

    async fn read_all(&mut self, parts: &mut BodyDataStream) -> Result<(), Gone> {
        loop {
            let patience = self.patience();
            let part = match timeout(IDLE_PAUSE.min(patience), parts.next()).await {
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

    /// How long to wait for the next part. A long line must be complete within `body_timeout`, because other bodies
    /// cannot use its memory.
    fn patience(&self) -> Duration {
        let patience = self.api.limits.body_timeout;
        self.long_since.map_or(patience, |since| patience.saturating_sub(since.elapsed()))
    }

    /// Reads a part of the body.
    async fn take(&mut self, mut part: &[u8]) -> Result<(), Gone> {
        while let Some(end) = part.iter().position(|&byte| byte == b'\n') {
            let (head, tail) = (&part[..end], &part[end + 1..]);
            self.long_since = None;
            if self.skipping {
                self.skipping = false;
            } else if self.rest.is_empty() {
                self.complete(head).await?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(head);
                self.complete(&whole).await?;
                // The memory of a long line is released.
                if whole.len() <= FREE_BYTES {
                    whole.clear();
                    self.rest = whole;
                }
            }
            part = tail;
        }
        if !self.skipping {
            // Leading blanks are no part of a line, so that its length does not depend on how it was split.
            let part = if self.rest.is_empty() { part.trim_ascii_start() } else { part };
            self.rest.extend_from_slice(part);
            if self.rest.len() > self.api.limits.body {
                self.skipping = true;
                self.rest = Vec::new();
                (self.rest_held, self.long_since) = (self.api.bodies.open(), None);
                self.line += 1;
                self.wrong(None, body::too_large(self.api.limits.body)).await?;
            } else if self.rest.len() > FREE_BYTES && self.long_since.is_none() {
                self.begin_long_line().await?;
            }
        }
        Ok(())
    }

    /// Takes the memory for the longest line at once; otherwise lines that hold a part could wait for each
    /// other.
    async fn begin_long_line(&mut self) -> Result<(), Gone> {
        let longest = self.api.limits.body;
        if self.rest_held.hold(longest).is_err() {
            self.hand_on().await?;
            if let Err(problem) = self.rest_held.wait_for(longest, self.api.limits.body_timeout).await {
                self.rest = Vec::new();
                self.end(problem).await?;
                return Err(Gone);
            }
        }
        self.long_since = Some(Instant::now());
        Ok(())
    }

    /// Parses a complete line.
    async fn complete(&mut self, line: &[u8]) -> Result<(), Gone> {
        self.line += 1;
        let line = line.trim_ascii_start();
        if line.is_empty() {
            return Ok(());
        }
        // Includes trailing blanks: a line in parts is refused before it is known that nothing else follows.
        if line.len() > self.api.limits.body {
            return self.wrong(None, body::too_large(self.api.limits.body)).await;
        }
        let line = if self.line == 1 { body::without_byte_order_mark(line).trim_ascii_start() } else { line };
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return Ok(());
        }
        // Invalid lines count too, so that memory is bounded by the input.
        self.hold(line.len()).await?;
        self.yield_if_due().await;
        let api = Arc::clone(&self.api);
        match api.read_line(&self.caller, line).await {
            Err(problem) => self.wrong(id_of(line), problem).await,
            Ok(read) => self.took(line, read).await,
        }
    }

    async fn took(&mut self, line: &[u8], read: Result<spec::Read, Vec<Fault>>) -> Result<(), Gone> {
        match read {
            Ok(spec::Read { id: Some(id), lane, task }) => {
                match self.caller.admit_put(&self.api, &id, &lane, &task.message) {
                    Ok(()) => self.add(Line::Task(id, lane, Box::new(task))).await,
                    Err(problem) => self.wrong(Some(id.to_string()), problem).await,
                }
            }
            Ok(_) => self.wrong(None, Problem::fault("/id", "missing_field", "a line of a batch names its task")).await,
            Err(faults) => self.wrong(id_of(line), Problem::invalid(faults)).await,
        }
    }

    /// Adds a line's bytes to the group. If other bodies use up the budget, it passes the current group on
    /// and waits for memory.
    async fn hold(&mut self, bytes: usize) -> Result<(), Gone> {
        let held = self.group.held.get_or_insert_with(|| self.api.bodies.open());
        held.take_over(&mut self.rest_held);
        if held.hold(self.group.bytes + bytes).is_err() {
            self.hand_on().await?;
            let held = self.group.held.insert(self.api.bodies.open());
            if let Err(problem) = held.wait_for(bytes, self.api.limits.body_timeout).await {
                // The line is counted already.
                self.wrong(None, problem).await?;
                self.hand_on().await?;
                return Err(Gone);
            }
        }
        self.group.bytes += bytes;
        Ok(())
    }

    /// Lets other tasks run after parsing for long.
    async fn yield_if_due(&mut self) {
        if self.yielded_at.elapsed() > MAX_PARSE_TIME {
            tokio::task::yield_now().await;
            self.yielded_at = Instant::now();
        }
    }

    async fn wrong(&mut self, id: Option<String>, problem: Problem) -> Result<(), Gone> {
        let detail = |fault: &Fault| fault.pointer.len() + fault.detail.len();
        self.group.bytes += problem.errors.iter().map(detail).sum::<usize>();
        self.add(Line::Wrong(id, Box::new(problem))).await
    }

    async fn add(&mut self, line: Line) -> Result<(), Gone> {
        self.group.lines.push((self.line, line));
        if self.group.is_full() { self.hand_on().await } else { Ok(()) }
    }

    /// The body ended early: reports that on a line of its own.
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

/// The id of an invalid line, if there is one, so that its client can find the line.
fn id_of(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: String,
    }
    let mut id = serde_json::from_slice::<OnlyId>(line).ok()?.id;
    id.truncate(id.floor_char_boundary(MAX_ECHO_BYTES));
    Some(id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::engine::{EngineState, Intake};
    use crate::http::ApiLimits;
    use crate::metrics::Metrics;
    use crate::task::Limits;
    use crate::timeline::Link;
    use crate::timeline::memory::MemoryTimeline;

    fn reader() -> (LineReader, mpsc::Receiver<Group>) {
        let timeline = Arc::new(MemoryTimeline::new(Arc::new(ManualClock::new(Timestamp::from_millis(1))), 1));
        let state = EngineState::new(Link::Up(1));
        let second = Duration::from_secs(1);
        let limits = ApiLimits {
            body: 1 << 20,
            bodies: 64 << 20,
            body_timeout: second,
            timeline_timeout: second,
            task: Limits::default(),
        };
        let api = Api {
            intake: Intake::new(timeline, BTreeMap::new()),
            engine: Box::new(move || state.clone()),
            failed_attempt: Box::new(|_| None),
            is_lane_paused: Box::new(|_| false),
            is_sink_unavailable: Box::new(|_| false),
            doors: Box::new(Vec::new),
            access: crate::http::Access::default(),
            metrics: Arc::new(Metrics::new("0", "i0")),
            limits,
            zone: None,
            instance: "i0".into(),
            bodies: crate::http::BodyBudget::new(limits.bodies),
            blocking: crate::http::BlockingPool::default(),
        };
        let (groups, inbox) = mpsc::channel(1);
        let caller = Arc::new(Caller::new(None, crate::http::TokenLimits::default()));
        (LineReader::new(Arc::new(api), caller, groups), inbox)
    }

    #[tokio::test]
    async fn the_length_of_a_line_does_not_depend_on_how_it_is_split() {
        let (blanks, long) = (" ".repeat(1 << 20), "x".repeat(600_000));
        let too_large = |line: &Line| matches!(line, Line::Wrong(_, problem) if problem.code == "too_large");
        for (line, expected) in [
            (format!("{blanks}  \n"), vec![]),
            (format!("{blanks}{long}\n"), vec![false]),
            (format!("{long}{blanks}\n"), vec![true]),
            (format!("{blanks}{long}{long}\n"), vec![true]),
        ] {
            for length in [line.len(), line.len() - 1, 64 << 10] {
                let (mut reader, _inbox) = reader();
                for part in line.as_bytes().chunks(length) {
                    assert!(reader.take(part).await.is_ok());
                }
                let found: Vec<_> = reader.group.lines.iter().map(|(_, line)| too_large(line)).collect();
                assert_eq!((found, reader.line), (expected.clone(), 1), "{} bytes in parts of {length}", line.len());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn faulty_lines_fill_a_group_too() {
        let long = format!("{{\"{}\":1}}", "x".repeat(600_000));
        let many = format!("{{{}}}", (0..200).map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(","));
        for (line, most) in [(long, 6), (many, 250)] {
            let (mut reader, _inbox) = reader();
            // No group is consumed: one is being passed on, and one waits.
            let mut taken = 0;
            while timeout(Duration::from_secs(1), reader.complete(line.as_bytes())).await.is_ok() {
                taken += 1;
                assert!(taken <= most, "{taken} lines of {} bytes are held", line.len());
            }
        }
    }
}
