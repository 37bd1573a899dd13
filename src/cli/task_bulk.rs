//! `punctual task cancel | pause | resume`: some tasks by their ids, or all that match a filter, after asking back.

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api_caller::{ApiCaller, CallArguments, escaped, for_each, members, problem};
use super::confirm::confirm;
use super::out::{self, Printable};
use super::task_list::FilterArguments;
use super::{Failure, say, tell};

pub(super) const CANCEL_EXAMPLES: &str = "Examples:
  punctual task cancel order-1 order-2
  punctual task cancel --prefix order- --due-to 2026-12-01T00:00:00Z --dry-run";

pub(super) const PAUSE_EXAMPLES: &str = "Examples:
  punctual task pause report.daily --note 'wrong figures'
  punctual task pause --prefix report. --note 'wrong figures'";

pub(super) const RESUME_EXAMPLES: &str = "Examples:
  punctual task resume report.daily
  punctual task resume --status paused --prefix report. --skip-missed";

/// How often a bulk request begins again because Redis was restarted.
const MAX_RESTARTS: u32 = 3;

#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "lane", "status", "prefix", "contains", "due_from", "due_to", "all"]))]
pub(super) struct TasksArguments {
    /// The ids of the tasks
    #[arg(value_name = "ID", conflicts_with_all = ["lane", "status", "prefix", "contains", "due_from", "due_to", "all"])]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArguments,
    /// All tasks
    #[arg(long, conflicts_with_all = ["lane", "status", "prefix", "contains", "due_from", "due_to"])]
    all: bool,
    /// Only count the matches
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// Do not ask back before many are changed
    #[arg(long, conflicts_with = "ids")]
    yes: bool,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct TaskPauseArguments {
    /// Why, for those who see the pause
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    tasks: TasksArguments,
}

#[derive(Args)]
pub(super) struct TaskResumeArguments {
    /// Pass over what they missed: a recurring task then waits for its first due in the future
    #[arg(long)]
    skip_missed: bool,
    #[command(flatten)]
    tasks: TasksArguments,
}

/// What to do with tasks, in the words of the API.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskAct {
    Cancel,
    Pause,
    Resume,
}

/// The answer about one task.
#[derive(Deserialize)]
struct OneView {
    result: Printable,
    due: Option<Printable>,
    /// Of a pause or a resume.
    in_flight: Option<Printable>,
    /// Of a cancel: what may still arrive, and whether it was handed out before.
    key: Option<Printable>,
    #[serde(default)]
    handed_out: bool,
}

/// The answer to a bulk request.
#[derive(Deserialize)]
struct ManyView {
    matched: u64,
    #[serde(default)]
    done: u64,
    #[serde(default)]
    in_flight: u64,
    #[serde(default)]
    unchanged: u64,
    #[serde(default)]
    gone: u64,
    #[serde(default)]
    sample: Vec<Printable>,
    next_cursor: Option<String>,
}

/// The sums of several requests.
#[derive(Default)]
struct Sums {
    matched: u64,
    done: u64,
    in_flight: u64,
    unchanged: u64,
    gone: u64,
    sample: Vec<String>,
}

impl TaskAct {
    fn verb(self) -> &'static str {
        match self {
            TaskAct::Cancel => "cancel",
            TaskAct::Pause => "pause",
            TaskAct::Resume => "resume",
        }
    }

    fn done(self) -> &'static str {
        match self {
            TaskAct::Cancel => "cancelled",
            TaskAct::Pause => "paused",
            TaskAct::Resume => "resumed",
        }
    }
}

pub(super) async fn cancel(arguments: &TasksArguments) -> Result<(), Failure> {
    run(TaskAct::Cancel, arguments, Map::new()).await
}

pub(super) async fn pause(arguments: &TaskPauseArguments) -> Result<(), Failure> {
    run(TaskAct::Pause, &arguments.tasks, members([("note", &arguments.note)])).await
}

pub(super) async fn resume(arguments: &TaskResumeArguments) -> Result<(), Failure> {
    let missed = arguments.skip_missed.then(|| ("missed".to_owned(), Value::from("skip")));
    run(TaskAct::Resume, &arguments.tasks, missed.into_iter().collect()).await
}

async fn run(act: TaskAct, arguments: &TasksArguments, more: Map<String, Value>) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    if !arguments.ids.is_empty() {
        return each(act, &caller, arguments, more).await;
    }
    let mut body = members(arguments.filter.given());
    body.extend(arguments.all.then(|| ("all".to_owned(), Value::from(true))));
    body.extend(more);
    if arguments.dry_run || !arguments.yes {
        let found = all(act, &caller, body.clone(), true).await?;
        match arguments.dry_run {
            true if arguments.call.json => {
                return out::json(&json!({"matched": found.matched, "sample": found.sample}).to_string());
            }
            true => return say(&sample(&found)),
            false if found.matched > 0 => confirm("tasks", act.done(), found.matched)?,
            // Nothing matched. Tasks that were put after the count stay as they are, because they were not confirmed.
            false => return show(act, arguments, &Sums::default()),
        }
    }
    show(act, arguments, &all(act, &caller, body, false).await?)
}

/// The number of matches, and some of their ids.
fn sample(found: &Sums) -> String {
    let shown: Vec<String> = found.sample.iter().map(|id| format!(" {}", Printable::from(id.clone()))).collect();
    let more = if found.matched > shown.len() as u64 { " ..." } else { "" };
    format!("{} match{}{}{more}\n", found.matched, if shown.is_empty() { "" } else { ":" }, shown.concat())
}

fn show(act: TaskAct, arguments: &TasksArguments, sums: &Sums) -> Result<(), Failure> {
    let Sums { matched, done, in_flight, unchanged, gone, .. } = *sums;
    if arguments.call.json {
        let sums =
            json!({"matched": matched, "done": done, "in_flight": in_flight, "unchanged": unchanged, "gone": gone});
        return out::json(&sums.to_string());
    }
    let mut line = format!("{} {}", act.done(), done + in_flight);
    if in_flight > 0 {
        line.push_str(&format!("; a message of {in_flight} of them may still arrive"));
    }
    if unchanged > 0 {
        let were = if act == TaskAct::Pause { "were paused already" } else { "were not paused" };
        line.push_str(&format!("; {unchanged} {were}"));
    }
    if gone > 0 {
        line.push_str(&format!("; {gone} ended meanwhile"));
    }
    say(&format!("{line}\n"))
}

/// Calls the API for each task.
async fn each(
    act: TaskAct,
    caller: &ApiCaller<'_>,
    arguments: &TasksArguments,
    body: Map<String, Value>,
) -> Result<(), Failure> {
    let call = async |id: &str| {
        let shown = Printable::from(id.to_owned());
        let (path, doing) = (format!("/v1/tasks/{}", escaped(id)), format!("cannot {} the task `{shown}`", act.verb()));
        let (answer, view) = match act {
            TaskAct::Cancel => caller.call::<OneView>(Method::DELETE, &path, None, &doing).await?,
            TaskAct::Pause | TaskAct::Resume => {
                let body = Some(Value::from(body.clone()).to_string());
                caller.call::<OneView>(Method::POST, &format!("{path}/{}", act.verb()), body, &doing).await?
            }
        };
        if arguments.call.json {
            return out::json(&answer.text);
        }
        let may_arrive = match (&view.key, &view.in_flight) {
            (Some(key), _) if view.handed_out => format!("; {key} was handed out and may still arrive"),
            (Some(key), _) => format!("; {key} is in flight and may still arrive"),
            (None, Some(key)) => format!("; {key} may still arrive"),
            (None, None) => view.due.map(|due| format!(", due {due}")).unwrap_or_default(),
        };
        say(&match (view.result.as_str(), act) {
            ("unchanged", TaskAct::Pause) => format!("{shown} is paused already\n"),
            ("unchanged", _) => format!("{shown} was not paused\n"),
            _ => format!("{} {shown}{may_arrive}\n", act.done()),
        })
    };
    for_each(&arguments.ids, call).await
}

/// Sends requests until the instance reports that none are left.
async fn all(
    act: TaskAct,
    caller: &ApiCaller<'_>,
    mut body: Map<String, Value>,
    dry_run: bool,
) -> Result<Sums, Failure> {
    let (path, doing) = (format!("/v1/tasks:{}", act.verb()), format!("cannot {} tasks", act.verb()));
    body.insert("dry_run".into(), dry_run.into());
    let (mut sums, mut restarts) = (Sums::default(), 0);
    loop {
        let sent = Some(Value::from(body.clone()).to_string());
        let answer = caller.answer(Method::POST, &path, sent, &doing).await?;
        if answer.status == 410 && problem(&answer).code == "cursor_gone" && restarts < MAX_RESTARTS {
            restarts += 1;
            tell("redis was restarted: beginning again\n");
            body.remove("cursor");
            sums = if dry_run { Sums::default() } else { sums };
            continue;
        }
        let view: ManyView = caller.view(&answer, &doing).inspect_err(|_| {
            if sums.done + sums.in_flight > 0 {
                tell(&format!("{} {} before this:\n", act.done(), sums.done + sums.in_flight));
            }
        })?;
        sums.matched += view.matched;
        sums.done += view.done;
        sums.in_flight += view.in_flight;
        sums.unchanged += view.unchanged;
        sums.gone += view.gone;
        if sums.sample.is_empty() {
            sums.sample = view.sample.iter().map(ToString::to_string).collect();
        }
        match view.next_cursor {
            Some(cursor) => body.insert("cursor".into(), Value::from(cursor)),
            None => return Ok(sums),
        };
    }
}
