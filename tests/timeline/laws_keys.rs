//! One key: every copy of an occurrence carries the same key and the same payload.

use punctual::task::Record;
use punctual::timeline::{CancelAnswer, Occurrence, PutMode, PutResult, RequeueAnswer, RestOfClaim, Verdict};

use super::stage::{
    BACK_BEGUN, Stage, at, dead_record, every, key, member, ms, next, once, once_in, settlement, trace, traced, within,
};

super::laws! {
    one_key_survives_retry_crash_and_back,
    one_key_survives_requeue,
    a_key_in_flight_never_takes_another_message,
    a_handed_out_key_is_reported_before_it_takes_another_message,
    an_equal_put_shifts_nothing,
    a_repeated_put_with_another_trace_is_unchanged,
    every_copy_carries_one_trace,
    a_key_is_requeued_once_at_a_time,
    a_requeued_occurrence_is_not_its_task,
    dead_occurrences_are_kept_until_they_are_discarded,
}

async fn one_key_survives_retry_crash_and_back(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(-5), "a")).await;
    let mut keys = Vec::new();
    for ending in 0..4 {
        let (token, claimed) = if ending > 2 { stage.claim_suspects().await } else { stage.claim().await };
        let occurrence = &claimed.occurrences[0];
        keys.push((occurrence.member.key(occurrence.due).to_string(), occurrence.record.clone()));
        match ending {
            0 => drop(stage.settle_one(&token, occurrence, BACK_BEGUN).await),
            _ => drop(stage.reap_after_lease().await),
        }
    }
    assert_eq!(keys[0].0, format!("{id}:{}", at(-5).as_millis()));
    assert!(keys.windows(2).all(|two| two[0] == two[1]));
}

async fn one_key_survives_requeue(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    let dead = Verdict::DeadNext {
        dead_record: dead_record(&occurrence, "retries"),
        due: at(1000),
        counts: Default::default(),
    };
    stage.settle_one(&token, &occurrence, dead).await;
    let key = key(&id, at(0));
    // Dies again after each requeue.
    for _ in 0..3 {
        stage.clock.advance(ms(10));
        let now = stage.now();
        assert_eq!(stage.timeline.requeue(stage.shard(), &key, None, stage.soon()).await, Ok(RequeueAnswer::Requeued));
        let (token, again) = stage.claim_one().await;
        assert_eq!((again.due, again.member.key(again.due)), (now, key.clone()));
        assert_eq!(again.member.task(), id);
        let (then, before) = (Record::decode(&again.record).unwrap(), Record::decode(&occurrence.record).unwrap());
        assert_eq!((then.requeued, then.task), (Some(key.clone()), before.task));
        stage.settle_one(&token, &again, Verdict::Dead(dead_record(&again, "retries"))).await;
        assert_eq!(stage.state().dead.len(), 1, "under its old key");
    }
    stage.timeline.requeue(stage.shard(), &key, None, stage.soon()).await.unwrap();
    let (token, again) = stage.claim_one().await;
    stage.settle_one(&token, &again, Verdict::Finished).await;
    assert_eq!(stage.get(&id).await.map(|held| held.due), Some(at(1000)), "its task went on");
    stage.cancel(&id).await;
    stage.assert_nothing_is_left();
}

async fn a_key_in_flight_never_takes_another_message(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.claim_one().await;
    let before = stage.state();
    let refused = stage.put(once_in(&id, at(0), "b", &"default".parse().unwrap())).await;
    assert_eq!((refused.result, refused.in_flight), (PutResult::InFlight, Some(at(0))));
    let moved = stage.put(once_in(&id, at(5), "b", &"other".parse().unwrap())).await;
    assert_eq!((moved.result, moved.in_flight), (PutResult::InFlight, Some(at(0))), "nor another lane");
    assert_eq!(stage.put(once(&id, at(0), "a")).await.result, PutResult::Unchanged);
    assert_eq!(stage.state(), before);
    // There and back: the stored record has changed, so even a put of the original message is rejected.
    assert_eq!(stage.put(once(&id, at(5), "b")).await.result, PutResult::Replaced);
    let before = stage.state();
    assert_eq!(stage.put(once(&id, at(0), "a")).await.result, PutResult::InFlight);
    assert_eq!(stage.state(), before);
    // The same after a cancel and a new create.
    stage.cancel(&id).await;
    assert_eq!(stage.put(once(&id, at(0), "c")).await.result, PutResult::InFlight);
    let created = stage.put(once(&id, at(6), "c")).await;
    assert_eq!((created.result, created.due, created.in_flight), (PutResult::Created, at(6), Some(at(0))));
}

async fn a_handed_out_key_is_reported_before_it_takes_another_message(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.crash(1).await;
    let refused = stage.put(once_in(&id, at(0), "b", &"default".parse().unwrap())).await;
    // The same due with another body. `at` is part of the body, so only the payload differs.
    assert_eq!((refused.result, refused.in_flight), (PutResult::InFlight, Some(at(0))));
    let reported = stage.put(once(&id, at(7), "b")).await;
    assert_eq!((reported.result, reported.in_flight), (PutResult::Replaced, Some(at(0))));
    // The answer has named the key once; from here on a second message under it is the user's own decision.
    let own = stage.put(once(&id, at(0), "c")).await;
    assert_eq!((own.result, own.in_flight), (PutResult::Replaced, None));
    let now = stage.now().as_millis() - at(0).as_millis();
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: Some(at(0)) });
    stage.create(once(&id, at(now), "d")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle(&token, RestOfClaim::Back, vec![settlement(&occurrence, super::stage::BACK)]).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: None });
}

async fn an_equal_put_shifts_nothing(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(1000), "a")).await;
    let before = stage.state();
    let again = stage.put(every(&id, at(1700), "a")).await;
    assert_eq!((again.result, again.due), (PutResult::Unchanged, at(1000)));
    assert_eq!(stage.state(), before);
    stage.clock.set(at(1000));
    let (token, occurrence) = stage.claim_one().await;
    let again = stage.put(every(&id, at(2700), "a")).await;
    assert_eq!((again.result, again.due, again.in_flight), (PutResult::Unchanged, at(1000), None));
    stage.settle_one(&token, &occurrence, next(at(2000), 1)).await;
    assert_eq!(stage.get(&id).await.unwrap().due, at(2000));
    // `in` counts from the request.
    stage.cancel(&id).await;
    stage.create(within(&id, at(3000), "a")).await;
    let again = stage.put(within(&id, at(3100), "a")).await;
    assert_eq!((again.result, again.due), (PutResult::Replaced, at(3100)));
    stage.clock.set(at(3100));
    let (_, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, at(3100));
    let very = stage.put(within(&id, at(3100), "a")).await;
    assert_eq!((very.result, very.due), (PutResult::Unchanged, at(3100)), "the very occurrence in flight");
}

async fn a_repeated_put_with_another_trace_is_unchanged(stage: Stage) {
    let id = stage.id();
    stage.create(traced(every(&id, at(0), "a"), 1)).await;
    for in_flight in [false, true] {
        if in_flight {
            stage.claim_one().await;
        }
        let before = stage.state();
        for number in [0, 1, 2] {
            for mode in [PutMode::Put, PutMode::Post] {
                let again = stage.put_as(mode, traced(every(&id, at(1700), "a"), number)).await;
                assert_eq!((again.result, again.due), (PutResult::Unchanged, at(0)), "trace {number}");
            }
        }
        let other = stage.put_as(PutMode::Post, traced(every(&id, at(0), "b"), 1)).await;
        assert_eq!(other.result, PutResult::KeyReused, "the trace does not make up for another body");
        assert_eq!(stage.state(), before);
    }
    // A put that replaces a task brings its own trace, or none.
    stage.cancel(&id).await;
    for number in [2, 0, 3] {
        let due = at(5 + i64::from(number));
        stage.put(traced(once(&id, due, &format!("{number}")), number)).await;
        let record = Record::decode(&stage.get(&id).await.unwrap().record).unwrap();
        assert_eq!(record.trace, trace(number));
    }
}

async fn every_copy_carries_one_trace(stage: Stage) {
    let id = stage.id();
    let one = |occurrence: &Occurrence| {
        assert_eq!(Record::decode(&occurrence.record).unwrap().trace, trace(1), "{occurrence:?}");
    };
    stage.create(traced(within(&id, at(0), "a"), 1)).await;
    // In flight, returned, after a crash: a put with `in` that has the same due is the same task, whatever its trace.
    for ending in 0..3 {
        let (token, occurrence) = stage.claim_one().await;
        one(&occurrence);
        let again = stage.put(traced(within(&id, at(0), "a"), 2)).await;
        assert_eq!((again.result, again.due), (PutResult::Unchanged, at(0)));
        match ending {
            0 => drop(stage.settle_one(&token, &occurrence, BACK_BEGUN).await),
            _ => drop(stage.reap_after_lease().await),
        }
        let before = stage.state();
        let again = stage.put(traced(within(&id, at(0), "a"), 3)).await;
        assert_eq!((again.result, again.due), (PutResult::Unchanged, at(0)));
        assert_eq!(stage.state(), before);
    }
    let (token, claimed) = stage.claim_suspects().await;
    let occurrence = &claimed.occurrences[0];
    one(occurrence);
    stage.settle_one(&token, occurrence, Verdict::Dead(dead_record(occurrence, "retries"))).await;
    // Recorded as dead and requeued, while its task is created again with another trace.
    stage.timeline.requeue(stage.shard(), &key(&id, at(0)), None, stage.soon()).await.unwrap();
    stage.create(traced(once(&id, at(90_000), "b"), 2)).await;
    let (_, again) = stage.claim_one().await;
    assert_eq!(again.member.key(again.due), key(&id, at(0)));
    one(&again);
}

async fn a_key_is_requeued_once_at_a_time(stage: Stage) {
    let id = stage.id();
    let (shard, soon) = (stage.shard(), at(1000));
    let dead = key(&id, at(0));
    let requeue = || stage.timeline.requeue(shard, &dead, None, soon);
    assert_eq!(requeue().await, Ok(RequeueAnswer::Unknown));
    stage.create(once(&id, at(0), "a")).await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight), "its task has that very due");
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "rejected"))).await;
    // The task is created again with the same due: waiting, in flight, and waiting behind one in flight.
    stage.create(once(&id, at(0), "b")).await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight));
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    stage.create(once(&id, at(-1), "c")).await;
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(stage.put(once(&id, at(0), "d")).await.result, PutResult::Replaced);
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight));
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    stage.cancel(&id).await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::Requeued));
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::InFlight));
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    assert_eq!(requeue().await, Ok(RequeueAnswer::Unknown));
    stage.assert_nothing_is_left();
}

async fn a_requeued_occurrence_is_not_its_task(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "rejected"))).await;
    stage.timeline.requeue(stage.shard(), &key(&id, at(0)), None, stage.soon()).await.unwrap();
    assert_eq!(stage.get(&id).await, None);
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Unknown);
    stage.create(once(&id, at(5), "b")).await;
    stage.clock.set(at(5));
    let (_, claimed) = stage.claim().await;
    let members: Vec<_> = claimed.occurrences.iter().map(|one| one.member.as_str().to_owned()).collect();
    assert_eq!(members, [format!("!{id}:{}", at(0).as_millis()), id.to_string()]);
    assert_eq!(claimed.occurrences[1].member, member(&id));
}

async fn dead_occurrences_are_kept_until_they_are_discarded(stage: Stage) {
    let ids = stage.ids(2);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    let dead: Vec<_> =
        claimed.occurrences.iter().map(|one| settlement(one, Verdict::Dead(dead_record(one, "destination")))).collect();
    stage.settle(&token, RestOfClaim::Keep, dead).await;
    let (shard, first) = (stage.shard(), key(&ids[0], at(0)));
    assert_eq!(stage.timeline.discard(shard, &first, None, stage.soon()).await, Ok(true));
    assert_eq!(stage.timeline.discard(shard, &first, None, stage.soon()).await, Ok(false));
    assert_eq!(stage.timeline.requeue(shard, &first, None, stage.soon()).await, Ok(RequeueAnswer::Unknown));
    assert_eq!(
        stage.state().dead_records.keys().map(|key| key.to_string()).collect::<Vec<_>>(),
        [key(&ids[1], at(0)).to_string()]
    );
}
