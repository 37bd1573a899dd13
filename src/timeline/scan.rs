//! Requests and answers of the verbs that list and count tasks: scan in no order, upcoming by due, count.

use super::DuePosition;
use super::pauses::{due_of_score, is_paused_score};
use crate::clock::Timestamp;
use crate::task::TaskId;

/// About how many tasks one scan call reads. The number is small because Redis does nothing else in the meantime.
pub const SCAN_COUNT: usize = 100;

/// Maximum number of waiting members that one upcoming call reads.
pub const MAX_UPCOMING: usize = 256;

string_enum! {
    /// What a listed task does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum TaskStatus {
        /// It waits, also if it is overdue.
        Scheduled = "scheduled",
        /// It waits although it was due at least [`OVERDUE_AFTER`](super::OVERDUE_AFTER) ago.
        Overdue = "overdue",
        /// A claim holds its occurrence.
        InFlight = "in_flight",
        /// It is paused, and no claim holds it.
        Paused = "paused",
    }
}

impl TaskStatus {
    /// The status of a task, whether it is overdue or not.
    pub(crate) fn of_task(in_flight: bool, paused: bool) -> TaskStatus {
        match (in_flight, paused) {
            (true, _) => TaskStatus::InFlight,
            (false, true) => TaskStatus::Paused,
            (false, false) => TaskStatus::Scheduled,
        }
    }
}

/// Selects tasks; by default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Only those with this status.
    pub status: Option<TaskStatus>,
    /// Only those whose ids begin with this.
    pub prefix: String,
    /// Only those whose ids contain this.
    pub contains: String,
    /// Only those due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Only those due before this time.
    pub due_to: Option<Timestamp>,
}

impl TaskFilter {
    /// Whether a task with this score is selected at `now`.
    pub(super) fn selects(&self, id: &str, score: i64, now: Timestamp) -> bool {
        let due = due_of_score(score);
        let status = TaskStatus::of_task(score < 0, is_paused_score(score));
        let has_status = match self.status {
            None => true,
            Some(TaskStatus::Overdue) => status == TaskStatus::Scheduled && now.since(due) >= super::OVERDUE_AFTER,
            Some(wanted) => status == wanted,
        };
        has_status
            && id.starts_with(&self.prefix)
            && id.contains(&self.contains)
            && self.due_from.is_none_or(|from| due >= from)
            && self.due_to.is_none_or(|to| due < to)
    }
}

/// The request of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// Which tasks to return.
    pub filter: TaskFilter,
    /// Where the call before ended; 0 at the start. Only valid for the server process that returned it.
    pub cursor: u64,
    /// About how many tasks to read, 1 to 1000.
    pub count: usize,
}

/// The answer of a scan. It has no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The selected tasks of this part. A task may come twice while others are removed.
    pub tasks: Vec<ScannedTask>,
    /// Where to continue; 0 at the end.
    pub cursor: u64,
    /// The server process. A cursor of another process is worth nothing.
    pub process: u32,
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScannedTask {
    /// Its id.
    pub id: TaskId,
    /// The due it waits for, or that of the occurrence in flight.
    pub due: Timestamp,
    /// Whether a claim holds it.
    pub in_flight: bool,
    /// Whether it is paused and no claim holds it.
    pub paused: bool,
}

impl ScannedTask {
    pub(super) fn new(id: TaskId, score: i64) -> ScannedTask {
        ScannedTask { id, due: due_of_score(score), in_flight: score < 0, paused: is_paused_score(score) }
    }
}

/// The request for the tasks of a lane that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpcomingRequest {
    /// Starts behind this position; without a member at the first task of that due.
    pub after: DuePosition,
    /// Maximum number to return, 1 to [`MAX_UPCOMING`].
    pub max: usize,
    /// Only those whose ids begin with this.
    pub prefix: String,
}

/// Tasks that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upcoming {
    /// Due and id, in this order.
    pub tasks: Vec<(Timestamp, TaskId)>,
    /// The last position that was read, if more follow.
    pub last: Option<DuePosition>,
}

/// The request to count the tasks of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountRequest {
    /// Also counts the waiting tasks from each border to before the next one. Borders are in ascending order; each one
    /// costs a search.
    pub borders: Vec<Timestamp>,
}

/// How many tasks of a lane wait, are in flight or are paused. Requeued occurrences count, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Those that wait.
    pub waiting: u64,
    /// Those of them that were due at least [`OVERDUE_AFTER`](super::OVERDUE_AFTER) ago.
    pub overdue: u64,
    /// Those that a claim holds.
    pub in_flight: u64,
    /// Those that are paused and that no claim holds.
    pub paused: u64,
    /// Those that wait, from each border to before the next one.
    pub windows: Vec<u64>,
}

impl LaneCounts {
    /// Adds the tasks of another shard, counted between the same borders.
    pub fn add(&mut self, other: LaneCounts) {
        self.waiting += other.waiting;
        self.overdue += other.overdue;
        self.in_flight += other.in_flight;
        self.paused += other.paused;
        self.windows.resize(self.windows.len().max(other.windows.len()), 0);
        for (window, more) in self.windows.iter_mut().zip(other.windows) {
            *window += more;
        }
    }
}
