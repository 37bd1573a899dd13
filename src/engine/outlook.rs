//! What a claimer knows between two claims: when the next one is, of which kind, and where it begins.
//!
//! Claims begin at the oldest that is due. While a destination of the lane is at fault, what it may not hold goes back under
//! its due; then claims begin behind the last place that was looked at, and every two seconds one begins at the oldest again.
//! While a lane is far behind, every other claim takes the newest: what is freshly due has its share.

use std::time::Duration;

use super::signal::Told;
use crate::clock::Timestamp;
use crate::timeline::{Claimed, Place};

/// How often a claim begins at the oldest while others begin behind what went back.
pub(super) const OLDEST_AGAIN: Duration = Duration::from_secs(2);

/// How far past a head is before every other claim takes the newest.
const FAR_BEHIND: Duration = Duration::from_secs(5);

/// The wait before the next claim while there are suspects, and it is another claim's turn to hold some. Whoever is next is told.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(1);

/// How often a claimer looks whether what could not be read is still there: a cancel tells nobody.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(10);

/// A kind of claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the oldest on, or behind what went back.
    Ordinary,
    /// From the oldest on, while others begin behind what went back.
    Oldest,
    /// What has become due last.
    Newest,
    /// Suspects.
    Suspects,
    /// What could not be read.
    Unreadable,
}

/// What the claimer knows between two claims.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// When there is something to claim, as far as it is known.
    head: Option<Timestamp>,
    /// Where the next ordinary claim begins while something goes back.
    place: Option<Place>,
    /// Where the next ordinary claim begins because the last one found nothing but what claims leave out.
    behind_left_out: Option<Place>,
    /// When a claim begins at the oldest again, while something goes back.
    oldest_at: Option<Timestamp>,
    /// The next claim takes the newest.
    newest_next: bool,
    /// There were suspects when last looked at: the next claim is for them, if it is this claimer's turn, ...
    suspects_next: bool,
    /// ... and looks behind this place.
    suspects_behind: Option<Place>,
    unreadable: Unreadable,
    /// Claims in a row that found nothing.
    idle: u32,
}

/// What is known of those that cannot be read.
#[derive(Debug, Default)]
struct Unreadable {
    /// So many were left out when last looked at.
    seen: u64,
    /// The next claim asks for them.
    next: bool,
    /// It looks behind this place.
    behind: Option<Place>,
    /// All of them were asked for once: a newer version might have read them.
    asked: bool,
}

impl Outlook {
    /// Takes in what the claimer was told.
    pub(super) fn told(&mut self, told: Told) {
        if told.anew {
            (self.place, self.behind_left_out, self.oldest_at) = (None, None, None);
        }
        if told.look {
            self.head = Some(Timestamp::MIN_DUE);
        }
        if let Some(due) = told.due {
            self.look_by(due);
            if self.place.as_ref().is_some_and(|place| due <= place.due) {
                self.place = Some(Place { due, member: None });
            }
        }
    }

    /// When the next claim is. `goes_back`: something of the lane went back lately because its destination is at fault.
    pub(super) fn next_at(&mut self, goes_back: bool, now: Timestamp) -> Option<Timestamp> {
        if goes_back {
            self.oldest_at.get_or_insert(now.plus(OLDEST_AGAIN));
        }
        self.head.into_iter().chain(self.oldest_at).min()
    }

    /// Whether the next claim should be for suspects, if it is this claimer's turn.
    pub(super) fn asks_for_suspects(&self) -> bool {
        self.suspects_next
    }

    /// Claims in a row that found nothing.
    pub(super) fn idle(&self) -> u32 {
        self.idle
    }

    /// How many were seen lately that cannot be read.
    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable.seen
    }

    /// What the next claim is for, and the place that it begins behind.
    pub(super) fn next(&self, suspects: bool, goes_back: bool, now: Timestamp) -> (Kind, Option<Place>) {
        if suspects {
            (Kind::Suspects, self.suspects_behind.clone())
        } else if self.unreadable.next {
            (Kind::Unreadable, self.unreadable.behind.clone())
        } else if goes_back && self.oldest_at.is_some_and(|at| at <= now) {
            // Behind the place before all others: it is told to nobody how far this one came.
            (Kind::Oldest, Some(Place { due: Timestamp::MIN_DUE, member: None }))
        } else if self.newest_next {
            (Kind::Newest, None)
        } else {
            let place = if goes_back { &self.place } else { &self.behind_left_out };
            (Kind::Ordinary, place.clone())
        }
    }

    /// Draws from a claim's reply when to claim next, and what for. `wait`: stands in line for the turn to hold suspects, or
    /// leaves it; whether it is this claimer's turn.
    pub(super) fn learn(
        &mut self,
        kind: Kind,
        after: Option<Place>,
        claimed: &Claimed,
        wait: impl FnOnce(bool) -> bool,
    ) {
        self.idle = if claimed.occurrences.is_empty() { self.idle.saturating_add(1) } else { 0 };
        // Behind those that are left out, which are still there.
        let goes_on = kind == Kind::Ordinary && after.is_some() && after == self.behind_left_out;
        match kind {
            Kind::Newest => self.newest_next = false,
            Kind::Unreadable => self.asked_for_unreadable(claimed),
            Kind::Oldest => {
                self.oldest_at = Some(claimed.now.plus(OLDEST_AGAIN));
                self.saw_suspects(claimed, after);
                self.saw_unreadable(claimed);
            }
            Kind::Ordinary => {
                let from_oldest = after.is_none();
                if from_oldest {
                    self.oldest_at = None;
                    self.saw_unreadable(claimed);
                }
                self.place = claimed.last.clone().or(self.place.take());
                // As many as a claim looks at were left out, and more is due: otherwise the next claim would find them again.
                let only_left_out = claimed.occurrences.is_empty() && claimed.suspects + claimed.unreadable > 0;
                let more = claimed.head.is_some_and(|head| head <= claimed.now);
                self.behind_left_out = claimed.last.clone().filter(|_| only_left_out && more);
                // Behind what goes back nothing is to wait at all.
                let far = if from_oldest || goes_on { FAR_BEHIND } else { Duration::ZERO };
                self.newest_next = claimed.head.is_some_and(|head| head.plus(far) <= claimed.now);
                self.saw_suspects(claimed, after);
                self.head = claimed.head;
            }
            Kind::Suspects => {
                // The others are asked for once they are seen again: where their destination is at fault they go back at once.
                self.suspects_next = false;
                // Where suspects are left and none was taken, a head that is due stands behind more of them than a claim looks at.
                let in_vain = claimed.occurrences.is_empty() && claimed.suspects > 0;
                let head = claimed.head.filter(|head| *head > claimed.now || !in_vain);
                // Behind a place it says nothing of what was told to stand before.
                self.head = if after.is_none() { head } else { self.head.into_iter().chain(head).min() };
            }
        }
        if matches!(kind, Kind::Ordinary | Kind::Oldest | Kind::Suspects) {
            let some = self.suspects_next || claimed.suspects > 0;
            let turn = wait(some);
            if self.suspects_next && turn {
                self.head = Some(claimed.now);
            } else if some {
                self.look_by(claimed.now.plus(SUSPECTS_PAUSE));
            }
        }
        if self.unreadable.next {
            self.head = Some(claimed.now);
        } else if self.unreadable.seen > 0 {
            self.look_by(claimed.now.plus(UNREADABLE_PAUSE));
        }
    }

    fn look_by(&mut self, latest: Timestamp) {
        self.head = Some(self.head.map_or(latest, |head| head.min(latest)));
    }

    /// A claim that begins behind a place does not see those before it: they are still asked for where they were seen last.
    fn saw_suspects(&mut self, claimed: &Claimed, after: Option<Place>) {
        if claimed.suspects > 0 || after.is_none() {
            self.suspects_next = claimed.suspects > 0;
            self.suspects_behind = after;
        }
    }

    fn saw_unreadable(&mut self, claimed: &Claimed) {
        self.unreadable.seen = claimed.unreadable;
        self.unreadable.next = claimed.unreadable > 0 && !self.unreadable.asked;
    }

    /// Goes on behind those that were taken, until none is left.
    fn asked_for_unreadable(&mut self, claimed: &Claimed) {
        // One call looks at a thousand, of whatever kind: only behind the last of all none is left.
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

    fn place(due: i64) -> Place {
        Place { due: at(due), member: Some("x".parse().unwrap()) }
    }

    fn first() -> Place {
        Place { due: Timestamp::MIN_DUE, member: None }
    }

    /// A reply at that time: something was taken, up to `last`; the head behind it.
    fn claimed(now: i64, last: i64, head: Option<i64>) -> Claimed {
        let member = "x".parse().unwrap();
        let record = bytes::Bytes::new();
        let occurrence = Occurrence { member, due: at(last), record, counts: Counts::default(), crashes: 0 };
        Claimed {
            now: at(now),
            occurrences: vec![occurrence],
            head: head.map(at),
            last: Some(place(last)),
            suspects: 0,
            unreadable: 0,
            removed: 0,
        }
    }

    #[test]
    fn claims_begin_behind_what_goes_back_and_every_two_seconds_at_the_oldest() {
        let mut outlook = Outlook::default();
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Ordinary, None));
        outlook.learn(Kind::Ordinary, None, &claimed(0, -100, Some(50)), |_| false);
        assert_eq!(outlook.next(false, false, at(50)), (Kind::Ordinary, None), "nothing goes back");
        assert_eq!(outlook.next_at(true, at(10)), Some(at(50)));
        assert_eq!(outlook.next(false, true, at(50)), (Kind::Ordinary, Some(place(-100))));
        outlook.learn(Kind::Ordinary, Some(place(-100)), &claimed(50, 50, None), |_| false);
        assert_eq!(outlook.next_at(true, at(60)), Some(at(2010)), "nothing is behind it: the oldest are next");
        assert_eq!(outlook.next(false, true, at(2010)), (Kind::Oldest, Some(first())));
        outlook.learn(Kind::Oldest, Some(first()), &claimed(2010, -400, Some(-300)), |_| false);
        assert_eq!(outlook.next_at(true, at(2010)), Some(at(4010)), "the next are bad ones, too");
        assert_eq!(outlook.next(false, true, at(2010)), (Kind::Ordinary, Some(place(50))), "its place is kept");
        // Nothing goes back any more.
        assert_eq!(outlook.next(false, false, at(4010)), (Kind::Ordinary, None));
        outlook.learn(Kind::Ordinary, None, &claimed(4010, -300, None), |_| false);
        assert_eq!(outlook.next_at(false, at(4010)), None);
    }

    #[test]
    fn what_becomes_due_before_the_place_moves_it() {
        let mut outlook = Outlook::default();
        outlook.learn(Kind::Ordinary, None, &claimed(0, -100, None), |_| false);
        let told = |due| Told { due: Some(due), ..Told::default() };
        outlook.told(told(at(-99)));
        assert_eq!(outlook.next(false, true, at(0)), (Kind::Ordinary, Some(place(-100))), "it stands behind");
        outlook.told(Told { look: true, ..Told::default() });
        assert_eq!(outlook.next_at(true, at(0)), Some(Timestamp::MIN_DUE), "it is time to look");
        assert_eq!(outlook.next(false, true, at(0)), (Kind::Ordinary, Some(place(-100))));
        outlook.told(Told { look: true, ..told(at(-100)) });
        assert_eq!(outlook.next(false, true, at(0)), (Kind::Ordinary, Some(Place { due: at(-100), member: None })));
        outlook.told(Told { look: true, anew: true, due: None });
        assert_eq!(outlook.next(false, true, at(0)), (Kind::Ordinary, None), "something may stand before it");
    }

    #[test]
    fn every_other_claim_takes_the_newest_while_the_lane_is_far_behind() {
        let mut outlook = Outlook::default();
        outlook.learn(Kind::Ordinary, None, &claimed(0, -6000, Some(-4999)), |_| false);
        assert_eq!(outlook.next(false, false, at(0)).0, Kind::Ordinary, "not far");
        outlook.learn(Kind::Ordinary, None, &claimed(1, -6000, Some(-4999)), |_| false);
        assert_eq!(outlook.next(false, false, at(1)), (Kind::Newest, None));
        outlook.learn(Kind::Newest, None, &claimed(1, 0, Some(-4999)), |_| false);
        assert_eq!(outlook.next(false, false, at(1)), (Kind::Ordinary, None));
        assert_eq!(outlook.next_at(false, at(1)), Some(at(-4999)));
        // Behind what goes back whatever is due is far behind: the newest may be good.
        outlook.learn(Kind::Ordinary, Some(place(-6000)), &claimed(2, -100, Some(-99)), |_| false);
        assert_eq!(outlook.next(false, true, at(2)).0, Kind::Newest);
    }

    #[test]
    fn a_claim_that_finds_only_what_is_left_out_is_followed_by_one_behind_it() {
        let mut outlook = Outlook::default();
        outlook.unreadable.asked = true;
        let full = |last| Claimed { occurrences: Vec::new(), unreadable: 1500, ..claimed(0, last, Some(-10)) };
        outlook.learn(Kind::Ordinary, None, &full(-300), |_| false);
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Ordinary, Some(place(-300))));
        outlook.learn(Kind::Ordinary, Some(place(-300)), &full(-200), |_| false);
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Ordinary, Some(place(-200))));
        let end = Claimed { occurrences: Vec::new(), last: None, ..claimed(0, 0, None) };
        outlook.learn(Kind::Ordinary, Some(place(-200)), &end, |_| false);
        assert_eq!(outlook.next_at(false, at(0)), Some(at(10_000)), "it rests");
        assert_eq!(outlook.next(false, false, at(10_000)), (Kind::Ordinary, None), "and begins anew");
    }

    #[test]
    fn suspects_are_asked_for_where_they_were_though_claims_have_gone_past_them() {
        let mut outlook = Outlook::default();
        let suspects = |now, last| Claimed { suspects: 2, ..claimed(now, last, None) };
        outlook.learn(Kind::Ordinary, Some(place(-300)), &suspects(0, -200), |_| false);
        assert!(outlook.asks_for_suspects());
        assert_eq!(outlook.next_at(true, at(0)), Some(at(1000)), "another claimer has the turn");
        assert_eq!(outlook.next(false, true, at(0)), (Kind::Ordinary, Some(place(-200))));
        outlook.learn(Kind::Ordinary, Some(place(-200)), &suspects(1, -100), |_| false);
        outlook.learn(Kind::Ordinary, Some(place(-100)), &claimed(2, -50, None), |waits| waits);
        assert_eq!(outlook.next_at(true, at(2)), Some(at(2)), "its turn has come");
        assert_eq!(outlook.next(true, true, at(2)), (Kind::Suspects, Some(place(-200))));
        // Others are left: they may go back as fast as they are claimed.
        let some = Claimed { suspects: 1, ..claimed(3, -150, None) };
        outlook.learn(Kind::Suspects, Some(place(-200)), &some, |waits| waits);
        assert!(!outlook.asks_for_suspects(), "not at once");
        // From the oldest on all of them are seen.
        outlook.learn(Kind::Ordinary, None, &suspects(5, -300), |_| false);
        assert_eq!(outlook.next(true, false, at(5)), (Kind::Suspects, None));
        outlook.learn(Kind::Ordinary, None, &claimed(6, -300, None), |_| false);
        assert!(!outlook.asks_for_suspects());
    }

    #[test]
    fn those_that_cannot_be_read_are_looked_for_to_the_end_of_the_lane() {
        let mut outlook = Outlook::default();
        outlook.learn(Kind::Ordinary, None, &Claimed { unreadable: 1, ..claimed(0, 0, None) }, |_| false);
        let others = Claimed { occurrences: Vec::new(), ..claimed(0, -7, None) };
        outlook.learn(Kind::Unreadable, None, &others, |_| false);
        assert_eq!(
            outlook.next(false, false, at(0)),
            (Kind::Unreadable, Some(place(-7))),
            "a thousand others came first"
        );
    }

    #[test]
    fn those_that_cannot_be_read_are_asked_for_once() {
        let mut outlook = Outlook::default();
        let some = Claimed { unreadable: 3, ..claimed(0, 0, None) };
        outlook.learn(Kind::Ordinary, None, &some, |_| false);
        assert_eq!((outlook.next_at(false, at(0)), outlook.unreadable()), (Some(at(0)), 3));
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Unreadable, None));
        outlook.learn(Kind::Unreadable, None, &claimed(0, -5, None), |_| false);
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Unreadable, Some(place(-5))));
        let none = Claimed { occurrences: Vec::new(), last: None, ..claimed(0, 0, None) };
        outlook.learn(Kind::Unreadable, Some(place(-5)), &none, |_| false);
        outlook.learn(Kind::Ordinary, None, &some, |_| false);
        assert_eq!(outlook.next(false, false, at(0)), (Kind::Ordinary, None));
        assert_eq!(outlook.next_at(false, at(0)), Some(at(10_000)), "a cancel tells nobody");
        outlook.learn(Kind::Ordinary, None, &claimed(10_000, 0, None), |_| false);
        assert_eq!((outlook.next_at(false, at(10_000)), outlook.unreadable()), (None, 0));
    }
}
