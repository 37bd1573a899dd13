//! `punctual task list | upcoming`: the tasks of a running instance, in no order or by due.

use clap::Args;
use hyper::Method;
use serde::Deserialize;

use super::api_caller::{ApiCaller, CallArguments, with_query};
use super::out::{self, Printable};
use super::schedule_arguments::{shown_answered_due, zone_name};
use super::{Failure, say, tell};

pub(super) const EXAMPLES: &str = "Examples:
  punctual task list --status overdue
  punctual task list --prefix order- --due-to 2026-12-01T00:00:00Z --limit 1000";

/// Selects tasks that wait or are in flight.
#[derive(Args)]
pub(super) struct FilterArguments {
    /// Of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// With this status: scheduled, overdue, in_flight, paused
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Whose ids begin with this
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Whose ids contain this
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Due at this time or later: 2026-11-21T18:00:00Z
    #[arg(long, value_name = "TIME")]
    due_from: Option<String>,
    /// Due before this time
    #[arg(long, value_name = "TIME")]
    due_to: Option<String>,
}

#[derive(Args)]
pub(super) struct TaskListArguments {
    #[command(flatten)]
    filter: FilterArguments,
    /// Maximum number to show
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Show each due on the clock of this zone, too: Europe/Berlin
    #[arg(long, value_name = "ZONE", value_parser = zone_name)]
    zone: Option<String>,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct UpcomingArguments {
    /// Of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// Whose ids begin with this
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Due at this time or later: 2026-11-21T18:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Maximum number to show, 1 to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u64,
    /// Show each due on the clock of this zone, too: Europe/Berlin
    #[arg(long, value_name = "ZONE", value_parser = zone_name)]
    zone: Option<String>,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Deserialize)]
struct UpcomingPageView {
    items: Vec<ListedTaskView>,
    more: bool,
}

#[derive(Deserialize)]
struct ListedTaskView {
    id: Printable,
    lane: Printable,
    /// Missing in a list by due, whose tasks all wait.
    #[serde(default)]
    status: Printable,
    due: Printable,
    #[serde(default)]
    overdue: bool,
}

/// Shows a line for each task: id, lane, status and due.
pub(super) async fn list(arguments: &TaskListArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    let line = |task: &ListedTaskView| {
        let status = if task.overdue { "overdue" } else { task.status.as_str() };
        format!("{}  {}  {status}  {}\n", task.id, task.lane, shown_answered_due(&task.due, arguments.zone.as_deref()))
    };
    caller.list("/v1/tasks", &arguments.filter.given(), arguments.limit, "cannot list tasks", line).await
}

/// Shows a line for each task that waits: due, id, lane, and whether it is overdue.
pub(super) async fn upcoming(arguments: &UpcomingArguments) -> Result<(), Failure> {
    let said = [("lane", &arguments.lane), ("prefix", &arguments.prefix), ("from", &arguments.from)];
    let path = with_query(&format!("/v1/upcoming?limit={}", arguments.limit), said);
    let caller = ApiCaller::new(&arguments.call)?;
    let (answer, page) =
        caller.call::<UpcomingPageView>(Method::GET, &path, None, "cannot list what is upcoming").await?;
    if arguments.call.json {
        return out::json(&answer.text);
    }
    let row = |task: &ListedTaskView| {
        let due = shown_answered_due(&task.due, arguments.zone.as_deref());
        format!("{due}  {}  {}{}\n", task.id, task.lane, if task.overdue { "  overdue" } else { "" })
    };
    say(&page.items.iter().map(row).collect::<String>())?;
    if page.more {
        tell("there are more: `--limit` says how many are shown, `--from` where they begin\n");
    }
    Ok(())
}

impl FilterArguments {
    /// Whether it selects paused tasks alone.
    pub(super) fn is_of_paused(&self) -> bool {
        self.status.as_deref() == Some("paused")
    }

    /// Its query parameters, as the API names them.
    pub(super) fn given(&self) -> [(&'static str, &Option<String>); 6] {
        [
            ("lane", &self.lane),
            ("status", &self.status),
            ("prefix", &self.prefix),
            ("contains", &self.contains),
            ("due_from", &self.due_from),
            ("due_to", &self.due_to),
        ]
    }
}
