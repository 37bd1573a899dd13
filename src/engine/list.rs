//! Lists the tasks of all shards and lanes in parts: all tasks in no order, or the waiting tasks by due. Also counts
//! tasks.
//!
//! The list without an order goes through the shards, in each through the lanes, in each in the order of the timeline. A
//! task that stays in its lane is listed at least once, whatever happens to others in the meantime. One that changes its
//! lane may come twice or not at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::engine::dead::MAX_BULK_READ_PAUSE;
use crate::engine::intake::Intake;
use crate::task::{Lane, Shard, TaskId};
use crate::timeline::{
    CountRequest, DuePosition, GlanceRequest, LaneCounts, SCAN_COUNT, ScanRequest, ScannedTask, TaskFilter,
    TimelineError, UpcomingRequest,
};

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

/// How many tasks of a lane and shard are read at once for a list by due.
const UPCOMING_PART: usize = 64;

/// Tasks that wait, by due and id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpcomingPage {
    /// Due, id and lane.
    pub tasks: Vec<(Timestamp, TaskId, Lane)>,
    /// Whether others follow.
    pub more: bool,
}

/// The waiting tasks of one lane and shard, read in parts.
struct Source {
    shard: Shard,
    lane: Lane,
    tasks: VecDeque<(Timestamp, TaskId)>,
    /// Where to continue; `None` at the end.
    next: Option<DuePosition>,
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
    /// Lists tasks of the lanes that `may_list` allows, from `position` on. A page may exceed `max` tasks by
    /// one part. Starts no further part once `time_limit` has passed, so a page can be empty although more follow.
    ///
    /// # Errors
    /// [`ListError`].
    pub async fn list(
        &self,
        may_list: impl Fn(&Lane) -> bool,
        filter: &TaskFilter,
        mut position: Option<ListPosition>,
        max: usize,
        time_limit: Duration,
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
                    if tasks.len() >= max || (parts > 0 && begun.elapsed() >= time_limit) {
                        let next = Some(ListPosition { shard: shard.number(), lane, cursor, process });
                        return Ok(TaskPage { tasks, next });
                    }
                    let request = ScanRequest { filter: filter.clone(), cursor, count: SCAN_COUNT };
                    let scanned = self.one_at_a_time(self.timeline.scan(shard, &lane, request)).await?;
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

    /// Lists up to `max` tasks that wait, by due and then by id, from `from` on. Starts no further list once `time_limit`
    /// has passed.
    ///
    /// # Errors
    /// An error of the timeline; [`TimelineError::Late`] if `time_limit` passed before the first task of the page was
    /// known. If it passes later, the page ends early.
    pub async fn upcoming_tasks(
        &self,
        may_list: impl Fn(&Lane) -> bool,
        prefix: &str,
        from: Timestamp,
        max: usize,
        time_limit: Duration,
    ) -> Result<UpcomingPage, TimelineError> {
        let give_up = Instant::now() + time_limit;
        let mut sources = Vec::new();
        for shard in Shard::all(self.timeline.shards()) {
            let lanes = self.lanes_of(shard).await?.into_iter().filter(|lane| may_list(lane));
            let next = Some(DuePosition { due: from, member: None });
            sources.extend(lanes.map(|lane| Source { shard, lane, tasks: VecDeque::new(), next: next.clone() }));
        }
        let mut page = UpcomingPage::default();
        while page.tasks.len() < max {
            for source in sources.iter_mut().filter(|source| source.tasks.is_empty()) {
                while source.tasks.is_empty()
                    && let Some(after) = source.next.take()
                {
                    if Instant::now() >= give_up {
                        // Every task so far is earlier than all that were not read.
                        page.more = true;
                        return if page.tasks.is_empty() { Err(TimelineError::Late) } else { Ok(page) };
                    }
                    let max = UPCOMING_PART.min(max - page.tasks.len());
                    let request = UpcomingRequest { after, max, prefix: prefix.to_owned() };
                    let read = self.timeline.upcoming(source.shard, &source.lane, request);
                    let read = self.one_at_a_time(read).await?;
                    (source.tasks, source.next) = (read.tasks.into(), read.last);
                }
            }
            let first =
                sources.iter_mut().filter(|source| !source.tasks.is_empty()).min_by(|a, b| a.tasks[0].cmp(&b.tasks[0]));
            let Some(source) = first else { return Ok(page) };
            page.tasks.extend(source.tasks.pop_front().map(|(due, id)| (due, id, source.lane.clone())));
        }
        page.more = sources.iter().any(|source| !source.tasks.is_empty() || source.next.is_some());
        Ok(page)
    }

    /// Counts the tasks of each lane over all shards. Starts no further count once `time_limit` has passed.
    ///
    /// # Errors
    /// An error of the timeline; [`TimelineError::Late`] if not every lane was counted in time.
    pub async fn count_tasks(
        &self,
        may_count: impl Fn(&Lane) -> bool,
        borders: &[Timestamp],
        time_limit: Duration,
    ) -> Result<BTreeMap<Lane, LaneCounts>, TimelineError> {
        let give_up = Instant::now() + time_limit;
        let mut counts: BTreeMap<Lane, LaneCounts> = BTreeMap::new();
        for shard in Shard::all(self.timeline.shards()) {
            for lane in self.lanes_of(shard).await?.into_iter().filter(|lane| may_count(lane)) {
                if Instant::now() >= give_up {
                    return Err(TimelineError::Late);
                }
                let request = CountRequest { borders: borders.to_vec() };
                let counted = self.one_at_a_time(self.timeline.count(shard, &lane, request)).await?;
                counts.entry(lane).or_default().add(counted);
            }
        }
        Ok(counts)
    }

    /// The lanes of a shard that have tasks, and the configured ones, by name.
    pub(super) async fn lanes_of(&self, shard: Shard) -> Result<BTreeSet<Lane>, TimelineError> {
        let (lease, dead_keep) = (Duration::from_secs(1), Duration::MAX / 4);
        let request = GlanceRequest { lanes: Vec::new(), lease, dead_keep, depth: false };
        let known = self.timeline.glance(shard, request).await?.known;
        Ok(self.lanes.keys().cloned().chain(known).collect())
    }

    /// Makes a call that reads much, after the previous such call and its pause.
    pub(super) async fn one_at_a_time<T>(&self, call: impl Future<Output = T>) -> T {
        let mut paused_until = self.bulk_read_lock.lock().await;
        if let Some(until) = *paused_until {
            tokio::time::sleep_until(until).await;
        }
        let begun = Instant::now();
        let answer = call.await;
        *paused_until = Some(Instant::now() + begun.elapsed().min(MAX_BULK_READ_PAUSE));
        answer
    }
}
