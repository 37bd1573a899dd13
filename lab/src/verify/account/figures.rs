//! A compact histogram of lateness.

use std::collections::BTreeMap;

/// Counts by lateness: exact to the ms up to a second, then to a hundredth.
#[derive(Clone, Debug, Default)]
pub(super) struct Lateness(BTreeMap<i64, u64>);

impl Lateness {
    /// Adds one value in ms.
    pub(super) fn add(&mut self, ms: i64) {
        let ms = if ms < 1000 { ms } else { ms - ms % (10_i64.pow(ms.ilog10()) / 100) };
        *self.0.entry(ms).or_default() += 1;
    }

    /// The median, the 99th percentile and the maximum; zeros if empty.
    pub(super) fn quantiles(&self) -> [i64; 3] {
        let all: u64 = self.0.values().sum();
        [50, 99, 100].map(|percent| {
            let mut left = (all * percent).div_ceil(100);
            let at = self.0.iter().find(|(_, count)| {
                left = left.saturating_sub(**count);
                left == 0
            });
            at.map_or(0, |(ms, _)| *ms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_the_quantiles_of_a_sorted_list() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.quantiles(), [0, 0, 0]);
        (1..=200).rev().for_each(|ms| lateness.add(ms));
        assert_eq!(lateness.quantiles(), [100, 198, 200]);
        lateness.add(123_456);
        assert_eq!(lateness.quantiles(), [101, 199, 123_000]);
    }
}
