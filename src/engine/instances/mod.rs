//! The instances on one timeline, which share its shards.
//!
//! Each instance sends a beat once a second: which lanes it serves at the moment, and what it published since the last one.
//! From the beats of the last seconds, every instance computes for each lane and shard who asks first, the [`Rank`]. The
//! claim script alone decides who gets an occurrence, so a rank that is wrong for a moment costs calls or milliseconds, and
//! never a message.

mod beat;
mod rank;
mod recent;
mod view;

pub(super) use rank::{OwnRank, Rank};
pub(super) use recent::OutcomeCounter;
pub use recent::PublishRate;
pub use view::InstanceState;
pub(super) use view::View;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use self::beat::Beat;
use self::rank::WORSE_RANK_PAUSE;
use crate::engine::context::{Context, ShardContext};
use crate::task::Lane;

/// How often an instance looks whether its own lanes or those of others have changed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two beats is at least this long while nothing changes, and at most 0.3 s longer.
const MIN_BEAT_INTERVAL: Duration = Duration::from_millis(900);

/// Maximum number of beats in a row, if the outcomes of all lanes do not fit into one.
const MAX_BEATS_AT_ONCE: usize = 10;

/// How long a stop waits for its last beat.
const LAST_BEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of silent instances that a log line names.
const MAX_LOGGED: usize = 10;

/// Sends the beats of this instance until the engine is closed. While it stops, it serves no lanes.
pub(super) async fn send_beats(context: Arc<Context>) {
    let mut sent: Option<BTreeSet<Lane>> = None;
    let mut next = Instant::now();
    loop {
        let lanes = served_lanes(&context);
        if Instant::now() >= next || sent.as_ref() != Some(&lanes) {
            sent = Some(lanes);
            send(&context).await;
            next = Instant::now() + MIN_BEAT_INTERVAL + Duration::from_millis(rand::random_range(0..200));
        }
        let serves = sent.as_ref().is_some_and(|lanes| !lanes.is_empty());
        tokio::select! {
            biased;
            () = context.closed.cancelled() => return,
            // The others take over at once, while this instance still ends what it holds.
            () = context.stopping.cancelled(), if serves => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// Sends the beat of an instance that has stopped, so that others take its shards over at once.
pub(super) async fn send_last_beat(context: &Context) {
    // An error means that the others notice its silence.
    drop(timeout(LAST_BEAT_TIMEOUT, send(context)).await);
}

/// Sends what this instance says of itself, and what it published since the last time.
async fn send(context: &Context) {
    let own = own_state(context);
    for _ in 0..MAX_BEATS_AT_ONCE {
        let mut beat = Beat::new(&own);
        let counters = || context.lanes.iter().map(|(lane, state)| (lane, &state.outcomes));
        let all_taken = beat.take_outcomes(counters());
        if let Err(error) = context.timeline.send_beat(beat.pack()).await {
            debug!(%error, "cannot send a beat; retrying in 1 s");
            for (lane, counter) in counters() {
                beat.report.outcomes.get(lane).into_iter().for_each(|counts| counter.put_back(counts));
            }
            return;
        }
        if all_taken {
            return;
        }
    }
}

/// What this instance says of itself.
pub(super) fn own_state(context: &Context) -> InstanceState {
    let unavailable = context.sinks.values().filter(|sink| sink.breaker.is_open());
    InstanceState {
        id: context.config.instance.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        lanes: served_lanes(context),
        unavailable_sinks: unavailable.map(|sink| sink.name.clone()).collect(),
    }
}

/// The lanes that this instance claims at the moment.
fn served_lanes(context: &Context) -> BTreeSet<Lane> {
    if context.stopping.is_cancelled() {
        return BTreeSet::new();
    }
    let served = context.lanes.iter().filter(|(_, state)| !state.sink.breaker.is_open());
    served.map(|(lane, _)| lane.clone()).collect()
}

/// Receives the beats of all instances and sets the ranks of this one, until the engine is closed.
pub(super) async fn keep_ranks(context: Arc<Context>) {
    let mut beats = context.timeline.beats();
    // A worse rank applies a while after a change, so ranks are computed until then.
    let mut compute_until = Instant::now();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    follow(&context, &context.view.lock(), Instant::now());
    loop {
        tokio::select! {
            beat = beats.recv() => match beat {
                Ok(text) => {
                    if let Some(beat) = Beat::unpack(&text) {
                        let now = Instant::now();
                        if context.view.lock().note(beat, now) {
                            compute_until = now + WORSE_RANK_PAUSE + 2 * LOOK_INTERVAL;
                        }
                    }
                    continue;
                }
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            },
            _ = look.tick() => {}
            () = context.closed.cancelled() => return,
        }
        let now = Instant::now();
        let mut view = context.view.lock();
        if view.hears_itself(now) {
            log_silent(&view.take_unlogged_silent(now));
        }
        if view.forget_silent(now) {
            compute_until = now + WORSE_RANK_PAUSE + 2 * LOOK_INTERVAL;
        }
        if now <= compute_until {
            follow(&context, &view, now);
        }
    }
}

/// Logs instances that ended without a last beat. One that stops in order serves no lanes in its last beat.
fn log_silent(silent: &[Arc<InstanceState>]) {
    let died: Vec<&str> =
        silent.iter().filter(|state| !state.lanes.is_empty()).map(|state| state.id.as_str()).collect();
    if !died.is_empty() {
        let (count, instances) = (died.len(), died[..died.len().min(MAX_LOGGED)].join(", "));
        warn!(count, instances, "instances are silent; what they hold is due again once its lease has expired");
    }
}

/// Sets the ranks of this instance. A claimer whose rank is better now claims at once, because other instances may have
/// left due tasks to it.
fn follow(context: &Context, view: &View, now: Instant) {
    context.metrics.instances.set(i64::try_from(view.count()).unwrap_or(i64::MAX));
    for (lane, lane_context) in &context.lanes {
        let (place, count) = view.place(lane);
        let mut owned = 0;
        for ShardContext { shard, .. } in context.shards.iter().map(AsRef::as_ref) {
            let signal = &context.signals[&(*shard, lane.clone())];
            if signal.rank().follow(Rank::of(place, count, *shard), now) {
                signal.look();
            }
            owned += i64::from(signal.rank().get() == Rank::Owner);
        }
        lane_context.metrics.shards_owned.set(owned);
    }
}
