//! A task that is triggered or skipped: its new due is later than all that were claimed, but a trigger of a paused task
//! that missed its due keeps that due. A pause stays.

use punctual::clock::Timestamp;
use punctual::task::{Counts, Lane, Record, TaskId, When};
use punctual::timeline::{
    MoveAnswer, MoveRequest, Put, PutResult, RestOfClaim, Skip, TaskPauseAnswer, TaskRevision, Verdict,
};

use super::stage::{
    BACK, BACK_BEGUN, Stage, at, every, key, lane_named, member, ms, next, once, once_in, record, settlement,
};

super::laws! {
    a_triggered_task_is_due_at_once_under_a_new_key,
    each_trigger_takes_a_key_that_was_never_used,
    a_trigger_of_a_task_that_is_due_changes_nothing,
    a_task_in_flight_is_neither_triggered_nor_skipped,
    a_triggered_task_that_is_paused_is_published_once,
    a_triggered_task_that_is_paused_returns_to_the_due_of_its_trigger,
    a_put_in_flight_waits_paused_behind_a_trigger,
    a_paused_task_that_missed_its_due_is_triggered_under_that_key_or_a_new_one,
    a_triggered_task_that_is_paused_again_is_not_published,
    a_skip_writes_due_and_counts_of_the_task_that_it_saw,
    a_skip_of_another_due_or_revision_changes_nothing,
    a_skipped_task_that_is_paused_stays_paused,
    what_was_handed_out_is_named_and_its_mark_is_gone,
    a_move_that_comes_too_late_has_no_effect,
    a_move_finds_the_task_in_another_lane,
}

impl Stage {
    async fn trigger(&self, id: &TaskId) -> MoveAnswer {
        self.trigger_as(id, false).await
    }

    async fn trigger_as(&self, id: &TaskId, new_key: bool) -> MoveAnswer {
        self.timeline.move_due(self.shard(), id, MoveRequest::Trigger { new_key }, self.soon()).await.unwrap()
    }

    /// A skip of the due that the task has, as it is now.
    async fn skip_request(&self, id: &TaskId, to: i64) -> Skip {
        let held = self.get(id).await.unwrap();
        let counts = Counts { passed_over: held.counts.passed_over + 1, last_due: Some(held.due), ..held.counts };
        let revision = TaskRevision::of(&Record::decode(&held.record).unwrap());
        Skip { from: held.due, revision, to: at(to), counts }
    }

    async fn skip_as(&self, id: &TaskId, skip: Skip) -> MoveAnswer {
        self.timeline.move_due(self.shard(), id, MoveRequest::Skip(skip), self.soon()).await.unwrap()
    }

    async fn skip(&self, id: &TaskId, to: i64) -> MoveAnswer {
        self.skip_as(id, self.skip_request(id, to).await).await
    }
}

fn moved(due: i64) -> MoveAnswer {
    MoveAnswer::Moved { due: at(due), handed_out: None }
}

async fn a_triggered_task_is_due_at_once_under_a_new_key(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    let mut wakes = stage.timeline.wakes();
    assert_eq!(stage.trigger(&id).await, moved(1));
    // Claimers are woken; the wake-up of the put may come first.
    while wakes.recv().await.unwrap().due != at(1) {}
    assert!(stage.claim().await.1.occurrences.is_empty(), "one ms early");
    stage.clock.set(at(1));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!((occurrence.member.clone(), occurrence.due), (member(&id), at(1)));
    stage.settle_one(&token, &occurrence, next(at(60_000), 1)).await;
    assert_eq!(stage.get(&id).await.unwrap().due, at(60_000));
    // A task that is due once ends with it.
    assert_eq!(stage.cancel(&id).await, punctual::timeline::CancelAnswer::Cancelled { handed_out: None });
    stage.create(once(&id, at(60_000), "a")).await;
    assert_eq!(stage.trigger(&id).await, moved(2));
    stage.clock.set(at(2));
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unknown);
    stage.assert_nothing_is_left();
}

async fn each_trigger_takes_a_key_that_was_never_used(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    let mut used = Vec::new();
    for n in 0..5 {
        let MoveAnswer::Moved { due, .. } = stage.trigger(&id).await else { panic!("trigger {n}") };
        // Triggered again before it is claimed, it has one key.
        assert_eq!(stage.trigger(&id).await, MoveAnswer::Unchanged { due });
        stage.clock.set(due);
        let (token, occurrence) = stage.claim_one().await;
        assert_eq!(occurrence.due, due);
        assert!(!used.contains(&due), "{due} again");
        used.push(due);
        stage.settle_one(&token, &occurrence, next(at(60_000), 1)).await;
        // Within the same millisecond.
        assert_eq!(
            stage.put(every(&id, at(60_000), if n % 2 == 0 { "b" } else { "a" })).await.result,
            PutResult::Replaced
        );
    }
}

async fn a_trigger_of_a_task_that_is_due_changes_nothing(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.crash(2).await;
    let before = stage.state();
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unchanged { due: at(0) });
    assert_eq!(stage.state(), before, "its mark stays");
    // Due in the next millisecond: the trigger has this due, too.
    stage.cancel(&id).await;
    let now = stage.now().plus(ms(1));
    stage.create(once(&id, now, "a")).await;
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unchanged { due: now });
}

async fn a_task_in_flight_is_neither_triggered_nor_skipped(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(0), "a")).await;
    let skip = stage.skip_request(&id, 60_000).await;
    let (token, occurrence) = stage.claim_one().await;
    let before = stage.state();
    assert_eq!(stage.trigger(&id).await, MoveAnswer::InFlight { due: at(0) });
    assert_eq!(stage.skip_as(&id, skip.clone()).await, MoveAnswer::InFlight { due: at(0) });
    assert_eq!(stage.state(), before);
    // Cancelled in flight there is no such task.
    stage.cancel(&id).await;
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unknown);
    assert_eq!(stage.skip_as(&id, skip).await, MoveAnswer::Unknown);
    stage.settle_one(&token, &occurrence, BACK).await;
    stage.assert_nothing_is_left();
}

async fn a_triggered_task_that_is_paused_is_published_once(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    stage.pause(&id).await;
    assert_eq!(stage.trigger(&id).await, moved(1));
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unchanged { due: at(1) });
    stage.clock.set(at(1));
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, next(at(60_000), 1)).await;
    stage.clock.set(at(70_000));
    stage.assert_paused_at(&id, 60_000).await;
    let pause = stage.get(&id).await.unwrap().pause.unwrap();
    assert_eq!(pause.about.note, "wrong figures", "the trigger keeps who and why");
}

async fn a_triggered_task_that_is_paused_returns_to_the_due_of_its_trigger(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    stage.pause(&id).await;
    stage.trigger(&id).await;
    stage.clock.set(at(1));
    // Returned by its holder, then by a reap.
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(stage.claim_one().await.1.due, at(1));
    stage.reap_after_lease().await;
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, at(1));
    stage.settle_one(&token, &occurrence, next(at(60_000), 1)).await;
    stage.assert_paused_at(&id, 60_000).await;
}

async fn a_put_in_flight_waits_paused_behind_a_trigger(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    stage.pause(&id).await;
    stage.trigger(&id).await;
    stage.clock.set(at(1));
    let (token, occurrence) = stage.claim_one().await;
    assert!(stage.put(every(&id, at(500), "b")).await.paused);
    stage.settle_one(&token, &occurrence, next(at(60_000), 1)).await;
    stage.clock.set(at(1000));
    stage.assert_paused_at(&id, 500).await;
    // A put after a trigger that was not claimed yet changes the due. So the trigger is void, and the task is paused again.
    stage.trigger(&id).await;
    assert!(stage.put(every(&id, at(700), "c")).await.paused);
    stage.assert_paused_at(&id, 700).await;
}

async fn a_paused_task_that_missed_its_due_is_triggered_under_that_key_or_a_new_one(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(500), "a")).await;
    stage.pause(&id).await;
    stage.clock.set(at(1000));
    assert_eq!(stage.trigger(&id).await, moved(500));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, at(500));
    stage.settle_one(&token, &occurrence, next(at(900), 1)).await;
    stage.assert_paused_at(&id, 900).await;
    // With a new key. If the former due was handed out, as below, the answer names it.
    assert_eq!(stage.trigger_as(&id, true).await, moved(1001));
    assert_eq!(stage.trigger_as(&id, true).await, MoveAnswer::Unchanged { due: at(1001) });
    stage.clock.set(at(1001));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, at(1001));
    stage.pause(&id).await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    stage.assert_paused_at(&id, 1001).await;
    stage.clock.set(at(2000));
    let answer = stage.trigger_as(&id, true).await;
    assert_eq!(answer, MoveAnswer::Moved { due: at(2001), handed_out: Some(at(1001)) });
}

async fn a_triggered_task_that_is_paused_again_is_not_published(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(60_000), "a")).await;
    stage.pause(&id).await;
    stage.trigger(&id).await;
    assert_eq!(stage.pause(&id).await, TaskPauseAnswer::Paused { due: at(1), in_flight: None });
    assert_eq!(stage.pause(&id).await, TaskPauseAnswer::Unchanged { due: at(1) });
    stage.clock.set(at(1));
    stage.assert_paused_at(&id, 1).await;
    // In flight: the answer names it, and it does not return into the lane.
    stage.trigger(&id).await;
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(stage.pause(&id).await, TaskPauseAnswer::Paused { due: at(1), in_flight: Some(at(1)) });
    stage.settle_one(&token, &occurrence, BACK).await;
    stage.assert_paused_at(&id, 1).await;
}

async fn a_skip_writes_due_and_counts_of_the_task_that_it_saw(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(500), "a")).await;
    let mut wakes = stage.timeline.wakes();
    assert_eq!(stage.skip(&id, 1000).await, moved(1000));
    let held = stage.get(&id).await.unwrap();
    let counts = Counts { passed_over: 1, last_due: Some(at(500)), ..Counts::default() };
    assert_eq!((held.due, held.counts), (at(1000), counts));
    // The head is later, so nobody was woken. The put that follows wakes somebody.
    stage.create(once(&stage.ids(2)[1], at(900), "a")).await;
    loop {
        match wakes.recv().await.unwrap().due {
            due if due == at(900) => break,
            due => assert_eq!(due, at(500), "that of the first put"),
        }
    }
    stage.clock.set(at(1000));
    let occurrence = stage.claim().await.1.occurrences.into_iter().find(|one| one.member == member(&id)).unwrap();
    assert_eq!((occurrence.due, occurrence.counts), (at(1000), counts));
}

async fn a_skip_of_another_due_or_revision_changes_nothing(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(500), "a")).await;
    let skip = stage.skip_request(&id, 1000).await;
    let refused = async |skip: &Skip, due: i64| {
        let before = stage.state();
        assert_eq!(stage.skip_as(&id, skip.clone()).await, MoveAnswer::Mismatch { due: at(due) }, "{skip:?}");
        assert_eq!(stage.state(), before);
    };
    refused(&Skip { from: at(501), ..skip.clone() }, 500).await;
    // Put again, with another body.
    stage.put(every(&id, at(500), "b")).await;
    refused(&skip, 500).await;
    // Removed and put again a moment later: its revision is 1 again.
    stage.cancel(&id).await;
    stage.clock.set(at(1));
    let record =
        Record { created: at(1), ..record(When::Every { gap: ms(500), start: None }, "a", &super::stage::lane()) };
    stage.create(Put { record: record.encode(), ..every(&id, at(500), "a") }).await;
    refused(&skip, 500).await;
    // The answer was lost, and the request is repeated.
    let skip = stage.skip_request(&id, 1000).await;
    assert_eq!(stage.skip_as(&id, skip.clone()).await, moved(1000));
    refused(&skip, 1000).await;
}

async fn a_skipped_task_that_is_paused_stays_paused(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(500), "a")).await;
    stage.pause(&id).await;
    assert_eq!(stage.skip(&id, 1000).await, moved(1000));
    stage.clock.set(at(2000));
    stage.assert_paused_at(&id, 1000).await;
    // Triggered and skipped: it is paused again.
    stage.trigger(&id).await;
    assert_eq!(stage.skip(&id, 1500).await, moved(1500));
    stage.assert_paused_at(&id, 1500).await;
}

async fn what_was_handed_out_is_named_and_its_mark_is_gone(stage: Stage) {
    for by_skip in [false, true] {
        let (id, due) = (stage.id(), stage.now());
        stage.create(every(&id, due, "a")).await;
        let (token, occurrence) = stage.claim_one().await;
        stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
        let later = due.plus(ms(60_000)).as_millis() - at(0).as_millis();
        let answer = if by_skip {
            stage.skip(&id, later).await
        } else {
            // The clock is set back, so that the due is in the future; otherwise the trigger would change nothing.
            stage.clock.set(Timestamp::from_millis(due.as_millis() - 10));
            stage.trigger(&id).await
        };
        let MoveAnswer::Moved { due: to, handed_out } = answer else { panic!("{answer:?}") };
        assert_eq!(handed_out, Some(due));
        assert_ne!(key(&id, to), key(&id, due));
        assert!(stage.state().crashes.is_empty());
        stage.cancel(&id).await;
    }
}

async fn a_move_that_comes_too_late_has_no_effect(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(500), "a")).await;
    let (before, skip) = (stage.state(), stage.skip_request(&id, 1000).await);
    for request in [MoveRequest::Trigger { new_key: false }, MoveRequest::Skip(skip)] {
        Stage::assert_late(stage.timeline.move_due(stage.shard(), &id, request, at(-1)).await);
    }
    assert_eq!(stage.state(), before);
}

async fn a_move_finds_the_task_in_another_lane(stage: Stage) {
    let (id, other): (TaskId, Lane) = (stage.id(), lane_named("moved"));
    stage.create(once_in(&id, at(500), "a", &other)).await;
    assert_eq!(stage.trigger(&id).await, moved(1));
    stage.clock.set(at(1));
    let token = stage.token();
    let request = punctual::timeline::ClaimRequest { token: token.clone(), ..stage.request() };
    let claimed = stage.timeline.claim(stage.shard(), &other, request).await.unwrap();
    let verdicts = vec![settlement(&claimed.occurrences[0], Verdict::Finished)];
    let settle = punctual::timeline::Settle {
        token,
        verdicts,
        rest: RestOfClaim::Keep,
        lease: super::stage::LEASE,
        dead_cap: punctual::timeline::DeadCap { entries: 100, bytes: 1 << 20 },
        quiet: false,
    };
    stage.timeline.settle(stage.shard(), &other, settle).await.unwrap();
    assert_eq!(stage.trigger(&id).await, MoveAnswer::Unknown);
}
