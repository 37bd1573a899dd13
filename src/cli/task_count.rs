//! `punctual task count`: how many tasks of a running instance wait, are overdue, in flight or paused.

use std::collections::BTreeMap;

use clap::Args;
use hyper::Method;
use serde::Deserialize;

use super::api_caller::{ApiCaller, CallArguments, with_query};
use super::out::{self, Printable};
use super::{Failure, say};

pub(super) const EXAMPLES: &str = "Examples:
  punctual task count --lane default
  punctual task count --from 2026-12-01T00:00:00Z --to 2026-12-02T00:00:00Z --windows 24";

#[derive(Args)]
pub(super) struct TaskCountArguments {
    /// Of this lane
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// Also count what waits by due, from this time on: 2026-11-21T18:00:00Z
    #[arg(long, value_name = "TIME", requires = "to")]
    from: Option<String>,
    /// ... and before this time
    #[arg(long, value_name = "TIME", requires = "from")]
    to: Option<String>,
    /// Divide that time into this many windows, 1 to 120
    #[arg(long, value_name = "NUMBER", requires = "from")]
    windows: Option<u64>,
    #[command(flatten)]
    call: CallArguments,
}

#[derive(Deserialize)]
struct TaskCountsView {
    lanes: BTreeMap<Printable, LaneCountsView>,
    #[serde(default)]
    windows: Vec<WindowView>,
}

#[derive(Deserialize)]
struct LaneCountsView {
    waiting: u64,
    overdue: u64,
    in_flight: u64,
    paused: u64,
}

#[derive(Deserialize)]
struct WindowView {
    from: Printable,
    to: Printable,
    waiting: u64,
}

/// Shows a row for each lane, then one for each window.
pub(super) async fn count(arguments: &TaskCountArguments) -> Result<(), Failure> {
    let windows = arguments.windows.map(|windows| windows.to_string());
    let said = [("lane", &arguments.lane), ("from", &arguments.from), ("to", &arguments.to), ("windows", &windows)];
    let caller = ApiCaller::new(&arguments.call)?;
    let path = with_query("/v1/tasks:count", said);
    let (answer, counts) = caller.call::<TaskCountsView>(Method::GET, &path, None, "cannot count tasks").await?;
    if arguments.call.json { out::json(&answer.text) } else { say(&table(&counts)) }
}

fn table(counts: &TaskCountsView) -> String {
    let mut text = format!("{:<20} {:>9} {:>9} {:>10} {:>7}\n", "LANE", "WAITING", "OVERDUE", "IN FLIGHT", "PAUSED");
    for (lane, LaneCountsView { waiting, overdue, in_flight, paused }) in &counts.lanes {
        text += &format!("{:<20} {waiting:>9} {overdue:>9} {in_flight:>10} {paused:>7}\n", lane.as_str());
    }
    if !counts.windows.is_empty() {
        text += &format!("\n{:<24} {:<24} {:>9}\n", "FROM", "TO", "WAITING");
    }
    for WindowView { from, to, waiting } in &counts.windows {
        text += &format!("{:<24} {:<24} {waiting:>9}\n", from.as_str(), to.as_str());
    }
    text
}
