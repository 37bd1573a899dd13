//! A sink, or one of its destinations, fails.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use punctual::engine::BreakerState;
use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault, Trouble};
use tokio::time::Instant;

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
    assert!(alone.dead().is_empty(), "the sink accepts no message: {:?}", alone.dead());
}

/// A partition without a leader, a quota, a missing right: whatever its `retry` says, a message waits while the
/// destination accepts others.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_not_about_the_message_does_not_count_as_a_retry() {
    for fault in [Fault::Unavailable, Fault::Destination] {
        let bed = Bed::start();
        let opens = Instant::now() + seconds(100);
        bed.sink.answer_by(move |message| match message.task.starts_with("waits") && Instant::now() < opens {
            true => Answer::Retry(Trouble::definite(fault, "not now")),
            false => Answer::Accept,
        });
        let due = bed.put([("waits", after(millis(10)))]).await;
        let others: Vec<String> = (0..600).map(|n| format!("t{n}")).collect();
        bed.put(others.iter().enumerate().map(|(n, id)| (id.as_str(), after(millis(n as u64 * 200))))).await;
        bed.pass(seconds(90)).await;
        assert!(bed.dead().is_empty(), "{fault:?}: {:?}", bed.dead());
        bed.pass(seconds(40)).await;
        assert!(bed.dead().is_empty() && bed.keys().contains(&expected(["waits"], &due)[0]), "{fault:?}");
        assert_eq!(bed.sink.accepted(), 601);
        bed.assert_at_rest();
    }
}

/// An overloaded broker answers the first messages in time and the others too late. A missing answer counts against its
/// message only if the broker has answered a message that was sent later.
#[tokio::test(start_paused = true)]
async fn a_missing_answer_is_a_retry_only_if_a_later_message_was_answered() {
    for (others, reason) in [(vec![2050, 2100], None), ((0..150).map(|n| n * 200).collect(), Some("retries"))] {
        let bed = Bed::start();
        bed.sink.answer_by(|message| if message.task == "slow" { Answer::Hang } else { Answer::Accept });
        bed.put([("slow", after(millis(10)))]).await;
        let ids: Vec<String> = (0..others.len()).map(|n| format!("t{n}")).collect();
        bed.put(ids.iter().zip(others).map(|(id, at)| (id.as_str(), after(millis(at))))).await;
        bed.pass(seconds(29)).await;
        let reasons: Vec<String> = bed.dead().into_iter().map(|(_, reason, _)| reason).collect();
        assert_eq!(reasons, reason.into_iter().collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_message_is_dead_at_once_with_the_detail_of_the_sink() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| match message.task.as_str() {
        "big" | "tick" => Answer::Reject("too large: 2 MiB, limit 1 MiB".to_owned()),
        _ => Answer::Accept,
    });
    let due = bed.put([("big", after(millis(10))), ("small", after(millis(10)))]).await;
    let first = bed.put([("tick", every(seconds(1), 3))]).await[0].as_millis();
    bed.pass(millis(500)).await;
    let detail = "too large: 2 MiB, limit 1 MiB".to_owned();
    assert_eq!(bed.dead(), [(expected(["big"], &due)[0].clone(), "rejected".to_owned(), detail)]);
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
async fn an_unavailable_sink_causes_no_claim_no_loss_and_no_repeat() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    bed.sink.set_unavailable(true);
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
    bed.sink.set_unavailable(false);
    bed.pass(seconds(10)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)), "each once: none had been sent before");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_nothing_is_unavailable_once_a_probe_fails_too() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    let due = bed.put([("x", after(millis(10)))]).await;
    bed.sink.answer_by(|_| Answer::Hang);
    bed.pass(millis(100)).await;
    bed.sink.set_unavailable(true);
    bed.pass(seconds(10)).await;
    let state = bed.engine.as_ref().unwrap().state();
    assert!(matches!(state.sinks[1].breaker, BreakerState::Open { .. }), "{:?}", state.sinks);
    let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
    assert_eq!(twin.crashes.values().map(|mark| mark.count).collect::<Vec<_>>(), [Some(0)], "it may have been sent");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.sink.set_unavailable(false);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.keys(), expected(["x"], &due));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_destination_at_fault_is_given_up_after_patience_while_others_go_on() {
    let bed = Bed::start();
    let fault = |detail: &str| Trouble { fault: Fault::Destination, definite: true, detail: detail.to_owned() };
    bed.sink.answer_by(move |message| match message.destination.as_str() {
        "gone" => Answer::Retry(fault("unknown topic `gone`")),
        _ => Answer::Accept,
    });
    let dues = bed.put([("a", to("gone", millis(10))), ("b", to("gone", millis(10))), ("c", after(millis(10)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), expected(["c"], &dues[2..]), "not held up");
    bed.pass(seconds(25)).await;
    assert!(bed.dead().is_empty(), "within `patience` no message is dead");
    bed.pass(seconds(10)).await;
    let reason = || ("destination".to_owned(), "unknown topic `gone`".to_owned());
    let keys = expected(["a", "b"], &dues);
    let dead: Vec<_> = keys.into_iter().map(|key| (key, reason().0, reason().1)).collect();
    assert_eq!(bed.dead(), dead);
    // Occurrences that are claimed later are dead at once. Every five seconds one is published as a trial.
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

/// A full queue or stream, a quota, a partition without a leader: however long it lasts, no message is dead.
#[tokio::test(start_paused = true)]
async fn messages_for_an_overloaded_destination_wait_without_end_beside_others() {
    for fault in [Fault::Refusing, Fault::Unavailable] {
        let bed = Bed::start();
        let opens = Instant::now() + seconds(7200);
        bed.sink.answer_by(move |message| match message.destination.as_str() {
            "full" if Instant::now() < opens => {
                Answer::Retry(Trouble { fault, definite: true, detail: "the queue is full".to_owned() })
            }
            _ => Answer::Accept,
        });
        let waiting: Vec<String> = (0..50).map(|n| format!("waits{n}")).collect();
        let dues = bed.put(waiting.iter().map(|id| (id.as_str(), to("full", millis(10))))).await;
        let others: Vec<String> = (0..720).map(|n| format!("t{n}")).collect();
        bed.put(others.iter().enumerate().map(|(n, id)| (id.as_str(), after(seconds(n as u64 * 10))))).await;
        bed.pass(seconds(7100)).await;
        assert!(bed.dead().is_empty(), "{fault:?}: {:?}", bed.dead());
        let sink = bed.engine().state().sinks.into_iter().find(|sink| sink.name == "sink").expect("the sink");
        let shown = sink.failing.first().map(|(shown, _)| (shown.destination.as_str(), shown.status));
        assert_eq!(shown, Some(("full", "refusing")), "{fault:?}");
        assert_eq!(sink.breaker, BreakerState::Closed);
        bed.pass(seconds(200)).await;
        let keys: HashSet<String> = bed.keys().into_iter().collect();
        assert!(expected(&waiting, &dues).iter().all(|key| keys.contains(key)), "{fault:?}: all arrive");
        assert_eq!(bed.sink.accepted(), 770);
        bed.assert_at_rest();
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_lane_with_patience_forever_messages_wait_for_a_missing_destination() {
    let bed = Bed::start_with_a_forever_lane();
    let opens = Instant::now() + seconds(7200);
    bed.sink.answer_by(move |message| match message.destination.as_str() {
        "gone" if Instant::now() < opens => {
            Answer::Retry(Trouble::definite(Fault::Destination, "unknown topic `gone`"))
        }
        _ => Answer::Accept,
    });
    bed.put_into("side", [("waits", to("gone", millis(10)))]).await;
    bed.put([("dies", to("gone", millis(10))), ("other", after(millis(10)))]).await;
    bed.pass(seconds(3600)).await;
    let late = bed.put_into("side", [("late", to("gone", millis(10)))]).await;
    bed.pass(seconds(3500)).await;
    let dead: Vec<String> = bed.dead().into_iter().map(|(key, ..)| key).collect();
    assert!(matches!(&dead[..], [key] if key.starts_with("dies:")), "{dead:?}");
    bed.pass(seconds(200)).await;
    assert_eq!(bed.sink.accepted(), 3);
    assert!(bed.keys().contains(&expected(["late"], &late)[0]));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_failing_destination_and_its_occurrences_are_shown_until_one_is_accepted() {
    let bed = Bed::start();
    let fault = Trouble { fault: Fault::Destination, definite: true, detail: "unknown topic `gone`".to_owned() };
    bed.sink.answer_by(move |message| match message.destination.as_str() {
        "gone" => Answer::Retry(fault.clone()),
        _ => Answer::Accept,
    });
    bed.put([("a", to("gone", millis(10))), ("b", to("gone", millis(10))), ("c", after(millis(10)))]).await;
    bed.pass(seconds(20)).await;
    let sink = &bed.engine().state().sinks.into_iter().find(|sink| sink.name == "sink").expect("the sink");
    let [(shown, waiting)] = &sink.failing[..] else { panic!("{:?}", sink.failing) };
    assert_eq!((sink.failing_count, *waiting, shown.destination.as_str(), shown.status), (1, 2, "gone", "at_fault"));
    assert_eq!(shown.detail, "unknown topic `gone`");
    assert!((seconds(18)..seconds(21)).contains(&shown.failing_for), "{shown:?}");
    let failed = bed.engine().failed_attempt(&id("a")).expect("it is published again");
    assert!(failed.attempts >= 5 && failed.detail == "unknown topic `gone`", "{failed:?}");
    assert_eq!(bed.engine().failed_attempt(&id("c")), None);
    assert!((bed.shows("punctual_failing_destinations{sink=\"sink\"}") - 1.0).abs() < f64::EPSILON);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    let sink = &bed.engine().state().sinks.into_iter().find(|sink| sink.name == "sink").expect("the sink");
    assert_eq!((sink.failing_count, bed.engine().failed_attempt(&id("a"))), (0, None));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_sink_no_destination_is_blamed() {
    let bed = Bed::start();
    bed.pass(millis(100)).await;
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put([("a", to("a", millis(1))), ("b", to("b", millis(1)))]).await;
    bed.pass(seconds(3)).await;
    bed.sink.set_unavailable(true);
    bed.pass(seconds(60)).await;
    bed.intake.cancel(&id("b"), seconds(1)).await.unwrap();
    bed.sink.set_unavailable(false);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.sink.accepted(), 1, "the sink accepted the message for destination `a`");
    let ids: Vec<String> = (0..500).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().map(|id| (id.as_str(), to("b", millis(1))))).await;
    bed.pass(seconds(30)).await;
    assert!(bed.dead().is_empty(), "{} dead", bed.dead().len());
    assert_eq!(sorted(bed.keys().split_off(1)), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_never_answers_blocks_no_other_destination() {
    let bed = Bed::start();
    bed.sink.answer_by(|message| if message.destination == "silent" { Answer::Hang } else { Answer::Accept });
    // The first message is the trial after the sink is available again. The other 11 999 exceed the lane's capacity.
    bed.pass(millis(100)).await;
    bed.sink.set_unavailable(true);
    let silent: Vec<String> = (0..12_000).map(|n| format!("s{n}")).collect();
    bed.put(silent.iter().map(|id| (id.as_str(), to("silent", millis(1))))).await;
    bed.pass(seconds(10)).await;
    bed.sink.set_unavailable(false);
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

/// A sink that answers that the destination `gone` does not exist.
fn without_gone(message: &punctual_sinks::Message) -> Answer {
    match message.destination.as_str() {
        "gone" => Answer::Retry(Trouble::definite(Fault::Destination, "no such topic")),
        _ => Answer::Accept,
    }
}

/// Number of claimed occurrences of the default lane.
fn held(bed: &Bed) -> usize {
    bed.timeline.twin(Shard::of(&id("any"), 1)).due[&Lane::default()].negative().count()
}

#[tokio::test(start_paused = true)]
async fn a_destination_at_fault_holds_a_quarter_of_its_lane_and_leaves_no_marks() {
    let bed = Bed::start_with(|config| config.in_flight = 400);
    bed.sink.answer_by(without_gone);
    let ids: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().map(|id| (id.as_str(), to("gone", millis(10))))).await;
    // The first 100 fail before the engine knows that the destination is at fault.
    bed.pass(seconds(3)).await;
    for _ in 0..5000 {
        bed.pass(millis(1)).await;
        assert_eq!(held(&bed), 100, "further occurrences return to the lane at once");
    }
    let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
    assert!(twin.crashes.is_empty(), "each publish was answered definitely: {:?}", twin.crashes);
    assert!(bed.dead().is_empty(), "within `patience` no message is dead");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn messages_for_a_destination_at_fault_are_dead_after_patience() {
    let bed = Bed::start_with(|config| config.in_flight = 400);
    bed.sink.answer_by(without_gone);
    let ids: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), to("gone", millis(10))))).await;
    bed.pass(PATIENCE - seconds(1)).await;
    assert!(bed.dead().is_empty());
    bed.pass(seconds(10)).await;
    assert_eq!(bed.dead().len(), 1000);
    bed.assert_at_rest();
}

/// Makes the engine give up the destination `gone`.
async fn give_up_gone(bed: &Bed) {
    bed.sink.answer_by(without_gone);
    bed.put([("first", to("gone", millis(1)))]).await;
    bed.pass(PATIENCE + seconds(3)).await;
    assert_eq!(bed.dead().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn other_messages_of_a_claim_wait_for_the_trial_of_their_destination() {
    let bed = Bed::start();
    give_up_gone(&bed).await;
    let ids: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let put = || bed.put(ids.iter().map(|id| (id.as_str(), to("gone", millis(10)))));
    put().await;
    bed.pass(seconds(4)).await;
    let dead = bed.dead();
    assert_eq!(dead.len(), 101);
    assert!(
        dead.iter().all(|(_, reason, detail)| (reason.as_str(), detail.as_str()) == ("destination", "no such topic"))
    );
    bed.pass(seconds(2)).await;
    bed.sink.answer_by(|_| Answer::Accept);
    let dues = put().await;
    bed.pass(seconds(4)).await;
    assert_eq!(bed.dead().len(), 101, "the trial was accepted, and no message of its claim is dead");
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_rejected_trial_message_decides_nothing_about_its_destination() {
    let bed = Bed::start();
    give_up_gone(&bed).await;
    bed.sink.answer_by(|message| match message.task.as_str() {
        "t0" | "t1" => Answer::Reject("too large".to_owned()),
        _ => Answer::Accept,
    });
    let ids: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), to("gone", millis(10))))).await;
    bed.pass(seconds(4)).await;
    let rejected = bed.dead().into_iter().filter(|(_, reason, _)| reason == "rejected").count();
    assert_eq!((bed.dead().len(), rejected, bed.sink.accepted()), (3, 2, 48));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_requeued_message_is_not_dead_again_until_patience_has_passed() {
    let bed = Bed::start();
    give_up_gone(&bed).await;
    let key = || bed.dead()[0].0.parse().unwrap();
    // The repaired destination still refuses one trial, because the trial came too early or the client's metadata was
    // stale.
    bed.put([("trial", to("gone", millis(1)))]).await;
    bed.pass(millis(500)).await;
    assert_eq!(bed.dead().len(), 2);
    bed.intake.requeue(&key(), seconds(1)).await.unwrap();
    bed.pass(PATIENCE - seconds(3)).await;
    assert_eq!(bed.dead().len(), 1, "it is alive");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(4)).await;
    assert_eq!((bed.sink.accepted(), bed.dead().len()), (1, 1));

    bed.sink.answer_by(without_gone);
    bed.intake.requeue(&key(), seconds(1)).await.unwrap();
    bed.pass(PATIENCE - seconds(1)).await;
    assert!(bed.dead().is_empty());
    bed.pass(seconds(5)).await;
    assert_eq!(bed.dead().len(), 1, "not for ever");
    bed.assert_at_rest();
}
