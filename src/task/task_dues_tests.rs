//! Compares dues with lists that are made by counting.

use proptest::prelude::*;

use super::*;
use crate::task::samples;

const PUT: i64 = 1_774_500_000_000;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

fn id(text: &str) -> TaskId {
    text.parse().unwrap()
}

fn schedule(when: When) -> Schedule {
    samples::task(when).schedule
}

fn every(gap: i64, start: Option<i64>) -> When {
    When::Every { gap: span(gap), start: start.map(at) }
}

fn cron(expression: &str, start: Option<i64>) -> When {
    When::Cron { expression: expression.into(), zone: None, start: start.map(at) }
}

#[test]
fn a_schedule_with_a_start_out_of_range_has_no_due() {
    let (first, last) = (i64::MIN, Timestamp::MAX_DUE.as_millis());
    for after in [0, last, i64::MAX] {
        let far = schedule(every(1, Some(first)));
        assert_eq!(far.next_after(&id("a"), at(first), at(after)), Ok(None), "after {after}");
        assert_eq!(far.shortest_gap(at(first), at(after)), Ok(None), "after {after}");
    }
}

#[test]
fn an_invalid_spread_counts_as_no_spread() {
    let mut each_second = schedule(cron("* * * * * *", None));
    each_second.spread = Some(Duration::from_millis(u64::MAX));
    assert_eq!(each_second.next_after(&id("a"), at(1), at(PUT)), Ok(Some(at(PUT + 1000))));
}

#[test]
fn a_one_shot_is_due_once_even_in_the_past() {
    let past = schedule(When::At(at(5)));
    assert_eq!(past.first(&id("a"), at(PUT)), Ok(Some(at(5))));
    assert_eq!(past.next_after(&id("a"), at(PUT), at(5)), Ok(None));
    assert_eq!(past.next_after(&id("a"), at(PUT), at(4)), Ok(Some(at(5))));
    let later = schedule(When::In(span(900)));
    assert_eq!(later.first(&id("a"), at(PUT)), Ok(Some(at(PUT + 900))));
    assert_eq!(later.shortest_gap(at(PUT), at(PUT)), Ok(None));
}

#[test]
fn every_counts_from_the_put_or_from_its_start() {
    let dues = |when: When| {
        let schedule = schedule(when);
        let first = schedule.first(&id("a"), at(PUT)).unwrap();
        let dues = std::iter::successors(first, |due| schedule.next_after(&id("a"), at(PUT), *due).unwrap());
        dues.take(3).map(|due| due.as_millis() - PUT).collect::<Vec<_>>()
    };
    assert_eq!(dues(every(1000, None)), [1000, 2000, 3000]);
    assert_eq!(dues(every(1000, Some(PUT + 300))), [300, 1300, 2300]);
    assert_eq!(dues(every(1000, Some(PUT - 2300))), [700, 1700, 2700]);
    assert_eq!(dues(every(1000, Some(PUT))), [1000, 2000, 3000], "later than the put");
}

#[test]
fn a_due_can_equal_the_end_and_is_never_later() {
    for when in [every(60_000, Some(PUT)), cron("* * * * *", None)] {
        let ends = |end: i64| Schedule { end: Some(at(end)), ..schedule(when.clone()) };
        let next = |end, after| ends(end).next_after(&id("a"), at(PUT), at(after)).unwrap();
        assert_eq!(next(PUT + 120_000, PUT + 60_000), Some(at(PUT + 120_000)));
        assert_eq!(next(PUT + 119_999, PUT + 60_000), None);
        let gap = |end: i64| ends(end).shortest_gap(at(PUT), at(PUT)).unwrap();
        assert_eq!(gap(PUT + 120_000), Some(span(60_000)));
        assert_eq!(gap(PUT + 119_999), None, "one due left");
    }
}

#[test]
fn a_schedule_has_no_due_after_the_last_due_of_the_timeline() {
    let schedule = schedule(every(Timestamp::MAX_DUE.as_millis(), None));
    assert_eq!(schedule.first(&id("a"), at(PUT)), Ok(None));
}

#[test]
fn cron_begins_at_its_start() {
    let start = PUT + 600_000;
    let schedule = schedule(cron("* * * * *", Some(start)));
    assert_eq!(schedule.first(&id("a"), at(PUT)), Ok(Some(at(start))), "a start may be a due");
}

#[test]
fn a_spread_separates_tasks_and_is_the_same_on_every_instance() {
    let schedule = Schedule { spread: Some(span(30_000)), ..schedule(cron("* * * * *", None)) };
    let first = |n: usize| schedule.first(&id(&format!("task-{n}")), at(PUT)).unwrap().unwrap().as_millis() - PUT;
    let mut dues: Vec<i64> = (0..300).map(first).collect();
    // Fixed values: another hash would shift every waiting task.
    assert_eq!(dues[..3], PINNED);
    dues.sort_unstable();
    dues.dedup();
    assert!(dues.len() > 250, "{} different dues", dues.len());
}

const PINNED: [i64; 3] = [29_755, 12_184, 3106];

/// All dues of a schedule in a range, computed by spreading each time on its own.
fn naive(computed: &TaskDues, times: impl Iterator<Item = i64>, to: i64) -> Vec<i64> {
    let with_spread =
        times.map(|time| computed.with_spread(time)).filter(|due| *due > PUT && *due <= to.min(computed.end));
    let mut dues: Vec<i64> = with_spread.collect();
    dues.sort_unstable();
    dues
}

proptest! {
    #[test]
    fn every_computed_directly_equals_every_counted_step_by_step(
        gap in 1_i64..5000,
        start in prop::option::of(-20_000_i64..20_000),
        spread in prop::option::of(1_i64..5000),
        end in prop::option::of(0_i64..60_000),
        (one, two) in (-1000_i64..50_000, -1000_i64..50_000),
    ) {
        let mut schedule = schedule(every(gap, start.map(|start| PUT + start)));
        schedule.end = end.map(|end| at(PUT + end));
        schedule.spread = spread.filter(|spread| *spread < gap).map(span);
        let computed = TaskDues::new(&schedule, &id("a"), at(PUT)).unwrap();
        let base = start.map_or(PUT + gap, |start| PUT + start);
        let horizon = PUT + 100_000;
        let dues = naive(&computed, (0..).map(|k| base + k * gap).take_while(|time| *time <= horizon), horizon);
        let (from, to) = (PUT + one.min(two), PUT + one.max(two));
        let later: Vec<i64> = dues.iter().copied().filter(|due| *due > from).collect();
        prop_assert_eq!(computed.next_after(at(from)), later.first().copied().map(at));
        let counted = later.iter().filter(|due| **due <= to).count();
        prop_assert_eq!(computed.count(at(from), at(to)), Some(counted as u64));
        prop_assert_eq!(computed.nth_after(at(from), 3), later.get(3).copied().map(at));
    }

    #[test]
    fn cron_with_a_spread_comes_in_order_and_leaves_nothing_out(
        expression in prop::sample::select(&["*/5 * * * * *", "7,19 * * * * *", "* * * * *"]),
        spread in prop::option::of(1_i64..60_000),
        start in prop::option::of(-200_000_i64..400_000),
    ) {
        let mut schedule = schedule(cron(expression, start.map(|start| PUT + start)));
        let gap = schedule.shortest_gap(at(PUT), at(PUT)).unwrap().unwrap();
        schedule.spread = spread.map(span).filter(|spread| *spread < gap);
        let computed = TaskDues::new(&schedule, &id("a"), at(PUT)).unwrap();
        let to = PUT + 600_000;
        let early = PUT - 60_000;
        let times = std::iter::successors(computed.unspread_after(early), |time| computed.unspread_after(*time));
        let expected = naive(&computed, times.take_while(|time| *time <= to), to);
        let dues = std::iter::successors(computed.first(), |due| computed.next_after(*due)).map(Timestamp::as_millis);
        prop_assert_eq!(dues.take_while(|due| *due <= to).collect::<Vec<_>>(), expected);
    }
}
