//! Tests that records are written as specified and can be decoded again.

use proptest::prelude::*;

use super::super::layout::has;
use super::*;
use crate::task::samples;

fn record(task: Task) -> Record {
    Record {
        revision: 7,
        created: Timestamp::from_millis(1),
        updated: Timestamp::from_millis(2),
        anchor: Timestamp::from_millis(3),
        lane: "night".parse().unwrap(),
        requeued: None,
        task,
        trace: None,
    }
}

fn trace() -> Traceparent {
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap()
}

fn once() -> Task {
    samples::task(When::At(Timestamp::from_millis(5)))
}

proptest! {
    #[test]
    fn a_record_decodes_to_the_value_that_was_encoded(task in samples::any_task(), requeued: bool, traced: bool) {
        let mut record = Record { trace: traced.then(trace), ..record(task) };
        if requeued {
            record = record.of_dead("a:b:12".parse().unwrap());
        }
        let bytes = record.encode();
        prop_assert_eq!(&Record::decode(&bytes).unwrap(), &record);
        prop_assert_eq!(record.clone().encode(), bytes);
    }

    #[test]
    fn damaged_records_are_refused_or_read_but_never_panic(task in samples::any_task(), traced: bool, cut: prop::sample::Index, at: prop::sample::Index, byte: u8) {
        let whole = Record { trace: traced.then(trace), ..record(task) }.encode();
        let cut = cut.index(whole.len());
        prop_assert!(Record::decode(&whole.slice(..cut)).is_err());
        let mut changed = whole.to_vec();
        let at = at.index(changed.len());
        changed[at] = byte;
        // Whether it can be decoded depends on the byte; it only has to return.
        let _outcome = Record::decode(&Bytes::from(changed));
    }
}

#[test]
fn record_header_fields_are_at_the_offsets_that_the_scripts_read() {
    let mut record = record(samples::task(When::In(std::time::Duration::from_secs(1))));
    record.revision = 0x0102_0304;
    let bytes = record.encode();
    assert_eq!(bytes[..6], [1, 2, 1, 2, 3, 4]);
    assert_eq!(bytes[6..30], [[0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0, 0, 3]].concat());
    assert_eq!(bytes[30..36], *b"\x05night");
    let header = RecordHeader::read(&bytes).unwrap();
    assert_eq!((header.lane, header.key, header.tail), ("night", None, &bytes[30..]));
    assert_eq!(header.flags & (RESETS | RECURRING | REQUEUED), RESETS);
}

#[test]
fn record_tails_are_equal_exactly_if_the_puts_asked_for_the_same() {
    let tail = |record: &Record| RecordHeader::read(&record.encode()).unwrap().tail.to_vec();
    let one = record(once());
    let mut later = one.clone();
    later.anchor = Timestamp::from_millis(99);
    later.updated = later.anchor;
    later.revision = 8;
    assert_eq!(tail(&one), tail(&later));
    later.trace = Some(trace());
    assert_eq!(tail(&one), tail(&later), "the trace is not asked for");
    let elsewhere = Record { lane: Lane::default(), ..one.clone() };
    assert_ne!(tail(&one), tail(&elsewhere));
    let mut other = one.clone();
    other.task.message.key = Some("k".into());
    assert_ne!(tail(&one), tail(&other));
}

#[test]
fn a_trace_is_appended_to_a_record_and_records_without_one_still_decode() {
    let plain = record(once());
    let traced = Record { trace: Some(trace()), ..plain.clone() };
    let (before, bytes) = (plain.encode(), traced.encode());
    assert_eq!((before[1], bytes[1]), (0, 8));
    assert_eq!(bytes[2..], [&before[2..], &trace().as_bytes()[..]].concat(), "nothing before it moves");
    assert_eq!(RecordHeader::read(&before).unwrap().trace, None);
    assert_eq!(Record::decode(&before).unwrap(), plain);
    let died = traced.of_dead("a:5".parse().unwrap()).encode();
    assert_eq!(died[1], 12);
    assert_eq!(Record::decode(&died).unwrap().trace, Some(trace()), "what is requeued carries it on");
    let mut wrong = bytes.to_vec();
    let at = wrong.len() - Traceparent::BYTES;
    wrong[at] = 1;
    assert_eq!(Record::decode(&wrong.clone().into()).unwrap(), plain, "another version of it counts as none");
    let kept = RecordHeader::read(&replacing(&bytes, &wrong).unwrap()).unwrap().created;
    assert_eq!(kept, plain.created, "it can be replaced, too");
    let short = [&bytes[..TAIL], &[0; 25][..]].concat();
    assert!(matches!(Record::decode(&short.into()), Err(RecordError::Damaged(_))), "no room for it");
}

#[test]
fn a_payload_is_read_without_a_copy() {
    let mut task = once();
    task.message.payload = Payload::Json(Bytes::from_static(b"{\"order\": 1}"));
    let bytes = record(task).encode();
    let payload = Record::decode(&bytes).unwrap().task.message.payload.bytes();
    assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
}

#[test]
fn a_newer_layout_is_named_and_newer_fields_are_passed_over() {
    let bytes = record(once()).encode();
    let mut newer = bytes.to_vec();
    newer[0] = 2;
    assert!(matches!(Record::decode(&newer.into()), Err(RecordError::Version(2))));

    #[derive(serde::Serialize)]
    struct Newer {
        colours: Vec<&'static str>,
        schedule: Schedule,
        message: Message,
    }
    let header = RecordHeader::read(&bytes).unwrap();
    let mut newer = bytes[..bytes.len() - header.body.len()].to_vec();
    let body = Newer { colours: vec!["red"], schedule: once().schedule, message: once().message };
    newer.extend(rmp_serde::to_vec_named(&body).unwrap());
    assert_eq!(Record::decode(&newer.into()).unwrap().task, once());
}

#[test]
fn a_body_that_is_deeper_than_any_task_is_damaged() {
    let bytes = record(once()).encode();
    let header = &bytes[..bytes.len() - RecordHeader::read(&bytes).unwrap().body.len()];
    for (depth, unknown) in [(40, true), (100, false), (100_000, false)] {
        let odd = [&b"\x83\xa1x"[..], &vec![0x91; depth], b"\xc0"].concat();
        let task = rmp_serde::to_vec_named(&once()).unwrap();
        let deep: Bytes = [header, &odd, &task[1..]].concat().into();
        match Record::decode(&deep) {
            Ok(read) => assert!(unknown && read.task == once(), "{depth} deep"),
            Err(error) => assert!(!unknown && matches!(error, RecordError::Damaged(_)), "{depth} deep: {error}"),
        }
    }
}

#[test]
fn a_dead_record_is_a_one_shot_with_its_key() {
    let every = record(samples::task(When::Every { gap: std::time::Duration::from_secs(1), start: None }));
    assert!(has(&every.encode(), RECURRING));
    let died = every.of_dead("a:5".parse().unwrap());
    let bytes = died.encode();
    let header = RecordHeader::read(&bytes).unwrap();
    assert_eq!(header.flags & (RECURRING | REQUEUED), REQUEUED);
    assert_eq!(header.key, Some("a:5"));
    assert_eq!(Record::decode(&bytes).unwrap().task, every.task);
    let longest = format!("{}:{}", "x".repeat(200), Timestamp::MAX_DUE.as_millis());
    let bytes = every.of_dead(longest.parse().unwrap()).encode();
    assert_eq!(RecordHeader::read(&bytes).unwrap().key, Some(&*longest));
}

#[test]
fn a_replacement_keeps_created_and_counts_on() {
    let old = record(once());
    let new =
        Record::new(samples::task(When::At(Timestamp::from_millis(9))), old.lane.clone(), Timestamp::from_millis(50));
    let bytes = replacing(&new.encode(), &old.encode()).unwrap();
    let expected = Record { revision: 8, created: old.created, ..new };
    assert_eq!(Record::decode(&bytes).unwrap(), expected);
    let traced = Record { trace: Some(trace()), ..expected };
    let bytes = replacing(&traced.encode(), &bytes).unwrap();
    assert_eq!(Record::decode(&bytes).unwrap().trace, Some(trace()), "the trace is that of the last put");
}

#[test]
fn native_headers_are_stored_as_they_are() {
    let mut task = samples::task(When::At(samples::NOW));
    let without = Record::new(task.clone(), Lane::default(), samples::NOW).encode();
    task.message.native = Some(StoredHeaders { kind: "rabbitmq".to_owned(), bytes: Bytes::from_static(b"\x00\xff") });
    let record = Record::new(task, Lane::default(), samples::NOW);
    assert_eq!(Record::decode(&record.encode()).unwrap(), record);
    assert!(record.encode().len() > without.len(), "a task without them has no byte more");
}
