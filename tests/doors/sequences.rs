//! What happens between a door, its broker and other instances, in orders that only real servers bring about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::nats::{create_source, length, open};
use super::{check, kafka, nats, redis, results, status, waiting};
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::scripted::{Asked, Scripted};
use crate::support::{have, patient};

use super::kafka::TIME_LIMIT;

/// A relay in front of a timeline, and a switch that lets Redis refuse all scripts behind it.
fn with_switch(timeline: &RedisServer) -> (Scripted, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&refuses);
    let relay = Scripted::before(timeline.server.port, move |asked: &Asked| {
        (asked.is("EVALSHA") && switch.load(Ordering::Relaxed)).then(|| "-OOM command not allowed\r\n".to_owned())
    });
    (relay, refuses)
}

/// The configuration with another URL of the timeline.
fn through(relay: &Scripted, timeline: &RedisServer, config: &str) -> String {
    config.replace(&timeline.url(), &relay.url())
}

/// An instance whose door holds messages in batches of 50 from JetStream, because Redis refuses all scripts behind the
/// switch; and the configuration without it.
fn start_held(timeline: &RedisServer, nats: &NatsServer, messages: u64) -> (Punctual, Arc<AtomicBool>, String) {
    let config = nats::config(timeline, nats, "destination = \"out\"\nbatch = 50\n");
    let (relay, refuses) = with_switch(timeline);
    let mut instance = Punctual::start(&through(&relay, timeline, &config));
    nats::send(nats, &[("punctual-in", "1h")], (0..messages).map(|number| number.to_string()));
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    (instance, refuses, config)
}

/// The ids of all tasks.
fn tasks(instance: &Punctual) -> Vec<String> {
    let listed = instance.api().send("GET", "/v1/tasks?limit=100", None).expect("an answer").json();
    let tasks = listed["items"].as_array().expect("a list").iter();
    tasks.map(|task| task["id"].as_str().expect("an id").to_owned()).collect()
}

/// The first instance reads both partitions, and waits for its timeline. Then another one gets one of them, and the tasks
/// of that one are cancelled.
#[test]
fn a_former_owner_of_a_partition_brings_back_nothing_that_was_cancelled() {
    const MESSAGES: usize = 60;
    if !have_kafka() || !have("redis-server") {
        return;
    }
    let (timeline, kafka) = (RedisServer::start(&[]), KafkaServer::start());
    kafka.create_stamped_topic("punctual.in", 2);
    ["punctual.rejected", "out"].iter().for_each(|topic| kafka.create_stamped_topic(topic, 1));
    let config = kafka::config(&timeline, &kafka, "destination = \"out\"\n");
    let (relay, refuses) = with_switch(&timeline);
    let lines: String = (0..MESSAGES).map(|number| format!("k{number}:{number}\n")).collect();
    kafka::send(&kafka, &["punctual-in=1h"], &lines);
    let mut former = Punctual::start(&through(&relay, &timeline, &config));
    former.until("waiting", |former| status(former)["status"] == "waiting");
    let owner = Punctual::start(&config);
    let of_partition = |partition| kafka.records("punctual.in").iter().filter(|one| one.partition == partition).count();
    let counts = [of_partition(0), of_partition(1)];
    let mut cancelled = Vec::new();
    let has_one = patient(TIME_LIMIT, || {
        cancelled = tasks(&owner);
        counts.contains(&cancelled.len()) && results(&owner, "created") == cancelled.len() as f64
    });
    assert!(has_one, "{counts:?}: {}\n{}", cancelled.len(), owner.log());
    for id in &cancelled {
        assert_eq!(owner.api().send("DELETE", &format!("/v1/tasks/{id}"), None).expect("an answer").status, 200);
    }
    refuses.store(false, Ordering::Relaxed);
    let rest = MESSAGES - cancelled.len();
    assert!(patient(TIME_LIMIT, || tasks(&owner).len() == rest), "{rest}: {:?}\n{}", tasks(&owner), former.log());
    assert!(patient(TIME_LIMIT, || results(&former, "handed_over") == cancelled.len() as f64), "{}", former.log());
    assert!(tasks(&owner).iter().all(|id| !cancelled.contains(id)));
}

#[test]
fn schedules_of_etf1_that_have_fired_are_left_out_with_past_drop() {
    if !have_kafka() || !have("redis-server") {
        return;
    }
    let (timeline, kafka) = (RedisServer::start(&[]), KafkaServer::start());
    ["punctual.in", "punctual.rejected", "out"].iter().for_each(|topic| kafka.create_stamped_topic(topic, 1));
    let send = |seconds: i64, lines: &str| {
        let epoch = format!("scheduler-epoch={}", super::unix_time() + seconds);
        kafka::send(&kafka, &[&epoch, "scheduler-target-topic=out", "scheduler-target-key=k"], lines);
    };
    send(-7200, "fired:one\nagain:two\n");
    send(-3600, "again:three\n");
    send(3, "next:four\n");
    let config = kafka::config(&timeline, &kafka, "dialect = \"etf1\"\npast = \"drop\"\n");
    let mut instance = Punctual::start(&config);
    assert!(patient(TIME_LIMIT, || !kafka.records("out").is_empty()), "{}", instance.log());
    instance.until("done", |instance| results(instance, "too_late") == 3.0 && waiting(instance) == 0);
    let payloads: Vec<_> = kafka.records("out").into_iter().map(|record| record.payload).collect();
    assert_eq!(payloads, [b"four".to_vec()]);
    assert!(!instance.log_lines(&[" INFO ", "reading tasks from messages"]).is_empty());
}

/// The messages come again, to another instance, while the first one waits for its timeline.
#[test]
fn messages_whose_ack_wait_passes_change_nothing_when_their_first_reader_goes_on() {
    const MESSAGES: u64 = 100;
    let Some((timeline, nats)) = nats::servers() else { return };
    let (first, refuses, config) = start_held(&timeline, &nats, MESSAGES);
    let second = Punctual::start(&config);
    assert!(patient(TIME_LIMIT, || waiting(&second) == MESSAGES), "{}", second.log());
    refuses.store(false, Ordering::Relaxed);
    assert!(patient(TIME_LIMIT, || results(&first, "unchanged") >= 50.0), "{}", first.log());
    assert!(patient(TIME_LIMIT, || open(&nats) == 0), "all are acknowledged");
    assert_eq!((results(&first, "created"), results(&second, "created")), (0.0, MESSAGES as f64));
    assert_eq!(tasks(&second).len() as u64, MESSAGES);
}

/// The server sends the messages that the door holds again as soon as it asks for more.
#[test]
fn messages_that_a_door_holds_for_longer_than_ack_wait_are_not_read_twice() {
    const MESSAGES: u64 = 600;
    let Some((timeline, nats)) = nats::servers() else { return };
    let (mut instance, refuses, _) = start_held(&timeline, &nats, MESSAGES);
    std::thread::sleep(std::time::Duration::from_secs(4));
    refuses.store(false, Ordering::Relaxed);
    instance.until("done", |instance| waiting(instance) == MESSAGES && open(&nats) == 0);
    assert_eq!((results(&instance, "created"), results(&instance, "unchanged")), (MESSAGES as f64, 0.0));
}

/// The first message comes again while its pull is open, and is read only after the second one has taken effect.
#[test]
fn a_cancelled_task_does_not_come_back_with_a_message_that_the_server_sent_again() {
    let Some((timeline, nats)) = nats::servers() else { return };
    let consumer = json!({"durable_name": "quick", "ack_policy": "explicit", "ack_wait": 300_000_000_u64});
    let created = json!({"stream_name": "IN", "config": consumer});
    nats.connect().jetstream("CONSUMER.DURABLE.CREATE.IN.quick", &created);
    let config = nats::config(&timeline, &nats, "destination = \"out\"\n").replace("IN/punctual", "IN/quick");
    let (relay, refuses) = with_switch(&timeline);
    let mut instance = Punctual::start(&through(&relay, &timeline, &config));
    for round in 0..5 {
        refuses.store(true, Ordering::Relaxed);
        let id = format!("a{round}");
        nats::send(&nats, &[("punctual-in", "1h"), ("punctual-id", &id)], ["put".to_owned()]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        nats::send(&nats, &[("punctual-do", "cancel"), ("punctual-id", &id)], ["cancel".to_owned()]);
        instance.until("waiting", |instance| status(instance)["status"] == "waiting");
        std::thread::sleep(std::time::Duration::from_millis(1500));
        refuses.store(false, Ordering::Relaxed);
        instance.until("up", |instance| status(instance)["status"] == "up");
        let info = || nats.connect().jetstream("CONSUMER.INFO.IN.quick", &json!({}))["num_ack_pending"].clone();
        assert!(patient(TIME_LIMIT, || info() == 0), "{}", info());
        std::thread::sleep(std::time::Duration::from_millis(1200));
        assert_eq!(waiting(&instance), 0, "round {round}: {}", instance.log());
    }
}

/// The server takes a message of up to 1 MiB with its headers. The copy has more headers.
#[test]
fn a_rejected_message_whose_copy_is_too_large_is_copied_without_its_body() {
    let Some((timeline, nats)) = nats::servers() else { return };
    let instance = Punctual::start(&nats::config(&timeline, &nats, "destination = \"out\"\n"));
    nats::send(&nats, &[("punctual-in", "soon"), ("x-own", "1")], ["b".repeat((1 << 20) - 100)]);
    nats::send(&nats, &[("punctual-in", "1ms")], ["good".to_owned()]);
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") == 1 && open(&nats) == 0), "{}", instance.log());
    let copies = nats.connect().stream_messages("REJECTED");
    assert_eq!(copies.len(), 1);
    assert!(copies[0].payload.is_empty(), "{} bytes", copies[0].payload.len());
    assert_eq!((copies[0].header("punctual-rejected"), copies[0].header("x-own")), (Some("bad_duration"), None));
    assert!(copies[0].header("punctual-rejected-from").is_some());
}

/// There is no stream for the rejected messages of one of two doors.
#[test]
fn a_door_that_cannot_reject_a_message_stops_no_other_one() {
    if !have("nats-server") || !have("redis-server") {
        return;
    }
    let (timeline, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    let mut client = nats.connect();
    client.create_stream("OUT", &["out"], &json!({}));
    create_source(&mut client, 30);
    client.create_stream("OTHER", &["punctual.other"], &json!({}));
    let consumer = json!({"durable_name": "other", "ack_policy": "explicit"});
    client.jetstream("CONSUMER.DURABLE.CREATE.OTHER.other", &json!({"stream_name": "OTHER", "config": consumer}));
    let more = "[doors.other]\nsink = \"default\"\nfrom = \"OTHER/other\"\nrejected = \"\"\ndestination = \"out\"\n";
    let config = nats::config(&timeline, &nats, more);
    let mut instance = Punctual::start(&config);
    nats::send(&nats, &[("punctual-in", "soon")], ["bad".to_owned()]);
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    let said = status(&instance)["detail"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("rejected messages cannot go to `punctual.rejected`"), "{said}");
    client.publish("punctual.other", "", &[("punctual-in", "1ms")], b"good");
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") == 1), "{}", instance.log());
    assert!(!instance.log_lines(&[" WARN ", "a door is stopped", "punctual.rejected"]).is_empty());
    let (code, out) = check(&config);
    assert!(code == Some(1) && out.contains("doors.in.rejected"), "{out}");
    client.create_stream("REJECTED", &["punctual.rejected"], &json!({}));
    instance.until("up", |instance| status(instance)["status"] == "up");
    assert_eq!(length(&nats, "REJECTED"), 1);
    let (code, out) = check(&config);
    assert!(code == Some(0) && !out.contains("max_ack_pending"), "{out}");
}

/// The stream that the door reads takes what is published and what is rejected.
#[test]
fn a_door_that_reads_what_it_publishes_does_not_go_round_in_circles() {
    if !have("nats-server") || !have("redis-server") {
        return;
    }
    let (timeline, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    let mut client = nats.connect();
    client.create_stream("IN", &["punctual.>"], &json!({}));
    let consumer = json!({"durable_name": "punctual", "ack_policy": "explicit"});
    client.jetstream("CONSUMER.DURABLE.CREATE.IN.punctual", &json!({"stream_name": "IN", "config": consumer}));
    let mut instance = Punctual::start(&nats::config(&timeline, &nats, "destination = \"punctual.in\"\n"));
    nats::send(&nats, &[("punctual-in", "1ms")], ["round".to_owned()]);
    // The message, what was published for it, and the copy of that, which has no schedule.
    instance.until("done", |instance| results(instance, "loop") == 1.0);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!((length(&nats, "IN"), open(&nats)), (3, 0), "{}", instance.log());
    assert_eq!(["created", "rejected", "loop"].map(|result| results(&instance, result)), [1.0; 3]);
}

#[test]
fn a_redis_whose_stream_a_door_reads_is_found_again() {
    if !have("redis-server") {
        return;
    }
    let (timeline, mut broker) = (RedisServer::start(&[]), RedisServer::start(&["--appendonly", "yes"]));
    redis::create_group(&broker);
    let mut instance = Punctual::start(&redis::config(&timeline, &broker.url(), "destination = \"out\"\n"));
    redis::add(&mut broker.connect(), "before", &[("punctual-in", "1ms")]);
    assert!(patient(TIME_LIMIT, || broker.stream("out").len() == 1), "{}", instance.log());
    broker.server.kill();
    instance.until("away", |instance| status(instance)["status"] == "unavailable");
    broker.server.restart();
    instance.until("up again", |instance| status(instance)["status"] == "up");
    redis::add(&mut broker.connect(), "after", &[("punctual-in", "1ms")]);
    assert!(patient(TIME_LIMIT, || broker.stream("out").len() == 2), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || redis::pending(&broker) == 0), "all are acknowledged");
    assert_eq!(results(&instance, "created"), 2.0);
}

/// What `check` says of the settings of a consumer.
#[test]
fn settings_of_a_consumer_that_lose_messages_are_warnings() {
    let Some((timeline, nats)) = nats::servers() else { return };
    let consumer = json!({"durable_name": "few", "ack_policy": "explicit", "ack_wait": 1_000_000_000_u64,
        "max_deliver": 3, "max_ack_pending": 10});
    let mut client = nats.connect();
    let created = client.jetstream("CONSUMER.DURABLE.CREATE.IN.few", &json!({"stream_name": "IN", "config": consumer}));
    assert_eq!(created["error"], Value::Null, "{created}");
    let (code, out) = check(&nats::config(&timeline, &nats, "").replace("IN/punctual", "IN/few"));
    assert_eq!(code, Some(0), "{out}");
    for warning in ["after 3 deliveries", "`ack_wait` is 1s", "`max_ack_pending` is 10"] {
        assert!(out.contains(warning), "{warning}: {out}");
    }
}
