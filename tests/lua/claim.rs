//! claim, claim_suspects and extend.

use super::*;

#[tokio::test]
async fn a_claim_takes_no_task_before_it_is_due() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 1001, "x"), put("b", 1002, "x")]).await;
    let before = stage.state();
    let nothing = stage.claim("i.1", 10).await;
    assert_eq!((nothing.occurrences.len(), nothing.head, nothing.now), (0, Some(at(1001)), at(1000)));
    assert_eq!(stage.state(), before, "an empty claim writes nothing");
    stage.now(1001);
    let one = stage.claim("i.2", 10).await;
    assert_eq!((claimed(&one), one.head), (vec![("a".to_owned(), 1001)], Some(at(1002))));
}

#[tokio::test]
async fn a_claim_negates_the_dues_of_its_occurrences_under_one_lease() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("b", 900, "x"), put("a", 900, "x"), put("c", 800, "x"), put("d", 950, "x")]).await;
    let mut wakes = stage.timeline.wakes();
    let claim = stage.claim("i.1", 3).await;
    let expected = [("c".to_owned(), 800), ("a".to_owned(), 900), ("b".to_owned(), 900)];
    assert_eq!(claimed(&claim), expected, "by due, then by id");
    assert_eq!(claim.head, Some(at(950)), "in the past: there is more");
    assert_eq!(
        stage.holds(),
        [
            "claims:default i.1 3 c 800 a 900 b 900",
            "due:default a -900",
            "due:default b -900",
            "due:default c -800",
            "due:default d 950",
            "leases:default i.1 16000",
            "tasks a r1 c1000 default:x",
            "tasks b r1 c1000 default:x",
            "tasks c r1 c1000 default:x",
            "tasks d r1 c1000 default:x",
        ]
    );
    let woken = tokio::time::timeout(Duration::from_secs(10), async {
        // The notification of the put may come first.
        while wakes.recv().await.unwrap() != (Wake { shard: stage.shard, lane: Lane::default(), due: at(950) }) {}
    });
    woken.await.expect("a full batch wakes the others");
}

#[tokio::test]
async fn a_token_is_used_once() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "x"), put("b", 900, "x")]).await;
    stage.claim("i.1", 1).await;
    let before = stage.state();
    let again = stage.timeline.claim(stage.shard, &Lane::default(), claim_of("i.1", 1)).await;
    assert!(matches!(again, Err(TimelineError::Refused(detail)) if detail.starts_with("BADCALL")));
    assert_eq!(stage.state(), before);
}

#[tokio::test]
async fn a_claim_stops_at_its_bytes_but_takes_at_least_one() {
    let Some(stage) = Stage::new().await else { return };
    let large = "x".repeat(1000);
    let ids: Vec<String> = (0..100).map(|n| format!("t{n:03}")).collect();
    stage.put(&ids.iter().map(|id| put(id, 900, &large)).collect::<Vec<_>>()).await;
    let size = record(0, "default", 0, &large).len();
    let bytes = |max_bytes, name: &str| ClaimRequest { max_bytes, ..claim_of(name, 1000) };
    let line = Lane::default();
    let claim = |request| stage.timeline.claim(stage.shard, &line, request);
    assert_eq!(claim(bytes(1, "i.1")).await.unwrap().occurrences.len(), 1);
    // Across several chunks, exact to the byte.
    assert_eq!(claim(bytes(40 * size, "i.2")).await.unwrap().occurrences.len(), 40);
    assert_eq!(claim(bytes(41 * size - 1, "i.3")).await.unwrap().occurrences.len(), 40);
    let last = claim(bytes(41 * size, "i.4")).await.unwrap();
    assert_eq!((last.occurrences.len(), last.head), (19, None));
    assert_eq!(last.occurrences[18].record, record(0, "default", 1000, &large));
    assert!(stage.state().iter().filter(|line| line.starts_with("due:default")).all(|line| line.ends_with(" -900")));
}

#[tokio::test]
async fn counts_come_with_recurring_tasks_and_find_theirs() {
    let Some(stage) = Stage::new().await else { return };
    let puts = ["a", "b", "c", "d"].map(|id| put_in("default", if id < "c" { RECURRING } else { 0 }, id, 900, id));
    stage.put(&puts).await;
    stage.claim("i.1", 10).await;
    stage.settle("i.1", RestOfClaim::Back, vec![settlement("b", 900, next(950, 7))]).await;
    let claim = stage.claim("i.2", 10).await;
    let accepted: Vec<_> = claim.occurrences.iter().map(|one| (one.member.as_str(), one.counts.accepted)).collect();
    assert_eq!(accepted, [("a", 0), ("c", 0), ("d", 0), ("b", 7)]);
    assert!(claim.occurrences.iter().all(|one| one.record.ends_with(one.member.as_str().as_bytes())));
}

#[tokio::test]
async fn a_member_without_a_record_is_removed_and_counted() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "x"), put("b", 900, "x"), put("c", 900, "x")]).await;
    let _: () = ::redis::cmd("HDEL").arg(stage.key("tasks")).arg("a").arg("c").query(&mut stage.raw()).unwrap();
    let claim = stage.claim("i.1", 10).await;
    assert_eq!((claimed(&claim), claim.removed, claim.head), (vec![("b".to_owned(), 900)], 2, None));
    assert_eq!(
        stage.holds(),
        ["claims:default i.1 1 b 900", "due:default b -900", "leases:default i.1 16000", "tasks b r1 c1000 default:x"]
    );
}

#[tokio::test]
async fn suspects_are_left_out_and_claimed_alone() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("bad", 800, "x"), put("worse", 850, "x")]).await;
    stage.crash("i.1").await;
    stage.crash("i.2").await;
    stage.put(&[put("a", 700, "x"), put("z", 900, "x"), put("zz", 99_000, "x")]).await;
    let claim = stage.claim("i.3", 1).await;
    assert_eq!((claimed(&claim), claim.suspects, claim.head), (vec![("a".to_owned(), 700)], 0, Some(at(800))));
    let claim = stage.claim("i.4", 10).await;
    assert_eq!((claimed(&claim), claim.suspects, claim.head), (vec![("z".to_owned(), 900)], 2, Some(at(99_000))));
    let empty = stage.claim("i.5", 10).await;
    assert_eq!((empty.occurrences.len(), empty.suspects, empty.head), (0, 2, Some(at(99_000))));

    let suspects = stage.claim_suspects("i.6").await;
    assert_eq!(
        (claimed(&suspects), suspects.suspects, suspects.head),
        (vec![("bad".to_owned(), 800)], 1, Some(at(99_000)))
    );
    assert_eq!(suspects.occurrences[0].crashes, 2);
    assert!(stage.holds().contains(&"claims:default i.6 1 bad 800".to_owned()));
    assert_eq!(claimed(&stage.claim_suspects("i.7").await), [("worse".to_owned(), 850)]);
    assert_eq!(stage.claim_suspects("i.8").await.occurrences.len(), 0);
}

#[tokio::test]
async fn a_mark_of_another_due_makes_no_suspect() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put_in("default", RECURRING, "a", 800, "x")]).await;
    stage.crash("i.1").await;
    stage.crash("i.2").await;
    assert_eq!(stage.claim_suspects("i.3").await.occurrences[0].crashes, 2);
    stage.settle("i.3", RestOfClaim::Keep, vec![settlement("a", 800, next(900, 1))]).await;
    assert_eq!(stage.holds(), ["counts a 1 0 0 0", "due:default a 900", "tasks a r1 c1000 default:x"]);
    assert_eq!(stage.claim("i.4", 10).await.suspects, 0);
}

#[tokio::test]
async fn a_claim_is_bounded_also_behind_a_wall_of_suspects() {
    let Some(stage) = Stage::new().await else { return };
    let ids: Vec<String> = (0..1000).map(|n| format!("bad{n:04}")).collect();
    stage.put(&ids.iter().map(|id| put(id, 800, "x")).collect::<Vec<_>>()).await;
    stage.put(&(0..50).map(|n| put(&format!("more{n}"), 800, "x")).collect::<Vec<_>>()).await;
    let mut raw = stage.raw();
    for id in ids.iter().map(String::as_str).chain((0..50).map(|n| &*format!("more{n}").leak())) {
        let _: () = ::redis::cmd("HSET").arg(stage.key("crashes")).arg(id).arg("800:2").query(&mut raw).unwrap();
    }
    stage.put(&[put("z1", 900, "x"), put("z2", 900, "x")]).await;
    let claim = stage.claim("i.1", 10).await;
    assert_eq!((claim.occurrences.len(), claim.suspects, claim.head), (0, 1010, Some(at(800))));
    let claim = stage.claim("i.2", 60).await;
    assert_eq!((claim.occurrences.len(), claim.suspects, claim.head), (2, 1050, None));
}

/// Number of HMGET calls by scripts since the last call.
fn reads(stage: &Stage) -> u64 {
    let mut raw = stage.raw();
    let stats: String = ::redis::cmd("INFO").arg("commandstats").query(&mut raw).unwrap();
    let _: () = ::redis::cmd("CONFIG").arg("RESETSTAT").query(&mut raw).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hmget:calls=")).unwrap_or("0,");
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_records_of_suspects_are_not_read() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    stage.put(&["a", "b", "c"].map(|id| put(id, 900, "x"))).await;
    stage.crash("i.1").await;
    stage.crash("i.2").await;
    reads(&stage);
    assert_eq!(stage.claim("i.3", 10).await.suspects, 3);
    assert_eq!(reads(&stage), 1, "their marks alone");
}

#[tokio::test]
async fn extend_reports_the_live_claims_and_restores_no_reaped_claim() {
    let Some(stage) = Stage::new().await else { return };
    stage.put(&[put("a", 900, "x"), put_in("other", 0, "b", 900, "x")]).await;
    stage.claim("i.1", 10).await;
    stage.timeline.claim(stage.shard, &lane("other"), claim_of("i.2", 10)).await.unwrap();
    stage.now(2000);
    let tokens = [("other", "i.2"), ("default", "i.9"), ("default", "i.1"), ("default", "i.2")];
    let tokens = tokens.map(|(name, one)| (lane(name), token(one)));
    assert_eq!(stage.timeline.extend(stage.shard, &tokens, LEASE).await, Ok(vec![true, false, true, false]));
    let leases: Vec<_> = stage.state().into_iter().filter(|line| line.starts_with("leases")).collect();
    assert_eq!(leases, ["leases:default i.1 17000", "leases:other i.2 17000"]);
    stage.now(17_000);
    assert_eq!(
        stage.timeline.extend(stage.shard, &tokens[2..3], LEASE).await,
        Ok(vec![true]),
        "its end has come, yet nobody reaped"
    );
    stage.now(40_000);
    stage.reap().await;
    assert_eq!(stage.timeline.extend(stage.shard, &tokens[2..3], LEASE).await, Ok(vec![false]));
    assert_eq!(stage.timeline.extend(stage.shard, &[], LEASE).await, Ok(vec![]));
    assert!(!stage.state().iter().any(|line| line.starts_with("leases:default")));
}
