//! The instances on one timeline, which share its shards.
//!
//! Each instance sends a beat once a second: which lanes it serves at the moment, and what it published since the last one. From the beats of the last seconds, every
//! instance computes for each lane and shard who asks first, the [`Rank`]. The claim script alone decides who gets an
//! occurrence, so a rank that is wrong for a moment costs calls or milliseconds, and never a message.

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
use tokio::time::Instant;
use tracing::debug;

use self::beat::{Beat, BeatReport};
use self::rank::WORSE_RANK_PAUSE;
use crate::engine::BreakerState;
use crate::engine::context::{Context, ShardContext};
use crate::task::Lane;

/// How often an instance looks whether its own lanes or those of others have changed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two beats is at least this long while nothing changes, and at most 0.2 s longer.
const MIN_BEAT_INTERVAL: Duration = Duration::from_millis(900);

/// Sends the beats of this instance until the engine is closed. While it stops, it serves no lanes.
pub(super) async fn send_beats(context: Arc<Context>) {
    let mut sent: Option<BTreeSet<Lane>> = None;
    let mut next = Instant::now();
    let mut last_lane = None;
    loop {
        let lanes = served_lanes(&context);
        if Instant::now() >= next || sent.as_ref() != Some(&lanes) {
            let own = own_state(&context);
            let report =
                BeatReport { version: own.version, unavailable_sinks: own.unavailable_sinks, ..BeatReport::default() };
            let mut beat = Beat { instance: own.id, lanes: lanes.clone(), report };
            beat.take_outcomes(context.lanes.iter().map(|(lane, state)| (lane, &state.outcomes)), &mut last_lane);
            if let Err(error) = context.timeline.send_beat(beat.pack()).await {
                debug!(%error, "cannot send a beat; retrying in 1 s");
            }
            sent = Some(lanes);
            next = Instant::now() + MIN_BEAT_INTERVAL + Duration::from_millis(rand::random_range(0..200));
        }
        let serves = sent.as_ref().is_some_and(|lanes| !lanes.is_empty());
        tokio::select! {
            biased;
            () = context.closed.cancelled() => return,
            // A stop may be over before the next look. The others must hear of it nevertheless.
            () = context.stopping.cancelled(), if serves => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// What this instance says of itself.
pub(super) fn own_state(context: &Context) -> InstanceState {
    let unavailable = context.sinks.values().filter(|sink| matches!(sink.breaker.state(), BreakerState::Open { .. }));
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
    let claims = |lane: &Lane| {
        context.lanes.get(lane).is_some_and(|lane| !matches!(lane.sink.breaker.state(), BreakerState::Open { .. }))
    };
    context.lanes.keys().filter(|lane| claims(lane)).cloned().collect()
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
        if view.forget_silent(now) {
            compute_until = now + WORSE_RANK_PAUSE + 2 * LOOK_INTERVAL;
        }
        if now <= compute_until {
            follow(&context, &view, now);
        }
    }
}

/// Sets the ranks of this instance. A claimer whose rank is better now looks for what others may have left.
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
