//! put, get and cancel.

use super::*;

#[tokio::test]
async fn a_put_creates_replaces_and_leaves_unchanged() {
    let Some(stage) = Stage::new().await else { return };
    assert_eq!(stage.put_one("a", 2000, "one").await, "created 2000");
    let first = stage.state();
    assert_eq!(first, ["due:default a 2000", "lanes default", "tasks a r1 c1000 default:one"]);

    assert_eq!(stage.put_one("a", 2500, "one").await, "unchanged 2000");
    assert_eq!(stage.state(), first);

    let mut other = put("a", 3000, "two");
    other.record = record(0, "default", 7777, "two");
    assert_eq!(short(&stage.put(&[other]).await[0]), "replaced 3000");
    assert_eq!(stage.holds(), ["due:default a 3000", "tasks a r2 c1000 default:two"]);
}

#[tokio::test]
async fn a_repeated_put_with_in_moves_the_due_but_a_repeated_post_does_not() {
    let Some(stage) = Stage::new().await else { return };
    let timer = |due| put_in("default", IN, "a", due, "timer");
    stage.put(&[timer(2000)]).await;
    assert_eq!(short(&stage.put(&[timer(2500)]).await[0]), "replaced 2500");
    let post =
        |body: &str| stage.timeline.put(stage.shard, PutMode::Post, vec![put_in("default", IN, "a", 9, body)], NEVER);
    assert_eq!(short(&post("timer").await.unwrap()[0]), "unchanged 2500");
    assert_eq!(short(&post("other").await.unwrap()[0]), "keyreused 9");
    assert_eq!(stage.holds(), ["due:default a 2500", "tasks a r2 c1000 default:timer"]);
}

#[tokio::test]
async fn the_trace_at_a_records_end_is_kept_and_not_compared() {
    let Some(stage) = Stage::new().await else { return };
    // Without the flag, bytes that look like a trace are part of the body.
    let (one, two) = ("1".repeat(26), "2".repeat(26));
    let put = |flags, due, body: &str, trace: &str| put_in("default", flags, "a", due, &format!("{body}{trace}"));
    for (draft, answer, holds) in [
        (put(TRACED, 2000, "x", &one), "created 2000", format!("r1 c1000 default:x{one}")),
        (put(TRACED, 3000, "x", &two), "unchanged 2000", format!("r1 c1000 default:x{one}")),
        (put(0, 3000, "x", ""), "unchanged 2000", format!("r1 c1000 default:x{one}")),
        (put(0, 3000, "x", &one), "replaced 3000", format!("r2 c1000 default:x{one}")),
        (put(TRACED, 4000, "x", &one), "replaced 4000", format!("r3 c1000 default:x{one}")),
        (put(TRACED, 4000, "", &two), "replaced 4000", format!("r4 c1000 default:{two}")),
        (put(0, 4000, "", ""), "unchanged 4000", format!("r4 c1000 default:{two}")),
        (put(IN | TRACED, 5000, "", &one), "replaced 5000", format!("r5 c1000 default:{one}")),
    ] {
        assert_eq!(short(&stage.put(&[draft]).await[0]), answer);
        assert!(stage.holds().contains(&format!("tasks a {holds}")), "{holds} after {answer}: {:?}", stage.holds());
    }
}

#[tokio::test]
async fn a_repeated_in_that_lands_on_the_due_that_was_handed_out_is_unchanged() {
    let Some(stage) = Stage::new().await else { return };
    let timer = |due, trace: &str| put_in("default", IN | TRACED, "a", due, &format!("x{}", trace.repeat(26)));
    stage.put(&[timer(900, "1")]).await;
    stage.crash("i.1").await;
    let before = stage.state();
    assert!(before.contains(&"crashes a 900:1".to_owned()));
    assert_eq!(short(&stage.put(&[timer(900, "2")]).await[0]), "unchanged 900");
    assert_eq!(stage.state(), before);
    assert_eq!(short(&stage.put(&[timer(950, "2")]).await[0]), "replaced 950 in flight 900");
}

#[tokio::test]
async fn a_due_out_of_range_is_refused_alone() {
    let Some(stage) = Stage::new().await else { return };
    let puts = [put("a", 0, "x"), put("b", -5, "x"), put("c", 253_402_300_800_000, "x"), put("d", 1, "x")];
    let answers = stage.put(&puts).await;
    assert_eq!(
        answers.iter().map(short).collect::<Vec<_>>(),
        ["baddue 0", "baddue -5", "baddue 253402300800000", "created 1"]
    );
    assert_eq!(stage.holds(), ["due:default d 1", "tasks d r1 c1000 default:x"]);
    assert_eq!(stage.put_one("e", 253_402_300_799_999, "x").await, "created 253402300799999");
    assert!(stage.state().contains(&"due:default e 253402300799999".to_owned()));
}

#[tokio::test]
async fn a_put_moves_a_task_to_another_lane_in_one_step() {
    let Some(stage) = Stage::new().await else { return };
    stage.put_one("a", 2000, "x").await;
    stage.put(&[put_in("other", 0, "b", 2000, "x")]).await;
    // A second instance that has never used the lane `other` learns its name from the answer.
    let mut config =
        RedisConfig::new(&stage.server.url(), stage.prefix[10..].split(':').next().unwrap().parse().unwrap(), 1);
    config.time = Some(stage.clock.clone());
    let second = RedisTimeline::connect(config).unwrap();
    up(&second).await;
    let puts = vec![put("b", 3000, "x"), put("c", 3000, "x")];
    let answers = second.put(stage.shard, PutMode::Put, puts, NEVER).await.unwrap();
    assert_eq!(answers.iter().map(short).collect::<Vec<_>>(), ["replaced 3000", "created 3000"]);
    assert_eq!(
        stage.state(),
        [
            "due:default a 2000",
            "due:default b 3000",
            "due:default c 3000",
            "lanes default",
            "lanes other",
            "tasks a r1 c1000 default:x",
            "tasks b r2 c1000 default:x",
            "tasks c r1 c1000 default:x",
        ]
    );
}

#[tokio::test]
async fn a_put_of_a_task_in_flight_is_stored_without_changing_its_claim() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "one"), put("b", 900, "one")]).await;
    stage.claim("i.1", 10).await;
    assert_eq!(stage.put_one("a", 900, "two").await, "inflight 900 in flight 900");
    assert_eq!(stage.put_one("a", 900, "one").await, "unchanged 900");
    let elsewhere = stage.put(&[put_in("other", 0, "a", 5000, "two")]).await;
    assert_eq!(short(&elsewhere[0]), "inflight 5000 in flight 900");
    assert_eq!(stage.put_one("a", 5000, "two").await, "replaced 5000 in flight 900");
    // The claimed version is no longer the stored one: a put with the old due is rejected, whatever its body.
    assert_eq!(stage.put_one("a", 900, "one").await, "inflight 900 in flight 900");
    assert_eq!(
        stage.put_one("a", 6000, "two").await,
        "unchanged 5000 in flight 900",
        "a repeat also names the due in flight, because its first answer may be lost"
    );
    let held = stage.get("a").await.unwrap();
    assert_eq!((held.due, held.in_flight, held.due_after_claim), (at(900), true, Some(at(5000))));
    assert_eq!(
        stage.holds(),
        [
            "changes a 5000",
            "claims:default i.1 2 a 900 b 900",
            "due:default a -900",
            "due:default b -900",
            "leases:default i.1 16000",
            "tasks a r2 c1000 default:two",
            "tasks b r1 c1000 default:one",
        ]
    );
}

#[tokio::test]
async fn a_cancelled_task_is_gone_at_once_and_in_flight_when_its_claim_ends() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "one"), put("b", 2000, "one")]).await;
    stage.claim("i.1", 10).await;
    assert_eq!(stage.cancel("b").await, CancelAnswer::Cancelled { handed_out: None });
    assert_eq!(stage.cancel("b").await, CancelAnswer::Unknown);
    assert_eq!(stage.cancel("a").await, CancelAnswer::InFlight { due: at(900) });
    assert_eq!(stage.cancel("a").await, CancelAnswer::InFlight { due: at(900) });
    assert_eq!(stage.get("a").await, None);
    assert_eq!(
        stage.holds(),
        [
            "changes a cancelled",
            "claims:default i.1 1 a 900",
            "due:default a -900",
            "leases:default i.1 16000",
            "tasks a r1 c1000 default:one",
        ]
    );
    // A put of the same task creates a new one and is never `unchanged`; but its key must not be in flight.
    assert_eq!(stage.put_one("a", 900, "one").await, "inflight 900 in flight 900");
    assert_eq!(stage.put_one("a", 4000, "one").await, "created 4000 in flight 900");
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Finished)]).await;
    assert_eq!(stage.holds(), ["due:default a 4000", "tasks a r1 c1000 default:one"]);
}

#[tokio::test]
async fn a_handed_out_key_is_reported_by_the_first_accepted_put_or_cancel_only() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "one"), put("b", 900, "one"), put("c", 900, "one")]).await;
    stage.crash("i.1").await;
    assert!(stage.holds().contains(&"crashes a 900:1".to_owned()));
    assert_eq!(stage.put_one("a", 900, "two").await, "inflight 900 in flight 900");
    assert_eq!(stage.put_one("a", 5000, "two").await, "replaced 5000 in flight 900");
    assert_eq!(stage.put_one("a", 6000, "three").await, "replaced 6000");
    assert_eq!(stage.cancel("b").await, CancelAnswer::Cancelled { handed_out: Some(at(900)) });
    assert_eq!(
        stage.holds(),
        [
            "crashes c 900:1",
            "due:default a 6000",
            "due:default c 900",
            "tasks a r3 c1000 default:three",
            "tasks c r1 c1000 default:one",
        ]
    );
}

#[tokio::test]
async fn a_call_that_comes_late_writes_nothing() {
    let Some(stage) = Stage::new().await else { return };
    stage.put_one("a", 900, "x").await;
    let before = stage.state();
    let past = at(999);
    let late = Err(TimelineError::Late);
    let put = stage.timeline.put(stage.shard, PutMode::Put, vec![put("b", 2000, "x")], past).await;
    assert_eq!(put, late.clone().map(|()| Vec::new()));
    assert_eq!(stage.timeline.cancel(stage.shard, &task("a"), None, past).await, Err(TimelineError::Late));
    let claim = ClaimRequest { not_after: past, ..claim_of("i.1", 10) };
    let claimed = stage.timeline.claim(stage.shard, &Lane::default(), claim).await;
    assert_eq!(claimed.map(|_| ()), late);
    let reap = ReapRequest { not_after: past, ..reaping() };
    assert_eq!(stage.timeline.reap(stage.shard, &Lane::default(), reap).await, Err(TimelineError::Late));
    let key: Key = "a:900".parse().unwrap();
    assert_eq!(stage.timeline.requeue(stage.shard, &key, None, past).await, Err(TimelineError::Late));
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, past).await, Err(TimelineError::Late));
    assert_eq!(stage.state(), before);
    // At exactly this millisecond it is still in time.
    assert!(stage.timeline.cancel(stage.shard, &task("a"), None, at(1000)).await.is_ok());
}

#[tokio::test]
async fn a_thousand_tasks_with_the_longest_ids_fit_one_call() {
    let Some(stage) = Stage::new().await else { return };
    let ids: Vec<String> = (0..1000).map(|n| format!("{n:0>200}")).collect();
    let puts: Vec<Put> = ids.iter().map(|id| put(id, 900, "x")).collect();
    assert!(stage.put(&puts).await.iter().all(|answer| answer.result == PutResult::Created));
    let again: Vec<Put> = ids.iter().map(|id| put_in("other", IN, id, 950, "x")).collect();
    assert!(stage.put(&again).await.iter().all(|answer| answer.result == PutResult::Replaced));
    let back: Vec<Put> = ids.iter().map(|id| put_in("default", RECURRING, id, 900, "x")).collect();
    stage.put(&back).await;

    let claimed = stage.claim("i.1", 1000).await;
    assert_eq!(claimed.occurrences.len(), 1000);
    let verdicts = ids.iter().map(|id| settlement(id, 900, next(950, 1))).collect();
    assert_eq!(stage.settle("i.1", RestOfClaim::Keep, verdicts).await, Settled::default());
    // The user moves each of them while it is in flight. Half are settled, and the reaper returns the rest.
    stage.claim("i.2", 1000).await;
    let moved: Vec<Put> = ids.iter().map(|id| put_in("default", IN, id, 960, "y")).collect();
    stage.put(&moved).await;
    let verdicts = ids.iter().take(500).map(|id| settlement(id, 950, Verdict::Dead(dead_record("x")))).collect();
    assert_eq!(stage.settle("i.2", RestOfClaim::Keep, verdicts).await.changed.len(), 500);
    stage.clock.advance(LEASE);
    assert_eq!(stage.reap().await.occurrences, 500);
    let claimed = stage.claim("i.3", 1000).await;
    assert!(claimed.occurrences.len() == 1000 && claimed.occurrences.iter().all(|one| one.due == at(960)));
    let verdicts = ids.iter().map(|id| settlement(id, 960, Verdict::Dead(dead_record("x")))).collect();
    stage.settle("i.3", RestOfClaim::Keep, verdicts).await;
    assert_eq!(stage.state().len(), 1 + 1 + 2000, "the dead and two lanes");
}
