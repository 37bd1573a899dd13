//! The last beat of each other instance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::beat::Beat;
use super::recent::{PublishRate, RecentOutcomes};
use crate::task::Lane;

/// An instance without a beat for this long no longer counts.
const SILENCE: Duration = Duration::from_secs(3);

/// An instance without a beat for this long is logged. It sends one a second, so it has missed one; if only that was lost,
/// it still counts.
const LOGGED_SILENCE: Duration = Duration::from_secs(2);

/// Maximum number of other instances that count.
const MAX_OTHERS: usize = 1000;

/// What this instance knows of the others, and of what all have published lately.
pub(in crate::engine) struct View {
    own: String,
    others: BTreeMap<String, Seen>,
    /// When the last beat of this instance itself came back.
    own_beat: Option<Instant>,
    outcomes: RecentOutcomes,
}

struct Seen {
    state: Arc<InstanceState>,
    at: Instant,
    /// Whether its silence since then was logged.
    is_logged: bool,
}

/// What an instance says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceState {
    /// Its id.
    pub id: String,
    /// Its version; empty if it sends none.
    pub version: String,
    /// The lanes that it serves and whose sink it does not find unavailable.
    pub lanes: BTreeSet<Lane>,
    /// The sinks that it finds unavailable.
    pub unavailable_sinks: Vec<String>,
}

impl View {
    pub(in crate::engine) fn new(own: &str) -> View {
        View { own: own.to_owned(), others: BTreeMap::new(), own_beat: None, outcomes: RecentOutcomes::default() }
    }

    /// The other instances, by id.
    pub(in crate::engine) fn others(&self) -> impl Iterator<Item = &Arc<InstanceState>> {
        self.others.values().map(|seen| &seen.state)
    }

    /// What all instances published lately, by lane.
    pub(in crate::engine) fn rates(&self, now: Instant) -> BTreeMap<Lane, PublishRate> {
        self.outcomes.rates(now)
    }

    /// Notes a beat. Returns whether the ranks may change by it.
    pub(super) fn note(&mut self, beat: Beat, now: Instant) -> bool {
        self.outcomes.note(&beat.report.outcomes, now);
        if beat.instance == self.own {
            self.own_beat = Some(now);
            return false;
        }
        let is_known = self.others.contains_key(&beat.instance);
        if !is_known && self.others.len() >= MAX_OTHERS {
            return false;
        }
        let Beat { instance: id, lanes, report } = beat;
        let is_new = self.others.get(&id).is_none_or(|former| former.state.lanes != lanes);
        let (version, unavailable_sinks) = (report.version, report.unavailable_sinks);
        let state = Arc::new(InstanceState { id: id.clone(), version, lanes, unavailable_sinks });
        self.others.insert(id, Seen { state, at: now, is_logged: false });
        is_new
    }

    /// The instances whose silence is to be logged. They are returned once.
    pub(super) fn take_unlogged_silent(&mut self, now: Instant) -> Vec<Arc<InstanceState>> {
        let is_silent = |seen: &Seen| now.saturating_duration_since(seen.at) >= LOGGED_SILENCE;
        let unlogged = self.others.values_mut().filter(|seen| !seen.is_logged && is_silent(seen));
        let logged = |seen: &mut Seen| {
            seen.is_logged = true;
            Arc::clone(&seen.state)
        };
        unlogged.map(logged).collect()
    }

    /// Forgets instances that no longer count, and returns whether there were any.
    pub(super) fn forget_silent(&mut self, now: Instant) -> bool {
        let before = self.others.len();
        self.others.retain(|_, seen| now.saturating_duration_since(seen.at) < SILENCE);
        self.others.len() < before
    }

    /// Whether beats arrive: that of this instance itself came back lately.
    pub(super) fn hears_itself(&self, now: Instant) -> bool {
        self.own_beat.is_some_and(|at| now.saturating_duration_since(at) < SILENCE / 2)
    }

    /// Number of instances, with this one.
    pub(super) fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The place of this instance among those that serve the lane, sorted by id, and their number. This one always counts.
    pub(super) fn place(&self, lane: &Lane) -> (usize, usize) {
        let (mut before, mut count) = (0, 1);
        for (id, _) in self.others.iter().filter(|(_, seen)| seen.state.lanes.contains(lane)) {
            before += usize::from(*id < self.own);
            count += 1;
        }
        (before, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::instances::beat::BeatReport;

    #[test]
    fn an_instance_counts_for_3_s_after_its_last_beat() {
        let (mut view, start, lane) = (View::new("b"), Instant::now(), Lane::default());
        let at = |ms| start + Duration::from_millis(ms);
        let beat = |instance: &str, lanes: &[&str]| Beat {
            instance: instance.into(),
            lanes: lanes.iter().map(|lane| lane.parse().unwrap()).collect(),
            report: BeatReport::default(),
        };
        assert_eq!(view.place(&lane), (0, 1));
        assert!(!view.note(beat("b", &[]), at(0)), "its own beat says nothing");
        assert!(view.hears_itself(at(1499)) && !view.hears_itself(at(1500)));
        assert!(view.note(beat("a", &["default"]), at(0)));
        assert!(view.note(beat("c", &["default"]), at(0)));
        assert!(!view.note(beat("c", &["default"]), at(5)));
        assert_eq!((view.place(&lane), view.count()), ((1, 3), 3));
        assert!(view.note(beat("c", &["mail"]), at(10)));
        assert_eq!(view.place(&lane), (1, 2), "it serves another lane");
        let logged = |view: &mut View, ms| {
            let silent = view.take_unlogged_silent(at(ms));
            silent.iter().map(|state| state.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!([1999, 2000, 2000].map(|ms| logged(&mut view, ms)), [vec![], vec!["a".to_owned()], vec![]]);
        assert!(!view.forget_silent(at(2999)) && view.forget_silent(at(3000)));
        assert_eq!((view.place(&lane), view.count()), ((0, 1), 2));
        assert!(view.forget_silent(at(3010)));
        assert_eq!((view.place(&lane), view.count()), ((0, 1), 1));
    }

    #[test]
    fn no_more_than_1000_others_count() {
        let mut view = View::new("a");
        for n in 0..1100 {
            let (instance, lanes) = (format!("b.{n}"), BTreeSet::new());
            view.note(Beat { instance, lanes, report: BeatReport::default() }, Instant::now());
        }
        assert_eq!(view.count(), 1001);
    }
}
