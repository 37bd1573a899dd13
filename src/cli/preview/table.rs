//! The dues of several tasks in one table, the earliest first.

use std::time::Duration;

use anyhow::anyhow;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::PreviewArguments;
use crate::cli::schedule_arguments::shown_due;
use crate::cli::{Failure, say, tell};
use crate::clock::Timestamp;
use crate::task::spec;
use crate::task::{Schedule, TaskId, When};

/// Maximum number of dues that are shown of one task.
const MAX_DUES_OF_TASK: usize = 10_000;

/// Maximum of `--count`, as for one task.
const MAX_COUNT: u64 = 100;

/// One row.
struct Row {
    due: Timestamp,
    id: TaskId,
    zone: Option<String>,
}

/// Whether each of the first two lines is JSON by itself: then there is a task on each line, and not one value.
pub(super) fn has_several_tasks(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let is_json = |line: &str| serde_json::from_str::<IgnoredAny>(line).is_ok();
    lines.next().is_some_and(is_json) && lines.next().is_some_and(is_json)
}

/// Shows the dues of all tasks from `--from` until before `--to` (a one-shot that is overdue at `--from`, too), or the
/// first `--count` of each.
pub(super) fn show(arguments: &PreviewArguments, text: &str, now: Timestamp) -> Result<(), Failure> {
    let time = |name: &str, text: &Option<String>| match text.as_deref().map(spec::parse_time) {
        Some(None) => Err(Failure::usage(anyhow!("`{name}` is no time in RFC 3339, such as 2026-11-20T09:30:00Z"))),
        known => Ok(known.flatten()),
    };
    let (from, to) = (time("--from", &arguments.from)?.unwrap_or(now), time("--to", &arguments.to)?);
    let count = usize::try_from(arguments.count.clamp(1, MAX_COUNT)).unwrap_or(1);
    // One more tells whether there are more.
    let most = if to.is_some() { MAX_DUES_OF_TASK + 1 } else { count };
    // A single task may stand on several lines.
    let one_line = serde_json::from_str::<Value>(text).map(|task| task.to_string());
    let text = one_line.as_deref().unwrap_or(text);
    let (mut rows, mut cut) = (Vec::new(), 0);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let in_line = |failure: Failure| failure.context(format!("line {}", number + 1));
        let read = arguments.read_task(line, true, from).map_err(in_line)?;
        let Some(id) = read.id else { continue };
        let schedule = read.task.schedule;
        let mut dues = dues(&schedule, &id, from, to, most).map_err(|detail| {
            let detail = format!("cannot preview: {detail}");
            in_line(Failure::failed(anyhow!(detail)))
        })?;
        cut += usize::from(dues.len() > MAX_DUES_OF_TASK);
        dues.truncate(MAX_DUES_OF_TASK);
        let zone = schedule.zone().map(str::to_owned);
        rows.extend(dues.into_iter().map(|due| Row { due, id: id.clone(), zone: zone.clone() }));
    }
    rows.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
    if cut > 0 {
        tell(&format!("{cut} tasks have more dues than the {MAX_DUES_OF_TASK} that are shown\n"));
    }
    let line = |row: &Row| match arguments.json {
        true => {
            let due_ms = row.due.as_millis();
            format!("{}\n", json!({"due": row.due.to_string(), "due_ms": due_ms, "id": row.id.as_str()}))
        }
        false => format!("{}  {}\n", shown_due(row.due, Some(row.zone.as_deref().unwrap_or("UTC"))), row.id),
    };
    say(&rows.iter().map(line).collect::<String>())
}

/// The first dues of a task that is put at `from`, at most `most`. With `to` they end before it, and a due at `from`
/// itself counts if the schedule fixes the times: `cron`, or `every` with a start.
fn dues(
    schedule: &Schedule,
    id: &TaskId,
    from: Timestamp,
    to: Option<Timestamp>,
    most: usize,
) -> Result<Vec<Timestamp>, String> {
    let limit = schedule.limit.map_or(most, |limit| most.min(usize::try_from(limit).unwrap_or(most)));
    let mut dues = Vec::new();
    // A due is later than its put, unless the schedule fixes the times.
    let is_fixed = matches!(schedule.when, When::Cron { .. } | When::Every { start: Some(_), .. });
    let first = match to.is_some() && is_fixed {
        true => schedule.next_after(id, from, from.minus(Duration::from_millis(1))),
        false => schedule.first(id, from),
    };
    let mut next = first.map_err(|error| error.to_string())?;
    while let Some(due) = next.filter(|due| dues.len() < limit && to.is_none_or(|to| *due < to)) {
        dues.push(due);
        next = schedule.next_after(id, from, due).map_err(|error| error.to_string())?;
    }
    Ok(dues)
}
