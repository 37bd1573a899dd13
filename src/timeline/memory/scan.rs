//! The verbs that list and count tasks: scan, upcoming and count.

use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::twin::Twin;
use crate::clock::Timestamp;
use crate::task::{Lane, Member};
use crate::timeline::DuePosition;
use crate::timeline::OVERDUE_AFTER;
use crate::timeline::pauses::is_paused_score;
use crate::timeline::scan::{
    CountRequest, LaneCounts, MAX_UPCOMING, ScanRequest, Scanned, ScannedTask, Upcoming, UpcomingRequest,
};

impl Twin {
    /// Reads a part of a lane, in the order of a hash of the ids. That order does not depend on other tasks, so a task
    /// that stays comes once.
    #[must_use]
    pub fn scan(&self, now: Timestamp, lane: &Lane, request: &ScanRequest) -> Scanned {
        let Some(due) = self.due.get(lane) else { return Scanned::default() };
        let behind = due.iter().filter_map(|(score, member)| {
            let place = place(member);
            (place > request.cursor).then_some((place, score, member))
        });
        // The first ones; the last of them is on top.
        let mut part = BinaryHeap::with_capacity(request.count + 1);
        let mut more = false;
        for entry in behind {
            part.push(entry);
            if part.len() > request.count.max(1) {
                part.pop();
                more = true;
            }
        }
        let cursor = part.peek().filter(|_| more).map_or(0, |(place, ..)| *place);
        let selected = part.into_sorted_vec().into_iter().filter_map(|(_, score, member)| {
            // A requeued occurrence is no task.
            let id = member.requeued_key().is_none().then(|| member.task())?;
            request.filter.selects(id.as_str(), score, now).then_some(())?;
            Some(ScannedTask::new(id, score))
        });
        Scanned { tasks: selected.collect(), cursor, process: 0 }
    }

    /// Lists the tasks of a lane that wait, by due and id.
    #[must_use]
    pub fn upcoming(&self, lane: &Lane, request: &UpcomingRequest) -> Upcoming {
        let after = &request.after;
        let is_behind = |score: i64, member: &Member| {
            (score, Some(member)) > (after.due.as_millis(), after.member.as_ref()) && score >= after.due.as_millis()
        };
        let mut behind = self.waiting(lane).filter(|(score, member)| is_behind(*score, member));
        let (mut tasks, mut last) = (Vec::new(), None);
        for _ in 0..MAX_UPCOMING {
            if tasks.len() >= request.max {
                break;
            }
            let Some((score, member)) = behind.next() else { return Upcoming { tasks, last: None } };
            let due = Timestamp::from_millis(score);
            last = Some(DuePosition { due, member: Some(member.clone()) });
            // A requeued occurrence is no task.
            if member.requeued_key().is_none() && member.as_str().starts_with(&request.prefix) {
                tasks.push((due, member.task()));
            }
        }
        Upcoming { tasks, last: last.filter(|_| behind.next().is_some()) }
    }

    /// Counts the tasks of a lane.
    #[must_use]
    pub fn count(&self, now: Timestamp, lane: &Lane, request: &CountRequest) -> LaneCounts {
        let line = self.due.get(lane);
        let between = |low: i64, high: i64| line.map_or(0, |line| line.between(low, high).count() as u64);
        let in_flight = line.map_or(0, |line| line.negative().count() as u64);
        let window = |borders: &[Timestamp]| between(borders[0].as_millis(), borders[1].as_millis() - 1);
        LaneCounts {
            waiting: self.waiting(lane).count() as u64,
            overdue: between(1, now.minus(OVERDUE_AFTER).as_millis()),
            in_flight,
            paused: line.map_or(0, |line| line.iter().filter(|(score, _)| is_paused_score(*score)).count() as u64),
            windows: request.borders.windows(2).map(window).collect(),
        }
    }
}

/// The place of a member in the scan: never 0, which is the start. Two members with one place would be as unlikely as
/// two equal hashes of 64 bits.
fn place(member: &Member) -> u64 {
    let mut hasher = DefaultHasher::new();
    member.hash(&mut hasher);
    hasher.finish().max(1)
}
