//! reap.

use super::*;

const NONE: Reaped = Reaped { claims: 0, occurrences: 0, holders: Vec::new(), stranded: 0, dropped: 0, more: false };

fn by(instance: &str) -> Vec<String> {
    vec![instance.to_owned()]
}

#[tokio::test]
async fn a_reap_names_up_to_ten_instances_that_held_the_claims() {
    let Some(stage) = Stage::new().await else { return };
    for n in 0..12 {
        stage.put(&[put(&format!("a{n}"), 900, "x"), put(&format!("b{n}"), 900, "x")]).await;
        stage.claim(&format!("inst{n:02}.1"), 1).await;
        stage.claim(&format!("inst{n:02}.2"), 1).await;
        stage.now(1001 + n);
    }
    stage.now(17_000);
    let reaped = stage.reap().await;
    assert_eq!((reaped.claims, reaped.occurrences), (24, 24));
    assert_eq!(reaped.holders, (0..10).map(|n| format!("inst{n:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reap_restores_dues_counts_crashes_and_applies_changes() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&["a", "b", "c"].map(|id| put_in("default", RECURRING, id, 900, id))).await;
    stage.claim("i.1", 10).await;
    stage.put_one("b", 5000, "new").await;
    stage.cancel("c").await;
    stage.now(15_999);
    let before = stage.state();
    assert_eq!(stage.reap().await, NONE);
    assert_eq!(stage.state(), before);
    stage.now(16_000);
    assert_eq!(stage.reap().await, Reaped { claims: 1, occurrences: 3, holders: by("i"), ..NONE });
    let after = [
        "crashes a 900:1",
        "due:default a 900",
        "due:default b 5000",
        "tasks a r1 c1000 default:a",
        "tasks b r2 c1000 default:new",
    ];
    assert_eq!(stage.holds(), after);
    assert_eq!(stage.reap().await, NONE);
    let late = stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Finished)]).await;
    assert!(late.lost, "a lost lease cannot settle");
    assert_eq!(stage.holds(), after);
    stage.cancel("b").await;
    stage.crash("i.2").await;
    assert_eq!(stage.holds(), ["crashes a 900:2", "due:default a 900", "tasks a r1 c1000 default:a"]);
}

#[tokio::test]
async fn a_reap_returns_only_occurrences_that_the_claim_still_holds() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "x"), put("b", 900, "x")]).await;
    stage.claim("i.1", 10).await;
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Finished)]).await;
    // Put again with another due, and claimed by another instance: the old claim does not affect it.
    stage.put_one("a", 950, "x").await;
    stage.now(14_000);
    stage.claim("i.2", 10).await;
    stage.now(16_000);
    assert_eq!(stage.reap().await, Reaped { claims: 1, occurrences: 1, holders: by("i"), ..NONE });
    assert_eq!(
        stage.holds(),
        [
            "claims:default i.2 1 a 950",
            "crashes b 900:1",
            "due:default a -950",
            "due:default b 900",
            "leases:default i.2 29000",
            "tasks a r1 c1000 default:x",
            "tasks b r1 c1000 default:x",
        ]
    );
}

#[tokio::test]
async fn a_reap_is_bounded_by_a_thousand_occurrences_in_whole_claims() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&(0..1000).map(|n| put(&format!("full{n}"), 900, "x")).collect::<Vec<_>>()).await;
    stage.claim("i.full", 1000).await;
    for claim in 0..3 {
        let ids: Vec<Put> = (0..600).map(|n| put(&format!("t{claim}-{n}"), 900, "x")).collect();
        stage.put(&ids).await;
        stage.claim(&format!("i.{claim}"), 1000).await;
    }
    stage.now(16_000);
    let mut tokens = vec![1000, 600, 600, 600];
    while tokens.len() > 1 {
        let reaped = stage.reap().await;
        assert_eq!(reaped, Reaped { claims: 1, occurrences: reaped.occurrences, more: true, holders: by("i"), ..NONE });
        let taken = tokens.iter().position(|held| *held == reaped.occurrences).expect("a whole claim");
        tokens.remove(taken);
    }
    assert_eq!(stage.reap().await, Reaped { claims: 1, occurrences: tokens[0], holders: by("i"), ..NONE });
}

#[tokio::test]
async fn a_lease_too_far_ahead_is_cut_to_one_lease() {
    let Some(stage) = Stage::new().await else { return };
    stage.now(1_000_000);
    stage.put(&[put("a", 900, "x")]).await;
    stage.claim("i.1", 10).await;
    // The server's clock was set back.
    stage.now(2000);
    let glance = stage.glance(&[("default", true)]).await;
    assert_eq!(glance.lanes[0].last_lease, Some(at(1_015_000)));
    assert_eq!(stage.reap().await, NONE);
    assert!(stage.holds().contains(&"leases:default i.1 17000".to_owned()));
    stage.now(17_000);
    assert_eq!(stage.reap().await, Reaped { claims: 1, occurrences: 1, holders: by("i"), ..NONE });
}

#[tokio::test]
async fn a_reap_frees_occurrences_that_are_claimed_without_a_lease() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&(0..1000).map(|n| put(&format!("t{n}"), 900, "x")).collect::<Vec<_>>()).await;
    stage.put(&[put("u1", 900, "x"), put("u2", 900, "x")]).await;
    stage.claim("i.1", 1000).await;
    stage.claim("i.2", 1000).await;
    stage.put_one("u2", 7000, "y").await;
    let _: () = ::redis::cmd("ZREM").arg(stage.key("leases:default")).arg("i.1").query(&mut stage.raw()).unwrap();
    stage.now(16_000);
    // This reap ends the only lease of the lane, so it also returns occurrences that are claimed without a lease.
    assert_eq!(
        stage.reap().await,
        Reaped { claims: 1, occurrences: 2, stranded: 998, more: true, holders: by("i"), ..NONE }
    );
    assert!(!stage.state().iter().any(|line| line.starts_with("claims")), "no claim outlives its lease");
    assert!(stage.settle("i.1", RestOfClaim::Back, vec![]).await.lost);
    assert_eq!(stage.reap().await, Reaped { stranded: 2, ..NONE });
    assert!(stage.state().contains(&"due:default u2 7000".to_owned()));
    assert!(stage.state().iter().filter(|line| line.starts_with("crashes")).all(|line| line.ends_with(" 900:1")));
    assert!(!stage.state().iter().any(|line| line.ends_with(" -900")));
}

#[tokio::test]
async fn a_reap_forgets_an_unserved_lane_once_it_is_empty() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put_in("old", 0, "a", 900, "x")]).await;
    let reap = |served| stage.timeline.reap(stage.shard, &OLD, ReapRequest { served, ..reaping() });
    static OLD: std::sync::LazyLock<Lane> = std::sync::LazyLock::new(|| lane("old"));
    assert!(!stage.glance(&[("old", true)]).await.lanes[0].reap);
    reap(false).await.unwrap();
    let kept = ["due:old a 900", "lanes old", "reap-at:old 16000", "tasks a r1 c1000 old:x"];
    assert_eq!(stage.state(), kept, "not while it holds something");
    stage.cancel("a").await;
    reap(true).await.unwrap();
    assert_eq!(stage.state(), ["lanes old", "reap-at:old 16000"], "nor while it is served");
    reap(false).await.unwrap();
    assert_eq!(stage.state(), Vec::<String>::new());
    // A poll by an instance that has not been notified does not create the lane again.
    assert!(stage.glance(&[("old", false)]).await.known.is_empty());
    assert_eq!(stage.state(), Vec::<String>::new());
}

#[tokio::test]
async fn the_dead_are_dropped_after_their_time_a_hundred_a_call() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&(0..150).map(|n| put(&format!("t{n}"), 900, "x")).collect::<Vec<_>>()).await;
    stage.claim("i.1", 1000).await;
    let verdicts = (0..150).map(|n| settlement(&format!("t{n}"), 900, Verdict::Dead(dead_record("x")))).collect();
    stage.settle("i.1", RestOfClaim::Keep, verdicts).await;
    stage.now(1000 + 3_600_000 - 1);
    assert_eq!(stage.reap().await, NONE);
    stage.clock.advance(Duration::from_millis(1));
    assert_eq!(stage.reap().await, Reaped { dropped: 100, more: true, ..NONE });
    assert_eq!(stage.reap().await, Reaped { dropped: 50, ..NONE });
    assert_eq!(stage.holds(), Vec::<String>::new());
}
