//! settle.

use super::*;

async fn three() -> Option<Stage> {
    let stage = Stage::new().await?;
    let puts = ["a", "b", "c"].map(|id| put_in("default", if id == "b" { RECURRING } else { 0 }, id, 900, id));
    stage.put(&puts).await;
    stage.claim("i.1", 10).await;
    Some(stage)
}

#[tokio::test]
async fn a_whole_claim_is_settled_in_one_step() {
    let Some(stage) = three().await else { return };
    let verdicts = vec![
        settlement("c", 900, Verdict::Back { begun: true }),
        settlement("a", 900, Verdict::Finished),
        settlement("b", 900, next(2000, 1)),
    ];
    assert_eq!(stage.settle("i.1", RestOfClaim::Keep, verdicts.clone()).await, Settled::default());
    let after = [
        "counts b 1 0 0 0",
        "crashes c 900:0",
        "due:default b 2000",
        "due:default c 900",
        "tasks b r1 c1000 default:b",
        "tasks c r1 c1000 default:c",
    ];
    assert_eq!(stage.holds(), after);
    let again = stage.settle("i.1", RestOfClaim::Keep, verdicts).await;
    assert!(again.lost, "the normal answer to a repeat");
    assert_eq!(stage.holds(), after);
}

#[tokio::test]
async fn a_settle_keeps_or_returns_the_occurrences_that_it_does_not_name() {
    let Some(stage) = three().await else { return };
    stage.now(2000);
    assert_eq!(
        stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Finished)]).await,
        Settled::default()
    );
    let kept = [
        "claims:default i.1 part b 900 c 900",
        "due:default b -900",
        "due:default c -900",
        "leases:default i.1 17000",
        "tasks b r1 c1000 default:b",
        "tasks c r1 c1000 default:c",
    ];
    assert_eq!(stage.holds(), kept);
    // A late duplicate of the call settles nothing again and returns no other occurrence.
    let stale = vec![settlement("a", 900, next(5000, 1)), settlement("b", 901, Verdict::Finished)];
    let settled = stage.settle("i.1", RestOfClaim::Keep, stale).await;
    assert_eq!(settled.skipped.iter().map(Member::as_str).collect::<Vec<_>>(), ["a", "b"], "in the order of the call");
    assert_eq!(stage.holds(), kept);
    assert_eq!(stage.settle("i.1", RestOfClaim::Back, vec![]).await, Settled::default());
    assert_eq!(
        stage.holds(),
        ["due:default b 900", "due:default c 900", "tasks b r1 c1000 default:b", "tasks c r1 c1000 default:c"],
        "without a mark"
    );
}

#[tokio::test]
async fn a_change_takes_the_place_of_the_verdict() {
    let Some(stage) = three().await else { return };
    stage.put_one("a", 5000, "new").await;
    stage.cancel("b").await;
    stage.put_one("c", 6000, "new").await;
    let verdicts = vec![
        settlement(
            "b",
            900,
            Verdict::DeadNext { dead_record: dead_record("b"), due: at(7000), counts: Counts::default() },
        ),
        settlement("a", 900, Verdict::Back { begun: true }),
    ];
    let settled = stage.settle("i.1", RestOfClaim::Back, verdicts).await;
    assert_eq!(settled.changed.iter().map(Member::as_str).collect::<Vec<_>>(), ["b", "a", "c"]);
    assert_eq!(
        stage.holds(),
        ["due:default a 5000", "due:default c 6000", "tasks a r2 c1000 default:new", "tasks c r2 c1000 default:new"],
        "nothing is dead, counted or marked"
    );
}

#[tokio::test]
async fn in_a_partial_settle_every_group_finds_its_own() {
    let Some(stage) = Stage::new().await else { return };
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h", "keep"];
    stage.put(&ids.map(|id| put(id, 900, id))).await;
    stage.claim("i.1", 10).await;
    let dead = |id: &str| Verdict::Dead(dead_record(&format!("dead {id}")));
    let dead_next = |id: &str, due| Verdict::DeadNext {
        dead_record: dead_record(&format!("dead {id}")),
        due: at(due),
        counts: Counts { dead: 1, ..Counts::default() },
    };
    let verdicts = vec![
        settlement("gone1", 900, Verdict::Finished),
        settlement("a", 900, Verdict::Finished),
        settlement("gone2", 900, dead("gone2")),
        settlement("b", 900, dead("b")),
        settlement("gone3", 900, next(1900, 9)),
        settlement("c", 900, next(2000, 1)),
        settlement("gone4", 900, dead_next("gone4", 1900)),
        settlement("d", 900, dead_next("d", 2001)),
        settlement("e", 900, Verdict::Back { begun: false }),
        settlement("gone5", 900, Verdict::Back { begun: true }),
        settlement("f", 900, Verdict::Back { begun: true }),
        settlement("g", 901, Verdict::Back { begun: true }),
        settlement("h", 900, dead("h")),
    ];
    let settled = stage.settle("i.1", RestOfClaim::Keep, verdicts).await;
    let skipped: Vec<_> = settled.skipped.iter().map(Member::as_str).collect();
    assert_eq!(skipped, ["gone1", "gone2", "gone3", "gone4", "gone5", "g"]);
    assert_eq!(
        stage.holds(),
        [
            "claims:default i.1 part g 900 keep 900",
            "counts c 1 0 0 0",
            "counts d 0 1 0 0",
            "crashes f 900:0",
            "dead b:900 1000",
            "dead d:900 1000",
            "dead h:900 1000",
            "dead:records b:900 r1 c1000 default:dead b \"rejected\\nno\\nway\"",
            "dead:records d:900 r1 c1000 default:dead d \"rejected\\nno\\nway\"",
            "dead:records h:900 r1 c1000 default:dead h \"rejected\\nno\\nway\"",
            "due:default c 2000",
            "due:default d 2001",
            "due:default e 900",
            "due:default f 900",
            "due:default g -900",
            "due:default keep -900",
            "leases:default i.1 16000",
            "tasks c r1 c1000 default:c",
            "tasks d r1 c1000 default:d",
            "tasks e r1 c1000 default:e",
            "tasks f r1 c1000 default:f",
            "tasks g r1 c1000 default:g",
            "tasks keep r1 c1000 default:keep",
        ]
    );
}

#[tokio::test]
async fn a_mark_keeps_its_count_until_the_occurrence_ends() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&["a", "b", "c"].map(|id| put_in("default", RECURRING, id, 900, "x"))).await;
    stage.crash("i.1").await;
    stage.claim("i.2", 10).await;
    let back = |id| settlement(id, 900, Verdict::Back { begun: true });
    stage.settle("i.2", RestOfClaim::Keep, vec![back("a"), back("b"), back("c")]).await;
    let marks = |stage: &Stage| -> Vec<String> {
        stage.holds().into_iter().filter(|line| line.starts_with("crashes")).collect()
    };
    assert_eq!(marks(&stage), ["crashes a 900:1", "crashes b 900:1", "crashes c 900:1"]);
    stage.claim("i.3", 10).await;
    let verdicts = vec![settlement("a", 900, Verdict::Finished), settlement("b", 900, next(950, 1)), back("c")];
    stage.settle("i.3", RestOfClaim::Keep, verdicts).await;
    assert_eq!(marks(&stage), ["crashes c 900:1"]);
}

#[tokio::test]
async fn the_cap_drops_the_oldest_dead() {
    let Some(stage) = Stage::new().await else { return };
    for (n, id) in ["b", "a", "c", "d"].into_iter().enumerate() {
        stage.now(1000 + i64::try_from(n).unwrap());
        stage.put_one(id, 900, "x").await;
        stage.claim(&format!("i.{n}"), 10).await;
        let verdicts = vec![settlement(id, 900, Verdict::Dead(dead_record(id)))];
        let settle = Settle {
            token: token(&format!("i.{n}")),
            verdicts,
            rest: RestOfClaim::Keep,
            lease: LEASE,
            dead_cap: DeadCap::of(2),
            quiet: false,
        };
        assert_eq!(stage.settle_with(settle).await.dropped, u64::from(n >= 2));
    }
    assert_eq!(
        stage.holds(),
        [
            "dead c:900 1002",
            "dead d:900 1003",
            "dead:records c:900 r1 c1000 default:c \"rejected\\nno\\nway\"",
            "dead:records d:900 r1 c1000 default:d \"rejected\\nno\\nway\"",
        ]
    );
}

#[tokio::test]
async fn a_head_that_becomes_earlier_wakes_the_sleepers() {
    let Some(stage) = three().await else { return };
    stage.put_one("later", 9000, "x").await;
    let mut wakes = stage.timeline.wakes();
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, next(9500, 1))]).await;
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("b", 900, next(2000, 1))]).await;
    stage.settle("i.1", RestOfClaim::Back, vec![]).await;
    stage.cancel("c").await;
    stage.put_one("put", 1500, "x").await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let wake = tokio::time::timeout(Duration::from_secs(10), wakes.recv()).await.unwrap().unwrap();
        // The notification for the put of `later` may still arrive.
        if wake.due != at(9000) {
            seen.push(wake.due.as_millis());
        }
    }
    assert_eq!(seen, [2000, 900, 1500]);
}

#[tokio::test]
async fn a_next_due_that_does_not_follow_is_refused() {
    let Some(stage) = three().await else { return };
    let before = stage.state();
    for due in [900, 0, -1, 253_402_300_800_000] {
        let settle = Settle {
            token: token("i.1"),
            verdicts: vec![settlement("a", 900, next(due, 1))],
            rest: RestOfClaim::Keep,
            lease: LEASE,
            dead_cap: DeadCap::of(10),
            quiet: false,
        };
        let refused = stage.timeline.settle(stage.shard, &Lane::default(), settle).await;
        assert_eq!(refused, Err(TimelineError::Refused(format!("bad_due {due}"))));
    }
    assert_eq!(stage.state(), before);
}
