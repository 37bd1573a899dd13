//! How late occurrences were, counted from their due, so that an occurrence that waits behind a late one counts as late, too.

use anyhow::Context;
use hdrhistogram::Histogram;

use super::report::Report;

/// The largest value in us: an hour. Anything later counts as this.
const MAX_LATENESS_US: u64 = 3_600_000_000;

/// Lateness in us, to three digits.
#[derive(Clone, Debug)]
pub(super) struct Late {
    histogram: Histogram<u64>,
    /// Number of messages that arrived before their due; must be 0.
    early: u64,
    /// The smallest value in us; negative if a message was early.
    least: i64,
}

impl Late {
    /// An empty one.
    pub(super) fn new() -> anyhow::Result<Late> {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENESS_US, 3).context("cannot make a histogram")?;
        Ok(Late { histogram, early: 0, least: i64::MAX })
    }

    /// Adds one value in us.
    pub(super) fn add(&mut self, micros: i64) {
        self.least = self.least.min(micros);
        self.early += u64::from(micros < 0);
        self.histogram.saturating_record(u64::try_from(micros).unwrap_or(0));
    }

    /// Adds all values of another.
    ///
    /// # Errors
    /// None: both have the same bounds.
    pub(super) fn add_all(&mut self, other: &Late) -> anyhow::Result<()> {
        self.histogram.add(&other.histogram).context("cannot add histograms")?;
        self.early += other.early;
        self.least = self.least.min(other.least);
        Ok(())
    }

    /// Number of values.
    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The quantile in ms; `None` if empty.
    pub(super) fn ms(&self, share: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.histogram.value_at_quantile(share) as f64 / 1000.0)
    }

    /// The maximum in ms.
    pub(super) fn most_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.histogram.max() as f64 / 1000.0)
    }

    /// Adds all figures to the report, with a prefix.
    pub(super) fn show(&self, report: &mut Report, prefix: &str, text: &str) {
        report.figure(format!("{prefix}count"), self.count() as f64, format!("occurrences, {text}"));
        for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
            report.figure(format!("{prefix}{name}_ms"), self.ms(share), "from the due to the consumer");
        }
        report.figure(format!("{prefix}max_ms"), self.most_ms(), "");
        let least = (self.count() > 0).then_some(self.least as f64 / 1000.0);
        report.figure(format!("{prefix}min_ms"), least, "below zero would be early");
        report.figure(format!("{prefix}early_count"), self.early as f64, "must be 0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_cover_all_values_and_early_values_are_counted() {
        let mut late = Late::new().unwrap();
        assert_eq!((late.ms(0.5), late.most_ms()), (None, None));
        (1..=1000).for_each(|ms| late.add(ms * 1000));
        late.add(-3000);
        let near = |value: Option<f64>, ms: f64| value.is_some_and(|value| (value - ms).abs() <= ms / 500.0);
        assert!(near(late.ms(0.5), 500.0) && near(late.ms(0.99), 990.0) && near(late.most_ms(), 1000.0));
        assert_eq!((late.count(), late.early, late.least), (1001, 1, -3000));
        let mut all = Late::new().unwrap();
        all.add(5_000_000);
        all.add_all(&late).unwrap();
        assert_eq!((all.count(), all.early, all.least), (1002, 1, -3000));
        assert!(near(all.ms(0.5), 500.0) && near(all.most_ms(), 5000.0));
    }
}
