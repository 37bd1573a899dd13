//! How a destination is doing, or several of them together, judged by the failures that were observed there. Time without
//! attempts is no evidence.

use std::time::Duration;

use punctual_sinks::Fault;
use tokio::time::Instant;

/// If the sink does not name the destination as the cause, it is at fault only after failing this long. A nack or a
/// change of leader ends sooner. It is also the patience of a new destination once the shared one is used up.
pub(super) const FAULT_DELAY: Duration = Duration::from_secs(2);

/// The pause between two trials of a destination that is given up.
pub(super) const TRIAL_INTERVAL: Duration = Duration::from_secs(5);

/// The health of a destination, from good to bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Health {
    /// No message failed there lately, or one was accepted since.
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
    /// The first and the last failure that count against `patience`, since the destination was last full.
    counted: Option<(Instant, Instant)>,
    /// Whether the sink said since then that the destination is missing.
    is_missing: bool,
}

impl Failures {
    /// Notes a failure. Earlier ones are forgotten if the last of them was long ago.
    pub(super) fn add(&mut self, now: Instant, fault: Fault, patience: Duration) {
        self.observe(now, fault, patience);
        match fault {
            // It exists.
            Fault::Refusing => (self.counted, self.is_missing) = (None, false),
            // That says nothing about whether it exists.
            Fault::Unavailable => {}
            _ => {
                self.counted = Some((self.counted.map_or(now, |(first, _)| first), now));
                self.is_missing |= fault == Fault::Destination;
            }
        }
    }

    /// Notes a failure that does not change what counts against `patience`.
    pub(super) fn observe(&mut self, now: Instant, fault: Fault, patience: Duration) {
        if self.observed.is_some_and(|(_, last)| is_long_ago(last, now, patience)) {
            self.forget();
        }
        let first = self.observed.map_or(now, |(first, _)| first);
        self.observed = Some((first, now));
        self.blamed_by_sink |= is_blamed(fault);
    }

    /// Whether every failure, since the last one that said it is overloaded, allows that it still is.
    pub(super) fn is_refusing(&self) -> bool {
        self.observed.is_some() && self.counted.is_none()
    }

    /// How long ago the first one was.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.observed.map_or(Duration::ZERO, |(first, _)| now.duration_since(first))
    }

    pub(super) fn forget(&mut self) {
        *self = Failures::default();
    }

    /// Whether a message that was sent at `sent` and accepted ends them.
    pub(super) fn are_ended_by(&self, sent: Instant) -> bool {
        self.blamed_by_sink || self.observed.is_some_and(|(first, _)| first <= sent)
    }

    /// The health that follows from these failures. `sink_accepted` is the send time of the last message that the sink
    /// accepted, for any destination. A destination at fault is given up once its failures that count have lasted for
    /// `give_up_after`, and the sink says that it is missing, or accepts messages for others. `give_up_after` is at least
    /// the shorter one of [`FAULT_DELAY`] and `patience`.
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
        let is_given_up = self.counted.is_some_and(|(first, last)| {
            let others_accept = sink_accepted.is_some_and(|accepted| accepted >= first);
            last.duration_since(first) >= give_up_after && (self.is_missing || others_accept)
        });
        match at_fault {
            false => Health::Failing,
            true if is_given_up => Health::GivenUp,
            true => Health::AtFault,
        }
    }
}

/// Whether the sink names the destination as the cause.
pub(super) fn is_blamed(fault: Fault) -> bool {
    matches!(fault, Fault::Destination | Fault::Refusing)
}

/// Whether the destination, or the part of it that would take the message, takes none at present. Its messages wait without
/// end.
pub(super) fn makes_it_refuse(fault: Fault) -> bool {
    matches!(fault, Fault::Refusing | Fault::Unavailable)
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
        let (unclear, blamed) = (Fault::Unclear, Fault::Destination);
        for (failed_at, fault, sink_accepted, now, expected) in [
            (&[][..], unclear, Some(0), 0, Health::Well),
            (&[10], unclear, None, 10, Health::Failing),
            (&[10], blamed, None, 10, Health::AtFault),
            (&[10, 11], unclear, Some(11), 11, Health::Failing),
            (&[10, 12], unclear, Some(11), 12, Health::AtFault),
            (&[10, 12], unclear, Some(9), 12, Health::Failing),
            (&[10, 40], unclear, None, 40, Health::Failing),
            (&[10, 40], unclear, Some(39), 40, Health::GivenUp),
            (&[10, 40], blamed, None, 40, Health::GivenUp),
            (&[10, 40], blamed, None, 70, Health::GivenUp),
            (&[10, 40], blamed, None, 71, Health::Well),
            (&[10, 41], blamed, None, 41, Health::AtFault),
        ] {
            let mut failures = Failures::default();
            failed_at.iter().for_each(|second| failures.add(at(*second), fault, PATIENCE));
            let health = failures.health(at(now), sink_accepted.map(at), PATIENCE, PATIENCE);
            assert_eq!(health, expected, "{failed_at:?}, {fault:?}, at {now}");
        }
    }

    #[test]
    fn an_overloaded_destination_is_at_fault_without_end_and_its_patience_starts_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut failures = Failures::default();
        let health = |failures: &Failures, now| failures.health(at(now), Some(at(now)), PATIENCE, PATIENCE);
        for fault in [Fault::Refusing, Fault::Unavailable] {
            (0..3600).for_each(|second| failures.add(at(second), fault, PATIENCE));
            assert_eq!((health(&failures, 3600), failures.is_refusing()), (Health::AtFault, true), "{fault:?}");
        }
        // It is deleted: from now on its patience counts.
        for (second, expected) in [(3600, Health::AtFault), (3629, Health::AtFault), (3630, Health::GivenUp)] {
            failures.add(at(second), Fault::Destination, PATIENCE);
            assert_eq!((health(&failures, second), failures.is_refusing()), (expected, false));
        }
        // What says nothing about it does not restart its patience.
        failures.add(at(3631), Fault::Unavailable, PATIENCE);
        assert_eq!(health(&failures, 3631), Health::GivenUp);
        failures.add(at(3632), Fault::Refusing, PATIENCE);
        assert_eq!(health(&failures, 3632), Health::AtFault, "it exists again");
        // Then it does not answer, like the whole sink.
        (3633..3700).for_each(|second| failures.add(at(second), Fault::Unanswered, PATIENCE));
        let silent = failures.health(at(3700), Some(at(3632)), PATIENCE, PATIENCE);
        assert_eq!(silent, Health::AtFault, "others are not accepted either");
        assert_eq!(health(&failures, 3700), Health::GivenUp, "others are accepted");
    }
}
