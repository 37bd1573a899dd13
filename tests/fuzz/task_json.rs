//! A task as JSON: an accepted task survives the record and JSON formats unchanged, and becomes due. A rejected one has
//! faults whose pointers lead to a place in the JSON.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use punctual::Timestamp;
use punctual::http::Problem;
use punctual::task::record::{Record, RecordHeader};
use punctual::task::spec::{self, Fault, MAX_FAULTS, Read};
use punctual::task::{Limits, TaskId, When};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Target, Verdict};

/// Time of every put: 2026-11-20 12:00 UTC.
pub(super) const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

/// Small limits, so that inputs exceed them.
pub(super) const LIMITS: Limits = Limits { payload: 2000, headers: 8, header_bytes: 500 };

/// Members that the reader knows, valid and invalid.
const SCHEDULE: &[&str] = &[
    r#""at":"2027-01-01T00:00:00Z""#,
    r#""at":"9999-12-31T23:59:59.9991Z""#,
    r#""in":"15m""#,
    r#""in":"2932896d23h59m""#,
    r#""every":"1m""#,
    r#""every":"1ms""#,
    r#""cron":"30 2 * * *""#,
    r#""cron":"0 0 29 2 MON#1""#,
    r#""cron":"* * * * * *""#,
    r#""zone":"Europe/Berlin""#,
    r#""zone":"Mars/Base""#,
    r#""start":"2026-11-20T12:00:00.5+01:00""#,
    r#""end":"2027-11-20T12:00:00-05:30""#,
    r#""end":"2026-11-20T12:00:00Z""#,
    r#""limit":3"#,
    r#""limit":9007199254740992"#,
    r#""spread":"30s""#,
    r#""spread":"1d""#,
    r#""ever\u0079":"1h""#,
    r#""wat":null"#,
];
const MESSAGE: &[&str] = &[
    r#""destination":"orders.timeout""#,
    r#""destination":"a\nb""#,
    r#""key":"order-1""#,
    r#""headers":{"tenant":"acme","b":"ä"}"#,
    r#""headers":{"Nats-Msg-Id":"1","":"x","c":5}"#,
    r#""payload":{"order": 1e400, "a":[1,  2]}"#,
    r#""payload":"\ud800""#,
    r#""payload":null"#,
    r#""payload_base64":"aGVsbG8=""#,
    r#""payload_base64":"aGVsbG8""#,
    r#""content_type":"text/plain""#,
    r#""":1"#,
];
const REST: &[&str] = &[
    r#""id":"order-1""#,
    r#""id":"-1""#,
    r#""lane":"night""#,
    r#""lane":"NIGHT""#,
    r#""retry":{"max":2,"interval":"100ms","jitter":"0s"}"#,
    r#""retry":{"max":4294967295}"#,
    r#""retry":{}"#,
    r#""catch_up":"all""#,
    r#""catch_up":"alll""#,
    r#""a/b~c":[[[[]]]]"#,
];

pub(super) const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "1e999",
    "-0",
    "\"\":",
    "\"schedule\":",
    "\"message\":",
    "\"in\":\"1s\"",
    "\"cron\":\"",
    "ms",
    "d",
    "T24:00:00Z",
    "+23:59",
    "\u{feff}",
    "ä",
    "\u{7f}",
];

pub(super) const TARGET: Target = Target { name: "task-json", check, written: inputs, dictionary: WORDS, inputs: 500 };

fn inputs() -> BoxedStrategy<Vec<u8>> {
    written().prop_map(String::into_bytes).boxed()
}

/// A task, with or without faults.
pub(super) fn written() -> impl Strategy<Value = String> {
    let gap = select(&["", "", " ", "\n\t"][..]);
    let part = |all: &'static [&'static str], most| subsequence(all, 0..most).prop_shuffle();
    (part(SCHEDULE, 4), part(MESSAGE, 4), part(REST, 3), gap).prop_map(|(schedule, message, rest, gap)| {
        let comma = format!("{gap},{gap}");
        let mut members = vec![
            format!("\"schedule\":{gap}{{{}}}", schedule.join(&comma)),
            format!("\"message\":{gap}{{{}}}", message.join(&comma)),
        ];
        members.extend(rest.into_iter().map(str::to_owned));
        format!("{{{gap}{}{gap}}}", members.join(&comma))
    })
}

fn check(input: &[u8]) -> Verdict {
    for expect_id in [false, true] {
        let read = spec::read(input, &LIMITS, expect_id, NOW);
        prop_assert_eq!(&read, &spec::read(input, &LIMITS, expect_id, NOW), "read twice");
        match read {
            Err(faults) => have_places(input, faults)?,
            Ok(read) => {
                prop_assert_eq!(read.id.is_some(), expect_id);
                survives_encoding(&read)?;
                comes_due(&read)?;
                is_the_same_again(input, &read, expect_id)?;
            }
        }
    }
    for read in [
        spec::read_preview(input, NOW, Some("Europe/Berlin")).map(|_| ()),
        spec::read_filter(input, &["rejected"], 1000).map(|_| ()),
        spec::read_bulk(input, &["rejected"]).map(|_| ()),
        spec::read_nothing(input),
    ] {
        read.or_else(|faults| have_places(input, faults))?;
    }
    Ok(())
}

/// Every fault has a code that the OpenAPI document names, a detail of bounded length, and a place that exists or whose
/// parent exists.
pub(super) fn have_places(input: &[u8], faults: Vec<Fault>) -> Verdict {
    prop_assert!((1..=MAX_FAULTS).contains(&faults.len()), "{} faults", faults.len());
    for fault in &faults {
        prop_assert!(!fault.detail.is_empty() && fault.detail.len() < 4096, "{fault:?}");
    }
    let only_whole = matches!(&faults[..], [fault] if fault.pointer.is_empty() && fault.code == "not_json");
    prop_assert!(only_whole || serde_json::from_slice::<&RawValue>(input).is_ok(), "{faults:?}");
    // `Value` accepts less JSON than this reader, keeps the last of two equal members, and does not know truncated
    // names.
    let cut_or_twice = |fault: &Fault| fault.code == "duplicate_field" || fault.pointer.contains("...");
    if let Ok(value) = serde_json::from_slice::<Value>(input)
        && !faults.iter().any(cut_or_twice)
    {
        for fault in &faults {
            let there = |pointer: &str| value.pointer(pointer).is_some();
            let missing = || {
                let (above, _) = fault.pointer.rsplit_once('/').unwrap_or_default();
                fault.code == "missing_field" && there(above)
            };
            prop_assert!(there(&fault.pointer) || missing(), "no such place: {fault:?}");
        }
    }
    // A debug build checks the codes against those of the document.
    let problem = Problem::invalid(faults);
    prop_assert!(problem.status.is_client_error());
    Ok(())
}

fn record(read: &Read) -> Record {
    Record::new(read.task.clone(), read.lane.clone(), NOW)
}

/// The part of the record that scripts compare to find equal tasks.
fn tail(read: &Read) -> Vec<u8> {
    let bytes = record(read).encode();
    RecordHeader::read(&bytes).unwrap().tail.to_vec()
}

fn survives_encoding(read: &Read) -> Verdict {
    let record = record(read);
    let bytes = record.encode();
    let decoded = Record::decode(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&decoded, &record);
    prop_assert_eq!(decoded.encode(), bytes);
    Ok(())
}

/// An accepted task has a first due, whatever its id.
fn comes_due(read: &Read) -> Verdict {
    let schedule = &read.task.schedule;
    for id in ["a", "order-1", "Z:9"] {
        let id: TaskId = id.parse().unwrap();
        let first = schedule.first(&id, NOW);
        let Ok(Some(first)) = first else {
            return Err(TestCaseError::fail(format!("no first due: {first:?}")));
        };
        prop_assert!(first.is_valid_due(), "{first:?}");
        prop_assert!(matches!(schedule.when, When::At(_)) || first > NOW, "{first} is not later than the put");
        prop_assert!(schedule.end.is_none_or(|end| first <= end), "{first} is beyond the end");
        if schedule.is_recurring()
            && let Some(next) = schedule.next_after(&id, NOW, first).unwrap()
        {
            prop_assert!(next > first, "{next} follows {first}");
        }
    }
    prop_assert!(read.task.retry_policy(NOW, NOW).is_ok());
    Ok(())
}

/// punctual's own JSON of the task, or the same members in another order with other whitespace, reads as the same task.
/// The bytes that scripts compare are equal.
fn is_the_same_again(input: &[u8], read: &Read, expect_id: bool) -> Verdict {
    let written = spec::write(&read.task, &read.lane);
    let again = spec::read(written.get().as_bytes(), &LIMITS, false, NOW);
    let expected = Read { id: None, ..read.clone() };
    prop_assert_eq!(again.as_ref(), Ok(&expected), "{}", written);
    let other = reordered(serde_json::from_slice(input).unwrap(), "");
    let again = spec::read(other.as_bytes(), &LIMITS, expect_id, NOW);
    prop_assert_eq!(again.as_ref(), Ok(read), "{}", other);
    prop_assert_eq!(tail(&again.unwrap()), tail(read));
    Ok(())
}

/// The same JSON with the members of its objects from Z to A, except inside the payload.
fn reordered(raw: &RawValue, name: &str) -> String {
    if !["", "schedule", "message", "headers", "retry"].contains(&name) {
        return raw.get().to_owned();
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get()).unwrap();
    let member =
        |(name, raw): (&String, &&RawValue)| format!("{} : {}", Value::from(name.as_str()), reordered(raw, name));
    format!("{{ {}\n}}", members.iter().rev().map(member).collect::<Vec<_>>().join("\t,"))
}
