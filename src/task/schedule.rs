//! When a task is due: once (`at`, `in`), every so often (`every`), or by `cron` in a time zone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TaskId;
use super::plan::Plan;
use crate::clock::Timestamp;

/// When a task is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Once, every so often, or by cron.
    pub when: When,
    /// No occurrence is due later than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Timestamp>,
    /// How many occurrences may come due, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Occurrences are put off by 0 up to this, each by an amount that depends on task id and time alone; shorter than
    /// the shortest gap.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_optional_millis")]
    pub spread: Option<Duration>,
}

/// The kinds of schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Once, at this time; in the past it is due at once under the key of the time asked for.
    At(Timestamp),
    /// Once, this long after the put; a repeated put counts anew.
    In(#[serde(with = "as_millis")] Duration),
    /// At `start`, `start + gap`, ...; without `start` one gap after the put, two gaps after it, ...
    Every {
        /// From one occurrence to the next; whole milliseconds, at least 1.
        #[serde(with = "as_millis")]
        gap: Duration,
        /// The first of the times counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<Timestamp>,
    },
    /// At the times that a cron expression names in a zone.
    Cron {
        /// Five fields, or six with seconds first, or a nickname such as `@daily`.
        expression: String,
        /// IANA name; without it UTC.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
        /// No occurrence is due earlier than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<Timestamp>,
    },
}

/// A schedule whose next time cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The cron expression cannot be read; the parser's words.
    #[error("the cron expression cannot be read: {0}")]
    Cron(String),
    /// No such time zone.
    #[error("the time zone `{0}` is not known")]
    Zone(String),
}

impl Schedule {
    /// Whether more than one occurrence can come: `every` and `cron`.
    #[must_use]
    pub fn is_recurring(&self) -> bool {
        matches!(self.when, When::Every { .. } | When::Cron { .. })
    }

    /// The first due of a task put at `anchor`: for `every` and `cron` later than `anchor`.
    /// `None` when it would come after `end` or never.
    ///
    /// # Errors
    /// When the cron expression or the zone cannot be read.
    pub fn first(&self, id: &TaskId, anchor: Timestamp) -> Result<Option<Timestamp>, ScheduleError> {
        Ok(Plan::new(self, id, anchor)?.first())
    }

    /// The first due later than `after` of a task put at `anchor`; `None` when there is none, or none before `end`.
    ///
    /// `limit` is not looked at: it counts occurrences, which only the timeline knows.
    ///
    /// # Errors
    /// When the cron expression or the zone cannot be read.
    pub fn next_after(
        &self,
        id: &TaskId,
        anchor: Timestamp,
        after: Timestamp,
    ) -> Result<Option<Timestamp>, ScheduleError> {
        Ok(Plan::new(self, id, anchor)?.next_after(after))
    }

    /// The shortest gap among the next 1000 occurrences after `from`, before any spread; `None` with fewer than two.
    ///
    /// Of `cron`, the 1000 are counted from the beginning of `from`'s day in UTC and for at most 40 years, whatever
    /// `start` and `end` leave of them: so the answer can be remembered for all tasks with that expression.
    ///
    /// # Errors
    /// When the cron expression or the zone cannot be read.
    pub fn shortest_gap(&self, anchor: Timestamp, from: Timestamp) -> Result<Option<Duration>, ScheduleError> {
        Ok(Plan::unspread(self, anchor)?.shortest_gap(from))
    }

    /// How long the retries of an occurrence may take before the next can be due: the shortest gap, less what a spread
    /// may take off it. `None` when no next can come.
    ///
    /// # Errors
    /// When the cron expression or the zone cannot be read.
    pub fn retry_room(&self, anchor: Timestamp, from: Timestamp) -> Result<Option<Duration>, ScheduleError> {
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
