//! Renews the leases of this instance in one shard, every fifth of a lease and at least every 10 s.
//!
//! After a reconnect it runs first: nothing is claimed until the leases of all current claims are renewed.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::engine::context::{Context, ShardContext};
use crate::engine::fault::{self, Point};
use crate::engine::leases::Moment;
use crate::timeline::{Link, TimelineError};

/// Upper bound of every wait, so that the loop reports regularly that it is alive.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Maximum number of tokens in one call.
const MAX_TOKENS: usize = 1000;

/// Renews the leases of a shard (the verb `extend`) at that interval and after each reconnect. Ends with the engine.
pub(in crate::engine) async fn run(context: Arc<Context>, shard: Arc<ShardContext>) {
    let mut link = context.timeline.link(shard.shard);
    let pulse = context.pulses.start(format!("leases {}", shard.shard));
    let every = (context.config.lease / 5).min(MAX_PAUSE);
    loop {
        pulse.beat();
        let state = link.borrow_and_update().clone();
        context.show_links();
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
                // The connection changed. Nothing is claimed until the current leases are renewed over it.
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

/// Sets whether claims and reaps may start, and wakes the claimers and the reaper if that changed.
fn set_ready(shard: &ShardContext, ready: bool) {
    shard.ready.send_if_modified(|state| std::mem::replace(state, ready) != ready);
}

/// Renews all leases once, and tells each holder whose lease is lost.
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
                // If the holder settled during the call, it closed the lease itself, and nothing is lost. Otherwise the
                // holder logs the loss.
                debug!(token = lease.token.0, "a lease was lost");
                lease.lost.cancel();
            }
        }
    }
    Ok(())
}
