//! Tests which tasks are accepted, which are refused and with which pointers, and that a written task can be parsed
//! again.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::task::samples::{self, NOW};
use crate::task::{Message, Payload, RetryPolicy, Schedule, When};

fn read_one(json: &str) -> Result<Read, Vec<Fault>> {
    read(json.as_bytes(), &Limits::default(), false, NOW)
}

/// Pointers and codes of all faults, sorted.
fn faults(json: &str) -> Vec<(String, &'static str)> {
    let faults = read_one(json).expect_err(json);
    let mut named: Vec<_> = faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
    named.sort();
    named
}

fn detail(json: &str) -> String {
    match read_one(json).expect_err(json).as_slice() {
        [fault] => fault.detail.clone(),
        several => panic!("one fault is expected: {several:?}"),
    }
}

fn with_schedule(schedule: &str) -> String {
    format!(r#"{{"schedule":{schedule},"message":{{}}}}"#)
}

fn with_message(message: &str) -> String {
    format!(r#"{{"schedule":{{"in":"1s"}},"message":{message}}}"#)
}

#[test]
fn a_task_with_everything_is_read() {
    let json = r#"{
      "schedule": {"cron": "0 30 9 * * MON-FRI", "zone": "Europe/Berlin", "end": "2027-12-31T00:00:00Z", "limit": 9, "spread": "5m"},
      "message": {"destination": "orders.timeout", "key": "order-123", "headers": {"tenant": "acme"}, "payload": {"order": 123}},
      "lane": "night", "retry": {"max": 3, "interval": "200ms", "jitter": "500ms"}, "catch_up": "all"}"#;
    let found = read_one(json).unwrap();
    let when = When::Cron { expression: "0 30 9 * * MON-FRI".into(), zone: Some("Europe/Berlin".into()), start: None };
    let end = Some(Timestamp::from_millis(1_830_211_200_000));
    let schedule = Schedule { when, end, limit: Some(9), spread: Some(Duration::from_secs(300)) };
    let message = Message {
        destination: Some("orders.timeout".into()),
        key: Some("order-123".into()),
        headers: [("tenant".to_owned(), "acme".to_owned())].into(),
        native: None,
        payload: Payload::Json(Bytes::from_static(b"{\"order\": 123}")),
    };
    let task = Task { schedule, message, retry: Some(RetryPolicy::DEFAULT), catch_up: Some(CatchUp::All) };
    assert_eq!(found, Read { id: None, lane: "night".parse().unwrap(), task });
}

#[test]
fn every_fault_is_named_at_once() {
    let json = r#"{
      "schedule": {"every": "0s", "cron": "61 * * * *", "zone": "Europe/Berlim", "limit": 0, "stard": "x", "end": "soon"},
      "message": {"destination": 7, "headers": {"Content-Type": "a", "a b": "c", "x": "1\n2", "y": 5}, "payload": 1, "payload_base64": "%%"},
      "lane": "Night", "retry": {"max": -1, "interval": "1y"}, "catch_up": "al", "id": "x", "priority": 1, "priority": 2}"#;
    let expected = [
        ("/catch_up", "bad_value"),
        ("/id", "unknown_field"),
        ("/lane", "bad_lane"),
        ("/message", "exclusive_fields"),
        ("/message/destination", "wrong_type"),
        ("/message/headers/Content-Type", "reserved_header"),
        ("/message/headers/a b", "bad_header"),
        ("/message/headers/x", "bad_header"),
        ("/message/headers/y", "wrong_type"),
        ("/message/payload_base64", "bad_base64"),
        ("/priority", "duplicate_field"),
        ("/priority", "unknown_field"),
        ("/retry/interval", "bad_duration"),
        ("/retry/max", "out_of_range"),
        ("/schedule", "exclusive_fields"),
        ("/schedule/cron", "bad_cron"),
        ("/schedule/end", "bad_time"),
        ("/schedule/every", "bad_duration"),
        ("/schedule/limit", "out_of_range"),
        ("/schedule/stard", "unknown_field"),
        ("/schedule/zone", "bad_zone"),
    ];
    assert_eq!(faults(json), expected.map(|(pointer, code)| (pointer.to_owned(), code)));
}

#[test]
fn each_broken_schedule_rule_is_reported_at_its_field() {
    let cases = [
        ("{}", "", "missing_field"),
        ("7", "", "wrong_type"),
        ("null", "", "wrong_type"),
        (r#"{"at":"2026-11-20T12:00:00Z","in":"1s"}"#, "", "exclusive_fields"),
        (r#"{"at":"tomorrow"}"#, "/at", "bad_time"),
        (r#"{"at":1795176000}"#, "/at", "wrong_type"),
        (r#"{"at":"1970-01-01T00:00:00Z"}"#, "/at", "out_of_range"),
        (r#"{"at":"2026-11-20T12:00:00Z","zone":"UTC"}"#, "/zone", "not_applicable"),
        (r#"{"at":"2026-11-20T12:00:00Z","limit":1}"#, "/limit", "not_applicable"),
        (r#"{"in":"1s","spread":"1ms"}"#, "/spread", "not_applicable"),
        (r#"{"in":"1s","start":"2026-11-20T12:00:00Z"}"#, "/start", "not_applicable"),
        (r#"{"in":"1s","end":"2026-12-20T12:00:00Z"}"#, "/end", "not_applicable"),
        (r#"{"every":"1s","zone":"UTC"}"#, "/zone", "not_applicable"),
        (r#"{"in":30}"#, "/in", "wrong_type"),
        (r#"{"every":"0ms"}"#, "/every", "bad_duration"),
        (r#"{"in":"-5s"}"#, "/in", "bad_duration"),
        (r#"{"in":"2932896d"}"#, "/in", "out_of_range"),
        (r#"{"every":"2932896d"}"#, "/every", "out_of_range"),
        (r#"{"in":"99999999999999999999d"}"#, "/in", "bad_duration"),
        (r#"{"every":"1m","limit":1.5}"#, "/limit", "out_of_range"),
        (r#"{"every":"1m","limit":"2"}"#, "/limit", "wrong_type"),
        (r#"{"every":"1m","end":"2026-11-20T12:00:59.999Z"}"#, "/end", "end_before_first"),
        (r#"{"every":"1m","end":"2026-11-20T12:01:00.998Z","spread":"1s"}"#, "/end", "end_before_first"),
        (r#"{"every":"1m","spread":"1m"}"#, "/spread", "spread_too_long"),
        (r#"{"cron":"*/5 * * * *","spread":"6m"}"#, "/spread", "spread_too_long"),
        (r#"{"cron":"* * * *"}"#, "/cron", "bad_cron"),
        (r#"{"cron":"* * * * * * *"}"#, "/cron", "bad_cron"),
        (r#"{"cron":"0 0 31 2 *"}"#, "/cron", "never_due"),
        (r#"{"cron":"@daily","zone":"Mars"}"#, "/zone", "bad_zone"),
        (r#"{"cron":"@daily","end":"2026-11-20T13:00:00Z"}"#, "/end", "end_before_first"),
    ];
    for (schedule, place, code) in cases {
        assert_eq!(faults(&with_schedule(schedule)), [(format!("/schedule{place}"), code)], "{schedule}");
    }
    let long = format!(r#"{{"cron":"{} * * * *"}}"#, vec!["1"; 300].join(","));
    assert_eq!(faults(&with_schedule(&long)), [("/schedule/cron".to_owned(), "too_large")]);
}

#[test]
fn schedules_at_the_limits_are_valid() {
    for schedule in [
        r#"{"at":"1970-01-01T00:00:00.001Z"}"#,
        r#"{"at":"9999-12-31T23:59:59.999Z"}"#,
        r#"{"every":"1m","end":"2026-11-20T12:01:00Z"}"#,
        r#"{"every":"1m","end":"2026-11-20T12:01:00.999Z","spread":"1s"}"#,
        r#"{"every":"1m","spread":"59s999ms"}"#,
        r#"{"every":"1ms"}"#,
        r#"{"every":"1m","start":"2020-01-01T00:00:00Z"}"#,
        r#"{"cron":"@daily","zone":"Europe/Berlin","limit":1}"#,
    ] {
        read_one(&with_schedule(schedule)).expect(schedule);
    }
}

#[test]
fn a_time_finer_than_a_millisecond_is_never_early() {
    let found = read_one(&with_schedule(r#"{"at":"2026-11-20T12:00:00.0001Z"}"#)).unwrap();
    assert_eq!(found.task.schedule.when, When::At(Timestamp::from_millis(NOW.as_millis() + 1)));
}

#[test]
fn each_broken_message_rule_is_reported_at_its_field() {
    let cases = [
        ("[]", "", "wrong_type"),
        (r#"{"destination":""}"#, "/destination", "bad_value"),
        (r#"{"destination":"a\u0000b"}"#, "/destination", "bad_value"),
        (r#"{"destination":"\ud800"}"#, "/destination", "not_json"),
        (r#"{"key":7}"#, "/key", "wrong_type"),
        (r#"{"headers":[]}"#, "/headers", "wrong_type"),
        (r#"{"headers":{"":"x"}}"#, "/headers/", "bad_header"),
        (r#"{"headers":{"ä":"x"}}"#, "/headers/ä", "bad_header"),
        (r#"{"headers":{"a/b~":"x"}}"#, "/headers/a~1b~0", "bad_header"),
        (r#"{"headers":{"a\r\nb":"x"}}"#, "/headers/a\r\nb", "bad_header"),
        (r#"{"headers":{"a":"x\r\nb: c"}}"#, "/headers/a", "bad_header"),
        (r#"{"headers":{"a":"1","a":"2"}}"#, "/headers/a", "duplicate_field"),
        (r#"{"headers":{"Punctual-Task":"x"}}"#, "/headers/Punctual-Task", "reserved_header"),
        (r#"{"headers":{"NATS-x":"x"}}"#, "/headers/NATS-x", "reserved_header"),
        (r#"{"headers":{"Idempotency-Key":"x"}}"#, "/headers/Idempotency-Key", "reserved_header"),
        (r#"{"headers":{"PAYLOAD":"x"}}"#, "/headers/PAYLOAD", "reserved_header"),
        (r#"{"headers":{"Cc":"x"}}"#, "/headers/Cc", "reserved_header"),
        (r#"{"headers":{"bcC":"x"}}"#, "/headers/bcC", "reserved_header"),
        (r#"{"payload":1,"payload":2}"#, "/payload", "duplicate_field"),
        (r#"{"payload":1,"payload_base64":"AA=="}"#, "", "exclusive_fields"),
        (r#"{"payload":1,"tombstone":true}"#, "/tombstone", "exclusive_fields"),
        (r#"{"payload_base64":"","tombstone":true}"#, "/tombstone", "exclusive_fields"),
        (r#"{"tombstone":1}"#, "/tombstone", "wrong_type"),
        (r#"{"payload":1,"content_type":"text/plain"}"#, "/content_type", "not_applicable"),
        (r#"{"content_type":"text/plain"}"#, "/content_type", "not_applicable"),
        (r#"{"payload_base64":"AA"}"#, "/payload_base64", "bad_base64"),
        (r#"{"payload_base64":7}"#, "/payload_base64", "wrong_type"),
        (r#"{"payloat":1}"#, "/payloat", "unknown_field"),
    ];
    for (message, place, code) in cases {
        assert_eq!(faults(&with_message(message)), [(format!("/message{place}"), code)], "{message}");
    }
}

#[test]
fn names_that_people_use_instead_are_understood_in_the_error() {
    for (json, expected) in [
        (r#"{"schedule":{"cron":"0 9 * * *","timezone":"UTC"},"message":{}}"#, "did you mean `zone`?"),
        (r#"{"schedule":{"delay":"5m"},"message":{}}"#, "did you mean `in`?"),
        (r#"{"schedule":{"in":"1s"},"message":{"topic":"a"}}"#, "did you mean `destination`?"),
        (r#"{"schedule":{"in":"1s"},"message":{},"queue":"a"}"#, "did you mean `destination` in `message`?"),
        (r#"{"schedule":{"in":"1s"},"message":{},"delay":"5m"}"#, "did you mean `in` in `schedule`?"),
    ] {
        let faults = read(json.as_bytes(), &Limits::default(), false, NOW).unwrap_err();
        assert!(faults.iter().any(|fault| fault.detail.ends_with(expected)), "{json}: {faults:?}");
    }
}

#[test]
fn a_default_zone_applies_to_cron_schedules_that_name_none() {
    let limits = Limits::default();
    let options = ReadOptions { limits: &limits, expect_id: false, lane: Lane::default(), zone: Some("Europe/Berlin") };
    let zone = |schedule: &str| {
        let json = format!(r#"{{"schedule":{schedule},"message":{{}}}}"#);
        let read = read_checked(json.as_bytes(), &options, NOW, &|_, _| None).expect(schedule);
        read.task.schedule.zone().map(str::to_owned)
    };
    assert_eq!(zone(r#"{"cron":"0 9 * * *"}"#).as_deref(), Some("Europe/Berlin"));
    assert_eq!(zone(r#"{"cron":"0 9 * * *","zone":"UTC"}"#).as_deref(), Some("UTC"));
    assert_eq!(zone(r#"{"every":"1h"}"#), None);
}

#[test]
fn limits_are_named_with_both_numbers_and_their_option() {
    let limits = Limits { payload: 4, headers: 1, header_bytes: 5 };
    let found = |message: &str| match read(with_message(message).as_bytes(), &limits, false, NOW) {
        Ok(_) => String::new(),
        Err(faults) => faults.into_iter().map(|fault| fault.detail).collect::<Vec<_>>().join("; "),
    };
    assert_eq!(found(r#"{"payload":1234,"headers":{"ab":"cde"}}"#), "");
    assert_eq!(found(r#"{"payload_base64":"AAAAAA=="}"#), "");
    assert_eq!(found(r#"{"payload":12345}"#), "the payload has 5 bytes, `limits.payload` allows 4");
    assert_eq!(found(r#"{"payload_base64":"AAAAAAA="}"#), "the payload has 5 bytes, `limits.payload` allows 4");
    let both =
        "there are 2 headers, `limits.headers` allows 1; all headers have 6 bytes, `limits.header_bytes` allows 5";
    assert_eq!(found(r#"{"headers":{"ab":"c","de":"f"}}"#), both);
}

#[test]
fn a_payload_is_kept_byte_for_byte() {
    for payload in ["{ \"b\" : 1,  \"a\":\t1.50e+2 , \"a\": 2}", "\"\\u00e9\\/\"", "null", "-0.0", "[ ]"] {
        let found = read_one(&with_message(&format!(r#"{{"payload":  {payload}  }}"#))).unwrap();
        assert_eq!(found.task.message.payload.bytes(), payload.as_bytes());
        let written = write(&found.task, &found.lane);
        assert!(written.get().contains(&format!(r#""payload":{payload}}}"#)), "{written}");
    }
}

#[test]
fn retries_must_end_in_time() {
    let with = |schedule: &str, retry: &str| format!(r#"{{"schedule":{schedule},"message":{{}},"retry":{retry}}}"#);
    let once = r#"{"in":"1s"}"#;
    assert!(read_one(&with(once, r#"{"max":4,"interval":"2s","jitter":"0s"}"#)).is_ok(), "30 s fit");
    let ever = detail(&with(once, r#"{"max":4294967295,"interval":"500d"}"#));
    assert_eq!(ever, "all retries together may take 30s; these take up to more than a year");
    let long = detail(&with(once, r#"{"max":4,"interval":"2s","jitter":"1ms"}"#));
    assert_eq!(long, "all retries together may take 30s; these take up to 30s4ms");
    for schedule in [r#"{"every":"2900ms"}"#, r#"{"cron":"*/2 * * * * *"}"#] {
        let long = detail(&with(schedule, r#"{"max":3}"#));
        assert!(long.contains("2900 ms") && (long.contains(": 2900 ms") || long.contains(": 2000 ms")), "{long}");
    }
    assert!(read_one(&with(r#"{"every":"2901ms"}"#, "{}")).is_ok());
    let spread = detail(&with(r#"{"every":"10s","spread":"8s"}"#, "{}"));
    assert!(spread.contains("less the spread: 2000 ms"), "{spread}");
    assert!(read_one(&with_schedule(r#"{"every":"1ms"}"#)).is_ok(), "the default is shortened");
    assert_eq!(faults(&with(once, r#"{"interval":"0s"}"#)), [("/retry/interval".to_owned(), "bad_duration")]);
    assert_eq!(faults(&with(once, r#"{"max":99999}"#)), [("/retry".to_owned(), "retry_too_long")]);
}

#[test]
fn the_latest_possible_due_reads_and_writes_unchanged() {
    let json = r#"{"schedule":{"at":"9999-12-31T23:59:59.999Z"},"message":{},"lane":"default"}"#;
    assert_eq!(write(&read_one(json).unwrap().task, &Lane::default()).get(), json);
}

#[test]
fn an_id_is_read_and_required_in_a_batch_line() {
    let line = |json: &str| read(json.as_bytes(), &Limits::default(), true, NOW);
    let good = line(r#"{"id":"a:1","schedule":{"in":"1s"},"message":{}}"#).unwrap();
    assert_eq!(good.id, Some("a:1".parse().unwrap()));
    assert_eq!(good.lane, Lane::default());
    let missing = line(r#"{"schedule":{"in":"1s"},"message":{}}"#).unwrap_err();
    assert_eq!((missing[0].pointer.as_str(), missing[0].code), ("/id", "missing_field"));
    let bad = line(r#"{"id":"!a","schedule":{"in":"1s"},"message":{}}"#).unwrap_err();
    assert_eq!((bad[0].pointer.as_str(), bad[0].code), ("/id", "bad_id"));
}

#[test]
fn faults_suggest_the_nearest_known_name() {
    assert_eq!(
        detail(r#"{"schedule":{"in":"1s"},"message":{},"lanes":"x"}"#),
        "`lanes` is not known here; did you mean `lane`?"
    );
    let zone = detail(&with_schedule(r#"{"cron":"@daily","zone":"Europe/Berlim"}"#));
    assert!(zone.ends_with("did you mean `Europe/Berlin`?"), "{zone}");
    assert!(detail(r#"{"schedule":{"in":"1s"},"message":{},"catch_up":"onec"}"#).ends_with("did you mean `once`?"));
    let unlike = detail(r#"{"schedule":{"in":"1s"},"message":{},"colour":"x"}"#);
    assert!(unlike.ends_with("known are `schedule`, `message`, `lane`, `retry`, `catch_up`"), "{unlike}");
}

#[test]
fn a_body_that_is_not_json_has_exactly_one_fault() {
    for json in ["", "{", "nul", "{\"a\":1} x", "{'a':1}", "\u{feff}{}", "{\"schedule\":{\"in\":\"1s\"},}"] {
        assert_eq!(faults(json), [(String::new(), "not_json")], "{json}");
    }
    assert!(read(b"{\"lane\":\"\xff\"}", &Limits::default(), false, NOW).is_err());
    assert_eq!(faults("[]"), [(String::new(), "wrong_type")]);
}

#[test]
fn a_tombstone_has_no_payload_or_null() {
    for (message, payload) in [
        (r#"{"tombstone":true}"#, Payload::Tombstone),
        (r#"{"tombstone":true,"payload":null}"#, Payload::Tombstone),
        (r#"{"tombstone":false}"#, Payload::Empty),
        (r#"{"payload":null}"#, Payload::Json(Bytes::from_static(b"null"))),
    ] {
        assert_eq!(read_one(&with_message(message)).unwrap().task.message.payload, payload, "{message}");
    }
}

#[test]
fn no_more_than_a_hundred_faults_are_named() {
    let headers: Vec<String> = (0..500).map(|n| format!(r#""nats-{n}":"x""#)).collect();
    let found = read_one(&with_message(&format!(r#"{{"headers":{{{}}}}}"#, headers.join(",")))).unwrap_err();
    assert_eq!(found.len(), 100);
}

proptest! {
    #[test]
    fn a_written_value_reads_back_unchanged(task in samples::any_task(), lane in "[a-z0-9-]{1,8}") {
        let lane: Lane = lane.parse().unwrap();
        let mut task = task;
        if task.schedule.retry_time(NOW, NOW).unwrap().is_some_and(|room| task.retry.is_some_and(|policy| policy.worst_case() >= room)) {
            task.retry = None;
        }
        let json = write(&task, &lane);
        let found = read(json.get().as_bytes(), &Limits::default(), false, NOW);
        prop_assert_eq!(found, Ok(Read { id: None, lane, task }), "{}", json);
    }

    #[test]
    fn a_refused_document_always_has_a_fault(task in samples::any_task(), at: prop::sample::Index, byte: u8) {
        let mut json = write(&task, &Lane::default()).get().as_bytes().to_vec();
        let at = at.index(json.len());
        json[at] = byte;
        let found = read(&json, &Limits::default(), false, NOW);
        prop_assert!(found.is_ok() || found.is_err_and(|faults| !faults.is_empty()));
    }
}

proptest! {
    /// A policy is refused exactly if all its pauses together may take longer than 30 s; the error has both numbers.
    #[test]
    fn a_policy_is_refused_exactly_beyond_30_s(max in 0_u64..12, interval in 1_u64..9000, jitter in 0_u64..9000) {
        let json = format!(
            r#"{{"schedule":{{"in":"1s"}},"message":{{}},"retry":{{"max":{max},"interval":"{interval}ms","jitter":"{jitter}ms"}}}}"#
        );
        let worst: u64 = (0..max).map(|n| (interval << n) + jitter).sum();
        match read_one(&json) {
            Ok(read) => {
                prop_assert!(worst <= 30_000, "{worst} ms are taken");
                prop_assert_eq!(read.task.retry.unwrap().worst_case(), Duration::from_millis(worst));
            }
            Err(_) => {
                prop_assert!(worst > 30_000, "{worst} ms are refused");
                prop_assert_eq!(faults(&json), [("/retry".to_owned(), "retry_too_long")]);
                let detail = detail(&json);
                prop_assert!(detail.ends_with(&format!(" {}", crate::task::duration::format(Duration::from_millis(worst)))) && detail.contains("take 30s;"), "{detail}");
            }
        }
    }

    /// A policy must end before the next occurrence: the user's is refused with both numbers, the default is shortened.
    #[test]
    fn a_retry_policy_must_end_before_the_next_occurrence(max in 0_u64..8, interval in 1_u64..1000, jitter in 0_u64..1000, gap in 1_u64..20_000) {
        let schedule = format!(r#""schedule":{{"every":"{gap}ms"}},"message":{{}}"#);
        let json = format!(r#"{{{schedule},"retry":{{"max":{max},"interval":"{interval}ms","jitter":"{jitter}ms"}}}}"#);
        let worst: u64 = (0..max).map(|n| (interval << n) + jitter).sum();
        prop_assume!(worst <= 30_000);
        match read_one(&json) {
            Ok(_) => prop_assert!(worst < gap, "{worst} ms in a gap of {gap} ms"),
            Err(_) => {
                prop_assert!(worst >= gap, "{worst} ms in a gap of {gap} ms");
                let detail = detail(&json);
                prop_assert!(detail.contains(&format!("{worst} ms")) && detail.contains(&format!("{gap} ms")), "{detail}");
            }
        }
        let default = read_one(&format!("{{{schedule}}}")).unwrap().task;
        let fits = [700, 700 + 900, 700 + 900 + 1300].iter().filter(|&&worst| worst < gap).count();
        prop_assert_eq!(default.retry_policy(NOW, NOW).unwrap().max as usize, fits);
    }
}
