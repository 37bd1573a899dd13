//! `punctual dead list | show | requeue | discard`: the dead occurrences of a running instance.

mod bulk;
mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use super::api_caller::{ApiCaller, CallArguments, escaped};
use super::out::{self, Printable};
use super::{Failure, say};

const LIST_EXAMPLES: &str = "Examples:
  punctual dead list --lane mail --reason destination
  punctual dead list --from 2026-11-21T18:00:00Z --limit 1000";

const SHOW_EXAMPLES: &str = "Examples:
  punctual dead show order-1:1795266000000";

const DISCARD_EXAMPLES: &str = "Examples:
  punctual dead discard order-1:1795266000000
  punctual dead discard --reason 'too late' --to 2026-11-21T18:00:00Z --dry-run";

const REQUEUE_EXAMPLES: &str = "Examples:
  punctual dead requeue order-1:1795266000000 --wait 2s
  punctual dead requeue --lane default --reason destination --from 2026-11-21T18:00:00Z --dry-run";

#[derive(Subcommand)]
pub(super) enum DeadCommand {
    /// List dead occurrences, the oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArguments),
    /// Show a dead occurrence with its message
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArguments),
    /// Requeue dead occurrences: they are due now, under their old keys
    #[command(after_help = REQUEUE_EXAMPLES)]
    Requeue(RequeueArguments),
    /// Delete dead occurrences
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(ManyArguments),
}

/// Selects dead occurrences.
#[derive(Args)]
struct Filter {
    /// Of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// With this reason: rejected, retries, destination, poison, "too late"
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Died at this time or later: 2026-11-21T18:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Died before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

#[derive(Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    filter: Filter,
    /// Maximum number to show
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct ShowArguments {
    /// The idempotency key
    key: String,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["keys", "lane", "reason", "from", "to", "all"]))]
pub(super) struct ManyArguments {
    /// Idempotency keys
    #[arg(value_name = "KEY", conflicts_with_all = ["lane", "reason", "from", "to", "all"])]
    keys: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// All dead occurrences, whatever lane, reason and time
    #[arg(long, conflicts_with_all = ["lane", "reason", "from", "to"])]
    all: bool,
    /// Only count the matches
    #[arg(long, conflicts_with = "keys")]
    dry_run: bool,
    /// Do not ask back before many are changed
    #[arg(long, conflicts_with = "keys")]
    yes: bool,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct RequeueArguments {
    #[command(flatten)]
    many: ManyArguments,
    /// Wait this long after the requeue, then show what died again: 2s
    #[arg(long, value_name = "DURATION", value_parser = wait::duration)]
    wait: Option<Duration>,
}

/// An entry of a list.
#[derive(Deserialize)]
struct DeadView {
    key: Printable,
    reason: Printable,
    detail: Printable,
    died: Printable,
    lane: Option<Printable>,
    destination: Option<Printable>,
}

/// The answer to the requeue or discard of one key.
#[derive(Deserialize)]
struct DoneView {
    result: Printable,
}

/// What to do with dead occurrences, in the words of the API.
#[derive(Clone, Copy)]
enum Act {
    Requeue,
    Discard,
}

impl Act {
    fn verb(self) -> &'static str {
        match self {
            Act::Requeue => "requeue",
            Act::Discard => "discard",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Act::Requeue => "requeued",
            Act::Discard => "discarded",
        }
    }
}

pub(super) fn run(command: DeadCommand) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        match command {
            DeadCommand::List(arguments) => list(&arguments).await,
            DeadCommand::Show(arguments) => show(&arguments).await,
            DeadCommand::Requeue(arguments) => requeue(&arguments).await,
            DeadCommand::Discard(arguments) => act(Act::Discard, &arguments).await,
        }
    })
}

async fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    caller.list("/v1/dead", &arguments.filter.given(), arguments.limit, "cannot list the dead", line).await
}

/// One line of the list. Columns without spaces come first, so that they can be cut out.
fn line(dead: &DeadView) -> String {
    let or_dash = |value: &Option<Printable>| value.as_ref().map_or("-", Printable::as_str).to_owned();
    let (lane, destination) = (or_dash(&dead.lane), or_dash(&dead.destination));
    format!("{}  {}  {lane}  {destination}  {}: {}\n", dead.key, dead.died, dead.reason, dead.detail)
}

async fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    let doing = format!("cannot show the dead occurrence `{}`", Printable::from(arguments.key.clone()));
    let path = format!("/v1/dead/{}", escaped(&arguments.key));
    let (answer, _) = caller.call::<DeadView>(Method::GET, &path, None, &doing).await?;
    if arguments.call.json {
        return out::json(&answer.text);
    }
    match serde_json::from_str::<Value>(&answer.text) {
        Ok(dead) => say(&format!("{dead:#}\n")),
        Err(_) => say(&format!("{}\n", answer.text)),
    }
}

async fn act(act: Act, arguments: &ManyArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    if arguments.keys.is_empty() {
        bulk::run(act, &caller, arguments).await
    } else {
        each(act, &caller, arguments).await
    }
}

async fn requeue(arguments: &RequeueArguments) -> Result<(), Failure> {
    let Some(wait) = arguments.wait.filter(|_| !arguments.many.dry_run) else {
        return act(Act::Requeue, &arguments.many).await;
    };
    let caller = ApiCaller::new(&arguments.many.call)?;
    let begun = wait::time_of(&caller).await?;
    // Of several keys some may have been requeued although others failed.
    let requeued = act(Act::Requeue, &arguments.many).await;
    if requeued.is_err() && arguments.many.keys.len() < 2 {
        return requeued;
    }
    let died = wait::died_since(&caller, &arguments.many, &begun, wait).await;
    requeued.and(died)
}

/// One by one. A failure does not stop the others.
async fn each(act: Act, caller: &ApiCaller<'_>, arguments: &ManyArguments) -> Result<(), Failure> {
    let mut failed: Option<Failure> = None;
    for key in &arguments.keys {
        let shown = Printable::from(key.clone());
        let doing = format!("cannot {} the dead occurrence `{shown}`", act.verb());
        let path = format!("/v1/dead/{}", escaped(key));
        let (method, path, body) = match act {
            Act::Requeue => (Method::POST, format!("{path}/requeue"), Some("{}".to_owned())),
            Act::Discard => (Method::DELETE, path, None),
        };
        let called = caller.call::<DoneView>(method, &path, body, &doing);
        match called.await {
            Ok((answer, _)) if arguments.call.json => {
                out::json(&answer.text)?;
            }
            Ok((_, done)) => say(&format!("{} {shown}\n", done.result))?,
            Err(failure) => {
                if let Some(before) = failed.replace(failure) {
                    before.tell();
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

impl Filter {
    /// The filter, by the names of the API.
    fn given(&self) -> [(&'static str, &Option<String>); 4] {
        [("lane", &self.lane), ("reason", &self.reason), ("from", &self.from), ("to", &self.to)]
    }
}
