//! Lists the tasks of all shards and lanes, part by part.
//!
//! A list has no order: it goes through the shards, in each through the lanes, in each in the order of the timeline. A
//! task that stays in its lane is listed at least once, whatever happens to others in the meantime. One that changes its
//! lane may come twice or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::dead::MAX_SCAN_PAUSE;
use crate::engine::intake::Intake;
use crate::task::{Lane, Shard};
use crate::timeline::{GlanceRequest, SCAN_COUNT, ScanRequest, Scanned, ScannedTask, TaskFilter, TimelineError};

/// A page of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks, each with its lane.
    pub tasks: Vec<(Lane, ScannedTask)>,
    /// Where to continue; `None` at the end.
    pub next: Option<ListPosition>,
}

/// A position in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPosition {
    /// The number of the shard.
    pub shard: u16,
    /// The lane.
    pub lane: Lane,
    /// The cursor of the timeline in this lane; 0 at its start.
    pub cursor: u64,
    /// The server process that the cursor belongs to.
    pub process: u32,
}

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The server process has changed since the page before: the list must begin again.
    #[error("redis was restarted or replaced, and the position in the list is lost")]
    PositionLost,
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl Intake {
    /// Lists tasks of the lanes that `may_list` allows, from `position` on. A page has about `max` tasks, and more by
    /// up to one part. Starts no further part once `patience` has passed, so a page can be empty although more follow.
    ///
    /// # Errors
    /// [`ListError`].
    pub async fn list(
        &self,
        may_list: impl Fn(&Lane) -> bool,
        filter: &TaskFilter,
        mut position: Option<ListPosition>,
        max: usize,
        patience: Duration,
    ) -> Result<TaskPage, ListError> {
        let begun = Instant::now();
        let (mut tasks, mut parts) = (Vec::new(), 0);
        let first = position.as_ref().map_or(0, |position| position.shard);
        for shard in Shard::all(self.timeline.shards()).filter(|shard| shard.number() >= first) {
            for lane in self.lanes_of(shard).await?.into_iter().filter(|lane| may_list(lane)) {
                let here = |position: &ListPosition| position.shard == shard.number();
                if position.as_ref().is_some_and(|position| here(position) && lane < position.lane) {
                    continue;
                }
                let same = position.take().filter(|position| here(position) && lane == position.lane);
                let (mut cursor, mut process) = same.map_or((0, 0), |position| (position.cursor, position.process));
                loop {
                    if tasks.len() >= max || (parts > 0 && begun.elapsed() >= patience) {
                        let next = Some(ListPosition { shard: shard.number(), lane, cursor, process });
                        return Ok(TaskPage { tasks, next });
                    }
                    let request = ScanRequest { filter: filter.clone(), cursor, count: SCAN_COUNT };
                    let scanned = self.scan(shard, &lane, request).await?;
                    if cursor != 0 && scanned.process != process {
                        return Err(ListError::PositionLost);
                    }
                    tasks.extend(scanned.tasks.into_iter().map(|task| (lane.clone(), task)));
                    parts += 1;
                    (cursor, process) = (scanned.cursor, scanned.process);
                    if cursor == 0 {
                        break;
                    }
                }
            }
        }
        Ok(TaskPage { tasks, next: None })
    }

    /// The lanes of a shard that have tasks, and the configured ones, by name.
    async fn lanes_of(&self, shard: Shard) -> Result<BTreeSet<Lane>, TimelineError> {
        let (lease, dead_keep) = (Duration::from_secs(1), Duration::MAX / 4);
        let request = GlanceRequest { lanes: Vec::new(), lease, dead_keep, depth: false };
        let known = self.timeline.glance(shard, request).await?.known;
        Ok(self.lanes.keys().cloned().chain(known).collect())
    }

    /// Scans a part of a lane, after the previous scan and its pause.
    async fn scan(&self, shard: Shard, lane: &Lane, request: ScanRequest) -> Result<Scanned, TimelineError> {
        let mut paused_until = self.scan_lock.lock().await;
        if let Some(until) = *paused_until {
            tokio::time::sleep_until(until).await;
        }
        let begun = Instant::now();
        let scanned = self.timeline.scan(shard, lane, request).await;
        *paused_until = Some(Instant::now() + begun.elapsed().min(MAX_SCAN_PAUSE));
        scanned
    }
}
