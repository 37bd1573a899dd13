//! What all instances published in the last seconds. Each counts its own outcomes and sends them with its beats; everyone
//! sums them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::metrics::LATENESS_BUCKETS;
use crate::task::Lane;

/// Published messages are summed over this time.
const WINDOW: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);

/// Maximum number of lanes that are summed.
const MAX_LANES: usize = 1000;

/// Outcomes of the messages of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct OutcomeCounts {
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) accepted: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) duplicate: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) retry: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) rejected: u64,
    /// Number of messages that a broker took in each of [`LATENESS_BUCKETS`], and of later ones. Zeros at the end are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lateness: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl OutcomeCounts {
    pub(super) fn is_empty(&self) -> bool {
        self == &OutcomeCounts::default()
    }

    fn count_late(&mut self, late: Duration) {
        let late = late.as_secs_f64();
        let bucket = LATENESS_BUCKETS.partition_point(|bound| *bound < late);
        let buckets = self.lateness.len().max(bucket + 1);
        self.lateness.resize(buckets, 0);
        self.lateness[bucket] += 1;
    }

    /// Adds other counts. Those of an unknown bucket are left out.
    pub(super) fn add(&mut self, other: &OutcomeCounts) {
        let numbers = [&mut self.accepted, &mut self.duplicate, &mut self.retry, &mut self.rejected];
        for (sum, more) in numbers.into_iter().zip([other.accepted, other.duplicate, other.retry, other.rejected]) {
            *sum = sum.saturating_add(more);
        }
        let buckets = other.lateness.len().min(LATENESS_BUCKETS.len() + 1).max(self.lateness.len());
        self.lateness.resize(buckets, 0);
        for (sum, more) in self.lateness.iter_mut().zip(&other.lateness) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// The lateness that this share of the messages did not exceed, estimated within its bucket as Prometheus does; `None` if
    /// there are none. A message beyond the last bucket counts with the bound of that bucket.
    fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = self.lateness.iter().map(|count| *count as f64).sum::<f64>() * share;
        let mut before = 0.0;
        for (bucket, count) in self.lateness.iter().enumerate().filter(|(_, count)| **count > 0) {
            if before + *count as f64 >= wanted {
                let from = bucket.checked_sub(1).map_or(0.0, |bucket| LATENESS_BUCKETS[bucket]);
                let to = LATENESS_BUCKETS.get(bucket).copied().unwrap_or(from);
                return Some(Duration::from_secs_f64(from + (to - from) * (wanted - before) / *count as f64));
            }
            before += *count as f64;
        }
        None
    }
}

/// Counts the outcomes of one lane on this instance until they are sent.
#[derive(Default)]
pub(in crate::engine) struct OutcomeCounter(Mutex<OutcomeCounts>);

impl OutcomeCounter {
    /// Counts a message that was accepted this long after its due.
    pub(in crate::engine) fn accepted(&self, late: Duration) {
        let mut counts = self.0.lock();
        counts.accepted += 1;
        counts.count_late(late);
    }

    /// Counts a message that the broker dropped, this long after its due, because it had one with this key.
    pub(in crate::engine) fn duplicate(&self, late: Duration) {
        let mut counts = self.0.lock();
        counts.duplicate += 1;
        counts.count_late(late);
    }

    /// Counts a message with an unknown outcome, or that may be accepted later.
    pub(in crate::engine) fn retry(&self) {
        self.0.lock().retry += 1;
    }

    /// Counts a message that can never be accepted.
    pub(in crate::engine) fn rejected(&self) {
        self.0.lock().rejected += 1;
    }

    pub(super) fn take(&self) -> OutcomeCounts {
        std::mem::take(&mut self.0.lock())
    }

    /// Puts counts back that were not sent.
    pub(super) fn put_back(&self, counts: &OutcomeCounts) {
        self.0.lock().add(counts);
    }
}

/// What all instances published of a lane in the last 10 s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PublishRate {
    /// Messages that a broker took, per second.
    pub per_second: f64,
    /// How late half of them were at most, and 99 % of them; `None` if there were none.
    pub lateness: Option<(Duration, Duration)>,
}

/// The outcomes that all instances sent with their beats, by the second of their arrival.
#[derive(Default)]
pub(super) struct RecentOutcomes {
    seconds: VecDeque<(Instant, BTreeMap<Lane, OutcomeCounts>)>,
}

impl RecentOutcomes {
    /// Adds the outcomes of a beat.
    pub(super) fn note(&mut self, outcomes: &BTreeMap<Lane, OutcomeCounts>, now: Instant) {
        self.seconds.retain(|(from, _)| now.saturating_duration_since(*from) < WINDOW + SECOND);
        if self.seconds.back().is_none_or(|(from, _)| now.saturating_duration_since(*from) >= SECOND) {
            self.seconds.push_back((now, BTreeMap::new()));
        }
        let Some((_, sums)) = self.seconds.back_mut() else { return };
        for (lane, counts) in outcomes {
            if sums.len() < MAX_LANES || sums.contains_key(lane) {
                sums.entry(lane.clone()).or_default().add(counts);
            }
        }
    }

    /// The rate of each lane with outcomes, also if no message was accepted.
    pub(super) fn rates(&self, now: Instant) -> BTreeMap<Lane, PublishRate> {
        // Each instance sends about one beat in a whole second.
        let is_whole = |from: Instant| (SECOND..WINDOW + SECOND).contains(&now.saturating_duration_since(from));
        let whole = || self.seconds.iter().filter(|(from, _)| is_whole(*from));
        let (Some((first, _)), Some((last, _))) = (whole().next(), whole().next_back()) else { return BTreeMap::new() };
        let seconds = (last.saturating_duration_since(*first) + SECOND).as_secs_f64();
        let mut sums = BTreeMap::<&Lane, OutcomeCounts>::new();
        whole().flat_map(|(_, sums)| sums).for_each(|(lane, counts)| sums.entry(lane).or_default().add(counts));
        let rate = |sum: &OutcomeCounts| PublishRate {
            per_second: sum.accepted.saturating_add(sum.duplicate) as f64 / seconds,
            lateness: sum.quantile(0.5).zip(sum.quantile(0.99)),
        };
        sums.iter().map(|(lane, sum)| ((*lane).clone(), rate(sum))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn late(all: &[u64]) -> OutcomeCounts {
        let counter = OutcomeCounter::default();
        all.iter().for_each(|&late| counter.accepted(ms(late)));
        counter.take()
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_the_message() {
        let quantiles = |all: &[u64]| late(all).quantile(0.5).zip(late(all).quantile(0.99));
        assert_eq!(quantiles(&[]), None);
        // Buckets end at 0.5, 1, 1.5, 2, 3 and 5 ms.
        assert_eq!(quantiles(&[0]), Some((Duration::from_micros(250), Duration::from_micros(495))));
        assert_eq!(quantiles(&[1, 1, 3, 3]), Some((ms(1), Duration::from_micros(2980))));
        assert_eq!(quantiles(&[700_000, 900_000]), Some((ms(600_000), ms(600_000))), "later than the last bound");
        let mut counts = late(&[1]);
        counts.add(&late(&[4]));
        assert_eq!(counts, late(&[1, 4]));
        let of_later_version = OutcomeCounts { lateness: vec![1; 100], ..OutcomeCounts::default() };
        counts.add(&of_later_version);
        assert_eq!(counts.lateness.len(), LATENESS_BUCKETS.len() + 1);
    }

    #[test]
    fn a_rate_is_that_of_the_last_10_s_of_all_instances() {
        let (start, lane) = (Instant::now(), Lane::default());
        let mut recent = RecentOutcomes::default();
        let beat = |accepted| {
            BTreeMap::from([(lane.clone(), OutcomeCounts { accepted, duplicate: 5, ..OutcomeCounts::default() })])
        };
        assert!(recent.rates(start).is_empty());
        for second in 0..20 {
            for instance in 0..2 {
                recent.note(&beat(5), start + ms(second * 1000 + instance * 400));
            }
            assert!(recent.seconds.len() <= 12);
            // At any moment, also right after a start.
            for part in [400, 700, 900].into_iter().filter(|_| second > 0) {
                let rates = recent.rates(start + ms(second * 1000 + part));
                assert_eq!((rates.len(), rates[&lane].per_second), (1, 20.0), "{second} {part}");
            }
        }
        assert!(recent.rates(start + ms(40_000)).is_empty());
        // The sums of numbers that nobody can have counted do not overflow.
        let most = OutcomeCounts { accepted: u64::MAX, duplicate: u64::MAX, lateness: vec![u64::MAX; 23], ..late(&[]) };
        for _ in 0..2 {
            recent.note(&BTreeMap::from([(lane.clone(), most.clone())]), start + ms(50_000));
        }
        let rate = recent.rates(start + ms(51_000))[&lane];
        assert!(rate.per_second > 1e19 && rate.lateness.is_some(), "{rate:?}");
    }
}
