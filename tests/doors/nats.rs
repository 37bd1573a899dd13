//! Doors over JetStream: real servers and instances, written and read back by a client of the tests.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use serde_json::json;

use super::bad_messages::kinds;
use super::kills::{self, MESSAGES};
use super::{results, status, waiting};
use crate::support::nats::{NatsClient, NatsServer};
use crate::support::published::read_subject;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, patient};

/// Time limit for what a test waits for.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A Redis for the timeline, and a NATS with the streams and the consumer of a door; `None` if a server is not installed.
pub(super) fn servers() -> Option<(RedisServer, NatsServer)> {
    if !have("nats-server") || !have("redis-server") {
        return None;
    }
    let nats = NatsServer::start("");
    let mut client = nats.connect();
    client.create_stream("REJECTED", &["punctual.rejected"], &json!({}));
    client.create_stream("OUT", &["out"], &json!({}));
    create_source(&mut client, 2);
    Some((RedisServer::start(&[]), nats))
}

/// Creates the stream that the door reads. Its consumer gets a message again if it is not acknowledged within
/// `ack_wait` seconds.
pub(super) fn create_source(client: &mut NatsClient, ack_wait: u64) {
    client.create_stream("IN", &["punctual.in"], &json!({}));
    let consumer = json!({"durable_name": "punctual", "ack_policy": "explicit", "ack_wait": ack_wait * 1_000_000_000,
        "max_ack_pending": 20_000});
    client.jetstream("CONSUMER.DURABLE.CREATE.IN.punctual", &json!({"stream_name": "IN", "config": consumer}));
}

pub(super) fn config(timeline: &RedisServer, nats: &NatsServer, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"15s\"\n[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"7s\"\n\
         [doors.in]\nsink = \"default\"\nfrom = \"IN/punctual\"\nrejected = \"punctual.rejected\"\n{more}",
        timeline.url(),
        nats.url()
    )
}

pub(super) fn send(nats: &NatsServer, headers: &[(&str, &str)], payloads: impl IntoIterator<Item = String>) {
    let mut client = nats.connect();
    for payload in payloads {
        client.publish("punctual.in", "", headers, payload.as_bytes());
    }
    // An answer means that the server has read everything before it.
    client.jetstream("INFO", &json!({}));
}

pub(super) fn length(nats: &NatsServer, stream: &str) -> u64 {
    nats.connect().stream_length(stream)
}

/// Number of messages of the consumer that are not acknowledged, or not delivered.
pub(super) fn open(nats: &NatsServer) -> u64 {
    let info = nats.connect().jetstream("CONSUMER.INFO.IN.punctual", &json!({}));
    info["num_ack_pending"].as_u64().expect("a number") + info["num_pending"].as_u64().expect("a number")
}

#[test]
fn a_message_in_a_stream_of_jetstream_is_published_at_its_time() {
    let Some((timeline, nats)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &nats, ""));
    let headers = [("Punctual-In", "400ms"), ("punctual-destination", "out"), ("x-own", "1"), ("Nats-Msg-Id", "mine")];
    send(&nats, &headers, ["{\"order\": 1}".to_owned()]);
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") == 1), "{}", instance.log());
    let (sent, stored) =
        (nats.connect().stream_messages("IN").remove(0), nats.connect().stream_messages("OUT").remove(0));
    let ms = (sent.stored_ns + 999_999).div_euclid(1_000_000);
    assert_eq!(stored.header("idempotency-key"), Some(format!("in.1-{ms}:{}", ms + 400).as_str()));
    assert_eq!((stored.header("x-own"), &stored.payload[..]), (Some("1"), &b"{\"order\": 1}"[..]));
    assert_ne!(stored.header("nats-msg-id"), Some("mine"));
    assert!(stored.stored_ns >= (ms + 400) * 1_000_000, "never early");
    assert!(patient(TIME_LIMIT, || open(&nats) == 0), "it is acknowledged");
    assert_eq!(status(&instance), json!({"kind": "nats", "from": "IN/punctual", "status": "up"}));
}

/// Takes more than five seconds: 10 000 messages and 50 kills.
#[test]
fn ten_thousand_messages_survive_fifty_kills_each_under_one_key() {
    let Some((timeline, nats)) = servers() else { return };
    let config = config(&timeline, &nats, "batch = 100\n");
    let headers = [("punctual-in", "3s"), ("punctual-destination", "out")];
    let send = |numbers: Range<usize>| send(&nats, &headers, numbers.map(|number| number.to_string()));
    // The client of the tests reads a stream only while nothing is added to it.
    let published = || if length(&nats, "OUT") < MESSAGES as u64 { Vec::new() } else { read_subject(&nats, "OUT") };
    let _instances = kills::run("nats", &config, send, published);
    assert!(patient(TIME_LIMIT, || open(&nats) == 0), "all are acknowledged");
}

#[test]
fn bad_messages_are_rejected_with_their_codes_and_stop_nobody() {
    let Some((timeline, nats)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &nats, ""));
    let of_nats: [(&[(&str, &str)], &str); 2] = [
        (&[("punctual-in", "1s"), ("punctual-in", "2s")], "duplicate_field"),
        (&[("punctual-in", "1s"), ("punctual-destination", "$JS.API.INFO")], "bad_destination"),
    ];
    let mut codes = Vec::new();
    let mut send = |headers: &[(&str, &str)], code: &'static str| {
        send(&nats, headers, ["bad".to_owned()]);
        send(&nats, &[("punctual-in", "1ms"), ("punctual-destination", "out")], ["good".to_owned()]);
        codes.push(code);
    };
    for (headers, code) in kinds() {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        send(&headers, code);
    }
    of_nats.iter().for_each(|(headers, code)| send(headers, code));
    let count = codes.len() as u64;
    let done = || length(&nats, "OUT") == count && length(&nats, "REJECTED") == count && open(&nats) == 0;
    assert!(patient(TIME_LIMIT, done), "{}", instance.log());
    let rejected = nats.connect().stream_messages("REJECTED");
    let found: Vec<_> = rejected.iter().map(|copy| copy.header("punctual-rejected").unwrap_or_default()).collect();
    assert_eq!(found, codes);
}

/// Two batches are read and not acknowledged. Takes more than five seconds: the timeline is away for longer than its calls
/// wait.
#[test]
fn a_connection_that_ends_while_the_door_waits_stops_nothing() {
    let Some((_, mut nats)) = servers() else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let mut instance = Punctual::start(&config(&timeline, &nats, "destination = \"out\"\nbatch = 50\n"));
    timeline.server.kill();
    send(&nats, &[("punctual-in", "1ms")], (0..300).map(|number| number.to_string()));
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    nats.server.kill();
    nats.server.restart();
    timeline.server.restart();
    let payloads = || read_subject(&nats, "OUT").into_iter().map(|one| one.payload).collect::<BTreeSet<_>>();
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") >= 300 && payloads().len() == 300), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || open(&nats) == 0), "all are acknowledged");
}

#[test]
fn a_missing_consumer_is_waited_for_and_a_server_that_was_away_is_found_again() {
    if !have("nats-server") || !have("redis-server") {
        return;
    }
    let (timeline, mut nats) = (RedisServer::start(&[]), NatsServer::start(""));
    nats.connect().create_stream("OUT", &["out"], &json!({}));
    nats.connect().create_stream("REJECTED", &["punctual.rejected"], &json!({}));
    let config = config(&timeline, &nats, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    instance.until("heard of the consumer", |instance| {
        status(instance)["detail"].as_str().is_some_and(|detail| detail.contains("not found"))
    });
    let (code, out) = super::check(&config);
    assert!(code == Some(1) && out.contains("door in") && out.contains("not found"), "{out}");
    create_source(&mut nats.connect(), 2);
    send(&nats, &[("punctual-in", "1ms")], ["a".to_owned()]);
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") == 1), "{}", instance.log());
    nats.server.kill();
    instance.until("away", |instance| status(instance)["status"] == "unavailable");
    nats.server.restart();
    instance.until("up again", |instance| status(instance)["status"] == "up");
    send(&nats, &[("punctual-in", "1ms")], ["b".to_owned()]);
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") >= 2), "{}", instance.log());
    assert_eq!(super::check(&config).0, Some(0));
}

/// The consumer is deleted while the door holds messages of it, and made again once their acknowledgement has failed.
#[test]
fn a_door_acknowledges_again_after_an_acknowledgement_has_failed() {
    let Some((_, nats)) = servers() else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let mut instance = Punctual::start(&config(&timeline, &nats, "destination = \"out\"\nbatch = 50\n"));
    timeline.server.kill();
    send(&nats, &[("punctual-in", "1ms")], (0..300).map(|number| number.to_string()));
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    nats.connect().jetstream("CONSUMER.DELETE.IN.punctual", &json!({}));
    timeline.server.restart();
    assert!(patient(TIME_LIMIT, || results(&instance, "created") >= 50.0), "the batch is done: {}", instance.log());
    create_source(&mut nats.connect(), 2);
    let payloads = || read_subject(&nats, "OUT").into_iter().map(|one| one.payload).collect::<BTreeSet<_>>();
    assert!(patient(TIME_LIMIT, || length(&nats, "OUT") >= 300 && payloads().len() == 300), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || open(&nats) == 0), "{} are open: {}", open(&nats), instance.log());
    instance.until("up again", |instance| status(instance)["status"] == "up");
}

#[test]
fn a_stop_under_load_leaves_nothing_to_read_twice() {
    let Some((timeline, nats)) = servers() else { return };
    // What a stop leaves in a pull comes again after `ack_wait`, and was not put.
    let config = config(&timeline, &nats, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    send(&nats, &[("punctual-in", "1h")], (0..3000).map(|number| number.to_string()));
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0, "{}", instance.log());
    let mut instance = Punctual::start(&config);
    instance.until("done", |instance| waiting(instance) == 3000 && open(&nats) == 0);
    assert_eq!(results(&instance, "unchanged"), 0.0);
}
