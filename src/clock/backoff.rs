//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double with each failed attempt, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// From `first` to `max`.
    pub(crate) const fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    /// The pause before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// The pause after this many failed attempts.
    pub(crate) fn after(self, failures: u32) -> Duration {
        self.next.saturating_mul(2_u32.saturating_pow(failures)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let ms = Duration::from_millis;
        let backoff = Backoff::new(ms(200), ms(5000));
        let mut pauses = backoff;
        let waits: Vec<Duration> = (0..7).map(|_| pauses.next()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000].map(ms));
        assert_eq!([0, 3, 40, u32::MAX].map(|failures| backoff.after(failures)), [200, 1600, 5000, 5000].map(ms));
    }
}
