//! The state of an engine at one moment, for stats, readiness and health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::clock::Timestamp;
use crate::engine::breaker::BreakerState;
use crate::engine::context::{Context, SinkContext};
use crate::engine::destinations::FailingDestination;
use crate::engine::instances::{InstanceState, PublishRate, own_state};
use crate::engine::prober::SILENCE;
use crate::task::{Lane, Shard};
use crate::timeline::{LanePause, Link};

/// Maximum number of failing destinations that are shown for each sink.
const MAX_FAILING_SHOWN: usize = 100;

/// How long the state shows that the timeline was lost.
const LOST_SHOWN_FOR: Duration = Duration::from_secs(3600);

/// A larger difference between the clocks of this machine and of Redis is logged.
const MAX_CLOCK_DIFFERENCE: f64 = 2.0;

/// The pause between two log lines about the difference of the clocks.
const CLOCK_LOG_PAUSE: Duration = Duration::from_secs(3600);

/// The state of an engine at one moment.
#[derive(Clone, Debug)]
pub struct EngineState {
    /// Whether any shard of the timeline is reachable.
    pub link: Link,
    /// The shards that are not, if others are.
    pub away: Vec<AwayShards>,
    /// Configured lanes, and other lanes that have tasks.
    pub lanes: Vec<LaneState>,
    /// The sinks, sorted by name.
    pub sinks: Vec<SinkState>,
    /// When lanes and dead were last read, while at least one shard is not reachable.
    pub as_of: Option<Timestamp>,
    /// When the stored timeline was found to be lost, if that was within the last hour.
    pub lost: Option<Timestamp>,
    /// Number of dead occurrences.
    pub dead: u64,
    /// The instances on this timeline: this one, then the others by id.
    pub instances: Vec<Arc<InstanceState>>,
    /// The loop whose last step is the longest ago, and its age.
    pub slowest_loop: Option<(String, Duration)>,
}

/// Shards that are not reachable for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayShards {
    /// Their numbers.
    pub shards: Vec<Shard>,
    /// Why; it names the server.
    pub detail: String,
}

/// The state of a lane as of the last glance, which is normally less than a second old.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneState {
    /// Its name.
    pub lane: Lane,
    /// The name of its sink; `None` if this instance does not serve the lane.
    pub sink: Option<String>,
    /// The earliest due that waits, over all shards.
    pub head: Option<Timestamp>,
    /// The earliest due that waits or is in flight. What is in flight is late, too, while no sink accepts it.
    pub oldest: Option<Timestamp>,
    /// Number of waiting occurrences.
    pub waiting: u64,
    /// Number of waiting occurrences that were due 1 s ago or earlier.
    pub overdue: u64,
    /// Number of occurrences in flight, of all instances.
    pub in_flight: u64,
    /// Number of paused tasks.
    pub paused: u64,
    /// The pause of the lane, if it is paused.
    pub pause: Option<PausedLane>,
    /// What all instances published of it in the last 10 s.
    pub published: PublishRate,
}

/// A lane that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedLane {
    /// The latest pause.
    pub pause: LanePause,
    /// Number of shards in which it is paused: not all of them if a request to pause or resume it failed.
    pub shards: u16,
    /// Whether it is paused in all shards in which this instance saw the lane.
    pub everywhere: bool,
}

/// The state of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkState {
    /// Its name in the configuration.
    pub name: String,
    /// Its kind: `nats`, `redis`, ...
    pub kind: &'static str,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// Number of destinations at which messages fail.
    pub failing_count: usize,
    /// How long it has answered none of the messages under way, from 2 s on.
    pub unanswered_for: Option<Duration>,
    /// The first 100 failing destinations, the worst first, each with the number of occurrences in flight that wait for
    /// it here.
    pub failing: Vec<(FailingDestination, u64)>,
}

impl EngineState {
    /// A state without lanes, sinks and dead.
    #[must_use]
    pub fn new(link: Link) -> EngineState {
        let (lanes, sinks, instances) = (Vec::new(), Vec::new(), Vec::new());
        let (as_of, lost, dead, away) = (None, None, 0, Vec::new());
        EngineState { link, away, lanes, sinks, as_of, lost, dead, instances, slowest_loop: None }
    }
}

impl LaneState {
    /// A lane without tasks that this instance does not serve.
    #[must_use]
    pub fn new(lane: Lane) -> LaneState {
        let (waiting, overdue, in_flight, paused) = (0, 0, 0, 0);
        let published = PublishRate::default();
        LaneState {
            lane,
            sink: None,
            head: None,
            oldest: None,
            waiting,
            overdue,
            in_flight,
            paused,
            pause: None,
            published,
        }
    }
}

impl SinkState {
    /// A sink at which no destination fails.
    #[must_use]
    pub fn new(name: &str, kind: &'static str, breaker: BreakerState) -> SinkState {
        let (name, failing) = (name.to_owned(), Vec::new());
        SinkState { name, kind, breaker, failing_count: 0, unanswered_for: None, failing }
    }
}

/// Reads the state.
pub(super) fn look(context: &Context) -> EngineState {
    let sinks = context.sinks.values().map(|sink| {
        let (failing_count, failing) = failing(sink);
        let unanswered_for = sink.unanswered_for().filter(|silent| *silent >= SILENCE);
        SinkState {
            failing_count,
            failing,
            unanswered_for,
            ..SinkState::new(&sink.name, sink.sink.kind(), sink.breaker.state())
        }
    });
    let (link, away) = reachable(context);
    let mut lanes: Vec<LaneState> = lanes(context).into_values().collect();
    let mut instances = vec![Arc::new(own_state(context))];
    let rates = {
        let view = context.view.lock();
        instances.extend(view.others().cloned());
        view.rates(Instant::now())
    };
    lanes.iter_mut().for_each(|lane| lane.published = rates.get(&lane.lane).copied().unwrap_or_default());
    EngineState {
        as_of: if matches!(link, Link::Down(_)) || !away.is_empty() { last_glance(context) } else { None },
        link,
        away,
        lost: lost(context),
        lanes,
        sinks: sinks.collect(),
        dead: context.shards.iter().map(|shard| shard.glance.lock().1.dead).sum(),
        instances,
        slowest_loop: context.pulses.slowest(),
    }
}

/// Whether any shard is reachable, and those that are not if others are.
fn reachable(context: &Context) -> (Link, Vec<AwayShards>) {
    let (mut up, mut away): (_, Vec<AwayShards>) = (None, Vec::new());
    for shard in &context.shards {
        match context.timeline.link(shard.shard).borrow().clone() {
            link @ Link::Up(_) => up = Some(link),
            Link::Down(detail) => match away.iter_mut().find(|other| other.detail == detail) {
                Some(other) => other.shards.push(shard.shard),
                None => away.push(AwayShards { shards: vec![shard.shard], detail }),
            },
        }
    }
    match (up, away.as_slice()) {
        (Some(up), _) => (up, away),
        (None, [first, others @ ..]) => {
            let link = Link::Down(first.detail.clone());
            if others.is_empty() { (link, Vec::new()) } else { (link, away) }
        }
        (None, []) => (Link::Down("there are no shards".to_owned()), away),
    }
}

fn failing(sink: &SinkContext) -> (usize, Vec<(FailingDestination, u64)>) {
    let (count, failing) = sink.destinations.lock().failing(Instant::now(), MAX_FAILING_SHOWN);
    if count == 0 {
        return (0, Vec::new());
    }
    let waiting = sink.failed_attempts.waiting();
    let with_waiting = |failing: FailingDestination| {
        let waiting = waiting.get(&failing.destination).copied().unwrap_or_default();
        (failing, waiting)
    };
    (count, failing.into_iter().map(with_waiting).collect())
}

/// The time of the oldest of the shards' last glances; `None` if a shard had none yet.
fn last_glance(context: &Context) -> Option<Timestamp> {
    let glanced = context.shards.iter().map(|shard| *shard.glanced.lock());
    let oldest = glanced.collect::<Option<Vec<Instant>>>()?.into_iter().min()?;
    Some(context.timeline.any_clock().now().minus(oldest.elapsed()))
}

fn lost(context: &Context) -> Option<Timestamp> {
    let lost_for = context.timeline.lost_for().filter(|lost_for| *lost_for < LOST_SHOWN_FOR)?;
    Some(context.timeline.any_clock().now().minus(lost_for).whole_second())
}

/// Shows the difference between the clocks of this machine and of Redis, and logs a large one.
fn compare_clocks(context: &Context) {
    let differences = context.shards.iter().filter_map(|shard| shard.clock.wall_difference_micros());
    let Some(micros) = differences.max_by_key(|micros| micros.unsigned_abs()) else { return };
    let seconds = Duration::from_micros(micros.unsigned_abs()).as_secs_f64();
    context.metrics.clock_difference.set(if micros < 0 { -seconds } else { seconds });
    if seconds > MAX_CLOCK_DIFFERENCE && context.clock_log.passes(CLOCK_LOG_PAUSE) {
        warn!(
            seconds = format!("{seconds:.1}"),
            this_machine = if micros < 0 { "behind" } else { "ahead" },
            hint = "tasks are due on the clock of redis; set both clocks by NTP. Times in this log are those of this machine",
            "the clocks of this machine and of redis differ"
        );
    }
}

/// Writes the state into the gauges.
pub(super) fn show(context: &Context) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    compare_clocks(context);
    context.lanes.values().for_each(|lane| lane.log_counted(false));
    for sink in context.sinks.values() {
        sink.log_other_destinations();
        sink.log_forgotten();
    }
    let (lanes, now) = (lanes(context), context.timeline.any_clock().now());
    let mut shown = context.shown.lock();
    // A lane that was forgotten has no state any more.
    shown.iter().filter(|lane| !lanes.contains_key(*lane)).for_each(|lane| context.metrics.forget_lane(lane.as_str()));
    *shown = lanes.keys().cloned().collect();
    for (lane, state) in &lanes {
        let metrics = context.metrics.lane(lane.as_str());
        metrics.pending.set(number(state.waiting));
        metrics.in_flight.set(number(state.in_flight));
        metrics.overdue.set(number(state.overdue));
        metrics.paused.set(number(state.paused));
        metrics.lane_paused.set(i64::from(state.pause.is_some()));
        metrics.oldest_due.set(state.oldest.map_or(0.0, |due| now.since(due).as_secs_f64()));
    }
    let unserved = lanes.values().filter(|lane| lane.sink.is_none()).count();
    context.metrics.lanes_unserved.set(i64::try_from(unserved).unwrap_or(i64::MAX));
    for sink in context.sinks.values() {
        let (count, _) = sink.destinations.lock().failing(Instant::now(), 0);
        sink.metrics.failing_destinations.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let dead: u64 = context.shards.iter().map(|shard| shard.glance.lock().1.dead).sum();
    context.metrics.dead_kept.set(number(dead));
}

/// How late the oldest unsettled occurrence of the lanes of a sink is, and how many wait although they were due.
pub(super) fn lateness(context: &Context, sink: &SinkContext) -> (Duration, u64) {
    let now = context.timeline.any_clock().now();
    let lanes = lanes(context);
    let of_sink = || lanes.values().filter(|lane| lane.sink.as_ref() == Some(&sink.name));
    let oldest = of_sink().filter_map(|lane| lane.oldest).min();
    (oldest.map_or(Duration::ZERO, |due| now.since(due)), of_sink().map(|lane| lane.overdue).sum())
}

fn lanes(context: &Context) -> BTreeMap<Lane, LaneState> {
    let sink = |lane: &Lane| context.lanes.get(lane).map(|lane| lane.sink.name.clone());
    let state = |lane: &Lane| LaneState { sink: sink(lane), ..LaneState::new(lane.clone()) };
    let mut lanes: BTreeMap<Lane, LaneState> = context.lanes.keys().map(|lane| (lane.clone(), state(lane))).collect();
    let mut seen_in: BTreeMap<Lane, u16> = BTreeMap::new();
    for shard in &context.shards {
        let glance = shard.glance.lock();
        for lane in &glance.1.known {
            lanes.entry(lane.clone()).or_insert_with(|| state(lane));
        }
        for (lane, seen) in glance.0.iter().zip(&glance.1.lanes) {
            let Some(entry) = lanes.get_mut(lane) else { continue };
            let (waiting, in_flight) = seen.depth.unwrap_or_default();
            *seen_in.entry(lane.clone()).or_default() += 1;
            entry.waiting += waiting;
            entry.in_flight += in_flight;
            entry.overdue += seen.overdue;
            entry.paused += seen.paused;
            entry.head = entry.head.into_iter().chain(seen.head).min();
            entry.oldest = entry.oldest.into_iter().chain(seen.head).chain(seen.held).min();
            if let Some(pause) = &seen.pause {
                add_pause(&mut entry.pause, pause);
            }
        }
    }
    for (lane, state) in &mut lanes {
        if let Some(paused) = &mut state.pause {
            paused.everywhere = seen_in.get(lane) == Some(&paused.shards);
        }
    }
    lanes
}

/// Adds the pause of a lane in one more shard.
fn add_pause(paused: &mut Option<PausedLane>, pause: &LanePause) {
    let paused = paused.get_or_insert_with(|| PausedLane { pause: pause.clone(), shards: 0, everywhere: false });
    paused.shards += 1;
    if pause.at > paused.pause.at {
        paused.pause = pause.clone();
    }
}
