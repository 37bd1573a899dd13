//! Renews the leases that this instance holds, every fifth of a lease.
//!
//! Runs before anything else when the timeline is back: no claim is made until the leases of the former ones are extended.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::context::{Context, ShardContext};
use super::fault::{self, Point};
use super::leases::Moment;
use crate::timeline::{Link, TimelineError};

/// No wait is longer, however long the leases, so that the loop shows that it lives.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Tokens that one call renews at most.
const MAX_TOKENS: usize = 1000;

/// Renews what is held, every fifth of a lease and as soon as the timeline is back; ends with the engine.
pub(super) async fn run(context: Arc<Context>, shard: Arc<ShardContext>) {
    let mut link = context.timeline.link();
    let pulse = context.pulses.start(format!("leases {}", shard.shard));
    let every = (context.config.lease / 5).min(MAX_PAUSE);
    loop {
        pulse.beat();
        let state = link.borrow_and_update().clone();
        context.metrics.timeline_up.set(i64::from(matches!(state, Link::Up(_))));
        let pause = match state {
            Link::Up(_) => match extend_all(&context, &shard).await {
                Ok(()) => {
                    set_ready(&shard, true);
                    every
                }
                Err(error) => {
                    debug!(shard = %shard.shard, %error, "cannot extend leases; retrying");
                    every.min(Duration::from_millis(200))
                }
            },
            Link::Down(_) => {
                set_ready(&shard, false);
                every
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = link.changed() => match changed {
                // A new connection, or none: nothing is claimed before what is held was extended over it.
                Ok(()) => {
                    set_ready(&shard, false);
                    context.wake_shard(shard.shard);
                }
                Err(_) => return,
            },
            () = context.closed.cancelled() => return,
        }
    }
}

/// Tells claimers and the reaper, if it is news to them.
fn set_ready(shard: &ShardContext, ready: bool) {
    shard.ready.send_if_modified(|state| std::mem::replace(state, ready) != ready);
}

/// One round: says to each holder whose lease is gone that it is.
async fn extend_all(context: &Context, shard: &ShardContext) -> Result<(), TimelineError> {
    for leases in shard.leases.all().chunks(MAX_TOKENS) {
        let tokens: Vec<_> = leases.iter().map(|lease| (lease.lane.clone(), lease.token.clone())).collect();
        let sent = Moment::now();
        fault::reached(Point::BeforeExtend);
        let alive = context.timeline.extend(shard.shard, &tokens, context.config.lease).await?;
        fault::reached(Point::AfterExtend);
        for (lease, alive) in leases.iter().zip(alive) {
            if alive {
                lease.confirm(sent);
            } else if shard.leases.holds(&lease.token) && !lease.lost.is_cancelled() {
                // The holder may have settled and closed it while the call was under way: then it is no loss.
                // Its holder says so, once, and what was in it.
                debug!(token = lease.token.0, "a lease was lost");
                lease.lost.cancel();
            }
        }
    }
    Ok(())
}
