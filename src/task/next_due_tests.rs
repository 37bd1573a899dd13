//! Compares what follows an occurrence with a plain list of everything that was missed.

use proptest::prelude::*;

use super::*;
use crate::task::{Lane, Schedule, Task, TaskId, When, samples};

const PUT: i64 = 1_774_500_000_000;
const OVERDUE: CatchUpLimits = CatchUpLimits { grace: Duration::from_secs(60), catch_up_max: 100 };

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn record(when: When, policy: Option<CatchUp>, limit: Option<u64>) -> Record {
    let mut task = samples::task(when);
    task.catch_up = policy;
    task.schedule.limit = limit;
    Record::new(task, Lane::default(), at(PUT))
}

fn every(ms: u64) -> When {
    When::Every { gap: Duration::from_millis(ms), start: None }
}

fn cron(expression: &str) -> When {
    When::Cron { expression: expression.into(), zone: None, start: None }
}

fn next_due(record: &Record, due: i64, now: i64, counts: Counts, overdue: CatchUpLimits) -> NextDue {
    let member: Member = "a".parse().unwrap();
    let mut search = NextDueSearch::begin(&member, record, at(due), at(now), counts, overdue).unwrap();
    loop {
        if let Some(next_due) = search.advance(7).unwrap() {
            assert_eq!(search.advance(1), Ok(Some(next_due)), "what is known stays");
            return next_due;
        }
    }
}

/// The result, computed from the list of all dues.
fn naive(record: &Record, due: i64, now: i64, counts: Counts, overdue: CatchUpLimits) -> NextDue {
    let id: TaskId = "a".parse().unwrap();
    let next_after = |after: &i64| {
        record.task.schedule.next_after(&id, record.anchor, at(*after)).unwrap().map(Timestamp::as_millis)
    };
    // All dues after the claimed one: the missed ones, and one more.
    let mut dues: Vec<i64> = Vec::new();
    let mut next = next_after(&due);
    while let Some(time) = next {
        dues.push(time);
        if time > now {
            break;
        }
        next = next_after(&time);
    }
    let late = now - due > overdue.grace.as_millis() as i64;
    let policy = record.task.catch_up.unwrap_or(CatchUp::Once);
    let missed = dues.iter().filter(|time| now - **time > overdue.grace.as_millis() as i64).count();
    let pass = match (late, policy) {
        (false, _) => 0,
        (true, CatchUp::All) => missed.saturating_sub(overdue.catch_up_max as usize),
        (true, CatchUp::Once | CatchUp::None) => missed,
    };
    let publish = !late || policy != CatchUp::None;
    // Occurrences come due one after the other until the limit is reached.
    let mut came_due = counts.came_due() + 1;
    let mut passed_over = u64::from(!publish);
    for _ in 0..pass {
        if record.task.schedule.limit.is_some_and(|limit| came_due >= limit) {
            return NextDue { publish, passed_over, next: None };
        }
        came_due += 1;
        passed_over += 1;
    }
    let over = record.task.schedule.limit.is_some_and(|limit| came_due >= limit);
    NextDue { publish, passed_over, next: dues.get(pass).filter(|_| !over).map(|due| at(*due)) }
}

#[test]
fn within_grace_nothing_is_dropped_whatever_the_policy() {
    for policy in [None, Some(CatchUp::Once), Some(CatchUp::All), Some(CatchUp::None)] {
        for when in [every(1000), cron("* * * * * *")] {
            let record = record(when, policy, None);
            let found = next_due(&record, PUT + 1000, PUT + 61_000, Counts::default(), OVERDUE);
            assert_eq!(found, NextDue { publish: true, passed_over: 0, next: Some(at(PUT + 2000)) });
            let found = next_due(&record, PUT + 1000, PUT + 61_001, Counts::default(), OVERDUE);
            let publish = policy != Some(CatchUp::None);
            let passed_over = u64::from(!publish);
            assert_eq!(found, NextDue { publish, passed_over, next: Some(at(PUT + 2000)) }, "{policy:?}");
        }
    }
}

#[test]
fn after_an_outage_the_policy_decides() {
    for when in [every(1000), cron("* * * * * *")] {
        let found = |policy| {
            let record = record(when.clone(), policy, None);
            next_due(&record, PUT + 1000, PUT + 3_600_500, Counts::default(), OVERDUE)
        };
        // The first one that is overdue by at most a minute.
        let then = Some(at(PUT + 3_541_000));
        assert_eq!(found(None), NextDue { publish: true, passed_over: 3539, next: then });
        assert_eq!(found(Some(CatchUp::Once)), found(None));
        assert_eq!(found(Some(CatchUp::None)), NextDue { publish: false, passed_over: 3540, next: then });
        let newest = Some(at(PUT + 3_441_000));
        assert_eq!(found(Some(CatchUp::All)), NextDue { publish: true, passed_over: 3439, next: newest });
    }
}

#[test]
fn a_one_shot_has_no_next_and_may_be_too_late() {
    let found = |policy, late| {
        let record = record(When::At(at(PUT)), policy, None);
        next_due(&record, PUT, PUT + late, Counts::default(), OVERDUE)
    };
    let sent = NextDue { publish: true, passed_over: 0, next: None };
    assert_eq!(found(None, 1 << 40), sent);
    assert_eq!(found(Some(CatchUp::All), 1 << 40), sent);
    assert_eq!(found(Some(CatchUp::None), 60_000), sent);
    assert_eq!(found(Some(CatchUp::None), 60_001), NextDue { publish: false, passed_over: 1, next: None });
}

#[test]
fn a_requeued_occurrence_is_a_one_shot() {
    let key: crate::task::Key = "a:1774500001000".parse().unwrap();
    let record = record(cron("* * * * *"), None, None).of_dead(key.clone());
    let member = Member::requeued(&key);
    let mut search =
        NextDueSearch::begin(&member, &record, at(PUT + 1000), at(PUT + (1 << 30)), Counts::default(), OVERDUE)
            .unwrap();
    assert_eq!(search.advance(1), Ok(Some(NextDue { publish: true, passed_over: 0, next: None })));
}

#[test]
fn a_long_outage_is_counted_in_slices() {
    let record = record(cron("* * * * * *"), None, None);
    let member: Member = "a".parse().unwrap();
    let now = at(PUT + 1000 + 160_001);
    let mut search = NextDueSearch::begin(&member, &record, at(PUT + 1000), now, Counts::default(), OVERDUE).unwrap();
    for _ in 0..10 {
        assert_eq!(search.advance(10), Ok(None));
    }
    assert_eq!(search.advance(1).unwrap().unwrap().passed_over, 100);
}

#[test]
fn an_unknown_zone_in_a_record_is_an_error() {
    let when = When::Cron { expression: "* * * * *".into(), zone: Some("Mars/Base".into()), start: None };
    let member: Member = "a".parse().unwrap();
    let found = NextDueSearch::begin(&member, &record(when, None, None), at(PUT), at(PUT), Counts::default(), OVERDUE);
    assert_eq!(found.err(), Some(ScheduleError::Zone("Mars/Base".into())));
}

fn any_record() -> impl Strategy<Value = Record> {
    let when = prop_oneof![
        (500_u64..20_000).prop_map(every),
        prop::sample::select(&["*/5 * * * * *", "7,19 * * * * *", "* * * * *"]).prop_map(cron),
    ];
    let policy = prop::sample::select(&[None, Some(CatchUp::Once), Some(CatchUp::All), Some(CatchUp::None)]);
    let spread = prop::option::of(1_u64..500).prop_map(|spread| spread.map(Duration::from_millis));
    let end = prop::option::of(0_i64..400_000).prop_map(|end| end.map(|end| at(PUT + end)));
    (when, policy, prop::option::of(1_u64..60), spread, end).prop_map(|(when, catch_up, limit, spread, end)| {
        let schedule = Schedule { when, end, limit, spread };
        let task = Task { schedule, catch_up, ..samples::task(When::At(at(1))) };
        Record::new(task, Lane::default(), at(PUT))
    })
}

fn any_overdue() -> impl Strategy<Value = CatchUpLimits> {
    (0_u64..90_000, 0_u32..20)
        .prop_map(|(grace, catch_up_max)| CatchUpLimits { grace: Duration::from_millis(grace), catch_up_max })
}

proptest! {
    #[test]
    fn next_due_equals_a_search_through_the_list_of_dues(
        record in any_record(),
        overdue in any_overdue(),
        skip in 0_usize..8,
        late in -1000_i64..300_000,
        accepted in 0_u64..40,
    ) {
        let id: TaskId = "a".parse().unwrap();
        let schedule = &record.task.schedule;
        let first = schedule.first(&id, record.anchor).unwrap();
        let due = std::iter::successors(first, |due| schedule.next_after(&id, record.anchor, *due).unwrap()).nth(skip);
        prop_assume!(due.is_some());
        let due = due.unwrap().as_millis();
        let counts = Counts { accepted, ..Counts::default() };
        let found = next_due(&record, due, due + late, counts, overdue);
        prop_assert_eq!(found, naive(&record, due, due + late, counts, overdue));
        prop_assert!(found.next.is_none_or(|next| next > at(due)), "later than the claimed due");
    }

    /// Follows a task through an outage, claim after claim: each of its occurrences ends exactly once.
    #[test]
    fn every_occurrence_is_accepted_or_passed_over_exactly_once(record in any_record(), overdue in any_overdue(), outage in 0_i64..300_000) {
        let id: TaskId = "a".parse().unwrap();
        let schedule = &record.task.schedule;
        let mut due = schedule.first(&id, record.anchor).unwrap();
        let horizon = due.unwrap_or(at(PUT)).as_millis() + outage;
        let (mut counts, mut claims) = (Counts::default(), 0);
        while let Some(claimed) = due.filter(|due| due.as_millis() <= horizon) {
            let found = next_due(&record, claimed.as_millis(), horizon, counts, overdue);
            counts.accepted += u64::from(found.publish);
            counts.passed_over += found.passed_over;
            due = found.next;
            claims += 1;
        }
        let first = schedule.first(&id, record.anchor).unwrap();
        let all = std::iter::successors(first, |due| schedule.next_after(&id, record.anchor, *due).unwrap());
        let came_due = all.take_while(|due| due.as_millis() <= horizon).count() as u64;
        prop_assert_eq!(counts.came_due(), came_due.min(schedule.limit.unwrap_or(u64::MAX)));
        if schedule.limit.is_some_and(|limit| counts.came_due() >= limit) {
            prop_assert_eq!(due, None);
        }
        prop_assert!(claims <= 1 + came_due);
    }
}
