//! Bounded: every call in entries and bytes; every key is removed by someone; lanes are independent.

use punctual::task::{Lane, Shard, TaskId};
use punctual::timeline::{
    ClaimRequest, DeadCap, GlanceRequest, PutMode, PutResult, ReapRequest, RequeueAnswer, RestOfClaim, Settle, Verdict,
};

use super::stage::{
    DEAD_KEEP, LEASE, Stage, at, dead_record, every, key, lane, lane_named, ms, next, once, once_in, record, settlement,
};
use punctual::task::When;

super::laws! {
    a_claim_is_bounded_in_entries_and_bytes,
    the_first_record_is_taken_whatever_its_size,
    a_reap_ends_whole_claims_up_to_1000_occurrences_and_reports_if_more_remain,
    finished_and_cancelled_tasks_leave_no_state_in_the_timeline,
    the_oldest_dead_beyond_the_cap_are_dropped_and_counted,
    the_cap_of_the_dead_holds_for_each_lane_by_itself_in_number_and_bytes,
    dead_occurrences_are_dropped_once_their_keep_time_has_passed,
    claims_and_reaps_of_one_lane_do_not_affect_another_lane,
    an_unserved_lane_is_known_until_it_is_empty,
    a_task_is_found_in_a_lane_that_the_caller_never_saw,
    a_put_that_moves_a_task_leaves_no_state_in_the_old_lane,
    a_task_of_one_shard_is_not_visible_in_other_shards,
}

async fn a_claim_is_bounded_in_entries_and_bytes(stage: Stage) {
    let ids = stage.ids(30);
    let puts: Vec<_> = ids.iter().map(|id| once(id, at(0), "a")).collect();
    let size = puts[0].record.len();
    stage.timeline.put(stage.shard(), PutMode::Put, puts, stage.soon()).await.unwrap();
    let take = async |max, max_bytes| {
        let request = ClaimRequest { max, max_bytes, ..stage.request() };
        let token = request.token.clone();
        let claimed = stage.claim_as(request).await;
        let look = stage.glance(&lane(), true).await.depth;
        assert_eq!(look, Some((30 - claimed.occurrences.len() as u64, claimed.occurrences.len() as u64)));
        stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
        claimed.occurrences.len()
    };
    assert_eq!(take(7, 4 << 20).await, 7);
    assert_eq!(take(1000, 4 << 20).await, 30);
    assert_eq!(take(1000, 20 * size).await, 20);
    assert_eq!(take(1000, 20 * size - 1).await, 19);
    assert_eq!(take(1000, 1).await, 1);
}

async fn the_first_record_is_taken_whatever_its_size(stage: Stage) {
    let ids = stage.ids(3);
    let large = "x".repeat(3 << 20);
    for id in &ids {
        stage.create(once(id, at(0), &large)).await;
    }
    for _ in 0..3 {
        assert_eq!(stage.claim().await.1.occurrences.len(), 1, "two are over 4 MiB");
    }
}

async fn a_reap_ends_whole_claims_up_to_1000_occurrences_and_reports_if_more_remain(stage: Stage) {
    let puts: Vec<_> = stage.ids(1300).iter().map(|id| once(id, at(0), "a")).collect();
    for part in puts.chunks(1000) {
        stage.timeline.put(stage.shard(), PutMode::Put, part.to_vec(), stage.soon()).await.unwrap();
    }
    for max in [400, 400, 400, 100] {
        stage.claim_as(ClaimRequest { max, ..stage.request() }).await;
    }
    let mut seen = Vec::new();
    stage.clock.advance(LEASE);
    loop {
        let reaped = stage.reap().await;
        seen.push((reaped.claims, reaped.occurrences));
        assert_eq!(reaped.stranded, 0);
        if !reaped.more {
            break;
        }
    }
    assert_eq!(seen.iter().map(|(claims, _)| claims).sum::<u64>(), 4);
    assert_eq!(seen.iter().map(|(_, occurrences)| occurrences).sum::<u64>(), 1300);
    assert!(seen.iter().all(|(_, occurrences)| *occurrences <= 1000), "{seen:?}");
    assert_eq!(stage.glance(&lane(), true).await.depth, Some((1300, 0)));
}

async fn finished_and_cancelled_tasks_leave_no_state_in_the_timeline(stage: Stage) {
    let ids = stage.ids(4);
    for round in 0..3 {
        for id in &ids {
            stage.create(every(id, stage.now(), "a")).await;
        }
        let (token, claimed) = stage.claim().await;
        let held = &claimed.occurrences;
        let dead = Verdict::DeadNext {
            dead_record: dead_record(&held[1], "retries"),
            due: held[1].due.plus(ms(5)),
            counts: Default::default(),
        };
        let verdicts = vec![
            settlement(&held[0], next(held[0].due.plus(ms(1)), round)),
            settlement(&held[1], dead),
            settlement(&held[2], super::stage::BACK_BEGUN),
        ];
        stage.put(once(&ids[0], stage.now().plus(ms(9)), "b")).await;
        stage.cancel(&ids[3]).await;
        stage.settle(&token, RestOfClaim::Keep, verdicts).await;
        stage.clock.advance(ms(10));
        stage.timeline.requeue(stage.shard(), &key(&ids[1], held[1].due), None, stage.soon()).await.unwrap();
        stage.claim().await;
        stage.reap_after_lease().await;
        let (token, claimed) = stage.claim().await;
        let finished = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
        stage.settle(&token, RestOfClaim::Keep, finished).await;
        stage.assert_nothing_is_left();
    }
}

async fn the_oldest_dead_beyond_the_cap_are_dropped_and_counted(stage: Stage) {
    let ids = stage.ids(6);
    let mut dropped = Vec::new();
    for id in &ids {
        stage.clock.advance(ms(1));
        stage.create(once(id, at(0), "a")).await;
        let (token, occurrence) = stage.claim_one().await;
        let verdicts = vec![settlement(&occurrence, Verdict::Dead(dead_record(&occurrence, "rejected")))];
        let settle =
            Settle { token, verdicts, rest: RestOfClaim::Keep, lease: LEASE, dead_cap: DeadCap::of(4), quiet: false };
        dropped.push(stage.timeline.settle(stage.shard(), &lane(), settle).await.unwrap().dropped);
    }
    assert_eq!(dropped, [0, 0, 0, 0, 1, 1]);
    let state = stage.state();
    let kept: Vec<_> = ids[2..].iter().map(|id| key(id, at(0)).to_string()).collect();
    assert_eq!(state.dead.iter().map(|(_, key)| key.to_string()).collect::<Vec<_>>(), kept);
    assert_eq!(state.dead_records.len(), 4);
}

/// The dead of one lane never push out the dead of another lane, neither by number nor by size.
async fn the_cap_of_the_dead_holds_for_each_lane_by_itself_in_number_and_bytes(stage: Stage) {
    let ids = stage.ids(20);
    let other = lane_named("other");
    let die = async |id: &TaskId, lane: &Lane, payload: &str, dead_cap: DeadCap| {
        stage.clock.advance(ms(1));
        stage.create(once_in(id, at(0), payload, lane)).await;
        let request = stage.request();
        let token = request.token.clone();
        let claimed = stage.timeline.claim(stage.shard(), lane, request).await.unwrap();
        let one = &claimed.occurrences[0];
        let verdicts = vec![settlement(one, Verdict::Dead(dead_record(one, "rejected")))];
        let settle = Settle { token, verdicts, rest: RestOfClaim::Keep, lease: LEASE, dead_cap, quiet: false };
        stage.timeline.settle(stage.shard(), lane, settle).await.unwrap().dropped
    };
    let kept = || -> Vec<String> { stage.state().dead.iter().map(|(_, key)| key.to_string()).collect() };
    let keys = |ids: &[TaskId]| -> Vec<String> { ids.iter().map(|id| key(id, at(0)).to_string()).collect() };
    for id in &ids[..2] {
        assert_eq!(die(id, &other, "theirs", DeadCap::of(2)).await, 0);
    }
    for (n, id) in ids[2..8].iter().enumerate() {
        assert_eq!(die(id, &lane(), "own", DeadCap::of(3)).await, u64::from(n >= 3), "{n}");
    }
    assert_eq!(kept(), [keys(&ids[..2]), keys(&ids[5..8])].concat());

    // By size: the oldest go until the rest fits, and the last one stays.
    let large = "x".repeat(10_000);
    let cap = DeadCap { entries: 100, bytes: 25_000 };
    assert_eq!(die(&ids[8], &lane(), &large, cap).await, 0);
    assert_eq!(die(&ids[9], &lane(), &large, cap).await, 0);
    assert_eq!(die(&ids[10], &lane(), &large, cap).await, 4, "three small ones and a large one");
    assert_eq!(kept(), [keys(&ids[..2]), keys(&ids[9..11])].concat());
    assert_eq!(die(&ids[11], &lane(), &"x".repeat(30_000), cap).await, 2);
    assert_eq!(kept(), [keys(&ids[..2]), keys(&ids[11..12])].concat(), "the last one stays");

    // Requeued and discarded occurrences no longer count.
    assert!(stage.timeline.discard(stage.shard(), &key(&ids[11], at(0)), None, stage.soon()).await.unwrap());
    stage.timeline.requeue(stage.shard(), &key(&ids[0], at(0)), None, stage.soon()).await.unwrap();
    for id in &ids[12..14] {
        assert_eq!(die(id, &lane(), &large, cap).await, 0);
    }
    assert_eq!(die(&ids[14], &other, "theirs", DeadCap::of(2)).await, 0, "one of two was requeued");
    assert_eq!(stage.state().dead.len(), 4);
}

async fn dead_occurrences_are_dropped_once_their_keep_time_has_passed(stage: Stage) {
    let ids = stage.ids(130);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    let (last, first) = claimed.occurrences.split_last().unwrap();
    let make_dead = |one| settlement(one, Verdict::Dead(dead_record(one, "rejected")));
    stage.settle(&token, RestOfClaim::Keep, first.iter().map(make_dead).collect()).await;
    stage.clock.advance(ms(1));
    stage.settle(&token, RestOfClaim::Keep, vec![make_dead(last)]).await;
    stage.clock.set(at(0).plus(DEAD_KEEP));
    stage.glance(&lane(), true).await;
    // That glance sets the next reap to a lease later. A reap that runs before the keep time is over drops nothing.
    stage.clock.set(at(0).plus(DEAD_KEEP).minus(ms(1)));
    assert_eq!(stage.reap().await.dropped, 0);
    stage.clock.set(at(0).plus(DEAD_KEEP));
    let (one, two) = (stage.reap().await, stage.reap().await);
    assert_eq!((one.dropped, one.more, two.dropped, two.more), (100, true, 29, false));
    stage.clock.advance(LEASE);
    assert!(stage.glance(&lane(), true).await.reap);
    assert_eq!(stage.reap().await.dropped, 1);
    stage.assert_nothing_is_left();
}

async fn claims_and_reaps_of_one_lane_do_not_affect_another_lane(stage: Stage) {
    let ids = stage.ids(2);
    let other = lane_named("other");
    stage.create(once(&ids[0], at(0), "a")).await;
    stage.create(once_in(&ids[1], at(0), "b", &other)).await;
    let (_, here) = stage.claim_one().await;
    assert_eq!(here.member.task(), ids[0]);
    let request = stage.request();
    let token = request.token.clone();
    let there = stage.timeline.claim(stage.shard(), &other, request).await.unwrap();
    assert_eq!(there.occurrences[0].member.task(), ids[1]);
    assert!(!stage.extend(&token).await, "a token is of its lane");
    assert!(stage.settle_one(&token, &there.occurrences[0], Verdict::Finished).await.lost);
    assert_eq!(stage.reap_after_lease().await.occurrences, 1);
    assert_eq!(stage.glance(&other, true).await.depth, Some((0, 1)));
}

async fn an_unserved_lane_is_known_until_it_is_empty(stage: Stage) {
    let id = stage.id();
    let old = lane_named("old");
    stage.create(once_in(&id, at(0), "a", &old)).await;
    assert_eq!(stage.known().await, std::slice::from_ref(&old));
    let request = || ReapRequest { lease: LEASE, served: false, dead_keep: DEAD_KEEP, not_after: stage.now() };
    let reap = async || stage.timeline.reap(stage.shard(), &old, request()).await.unwrap();
    stage.timeline.claim(stage.shard(), &old, stage.request()).await.unwrap();
    assert!(!stage.glance(&old, false).await.reap);
    stage.clock.advance(LEASE);
    assert!(stage.glance(&old, false).await.reap, "it is reaped all the same");
    assert_eq!(reap().await.occurrences, 1);
    assert_eq!(stage.known().await, std::slice::from_ref(&old));
    stage.cancel(&id).await;
    stage.clock.advance(ms(1000));
    assert!(stage.glance(&old, false).await.reap, "empty and not configured");
    reap().await;
    assert!(stage.known().await.is_empty());
    assert_eq!(stage.state(), Default::default());
    // An instance that still knows the lane creates no key for it.
    stage.clock.advance(ms(1000));
    assert!(!stage.glance(&old, false).await.reap);
    assert_eq!(stage.state(), Default::default());
}

async fn a_task_is_found_in_a_lane_that_the_caller_never_saw(stage: Stage) {
    let ids = stage.ids(3);
    for (id, lane) in ids.iter().zip(["east", "west", "north"]) {
        stage.create(once_in(id, at(0), "a", &lane_named(lane))).await;
    }
    // The same answers as in a known lane.
    assert_eq!(stage.get(&ids[0]).await.map(|held| held.due), Some(at(0)));
    let moved = stage.put(once_in(&ids[1], at(0), "b", &lane_named("south"))).await;
    assert_eq!(moved.result, PutResult::Replaced);
    stage.cancel(&ids[2]).await;
    assert_eq!(stage.get(&ids[2]).await, None);
    let mut waiting = Vec::new();
    for name in ["east", "west", "north", "south"] {
        waiting.push(stage.glance(&lane_named(name), true).await.depth.unwrap().0);
    }
    assert_eq!(waiting, [1, 0, 0, 1]);
    // Dead in one lane, while its task is created again in another.
    let east = lane_named("east");
    let request = stage.request();
    let token = request.token.clone();
    let claimed = stage.timeline.claim(stage.shard(), &east, request).await.unwrap();
    let occurrence = &claimed.occurrences[0];
    let verdicts = vec![settlement(occurrence, Verdict::Dead(dead_record(occurrence, "rejected")))];
    let settle =
        Settle { token, verdicts, rest: RestOfClaim::Keep, lease: LEASE, dead_cap: DeadCap::of(9), quiet: false };
    stage.timeline.settle(stage.shard(), &east, settle).await.unwrap();
    stage.create(once_in(&ids[0], at(5), "b", &lane_named("up"))).await;
    let dead = key(&ids[0], at(0));
    assert_eq!(stage.timeline.requeue(stage.shard(), &dead, None, stage.soon()).await, Ok(RequeueAnswer::Requeued));
    assert_eq!(stage.glance(&east, true).await.depth, Some((1, 0)));
}

async fn a_put_that_moves_a_task_leaves_no_state_in_the_old_lane(stage: Stage) {
    let id = stage.id();
    let lanes = ["a", "b", "c"].map(lane_named);
    stage.create(once_in(&id, at(0), "x", &lanes[0])).await;
    for lane in [&lanes[1], &lanes[2], &lanes[0], &lanes[2]] {
        assert_eq!(stage.put(once_in(&id, at(0), "x", lane)).await.result, PutResult::Replaced);
        let mut state = stage.state();
        let line = state.due.remove(lane).unwrap();
        assert_eq!((line.len(), state.due.len()), (1, 0));
        let stands = record(When::At(at(0)), "x", lane);
        let held = punctual::task::Record::decode(&stage.get(&id).await.unwrap().record).unwrap();
        assert_eq!((held.lane, held.task), (stands.lane, stands.task));
    }
}

async fn a_task_of_one_shard_is_not_visible_in_other_shards(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    for shard in Shard::all(stage.timeline.shards()).filter(|shard| *shard != stage.shard()) {
        assert_eq!(stage.timeline.get(shard, &id).await, Ok(None));
        let claimed = stage.timeline.claim(shard, &lane(), stage.request()).await.unwrap();
        assert_eq!((claimed.occurrences.len(), claimed.head), (0, None));
        let request = GlanceRequest { lanes: vec![(lane(), true)], lease: LEASE, dead_keep: DEAD_KEEP, depth: true };
        let glance = stage.timeline.glance(shard, request).await.unwrap();
        assert_eq!((glance.known.len(), glance.lanes[0].depth), (0, Some((0, 0))));
    }
    assert_eq!(stage.claim().await.1.occurrences.len(), 1);
}
