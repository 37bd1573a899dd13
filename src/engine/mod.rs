//! The engine: claims due occurrences, publishes them, judges the outcomes and settles.
//!
//! It uses the timeline and the sinks through their traits only. Any number of equal engines can run on one timeline;
//! there is no leader.
//!
//! - [`Intake`] is the API for tasks: put, cancel, get, list, pause, trigger and skip tasks; pause lanes; list, requeue and
//!   discard dead occurrences.
//! - Instances share the shards: one of them asks first for the due tasks of a lane in a shard (`instances`).
//! - A claimer per lane and shard sleeps until the head of the lane is due, claims, and starts a task for the claim.
//! - A task per claim publishes, judges the outcomes, and settles.
//! - Each shard has one loop that renews leases, and one that finds missed wake-ups and reaps expired claims.
//! - A breaker per sink stops the claims of its lanes while the sink is unavailable.

mod allowed;
mod breaker;
mod claiming;
mod context;
pub mod dead;
mod destinations;
mod event_log;
pub mod fault;
mod instances;
pub mod intake;
mod lane_log;
mod leases;
pub mod list;
mod prober;
mod state;
pub mod steering;
mod throttle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use punctual_sinks::{RecentMap, Sink};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use allowed::{AllowedTasks, IdPrefix, NotAllowed};
pub use breaker::BreakerState;
pub use claiming::judge::Reason;
pub use destinations::FailingDestination;
pub use destinations::failed_attempts::FailedAttempt;
pub use instances::{InstanceState, PublishRate};
pub use intake::{Intake, LaneRequirements};
pub use punctual_sinks::DestinationPatterns;
pub use state::{AwayShards, EngineState, LaneState, PausedLane, SinkState};

use breaker::Breaker;
use claiming::capacity::Capacity;
use claiming::claimer::Claimer;
use claiming::claims_per_node::ClaimsPerNode;
use claiming::next_claim::OLDEST_INTERVAL;
use context::{Context, LaneContext, Pulses, ShardContext, SinkContext};
use destinations::Destinations;
use destinations::failure_quota::FailureQuota;
use instances::{OutcomeCounter, View};
use leases::{Leases, reaper, renewer};
use throttle::Throttle;

use crate::metrics::Metrics;
use crate::task::{CatchUpLimits, Lane, Member, Shard, TaskId};
use crate::timeline::{DeadCap, Glance, Timeline};

/// The settings of an engine. The default configuration file explains the defaults.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The instance id, the part of a claim token before the first dot. Unique for each start.
    pub instance: String,
    /// How long a claim is valid unless it is renewed; at least twice every sink's `answer_timeout`.
    pub lease: Duration,
    /// Maximum number of occurrences in one claim, up to [`MAX_BATCH`](crate::timeline::MAX_BATCH).
    pub batch: usize,
    /// Maximum number of occurrences in flight per lane. A sink with several lanes has twice as much.
    pub in_flight: usize,
    /// Maximum size of records in flight per lane, in bytes. A sink with several lanes has twice as much.
    pub in_flight_bytes: usize,
    /// From when on an overdue occurrence is left to the catch-up of its task, and how many that publishes.
    pub catch_up: CatchUpLimits,
    /// An occurrence is poison once more than this many of its claims have expired.
    pub poison_limit: u32,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// Maximum number and size of the dead occurrences of a lane per shard.
    pub dead_cap: DeadCap,
}

impl EngineConfig {
    /// The default settings for an instance with this id.
    #[must_use]
    pub fn new(instance: impl Into<String>) -> EngineConfig {
        EngineConfig {
            instance: instance.into(),
            lease: Duration::from_secs(15),
            batch: 500,
            in_flight: 3500,
            in_flight_bytes: 12 << 20,
            catch_up: CatchUpLimits { grace: Duration::from_secs(60), catch_up_max: 100 },
            poison_limit: 5,
            dead_keep: Duration::from_secs(30 * 24 * 3600),
            dead_cap: DeadCap { entries: 100_000, bytes: 64 << 20 },
        }
    }
}

/// A sink and its settings in the engine.
#[derive(Clone)]
pub struct EngineSink {
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// How long a destination may be at fault before its messages are dead.
    pub patience: Duration,
}

/// The settings of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLane {
    /// The name of its sink.
    pub sink: String,
    /// The destination of messages that name none.
    pub destination: Option<String>,
    /// The destination of copies of dead messages, on the same sink.
    pub dead_destination: Option<String>,
    /// Whether its messages wait without end for a destination at fault; otherwise for the sink's `patience`.
    pub waits_forever: bool,
}

/// A lane names a sink that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lane `{lane}` names the sink `{sink}`, which is not configured")]
pub struct UnknownSink {
    /// The lane.
    pub lane: Lane,
    /// The name of the sink.
    pub sink: String,
}

/// A running engine. Dropping it without [`shutdown`](Engine::shutdown) ends its loops; its claims then expire with
/// their leases.
pub struct Engine {
    context: Arc<Context>,
    loops: TaskTracker,
}

impl Engine {
    /// Starts the loops.
    ///
    /// # Errors
    /// If a lane names a sink that is not in `sinks`.
    pub fn start(
        config: EngineConfig,
        timeline: Arc<dyn Timeline>,
        sinks: BTreeMap<String, EngineSink>,
        lanes: BTreeMap<Lane, EngineLane>,
        metrics: Arc<Metrics>,
    ) -> Result<Engine, UnknownSink> {
        let sinks: BTreeMap<_, _> = sinks
            .into_iter()
            .map(|(name, sink)| {
                let served: Vec<_> = lanes.values().filter(|lane| lane.sink == name).collect();
                (name.clone(), sink_context(&config, &metrics, name, sink, &served))
            })
            .collect();
        let mut served = BTreeMap::new();
        for (lane, settings) in lanes {
            let sink = sinks
                .get(&settings.sink)
                .ok_or_else(|| UnknownSink { lane: lane.clone(), sink: settings.sink.clone() })?;
            let context = lane_context(&config, &metrics, lane.clone(), settings, Arc::clone(sink));
            served.insert(lane, Arc::new(context));
        }
        let shards: Vec<_> =
            Shard::all(timeline.shards()).map(|shard| Arc::new(shard_context(shard, timeline.as_ref()))).collect();
        let pairs = shards.iter().flat_map(|shard| served.keys().map(|lane| (shard.shard, lane.clone())));
        let signals = pairs.map(|pair| (pair, Arc::default())).collect();
        let view = Mutex::new(View::new(&config.instance));
        let context = Arc::new(Context {
            config,
            timeline,
            metrics,
            shards,
            lanes: served,
            sinks,
            signals,
            pulses: Pulses::new(),
            shown: Mutex::default(),
            stopping: CancellationToken::new(),
            deadline: CancellationToken::new(),
            closed: CancellationToken::new(),
            suspects: Arc::default(),
            holders: TaskTracker::new(),
            tokens: AtomicU64::new(1),
            clock_log: Throttle::default(),
            view,
        });
        let engine = Engine { context, loops: TaskTracker::new() };
        engine.start_loops();
        Ok(engine)
    }

    fn start_loops(&self) {
        let context = &self.context;
        self.loops.spawn(reaper::pass_wakes_on(Arc::clone(context)));
        self.loops.spawn(instances::keep_ranks(Arc::clone(context)));
        self.loops.spawn(instances::send_beats(Arc::clone(context)));
        for sink in context.sinks.values() {
            self.loops.spawn(prober::run(Arc::clone(context), Arc::clone(sink)));
        }
        for shard in &context.shards {
            self.loops.spawn(renewer::run(Arc::clone(context), Arc::clone(shard)));
            self.loops.spawn(reaper::run(Arc::clone(context), Arc::clone(shard)));
            for (lane, lane_context) in &context.lanes {
                let claimer = Claimer {
                    context: Arc::clone(context),
                    shard: Arc::clone(shard),
                    lane: Arc::clone(lane_context),
                    signal: Arc::clone(&context.signals[&(shard.shard, lane.clone())]),
                };
                context.holders.spawn(claimer.run());
            }
        }
    }

    /// The current state, for stats and readiness.
    #[must_use]
    pub fn state(&self) -> EngineState {
        state::look(&self.context)
    }

    /// The last failed publish of a task's occurrence, if this instance holds it and publishes it again.
    #[must_use]
    pub fn failed_attempt(&self, id: &TaskId) -> Option<FailedAttempt> {
        let member = Member::from(id);
        self.context.sinks.values().find_map(|sink| sink.failed_attempts.get(&member))
    }

    /// Whether a lane was paused in any shard at the last glance, which is normally less than a second ago.
    #[must_use]
    pub fn is_lane_paused(&self, lane: &Lane) -> bool {
        self.context.shards.iter().any(|shard| shard.paused.borrow().contains(lane))
    }

    /// Whether the sink of a lane is unavailable. False for a lane that this instance does not serve.
    #[must_use]
    pub fn is_sink_unavailable(&self, lane: &Lane) -> bool {
        self.context.lanes.get(lane).is_some_and(|lane| lane.sink.breaker.is_open())
    }

    /// Stops claiming, waits until all occurrences are answered and settled, returns the rest to their lanes at
    /// `deadline`, and closes the sinks. Takes at most `deadline` and a few seconds. Returns whether every occurrence
    /// was settled or returned, and all loops have ended.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let context = &self.context;
        info!("stopping; no more claims");
        context.stopping.cancel();
        context.holders.close();
        let mut settled = tokio::time::timeout(deadline, context.holders.wait()).await.is_ok();
        if !settled {
            warn!("shutdown deadline reached; returning unfinished occurrences");
            context.deadline.cancel();
            settled = tokio::time::timeout(LAST_WRITE_TIMEOUT, context.holders.wait()).await.is_ok();
        }
        context.lanes.values().for_each(|lane| lane.log_counted(true));
        instances::send_last_beat(context).await;
        context.closed.cancel();
        join_all(context.sinks.values().map(|sink| async {
            if let Err(error) = sink.sink.close(LAST_WRITE_TIMEOUT).await {
                warn!(sink = sink.name, %error, "the sink was not closed in time");
            }
        }))
        .await;
        self.loops.close();
        let ended = tokio::time::timeout(LAST_WRITE_TIMEOUT, self.loops.wait()).await.is_ok();
        if !settled {
            warn!("some claims are not settled; their occurrences are due again when the leases expire");
        }
        settled && ended
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.context.stopping.cancel();
        self.context.closed.cancel();
    }
}

/// How long the last settles and the close of a sink may take after the deadline.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long after an occurrence returned to its lane, because the failure quota was full, claims may start behind such
/// occurrences.
const RETURNS_EXPIRY: Duration = OLDEST_INTERVAL.saturating_mul(2);

/// Maximum number of destinations of a lane whose returns are remembered.
const MAX_RETURNS: usize = 1000;

/// A sink with several lanes has the capacity of two, so that one lane without answers leaves some for the others.
fn sink_context(
    config: &EngineConfig,
    metrics: &Metrics,
    name: String,
    sink: EngineSink,
    lanes: &[&EngineLane],
) -> Arc<SinkContext> {
    let metrics = metrics.sink(&name);
    let lanes_at_once = lanes.len().clamp(1, 2);
    let (occurrences, bytes) = (config.in_flight * lanes_at_once, config.in_flight_bytes * lanes_at_once);
    let configured = lanes.iter().filter_map(|lane| lane.destination.as_deref());
    Arc::new(SinkContext {
        name,
        sink: sink.sink,
        breaker: Breaker::new(metrics.clone()),
        destinations: Mutex::new(Destinations::new(sink.patience, configured)),
        failed_attempts: Arc::default(),
        capacity: Capacity::new(occurrences, bytes),
        failure_quota: FailureQuota::new(occurrences, bytes),
        troubled: Throttle::default(),
        failing_log: Mutex::default(),
        at_fault_log: Mutex::default(),
        given_up_log: Mutex::default(),
        recovered_log: Mutex::default(),
        duplicate_log: Throttle::default(),
        native_log: Throttle::default(),
        forgotten_log: Throttle::default(),
        metrics,
        answered: Mutex::new(None),
        under_way: Arc::default(),
        under_way_since: Mutex::default(),
    })
}

fn lane_context(
    config: &EngineConfig,
    metrics: &Metrics,
    lane: Lane,
    settings: EngineLane,
    sink: Arc<SinkContext>,
) -> LaneContext {
    let metrics = metrics.lane(lane.as_str());
    metrics.served.set(1);
    let EngineLane { destination, dead_destination, waits_forever, .. } = settings;
    LaneContext {
        lane,
        sink,
        destination,
        dead_destination,
        waits_forever,
        capacity: Capacity::new(config.in_flight, config.in_flight_bytes),
        claims_per_node: ClaimsPerNode::default(),
        failure_quota: FailureQuota::new(config.in_flight, config.in_flight_bytes),
        over_quota: Mutex::new(RecentMap::new(RETURNS_EXPIRY, MAX_RETURNS)),
        metrics,
        outcomes: OutcomeCounter::default(),
        claims: Throttle::default(),
        deaths: Mutex::default(),
        passed_over: Mutex::default(),
        dropped: Mutex::default(),
        copies: Throttle::default(),
        copy_log: Throttle::default(),
    }
}

fn shard_context(shard: Shard, timeline: &dyn Timeline) -> ShardContext {
    ShardContext {
        shard,
        clock: timeline.clock(shard),
        leases: Leases::default(),
        ready: watch::Sender::new(false),
        glance: Mutex::new((Vec::new(), Glance::default())),
        glanced: Mutex::new(None),
        paused: watch::Sender::new(BTreeSet::new()),
    }
}
