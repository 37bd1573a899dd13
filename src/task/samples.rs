//! Sample tasks for tests: one with a given schedule, and arbitrary ones.

use std::time::Duration;

use bytes::Bytes;
use proptest::option;
use proptest::prelude::*;

use super::{CatchUp, Message, Payload, RetryPolicy, Schedule, Task, When};
use crate::clock::Timestamp;

/// A task with this schedule and defaults.
pub(crate) fn task(when: When) -> Task {
    let schedule = Schedule { when, end: None, limit: None, spread: None };
    let message = Message { destination: Some("orders".into()), ..Message::default() };
    Task { schedule, message, retry: None, catch_up: None }
}

/// Any task that is valid when it is put at [`NOW`], except that its retries may take longer than its shortest gap.
pub(crate) fn any_task() -> impl Strategy<Value = Task> {
    let catch_up = prop_oneof![Just(CatchUp::Once), Just(CatchUp::All), Just(CatchUp::None)];
    (any_schedule(), any_message(), option::of(any_policy()), option::of(catch_up))
        .prop_map(|(schedule, message, retry, catch_up)| Task { schedule, message, retry, catch_up })
}

/// The time at which [`any_task`] is put: 2026-11-20 12:00 UTC.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

fn any_time() -> impl Strategy<Value = Timestamp> {
    (1_i64..300 * 86_400_000).prop_map(|ms| NOW.plus(Duration::from_millis(ms.unsigned_abs())))
}

fn any_when() -> impl Strategy<Value = When> {
    let past = (1..=Timestamp::MAX_DUE.as_millis()).prop_map(|ms| When::At(Timestamp::from_millis(ms)));
    let span = || (1_u64..1_000_000_000).prop_map(Duration::from_millis);
    let gap = (60_000_u64..1_000_000_000).prop_map(Duration::from_millis);
    let cron = prop_oneof![Just("*/5 * * * *"), Just("0 30 9 * * MON-FRI"), Just("@daily"), Just("0 0 L * *")];
    let zone = prop_oneof![Just("Europe/Berlin"), Just("America/New_York"), Just("Asia/Kolkata")];
    prop_oneof![
        past,
        span().prop_map(When::In),
        (gap, option::of(any_time())).prop_map(|(gap, start)| When::Every { gap, start }),
        (cron, option::of(zone), option::of(any_time())).prop_map(|(expression, zone, start)| When::Cron {
            expression: expression.into(),
            zone: zone.map(Into::into),
            start,
        }),
    ]
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let spread = option::of((1_u64..60_000).prop_map(Duration::from_millis));
    let end = option::of(1_u64..86_400_000_000);
    (any_when(), end, option::of(1_u64..1 << 53), spread).prop_map(|(when, end, limit, spread)| {
        let mut schedule = Schedule { when, end: None, limit: None, spread: None };
        if schedule.is_recurring() {
            // Two years after `NOW`, and later than any start, so no end is before the first due.
            let last = NOW.plus(Duration::from_secs(2 * 366 * 86_400));
            schedule = Schedule { end: end.map(|ms| last.plus(Duration::from_millis(ms))), limit, spread, ..schedule };
        }
        schedule
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let text = || "[ -~äöü✓]{1,12}";
    let json = prop_oneof![Just("null"), Just("{ \"a\" : [1,  2.0e5] }"), Just("\"\\u00e9\""), Just("17")];
    let payload = prop_oneof![
        Just(Payload::Empty),
        Just(Payload::Tombstone),
        json.prop_map(|json| Payload::Json(Bytes::from_static(json.as_bytes()))),
        (prop::collection::vec(any::<u8>(), 0..40), option::of("[a-z]{1,5}/[a-z.+]{1,9}"))
            .prop_map(|(bytes, content_type)| Payload::Raw { bytes: bytes.into(), content_type }),
    ];
    let headers = prop::collection::btree_map("x-[a-z]{1,5}", text(), 0..4);
    (option::of(text()), option::of(text()), headers, payload)
        .prop_map(|(destination, key, headers, payload)| Message { destination, key, headers, native: None, payload })
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    (0_u32..4, 1_u64..1000, 0_u64..1000).prop_map(|(max, interval, jitter)| RetryPolicy {
        max,
        interval: Duration::from_millis(interval),
        jitter: Duration::from_millis(jitter),
    })
}
