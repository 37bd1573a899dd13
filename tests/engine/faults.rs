//! Failures of the timeline, or of the holder of a claim.

use std::sync::atomic::{AtomicU32, Ordering};

use punctual::engine::EngineConfig;
use punctual::timeline::Verb;
use punctual::timeline::memory::{InjectedFault, OccurrenceMark};
use punctual::timeline::{ClaimRequest, Link, Token};
use punctual_sinks::memory::Answer;

use super::*;
use crate::support::log::Log;

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_missing_is_given_back() {
    let bed = Bed::start();
    let due = bed.put([("x", after(seconds(1)))]).await;
    bed.timeline.fail_next(Verb::Claim, InjectedFault::ReplyLost);
    bed.pass(millis(1500)).await;
    assert!(bed.keys().is_empty());
    bed.pass(seconds(3)).await;
    assert_eq!(bed.keys(), expected(["x"], &due), "well before its lease has ended");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_settle_whose_reply_is_missing_is_repeated_and_changes_nothing() {
    let bed = Bed::start();
    let first = bed.put([("tick", every(seconds(1), 3))]).await[0].as_millis();
    for fault in [InjectedFault::ReplyLost, InjectedFault::CallLost, InjectedFault::Refused("OOM".into())] {
        bed.timeline.fail_next(Verb::Settle, fault);
    }
    bed.pass(seconds(10)).await;
    assert_eq!(bed.keys(), (0..3).map(|n| format!("tick:{}", first + n * 1000)).collect::<Vec<_>>());
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn an_engine_waits_for_a_timeline_that_is_away() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64 * 100))))).await;
    bed.pass(seconds(3)).await;
    bed.timeline.set_link_down("test");
    bed.pass(seconds(20)).await;
    assert!(matches!(bed.engine.as_ref().unwrap().state().link, Link::Down(_)));
    bed.timeline.set_link_up();
    bed.pass(seconds(2)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn occurrences_of_a_dead_instance_are_published_under_their_key_after_lease() {
    let bed = Bed::start();
    let shard = Shard::of(&id("x"), 1);
    bed.timeline.set_link_down("the engine looks away");
    bed.pass(seconds(1)).await;
    bed.timeline.set_link_up();
    let due = bed.put([("x", after(Duration::from_millis(1)))]).await;
    // Another instance was faster and dies while it holds the claim.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let request = ClaimRequest {
        token: Token("dead.1".into()),
        max: 10,
        max_bytes: 1 << 20,
        lease: seconds(5),
        not_after: bed.clock.now().plus(seconds(1)),
        newest_first: false,
        after: None,
    };
    let claimed = shared(&bed).claim(shard, &Lane::default(), request).await.unwrap();
    if claimed.occurrences.is_empty() {
        return assert_eq!(bed.keys(), expected(["x"], &due), "the engine was faster after all");
    }
    bed.pass(seconds(4)).await;
    assert!(bed.keys().is_empty());
    bed.pass(seconds(4)).await;
    assert_eq!(bed.keys(), expected(["x"], &due));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lost_its_lease_writes_nothing_and_drops_its_claim() {
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(millis(500)).await;
    let shard = Shard::of(&id("x"), 1);
    // Like a reap after the lease has expired.
    bed.timeline.edit(shard, |twin| {
        let pairs: Vec<_> =
            twin.due[&Lane::default()].negative().map(|(score, member)| (member.clone(), -score)).collect();
        for (member, score) in pairs {
            twin.due.get_mut(&Lane::default()).unwrap().set(member, score + 100_000);
        }
        twin.claims.clear();
        twin.leases.clear();
    });
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.metrics.lane("default").claims_lost.get(), 1);
    assert_eq!(bed.timeline.twin(shard).tasks.len(), 1, "it waits where the reap put it");
    assert!(bed.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_publish_starts_that_does_not_fit_into_the_lease() {
    let bed = Bed::start();
    let count = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&count);
    bed.sink.answer_by(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        unclear("nack")
    });
    // Each message is retried after its own random pause. With 50 messages, some retries would fall into the second
    // that is checked.
    let ids: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), after(millis(10))))).await;
    bed.pass(millis(100)).await;
    for _ in 0..1000 {
        bed.timeline.fail_next(Verb::Extend, InjectedFault::CallLost);
    }
    // 5 s of lease less 2 s of answer_timeout: from then on nothing is published.
    bed.pass(millis(3500)).await;
    let before = count.load(Ordering::Relaxed);
    bed.pass(seconds(1)).await;
    assert_eq!(count.load(Ordering::Relaxed), before, "the lease has not ended, but an answer might come after it");
}

#[tokio::test(start_paused = true)]
async fn poison_becomes_dead_and_its_neighbours_arrive() {
    let bed = Bed::start();
    let dues =
        bed.put([("poison", after(seconds(1))), ("suspect", after(seconds(1))), ("good", after(seconds(1)))]).await;
    bed.timeline.edit(Shard::of(&id("x"), 1), |twin| {
        for (member, due, count) in [("poison", dues[0], 6), ("suspect", dues[1], 3)] {
            twin.crashes.insert(member.parse().unwrap(), OccurrenceMark::crashed(due, count));
        }
    });
    bed.pass(seconds(5)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(["suspect", "good"], &dues[1..])));
    let dead = bed.dead();
    assert_eq!((dead[0].0.clone(), dead[0].1.as_str()), (expected(["poison"], &dues)[0].clone(), "poison"));
    bed.assert_at_rest();
}

/// Makes a record look like that of a newer version; returns the original.
fn make_unreadable(bed: &Bed, task: &str) -> bytes::Bytes {
    let mut record = bytes::Bytes::new();
    bed.timeline.edit(Shard::of(&id(task), 1), |twin| {
        let held = twin.tasks.get_mut(&task.parse().unwrap()).unwrap();
        record = held.clone();
        let mut newer = held.to_vec();
        newer[0] = 9;
        *held = newer.into();
    });
    record
}

/// The number of unreadable occurrences in the metrics.
fn shown_unreadable(bed: &Bed) -> i64 {
    bed.metrics.lane("default").unreadable.get()
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_record_is_left_out_delays_no_other_and_is_never_dead() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    let dues = bed.put([("new", after(seconds(1))), ("old", after(seconds(1)))]).await;
    make_unreadable(&bed, "new");
    bed.pass(seconds(30)).await;
    assert_eq!(bed.keys(), expected(["old"], &dues[1..]), "its neighbour arrives");
    assert!(bed.claims() <= 3, "it is asked for once, and then left out: {}", bed.claims());
    assert_eq!(shown_unreadable(&bed), 1);
    let later = bed.put([("later", after(millis(10)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), expected(["old", "later"], &[dues[1], later[0]]), "nobody waits for it");
    assert!(bed.dead().is_empty());
    let reported = log.text();
    assert!(reported.contains("cannot read records") && !reported.contains("member"), "no task is named: {reported}");
    // A new put makes it readable.
    let again = bed.put([("new", after(seconds(1)))]).await;
    bed.pass(seconds(15)).await;
    assert_eq!(bed.keys()[2..], expected(["new"], &again));
    assert_eq!(shown_unreadable(&bed), 0);
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn an_instance_claims_unreadable_records_once_after_its_start() {
    let mut bed = Bed::start();
    let ids: Vec<String> = (0..1500).map(|n| format!("t{n}")).collect();
    let mut dues = bed.put([("cancelled", after(seconds(1)))]).await;
    dues.clear();
    for ids in ids.chunks(500) {
        dues.extend(bed.put(ids.iter().map(|id| (id.as_str(), after(seconds(1))))).await);
    }
    let records: Vec<bytes::Bytes> = ids.iter().map(|id| make_unreadable(&bed, id)).collect();
    make_unreadable(&bed, "cancelled");
    bed.pass(seconds(10)).await;
    bed.intake.cancel(&id("cancelled"), seconds(1)).await.unwrap();
    bed.pass(seconds(30)).await;
    assert_eq!((bed.keys().len(), shown_unreadable(&bed)), (0, 1500));
    // Restores the records, as if this were a version that can parse them.
    bed.timeline.edit(Shard::of(&id("any"), 1), |twin| {
        for (id, record) in ids.iter().zip(records) {
            twin.tasks.insert(id.parse().unwrap(), record);
        }
    });
    bed.pass(seconds(30)).await;
    assert_eq!(bed.keys().len(), 0, "asked once, not again");
    assert!(bed.engine.take().unwrap().shutdown(seconds(1)).await);
    (bed.sink, bed.other) = (MemorySink::new(100_000, ANSWER), MemorySink::new(10, ANSWER));
    bed.engine = Some(bed.another(EngineConfig::new("i1")));
    bed.pass(seconds(5)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn shutdown_settles_answered_occurrences_and_returns_the_rest() {
    let mut bed = Bed::start();
    bed.sink.answer_by(|message| if message.task == "slow" { Answer::Hang } else { Answer::Accept });
    bed.put([("slow", after(millis(10))), ("quick", after(millis(10))), ("later", after(seconds(60)))]).await;
    bed.pass(millis(20)).await;
    assert!(bed.engine.take().unwrap().shutdown(seconds(1)).await, "all was settled or given back");
    let twin = bed.timeline.twin(Shard::of(&id("x"), 1));
    assert!(twin.claims.is_empty() && twin.leases.is_empty());
    assert_eq!(twin.tasks.len(), 2, "slow and later wait");
    assert_eq!(twin.crashes.len(), 1, "slow may have been sent");
    // The sinks were closed with the engine; the next one opens its own.
    (bed.sink, bed.other) = (MemorySink::new(10, ANSWER), MemorySink::new(10, ANSWER));
    bed.engine = Some(bed.another(EngineConfig::new("i1")));
    bed.pass(seconds(5)).await;
    assert_eq!(bed.sink.published().iter().map(|message| message.task.as_str()).collect::<Vec<_>>(), ["slow"]);
    bed.assert_at_rest();
}
