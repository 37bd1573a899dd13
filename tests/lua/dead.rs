//! requeue and discard.

use super::*;

/// `a` is dead at 900 and goes on at 950.
async fn dead() -> Option<Stage> {
    let stage = Stage::new().await?;
    stage.put(&[put_in("default", RECURRING, "a", 900, "x")]).await;
    stage.claim("i.1", 10).await;
    let mut burial = burial("x");
    burial.record = record(4, "other", 1000, "buried");
    let verdict = Verdict::DeadNext { burial, due: at(950), counts: Counts { dead: 1, ..Counts::default() } };
    stage.settle("i.1", Rest::Keep, vec![settlement("a", 900, verdict)]).await;
    Some(stage)
}

#[tokio::test]
async fn a_requeued_occurrence_is_due_now_under_its_old_key() {
    let Some(stage) = dead().await else { return };
    let mut wakes = stage.timeline.wakes();
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued);
    let after = [
        "counts a 0 1 0 0",
        "due:default a 950",
        "due:other !a:900 1000",
        "lanes default",
        "lanes other",
        "tasks !a:900 r1 c1000 other:buried",
        "tasks a r1 c1000 default:x",
    ];
    assert_eq!(stage.state(), after);
    let woken = tokio::time::timeout(Duration::from_secs(10), async {
        while wakes.recv().await.unwrap().lane != lane("other") {}
    });
    woken.await.unwrap();
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight);
    assert_eq!(stage.state(), after);

    stage.timeline.claim(stage.shard, &lane("other"), claim_of("i.2", 10)).await.unwrap();
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight);
    let verdicts = vec![settlement("!a:900", 1000, Verdict::Dead(burial("again")))];
    let settle = Settle { token: token("i.2"), verdicts, rest: Rest::Keep, lease: LEASE, dead_cap: 10 };
    stage.timeline.settle(stage.shard, &lane("other"), settle).await.unwrap();
    let dead: Vec<_> = stage.state().into_iter().filter(|line| line.starts_with("dead")).collect();
    assert_eq!(dead, ["dead a:900 1000", "dead:records a:900 r1 c1000 default:again \"rejected\\nno\\nway\""]);
}

#[tokio::test]
async fn a_key_that_its_task_has_is_not_requeued() {
    let Some(stage) = dead().await else { return };
    stage.put_one("a", 900, "again").await;
    let waiting = stage.state();
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight);
    assert_eq!(stage.state(), waiting);
    stage.claim("i.2", 10).await;
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight);
    stage.cancel("a").await;
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight, "the one in flight may still arrive");
    stage.settle("i.2", Rest::Back, vec![]).await;
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued, "the task is gone");
}

#[tokio::test]
async fn a_key_that_its_task_will_have_is_not_requeued() {
    let Some(stage) = dead().await else { return };
    stage.claim("i.2", 10).await;
    stage.put_one("a", 900, "again").await;
    let before = stage.state();
    assert!(before.contains(&"changes a 900".to_owned()));
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::InFlight);
    assert_eq!(stage.state(), before);
}

#[tokio::test]
async fn what_is_discarded_is_gone() {
    let Some(stage) = dead().await else { return };
    let key: Key = "a:900".parse().unwrap();
    assert_eq!(stage.timeline.discard(stage.shard, &key, NEVER).await, Ok(true));
    assert_eq!(stage.timeline.discard(stage.shard, &key, NEVER).await, Ok(false));
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Unknown);
    assert_eq!(stage.requeue("b:900").await, RequeueAnswer::Unknown);
    assert_eq!(stage.holds(), ["counts a 0 1 0 0", "due:default a 950", "tasks a r1 c1000 default:x"]);
}
