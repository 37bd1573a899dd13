//! Messages that a broker refuses, with complete instances. If it never accepts them, they become dead under their keys
//! with the broker's error text. Messages for a full queue arrive later. Other messages are not affected.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::types::AMQPValue;
use serde_json::json;

use crate::support::clock::ServerClock;
use crate::support::consumer::Consumer;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::load::{Load, undelayed_by};
use crate::support::published::{Published, read_arrivals, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

/// `patience` of the sinks, except in the test of a full queue: how long a destination may be at fault.
const PATIENCE: Duration = Duration::from_secs(6);

/// How long something may take that happens by itself: a generous deadline, not an expectation.
const SOON: Duration = Duration::from_secs(30);

/// A broker and its error texts. Its destination `good` accepts everything, `narrow` no message of 100 kB, and `nobody`
/// does not exist.
struct Broker<'a> {
    name: &'a str,
    url: &'a str,
    /// The error texts for `nobody`, and for a message that is too large.
    unknown: &'a str,
    too_large: &'a str,
    /// Reads a destination with this many expected keys.
    read: &'a dyn Fn(&str, usize) -> Vec<Published>,
}

/// Takes more than five seconds: Kafka starts, and `patience` of six seconds has to pass.
#[test]
fn messages_that_kafka_refuses_end_dead_and_delay_no_others() {
    if !have("redis-server") || !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    kafka.create_stamped_topic("good", 2);
    let stamped = ("message.timestamp.type", "LogAppendTime");
    kafka.create_topic("narrow", 1, &[("max.message.bytes", "65536"), stamped]);
    refused_by(&Broker {
        name: "Kafka",
        url: &kafka.url(),
        unknown: "Unknown topic",
        too_large: "Broker: Message size too large",
        read: &|topic, _| read_topic(&kafka, topic),
    });
}

/// The topic is created once its messages are dead, and all of them are requeued at once, before punctual or its client
/// library has noticed.
#[test]
fn a_requeue_right_after_topic_creation_arrives_and_is_not_dead_again() {
    if !have("redis-server") || !have_kafka() {
        return;
    }
    let (redis, kafka) = (RedisServer::start(&[]), KafkaServer::start());
    let instance = Punctual::start(&format!(
        "[redis]\nurl = \"{}\"\n[timeline]\nshards = 1\n[claim]\nlease = \"5s\"\n\
         [sinks]\nanswer_timeout = \"2s\"\n[sinks.default]\nurl = \"{}\"\npatience = \"{}s\"\n",
        redis.url(),
        kafka.url(),
        PATIENCE.as_secs()
    ));
    let mut shards = StoredKeys::new(&redis, 1, &["default"]);
    let due = shards.now() + 500;
    let body: String = (0..20).map(|number| put_line(&format!("late-{number}"), due, "late", "x")).collect();
    put_all(&instance, &body, 20);
    assert!(patient(SOON, || shards.dead().len() == 20), "{:?}\n{}", shards.dead(), instance.log());
    kafka.create_stamped_topic("late", 1);
    let answer = instance.api().send("POST", "/v1/dead:requeue", Some(r#"{"all":true}"#)).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let arrived = patient(SOON, || shards.tasks() == 0);
    assert!(arrived && shards.dead().is_empty(), "{:?}\n{}", shards.dead(), instance.log());
    let keys: BTreeSet<String> = read_topic(&kafka, "late").into_iter().map(|published| published.key).collect();
    assert_eq!(keys, (0..20).map(|number| format!("late-{number}:{due}")).collect());
}

/// RabbitMQ does not stamp messages, so attached consumers record when they arrive.
#[test]
fn messages_that_rabbitmq_refuses_end_dead_and_delay_no_others() {
    if !have("redis-server") || !have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("max_message_size = 65536", &[], &[]);
    rabbit.declare_queues("", &["good", "narrow"]);
    let arrivals =
        ["good", "narrow"].map(|queue| (queue, Consumer::start("consume_rabbitmq", &[&rabbit.url("%2f"), queue])));
    refused_by(&Broker {
        name: "RabbitMQ",
        url: &rabbit.url(""),
        unknown: "NO_ROUTE",
        too_large: "larger than configured max size 65536",
        read: &|queue, expected| {
            let (_, consumer) = arrivals.iter().find(|(name, _)| *name == queue).expect("a consumer");
            read_arrivals(consumer, expected)
        },
    });
}

/// The queue holds three messages and refuses more. For five times `patience` nobody takes one, while another queue of the
/// same sink gets traffic. Then its consumer takes four a second. Takes more than five seconds, because 30 messages go
/// through it.
#[test]
fn messages_that_a_full_rabbitmq_queue_refuses_arrive_later() {
    if !have("redis-server") || !have("rabbitmq-server") {
        return;
    }
    let (redis, rabbit) = (RedisServer::start(&[]), RabbitServer::start("", &[], &[]));
    let full =
        [("x-max-length", AMQPValue::LongInt(3)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
    rabbit.declare_queue("", "slow", &full);
    let instance = Punctual::start(&format!(
        "[redis]\nurl = \"{}\"\n[timeline]\nshards = 1\n[sinks.default]\nurl = \"{}\"\npatience = \"1s\"\n",
        redis.url(),
        rabbit.url("")
    ));
    rabbit.declare_queues("", &["good"]);
    let mut shards = StoredKeys::new(&redis, 1, &["default"]);
    let due = shards.now() + 500;
    let body: String = (0..30).map(|number| put_line(&format!("slow-{number}"), due, "slow", "x")).collect();
    put_all(&instance, &body, 30);
    for number in 0..20 {
        put_all(&instance, &put_line(&format!("good-{number}"), shards.now(), "good", "x"), 1);
        std::thread::sleep(Duration::from_millis(250));
    }
    assert!(shards.dead().is_empty(), "overload waits: {:?}\n{}", shards.dead(), instance.log());
    let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").json();
    let failing = &stats["sinks"]["default"]["failing"][0];
    assert_eq!((&failing["destination"], &failing["status"]), (&json!("slow"), &json!("refusing")), "{stats:#}");
    let logged = instance.log_lines(&[" WARN ", "destination refuses messages", "slow", "nack"]);
    assert!(!logged.is_empty() && !instance.log().contains("unavailable"), "{}", instance.log());
    let mut keys = BTreeSet::new();
    let all = patient(SOON * 2, || {
        std::thread::sleep(Duration::from_millis(250));
        keys.extend(rabbit.take("", "slow"));
        keys.len() == 30
    });
    assert!(all && shards.dead().is_empty(), "{} of 30; {:?}\n{}", keys.len(), shards.dead(), instance.log());
    assert_eq!(keys, (0..30).map(|number| format!("slow-{number}:{due}")).collect());
}

fn refused_by(broker: &Broker) {
    let redis = RedisServer::start(&[]);
    let instance = Punctual::start(&format!(
        "[redis]\nurl = \"{0}\"\n[timeline]\nshards = 1\n[claim]\nlease = \"5s\"\n\
         [sinks]\nanswer_timeout = \"2s\"\n[sinks.apart]\nurl = \"{1}\"\n\
         [sinks.default]\nurl = \"{1}\"\npatience = \"{2}s\"\n\
         [lanes.default]\nsink = \"default\"\n[lanes.apart]\nsink = \"apart\"\n",
        redis.url(),
        broker.url,
        PATIENCE.as_secs()
    ));
    let mut shards = StoredKeys::new(&redis, 1, &["default", "apart"]);
    let stage = ServerClock::new(shards.now());
    let load = Load::new(vec![instance.api()], &stage, "default", "good");
    // The same destination through another sink.
    let apart = Load::new(vec![instance.api()], &stage, "apart", "good");
    let (large, lost) = std::thread::scope(|scope| {
        let (_ends, _apart_ends) = (load.guard(), apart.guard());
        scope.spawn(|| load.run());
        scope.spawn(|| apart.run());
        let large = too_large_among_200(broker, &instance, &stage, &mut shards);
        let lost = unknown_destination(broker, &instance, &stage, &mut shards);
        (large, lost)
    });
    let tasks = patient(SOON, || shards.tasks() == 0);
    assert!(tasks, "there is left: {:?}", shards.count());
    let expected = load.ledger().expected() + apart.ledger().expected();
    let published = (broker.read)("good", expected);
    let (of_apart, published) = published.into_iter().partition(|message| message.key.starts_with("apart-"));
    let check = |load: &Load, published: Vec<Published>| {
        load.ledger().check(&published).unwrap_or_else(|faults| panic!("{faults}{}", load.answers()))
    };
    let tally = check(&load, published);
    // Only messages for `nobody` wait.
    undelayed_by(lost, &tally, &check(&apart, of_apart));
    assert_eq!(load.answers(), format!("{{\"201\": {}}}", tally.expected));
    dies_again(broker, &instance, &mut shards);
    say(&format!(
        "refused, {}: `{}` and 200 beside it accepted; dead after {lost} ms of patience with `{}`; meanwhile {tally}",
        broker.name, large, broker.unknown
    ));
}

/// One message that is too large and 200 small ones for the same destination, all due in the same millisecond; returns
/// the broker's error text.
fn too_large_among_200(broker: &Broker, instance: &Punctual, stage: &ServerClock, shards: &mut StoredKeys) -> String {
    let due = stage.now() + 1500;
    let task = |id: &str, payload: &str| put_line(id, due, "narrow", payload);
    let mut body: String = (0..200).map(|number| task(&format!("small-{number}"), "x")).collect();
    body.push_str(&task("large", &"x".repeat(100_000)));
    put_all(instance, &body, 201);
    let mut dead = Vec::new();
    let died = patient(SOON, || {
        dead = shards.dead();
        !dead.is_empty()
    });
    assert!(died, "nothing is dead\n{}", instance.log());
    let [(key, reason, detail)] = &dead[..] else { panic!("only one is too large: {dead:?}") };
    assert_eq!((key, reason.as_str()), (&format!("large:{due}"), "rejected"), "{dead:?}");
    assert!(detail.contains(broker.too_large), "{detail}");
    let small =
        |published: &Published| published.key.starts_with("small-") && published.key.ends_with(&due.to_string());
    let mut keys = BTreeSet::new();
    let all = patient(SOON, || {
        keys.extend((broker.read)("narrow", 200).into_iter().filter(small).map(|published| published.key));
        keys.len() >= 200
    });
    assert!(all, "{} of 200 neighbours are accepted", keys.len());
    detail.clone()
}

/// The message that is too large is requeued on the command line, which shows that it dies again, and why.
fn dies_again(broker: &Broker, instance: &Punctual, shards: &mut StoredKeys) {
    let dead = shards.dead();
    let (key, ..) = dead.iter().find(|(key, ..)| key.starts_with("large:")).expect("it is dead");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["dead", "requeue", key, "--wait", "2s", "--url", &instance.api().url()])
        .output()
        .expect("the command line");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), &*out), (Some(1), &*format!("requeued {key}\n")), "{err}");
    assert!(
        err.contains("error: 1 died again within 2s:\n  1 x rejected: ") && err.contains(broker.too_large),
        "{err}"
    );
}

/// Some messages for an unknown destination; returns after how many ms the last one was dead.
fn unknown_destination(broker: &Broker, instance: &Punctual, stage: &ServerClock, shards: &mut StoredKeys) -> i64 {
    let due = stage.now() + 500;
    let body: String = (0..20).map(|number| put_line(&format!("lost-{number}"), due, "nobody", "x")).collect();
    put_all(instance, &body, 20);
    let mut dead = Vec::new();
    let died = patient(SOON, || {
        dead = shards.dead();
        dead.len() > 20
    });
    let took = stage.now() - due;
    assert!(died, "dead are: {dead:?}\n{}", instance.log());
    dead.retain(|(key, ..)| key.starts_with("lost-"));
    assert_eq!(dead.len(), 20, "{dead:?}");
    for (key, reason, detail) in dead {
        assert!(reason == "destination" && detail.contains(broker.unknown), "{key}: {reason}: {detail}");
        assert!(key.ends_with(&format!(":{due}")), "{key}");
    }
    let patience = i64::try_from(PATIENCE.as_millis()).expect("a short time");
    assert!(took >= patience, "dead after {took} ms already");
    // The first death for each reason and destination is logged at once; the one that was too large was first.
    let reported = instance.log_lines(&[" ERROR ", "occurrences are dead", "lane=\"default\""]);
    let ends = ["reason=\"rejected\" destination=\"narrow\"", "reason=\"destination\" destination="];
    assert!(reported.len() == 2 && reported.iter().zip(ends).all(|(line, end)| line.contains(end)), "{reported:?}");
    assert!(
        reported[1].contains(broker.unknown) && reported[1].contains("dead requeue --lane default"),
        "{reported:?}"
    );
    let warned = instance.log_lines(&[" WARN ", "destination is at fault", broker.unknown, "patience="]);
    assert_eq!(warned.len(), 1, "{}", instance.log());
    took
}

fn put_line(id: &str, due: i64, destination: &str, payload: &str) -> String {
    let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
    let message = json!({"destination": destination, "payload": payload});
    format!("{}\n", json!({"id": id, "schedule": {"at": at}, "message": message}))
}

/// Puts the lines of a batch, all of them new.
fn put_all(instance: &Punctual, body: &str, count: usize) {
    let answer = instance.api().send("POST", "/v1/tasks:batch", Some(body)).expect("an answer");
    let lines = answer.lines();
    assert_eq!(lines.iter().filter(|line| line["result"] == "created").count(), count, "{answer:?}");
}
