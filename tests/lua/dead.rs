//! requeue, discard, browse and show.

use super::*;

/// `a` is dead at 900 and due again at 950.
async fn dead() -> Option<Stage> {
    let stage = Stage::new().await?;
    stage.put(&[put_in("default", RECURRING, "a", 900, "x")]).await;
    stage.claim("i.1", 10).await;
    let mut dead_record = dead_record("x");
    dead_record.record = record(4, "other", 1000, "died");
    let verdict = Verdict::DeadNext { dead_record, due: at(950), counts: Counts { dead: 1, ..Counts::default() } };
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, verdict)]).await;
    Some(stage)
}

#[tokio::test]
async fn a_requeued_occurrence_is_due_now_under_its_old_key() {
    let Some(stage) = dead().await else { return };
    let mut wakes = stage.timeline.wakes();
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued);
    let after = [
        "counts a 0 1 0 0",
        "crashes !a:900 1000:0",
        "due:default a 950",
        "due:other !a:900 1000",
        "lanes default",
        "lanes other",
        "tasks !a:900 r1 c1000 other:died",
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
    let verdicts = vec![settlement("!a:900", 1000, Verdict::Dead(dead_record("again")))];
    let settle = Settle {
        token: token("i.2"),
        verdicts,
        rest: RestOfClaim::Keep,
        lease: LEASE,
        dead_cap: DeadCap::of(10),
        quiet: false,
    };
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
    stage.settle("i.2", RestOfClaim::Back, vec![]).await;
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued, "the task is gone");
}

/// Otherwise no one could ever put a task with that due again.
#[tokio::test]
async fn a_requeued_occurrence_without_a_record_releases_its_key_when_claimed() {
    let Some(stage) = dead().await else { return };
    stage.requeue("a:900").await;
    assert_eq!(stage.put_one("a", 900, "again").await, "inflight 900 in flight 900");
    let _: () = ::redis::cmd("HDEL").arg(stage.key("tasks")).arg("!a:900").query(&mut stage.raw()).unwrap();
    let claimed = stage.timeline.claim(stage.shard, &lane("other"), claim_of("i.2", 10)).await.unwrap();
    assert_eq!((claimed.removed, claimed.occurrences.len()), (1, 0));
    assert_eq!(stage.put_one("a", 900, "again").await, "replaced 900");
    assert!(!stage.state().iter().any(|line| line.contains('!')), "{:?}", stage.state());
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
async fn a_discarded_occurrence_is_gone_and_cannot_be_discarded_again() {
    let Some(stage) = dead().await else { return };
    let key: Key = "a:900".parse().unwrap();
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, NEVER).await, Ok(true));
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, NEVER).await, Ok(false));
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Unknown);
    assert_eq!(stage.requeue("b:900").await, RequeueAnswer::Unknown);
    assert_eq!(stage.holds(), ["counts a 0 1 0 0", "due:default a 950", "tasks a r1 c1000 default:x"]);
}

#[tokio::test]
async fn browse_and_show_return_the_whole_dead_record_and_change_nothing() {
    let Some(stage) = dead().await else { return };
    let before = stage.state();
    let filter = DeadFilter { lane: Some(lane("other")), reason: Some("rejected".into()), ..DeadFilter::default() };
    let request = BrowseRequest { filter, after: None, max: 10, whole: true };
    let browsed = stage.timeline.browse(stage.shard, request.clone()).await.unwrap();
    let shown = stage.timeline.show(stage.shard, &"a:900".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(shown.cursor.died, at(1000));
    let kept = shown.dead_record.clone().unwrap();
    assert_eq!(
        (sketch(&kept.record), kept.reason, kept.detail),
        ("r1 c1000 other:died".into(), "rejected".into(), "no\nway".into())
    );
    assert_eq!((browsed.dead, browsed.last), (vec![shown], None));
    // A damaged or truncated entry belongs to no lane and hides no other.
    let mut raw = stage.raw();
    for value in [&b""[..], b"xyz", b"\0\0\0\x01x", b"\xff\0\0\0xyz"] {
        let _: () =
            ::redis::cmd("HSET").arg(stage.key("dead:records")).arg("a:900").arg(value).query(&mut raw).unwrap();
        assert_eq!(stage.timeline.browse(stage.shard, request.clone()).await.unwrap(), Browsed::default());
        let all = BrowseRequest { filter: DeadFilter::default(), ..request.clone() };
        let dead = Dead {
            dead_record: None,
            ..stage.timeline.show(stage.shard, &"a:900".parse().unwrap()).await.unwrap().unwrap()
        };
        assert_eq!(stage.timeline.browse(stage.shard, all).await.unwrap().dead, [dead]);
    }
    // Such an entry cannot be requeued either, and only its own request fails.
    let record = &kept.record;
    let cut = |length: usize| [&u32::try_from(length).unwrap().to_be_bytes()[..], &record[..length]].concat();
    let nameless = [&record[..30], b"\x05A_b:c"].concat();
    let nameless = [&u32::try_from(nameless.len()).unwrap().to_be_bytes()[..], &nameless].concat();
    for value in [&b""[..], b"xyz", b"\0\0\0\x01x", b"\xff\0\0\0xyz", &cut(30), &cut(31), &cut(35), &nameless] {
        let _: () =
            ::redis::cmd("HSET").arg(stage.key("dead:records")).arg("a:900").arg(value).query(&mut raw).unwrap();
        assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Unreadable, "{value:?}");
    }
    let _: () = ::redis::cmd("DEL").arg(stage.key("dead:records")).query(&mut raw).unwrap();
    assert_eq!(stage.timeline.show(stage.shard, &"a:900".parse().unwrap()).await, Ok(None));
    assert_eq!(stage.state(), before.into_iter().filter(|line| !line.starts_with("dead:records")).collect::<Vec<_>>());
}

/// Redis orders by bytes in every locale, and so does a listing that continues.
#[tokio::test]
async fn the_dead_of_one_millisecond_are_in_the_order_of_their_bytes() {
    let Some(stage) = Stage::new().await else { return };
    let ids = ["B", "a", "a-", "a.b", "a0", "a:1", "aB", "a_", "aa", "b"];
    stage.put(&ids.map(|id| put(id, 900, "x"))).await;
    stage.claim("i.1", 100).await;
    stage
        .settle("i.1", RestOfClaim::Keep, ids.map(|id| settlement(id, 900, Verdict::Dead(dead_record("x")))).to_vec())
        .await;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let request = BrowseRequest { filter: DeadFilter::default(), after, max: 1, whole: false };
        let browsed = stage.timeline.browse(stage.shard, request).await.unwrap();
        for dead in browsed.dead {
            found.push(dead.cursor.key.to_string());
            stage.timeline.discard(stage.shard, &dead.cursor.key, None, NEVER).await.unwrap();
        }
        after = browsed.last;
        if after.is_none() {
            break;
        }
    }
    let mut sorted = ids.map(|id| format!("{id}:900"));
    sorted.sort();
    assert_eq!(found, sorted);
}
