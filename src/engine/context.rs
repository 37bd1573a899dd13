//! What the engine's loops share: the parts they were given, and per shard, lane and sink what they know in common.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use punctual_sinks::Sink;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::EngineConfig;
use super::breaker::Breaker;
use super::destinations::Destinations;
use super::held::HeldBack;
use super::leases::Leases;
use super::outlook::OLDEST_AGAIN;
use super::room::Room;
use super::signal::Signal;
use super::suspect_lock::SuspectLock;
use super::throttle::Throttle;
use crate::clock::Clock;
use crate::metrics::{LaneMetrics, Metrics, SinkMetrics};
use crate::task::{Lane, Shard};
use crate::timeline::{Glance, Timeline, Token};

/// How long the log is silent of a lane's dead once it has told of them.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Destinations of a lane of which it is known that something went back; beyond that the others tell as much.
const MAX_TURNED_BACK: usize = 1000;

/// What all loops share.
pub(super) struct Context {
    pub(super) config: EngineConfig,
    pub(super) timeline: Arc<dyn Timeline>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) shards: Vec<Arc<ShardContext>>,
    pub(super) lanes: BTreeMap<Lane, Arc<LaneContext>>,
    pub(super) sinks: BTreeMap<String, Arc<SinkContext>>,
    pub(super) signals: BTreeMap<(Shard, Lane), Arc<Signal>>,
    pub(super) pulses: Pulses,
    /// The lanes whose depth the metrics show.
    pub(super) shown: Mutex<BTreeSet<Lane>>,
    /// Nothing is claimed from now on; what waits for a retry goes back.
    pub(super) stopping: CancellationToken,
    /// What is still held goes back now.
    pub(super) deadline: CancellationToken,
    /// Every loop ends.
    pub(super) closed: CancellationToken,
    /// Whose turn it is to hold suspects.
    pub(super) suspects: Arc<SuspectLock>,
    /// The claims in hand.
    pub(super) holders: TaskTracker,
    pub(super) tokens: AtomicU64,
}

/// What the loops of one shard share.
pub(super) struct ShardContext {
    pub(super) shard: Shard,
    pub(super) leases: Leases,
    /// Whether the timeline is there and what is held was extended since it is.
    pub(super) ready: watch::Sender<bool>,
    /// The last look, with the lanes in its order.
    pub(super) glance: Mutex<(Vec<Lane>, Glance)>,
}

/// What the claims of one lane share, on all shards.
pub(super) struct LaneContext {
    pub(super) lane: Lane,
    pub(super) sink: Arc<SinkContext>,
    pub(super) destination: Option<String>,
    pub(super) dead_destination: Option<String>,
    pub(super) room: Room,
    /// What destinations that fail hold of it.
    pub(super) held: Arc<HeldBack>,
    /// By destination, when something went back last because it holds all that it may: a thousand of them at most.
    pub(super) turned_back: Mutex<HashMap<String, Instant>>,
    pub(super) metrics: LaneMetrics,
    /// While it rests nothing is claimed: others are to have their turn.
    pub(super) claims: Throttle,
    /// How often the log tells of its dead.
    pub(super) telling_of_dead: Throttle,
    /// While it rests no copy of its dead is tried.
    pub(super) copies: Throttle,
    /// How often the log tells that a copy of a dead was not taken.
    pub(super) telling_of_copies: Throttle,
}

/// What the claims for one sink share.
pub(super) struct SinkContext {
    pub(super) name: String,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) breaker: Breaker,
    pub(super) destinations: Mutex<Destinations>,
    pub(super) room: Room,
    /// What destinations that fail hold of it.
    pub(super) held: Arc<HeldBack>,
    pub(super) metrics: SinkMetrics,
    /// When the sink last answered any message.
    pub(super) answered: Mutex<Option<Instant>>,
}

impl Context {
    /// Lets the claimers of a lane look at once, on all shards.
    pub(super) fn wake(&self, lane: &Lane) {
        let signals = self.shards.iter().filter_map(|shard| self.signals.get(&(shard.shard, lane.clone())));
        signals.for_each(|signal| signal.look_anew());
    }

    /// Lets the claimers of a shard look at once, from the oldest on: wake-ups may have been missed.
    pub(super) fn wake_shard(&self, shard: Shard) {
        let signals = self.signals.iter().filter(|((one, _), _)| *one == shard);
        signals.for_each(|(_, signal)| signal.look_anew());
    }

    /// A name for a claim, never used before.
    pub(super) fn token(&self) -> Token {
        Token::new(&self.config.instance, self.tokens.fetch_add(1, Ordering::Relaxed), self.config.lease)
    }
}

impl LaneContext {
    /// Tells that occurrences are dead, once a minute: where there is one there may be a million.
    pub(super) fn tell_of_dead(&self, reason: &str, destination: &str, detail: &str) {
        if self.telling_of_dead.passes(LOG_PAUSE) {
            let lane = self.lane.as_str();
            error!(
                lane,
                reason,
                destination,
                words = detail,
                "occurrences are dead; they are not retried by themselves"
            );
        }
    }

    /// Counts what became of a copy, and tells once a minute that one was not taken.
    pub(super) fn tell_of_copy(&self, copied: Result<(), &str>) {
        let Err(detail) = copied else {
            self.metrics.dead_copied.inc();
            return;
        };
        self.metrics.dead_not_copied.inc();
        if self.telling_of_copies.passes(LOG_PAUSE) {
            let (lane, destination) = (self.lane.as_str(), self.dead_destination.as_deref());
            warn!(
                lane,
                destination,
                words = detail,
                "dead-letter destination refuses copies; recording the dead without a copy"
            );
        }
    }

    /// Notes that something goes back because its destination holds all that it may.
    pub(super) fn turns_back(&self, destination: &str) {
        let mut turned_back = self.turned_back.lock();
        if let Some(last) = turned_back.get_mut(destination) {
            *last = Instant::now();
            return;
        }
        turned_back.retain(|_, last| is_lately(*last));
        if turned_back.len() < MAX_TURNED_BACK {
            turned_back.insert(destination.to_owned(), Instant::now());
        }
    }

    /// Whether something went back so a while ago: longer than until the next claim at the oldest, which may find more.
    pub(super) fn goes_back(&self) -> bool {
        self.turned_back.lock().values().any(|last| is_lately(*last))
    }

    /// Forgets that of a destination, which has been mended. Whether there was anything to forget.
    pub(super) fn turns_back_no_more(&self, destination: &str) -> bool {
        self.turned_back.lock().remove(destination).is_some_and(is_lately)
    }
}

impl SinkContext {
    /// Notes that the sink answered a message: it is there.
    pub(super) fn answered(&self) {
        *self.answered.lock() = Some(Instant::now());
        if self.breaker.answered() {
            info!(sink = self.name, "the sink answers again");
        }
    }

    /// The sink is absent: its lanes are not claimed, and what failed lately says nothing of its destinations.
    pub(super) fn trip(&self, detail: &str) {
        if self.breaker.trip(detail) {
            self.destinations.lock().forgive_all();
        }
    }

    /// Whether the sink has answered anything since `then`.
    pub(super) fn answered_since(&self, then: Instant) -> bool {
        self.answered.lock().is_some_and(|last| last >= then)
    }
}

/// Whether something went back so lately that more of it may come.
fn is_lately(last: Instant) -> bool {
    last.elapsed() <= 2 * OLDEST_AGAIN
}

/// When each loop made its last step: one that has made none for long is stuck.
pub(super) struct Pulses {
    start: Instant,
    last: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

/// One loop's pulse.
pub(super) struct Pulse {
    start: Instant,
    last: Arc<AtomicU64>,
}

impl Pulses {
    pub(super) fn new() -> Pulses {
        Pulses { start: Instant::now(), last: Mutex::new(BTreeMap::new()) }
    }

    /// Watches a loop from now on.
    pub(super) fn start(&self, name: String) -> Pulse {
        let pulse = Pulse { start: self.start, last: Arc::new(AtomicU64::new(0)) };
        pulse.beat();
        self.last.lock().insert(name, Arc::clone(&pulse.last));
        pulse
    }

    /// The loop whose last step is the longest ago, and how long that is.
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
