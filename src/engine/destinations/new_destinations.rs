//! Remembers which destinations have accepted a message. All others are new: a caller may have made up their names. If
//! many new destinations fail, this notes for how long.

use std::collections::HashSet;
use std::time::Duration;

use punctual_sinks::Fault;
use tokio::time::Instant;

use super::health::{Failures, Health, is_long_ago, makes_it_refuse};

/// Up to this many failing new destinations have a separate patience each. If more fail, they share one.
pub(super) const MAX_NEW_FAILING: usize = 100;

/// Maximum number of destinations in each half of [`AcceptingDestinations`].
const MAX_ACCEPTING: usize = 10_000;

/// Destinations that accepted a message: at least the most recent 10 000. Older ones are forgotten, one half of the set
/// at a time.
#[derive(Default)]
pub(super) struct AcceptingDestinations {
    recent: HashSet<String>,
    before: HashSet<String>,
}

impl AcceptingDestinations {
    pub(super) fn contains(&self, destination: &str) -> bool {
        self.recent.contains(destination) || self.before.contains(destination)
    }

    /// Adds a destination. Returns whether it was new.
    pub(super) fn insert(&mut self, destination: &str) -> bool {
        if self.recent.contains(destination) {
            return false;
        }
        if self.recent.len() >= MAX_ACCEPTING {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(destination.to_owned());
        !self.before.contains(destination)
    }
}

/// Destinations that never accepted a message and fail.
#[derive(Default)]
pub(super) struct NewDestinations {
    /// The first of them, at most [`MAX_NEW_FAILING`].
    names: HashSet<String>,
    /// The failures of all new destinations. They are noted only while `names` is full.
    failures: Failures,
    /// The last failure of one of them.
    last_failure: Option<Instant>,
}

impl NewDestinations {
    /// A message failed at one of them.
    pub(super) fn failed(&mut self, destination: &str, now: Instant, fault: Fault, patience: Duration) {
        if self.last_failure.is_some_and(|last| is_long_ago(last, now, patience)) {
            *self = NewDestinations::default();
        }
        self.last_failure = Some(now);
        if self.names.len() >= MAX_NEW_FAILING {
            match makes_it_refuse(fault) {
                // A failure at a full or unavailable destination does not count against the patience of missing ones.
                true => self.failures.observe(now, fault, patience),
                false => self.failures.add(now, fault, patience),
            }
        } else if !self.names.contains(destination) {
            self.names.insert(destination.to_owned());
        }
    }

    /// One of them accepted a message.
    pub(super) fn accepted(&mut self, destination: &str) {
        self.names.remove(destination);
    }

    /// The health of all failing new destinations together. It is good until many fail.
    pub(super) fn health(&self, now: Instant, sink_accepted: Option<Instant>, patience: Duration) -> Health {
        self.failures.health(now, sink_accepted, patience, patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_remembered_accepting_destinations_is_bounded() {
        let mut accepting = AcceptingDestinations::default();
        for n in 0..MAX_ACCEPTING * 5 {
            accepting.insert(&n.to_string());
            accepting.insert("often");
        }
        assert!(accepting.contains("often") && accepting.contains(&(MAX_ACCEPTING * 5 - 1).to_string()));
        assert!(!accepting.contains("0") && accepting.recent.len() + accepting.before.len() <= 2 * MAX_ACCEPTING);
    }
}
