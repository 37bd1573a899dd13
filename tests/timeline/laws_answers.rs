//! Definite answers: what a put, a cancel and a get report is true.

use punctual::clock::Timestamp;
use punctual::task::Record;
use punctual::timeline::{CancelAnswer, PutAnswer, PutMode, PutResult, Verdict};

use super::stage::{Stage, at, dead_record, every, key, ms, next, once, within};

super::laws! {
    every_put_is_answered_created_replaced_or_unchanged,
    a_put_never_takes_the_key_of_a_requeued_occurrence,
    a_repeated_post_is_unchanged_and_one_with_another_body_is_refused,
    a_due_out_of_range_does_not_affect_other_tasks,
    every_cancel_is_answered_cancelled_in_flight_or_unknown,
    a_replacement_keeps_created_and_counts_on,
    counts_restart_at_zero_with_every_put,
    a_claim_returns_each_record_as_it_was_put,
}

fn answer(result: PutResult, due: i64, in_flight: Option<i64>) -> PutAnswer {
    PutAnswer { result, due: at(due), in_flight: in_flight.map(at), paused: false }
}

async fn every_put_is_answered_created_replaced_or_unchanged(stage: Stage) {
    let id = stage.id();
    assert_eq!(stage.put(once(&id, at(9), "a")).await, answer(PutResult::Created, 9, None));
    assert_eq!(stage.put(once(&id, at(9), "a")).await, answer(PutResult::Unchanged, 9, None));
    assert_eq!(stage.put(once(&id, at(9), "b")).await, answer(PutResult::Replaced, 9, None));
    assert_eq!(stage.put(once(&id, at(0), "b")).await, answer(PutResult::Replaced, 0, None));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(stage.put(once(&id, at(0), "b")).await, answer(PutResult::Unchanged, 0, None));
    assert_eq!(stage.put(once(&id, at(0), "c")).await.result, PutResult::InFlight);
    assert_eq!(stage.put(once(&id, at(4), "c")).await, answer(PutResult::Replaced, 4, Some(0)));
    assert_eq!(
        stage.put(once(&id, at(4), "c")).await,
        answer(PutResult::Unchanged, 4, Some(0)),
        "its first answer may be lost"
    );
    assert_eq!(stage.put(once(&id, at(4), "d")).await, answer(PutResult::Replaced, 4, Some(0)));
    stage.cancel(&id).await;
    assert_eq!(stage.put(once(&id, at(4), "d")).await, answer(PutResult::Created, 4, Some(0)));
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    assert_eq!(stage.put(once(&id, at(4), "d")).await, answer(PutResult::Unchanged, 4, None));
    stage.cancel(&id).await;
    assert_eq!(stage.put(once(&id, at(4), "d")).await, answer(PutResult::Created, 4, None));
}

/// Otherwise two messages would have one key, and a deduplicating consumer would drop one of them.
async fn a_put_never_takes_the_key_of_a_requeued_occurrence(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "retries"))).await;
    assert_eq!(
        stage.put(once(&id, at(0), "b")).await,
        answer(PutResult::Created, 0, None),
        "the dead are not in the way"
    );
    stage.cancel(&id).await;
    stage.timeline.requeue(stage.shard(), &key(&id, at(0)), None, stage.soon()).await.unwrap();
    let refused = answer(PutResult::InFlight, 0, Some(0));
    let before = stage.state();
    assert_eq!(stage.put(once(&id, at(0), "b")).await, refused, "it waits");
    assert_eq!(stage.put(every(&id, at(0), "b")).await, refused);
    assert_eq!(stage.put_as(PutMode::Post, once(&id, at(0), "b")).await, refused);
    assert_eq!(stage.state(), before);
    // Another due is another key, and that task must not get this key.
    assert_eq!(stage.put(once(&id, at(9), "b")).await, answer(PutResult::Created, 9, None));
    assert_eq!(stage.put(once(&id, at(0), "c")).await, refused);
    assert_eq!(stage.put(once(&id, at(9), "b")).await, answer(PutResult::Unchanged, 9, None));
    let (token, again) = stage.claim_one().await;
    assert_eq!(stage.put(once(&id, at(0), "c")).await, refused, "it is in flight");
    stage.reap_after_lease().await;
    assert_eq!(stage.put(once(&id, at(0), "c")).await, refused, "its holder died");
    let (_, claimed) = stage.claim().await;
    assert_eq!(claimed.occurrences.len(), 2);
    assert_eq!(stage.put(once(&id, at(0), "c")).await, refused, "beside the task in flight");
    assert!(stage.settle_one(&token, &again, Verdict::Finished).await.lost);
    stage.reap_after_lease().await;
    let (token, suspects) = stage.claim_suspects().await;
    stage.settle_one(&token, &suspects.occurrences[0], Verdict::Finished).await;
    assert_eq!(stage.put(once(&id, at(0), "c")).await.result, PutResult::Replaced, "it has ended");
}

async fn a_repeated_post_is_unchanged_and_one_with_another_body_is_refused(stage: Stage) {
    let id = stage.id();
    let post = |put| stage.put_as(PutMode::Post, put);
    assert_eq!(post(within(&id, at(10), "a")).await, answer(PutResult::Created, 10, None));
    let before = stage.state();
    assert_eq!(post(within(&id, at(20), "a")).await, answer(PutResult::Unchanged, 10, None), "`in` included");
    assert_eq!(post(within(&id, at(20), "b")).await.result, PutResult::KeyReused);
    assert_eq!(stage.state(), before);
    stage.clock.set(at(10));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(post(within(&id, at(20), "a")).await, answer(PutResult::Unchanged, 10, None));
    assert_eq!(post(within(&id, at(20), "b")).await.result, PutResult::KeyReused);
    stage.cancel(&id).await;
    assert_eq!(post(within(&id, at(20), "b")).await, answer(PutResult::Created, 20, Some(10)));
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    assert_eq!(post(within(&id, at(30), "b")).await, answer(PutResult::Unchanged, 20, None));
}

async fn a_due_out_of_range_does_not_affect_other_tasks(stage: Stage) {
    let ids = stage.ids(5);
    let last = Timestamp::MAX_DUE;
    let dues =
        [Timestamp::from_millis(0), Timestamp::from_millis(1), last, last.plus(ms(1)), Timestamp::from_millis(-5)];
    let puts = ids.iter().zip(dues).map(|(id, due)| once(id, due, "a")).collect();
    let answers = stage.timeline.put(stage.shard(), PutMode::Put, puts, stage.soon()).await.unwrap();
    let results: Vec<_> = answers.iter().map(|answer| answer.result).collect();
    use PutResult::{BadDue, Created};
    assert_eq!(results, [BadDue, Created, Created, BadDue, BadDue]);
    assert_eq!(stage.state().tasks.len(), 2);
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.occurrences[0].due, claimed.head), (Timestamp::from_millis(1), Some(last)));
    stage.clock.set(last);
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.due, last, "not rounded");
    stage.settle(&token, punctual::timeline::RestOfClaim::Back, Vec::new()).await;
    assert_eq!(stage.get(&ids[2]).await.unwrap().due, last);
}

async fn every_cancel_is_answered_cancelled_in_flight_or_unknown(stage: Stage) {
    let id = stage.id();
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Unknown);
    stage.create(once(&id, at(0), "a")).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: None });
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Unknown);
    stage.create(once(&id, at(0), "a")).await;
    stage.claim_one().await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::InFlight { due: at(0) });
    stage.put(once(&id, at(6), "b")).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::InFlight { due: at(0) });
    stage.put(once(&id, at(0).plus(ms(1)), "b")).await;
    stage.reap_after_lease().await;
    stage.crash(1).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: Some(at(1)) });
    stage.assert_nothing_is_left();
}

async fn a_replacement_keeps_created_and_counts_on(stage: Stage) {
    let id = stage.id();
    let header = |stage: Stage, id| async move {
        let record = Record::decode(&stage.get(id).await.unwrap().record).unwrap();
        (stage, record.revision, record.created, record.updated)
    };
    let put_at = |time: i64, payload: &str| {
        let mut put = once(&id, at(time), payload);
        let mut record = Record::decode(&put.record).unwrap();
        (record.created, record.updated, record.anchor) = (at(time), at(time), at(time));
        put.record = record.encode();
        put
    };
    stage.create(put_at(0, "a")).await;
    stage.put(put_at(10, "b")).await;
    let (stage, revision, created, updated) = header(stage, &id).await;
    assert_eq!((revision, created, updated), (2, at(0), at(10)));
    stage.clock.set(at(10));
    stage.claim_one().await;
    stage.put(put_at(20, "c")).await;
    let (stage, revision, created, updated) = header(stage, &id).await;
    assert_eq!((revision, created, updated), (3, at(0), at(20)));
    stage.cancel(&id).await;
    stage.put(put_at(30, "d")).await;
    let (_, revision, created, updated) = header(stage, &id).await;
    assert_eq!((revision, created, updated), (1, at(30), at(30)));
}

async fn counts_restart_at_zero_with_every_put(stage: Stage) {
    let id = stage.id();
    let counted = async |due: i64| {
        let (token, occurrence) = stage.claim_one().await;
        stage.settle_one(&token, &occurrence, next(at(due), 7)).await;
        assert_eq!(stage.get(&id).await.unwrap().counts.accepted, 7);
    };
    stage.create(every(&id, at(-9), "a")).await;
    counted(-8).await;
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.counts.accepted, 7);
    stage.settle_one(&token, &occurrence, next(at(-7), 7)).await;
    stage.put(every(&id, at(-6), "b")).await;
    assert_eq!(stage.get(&id).await.unwrap().counts.accepted, 0);
    counted(-5).await;
    stage.cancel(&id).await;
    stage.create(every(&id, at(-4), "b")).await;
    assert_eq!(stage.get(&id).await.unwrap().counts.accepted, 0);
    counted(-3).await;
    // In flight: the counts of its claim belong to the task that was replaced.
    let (token, occurrence) = stage.claim_one().await;
    stage.put(every(&id, at(-2), "c")).await;
    assert_eq!(stage.get(&id).await.unwrap().counts.accepted, 0);
    stage.settle_one(&token, &occurrence, next(at(-1), 8)).await;
    assert_eq!(stage.get(&id).await.unwrap().counts.accepted, 0);
}

async fn a_claim_returns_each_record_as_it_was_put(stage: Stage) {
    let ids = stage.ids(3);
    let puts: Vec<_> = ids.iter().map(|id| every(id, at(0), &format!("ä\0\n{id}"))).collect();
    stage.timeline.put(stage.shard(), PutMode::Put, puts.clone(), stage.soon()).await.unwrap();
    let (_, claimed) = stage.claim().await;
    let records: Vec<_> = claimed.occurrences.iter().map(|one| one.record.clone()).collect();
    assert_eq!(records, puts.iter().map(|put| put.record.clone()).collect::<Vec<_>>());
}
