//! `punctual preview`: when a schedule would be due, computed by the code that serves tasks, without an instance.

mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cli::schedule_arguments::{ScheduleArguments, shown_due, zone_name};
use crate::cli::{Failure, say, task};
use crate::clock::{Clock, LocalClock, Timestamp};
use crate::task::spec::{self, Preview, Read, ReadOptions};
use crate::task::{Fault, Lane, Limits, Schedule};

pub(super) const EXAMPLES: &str = "Examples:
  punctual preview --cron '30 2 * * *' --zone Europe/Berlin --from 2027-03-27T00:00:00Z
  punctual preview -f tasks.ndjson --from 2026-12-01T00:00:00Z --to 2026-12-02T00:00:00Z";

/// The largest limits that an instance can be configured with, because only the schedule matters here.
const LIMITS: Limits = Limits { payload: 8 << 20, headers: 1000, header_bytes: 256 << 10 };

/// A schedule and its first dues.
type ScheduleDues = (Schedule, Vec<Timestamp>);

#[derive(Args)]
pub(super) struct PreviewArguments {
    #[command(flatten)]
    schedule: ScheduleArguments,
    /// A task or a schedule as JSON, or a task on each line, from a file or `-` for stdin
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The task's id, which --spread depends on
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// As if the task were put at this time; the default is now
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Show all dues before this time, of all tasks of the file in one table
    #[arg(long, value_name = "TIME", requires = "file", conflicts_with = "count")]
    to: Option<String>,
    /// The zone of cron schedules that name none, which is `tasks.zone` of an instance: Europe/Berlin
    #[arg(long, value_name = "ZONE", value_parser = zone_name)]
    default_zone: Option<String>,
    /// How many dues to show, 1 to 100
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    count: u64,
    /// Show them as JSON, like the API
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &PreviewArguments) -> Result<(), Failure> {
    let now = LocalClock::new().now();
    let (schedule, dues) = match &arguments.file {
        Some(path) => {
            let doing = || format!("cannot read the schedule from `{}`", path.display());
            let text = task::read(path).with_context(doing).map_err(Failure::usage)?;
            if arguments.to.is_some() || table::has_several_tasks(&text) {
                return table::show(arguments, &text, now);
            }
            of_file(arguments, &text, now)?
        }
        None => {
            let schedule = serde_json::to_string(&arguments.schedule.view()).map_err(Failure::failed)?;
            of_schedule(arguments, &schedule, now)?
        }
    };
    if arguments.json {
        let next: Vec<_> = dues.iter().map(|due| json!({"due": due.to_string(), "due_ms": due.as_millis()})).collect();
        return say(&format!("{}\n", json!({ "next": next })));
    }
    say(&dues.iter().map(|due| format!("{}\n", shown_due(*due, schedule.zone()))).collect::<String>())
}

/// The dues of a file with a task or a schedule.
fn of_file(arguments: &PreviewArguments, text: &str, now: Timestamp) -> Result<ScheduleDues, Failure> {
    let task = serde_json::from_str::<BTreeMap<String, &RawValue>>(text)
        .ok()
        .filter(|members| members.contains_key("schedule"));
    let Some(task) = task else {
        let schedule = serde_json::from_str::<&RawValue>(text)
            .map_err(|error| refused(&[fault("not_json", format!("the file is not JSON: {error}"))]))?;
        return of_schedule(arguments, schedule.get(), now);
    };
    // `id`, `from` and `count` come from the flags, read with a schedule that is not used. The schedule of the file is
    // checked with its task, so that all faults of the task are reported.
    let asked =
        spec::read_preview(arguments.request_body(r#"{"in":"1s"}"#).as_bytes(), now, None).map_err(|f| refused(&f))?;
    let read = arguments.read_task(text, task.contains_key("id"), asked.from)?;
    let preview = Preview { schedule: read.task.schedule, id: asked.id.or(read.id), ..asked };
    let dues = preview.dues().map_err(|fault| refused(&[fault]))?;
    Ok((preview.schedule, dues))
}

fn of_schedule(arguments: &PreviewArguments, schedule: &str, now: Timestamp) -> Result<ScheduleDues, Failure> {
    let preview =
        spec::read_preview(arguments.request_body(schedule).as_bytes(), now, arguments.default_zone.as_deref());
    let with_dues = |preview: Preview| Ok((preview.schedule.clone(), preview.dues().map_err(|fault| vec![fault])?));
    preview.and_then(with_dues).map_err(|faults| refused(&faults))
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
    /// Reads a task that is put at `from`.
    fn read_task(&self, text: &str, expect_id: bool, from: Timestamp) -> Result<Read, Failure> {
        let zone = self.default_zone.as_deref();
        let options = ReadOptions { limits: &LIMITS, expect_id, lane: Lane::default(), zone };
        spec::read_checked(text.as_bytes(), &options, from, &|_, _| None).map_err(|faults| refused(&faults))
    }

    /// The request that the API would get.
    fn request_body(&self, schedule: &str) -> String {
        let mut request_body = format!(r#"{{"schedule":{schedule},"count":{}"#, self.count);
        for (name, value) in [("id", &self.id), ("from", &self.from)] {
            if let Some(value) = value {
                request_body += &format!(r#","{name}":{}"#, Value::from(value.as_str()));
            }
        }
        request_body + "}"
    }
}
