//! Decides what an outcome means for its occurrence: a pure function without clock, sink or timeline.

use std::time::Duration;

use punctual_sinks::{Fault, Outcome};

use crate::engine::destinations::{FailureContext, Health};
use crate::task::RetryPolicy;

/// The mean pause before a message is retried at a destination at fault. Pauses go from half of it to one and a half, so
/// that a queue with little room does not get all messages at the same moment.
const DESTINATION_RETRY_PAUSE: Duration = Duration::from_secs(2);

string_enum! {
    /// Why an occurrence is dead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Reason {
        /// The sink can never accept the message.
        Rejected = "rejected",
        /// The retries of its policy are used up, while its destination accepted other messages.
        Retries = "retries",
        /// Its destination was at fault for longer than `patience`.
        Destination = "destination",
        /// Too many of its claims expired: it may be what kills the instances.
        Poison = "poison",
        /// A one-shot with catch-up `none` that is overdue by more than `grace`.
        TooLate = "too late",
    }
}

/// The facts about an occurrence when an outcome arrives.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Facts {
    pub(in crate::engine) policy: RetryPolicy,
    /// Counted retries so far.
    pub(in crate::engine) retries: u32,
    /// Publishes so far, including this one.
    pub(in crate::engine) publishes: u32,
    pub(in crate::engine) destination: FailureContext,
    /// Random number from 0 to 1, for the jitter.
    pub(in crate::engine) random: f64,
}

/// What happens to the occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Judgement {
    /// The destination accepted it.
    Accepted,
    /// It is dead. Carries the error text of the broker.
    Dead(Reason, String),
    /// It is published again.
    Again {
        after: Duration,
        /// Whether this counts as a retry of its policy.
        counted: bool,
    },
    /// The sink is unavailable, and all its occurrences return to the lane. Carries the reason.
    SinkUnavailable(String),
}

/// Judges an outcome. Retries count only if the destination accepts other messages; otherwise the message is not to
/// blame.
pub(in crate::engine) fn judge(outcome: Outcome, facts: &Facts) -> Judgement {
    let trouble = match outcome {
        Outcome::Accepted | Outcome::Duplicate => return Judgement::Accepted,
        Outcome::Reject(detail) => return Judgement::Dead(Reason::Rejected, detail),
        Outcome::Retry(trouble) => trouble,
    };
    match trouble.fault {
        Fault::Sink => Judgement::SinkUnavailable(trouble.detail),
        Fault::Destination | Fault::Unclear | Fault::Unanswered if facts.destination.health == Health::GivenUp => {
            Judgement::Dead(Reason::Destination, trouble.detail)
        }
        Fault::Destination | Fault::Refusing => {
            Judgement::Again { after: DESTINATION_RETRY_PAUSE.mul_f64(0.5 + facts.random), counted: false }
        }
        _ if facts.destination.sink_silent => Judgement::SinkUnavailable(trouble.detail),
        _ if !facts.destination.others_accepted => {
            let wait = facts.policy.wait(facts.publishes.saturating_sub(1), facts.random);
            Judgement::Again { after: wait.min(DESTINATION_RETRY_PAUSE), counted: false }
        }
        _ if facts.retries >= facts.policy.max => Judgement::Dead(Reason::Retries, trouble.detail),
        _ => Judgement::Again { after: facts.policy.wait(facts.retries, facts.random), counted: true },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use punctual_sinks::Trouble;

    use super::*;

    fn health(given_up: bool) -> Health {
        if given_up { Health::GivenUp } else { Health::Failing }
    }

    fn facts(retries: u32, others_accepted: bool, given_up: bool) -> Facts {
        let destination = FailureContext { health: health(given_up), others_accepted, ..FailureContext::default() };
        Facts { policy: RetryPolicy::DEFAULT, retries, publishes: retries + 1, destination, random: 0.0 }
    }

    fn retry(fault: Fault) -> Outcome {
        Outcome::Retry(Trouble { fault, definite: false, detail: "broken".into() })
    }

    fn again(millis: u64, counted: bool) -> Judgement {
        Judgement::Again { after: Duration::from_millis(millis), counted }
    }

    #[test]
    fn each_outcome_has_its_judgement() {
        let detail = || "broken".to_owned();
        let cases = [
            ("accepted", Outcome::Accepted, facts(0, false, false), Judgement::Accepted),
            ("duplicate", Outcome::Duplicate, facts(0, false, false), Judgement::Accepted),
            ("rejected", Outcome::Reject(detail()), facts(0, true, false), Judgement::Dead(Reason::Rejected, detail())),
            ("unavailable", retry(Fault::Sink), facts(9, true, true), Judgement::SinkUnavailable(detail())),
            ("unknown topic", retry(Fault::Destination), facts(9, true, false), again(1000, false)),
            (
                "given up",
                retry(Fault::Destination),
                facts(0, false, true),
                Judgement::Dead(Reason::Destination, detail()),
            ),
            ("first of three", retry(Fault::Unclear), facts(0, true, false), again(200, true)),
            ("third of three", retry(Fault::Unclear), facts(2, true, false), again(800, true)),
            (
                "out of retries",
                retry(Fault::Unclear),
                facts(3, true, false),
                Judgement::Dead(Reason::Retries, detail()),
            ),
            ("nobody gets through", retry(Fault::Unclear), facts(3, false, false), again(1600, false)),
            ("nobody ever does", retry(Fault::Unclear), facts(30, false, false), again(2000, false)),
            (
                "others elsewhere do",
                retry(Fault::Unclear),
                facts(3, false, true),
                Judgement::Dead(Reason::Destination, detail()),
            ),
        ];
        for (name, outcome, facts, expected) in cases {
            assert_eq!(judge(outcome, &facts), expected, "{name}");
        }
    }

    #[test]
    fn a_sink_that_has_accepted_no_message_for_long_is_unavailable() {
        let mut facts = facts(3, false, false);
        facts.destination.sink_silent = true;
        assert_eq!(judge(retry(Fault::Unclear), &facts), Judgement::SinkUnavailable("broken".to_owned()));
    }

    proptest! {
        /// An occurrence is dead only for these three reasons, whatever the outcome and the facts.
        #[test]
        fn an_occurrence_is_dead_for_three_reasons_only(
            outcome in any_outcome(), retries in 0_u32..9, max in 0_u32..9, more in 0_u32..9,
            others_accepted: bool, given_up: bool, sink_silent: bool, random in 0.0..1.0,
        ) {
            let policy = RetryPolicy { max, ..RetryPolicy::DEFAULT };
            let destination = FailureContext { health: health(given_up), news: None, others_accepted, is_new: false, sink_silent };
            let facts = Facts { policy, retries, publishes: retries + 1 + more, destination, random };
            let fault = match &outcome {
                Outcome::Retry(trouble) => Some(trouble.fault),
                Outcome::Accepted | Outcome::Duplicate | Outcome::Reject(_) => None,
            };
            let refused = matches!(outcome, Outcome::Reject(_));
            let out_of_retries = others_accepted && !sink_silent && retries >= max;
            let dead = match fault {
                None if refused => Some(Reason::Rejected),
                Some(Fault::Unclear | Fault::Destination) if given_up => Some(Reason::Destination),
                Some(Fault::Unclear) if out_of_retries => Some(Reason::Retries),
                _ => None,
            };
            match judge(outcome, &facts) {
                Judgement::Dead(reason, detail) => prop_assert_eq!((Some(reason), detail.as_str()), (dead, "broken")),
                Judgement::Accepted => prop_assert!(fault.is_none() && !refused),
                Judgement::SinkUnavailable(_) => prop_assert!(dead.is_none() && (fault == Some(Fault::Sink) || sink_silent)),
                Judgement::Again { after, counted } => {
                    prop_assert!(dead.is_none());
                    // A retry counts only if other messages are accepted, and then waits exactly as its policy says.
                    prop_assert_eq!(counted, fault == Some(Fault::Unclear) && others_accepted);
                    let whole = policy.wait(retries, random);
                    let right = if counted { after == whole } else { after <= DESTINATION_RETRY_PAUSE.mul_f64(1.5) };
                    prop_assert!(right);
                }
            }
        }

        /// A message that always fails is published once, retried `max` times, and then dead.
        #[test]
        fn a_message_that_always_fails_is_retried_as_often_as_its_policy_says(
            max in 0_u32..9, interval in 1_u64..500, jitter in 0_u64..500, random in 0.0..1.0,
        ) {
            let millis = Duration::from_millis;
            let policy = RetryPolicy { max, interval: millis(interval), jitter: millis(jitter) };
            let (mut retries, mut waited) = (0, Duration::ZERO);
            let destination = FailureContext { health: Health::Failing, others_accepted: true, ..FailureContext::default() };
            loop {
                let facts = Facts { policy, retries, publishes: retries + 1, destination, random };
                match judge(retry(Fault::Unclear), &facts) {
                    Judgement::Again { after, counted: true } => {
                        retries += 1;
                        waited += after;
                    }
                    other => {
                        prop_assert_eq!(other, Judgement::Dead(Reason::Retries, "broken".to_owned()));
                        break;
                    }
                }
            }
            prop_assert_eq!(retries, max);
            prop_assert!(waited <= policy.worst_case());
            prop_assert!(waited >= millis(interval) * (2_u32.pow(max) - 1));
        }
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        proptest::sample::select(vec![
            retry(Fault::Refusing),
            Outcome::Accepted,
            Outcome::Duplicate,
            Outcome::Reject("broken".to_owned()),
            retry(Fault::Sink),
            retry(Fault::Destination),
            retry(Fault::Unclear),
        ])
    }

    #[test]
    fn a_message_is_not_dead_while_its_destination_accepts_no_message() {
        for retries in 0..100 {
            let judged = judge(retry(Fault::Unclear), &facts(retries, false, false));
            assert!(matches!(judged, Judgement::Again { counted: false, .. }), "{judged:?}");
        }
    }
}
