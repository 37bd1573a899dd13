//! glance.

use super::*;

#[tokio::test]
async fn a_glance_shows_heads_leases_and_depth() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "x"), put("b", 2000, "x"), put("c", 800, "x"), put_in("other", 0, "d", 5000, "x")]).await;
    stage.claim("i.1", 1).await;
    stage.now(1500);
    stage.claim("i.2", 1).await;
    stage.put(&[put("late", 500, "x"), put("near", 501, "x")]).await;
    let glance = stage.glance(&[("default", true), ("other", true), ("empty", true)]).await;
    let nothing = LaneGlance { depth: Some((0, 0)), ..LaneGlance::default() };
    assert_eq!(
        glance.lanes,
        [
            LaneGlance {
                head: Some(at(500)),
                first_lease: Some(at(16_000)),
                last_lease: Some(at(16_500)),
                depth: Some((3, 2)),
                overdue: 1,
                held: Some(at(800)),
                ..nothing.clone()
            },
            LaneGlance { head: Some(at(5000)), depth: Some((1, 0)), ..nothing.clone() },
            nothing,
        ]
    );
    assert_eq!(glance.known, [lane("default"), lane("other")]);
    assert_eq!(glance.dead, 0);
    let request = GlanceRequest { depth: false, ..glancing(&[("default", true)]) };
    assert_eq!(stage.timeline.glance(stage.shard, request).await.unwrap().lanes[0].depth, None);
}

#[tokio::test]
async fn a_glance_asks_one_caller_to_reap_after_holders_had_time_to_extend() {
    let Some(stage) = Stage::new().await else { return };
    stage.put_one("a", 900, "x").await;
    stage.claim("i.1", 10).await;
    let reported = async |now| {
        stage.now(now);
        let reported = stage.glance(&[("default", true)]).await.lanes[0].reap;
        let line = stage.state().into_iter().find(|line| line.starts_with("reap-at")).unwrap();
        (reported, line.split(' ').nth(1).unwrap().parse::<i64>().unwrap())
    };
    assert_eq!(reported(1000).await, (false, 16_000), "missing");
    assert_eq!(reported(15_999).await, (false, 16_000), "not yet");
    assert_eq!(reported(16_000).await, (true, 16_900), "the lease has ended");
    assert_eq!(reported(16_000).await, (false, 16_900), "one was asked to reap");
    assert_eq!(
        reported(24_400).await,
        (true, 25_300),
        "half a lease late: an instance that looks rarely is asked, too"
    );
    assert_eq!(reported(32_801).await, (false, 47_801), "later than that, somebody was away: first a lease's time");
    stage.now(47_801);
    stage.reap().await;
    assert_eq!(reported(47_801).await, (false, 48_701), "nothing to reap");
    assert_eq!(reported(2000).await, (false, 2900), "the clock stepped back");
}

/// No instance polls for a while, twice. Each time holders get the chance to extend first.
#[tokio::test]
async fn a_glance_between_two_absences_lets_the_reap_be_postponed_again() {
    let Some(stage) = Stage::new().await else { return };
    stage.put_one("a", 900, "x").await;
    stage.claim("i.1", 10).await;
    let looks = async |now: &[i64]| {
        let mut reported = false;
        for now in now {
            stage.now(*now);
            reported |= stage.glance(&[("default", true)]).await.lanes[0].reap;
        }
        (reported, stage.state().into_iter().find(|line| line.starts_with("reap-at")).unwrap())
    };
    assert_eq!(looks(&[1000, 30_000]).await, (false, "reap-at:default 45000 late".to_owned()));
    assert_eq!(looks(&[31_000]).await, (false, "reap-at:default 45000".to_owned()), "somebody looks");
    assert_eq!(looks(&[70_000]).await, (false, "reap-at:default 85000 late".to_owned()), "and was away");
    assert_eq!(looks(&[77_501]).await, (false, "reap-at:default 85000 late".to_owned()), "but this one looks seldom");
    assert_eq!(looks(&[92_501]).await, (true, "reap-at:default 93401".to_owned()));
}

/// A poll after more than half a lease postpones the reap, but not twice in a row. Otherwise an instance that hangs a
/// little each time would never reap.
#[tokio::test]
async fn a_glance_asks_a_caller_that_polls_rarely_to_reap_too() {
    let Some(stage) = Stage::new().await else { return };
    stage.put_one("a", 900, "x").await;
    stage.claim("i.1", 10).await;
    let mut reported = Vec::new();
    // The lease ends at 16 000. One poll postpones the reap by a lease; the second poll after that is 8600 ms late.
    for now in (1000..100_000).step_by(11_800) {
        stage.now(now);
        if stage.glance(&[("default", true)]).await.lanes[0].reap {
            reported.push(now);
        }
    }
    assert_eq!(reported, [48_200, 83_600]);
}

/// When no instance polls a lane any more, the key with the time of its next reap expires.
#[tokio::test]
async fn the_time_of_the_next_reap_goes_by_itself() {
    let Some(stage) = Stage::new().await else { return };
    stage.glance(&[("default", true)]).await;
    let left: i64 = ::redis::cmd("PTTL").arg(stage.key("reap-at:default")).query(&mut stage.raw()).unwrap();
    let longest = 2 * 15_000 + 60_000;
    assert!((1..=longest).contains(&left), "{left} ms");
    let now = stage.clock_ms();
    stage.now(now + 15_000);
    stage.glance(&[("default", true)]).await;
    let left: i64 = ::redis::cmd("PTTL").arg(stage.key("reap-at:default")).query(&mut stage.raw()).unwrap();
    assert!((1..=longest).contains(&left), "every look puts it off: {left} ms");
}

#[tokio::test]
async fn a_glance_asks_for_a_reap_for_every_kind_of_work() {
    let Some(stage) = Stage::new().await else { return };
    let work = async |name: &str, served| {
        let _: () = ::redis::cmd("SET")
            .arg(stage.key(&format!("reap-at:{name}")))
            .arg(stage.clock_ms())
            .query(&mut stage.raw())
            .unwrap();
        stage.glance(&[(name, served)]).await.lanes[0].reap
    };
    stage.put(&[put("a", 900, "x"), put_in("other", 0, "b", 900, "x")]).await;
    assert!(!work("default", true).await);
    stage.claim("i.1", 10).await;
    assert!(!work("default", true).await);
    stage.now(16_000);
    assert!(work("default", true).await, "a lease has ended");
    stage.now(500);
    assert!(work("default", true).await, "a lease is further ahead than one");
    stage.now(1000);
    let _: () = ::redis::cmd("DEL").arg(stage.key("leases:default")).query(&mut stage.raw()).unwrap();
    assert!(stage.glance(&[("default", true)]).await.lanes[0].stranded);
    assert!(work("default", true).await, "something is claimed without a lease");
    stage.reap().await;
    assert!(!work("default", true).await);
    assert!(!work("other", false).await);
    stage.cancel("b").await;
    assert!(!work("other", true).await);
    assert!(work("other", false).await, "an empty lane that nobody serves");
    stage.claim("i.2", 10).await;
    stage.settle("i.2", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Dead(dead_record("x")))]).await;
    assert!(!work("default", true).await);
    stage.now(3_601_000);
    assert!(work("default", true).await, "a dead has had its time");
}

impl Stage {
    fn clock_ms(&self) -> i64 {
        use punctual::clock::Clock;
        self.clock.now().as_millis()
    }
}
