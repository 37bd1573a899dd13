//! The leases of this instance; the loop that renews them, and the one that finds expired claims.

pub(in crate::engine) mod reaper;
pub(in crate::engine) mod renewer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::since_boot;
use crate::task::Lane;
use crate::timeline::Token;

/// The lease of one claim.
pub(in crate::engine) struct Lease {
    pub(in crate::engine) token: Token,
    pub(in crate::engine) lane: Lane,
    length: Duration,
    /// The send time of the last call that confirmed it.
    confirmed: Mutex<Moment>,
    /// Cancelled once the timeline reports that the claim does not exist any more.
    pub(in crate::engine) lost: CancellationToken,
}

impl Lease {
    /// A call that was sent at `sent` confirmed the lease. It runs from that time at least.
    pub(in crate::engine) fn confirm(&self, sent: Moment) {
        let mut confirmed = self.confirmed.lock();
        *confirmed = Moment { at: confirmed.at.max(sent.at), since_boot: confirmed.since_boot.max(sent.since_boot) };
    }

    /// Whether something that takes up to `span` will end before the lease.
    pub(in crate::engine) fn fits(&self, span: Duration) -> bool {
        let (now, confirmed) = (Moment::now(), *self.confirmed.lock());
        now.at + span <= confirmed.at + self.length && now.since_boot + span <= confirmed.since_boot + self.length
    }
}

/// A point in time on two clocks. Tests can pause the runtime's clock, which also stops while the machine sleeps; the
/// boot clock does not.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Moment {
    at: Instant,
    since_boot: Duration,
}

impl Moment {
    pub(in crate::engine) fn now() -> Moment {
        Moment { at: Instant::now(), since_boot: since_boot() }
    }
}

/// All leases of this instance in one shard.
#[derive(Default)]
pub(in crate::engine) struct Leases {
    held: Mutex<BTreeMap<Token, Arc<Lease>>>,
}

impl Leases {
    /// Adds a claim that was sent at `sent`. From now on its lease is renewed.
    pub(in crate::engine) fn open(&self, token: Token, lane: Lane, length: Duration, sent: Moment) -> Arc<Lease> {
        let confirmed = Mutex::new(sent);
        let lease = Arc::new(Lease { token, lane, length, confirmed, lost: CancellationToken::new() });
        self.held.lock().insert(lease.token.clone(), Arc::clone(&lease));
        lease
    }

    /// Removes a claim that has ended.
    pub(in crate::engine) fn close(&self, token: &Token) {
        self.held.lock().remove(token);
    }

    /// Whether a claim is held.
    pub(in crate::engine) fn holds(&self, token: &Token) -> bool {
        self.held.lock().contains_key(token)
    }

    pub(in crate::engine) fn all(&self) -> Vec<Arc<Lease>> {
        self.held.lock().values().cloned().collect()
    }
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
        // The machine slept nine seconds, which the runtime's clock does not see.
        let slept = Moment { at: Instant::now(), since_boot: now.since_boot.saturating_sub(Duration::from_secs(9)) };
        assert!(!open(slept).fits(span) || cfg!(not(target_os = "linux")));
    }
}
