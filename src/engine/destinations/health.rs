//! How a destination is doing, or several of them together, judged by the failures that were observed there. Time without
//! attempts is no evidence.

use std::time::Duration;

use tokio::time::Instant;

/// If the sink does not name the destination as the cause, it is at fault only after failing this long. A nack or a
/// change of leader ends sooner.
pub(super) const FAULT_DELAY: Duration = Duration::from_secs(2);

/// The pause between two trials of a destination that is given up.
pub(super) const TRIAL_INTERVAL: Duration = Duration::from_secs(5);

/// The health of a destination, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Health {
    /// No message failed there lately.
    #[default]
    Well,
    /// Messages fail there, but that says nothing about the destination yet.
    Failing,
    /// The destination is the cause: the sink says so, or accepts messages for others.
    AtFault,
    /// It has been at fault for `patience`. Its messages are dead, except for one trial every few seconds.
    GivenUp,
}

impl Health {
    /// Its name in the API.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Health::Well => "well",
            Health::Failing => "failing",
            Health::AtFault => "at_fault",
            Health::GivenUp => "given_up",
        }
    }
}

/// The failures that were observed since a message was accepted.
#[derive(Default)]
pub(super) struct Failures {
    /// The first and the last failure.
    observed: Option<(Instant, Instant)>,
    /// Whether the sink named the destination as the cause of one.
    blamed_by_sink: bool,
}

impl Failures {
    /// Notes a failure. Earlier ones are forgotten if the last of them was long ago.
    pub(super) fn add(&mut self, now: Instant, blamed_by_sink: bool, patience: Duration) {
        if self.observed.is_some_and(|(_, last)| is_long_ago(last, now, patience)) {
            self.forget();
        }
        let first = self.observed.map_or(now, |(first, _)| first);
        self.observed = Some((first, now));
        self.blamed_by_sink |= blamed_by_sink;
    }

    /// How long ago the first one was.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.observed.map_or(Duration::ZERO, |(first, _)| now.duration_since(first))
    }

    pub(super) fn forget(&mut self) {
        *self = Failures::default();
    }

    /// Whether a message that was sent at `sent` and accepted ends them.
    pub(super) fn end_with(&self, sent: Instant) -> bool {
        self.blamed_by_sink || self.observed.is_some_and(|(first, _)| first <= sent)
    }

    /// The health that follows from these failures. `sink_accepted` is the send time of the last message that the sink
    /// accepted, for any destination. A destination at fault is given up once it has failed for `give_up_after`. That
    /// is at least the shorter one of [`FAULT_DELAY`] and `patience`.
    pub(super) fn health(
        &self,
        now: Instant,
        sink_accepted: Option<Instant>,
        patience: Duration,
        give_up_after: Duration,
    ) -> Health {
        let Some((first, last)) = self.observed.filter(|(_, last)| !is_long_ago(*last, now, patience)) else {
            return Health::Well;
        };
        let failing_for = last.duration_since(first);
        // This destination accepted nothing since `first`, so a later accepted message went to another one.
        let others_accept = sink_accepted.is_some_and(|accepted| accepted >= first);
        let at_fault = self.blamed_by_sink || (others_accept && failing_for >= FAULT_DELAY.min(patience));
        match at_fault {
            false => Health::Failing,
            true if failing_for < give_up_after => Health::AtFault,
            true => Health::GivenUp,
        }
    }
}

/// Whether the last failure is so long ago that all failures are forgotten.
pub(super) fn is_long_ago(last: Instant, now: Instant, patience: Duration) -> bool {
    now.duration_since(last) > patience.max(TRIAL_INTERVAL * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn health_follows_from_the_observed_failures_and_acceptances() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (failed_at, blamed_by_sink, sink_accepted, now, expected) in [
            (&[][..], false, Some(0), 0, Health::Well),
            (&[10], false, None, 10, Health::Failing),
            (&[10], true, None, 10, Health::AtFault),
            (&[10, 11], false, Some(11), 11, Health::Failing),
            (&[10, 12], false, Some(11), 12, Health::AtFault),
            (&[10, 12], false, Some(9), 12, Health::Failing),
            (&[10, 40], false, None, 40, Health::Failing),
            (&[10, 40], false, Some(39), 40, Health::GivenUp),
            (&[10, 40], true, None, 40, Health::GivenUp),
            (&[10, 40], true, None, 70, Health::GivenUp),
            (&[10, 40], true, None, 71, Health::Well),
            (&[10, 41], true, None, 41, Health::AtFault),
        ] {
            let mut failures = Failures::default();
            failed_at.iter().for_each(|second| failures.add(at(*second), blamed_by_sink, PATIENCE));
            let health = failures.health(at(now), sink_accepted.map(at), PATIENCE, PATIENCE);
            assert_eq!(health, expected, "{failed_at:?}, blamed: {blamed_by_sink}, at {now}");
        }
    }
}
