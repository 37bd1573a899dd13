//! Decides whether a due occurrence is published, and computes the next due.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::schedule::ScheduleError;
use super::task_dues::TaskDues;
use super::{Member, Record};
use crate::clock::Timestamp;

string_enum! {
    /// How to handle occurrences that are overdue by more than [`CatchUpLimits::grace`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CatchUp {
        /// Publish the claimed one, then those that are overdue by at most `grace`; those in between are passed over.
        #[default]
        Once = "once",
        /// Publish the claimed one, then the newest [`CatchUpLimits::catch_up_max`] of the missed ones, then those that
        /// are overdue by at most `grace`, one by one.
        All = "all",
        /// Pass over all that are overdue by more than `grace`. A one-shot is dead, reason `too late`.
        None = "none",
    }
}

/// The limits of catching up, from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUpLimits {
    /// An occurrence that is overdue by at most this is published, and the next due is the following one; default 60 s.
    pub grace: Duration,
    /// How many missed occurrences `all` publishes at most after the first; default 100.
    pub catch_up_max: u32,
}

/// Counters of a recurring task's occurrences since it was created or replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Accepted by the sink.
    pub accepted: u64,
    /// Dead.
    pub dead: u64,
    /// Passed over by its own catch-up, or skipped by a user.
    pub passed_over: u64,
    /// The latest due that was published, died or was skipped. A trigger does not make it earlier.
    pub last_due: Option<Timestamp>,
}

impl Counts {
    /// How many occurrences came due.
    #[must_use]
    pub fn came_due(&self) -> u64 {
        self.accepted.saturating_add(self.dead).saturating_add(self.passed_over)
    }

    /// Where the search for the due after `due` begins: a triggered occurrence may be due before one that was skipped.
    #[must_use]
    pub fn search_from(&self, due: Timestamp) -> Timestamp {
        self.last_due.map_or(due, |last_due| last_due.max(due))
    }

    /// Notes that the occurrence with this due has ended.
    pub fn ended(&mut self, due: Timestamp) {
        self.last_due = Some(self.search_from(due));
    }

    /// The value in the timeline: accepted, dead, passed over, last due (0 for none), separated by spaces.
    #[must_use]
    pub fn pack(&self) -> String {
        let last_due = self.last_due.map_or(0, Timestamp::as_millis);
        format!("{} {} {} {}", self.accepted, self.dead, self.passed_over, last_due)
    }

    /// Parses the value of [`pack`](Counts::pack). Parts that cannot be parsed count as 0.
    #[must_use]
    pub fn unpack(text: &str) -> Counts {
        let mut parts = text.split(' ').map(|part| part.parse::<u64>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        let (accepted, dead, passed_over, last_due) = (next(), next(), next(), next());
        let last_due = i64::try_from(last_due).ok().filter(|ms| *ms > 0).map(Timestamp::from_millis);
        Counts { accepted, dead, passed_over, last_due }
    }
}

/// What happens to a claimed occurrence, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDue {
    /// Whether it is published; otherwise it is passed over (and counted in `passed_over`), or dead if it is a one-shot.
    pub publish: bool,
    /// How many occurrences are passed over, including this one if it is not published.
    pub passed_over: u64,
    /// The next due, later than the claimed one; `None` if this was the last.
    pub next: Option<Timestamp>,
}

/// Computes a [`NextDue`] in slices, because counting what a cron task missed in a long outage may take millions of
/// steps.
pub struct NextDueSearch(State);

enum State {
    Known(NextDue),
    Walking(Box<Walk>),
}

impl NextDueSearch {
    /// Starts for the occurrence of `member` that was claimed at `due`, when the server's time was `now`.
    ///
    /// # Errors
    /// If the cron expression or the zone of the record cannot be parsed (a zone that the system no longer knows).
    pub fn begin(
        member: &Member,
        record: &Record,
        due: Timestamp,
        now: Timestamp,
        counts: Counts,
        overdue: CatchUpLimits,
    ) -> Result<NextDueSearch, ScheduleError> {
        let policy = record.task.catch_up.unwrap_or_default();
        let late = now.since(due) > overdue.grace;
        let publish = !(late && policy == CatchUp::None);
        let itself = u64::from(!publish);
        let known = |passed_over, next| NextDueSearch(State::Known(NextDue { publish, passed_over, next }));
        if !record.is_recurring() {
            return Ok(known(itself, None));
        }
        let left = match record.task.schedule.limit {
            Some(limit) => limit.saturating_sub(counts.came_due().saturating_add(1)),
            None => u64::MAX,
        };
        if left == 0 {
            return Ok(known(itself, None));
        }
        let dues = TaskDues::new(&record.task.schedule, &member.task(), record.anchor)?;
        let from = counts.search_from(due);
        if !late {
            return Ok(known(0, dues.next_after(from)));
        }
        // The last time at which an occurrence is missed. Later ones are published, whatever the policy.
        let missed_until = now.minus(overdue.grace).minus(Duration::from_millis(1));
        let keep = if policy == CatchUp::All { overdue.catch_up_max } else { 0 };
        // Dues of `every` can be counted at once; for `cron` this is `None`.
        if let Some(missed) = dues.count(from, missed_until) {
            let passed = missed.saturating_sub(u64::from(keep)).min(left);
            let next = if passed < left { dues.nth_after(from, passed) } else { None };
            return Ok(known(itself + passed, next));
        }
        let walk = Walk { dues, at: from, missed_until, left, publish, passed: 0, keep, kept: VecDeque::new() };
        Ok(NextDueSearch(State::Walking(Box::new(walk))))
    }

    /// Continues for at most `steps` occurrences, at least 1. Returns `Some` once the result is known.
    ///
    /// # Errors
    /// See [`begin`](NextDueSearch::begin).
    pub fn advance(&mut self, steps: u32) -> Result<Option<NextDue>, ScheduleError> {
        if let State::Walking(walk) = &mut self.0 {
            match (0..steps.max(1)).find_map(|_| walk.step()) {
                Some(next_due) => self.0 = State::Known(next_due),
                None => return Ok(None),
            }
        }
        match &self.0 {
            State::Known(next_due) => Ok(Some(*next_due)),
            State::Walking(_) => Ok(None),
        }
    }
}

/// Walks over the missed occurrences of a cron task, from the claimed due on.
struct Walk {
    dues: TaskDues,
    /// The last occurrence that was visited.
    at: Timestamp,
    missed_until: Timestamp,
    /// How many occurrences may come due after the claimed one.
    left: u64,
    publish: bool,
    passed: u64,
    /// How many of the newest missed ones are still published.
    keep: u32,
    kept: VecDeque<Timestamp>,
}

impl Walk {
    fn step(&mut self) -> Option<NextDue> {
        let next = self.dues.next_after(self.at);
        match next.filter(|next| *next <= self.missed_until) {
            None => return Some(self.end(self.kept.front().copied().or(next))),
            Some(missed) => {
                self.at = missed;
                self.kept.push_back(missed);
            }
        }
        if self.kept.len() as u64 > u64::from(self.keep) {
            self.kept.pop_front();
            self.passed += 1;
        }
        (self.passed >= self.left).then(|| self.end(None))
    }

    fn end(&self, next: Option<Timestamp>) -> NextDue {
        NextDue { publish: self.publish, passed_over: self.passed + u64::from(!self.publish), next }
    }
}

#[cfg(test)]
#[path = "next_due_tests.rs"]
mod tests;
