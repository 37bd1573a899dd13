//! Bounded: in a lane with a backlog, a claim can take the newest tasks first, or start after a position. New tasks
//! then get their share, whatever waits before them.

use std::collections::BTreeMap;

use punctual::task::TaskId;
use punctual::timeline::{ClaimRequest, Claimed, DuePosition, PutMode, RestOfClaim, SuspectsRequest, Verdict};

use super::stage::{Stage, at, member, ms, once, settlement};

super::laws! {
    a_claim_takes_the_oldest_or_newest_tasks_and_returns_them_by_due,
    the_newest_are_as_many_and_as_large_as_fit,
    suspects_are_left_out_at_either_end,
    claims_from_both_ends_take_every_task_exactly_once,
    a_claim_starts_after_the_given_position,
    a_claim_starts_after_a_position_among_tasks_with_the_same_due,
    a_claim_of_suspects_starts_after_the_given_position,
}

/// Puts a task for each due; returns the ids in that order.
async fn backlog(stage: &Stage, payloads: impl IntoIterator<Item = (i64, &str)>) -> Vec<TaskId> {
    let payloads: Vec<_> = payloads.into_iter().collect();
    let ids = stage.ids(payloads.len());
    let puts = ids.iter().zip(&payloads).map(|(id, (due, payload))| once(id, at(*due), payload)).collect();
    stage.timeline.put(stage.shard(), PutMode::Put, puts, stage.soon()).await.unwrap();
    ids
}

/// Dues of the claimed occurrences, relative to the start.
fn dues(claimed: &Claimed) -> Vec<i64> {
    claimed.occurrences.iter().map(|one| one.due.since(at(0)).as_millis().try_into().unwrap()).collect()
}

/// Claims, then gives the occurrences back to the lane.
async fn look(stage: &Stage, request: ClaimRequest) -> Claimed {
    let token = request.token.clone();
    let claimed = stage.claim_as(request).await;
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    claimed
}

/// A claim of the `max` newest.
fn newest(stage: &Stage, max: usize) -> ClaimRequest {
    ClaimRequest { max, newest_first: true, ..stage.request() }
}

/// A claim of `max` occurrences after a position.
fn behind(stage: &Stage, max: usize, due: i64, id: Option<&TaskId>) -> ClaimRequest {
    let after = Some(DuePosition { due: at(due), member: id.map(member) });
    ClaimRequest { max, after, ..stage.request() }
}

async fn a_claim_takes_the_oldest_or_newest_tasks_and_returns_them_by_due(stage: Stage) {
    let ids = backlog(&stage, (0..20).map(|due| (due, "a")).chain([(70_000, "a")])).await;
    stage.clock.set(at(60_000));
    let claimed = look(&stage, ClaimRequest { max: 6, ..stage.request() }).await;
    assert_eq!((dues(&claimed), claimed.head), ((0..6).collect(), Some(at(6))));
    assert_eq!(claimed.last, Some(DuePosition { due: at(5), member: Some(member(&ids[5])) }));
    let claimed = look(&stage, newest(&stage, 6)).await;
    assert_eq!((dues(&claimed), claimed.head), ((14..20).collect(), Some(at(0))), "the oldest still waits");
    assert_eq!(claimed.last, None);
    // Both orders return everything if it fits.
    for newest_first in [false, true] {
        let claimed = look(&stage, ClaimRequest { newest_first, ..stage.request() }).await;
        assert_eq!((dues(&claimed), claimed.head), ((0..20).collect(), Some(at(70_000))));
    }
}

async fn the_newest_are_as_many_and_as_large_as_fit(stage: Stage) {
    let large = "x".repeat(10_000);
    backlog(&stage, (0..20).map(|due| (due, if due < 10 { &*large } else { "a" }))).await;
    stage.clock.set(at(5100));
    let size = stage.state().tasks.values().map(|record| record.len()).max().unwrap();
    for (max_bytes, first) in [(4 * size, 7), (size, 10), (1, 19)] {
        let claimed = look(&stage, ClaimRequest { max_bytes, ..newest(&stage, 1000) }).await;
        assert_eq!((dues(&claimed), claimed.head), ((first..20).collect(), Some(at(0))), "{max_bytes}");
    }
}

async fn suspects_are_left_out_at_either_end(stage: Stage) {
    let ids = stage.ids(9);
    stage.create(once(&ids[0], at(0), "bad")).await;
    stage.crash(2).await;
    for (id, due) in ids[1..].iter().zip([-8, -7, -6, -5, 1, 2, 3, 4]) {
        stage.create(once(id, at(due), "a")).await;
    }
    let claimed = look(&stage, newest(&stage, 6)).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.due).collect();
    assert_eq!(taken, [-6, -5, 1, 2, 3, 4].map(at));
    assert_eq!(
        (claimed.suspects, claimed.head),
        (0, Some(at(-8))),
        "only a claim from the oldest on counts the suspects"
    );
    let claimed = look(&stage, ClaimRequest { max: 6, ..stage.request() }).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.due).collect();
    assert_eq!(taken, [-8, -7, -6, -5, 1, 2].map(at));
    assert_eq!((claimed.suspects, claimed.head), (1, Some(at(3))));
    let (_, claimed) = stage.claim_suspects().await;
    assert_eq!((claimed.occurrences.len(), claimed.occurrences[0].due), (1, at(0)));
}

async fn claims_from_both_ends_take_every_task_exactly_once(stage: Stage) {
    let ids = backlog(&stage, (0..200).map(|due| (due / 3, "a"))).await;
    stage.clock.set(at(6000));
    let mut seen = BTreeMap::new();
    for round in 0.. {
        stage.clock.advance(ms(1));
        let request = ClaimRequest { max: 7 + round % 3, newest_first: round % 2 == 1, ..stage.request() };
        let (token, newest_first) = (request.token.clone(), request.newest_first);
        let claimed = stage.claim_as(request).await;
        if claimed.occurrences.is_empty() && !newest_first {
            break;
        }
        for one in &claimed.occurrences {
            *seen.entry(one.member.clone()).or_insert(0) += 1;
        }
        let dues = dues(&claimed);
        assert!(dues.is_sorted(), "{dues:?}");
        let state = stage.state();
        let waits = state.due.values().flat_map(|line| line.between(1, i64::MAX)).map(|(score, _)| score).next();
        assert_eq!(claimed.head.map(|head| head.as_millis()), waits);
        let verdicts = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
        stage.settle(&token, RestOfClaim::Keep, verdicts).await;
    }
    let all: BTreeMap<_, _> = ids.iter().map(|id| (member(id), 1)).collect();
    assert_eq!(seen, all);
    stage.assert_nothing_is_left();
}

async fn a_claim_starts_after_the_given_position(stage: Stage) {
    let ids = backlog(&stage, (0..10).map(|due| (due * 10, "a")).chain([(70_000, "a")])).await;
    stage.clock.set(at(60_000));
    let claimed = look(&stage, behind(&stage, 3, 20, Some(&ids[2]))).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![30, 40, 50], Some(at(60))));
    assert_eq!(claimed.last, Some(DuePosition { due: at(50), member: Some(member(&ids[5])) }));
    // Without a member: the claim starts before the first task with that due. A position may also lie between two dues.
    assert_eq!(dues(&look(&stage, behind(&stage, 2, 20, None)).await), [20, 30]);
    assert_eq!(dues(&look(&stage, behind(&stage, 2, 25, Some(&ids[0]))).await), [30, 40]);
    // After everything that is due: the head is the next waiting task, and no record was read.
    let claimed = look(&stage, behind(&stage, 2, 90, Some(&ids[9]))).await;
    assert_eq!((dues(&claimed), claimed.head, claimed.last), (vec![], Some(at(70_000)), None));
    // After a position in the future nothing is due.
    let claimed = look(&stage, behind(&stage, 2, 65_000, None)).await;
    assert_eq!((dues(&claimed), claimed.head), (vec![], Some(at(70_000))));
}

/// The task that the position names may still wait there, be claimed, or have another due.
async fn a_claim_starts_after_a_position_among_tasks_with_the_same_due(stage: Stage) {
    let ids = backlog(&stage, (0..50).map(|_| (0, "a"))).await;
    let members = |claimed: &Claimed| -> Vec<_> { claimed.occurrences.iter().map(|one| one.member.clone()).collect() };
    let expected = |range: std::ops::Range<usize>| -> Vec<_> { ids[range].iter().map(member).collect() };
    for place in [0, 1, 24, 48, 49] {
        let claimed = look(&stage, behind(&stage, 1000, 0, Some(&ids[place]))).await;
        assert_eq!(members(&claimed), expected(place + 1..50), "{place}");
    }
    stage.put(once(&ids[20], at(10), "a")).await;
    let (_, taken) = {
        let request = ClaimRequest { max: 10, ..stage.request() };
        (request.token.clone(), stage.claim_as(request).await)
    };
    assert_eq!(members(&taken), expected(0..10));
    assert_eq!(members(&look(&stage, behind(&stage, 3, 0, Some(&ids[20]))).await), expected(21..24));
    assert_eq!(members(&look(&stage, behind(&stage, 3, 0, Some(&ids[4]))).await), expected(10..13));
}

async fn a_claim_of_suspects_starts_after_the_given_position(stage: Stage) {
    let ids = backlog(&stage, (0..4).map(|due| (due, "a"))).await;
    stage.clock.set(at(10));
    stage.crash(2).await;
    for (after, expected) in [(0, 1), (1, 2), (2, 3)] {
        let after = Some(DuePosition { due: at(after), member: Some(member(&ids[usize::try_from(after).unwrap()])) });
        let request = SuspectsRequest { max: 1, after, ..stage.suspects() };
        let token = request.token.clone();
        let claimed = stage.claim_suspects_as(request).await;
        assert_eq!(dues(&claimed), [expected]);
        stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    }
}
