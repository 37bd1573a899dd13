//! State that the loops of the engine share: for the whole engine, and for each shard, lane and sink.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use punctual_sinks::{RecentMap, Sink};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::engine::EngineConfig;
use crate::engine::breaker::Breaker;
use crate::engine::claiming::capacity::Capacity;
use crate::engine::claiming::claims_per_node::ClaimsPerNode;
use crate::engine::claiming::suspect_lock::SuspectLock;
use crate::engine::claiming::wake_signal::WakeSignal;
use crate::engine::destinations::Destinations;
use crate::engine::destinations::failed_attempts::FailedAttempts;
use crate::engine::destinations::failure_quota::FailureQuota;
use crate::engine::event_log::{DeathLog, EventCount, LineBudget};
use crate::engine::instances::{OutcomeCounter, View};
use crate::engine::leases::Leases;
use crate::engine::throttle::Throttle;
use crate::metrics::{LaneMetrics, Metrics, SinkMetrics};
use crate::task::{Lane, Shard};
use crate::timeline::{Glance, Link, Timeline, Token};

/// Maximum number of destinations that a log line names which are not counted as failing any more.
const MAX_FORGOTTEN_NAMED: usize = 10;

/// The pause between two searches for such destinations.
const FORGOTTEN_INTERVAL: Duration = Duration::from_secs(10);

/// State of the engine.
pub(super) struct Context {
    pub(super) config: EngineConfig,
    pub(super) timeline: Arc<dyn Timeline>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) shards: Vec<Arc<ShardContext>>,
    pub(super) lanes: BTreeMap<Lane, Arc<LaneContext>>,
    pub(super) sinks: BTreeMap<String, Arc<SinkContext>>,
    pub(super) signals: BTreeMap<(Shard, Lane), Arc<WakeSignal>>,
    pub(super) pulses: Pulses,
    /// The lanes whose depth is in the metrics.
    pub(super) shown: Mutex<BTreeSet<Lane>>,
    /// Cancelled when the engine stops: no claims from now on, and messages that wait for a retry return to the lane.
    pub(super) stopping: CancellationToken,
    /// Cancelled when the shutdown deadline is reached: all occurrences return to the lane.
    pub(super) deadline: CancellationToken,
    /// Cancelled when every loop has to end.
    pub(super) closed: CancellationToken,
    /// Lets one claim at a time hold suspects.
    pub(super) suspects: Arc<SuspectLock>,
    /// The tasks that drive claims.
    pub(super) holders: TaskTracker,
    pub(super) tokens: AtomicU64,
    /// Limits log lines about the difference of the clocks.
    pub(super) clock_log: Throttle,
    /// What is known of all instances.
    pub(super) view: Mutex<View>,
}

/// State of one shard.
pub(super) struct ShardContext {
    pub(super) shard: Shard,
    /// The clock that decides which of its tasks are due.
    pub(super) clock: Arc<dyn Clock>,
    pub(super) leases: Leases,
    /// Whether the timeline is reachable and all leases were renewed since the last reconnect.
    pub(super) ready: watch::Sender<bool>,
    /// The last glance, and the lanes in its order.
    pub(super) glance: Mutex<(Vec<Lane>, Glance)>,
    /// When that was.
    pub(super) glanced: Mutex<Option<Instant>>,
    /// The lanes that were paused then.
    pub(super) paused: watch::Sender<BTreeSet<Lane>>,
}

/// State of one lane, over all shards.
pub(super) struct LaneContext {
    pub(super) lane: Lane,
    pub(super) sink: Arc<SinkContext>,
    pub(super) destination: Option<String>,
    pub(super) dead_destination: Option<String>,
    /// Whether its messages wait without end for a destination at fault.
    pub(super) waits_forever: bool,
    pub(super) capacity: Capacity,
    pub(super) claims_per_node: ClaimsPerNode,
    /// How much of the lane's capacity failing destinations hold.
    pub(super) failure_quota: Arc<FailureQuota>,
    /// Destinations whose occurrences returned to the lane lately, because failing destinations have reached their quota.
    pub(super) over_quota: Mutex<RecentMap<()>>,
    pub(super) metrics: LaneMetrics,
    /// Outcomes that the next beat carries.
    pub(super) outcomes: OutcomeCounter,
    /// While it throttles, this lane is not claimed, so that other lanes of the sink get their turn.
    pub(super) claims: Throttle,
    /// Deaths that are not logged yet.
    pub(super) deaths: Mutex<DeathLog>,
    /// Passed-over occurrences that are not logged yet.
    pub(super) passed_over: Mutex<EventCount>,
    /// Dropped dead occurrences that are not logged yet.
    pub(super) dropped: Mutex<EventCount>,
    /// While it pauses, no copies of dead messages are sent.
    pub(super) copies: Throttle,
    /// Limits log lines about failed copies.
    pub(super) copy_log: Throttle,
}

/// State of one sink.
pub(super) struct SinkContext {
    pub(super) name: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) breaker: Breaker,
    pub(super) destinations: Mutex<Destinations>,
    /// What the API shows of occurrences that are published again.
    pub(super) failed_attempts: Arc<FailedAttempts>,
    pub(super) capacity: Capacity,
    /// How much of the sink's capacity failing destinations hold.
    pub(super) failure_quota: Arc<FailureQuota>,
    /// Pauses for one lease after each publish with the outcome `Retry`, because repeated messages are likely then.
    pub(super) troubled: Throttle,
    /// Limits log lines about destinations at which messages fail for a reason that is not known.
    pub(super) failing_log: Mutex<LineBudget>,
    /// Limits log lines about destinations at fault.
    pub(super) at_fault_log: Mutex<LineBudget>,
    /// Limits log lines about destinations that are given up.
    pub(super) given_up_log: Mutex<LineBudget>,
    /// Limits log lines about destinations that accept messages again.
    pub(super) recovered_log: Mutex<LineBudget>,
    /// Limits how often forgotten destinations are looked for: there may be thousands, under the lock of publishes.
    pub(super) forgotten_log: Throttle,
    /// Limits log lines about messages that the broker dropped as duplicates.
    pub(super) duplicate_log: Throttle,
    /// Limits log lines about messages whose native headers are for another kind of sink.
    pub(super) native_log: Throttle,
    pub(super) metrics: SinkMetrics,
    /// When the sink last answered a message.
    pub(super) answered: Mutex<Option<Instant>>,
    /// Each publish under way holds a clone.
    pub(super) under_way: Arc<()>,
    /// When the first of them began.
    pub(super) under_way_since: Mutex<Option<Instant>>,
}

impl Context {
    /// Wakes the claimers of a lane in all shards. They claim from the oldest task on.
    pub(super) fn wake(&self, lane: &Lane) {
        let signals = self.shards.iter().filter_map(|shard| self.signals.get(&(shard.shard, lane.clone())));
        signals.for_each(|signal| signal.look_from_oldest());
    }

    /// Wakes the claimers of a shard. They claim from the oldest task on, because wake-ups may have been missed.
    pub(super) fn wake_shard(&self, shard: Shard) {
        let signals = self.signals.iter().filter(|((of_shard, _), _)| *of_shard == shard);
        signals.for_each(|(_, signal)| signal.look_from_oldest());
    }

    /// Writes into the gauges how many shards are reachable.
    pub(super) fn show_links(&self) {
        let is_up = |shard: &&Arc<ShardContext>| matches!(&*self.timeline.link(shard.shard).borrow(), Link::Up(_));
        let up = self.shards.iter().filter(is_up).count();
        self.metrics.timeline_up.set(i64::from(up > 0));
        self.metrics.shards_away.set(i64::try_from(self.shards.len() - up).unwrap_or(i64::MAX));
    }

    /// A new token for a claim.
    pub(super) fn token(&self) -> Token {
        Token::new(&self.config.instance, self.tokens.fetch_add(1, Ordering::Relaxed), self.config.lease)
    }
}

impl ShardContext {
    /// Returns once a glance has shown that the lane is paused.
    pub(super) async fn lane_paused(&self, lane: &Lane) {
        if self.paused.subscribe().wait_for(|paused| paused.contains(lane)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl LaneContext {
    /// Notes that an occurrence returned to the lane because failing destinations have reached their quota.
    pub(super) fn returned_over_quota(&self, destination: &str) {
        self.over_quota.lock().touch(destination, Instant::now(), || ());
    }

    /// Whether an occurrence over quota returned lately. The next claim that starts at the oldest task may then find
    /// more of them.
    pub(super) fn has_returns(&self) -> bool {
        self.over_quota.lock().has_recent(Instant::now())
    }

    /// Forgets the returns of a destination that accepts messages again. Returns whether there were any lately.
    pub(super) fn forget_returns(&self, destination: &str) -> bool {
        self.over_quota.lock().remove(destination, Instant::now()).is_some()
    }
}

impl SinkContext {
    /// Notes that the sink answered a message.
    pub(super) fn answered(&self) {
        *self.answered.lock() = Some(Instant::now());
        if let Some(outage) = self.breaker.answered() {
            info!(sink = self.name, outage_s = outage.as_secs(), "the sink answers again");
        }
    }

    /// Begins a publish, which ends when the result is dropped.
    pub(super) fn begin_publish(&self, now: Instant) -> Arc<()> {
        let mut since = self.under_way_since.lock();
        if Arc::strong_count(&self.under_way) == 1 {
            *since = Some(now);
        }
        Arc::clone(&self.under_way)
    }

    /// How long messages have been under way without an answer to any of them.
    pub(super) fn unanswered_for(&self) -> Option<Duration> {
        let since = (*self.under_way_since.lock()).filter(|_| Arc::strong_count(&self.under_way) > 1)?;
        let answered = *self.answered.lock();
        Some(answered.map_or(since, |answered| answered.max(since)).elapsed())
    }

    /// Logs that a destination, of which the log says that it fails, accepts messages again. They failed there for this
    /// long.
    pub(super) fn log_recovered(&self, destination: &str, failing_for: Duration) {
        if let Some(others) = self.recovered_log.lock().add(Instant::now()) {
            let outage_s = failing_for.as_secs();
            info!(sink = self.name, destination, outage_s, others, "destination accepts messages again");
        }
    }

    /// Logs destinations, of which the log says that they fail, and to which no message was sent lately.
    pub(super) fn log_forgotten(&self) {
        if !self.forgotten_log.passes(FORGOTTEN_INTERVAL) {
            return;
        }
        let forgotten = self.destinations.lock().take_forgotten(Instant::now(), MAX_FORGOTTEN_NAMED);
        if let Some((destinations, named)) = forgotten {
            let detail = "no message was sent there lately; the next one is tried as if it had never failed";
            info!(
                sink = self.name,
                destinations,
                destination = named.join(", "),
                detail,
                "destination is not counted as failing any more"
            );
        }
    }

    /// Logs how many destinations had no line of their own in the last minute.
    pub(super) fn log_other_destinations(&self) {
        let rest = |log: &Mutex<LineBudget>| log.lock().rest(Instant::now());
        if let Some(others) = rest(&self.failing_log) {
            warn!(sink = self.name, others, "messages fail at more destinations; `punctual status` names them");
        }
        if let Some(others) = rest(&self.at_fault_log) {
            warn!(sink = self.name, others, "more destinations are at fault; `punctual status` names them");
        }
        if let Some(others) = rest(&self.given_up_log) {
            warn!(sink = self.name, others, "more destinations are given up; their messages are dead at once");
        }
        if let Some(others) = rest(&self.recovered_log) {
            info!(sink = self.name, others, "more destinations accept messages again");
        }
    }

    /// Opens the breaker. Earlier failures then no longer count against single destinations.
    pub(super) fn trip(&self, detail: &str) {
        if self.breaker.trip(detail) {
            self.destinations.lock().forgive_all();
        }
    }

    /// Whether the sink has answered a message since `then`.
    pub(super) fn answered_since(&self, then: Instant) -> bool {
        self.answered.lock().is_some_and(|last| last >= then)
    }
}

/// The last step of each loop. A loop without a step for long is stuck.
pub(super) struct Pulses {
    start: Instant,
    last: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

/// The pulse of one loop.
pub(super) struct Pulse {
    start: Instant,
    last: Arc<AtomicU64>,
}

impl Pulses {
    pub(super) fn new() -> Pulses {
        Pulses { start: Instant::now(), last: Mutex::new(BTreeMap::new()) }
    }

    /// Starts to watch a loop.
    pub(super) fn start(&self, name: String) -> Pulse {
        let pulse = Pulse { start: self.start, last: Arc::new(AtomicU64::new(0)) };
        pulse.beat();
        self.last.lock().insert(name, Arc::clone(&pulse.last));
        pulse
    }

    /// The loop whose last step is the longest ago, and its age.
    pub(super) fn slowest(&self) -> Option<(String, Duration)> {
        let now = self.start.elapsed();
        let since = |last: &AtomicU64| now.saturating_sub(Duration::from_millis(last.load(Ordering::Relaxed)));
        self.last.lock().iter().map(|(name, last)| (name.clone(), since(last))).max_by_key(|(_, since)| *since)
    }
}

impl Pulse {
    /// Notes that the loop made a step.
    pub(super) fn beat(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(millis, Ordering::Relaxed);
    }
}
