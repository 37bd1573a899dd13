//! Never early; the timeline's clock decides; an earlier due notifies the claimers.

use punctual::task::{Lane, TaskId};
use punctual::timeline::{
    DeadCap, PutMode, PutResult, ReapRequest, RequeueAnswer, RestOfClaim, Settle, TimelineError, Verdict, Wake,
};
use tokio::sync::broadcast;

use super::stage::{DEAD_KEEP, LEASE, Stage, at, dead_record, every, key, lane, lane_named, ms, next, once, once_in};

super::laws! {
    a_claim_takes_no_task_before_it_is_due,
    a_claim_and_a_glance_return_the_next_due_so_callers_need_not_poll,
    the_earliest_is_claimed_first_and_equals_by_their_names,
    a_late_call_writes_nothing,
    a_call_at_the_very_end_of_its_time_takes_effect,
    a_call_that_makes_the_head_earlier_wakes_the_sleepers,
    a_new_due_wakes_claimers_that_started_after_an_overdue_head,
    a_glance_reports_an_expired_lease_to_one_caller_a_second,
    after_an_absence_holders_get_the_time_to_extend_first,
    a_reap_that_comes_late_ends_nothing,
    a_lease_that_a_clock_stepping_back_made_long_is_shortened,
}

async fn a_claim_takes_no_task_before_it_is_due(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(100), "a")).await;
    for time in [0, 1, 99] {
        stage.clock.set(at(time));
        let (_, claimed) = stage.claim().await;
        assert_eq!((claimed.occurrences.len(), claimed.head, claimed.now), (0, Some(at(100)), at(time)));
    }
    stage.clock.set(at(100));
    let (_, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, at(100));
}

async fn a_claim_and_a_glance_return_the_next_due_so_callers_need_not_poll(stage: Stage) {
    let ids = stage.ids(3);
    let (_, claimed) = stage.claim().await;
    assert_eq!(claimed.head, None);
    for (id, due) in ids.iter().zip([5, -3, -2]) {
        stage.create(once(id, at(due), "a")).await;
    }
    let request = punctual::timeline::ClaimRequest { max: 1, ..stage.request() };
    let claimed = stage.claim_as(request).await;
    assert_eq!(claimed.head, Some(at(-2)), "in the past: there is more");
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.occurrences.len(), claimed.head), (1, Some(at(5))));
    assert_eq!(stage.glance(&lane(), true).await.head, Some(at(5)));
}

async fn the_earliest_is_claimed_first_and_equals_by_their_names(stage: Stage) {
    let ids = stage.ids(4);
    for (id, due) in ids.iter().rev().zip([-1, -5, -1, -1]) {
        stage.create(once(id, at(due), "a")).await;
    }
    let (_, claimed) = stage.claim().await;
    let order: Vec<_> = claimed.occurrences.iter().map(|one| one.member.task()).collect();
    assert_eq!(order, [2, 0, 1, 3].map(|n: usize| ids[n].clone()));
}

async fn a_late_call_writes_nothing(stage: Stage) {
    let ids = stage.ids(2);
    stage.create(once(&ids[0], at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "rejected"))).await;
    stage.create(once(&ids[1], at(0), "b")).await;
    let before = stage.state();
    let (shard, late, dead) = (stage.shard(), at(-1), key(&ids[0], at(0)));
    let timeline = &stage.timeline;
    for mode in [PutMode::Put, PutMode::Post] {
        Stage::assert_late(timeline.put(shard, mode, vec![once(&ids[0], at(9), "c")], late).await);
    }
    Stage::assert_late(timeline.cancel(shard, &ids[1], None, late).await);
    let request = punctual::timeline::ClaimRequest { not_after: late, ..stage.request() };
    Stage::assert_late(timeline.claim(shard, &lane(), request).await);
    Stage::assert_late(timeline.requeue(shard, &dead, None, late).await);
    Stage::assert_late(timeline.discard(shard, &dead, None, late).await);
    assert_eq!(stage.state(), before);
}

async fn a_call_at_the_very_end_of_its_time_takes_effect(stage: Stage) {
    let id = stage.id();
    let (shard, now, timeline) = (stage.shard(), stage.now(), &stage.timeline);
    timeline.put(shard, PutMode::Put, vec![once(&id, at(0), "a")], now).await.unwrap();
    let request = punctual::timeline::ClaimRequest { not_after: now, ..stage.request() };
    let token = request.token.clone();
    let claimed = timeline.claim(shard, &lane(), request).await.unwrap();
    let occurrence = &claimed.occurrences[0];
    stage.settle_one(&token, occurrence, Verdict::Dead(dead_record(occurrence, "retries"))).await;
    assert_eq!(timeline.requeue(shard, &key(&id, at(0)), None, now).await, Ok(RequeueAnswer::Requeued));
    assert_eq!(timeline.discard(shard, &key(&id, at(0)), None, now).await, Ok(false));
    stage.create(once(&id, at(5), "a")).await;
    timeline.cancel(shard, &id, None, now).await.unwrap();
    assert_eq!(stage.get(&id).await, None);
}

/// The next notification. Other tests may share the server, never the channel.
async fn wake(wakes: &mut broadcast::Receiver<Wake>) -> (Lane, i64) {
    let wake = tokio::time::timeout(ms(30_000), wakes.recv()).await.expect("a wake-up").unwrap();
    (wake.lane, wake.due.as_millis() - at(0).as_millis())
}

async fn a_call_that_makes_the_head_earlier_wakes_the_sleepers(stage: Stage) {
    let ids = stage.ids(4);
    let mut wakes = stage.timeline.wakes();
    stage.create(once(&ids[0], at(50), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), 50));
    // A due that is not earlier notifies no one; the next notification is the one after.
    stage.create(once(&ids[1], at(60), "a")).await;
    stage.put(once(&ids[0], at(40), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), 40));
    let other = lane_named("other");
    stage.put(once_in(&ids[0], at(40), "a", &other)).await;
    assert_eq!(wake(&mut wakes).await, (other, 40));
    // A claim that fills its batch and leaves due tasks behind.
    for id in &ids[2..] {
        stage.create(once(id, at(55), "a")).await;
    }
    assert_eq!(wake(&mut wakes).await, (lane(), 55));
    stage.clock.set(at(60));
    let request = punctual::timeline::ClaimRequest { max: 2, ..stage.request() };
    let (first, claimed) = (request.token.clone(), stage.claim_as(request).await);
    assert_eq!(wake(&mut wakes).await, (lane(), 60));
    // Occurrences that a claim returns, by settle and by reap.
    stage.settle(&first, RestOfClaim::Back, Vec::new()).await;
    assert_eq!(wake(&mut wakes).await, (lane(), 55));
    let (_, held) = stage.claim().await;
    assert_eq!(held.occurrences.len(), 3);
    stage.reap_after_lease().await;
    assert_eq!(wake(&mut wakes).await, (lane(), 55));
    // A requeue.
    let (token, held) = stage.claim().await;
    let dead =
        super::stage::settlement(&held.occurrences[0], Verdict::Dead(dead_record(&held.occurrences[0], "retries")));
    stage.settle(&token, RestOfClaim::Keep, vec![dead]).await;
    let key = key(&claimed.occurrences[0].member.task(), at(55));
    assert_eq!(stage.timeline.requeue(stage.shard(), &key, None, stage.soon()).await, Ok(RequeueAnswer::Requeued));
    let now = stage.now().as_millis() - at(0).as_millis();
    assert_eq!(wake(&mut wakes).await, (lane(), now));
    // A next due that is earlier than the waiting ones.
    let (token, held) = stage.claim().await;
    let task: TaskId = held.occurrences[0].member.task();
    assert_eq!(task, key.task);
    stage.settle_one(&token, &held.occurrences[0], next(at(now + 5), 1)).await;
    assert_eq!(wake(&mut wakes).await, (lane(), now + 5));
}

/// A claimer that starts after a position waits for tasks behind it, whatever is due before.
async fn a_new_due_wakes_claimers_that_started_after_an_overdue_head(stage: Stage) {
    let ids = stage.ids(4);
    let mut wakes = stage.timeline.wakes();
    stage.create(once(&ids[0], at(-9), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), -9));
    stage.create(once(&ids[1], at(-5), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), -5), "a put");
    stage.create(every(&ids[2], at(-1), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), -1));
    let behind = |due| {
        let after = Some(punctual::timeline::DuePosition { due: at(due), member: None });
        punctual::timeline::ClaimRequest { max: 1, after, ..stage.request() }
    };
    // The claim itself notifies no one: other claims will take the tasks before its position.
    let request = behind(-5);
    let (token, claimed) = (request.token.clone(), stage.claim_as(request).await);
    assert_eq!(claimed.head, Some(at(-1)));
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    assert_eq!(wake(&mut wakes).await, (lane(), -5), "what goes back");
    let request = behind(-1);
    let (token, claimed) = (request.token.clone(), stage.claim_as(request).await);
    stage.settle_one(&token, &claimed.occurrences[0], next(at(7), 1)).await;
    assert_eq!(wake(&mut wakes).await, (lane(), 7), "a next due");
    stage.claim_as(behind(-5)).await;
    stage.reap_after_lease().await;
    assert_eq!(wake(&mut wakes).await, (lane(), -5), "a reap");
    // A settle that returns occurrences for a later retry notifies no one.
    let quiet = async || {
        let (token, claimed) = stage.claim().await;
        let back = claimed.occurrences.iter().map(|one| super::stage::settlement(one, super::stage::BACK)).collect();
        (
            Settle {
                token,
                verdicts: back,
                rest: RestOfClaim::Keep,
                lease: LEASE,
                dead_cap: DeadCap::of(9),
                quiet: true,
            },
            claimed,
        )
    };
    let settle = quiet().await.0;
    stage.timeline.settle(stage.shard(), &lane(), settle).await.unwrap();
    stage.create(once(&ids[3], at(3), "a")).await;
    assert_eq!(wake(&mut wakes).await, (lane(), 3), "the quiet settle sent no wake-up");
    // A user's put in the meantime still notifies.
    let (settle, claimed) = quiet().await;
    let asked = claimed.occurrences[1].member.task();
    assert_eq!(stage.put(once(&asked, at(90_000), "b")).await.result, PutResult::Replaced);
    stage.timeline.settle(stage.shard(), &lane(), settle).await.unwrap();
    assert_eq!(wake(&mut wakes).await, (lane(), 90_000), "a change");
}

async fn a_glance_reports_an_expired_lease_to_one_caller_a_second(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.claim_one().await;
    let look = stage.glance(&lane(), true).await;
    assert_eq!((look.first_lease, look.last_lease), (Some(stage.now().plus(LEASE)), Some(stage.now().plus(LEASE))));
    assert_eq!((look.reap, look.stranded, look.depth), (false, false, Some((0, 1))));
    let mut reported = Vec::new();
    // Three callers, each once a second.
    for tick in 1..=57 {
        stage.clock.advance(ms(333));
        if stage.glance(&lane(), true).await.reap {
            reported.push(tick);
        }
    }
    // The lease ended after 15 s, at tick 46; one of three callers is asked to reap.
    assert_eq!(reported, [46, 49, 52, 55]);
    assert_eq!(stage.reap().await.occurrences, 1);
    assert!(!stage.glance(&lane(), true).await.reap);
}

async fn after_an_absence_holders_get_the_time_to_extend_first(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, _) = stage.claim_one().await;
    stage.glance(&lane(), true).await;
    stage.clock.advance(LEASE + LEASE / 2 + ms(1));
    assert!(!stage.glance(&lane(), true).await.reap, "everybody was away");
    assert!(stage.extend(&token).await, "nobody has reaped it");
    stage.clock.advance(LEASE - ms(1));
    assert!(!stage.glance(&lane(), true).await.reap);
    stage.clock.advance(ms(1));
    assert!(stage.glance(&lane(), true).await.reap);
}

async fn a_reap_that_comes_late_ends_nothing(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, _) = stage.claim_one().await;
    let request = ReapRequest { lease: LEASE, served: true, dead_keep: DEAD_KEEP, not_after: stage.now().plus(LEASE) };
    // The call was sent, then everything hung until every lease had expired.
    stage.clock.advance(LEASE + ms(1));
    let before = stage.state();
    let late = stage.timeline.reap(stage.shard(), &lane(), request).await;
    assert_eq!(late, Err(TimelineError::Late));
    assert_eq!(stage.state(), before);
    assert!(stage.extend(&token).await, "the holder's turn comes");
    // At exactly this millisecond it is still in time.
    stage.clock.advance(LEASE);
    let request = ReapRequest { not_after: stage.now(), ..request };
    assert_eq!(stage.timeline.reap(stage.shard(), &lane(), request).await.unwrap().occurrences, 1);
}

async fn a_lease_that_a_clock_stepping_back_made_long_is_shortened(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.claim_one().await;
    stage.glance(&lane(), true).await;
    stage.clock.set(at(-60_000));
    assert!(!stage.glance(&lane(), true).await.reap, "the check itself was too far ahead");
    stage.clock.advance(ms(900));
    assert!(stage.glance(&lane(), true).await.reap);
    assert_eq!(stage.reap().await.claims, 0);
    let end = stage.glance(&lane(), true).await.last_lease;
    assert_eq!(end, Some(stage.now().plus(LEASE)));
    assert_eq!(stage.reap_after_lease().await.occurrences, 1);
}
