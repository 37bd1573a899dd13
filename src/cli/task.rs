//! `punctual task put | get | cancel`: a running instance's API from the command line.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Failure, say};
use crate::config::SecretUrl;

/// How long an instance may take to answer; longer than it lets its timeline take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Every character that may stand in a task id has its place in a path as it is, but others must not slip through.
const ID_CHARACTERS: &str = "._:-";

#[derive(Subcommand)]
pub(super) enum TaskCommand {
    /// Create a task, or replace the one with this id
    Put(Box<PutArguments>),
    /// Show a task
    Get(IdArguments),
    /// Cancel a task
    Cancel(IdArguments),
}

/// Which instance, and how to show its answer.
#[derive(Args)]
struct Place {
    /// The instance's API
    #[arg(
        long,
        value_name = "URL",
        env = "PUNCTUAL_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7171"
    )]
    url: String,
    /// Show the instance's answer as it is
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct IdArguments {
    /// The task's id
    id: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["in", "at", "every", "cron", "file"]))]
pub(super) struct PutArguments {
    /// The task's id: 1 to 200 of A-Z a-z 0-9 . _ : -
    id: String,
    /// Once, this long from now: 15m, 1h30m
    #[arg(long, value_name = "DURATION")]
    r#in: Option<String>,
    /// Once, at this time: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Again and again, this far apart: 30s
    #[arg(long, value_name = "DURATION")]
    every: Option<String>,
    /// Again and again, by cron; six fields begin with seconds
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The zone of --cron: Europe/Berlin; without it UTC
    #[arg(long, value_name = "ZONE", requires = "cron")]
    zone: Option<String>,
    /// What is published, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    payload: Option<String>,
    /// Topic, subject or stream; without it the lane's
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    destination: Option<String>,
    /// The lane it waits in
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    lane: Option<String>,
    /// The whole task as JSON, from a file or `-` for stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// An answer of the API.
struct Answer {
    status: u16,
    text: String,
}

/// What the commands read of an answer.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AnswerView {
    result: String,
    due: String,
    next: Vec<DueView>,
    in_flight: Option<String>,
    key: Option<String>,
    handed_out: bool,
    detail: String,
    errors: Vec<FaultView>,
}

#[derive(Deserialize)]
struct DueView {
    due: String,
}

#[derive(Deserialize)]
struct FaultView {
    pointer: String,
    detail: String,
}

pub(super) fn run(command: TaskCommand) -> Result<(), Failure> {
    match command {
        TaskCommand::Put(arguments) => put(&arguments),
        TaskCommand::Get(arguments) => get(&arguments),
        TaskCommand::Cancel(arguments) => cancel(&arguments),
    }
}

fn put(arguments: &PutArguments) -> Result<(), Failure> {
    let task = task(arguments)?;
    let doing = format!("cannot put the task `{}`", arguments.id);
    let answer = arguments.place.call("PUT", &arguments.id, Some(&task), &doing)?;
    let view = answer.read();
    show(&arguments.place, &answer, || {
        let mut text = format!("{} {}, due {}\n", view.result, arguments.id, view.due);
        if !view.next.is_empty() {
            let next: Vec<_> = view.next.iter().map(|next| next.due.as_str()).collect();
            text.push_str(&format!("then {}\n", next.join(", ")));
        }
        if let Some(key) = &view.in_flight {
            text.push_str(&format!("{key} is in flight and may still arrive with the former message\n"));
        }
        text
    });
    Ok(())
}

fn get(arguments: &IdArguments) -> Result<(), Failure> {
    let doing = format!("cannot show the task `{}`", arguments.id);
    let answer = arguments.place.call("GET", &arguments.id, None, &doing)?;
    show(&arguments.place, &answer, || match serde_json::from_str::<Value>(&answer.text) {
        Ok(task) => format!("{task:#}\n"),
        Err(_) => format!("{}\n", answer.text),
    });
    Ok(())
}

fn cancel(arguments: &IdArguments) -> Result<(), Failure> {
    let doing = format!("cannot cancel the task `{}`", arguments.id);
    let answer = arguments.place.call("DELETE", &arguments.id, None, &doing)?;
    let view = answer.read();
    show(&arguments.place, &answer, || match (view.result.as_str(), view.handed_out, &view.key) {
        ("in_flight", _, Some(key)) => format!("cancelled {}; {key} is in flight and may still arrive\n", arguments.id),
        (_, true, Some(key)) => format!("cancelled {}; {key} was handed out and may still arrive\n", arguments.id),
        _ => format!("cancelled {}\n", arguments.id),
    });
    Ok(())
}

fn show(place: &Place, answer: &Answer, words: impl FnOnce() -> String) {
    if place.json { say(&format!("{}\n", answer.text.trim_end())) } else { say(&words()) }
}

/// The body of a put. The payload's bytes go as they were given.
fn task(arguments: &PutArguments) -> Result<String, Failure> {
    if let Some(path) = &arguments.file {
        let mut text = String::new();
        let read = match path.as_os_str() == "-" {
            true => std::io::stdin().read_to_string(&mut text).map(|_| ()),
            false => std::fs::read_to_string(path).map(|read| text = read),
        };
        let doing = || anyhow!("cannot read the task from `{}`", path.display());
        return read.map(|()| text).map_err(|error| Failure::usage(anyhow::Error::from(error).context(doing())));
    }
    let mut schedule = Map::new();
    for (name, value) in [
        ("in", &arguments.r#in),
        ("at", &arguments.at),
        ("every", &arguments.every),
        ("cron", &arguments.cron),
        ("zone", &arguments.zone),
    ] {
        schedule.extend(value.clone().map(|value| (name.to_owned(), Value::from(value))));
    }
    let mut message = Map::new();
    message.extend(arguments.destination.clone().map(|value| ("destination".to_owned(), Value::from(value))));
    let mut message = Value::from(message).to_string();
    if let Some(payload) = &arguments.payload {
        let payload: &RawValue = serde_json::from_str(payload).map_err(|error| {
            Failure::usage(anyhow!("the payload is not JSON: {error}"))
                .hint("a text needs its quotes: --payload '\"text\"'")
        })?;
        message.pop();
        let comma = if message.ends_with('{') { "" } else { "," };
        message.push_str(&format!("{comma}\"payload\":{payload}}}"));
    }
    let lane = arguments.lane.as_ref().map(|lane| format!(",\"lane\":{}", json!(lane))).unwrap_or_default();
    Ok(format!("{{\"schedule\":{},\"message\":{message}{lane}}}", Value::from(schedule)))
}

impl Answer {
    fn read(&self) -> AnswerView {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

impl Place {
    /// Calls the API; an answer that is no success is a failure in its words.
    fn call(&self, method: &str, id: &str, body: Option<&str>, doing: &str) -> Result<Answer, Failure> {
        // An instance is near: a proxy for the world outside does not know it.
        let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
        let agent: ureq::Agent = config.timeout_global(Some(TIMEOUT)).build().into();
        let url = format!("{}/v1/tasks/{}", self.url.trim_end_matches('/'), path_segment(id));
        let request = ureq::http::Request::builder().method(method).uri(&url);
        let sent = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(body.to_owned())
                .map_err(ureq::Error::from)
                .and_then(|request| agent.run(request)),
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| agent.run(request)),
        };
        let unreachable = |error: ureq::Error| {
            let error = error.to_string().replace(&url, &self.shown());
            Failure::failed(anyhow!("{doing} at `{}`: {error}", self.shown()))
                .hint("start an instance with `punctual serve`, or name one with `--url` or `PUNCTUAL_URL`")
        };
        let mut response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        let answer = Answer { status, text };
        if (200..300).contains(&answer.status) { Ok(answer) } else { Err(self.refused(&answer, doing)) }
    }

    /// The URL without what may be a user and password.
    fn shown(&self) -> String {
        SecretUrl::new(self.url.clone()).to_string()
    }

    fn refused(&self, answer: &Answer, doing: &str) -> Failure {
        if self.json {
            say(&format!("{}\n", answer.text.trim_end()));
        }
        let view = answer.read();
        let mut words = match view.detail.as_str() {
            "" => format!("{doing}: `{}` answered {}", self.shown(), answer.status),
            detail => format!("{doing}: {detail}"),
        };
        if view.errors.len() > 1 {
            for fault in &view.errors {
                words.push_str(&format!("\n  {}: {}", fault.pointer, fault.detail));
            }
        }
        let failure = Failure::failed(anyhow!(words));
        match answer.status {
            409 => failure.hint("its occurrence ends in a moment: try again"),
            503 => failure.hint("nothing takes effect after this answer: try again"),
            _ => failure,
        }
    }
}

/// An id as it stands in a path; characters that no id has are escaped, so that the API can say so.
fn path_segment(id: &str) -> String {
    let mut segment = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte.is_ascii_alphanumeric() || ID_CHARACTERS.as_bytes().contains(&byte) {
            true => segment.push(char::from(byte)),
            false => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}
