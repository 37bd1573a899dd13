//! Bounded: a lane that is far behind is claimed from both ends, so that what is freshly due has its share.

use std::collections::BTreeMap;

use punctual::task::TaskId;
use punctual::timeline::{ClaimRequest, Claimed, PutMode, Rest, Verdict};

use super::stage::{Stage, at, member, ms, once, settlement};

super::laws! {
    a_lane_far_behind_is_claimed_from_both_ends,
    what_fits_is_claimed_in_order_however_old_it_is,
    what_has_been_due_since_one_moment_is_claimed_in_order,
    each_end_has_half_of_the_bytes,
    where_one_fits_the_ends_take_turns,
    what_is_claimed_from_both_ends_is_claimed_once_and_all_of_it,
    suspects_at_the_newest_end_are_told_of_when_their_turn_has_come,
    suspects_at_the_oldest_end_are_told_of_whichever_goes_first,
}

/// Puts a task for each due; the ids in that order.
async fn backlog(stage: &Stage, payloads: impl IntoIterator<Item = (i64, &str)>) -> Vec<TaskId> {
    let payloads: Vec<_> = payloads.into_iter().collect();
    let ids = stage.ids(payloads.len());
    let puts = ids.iter().zip(&payloads).map(|(id, (due, payload))| once(id, at(*due), payload)).collect();
    stage.timeline.put(stage.shard(), PutMode::Put, puts, stage.soon()).await.unwrap();
    ids
}

/// What was claimed, by its due after the start.
fn dues(claimed: &Claimed) -> Vec<i64> {
    claimed.occurrences.iter().map(|one| one.due.since(at(0)).as_millis().try_into().unwrap()).collect()
}

/// Claims up to `max` and gives it back.
async fn look(stage: &Stage, max: usize, max_bytes: usize) -> Claimed {
    let request = ClaimRequest { max, max_bytes, ..stage.request() };
    let token = request.token.clone();
    let claimed = stage.claim_as(request).await;
    stage.settle(&token, Rest::Back, Vec::new()).await;
    claimed
}

async fn a_lane_far_behind_is_claimed_from_both_ends(stage: Stage) {
    backlog(&stage, (0..20).map(|due| (due, "a"))).await;
    stage.clock.set(at(4999));
    let claimed = look(&stage, 6, 4 << 20).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![0, 1, 2, 3, 4, 5], Some(at(6))), "its head is not 5 s old");
    stage.clock.set(at(5000));
    let claimed = look(&stage, 6, 4 << 20).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![0, 1, 2, 19, 18, 17], Some(at(3))));
    let claimed = look(&stage, 5, 4 << 20).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![0, 1, 2, 19, 18], Some(at(3))));
    // The ends meet.
    let claimed = look(&stage, 19, 4 << 20).await;
    assert_eq!((claimed.occurrences.len(), claimed.head), (19, Some(at(10))));
    // In odd milliseconds the newest go first.
    stage.clock.set(at(5001));
    let claimed = look(&stage, 5, 4 << 20).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![19, 18, 17, 0, 1], Some(at(2))));
    let claimed = look(&stage, 19, 4 << 20).await;
    assert_eq!((claimed.occurrences.len(), claimed.head), (19, Some(at(9))));
}

async fn what_fits_is_claimed_in_order_however_old_it_is(stage: Stage) {
    backlog(&stage, (0..6).map(|due| (due, "a")).chain([(70_000, "a")])).await;
    stage.clock.set(at(60_000));
    let size = stage.state().tasks.values().next().unwrap().len();
    for (max, max_bytes) in [(6, 4 << 20), (1000, 6 * size)] {
        let claimed = look(&stage, max, max_bytes).await;
        assert_eq!((dues(&claimed), claimed.head), (vec![0, 1, 2, 3, 4, 5], Some(at(70_000))));
    }
    let claimed = look(&stage, 1000, 6 * size - 1).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![0, 1, 5, 4, 3], Some(at(2))), "a byte too much");
}

/// Nothing of it is fresh, whether more is due than fits, just what fits, or less.
async fn what_has_been_due_since_one_moment_is_claimed_in_order(stage: Stage) {
    let ids = backlog(&stage, (0..8).map(|_| (0, "a")).chain([(10_000, "a")])).await;
    let members = |claimed: &Claimed| -> Vec<_> { claimed.occurrences.iter().map(|one| one.member.clone()).collect() };
    let first = |count: usize| -> Vec<_> { ids[..count].iter().map(member).collect() };
    for now in [0, 1, 5000, 5001] {
        stage.clock.set(at(now));
        for max in [1, 7, 8, 9] {
            let claimed = look(&stage, max, 4 << 20).await;
            let head = if max < 8 { at(0) } else { at(10_000) };
            assert_eq!((members(&claimed), claimed.head), (first(max.min(8)), Some(head)), "{now} {max}");
            assert!(claimed.occurrences.iter().all(|one| one.due == at(0)));
        }
    }
    // With one that came later both ends have their share.
    stage.clock.set(at(10_000));
    let claimed = look(&stage, 4, 4 << 20).await;
    assert_eq!(members(&claimed), [&ids[0], &ids[1], &ids[8], &ids[7]].map(member));
}

async fn each_end_has_half_of_the_bytes(stage: Stage) {
    let large = "x".repeat(10_000);
    backlog(&stage, (0..20).map(|due| (due, if due < 10 { &*large } else { "a" }))).await;
    stage.clock.set(at(5100));
    let size = stage.state().tasks.values().map(|record| record.len()).max().unwrap();
    let claimed = look(&stage, 1000, 4 * size).await;
    // What is left of the bytes goes to the newest that fit.
    assert_eq!(dues(&claimed), [0, 1, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9]);
    assert_eq!(claimed.head, Some(at(2)));
    let claimed = look(&stage, 1000, 1).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![0], Some(at(1))), "the first whatever its size");
}

/// Else a lane whose room is all but full, or whose messages are large, would be claimed from its oldest end alone.
async fn where_one_fits_the_ends_take_turns(stage: Stage) {
    let large = "x".repeat(10_000);
    backlog(&stage, (0..20).map(|due| (due, &*large))).await;
    let size = stage.state().tasks.values().next().unwrap().len();
    for (now, first, head) in [(5100, 0, 1), (5101, 19, 0), (5102, 0, 1), (5103, 19, 0)] {
        stage.clock.set(at(now));
        for (max, max_bytes) in [(1, 4 << 20), (1000, 1), (1000, 2 * size - 1)] {
            let claimed = look(&stage, max, max_bytes).await;
            assert_eq!((dues(&claimed), claimed.head), (vec![first], Some(at(head))), "{max}, {max_bytes} at {now}");
        }
    }
    // What is not far behind is claimed in order at any time.
    stage.clock.set(at(4999));
    assert_eq!(dues(&look(&stage, 1, 4 << 20).await), [0]);
}

async fn what_is_claimed_from_both_ends_is_claimed_once_and_all_of_it(stage: Stage) {
    let ids = backlog(&stage, (0..200).map(|due| (due / 3, "a"))).await;
    stage.clock.set(at(6000));
    let mut seen = BTreeMap::new();
    for round in 0.. {
        stage.clock.advance(ms(1));
        let request = ClaimRequest { max: 7 + round % 3, ..stage.request() };
        let token = request.token.clone();
        let claimed = stage.claim_as(request).await;
        if claimed.occurrences.is_empty() {
            break;
        }
        for one in &claimed.occurrences {
            *seen.entry(one.member.clone()).or_insert(0) += 1;
        }
        let state = stage.state();
        let (line, lane) = (state.due.values(), super::stage::lane());
        assert_eq!(
            claimed.head,
            line.flat_map(|line| line.positive())
                .next()
                .map(|(score, _)| { punctual::clock::Timestamp::from_millis(score) })
        );
        assert_eq!(state.claims[&lane][&token].pairs.len(), claimed.occurrences.len());
        let verdicts = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
        stage.settle(&token, Rest::Keep, verdicts).await;
    }
    let all: BTreeMap<_, _> = ids.iter().map(|id| (member(id), 1)).collect();
    assert_eq!(seen, all);
    stage.assert_nothing_is_left();
}

async fn suspects_at_the_newest_end_are_told_of_when_their_turn_has_come(stage: Stage) {
    let ids = stage.ids(9);
    stage.create(once(&ids[0], at(0), "bad")).await;
    stage.crash(2).await;
    for (id, due) in ids[1..].iter().zip(-8..) {
        stage.create(once(id, at(due), "a")).await;
    }
    let claimed = look(&stage, 4, 4 << 20).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.due).collect();
    assert_eq!(taken, [-8, -7, -1, -2].map(at), "the suspect, the newest of all, is left out");
    assert_eq!((claimed.suspects, claimed.head), (0, Some(at(-6))));
    // Everything has been looked at.
    let claimed = look(&stage, 8, 4 << 20).await;
    assert_eq!((claimed.occurrences.len(), claimed.suspects, claimed.head), (8, 1, None));
    // The same where the newest go first.
    stage.clock.advance(ms(1));
    let claimed = look(&stage, 4, 4 << 20).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.due).collect();
    assert_eq!(taken, [-1, -2, -8, -7].map(at));
    assert_eq!((claimed.suspects, claimed.head), (0, Some(at(-6))));
    let claimed = look(&stage, 8, 4 << 20).await;
    assert_eq!((claimed.occurrences.len(), claimed.suspects, claimed.head), (8, 1, None));
    let alone = stage.claim_as(ClaimRequest { suspects_only: true, ..stage.request() }).await;
    assert_eq!((alone.occurrences.len(), alone.occurrences[0].due), (1, at(0)));
}

async fn suspects_at_the_oldest_end_are_told_of_whichever_goes_first(stage: Stage) {
    let ids = stage.ids(9);
    stage.create(once(&ids[0], at(0), "bad")).await;
    stage.crash(2).await;
    for (id, due) in ids[1..].iter().zip(1..) {
        stage.create(once(id, at(due), "a")).await;
    }
    stage.clock.advance(ms(6000));
    for (max, even, odd) in [(4, vec![1, 2, 8, 7], vec![8, 7, 1, 2]), (1, vec![1], vec![8])] {
        for _ in 0..2 {
            let newest_first = stage.now().as_millis() % 2 == 1;
            let claimed = look(&stage, max, 4 << 20).await;
            assert_eq!(dues(&claimed), *if newest_first { &odd } else { &even });
            let head = if max == 4 { 3 } else { 1 + i64::from(!newest_first) };
            assert_eq!((claimed.suspects, claimed.head), (1, Some(at(head))));
            stage.clock.advance(ms(1));
        }
    }
}
