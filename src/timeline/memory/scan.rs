//! The verb that lists tasks: scan.

use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::twin::Twin;
use crate::clock::Timestamp;
use crate::task::{Lane, Member};
use crate::timeline::scan::{ScanRequest, Scanned, ScannedTask};

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
            Some(ScannedTask { id, due: Timestamp::from_millis(score.abs()), in_flight: score < 0 })
        });
        Scanned { tasks: selected.collect(), cursor, process: 0 }
    }
}

/// The place of a member in the scan: never 0, which is the start. Two members with one place would be as unlikely as
/// two equal hashes of 64 bits.
fn place(member: &Member) -> u64 {
    let mut hasher = DefaultHasher::new();
    member.hash(&mut hasher);
    hasher.finish().max(1)
}
