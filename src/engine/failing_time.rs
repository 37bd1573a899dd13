//! For how long messages for a destination, or for several, have failed. Only observed failures count.

use std::time::Duration;

use tokio::time::Instant;

/// If the sink does not name the destination as the cause, it is at fault only after failing this long. A nack or a
/// change of leader ends sooner.
pub(super) const FAULT_DELAY: Duration = Duration::from_secs(2);

/// The pause between two trials of a destination that is given up.
pub(super) const TRIAL_INTERVAL: Duration = Duration::from_secs(5);

/// Whether the last failure is so long ago that all of them are forgotten.
pub(super) fn is_long_ago(last: Instant, now: Instant, patience: Duration) -> bool {
    now.duration_since(last) > patience.max(TRIAL_INTERVAL * 2)
}

/// For how long messages have failed.
#[derive(Default)]
pub(super) struct FailingTime {
    /// The first and the last failure since a message was accepted.
    pub(super) failing: Option<(Instant, Instant)>,
    /// Whether the sink named the destination as the cause.
    pub(super) told: bool,
}

impl FailingTime {
    pub(super) fn forgive(&mut self) {
        *self = FailingTime::default();
    }

    /// Notes a failure.
    pub(super) fn failed(&mut self, now: Instant, told: bool, patience: Duration) {
        let since = self.since(now, patience).unwrap_or(now);
        self.failing = Some((since, now));
        self.told |= told;
    }

    /// Start of the current failures. Failures long ago without later attempts are forgotten.
    pub(super) fn since(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        if self.failing.is_some_and(|(_, last)| is_long_ago(last, now, patience)) {
            self.forgive();
        }
        self.failing.map(|(first, _)| first)
    }

    /// Whether the destination is at fault and failures were observed for `span`. `accepted` is the sink's last
    /// accepted message.
    pub(super) fn at_fault_for(&self, accepted: Option<Instant>, span: Duration) -> bool {
        let Some((first, last)) = self.failing else { return false };
        // This destination accepted nothing since `first`, so a later accepted message went to another destination.
        let at_fault = self.told || accepted.is_some_and(|accepted| accepted >= first);
        at_fault && last.duration_since(first) >= span
    }

    pub(super) fn at_fault(&self, accepted: Option<Instant>, patience: Duration) -> bool {
        self.at_fault_for(accepted, if self.told { Duration::ZERO } else { FAULT_DELAY.min(patience) })
    }
}
