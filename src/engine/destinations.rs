//! Tracks the failing destinations of a sink. A destination is noted by name after a failure and forgotten once all is
//! well.
//!
//! A destination is at fault in two cases: the sink says so (unknown, without a stream, not authorised), or it has
//! accepted nothing since a failure while the sink accepted messages for others. Once messages have failed there for
//! `patience`, it is given up. Its messages are then dead, except for one trial every few seconds until one is
//! accepted. Only observed failures count: time without attempts, or with an absent sink, does not count against a
//! destination.
//!
//! Destinations that never accepted a message may be names that a caller made up, as many as it likes. If more than a
//! hundred of them fail, they share one `patience`: once they have failed for that long, another one is given up as soon
//! as it has failed for two seconds itself. Meanwhile only few messages for others of them are sent at once, until they
//! accept one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::failing_time::{FAULT_DELAY, FailingTime, TRIAL_INTERVAL};
use super::new_destinations::{AcceptingDestinations, Newcomers};

/// How long a destination without new failures is remembered: longer than the retries of any occurrence.
const MEMORY_TIME: Duration = Duration::from_secs(600);

/// How often old entries are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of entries. Beyond that, the entries without news for longest are removed.
const MAX_DESTINATIONS: usize = 10_000;

/// The destinations of one sink that failed lately.
pub(super) struct Destinations {
    patience: Duration,
    standings: HashMap<String, DestinationHealth>,
    accepting: AcceptingDestinations,
    newcomers: Newcomers,
    /// The send time of the last message that any destination accepted.
    accepted: Option<Instant>,
    swept: Option<Instant>,
}

struct DestinationHealth {
    failures: FailingTime,
    /// The send time of the last accepted message.
    accepted: Option<Instant>,
    /// The time of the last trial, if the destination is given up.
    trial: Option<Instant>,
    detail: String,
    news: Instant,
}

impl DestinationHealth {
    fn new(now: Instant) -> DestinationHealth {
        DestinationHealth {
            failures: FailingTime::default(),
            accepted: None,
            trial: None,
            detail: String::new(),
            news: now,
        }
    }

    fn forgive(&mut self) {
        self.failures.forgive();
        self.trial = None;
    }
}

/// What is known of a destination when a message fails there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureContext {
    /// It accepted a message that was sent after the first failure of this occurrence, so the message itself may be at
    /// fault.
    pub(super) others_accepted: bool,
    /// The destination is at fault, given up or not.
    pub(super) at_fault: bool,
    /// The destination is at fault and has failed for `patience`.
    pub(super) given_up: bool,
    /// The destination never accepted a message, as far as is remembered.
    pub(super) is_new: bool,
    /// Since the first failure of this occurrence the sink accepted no message at all, for `patience`.
    pub(super) sink_silent: bool,
}

/// Whether a message may be sent to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DestinationGate {
    /// It may.
    Open,
    /// Only if first tries hold less than their limit: it never accepted a message, and others of that kind are at fault.
    FirstTry,
    /// Only if the destinations at fault hold less than their limit: it is one of them.
    AtFault {
        /// It never accepted a message.
        is_new: bool,
    },
    /// It may, as the trial of a destination that is given up.
    Trial {
        /// It never accepted a message.
        is_new: bool,
    },
    /// It may not: the destination is given up. Carries the broker's error text.
    GivenUp(String),
}

impl Destinations {
    /// No destination has failed yet. A failing destination is given up after `patience`. Those of the configuration,
    /// `configured`, are made up by nobody.
    pub(super) fn new<'a>(patience: Duration, configured: impl IntoIterator<Item = &'a str>) -> Destinations {
        let mut accepting = AcceptingDestinations::default();
        configured.into_iter().for_each(|destination| _ = accepting.insert(destination));
        Destinations {
            patience,
            standings: HashMap::new(),
            accepting,
            newcomers: Newcomers::default(),
            accepted: None,
            swept: None,
        }
    }

    /// A message that was sent at `sent` was accepted. Returns whether this ended failures of its destination, or was the
    /// first message that it accepted: others may have been turned back until then.
    pub(super) fn accepted(&mut self, destination: &str, sent: Instant) -> bool {
        self.accepted = self.accepted.max(Some(sent));
        let is_first = self.accepting.insert(destination);
        if is_first {
            self.newcomers.accepted(destination);
        }
        let Some(standing) = self.standings.get_mut(destination) else { return is_first };
        standing.accepted = standing.accepted.max(Some(sent));
        standing.news = Instant::now();
        let failures = &standing.failures;
        let forgiven = failures.failing.is_some_and(|(first, _)| first <= sent) || failures.told;
        if forgiven {
            standing.forgive();
        }
        self.sweep(Instant::now());
        forgiven || is_first
    }

    /// How long a destination may be at fault before its messages are dead.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Forgets all failures, because the whole sink was absent.
    pub(super) fn forgive_all(&mut self) {
        self.standings.values_mut().for_each(DestinationHealth::forgive);
        self.newcomers = Newcomers::default();
    }

    /// A message failed whose first failure was at `first_failure`. `told`: the sink named the destination as the
    /// cause.
    pub(super) fn failed(
        &mut self,
        destination: &str,
        first_failure: Instant,
        now: Instant,
        told: bool,
        detail: &str,
    ) -> FailureContext {
        self.sweep(now);
        let (accepted, patience) = (self.accepted, self.patience);
        let is_new = !self.accepting.contains(destination);
        if is_new {
            self.newcomers.failed(destination, now, told, patience);
        }
        let standing = self.standings.entry(destination.to_owned()).or_insert_with(|| DestinationHealth::new(now));
        standing.failures.failed(now, told, patience);
        standing.news = now;
        detail.clone_into(&mut standing.detail);
        let given_up = match is_new && self.newcomers.failures.at_fault_for(accepted, patience) {
            // An entry may have been removed among many, so the time of the occurrence itself counts too.
            true => {
                let shortest = FAULT_DELAY.min(patience);
                let tried_for = now.duration_since(first_failure);
                standing.failures.at_fault_for(accepted, shortest) || (told && tried_for >= shortest)
            }
            false => standing.failures.at_fault_for(accepted, patience),
        };
        FailureContext {
            others_accepted: standing.accepted.is_some_and(|accepted| accepted > first_failure),
            at_fault: standing.failures.at_fault(accepted, patience),
            given_up,
            is_new,
            sink_silent: accepted.is_none_or(|accepted| accepted < first_failure)
                && now.duration_since(first_failure) >= patience,
        }
    }

    /// Whether the destination accepted a message that was sent later than `sent`.
    pub(super) fn accepted_since(&self, destination: &str, sent: Instant) -> bool {
        let health = self.standings.get(destination);
        health.and_then(|health| health.accepted).is_some_and(|accepted| accepted > sent)
    }

    /// Whether a newly claimed message may be sent. If its destination is given up, one message every five seconds may.
    /// A `spared` message is not declared dead, whatever the state of its destination.
    pub(super) fn gate(&mut self, destination: &str, spared: bool, now: Instant) -> DestinationGate {
        let (patience, accepted) = (self.patience, self.accepted);
        let is_new = !self.accepting.contains(destination);
        let others_fail = is_new
            && self.newcomers.failures.since(now, patience).is_some()
            && self.newcomers.failures.at_fault(accepted, patience);
        let unseen = if others_fail { DestinationGate::FirstTry } else { DestinationGate::Open };
        let Some(standing) = self.standings.get_mut(destination) else { return unseen };
        if standing.failures.since(now, patience).is_none() || !standing.failures.at_fault(accepted, patience) {
            return unseen;
        }
        let shared = is_new && self.newcomers.failures.at_fault_for(accepted, patience);
        let span = if shared { FAULT_DELAY.min(patience) } else { patience };
        if spared || !standing.failures.at_fault_for(accepted, span) {
            return DestinationGate::AtFault { is_new };
        }
        if standing.trial.is_none_or(|last| now.duration_since(last) >= TRIAL_INTERVAL) {
            standing.trial = Some(now);
            return DestinationGate::Trial { is_new };
        }
        DestinationGate::GivenUp(standing.detail.clone())
    }

    /// The trial that the gate allowed is not sent.
    pub(super) fn trial_unused(&mut self, destination: &str) {
        if let Some(standing) = self.standings.get_mut(destination) {
            standing.trial = None;
        }
    }

    /// Whether no destination failed lately, so that the gate can be skipped.
    pub(super) fn all_well(&self) -> bool {
        self.standings.is_empty()
    }

    fn sweep(&mut self, now: Instant) {
        let full = self.standings.len() >= MAX_DESTINATIONS;
        if !full && self.swept.is_some_and(|last| now.duration_since(last) < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        self.standings.retain(|_, standing| now.duration_since(standing.news) < MEMORY_TIME);
        if self.standings.len() >= MAX_DESTINATIONS {
            let mut news: Vec<Instant> = self.standings.values().map(|standing| standing.news).collect();
            news.sort_unstable();
            let old = news[news.len() / 2];
            self.standings.retain(|_, standing| standing.news > old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::new_destinations::MAX_NEW_FAILING;

    const PATIENCE: Duration = Duration::from_secs(30);

    const TRIAL: DestinationGate = DestinationGate::Trial { is_new: true };

    const AT_FAULT: DestinationGate = DestinationGate::AtFault { is_new: true };

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_destination_that_the_sink_names_is_given_up_after_patience_and_then_tried_every_five_seconds() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        assert!(!all.failed("gone", start, start, true, "no such topic").given_up);
        assert!(!all.failed("gone", start, at(start, 15), true, "no such topic").given_up);
        assert_eq!(all.gate("gone", false, at(start, 29)), AT_FAULT, "not yet");
        assert!(all.failed("gone", start, at(start, 30), true, "no such topic").given_up);
        assert_eq!(all.gate("gone", true, at(start, 31)), AT_FAULT, "one that is spared is no trial");
        assert_eq!(all.gate("gone", false, at(start, 31)), TRIAL, "the first trial");
        assert_eq!(all.gate("gone", false, at(start, 32)), DestinationGate::GivenUp("no such topic".into()));
        assert_eq!(all.gate("gone", false, at(start, 36)), TRIAL, "the next trial");
        assert_eq!(all.gate("other", false, at(start, 36)), DestinationGate::Open);
        assert!(all.accepted("other", at(start, 36)), "its first one");
        assert!(all.accepted("gone", at(start, 36)));
        assert!(!all.accepted("gone", at(start, 36)) && !all.accepted("other", at(start, 36)), "no news");
        assert_eq!(all.gate("gone", false, at(start, 37)), DestinationGate::Open, "one was accepted: all is well");
    }

    #[test]
    fn a_silent_destination_is_at_fault_only_while_the_sink_accepts_elsewhere() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for seconds in [0, 20, 40, 60] {
            let standpoint = all.failed("slow", start, at(start, seconds), false, "no answer");
            assert!(!standpoint.given_up, "the sink accepts nobody");
            assert_eq!(standpoint.sink_silent, seconds >= 30, "then it is the sink that is absent");
        }
        all.accepted("other", at(start, 61));
        let standpoint = all.failed("slow", start, at(start, 62), false, "no answer");
        assert!(standpoint.given_up && !standpoint.sink_silent);
    }

    #[test]
    fn one_that_fails_now_and_then_is_not_at_fault() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        let after = |millis| start + Duration::from_millis(millis);
        assert!(!all.failed("busy", after(0), after(0), false, "nack").at_fault);
        all.accepted("other", after(10));
        assert!(!all.failed("busy", after(0), after(1900), false, "nack").at_fault, "a moment only");
        assert_eq!(all.gate("busy", false, after(1900)), DestinationGate::Open);
        assert!(all.failed("busy", after(0), after(2000), false, "nack").at_fault);
        assert_eq!(all.gate("busy", false, after(2000)), AT_FAULT);
    }

    #[test]
    fn time_in_which_nothing_was_tried_is_no_evidence() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        all.failed("quiet", start, start, true, "no responders");
        all.accepted("other", at(start, 40));
        assert_eq!(all.gate("quiet", false, at(start, 45)), DestinationGate::Open, "one failure, long ago");
        assert!(!all.failed("quiet", at(start, 50), at(start, 50), true, "no responders").given_up);

        all.failed("busy", start, at(start, 51), true, "no responders");
        all.failed("busy", start, at(start, 71), true, "no responders");
        all.forgive_all();
        assert!(!all.failed("busy", start, at(start, 91), true, "no responders").given_up, "the sink was absent");
    }

    #[test]
    fn others_count_only_when_they_were_sent_after_the_first_failure() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        all.failed("busy", at(start, 10), at(start, 10), false, "nack");
        all.accepted("busy", at(start, 9));
        assert!(!all.failed("busy", at(start, 10), at(start, 11), false, "nack").others_accepted);
        all.accepted("busy", at(start, 12));
        assert!(all.failed("busy", at(start, 10), at(start, 13), false, "nack").others_accepted);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for n in 0..MAX_DESTINATIONS as u64 * 2 {
            all.failed(&n.to_string(), start, start + Duration::from_millis(n), false, "nack");
        }
        assert!(all.standings.len() <= MAX_DESTINATIONS);
    }

    #[test]
    fn destinations_that_never_accepted_anything_share_one_patience() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for n in 0..=MAX_NEW_FAILING {
            assert_eq!(all.gate("other", false, start), DestinationGate::Open, "few fail");
            all.failed(&format!("few-{n}"), start, start, true, "unknown");
        }
        for second in 0..30 {
            let found = all.failed(&format!("nobody-{second}"), at(start, second), at(start, second), true, "unknown");
            assert!(found.is_new && found.at_fault && !found.given_up);
        }
        // From then on each has to fail for two seconds by itself.
        assert!(!all.failed("late", at(start, 31), at(start, 31), true, "unknown").given_up);
        assert!(!all.failed("late", at(start, 31), at(start, 32), true, "unknown").given_up);
        assert!(all.failed("late", at(start, 31), at(start, 33), true, "unknown").given_up);
        assert_eq!(all.gate("late", false, at(start, 33)), TRIAL);
        assert_eq!(all.gate("late", false, at(start, 34)), DestinationGate::GivenUp("unknown".into()));
        assert_eq!(all.gate("late", true, at(start, 34)), AT_FAULT, "one that is spared");
        // Until they accept a message, few messages are sent to others.
        assert_eq!(all.gate("made", false, at(start, 34)), DestinationGate::FirstTry);
        all.accepted("made", at(start, 34));
        assert_eq!(all.gate("made", false, at(start, 34)), DestinationGate::Open);
        // One that accepted a message has all its patience.
        assert!(!all.failed("made", at(start, 35), at(start, 35), true, "unknown").given_up);
        let found = all.failed("made", at(start, 35), at(start, 64), true, "unknown");
        assert!(found.at_fault && !found.given_up && !found.is_new);
        assert_eq!(all.gate("made", false, at(start, 64)), DestinationGate::AtFault { is_new: false });
        assert!(all.failed("made", at(start, 35), at(start, 65), true, "unknown").given_up);
        // Without failures for long, all is well for new ones.
        assert_eq!(all.gate("new", false, at(start, 96)), DestinationGate::Open);
    }

    #[test]
    fn the_patience_is_shared_although_most_names_are_forgotten() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        let name = |n: u64| format!("nobody-{n}");
        for n in 0..MAX_DESTINATIONS as u64 * 3 {
            let now = start + Duration::from_millis(n);
            assert!(!all.failed(&name(n), now, now, true, "unknown").given_up);
        }
        let found = all.failed(&name(0), at(start, 29), at(start, 31), true, "unknown");
        assert!(found.given_up, "its own occurrence has failed for two seconds");
    }

    #[test]
    fn a_trial_that_was_not_sent_can_be_had_again() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for second in [0, 15, 30] {
            all.failed("gone", start, at(start, second), true, "unknown");
        }
        assert_eq!(all.gate("gone", false, at(start, 31)), TRIAL);
        all.trial_unused("gone");
        assert_eq!(all.gate("gone", false, at(start, 32)), TRIAL);
    }
}
