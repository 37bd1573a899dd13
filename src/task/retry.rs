//! How often a message is retried, and after which pauses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::schedule::ScheduleError;
use super::{Record, Task};
use crate::clock::Timestamp;

/// One publish, then at most `max` retries. The pause before retry n = 0, 1, ... is `interval * 2^n +
/// random(0..jitter)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Retries after the first publish.
    pub max: u32,
    /// The pause before the first retry; it doubles with each retry.
    #[serde(with = "super::schedule::as_millis")]
    pub interval: Duration,
    /// Upper bound of the random part of each pause.
    #[serde(with = "super::schedule::as_millis")]
    pub jitter: Duration,
}

impl RetryPolicy {
    /// The default: 3 retries, 200 ms doubling, up to 500 ms of jitter; 2900 ms at worst.
    pub const DEFAULT: RetryPolicy =
        RetryPolicy { max: 3, interval: Duration::from_millis(200), jitter: Duration::from_millis(500) };

    /// The longest worst case of a valid policy.
    pub const MAX_WAIT: Duration = Duration::from_secs(30);

    /// The sum of all pauses at their maximum: `interval * 2^n + jitter` each, saturating.
    #[must_use]
    pub fn worst_case(&self) -> Duration {
        // interval * (1 + 2 + 4 + ...) = interval * (2^max - 1); from 2^64 on every sum saturates.
        let doubled = self.interval.as_nanos().saturating_mul((1_u128 << self.max.min(64)) - 1);
        let jittered = self.jitter.as_nanos().saturating_mul(u128::from(self.max));
        nanos(doubled.saturating_add(jittered))
    }

    /// The pause before retry `n`, from 0; `random` is from 0 (inclusive) to 1 (exclusive).
    #[must_use]
    pub fn wait(&self, n: u32, random: f64) -> Duration {
        let doubled = nanos(self.interval.as_nanos().saturating_mul(1_u128 << n.min(64)));
        let jitter = Duration::try_from_secs_f64(self.jitter.as_secs_f64() * random.clamp(0.0, 1.0));
        doubled.saturating_add(jitter.map_or(self.jitter, |jitter| jitter.min(self.jitter)))
    }

    /// The policy with only those retries that end before `gap` has passed, even at worst.
    #[must_use]
    pub fn shortened_to(&self, gap: Duration) -> RetryPolicy {
        let with = |max| RetryPolicy { max, ..*self };
        let (mut fits, mut untold) = (0, self.max);
        while fits < untold {
            let middle = untold - (untold - fits) / 2;
            match with(middle).worst_case() < gap {
                true => fits = middle,
                false => untold = middle - 1,
            }
        }
        with(fits)
    }
}

impl Task {
    /// The policy at `now` of a task that was put at `anchor`: the user's, or the default with only those retries that
    /// end before the next occurrence can be due.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn retry_policy(&self, anchor: Timestamp, now: Timestamp) -> Result<RetryPolicy, ScheduleError> {
        if let Some(policy) = self.retry {
            return Ok(policy);
        }
        let time = self.schedule.retry_time(anchor, now)?;
        Ok(time.map_or(RetryPolicy::DEFAULT, |time| RetryPolicy::DEFAULT.shortened_to(time)))
    }
}

impl Record {
    /// The policy at `now`: see [`Task::retry_policy`]. A requeued occurrence has no next one to make room for.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn retry_policy(&self, now: Timestamp) -> Result<RetryPolicy, ScheduleError> {
        match self.requeued {
            Some(_) => Ok(self.task.retry.unwrap_or(RetryPolicy::DEFAULT)),
            None => self.task.retry_policy(self.anchor, now),
        }
    }
}

fn nanos(nanos: u128) -> Duration {
    // Seconds beyond u64 saturate; such a policy is refused anyway.
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanos % 1_000_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::{When, samples};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_default_policy_takes_2900_ms_at_worst() {
        assert_eq!(RetryPolicy::DEFAULT.worst_case(), ms(700 + 900 + 1300));
        assert_eq!(RetryPolicy { max: 0, ..RetryPolicy::DEFAULT }.worst_case(), Duration::ZERO);
    }

    #[test]
    fn a_retry_policy_with_maximum_values_saturates() {
        let policy = RetryPolicy { max: u32::MAX, interval: Duration::MAX, jitter: Duration::MAX };
        assert!(policy.worst_case() > ms(u64::MAX));
        assert!(policy.wait(u32::MAX, 1.0) > ms(u64::MAX));
    }

    #[test]
    fn the_default_is_shortened_to_the_retries_that_fit() {
        let retries = |gap| RetryPolicy::DEFAULT.shortened_to(gap).max;
        assert_eq!(retries(ms(1000)), 1);
        assert_eq!(retries(ms(500)), 0);
        assert_eq!((retries(ms(700)), retries(ms(701))), (0, 1));
        assert_eq!((retries(ms(2900)), retries(ms(2901)), retries(ms(60_000))), (2, 3, 3));
    }

    #[test]
    fn a_task_keeps_the_policy_of_its_user_and_shortens_only_the_default() {
        let (anchor, now) = (samples::NOW, samples::NOW.plus(ms(5000)));
        let mut task = samples::task(When::Every { gap: ms(1000), start: None });
        assert_eq!(task.retry_policy(anchor, now).unwrap().max, 1);
        task.schedule.spread = Some(ms(500));
        assert_eq!(task.retry_policy(anchor, now).unwrap().max, 0, "500 ms less of room");
        let record = Record::new(task.clone(), crate::task::Lane::default(), anchor);
        assert_eq!(record.retry_policy(now).unwrap().max, 0);
        assert_eq!(record.of_dead("a:5".parse().unwrap()).retry_policy(now).unwrap(), RetryPolicy::DEFAULT);
        let policy = RetryPolicy { max: 9, interval: ms(1), jitter: ms(0) };
        task.retry = Some(policy);
        assert_eq!(task.retry_policy(anchor, now).unwrap(), policy);
        let cron = |expression: &str| When::Cron { expression: expression.into(), zone: None, start: None };
        assert_eq!(samples::task(cron("* * * * * *")).retry_policy(anchor, now).unwrap().max, 1);
        assert_eq!(samples::task(cron("* * * * *")).retry_policy(anchor, now).unwrap().max, 3);
    }

    proptest! {
        #[test]
        fn waits_stay_within_the_worst_case(max in 0_u32..10, interval in 0_u64..5000, jitter in 0_u64..5000, random in 0.0..1.0) {
            let policy = RetryPolicy { max, interval: ms(interval), jitter: ms(jitter) };
            let waits: Duration = (0..max).map(|n| policy.wait(n, random)).sum();
            let longest: Duration = (0..max).map(|n| policy.wait(n, 1.0)).sum();
            prop_assert!(waits <= longest);
            prop_assert_eq!(longest, policy.worst_case());
        }

        /// The pause before retry n is `interval * 2^n`, and up to `jitter` more.
        #[test]
        fn each_wait_doubles_and_its_jitter_only_adds(
            n in 0_u32..20, interval in 1_u64..5000, jitter in 0_u64..5000, random in 0.0..1.0,
        ) {
            let policy = RetryPolicy { max: 30, interval: ms(interval), jitter: ms(jitter) };
            let (wait, least) = (policy.wait(n, random), ms(interval * 2_u64.pow(n)));
            prop_assert!(least <= wait && wait <= least + ms(jitter));
            prop_assert_eq!(policy.wait(n, 0.0), least);
            prop_assert_eq!(policy.wait(n, 1.0), least + ms(jitter));
        }

        #[test]
        fn the_worst_case_is_the_sum_of_the_longest_waits(max in 0_u32..20, interval in 1_u64..5000, jitter in 0_u64..5000) {
            let policy = RetryPolicy { max, interval: ms(interval), jitter: ms(jitter) };
            let sum: u64 = (0..max).map(|n| interval * 2_u64.pow(n) + jitter).sum();
            prop_assert_eq!(policy.worst_case(), ms(sum));
            let more = RetryPolicy { max: max + 1, ..policy };
            prop_assert!(more.worst_case() > policy.worst_case());
        }

        #[test]
        fn a_shortened_policy_is_the_longest_that_fits(max in 0_u32..50, interval in 0_u64..500, jitter in 0_u64..500, gap in 1_u64..5000) {
            let policy = RetryPolicy { max, interval: ms(interval), jitter: ms(jitter) };
            let short = policy.shortened_to(ms(gap));
            prop_assert!(short.worst_case() < ms(gap) && short.max <= max);
            let more = RetryPolicy { max: short.max + 1, ..policy };
            prop_assert!(short.max == max || more.worst_case() >= ms(gap));
        }
    }
}
