//! A cron expression, its time zone and a time, one per line. Its due times ascend, do not depend on how they are
//! queried, and equal those that a walk over the calendar finds.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::sample::select;
use punctual::Timestamp;
use punctual::task::{Schedule, TaskId, When};

use super::{Target, Verdict};

const DAY: i64 = 86_400_000;

/// Longer expressions are rejected before they are parsed.
const LONGEST: usize = 512;

/// The library's calendar ends with the year 5000. Up to some years before that, the next due is always found.
const WALKED: i64 = 2980 * 365 * DAY;

/// Number of due times that a case checks.
const DUES: usize = 8;

const ZONES: &[&str] = &[
    "",
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "America/Santiago",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Pacific/Kiritimati",
];

const WORDS: &[&str] = &[
    "*",
    "*/",
    ",",
    "-",
    "/",
    "?",
    "L",
    "W",
    "#",
    "+",
    "@daily",
    "@hourly",
    "MON",
    "-SUN",
    "SUN",
    "JAN",
    "dec",
    "0",
    "59",
    "60",
    "7",
    "31",
    "99999",
    "\n",
    "\t",
    "  ",
    "Europe/Berlin\n",
    "1774486800000",
    "5-59/7",
    "0 0 29 2 *",
];

pub(super) const TARGET: Target = Target { name: "cron", check, written: inputs, dictionary: WORDS, inputs: 300 };

fn inputs() -> BoxedStrategy<Vec<u8>> {
    let field = |low: i64, high: i64| {
        let value = move || low..=high;
        prop_oneof![
            4 => value().prop_map(|value| value.to_string()),
            3 => Just("*".to_owned()),
            1 => (1..=high).prop_map(|step| format!("*/{step}")),
            1 => (value(), value()).prop_map(|(one, two)| format!("{}-{}", one.min(two), one.max(two))),
            1 => (value(), value()).prop_map(|(one, two)| format!("{one},{two}")),
            1 => (value(), 1..9).prop_map(move |(one, step)| format!("{one}-{high}/{step}")),
        ]
    };
    let days = prop_oneof![
        8 => Just("*".to_owned()),
        2 => field(1, 31),
        1 => select(&["L", "15W", "LW", "?", "29,31", "1W,L"][..]).prop_map(str::to_owned),
    ];
    let weekdays = prop_oneof![
        8 => Just("*".to_owned()),
        2 => field(0, 7),
        1 => select(&["MON-FRI", "SUN", "5L", "1#1,3#5", "+MON", "FRI-SUN"][..]).prop_map(str::to_owned),
    ];
    let months = prop_oneof![5 => Just("*".to_owned()), 1 => field(1, 12), 1 => Just("FEB".to_owned())];
    // The hours in which clocks change to or from summer time.
    let hours = prop_oneof![2 => field(0, 3), 1 => field(0, 23)];
    let seconds = prop_oneof![3 => Just(String::new()), 1 => field(0, 59).prop_map(|field| field + " ")];
    let time = prop_oneof![3 => (2000_i64..2040, 0..366 * DAY).prop_map(|(year, ms)| (year - 1970) * 365 * DAY + ms), 1 => 0..4_000_000_000_000_i64];
    let written = (seconds, field(0, 59), hours, days, months, weekdays, select(ZONES), time).prop_map(
        |(second, minute, hour, day, month, weekday, zone, time)| {
            format!("{second}{minute} {hour} {day} {month} {weekday}\n{zone}\n{time}").into_bytes()
        },
    );
    written.boxed()
}

/// Due times of this schedule, from a time on.
struct Question {
    schedule: Schedule,
    after: i64,
}

impl Question {
    fn read(input: &[u8]) -> Question {
        let text = String::from_utf8_lossy(input);
        let mut lines = text.split('\n');
        let mut line = || lines.next().unwrap_or_default().to_owned();
        let (expression, zone, after) = (line(), line(), line());
        let zone = Some(zone).filter(|zone| !zone.is_empty());
        let when = When::Cron { expression, zone, start: None };
        let schedule = Schedule { when, end: None, limit: None, spread: None };
        Question { schedule, after: after.parse().unwrap_or(1_774_486_800_000) }
    }

    fn next(&self, after: i64) -> Option<i64> {
        let (id, at): (TaskId, _) = ("a".parse().unwrap(), Timestamp::from_millis);
        let next = self.schedule.next_after(&id, at(i64::MIN), at(after));
        next.expect("it was read before").map(Timestamp::as_millis)
    }

    /// Asks for another time first, so that no cached answer is used.
    fn next_anew(&self, after: i64) -> Option<i64> {
        self.next(after.saturating_add(700 * DAY));
        self.next(after)
    }
}

fn check(input: &[u8]) -> Verdict {
    let asked = Question::read(input);
    let When::Cron { expression, zone, .. } = &asked.schedule.when else { return Ok(()) };
    let at = Timestamp::from_millis;
    let readable = asked.schedule.next_after(&"a".parse().unwrap(), at(i64::MIN), at(asked.after)).is_ok();
    if expression.len() > LONGEST || !readable {
        return Ok(());
    }
    let dues: Vec<i64> = std::iter::successors(asked.next(asked.after), |due| asked.next(*due)).take(DUES).collect();
    let mut before = asked.after;
    for &due in &dues {
        prop_assert!(due > before && due % 1000 == 0, "{due} follows {before}");
        for after in [before, before.midpoint(due), due - 1] {
            prop_assert_eq!(asked.next_anew(after), Some(due), "after {}", after);
        }
        before = due;
    }
    if let Some(walker) = Walker::read(expression, zone.as_deref()).filter(|_| asked.after < WALKED) {
        walker.finds(asked.after, &dues)?;
    }
    gaps_are_no_shorter(&asked)
}

/// From the beginning of a day on, no gap is shorter than the minimum gap.
fn gaps_are_no_shorter(asked: &Question) -> Verdict {
    let begin = asked.after.clamp(0, 100_000 * DAY).div_euclid(DAY) * DAY;
    let at = Timestamp::from_millis;
    let shortest = asked.schedule.shortest_gap(at(i64::MIN), at(begin)).expect("it was read before");
    let dues: Vec<i64> = std::iter::successors(asked.next(begin - 1), |due| asked.next(*due)).take(DUES).collect();
    let far = |due: i64| due > begin + 40 * 366 * DAY;
    for pair in dues.windows(2).filter(|pair| !far(pair[1])) {
        let gap = u128::from((pair[1] - pair[0]).unsigned_abs());
        prop_assert!(shortest.is_some_and(|shortest| shortest.as_millis() <= gap), "{shortest:?}, and {gap} ms");
    }
    Ok(())
}

/// One field, parsed without the library: `*`, `*/n`, `a`, `a-b`, `a-b/n`, joined by commas.
struct Field {
    values: Vec<i64>,
    fixed: bool,
    star: bool,
}

impl Field {
    fn read(text: &str, (low, high): (i64, i64)) -> Option<Field> {
        let number = |text: &str| -> Option<i64> {
            let short = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| short && (low..=high).contains(number))
        };
        let mut values = Vec::new();
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (range, step.parse::<u8>().ok().filter(|step| *step > 0)?),
                None => (part, 1),
            };
            let (from, to) = match range.split_once('-') {
                _ if range == "*" => (low, high),
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(range)?, number(range)?),
            };
            values.extend((from..=to).step_by(usize::from(step)));
        }
        values.sort_unstable();
        values.dedup();
        Some(Field { values, fixed: !text.starts_with('*'), star: text == "*" })
    }
}

/// An expression, parsed without the library if it is a simple one.
struct Walker {
    fields: Vec<Field>,
    zone: TimeZone,
}

impl Walker {
    fn read(expression: &str, zone: Option<&str>) -> Option<Walker> {
        let ranges = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
        let mut texts: Vec<&str> = expression.split_ascii_whitespace().collect();
        if texts.len() == 5 {
            texts.insert(0, "0");
        }
        let fields = texts.iter().zip(ranges).map(|(text, range)| Field::read(text, range));
        let fields: Vec<Field> = fields.collect::<Option<_>>().filter(|_| texts.len() == 6)?;
        let zone = zone.map_or(Some(TimeZone::UTC), |name| TimeZone::get(name).ok())?;
        Some(Walker { fields, zone })
    }

    fn names(&self, time: DateTime) -> bool {
        let at = |field: usize, value: i8| self.fields[field].values.contains(&i64::from(value));
        let weekday = time.weekday().to_sunday_zero_offset();
        let (by_month, by_week) = (at(3, time.day()), at(5, weekday) || (weekday == 0 && at(5, 7)));
        let day = match (self.fields[3].star, self.fields[5].star) {
            (false, false) => by_month || by_week,
            _ => by_month && by_week,
        };
        day && at(0, time.second()) && at(1, time.minute()) && at(2, time.hour()) && at(4, time.month())
    }

    /// Whether the expression is due in this second. A fixed time that falls into a gap of the clock is due right after
    /// the gap, once.
    fn stands_at(&self, second: i64) -> Option<bool> {
        let civil = |second| Some(self.zone.to_datetime(jiff::Timestamp::from_second(second).ok()?));
        let (now, before) = (civil(second)?, civil(second - 1)?);
        if !self.fields[..3].iter().all(|field| field.fixed) {
            return Some(self.names(now));
        }
        let first_pass = self.zone.to_ambiguous_timestamp(now).compatible().ok()?.as_second() == second;
        let skipped = now.duration_since(before).as_secs() - 1;
        let in_gap = || {
            let mut times = (1..=skipped).filter_map(|n| before.checked_add(jiff::SignedDuration::from_secs(n)).ok());
            // When a zone changes sides of the date line, no time is moved.
            skipped <= 2 * 3600 && times.any(|time| self.names(time))
        };
        Some((first_pass && self.names(now)) || in_gap())
    }

    /// Every due time matches the expression, and none is missing. Checked at the beginnings of minutes and hours, and
    /// at seconds between.
    fn finds(&self, after: i64, dues: &[i64]) -> Verdict {
        let (first, last) = (after.max(0) / 1000 + 1, dues.last().map_or(i64::MAX, |due| due / 1000));
        for due in dues {
            prop_assert!(self.stands_at(due / 1000).unwrap_or(true), "nothing stands at {due}");
        }
        let minutes = (0..1500).map(|n| (first / 60 + 1 + n) * 60);
        let hours = (0..500).map(|n| (first / 3600 + 1 + n) * 3600);
        let seconds = (0..200).map(|n| first + n).chain((0..500).map(|n| first + n * 7919));
        for second in minutes.chain(hours).chain(seconds).filter(|second| *second <= last) {
            let missed = self.stands_at(second) == Some(true) && !dues.contains(&(second * 1000));
            prop_assert!(!missed, "{} is missing", second * 1000);
        }
        Ok(())
    }
}
