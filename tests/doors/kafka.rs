//! Doors over Kafka: real servers and instances, written and read back by `kcat`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::bad_messages::kinds;
use super::{kills, results, stats};
use crate::support::kafka::{KafkaServer, More, have_kafka};
use crate::support::published::read_topic;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, patient};

/// Time limit for what a test waits for.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A Redis for the timeline, and a Kafka with the topics of a door; `None` if a server is not installed.
fn servers(partitions: i32) -> Option<(RedisServer, KafkaServer)> {
    servers_with(partitions, &More::default())
}

fn servers_with(partitions: i32, more: &More<'_>) -> Option<(RedisServer, KafkaServer)> {
    if !have_kafka() || !have("redis-server") {
        return None;
    }
    let kafka = KafkaServer::start_with(more);
    kafka.create_stamped_topic("punctual.in", partitions);
    kafka.create_stamped_topic("punctual.rejected", 1);
    kafka.create_stamped_topic("out", 1);
    Some((RedisServer::start(&[]), kafka))
}

pub(super) fn config(timeline: &RedisServer, kafka: &KafkaServer, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"15s\"\n[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"7s\"\n\
         [doors.in]\nsink = \"default\"\nfrom = \"punctual.in\"\nrejected = \"punctual.rejected\"\n{more}",
        timeline.url(),
        kafka.url()
    )
}

/// Sends a message for each line, with these headers. If the lines have a `:` and no `{`, the beginning of
/// each is its record key; an empty rest is no value.
pub(super) fn send(kafka: &KafkaServer, headers: &[&str], lines: &str) {
    let headers = headers.iter().flat_map(|header| ["-H", header]);
    let address = kafka.address();
    let mut command = Command::new("kcat");
    command.args(["-P", "-b", &address, "-t", "punctual.in", "-Z"]).args(headers);
    if lines.contains(':') && !lines.contains('{') {
        command.args(["-K", ":"]);
    }
    let mut child = command.stdin(Stdio::piped()).spawn().expect("kcat runs");
    child.stdin.take().expect("its input").write_all(lines.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_message_in_a_topic_is_published_at_its_time() {
    let Some((timeline, kafka)) = servers(3) else { return };
    let instance = Punctual::start(&config(&timeline, &kafka, ""));
    let headers =
        ["punctual-in=400ms", "punctual-destination=out", "punctual-key=k", "x-own=1", "content-type=application/json"];
    send(&kafka, &headers, "{\"order\": 1}\n");
    assert!(patient(TIME_LIMIT, || !kafka.records("out").is_empty()), "{}", instance.log());
    let (sent, published) = (kafka.records("punctual.in").remove(0), kafka.records("out").remove(0));
    let key = format!("in.{}-0-{}:{}", sent.partition, sent.stamp, sent.stamp + 400);
    assert_eq!(published.header("idempotency-key"), Some(key.as_str()));
    assert_eq!((published.key.as_deref(), &published.payload[..]), (Some(&b"k"[..]), &b"{\"order\": 1}"[..]));
    assert_eq!((published.header("x-own"), published.header("content-type")), (Some("1"), Some("application/json")));
    assert_eq!(published.header("punctual-in"), None);
    assert!(published.stamp >= sent.stamp + 400, "never early");
    assert_eq!(
        stats(&instance)["doors"]["in"],
        serde_json::json!({"kind": "kafka", "from": "punctual.in", "status": "up"})
    );
}

/// Takes more than five seconds: 10 000 messages and 50 kills, and a group waits a second for a member that was killed.
#[test]
fn ten_thousand_messages_survive_fifty_kills_each_under_one_key() {
    let quick = More { properties: "group.min.session.timeout.ms=500\n", ..More::default() };
    let Some((timeline, kafka)) = servers_with(4, &quick) else { return };
    let properties =
        "[sinks.default.properties]\n\"session.timeout.ms\" = \"1000\"\n\"heartbeat.interval.ms\" = \"200\"\n";
    let config = config(&timeline, &kafka, &format!("batch = 100\n{properties}"));
    let send = |numbers: std::ops::Range<usize>| {
        let lines: String = numbers.map(|number| format!("{number}\n")).collect();
        send(&kafka, &["punctual-in=3s", "punctual-destination=out"], &lines);
    };
    let published = || read_topic(&kafka, "out");
    let mut instances = kills::run("kafka", &config, send, published);
    // What is acknowledged does not come again.
    instances.iter_mut().for_each(|instance| {
        instance.signal("TERM");
        assert_eq!(instance.wait(), 0);
    });
    let instance = Punctual::start(&config);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(results(&instance, "unchanged") + results(&instance, "created"), 0.0);
}

#[test]
fn bad_messages_are_rejected_with_their_codes_and_stop_nobody() {
    let Some((timeline, kafka)) = servers(1) else { return };
    let instance = Punctual::start(&config(&timeline, &kafka, ""));
    let long = format!("x={}", "x".repeat(20_000));
    let of_kafka: [(&[&str], &str); 3] = [
        (&["punctual-in=1s", "punctual-in=2s"], "duplicate_field"),
        (&["punctual-in=1s", &long], "too_large"),
        (&["punctual-in=1s", "punctual-destination=no topic"], "bad_destination"),
    ];
    let mut codes = Vec::new();
    let mut send = |headers: &[&str], code: &'static str| {
        send(&kafka, headers, "bad\n");
        send(&kafka, &["punctual-in=1ms", "punctual-destination=out"], "good\n");
        codes.push(code);
    };
    for (headers, code) in kinds() {
        let headers: Vec<_> = headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        send(&headers.iter().map(String::as_str).collect::<Vec<_>>(), code);
    }
    of_kafka.iter().for_each(|(headers, code)| send(headers, code));
    let done = || kafka.records("out").len() == codes.len() && kafka.records("punctual.rejected").len() == codes.len();
    assert!(patient(TIME_LIMIT, done), "{}", instance.log());
    let found: Vec<String> = kafka
        .records("punctual.rejected")
        .iter()
        .map(|copy| copy.header("punctual-rejected").unwrap_or_default().to_owned())
        .collect();
    assert_eq!(found, codes, "in the order of the partition");
    let copy = kafka.records("punctual.rejected").remove(1);
    assert!(copy.header("punctual-rejected-from").unwrap().starts_with("punctual.in 0-2-"), "{copy:?}");
    assert_eq!((copy.header("punctual-in"), &copy.payload[..]), (Some("soon"), &b"bad"[..]));
}

/// Takes more than five seconds: the timeline is away for longer than its calls wait, and partitions are paused meanwhile.
#[test]
fn nothing_is_acknowledged_while_the_timeline_is_away() {
    let Some((_, kafka)) = servers(2) else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let config = config(&timeline, &kafka, "destination = \"out\"\nbatch = 50\n");
    let mut instance = Punctual::start(&config);
    send(&kafka, &["punctual-in=1ms"], "first\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 1), "{}", instance.log());
    timeline.server.kill();
    let lines: String = (0..500).map(|number| format!("{number}\n")).collect();
    send(&kafka, &["punctual-in=1ms"], &lines);
    instance.until("waiting", |instance| stats(instance)["doors"]["in"]["status"] == "waiting");
    std::thread::sleep(Duration::from_secs(8));
    // Another instance finds everything, because nothing was acknowledged.
    instance.kill();
    timeline.server.restart();
    let instance = Punctual::start(&config);
    let payloads = || kafka.records("out").into_iter().map(|one| one.payload).collect::<BTreeSet<_>>();
    assert!(patient(TIME_LIMIT, || payloads().len() == 501), "{} {}", payloads().len(), instance.log());
}

/// Takes more than five seconds: the timeline is away for longer than a pause of partitions takes to begin.
#[test]
fn a_door_that_has_waited_goes_on_in_order() {
    let Some((_, kafka)) = servers(1) else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let mut instance = Punctual::start(&config(&timeline, &kafka, "batch = 50\n"));
    send(&kafka, &["punctual-in=1ms", "punctual-destination=out"], "first\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 1), "{}", instance.log());
    timeline.server.kill();
    // Each replaces the one before; the last one is in force.
    let headers = ["punctual-in=1h", "punctual-destination=out", "punctual-id=one"];
    for number in 0..5 {
        let lines: String = (0..500).map(|line| format!("{number} {line}\n")).collect();
        send(&kafka, &headers, &lines);
    }
    instance.until("waiting", |instance| stats(instance)["doors"]["in"]["status"] == "waiting");
    std::thread::sleep(Duration::from_secs(4));
    timeline.server.restart();
    instance.until("up", |instance| stats(instance)["doors"]["in"]["status"] == "up");
    let last = || {
        let task = instance.api().send("GET", "/v1/tasks/one", None).ok()?.json();
        let payload = task["message"]["payload_base64"].as_str()?.to_owned();
        (payload == "NCA0OTk=").then_some(())
    };
    assert!(patient(TIME_LIMIT, || last().is_some()), "{:?}", instance.api().send("GET", "/v1/tasks/one", None));
    std::thread::sleep(Duration::from_secs(1));
    assert!(last().is_some(), "and nothing after it");
}

#[test]
fn a_stop_under_load_leaves_nothing_to_read_twice() {
    let Some((timeline, kafka)) = servers(2) else { return };
    let config = config(&timeline, &kafka, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    let lines: String = (0..5000).map(|number| format!("{number}\n")).collect();
    send(&kafka, &["punctual-in=1h"], &lines);
    instance.until("reading", |instance| results(instance, "created") > 0.0);
    let sender = std::thread::spawn({
        let (address, lines) = (kafka.address(), lines.clone());
        move || {
            let mut child = Command::new("kcat")
                .args(["-P", "-b", &address, "-t", "punctual.in", "-H", "punctual-in=1h"])
                .stdin(Stdio::piped())
                .spawn()
                .expect("kcat runs");
            child.stdin.take().expect("its input").write_all(lines.as_bytes()).expect("it reads");
            child.wait().expect("it ends")
        }
    });
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0, "{}", instance.log());
    assert!(sender.join().expect("no panic").success());
    let mut instance = Punctual::start(&config);
    let waiting = |instance: &Punctual| stats(instance)["lanes"]["default"]["waiting"] == 10_000;
    instance.until("done", |instance| waiting(instance));
    assert_eq!(results(&instance, "unchanged"), 0.0);
}

#[test]
fn a_missing_topic_is_waited_for_and_a_broker_that_was_away_is_found_again() {
    if !have_kafka() || !have("redis-server") {
        return;
    }
    let (timeline, mut kafka) = (RedisServer::start(&[]), KafkaServer::start());
    ["out", "punctual.rejected"].iter().for_each(|topic| kafka.create_stamped_topic(topic, 1));
    let config = config(&timeline, &kafka, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    instance.until("heard of the topic", |instance| stats(instance)["doors"]["in"]["status"] == "unavailable");
    let (code, out) = super::check(&config);
    assert!(code == Some(1) && out.contains("there is no topic `punctual.in`"), "{out}");
    kafka.create_stamped_topic("punctual.in", 1);
    send(&kafka, &["punctual-in=1ms"], "a\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 1), "{}", instance.log());
    instance.until("up", |instance| stats(instance)["doors"]["in"]["status"] == "up");
    kafka.server.kill();
    instance.until("away", |instance| stats(instance)["doors"]["in"]["status"] == "unavailable");
    kafka.server.restart();
    instance.until("up again", |instance| stats(instance)["doors"]["in"]["status"] == "up");
    send(&kafka, &["punctual-in=1ms"], "b\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() >= 2), "{}", instance.log());
    assert_eq!(super::check(&config).0, Some(0));
}

/// Both messages have the same partition and offset.
#[test]
fn a_topic_that_is_made_again_gives_new_ids() {
    let Some((timeline, kafka)) = servers(1) else { return };
    let config = config(&timeline, &kafka, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    send(&kafka, &["punctual-in=20s"], "old\n");
    assert!(patient(TIME_LIMIT, || results(&instance, "created") == 1.0), "{}", instance.log());
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0);
    kafka.delete_topic("punctual.in");
    kafka.create_stamped_topic("punctual.in", 1);
    let instance = Punctual::start(&config);
    send(&kafka, &["punctual-in=1ms"], "new\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 2), "{}", instance.log());
    let payloads: Vec<_> = kafka.records("out").into_iter().map(|record| record.payload).collect();
    assert_eq!(payloads, [b"new".to_vec(), b"old".to_vec()]);
    assert_eq!((results(&instance, "created"), results(&instance, "replaced")), (1.0, 0.0));
}

#[test]
fn repeated_binary_and_missing_headers_reach_the_consumer() {
    let Some((timeline, kafka)) = servers(1) else { return };
    let instance = Punctual::start(&config(&timeline, &kafka, "destination = \"out\"\n"));
    // `kcat` sends a header without a value if its argument has no `=`.
    send(&kafka, &["punctual-in=1ms", "x=1", "binary=\u{e9}\u{1}", "none", "x=2", "punctual-attempt=7"], "{}\n");
    assert!(patient(TIME_LIMIT, || !kafka.records("out").is_empty()), "{}", instance.log());
    let record = kafka.records("out").remove(0);
    let own: Vec<_> = record.headers.iter().filter(|(name, _)| !name.contains('-')).collect();
    let own: Vec<_> = own.into_iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    assert_eq!(own, [("x", Some("1")), ("binary", Some("\u{e9}\u{1}")), ("none", None), ("x", Some("2"))]);
    assert_eq!(record.header("punctual-attempt"), Some("1"));
}

/// What the published example of that scheduler sends: a schedule, one that is reset, and one that is deleted.
#[test]
fn records_of_etf1_are_published_reset_and_deleted() {
    let Some((timeline, kafka)) = servers(1) else { return };
    let instance = Punctual::start(&config(&timeline, &kafka, "dialect = \"etf1\"\n"));
    let soon = |seconds: i64| format!("scheduler-epoch={}", super::unix_time() + seconds);
    let target = ["scheduler-target-topic=out", "scheduler-target-key=video1"];
    let with = |epoch: &str| [epoch.to_owned(), target[0].to_owned(), target[1].to_owned()];
    let send =
        |headers: &[String], lines: &str| send(&kafka, &headers.iter().map(String::as_str).collect::<Vec<_>>(), lines);
    send(&with(&soon(3)), "once:one\nreset:two\ndeleted:three\n");
    send(&with(&soon(4)), "reset:four\n");
    send(&[], "deleted:\n");
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 2), "{}", instance.log());
    std::thread::sleep(Duration::from_secs(3));
    let records = kafka.records("out");
    let found: BTreeMap<_, _> = records
        .iter()
        .map(|record| (record.header("scheduler-key").unwrap(), String::from_utf8_lossy(&record.payload)))
        .collect();
    assert_eq!(found, BTreeMap::from([("once", "one".into()), ("reset", "four".into())]));
    assert_eq!(records[0].key.as_deref(), Some(&b"video1"[..]));
    assert_eq!(records[0].header("scheduler-topic"), Some("punctual.in"));
    assert_eq!(results(&instance, "rejected"), 0.0);
}

#[test]
fn records_of_sky_are_published_reset_and_deleted() {
    let Some((timeline, kafka)) = servers(1) else { return };
    let instance = Punctual::start(&config(&timeline, &kafka, "dialect = \"sky\"\n"));
    let folder = tempfile::tempdir().expect("a folder");
    let send = |key: &str, value: Option<&[u8]>| {
        let (file, address) = (folder.path().join("value"), kafka.address());
        std::fs::write(&file, value.unwrap_or_default()).expect("a file");
        let mut command = Command::new("kcat");
        command.args(["-P", "-b", &address, "-t", "punctual.in", "-k", key]).arg(file);
        match value {
            Some(_) => assert!(command.status().expect("kcat runs").success()),
            None => send(&kafka, &[], &format!("{key}:\n")),
        }
    };
    let json = |seconds: i64, value: &str| {
        let (time, value) = ((super::unix_time() + seconds) * 1000, serde_json::json!(value));
        format!(r#"{{"time":{time},"topic":"out","key":"dmlkZW8x","value":{value},"headers":{{"a":"dg=="}}}}"#)
    };
    // In base64: one, two, three, four.
    send("once", Some(json(3, "b25l").as_bytes()));
    send("reset", Some(json(3, "dHdv").as_bytes()));
    send("deleted", Some(json(3, "dGhyZWU=").as_bytes()));
    send("reset", Some(json(4, "Zm91cg==").as_bytes()));
    send("deleted", None);
    // In Avro: overdue since 1970, the topic `out`, the key `k`, the value `five`, no headers.
    send("avro", Some(b"\x02\x06out\x02k\x02\x08five\0"));
    send("bad", Some(b"\x02\x06out"));
    assert!(patient(TIME_LIMIT, || kafka.records("out").len() == 3), "{}", instance.log());
    std::thread::sleep(Duration::from_secs(3));
    let records = kafka.records("out");
    let found: Vec<_> = records
        .iter()
        .map(|record| (record.key.as_deref().unwrap_or_default(), &record.payload[..], record.header("a")))
        .collect();
    let video = &b"video1"[..];
    let expected: [(&[u8], &[u8], Option<&str>); 3] =
        [(b"k", b"five", None), (video, b"one", Some("v")), (video, b"four", Some("v"))];
    assert_eq!(found, expected);
    let rejected: Vec<_> = kafka.records("punctual.rejected");
    let codes: Vec<_> = rejected.iter().map(|copy| copy.header("punctual-rejected")).collect();
    assert_eq!(codes, [Some("bad_body")]);
}
