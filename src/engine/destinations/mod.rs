//! Tracks the health of the destinations of a sink. A destination is noted by name after a failure and forgotten once all
//! is well.
//!
//! A destination is at fault in two cases: the sink says so (unknown, without a stream, not authorised, full), or it has
//! accepted nothing since a failure while the sink accepted messages for others. If it is overloaded, its messages wait
//! without end. Otherwise it is given up once messages have failed there for `patience`. Its messages are then dead,
//! except for one trial every few seconds until one is accepted. Only observed failures count: time without attempts,
//! or with an unavailable sink, does not count against a destination.
//!
//! A destination is new until it accepts a message. A caller can make up any number of new names. If more than a
//! hundred new destinations fail, they share one `patience`. Once they have failed for that long, each further one is
//! given up after it has failed for two seconds itself. While new destinations are at fault, only few messages for
//! other new destinations are sent at once.

pub(in crate::engine) mod failed_attempts;
pub(in crate::engine) mod failure_quota;
mod health;
mod new_destinations;

use std::time::Duration;

use punctual_sinks::{Fault, RecentMap, Trouble};
use tokio::time::Instant;

pub(in crate::engine) use self::health::Health;
use self::health::{FAULT_DELAY, Failures, TRIAL_INTERVAL, is_blamed, is_overload};
use self::new_destinations::{AcceptingDestinations, NewDestinations};

/// How long a destination without new failures is remembered: longer than the retries of any occurrence.
const MEMORY_TIME: Duration = Duration::from_secs(600);

/// Maximum number of destinations that are remembered.
const MAX_DESTINATIONS: usize = 10_000;

/// The destinations of one sink that failed lately.
pub(in crate::engine) struct Destinations {
    patience: Duration,
    failing: RecentMap<Destination>,
    accepting: AcceptingDestinations,
    new: NewDestinations,
    /// The send time of the last message that any destination accepted.
    sink_accepted: Option<Instant>,
}

/// What is remembered of one destination.
#[derive(Default)]
struct Destination {
    failures: Failures,
    /// The send time of the last accepted message.
    accepted: Option<Instant>,
    /// The time of the last trial, if the destination is given up.
    trial: Option<Instant>,
    /// The broker's last error text.
    detail: String,
    /// The worst health since it was forgiven, which was reported.
    reported: Health,
}

impl Destination {
    fn forgive(&mut self) {
        self.failures.forget();
        self.trial = None;
        self.reported = Health::Well;
    }
}

/// What an accepted message changed at its destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Acceptance {
    /// It ended failures, or was the first message that the destination accepted. In both cases, earlier occurrences
    /// may have returned to the lane.
    pub(in crate::engine) is_change: bool,
    /// The destination was reported to be at fault or given up before.
    pub(in crate::engine) is_recovery: bool,
}

/// A destination at which messages fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingDestination {
    /// Its name.
    pub destination: String,
    /// How it is doing: `failing`, `refusing`, `at_fault` or `given_up`.
    pub status: &'static str,
    /// Since when messages fail there.
    pub since: Duration,
    /// The broker's last error text.
    pub detail: String,
}

/// A publish that failed.
#[derive(Clone, Copy)]
pub(in crate::engine) struct FailedPublish<'a> {
    pub(in crate::engine) destination: &'a str,
    pub(in crate::engine) trouble: &'a Trouble,
    /// When this publish was sent.
    pub(in crate::engine) sent: Instant,
    /// The first failure of its occurrence.
    pub(in crate::engine) first_failure: Instant,
    pub(in crate::engine) now: Instant,
    /// Whether the health of the destination must not make this occurrence dead.
    pub(in crate::engine) is_spared: bool,
}

impl FailedPublish<'_> {
    /// If the destination accepted another message that was sent after this moment, the failed message may be at fault
    /// itself. `None` if no other message can show that.
    fn comparable_since(&self) -> Option<Instant> {
        match self.trouble.fault {
            Fault::Unclear => Some(self.first_failure),
            // An overloaded broker answers other messages, too, but later. So only messages that were sent after this
            // publish count.
            Fault::Unanswered => Some(self.first_failure.max(self.sent)),
            _ => None,
        }
    }
}

/// What is known of a destination when a message fails there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct FailureContext {
    pub(in crate::engine) health: Health,
    /// Its health, if it turned at fault or is given up with this failure. Also for a spared occurrence.
    pub(in crate::engine) news: Option<Health>,
    /// It accepted a comparable message after this occurrence first failed, so the message itself may be at fault.
    pub(in crate::engine) others_accepted: bool,
    /// It never accepted a message, as far as is remembered.
    pub(in crate::engine) is_new: bool,
    /// The sink accepted no message since the first failure of this occurrence, which was at least `patience` ago.
    pub(in crate::engine) sink_silent: bool,
}

/// Whether a message may be sent to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum DestinationGate {
    /// The message may be sent.
    Open,
    /// Only within the limit of first tries, because the destination is new and other new ones are at fault.
    FirstTry,
    /// Only within the limit of the destinations at fault, because the destination is at fault.
    AtFault {
        /// It never accepted a message.
        is_new: bool,
    },
    /// The message may be sent as a trial, because the destination is given up.
    Trial {
        /// It never accepted a message.
        is_new: bool,
    },
    /// The message may not be sent, because the destination is given up. Carries the broker's error text.
    GivenUp(String),
}

impl Destinations {
    /// No destination has failed yet. A failing destination is given up after `patience`. The `configured` ones are not
    /// new.
    pub(in crate::engine) fn new<'a>(
        patience: Duration,
        configured: impl IntoIterator<Item = &'a str>,
    ) -> Destinations {
        let mut accepting = AcceptingDestinations::default();
        configured.into_iter().for_each(|destination| _ = accepting.insert(destination));
        Destinations {
            patience,
            failing: RecentMap::new(MEMORY_TIME, MAX_DESTINATIONS),
            accepting,
            new: NewDestinations::default(),
            sink_accepted: None,
        }
    }

    /// A message that was sent at `sent` was accepted.
    pub(in crate::engine) fn accepted(&mut self, destination: &str, sent: Instant) -> Acceptance {
        self.sink_accepted = self.sink_accepted.max(Some(sent));
        let is_first = self.accepting.insert(destination);
        if is_first {
            self.new.accepted(destination);
        }
        if self.failing.get_mut(destination).is_none() {
            return Acceptance { is_change: is_first, is_recovery: false };
        }
        let known = self.failing.touch(destination, Instant::now(), Destination::default);
        known.accepted = known.accepted.max(Some(sent));
        let forgiven = known.failures.end_with(sent);
        let is_recovery = forgiven && known.reported > Health::Well;
        if forgiven {
            known.forgive();
        }
        Acceptance { is_change: forgiven || is_first, is_recovery }
    }

    /// How long a destination may be at fault before its messages are dead.
    pub(in crate::engine) fn patience(&self) -> Duration {
        self.patience
    }

    /// Forgets all failures, because the whole sink was unavailable.
    pub(in crate::engine) fn forgive_all(&mut self) {
        self.failing.values_mut().for_each(Destination::forgive);
        self.new = NewDestinations::default();
    }

    /// Notes a failed publish, and returns what is known of its destination.
    pub(in crate::engine) fn failed(&mut self, failed: FailedPublish<'_>) -> FailureContext {
        let FailedPublish { destination, trouble, first_failure, now, .. } = failed;
        let (sink_accepted, patience) = (self.sink_accepted, self.patience);
        let (is_blamed, is_overload) = (is_blamed(trouble.fault), is_overload(trouble.fault));
        let is_new = self.is_new(destination);
        if is_new {
            self.new.failed(destination, now, trouble.fault, patience);
        }
        let known = self.failing.touch(destination, now, Destination::default);
        known.failures.add(now, trouble.fault, patience);
        trouble.detail.clone_into(&mut known.detail);
        let accepted = known.accepted;
        let failing_for = now.duration_since(first_failure);
        let mut health = self.health(destination, now);
        // A full map may have dropped this destination, so the first failure of the occurrence counts too.
        if is_blamed
            && !is_overload
            && failing_for >= FAULT_DELAY.min(patience)
            && self.shares_patience(destination, now)
        {
            health = Health::GivenUp;
        }
        FailureContext {
            news: self.report(destination, health),
            health: if failed.is_spared || is_overload { health.min(Health::AtFault) } else { health },
            others_accepted: failed
                .comparable_since()
                .is_some_and(|since| accepted.is_some_and(|accepted| accepted > since)),
            is_new,
            sink_silent: sink_accepted.is_none_or(|accepted| accepted < first_failure) && failing_for >= patience,
        }
    }

    /// Whether a newly claimed message may be sent. If its destination is given up, one message every five seconds may.
    pub(in crate::engine) fn gate(&mut self, destination: &str, now: Instant) -> DestinationGate {
        if self.health(destination, now) != Health::GivenUp {
            return self.gate_of_spared(destination, now);
        }
        let is_new = self.is_new(destination);
        let Some(known) = self.failing.get_mut(destination) else { return DestinationGate::Open };
        if known.trial.is_none_or(|last| now.duration_since(last) >= TRIAL_INTERVAL) {
            known.trial = Some(now);
            return DestinationGate::Trial { is_new };
        }
        DestinationGate::GivenUp(known.detail.clone())
    }

    /// Like [`gate`](Destinations::gate), for a message that the health of its destination cannot make dead. Such a
    /// message is never a trial.
    pub(in crate::engine) fn gate_of_spared(&self, destination: &str, now: Instant) -> DestinationGate {
        let is_new = self.is_new(destination);
        let others = || self.new.health(now, self.sink_accepted, self.patience);
        match self.health(destination, now) {
            Health::AtFault | Health::GivenUp => DestinationGate::AtFault { is_new },
            Health::Well | Health::Failing if is_new && others() >= Health::AtFault => DestinationGate::FirstTry,
            Health::Well | Health::Failing => DestinationGate::Open,
        }
    }

    /// The trial that the gate allowed is not sent.
    pub(in crate::engine) fn trial_unused(&mut self, destination: &str) {
        if let Some(known) = self.failing.get_mut(destination) {
            known.trial = None;
        }
    }

    /// Whether no destination failed lately, so that the gate can be skipped.
    pub(in crate::engine) fn all_well(&self) -> bool {
        self.failing.is_empty()
    }

    /// How many destinations fail now, and up to `max` of them, the worst first.
    pub(in crate::engine) fn failing(&self, now: Instant, max: usize) -> (usize, Vec<FailingDestination>) {
        let health = |(destination, known)| (self.health(destination, now), destination, known);
        let mut failing: Vec<(Health, &str, &Destination)> =
            self.failing.iter(now).map(health).filter(|(health, ..)| *health > Health::Well).collect();
        let count = failing.len();
        failing.sort_unstable_by_key(|(health, destination, _)| (std::cmp::Reverse(*health), *destination));
        let shown = failing.into_iter().take(max).map(|(health, destination, known)| FailingDestination {
            destination: destination.to_owned(),
            status: match known.failures.is_overloaded() && health >= Health::AtFault {
                true => "refusing",
                false => health.as_str(),
            },
            since: known.failures.age(now),
            detail: known.detail.clone(),
        });
        (count, shown.collect())
    }

    /// The health of a destination, by the rules in [`Failures::health`]. A new destination may share its patience with
    /// other new ones.
    fn health(&self, destination: &str, now: Instant) -> Health {
        let Some(known) = self.failing.get(destination, now) else { return Health::Well };
        let give_up_after =
            if self.shares_patience(destination, now) { FAULT_DELAY.min(self.patience) } else { self.patience };
        known.failures.health(now, self.sink_accepted, self.patience, give_up_after)
    }

    /// Returns this health if it is a fault and worse than what was reported before, and notes that it is reported.
    fn report(&mut self, destination: &str, health: Health) -> Option<Health> {
        let known = self.failing.get_mut(destination)?;
        let is_news = health >= Health::AtFault && health > known.reported;
        known.reported = known.reported.max(health);
        is_news.then_some(health)
    }

    /// Whether the destination is new, and the new ones have used up the patience that they share.
    fn shares_patience(&self, destination: &str, now: Instant) -> bool {
        self.is_new(destination) && self.new.health(now, self.sink_accepted, self.patience) == Health::GivenUp
    }

    fn is_new(&self, destination: &str) -> bool {
        !self.accepting.contains(destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::destinations::new_destinations::MAX_NEW_FAILING;

    const PATIENCE: Duration = Duration::from_secs(30);

    const TRIAL: DestinationGate = DestinationGate::Trial { is_new: true };

    const AT_FAULT: DestinationGate = DestinationGate::AtFault { is_new: true };

    impl FailureContext {
        fn is_at_fault(self) -> bool {
            self.health >= Health::AtFault
        }

        fn is_given_up(self) -> bool {
            self.health == Health::GivenUp
        }
    }

    /// A message failed at `now` whose first failure was at `first`, and which was sent then too.
    fn failed(
        all: &mut Destinations,
        destination: &str,
        first: Instant,
        now: Instant,
        fault: Fault,
        detail: &str,
    ) -> FailureContext {
        let trouble = Trouble { fault, definite: true, detail: detail.to_owned() };
        let (sent, first_failure) = (first, first);
        all.failed(FailedPublish { destination, trouble: &trouble, sent, first_failure, now, is_spared: false })
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_destination_at_fault_is_given_up_after_patience_then_tried_every_5_s() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        assert!(!failed(&mut all, "gone", start, start, Fault::Destination, "no such topic").is_given_up());
        assert!(!failed(&mut all, "gone", start, at(start, 15), Fault::Destination, "no such topic").is_given_up());
        assert_eq!(all.gate("gone", at(start, 29)), AT_FAULT, "not yet");
        assert!(failed(&mut all, "gone", start, at(start, 30), Fault::Destination, "no such topic").is_given_up());
        assert_eq!(all.gate_of_spared("gone", at(start, 31)), AT_FAULT, "one that is spared is no trial");
        assert_eq!(all.gate("gone", at(start, 31)), TRIAL, "the first trial");
        assert_eq!(all.gate("gone", at(start, 32)), DestinationGate::GivenUp("no such topic".into()));
        assert_eq!(all.gate("gone", at(start, 36)), TRIAL, "the next trial");
        assert_eq!(all.gate("other", at(start, 36)), DestinationGate::Open);
        let change = |is_recovery| Acceptance { is_change: true, is_recovery };
        assert_eq!(all.accepted("other", at(start, 36)), change(false), "its first one");
        assert_eq!(all.accepted("gone", at(start, 36)), change(true));
        let no_news = Acceptance::default();
        assert_eq!([all.accepted("gone", at(start, 36)), all.accepted("other", at(start, 36))], [no_news; 2]);
        assert_eq!(all.gate("gone", at(start, 37)), DestinationGate::Open, "one was accepted: all is well");
    }

    #[test]
    fn a_destination_is_news_when_it_turns_at_fault_and_when_it_is_given_up() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        let mut news =
            |second| failed(&mut all, "gone", start, at(start, second), Fault::Destination, "no such topic").news;
        let (at_fault, given_up) = (Some(Health::AtFault), Some(Health::GivenUp));
        assert_eq!([0, 1, 29, 30, 31].map(&mut news), [at_fault, None, None, given_up, None]);
        all.accepted("gone", at(start, 32));
        let again = |all: &mut Destinations, destination, fault| {
            failed(all, destination, at(start, 33), at(start, 33), fault, "again").news
        };
        assert_eq!(again(&mut all, "gone", Fault::Destination), at_fault);
        assert_eq!(again(&mut all, "busy", Fault::Unclear), None, "it is not its fault yet");
    }

    /// A spared occurrence is not dead, but the destination is given up all the same.
    #[test]
    fn a_failure_of_a_spared_occurrence_reports_the_true_health() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        failed(&mut all, "gone", start, start, Fault::Destination, "no such topic");
        failed(&mut all, "gone", start, at(start, 15), Fault::Destination, "no such topic");
        let trouble = Trouble { fault: Fault::Destination, definite: true, detail: "no such topic".to_owned() };
        let (sent, now) = (at(start, 30), at(start, 30));
        let found = all.failed(FailedPublish {
            destination: "gone",
            trouble: &trouble,
            sent,
            first_failure: start,
            now,
            is_spared: true,
        });
        assert_eq!((found.health, found.news), (Health::AtFault, Some(Health::GivenUp)));
    }

    #[test]
    fn a_silent_destination_is_at_fault_only_while_the_sink_accepts_elsewhere() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for seconds in [0, 20, 40, 60] {
            let found = failed(&mut all, "slow", start, at(start, seconds), Fault::Unclear, "no answer");
            assert!(!found.is_given_up(), "the sink accepts nobody");
            assert_eq!(found.sink_silent, seconds >= 30, "then it is the sink that is unavailable");
        }
        all.accepted("other", at(start, 61));
        let found = failed(&mut all, "slow", start, at(start, 62), Fault::Unclear, "no answer");
        assert!(found.is_given_up() && !found.sink_silent);
    }

    #[test]
    fn a_destination_that_fails_for_under_two_seconds_is_not_at_fault() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        let after = |millis| start + Duration::from_millis(millis);
        assert!(!failed(&mut all, "busy", after(0), after(0), Fault::Unclear, "nack").is_at_fault());
        all.accepted("other", after(10));
        assert!(
            !failed(&mut all, "busy", after(0), after(1900), Fault::Unclear, "nack").is_at_fault(),
            "a moment only"
        );
        assert_eq!(all.gate("busy", after(1900)), DestinationGate::Open);
        assert!(failed(&mut all, "busy", after(0), after(2000), Fault::Unclear, "nack").is_at_fault());
        assert_eq!(all.gate("busy", after(2000)), AT_FAULT);
    }

    #[test]
    fn time_without_a_publish_does_not_count_as_failing_time() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        failed(&mut all, "quiet", start, start, Fault::Destination, "no responders");
        all.accepted("other", at(start, 40));
        assert_eq!(all.gate("quiet", at(start, 45)), DestinationGate::Open, "one failure, long ago");
        assert!(
            !failed(&mut all, "quiet", at(start, 50), at(start, 50), Fault::Destination, "no responders").is_given_up()
        );

        failed(&mut all, "busy", start, at(start, 51), Fault::Destination, "no responders");
        failed(&mut all, "busy", start, at(start, 71), Fault::Destination, "no responders");
        all.forgive_all();
        assert!(
            !failed(&mut all, "busy", start, at(start, 91), Fault::Destination, "no responders").is_given_up(),
            "the sink was unavailable"
        );
    }

    #[test]
    fn other_messages_count_only_if_sent_after_the_first_failure() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        failed(&mut all, "busy", at(start, 10), at(start, 10), Fault::Unclear, "nack");
        all.accepted("busy", at(start, 9));
        assert!(!failed(&mut all, "busy", at(start, 10), at(start, 11), Fault::Unclear, "nack").others_accepted);
        all.accepted("busy", at(start, 12));
        assert!(failed(&mut all, "busy", at(start, 10), at(start, 13), Fault::Unclear, "nack").others_accepted);
    }

    #[test]
    fn the_number_of_remembered_destinations_is_bounded() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for n in 0..MAX_DESTINATIONS as u64 * 2 {
            failed(&mut all, &n.to_string(), start, start + Duration::from_millis(n), Fault::Unclear, "nack");
        }
        assert!(all.failing.len() <= MAX_DESTINATIONS);
    }

    #[test]
    fn destinations_that_never_accepted_anything_share_one_patience() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for n in 0..=MAX_NEW_FAILING {
            assert_eq!(all.gate("other", start), DestinationGate::Open, "few fail");
            failed(&mut all, &format!("few-{n}"), start, start, Fault::Destination, "unknown");
        }
        for second in 0..30 {
            let found = failed(
                &mut all,
                &format!("nobody-{second}"),
                at(start, second),
                at(start, second),
                Fault::Destination,
                "unknown",
            );
            assert!(found.is_new && found.is_at_fault() && !found.is_given_up());
        }
        // From then on each has to fail for two seconds by itself.
        assert!(!failed(&mut all, "late", at(start, 31), at(start, 31), Fault::Destination, "unknown").is_given_up());
        assert!(!failed(&mut all, "late", at(start, 31), at(start, 32), Fault::Destination, "unknown").is_given_up());
        assert!(failed(&mut all, "late", at(start, 31), at(start, 33), Fault::Destination, "unknown").is_given_up());
        assert_eq!(all.gate("late", at(start, 33)), TRIAL);
        assert_eq!(all.gate("late", at(start, 34)), DestinationGate::GivenUp("unknown".into()));
        assert_eq!(all.gate_of_spared("late", at(start, 34)), AT_FAULT, "one that is spared");
        // Until they accept a message, few messages are sent to others.
        assert_eq!(all.gate("made", at(start, 34)), DestinationGate::FirstTry);
        all.accepted("made", at(start, 34));
        assert_eq!(all.gate("made", at(start, 34)), DestinationGate::Open);
        // One that accepted a message has all its patience.
        assert!(!failed(&mut all, "made", at(start, 35), at(start, 35), Fault::Destination, "unknown").is_given_up());
        let found = failed(&mut all, "made", at(start, 35), at(start, 64), Fault::Destination, "unknown");
        assert!(found.is_at_fault() && !found.is_given_up() && !found.is_new);
        assert_eq!(all.gate("made", at(start, 64)), DestinationGate::AtFault { is_new: false });
        assert!(failed(&mut all, "made", at(start, 35), at(start, 65), Fault::Destination, "unknown").is_given_up());
        // Without failures for long, all is well for new ones.
        assert_eq!(all.gate("new", at(start, 96)), DestinationGate::Open);
    }

    #[test]
    fn destinations_share_one_patience_even_if_most_names_are_forgotten() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        let name = |n: u64| format!("nobody-{n}");
        for n in 0..MAX_DESTINATIONS as u64 * 3 {
            let now = start + Duration::from_millis(n);
            assert!(!failed(&mut all, &name(n), now, now, Fault::Destination, "unknown").is_given_up());
        }
        let found = failed(&mut all, &name(0), at(start, 29), at(start, 31), Fault::Destination, "unknown");
        assert!(found.is_given_up(), "its own occurrence has failed for two seconds");
    }

    #[test]
    fn a_trial_that_was_not_sent_is_available_again() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE, []);
        for second in [0, 15, 30] {
            failed(&mut all, "gone", start, at(start, second), Fault::Destination, "unknown");
        }
        assert_eq!(all.gate("gone", at(start, 31)), TRIAL);
        all.trial_unused("gone");
        assert_eq!(all.gate("gone", at(start, 32)), TRIAL);
    }
}
