//! What runs: claims what is due, publishes it, judges the outcomes, settles.
//!
//! Knows the timeline and the sinks by their traits alone, and tasks by what the timeline hands out. Any number of equal
//! engines may run on one timeline; none of them leads.
//!
//! - [`Intake`] is the way in: put, cancel, get; and to the dead: look through, requeue, discard.
//! - a claimer per lane and shard sleeps until the head is due, claims, and hands the claim on;
//! - a task per claim publishes, lets the judge decide, and settles;
//! - per shard, one loop renews leases and one looks for what was missed and reaps what others left behind;
//! - a breaker per sink keeps lanes from being claimed while it is absent.

mod breaker;
mod claim;
mod claimer;
mod context;
pub mod dead;
mod destinations;
pub mod fault;
mod held;
pub mod intake;
mod judge;
mod leases;
mod outlook;
mod prober;
mod reaper;
mod renewer;
mod room;
mod settling;
mod signal;
mod state;
mod suspect_lock;
mod throttle;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use punctual_sinks::Sink;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use breaker::BreakerState;
pub use intake::{Intake, LaneRule};
pub use judge::Reason;
pub use state::{EngineState, LaneState, SinkState};

use breaker::Breaker;
use claimer::Claimer;
use context::{Context, LaneContext, Pulses, ShardContext, SinkContext};
use destinations::Destinations;
use held::HeldBack;
use leases::Leases;
use room::Room;
use throttle::Throttle;

use crate::metrics::Metrics;
use crate::task::{Lane, Overdue, Shard};
use crate::timeline::{Glance, Timeline};

/// How an engine works; the defaults and their reasons stand in the configuration's defaults file.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The instance id: the part of claim tokens before the dot. Unique for each start.
    pub instance: String,
    /// How long a claim lasts unless it is extended; at least twice every sink's `answer_timeout`.
    pub lease: Duration,
    /// Occurrences that one claim takes at most; up to [`MAX_BATCH`](crate::timeline::MAX_BATCH).
    pub batch: usize,
    /// Occurrences in flight at most per lane; twice that per sink that serves several.
    pub in_flight: usize,
    /// Bytes of records in flight at most per lane; twice that per sink that serves several.
    pub in_flight_bytes: usize,
    /// What is overdue and how it is caught up with.
    pub overdue: Overdue,
    /// How many claims of an occurrence may end without word before it is poison.
    pub poison_limit: u32,
    /// How long dead occurrences are kept.
    pub dead_keep: Duration,
    /// How many dead occurrences a shard keeps.
    pub dead_cap: u64,
}

impl EngineConfig {
    /// The defaults, for an instance of that id.
    #[must_use]
    pub fn new(instance: impl Into<String>) -> EngineConfig {
        EngineConfig {
            instance: instance.into(),
            lease: Duration::from_secs(15),
            batch: 500,
            in_flight: 3500,
            in_flight_bytes: 12 << 20,
            overdue: Overdue { grace: Duration::from_secs(60), catch_up_max: 100 },
            poison_limit: 5,
            dead_keep: Duration::from_secs(30 * 24 * 3600),
            dead_cap: 100_000,
        }
    }
}

/// A sink as the engine uses it.
#[derive(Clone)]
pub struct EngineSink {
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// How long a destination may be at fault before its messages are dead.
    pub patience: Duration,
}

/// A lane as the engine serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLane {
    /// Name of its sink.
    pub sink: String,
    /// Where messages go whose task names no destination.
    pub destination: Option<String>,
    /// Where a copy of what is dead goes, on the same sink.
    pub dead_destination: Option<String>,
}

/// A lane that names a sink which does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lane `{lane}` names the sink `{sink}`, which is not configured")]
pub struct UnknownSink {
    /// The lane.
    pub lane: Lane,
    /// The sink's name.
    pub sink: String,
}

/// A running engine. Dropping it without [`shutdown`](Engine::shutdown) ends its loops and leaves what it holds to the
/// leases.
pub struct Engine {
    context: Arc<Context>,
    loops: TaskTracker,
}

impl Engine {
    /// Starts the loops.
    ///
    /// # Errors
    /// When a lane names a sink that is not among `sinks`.
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
                let served = lanes.values().filter(|lane| lane.sink == name).count();
                (name.clone(), sink_context(&config, &metrics, name, sink, served))
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
        let shards: Vec<_> = Shard::all(timeline.shards()).map(|shard| Arc::new(shard_context(shard))).collect();
        let pairs = shards.iter().flat_map(|shard| served.keys().map(|lane| (shard.shard, lane.clone())));
        let signals = pairs.map(|pair| (pair, Arc::default())).collect();
        let context = Arc::new(Context {
            clock: timeline.clock(),
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
        });
        let engine = Engine { context, loops: TaskTracker::new() };
        engine.start_loops();
        Ok(engine)
    }

    fn start_loops(&self) {
        let context = &self.context;
        self.loops.spawn(reaper::pass_wakes_on(Arc::clone(context)));
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

    /// What it does now: for stats and readiness.
    #[must_use]
    pub fn state(&self) -> EngineState {
        state::look(&self.context)
    }

    /// Claims nothing more, waits until what is held is answered and settled, gives back what is not within `deadline`,
    /// closes the sinks. Takes at most `deadline` and a few seconds. Whether everything was settled or given back.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let context = &self.context;
        info!("stopping; no more claims");
        context.stopping.cancel();
        context.holders.close();
        let mut settled = tokio::time::timeout(deadline, context.holders.wait()).await.is_ok();
        if !settled {
            warn!("shutdown deadline reached; returning unfinished occurrences");
            context.deadline.cancel();
            settled = tokio::time::timeout(LAST_WRITE, context.holders.wait()).await.is_ok();
        }
        context.closed.cancel();
        for sink in context.sinks.values() {
            if let Err(error) = sink.sink.close(LAST_WRITE).await {
                warn!(sink = sink.name, %error, "the sink was not closed in time");
            }
        }
        self.loops.close();
        let ended = tokio::time::timeout(LAST_WRITE, self.loops.wait()).await.is_ok();
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

/// How long giving back, and closing a sink, may take once the deadline has passed.
const LAST_WRITE: Duration = Duration::from_secs(3);

/// A sink that serves several lanes has room for two of them: one lane whose messages are not answered leaves the
/// others some.
fn sink_context(
    config: &EngineConfig,
    metrics: &Metrics,
    name: String,
    sink: EngineSink,
    lanes: usize,
) -> Arc<SinkContext> {
    let metrics = metrics.sink(&name);
    let rooms = lanes.clamp(1, 2);
    Arc::new(SinkContext {
        name,
        sink: sink.sink,
        breaker: Breaker::new(metrics.clone()),
        destinations: Mutex::new(Destinations::new(sink.patience)),
        room: Room::new(config.in_flight * rooms, config.in_flight_bytes * rooms),
        held: HeldBack::new(config.in_flight * rooms, config.in_flight_bytes * rooms),
        metrics,
        answered: Mutex::new(None),
    })
}

fn lane_context(
    config: &EngineConfig,
    metrics: &Metrics,
    lane: Lane,
    settings: EngineLane,
    sink: Arc<SinkContext>,
) -> LaneContext {
    let room = Room::new(config.in_flight, config.in_flight_bytes);
    let held = HeldBack::new(config.in_flight, config.in_flight_bytes);
    let metrics = metrics.lane(lane.as_str());
    metrics.served.set(1);
    let EngineLane { destination, dead_destination, .. } = settings;
    LaneContext {
        lane,
        sink,
        destination,
        dead_destination,
        room,
        held,
        turned_back: Mutex::default(),
        metrics,
        claims: Throttle::default(),
        telling_of_dead: Throttle::default(),
        copies: Throttle::default(),
        telling_of_copies: Throttle::default(),
    }
}

fn shard_context(shard: Shard) -> ShardContext {
    ShardContext {
        shard,
        leases: Leases::default(),
        ready: watch::Sender::new(false),
        glance: Mutex::new((Vec::new(), Glance::default())),
    }
}
