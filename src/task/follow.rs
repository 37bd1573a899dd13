//! What becomes of an occurrence whose time has come, and which due follows it.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::schedule::ScheduleError;
use super::{Member, Record};
use crate::clock::Timestamp;

words! {
    /// What becomes of occurrences that are overdue by more than [`Overdue::grace`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CatchUp {
        /// It is published; the next is the first after now, those between are passed over.
        #[default]
        Once = "once",
        /// It is published, then they follow one by one: the newest [`Overdue::catch_up_max`] of them.
        All = "all",
        /// It is passed over itself; the next is the first after now. A one-shot is dead, reason `too late`.
        None = "none",
    }
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
pub struct Following(State);

enum State {
    Known(Follow),
    Walking(Box<Walk>),
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
        let policy = record.task.catch_up.unwrap_or_default();
        let late = now.since(due) > overdue.grace;
        let publish = !(late && policy == CatchUp::None);
        let itself = u64::from(!publish);
        let known = |passed_over, next| Following(State::Known(Follow { publish, passed_over, next }));
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
        let plan = Plan::new(&record.task.schedule, &member.task(), record.anchor)?;
        if !late {
            return Ok(known(0, plan.next_after(due)));
        }
        let keep = if policy == CatchUp::All { overdue.catch_up_max } else { 0 };
        if let Some(missed) = plan.count(due, now) {
            let passed = missed.saturating_sub(u64::from(keep)).min(left);
            let next = if passed < left { plan.nth_after(due, passed) } else { None };
            return Ok(known(itself + passed, next));
        }
        let walk = Walk { plan, at: due, now, left, publish, passed: 0, keep, kept: VecDeque::new() };
        Ok(Following(State::Walking(Box::new(walk))))
    }

    /// Goes on for at most `steps` occurrences; `Some` once it is known. `steps` is at least 1.
    ///
    /// # Errors
    /// As [`begin`](Following::begin).
    pub fn advance(&mut self, steps: u32) -> Result<Option<Follow>, ScheduleError> {
        if let State::Walking(walk) = &mut self.0 {
            match (0..steps.max(1)).find_map(|_| walk.step()) {
                Some(follow) => self.0 = State::Known(follow),
                None => return Ok(None),
            }
        }
        match &self.0 {
            State::Known(follow) => Ok(Some(*follow)),
            State::Walking(_) => Ok(None),
        }
    }
}

/// Goes through what a cron task missed, from the claimed due to now, one occurrence after the other.
struct Walk {
    plan: Plan,
    /// The last occurrence looked at.
    at: Timestamp,
    now: Timestamp,
    /// How many occurrences may come due after the claimed one.
    left: u64,
    publish: bool,
    passed: u64,
    /// How many of the newest missed ones are still published.
    keep: u32,
    kept: VecDeque<Timestamp>,
}

impl Walk {
    fn step(&mut self) -> Option<Follow> {
        let next = self.plan.next_after(self.at);
        match next.filter(|next| *next <= self.now) {
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

    fn end(&self, next: Option<Timestamp>) -> Follow {
        Follow { publish: self.publish, passed_over: self.passed + u64::from(!self.publish), next }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
