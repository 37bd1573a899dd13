//! One breaker per sink: while a sink is absent its lanes are not claimed.
//!
//! Opens on unmistakable signs (refused, closed; nothing answered in a whole `answer_timeout` and a probe that fails),
//! probes with backoff and jitter, lets one batch through when a probe succeeds, and closes when the sink has answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use super::context::{Context, SinkContext};
use crate::clock::Backoff;
use crate::metrics::SinkMetrics;

/// The first wait between probes.
const MIN_PROBE_PAUSE: Duration = Duration::from_millis(200);

/// The longest wait between probes.
const MAX_PROBE_PAUSE: Duration = Duration::from_secs(5);

/// A sink that is suspect has to answer a probe within this.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a breaker lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// The sink answers: everything.
    Closed,
    /// A probe succeeded: one batch, to see.
    HalfOpen {
        /// The number of the trial that is under way.
        taken: Option<u64>,
        /// Probes and trials since it opened; the wait grows with it.
        failures: u32,
    },
    /// The sink is absent: nothing.
    Open {
        /// How it was noticed.
        words: String,
        /// Probes and trials since it opened; the wait grows with it.
        failures: u32,
    },
}

/// A sink's breaker.
pub(super) struct Breaker {
    state: watch::Sender<BreakerState>,
    suspicion: Notify,
    trials: AtomicU64,
    metrics: SinkMetrics,
}

impl Breaker {
    /// Open until the first probe: a sink that is absent at the start is not claimed for.
    pub(super) fn new(metrics: SinkMetrics) -> Breaker {
        let state = BreakerState::Open { words: "not tried yet".to_owned(), failures: 0 };
        let breaker =
            Breaker { state: watch::Sender::new(state), suspicion: Notify::new(), trials: AtomicU64::new(1), metrics };
        breaker.show();
        breaker
    }

    /// Waits until a batch may be claimed. With a number it is a trial, whose end is to be told.
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

    /// A trial ended without a word of the sink (nothing was due after all, or what was sent is not answered): the next
    /// claim is a trial.
    pub(super) fn trial_unused(&self, trial: u64) {
        self.change(|state| match state {
            BreakerState::HalfOpen { taken, failures } if *taken == Some(trial) => {
                Some(BreakerState::HalfOpen { taken: None, failures: *failures })
            }
            _ => None,
        });
    }

    /// Whether a claim may still be published that was admitted as `trial`, or without.
    pub(super) fn admits(&self, trial: Option<u64>) -> bool {
        match &*self.state.borrow() {
            BreakerState::Closed => true,
            BreakerState::HalfOpen { taken, .. } => trial.is_some() && *taken == trial,
            BreakerState::Open { .. } => false,
        }
    }

    /// The sink answered a message: it is there. Whether that is news.
    pub(super) fn answered(&self) -> bool {
        if *self.state.borrow() == BreakerState::Closed {
            return false;
        }
        self.change(|state| match state {
            BreakerState::HalfOpen { .. } => Some(BreakerState::Closed),
            _ => None,
        })
    }

    /// The sink is absent; `words` say how that was noticed. Whether that is news.
    pub(super) fn trip(&self, words: &str) -> bool {
        self.change(|state| match state {
            BreakerState::Closed => Some(BreakerState::Open { words: words.to_owned(), failures: 0 }),
            BreakerState::HalfOpen { failures, .. } => {
                Some(BreakerState::Open { words: words.to_owned(), failures: failures.saturating_add(1) })
            }
            BreakerState::Open { .. } => None,
        })
    }

    /// Nothing was answered for long: a probe decides whether the sink is there.
    pub(super) fn suspect(&self) {
        self.suspicion.notify_one();
    }

    /// Returns once it is open.
    pub(super) async fn opened(&self) {
        let mut changes = self.state.subscribe();
        let open = |state: &BreakerState| matches!(state, BreakerState::Open { .. });
        if changes.wait_for(open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What it lets through now.
    pub(super) fn state(&self) -> BreakerState {
        self.state.borrow().clone()
    }

    /// The very first probe succeeded: nothing speaks against the sink.
    fn found(&self) {
        self.change(|state| matches!(state, BreakerState::Open { .. }).then_some(BreakerState::Closed));
    }

    fn probed(&self, result: Result<(), String>) -> bool {
        self.change(|state| match (state, &result) {
            (BreakerState::Open { failures, .. }, Ok(())) => {
                Some(BreakerState::HalfOpen { taken: None, failures: *failures })
            }
            (BreakerState::Open { failures, .. }, Err(words)) => {
                Some(BreakerState::Open { words: words.clone(), failures: failures.saturating_add(1) })
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

/// Probes a sink while its breaker is open, and when it is suspect; ends with the engine.
pub(super) async fn run(context: Arc<Context>, sink: Arc<SinkContext>) {
    let probing = async {
        first_probe(&sink).await;
        let mut changes = sink.breaker.state.subscribe();
        // Whether it was told that the sink answers probes, since it was told to be absent.
        let mut told = false;
        loop {
            let state = changes.borrow_and_update().clone();
            match state {
                BreakerState::Open { words, failures } => {
                    told &= failures > 0;
                    told |= probe(&sink, &words, failures, told).await;
                }
                _ => tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = sink.breaker.suspicion.notified() => examine(&sink).await,
                },
            }
        }
    };
    tokio::select! {
        () = probing => {}
        () = context.closed.cancelled() => {}
    }
}

/// At the start, at once: a sink that is there is not waited for.
async fn first_probe(sink: &SinkContext) {
    match sink.sink.check().await {
        Ok(()) => sink.breaker.found(),
        Err(error) => {
            warn!(sink = sink.name, words = %error, "the sink is absent: its lanes are not claimed until it answers");
            sink.breaker.probed(Err(error.to_string()));
        }
    }
}

/// One probe of an absent sink, after its wait; whether it answered. Of an outage the first that does is worth a line:
/// a sink that answers probes, but no messages, is probed again and again.
async fn probe(sink: &SinkContext, words: &str, failures: u32, told: bool) -> bool {
    if failures == 0 {
        warn!(sink = sink.name, words, "the sink is absent: its lanes are not claimed until it answers");
    }
    tokio::time::sleep(backoff(failures, rand::random())).await;
    let result = sink.sink.check().await.map_err(|error| error.to_string());
    match &result {
        Ok(()) if told => debug!(sink = sink.name, "the sink answers a probe again: one more batch is tried"),
        Ok(()) => info!(sink = sink.name, "the sink answers a probe: one batch is tried"),
        Err(words) => debug!(sink = sink.name, words, "the sink is still absent"),
    }
    let answers = result.is_ok();
    sink.breaker.probed(result);
    answers
}

/// A probe of a sink that left a whole batch without an answer.
async fn examine(sink: &SinkContext) {
    let words = match tokio::time::timeout(PROBE_TIMEOUT, sink.sink.check()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("neither messages nor a probe of {PROBE_TIMEOUT:?} were answered"),
    };
    sink.trip(&words);
}

/// The wait before the next probe: doubles from 200 ms to 5 s; `random` (0 to 1) takes off up to half.
fn backoff(failures: u32, random: f64) -> Duration {
    Backoff::new(MIN_PROBE_PAUSE, MAX_PROBE_PAUSE).after(failures).mul_f64(1.0 - random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn breaker() -> Breaker {
        Breaker::new(Metrics::new("0", "i").sink("s"))
    }

    #[test]
    fn the_wait_between_probes_doubles_up_to_five_seconds_and_loses_half_at_most() {
        assert_eq!(backoff(0, 0.0), Duration::from_millis(200));
        assert_eq!(backoff(3, 0.0), Duration::from_millis(1600));
        assert_eq!(backoff(40, 0.0), MAX_PROBE_PAUSE);
        assert_eq!(backoff(40, 1.0), MAX_PROBE_PAUSE / 2);
    }

    #[tokio::test]
    async fn after_a_probe_one_batch_goes_through_and_its_answer_closes_the_breaker() {
        let breaker = breaker();
        assert!(breaker.probed(Ok(())));
        let trial = breaker.admit().await;
        assert!(trial.is_some() && breaker.admits(trial), "the first is the trial");
        assert!(!breaker.admits(None), "what was admitted before waits, too");
        let second = tokio::time::timeout(Duration::from_millis(20), breaker.admit()).await;
        assert!(second.is_err(), "a second batch waits for the trial");
        assert!(breaker.answered());
        assert!(!breaker.answered(), "no news");
        assert_eq!(breaker.admit().await, None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test]
    async fn an_unused_trial_is_free_again_and_a_failed_one_opens_with_a_longer_wait() {
        let breaker = breaker();
        breaker.probed(Ok(()));
        let first = breaker.admit().await.unwrap();
        breaker.trial_unused(first);
        let second = breaker.admit().await.unwrap();
        breaker.trial_unused(first);
        assert!(breaker.admits(Some(second)), "a trial is ended by its own holder alone");
        assert!(breaker.trip("refused"));
        assert_eq!(breaker.state(), BreakerState::Open { words: "refused".into(), failures: 1 });
        assert!(!breaker.trip("refused"), "no news");
        breaker.opened().await;
    }
}
