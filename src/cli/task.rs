//! `punctual task put | get | cancel | list | upcoming | count | export | pause | resume |
//! trigger | skip`: the API of a running instance from
//! the command line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use hyper::Method;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::api_caller::{ApiCaller, CallArguments, escaped};
use super::client::{ApiAnswer, Client};
use super::feed::BYTE_ORDER_MARK;
use super::out::{self, Printable};
use super::schedule_arguments::{ScheduleArguments, shown_answered_due};
use super::task_bulk::{self, TaskPauseArguments, TaskResumeArguments, TasksArguments};
use super::task_count::{self, TaskCountArguments};
use super::task_export::{self, ExportArguments};
use super::task_list::{self, TaskListArguments, UpcomingArguments};
use super::task_moves::{self, SkipArguments, TaskIdsArguments};

use super::{Failure, batch, say};
use crate::clock::{Clock, LocalClock};
use crate::task::spec;
use crate::task::spec::write::{MessageView, RetryView, TaskView};

/// Maximum size of a file with a task, in bytes; the most that an instance can be configured to accept.
const MAX_FILE_BYTES: u64 = 1 << 30;

const PUT_USAGE: &str =
    "punctual task put <ID> <--in <DURATION>|--at <TIME>|--every <DURATION>|--cron <EXPRESSION>> [OPTIONS]
       punctual task put --file <FILE> [ID] [OPTIONS]";

const GET_EXAMPLES: &str = "Examples:
  punctual task get report --next 5";

const UPCOMING_EXAMPLES: &str = "Examples:
  punctual task upcoming --prefix report- --zone Europe/Berlin
  punctual task upcoming --lane mail --from 2026-12-01T00:00:00Z --limit 1000";

const PUT_EXAMPLES: &str = "Examples:
  punctual task put order-1.unpaid --in 15m --destination orders.cancel --payload '{\"order\": 1}'
  punctual task put report --cron '30 6 * * MON-FRI' --zone Europe/Berlin --destination reports.build --text daily
  punctual task put ping --every 30s --limit 10 --header kind=ping --key eu-1 --payload @ping.json
  punctual task put -f tasks.ndjson";

/// A typed time that is longer ago needs `--past`.
const MAX_PAST: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Subcommand)]
pub(super) enum TaskCommand {
    /// Create a task, or replace the one with this id; or do so with every line of a file
    #[command(override_usage = PUT_USAGE, after_help = PUT_EXAMPLES)]
    Put(Box<PutArguments>),
    /// Show a task
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArguments),
    /// Cancel tasks: some, or all that match a filter
    #[command(aliases = ["delete", "remove", "rm"], after_help = task_bulk::CANCEL_EXAMPLES)]
    Cancel(TasksArguments),
    /// List tasks that wait or are in flight, in no order
    #[command(after_help = task_list::EXAMPLES)]
    List(TaskListArguments),
    /// List the tasks that wait, the earliest first; what is overdue comes before the rest
    #[command(after_help = UPCOMING_EXAMPLES)]
    Upcoming(UpcomingArguments),
    /// Count tasks, by lane and by due
    #[command(after_help = task_count::EXAMPLES)]
    Count(TaskCountArguments),
    /// Let tasks wait, whatever their dues, until they are resumed: some, or all that match a filter
    #[command(after_help = task_bulk::PAUSE_EXAMPLES)]
    Pause(TaskPauseArguments),
    /// Resume paused tasks: some, or all that match a filter
    #[command(after_help = task_bulk::RESUME_EXAMPLES)]
    Resume(TaskResumeArguments),
    /// Publish tasks now, whatever their dues; recurring ones then go on as before
    #[command(alias = "run", after_help = task_moves::TRIGGER_EXAMPLES)]
    Trigger(TaskIdsArguments),
    /// Skip the next occurrence of recurring tasks
    #[command(after_help = task_moves::SKIP_EXAMPLES)]
    Skip(SkipArguments),
    /// Write tasks as lines for `task put -f`: to keep them, or to move them
    #[command(after_help = task_export::EXAMPLES)]
    Export(ExportArguments),
}

#[derive(Args)]
pub(super) struct IdArguments {
    /// The task's id
    id: String,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct GetArguments {
    /// Also show this many dues after the one it waits for, 1 to 100
    #[arg(long, value_name = "NUMBER")]
    next: Option<u64>,
    #[command(flatten)]
    task: IdArguments,
}

#[derive(Args)]
pub(super) struct PutArguments {
    /// The task's id: 1 to 200 of A-Z a-z 0-9 . _ : -
    #[arg(required_unless_present = "file")]
    id: Option<String>,
    #[command(flatten)]
    schedule: ScheduleArguments,
    /// Accept an --at of more than a day ago; the message is published at once
    #[arg(long, requires = "at")]
    past: bool,
    /// The payload, as JSON; `@FILE` reads it from a file
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    payload: Option<String>,
    /// The payload, as a text without quotes
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "payload"])]
    text: Option<String>,
    /// A header of the message, also several times
    #[arg(long = "header", value_name = "NAME=VALUE", conflicts_with = "file", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The record key in Kafka; the default is the id
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    key: Option<String>,
    /// Topic, subject, stream, queue or exchange; the default is the lane's
    #[arg(long, aliases = ["topic", "subject", "queue", "stream"], value_name = "NAME", conflicts_with = "file")]
    destination: Option<String>,
    /// The lane it waits in
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    lane: Option<String>,
    /// How often a refused message is published again
    #[arg(long, value_name = "NUMBER", conflicts_with = "file")]
    retry_max: Option<u32>,
    /// What happens to occurrences that were missed: once, all or none
    #[arg(long, value_name = "POLICY", conflicts_with = "file")]
    catch_up: Option<String>,
    /// Only if the task still has this `etag`, which `task get` shows
    #[arg(long, value_name = "ETAG", requires = "id")]
    if_match: Option<String>,
    /// Only if there is no such task
    #[arg(long, requires = "id", conflicts_with = "if_match")]
    if_absent: bool,
    /// The whole task as JSON, from a file or `-` for stdin; without an id a task with its `id` on each line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    call: CallArguments,
}

/// The members of an answer that the commands use.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AnswerView {
    /// Of a put.
    result: Printable,
    /// Of a put or a get.
    status: Printable,
    due: Printable,
    overdue: bool,
    next: Vec<DueView>,
    in_flight: Option<Printable>,
}

#[derive(Deserialize)]
struct DueView {
    due: Printable,
}

pub(super) fn run(command: TaskCommand) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        match command {
            TaskCommand::Put(arguments) => put(&arguments).await,
            TaskCommand::Get(arguments) => get(&arguments).await,
            TaskCommand::Cancel(arguments) => task_bulk::cancel(&arguments).await,
            TaskCommand::List(arguments) => task_list::list(&arguments).await,
            TaskCommand::Upcoming(arguments) => task_list::upcoming(&arguments).await,
            TaskCommand::Count(arguments) => task_count::count(&arguments).await,
            TaskCommand::Pause(arguments) => task_bulk::pause(&arguments).await,
            TaskCommand::Resume(arguments) => task_bulk::resume(&arguments).await,
            TaskCommand::Trigger(arguments) => task_moves::trigger(&arguments).await,
            TaskCommand::Skip(arguments) => task_moves::skip(&arguments).await,
            TaskCommand::Export(arguments) => task_export::export(&arguments).await,
        }
    })
}

async fn put(arguments: &PutArguments) -> Result<(), Failure> {
    let Some(id) = &arguments.id else {
        let file = arguments.file.as_deref().unwrap_or(Path::new("-"));
        return batch::put(&Client::new(&arguments.call.target)?, file, arguments.call.json).await;
    };
    check_past(arguments)?;
    let task = task(arguments)?;
    // A shell removes the quotes of an entity tag.
    let tag = arguments.if_match.as_ref().map(|tag| format!("\"{}\"", tag.trim_matches('"')));
    let mut conditions: Vec<(HeaderName, &str)> = tag.iter().map(|tag| (IF_MATCH, tag.as_str())).collect();
    conditions.extend(arguments.if_absent.then_some((IF_NONE_MATCH, "*")));
    let (answer, view) = call(&arguments.call, Method::PUT, "put", id, "", &conditions, Some(task)).await?;
    let zone = arguments.schedule.zone.as_deref();
    let shown = |due: &Printable| shown_answered_due(due, zone);
    show(&arguments.call, &answer, || {
        let overdue = if view.overdue { "; it is overdue and due at once" } else { "" };
        let paused = if view.status.as_str() == "paused" { "; it stays paused" } else { "" };
        let mut text = format!("{} {id}, due {}{overdue}{paused}\n", view.result, shown(&view.due));
        if !view.next.is_empty() {
            let next: Vec<_> = view.next.iter().map(|next| shown(&next.due)).collect();
            text.push_str(&format!("then {}\n", next.join(", ")));
        }
        if let Some(key) = &view.in_flight {
            text.push_str(&format!("{key} is in flight and may still arrive with the former message\n"));
        }
        text
    })
}

async fn get(arguments: &GetArguments) -> Result<(), Failure> {
    let IdArguments { id, call: with } = &arguments.task;
    let query = arguments.next.map(|next| format!("?next={next}")).unwrap_or_default();
    let (answer, _) = call(with, Method::GET, "show", id, &query, &[], None).await?;
    show(with, &answer, || match serde_json::from_str::<Value>(&answer.text) {
        Ok(task) => format!("{task:#}\n"),
        Err(_) => format!("{}\n", answer.text),
    })
}

fn show(with: &CallArguments, answer: &ApiAnswer, detail: impl FnOnce() -> String) -> Result<(), Failure> {
    if with.json { out::json(&answer.text) } else { say(&detail()) }
}

/// Refuses a typed time of long ago, which is usually a mistake. Such a message would be published at once.
fn check_past(arguments: &PutArguments) -> Result<(), Failure> {
    let Some(at) = arguments.schedule.at.as_deref().filter(|_| !arguments.past) else { return Ok(()) };
    match spec::parse_time(at) {
        Some(time) if LocalClock::new().now().since(time) > MAX_PAST => {
            let failure = Failure::usage(anyhow!("`--at {at}` is more than a day ago"));
            Err(failure.hint("with `--past` the task is put, and its message published at once"))
        }
        // The instance reports a text that is no time.
        _ => Ok(()),
    }
}

/// The body of a put, with the payload unchanged.
fn task(arguments: &PutArguments) -> Result<String, Failure> {
    if let Some(path) = &arguments.file {
        return read(path).map_err(|error| {
            let doing = anyhow!("cannot read the task from `{}`", path.display());
            Failure::usage(anyhow::Error::from(error).context(doing))
        });
    }
    let payload = payload(arguments)?;
    let payload = payload.as_deref().map(serde_json::from_str::<&RawValue>).transpose();
    let payload = payload.map_err(|error| {
        Failure::usage(anyhow!("the payload is not JSON: {error}")).hint("`--text` takes a text without quotes")
    })?;
    let headers: BTreeMap<String, String> = arguments.headers.iter().cloned().collect();
    let message = MessageView {
        destination: arguments.destination.as_deref(),
        key: arguments.key.as_deref(),
        headers: Some(&headers).filter(|headers| !headers.is_empty()),
        payload,
        ..MessageView::default()
    };
    let view = TaskView {
        schedule: arguments.schedule.view(),
        message,
        lane: arguments.lane.as_deref(),
        retry: arguments.retry_max.map(|max| RetryView { max, ..RetryView::default() }),
        catch_up: arguments.catch_up.as_deref(),
    };
    serde_json::to_string(&view).map_err(Failure::failed)
}

/// The payload in the flags, as JSON.
fn payload(arguments: &PutArguments) -> Result<Option<String>, Failure> {
    match (&arguments.payload, &arguments.text) {
        (Some(payload), _) => match payload.strip_prefix('@') {
            Some(path) => read(Path::new(path)).map(Some).map_err(|error| {
                let doing = format!("cannot read the payload from `{path}`");
                Failure::usage(anyhow::Error::from(error).context(doing))
            }),
            None => Ok(Some(payload.clone())),
        },
        (None, text) => Ok(text.as_deref().map(|text| Value::from(text).to_string())),
    }
}

/// Parses `NAME=VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is written `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A whole file; `-` is stdin.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let input: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut text = String::new();
    if input.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_FILE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text))
}

/// Calls the API about one task.
async fn call(
    with: &CallArguments,
    method: Method,
    verb: &str,
    id: &str,
    query: &str,
    headers: &[(HeaderName, &str)],
    body: Option<String>,
) -> Result<(ApiAnswer, AnswerView), Failure> {
    let caller = ApiCaller::new(with)?;
    let doing = format!("cannot {verb} the task `{}`", Printable::from(id.to_owned()));
    let looks = method == Method::GET;
    let path = format!("/v1/tasks/{}{query}", escaped(id));
    let answer = caller.answer_with(method, &path, headers, body, &doing).await?;
    let view: AnswerView = caller.view(&answer, &doing)?;
    match if looks { view.status.as_str() } else { view.result.as_str() } {
        "" => Err(caller.no_instance(&doing, answer.status)),
        _ => Ok((answer, view)),
    }
}
