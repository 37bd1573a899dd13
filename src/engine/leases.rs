//! The leases that this instance holds, and the loop that renews them every fifth of a lease.
//!
//! Runs before anything else when the timeline is back: claims wait until what is held was extended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::context::{Context, ShardContext};
use super::fault::{self, Point};
use crate::clock::since_boot;
use crate::task::Lane;
use crate::timeline::{Link, Token};

/// No wait is longer, however long the leases, so that the loop shows that it lives.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Tokens that one call renews at most.
const BATCH: usize = 1000;

/// One claim's lease, as its holder knows it.
pub(super) struct Lease {
    pub(super) token: Token,
    lane: Lane,
    length: Duration,
    /// When the call was sent that last confirmed it.
    confirmed: Mutex<Moment>,
    /// Cancelled once the timeline said that it has been reaped.
    pub(super) lost: CancellationToken,
}

impl Lease {
    /// Notes that a call sent at `sent` was answered: the lease runs from then, at the earliest.
    pub(super) fn confirm(&self, sent: Moment) {
        let mut confirmed = self.confirmed.lock();
        *confirmed = Moment { at: confirmed.at.max(sent.at), since_boot: confirmed.since_boot.max(sent.since_boot) };
    }

    /// Whether something that takes up to `span` surely ends within the lease.
    pub(super) fn fits(&self, span: Duration) -> bool {
        let (now, confirmed) = (Moment::now(), *self.confirmed.lock());
        now.at + span <= confirmed.at + self.length && now.since_boot + span <= confirmed.since_boot + self.length
    }
}

/// A moment by two clocks: the runtime's, which tests pause, stands still while the machine sleeps; the timeline's does not.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    at: Instant,
    since_boot: Duration,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { at: Instant::now(), since_boot: since_boot() }
    }
}

/// All leases that this instance holds on one shard.
#[derive(Default)]
pub(super) struct Leases {
    held: Mutex<BTreeMap<Token, Arc<Lease>>>,
}

impl Leases {
    /// Notes a claim that was sent at `sent`; from now on its lease is renewed.
    pub(super) fn open(&self, token: Token, lane: Lane, length: Duration, sent: Moment) -> Arc<Lease> {
        let confirmed = Mutex::new(sent);
        let lease = Arc::new(Lease { token, lane, length, confirmed, lost: CancellationToken::new() });
        self.held.lock().insert(lease.token.clone(), Arc::clone(&lease));
        lease
    }

    /// Lets a claim go that has ended.
    pub(super) fn close(&self, token: &Token) {
        self.held.lock().remove(token);
    }

    fn all(&self) -> Vec<Arc<Lease>> {
        self.held.lock().values().cloned().collect()
    }
}

/// Renews what is held, every fifth of a lease and as soon as the timeline is back; ends with the engine.
pub(super) async fn run(context: Arc<Context>, shard: Arc<ShardContext>) {
    let mut link = context.timeline.link();
    let pulse = context.pulses.start(format!("leases {}", shard.shard));
    let every = (context.config.lease / 5).min(LONGEST_WAIT);
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
                    debug!(shard = %shard.shard, %error, "leases not extended, trying again");
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
async fn extend_all(context: &Context, shard: &ShardContext) -> Result<(), crate::timeline::TimelineError> {
    for leases in shard.leases.all().chunks(BATCH) {
        let tokens: Vec<_> = leases.iter().map(|lease| (lease.lane.clone(), lease.token.clone())).collect();
        let sent = Moment::now();
        fault::reached(Point::BeforeExtend);
        let alive = context.timeline.extend(shard.shard, &tokens, context.config.lease).await?;
        fault::reached(Point::AfterExtend);
        for (lease, alive) in leases.iter().zip(alive) {
            if alive {
                lease.confirm(sent);
            } else if shard.leases.held.lock().contains_key(&lease.token) && !lease.lost.is_cancelled() {
                // The holder may have settled and closed it while the call was under way: then it is no loss.
                // Its holder says so, once, and what was in it.
                debug!(token = lease.token.0, "a lease was lost");
                lease.lost.cancel();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_runs_on_while_the_machine_sleeps() {
        let (length, span) = (Duration::from_secs(15), Duration::from_secs(7));
        let open = |sent| Leases::default().open(Token("i.1".into()), Lane::default(), length, sent);
        let now = Moment::now();
        let lease = open(now);
        assert!(lease.fits(span));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!lease.fits(span), "an answer might come after its end");
        lease.confirm(Moment::now());
        assert!(lease.fits(span));
        // Asleep for nine seconds, of which the runtime's clock knows nothing.
        let slept = Moment { at: Instant::now(), since_boot: now.since_boot.saturating_sub(Duration::from_secs(9)) };
        assert!(!open(slept).fits(span) || cfg!(not(target_os = "linux")));
    }
}
