//! The last beat of each other instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::beat::Beat;
use crate::task::Lane;

/// An instance without a beat for this long no longer counts.
const SILENCE: Duration = Duration::from_secs(3);

/// Maximum number of other instances that count.
const MAX_OTHERS: usize = 1000;

/// What this instance knows of the others.
pub(super) struct View {
    own: String,
    others: BTreeMap<String, Seen>,
}

struct Seen {
    lanes: BTreeSet<Lane>,
    at: Instant,
}

impl View {
    pub(super) fn new(own: &str) -> View {
        View { own: own.to_owned(), others: BTreeMap::new() }
    }

    /// Notes a beat. Returns whether it says something new.
    pub(super) fn note(&mut self, beat: Beat, now: Instant) -> bool {
        let is_known = self.others.contains_key(&beat.instance);
        if beat.instance == self.own || !is_known && self.others.len() >= MAX_OTHERS {
            return false;
        }
        let seen = Seen { lanes: beat.lanes, at: now };
        let is_new = self.others.get(&beat.instance).is_none_or(|former| former.lanes != seen.lanes);
        self.others.insert(beat.instance, seen);
        is_new
    }

    /// Forgets instances that have been silent for long. Returns whether there were any.
    pub(super) fn forget_silent(&mut self, now: Instant) -> bool {
        let before = self.others.len();
        self.others.retain(|_, seen| now.saturating_duration_since(seen.at) < SILENCE);
        self.others.len() < before
    }

    /// Number of instances, with this one.
    pub(super) fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The place of this instance among those that serve the lane, sorted by id, and their number. This one always counts.
    pub(super) fn place(&self, lane: &Lane) -> (usize, usize) {
        let (mut before, mut count) = (0, 1);
        for (id, _) in self.others.iter().filter(|(_, seen)| seen.lanes.contains(lane)) {
            before += usize::from(*id < self.own);
            count += 1;
        }
        (before, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_counts_for_3_s_after_its_last_beat() {
        let (mut view, start, lane) = (View::new("b"), Instant::now(), Lane::default());
        let at = |ms| start + Duration::from_millis(ms);
        let beat = |instance: &str, lanes: &[&str]| Beat {
            instance: instance.into(),
            lanes: lanes.iter().map(|lane| lane.parse().unwrap()).collect(),
        };
        assert_eq!(view.place(&lane), (0, 1));
        assert!(!view.note(beat("b", &[]), at(0)), "its own beat says nothing");
        assert!(view.note(beat("a", &["default"]), at(0)));
        assert!(view.note(beat("c", &["default"]), at(0)));
        assert!(!view.note(beat("c", &["default"]), at(5)));
        assert_eq!((view.place(&lane), view.count()), ((1, 3), 3));
        assert!(view.note(beat("c", &["mail"]), at(10)));
        assert_eq!(view.place(&lane), (1, 2), "it serves another lane");
        assert!(!view.forget_silent(at(2999)));
        assert!(view.forget_silent(at(3000)));
        assert_eq!((view.place(&lane), view.count()), ((0, 1), 2));
        assert!(view.forget_silent(at(3010)));
        assert_eq!((view.place(&lane), view.count()), ((0, 1), 1));
    }

    #[test]
    fn no_more_than_1000_others_count() {
        let mut view = View::new("a");
        for n in 0..1100 {
            view.note(Beat { instance: format!("b.{n}"), lanes: BTreeSet::new() }, Instant::now());
        }
        assert_eq!(view.count(), 1001);
    }
}
