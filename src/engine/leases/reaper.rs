//! Polls each shard once a second as a safety net. It wakes claimers that missed a notification, and returns the
//! occurrences of expired claims to their lane. In normal operation no publish depends on it. The poll also reads the
//! depths and the pauses of the lanes, for the state of the engine, its metrics and the claims under way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tracing::{debug, error, warn};

use crate::engine::context::{Context, ShardContext};
use crate::engine::fault::{self, Point};
use crate::engine::instances::Rank;
use crate::engine::state;
use crate::task::Lane;
use crate::timeline::{Glance, GlanceRequest, LaneGlance, ReapRequest, Reaped, TimelineError, Wake};

/// The pause between two glances of a shard.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Deadline of a reap. A reap that a stopped Redis runs later would end claims whose holders could not renew them. The
/// next glance asks for another one.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// Polls, wakes claimers and reaps until the engine is closed.
pub(in crate::engine) async fn run(context: Arc<Context>, shard: Arc<ShardContext>) {
    let pulse = context.pulses.start(format!("reaper {}", shard.shard));
    let mut ready = shard.ready.subscribe();
    let mut unserved = BTreeSet::new();
    let mut tick = tokio::time::interval(GLANCE_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pulse.beat();
        tokio::select! {
            _ = tick.tick() => {}
            // The timeline is reachable again; wake-ups may have been missed.
            changed = ready.changed() => if changed.is_err() { return },
            () = context.closed.cancelled() => return,
        }
        if !*ready.borrow_and_update() {
            continue;
        }
        if let Err(error) = look(&context, &shard, &mut unserved).await {
            debug!(shard = %shard.shard, %error, "cannot poll the shard; retrying in 1 s");
        }
    }
}

/// Makes one glance and acts on it. `unserved`: lanes with tasks that this instance does not serve.
async fn look(context: &Context, shard: &ShardContext, unserved: &mut BTreeSet<Lane>) -> Result<(), TimelineError> {
    let served = context.lanes.keys().map(|lane| (lane.clone(), true));
    let lanes: Vec<(Lane, bool)> = served.chain(unserved.iter().map(|lane| (lane.clone(), false))).collect();
    let request = GlanceRequest {
        lanes: lanes.clone(),
        lease: context.config.lease,
        dead_keep: context.config.dead_keep,
        depth: true,
    };
    let glance = context.timeline.glance(shard.shard, request).await?;
    for ((lane, served), seen) in lanes.iter().zip(&glance.lanes) {
        if let (Some(head), Some(signal)) = (seen.head, context.signals.get(&(shard.shard, lane.clone()))) {
            // Returned occurrences stand at the head and claims start behind them, so a wake-up behind the head may
            // have been missed.
            let has_returns = context.lanes.get(lane).is_some_and(|lane| lane.has_returns());
            if has_returns { signal.look() } else { signal.raise(head) }
        }
        if seen.reap
            && let Err(error) = reap(context, shard, lane, *served).await
        {
            warn!(%lane, %error, "cannot release expired claims; retrying in 1 s");
        }
    }
    let paused = lanes.iter().zip(&glance.lanes).filter(|(_, seen)| seen.pause.is_some());
    let paused: BTreeSet<Lane> = paused.map(|((lane, _), _)| lane.clone()).collect();
    shard.paused.send_if_modified(|former| {
        let is_other = *former != paused;
        *former = paused;
        is_other
    });
    learn(context, &glance, unserved);
    if context.timeline.node(shard.shard).is_some() {
        report_emptied(context, shard, &glance);
    }
    *shard.glanced.lock() = Some(tokio::time::Instant::now());
    *shard.glance.lock() = (lanes.into_iter().map(|(lane, _)| lane).collect(), glance);
    state::show(context);
    Ok(())
}

/// Logs and counts that a shard has lost the tasks of a lane that this instance serves: a lane stays known while an
/// instance serves it. The node of the cluster then came back without its data. A single server that loses its tasks
/// also loses the layout, which is reported elsewhere.
fn report_emptied(context: &Context, shard: &ShardContext, glance: &Glance) {
    let former = shard.glance.lock();
    let lost = former.0.iter().zip(&former.1.lanes).filter(|(lane, _)| {
        context.lanes.contains_key(*lane) && former.1.known.contains(lane) && !glance.known.contains(lane)
    });
    let tasks = |seen: &LaneGlance| seen.depth.map_or(0, |(waiting, in_flight)| waiting + in_flight) + seen.paused;
    let lost: Vec<String> =
        lost.filter(|(_, seen)| tasks(seen) > 0).map(|(lane, seen)| format!("{lane} {}", tasks(seen))).collect();
    if lost.is_empty() {
        return;
    }
    context.metrics.shards_emptied.inc();
    error!(
        shard = %shard.shard,
        tasks = lost.join(", "),
        hint = "a node of the cluster was emptied or came back without its data; put the tasks again, or restore a backup",
        "a shard has lost its tasks"
    );
}

/// Notes lanes with tasks that are not configured here. The next glance reads them too.
fn learn(context: &Context, glance: &Glance, unserved: &mut BTreeSet<Lane>) {
    let found: BTreeSet<Lane> =
        glance.known.iter().filter(|lane| !context.lanes.contains_key(*lane)).cloned().collect();
    for lane in found.difference(unserved) {
        warn!(%lane, "lane has waiting tasks but is not configured on this instance");
    }
    *unserved = found;
}

/// Ends expired claims of a lane.
async fn reap(context: &Context, shard: &ShardContext, lane: &Lane, served: bool) -> Result<(), TimelineError> {
    loop {
        let request = ReapRequest {
            lease: context.config.lease,
            served,
            dead_keep: context.config.dead_keep,
            not_after: shard.clock.now().plus(REAP_TIMEOUT),
        };
        fault::reached(Point::BeforeReap);
        let reaped = context.timeline.reap(shard.shard, lane, request).await?;
        if reaped.claims > 0 {
            fault::reached(Point::AfterReap);
        }
        let metrics = context.metrics.lane(lane.as_str());
        metrics.leases_reaped.inc_by(reaped.claims);
        metrics.occurrences_reaped.inc_by(reaped.occurrences);
        metrics.stranded.inc_by(reaped.stranded);
        context.metrics.dead_dropped.inc_by(reaped.dropped);
        if reaped.claims > 0 {
            let Reaped { claims, occurrences, holders, .. } = reaped;
            let instances = holders.join(", ");
            warn!(%lane, claims, occurrences, instances, "leases expired; their occurrences are due again");
        }
        if reaped.stranded > 0 {
            error!(%lane, occurrences = reaped.stranded, "occurrences were claimed without a lease");
        }
        if !reaped.more || context.closed.is_cancelled() {
            return Ok(());
        }
    }
}

/// Forwards the timeline's wake-ups to the claimers until the engine is closed.
pub(in crate::engine) async fn pass_wakes_on(context: Arc<Context>) {
    let mut wakes = context.timeline.wakes();
    loop {
        let wake = tokio::select! {
            wake = wakes.recv() => wake,
            () = context.closed.cancelled() => return,
        };
        match wake {
            Ok(Wake { shard, lane, due }) => {
                // Others learn from a glance what is overdue.
                if let Some(signal) =
                    context.signals.get(&(shard, lane)).filter(|signal| signal.rank().get() != Rank::Other)
                {
                    signal.raise(due);
                }
            }
            // Some wake-ups were missed, so every claimer looks.
            Err(RecvError::Lagged(_)) => context.signals.values().for_each(|signal| signal.look_from_oldest()),
            Err(RecvError::Closed) => return,
        }
    }
}
