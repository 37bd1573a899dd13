//! Tracks the health of the destinations of a sink. A destination is noted by name after a failure, and forgotten when no
//! message was accepted or failed there for ten minutes.
//!
//! A destination is at fault in two cases: the sink says so (unknown, without a stream, not authorised, full), or it has
//! accepted nothing since a failure while the sink accepted messages for others. If it is refusing, because it is full or
//! overloaded, its messages wait without end. Otherwise it is given up once messages have failed there for `patience`. Its
//! messages are then dead, except for one trial every few seconds until one is accepted. Only observed failures count:
//! time without attempts, or with an unavailable sink, does not count against a destination.
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
use self::health::{FAULT_DELAY, Failures, TRIAL_INTERVAL, is_blamed, makes_it_refuse};
use self::new_destinations::{AcceptingDestinations, NewDestinations};

/// How long a destination is remembered after its last failure or accepted message: longer than the retries of any
/// occurrence.
const MEMORY_TIME: Duration = Duration::from_secs(600);

/// Maximum number of destinations that are remembered.
const MAX_DESTINATIONS: usize = 10_000;

/// The destinations of one sink.
pub(in crate::engine) struct Destinations {
    patience: Duration,
    /// Those at which a message failed.
    remembered: RecentMap<Destination>,
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
    /// The worst health that was logged since it was last forgiven; [`Health::Well`] if none.
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
    /// How long messages failed there, if the log said so.
    pub(in crate::engine) recovered_after: Option<Duration>,
}

/// A destination at which messages fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingDestination {
    /// Its name.
    pub destination: String,
    /// How it is doing: `failing`, `refusing`, `at_fault` or `given_up`.
    pub status: &'static str,
    /// For how long messages have failed there.
    pub failing_for: Duration,
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
    /// If the destination accepted another message that was sent after this moment, the failed message may itself be the
    /// cause. `None` if an accepted message would not show that.
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
    /// The new health, if this failure made it worse than was logged: failing for two seconds, at fault or given up.
    /// It is set for a spared occurrence, too.
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
    /// No destination has failed yet. A destination at fault is given up after `patience`. The `configured` ones are not
    /// new.
    pub(in crate::engine) fn new<'a>(
        patience: Duration,
        configured: impl IntoIterator<Item = &'a str>,
    ) -> Destinations {
        let mut accepting = AcceptingDestinations::default();
        configured.into_iter().for_each(|destination| _ = accepting.insert(destination));
        Destinations {
            patience,
            remembered: RecentMap::new(MEMORY_TIME, MAX_DESTINATIONS),
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
        if self.remembered.get_mut(destination).is_none() {
            return Acceptance { is_change: is_first, recovered_after: None };
        }
        let known = self.remembered.touch(destination, Instant::now(), Destination::default);
        known.accepted = known.accepted.max(Some(sent));
        let forgiven = known.failures.are_ended_by(sent);
        let recovered_after = (forgiven && known.reported > Health::Well).then(|| known.failures.age(Instant::now()));
        if forgiven {
            known.forgive();
        }
        Acceptance { is_change: forgiven || is_first, recovered_after }
    }

    /// How long a destination may be at fault before its messages are dead.
    pub(in crate::engine) fn patience(&self) -> Duration {
        self.patience
    }

    /// Forgets all failures, because the whole sink was unavailable.
    pub(in crate::engine) fn forgive_all(&mut self) {
        self.remembered.values_mut().for_each(Destination::forgive);
        self.new = NewDestinations::default();
    }

    /// The number of destinations that were reported and are well because their failures are long ago, with the names of
    /// up to `max`. Their next failure is news again.
    pub(in crate::engine) fn take_forgotten(&mut self, now: Instant, max: usize) -> Option<(usize, Vec<String>)> {
        let forgotten = |(name, known): (&str, &Destination)| {
            let is_forgotten = known.reported > Health::Well && self.health(name, now) == Health::Well;
            is_forgotten.then(|| name.to_owned())
        };
        let mut forgotten: Vec<String> = self.remembered.iter(now).filter_map(forgotten).collect();
        if forgotten.is_empty() {
            return None;
        }
        for name in &forgotten {
            self.remembered.get_mut(name).into_iter().for_each(Destination::forgive);
        }
        let count = forgotten.len();
        forgotten.sort_unstable();
        forgotten.truncate(max);
        Some((count, forgotten))
    }

    /// Notes a failed publish, and returns what is known of its destination.
    pub(in crate::engine) fn failed(&mut self, failed: FailedPublish<'_>) -> FailureContext {
        let FailedPublish { destination, trouble, first_failure, now, .. } = failed;
        let (sink_accepted, patience) = (self.sink_accepted, self.patience);
        let (is_blamed, makes_it_refuse) = (is_blamed(trouble.fault), makes_it_refuse(trouble.fault));
        let is_new = self.is_new(destination);
        if is_new {
            self.new.failed(destination, now, trouble.fault, patience);
        }
        let known = self.remembered.touch(destination, now, Destination::default);
        known.failures.add(now, trouble.fault, patience);
        trouble.detail.clone_into(&mut known.detail);
        let accepted = known.accepted;
        let occurrence_failing_for = now.duration_since(first_failure);
        let mut health = self.health(destination, now);
        // A full map may have dropped this destination, so the first failure of the occurrence counts too.
        if is_blamed
            && !makes_it_refuse
            && occurrence_failing_for >= FAULT_DELAY.min(patience)
            && self.has_used_up_shared_patience(destination, now)
        {
            health = Health::GivenUp;
        }
        FailureContext {
            news: self.report(destination, health, now),
            health: if failed.is_spared || makes_it_refuse { health.min(Health::AtFault) } else { health },
            others_accepted: failed
                .comparable_since()
                .is_some_and(|since| accepted.is_some_and(|accepted| accepted > since)),
            is_new,
            sink_silent: sink_accepted.is_none_or(|accepted| accepted < first_failure)
                && occurrence_failing_for >= patience,
        }
    }

    /// Whether a newly claimed message may be sent. If its destination is given up, one message every five seconds may.
    pub(in crate::engine) fn gate(&mut self, destination: &str, now: Instant) -> DestinationGate {
        if self.health(destination, now) != Health::GivenUp {
            return self.gate_of_spared(destination, now);
        }
        let is_new = self.is_new(destination);
        let Some(known) = self.remembered.get_mut(destination) else { return DestinationGate::Open };
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
        if let Some(known) = self.remembered.get_mut(destination) {
            known.trial = None;
        }
    }

    /// Whether no destination is remembered, so that the gate can be skipped.
    pub(in crate::engine) fn all_well(&self) -> bool {
        self.remembered.is_empty()
    }

    /// How many destinations fail now, and up to `max` of them, the worst first.
    pub(in crate::engine) fn failing(&self, now: Instant, max: usize) -> (usize, Vec<FailingDestination>) {
        let health = |(destination, known)| (self.health(destination, now), destination, known);
        let mut failing: Vec<(Health, &str, &Destination)> =
            self.remembered.iter(now).map(health).filter(|(health, ..)| *health > Health::Well).collect();
        let count = failing.len();
        failing.sort_unstable_by_key(|(health, destination, _)| (std::cmp::Reverse(*health), *destination));
        let shown = failing.into_iter().take(max).map(|(health, destination, known)| FailingDestination {
            destination: destination.to_owned(),
            status: match known.failures.is_refusing() && health >= Health::AtFault {
                true => "refusing",
                false => health.as_str(),
            },
            failing_for: known.failures.age(now),
            detail: known.detail.clone(),
        });
        (count, shown.collect())
    }

    /// The health of a destination, by the rules in [`Failures::health`]. A new destination may share its patience with
    /// other new ones.
    fn health(&self, destination: &str, now: Instant) -> Health {
        let Some(known) = self.remembered.get(destination, now) else { return Health::Well };
        let give_up_after = if self.has_used_up_shared_patience(destination, now) {
            FAULT_DELAY.min(self.patience)
        } else {
            self.patience
        };
        known.failures.health(now, self.sink_accepted, self.patience, give_up_after)
    }

    /// Returns this health if it is worse than what was reported before, and notes that it is reported. A destination that
    /// is only failing is reported after two seconds: a nack or a change of leader ends sooner.
    fn report(&mut self, destination: &str, health: Health, now: Instant) -> Option<Health> {
        let known = self.remembered.get_mut(destination)?;
        let is_early = health == Health::Failing && known.failures.age(now) < FAULT_DELAY.min(self.patience);
        if is_early || health <= known.reported {
            return None;
        }
        known.reported = health;
        Some(health)
    }

    /// Whether the destination is new, and the new ones have used up the patience that they share.
    fn has_used_up_shared_patience(&self, destination: &str, now: Instant) -> bool {
        self.is_new(destination) && self.new.health(now, self.sink_accepted, self.patience) == Health::GivenUp
    }

    fn is_new(&self, destination: &str) -> bool {
        !self.accepting.contains(destination)
    }
}

#[cfg(test)]
mod tests;
