//! What messages become.

#[cfg(feature = "rabbitmq")]
mod rabbitmq;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::native::{HeaderList, NativeHeaders};
use punctual_sinks::source::Incoming;
use punctual_sinks::{DestinationPatterns, MemorySink, MemorySource};

use super::*;
use crate::clock::ManualClock;
use crate::engine::{AllowedTasks, LaneRequirements};
use crate::task::{CatchUp, Limits, Payload, When};
use crate::timeline::memory::MemoryTimeline;

const NOON: i64 = 1_795_262_400_000;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(NOON + ms)
}

fn door() -> Door {
    let sink = MemorySink::new(0, Duration::from_secs(1));
    Door::new("in", Arc::new(MemorySource::default()), "punctual.in", Arc::new(sink))
}

/// A message that was sent at noon; headers are `name: value`.
fn message(headers: &[&str]) -> Incoming {
    let header = |header: &&str| {
        let (name, value) = header.split_once(": ").unwrap();
        (name.to_owned(), Bytes::copy_from_slice(value.as_bytes()))
    };
    Incoming {
        place: "17-0".to_owned(),
        time_ms: Some(NOON),
        body: Some(Bytes::from_static(b"{\"order\": 1}\n")),
        headers: headers.iter().map(header).collect(),
        ..Incoming::default()
    }
}

/// Reads a message a second after noon. The lane `orders` has a sink of the kind `memory`, the other one has none.
fn read_by(door: &Door, message: &Incoming) -> Result<Instruction, Rejection> {
    let timeline = Arc::new(MemoryTimeline::new(Arc::new(ManualClock::new(at(1000))), 1));
    let sink = Some(Arc::clone(&door.sink)).filter(|sink| sink.kind() == "memory");
    let lanes = [("default", None), ("orders", sink)]
        .map(|(lane, sink)| (lane.parse().unwrap(), LaneRequirements { sink, ..LaneRequirements::default() }));
    read(door, &Intake::new(timeline, lanes.into()), message, at(1000))
}

fn put(door: &Door, headers: &[&str]) -> PutInstruction {
    match read_by(door, &message(headers)) {
        Ok(Instruction::Put(put)) => *put,
        other => panic!("{headers:?}: {other:?}"),
    }
}

fn rejection(door: &Door, headers: &[&str]) -> (&'static str, String) {
    match read_by(door, &message(headers)) {
        Err(Rejection { code, detail }) => (code, detail),
        other => panic!("{headers:?}: {other:?}"),
    }
}

#[test]
fn a_delay_counts_from_the_moment_of_the_message() {
    let PutInstruction { new, names_id, due } = put(&door(), &["punctual-in: 15m", "punctual-destination: orders"]);
    assert_eq!((new.id.as_str(), names_id), ("in.17-0", false));
    assert_eq!(new.task.schedule.when, When::At(at(900_000)));
    assert_eq!((due, new.lane.as_str()), (at(900_000), "default"));
    assert_eq!(new.task.message.destination.as_deref(), Some("orders"));
    let Payload::Raw { bytes, content_type } = new.task.message.payload else { panic!("it has no type") };
    assert_eq!((&bytes[..], content_type), (&b"{\"order\": 1}\n"[..], None), "byte for byte");

    let every = put(&door(), &["Punctual-Every: 1h", "punctual-limit: 3", "punctual-spread: 5m"]).new.task.schedule;
    assert_eq!(every.when, When::Every { gap: Duration::from_secs(3600), start: Some(at(0)) });
    assert_eq!((every.limit, every.spread), (Some(3), Some(Duration::from_secs(300))));

    let unknown = Incoming { time_ms: None, ..message(&["punctual-in: 15m"]) };
    let Ok(Instruction::Put(put)) = read_by(&door(), &unknown) else { panic!("it is put") };
    assert_eq!(put.new.task.schedule.when, When::In(Duration::from_secs(900)));
    assert_eq!(put.due, at(901_000), "it counts from the reading");
}

#[test]
fn all_headers_become_members_of_the_task_or_headers_of_its_message() {
    let PutInstruction { new, names_id, .. } = put(
        &door(),
        &[
            "PUNCTUAL-AT: 1795262460000",
            "punctual-id: order-1",
            "punctual-lane: orders",
            "punctual-key: k",
            "punctual-catch-up: all",
            "punctual-retry: {\"max\": 2}",
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "content-type: text/plain",
            "X-Own: value",
            // Consumers forward what they received.
            "idempotency-key: old:1",
            "punctual-task: old",
            "punctual-due: 1",
            "punctual-attempt: 1",
            "punctual-dead-reason: retries",
            "punctual-rejected-detail: why",
            "Nats-Msg-Id: old",
        ],
    );
    assert_eq!((new.id.as_str(), names_id, new.lane.as_str()), ("order-1", true, "orders"));
    assert_eq!(new.task.schedule.when, When::At(at(60_000)));
    assert_eq!(new.task.message.key.as_deref(), Some("k"));
    assert_eq!(new.task.catch_up, Some(CatchUp::All));
    assert_eq!(new.task.retry.unwrap().max, 2);
    assert!(new.trace.is_some());
    let headers: Vec<_> = new.task.message.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(headers, ["X-Own: value"]);
    let Payload::Raw { content_type, .. } = new.task.message.payload else { panic!("it is no JSON") };
    assert_eq!(content_type.as_deref(), Some("text/plain"));
}

#[test]
fn a_body_of_json_is_shown_as_json_if_nothing_is_around_it() {
    let json = |body: &'static [u8]| {
        let headers = ["punctual-in: 1s", "Content-Type: application/json"];
        let message = Incoming { body: Some(Bytes::from_static(body)), ..message(&headers) };
        let Ok(Instruction::Put(put)) = read_by(&door(), &message) else { panic!("it is put") };
        put.new.task.message.payload
    };
    assert_eq!(json(b"{\"a\":1}"), Payload::Json(Bytes::from_static(b"{\"a\":1}")));
    assert_eq!(json(b""), Payload::Empty);
    for body in [&b"{\"a\":1}\n"[..], b"{\"a\":"] {
        assert!(matches!(json(body), Payload::Raw { .. }), "{body:?}");
    }
}

#[test]
fn a_door_gives_what_a_message_does_not_name() {
    let door = Door {
        lane: Some("orders".parse().unwrap()),
        destination: Some("orders.due".to_owned()),
        catch_up: Some(CatchUp::None),
        ..door()
    };
    let new = put(&door, &["punctual-in: 1s"]).new;
    assert_eq!((new.lane.as_str(), new.task.catch_up), ("orders", Some(CatchUp::None)));
    assert_eq!(new.task.message.destination.as_deref(), Some("orders.due"));
    let headers = ["punctual-in: 1s", "punctual-lane: default", "punctual-destination: a", "punctual-catch-up: once"];
    let new = put(&door, &headers).new;
    assert_eq!((new.lane.as_str(), new.task.catch_up), ("default", Some(CatchUp::Once)));
    assert_eq!(new.task.message.destination.as_deref(), Some("a"));
}

#[test]
fn a_message_cancels_a_task_by_its_id() {
    let cancel = |headers: &[&str]| read_by(&door(), &message(headers));
    let id = "order-1".parse().unwrap();
    assert_eq!(cancel(&["punctual-do: cancel", "punctual-id: order-1", "x: y"]), Ok(Instruction::Cancel(id)));
    assert_eq!(rejection(&door(), &["punctual-do: cancel"]).0, "missing_field");
    let (code, detail) = rejection(&door(), &["punctual-do: cancel", "punctual-id: a", "punctual-in: 1s"]);
    assert_eq!((code, detail.as_str()), ("not_applicable", "punctual-in: it goes with `put` only"));
    assert_eq!(
        cancel(&["punctual-rejected: bad_id", "punctual-in: 1s"]),
        Ok(Instruction::Skip("loop")),
        "a door wrote it"
    );
}

#[test]
fn a_message_with_a_fault_is_rejected_with_the_code_of_the_api_and_the_name_of_the_header() {
    let long = format!("punctual-in: {}", "1".repeat(5000));
    let id = format!("punctual-id: {}", "a".repeat(201));
    for (headers, code, text) in [
        (&["x: y"][..], "missing_field", "punctual-in, punctual-at, punctual-every, punctual-cron: one of"),
        (&["punctual-in: 1s", "punctual-at: 1795262460000"], "exclusive_fields", "punctual-in, "),
        (&["punctual-in: 1s", "punctual-inn: 1s"], "unknown_field", "punctual-inn: it is not known"),
        (&["punctual-in: 1s", "Punctual-In: 2s"], "duplicate_field", "Punctual-In: this header is repeated"),
        (&["punctual-in: 1s", "x: 1", "x: 2"], "duplicate_field", "x: "),
        (&["punctual-in: soon"], "bad_duration", "punctual-in: `soon`"),
        (&["punctual-in: 300000000d"], "bad_duration", "punctual-in: "),
        (&["punctual-in: 2932000d"], "out_of_range", "punctual-in: "),
        (&[&long], "bad_duration", "punctual-in: "),
        (&["punctual-at: 1795262460"], "bad_time", "looks like seconds"),
        (&["punctual-at: tomorrow"], "bad_time", "punctual-at: `tomorrow`"),
        (&["punctual-at: 999999999999999999"], "bad_time", "punctual-at: "),
        (&["punctual-cron: 0 0 31 2 *"], "never_due", "punctual-cron: "),
        (&["punctual-cron: x"], "bad_cron", "punctual-cron: "),
        (&["punctual-cron: 0 0 * * *", "punctual-zone: Mars/One"], "bad_zone", "punctual-zone: "),
        (&["punctual-in: 1s", "punctual-zone: UTC"], "not_applicable", "punctual-zone: "),
        (&["punctual-every: 1h", "punctual-limit: many"], "wrong_type", "punctual-limit: "),
        (&["punctual-every: 1h", "punctual-end: 1795262300000"], "end_before_first", "punctual-end: "),
        (&["punctual-in: 1s", "punctual-retry: {"], "not_json", "punctual-retry: "),
        (&["punctual-in: 1s", "punctual-retry: {\"max\": -1}"], "out_of_range", "punctual-retry: "),
        (&["punctual-in: 1s", "punctual-retry: {\"max\": 1, \"max\": 2}"], "duplicate_field", "punctual-retry: "),
        (&["punctual-in: 1s", "punctual-lane: A B"], "bad_lane", "punctual-lane: "),
        (&["punctual-in: 1s", "punctual-catch-up: some"], "bad_value", "punctual-catch-up: "),
        (&["punctual-in: 1s", "punctual-do: jump"], "bad_value", "punctual-do: `jump`"),
        (&["punctual-in: 1s", "punctual-id: a b"], "bad_id", "punctual-id: "),
        (&["punctual-in: 1s", &id], "bad_id", "punctual-id: "),
        (&["punctual-in: 1s", "a b: c"], "bad_header", "a b: "),
        (&["punctual-in: 1s", "cc: x"], "reserved_header", "cc: "),
        (&["punctual-in: 1s", "content-type: a\u{1}"], "bad_value", "content-type: "),
        (&["punctual-in: 1s", "punctual-destination: "], "bad_value", "punctual-destination: "),
    ] {
        let (found, detail) = rejection(&door(), headers);
        assert!(found == code && detail.contains(text), "{headers:?}: {found}: {detail}");
        assert!(detail.len() <= MAX_DETAIL_BYTES, "{headers:?}");
    }
    let not_utf8 = Incoming { headers: vec![("x".to_owned(), Bytes::from_static(b"\xff"))], ..message(&[]) };
    assert_eq!(read_by(&door(), &not_utf8).unwrap_err().code, "bad_header");
    let large = Incoming { body: Some(vec![b'x'; (512 << 10) + 1].into()), ..message(&["punctual-in: 1s"]) };
    assert_eq!(read_by(&door(), &large).unwrap_err().code, "too_large");
    let (code, detail) = rejection(&door(), &["punctual-in: soon", "punctual-lane: A B"]);
    assert!(code == "bad_duration" && detail.contains("; punctual-lane: "), "all faults at once: {detail}");
}

#[test]
fn the_limits_of_a_door_hold_for_its_messages() {
    let allowed = AllowedTasks {
        lanes: vec!["orders".parse().unwrap()],
        prefix: "shop.".parse().unwrap(),
        destinations: Some(DestinationPatterns::new(vec!["orders.*".to_owned()]).unwrap()),
    };
    let door = Door { allowed, ..door() };
    let new = put(&door, &["punctual-in: 1s", "punctual-id: a", "punctual-destination: orders.a"]).new;
    assert_eq!((new.id.as_str(), new.lane.as_str()), ("shop.a", "orders"));
    assert_eq!(put(&door, &["punctual-in: 1s", "punctual-destination: orders.a"]).new.id.as_str(), "shop.in.17-0");
    let headers = ["punctual-in: 1s", "punctual-destination: orders.a", "punctual-lane: default"];
    assert_eq!(rejection(&door, &headers), ("foreign_lane", "the door is limited to the lanes `orders`".to_owned()));
    let (code, _) = rejection(&door, &["punctual-in: 1s", "punctual-destination: news"]);
    assert_eq!(code, "foreign_destination");
    let cancel = read_by(&door, &message(&["punctual-do: cancel", "punctual-id: a"]));
    assert_eq!(cancel, Ok(Instruction::Cancel("shop.a".parse().unwrap())), "only its own ids");
}

/// A record for the scheduler of etf1.
fn record(key: Option<&'static str>, headers: &[&str]) -> Incoming {
    Incoming { key: key.map(|key| Bytes::from_static(key.as_bytes())), ..message(headers) }
}

#[test]
fn what_a_message_lacks_and_what_its_task_does_not_keep_is_seen() {
    let put = |message: &Incoming| match read_by(&door(), message) {
        Ok(Instruction::Put(put)) => (put.is_unidentified(message), put.dropped_headers(message)),
        other => panic!("{other:?}"),
    };
    assert_eq!(put(&message(&["punctual-in: 15m", "x: y"])), (false, 0));
    let random = |headers| Incoming { is_place_random: true, ..message(headers) };
    assert_eq!(put(&random(&["punctual-in: 15m"])), (true, 0), "another id");
    assert_eq!(put(&random(&["punctual-in: 15m", "punctual-id: a"])), (false, 0));
    let timeless = |headers| Incoming { time_ms: None, ..message(headers) };
    assert_eq!(put(&timeless(&["punctual-in: 15m", "punctual-id: a"])), (true, 0), "another due");
    assert_eq!(put(&timeless(&["punctual-every: 15m"])), (true, 0));
    assert_eq!(put(&timeless(&["punctual-cron: * * * * *"])), (false, 0));
    let native = |names: &[&str]| {
        let headers = names.iter().map(|name| ((*name).to_owned(), None)).collect();
        Some(NativeHeaders::List(HeaderList { kind: "kafka", headers }))
    };
    let names = ["x", "table", "punctual-in", "content-type", "Traceparent", "list"];
    let message = Incoming { native: native(&names), ..message(&["punctual-in: 15m", "x: y"]) };
    assert_eq!(put(&message), (false, 2), "`table` and `list`");
}

#[test]
fn a_record_of_etf1_becomes_a_task_with_its_headers() {
    let door = Door { dialect: Dialect::Etf1, from: "schedules".to_owned(), ..door() };
    let headers =
        ["scheduler-epoch: 1795262460", "scheduler-target-topic: orders", "scheduler-target-key: k", "x: y", "a b: c"];
    let Ok(Instruction::Put(put)) = read_by(&door, &record(Some("video-1"), &headers)) else { panic!("it is put") };
    let PutInstruction { new, names_id, due } = *put;
    assert_eq!((new.id.as_str(), names_id, due), ("video-1", true, at(60_000)));
    assert_eq!(new.task.message.destination.as_deref(), Some("orders"));
    assert_eq!(new.task.message.key.as_deref(), Some("k"));
    let headers: Vec<_> = new.task.message.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        headers,
        [
            "scheduler-epoch: 1795262460",
            "scheduler-key: video-1",
            "scheduler-target-key: k",
            "scheduler-target-topic: orders",
            "scheduler-timestamp: 1795262400",
            "scheduler-topic: schedules",
            "x: y",
        ]
    );
    // A key that is no id, and the destination of the door.
    let with = Door { destination: Some("due".to_owned()), ..door.clone() };
    let Ok(Instruction::Put(put)) = read_by(&with, &record(Some("order 1"), &["scheduler-epoch: 1795262460"])) else {
        panic!("it is put")
    };
    // printf %s 'order 1' | sha256sum, with the bits of version and variant.
    assert_eq!(put.new.id.as_str(), "f3d6f0d5-5b05-8fde-b011-6c2eaffd74e9");
    assert_eq!(put.new.task.message.key.as_deref(), Some(put.new.id.as_str()));
    assert_eq!(put.new.task.message.destination.as_deref(), Some("due"));
    let tombstone = Incoming { body: None, ..record(Some("video-1"), &[]) };
    assert_eq!(read_by(&door, &tombstone), Ok(Instruction::Cancel("video-1".parse().unwrap())));
    let past = Door { max_overdue: Some(Duration::from_secs(60)), ..door.clone() };
    for (epoch, is_too_late) in [("1795262400", false), ("1795262341", false), ("1795262340", true)] {
        let headers = [&format!("scheduler-epoch: {epoch}"), "scheduler-target-topic: orders"];
        let read = read_by(&past, &record(Some("a"), &headers.map(AsRef::<str>::as_ref)));
        assert_eq!(matches!(read, Ok(Instruction::CancelTooLate(_))), is_too_late, "{epoch}: {read:?}");
    }
}

#[test]
fn a_record_of_etf1_with_a_fault_is_rejected() {
    let door = Door { dialect: Dialect::Etf1, ..door() };
    let many: Vec<String> = (0..70)
        .map(|n| format!("x{n}: y"))
        .chain(["scheduler-epoch: 1".to_owned(), "scheduler-target-topic: a".to_owned()])
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (key, headers, code) in [
        (None, &["scheduler-epoch: 1"][..], "no_key"),
        (Some(" "), &["scheduler-epoch: 1"], "no_key"),
        (Some("a"), &["x: y"], "bad_epoch"),
        (Some("a"), &["scheduler-epoch: soon"], "bad_epoch"),
        (Some("a"), &["scheduler-epoch: -1"], "bad_epoch"),
        (Some("a"), &["scheduler-epoch: 9223372036854775807"], "bad_epoch"),
        (Some("a"), &["scheduler-epoch: 1795262460"], "no_destination"),
        (Some("a"), &many, "too_many"),
    ] {
        assert_eq!(read_by(&door, &record(key, headers)).unwrap_err().code, code, "{headers:?}");
    }
}

/// Native headers of the kind of the lane `orders`.
fn native(headers: &[(&str, Option<&'static [u8]>)]) -> Option<NativeHeaders> {
    let header = |(name, value): &(&str, Option<&'static [u8]>)| ((*name).to_owned(), value.map(Bytes::from_static));
    Some(NativeHeaders::List(HeaderList { kind: "memory", headers: headers.iter().map(header).collect() }))
}

#[test]
fn native_headers_travel_on_if_the_sink_of_the_lane_publishes_them() {
    let headers =
        ["punctual-in: 1s", "punctual-destination: orders", "x: 1", "x: 2", "punctual-attempt: 3", "content-type: a/b"];
    let of_message: Vec<_> = headers
        .iter()
        .map(|text| text.split_once(": ").unwrap())
        .map(|(name, value)| (name, Some(value.as_bytes())))
        .chain([("none", None), ("traceparent", Some(&b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"[..]))])
        .collect();
    let message = Incoming { native: native(&of_message), ..message(&headers) };
    let on_orders = Door { lane: Some("orders".parse().unwrap()), ..door() };
    let Ok(Instruction::Put(put)) = read_by(&on_orders, &message) else { panic!("it is put") };
    let stored = put.new.task.message.native.expect("native headers");
    assert_eq!(stored.kind, "memory");
    let names = HeaderList::decode(stored.bytes).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names, ["x", "x", "none"]);
    assert!(put.new.task.message.headers.is_empty());
    // Another sink gets text, and cannot carry the repeated name.
    assert_eq!(read_by(&door(), &message).unwrap_err().code, "duplicate_field");
    let small = Limits { header_bytes: 10, ..on_orders.limits };
    assert_eq!(read_by(&Door { limits: small, ..on_orders }, &message).unwrap_err().code, "too_large");
}
