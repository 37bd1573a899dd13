//! Where a search for the next time of a cron expression starts, and how far it may go.

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::Zoned;

/// Maximum number of years in a search. The rarest days, a 29 February on one day of the week in a century that skips
/// one, occur every 40.
pub(super) const YEARS: i32 = 41;

/// A zoned time at which a search starts; the search ends with an error after [`YEARS`].
///
/// Otherwise an expression whose every time falls into an hour that clock changes skip would be searched second by
/// second until the year 5000.
#[derive(Clone)]
pub(super) struct Start {
    time: Zoned,
    last_year: i32,
}

impl Start {
    pub(super) fn new(time: Zoned) -> Start {
        let last_year = i32::from(time.year()) + YEARS;
        Start { time, last_year }
    }

    pub(super) fn into_time(self) -> Zoned {
        self.time
    }

    fn at(&self, time: Zoned) -> Start {
        Start { time, last_year: self.last_year }
    }
}

impl CronDateTime for Start {
    fn to_civil(&self) -> CivilDateTime {
        self.time.to_civil()
    }

    fn civil_weekday(&self) -> Weekday {
        self.time.civil_weekday()
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Start>, CronError> {
        if civil.year() > self.last_year {
            return Err(CronError::TimeSearchLimitExceeded);
        }
        Ok(match self.time.resolve_civil(civil)? {
            Resolution::Single(time) => Resolution::Single(self.at(time)),
            Resolution::Ambiguous(earlier, later) => Resolution::Ambiguous(self.at(earlier), self.at(later)),
            Resolution::Gap => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Start> {
        self.time.checked_add_seconds(seconds).map(|time| self.at(time))
    }

    fn cmp_instant(&self, other: &Start) -> Ordering {
        self.time.cmp_instant(&other.time)
    }
}

/// The name of a field without any value, such as `,`. The parser accepts it, and a search for it would never end.
pub(super) fn empty_field(cron: &Cron) -> Option<&'static str> {
    let pattern = &cron.pattern;
    let fields = [
        ("seconds", &pattern.seconds),
        ("minutes", &pattern.minutes),
        ("hours", &pattern.hours),
        ("day of the month", &pattern.days),
        ("month", &pattern.months),
        ("day of the week", &pattern.days_of_week),
    ];
    let empty = |field: &croner::CronComponent| field.values().is_empty() && !field.has_modifiers();
    fields.into_iter().find(|(_, field)| empty(field)).map(|(name, _)| name)
}

/// Whether the expression names any day. 28 consecutive years contain every kind of year: 14 kinds by first weekday and
/// length.
pub(super) fn has_days(cron: &Cron) -> bool {
    let first = jiff::civil::date(2000, 1, 1);
    let mut days = first.series(jiff::Span::new().days(1)).take_while(|day| day.year() < 2028);
    days.any(|day| {
        let midnight = day.at(0, 0, 0, 0);
        let (year, month, number) = (i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs());
        let (month, number) = (u32::from(month), u32::from(number));
        cron.pattern.month_match(month).unwrap_or(false)
            && cron.pattern.day_match(year, month, number, midnight.civil_weekday()).unwrap_or(false)
    })
}
