//! A full Redis rejects new tasks, and existing ones are still published.

use super::*;

#[tokio::test]
async fn a_full_redis_refuses_puts_and_drains() {
    let Some(server) = own_server(&["--maxmemory-policy", "noeviction"]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let ids = ["a", "b", "c", "d", "e", "f"];
    stage.put(&ids.map(|id| put_in("default", RECURRING, id, 900, "x"))).await;
    stage.put(&[put("crash", 900, "x"), put("later", 9_000_000, "x")]).await;
    stage.claim("i.0", 1).await;
    stage.settle("i.0", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Dead(dead_record("x")))]).await;
    let limit = |bytes: &str| {
        let _: () = ::redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(&mut stage.raw()).unwrap();
    };
    limit("1");

    let before = stage.state();
    let refused = stage.timeline.put(stage.shard, PutMode::Put, vec![put("new", 900, "x")], NEVER).await;
    assert!(matches!(&refused, Err(TimelineError::Refused(detail)) if detail.starts_with("OOM ")), "{refused:?}");
    let unchanged = stage.put_one("later", 9_000_000, "x").await;
    assert_eq!(unchanged, "unchanged 9000000", "what needs no room is answered");
    assert_eq!(stage.state(), before);

    // The first pause also stores another layout.
    let (shard, default) = (stage.shard, Lane::default());
    let about = || PauseNote { by: None, note: "the disk is full".into() };
    let pause = LanePauseRequest::Pause { until: None, about: about() };
    stage.timeline.pause_lane(shard, &default, pause, NEVER).await.unwrap();
    assert!(stage.claim("i.9", 10).await.paused);
    stage.timeline.pause_lane(shard, &default, LanePauseRequest::Resume, NEVER).await.unwrap();
    stage.timeline.pause(shard, &task("later"), TaskPauseRequest::Pause(about()), NEVER).await.unwrap();
    stage.timeline.pause(shard, &task("later"), TaskPauseRequest::Resume, NEVER).await.unwrap();

    assert_eq!(stage.claim("i.1", 10).await.occurrences.len(), 6);
    assert_eq!(stage.cancel("b").await, CancelAnswer::InFlight { due: at(900) });
    assert!(matches!(stage.cancel("later").await, CancelAnswer::Cancelled { .. }));
    let tokens = [(Lane::default(), token("i.1"))];
    assert_eq!(stage.timeline.extend(stage.shard, &tokens, LEASE).await, Ok(vec![true]));
    let dead_next = Verdict::DeadNext {
        dead_record: dead_record("y"),
        due: at(99_000),
        counts: Counts { dead: 1, ..Counts::default() },
    };
    let verdicts = vec![
        settlement("c", 900, Verdict::Finished),
        settlement("d", 900, next(99_000, 1)),
        settlement("e", 900, dead_next),
        settlement("f", 900, Verdict::Back { begun: true }),
    ];
    assert!(!stage.settle("i.1", RestOfClaim::Keep, verdicts).await.lost);
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued);
    assert_eq!(stage.glance(&[("default", true)]).await.dead, 1);
    stage.now(16_000);
    assert_eq!(stage.reap().await.occurrences, 2);
    let key: Key = "e:900".parse().unwrap();
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, NEVER).await, Ok(true));
    assert_eq!(
        stage.holds(),
        [
            "counts d 1 0 0 0",
            "counts e 0 1 0 0",
            "crashes !a:900 1000:0",
            "crashes crash 900:1",
            "crashes f 900:0",
            "due:default !a:900 1000",
            "due:default crash 900",
            "due:default d 99000",
            "due:default e 99000",
            "due:default f 900",
            "reap-at:default 16000",
            "tasks !a:900 r1 c1000 default:x",
            "tasks crash r1 c1000 default:x",
            "tasks d r1 c1000 default:x",
            "tasks e r1 c1000 default:x",
            "tasks f r1 c1000 default:x",
        ]
    );
    limit("0");
    assert_eq!(stage.put_one("new", 900, "x").await, "created 900");
}

#[tokio::test]
async fn a_read_only_redis_refuses_a_cancel_and_is_reported_as_down() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    stage.put_one("a", 900, "x").await;
    let mut raw = stage.raw();
    let _: () = ::redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut raw).unwrap();
    let refused = stage.timeline.cancel(stage.shard, &task("a"), None, NEVER).await;
    assert!(matches!(&refused, Err(TimelineError::Refused(detail)) if detail.starts_with("READONLY ")), "{refused:?}");
    // The timeline reconnects, because the address may lead to another server by now. A replica does not count as up.
    link_is(&stage.timeline, |link| matches!(link, Link::Down(reason) if reason.contains("`: READONLY"))).await;
    let _: () = ::redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut raw).unwrap();
    assert_eq!(up(&stage.timeline).await, 2);
    assert!(matches!(stage.cancel("a").await, CancelAnswer::Cancelled { .. }));
}
