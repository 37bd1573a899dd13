//! How often a message is tried again, and after how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One publish, then at most `max` retries; the wait before retry n = 0, 1, ... is `interval * 2^n + random(0..jitter)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Retries after the first publish.
    pub max: u32,
    /// Wait before the first retry; doubles with each.
    #[serde(with = "super::schedule::as_millis")]
    pub interval: Duration,
    /// Upper bound of what is added to each wait at random.
    #[serde(with = "super::schedule::as_millis")]
    pub jitter: Duration,
}

impl RetryPolicy {
    /// The policy of tasks that name none: 3 retries, 200 ms doubling, up to 500 ms of jitter: 2900 ms at worst.
    pub const DEFAULT: RetryPolicy =
        RetryPolicy { max: 3, interval: Duration::from_millis(200), jitter: Duration::from_millis(500) };

    /// The longest worst case that a policy may have.
    pub const LONGEST: Duration = Duration::from_secs(30);

    /// The most that all waits together can take: the sum of `interval * 2^n + jitter`, saturating.
    #[must_use]
    pub fn worst_case(&self) -> Duration {
        todo!()
    }

    /// The wait before retry `n`, from 0; `random` is from 0 (inclusive) to 1 (exclusive).
    #[must_use]
    pub fn wait(&self, n: u32, random: f64) -> Duration {
        let _ = (n, random);
        todo!()
    }

    /// The policy with only as many retries as end before `gap` has passed: its worst case is below `gap`.
    #[must_use]
    pub fn shortened_to(&self, gap: Duration) -> RetryPolicy {
        let _ = gap;
        todo!()
    }
}
