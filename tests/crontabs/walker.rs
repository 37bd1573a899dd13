//! Finds the due times of a cron expression by asking of each minute whether it is one. It shares no code with punctual,
//! and reads only expressions whose seconds are one number.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

const MONTHS: &[&str] = &["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Length of a walk, in minutes: 90 years. No test asks for more, such as twenty leap days on one weekday.
const MINUTES: i64 = 90 * 366 * 1440;

/// When whole days are skipped, the skip ends this many minutes before the next matching day, because clocks may change
/// on the way.
const MARGIN: i64 = 180;

/// A cron expression in a zone.
pub(super) struct Walker {
    second: i64,
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: String,
    months: Vec<i8>,
    weekdays: String,
    is_fixed: bool,
    zone: TimeZone,
}

impl Walker {
    pub(super) fn new(expression: &str, zone: &str) -> Walker {
        let expression = match expression {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            other => other,
        };
        let mut fields: Vec<&str> = expression.split(' ').collect();
        if fields.len() == 5 {
            fields.insert(0, "0");
        }
        let [second, minute, hour, days, months, weekdays] = fields[..] else { panic!("{expression}") };
        Walker {
            second: second.parse().unwrap(),
            minutes: values(minute, 0, 59, &[]),
            hours: values(hour, 0, 23, &[]),
            days: days.to_owned(),
            months: values(months, 1, 12, MONTHS),
            weekdays: weekdays.to_owned(),
            is_fixed: !minute.starts_with('*') && !hour.starts_with('*'),
            zone: TimeZone::get(zone).unwrap(),
        }
    }

    /// The first due times after a second, in seconds.
    pub(super) fn dues(&self, after: i64, count: usize) -> Vec<i64> {
        let (mut found, mut minute) = (Vec::new(), after.div_euclid(60));
        let last = minute + MINUTES;
        while found.len() < count && minute < last {
            let wall = self.wall(minute);
            if let Some(days) = self.days_off(wall) {
                minute += days * 1440 - i64::from(wall.hour()) * 60 - MARGIN;
                continue;
            }
            // The end of a gap is due at its first second.
            let due = match self.is_due(minute, wall) {
                Due::Named => Some(minute * 60 + self.second),
                Due::AfterGap => Some(minute * 60),
                Due::No => None,
            };
            found.extend(due.filter(|due| *due > after));
            minute += 1;
        }
        found
    }

    /// Days until the next matching day. `None` if this day matches, has just begun, or is close to that day.
    fn days_off(&self, wall: DateTime) -> Option<i64> {
        let hours = i64::from(wall.hour());
        if hours * 60 <= MARGIN || self.names_day(wall.date()) {
            return None;
        }
        let day = |days: i64| wall.date().checked_add(jiff::Span::new().days(days)).unwrap();
        let days = (1..366).find(|days| self.names_day(day(*days))).unwrap_or(366);
        (days * 1440 > (hours + 1) * 60 + MARGIN).then_some(days)
    }

    fn wall(&self, minute: i64) -> DateTime {
        self.zone.to_datetime(Timestamp::from_second(minute * 60).unwrap())
    }

    fn is_due(&self, minute: i64, wall: DateTime) -> Due {
        if !self.is_fixed {
            return if self.names(wall) { Due::Named } else { Due::No };
        }
        let before = self.wall(minute - 1);
        let skipped = wall.duration_since(before).as_mins() - 1;
        let in_gap = |n| self.names(before.checked_add(SignedDuration::from_mins(n)).unwrap());
        if (1..=skipped).any(in_gap) {
            return Due::AfterGap;
        }
        let second_pass = [30, 60, 120].iter().any(|length| self.wall(minute - length) == wall);
        if self.names(wall) && !second_pass { Due::Named } else { Due::No }
    }

    fn names(&self, wall: DateTime) -> bool {
        self.minutes.contains(&wall.minute()) && self.hours.contains(&wall.hour()) && self.names_day(wall.date())
    }

    fn names_day(&self, date: Date) -> bool {
        if !self.months.contains(&date.month()) {
            return false;
        }
        let (both, weekdays) = match self.weekdays.strip_prefix('+') {
            Some(weekdays) => (true, weekdays),
            None => (false, self.weekdays.as_str()),
        };
        let free = |field: &str| field == "*" || field == "?";
        let by_month = || self.days.split(',').any(|part| names_day_of_month(part, date));
        let by_week = || weekdays.split(',').any(|part| names_day_of_week(part, date));
        match (free(&self.days), free(weekdays)) {
            (true, true) => true,
            (true, false) => by_week(),
            (false, true) => by_month(),
            (false, false) if both => by_month() && by_week(),
            (false, false) => by_month() || by_week(),
        }
    }
}

enum Due {
    No,
    Named,
    AfterGap,
}

/// Whether a date is `L`, `LW`, `15W`, or in `1-7/2`.
fn names_day_of_month(part: &str, date: Date) -> bool {
    let works = |date: Date| date.weekday().to_monday_zero_offset() < 5;
    let in_month = |day: i8| Date::new(date.year(), date.month(), day).unwrap();
    let last = date.last_of_month().day();
    match part {
        "L" => date.day() == last,
        "LW" => Some(date.day()) == (1..=last).rev().find(|day| works(in_month(*day))),
        _ if part.ends_with('W') => {
            let wanted: i8 = part.trim_end_matches('W').parse().unwrap();
            // The nearest one of the month; of a Saturday, the day before comes first, of a Sunday the day after.
            let order: &[i8] =
                if in_month(wanted).weekday().to_monday_zero_offset() == 5 { &[0, -1, 2] } else { &[0, 1, -2] };
            let near = order.iter().map(|shift| wanted + shift).filter(|day| (1..=last).contains(day));
            Some(date.day()) == near.into_iter().find(|day| works(in_month(*day)))
        }
        _ => values(part, 1, 31, &[]).contains(&date.day()),
    }
}

/// Whether a date is `FRI#2`, `SATL`, or in `MON-FRI`.
fn names_day_of_week(part: &str, date: Date) -> bool {
    let last = date.last_of_month().day();
    let (days, in_month) = match part.split_once('#') {
        Some((day, number)) => (day, (date.day() - 1) / 7 + 1 == number.parse::<i8>().unwrap()),
        None => match part.strip_suffix('L') {
            Some(day) => (day, date.day() + 7 > last),
            None => (part, true),
        },
    };
    let weekday = date.weekday().to_sunday_zero_offset();
    let days = values(days, 0, 7, WEEKDAYS);
    in_month && (days.contains(&weekday) || (weekday == 0 && days.contains(&7)))
}

/// The values of a list: `*`, `*/n`, `a`, `a-b`, `a-b/n`; `names[n]` stands for n.
fn values(list: &str, low: i8, high: i8, names: &[&str]) -> Vec<i8> {
    let value = |text: &str| match names.iter().position(|name| *name == text) {
        Some(at) => i8::try_from(at).unwrap(),
        None => text.parse().unwrap(),
    };
    let part = |part: &str| {
        let (range, step) = part.split_once('/').map_or((part, 1), |(range, step)| (range, step.parse().unwrap()));
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (value(from), value(to)),
            None if range == "*" => (low, high),
            None => (value(range), value(range)),
        };
        (from..=to).step_by(step).collect::<Vec<i8>>()
    };
    list.split(',').flat_map(part).collect()
}
