//! Destinations of a lane whose occurrences returned to the lane lately, because their destination holds all it may.
//! Claims that start at the oldest task may then find more of them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::next_claim::OLDEST_AGAIN;

/// How long a destination is remembered.
const MEMORY_TIME: Duration = OLDEST_AGAIN.saturating_mul(2);

/// How often old ones are removed. A caller can make up names, and each of them may come here once.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of destinations. Beyond that the first ones stand for all.
const MAX_DESTINATIONS: usize = 1000;

/// When occurrences of destinations last returned.
#[derive(Default)]
pub(super) struct TurnedBack {
    last: HashMap<String, Instant>,
    swept: Option<Instant>,
}

impl TurnedBack {
    pub(super) fn insert(&mut self, destination: &str, now: Instant) {
        self.sweep(now);
        if let Some(last) = self.last.get_mut(destination) {
            *last = now;
        } else if self.last.len() < MAX_DESTINATIONS {
            self.last.insert(destination.to_owned(), now);
        }
    }

    /// Whether an occurrence of any destination returned lately.
    pub(super) fn any(&mut self, now: Instant) -> bool {
        self.sweep(now);
        self.last.values().any(|last| is_lately(*last, now))
    }

    /// Forgets a destination. Returns whether an occurrence of it returned lately.
    pub(super) fn remove(&mut self, destination: &str, now: Instant) -> bool {
        self.last.remove(destination).is_some_and(|last| is_lately(last, now))
    }

    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|last| now.duration_since(last) >= SWEEP_INTERVAL) {
            self.swept = Some(now);
            self.last.retain(|_, last| is_lately(*last, now));
        }
    }
}

fn is_lately(last: Instant, now: Instant) -> bool {
    now.duration_since(last) <= MEMORY_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_are_remembered_for_four_seconds() {
        let (mut all, start) = (TurnedBack::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(!all.any(start));
        for n in 0..3 * MAX_DESTINATIONS {
            all.insert(&n.to_string(), at(0));
        }
        assert_eq!(all.last.len(), MAX_DESTINATIONS);
        assert!(all.any(at(4000)) && !all.any(at(4001)));
        all.insert("late", at(5000));
        assert_eq!(all.last.len(), 1, "the old ones make room");
        assert!(!all.remove("other", at(5001)) && all.remove("late", at(5001)) && !all.any(at(5001)));
        all.insert("late", at(5000));
        assert!(!all.remove("late", at(9001)), "it was long ago");
    }
}
