//! Cron expressions in time zones: parsed once, cached, evaluated often.
//!
//! An expression names fixed times if none of its seconds, minutes and hours begins with `*`. When clocks change, all
//! its times in the gap are due once, at the end of the gap. Each of its times in an overlap is due once, in the first
//! pass. Every other expression skips the gap and is due in both passes of an overlap. In a gap of more than two hours
//! (a zone that crosses the date line), nothing is due.

mod fields;
mod fixed;
mod horizon;
pub(super) mod zones;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneTransition};
use jiff::{SignedDuration, Zoned};
use lru::LruCache;
use parking_lot::Mutex;

use self::horizon::Start;

/// How many of the next occurrences are compared for the shortest gap.
const CHECKED_DUES: usize = 100;

/// How many expressions are cached. One takes 6 KiB, and parsing takes ten times as long as one evaluation.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// How many clock changes of a zone are searched for a long gap; no zone has more in its history.
const MAX_CHANGES: usize = 1000;

const DAY_MS: i64 = 86_400_000;

/// How far ahead the shortest gap is searched. Days of the week repeat on the same dates after 28 years, and rarer
/// occurrences would take long to find.
const LOOKAHEAD_MS: i64 = 40 * 366 * DAY_MS;

/// Why the next due of a schedule cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The cron expression cannot be parsed. Carries the parser's text.
    #[error("the cron expression cannot be parsed: {0}")]
    Cron(String),
    /// There is no such time zone.
    #[error("the time zone `{0}` is not known")]
    Zone(String),
}

/// A cron expression in a zone, with its last results.
pub(super) struct Timetable {
    expression: String,
    zone: Option<String>,
    cron: Cron,
    /// Whether it names fixed times of the day.
    is_fixed: bool,
    /// Whether it names any day; 31 February, for example, never occurs.
    has_days: bool,
    time_zone: TimeZone,
    known: Mutex<Known>,
}

/// The last results, because thousands of tasks with one expression ask for the same time when it has come.
#[derive(Default)]
struct Known {
    /// After `.0`, the next is `.1`.
    next: Option<(i64, Option<i64>)>,
    /// From day `.0` on, the shortest gap is `.1`.
    gap: Option<(i64, Option<i64>)>,
}

impl Timetable {
    /// The timetable of an expression in a zone (default UTC), from the cache if possible.
    ///
    /// # Errors
    /// If the expression or the zone cannot be parsed.
    pub(super) fn of(expression: &str, zone: Option<&str>) -> Result<Arc<Timetable>, ScheduleError> {
        if let Some(known) = REMEMBERED_TIMETABLES.lock().get(expression, zone) {
            return Ok(known);
        }
        let timetable = Arc::new(Timetable::read(expression, zone)?);
        REMEMBERED_TIMETABLES.lock().keep(Arc::clone(&timetable));
        Ok(timetable)
    }

    fn read(expression: &str, zone: Option<&str>) -> Result<Timetable, ScheduleError> {
        let fields = fields::read(expression).map_err(ScheduleError::Cron)?;
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).build();
        let cron = parser.parse(&fields.text).map_err(|error| ScheduleError::Cron(error.to_string()))?;
        let has_days = horizon::has_days(&cron);
        let time_zone = match zone {
            None => TimeZone::UTC,
            Some(name) => zones::find(name).ok_or_else(|| ScheduleError::Zone(name.to_owned()))?,
        };
        let (expression, zone) = (expression.to_owned(), zone.map(str::to_owned));
        let is_fixed = fields.is_fixed;
        Ok(Timetable { expression, zone, cron, is_fixed, has_days, time_zone, known: Mutex::default() })
    }

    /// The first time later than `after`, both in epoch ms; `None` if there is none within 41 years, or if
    /// clock changes skip so many of its times that the search is given up.
    pub(super) fn next(&self, after: i64) -> Option<i64> {
        if let Some((from, next)) = self.known.lock().next
            && from <= after
            && next.is_none_or(|next| after < next)
        {
            return next;
        }
        let next = self.search(after);
        self.known.lock().next = Some((after, next));
        next
    }

    /// The shortest gap among the [`CHECKED_DUES`] times from the start of `from`'s day in UTC, within 40 years. `None` if
    /// there are fewer than two times.
    pub(super) fn shortest_gap(&self, from: i64) -> Option<Duration> {
        let day = from.div_euclid(DAY_MS);
        let remembered = self.known.lock().gap.filter(|(known, _)| *known == day);
        let (_, gap) = remembered.unwrap_or_else(|| {
            let times = std::iter::successors(self.search(day * DAY_MS - 1), |time| self.search(*time));
            let near = times.take(CHECKED_DUES).take_while(|time| *time <= day * DAY_MS + LOOKAHEAD_MS);
            let mut before = None;
            let gaps = near.filter_map(|time| before.replace(time).map(|before| time - before));
            let found = (day, gaps.min());
            self.known.lock().gap = Some(found);
            found
        });
        gap.map(|gap| Duration::from_millis(gap.unsigned_abs()))
    }

    fn search(&self, after: i64) -> Option<i64> {
        if !self.has_days {
            return None;
        }
        // Occurrences are at whole seconds, so the first one after the start of this second is the first one after this
        // millisecond.
        let second = jiff::Timestamp::from_second(after.max(0).div_euclid(1000)).ok()?;
        let start = second.to_zoned(self.time_zone.clone());
        let found = match self.is_fixed {
            true => fixed::search(&start, |wall| self.next_on_the_wall(wall)),
            false => self.find(&start, false).or_else(|| self.after_long_gap(&start)),
        };
        found.map(|time| time.timestamp().as_millisecond())
    }

    /// The first time later than a time of a wall clock that never changes.
    fn next_on_the_wall(&self, after: DateTime) -> Option<DateTime> {
        let start = after.to_zoned(TimeZone::UTC).ok()?;
        self.find(&start, false).map(|time| time.datetime())
    }

    /// The search gives up at a gap of more than two hours. Continues after the first such gap.
    fn after_long_gap(&self, start: &Zoned) -> Option<Zoned> {
        let changes = self.time_zone.following(start.timestamp()).take(MAX_CHANGES);
        changes.filter(|change| self.is_long_gap(change)).find_map(|change| {
            let resumed = change.timestamp().to_zoned(self.time_zone.clone());
            self.find(&resumed, true)
        })
    }

    fn find(&self, from: &Zoned, inclusive: bool) -> Option<Zoned> {
        self.cron.find_next_occurrence(&Start::new(from.clone()), inclusive).ok().map(Start::into_time)
    }

    fn is_long_gap(&self, change: &TimeZoneTransition<'_>) -> bool {
        let Ok(before) = change.timestamp().checked_sub(SignedDuration::from_secs(1)) else { return false };
        change.offset().seconds() - self.time_zone.to_offset(before).seconds() > fixed::MAX_GAP
    }
}

/// Timetables by the hash of expression and zone. The least recently used are removed.
struct Remembered(LruCache<u64, Arc<Timetable>>);

static REMEMBERED_TIMETABLES: LazyLock<Mutex<Remembered>> = LazyLock::new(Mutex::default);

impl Default for Remembered {
    fn default() -> Remembered {
        Remembered(LruCache::new(MAX_REMEMBERED))
    }
}

impl Remembered {
    fn get(&mut self, expression: &str, zone: Option<&str>) -> Option<Arc<Timetable>> {
        let asked = |known: &&Arc<Timetable>| known.expression == expression && known.zone.as_deref() == zone;
        self.0.get(&hash(expression, zone)).filter(asked).cloned()
    }

    fn keep(&mut self, timetable: Arc<Timetable>) {
        self.0.put(hash(&timetable.expression, timetable.zone.as_deref()), timetable);
    }
}

fn hash(expression: &str, zone: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (expression, zone).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
