//! `punctual task export`: tasks as lines that `punctual task put -f` reads.
//!
//! The lines put the same tasks into another instance or another namespace, with the same ids and dues.

use anyhow::anyhow;
use clap::Args;
use futures_util::{StreamExt, stream};
use hyper::Method;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::api_caller::{ApiCaller, CallArguments, PAGE_ENTRIES, escaped, problem};
use super::out::{self, Printable};
use super::task_list::FilterArguments;
use super::{Failure, tell};
use crate::task::{duration, spec};

pub(super) const EXAMPLES: &str = "Examples:
  punctual task export > tasks.ndjson
  punctual task export --lane mail --prefix order- | punctual task put -f - --url https://other:7171";

/// Number of tasks that are read at once.
const MAX_CALLS: usize = 64;

#[derive(Args)]
pub(super) struct ExportArguments {
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Deserialize)]
struct ListedIdView {
    id: String,
}

/// A task as the API shows it.
#[derive(Deserialize)]
struct TaskAnswerView {
    id: String,
    due: String,
    updated: String,
    #[serde(default)]
    overdue: bool,
    #[serde(default)]
    in_flight: Option<String>,
    #[serde(default)]
    pause: Option<IgnoredAny>,
    #[serde(default)]
    counts: Option<CountsView>,
    schedule: Map<String, Value>,
    message: Box<RawValue>,
    lane: String,
    #[serde(default)]
    retry: Option<Box<RawValue>>,
    #[serde(default)]
    catch_up: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct CountsView {
    accepted: u64,
    dead: u64,
    passed_over: u64,
}

/// A task as a line of a batch.
#[derive(Serialize)]
struct LineView {
    id: String,
    schedule: Map<String, Value>,
    message: Box<RawValue>,
    lane: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up: Option<Box<RawValue>>,
}

/// How many tasks there are of each kind.
#[derive(Default)]
struct ExportCounts {
    exported: u64,
    paused: u64,
    unreadable: u64,
    /// They recur, and are overdue or in flight.
    begun: u64,
    /// They are due once, and are overdue or in flight.
    begun_once: u64,
}

/// Writes a line for each task that matches.
pub(super) async fn export(arguments: &ExportArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    let mut counts = ExportCounts::default();
    let mut cursor = None;
    loop {
        let said = arguments.filter.given();
        let (_, page) = caller.page("/v1/tasks", &said, PAGE_ENTRIES, &cursor, "cannot list tasks").await?;
        let listed = page.items.iter().map(|item| serde_json::from_str::<ListedIdView>(item.get()));
        let listed = listed.collect::<Result<Vec<_>, _>>().map_err(|_| caller.no_instance("cannot list tasks", 200))?;
        let mut tasks = stream::iter(listed).map(|listed| task(&caller, listed.id)).buffered(MAX_CALLS);
        while let Some(task) = tasks.next().await {
            match task? {
                // An import would run it.
                ListedTask::Found(task) if task.pause.is_some() && !arguments.filter.is_of_paused() => {
                    counts.paused += 1
                }
                ListedTask::Found(task) => write(*task, &mut counts)?,
                ListedTask::Ended => {}
                ListedTask::Unreadable => counts.unreadable += 1,
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return counts.tell();
        }
    }
}

/// Writes the line of a task.
fn write(task: TaskAnswerView, counts: &mut ExportCounts) -> Result<(), Failure> {
    counts.exported += 1;
    if task.overdue || task.in_flight.is_some() {
        *if task.counts.is_some() { &mut counts.begun } else { &mut counts.begun_once } += 1;
    }
    let line = serde_json::to_string(&task.into_line()).map_err(Failure::failed)?;
    // A payload keeps its line breaks, and a line has none. JSON has them only between values.
    out::json(&line.replace('\n', " "))
}

impl ExportCounts {
    /// Tells what was exported and what was not. Fails if tasks are missing that should be there.
    fn tell(&self) -> Result<(), Failure> {
        let ExportCounts { exported, paused, unreadable, begun, begun_once } = self;
        tell(&format!("exported {exported}\n"));
        if *paused > 0 {
            tell(&format!(
                "left out {paused} that are paused, because an import would run them; `--status paused` exports them\n"
            ));
        }
        if *begun > 0 {
            tell(&format!(
                "{begun} of them recur and are overdue or in flight; their lines begin with the due after that\n"
            ));
        }
        if *begun_once > 0 {
            tell(&format!(
                "{begun_once} of them are due once, and are overdue or in flight: an import publishes them, perhaps a second time\n"
            ));
        }
        if *unreadable == 0 {
            return Ok(());
        }
        Err(Failure::failed(anyhow!("{unreadable} tasks cannot be read and are missing in the export")))
    }
}

/// A task that was listed.
enum ListedTask {
    Found(Box<TaskAnswerView>),
    /// It has ended since.
    Ended,
    /// Another version of punctual wrote it.
    Unreadable,
}

/// Gets a listed task.
async fn task(caller: &ApiCaller<'_>, id: String) -> Result<ListedTask, Failure> {
    let doing = format!("cannot export the task `{}`", Printable::from(id.clone()));
    let answer = caller.answer(Method::GET, &format!("/v1/tasks/{}", escaped(&id)), None, &doing).await?;
    match answer.status {
        404 => return Ok(ListedTask::Ended),
        500 => {
            let problem = problem(&answer);
            if problem.code == "unreadable" {
                tell(&format!("{doing}: {}\n", problem.detail));
                return Ok(ListedTask::Unreadable);
            }
        }
        _ => {}
    }
    caller.view(&answer, &doing).map(|task| ListedTask::Found(Box::new(task)))
}

impl TaskAnswerView {
    /// The line that puts this task again.
    fn into_line(self) -> LineView {
        let schedule = self.schedule_left();
        let TaskAnswerView { id, message, lane, retry, catch_up, .. } = self;
        LineView { id, schedule, message, lane, retry, catch_up }
    }

    /// The schedule with the dues that the task has left, whenever it is put again.
    fn schedule_left(&self) -> Map<String, Value> {
        let mut schedule = self.schedule.clone();
        if schedule.remove("in").is_some() {
            schedule.insert("at".to_owned(), Value::from(self.due.clone()));
        }
        // Without a start, an interval counts from the put.
        let gap = schedule.get("every").and_then(Value::as_str).and_then(|every| duration::parse(every).ok());
        if let (Some(gap), Some(put)) = (gap, spec::parse_time(&self.updated)) {
            schedule.entry("start").or_insert_with(|| Value::from(put.plus(gap).to_string()));
        }
        let limit = schedule.get("limit").and_then(Value::as_u64);
        if let (Some(limit), Some(counts)) = (limit, &self.counts) {
            let came_due = counts.accepted + counts.dead + counts.passed_over;
            schedule.insert("limit".to_owned(), Value::from(limit.saturating_sub(came_due).max(1)));
        }
        schedule
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_the_dues_that_are_left() {
        let line = |schedule: Value, counts: Value| {
            let answer = json!({
                "id": "a", "status": "scheduled", "due": "2026-11-21T13:00:00.000Z", "created": "2026-11-20T12:00:00.000Z",
                "updated": "2026-11-21T12:00:00.000Z", "revision": 2, "schedule": schedule, "counts": counts,
                "message": {"payload": 1}, "lane": "default",
            });
            let task: TaskAnswerView = serde_json::from_str(&answer.to_string()).unwrap();
            serde_json::to_value(task.into_line()).unwrap()["schedule"].clone()
        };
        let none = Value::Null;
        assert_eq!(line(json!({"in": "1h"}), none.clone()), json!({"at": "2026-11-21T13:00:00.000Z"}));
        let at = json!({"at": "2026-11-21T13:00:00.000Z"});
        assert_eq!(line(at.clone(), none), at);
        let counts = json!({"accepted": 2, "dead": 1, "passed_over": 1});
        // The spread is no part of the start.
        let left = json!({"every": "1m30s", "spread": "1m", "start": "2026-11-21T12:01:30.000Z", "limit": 6});
        assert_eq!(line(json!({"every": "1m30s", "spread": "1m", "limit": 10}), counts.clone()), left);
        let started = json!({"every": "1m", "start": "2026-11-01T00:00:00.000Z"});
        assert_eq!(line(started.clone(), counts.clone()), started);
        // The last one is in flight.
        let last = json!({"cron": "@daily", "limit": 1});
        assert_eq!(line(json!({"cron": "@daily", "limit": 4}), counts), last);
    }
}
