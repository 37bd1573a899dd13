//! What an outcome means for its occurrence: a pure function, without clock, sink or timeline.

use std::time::Duration;

use punctual_sinks::{Fault, Outcome};

use super::destinations::Standpoint;
use crate::task::RetryPolicy;

/// How long a message waits before it is tried again at a destination that is at fault.
pub(super) const DESTINATION_RETRY: Duration = Duration::from_secs(2);

/// Why an occurrence is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The sink can never accept it.
    Rejected,
    /// It failed once more than its retry policy allows, while its destination accepted others.
    Retries,
    /// Its destination was at fault for longer than `patience`.
    Destination,
    /// Its claims ended without word too often: it may be what kills its holders.
    Poison,
    /// A one-shot overdue by more than `grace` whose catch-up is `none`.
    TooLate,
}

impl Reason {
    /// The word that stands in the timeline, the API and the metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Rejected => "rejected",
            Reason::Retries => "retries",
            Reason::Destination => "destination",
            Reason::Poison => "poison",
            Reason::TooLate => "too late",
        }
    }
}

/// What is known of an occurrence when an outcome comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) policy: RetryPolicy,
    /// Retries that were counted so far.
    pub(super) retries: u32,
    /// Publishes so far, this one included.
    pub(super) publishes: u32,
    pub(super) destination: Standpoint,
    /// From 0 to 1, for the jitter.
    pub(super) random: f64,
}

/// What becomes of the occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It has reached its destination.
    Accepted,
    /// It will not be tried again by itself; the broker's words.
    Dead(Reason, String),
    /// It is published again.
    Again {
        after: Duration,
        /// Whether that counts as one of the policy's retries.
        counted: bool,
    },
    /// The sink is absent: what is held for it goes back; how that was noticed.
    Absent(String),
}

/// Judges an outcome. Retries count only at a destination that accepts others: else the fault is not the message's.
pub(super) fn judge(outcome: Outcome, facts: &Facts) -> Judgement {
    let trouble = match outcome {
        Outcome::Accepted => return Judgement::Accepted,
        Outcome::Reject(words) => return Judgement::Dead(Reason::Rejected, words),
        Outcome::Retry(trouble) => trouble,
    };
    match trouble.fault {
        Fault::Sink => Judgement::Absent(trouble.words),
        _ if facts.destination.given_up => Judgement::Dead(Reason::Destination, trouble.words),
        Fault::Destination => Judgement::Again { after: DESTINATION_RETRY, counted: false },
        Fault::Unclear if facts.destination.sink_silent => Judgement::Absent(trouble.words),
        Fault::Unclear if !facts.destination.others_accepted => {
            let wait = facts.policy.wait(facts.publishes.saturating_sub(1), facts.random);
            Judgement::Again { after: wait.min(DESTINATION_RETRY), counted: false }
        }
        Fault::Unclear if facts.retries >= facts.policy.max => Judgement::Dead(Reason::Retries, trouble.words),
        Fault::Unclear => Judgement::Again { after: facts.policy.wait(facts.retries, facts.random), counted: true },
    }
}

#[cfg(test)]
mod tests {
    use punctual_sinks::Trouble;

    use super::*;

    fn facts(retries: u32, others_accepted: bool, given_up: bool) -> Facts {
        let destination = Standpoint { others_accepted, given_up, sink_silent: false };
        Facts { policy: RetryPolicy::DEFAULT, retries, publishes: retries + 1, destination, random: 0.0 }
    }

    fn retry(fault: Fault) -> Outcome {
        Outcome::Retry(Trouble { fault, definite: false, words: "words".into() })
    }

    fn again(millis: u64, counted: bool) -> Judgement {
        Judgement::Again { after: Duration::from_millis(millis), counted }
    }

    #[test]
    fn each_outcome_has_its_judgement() {
        let words = || "words".to_owned();
        let cases = [
            ("accepted", Outcome::Accepted, facts(0, false, false), Judgement::Accepted),
            ("rejected", Outcome::Reject(words()), facts(0, true, false), Judgement::Dead(Reason::Rejected, words())),
            ("absent", retry(Fault::Sink), facts(9, true, true), Judgement::Absent(words())),
            ("unknown topic", retry(Fault::Destination), facts(9, true, false), again(2000, false)),
            (
                "given up",
                retry(Fault::Destination),
                facts(0, false, true),
                Judgement::Dead(Reason::Destination, words()),
            ),
            ("first of three", retry(Fault::Unclear), facts(0, true, false), again(200, true)),
            ("third of three", retry(Fault::Unclear), facts(2, true, false), again(800, true)),
            ("out of retries", retry(Fault::Unclear), facts(3, true, false), Judgement::Dead(Reason::Retries, words())),
            ("nobody gets through", retry(Fault::Unclear), facts(3, false, false), again(1600, false)),
            ("nobody ever does", retry(Fault::Unclear), facts(30, false, false), again(2000, false)),
            (
                "others elsewhere do",
                retry(Fault::Unclear),
                facts(3, false, true),
                Judgement::Dead(Reason::Destination, words()),
            ),
        ];
        for (name, outcome, facts, expected) in cases {
            assert_eq!(judge(outcome, &facts), expected, "{name}");
        }
    }

    #[test]
    fn a_sink_that_accepts_nobody_for_long_is_absent() {
        let mut facts = facts(3, false, false);
        facts.destination.sink_silent = true;
        assert_eq!(judge(retry(Fault::Unclear), &facts), Judgement::Absent("words".to_owned()));
    }

    #[test]
    fn a_message_is_never_dead_while_its_destination_accepts_nobody() {
        for retries in 0..100 {
            let judged = judge(retry(Fault::Unclear), &facts(retries, false, false));
            assert!(matches!(judged, Judgement::Again { counted: false, .. }), "{judged:?}");
        }
    }
}
