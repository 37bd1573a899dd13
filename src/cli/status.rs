//! `punctual status`: the state of a running instance, its lanes and sinks, as a table.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde::Deserialize;

use super::api_caller::{ApiCaller, CallArguments};
use super::out::{self, Printable};
use super::{Failure, say};
use crate::clock::Timestamp;
use crate::metrics::LATENESS_BUCKETS;
use crate::task::duration;

/// The pause of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of lines about other instances.
const MAX_INSTANCE_LINES: usize = 20;

/// Maximum number of failing destinations that are shown.
const MAX_FAILING_SHOWN: usize = 10;

#[derive(Args)]
pub(super) struct StatusArguments {
    /// Show it again every second
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    call: CallArguments,
}

/// What the commands use of `GET /v1/stats`.
#[derive(Deserialize)]
pub(super) struct StatsView {
    instance: Printable,
    version: Printable,
    /// The time of the instance.
    pub(super) now: Printable,
    as_of: Option<Printable>,
    timeline: TimelineView,
    lanes: BTreeMap<Printable, LaneView>,
    sinks: BTreeMap<Printable, SinkView>,
    #[serde(default)]
    doors: BTreeMap<Printable, DoorView>,
    #[serde(default)]
    instances: Vec<InstanceView>,
    dead: Option<u64>,
}

#[derive(Deserialize)]
struct TimelineView {
    status: Printable,
    detail: Option<Printable>,
    #[serde(default)]
    away: Vec<AwayView>,
    lost: Option<Printable>,
}

#[derive(Deserialize)]
struct AwayView {
    shards: Vec<u16>,
    detail: Printable,
}

#[derive(Deserialize)]
struct LaneView {
    sink: Option<Printable>,
    waiting: u64,
    overdue: u64,
    in_flight: u64,
    paused: u64,
    oldest_ms: Option<i64>,
    #[serde(default)]
    published_per_s: f64,
    lateness_ms: Option<LatenessView>,
    pause: Option<PauseView>,
}

#[derive(Deserialize)]
struct LatenessView {
    p99: f64,
}

#[derive(Deserialize)]
struct InstanceView {
    id: Printable,
    version: Printable,
    unavailable_sinks: Vec<Printable>,
}

#[derive(Deserialize)]
struct PauseView {
    at: Printable,
    by: Option<Printable>,
    #[serde(default)]
    note: Printable,
    until: Option<Printable>,
    shards: Option<u16>,
}

#[derive(Deserialize)]
struct SinkView {
    breaker: Printable,
    detail: Option<Printable>,
    unanswered_s: Option<f64>,
    #[serde(default)]
    failing_count: usize,
    #[serde(default)]
    failing: Vec<FailingView>,
}

#[derive(Deserialize)]
struct DoorView {
    kind: Printable,
    from: Printable,
    status: Printable,
    detail: Option<Printable>,
}

#[derive(Deserialize)]
struct FailingView {
    destination: Printable,
    status: Printable,
    since: Printable,
    waiting: u64,
    detail: Printable,
}

pub(super) fn run(arguments: &StatusArguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let caller = ApiCaller::new(&arguments.call)?;
        loop {
            show(&caller).await?;
            if !arguments.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
            if !arguments.call.json {
                say("\n")?;
            }
        }
    })
}

async fn show(caller: &ApiCaller<'_>) -> Result<(), Failure> {
    let (answer, stats) = caller.call::<StatsView>(Method::GET, "/v1/stats", None, "cannot show the status").await?;
    if caller.arguments.json { out::json(&answer.text) } else { say(&table(&stats)) }
}

/// One line for the instance, a row for each lane, a line for each door, then what is wrong.
fn table(stats: &StatsView) -> String {
    let dead = match stats.dead {
        Some(0) | None => String::new(),
        Some(dead) => format!("   dead {dead} (punctual dead list)"),
    };
    let others = match stats.instances.len().saturating_sub(1) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let StatsView { timeline, instance, version, .. } = stats;
    let mut text = format!("redis {}   instance {instance} {version}{others}{dead}\n", timeline.status);
    let now = crate::task::spec::parse_time(stats.now.as_str());
    // Without an earlier answer of Redis, the numbers are 0.
    let is_unknown = timeline.status.as_str() != "up" && stats.as_of.is_none();
    let row = |cells: [&str; 9]| {
        let [lane, sink, waiting, overdue, in_flight, paused, per_second, late, oldest] = cells;
        let counts = format!("{waiting:>9} {overdue:>9} {in_flight:>10} {paused:>7}");
        format!("{lane:<20} {sink:<12} {counts} {per_second:>8} {late:>9}  {oldest}\n")
    };
    let oldest = "OLDEST IS LATE BY";
    text += &row(["LANE", "SINK", "WAITING", "OVERDUE", "IN FLIGHT", "PAUSED", "PER SEC", "LATE P99", oldest]);
    for (name, lane) in &stats.lanes {
        let sink = lane.sink.as_ref().map_or("-", Printable::as_str);
        let numbers = [lane.waiting, lane.overdue, lane.in_flight, lane.paused];
        let numbers = numbers.map(|number| if is_unknown { "-".to_owned() } else { number.to_string() });
        let oldest = lane.oldest_ms.map(Timestamp::from_millis).zip(now).map(|(head, now)| now.since(head));
        let oldest = oldest.filter(|late| late.as_secs() > 0);
        let oldest = oldest.map_or("-".to_owned(), in_seconds);
        let per_second = format!("{:.0}", lane.published_per_s);
        let late = lane.lateness_ms.as_ref().map_or("-".to_owned(), |late| shown_lateness(late.p99));
        let [waiting, overdue, in_flight, paused] = &numbers;
        text += &row([name.as_str(), sink, waiting, overdue, in_flight, paused, &per_second, &late, &oldest]);
    }
    for (name, DoorView { kind, from, status, detail }) in &stats.doors {
        let detail = detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        text += &format!("door {name}: {kind} {from}, {status}{detail}\n");
    }
    if let Some(detail) = &stats.timeline.detail {
        text += &format!("redis: {detail}\n");
    }
    if let Some(as_of) = &stats.as_of {
        text += &format!("the numbers are as of {as_of}\n");
    }
    for AwayView { shards, detail } in &stats.timeline.away {
        let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
        text += &format!("shards {} are not reachable: {detail}\n", shards.join(", "));
    }
    if let Some(lost) = &stats.timeline.lost {
        text += &format!("the timeline was lost at {lost}: all tasks that waited then are gone\n");
    }
    for (name, lane) in &stats.lanes {
        text += &lane.pause.as_ref().map(|pause| format!("lane {name}: {pause}\n")).unwrap_or_default();
    }
    for (name, lane) in stats.lanes.iter().filter(|(_, lane)| lane.sink.is_none() && lane.waiting > 0) {
        text += &format!("lane {name}: this instance does not serve it, {} tasks wait\n", lane.waiting);
    }
    text + &stats.instance_troubles() + &stats.sink_troubles(None)
}

/// A lateness in ms as text: from a second on in whole seconds, because the buckets behind it are wide there.
fn shown_lateness(ms: f64) -> String {
    let last_bound = Duration::from_secs_f64(LATENESS_BUCKETS[LATENESS_BUCKETS.len() - 1]);
    match Duration::try_from_secs_f64(ms / 1000.0) {
        Ok(late) if late >= last_bound => format!(">{}", in_seconds(last_bound)),
        Ok(late) if late.as_secs() > 0 => in_seconds(late),
        Ok(_) => format!("{ms:.1}ms"),
        // No instance sends such a number.
        Err(_) => "-".to_owned(),
    }
}

/// A duration as text, in whole seconds.
fn in_seconds(span: Duration) -> String {
    duration::format(Duration::from_secs(span.as_secs()))
}

impl Display for PauseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PauseView { at, by, note, until, shards } = self;
        f.write_str("paused")?;
        if let Some(shards) = shards {
            write!(f, " in {shards} shards only")?;
        }
        if let Some(by) = by {
            write!(f, " by {by}")?;
        }
        write!(f, " since {at}")?;
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        if *note == Printable::default() { Ok(()) } else { write!(f, ": {note}") }
    }
}

impl StatsView {
    /// Lines for other instances that have another version, or find a sink unavailable.
    fn instance_troubles(&self) -> String {
        let (mut text, mut lines) = (String::new(), Vec::new());
        for InstanceView { id, version, unavailable_sinks } in
            self.instances.iter().filter(|one| one.id != self.instance)
        {
            match version.as_str() {
                version if version == self.version.as_str() => {}
                "" => lines.push(format!("instance {id}: its version is unknown\n")),
                version => lines.push(format!("instance {id}: its version is {version}\n")),
            }
            for sink in unavailable_sinks {
                lines.push(format!("instance {id}: sink {sink}: unavailable\n"));
            }
        }
        text.extend(lines.iter().take(MAX_INSTANCE_LINES).map(String::as_str));
        if lines.len() > MAX_INSTANCE_LINES {
            text += &format!("{} more lines about other instances\n", lines.len() - MAX_INSTANCE_LINES);
        }
        text
    }

    /// A line for each sink that is unavailable and for each destination that fails: of the sink of this lane, or of
    /// all sinks.
    pub(super) fn sink_troubles(&self, lane: Option<&str>) -> String {
        let of_lane =
            |lane| self.lanes.iter().find(|(name, _)| name.as_str() == lane).and_then(|(_, lane)| lane.sink.as_ref());
        let only = lane.and_then(of_lane).map(Printable::as_str);
        let mut text = String::new();
        for (name, sink) in self.sinks.iter().filter(|(name, _)| only.is_none_or(|only| only == name.as_str())) {
            if let ("open", Some(detail)) = (sink.breaker.as_str(), &sink.detail) {
                text += &format!("sink {name}: unavailable: {detail}\n");
            }
            if let Some(seconds) = sink.unanswered_s {
                text += &format!("sink {name}: it has answered none of the messages under way for {seconds:.0} s\n");
            }
            for failing in sink.failing.iter().take(MAX_FAILING_SHOWN) {
                let FailingView { destination, status, since, waiting, detail } = failing;
                text += &format!("sink {name}: {destination} {status} since {since}, {waiting} in flight: {detail}\n");
            }
            let more = sink.failing_count.saturating_sub(sink.failing.len().min(MAX_FAILING_SHOWN));
            if more > 0 {
                text += &format!("sink {name}: {more} more destinations fail\n");
            }
        }
        text
    }
}
