//! A put or a cancel that names a revision takes effect only on that one.

use punctual::task::{Record, TaskId, When};
use punctual::timeline::{CancelAnswer, Put, PutMode, PutResult, TaskRevision, Verdict};

use super::stage::{BACK, Stage, at, every, lane, once, record};

super::laws! {
    of_two_editors_with_one_revision_one_succeeds,
    a_task_that_was_removed_and_put_again_has_another_revision,
    a_task_is_put_only_if_there_is_none,
    a_condition_holds_for_a_task_in_flight,
    a_cancel_of_another_revision_changes_nothing,
}

impl Stage {
    async fn revision(&self, id: &TaskId) -> TaskRevision {
        TaskRevision::of(&Record::decode(&self.get(id).await.unwrap().record).unwrap())
    }

    async fn put_if(&self, revision: TaskRevision, put: Put) -> PutResult {
        self.put_as(PutMode::Match(revision), put).await.result
    }

    async fn cancel_if(&self, id: &TaskId, revision: TaskRevision) -> CancelAnswer {
        self.timeline.cancel(self.shard(), id, Some(revision), self.soon()).await.unwrap()
    }
}

async fn of_two_editors_with_one_revision_one_succeeds(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(500), "a")).await;
    let seen = stage.revision(&id).await;
    assert_eq!(seen.number, 1);
    assert_eq!(stage.put_if(seen, once(&id, at(600), "b")).await, PutResult::Replaced);
    let before = stage.state();
    assert_eq!(stage.put_if(seen, once(&id, at(700), "c")).await, PutResult::Mismatch);
    assert_eq!(stage.state(), before);
    let now = stage.revision(&id).await;
    assert_eq!((now.created, now.number), (seen.created, 2));
    // An equal body is unchanged, and its revision stays.
    assert_eq!(stage.put_if(now, once(&id, at(600), "b")).await, PutResult::Unchanged);
    assert_eq!(stage.put_if(now, once(&id, at(700), "c")).await, PutResult::Replaced);
    // A pause is no put: the revision stays.
    stage.pause(&id).await;
    let now = stage.revision(&id).await;
    assert_eq!(stage.put_if(now, once(&id, at(800), "d")).await, PutResult::Replaced);
}

async fn a_task_that_was_removed_and_put_again_has_another_revision(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(500), "a")).await;
    let seen = stage.revision(&id).await;
    stage.cancel(&id).await;
    assert_eq!(stage.put_if(seen, once(&id, at(600), "b")).await, PutResult::Mismatch);
    stage.assert_nothing_is_left();
    stage.clock.set(at(1));
    let again = Record { created: at(1), ..record(When::At(at(500)), "a", &lane()) };
    stage.create(Put { record: again.encode(), ..once(&id, at(500), "a") }).await;
    assert_eq!(stage.put_if(seen, once(&id, at(600), "b")).await, PutResult::Mismatch);
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Mismatch);
}

async fn a_task_is_put_only_if_there_is_none(stage: Stage) {
    let id = stage.id();
    let put = async |body: &str| stage.put_as(PutMode::Absent, once(&id, at(500), body)).await.result;
    assert_eq!(put("a").await, PutResult::Created);
    // Also if the body is equal.
    assert_eq!((put("a").await, put("b").await), (PutResult::Mismatch, PutResult::Mismatch));
    stage.cancel(&id).await;
    assert_eq!(put("b").await, PutResult::Created);
}

async fn a_condition_holds_for_a_task_in_flight(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(0), "a")).await;
    let seen = stage.revision(&id).await;
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(stage.put_as(PutMode::Absent, every(&id, at(500), "b")).await.result, PutResult::Mismatch);
    assert_eq!(stage.put_if(seen, every(&id, at(500), "b")).await, PutResult::Replaced);
    assert_eq!(stage.put_if(seen, every(&id, at(600), "c")).await, PutResult::Mismatch);
    // Cancelled in flight there is no such task any more.
    let now = stage.revision(&id).await;
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Mismatch);
    assert_eq!(stage.cancel_if(&id, now).await, CancelAnswer::InFlight { due: at(0) });
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Unknown);
    assert_eq!(stage.put_if(now, every(&id, at(700), "d")).await, PutResult::Mismatch);
    assert_eq!(stage.put_as(PutMode::Absent, every(&id, at(700), "d")).await.result, PutResult::Created);
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    assert_eq!(stage.get(&id).await.unwrap().due, at(700));
}

async fn a_cancel_of_another_revision_changes_nothing(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let seen = stage.revision(&id).await;
    stage.put(once(&id, at(1), "b")).await;
    let before = stage.state();
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Mismatch);
    assert_eq!(stage.state(), before);
    stage.clock.set(at(1));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Mismatch);
    stage.settle_one(&token, &occurrence, BACK).await;
    assert_eq!(stage.cancel_if(&id, stage.revision(&id).await).await, CancelAnswer::Cancelled { handed_out: None });
    assert_eq!(stage.cancel_if(&id, seen).await, CancelAnswer::Unknown);
    stage.assert_nothing_is_left();
}
