//! The breaker of a sink: while the sink is unavailable, its lanes are not claimed.
//!
//! It opens when a connection is refused or closed, or when a sink answers no message within `answer_timeout` and then
//! fails a probe. While it is open, the sink is probed with backoff and jitter (see `prober`). After a successful probe
//! it admits one batch, and it closes once the sink has answered a message. It is open when an instance starts, and the
//! first successful probe of the instance closes it at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::metrics::SinkMetrics;

/// What a breaker admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Every claim: the sink answers.
    Closed,
    /// One batch as a trial: a probe succeeded.
    HalfOpen {
        /// The number of the trial that is under way.
        taken: Option<u64>,
        /// Failed probes and trials since it opened. The pause between probes grows with it.
        failures: u32,
    },
    /// No claim: the sink is unavailable.
    Open {
        /// Why the sink counts as unavailable.
        detail: String,
        /// Failed probes and trials since it opened. The pause between probes grows with it.
        failures: u32,
    },
}

/// The breaker of one sink.
pub(super) struct Breaker {
    pub(super) state: watch::Sender<BreakerState>,
    pub(super) probe_request: Notify,
    trials: AtomicU64,
    /// Since when it is not closed.
    opened_at: Mutex<Option<Instant>>,
    metrics: SinkMetrics,
}

impl BreakerState {
    fn is_open(&self) -> bool {
        matches!(self, BreakerState::Open { .. })
    }
}

impl Breaker {
    /// Open until the first probe succeeds, so that nothing is claimed for a sink that is unavailable at the start.
    pub(super) fn new(metrics: SinkMetrics) -> Breaker {
        let state = BreakerState::Open { detail: "not tried yet".to_owned(), failures: 0 };
        let breaker = Breaker {
            state: watch::Sender::new(state),
            probe_request: Notify::new(),
            trials: AtomicU64::new(1),
            opened_at: Mutex::new(Some(Instant::now())),
            metrics,
        };
        breaker.show();
        breaker
    }

    /// Waits until a batch may be claimed. A returned number means that the claim is a trial and that its end must be
    /// reported.
    pub(super) async fn admit(&self) -> Option<u64> {
        let mut changes = self.state.subscribe();
        loop {
            if *changes.borrow_and_update() == BreakerState::Closed {
                return None;
            }
            let trial = self.trials.fetch_add(1, Ordering::Relaxed);
            let taken = self.state.send_if_modified(|state| match state {
                BreakerState::HalfOpen { taken: taken @ None, .. } => {
                    *taken = Some(trial);
                    true
                }
                _ => false,
            });
            if taken {
                return Some(trial);
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reports a trial that ended without an answer: no task was due, or the sink did not answer. The next claim is a
    /// trial again.
    pub(super) fn trial_unused(&self, trial: u64) {
        self.change(|state| match state {
            BreakerState::HalfOpen { taken, failures } if *taken == Some(trial) => {
                Some(BreakerState::HalfOpen { taken: None, failures: *failures })
            }
            _ => None,
        });
    }

    /// Whether a claim may still publish, given the trial number it was admitted with.
    pub(super) fn admits(&self, trial: Option<u64>) -> bool {
        match &*self.state.borrow() {
            BreakerState::Closed => true,
            BreakerState::HalfOpen { taken, .. } => trial.is_some() && *taken == trial,
            BreakerState::Open { .. } => false,
        }
    }

    /// The sink answered a message. If this closed the breaker, returns for how long it was not closed.
    pub(super) fn answered(&self) -> Option<Duration> {
        if *self.state.borrow() == BreakerState::Closed {
            return None;
        }
        let closed = self.change(|state| match state {
            BreakerState::HalfOpen { .. } => Some(BreakerState::Closed),
            _ => None,
        });
        closed.then(|| self.opened_at.lock().take().map_or(Duration::ZERO, |at| at.elapsed()))
    }

    /// Opens the breaker; `detail` says why. Returns whether it was not open before.
    pub(super) fn trip(&self, detail: &str) -> bool {
        self.opened_at.lock().get_or_insert_with(Instant::now);
        self.change(|state| match state {
            BreakerState::Closed => Some(BreakerState::Open { detail: detail.to_owned(), failures: 0 }),
            BreakerState::HalfOpen { failures, .. } => {
                Some(BreakerState::Open { detail: detail.to_owned(), failures: failures.saturating_add(1) })
            }
            BreakerState::Open { .. } => None,
        })
    }

    /// The sink has not answered for long. The prober checks whether it is unavailable.
    pub(super) fn request_probe(&self) {
        self.probe_request.notify_one();
    }

    /// Waits until the breaker is open.
    pub(super) async fn opened(&self) {
        let mut changes = self.state.subscribe();
        if changes.wait_for(BreakerState::is_open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether it is open now.
    pub(super) fn is_open(&self) -> bool {
        self.state.borrow().is_open()
    }

    /// The current state.
    pub(super) fn state(&self) -> BreakerState {
        self.state.borrow().clone()
    }

    /// The first probe of an instance has succeeded: closes the breaker at once.
    pub(super) fn first_probe_succeeded(&self) {
        *self.opened_at.lock() = None;
        self.change(|state| state.is_open().then_some(BreakerState::Closed));
    }

    /// A later probe has ended: if it succeeded, one batch is the trial. Returns whether the breaker was open.
    pub(super) fn probed(&self, result: Result<(), String>) -> bool {
        self.change(|state| match (state, &result) {
            (BreakerState::Open { failures, .. }, Ok(())) => {
                Some(BreakerState::HalfOpen { taken: None, failures: *failures })
            }
            (BreakerState::Open { failures, .. }, Err(detail)) => {
                Some(BreakerState::Open { detail: detail.clone(), failures: failures.saturating_add(1) })
            }
            _ => None,
        })
    }

    fn change(&self, next: impl FnOnce(&BreakerState) -> Option<BreakerState>) -> bool {
        let changed = self.state.send_if_modified(|state| match next(state) {
            Some(next) => {
                *state = next;
                true
            }
            None => false,
        });
        self.show();
        changed
    }

    fn show(&self) {
        self.metrics.breaker.set(match *self.state.borrow() {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen { .. } => 1,
            BreakerState::Open { .. } => 2,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;

    fn breaker() -> Breaker {
        Breaker::new(Metrics::new("0", "i").sink("s"))
    }

    #[tokio::test]
    async fn after_a_probe_one_trial_batch_is_admitted_and_its_answer_closes_the_breaker() {
        let breaker = breaker();
        assert!(breaker.probed(Ok(())));
        let trial = breaker.admit().await;
        assert!(trial.is_some() && breaker.admits(trial), "the first is the trial");
        assert!(!breaker.admits(None), "what was admitted before waits, too");
        let second = tokio::time::timeout(Duration::from_millis(20), breaker.admit()).await;
        assert!(second.is_err(), "a second batch waits for the trial");
        assert!(breaker.answered().is_some());
        assert!(breaker.answered().is_none(), "no news");
        assert_eq!(breaker.admit().await, None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test]
    async fn an_unused_trial_is_available_again_and_a_failed_one_lengthens_the_wait() {
        let breaker = breaker();
        breaker.probed(Ok(()));
        let first = breaker.admit().await.unwrap();
        breaker.trial_unused(first);
        let second = breaker.admit().await.unwrap();
        breaker.trial_unused(first);
        assert!(breaker.admits(Some(second)), "a trial is ended by its own holder alone");
        assert!(breaker.trip("refused"));
        assert_eq!(breaker.state(), BreakerState::Open { detail: "refused".into(), failures: 1 });
        assert!(!breaker.trip("refused"), "no news");
        breaker.opened().await;
    }
}
