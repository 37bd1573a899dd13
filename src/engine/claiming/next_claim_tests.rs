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
    assert_eq!(next_claim.next(with_returns(at(2010))), (ClaimKind::Ordinary, Some(place(50))), "its place is kept");
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
    assert_eq!(next_claim.next(usual(at(0))), (ClaimKind::Unreadable, Some(place(-7))), "a thousand others came first");
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
