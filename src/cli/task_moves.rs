//! `punctual task trigger | skip`: publishes tasks of a running instance now, or skips their next occurrences.

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::api_caller::{ApiCaller, TaskPlace, path_segment};
use super::out::{self, Printable};
use super::{Failure, say};

pub(super) const TRIGGER_EXAMPLES: &str = "Examples:
  punctual task trigger report.daily";

pub(super) const SKIP_EXAMPLES: &str = "Examples:
  punctual task skip report.daily";

#[derive(Args)]
pub(super) struct TaskIdsArguments {
    /// The ids of the tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    place: TaskPlace,
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

/// Makes each task due now, one after the other. Ends at the first failure.
pub(super) async fn trigger(arguments: &TaskIdsArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.place)?;
    for id in &arguments.ids {
        let doing = format!("cannot trigger the task `{}`", Printable::from(id.clone()));
        let path = format!("/v1/tasks/{}/trigger", path_segment(id));
        let (answer, view) =
            caller.call::<TriggerAnswerView>(Method::POST, &path, Some("{}".to_owned()), &doing).await?;
        if arguments.place.json {
            out::json(&answer.text)?;
            continue;
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
        say(&format!("{line}\n"))?;
    }
    Ok(())
}

/// Skips the next occurrence of each task, one after the other. Ends at the first failure.
pub(super) async fn skip(arguments: &TaskIdsArguments) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.place)?;
    for id in &arguments.ids {
        let doing = format!("cannot skip the next occurrence of the task `{}`", Printable::from(id.clone()));
        let path = format!("/v1/tasks/{}", path_segment(id));
        // Somebody else may skip it at the same time: then it is not the next one any more.
        let (_, next) = caller.call::<NextDueView>(Method::GET, &path, None, &doing).await?;
        let body = json!({"due": next.due}).to_string();
        let (answer, view) =
            caller.call::<SkipAnswerView>(Method::POST, &format!("{path}/skip"), Some(body), &doing).await?;
        if arguments.place.json {
            out::json(&answer.text)?;
            continue;
        }
        let still = view.in_flight.map(|key| format!("; {key} may still arrive")).unwrap_or_default();
        say(&format!("skipped {}, due {}{still}\n", view.key, view.due))?;
    }
    Ok(())
}
