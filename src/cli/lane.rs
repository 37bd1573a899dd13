//! `punctual lane pause | resume`: pauses a lane of a running instance.

use clap::{Args, Subcommand};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::api_caller::{ApiCaller, CallArguments, escaped, members};
use super::out::{self, Printable};
use super::{Failure, say};
use crate::clock::{Clock, LocalClock, Timestamp};
use crate::task::duration;

const PAUSE_EXAMPLES: &str = "Examples:
  punctual lane pause mail --note 'the mail server moves' --until 2026-12-01T14:00:00Z
  punctual lane pause mail --until 30m";

const RESUME_EXAMPLES: &str = "Examples:
  punctual lane resume mail";

#[derive(Subcommand)]
pub(super) enum LaneCommand {
    /// Let nothing of a lane be published until it is resumed; its tasks wait
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(PauseArguments),
    /// Publish the messages of a paused lane again, those that became due meanwhile at once
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(LaneArguments),
}

#[derive(Args)]
pub(super) struct LaneArguments {
    /// The lane
    lane: String,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Args)]
pub(super) struct PauseArguments {
    /// Why, for those who see the pause
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// When the pause ends by itself: 2026-11-21T18:00:00Z, or from now on: 30m
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    #[command(flatten)]
    lane: LaneArguments,
}

#[derive(Deserialize)]
struct LaneAnswerView {
    result: Printable,
    in_flight: u64,
}

pub(super) fn run(command: &LaneCommand) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        match command {
            LaneCommand::Pause(arguments) => {
                let until = arguments.until.clone().map(|until| end_of_pause(until, LocalClock::new().now()));
                let body = members([("note", &arguments.note), ("until", &until)]);
                call(&arguments.lane, "pause", body).await
            }
            LaneCommand::Resume(arguments) => call(arguments, "resume", Map::new()).await,
        }
    })
}

/// When a pause ends, as the API takes it. What is neither a span nor a time is left to the API, which says what is wrong.
fn end_of_pause(until: String, now: Timestamp) -> String {
    duration::parse(&until).map_or(until, |span| now.plus(span).to_string())
}

async fn call(arguments: &LaneArguments, verb: &str, body: Map<String, Value>) -> Result<(), Failure> {
    let LaneArguments { lane, call } = arguments;
    let caller = ApiCaller::new(call)?;
    let shown = Printable::from(lane.clone());
    let (path, doing) = (format!("/v1/lanes/{}/{verb}", escaped(lane)), format!("cannot {verb} the lane `{shown}`"));
    let (answer, view) =
        caller.call::<LaneAnswerView>(Method::POST, &path, Some(Value::from(body).to_string()), &doing).await?;
    if call.json {
        return out::json(&answer.text);
    }
    say(&match (view.result.as_str(), view.in_flight) {
        ("unchanged", _) => format!("{shown} was not paused\n"),
        (result, 0) => format!("{result} {shown}\n"),
        (result, in_flight) => format!("{result} {shown}; {in_flight} in flight may still be published\n"),
    })
}
