//! An instance ends like by `kill -9` at every step of a claim, of a renewal and of a reap, for each sink; then the
//! consumer's view is checked.
//!
//! Another instance then ends the claim and publishes the rest. Each occurrence reaches the consumer with its key and
//! payload. It comes exactly once if no message had been handed over, or if all messages that had been handed over were
//! settled. Otherwise it comes at most twice.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual::engine::fault::Point;
use serde_json::json;

use crate::support::http::Api;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::published::{Published, read_stream, read_subject, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

/// Tasks with the same due, so that they are in one claim.
const HERD: usize = 40;

/// The lease of instances that will end, in seconds; the test waits for it. A publish may take half of it.
const LEASE: u32 = 4;

/// The lease of the instances that do the rest; with a short one a retry would look like a copy caused by the end.
const LONG_LEASE: u32 = 20;

/// Maximum number of attempts if the machine is too slow.
const TRIES: u32 = 5;

/// The signal of `abort`.
const SIGABRT: i32 = 6;

/// What a consumer may see of a claim whose holder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// No message had been handed over, or all messages that had been handed over were settled.
    Once,
    /// A message had been handed over and was not settled.
    Again,
    /// A message may have been handed over: occurrences that a reap returns wake the claimer of the same instance, just
    /// before its end.
    Either,
}

fn expected(point: Point) -> Seen {
    match point {
        Point::AfterClaim | Point::BeforePublish | Point::AfterSettle | Point::BeforeReap => Seen::Once,
        Point::AfterReap => Seen::Either,
        // Half of it was handed over and settled.
        Point::AfterPartSettle | Point::BeforeExtend | Point::AfterExtend => Seen::Once,
        // No door is open in these tests.
        Point::BeforeAcknowledge => Seen::Once,
        Point::MidPublish | Point::MidBatch | Point::AfterPublish | Point::BeforeSettle => Seen::Again,
    }
}

/// Takes more than five seconds: at each step an instance dies, and what it held waits for its lease to end.
#[test]
fn redis_streams_sees_each_occurrence_whatever_the_instance_died_of() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let redis = RedisServer::start(&[]);
    run("Redis Streams", &redis, &redis.url(), || read_stream(redis.server.port, "crash"));
}

/// Takes more than five seconds: at each step an instance dies, and what it held waits for its lease to end.
#[test]
fn nats_jetstream_sees_each_occurrence_whatever_the_instance_died_of() {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    // A short window keeps the copies, so that they are counted and compared.
    nats.connect().create_stream("CRASH", &["crash"], &json!({"duplicate_window": 100_000_000}));
    run("NATS JetStream", &redis, &nats.url(), || read_subject(&nats, "CRASH"));
}

/// Takes more than five seconds: at each step an instance dies, and what it held waits for its lease to end.
#[test]
fn kafka_sees_each_occurrence_whatever_the_instance_died_of() {
    if !have("redis-server") || !have_kafka() {
        return;
    }
    let (redis, kafka) = (RedisServer::start(&[]), KafkaServer::start());
    kafka.create_stamped_topic("crash", 4);
    run("Kafka", &redis, &kafka.url(), || read_topic(&kafka, "crash"));
}

/// Takes more than five seconds: at each step an instance dies, and what it held waits for its lease to end.
#[test]
fn rabbitmq_sees_each_occurrence_whatever_the_instance_died_of() {
    if !have("redis-server") || !have("rabbitmq-server") {
        return;
    }
    let (redis, rabbit) = (RedisServer::start(&[]), RabbitServer::start("", &[], &[]));
    rabbit.declare_queues("", &["crash"]);
    run("RabbitMQ", &redis, &rabbit.url(""), || {
        let message = |delivery: &lapin::message::Delivery| Published {
            key: delivery.properties.message_id().as_ref().expect("a key").to_string(),
            payload: String::from_utf8(delivery.data.clone()).expect("text"),
            // RabbitMQ does not stamp messages.
            stamp: i64::MAX,
        };
        rabbit.queue("", "crash").iter().map(message).collect()
    });
}

/// Runs every point except `before_acknowledge` in turn and prints a table; `read` reads the sink back.
fn run(name: &str, redis: &RedisServer, sink: &str, read: impl FnOnce() -> Vec<Published>) {
    let (mut promised, mut turns, mut spoilt) = (BTreeMap::new(), Vec::new(), Vec::new());
    for &point in Point::ALL.iter().filter(|point| **point != Point::BeforeAcknowledge) {
        let done = (0..TRIES).find_map(|number| {
            let turn = format!("{}{number}-", point.as_str());
            let keys = crash_at(point, &turn, redis, sink);
            if keys.is_none() {
                spoilt.push(turn.clone());
            }
            Some((turn, keys?))
        });
        let (turn, keys) = done.unwrap_or_else(|| panic!("{name}, {}: never done in time", point.as_str()));
        promised.extend(keys);
        turns.push((point, turn));
    }
    let mut published = read();
    // Attempts on a slow machine are ignored.
    published.retain(|message| !spoilt.iter().any(|turn| message.key.starts_with(turn)));
    let mut table = format!("crash points, {name}: what the consumer saw of {} occurrences each\n", HERD + 2);
    for (point, turn) in turns {
        let seen = judge(point, &turn, &promised, &published);
        let seen = seen.unwrap_or_else(|fault| panic!("{name}, {}: {fault}", point.as_str()));
        table += &format!("  {:<18} {seen}\n", point.as_str());
    }
    let unexpected: Vec<_> = published.iter().filter(|message| !promised.contains_key(&message.key)).collect();
    assert!(unexpected.is_empty(), "{name}: nobody asked for {unexpected:?}");
    say(table.trim_end());
}

fn config(redis: &RedisServer, sink: &str, shards: u16, poison_limit: u32, lease: u32) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[timeline]\nshards = {shards}\n\
         [claim]\nlease = \"{lease}s\"\nbatch = 1000\npoison_limit = {poison_limit}\n\
         [sinks.default]\nurl = \"{sink}\"\nanswer_timeout = \"{}s\"\n[lanes.default]\ndestination = \"crash\"\n",
        redis.url(),
        lease / 2
    )
}

/// One instance ends at a point, another one does the rest. Returns the promised keys with their payloads; `None` if a
/// put was too slow, or if the instance may have retried a publish before its end.
fn crash_at(point: Point, turn: &str, redis: &RedisServer, sink: &str) -> Option<BTreeMap<String, String>> {
    let [config, config_of_heir] = [LEASE, LONG_LEASE].map(|lease| config(redis, sink, 1, 5, lease));
    let mut left = StoredKeys::new(redis, 1, &["default"]);
    let fault = |point: Point| vec![format!("PUNCTUAL_FAULT_POINT={}", point.as_str())];
    let reaps = matches!(point, Point::BeforeReap | Point::AfterReap);
    let first = if reaps { Point::AfterClaim } else { point };
    let mut victim = ready(Punctual::start_unready_in(&fault(first), &config));
    let due = left.now() + 2000;
    let mut promised = put(&victim.api(), turn, due, &mut left);
    if promised.is_some() {
        ended(&mut victim, first);
        promised = promised.filter(|_| left.now() < due + i64::from(LEASE) * 500);
    }
    victim.kill();
    if promised.is_some() && point.is_after_half() {
        let all = HERD as u64 + 1;
        assert_eq!(left.tasks(), all - all / 2, "{}: half of it is settled", point.as_str());
    }
    if promised.is_some() && reaps {
        ended(&mut Punctual::spawn_in(&fault(point), &config), point);
    }
    let heir = Punctual::start(&config_of_heir);
    left.until_nothing_is_left(Duration::from_secs(60));
    drop(heir);
    promised
}

/// Waits until an instance is ready.
fn ready(mut instance: Punctual) -> Punctual {
    instance.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
    instance
}

/// Waits until an instance has ended at its fault point and not otherwise.
fn ended(instance: &mut Punctual, point: Point) {
    let status = instance.wait();
    assert_eq!(status, 128 + SIGABRT, "{}\n{}", point.as_str(), instance.log());
}

/// Puts a herd at `due` and a task with two dues a second apart; returns their promises. `None` if not all of it is put
/// in time, because it must be in one claim.
fn put(api: &Api, turn: &str, due: i64, left: &mut StoredKeys) -> Option<BTreeMap<String, String>> {
    let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
    let (mut lines, mut promised) = (String::new(), BTreeMap::new());
    for number in 0..HERD {
        let (id, payload) = (format!("{turn}{number}"), json!({ "of": turn, "number": number }));
        lines += &format!("{}\n", json!({"id": id, "schedule": {"at": at}, "message": {"payload": payload}}));
        promised.insert(format!("{id}:{due}"), payload.to_string());
    }
    let (id, schedule) = (format!("{turn}every"), json!({"every": "1s", "start": at, "limit": 2}));
    lines += &format!("{}\n", json!({"id": id, "schedule": schedule, "message": {"payload": turn}}));
    for due in [due, due + 1000] {
        promised.insert(format!("{id}:{due}"), json!(turn).to_string());
    }
    let answer = api.send("POST", "/v1/tasks:batch", Some(&lines));
    if left.now() >= due {
        return None;
    }
    let answer = answer.expect("an answer");
    let created = answer.lines().iter().filter(|line| line["result"] == "created").count();
    assert_eq!(created, HERD + 1, "{}", answer.text);
    Some(promised)
}

/// The result of one point: numbers of messages and copies, or what is wrong.
fn judge(
    point: Point,
    turn: &str,
    promised: &BTreeMap<String, String>,
    published: &[Published],
) -> Result<String, String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for message in published.iter().filter(|message| message.key.starts_with(turn)) {
        *seen.entry(&message.key).or_default() += 1;
        if promised.get(&message.key) != Some(&message.payload) {
            return Err(format!("law 3: {message:?} was not promised"));
        }
        if message.stamp < message.parts().1 {
            return Err(format!("law 1: {message:?} is early"));
        }
    }
    let lost: Vec<_> =
        promised.keys().filter(|key| key.starts_with(turn) && !seen.contains_key(key.as_str())).collect();
    if !lost.is_empty() {
        return Err(format!("law 2: {lost:?} are lost"));
    }
    let messages: usize = seen.values().sum();
    let copies = messages - seen.len();
    let most = seen.values().max().copied().unwrap_or(0);
    let fits = match expected(point) {
        Seen::Once => copies == 0,
        Seen::Again => copies > 0 && most == 2,
        Seen::Either => most <= 2,
    };
    let seen = format!("{messages} messages, {copies} copies");
    if fits { Ok(seen) } else { Err(format!("{seen}, one {most} times; expected {:?}", expected(point))) }
}

/// The others in the claim are published once each, because none had been handed over.
#[test]
fn the_neighbours_of_poison_reach_their_consumer() {
    if have("redis-server") && have("redis-cli") {
        poison(1);
    }
}

/// An instance that holds poison in one shard holds no suspects of other shards, which would look like poison too.
#[test]
fn the_neighbours_of_poison_in_other_shards_reach_their_consumer() {
    if have("redis-server") && have("redis-cli") {
        poison(4);
    }
}

/// An instance that touches one of a thousand occurrences ends. The others reach their consumer, and that one is dead
/// in the end.
fn poison(shards: u16) {
    const POISON_HERD: usize = 1000;
    const LIMIT: u32 = 4;
    let variables = ["PUNCTUAL_FAULT_POINT=before_publish", "PUNCTUAL_FAULT_ID=t500"].map(str::to_owned);
    let begun = (0..TRIES).find_map(|_| {
        let redis = RedisServer::start(&[]);
        // These instances publish too, so their lease is longer.
        let config = config(&redis, &redis.url(), shards, LIMIT, 2 * LEASE);
        let mut left = StoredKeys::new(&redis, shards, &["default"]);
        let instance = ready(Punctual::start_unready_in(&variables, &config));
        let due = left.now() + 3000;
        let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
        let task = |n: usize| json!({"id": format!("t{n:03}"), "schedule": {"at": at}, "message": {"payload": n}});
        let lines: String = (0..POISON_HERD).map(|n| format!("{}\n", task(n))).collect();
        let answer = instance.api().send("POST", "/v1/tasks:batch", Some(&lines));
        // All of it must be in one claim.
        if left.now() >= due {
            return None;
        }
        let lines = answer.expect("an answer").lines();
        assert_eq!(lines.iter().filter(|line| line["result"] == "created").count(), POISON_HERD);
        Some((redis, config, left, instance, due))
    });
    let (redis, config, mut left, mut instance, due) = begun.expect("a batch that is put in time");
    for _ in 0..=LIMIT {
        ended(&mut instance, Point::BeforePublish);
        instance = Punctual::spawn_in(&variables, &config);
    }
    let key = format!("t500:{due}");
    let at_rest = patient(Duration::from_secs(120), || left.tasks() == 0);
    assert!(at_rest, "left in Redis: {:?}", left.count());
    instance.until("alive", |_| true);
    let dead: Vec<_> = left.dead().into_iter().map(|(key, reason, _)| (key, reason)).collect();
    assert_eq!(dead, [(key.clone(), "poison".to_owned())]);
    let mut keys: Vec<_> = read_stream(redis.server.port, "crash").into_iter().map(|message| message.key).collect();
    keys.sort();
    // Messages of other shards that had been handed over are published again.
    if shards > 1 {
        keys.dedup();
    }
    let neighbours = (0..POISON_HERD).map(|n| format!("t{n:03}:{due}")).filter(|other| *other != key);
    assert_eq!(keys, neighbours.collect::<Vec<_>>(), "of {shards} shards");
    say(&format!(
        "poison: {} instances died of one of {POISON_HERD} in {shards} shards; the others were published",
        LIMIT + 1
    ));
}
