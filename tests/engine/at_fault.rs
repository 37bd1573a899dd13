//! A bad destination does not block others: its messages return to the lane, and good ones pass them, in the same lane
//! too.

use punctual::clock::Timestamp;
use punctual::engine::EngineConfig;
use punctual::task::{Message, Payload, Task, When};
use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault, Trouble};

use super::{Bed, after, millis, seconds, task, to};

/// More than a lane of an instance has room for.
const BAD: usize = 12_000;

/// Good tasks that become due while the bad ones wait: 50 a second, from the first second on.
const GOOD: usize = 500;

/// A sink that refuses everything for `bad`, like an unknown destination.
fn refuse_bad(bed: &Bed) {
    bed.sink.answer_by(|message| match message.destination.as_str() {
        "bad" => Answer::Retry(Trouble::definite(Fault::Destination, "no such stream")),
        _ => Answer::Accept,
    });
}

/// A task for `bad` with this due.
fn bad_at(due: Timestamp) -> Task {
    let message = Message { destination: Some("bad".to_owned()), ..task(When::At(due)).message };
    Task { message, ..task(When::At(due)) }
}

/// How many accepted messages were at most this many seconds late according to the metrics, and how many there are.
fn accepted_within(bed: &Bed, bound: &str) -> (u64, u64) {
    let text = bed.metrics.text();
    let value = |name: String| {
        let line = text.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let within = value(format!("punctual_lateness_seconds_bucket{{le=\"{bound}\",lane=\"default\"}}"));
    (within, value("punctual_lateness_seconds_count{lane=\"default\"}".to_owned()))
}

/// Puts the bad tasks and then a good one every 20 ms. All good ones are published in time while the bad ones wait.
async fn good_ones_pass(bed: &Bed, bad: impl Fn(Timestamp, usize) -> Timestamp) {
    refuse_bad(bed);
    bed.pass(millis(100)).await;
    let now = bed.clock.now();
    let ids: Vec<String> = (0..BAD).map(|n| format!("bad{n}")).collect();
    for (chunk, ids) in ids.chunks(1000).enumerate() {
        bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), bad_at(bad(now, 1000 * chunk + n))))).await;
    }
    for n in 0..GOOD {
        bed.put([(format!("good{n}").as_str(), after(millis(20)))]).await;
        bed.pass(millis(20)).await;
    }
    bed.pass(seconds(1)).await;
    let ((soon, all), (within, _)) = (accepted_within(bed, "0.05"), accepted_within(bed, "0.25"));
    assert_eq!(all, GOOD as u64, "every good one was published within a second: nobody waits for the bad ones");
    assert!(soon * 100 >= all * 99, "{soon} of {all} within 50 ms");
    assert_eq!(within, all, "also in the first second, when it is not known yet that the destination is at fault");
    assert!(bed.dead().is_empty(), "within `patience` no message is dead");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.sink.accepted(), (BAD + GOOD) as u64, "nothing is lost, and none is dead once it is mended");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_due_in_one_millisecond() {
    good_ones_pass(&Bed::start(), |now, _| now.plus(millis(500))).await;
}

#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_that_have_been_due_for_long() {
    good_ones_pass(&Bed::start(), |now, n| now.minus(millis(60_000)).plus(millis(n as u64 / 7))).await;
}

#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_that_keep_coming() {
    good_ones_pass(&Bed::start(), |now, n| now.plus(millis(n as u64))).await;
}

#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_on_four_shards() {
    good_ones_pass(&Bed::start_on(4), |now, n| now.plus(millis(n as u64 / 4))).await;
}

#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_with_two_instances() {
    let bed = Bed::start();
    let mut config = EngineConfig::new("i1");
    config.lease = seconds(5);
    let _other = bed.another(config);
    good_ones_pass(&bed, |now, n| now.plus(millis(n as u64 / 4))).await;
}

/// Bad tasks that fit into the room of the lane by number, and exceed it three times by bytes.
#[tokio::test(start_paused = true)]
async fn good_messages_pass_bad_messages_that_are_large() {
    let bed = Bed::start();
    refuse_bad(&bed);
    let large = Payload::Json(format!("\"{}\"", "x".repeat(128 << 10)).into_bytes().into());
    let ids: Vec<String> = (0..300).map(|n| format!("bad{n}")).collect();
    for ids in ids.chunks(50) {
        let tasks = ids.iter().map(|id| {
            let task = to("bad", millis(500));
            let message = Message { payload: large.clone(), ..task.message };
            (id.as_str(), Task { message, ..task })
        });
        bed.put(tasks).await;
    }
    for n in 0..GOOD {
        bed.put([(format!("good{n}").as_str(), after(millis(20)))]).await;
        bed.pass(millis(20)).await;
    }
    bed.pass(seconds(1)).await;
    let (within, all) = accepted_within(&bed, "0.25");
    assert_eq!((within, all), (GOOD as u64, GOOD as u64), "every good one was published in time");
    assert!(bed.dead().is_empty(), "within `patience` no message is dead");
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(bed.sink.accepted(), (300 + GOOD) as u64, "nothing is lost");
    bed.assert_at_rest();
}

/// Returned occurrences are claimed in vain at most every two seconds, and a few times during the first pass.
#[tokio::test(start_paused = true)]
async fn returned_occurrences_are_not_claimed_again_at_once() {
    let bed = Bed::start();
    refuse_bad(&bed);
    let ids: Vec<String> = (0..BAD).map(|n| format!("bad{n}")).collect();
    for ids in ids.chunks(1000) {
        bed.put(ids.iter().map(|id| (id.as_str(), to("bad", millis(100))))).await;
    }
    bed.pass(seconds(3)).await;
    let before = bed.claims();
    bed.pass(seconds(20)).await;
    let claims = bed.claims() - before;
    assert!((9..=12).contains(&claims), "{claims} claims in 20 s");
}
