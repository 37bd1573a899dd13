//! Doors over Redis Streams: real servers and instances, read back by `redis-cli` and by a client of the tests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::bad_messages::kinds;
use super::{check, kills, results, waiting};
use crate::support::published::read_stream;
use crate::support::punctual::Punctual;
use crate::support::redis::{Entry, RedisServer};
use crate::support::{have, patient};

/// Time limit for what a test waits for.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Configures an instance with its timeline in one Redis. The stream that the door reads and the published messages are
/// in another.
pub(super) fn config(timeline: &RedisServer, broker: &str, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"3s\"\n[sinks.default]\nurl = \"{broker}\"\nanswer_timeout = \"1s\"\n\
         [doors.in]\nsink = \"default\"\nfrom = \"punctual.in/punctual\"\nrejected = \"punctual.rejected\"\n{more}",
        timeline.url()
    )
}

pub(super) fn create_group(broker: &RedisServer) {
    let mut create = ::redis::cmd("XGROUP");
    create.arg("CREATE").arg("punctual.in").arg("punctual").arg("0").arg("MKSTREAM");
    create.exec(&mut broker.connect()).expect("a group");
}

/// A Redis for the timeline, and one with the stream and the group of a door; `None` if Redis is not installed.
pub(super) fn servers() -> Option<(RedisServer, RedisServer)> {
    if !have("redis-server") {
        return None;
    }
    let (timeline, broker) = (RedisServer::start(&[]), RedisServer::start(&[]));
    create_group(&broker);
    Some((timeline, broker))
}

/// Adds an entry with these fields and a payload.
pub(super) fn add(broker: &mut ::redis::Connection, payload: &str, fields: &[(&str, &str)]) -> String {
    let mut add = ::redis::cmd("XADD");
    add.arg("punctual.in").arg("*").arg(fields).arg("payload").arg(payload);
    add.query(broker).expect("an id")
}

/// Number of entries that were read and not acknowledged.
pub(super) fn pending(broker: &RedisServer) -> u64 {
    let answer: Vec<::redis::Value> =
        ::redis::cmd("XPENDING").arg("punctual.in").arg("punctual").query(&mut broker.connect()).expect("a summary");
    ::redis::from_redis_value(answer[0].clone()).expect("a number")
}

#[test]
fn a_message_in_a_stream_is_published_at_its_time() {
    let Some((timeline, broker)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &broker.url(), ""));
    let fields = [
        ("punctual-in", "400ms"),
        ("punctual-destination", "out"),
        ("content-type", "application/json"),
        ("x-own", "1"),
    ];
    let id = add(&mut broker.connect(), "{\"order\": 1}", &fields);
    assert!(patient(TIME_LIMIT, || !read_stream(broker.server.port, "out").is_empty()), "{}", instance.log());
    let published = read_stream(broker.server.port, "out").remove(0);
    let sent: i64 = id.split('-').next().unwrap().parse().unwrap();
    assert_eq!((published.key, published.payload.as_str()), (format!("in.{id}:{}", sent + 400), "{\"order\": 1}"));
    assert!(published.stamp >= sent + 400, "never early");
    let entry = broker.stream("out").remove(0);
    assert_eq!((entry.field("x-own"), entry.field("content-type")), (Some(&b"1"[..]), Some(&b"application/json"[..])));
    assert_eq!((entry.field("punctual-in"), pending(&broker)), (None, 0));
    let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").json();
    assert_eq!(
        stats["doors"]["in"],
        serde_json::json!({"kind": "redis", "from": "punctual.in/punctual", "status": "up"})
    );
}

/// Takes more than five seconds: 10 000 messages and 50 kills, and what a killed instance had read comes again after a
/// minute.
#[test]
fn ten_thousand_messages_survive_fifty_kills_each_under_one_key() {
    let Some((timeline, broker)) = servers() else { return };
    let config = config(&timeline, &broker.url(), "batch = 100\n");
    let mut connection = broker.connect();
    let mut expected = BTreeMap::new();
    let send = |numbers: Range<usize>| {
        for number in numbers {
            let payload = number.to_string();
            let id = add(&mut connection, &payload, &[("punctual-in", "3s"), ("punctual-destination", "out")]);
            let sent: i64 = id.split('-').next().unwrap().parse().unwrap();
            expected.insert(payload, format!("in.{id}:{}", sent + 3000));
        }
    };
    let published = || read_stream(broker.server.port, "out");
    let _instances = kills::run("redis", &config, send, published);
    for one in published() {
        assert_eq!(expected.get(&one.payload), Some(&one.key));
    }
    assert!(patient(TIME_LIMIT, || pending(&broker) == 0), "all are acknowledged");
}

#[test]
fn bad_messages_are_rejected_with_their_codes_and_stop_nobody() {
    let Some((timeline, broker)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &broker.url(), ""));
    let long = "x".repeat(20_000);
    let of_redis: [(&[(&str, &str)], &str); 4] = [
        (&[("punctual-in", "1s"), ("punctual-in", "2s")], "duplicate_field"),
        (&[("punctual-in", "1s"), ("x", &long)], "too_large"),
        (&[("punctual-in", "1s"), ("punctual-destination", "punctual:{default:0}:tasks")], "bad_destination"),
        (&[("punctual-in", "1s"), ("a b", "c")], "bad_header"),
    ];
    let mut connection = broker.connect();
    let mut codes = BTreeMap::new();
    let mut send = |fields: &[(&str, &str)], code: &str| {
        let id = add(&mut connection, "p", fields);
        codes.insert(format!("punctual.in/punctual {id}"), code.to_owned());
        add(&mut connection, "good", &[("punctual-in", "1ms"), ("punctual-destination", "out")]);
    };
    for (fields, code) in kinds() {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        send(&fields, code);
    }
    of_redis.iter().for_each(|(fields, code)| send(fields, code));
    // Neither a name nor a value is text.
    let mut binary = ::redis::cmd("XADD");
    binary.arg("punctual.in").arg("*").arg(&[0xff_u8, 0xfe][..]).arg(&[0xff_u8][..]).arg("punctual-in").arg("1s");
    let id: String = binary.query(&mut connection).expect("an id");
    codes.insert(format!("punctual.in/punctual {id}"), "bad_header".to_owned());
    let rejected = || broker.stream("punctual.rejected");
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let found = || -> BTreeMap<String, String> {
        let from_and_code =
            |copy: &Entry| (text(copy.field("punctual-rejected-from")), text(copy.field("punctual-rejected")));
        rejected().iter().map(from_and_code).collect()
    };
    patient(Duration::from_secs(20), || found().len() == codes.len());
    assert_eq!(found(), codes, "{}", instance.log());
    assert!(patient(TIME_LIMIT, || read_stream(broker.server.port, "out").len() == codes.len() - 1));
    assert_eq!(pending(&broker), 0);
    let warned = instance.log_lines(&["a message was rejected"]).len();
    assert_eq!(warned, 10, "and no more in a minute");
}

/// Takes more than five seconds: the timeline is away for longer than its calls wait, and than the pause between two searches
/// for idle entries.
#[test]
fn nothing_is_acknowledged_while_the_timeline_is_away() {
    if !have("redis-server") {
        return;
    }
    let (mut timeline, broker) = (RedisServer::start(&["--appendonly", "yes"]), RedisServer::start(&[]));
    create_group(&broker);
    let mut instance = Punctual::start(&config(&timeline, &broker.url(), "destination = \"out\"\n"));
    timeline.server.kill();
    let mut connection = broker.connect();
    let ids: Vec<String> = (0..300).map(|n| add(&mut connection, &format!("{n}"), &[("punctual-in", "1s")])).collect();
    instance.until("waiting", |instance| {
        let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").json();
        stats["doors"]["in"]["status"] == "waiting"
    });
    std::thread::sleep(Duration::from_secs(16));
    let read = pending(&broker);
    assert!((1..=200).contains(&read), "{read} are read and not acknowledged");
    // As after an outage of two minutes. The door has these entries, so it must not read them a second time.
    let mut idle = ::redis::cmd("XCLAIM");
    idle.arg(["punctual.in", "punctual", "punctual", "0"].as_slice()).arg(&ids[..usize::try_from(read).unwrap()]);
    idle.arg(["IDLE", "120000", "JUSTID"].as_slice()).exec(&mut connection).expect("they are idle");
    let ready = instance.api().ready().expect("an answer").json();
    assert!(ready["stopped_doors"]["in"].is_string(), "{ready}");
    timeline.server.restart();
    assert!(patient(TIME_LIMIT, || read_stream(broker.server.port, "out").len() >= ids.len()), "{}", instance.log());
    let order: Vec<String> = read_stream(broker.server.port, "out").into_iter().map(|one| one.payload).collect();
    assert_eq!((order.len(), pending(&broker)), (ids.len(), 0));
    assert_eq!(results(&instance, "unchanged"), 0.0, "{}", instance.log());
    assert!(!instance.log_lines(&[" WARN ", "a door is stopped"]).is_empty());
    assert!(!instance.log_lines(&[" INFO ", "a door goes on"]).is_empty());
}

#[test]
fn a_stop_under_load_leaves_no_entry_unacknowledged() {
    let Some((timeline, broker)) = servers() else { return };
    let mut instance = Punctual::start(&config(&timeline, &broker.url(), "destination = \"out\"\n"));
    let mut connection = broker.connect();
    let begun = tokio::time::Instant::now();
    let mut sent = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        add(&mut connection, &format!("{sent}"), &[("punctual-in", "1h")]);
        sent += 1;
        if sent == 200 {
            instance.signal("TERM");
        }
    }
    assert_eq!((instance.wait(), pending(&broker)), (0, 0), "{}", instance.log());
    let instance = Punctual::start(&config(&timeline, &broker.url(), "destination = \"out\"\n"));
    assert!(
        patient(TIME_LIMIT, || waiting(&instance) == sent),
        "{sent}: {:?}",
        instance.api().send("GET", "/v1/tasks:count", None)
    );
}

/// A consumer that no longer exists has read two entries. One of the entries has been deleted since.
#[test]
fn an_entry_that_was_trimmed_while_it_was_pending_stops_nobody() {
    let Some((timeline, broker)) = servers() else { return };
    let mut connection = broker.connect();
    let trimmed = add(&mut connection, "trimmed", &[("punctual-in", "1ms")]);
    let kept = add(&mut connection, "kept", &[("punctual-in", "1ms")]);
    let mut read = ::redis::cmd("XREADGROUP");
    read.arg(["GROUP", "punctual", "gone", "STREAMS", "punctual.in", ">"].as_slice());
    read.exec(&mut connection).expect("both entries");
    let mut idle = ::redis::cmd("XCLAIM");
    idle.arg(["punctual.in", "punctual", "gone", "0", &trimmed, &kept, "IDLE", "120000"].as_slice());
    idle.exec(&mut connection).expect("both are idle");
    ::redis::cmd("XDEL").arg("punctual.in").arg(&trimmed).exec(&mut connection).expect("one is deleted");
    assert_eq!(pending(&broker), 2);
    let instance = Punctual::start(&config(&timeline, &broker.url(), "destination = \"out\"\n"));
    assert!(patient(TIME_LIMIT, || pending(&broker) == 0), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || !read_stream(broker.server.port, "out").is_empty()), "{}", instance.log());
    add(&mut connection, "new", &[("punctual-in", "1ms")]);
    assert!(patient(TIME_LIMIT, || read_stream(broker.server.port, "out").len() >= 2), "{}", instance.log());
    let payloads: Vec<String> = read_stream(broker.server.port, "out").into_iter().map(|one| one.payload).collect();
    assert_eq!(payloads, ["kept", "new"]);
    assert!(broker.stream("punctual.rejected").is_empty());
}

#[test]
fn a_door_needs_few_rights_and_waits_for_its_group() {
    if !have("redis-server") {
        return;
    }
    let (timeline, broker) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let mut user = ::redis::cmd("ACL");
    user.arg("SETUSER").arg("door").arg("on").arg(">secret").arg("~punctual.in").arg("~punctual.rejected").arg("~out");
    user.arg(["+xreadgroup", "+xautoclaim", "+xack", "+xdel", "+xinfo|groups", "+xadd", "+ping", "+type"].as_slice());
    user.exec(&mut broker.connect()).expect("a user");
    let url = format!("redis://door:secret@127.0.0.1:{}", broker.server.port);
    let config = config(&timeline, &url, "destination = \"out\"\ndelete = true\n");
    let mut instance = Punctual::start(&config);
    instance.until("heard of the group", |instance| {
        !instance.log_lines(&[" WARN ", "a door is stopped", "NOGROUP"]).is_empty()
    });
    let (code, out) = check(&config);
    assert!(code == Some(1) && out.contains("door in") && out.contains("XGROUP CREATE punctual.in punctual"), "{out}");
    create_group(&broker);
    add(&mut broker.connect(), "good", &[("punctual-in", "1ms")]);
    add(&mut broker.connect(), "bad", &[("punctual-in", "soon")]);
    let done = || read_stream(broker.server.port, "out").len() + broker.stream("punctual.rejected").len() == 2;
    assert!(patient(TIME_LIMIT, done), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || broker.stream("punctual.in").is_empty()), "they are deleted");
    let (code, out) = check(&config);
    assert!(code == Some(0) && out.contains("door in"), "{out}");
    let denied: Vec<::redis::Value> = ::redis::cmd("ACL").arg("LOG").query(&mut broker.connect()).expect("a log");
    assert_eq!(denied, Vec::new());
}
