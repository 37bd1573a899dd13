//! The bytes of a record: they are decoded or rejected. A decoded record encodes to one that decodes to the same, and
//! the engine can continue with it, whatever its fields are.

use bytes::Bytes;
use proptest::prelude::*;
use punctual::Timestamp;
use punctual::task::next_due::{CatchUpLimits, Counts, NextDueSearch};
use punctual::task::record::{Record, RecordHeader, replacing};
use punctual::task::{Member, Shard, TaskId, Traceparent, spec};

use super::task_json::{self, LIMITS, NOW};
use super::{Target, Verdict};

/// Pieces of MessagePack, and of tasks in it.
const WORDS: &[&str] = &[
    "\u{0}",
    "\u{1}",
    "\u{7f}",
    "schedule",
    "message",
    "payload",
    "Json",
    "Raw",
    "bytes",
    "when",
    "at",
    "in",
    "every",
    "cron",
    "gap",
    "start",
    "end",
    "limit",
    "spread",
    "retry",
    "max",
    "interval",
    "jitter",
    "catch_up",
    "headers",
    "* * * * *",
    "default",
    "order-1:1795176000000",
    "ä",
];

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

pub(super) const TARGET: Target = Target { name: "record", check, written: inputs, dictionary: WORDS, inputs: 500 };

fn inputs() -> BoxedStrategy<Vec<u8>> {
    // Generated tasks, in any of the forms of a record.
    let written = (task_json::written(), 0..8_u8, any::<[i64; 3]>()).prop_map(|(json, form, times)| {
        let read = spec::read(json.as_bytes(), &LIMITS, json.contains("\"id\""), NOW);
        let Ok(read) = read else { return json.into_bytes() };
        let mut record = Record::new(read.task, read.lane, NOW);
        if form & 1 != 0 {
            record.trace = TRACE.parse().ok();
        }
        if form & 2 != 0 {
            record.requeued = "order-1:1795176000000".parse().ok();
        }
        if form & 4 != 0 {
            [record.created, record.updated, record.anchor] = times.map(Timestamp::from_millis);
        }
        record.encode().to_vec()
    });
    written.boxed()
}

fn check(input: &[u8]) -> Verdict {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(record) = Record::decode(&bytes) else { return Ok(()) };
    let header = RecordHeader::read(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let read = (header.revision, header.created, header.updated, header.anchor, header.lane, header.trace);
    prop_assert_eq!(
        read,
        (record.revision, record.created, record.updated, record.anchor, record.lane.as_str(), record.trace)
    );
    prop_assert_eq!(header.key.map(str::to_owned), record.requeued.as_ref().map(ToString::to_string));
    // Encoding again writes the current version: it drops unknown fields and keeps all others.
    let again = record.encode();
    prop_assert_eq!(&Record::decode(&again).expect("it was written just now"), &record);
    prop_assert_eq!(Record::decode(&again).unwrap().encode(), &again);
    can_be_gone_on_with(&record)?;
    is_replaced(&again, &bytes)?;
    if again == bytes {
        tells_damage(&bytes)?;
    }
    Ok(())
}

/// None of these may panic, because the instance would end with every claim of this record.
fn can_be_gone_on_with(record: &Record) -> Verdict {
    let id: TaskId = "order-1".parse().unwrap();
    let member = Member::from(&id);
    let overdue = CatchUpLimits { grace: std::time::Duration::from_secs(60), catch_up_max: 100 };
    for now in [NOW, Timestamp::MAX_DUE] {
        let first = record.task.schedule.first(&id, record.anchor);
        let next = record.task.schedule.next_after(&id, record.anchor, now);
        let room = record.retry_policy(now);
        if let (Ok(Some(next)), Ok(_), Ok(_)) = (&next, &first, &room) {
            prop_assert!(*next > now, "{next:?} follows {now:?}");
        }
        if let Ok(mut search) = NextDueSearch::begin(&member, record, NOW, now, Counts::default(), overdue) {
            search.advance(5).ok();
        }
    }
    prop_assert!(!spec::write(&record.task, &record.lane).get().is_empty());
    prop_assert_eq!(Shard::of(&member.task(), 1).number(), 0);
    Ok(())
}

/// When a record replaces another, only the revision and `created` change.
fn is_replaced(new: &Bytes, old: &Bytes) -> Verdict {
    let replaced = replacing(new, old).expect("both can be read");
    let (header, former) = (RecordHeader::read(&replaced).unwrap(), RecordHeader::read(old).unwrap());
    prop_assert_eq!(header.revision, former.revision.wrapping_add(1));
    prop_assert_eq!(header.created, former.created);
    prop_assert_eq!(header.tail, RecordHeader::read(new).unwrap().tail);
    prop_assert!(replaced[..2] == new[..2] && replaced[14..] == new[14..]);
    Ok(())
}

/// A truncated record is rejected wherever it is cut. A record with a changed byte is rejected, or decodes to a
/// different one.
fn tells_damage(whole: &Bytes) -> Verdict {
    let record = Record::decode(whole).unwrap();
    let step = whole.len() / 200 + 1;
    for at in (0..whole.len()).step_by(step) {
        prop_assert!(Record::decode(&whole.slice(..at)).is_err(), "cut off after {at} bytes it can be read");
        for mask in [1, 0x80, 0xff] {
            let mut changed = whole.to_vec();
            changed[at] ^= mask;
            let Ok(read) = Record::decode(&changed.into()) else { continue };
            let again = read.encode();
            prop_assert_eq!(&Record::decode(&again).expect("it was written just now"), &read, "byte {}", at);
            // The flags `RECURRING` and `RESETS` follow from the body; an invalid trace is dropped.
            let reported = at == 1 || record.trace.is_some_and(|_| at + Traceparent::BYTES >= whole.len());
            prop_assert!(reported || read != record, "byte {at} says nothing");
        }
    }
    Ok(())
}
