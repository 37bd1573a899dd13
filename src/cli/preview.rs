//! `punctual preview`: when a schedule would be due, computed by the code that serves tasks, without an instance.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Failure, say, task};
use crate::clock::{Clock, LocalClock, Timestamp};
use crate::task::spec::{self, Preview};
use crate::task::{Fault, Limits};

/// The largest limits that an instance can be configured with, because only the schedule matters here.
const LIMITS: Limits = Limits { payload: 8 << 20, headers: 1000, header_bytes: 256 << 10 };

#[derive(Args)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["in", "at", "every", "cron", "file"]))]
pub(super) struct PreviewArguments {
    /// Once, this long from now: 15m, 1h30m
    #[arg(long, value_name = "DURATION")]
    r#in: Option<String>,
    /// Once, at this time: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Repeatedly, at this interval: 30s
    #[arg(long, value_name = "DURATION")]
    every: Option<String>,
    /// Repeatedly, by cron; six fields begin with seconds
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The zone of --cron: Europe/Berlin; the default is UTC
    #[arg(long, value_name = "ZONE", conflicts_with = "file")]
    zone: Option<String>,
    /// No occurrence before this time; --every counts from it
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    start: Option<String>,
    /// No occurrence after this time
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    end: Option<String>,
    /// Maximum number of occurrences
    #[arg(long, value_name = "NUMBER", conflicts_with = "file")]
    limit: Option<u64>,
    /// Delay each occurrence by less than this; the delay depends on the id
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    spread: Option<String>,
    /// A task or a schedule as JSON, from a file or `-` for stdin
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The task's id, which --spread depends on
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// As if the task were put at this time; the default is now
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// How many dues to show, 1 to 100
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    count: u64,
    /// Show them as JSON, like the API
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &PreviewArguments) -> Result<(), Failure> {
    let now = LocalClock::new().now();
    let dues = match &arguments.file {
        Some(path) => {
            let doing = || format!("cannot read the schedule from `{}`", path.display());
            of_file(arguments, &task::read(path).with_context(doing).map_err(Failure::usage)?, now)?
        }
        None => of_schedule(arguments, &Value::from(arguments.schedule()).to_string(), now)?,
    };
    if arguments.json {
        let next: Vec<_> = dues.iter().map(|due| json!({"due": due.to_string(), "due_ms": due.as_millis()})).collect();
        say(&format!("{}\n", json!({ "next": next })))
    } else {
        say(&dues.iter().map(|due| format!("{due}\n")).collect::<String>())
    }
}

/// The dues of a file with a task or a schedule.
fn of_file(arguments: &PreviewArguments, text: &str, now: Timestamp) -> Result<Vec<Timestamp>, Failure> {
    let task = serde_json::from_str::<BTreeMap<String, &RawValue>>(text)
        .ok()
        .filter(|members| members.contains_key("schedule"));
    let Some(task) = task else {
        let schedule = serde_json::from_str::<&RawValue>(text)
            .map_err(|error| refused(&[fault("not_json", format!("the file is not JSON: {error}"))]))?;
        return of_schedule(arguments, schedule.get(), now);
    };
    // The flags count; the schedule is checked as part of its task, with all other faults of that.
    let asked = spec::read_preview(arguments.question(r#"{"in":"1s"}"#).as_bytes(), now).map_err(|f| refused(&f))?;
    let read = spec::read(text.as_bytes(), &LIMITS, task.contains_key("id"), asked.from);
    let read = read.map_err(|faults| refused(&faults))?;
    let preview = Preview { schedule: read.task.schedule, id: asked.id.or(read.id), ..asked };
    preview.dues().map_err(|fault| refused(&[fault]))
}

fn of_schedule(arguments: &PreviewArguments, schedule: &str, now: Timestamp) -> Result<Vec<Timestamp>, Failure> {
    let preview = spec::read_preview(arguments.question(schedule).as_bytes(), now);
    preview.and_then(|preview| preview.dues().map_err(|fault| vec![fault])).map_err(|faults| refused(&faults))
}

fn fault(code: &'static str, detail: String) -> Fault {
    Fault { pointer: String::new(), code, detail }
}

/// Faults in the words of the API.
fn refused(faults: &[Fault]) -> Failure {
    let detail = |fault: &Fault| match fault.pointer.as_str() {
        "" => fault.detail.clone(),
        pointer => format!("{pointer}: {}", fault.detail),
    };
    match faults {
        [only] => Failure::failed(anyhow!("cannot preview: {}", detail(only))),
        several => {
            let lines: String = several.iter().map(|fault| format!("\n  {}", detail(fault))).collect();
            Failure::failed(anyhow!("cannot preview: {} faults{lines}", several.len()))
        }
    }
}

impl PreviewArguments {
    /// The schedule in the flags.
    fn schedule(&self) -> Map<String, Value> {
        let mut schedule = Map::new();
        for (name, value) in [
            ("in", &self.r#in),
            ("at", &self.at),
            ("every", &self.every),
            ("cron", &self.cron),
            ("zone", &self.zone),
            ("start", &self.start),
            ("end", &self.end),
            ("spread", &self.spread),
        ] {
            schedule.extend(value.clone().map(|value| (name.to_owned(), Value::from(value))));
        }
        schedule.extend(self.limit.map(|limit| ("limit".to_owned(), Value::from(limit))));
        schedule
    }

    /// The request that the API would get.
    fn question(&self, schedule: &str) -> String {
        let mut question = format!(r#"{{"schedule":{schedule},"count":{}"#, self.count);
        for (name, value) in [("id", &self.id), ("from", &self.from)] {
            if let Some(value) = value {
                question += &format!(r#","{name}":{}"#, Value::from(value.as_str()));
            }
        }
        question + "}"
    }
}
