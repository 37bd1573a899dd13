//! What happens when something fails: the sink, a destination, the timeline, the holder of a claim.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use punctual::engine::{BreakerState, EngineConfig};
use punctual::timeline::memory::{Fault, Mark, Verb};
use punctual::timeline::{ClaimRequest, Link, Token};
use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault as SinkFault, Trouble};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_retry_keeps_its_key_and_counts_its_attempts() {
    let bed = Bed::start();
    let failures = AtomicU32::new(0);
    bed.sink.answer_by(move |message| match message.task.as_str() {
        "shaky" if failures.fetch_add(1, Ordering::Relaxed) < 2 => unclear("nack"),
        _ => Answer::Accept,
    });
    let due = bed.put([("shaky", after(millis(10)))]).await;
    let others: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    bed.put(others.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64 * 100))))).await;
    bed.pass(seconds(10)).await;
    let published = bed.sink.published();
    let copies: Vec<_> = published.iter().filter(|message| message.task == "shaky").collect();
    assert_eq!(copies.len(), 1);
    assert_eq!((copies[0].key.clone(), copies[0].attempt), (expected(["shaky"], &due)[0].clone(), 3));
    assert!(bed.dead().is_empty());
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn out_of_retries_is_dead_only_where_others_are_accepted() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| if message.task == "bad" { unclear("nack 42") } else { Answer::Accept });
    let due = bed.put([("bad", after(millis(10)))]).await;
    let others: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    bed.put(others.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64 * 100))))).await;
    bed.pass(seconds(12)).await;
    let key = expected(["bad"], &due)[0].clone();
    assert_eq!(bed.dead(), [(key, "retries".to_owned(), "nack 42".to_owned())]);
    assert_eq!(bed.sink.accepted(), 100);

    let alone = Bed::start();
    alone.sink.answer_by(|_| unclear("nack 42"));
    alone.put([("bad", after(millis(10)))]).await;
    alone.pass(seconds(600)).await;
    assert!(alone.dead().is_empty(), "the sink accepts nobody: {:?}", alone.dead());
}

#[tokio::test(start_paused = true)]
async fn what_the_sink_refuses_for_good_is_dead_at_once_with_its_words() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| match message.task.as_str() {
        "big" | "tick" => Answer::Reject("too large: 2 MiB, limit 1 MiB".to_owned()),
        _ => Answer::Accept,
    });
    let due = bed.put([("big", after(millis(10))), ("small", after(millis(10)))]).await;
    let first = bed.put([("tick", every(seconds(1), 3))]).await[0].as_millis();
    bed.pass(millis(500)).await;
    let words = "too large: 2 MiB, limit 1 MiB".to_owned();
    assert_eq!(bed.dead(), [(expected(["big"], &due)[0].clone(), "rejected".to_owned(), words)]);
    assert_eq!(bed.keys(), expected(["small"], &due[1..]));
    bed.pass(seconds(5)).await;
    let ticks: Vec<String> =
        bed.dead().into_iter().map(|(key, ..)| key).filter(|key| key.starts_with("tick")).collect();
    assert_eq!(ticks, (0..3).map(|n| format!("tick:{}", first + n * 1000)).collect::<Vec<_>>(), "it goes on");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn stragglers_do_not_hold_up_the_others() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| if message.task == "slow" { Answer::Hang } else { Answer::Accept });
    let ids: Vec<String> = (0..99).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), after(millis(10)))).chain([("slow", after(millis(10)))])).await;
    bed.pass(millis(400)).await;
    let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
    assert_eq!(twin.tasks.len(), 1, "the others are settled");
    assert_eq!(twin.due[&Lane::default()].negative().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_absent_sink_costs_nothing() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    bed.sink.set_absent(true);
    let ids: Vec<String> = (0..3000).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64))))).await;
    let other_dues = bed.put_into("other", [("o1", after(seconds(5))), ("o2", after(seconds(50)))]).await;
    bed.pass(seconds(2)).await;
    let claims = bed.claims();
    bed.pass(seconds(58)).await;
    assert_eq!(bed.claims(), claims, "no claim while the breaker is open");
    let state = bed.engine.as_ref().unwrap().state();
    let sink = state.sinks.iter().find(|sink| sink.name == "sink").unwrap();
    assert!(matches!(sink.breaker, BreakerState::Open { .. }), "{sink:?}");
    bed.assert_at_rest();
    assert!(bed.dead().is_empty());
    let others: Vec<String> = bed.other.published().into_iter().map(|message| message.key).collect();
    assert_eq!(others, expected(["o1", "o2"], &other_dues));
    bed.sink.set_absent(false);
    bed.pass(seconds(10)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)), "each once: none had been sent before");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_nothing_is_absent_once_a_probe_fails_too() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    let due = bed.put([("x", after(millis(10)))]).await;
    bed.sink.answer_by(|_| Answer::Hang);
    bed.pass(millis(100)).await;
    bed.sink.set_absent(true);
    bed.pass(seconds(10)).await;
    let state = bed.engine.as_ref().unwrap().state();
    assert!(matches!(state.sinks[1].breaker, BreakerState::Open { .. }), "{:?}", state.sinks);
    let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
    assert_eq!(twin.crashes.values().map(|mark| mark.count).collect::<Vec<_>>(), [0], "it may have been sent");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.sink.set_absent(false);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.keys(), expected(["x"], &due));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_probes_but_no_messages_is_told_once_and_back_once_it_is() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Retry(Trouble::definite(SinkFault::Sink, "refused")));
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(seconds(60)).await;
    assert_eq!(log.told(), ["the sink is absent", "the sink answers a probe:"]);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(log.told(), ["the sink is absent", "the sink answers a probe:", "the sink answers again"]);
    bed.assert_at_rest();
}

/// What a test's engine logs from INFO on, while the guard stands.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Log, tracing::subscriber::DefaultGuard) {
        // While there is one subscriber alone, whichever thread passes a place of the log first decides for all whether it is
        // heard: another test's would decide that it is not.
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
        let log = Log::default();
        let told = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || told.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// What was said of a sink, in order.
    fn told(&self) -> Vec<&'static str> {
        let log = self.text();
        let known = ["the sink is absent", "the sink answers a probe:", "the sink answers again"];
        log.lines().filter_map(|line| known.into_iter().find(|words| line.contains(words))).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_at_fault_is_given_up_after_patience_while_others_go_on() {
    let bed = Bed::start();
    let fault = |words: &str| Trouble { fault: SinkFault::Destination, definite: true, words: words.to_owned() };
    bed.sink.answer_by(move |message| match message.destination.as_str() {
        "gone" => Answer::Retry(fault("unknown topic `gone`")),
        _ => Answer::Accept,
    });
    let dues = bed.put([("a", to("gone", millis(10))), ("b", to("gone", millis(10))), ("c", after(millis(10)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), expected(["c"], &dues[2..]), "not held up");
    bed.pass(seconds(25)).await;
    assert!(bed.dead().is_empty(), "within patience nobody is dead");
    bed.pass(seconds(10)).await;
    let reason = || ("destination".to_owned(), "unknown topic `gone`".to_owned());
    let keys = expected(["a", "b"], &dues);
    let dead: Vec<_> = keys.into_iter().map(|key| (key, reason().0, reason().1)).collect();
    assert_eq!(bed.dead(), dead);
    // What is claimed from now on is dead at once, but for the one that is tried every five seconds.
    bed.put([("d", to("gone", millis(1))), ("e", to("gone", millis(1)))]).await;
    bed.pass(seconds(4)).await;
    assert!(bed.dead().len() >= 3, "{:?}", bed.dead());
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    let f = bed.put([("f", to("gone", millis(1))), ("g", to("gone", millis(1)))]).await;
    bed.pass(seconds(5)).await;
    let keys: HashSet<String> = bed.keys().into_iter().collect();
    assert!(expected(["f", "g"], &f).iter().any(|key| keys.contains(key)), "tried again, and accepted");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_sink_no_destination_is_blamed() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put([("a", to("a", millis(1))), ("b", to("b", millis(1)))]).await;
    bed.pass(seconds(3)).await;
    bed.sink.set_absent(true);
    bed.pass(seconds(60)).await;
    bed.intake.cancel(&id("b"), seconds(1)).await.unwrap();
    bed.sink.set_absent(false);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.sink.accepted(), 1, "a: the sink accepts elsewhere than b");
    let ids: Vec<String> = (0..500).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().map(|id| (id.as_str(), to("b", millis(1))))).await;
    bed.pass(seconds(30)).await;
    assert!(bed.dead().is_empty(), "{} dead", bed.dead().len());
    assert_eq!(sorted(bed.keys().split_off(1)), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_never_answers_stops_nobody_else() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| if message.destination == "silent" { Answer::Hang } else { Answer::Accept });
    // The first that is tried once the sink is back, and more than its lane has room for.
    bed.pass(millis(100)).await;
    bed.sink.set_absent(true);
    let silent: Vec<String> = (0..12_000).map(|n| format!("s{n}")).collect();
    bed.put(silent.iter().map(|id| (id.as_str(), to("silent", millis(1))))).await;
    bed.pass(seconds(10)).await;
    bed.sink.set_absent(false);
    bed.pass(seconds(10)).await;
    let first = bed.put_into("side", [("good", after(millis(1)))]).await;
    bed.pass(seconds(10)).await;
    assert_eq!(bed.keys(), expected(["good"], &first), "another lane of the same sink");
    for n in 0..12 {
        bed.put_into("side", [(format!("good{n}").as_str(), after(millis(1)))]).await;
        bed.pass(seconds(10)).await;
    }
    assert_eq!(bed.sink.accepted(), 13);
    let dead = bed.dead();
    assert!(dead.iter().all(|(_, reason, _)| reason == "destination"), "{:?}", dead.first());
    assert_eq!(dead.len(), 12_000, "the sink accepts elsewhere: it is the destination's fault");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_missing_is_given_back() {
    let bed = Bed::start();
    let due = bed.put([("x", after(seconds(1)))]).await;
    bed.timeline.fail_next(Verb::Claim, Fault::ReplyLost);
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
    for fault in [Fault::ReplyLost, Fault::CallLost, Fault::Refused("OOM".into())] {
        bed.timeline.fail_next(Verb::Settle, fault);
    }
    bed.pass(seconds(10)).await;
    assert_eq!(bed.keys(), (0..3).map(|n| format!("tick:{}", first + n * 1000)).collect::<Vec<_>>());
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_timeline_that_is_away_is_waited_for() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64 * 100))))).await;
    bed.pass(seconds(3)).await;
    bed.timeline.set_link_down("test");
    bed.pass(seconds(20)).await;
    assert!(matches!(bed.engine.as_ref().unwrap().state().link, Link::Down(_)));
    bed.timeline.set_up();
    bed.pass(seconds(2)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_holder_held_is_published_under_the_same_key_within_lease_and_a_second() {
    let bed = Bed::start();
    let shard = Shard::of(&id("x"), 1);
    bed.engine.as_ref().unwrap();
    bed.timeline.set_link_down("the engine looks away");
    bed.pass(seconds(1)).await;
    bed.timeline.set_up();
    let due = bed.put([("x", after(Duration::from_millis(1)))]).await;
    // Another instance was faster and dies with the claim in its hands.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let request = ClaimRequest {
        token: Token("dead.1".into()),
        max: 10,
        max_bytes: 1 << 20,
        lease: seconds(5),
        not_after: bed.clock.now().plus(seconds(1)),
        suspects_only: false,
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
async fn a_holder_whose_lease_was_lost_writes_nothing_and_lets_go() {
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(millis(500)).await;
    let shard = Shard::of(&id("x"), 1);
    // As reap does it, when the holder was silent for too long.
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
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(millis(100)).await;
    for _ in 0..1000 {
        bed.timeline.fail_next(Verb::Extend, Fault::CallLost);
    }
    // 5 s of lease less 2 s of answer_timeout: from then on nothing is published.
    bed.pass(millis(3500)).await;
    let before = count.load(Ordering::Relaxed);
    bed.pass(seconds(1)).await;
    assert_eq!(count.load(Ordering::Relaxed), before, "the lease has not ended, but an answer might come after it");
}

#[tokio::test(start_paused = true)]
async fn poison_is_buried_and_its_neighbours_arrive() {
    let bed = Bed::start();
    let dues =
        bed.put([("poison", after(seconds(1))), ("suspect", after(seconds(1))), ("good", after(seconds(1)))]).await;
    bed.timeline.edit(Shard::of(&id("x"), 1), |twin| {
        for (member, due, count) in [("poison", dues[0], 6), ("suspect", dues[1], 3)] {
            twin.crashes.insert(member.parse().unwrap(), Mark { due, count });
        }
    });
    bed.pass(seconds(5)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(["suspect", "good"], &dues[1..])));
    let dead = bed.dead();
    assert_eq!((dead[0].0.clone(), dead[0].1.as_str()), (expected(["poison"], &dues)[0].clone(), "poison"));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_rests_its_lane_and_is_never_dead() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    let dues = bed.put([("new", after(seconds(1))), ("old", after(seconds(1)))]).await;
    let shard = Shard::of(&id("new"), 1);
    let mut record = Vec::new();
    bed.timeline.edit(shard, |twin| {
        let held = twin.tasks.get_mut(&"new".parse().unwrap()).unwrap();
        record = held.to_vec();
        let mut newer = held.to_vec();
        newer[0] = 9;
        *held = newer.into();
    });
    bed.pass(seconds(30)).await;
    assert_eq!(bed.keys(), expected(["old"], &dues[1..]), "its neighbour arrives");
    assert!(bed.claims() <= 2, "the lane rests");
    assert!(bed.dead().is_empty());
    let log = log.text();
    assert!(log.contains("records cannot be read") && !log.contains("member"), "no task is named: {log}");
    bed.timeline.edit(shard, |twin| {
        twin.tasks.insert("new".parse().unwrap(), record.into());
    });
    bed.pass(seconds(90)).await;
    assert!(bed.keys().contains(&expected(["new"], &dues)[0]));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn shutdown_settles_what_is_answered_and_gives_back_the_rest() {
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
