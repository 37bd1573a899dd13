//! Doors over RabbitMQ: real servers and instances, written and read back by a client of the tests.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, ExchangeKind};

use super::bad_messages::kinds;
use super::{kills, results, status, waiting};
use crate::support::published::Published;
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::{have, patient};

/// Time limit for what a test waits for.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A Redis for the timeline, and a RabbitMQ with the queues of a door; `None` if a server is not installed.
pub(super) fn servers() -> Option<(RedisServer, RabbitServer)> {
    if !have("rabbitmq-server") || !have("redis-server") {
        return None;
    }
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["punctual.in", "punctual.rejected", "out"]);
    Some((RedisServer::start(&[]), rabbit))
}

fn config(timeline: &RedisServer, rabbit: &RabbitServer, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"15s\"\n[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"7s\"\n\
         [doors.in]\nsink = \"default\"\nfrom = \"punctual.in\"\nrejected = \"punctual.rejected\"\n{more}",
        timeline.url(),
        rabbit.url("")
    )
}

/// A message: its `message_id`, headers and body.
struct Sent {
    id: Option<String>,
    headers: Vec<(&'static str, AMQPValue)>,
    body: String,
}

/// A text header.
fn text(name: &'static str, value: &str) -> (&'static str, AMQPValue) {
    (name, AMQPValue::LongString(value.into()))
}

/// Sends messages with the current second as their time, and waits until the server has confirmed them. Without
/// confirms, the end of the connection may lose the last messages.
fn send(rabbit: &RabbitServer, messages: Vec<Sent>) {
    let now = u64::try_from(super::unix_time()).expect("a time after 1970");
    rabbit.with_channel("", async |channel: Channel| {
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let mut confirms = Vec::new();
        for Sent { id, headers, body } in &messages {
            let mut table = FieldTable::default();
            for (name, value) in headers {
                table.insert((*name).into(), value.clone());
            }
            let properties = BasicProperties::default().with_headers(table).with_timestamp(now).with_delivery_mode(2);
            let properties =
                id.iter().fold(properties, |properties, id| properties.with_message_id(id.as_str().into()));
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish("".into(), "punctual.in".into(), options, body.as_bytes(), properties);
            confirms.push(sent.await.expect("it is sent"));
        }
        for confirm in confirms {
            assert_eq!(confirm.await.expect("no error"), Confirmation::Ack(None));
        }
    });
}

fn one(id: &str, headers: Vec<(&'static str, AMQPValue)>, body: &str) -> Vec<Sent> {
    vec![Sent { id: Some(id.to_owned()), headers, body: body.to_owned() }]
}

/// A message for each number, which is its body.
fn numbered(numbers: Range<usize>, headers: Vec<(&'static str, AMQPValue)>) -> Vec<Sent> {
    let message =
        |number: usize| Sent { id: Some(format!("m{number}")), headers: headers.clone(), body: number.to_string() };
    numbers.map(message).collect()
}

/// All messages of the queue `out`, which stay there.
fn published(rabbit: &RabbitServer) -> Vec<Published> {
    let message = |delivery: lapin::message::Delivery| Published {
        key: delivery.properties.message_id().as_ref().expect("a key").as_str().to_owned(),
        payload: String::from_utf8(delivery.data).expect("text"),
        stamp: 0,
    };
    rabbit.queue("", "out").into_iter().map(message).collect()
}

#[test]
fn a_message_in_a_queue_is_published_at_its_time() {
    let Some((timeline, rabbit)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &rabbit, ""));
    let headers = vec![
        text("punctual-in", "400ms"),
        text("punctual-destination", "out"),
        text("x-own", "1"),
        ("x-number", AMQPValue::LongInt(7)),
        ("x-table", AMQPValue::FieldTable(FieldTable::default())),
    ];
    let before = super::unix_time();
    send(&rabbit, one("a", headers, "{\"order\": 1}"));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 1), "{}", instance.log());
    let message = rabbit.queue("", "out").remove(0);
    let key = message.properties.message_id().as_ref().expect("a key").as_str().to_owned();
    let due: i64 = key.rsplit(':').next().unwrap().parse().unwrap();
    assert!((before * 1000 + 1399..before * 1000 + 3400).contains(&due), "after the end of its second: {key}");
    assert!(key.starts_with("in.") && message.data == b"{\"order\": 1}", "{key}");
    let headers = message.properties.headers().clone().expect("headers");
    let value = |name: &str| headers.inner().get(name).cloned();
    assert_eq!(value("x-own"), Some(AMQPValue::LongString("1".into())));
    assert_eq!(value("x-number"), Some(AMQPValue::LongInt(7)));
    let table = AMQPValue::FieldTable(FieldTable::default());
    assert_eq!((value("x-table"), value("punctual-in")), (Some(table), None));
    assert_eq!(value("punctual-message-id"), Some(AMQPValue::LongString("a".into())));
    assert_eq!(status(&instance), serde_json::json!({"kind": "rabbitmq", "from": "punctual.in", "status": "up"}));
}

/// Takes more than five seconds: 10 000 messages and 50 kills.
#[test]
fn ten_thousand_messages_survive_fifty_kills_each_under_one_key() {
    let Some((timeline, rabbit)) = servers() else { return };
    let config = config(&timeline, &rabbit, "batch = 100\n");
    let send = |numbers: Range<usize>| {
        send(&rabbit, numbered(numbers, vec![text("punctual-in", "3s"), text("punctual-destination", "out")]));
    };
    let _instances = kills::run("rabbitmq", &config, send, || published(&rabbit));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "punctual.in") == 0), "all are acknowledged");
}

#[test]
fn bad_messages_are_rejected_with_their_codes_and_stop_nobody() {
    let Some((timeline, rabbit)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &rabbit, ""));
    let of_rabbitmq = (
        vec![("punctual-in", AMQPValue::FieldTable(FieldTable::default())), text("punctual-destination", "out")],
        "bad_header",
    );
    let texts =
        |headers: Vec<(&'static str, String)>| headers.into_iter().map(|(name, value)| text(name, &value)).collect();
    let bad = kinds().into_iter().map(|(headers, code)| (texts(headers), code)).chain([of_rabbitmq]);
    let mut codes = Vec::new();
    for (number, (headers, code)) in bad.enumerate() {
        send(&rabbit, one(&format!("bad{number}"), headers, "bad"));
        let good = vec![text("punctual-in", "1ms"), text("punctual-destination", "out")];
        send(&rabbit, one(&format!("good{number}"), good, "good"));
        codes.push(code.to_owned());
    }
    let done = || rabbit.count("", "out") == codes.len() && rabbit.count("", "punctual.rejected") == codes.len();
    assert!(patient(TIME_LIMIT, done), "{}", instance.log());
    let code = |delivery: &lapin::message::Delivery| {
        let headers = delivery.properties.headers().clone().expect("headers");
        match headers.inner().get("punctual-rejected") {
            Some(AMQPValue::LongString(code)) => String::from_utf8_lossy(code.as_bytes()).into_owned(),
            other => panic!("{other:?}"),
        }
    };
    let rejected = rabbit.queue("", "punctual.rejected");
    assert_eq!(rejected.iter().map(code).collect::<Vec<_>>(), codes);
    assert!(rejected.iter().all(|copy| copy.data == b"bad"));
}

/// Takes more than five seconds: the timeline is away for longer than its calls wait.
#[test]
fn nothing_is_acknowledged_while_the_timeline_is_away() {
    let Some((_, rabbit)) = servers() else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let config = config(&timeline, &rabbit, "destination = \"out\"\nbatch = 50\n");
    let mut instance = Punctual::start(&config);
    timeline.server.kill();
    send(&rabbit, numbered(0..300, vec![text("punctual-in", "1ms")]));
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    std::thread::sleep(Duration::from_secs(8));
    instance.kill();
    assert!(patient(TIME_LIMIT, || rabbit.count("", "punctual.in") == 300), "nothing was acknowledged");
    timeline.server.restart();
    let instance = Punctual::start(&config);
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 300), "{}", instance.log());
}

/// Two batches are read and not acknowledged. Takes more than five seconds: the timeline is away for longer than its calls
/// wait.
#[test]
fn a_connection_that_ends_while_the_door_waits_stops_nothing() {
    let Some((_, rabbit)) = servers() else { return };
    let mut timeline = RedisServer::start(&["--appendonly", "yes"]);
    let mut instance = Punctual::start(&config(&timeline, &rabbit, "destination = \"out\"\nbatch = 50\n"));
    timeline.server.kill();
    send(&rabbit, numbered(0..300, vec![text("punctual-in", "1ms")]));
    instance.until("waiting", |instance| status(instance)["status"] == "waiting");
    rabbit.control(&["close_all_connections", "a test"]);
    timeline.server.restart();
    let payloads = || published(&rabbit).into_iter().map(|one| one.payload).collect::<BTreeSet<_>>();
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") >= 300 && payloads().len() == 300), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || rabbit.count("", "punctual.in") == 0), "all are acknowledged");
}

#[test]
fn what_messages_lack_and_tasks_do_not_keep_is_counted_and_logged_once() {
    let Some((timeline, rabbit)) = servers() else { return };
    let streams = RedisServer::start(&[]);
    let other = format!("[sinks.other]\nurl = \"{}\"\n[lanes.other]\nsink = \"other\"\n", streams.url());
    let instance = Punctual::start(&config(&timeline, &rabbit, &format!("destination = \"out\"\n{other}")));
    let in_1ms = || vec![text("punctual-in", "1ms")];
    let nameless = || Sent { id: None, headers: in_1ms(), body: String::new() };
    send(&rabbit, vec![nameless(), nameless()]);
    send(&rabbit, one("named", in_1ms(), ""));
    let table = ("x-table", AMQPValue::FieldTable(FieldTable::default()));
    let to_other = [in_1ms(), vec![text("punctual-lane", "other"), text("x-text", "1"), table]].concat();
    send(&rabbit, one("other", to_other, ""));
    assert!(
        patient(TIME_LIMIT, || rabbit.count("", "out") == 3 && streams.stream("out").len() == 1),
        "{}",
        instance.log()
    );
    let entry = streams.stream("out").remove(0);
    assert_eq!((entry.field("x-text"), entry.field("x-table")), (Some(&b"1"[..]), None));
    let metric = |name: &str| instance.api().metric(&format!("punctual_door_{name}_total{{door=\"in\"}}"));
    assert_eq!((metric("unidentified"), metric("headers_dropped")), (2.0, 1.0));
    assert_eq!(instance.log_lines(&["messages have no `message_id`"]).len(), 1);
    assert_eq!(instance.log_lines(&["headers are left out"]).len(), 1);
}

#[test]
fn a_missing_queue_is_waited_for_and_a_server_that_was_away_is_found_again() {
    if !have("rabbitmq-server") || !have("redis-server") {
        return;
    }
    let (timeline, mut rabbit) = (RedisServer::start(&[]), RabbitServer::start("", &[], &[]));
    rabbit.declare_queues("", &["out"]);
    let config = config(&timeline, &rabbit, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    instance.until("heard of the queue", |instance| {
        status(instance)["detail"].as_str().is_some_and(|detail| detail.contains("no queue 'punctual.in'"))
    });
    let (code, out) = super::check(&config);
    assert!(code == Some(1) && out.contains("no queue 'punctual.in'"), "{out}");
    rabbit.declare_queues("", &["punctual.in"]);
    send(&rabbit, one("a", vec![text("punctual-in", "1ms")], "a"));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 1), "{}", instance.log());
    rabbit.server.kill();
    instance.until("away", |instance| status(instance)["status"] == "unavailable");
    rabbit.server.restart();
    instance.until("up again", |instance| status(instance)["status"] == "up");
    send(&rabbit, one("b", vec![text("punctual-in", "1ms")], "b"));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") >= 2), "{}", instance.log());
    let (code, out) = super::check(&config);
    assert!(code == Some(1) && out.contains("messages would be refused: `punctual.rejected`: "), "{out}");
    rabbit.declare_queues("", &["punctual.rejected"]);
    assert_eq!(super::check(&config).0, Some(0));
}

/// The rights of docs/doors.md are enough, and without the one to read the door says so.
#[test]
fn least_rights_are_enough() {
    if !have("rabbitmq-server") || !have("redis-server") {
        return;
    }
    let (timeline, rabbit) = (RedisServer::start(&[]), RabbitServer::start("", &[], &[("door", "secret")]));
    rabbit.declare_queues("", &["punctual.in", "punctual.rejected", "out"]);
    let rights = |read: &str| rabbit.control(&["set_permissions", "door", "^$", "^amq\\.default$", read]);
    rights("^punctual\\.in$");
    let url = rabbit.url("").replace("amqp://", "amqp://door:secret@");
    let config = config(&timeline, &rabbit, "destination = \"out\"\n").replace(&rabbit.url(""), &url);
    let mut instance = Punctual::start(&config);
    send(&rabbit, one("good", vec![text("punctual-in", "1ms")], "good"));
    send(&rabbit, one("bad", vec![text("punctual-in", "soon")], "bad"));
    let done = || rabbit.count("", "out") == 1 && rabbit.count("", "punctual.rejected") == 1;
    assert!(patient(TIME_LIMIT, done), "{}", instance.log());
    assert_eq!(super::check(&config).0, Some(0));
    instance.kill();
    rights("^$");
    let mut instance = Punctual::start(&config);
    instance.until("refused", |instance| {
        status(instance)["detail"].as_str().is_some_and(|detail| detail.contains("punctual.in"))
    });
    assert_eq!(status(&instance)["status"], "unavailable");
}

/// RabbitMQ accepts two kinds of messages that the client library cannot read. Deeply nested tables would overflow its
/// stack and end the process. At texts that are not UTF-8 it would end the connection, again and again.
#[test]
fn what_the_client_library_cannot_read_stops_nobody() {
    let Some((timeline, rabbit)) = servers() else { return };
    let instance = Punctual::start(&config(&timeline, &rabbit, "destination = \"out\"\n"));
    let publish = |id: &str, more: &str, key: &str| {
        let properties = format!(
            "{{'P_basic', undefined, undefined, [{{<<\"punctual-in\">>, longstr, <<\"1ms\">>}}{more}], 2, undefined, \
             undefined, undefined, undefined, {id}, undefined, undefined, undefined, undefined, undefined}}"
        );
        let nested = "F = fun F(0) -> []; F(N) -> [{array, F(N - 1)}] end";
        let exchange = "rabbit_misc:r(<<\"/\">>, exchange, <<\"amq.topic\">>)";
        rabbit.control(&[
            "eval",
            &format!("{nested}, rabbit_basic:publish({exchange}, {key}, {properties}, <<\"{{}}\">>)."),
        ]);
    };
    rabbit.bind("", "amq.topic", ExchangeKind::Topic, "punctual.in");
    publish("<<\"deep\">>", ", {<<\"deep\">>, array, F(2500)}", "<<\"key\">>");
    publish("<<255>>", "", "<<\"key\">>");
    publish("<<\"name\">>", ", {<<254>>, longstr, <<\"x\">>}", "<<\"key\">>");
    publish("<<\"key\">>", "", "<<255, 254>>");
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 4), "{}", instance.log());
    assert!(patient(TIME_LIMIT, || rabbit.count("", "punctual.in") == 0), "all are acknowledged");
    assert_eq!(status(&instance)["status"], "up");
    let ids = rabbit.queue("", "out").into_iter().map(|message| {
        message.properties.headers().as_ref().and_then(|table| table.inner().get("punctual-message-id").cloned())
    });
    let mut ids: Vec<_> = ids.map(|id| format!("{id:?}")).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

/// A producer repeats a message that was not confirmed, and uses its id for another one.
#[test]
fn equal_messages_are_one_task_and_another_body_under_their_id_is_a_second_one() {
    let Some((timeline, rabbit)) = servers() else { return };
    let mut instance = Punctual::start(&config(&timeline, &rabbit, "destination = \"out\"\n"));
    let later = || vec![text("punctual-in", "1h")];
    let twice = one("a", later(), "same").into_iter().chain(one("a", later(), "same"));
    send(&rabbit, twice.chain(one("a", later(), "other")).collect());
    instance.until("done", |instance| results(instance, "created") + results(instance, "unchanged") == 3.0);
    assert_eq!([results(&instance, "created"), results(&instance, "unchanged")], [2.0, 1.0]);
}

#[test]
fn a_stop_under_load_leaves_nothing_to_read_twice() {
    let Some((timeline, rabbit)) = servers() else { return };
    let config = config(&timeline, &rabbit, "destination = \"out\"\n");
    let mut instance = Punctual::start(&config);
    send(&rabbit, numbered(0..3000, vec![text("punctual-in", "1h")]));
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0, "{}", instance.log());
    let mut instance = Punctual::start(&config);
    instance.until("done", |instance| waiting(instance) == 3000);
    assert_eq!(results(&instance, "unchanged"), 0.0);
}
