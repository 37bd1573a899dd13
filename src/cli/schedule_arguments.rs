//! The flags that say when a task is due, for `task put` and `preview`.

use clap::Args;

use super::out::Printable;
use crate::clock::Timestamp;
use crate::task::spec::write::ScheduleView;
use crate::task::{local_time, spec};

#[derive(Args)]
#[command(group = clap::ArgGroup::new("when").required(true).args(["in", "at", "every", "cron", "file"]))]
pub(super) struct ScheduleArguments {
    /// Once, this long from now: 15m, 1h30m
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    r#in: Option<String>,
    /// Once, at this time: 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(super) at: Option<String>,
    /// Repeatedly, at this interval: 30s
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    every: Option<String>,
    /// Repeatedly, by cron; six fields begin with seconds
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The zone of --cron: Europe/Berlin; the default is UTC, or that of the instance
    #[arg(long, aliases = ["timezone", "tz"], value_name = "ZONE", conflicts_with = "file")]
    pub(super) zone: Option<String>,
    /// No occurrence before this time; --every counts from it
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    start: Option<String>,
    /// No occurrence after this time
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    end: Option<String>,
    /// Maximum number of occurrences
    #[arg(long, value_name = "NUMBER", conflicts_with = "file")]
    limit: Option<u64>,
    /// Delay each occurrence by less than this; the delay depends on id and time
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    spread: Option<String>,
}

impl ScheduleArguments {
    /// The schedule in the flags.
    pub(super) fn view(&self) -> ScheduleView<'_> {
        ScheduleView {
            after: self.r#in.as_deref().map(Into::into),
            at: self.at.as_deref().map(Into::into),
            every: self.every.as_deref().map(Into::into),
            cron: self.cron.as_deref(),
            zone: self.zone.as_deref(),
            start: self.start.clone(),
            end: self.end.clone(),
            limit: self.limit,
            spread: self.spread.clone(),
        }
    }
}

/// Like [`shown_due`], for a due in an answer of the API.
pub(super) fn shown_answered_due(due: &Printable, zone: Option<&str>) -> String {
    spec::parse_time(due.as_str()).map_or(due.to_string(), |due| shown_due(due, zone))
}

/// A due in UTC and, if the schedule has a zone, on the clock there.
pub(super) fn shown_due(due: Timestamp, zone: Option<&str>) -> String {
    match zone.and_then(|zone| local_time(due, zone)) {
        Some(local) => format!("{due}  {local}"),
        None => due.to_string(),
    }
}

/// Parses the name of a time zone.
pub(super) fn zone_name(name: &str) -> Result<String, String> {
    match local_time(Timestamp::from_millis(0), name) {
        Some(_) => Ok(name.to_owned()),
        None => Err("a name of the IANA database such as `Europe/Berlin` is expected".to_owned()),
    }
}
