//! `punctual task trigger | skip`: publishes tasks of a running instance now, or skips their next occurrences.

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::api_caller::{ApiCaller, CallArguments, escaped, for_each};
use super::out::{self, Printable};
use super::{Failure, say};

pub(super) const TRIGGER_EXAMPLES: &str = "Examples:
  punctual task trigger report.daily";

pub(super) const SKIP_EXAMPLES: &str = "Examples:
  punctual task skip report.daily
  punctual task skip report.daily --due 2026-12-01T06:00:00Z";

#[derive(Args)]
pub(super) struct TaskIdsArguments {
    /// The ids of the tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct SkipArguments {
    /// Skip only the occurrence that is due at this time, as another command shows it: 2026-11-21T18:00:00Z
    #[arg(long, value_name = "TIME")]
    due: Option<String>,
    #[command(flatten)]
    tasks: TaskIdsArguments,
}

#[derive(Deserialize)]
struct TriggerAnswerView {
    result: Printable,
    key: Printable,
    in_flight: Option<Printable>,
    #[serde(default)]
    lane_paused: bool,
}

#[derive(Deserialize)]
struct NextDueView {
    due: String,
}

#[derive(Deserialize)]
struct SkipAnswerView {
    key: Printable,
    due: Printable,
    in_flight: Option<Printable>,
}

/// Makes each task due now.
pub(super) async fn trigger(arguments: &TaskIdsArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.call)?;
    let act = async |id: &str| {
        let doing = format!("cannot trigger the task `{}`", Printable::from(id.to_owned()));
        let path = format!("/v1/tasks/{}/trigger", escaped(id));
        let (answer, view) =
            caller.call::<TriggerAnswerView>(Method::POST, &path, Some("{}".to_owned()), &doing).await?;
        if arguments.call.json {
            return out::json(&answer.text);
        }
        let mut line = match view.result.as_str() {
            "unchanged" => format!("{} was due already", view.key),
            result => format!("{result} {}", view.key),
        };
        if let Some(key) = view.in_flight {
            line.push_str(&format!("; {key} may still arrive"));
        }
        if view.lane_paused {
            line.push_str("; it waits until its lane is resumed");
        }
        say(&format!("{line}\n"))
    };
    for_each(&arguments.ids, act).await
}

/// Skips the next occurrence of each task.
pub(super) async fn skip(arguments: &SkipArguments) -> Result<(), Failure> {
    let SkipArguments { due, tasks: arguments } = arguments;
    let caller = ApiCaller::new(&arguments.call)?;
    let act = async |id: &str| {
        let doing = format!("cannot skip the next occurrence of the task `{}`", Printable::from(id.to_owned()));
        let path = format!("/v1/tasks/{}", escaped(id));
        // Somebody else may skip it at the same time: then it is not the next one any more.
        let due = match due {
            Some(due) => due.clone(),
            None => caller.call::<NextDueView>(Method::GET, &path, None, &doing).await?.1.due,
        };
        let body = json!({"due": due}).to_string();
        let (answer, view) =
            caller.call::<SkipAnswerView>(Method::POST, &format!("{path}/skip"), Some(body), &doing).await?;
        if arguments.call.json {
            return out::json(&answer.text);
        }
        let still = view.in_flight.map(|key| format!("; {key} may still arrive")).unwrap_or_default();
        say(&format!("skipped {}, due {}{still}\n", view.key, view.due))
    };
    for_each(&arguments.ids, act).await
}
