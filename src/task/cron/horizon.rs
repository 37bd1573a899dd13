//! Where a search for the next time of a cron expression starts, and how far it may go.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

use croner::errors::CronError;
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::Zoned;

/// Maximum number of years in a search. The rarest days, a 29 February on one day of the week in a century that skips
/// one, occur every 40.
pub(super) const MAX_YEARS: i32 = 41;

/// Maximum number of civil times that a search resolves in its zone. A search resolves one for each second that a clock
/// change skips; no change that it goes through skips more than two hours.
const MAX_RESOLVED: u32 = 7500;

/// A zoned time at which a search starts; the search ends with an error after [`MAX_YEARS`], and after [`MAX_RESOLVED`]
/// steps.
///
/// Otherwise an expression whose every time falls into an hour that clock changes skip would be searched second by
/// second until the year 5000.
#[derive(Clone)]
pub(super) struct Start {
    time: Zoned,
    last_year: i32,
    /// How many civil times this search may still resolve.
    left: Rc<Cell<u32>>,
}

impl Start {
    pub(super) fn new(time: Zoned) -> Start {
        let last_year = i32::from(time.year()) + MAX_YEARS;
        Start { time, last_year, left: Rc::new(Cell::new(MAX_RESOLVED)) }
    }

    pub(super) fn into_time(self) -> Zoned {
        self.time
    }

    /// How many civil times may still be resolved.
    #[cfg(test)]
    pub(super) fn left(&self) -> u32 {
        self.left.get()
    }

    fn at(&self, time: Zoned) -> Start {
        Start { time, last_year: self.last_year, left: Rc::clone(&self.left) }
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
        let left = self.left.get().checked_sub(1);
        let Some(left) = left.filter(|_| civil.year() <= self.last_year) else {
            return Err(CronError::TimeSearchLimitExceeded);
        };
        self.left.set(left);
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

/// Whether the expression names any day. 28 consecutive years contain every kind of year: 14 kinds by first weekday and
/// length. One year of each kind is enough.
pub(super) fn has_days(cron: &Cron) -> bool {
    let mut kinds = HashSet::new();
    let firsts = (2000..2028).map(|year| jiff::civil::date(year, 1, 1));
    let of_each_kind =
        firsts.filter(|first| kinds.insert((first.weekday().to_sunday_zero_offset(), first.in_leap_year())));
    let mut days = of_each_kind
        .flat_map(|first| first.series(jiff::Span::new().days(1)).take_while(move |day| day.year() == first.year()));
    days.any(|day| {
        let midnight = day.at(0, 0, 0, 0);
        let (year, month, number) = (i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs());
        let (month, number) = (u32::from(month), u32::from(number));
        cron.pattern.month_match(month).unwrap_or(false)
            && cron.pattern.day_match(year, month, number, midnight.civil_weekday()).unwrap_or(false)
    })
}
