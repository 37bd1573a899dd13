//! Compares cron with a walker that checks every second or minute of the calendar.

use std::str::FromStr;

use jiff::civil;
use proptest::prelude::*;

use super::*;

/// One field of an expression, parsed without the library: `*`, `*/n`, `a`, `a-b`, joined by commas.
#[derive(Clone, Debug)]
struct Field {
    values: Vec<i64>,
    fixed: bool,
    star: bool,
}

impl Field {
    fn read(text: &str, low: i64, high: i64) -> Field {
        let mut values = Vec::new();
        for part in text.split(',') {
            let (range, step) = part.split_once('/').map_or((part, 1), |(range, step)| (range, step.parse().unwrap()));
            let (from, to) = match range.split_once('-') {
                _ if range == "*" => (low, high),
                Some((from, to)) => (from.parse().unwrap(), to.parse().unwrap()),
                None => (range.parse().unwrap(), range.parse().unwrap()),
            };
            values.extend((from..=to).step_by(step));
        }
        Field { values, fixed: !text.starts_with('*'), star: text == "*" }
    }
}

/// An expression, parsed without the library.
struct Walker {
    fields: Vec<Field>,
    zone: TimeZone,
}

impl Walker {
    fn new(expression: &str, zone: &str) -> Walker {
        let ranges = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
        let texts: Vec<&str> = expression.split(' ').collect();
        let fields = texts.iter().zip(ranges).map(|(text, (low, high))| Field::read(text, low, high)).collect();
        Walker { fields, zone: TimeZone::get(zone).unwrap() }
    }

    fn names(&self, time: civil::DateTime) -> bool {
        let at = |field: usize, value: i8| self.fields[field].values.contains(&i64::from(value));
        let (by_month, by_week) = (at(3, time.day()), at(5, time.weekday().to_sunday_zero_offset()));
        let day = match (self.fields[3].star, self.fields[5].star) {
            (false, false) => by_month || by_week,
            _ => by_month && by_week,
        };
        day && at(0, time.second()) && at(1, time.minute()) && at(2, time.hour()) && at(4, time.month())
    }

    fn is_fixed(&self) -> bool {
        self.fields[..3].iter().all(|field| field.fixed)
    }

    /// Whether there is an occurrence at this second.
    fn stands_at(&self, second: i64) -> bool {
        let civil = |second| self.zone.to_datetime(jiff::Timestamp::from_second(second).unwrap());
        let (now, before) = (civil(second), civil(second - 1));
        if !self.is_fixed() {
            return self.names(now);
        }
        // Only the first pass of an overlap; converting a wall-clock time gives the first pass.
        let first_pass = self.zone.to_ambiguous_timestamp(now).compatible().unwrap().as_second() == second;
        let skipped = std::iter::successors(before.checked_add(SignedDuration::from_secs(1)).ok(), |time| {
            time.checked_add(SignedDuration::from_secs(1)).ok()
        });
        let in_gap = || skipped.take_while(|time| *time < now).any(|time| self.names(time));
        (first_pass && self.names(now)) || in_gap()
    }
}

/// All occurrences in a range, found one after the other by the library.
fn found(expression: &str, zone: &str, from: i64, to: i64) -> Vec<i64> {
    let timetable = Timetable::of(expression, Some(zone)).unwrap();
    let next = |after: i64| timetable.next(after).filter(|time| *time < to * 1000);
    std::iter::successors(next(from * 1000 - 1), |time| next(*time)).map(|time| time / 1000).collect()
}

fn walked(expression: &str, zone: &str, from: i64, to: i64, step: usize) -> Vec<i64> {
    let walker = Walker::new(expression, zone);
    (from..to).step_by(step).filter(|second| walker.stands_at(*second)).collect()
}

/// Zones with gaps and overlaps of one hour, half an hour and two hours, at midnight, south of the equator, and without
/// any.
const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Africa/Casablanca",
];

fn minute() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0_i32..60).prop_map(|value| value.to_string()),
        1 => (1..30).prop_map(|step| format!("*/{step}")),
        1 => Just("*".to_owned()),
        1 => (0..30, 30..60).prop_map(|(from, to)| format!("{from}-{to}")),
        1 => (0..30, 30..60).prop_map(|(one, two)| format!("{one},{two}")),
    ]
}

fn hour() -> impl Strategy<Value = String> {
    prop_oneof![
        // The hours in which clocks change.
        6 => (0_i32..4).prop_map(|value| value.to_string()),
        1 => (0_i32..24).prop_map(|value| value.to_string()),
        2 => Just("*".to_owned()),
        1 => (1..12).prop_map(|step| format!("*/{step}")),
        1 => (0..3, 3..24).prop_map(|(from, to)| format!("{from}-{to}")),
    ]
}

fn days() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just("* * *".to_owned()),
        1 => (1..29).prop_map(|day| format!("{day} * *")),
        1 => (0..7).prop_map(|day| format!("* * {day}")),
        1 => (1..29, 0..7).prop_map(|(one, two)| format!("{one} * {two}")),
        1 => (1..13).prop_map(|month| format!("* {month} *")),
    ]
}

/// A second within three days before a clock change of the zone between 2020 and 2035, if it has any.
fn near_a_change(zone: &str, year: i16, change: usize, seconds: i64) -> i64 {
    let start = civil::date(year, 1, 1).to_zoned(TimeZone::UTC).unwrap().timestamp();
    let zone = TimeZone::get(zone).unwrap();
    let changes: Vec<i64> = zone.following(start).take(4).map(|change| change.timestamp().as_second()).collect();
    let near = changes.get(change % changes.len().max(1)).copied().unwrap_or(start.as_second());
    (near - seconds).div_euclid(60) * 60
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn cron_finds_the_same_times_as_a_minute_by_minute_search(
        (minute, hour, days) in (minute(), hour(), days()),
        zone in prop::sample::select(&ZONES),
        (year, change, before) in (2020_i16..2035, 0_usize..4, 0_i64..3 * 86_400),
    ) {
        let expression = format!("0 {minute} {hour} {days}");
        let from = near_a_change(zone, year, change, before);
        let to = from + 5 * 86_400;
        prop_assert_eq!(found(&expression, zone, from, to), walked(&expression, zone, from, to, 60));
    }

    #[test]
    fn cron_finds_the_same_times_as_a_second_by_second_search(
        (second, minute, hour) in (minute(), minute(), hour()),
        zone in prop::sample::select(&ZONES),
        (year, change, before) in (2020_i16..2035, 0_usize..4, 0_i64..7200),
    ) {
        let expression = format!("{second} {minute} {hour} * * *");
        let from = near_a_change(zone, year, change, before);
        let to = from + 3 * 3600;
        prop_assert_eq!(found(&expression, zone, from, to), walked(&expression, zone, from, to, 1));
    }

    #[test]
    fn a_remembered_cron_result_equals_a_new_search(times in prop::collection::vec(0_i64..20 * DAY_MS, 1..20), zone in prop::sample::select(&ZONES)) {
        let remembered = Timetable::read("*/7 1-3 * * *", Some(zone)).unwrap();
        for time in times {
            let time = 1_774_500_000_000 + time;
            prop_assert_eq!(remembered.next(time), remembered.search(time));
        }
    }

    #[test]
    fn cron_parser_never_panics_on_any_expression(expression in "[0-9*/,LW#?@+ A-Za-zß-]{0,20}") {
        if let Ok(timetable) = Timetable::read(&expression, None) {
            let _next = timetable.next(1_774_500_000_000);
        }
    }
}

fn times(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let timetable = Timetable::of(expression, Some(zone)).unwrap();
    let after = jiff::Timestamp::from_str(after).unwrap().as_millisecond();
    let dues = std::iter::successors(timetable.next(after), |time| timetable.next(*time));
    dues.take(count).map(|time| jiff::Timestamp::from_millisecond(time).unwrap().to_string()).collect()
}

#[test]
fn a_fixed_time_runs_right_after_a_clock_gap_and_once_in_an_overlap() {
    let daily = "30 2 * * *";
    let spring = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"];
    assert_eq!(times(daily, "Europe/Berlin", "2026-03-28T00:00:00Z", 3), spring);
    let autumn = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    assert_eq!(times(daily, "Europe/Berlin", "2026-10-24T00:00:00Z", 3), autumn);
}

/// Lists and ranges behave as single values do.
#[test]
fn fixed_times_in_a_gap_are_due_once_at_its_end_and_once_each_in_an_overlap() {
    let twice = times("0 2,14 * * *", "Europe/Berlin", "2026-03-28T20:00:00Z", 2);
    assert_eq!(twice, ["2026-03-29T01:00:00Z", "2026-03-29T12:00:00Z"]);
    let sundays = times("0,30 2 * * 0", "Europe/Berlin", "2026-03-28T20:00:00Z", 2);
    assert_eq!(sundays, ["2026-03-29T01:00:00Z", "2026-04-05T00:00:00Z"]);
    let range = times("15-45/15 1-3 * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", 4);
    let spring = ["2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z"];
    assert_eq!(range, spring);
    let seconds = times("0,30 59 1-2 * * *", "Europe/Berlin", "2026-03-29T00:59:00Z", 2);
    assert_eq!(seconds, ["2026-03-29T00:59:30Z", "2026-03-29T01:00:00Z"]);
    let autumn = times("0,30 2,14 * * *", "Europe/Berlin", "2026-10-24T20:00:00Z", 3);
    assert_eq!(autumn, ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T13:00:00Z"]);
    // From the middle of the second pass on.
    let after = times("0-59 2 * * *", "Europe/Berlin", "2026-10-25T01:30:00Z", 1);
    assert_eq!(after, ["2026-10-26T01:00:00Z"]);
    // The day after the gap need not fit: in Greenland, clocks go from 23:00 on Saturday to Sunday.
    let saturday = times("30 23 * * 6", "America/Nuuk", "2026-03-28T12:00:00Z", 1);
    assert_eq!(saturday, ["2026-03-29T01:00:00Z"]);
}

#[test]
fn a_step_skips_the_gap_and_runs_in_both_passes() {
    let spring = ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"];
    assert_eq!(times("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 3), spring);
    let autumn = ["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"];
    assert_eq!(times("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 3), autumn);
}

#[test]
fn a_day_skipped_by_a_zone_does_not_end_a_schedule() {
    // Samoa crossed the date line: there was no 30 December 2011.
    let noon = times("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", 3);
    assert_eq!(noon, ["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"]);
    let midnight = times("0 0 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 2);
    assert_eq!(midnight, ["2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]);
}

#[test]
fn an_impossible_day_never_comes() {
    assert_eq!(Timetable::of("0 0 31 2 *", None).unwrap().next(1_774_500_000_000), None);
    assert_eq!(Timetable::of("0 0 31 2 *", Some("Europe/Berlin")).unwrap().next(1_774_500_000_000), None);
    assert_eq!(Timetable::of("0 0 31 2 *", None).unwrap().shortest_gap(1_774_500_000_000), None);
}

#[test]
fn a_cron_search_ends_even_if_no_time_matches() {
    // The first two name only the hour that a clock change skips; the third one names 30 February.
    for never in ["* * 2 * 3 0L", "* * 2 29 3 +0", "0 0 2 30 2 *"] {
        assert_eq!(Timetable::of(never, Some("Europe/Berlin")).unwrap().next(1_774_500_000_000), None, "{never}");
    }
}

#[test]
fn a_cron_search_passes_a_gap_of_two_hours_and_gives_up_after_its_limit() {
    // On the 28th of March 2027 clocks go from 01:00 to 03:00.
    let skipped = times("* * 1,2 28 3 *", "Antarctica/Troll", "2027-03-27T12:00:00Z", 1);
    assert_eq!(skipped, ["2028-03-27T23:00:00Z"], "with `*` in the minutes, the times in the gap are skipped");
    let never = Timetable::of("* * 2 * 3 0L", Some("Europe/Berlin")).unwrap();
    let start = Start::new(jiff::Timestamp::from_second(1_774_500_000).unwrap().to_zoned(never.time_zone.clone()));
    assert!(never.cron.find_next_occurrence(&start, false).is_err());
    assert_eq!(start.left(), 0, "it was given up before the end of its 41 years");
}

#[test]
fn the_rarest_days_are_found() {
    // The 29th of February 2072 was a Monday, too. The next one is in 2112, because 2100 is no leap year.
    let mondays = times("0 0 29 2 +1", "UTC", "2072-03-01T00:00:00Z", 2);
    assert_eq!(mondays, ["2112-02-29T00:00:00Z", "2140-02-29T00:00:00Z"]);
}

#[test]
fn five_or_six_fields_and_nicknames_are_read_and_nothing_else() {
    for good in ["* * * * *", "* * * * * *", "0 30 9 * * MON-FRI", "@daily", "@hourly", "0 0 L * *", "0 0 * * 7"] {
        assert!(Timetable::of(good, None).is_ok(), "{good}");
    }
    for bad in ["", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "*/0 * * * *", "a * * * *", "@reboot"]
    {
        assert!(matches!(Timetable::of(bad, None), Err(ScheduleError::Cron(_))), "{bad}");
    }
    assert!(matches!(Timetable::of("* * * * *", Some("Mars/Base")), Err(ScheduleError::Zone(_))));
}

#[test]
fn the_shortest_gap_between_cron_times_is_found() {
    let gap = |expression: &str| Timetable::of(expression, None).unwrap().shortest_gap(1_774_500_000_000);
    assert_eq!(gap("* * * * * *"), Some(Duration::from_secs(1)));
    assert_eq!(gap("0,7 12 * * *"), Some(Duration::from_secs(7 * 60)));
    assert_eq!(gap("@daily"), Some(Duration::from_secs(86_400)));
    let berlin = Timetable::of("0 0 * * *", Some("Europe/Berlin")).unwrap();
    assert_eq!(berlin.shortest_gap(1_774_500_000_000), Some(Duration::from_secs(23 * 3600)));
}

#[test]
fn the_timetable_cache_stays_bounded_and_keeps_frequently_used_entries() {
    let mut remembered = Remembered::default();
    for n in 0..MAX_REMEMBERED.get() + 500 {
        let expression = format!("{} {} {} * *", n % 60, n / 60 % 24, n / 1440 + 1);
        assert!(remembered.get(&expression, None).is_none());
        remembered.keep(Arc::new(Timetable::read(&expression, None).unwrap()));
        assert!(remembered.get(&expression, None).is_some() && remembered.get(&expression, Some("UTC")).is_none());
        assert!(remembered.0.len() <= MAX_REMEMBERED.get());
        // An expression that is used again and again stays in the cache.
        assert!(n == 0 || remembered.get("0 0 1 * *", None).is_some());
    }
}
