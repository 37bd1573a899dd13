//! A schedule that is ready to compute dues: cron parsed, base time resolved, spread applied.

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::cron::{ScheduleError, Timetable};
use super::{Schedule, TaskId, When};
use crate::clock::Timestamp;

/// Maximum number of cron times that one search visits; valid schedules need a few. A damaged record may have a spread so
/// long that the search would not end. Beyond this limit the spread is ignored.
const MAX_TIMES_PER_SEARCH: usize = 1000;

/// All dues of a task that was put at one time, in ascending order. Times are epoch ms here.
pub(super) struct TaskDues {
    id: Option<TaskId>,
    series: Series,
    /// When the task was put. A recurring task is due later than that.
    put: i64,
    end: i64,
    /// 0 for none.
    spread: i64,
}

/// The times before the spread.
enum Series {
    Once(i64),
    Every { base: i64, gap: i64 },
    Cron { timetable: Arc<Timetable>, start: i64 },
}

impl TaskDues {
    /// The dues of the task with this id.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub(super) fn new(schedule: &Schedule, id: &TaskId, put: Timestamp) -> Result<TaskDues, ScheduleError> {
        let mut dues = TaskDues::unspread(schedule, put)?;
        dues.spread = schedule.spread.map_or(0, ms);
        if let Series::Every { gap, .. } = dues.series {
            // True for every valid schedule; the closed form below relies on it.
            dues.spread = dues.spread.min(gap);
        }
        dues.id = Some(id.clone());
        Ok(dues)
    }

    /// The dues of any task with this schedule, before the spread.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub(super) fn unspread(schedule: &Schedule, put: Timestamp) -> Result<TaskDues, ScheduleError> {
        let series = match &schedule.when {
            When::At(at) => Series::Once(at.as_millis()),
            When::In(span) => Series::Once(put.plus(*span).as_millis()),
            When::Every { gap, start } => {
                let gap = ms(*gap).max(1);
                let base = start.map_or(put.as_millis().saturating_add(gap), Timestamp::as_millis);
                Series::Every { base, gap }
            }
            When::Cron { expression, zone, start } => {
                let timetable = Timetable::of(expression, zone.as_deref())?;
                Series::Cron { timetable, start: start.map_or(i64::MIN, Timestamp::as_millis) }
            }
        };
        let last = Timestamp::MAX_DUE;
        let end = schedule.end.unwrap_or(last).min(last).as_millis();
        Ok(TaskDues { id: None, series, put: put.as_millis(), end, spread: 0 })
    }

    /// The same dues without an end.
    pub(super) fn without_end(self) -> TaskDues {
        TaskDues { end: Timestamp::MAX_DUE.as_millis(), ..self }
    }

    /// The first due; for recurring schedules it is later than the put.
    pub(super) fn first(&self) -> Option<Timestamp> {
        match self.series {
            Series::Once(time) => self.within_end(time),
            Series::Every { .. } | Series::Cron { .. } => self.next_after(Timestamp::from_millis(self.put)),
        }
    }

    /// The first due later than `after`.
    pub(super) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.as_millis();
        match &self.series {
            Series::Once(time) => self.within_end(*time).filter(|_| *time > after),
            Series::Every { .. } => self.at(self.index_after(after)?),
            Series::Cron { .. } => self.earliest_due_after(after.max(self.put)),
        }
    }

    /// For `every`: number of dues later than `from` and not later than `to`; otherwise `None`.
    pub(super) fn count(&self, from: Timestamp, to: Timestamp) -> Option<u64> {
        let first = self.index_after(from.as_millis())?;
        let beyond = self.index_after(to.as_millis().min(self.end))?;
        Some(u64::try_from(beyond - first).unwrap_or(0))
    }

    /// For `every`: skips `skipped` dues later than `from`, and returns the next one.
    pub(super) fn nth_after(&self, from: Timestamp, skipped: u64) -> Option<Timestamp> {
        let index = self.index_after(from.as_millis())?;
        self.at(index.checked_add(i64::try_from(skipped).ok()?)?)
    }

    /// The shortest gap from `from` on, before the spread.
    pub(super) fn shortest_gap(&self, from: Timestamp) -> Option<Duration> {
        let from = from.as_millis().max(self.put);
        match &self.series {
            Series::Once(_) => None,
            Series::Every { base, gap } => {
                let next = nth_time(*base, *gap, unspread_index_after(*base, *gap, from)?)?;
                let following = next.checked_add(*gap)?;
                (following <= self.end).then(|| Duration::from_millis(gap.unsigned_abs()))
            }
            Series::Cron { timetable, .. } => {
                let gap = timetable.shortest_gap(from)?;
                if self.end < Timestamp::MAX_DUE.as_millis() {
                    let following = self.unspread_after(self.unspread_after(from)?)?;
                    return (following <= self.end).then_some(gap);
                }
                Some(gap)
            }
        }
    }

    /// For `cron`: the first time later than `after`, before the spread.
    fn unspread_after(&self, after: i64) -> Option<i64> {
        match &self.series {
            Series::Cron { timetable, start } => timetable.next(after.max(start.saturating_sub(1))),
            Series::Once(_) | Series::Every { .. } => None,
        }
    }

    /// For `cron`: the earliest due later than `after`, spread included. The search starts one spread before `after`, because
    /// the spread may move those times beyond it.
    fn earliest_due_after(&self, after: i64) -> Option<Timestamp> {
        if self.spread == 0 {
            return self.unspread_after(after).and_then(|due| self.within_end(due));
        }
        let mut best: Option<i64> = None;
        let mut time = self.unspread_after(after.saturating_sub(self.spread));
        for _ in 0..MAX_TIMES_PER_SEARCH {
            let Some(unspread) = time.filter(|time| best.is_none_or(|best| *time < best)) else {
                return best.and_then(|due| self.within_end(due));
            };
            let due = self.with_spread(unspread);
            if due > after {
                best = Some(best.map_or(due, |best| best.min(due)));
            }
            time = self.unspread_after(unspread);
        }
        self.unspread_after(after).and_then(|due| self.within_end(due))
    }

    /// For `every`: the index of the first due later than `after` and than the put.
    fn index_after(&self, after: i64) -> Option<i64> {
        let Series::Every { base, gap } = self.series else { return None };
        let after = after.max(self.put);
        // The spread may also move the previous time beyond `after`, but no earlier one, because it is at most one gap.
        let index = unspread_index_after(base, gap, after)?;
        let before = index.checked_sub(1).filter(|before| *before >= 0);
        let moved =
            before.filter(|before| nth_time(base, gap, *before).is_some_and(|time| self.with_spread(time) > after));
        Some(moved.unwrap_or(index))
    }

    /// For `every`: the due with this index, if it is not after the end.
    fn at(&self, index: i64) -> Option<Timestamp> {
        let Series::Every { base, gap } = self.series else { return None };
        self.within_end(self.with_spread(nth_time(base, gap, index)?))
    }

    /// The time plus its spread, which depends only on id and time.
    fn with_spread(&self, time: i64) -> i64 {
        let Some(id) = self.id.as_ref().filter(|_| self.spread > 0) else { return time };
        let off = xxh3_64_with_seed(id.as_str().as_bytes(), time.cast_unsigned()) % self.spread.unsigned_abs();
        time.saturating_add(i64::try_from(off).unwrap_or(0))
    }

    fn within_end(&self, due: i64) -> Option<Timestamp> {
        (due <= self.end).then(|| Timestamp::from_millis(due))
    }
}

/// The index of the first time later than `after` in `base`, `base + gap`, ...; `None` on overflow, because a damaged
/// record may have any base.
fn unspread_index_after(base: i64, gap: i64, after: i64) -> Option<i64> {
    if after < base { Some(0) } else { (after.checked_sub(base)? / gap).checked_add(1) }
}

fn nth_time(base: i64, gap: i64, index: i64) -> Option<i64> {
    index.checked_mul(gap)?.checked_add(base)
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "task_dues_tests.rs"]
mod tests;
