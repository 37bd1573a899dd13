//! Cancels, pauses, resumes or counts all tasks that match a filter.
//!
//! It goes through the list of tasks, page by page. Every request has a time limit; if some are left, the answer contains
//! the position to continue from. Each task counts by its result. The list may contain a task twice while many are
//! removed. The second time it counts as gone or unchanged. The whole request may be repeated: tasks that it changed
//! before then count as gone or unchanged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;
use tracing::info;

use crate::engine::intake::{GetError, Intake};
use crate::engine::list::{ListError, ListPosition};
use crate::engine::steering::SkipError;
use crate::task::{Lane, TaskId};
use crate::timeline::{CancelAnswer, PauseNote, TaskFilter, TaskPauseAnswer, TaskPauseRequest, TimelineError};

/// Maximum number of concurrent calls.
const MAX_CONCURRENT: usize = 64;

/// Number of tasks that are listed before they are changed.
const PAGE_TASKS: usize = 500;

/// Number of ids that a count shows.
const MAX_SAMPLE: usize = 10;

/// The error of a part whose caller went away before the end.
const INTERRUPTED: &str = "the caller has gone; changes that were under way may have taken effect and are not counted";

/// What a bulk request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskAction {
    /// Cancels.
    Cancel,
    /// Pauses.
    Pause(PauseNote),
    /// Resumes; with `true` it skips the missed occurrences.
    Resume(bool),
}

/// A bulk request.
#[derive(Clone, Copy, Debug)]
pub struct TasksChange<'a> {
    /// What it does; `None` only counts.
    pub action: Option<&'a TaskAction>,
    /// Which tasks.
    pub filter: &'a TaskFilter,
    /// The lane that was asked for, for the log.
    pub lane: Option<&'a Lane>,
    /// Who asks.
    pub by: Option<&'a str>,
}

/// Result of a bulk request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TasksResult {
    /// Number of tasks that matched: the sum of the others, or for a count all.
    pub matched: u64,
    /// Number of tasks that were changed.
    pub done: u64,
    /// Number of tasks that were changed, of which one occurrence may still be published.
    pub in_flight: u64,
    /// Number of tasks that were in that state already.
    pub unchanged: u64,
    /// Number of tasks that ended in the meantime.
    pub gone: u64,
    /// The first ids of a count.
    pub sample: Vec<TaskId>,
    /// Where to continue, if the time limit was reached.
    pub next: Option<ListPosition>,
}

/// What happened to one task.
enum TaskEnd {
    Done,
    InFlight,
    Unchanged,
    Gone,
}

impl TaskAction {
    fn as_str(&self) -> &'static str {
        match self {
            TaskAction::Cancel => "cancel",
            TaskAction::Pause(_) => "pause",
            TaskAction::Resume(_) => "resume",
        }
    }
}

impl TasksResult {
    /// Counts tasks, and keeps the first ids.
    fn count(&mut self, ids: Vec<TaskId>) {
        self.matched += ids.len() as u64;
        let missing = MAX_SAMPLE.saturating_sub(self.sample.len());
        self.sample.extend(ids.into_iter().take(missing));
    }
}

impl Intake {
    /// Changes all tasks of the lanes that `may_change` allows and that match, from `position` on. Begins no further page
    /// once half of `deadline` has passed, so that each request makes progress; no call takes longer than `deadline`.
    ///
    /// # Errors
    /// [`ListError`]. Some tasks may have been changed; the request may be repeated.
    pub async fn change_tasks(
        &self,
        change: TasksChange<'_>,
        may_change: impl Fn(&Lane) -> bool,
        mut position: Option<ListPosition>,
        deadline: Duration,
    ) -> Result<TasksResult, ListError> {
        let TasksChange { action, filter, by, .. } = change;
        let (begun, time_limit) = (Instant::now(), deadline / 2);
        let mut part = LoggedPart { change, result: TasksResult::default(), error: Some(INTERRUPTED.to_owned()) };
        let result = &mut part.result;
        let end = loop {
            let left = time_limit.saturating_sub(begun.elapsed());
            let page = match self.list(&may_change, filter, position, PAGE_TASKS, left).await {
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            let ids: Vec<TaskId> = page.tasks.into_iter().map(|(_, task)| task.id).collect();
            match action {
                None => result.count(ids),
                Some(action) => {
                    if let Err(error) = self.change_page(action, ids, by, deadline, result).await {
                        break Err(error.into());
                    }
                }
            }
            position = page.next;
            if position.is_none() || begun.elapsed() >= time_limit {
                break Ok(position);
            }
        };
        part.error = end.as_ref().err().map(ToString::to_string);
        let result = part.result.clone();
        end.map(|next| TasksResult { next, ..result })
    }

    /// Does this to the tasks of a page. After an error the others are not begun.
    async fn change_page(
        &self,
        action: &TaskAction,
        ids: Vec<TaskId>,
        by: Option<&str>,
        deadline: Duration,
        result: &mut TasksResult,
    ) -> Result<(), TimelineError> {
        // After one failure the others would only wait for their timeouts.
        let stopped = AtomicBool::new(false);
        let stopped = &stopped;
        let calls = stream::iter(ids).map(|id| async move {
            if stopped.load(Ordering::Relaxed) {
                return None;
            }
            let end = self.change(action, &id, by, deadline).await;
            stopped.fetch_or(end.is_err(), Ordering::Relaxed);
            Some(end)
        });
        let mut calls = calls.buffer_unordered(MAX_CONCURRENT);
        let mut failed = None;
        while let Some(end) = calls.next().await {
            let Some(end) = end else { continue };
            match end {
                Ok(TaskEnd::Done) => result.done += 1,
                Ok(TaskEnd::InFlight) => result.in_flight += 1,
                Ok(TaskEnd::Unchanged) => result.unchanged += 1,
                Ok(TaskEnd::Gone) => result.gone += 1,
                // The calls that have begun are awaited: they may take effect, and nothing does after the answer.
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            }
            result.matched += 1;
        }
        failed.map_or(Ok(()), Err)
    }

    async fn change(
        &self,
        action: &TaskAction,
        id: &TaskId,
        by: Option<&str>,
        deadline: Duration,
    ) -> Result<TaskEnd, TimelineError> {
        let request = match action {
            TaskAction::Cancel => {
                return Ok(match self.cancel(id, deadline).await? {
                    CancelAnswer::Cancelled { handed_out: None } => TaskEnd::Done,
                    CancelAnswer::Cancelled { handed_out: Some(_) } | CancelAnswer::InFlight { .. } => {
                        TaskEnd::InFlight
                    }
                    CancelAnswer::Unknown | CancelAnswer::Mismatch => TaskEnd::Gone,
                });
            }
            TaskAction::Pause(about) => TaskPauseRequest::Pause(about.clone()),
            TaskAction::Resume(skip_missed) => {
                // A task whose record this version cannot parse is resumed with its missed occurrences.
                if *skip_missed
                    && let Err(SkipError::Timeline(error) | SkipError::Get(GetError::Timeline(error))) =
                        self.skip_missed(id, by, deadline).await
                {
                    return Err(error);
                }
                TaskPauseRequest::Resume
            }
        };
        let (shard, not_after) = self.shard_until(id, deadline);
        let answer = self.timeline.pause(shard, id, request, not_after).await?;
        Ok(match answer {
            // The caller expects that a resumed task is published, so its occurrence in flight is not reported.
            TaskPauseAnswer::Paused { in_flight: None, .. } | TaskPauseAnswer::Resumed { .. } => TaskEnd::Done,
            TaskPauseAnswer::Paused { in_flight: Some(_), .. } => TaskEnd::InFlight,
            TaskPauseAnswer::Unchanged { .. } => TaskEnd::Unchanged,
            TaskPauseAnswer::Unknown => TaskEnd::Gone,
        })
    }
}

/// A part of a bulk request, which is logged at its end. If the caller goes away, nothing continues the part, but what it has
/// changed is logged, too.
struct LoggedPart<'a> {
    change: TasksChange<'a>,
    result: TasksResult,
    error: Option<String>,
}

impl Drop for LoggedPart<'_> {
    fn drop(&mut self) {
        if let Some(action) = self.change.action.filter(|_| self.result.done + self.result.in_flight > 0) {
            log(action, self.change, &self.result, self.error.as_deref());
        }
    }
}

fn log(action: &TaskAction, change: TasksChange<'_>, result: &TasksResult, error: Option<&str>) {
    let TaskFilter { status, prefix, contains, due_from, due_to } = change.filter;
    let given = |text: &'_ str| Some(text.to_owned()).filter(|text| !text.is_empty());
    info!(
        target: "punctual::audit",
        action = action.as_str(),
        by = change.by.unwrap_or("-"),
        lane = change.lane.map(Lane::as_str),
        status = status.map(|status| status.as_str()),
        prefix = given(prefix),
        contains = given(contains),
        due_from = due_from.map(|due| due.to_string()),
        due_to = due_to.map(|due| due.to_string()),
        note = if let TaskAction::Pause(about) = action { given(&about.note) } else { None },
        done = result.done,
        in_flight = result.in_flight,
        unchanged = result.unchanged,
        gone = result.gone,
        error,
        "tasks changed"
    );
}
