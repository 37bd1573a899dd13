//! What a claimer knows between two claims: when the next claim is due, of which kind it is, and where it starts.
//!
//! Claims start at the oldest due task. While a destination of the lane is at fault, some of its occurrences return to
//! the lane with the due they had. Claims then start behind the last position that was read, and every two seconds one
//! starts at the oldest again. While a lane is far behind, every other claim takes the newest, so that new tasks do not
//! wait for the whole backlog.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::claiming::wake_signal::WakeReasons;
use crate::engine::instances::Rank;
use crate::timeline::{Claimed, DuePosition};

/// How often a claim starts at the oldest while other claims start behind returned occurrences.
pub(in crate::engine) const OLDEST_INTERVAL: Duration = Duration::from_secs(2);

/// Every other claim takes the newest once the head is this late.
const MIN_FAR_BEHIND: Duration = Duration::from_secs(5);

/// The pause before the next claim while another claim holds the permit for suspects. A signal ends it when the permit
/// is free.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(1);

/// How often a claimer checks for unreadable occurrences, because a cancel of one sends no wake-up.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(10);

/// How often a claimer asks whether its lane is still paused, whatever wakes it in the meantime.
const PAUSED_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ClaimKind {
    /// From the oldest, or behind returned occurrences.
    Ordinary,
    /// From the oldest, while ordinary claims start behind returned occurrences.
    Oldest,
    /// The newest.
    Newest,
    /// Suspects.
    Suspects,
    /// Unreadable occurrences.
    Unreadable,
}

/// What the claimer knows between two claims.
#[derive(Debug, Default)]
pub(in crate::engine) struct NextClaim {
    /// The earliest known due of the lane.
    head: Option<Timestamp>,
    /// Where the next ordinary claim starts while occurrences return to the lane.
    place: Option<DuePosition>,
    /// Where the next ordinary claim starts if the last one read only occurrences that it had to leave out.
    behind_left_out: Option<DuePosition>,
    /// When a claim starts at the oldest again, while occurrences return to the lane.
    oldest_at: Option<Timestamp>,
    /// Whether the next claim takes the newest.
    newest_next: bool,
    /// Whether the last claim saw suspects. The next claim is for them if the claimer gets the permit.
    suspects_next: bool,
    /// The position behind which it looks for suspects.
    suspects_behind: Option<DuePosition>,
    unreadable: Unreadable,
    /// No claim before this time, because the lane is paused.
    paused_until: Option<Timestamp>,
}

/// The state of the lane when a claim begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct LaneNow {
    pub(in crate::engine) now: Timestamp,
    /// Occurrences of the lane returned lately because their destination is at fault.
    pub(in crate::engine) has_returns: bool,
    /// This claimer holds the permit for suspects.
    pub(in crate::engine) may_take_suspects: bool,
}

/// What is known of unreadable occurrences.
#[derive(Debug, Default)]
struct Unreadable {
    /// How many the last claim left out.
    seen: u64,
    /// Whether the next claim asks for them.
    next: bool,
    /// The position behind which it asks.
    behind: Option<DuePosition>,
    /// Whether all of them were asked for once, in case this version can parse them.
    asked: bool,
}

impl NextClaim {
    /// Notes a signal.
    pub(in crate::engine) fn notified(&mut self, notice: WakeReasons) {
        if notice.from_oldest {
            (self.place, self.behind_left_out, self.oldest_at) = (None, None, None);
        }
        if notice.look {
            self.head = Some(Timestamp::MIN_DUE);
        }
        if let Some(due) = notice.due {
            self.look_by(due);
            if self.place.as_ref().is_some_and(|place| due <= place.due) {
                self.place = Some(DuePosition { due, member: None });
            }
        }
    }

    /// When the next claim is due. `has_returns` is as in [`LaneNow`].
    pub(in crate::engine) fn next_at(&mut self, has_returns: bool, now: Timestamp) -> Option<Timestamp> {
        if let Some(until) = &mut self.paused_until {
            // The clock of Redis may have been set back since.
            *until = now.plus(PAUSED_INTERVAL).min(*until);
            return Some(*until);
        }
        if has_returns {
            self.oldest_at.get_or_insert(now.plus(OLDEST_INTERVAL));
        }
        self.head.into_iter().chain(self.oldest_at).min()
    }

    /// When an instance of this rank makes the next claim. What it leaves to others is forgotten, until a glance shows it.
    pub(in crate::engine) fn asks_at(&mut self, rank: Rank, has_returns: bool, now: Timestamp) -> Option<Timestamp> {
        let at = self.next_at(has_returns, now);
        // Nobody else asks whether the lane is paused, or for what only this claimer has seen.
        if self.paused_until.is_some() || self.suspects_next || self.unreadable.seen > 0 {
            return at;
        }
        if rank != Rank::Other {
            return at.and_then(|at| rank.asks_at(at, now));
        }
        // Returned occurrences stand at the head and look overdue, so it only looks when it is asked to.
        let head = self.head.filter(|head| !has_returns || *head == Timestamp::MIN_DUE);
        self.head = head.filter(|head| rank.asks_at(*head, now).is_some());
        self.head
    }

    /// Whether the next claim should be for suspects, if the claimer gets the permit.
    pub(in crate::engine) fn asks_for_suspects(&self) -> bool {
        self.suspects_next
    }

    /// Number of unreadable occurrences that were seen lately.
    pub(in crate::engine) fn unreadable(&self) -> u64 {
        self.unreadable.seen
    }

    /// The kind of the next claim, and the position behind which it starts.
    pub(in crate::engine) fn next(&self, lane: LaneNow) -> (ClaimKind, Option<DuePosition>) {
        let LaneNow { now, has_returns, may_take_suspects } = lane;
        if may_take_suspects {
            (ClaimKind::Suspects, self.suspects_behind.clone())
        } else if self.unreadable.next {
            (ClaimKind::Unreadable, self.unreadable.behind.clone())
        } else if has_returns && self.oldest_at.is_some_and(|at| at <= now) {
            // A claim with a position sends no wake-up for the remaining tasks, so use the position before all tasks.
            (ClaimKind::Oldest, Some(DuePosition { due: Timestamp::MIN_DUE, member: None }))
        } else if self.newest_next {
            (ClaimKind::Newest, None)
        } else {
            let place = if has_returns { &self.place } else { &self.behind_left_out };
            (ClaimKind::Ordinary, place.clone())
        }
    }

    /// Updates this state from the reply of a claim. `wait(true)` joins the queue for the suspect permit, `wait(false)`
    /// leaves it. It returns whether this claimer is next.
    pub(in crate::engine) fn learn(
        &mut self,
        kind: ClaimKind,
        after: Option<DuePosition>,
        claimed: &Claimed,
        wait: impl FnOnce(bool) -> bool,
    ) {
        self.paused_until = claimed.paused.then(|| claimed.now.plus(PAUSED_INTERVAL));
        if claimed.paused {
            self.suspects_next = false;
            wait(false);
            return;
        }
        match kind {
            ClaimKind::Newest => self.newest_next = false,
            ClaimKind::Unreadable => self.asked_for_unreadable(claimed),
            ClaimKind::Oldest => {
                self.oldest_at = Some(claimed.now.plus(OLDEST_INTERVAL));
                self.saw_suspects(claimed, after);
                self.saw_unreadable(claimed);
            }
            ClaimKind::Ordinary => self.claimed_ordinary(claimed, after),
            ClaimKind::Suspects => self.claimed_suspects(claimed, after.is_none()),
        }
        if matches!(kind, ClaimKind::Ordinary | ClaimKind::Oldest | ClaimKind::Suspects) {
            let has_suspects = self.suspects_next || claimed.suspects > 0;
            let is_next = wait(has_suspects);
            if self.suspects_next && is_next {
                self.head = Some(claimed.now);
            } else if has_suspects {
                self.look_by(claimed.now.plus(SUSPECTS_PAUSE));
            }
        }
        if self.unreadable.next {
            self.head = Some(claimed.now);
        } else if self.unreadable.seen > 0 {
            self.look_by(claimed.now.plus(UNREADABLE_PAUSE));
        }
    }

    fn claimed_ordinary(&mut self, claimed: &Claimed, after: Option<DuePosition>) {
        let from_oldest = after.is_none();
        // The claim started behind occurrences that are left out and still there.
        let behind_left_out = !from_oldest && after == self.behind_left_out;
        if from_oldest {
            self.oldest_at = None;
            self.saw_unreadable(claimed);
        }
        self.place = claimed.last.clone().or(self.place.take());
        // The claim read only occurrences that it left out, and more are due. The next claim must start behind them, or
        // it would read the same ones again.
        let only_left_out = claimed.occurrences.is_empty() && claimed.suspects + claimed.unreadable > 0;
        let more = claimed.head.is_some_and(|head| head <= claimed.now);
        self.behind_left_out = claimed.last.clone().filter(|_| only_left_out && more);
        // Behind returned occurrences no task should wait, so any late head counts as far behind.
        let far = if from_oldest || behind_left_out { MIN_FAR_BEHIND } else { Duration::ZERO };
        self.newest_next = claimed.head.is_some_and(|head| head.plus(far) <= claimed.now);
        self.saw_suspects(claimed, after);
        self.head = claimed.head;
    }

    fn claimed_suspects(&mut self, claimed: &Claimed, from_oldest: bool) {
        // The other suspects are claimed once they are seen again; otherwise suspects of a failing destination would be
        // claimed in a loop.
        self.suspects_next = false;
        // Suspects are left but none was taken. A due head is then behind more suspects than one claim reads.
        let none_taken = claimed.occurrences.is_empty() && claimed.suspects > 0;
        let head = claimed.head.filter(|head| *head > claimed.now || !none_taken);
        // A claim behind a position says nothing about the tasks before it.
        self.head = if from_oldest { head } else { self.head.into_iter().chain(head).min() };
    }

    fn look_by(&mut self, latest: Timestamp) {
        self.head = Some(self.head.map_or(latest, |head| head.min(latest)));
    }

    /// A claim behind a position does not see suspects before it. They are claimed from the position where they were
    /// last seen.
    fn saw_suspects(&mut self, claimed: &Claimed, after: Option<DuePosition>) {
        if claimed.suspects > 0 || after.is_none() {
            self.suspects_next = claimed.suspects > 0;
            self.suspects_behind = after;
        }
    }

    fn saw_unreadable(&mut self, claimed: &Claimed) {
        self.unreadable.seen = claimed.unreadable;
        self.unreadable.next = claimed.unreadable > 0 && !self.unreadable.asked;
    }

    /// Continues behind the unreadable occurrences that were taken, until none is left.
    fn asked_for_unreadable(&mut self, claimed: &Claimed) {
        // One call reads at most a thousand members of any kind. Only a call that reached the end has seen them all.
        if claimed.last.is_none() {
            self.unreadable.asked = true;
            self.unreadable.next = false;
        }
        self.unreadable.behind = claimed.last.clone().or(self.unreadable.behind.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Counts;
    use crate::timeline::Occurrence;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + ms)
    }

    fn usual(now: Timestamp) -> LaneNow {
        LaneNow { now, has_returns: false, may_take_suspects: false }
    }

    fn with_returns(now: Timestamp) -> LaneNow {
        LaneNow { has_returns: true, ..usual(now) }
    }

    fn with_permit(lane: LaneNow) -> LaneNow {
        LaneNow { may_take_suspects: true, ..lane }
    }

    fn place(due: i64) -> DuePosition {
        DuePosition { due: at(due), member: Some("x".parse().unwrap()) }
    }

    fn first() -> DuePosition {
        DuePosition { due: Timestamp::MIN_DUE, member: None }
    }

    /// A reply at `now` that took occurrences up to `last`; `head` is behind them.
    fn claimed(now: i64, last: i64, head: Option<i64>) -> Claimed {
        let member = "x".parse().unwrap();
        let record = bytes::Bytes::new();
        let occurrence = Occurrence { member, due: at(last), record, counts: Counts::default(), crashes: 0 };
        Claimed {
            now: at(now),
            paused: false,
            occurrences: vec![occurrence],
            head: head.map(at),
            last: Some(place(last)),
            suspects: 0,
            unreadable: 0,
            removed: 0,
        }
    }

    #[test]
    fn claims_start_behind_returned_occurrences_or_every_2_s_at_the_oldest() {
        let mut next_claim = NextClaim::default();
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Ordinary, None));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(0, -100, Some(50)), |_| false);
        assert_eq!(next_claim.next(usual(at(50))), (ClaimKind::Ordinary, None), "nothing goes back");
        assert_eq!(next_claim.next_at(true, at(10)), Some(at(50)));
        assert_eq!(next_claim.next(with_returns(at(50))), (ClaimKind::Ordinary, Some(place(-100))));
        next_claim.learn(ClaimKind::Ordinary, Some(place(-100)), &claimed(50, 50, None), |_| false);
        assert_eq!(next_claim.next_at(true, at(60)), Some(at(2010)), "nothing is behind it: the oldest are next");
        assert_eq!(next_claim.next(with_returns(at(2010))), (ClaimKind::Oldest, Some(first())));
        next_claim.learn(ClaimKind::Oldest, Some(first()), &claimed(2010, -400, Some(-300)), |_| false);
        assert_eq!(next_claim.next_at(true, at(2010)), Some(at(4010)), "the next are bad ones, too");
        assert_eq!(
            next_claim.next(with_returns(at(2010))),
            (ClaimKind::Ordinary, Some(place(50))),
            "its place is kept"
        );
        // No occurrences return to the lane any more.
        assert_eq!(next_claim.next(usual(at(4010))), (ClaimKind::Ordinary, None));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(4010, -300, None), |_| false);
        assert_eq!(next_claim.next_at(false, at(4010)), None);
    }

    #[test]
    fn a_due_before_the_start_position_moves_the_start_position_back() {
        let mut next_claim = NextClaim::default();
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(0, -100, None), |_| false);
        let wake_by = |due| WakeReasons { due: Some(due), ..WakeReasons::default() };
        next_claim.notified(wake_by(at(-99)));
        assert_eq!(next_claim.next(with_returns(at(0))), (ClaimKind::Ordinary, Some(place(-100))), "it stands behind");
        next_claim.notified(WakeReasons { look: true, ..WakeReasons::default() });
        assert_eq!(next_claim.next_at(true, at(0)), Some(Timestamp::MIN_DUE), "it is time to look");
        assert_eq!(next_claim.next(with_returns(at(0))), (ClaimKind::Ordinary, Some(place(-100))));
        next_claim.notified(WakeReasons { look: true, ..wake_by(at(-100)) });
        assert_eq!(
            next_claim.next(with_returns(at(0))),
            (ClaimKind::Ordinary, Some(DuePosition { due: at(-100), member: None }))
        );
        next_claim.notified(WakeReasons { look: true, from_oldest: true, due: None });
        assert_eq!(next_claim.next(with_returns(at(0))), (ClaimKind::Ordinary, None), "something may stand before it");
    }

    #[test]
    fn every_other_claim_takes_the_newest_while_the_lane_is_far_behind() {
        let mut next_claim = NextClaim::default();
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(0, -6000, Some(-4999)), |_| false);
        assert_eq!(next_claim.next(usual(at(0))).0, ClaimKind::Ordinary, "not far");
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(1, -6000, Some(-4999)), |_| false);
        assert_eq!(next_claim.next(usual(at(1))), (ClaimKind::Newest, None));
        next_claim.learn(ClaimKind::Newest, None, &claimed(1, 0, Some(-4999)), |_| false);
        assert_eq!(next_claim.next(usual(at(1))), (ClaimKind::Ordinary, None));
        assert_eq!(next_claim.next_at(false, at(1)), Some(at(-4999)));
        // Behind returned occurrences any due task counts as far behind, because the newest may be good.
        next_claim.learn(ClaimKind::Ordinary, Some(place(-6000)), &claimed(2, -100, Some(-99)), |_| false);
        assert_eq!(next_claim.next(with_returns(at(2))).0, ClaimKind::Newest);
    }

    #[test]
    fn a_claim_of_only_unreadable_occurrences_is_followed_by_one_behind_them() {
        let mut next_claim = NextClaim::default();
        next_claim.unreadable.asked = true;
        let full = |last| Claimed { occurrences: Vec::new(), unreadable: 1500, ..claimed(0, last, Some(-10)) };
        next_claim.learn(ClaimKind::Ordinary, None, &full(-300), |_| false);
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Ordinary, Some(place(-300))));
        next_claim.learn(ClaimKind::Ordinary, Some(place(-300)), &full(-200), |_| false);
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Ordinary, Some(place(-200))));
        let end = Claimed { occurrences: Vec::new(), last: None, ..claimed(0, 0, None) };
        next_claim.learn(ClaimKind::Ordinary, Some(place(-200)), &end, |_| false);
        assert_eq!(next_claim.next_at(false, at(0)), Some(at(10_000)), "it rests");
        assert_eq!(next_claim.next(usual(at(10_000))), (ClaimKind::Ordinary, None), "and begins anew");
    }

    #[test]
    fn a_paused_lane_is_asked_for_once_a_second_whatever_it_is_told() {
        let mut next_claim = NextClaim::default();
        next_claim.learn(ClaimKind::Ordinary, None, &Claimed { suspects: 1, ..claimed(0, -100, Some(-50)) }, |_| true);
        assert!(next_claim.asks_for_suspects());
        let mut waits = true;
        next_claim.learn(ClaimKind::Suspects, None, &Claimed::paused(at(1)), |wait| {
            waits = wait;
            wait
        });
        assert!(!waits && !next_claim.asks_for_suspects(), "another lane may have the permit");
        next_claim.notified(WakeReasons { due: Some(at(-1)), look: true, from_oldest: true });
        assert_eq!(next_claim.next_at(true, at(2)), Some(at(1001)));
        next_claim.learn(ClaimKind::Ordinary, None, &Claimed::paused(at(1001)), |_| false);
        assert_eq!(next_claim.next_at(false, at(1001)), Some(at(2001)));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(2001, -100, Some(2050)), |_| false);
        assert_eq!(next_claim.next_at(false, at(2001)), Some(at(2050)), "it is resumed");
    }

    #[test]
    fn an_instance_that_neither_owns_a_shard_nor_is_its_deputy_asks_for_what_is_overdue() {
        let mut next_claim = NextClaim::default();
        let wake_by = |due| WakeReasons { due: Some(due), ..WakeReasons::default() };
        next_claim.notified(wake_by(at(100)));
        assert_eq!(next_claim.asks_at(Rank::Deputy, false, at(0)), Some(at(125)));
        assert_eq!(next_claim.asks_at(Rank::Owner, false, at(0)), Some(at(100)));
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(0)), None);
        assert_eq!(next_claim.asks_at(Rank::Owner, false, at(0)), None, "it was forgotten");
        // A glance shows a backlog: it claims while replies show more of it.
        next_claim.notified(wake_by(at(100)));
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(350)), Some(at(100)));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(350, 110, Some(100)), |_| false);
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(360)), Some(at(100)));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(360, 110, Some(111)), |_| false);
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(360)), None);
        // A better rank: it looks at once.
        next_claim.notified(WakeReasons { look: true, ..WakeReasons::default() });
        assert_eq!(next_claim.asks_at(Rank::Other, true, at(360)), Some(Timestamp::MIN_DUE));
        // Returned occurrences look like a backlog.
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(370, 110, Some(100)), |_| false);
        assert_eq!(next_claim.asks_at(Rank::Other, true, at(370)), None);
        // What only this claimer has seen, and a paused lane, are its own.
        next_claim.learn(ClaimKind::Ordinary, None, &Claimed { suspects: 1, ..claimed(400, 110, None) }, |_| true);
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(400)), Some(at(400)));
        next_claim.learn(ClaimKind::Suspects, None, &Claimed::paused(at(400)), |_| false);
        assert_eq!(next_claim.asks_at(Rank::Other, false, at(400)), Some(at(1400)));
    }

    #[test]
    fn suspects_are_claimed_from_the_place_of_their_last_sighting() {
        let mut next_claim = NextClaim::default();
        let suspects = |now, last| Claimed { suspects: 2, ..claimed(now, last, None) };
        next_claim.learn(ClaimKind::Ordinary, Some(place(-300)), &suspects(0, -200), |_| false);
        assert!(next_claim.asks_for_suspects());
        assert_eq!(next_claim.next_at(true, at(0)), Some(at(1000)), "another claimer has the turn");
        assert_eq!(next_claim.next(with_returns(at(0))), (ClaimKind::Ordinary, Some(place(-200))));
        next_claim.learn(ClaimKind::Ordinary, Some(place(-200)), &suspects(1, -100), |_| false);
        next_claim.learn(ClaimKind::Ordinary, Some(place(-100)), &claimed(2, -50, None), |waits| waits);
        assert_eq!(next_claim.next_at(true, at(2)), Some(at(2)), "its turn has come");
        assert_eq!(next_claim.next(with_permit(with_returns(at(2)))), (ClaimKind::Suspects, Some(place(-200))));
        // Others are left; they may return as fast as they are claimed.
        let some = Claimed { suspects: 1, ..claimed(3, -150, None) };
        next_claim.learn(ClaimKind::Suspects, Some(place(-200)), &some, |waits| waits);
        assert!(!next_claim.asks_for_suspects(), "not at once");
        // A claim from the oldest sees all of them.
        next_claim.learn(ClaimKind::Ordinary, None, &suspects(5, -300), |_| false);
        assert_eq!(next_claim.next(with_permit(usual(at(5)))), (ClaimKind::Suspects, None));
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(6, -300, None), |_| false);
        assert!(!next_claim.asks_for_suspects());
    }

    #[test]
    fn unreadable_occurrences_are_claimed_to_the_end_of_the_lane() {
        let mut next_claim = NextClaim::default();
        next_claim.learn(ClaimKind::Ordinary, None, &Claimed { unreadable: 1, ..claimed(0, 0, None) }, |_| false);
        let others = Claimed { occurrences: Vec::new(), ..claimed(0, -7, None) };
        next_claim.learn(ClaimKind::Unreadable, None, &others, |_| false);
        assert_eq!(
            next_claim.next(usual(at(0))),
            (ClaimKind::Unreadable, Some(place(-7))),
            "a thousand others came first"
        );
    }

    #[test]
    fn unreadable_occurrences_are_claimed_once() {
        let mut next_claim = NextClaim::default();
        let some = Claimed { unreadable: 3, ..claimed(0, 0, None) };
        next_claim.learn(ClaimKind::Ordinary, None, &some, |_| false);
        assert_eq!((next_claim.next_at(false, at(0)), next_claim.unreadable()), (Some(at(0)), 3));
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Unreadable, None));
        next_claim.learn(ClaimKind::Unreadable, None, &claimed(0, -5, None), |_| false);
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Unreadable, Some(place(-5))));
        let none = Claimed { occurrences: Vec::new(), last: None, ..claimed(0, 0, None) };
        next_claim.learn(ClaimKind::Unreadable, Some(place(-5)), &none, |_| false);
        next_claim.learn(ClaimKind::Ordinary, None, &some, |_| false);
        assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Ordinary, None));
        assert_eq!(next_claim.next_at(false, at(0)), Some(at(10_000)), "a cancel tells nobody");
        next_claim.learn(ClaimKind::Ordinary, None, &claimed(10_000, 0, None), |_| false);
        assert_eq!((next_claim.next_at(false, at(10_000)), next_claim.unreadable()), (None, 0));
    }

    #[test]
    fn a_paused_lane_is_asked_again_within_a_second_also_if_the_clock_is_set_back() {
        let mut next = NextClaim::default();
        next.learn(ClaimKind::Ordinary, None, &Claimed::paused(at(10_000_000)), |_| false);
        assert_eq!(next.next_at(false, at(10_000_000)), Some(at(10_001_000)));
        assert_eq!(next.next_at(false, at(10_000_400)), Some(at(10_001_000)));
        // An hour back: the time stays once it is near.
        assert_eq!(next.next_at(false, at(6_400_000)), Some(at(6_401_000)));
        assert_eq!(next.next_at(false, at(6_400_900)), Some(at(6_401_000)));
    }
}
