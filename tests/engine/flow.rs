//! Normal operation: every occurrence is published on time, once, and in step with its schedule.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use punctual::engine::EngineConfig;
use punctual::task::{CatchUp, Record};
use punctual_sinks::memory::Answer;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_message_is_published_at_once_when_due_and_never_before() {
    let bed = Bed::start();
    let (clock, times) = (Arc::clone(&bed.clock), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&times);
    bed.sink.answer_by(move |message| {
        seen.lock().unwrap().push(clock.now().as_millis() - message.due_ms);
        Answer::Accept
    });
    let ids: Vec<String> = (0..500).map(|n| format!("t{n}")).collect();
    let spans = (0..500).map(|n| after(millis(10 + n * 7)));
    let dues = bed.put(ids.iter().map(String::as_str).zip(spans)).await;
    bed.pass(seconds(5)).await;
    assert_eq!(sorted(bed.keys()), sorted(expected(&ids, &dues)));
    let times = times.lock().unwrap();
    assert!(times.iter().all(|late| (0..=5).contains(late)), "lateness in ms: {times:?}");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_recurring_task_is_published_at_each_of_its_times_and_ends_with_its_limit() {
    let bed = Bed::start();
    let first = bed.put([("tick", every(seconds(1), 20))]).await[0].as_millis();
    bed.pass(seconds(30)).await;
    let expected: Vec<String> = (0..20).map(|n| format!("tick:{}", first + n * 1000)).collect();
    assert_eq!(bed.keys(), expected);
    assert!(bed.intake.get(&id("tick")).await.unwrap().is_none(), "it has ended");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn several_engines_publish_each_occurrence_once() {
    let bed = Bed::start();
    let others: Vec<_> = (1..5).map(|n| bed.another(EngineConfig::new(format!("i{n}")))).collect();
    let ids: Vec<String> = (0..4000).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().map(|id| (id.as_str(), after(seconds(1))))).await;
    bed.put([("tick", every(millis(100), 50))]).await;
    bed.pass(seconds(10)).await;
    let mut keys = bed.keys();
    keys.retain(|key| !key.starts_with("tick"));
    assert_eq!(sorted(keys), sorted(expected(&ids, &dues)));
    assert_eq!(bed.sink.accepted(), 4050);
    bed.assert_at_rest();
    drop(others);
}

#[tokio::test(start_paused = true)]
async fn a_message_carries_the_key_headers_and_payload_of_its_task() {
    let bed = Bed::start();
    let mut task = to("orders.timeout", millis(5));
    task.message.key = Some("order-1".to_owned());
    task.message.headers.insert("tenant".to_owned(), "acme".to_owned());
    let due = bed.put([("order-1", task)]).await[0];
    bed.put([("plain", after(millis(5)))]).await;
    bed.pass(seconds(1)).await;
    let published = bed.sink.published();
    let message = published.iter().find(|message| message.task == "order-1").unwrap();
    assert_eq!(message.key, format!("order-1:{}", due.as_millis()));
    assert_eq!((message.destination.as_str(), message.attempt), ("orders.timeout", 1));
    assert_eq!(message.record_key.as_deref(), Some("order-1"));
    assert_eq!(message.headers, [("tenant".to_owned(), "acme".to_owned())]);
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
    assert_eq!(&message.payload[..], b"{\"order\":1}");
    let plain = published.iter().find(|message| message.task == "plain").unwrap();
    assert_eq!(plain.destination, "news", "the lane's");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_or_replaced_task_is_not_published_at_its_former_due() {
    let bed = Bed::start();
    bed.put([("gone", after(seconds(1))), ("moved", after(seconds(1)))]).await;
    bed.intake.cancel(&id("gone"), seconds(1)).await.unwrap();
    let due = bed.put([("moved", after(seconds(3)))]).await;
    bed.pass(seconds(5)).await;
    assert_eq!(bed.keys(), expected(["moved"], &due));
}

#[tokio::test(start_paused = true)]
async fn a_task_replaced_in_flight_goes_on_as_asked_once_its_claim_has_ended() {
    let bed = Bed::start();
    let messages_seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&messages_seen);
    bed.sink.answer_by(move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count == 1 { Answer::Hang } else { Answer::Accept }
    });
    let first = bed.put([("x", after(millis(10)))]).await[0];
    bed.pass(millis(100)).await;
    let due = bed.put([("x", after(seconds(10)))]).await[0];
    bed.pass(seconds(20)).await;
    let allowed = [first, due].map(|due| format!("x:{}", due.as_millis()));
    let keys = bed.keys();
    assert_eq!(keys.last(), Some(&allowed[1]));
    assert!(keys.iter().all(|key| allowed.contains(key)), "{keys:?}");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn occurrences_missed_in_a_long_absence_follow_the_catch_up_of_each_task() {
    let bed = Bed::start();
    bed.timeline.set_link_down("test");
    bed.pass(seconds(1)).await;
    bed.timeline.set_link_up();
    let with = |catch_up| {
        let mut task = every(seconds(10), 1000);
        task.catch_up = Some(catch_up);
        task
    };
    let tasks = [("once", with(CatchUp::Once)), ("all", with(CatchUp::All)), ("none", with(CatchUp::None))];
    let first = bed.put(tasks).await[0].as_millis();
    bed.timeline.set_link_down("test");
    bed.pass(seconds(305)).await;
    bed.timeline.set_link_up();
    bed.pass(seconds(10)).await;
    let mut by_task: HashMap<String, Vec<i64>> = HashMap::new();
    for message in bed.sink.published() {
        by_task.entry(message.task).or_default().push((message.due_ms - first) / 10_000);
    }
    // The occurrences from number 24 on are overdue by at most a minute.
    assert_eq!(by_task["once"], [0].into_iter().chain(24..=30).collect::<Vec<_>>());
    assert_eq!(by_task["all"], (0..=30).collect::<Vec<_>>());
    assert_eq!(by_task["none"], (24..=30).collect::<Vec<_>>());
    for (reason, count) in [("once", 23), ("all", 0), ("none", 24)] {
        let line = format!("punctual_passed_over_total{{lane=\"default\",reason=\"{reason}\"}} {count}\n");
        assert!(bed.metrics.text().contains(&line), "{}", bed.metrics.text());
    }
}

#[tokio::test(start_paused = true)]
async fn occurrences_in_flight_are_bounded_and_the_rest_stays_due() {
    let bed = Bed::start_with(|config| config.in_flight = 100);
    bed.sink.answer_by(|_| Answer::Hang);
    let ids: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), after(millis(1))))).await;
    bed.pass(millis(1500)).await;
    let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
    assert_eq!(twin.due[&Lane::default()].negative().count(), 100);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(30)).await;
    assert_eq!(bed.sink.accepted(), 1000);
    bed.assert_at_rest();
}

/// The sink accepts 10 000 messages a second and 100 000 are overdue. A task that becomes due meanwhile passes most of
/// the backlog.
#[tokio::test(start_paused = true)]
async fn a_backlog_delays_newly_due_tasks_only_by_its_share_of_each_claim() {
    const BACKLOG: usize = 100_000;
    const IN_FLIGHT: usize = 2000;
    let bed = Bed::start_with(|config| config.in_flight = IN_FLIGHT);
    let mut taken = bed.sink.receive(1);
    bed.sink.set_unavailable(true);
    let overdue = Timestamp::from_millis(bed.clock.now().as_millis() - 20_000);
    let ids: Vec<String> = (0..BACKLOG).map(|n| format!("old{n}")).collect();
    for (n, ids) in ids.chunks(1000).enumerate() {
        let due = overdue.plus(millis(n as u64));
        bed.put(ids.iter().map(|id| (id.as_str(), task(When::At(due))))).await;
    }
    bed.sink.set_unavailable(false);
    let (mut order, mut put_at) = (Vec::new(), HashMap::new());
    while order.len() < BACKLOG + put_at.len() {
        if order.len() < BACKLOG / 2 && order.len() % 1000 == 0 {
            let id = format!("fresh{}", order.len());
            bed.put([(id.as_str(), after(millis(1)))]).await;
            put_at.insert(id, order.len());
        }
        order.push(taken.recv().await.unwrap().task);
        if order.len() % 100 == 0 {
            bed.pass(millis(10)).await;
        }
    }
    let place: HashMap<&str, usize> = order.iter().enumerate().map(|(place, task)| (task.as_str(), place)).collect();
    assert_eq!((place.len(), put_at.len()), (order.len(), 50), "each once");
    // Messages already in flight and the backlog's half of the same claims go first; the sink serves several claims in
    // parallel.
    let published_before: Vec<usize> = put_at.iter().map(|(id, before)| place[id.as_str()] - before).collect();
    assert!(
        published_before.iter().all(|count| *count <= 5 * IN_FLIGHT),
        "published before each: {published_before:?}"
    );
}

/// Ten cron tasks have each missed a month of seconds, which takes minutes to compute. A one-shot task is claimed
/// beside them. The test uses real time, because time has to pass during the computation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_verdict_is_settled_while_its_claim_still_computes_other_dues() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..10).map(|n| format!("cron{n}")).collect();
    bed.put(ids.iter().map(String::as_str).chain(["once"]).map(|id| (id, after(seconds(3600))))).await;
    // All of them became due a month ago, in the same millisecond.
    let overdue = Timestamp::from_millis(bed.clock.now().as_millis() - 30 * 24 * 3_600_000);
    bed.timeline.edit(Shard::of(&id("any"), 1), |twin| {
        for (member, record) in &mut twin.tasks {
            let mut held = Record::decode(record).unwrap();
            if member != &"once".parse().unwrap() {
                held.task.schedule.when = When::Cron { expression: "* * * * * *".to_owned(), zone: None, start: None };
            }
            held.anchor = overdue;
            *record = held.encode();
            twin.due.get_mut(&Lane::default()).unwrap().set(member.clone(), overdue.as_millis());
        }
    });
    let (mut settled, mut held) = (false, 0);
    while !settled {
        bed.pass(millis(5)).await;
        let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
        settled = !twin.tasks.contains_key(&"once".parse().unwrap());
        held = twin.due[&Lane::default()].negative().count();
    }
    assert_eq!(held, 10, "what follows the crons is still being worked out");
    assert_eq!(bed.sink.accepted(), 11, "all are published");
}

#[tokio::test(start_paused = true)]
async fn bytes_in_flight_exceed_their_limit_by_at_most_one_record() {
    const LARGE: usize = 6 << 20;
    let bed = Bed::start_with(|config| config.in_flight_bytes = 16 << 20);
    bed.sink.answer_by(|_| Answer::Hang);
    let large = || {
        let mut task = after(millis(10));
        task.message.payload = Payload::Json(format!("\"{}\"", "x".repeat(LARGE)).into_bytes().into());
        task
    };
    let ids: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    for id in &ids {
        bed.put([(id.as_str(), large())]).await;
    }
    bed.pass(millis(1500)).await;
    assert_eq!(bed.timeline.twin(Shard::of(&id("any"), 1)).due[&Lane::default()].negative().count(), 3);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(60)).await;
    assert_eq!(bed.sink.accepted(), 10);
    bed.assert_at_rest();
}
