//! `punctual task pause | resume`: pauses tasks of a running instance.

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use super::api_caller::{ApiCaller, TaskPlace, members, path_segment};
use super::out::{self, Printable};
use super::{Failure, say};

pub(super) const EXAMPLES: &str = "Examples:
  punctual task pause report.daily --note 'wrong figures'
  punctual task resume report.daily";

#[derive(Args)]
pub(super) struct TaskPauseArguments {
    /// Why, for those who see the pause
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    tasks: TaskIdsArguments,
}

#[derive(Args)]
pub(super) struct TaskIdsArguments {
    /// The ids of the tasks
    #[arg(required = true, value_name = "ID")]
    pub(super) ids: Vec<String>,
    #[command(flatten)]
    pub(super) place: TaskPlace,
}

#[derive(Args)]
pub(super) struct TaskResumeArguments {
    /// Pass over what they missed: a recurring task then waits for its first due in the future
    #[arg(long)]
    skip_missed: bool,
    #[command(flatten)]
    tasks: TaskIdsArguments,
}

#[derive(Deserialize)]
struct TaskPauseAnswerView {
    result: Printable,
    due: Printable,
    in_flight: Option<Printable>,
}

pub(super) async fn pause(arguments: &TaskPauseArguments) -> Result<(), Failure> {
    let body = members([("note", &arguments.note)]);
    call(&arguments.tasks, "pause", &Value::from(body).to_string()).await
}

pub(super) async fn resume(arguments: &TaskResumeArguments) -> Result<(), Failure> {
    let body = if arguments.skip_missed { r#"{"missed":"skip"}"# } else { "{}" };
    call(&arguments.tasks, "resume", body).await
}

/// Calls the API for each task, one after the other. Ends at the first failure.
async fn call(arguments: &TaskIdsArguments, verb: &str, body: &str) -> Result<(), Failure> {
    let caller = ApiCaller::new(&arguments.place)?;
    for id in &arguments.ids {
        let shown = Printable::from(id.clone());
        let (path, doing) =
            (format!("/v1/tasks/{}/{verb}", path_segment(id)), format!("cannot {verb} the task `{shown}`"));
        let (answer, view) =
            caller.call::<TaskPauseAnswerView>(Method::POST, &path, Some(body.to_owned()), &doing).await?;
        if arguments.place.json {
            out::json(&answer.text)?;
            continue;
        }
        say(&match (view.result.as_str(), &view.in_flight, verb) {
            ("unchanged", _, "pause") => format!("{shown} is paused already\n"),
            ("unchanged", ..) => format!("{shown} was not paused\n"),
            (result, Some(key), _) => format!("{result} {shown}; {key} may still arrive\n"),
            (result, None, _) => format!("{result} {shown}, due {}\n", view.due),
        })?;
    }
    Ok(())
}
