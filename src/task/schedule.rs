//! When a task is due: once (`at`, `in`), at an interval (`every`), or by `cron` in a time zone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TaskId;
pub use super::cron::ScheduleError;
use super::task_dues::TaskDues;
use crate::clock::Timestamp;

/// When a task is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Once, at an interval, or by cron.
    pub when: When,
    /// No occurrence is due later than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Timestamp>,
    /// Maximum number of occurrences, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Delays each occurrence by 0 up to this. The delay depends only on task id and time. Shorter than the shortest
    /// gap.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_optional_millis")]
    pub spread: Option<Duration>,
}

/// The kinds of schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Once, at this time. A time in the past is due at once, with this time in its key.
    At(Timestamp),
    /// Once, this long after the put; a repeated put counts anew.
    In(#[serde(with = "as_millis")] Duration),
    /// At `start`, `start + gap`, ...; without `start`, one gap after the put, two gaps after it, ...
    Every {
        /// The interval, in whole milliseconds, at least 1.
        #[serde(with = "as_millis")]
        gap: Duration,
        /// The first time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<Timestamp>,
    },
    /// At the times of a cron expression in a zone.
    Cron {
        /// Five fields, or six with seconds first, or a nickname such as `@daily`.
        expression: String,
        /// IANA name; the default is UTC.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
        /// No occurrence is due earlier than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<Timestamp>,
    },
}

impl Schedule {
    /// The zone of a cron schedule that names one.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        match &self.when {
            When::Cron { zone, .. } => zone.as_deref(),
            When::At(_) | When::In(_) | When::Every { .. } => None,
        }
    }

    /// Whether there can be more than one occurrence: `every` and `cron`.
    #[must_use]
    pub fn is_recurring(&self) -> bool {
        matches!(self.when, When::Every { .. } | When::Cron { .. })
    }

    /// The first due of a task that is put at `anchor`; for `every` and `cron` it is later than `anchor`. `None` if it
    /// would be after `end`, or never.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn first(&self, id: &TaskId, anchor: Timestamp) -> Result<Option<Timestamp>, ScheduleError> {
        Ok(TaskDues::new(self, id, anchor)?.first())
    }

    /// The first due later than `after` of a task that was put at `anchor`; `None` if there is none up to `end`.
    ///
    /// Ignores `limit`, because only the timeline counts occurrences.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn next_after(
        &self,
        id: &TaskId,
        anchor: Timestamp,
        after: Timestamp,
    ) -> Result<Option<Timestamp>, ScheduleError> {
        Ok(TaskDues::new(self, id, anchor)?.next_after(after))
    }

    /// Up to `max` dues later than `after` of a recurring task that was put at `anchor`; none of one that is due once.
    ///
    /// `came_due` is the number of occurrences before the one at `after`. That one counts, too, so `limit - came_due - 1` are
    /// left.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn dues_after(
        &self,
        id: &TaskId,
        anchor: Timestamp,
        after: Timestamp,
        came_due: u64,
        max: usize,
    ) -> Result<Vec<Timestamp>, ScheduleError> {
        if !self.is_recurring() {
            return Ok(Vec::new());
        }
        let left = |limit: u64| usize::try_from(limit.saturating_sub(came_due.saturating_add(1))).unwrap_or(max);
        let max = self.limit.map_or(max, |limit| left(limit).min(max));
        let dues = TaskDues::new(self, id, anchor)?;
        Ok(std::iter::successors(dues.next_after(after), |due| dues.next_after(*due)).take(max).collect())
    }

    /// The shortest gap among the next 100 occurrences after `from`, before the spread; `None` if there are fewer than
    /// two.
    ///
    /// For `cron` the 100 count from the start of `from`'s day in UTC, for at most 40 years, and ignore `start` and
    /// `end`, so that the result can be cached for all tasks with this expression.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn shortest_gap(&self, anchor: Timestamp, from: Timestamp) -> Result<Option<Duration>, ScheduleError> {
        Ok(TaskDues::unspread(self, anchor)?.shortest_gap(from))
    }

    /// How long the retries of an occurrence may take before the next one can be due: the shortest gap minus the
    /// spread. `None` if there is no next one.
    ///
    /// # Errors
    /// If the cron expression or the zone cannot be parsed.
    pub fn retry_time(&self, anchor: Timestamp, from: Timestamp) -> Result<Option<Duration>, ScheduleError> {
        let gap = self.shortest_gap(anchor, from)?;
        Ok(gap.map(|gap| gap.saturating_sub(self.spread.unwrap_or_default())))
    }
}

/// serde for durations as whole milliseconds.
pub(super) mod as_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::task) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(in crate::task) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// serde for optional durations as whole milliseconds.
pub(super) mod as_optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::task) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => super::as_millis::serialize(span, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in crate::task) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}
