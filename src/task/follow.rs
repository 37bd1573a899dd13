//! What becomes of an occurrence whose time has come, and which due follows it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::schedule::ScheduleError;
use super::{Member, Record};
use crate::clock::Timestamp;

/// What becomes of occurrences that are overdue by more than [`Overdue::grace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// It is published; the next is the first after now, those between are passed over.
    #[default]
    Once,
    /// It is published, then they follow one by one: the newest [`Overdue::catch_up_max`] of them.
    All,
    /// It is passed over itself; the next is the first after now. A one-shot is dead, reason `too late`.
    None,
}

/// The limits of catching up, from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Overdue by at most this, every occurrence is published and followed by the next one; default 60 s.
    pub grace: Duration,
    /// How many missed occurrences `all` publishes at most after the first; default 100.
    pub catch_up_max: u32,
}

/// What has happened to the occurrences of a recurring task since it was created or replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Accepted by the sink.
    pub accepted: u64,
    /// Dead.
    pub dead: u64,
    /// Passed over by its own catch-up.
    pub passed_over: u64,
    /// The last occurrence that came due.
    pub last_due: Option<Timestamp>,
}

impl Counts {
    /// How many occurrences came due.
    #[must_use]
    pub fn came_due(&self) -> u64 {
        self.accepted.saturating_add(self.dead).saturating_add(self.passed_over)
    }

    /// The packed value that stands in the timeline: accepted, dead, passed over, last due (0 for none), with spaces.
    #[must_use]
    pub fn pack(&self) -> String {
        let last_due = self.last_due.map_or(0, Timestamp::as_millis);
        format!("{} {} {} {}", self.accepted, self.dead, self.passed_over, last_due)
    }

    /// Reads what [`pack`](Counts::pack) wrote; what cannot be read counts as nothing.
    #[must_use]
    pub fn unpack(text: &str) -> Counts {
        let mut parts = text.split(' ').map(|part| part.parse::<u64>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        let (accepted, dead, passed_over, last_due) = (next(), next(), next(), next());
        let last_due = i64::try_from(last_due).ok().filter(|ms| *ms > 0).map(Timestamp::from_millis);
        Counts { accepted, dead, passed_over, last_due }
    }
}

/// What becomes of a claimed occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// Whether it is published; otherwise it is passed over itself (and counted in `passed_over`).
    pub publish: bool,
    /// How many occurrences are passed over, this one included when it is not published.
    pub passed_over: u64,
    /// The due that follows, later than the one claimed; `None` when this was the last.
    pub next: Option<Timestamp>,
}

/// Works out a [`Follow`] in slices: counting what a long outage missed of a cron task may take millions of steps.
pub struct Following {
    _private: (),
}

impl Following {
    /// Begins for the occurrence of `member` claimed at `due`, when the server's time was `now`.
    ///
    /// # Errors
    /// When the record's cron expression or zone cannot be read (a zone that the system no longer knows).
    pub fn begin(
        member: &Member,
        record: &Record,
        due: Timestamp,
        now: Timestamp,
        counts: Counts,
        overdue: Overdue,
    ) -> Result<Following, ScheduleError> {
        let _ = (member, record, due, now, counts, overdue);
        todo!()
    }

    /// Goes on for at most `steps` occurrences; `Some` once it is known. `steps` is at least 1.
    ///
    /// # Errors
    /// As [`begin`](Following::begin).
    pub fn advance(&mut self, steps: u32) -> Result<Option<Follow>, ScheduleError> {
        let _ = steps;
        todo!()
    }
}
