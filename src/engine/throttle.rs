//! Limits how often something happens.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lets something happen once in each pause.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<Option<Instant>>);

impl Throttle {
    /// Pauses for at least `span` from now on.
    pub(super) fn pause(&self, span: Duration) {
        let mut until = self.0.lock();
        *until = (*until).max(Some(Instant::now() + span));
    }

    /// The end of the pause, if there is one.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.0.lock().filter(|until| *until > Instant::now())
    }

    /// Returns true and begins a pause of `span`, unless there is a pause already.
    pub(super) fn passes(&self, span: Duration) -> bool {
        let (mut until, now) = (self.0.lock(), Instant::now());
        let passes = until.is_none_or(|until| until <= now);
        if passes {
            *until = Some(now + span);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_throttle_passes_again_after_its_pause() {
        let (throttle, second) = (Throttle::default(), Duration::from_secs(1));
        assert!(throttle.passes(second) && !throttle.passes(second));
        tokio::time::advance(second).await;
        assert!(throttle.paused_until().is_none() && throttle.passes(second));
        throttle.pause(second * 3);
        throttle.pause(second);
        assert_eq!(throttle.paused_until(), Some(Instant::now() + second * 3), "the longer rest goes on");
    }
}
