//! Triggers a task, or skips its next occurrence.

use std::time::Duration;

use tracing::info;

use crate::clock::Timestamp;
use crate::engine::intake::{GetError, Intake};
use crate::task::schedule::ScheduleError;
use crate::task::{CatchUp, Key, Record, Shard, TaskId};
use crate::timeline::{MoveAnswer, MoveRequest, Skip, StoredTask, TaskRevision, TimelineError};

/// How often a skip reads the task again, because it was put, triggered or published meanwhile.
const MAX_SKIP_ROUNDS: usize = 3;

/// The skipped occurrence and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The key that is not published.
    pub key: Key,
    /// The due of the task now.
    pub due: Timestamp,
    /// Whether the key was handed out before, so that it may still arrive.
    pub handed_out: bool,
}

/// Why the next occurrence of a task was not skipped.
#[derive(Debug, thiserror::Error)]
pub enum SkipError {
    /// There is no such task.
    #[error("there is no task `{0}`")]
    Unknown(TaskId),
    /// A claim holds it.
    #[error("the occurrence `{0}` is in flight")]
    InFlight(Key),
    /// No occurrence follows.
    #[error("the occurrence `{0}` is the last one: cancel the task instead")]
    Last(Key),
    /// Its next due is another one.
    #[error("the next occurrence is `{0}`")]
    NotNext(Key),
    /// The schedule cannot be parsed.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// It could not be read.
    #[error(transparent)]
    Get(#[from] GetError),
    /// An error of the timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl Intake {
    /// Makes a task due at once, under a key that was never used. Then its schedule goes on with the due it had. A paused
    /// task publishes this occurrence and stays paused; if it has missed its due, it keeps the key of that due, unless its
    /// catch-up `none` would then pass it over.
    ///
    /// `by` is who asks. Takes at most `deadline`.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn trigger(
        &self,
        id: &TaskId,
        by: Option<&str>,
        deadline: Duration,
    ) -> Result<MoveAnswer, TimelineError> {
        let (_, not_after) = self.shard_until(id, deadline);
        let new_key = match self.get(id).await {
            Ok(found) => found.is_some_and(|(record, _)| record.task.catch_up == Some(CatchUp::None)),
            Err(GetError::Timeline(error)) => return Err(error),
            Err(GetError::Record(_)) => false,
        };
        let answer = self.move_due(id, MoveRequest::Trigger { new_key }, not_after).await?;
        if let MoveAnswer::Moved { due, .. } = answer {
            let (by, key) = (by.unwrap_or("-"), Key { task: id.clone(), due });
            info!(target: "punctual::audit", %key, by, "task triggered");
        }
        Ok(answer)
    }

    /// Passes over the next occurrence of a recurring task; with `due`, only if it is due at that time.
    ///
    /// `by` is who asks. Takes at most `deadline`.
    ///
    /// # Errors
    /// [`SkipError`].
    pub async fn skip(
        &self,
        id: &TaskId,
        due: Option<Timestamp>,
        by: Option<&str>,
        deadline: Duration,
    ) -> Result<Skipped, SkipError> {
        let (shard, not_after) = self.shard_until(id, deadline);
        let key = |due| Key { task: id.clone(), due };
        let mut found = None;
        for _ in 0..MAX_SKIP_ROUNDS {
            let (record, held) = self.get(id).await?.ok_or_else(|| SkipError::Unknown(id.clone()))?;
            if held.in_flight {
                return Err(SkipError::InFlight(key(held.due)));
            }
            if due.is_some_and(|due| due != held.due) {
                return Err(SkipError::NotNext(key(held.due)));
            }
            let skip = skip_of(id, &record, &held, self.timeline.clock(shard).now())?;
            let skip = skip.ok_or_else(|| SkipError::Last(key(held.due)))?;
            match self.move_due(id, MoveRequest::Skip(skip), not_after).await? {
                MoveAnswer::Moved { due, handed_out } => {
                    let (by, key) = (by.unwrap_or("-"), key(held.due));
                    info!(target: "punctual::audit", %key, by, next = %due, "occurrence skipped");
                    return Ok(Skipped { key, due, handed_out: handed_out.is_some() });
                }
                MoveAnswer::InFlight { due } => return Err(SkipError::InFlight(key(due))),
                MoveAnswer::Unknown => return Err(SkipError::Unknown(id.clone())),
                MoveAnswer::Mismatch { due } | MoveAnswer::Unchanged { due } => found = Some(due),
            }
        }
        Err(found.map_or_else(|| SkipError::Unknown(id.clone()), |due| SkipError::NotNext(key(due))))
    }

    /// Skips what a paused task has missed: its next due is then in the future. Does nothing if it is not paused, has
    /// missed nothing, or ends with this occurrence.
    ///
    /// `by` is who asks. Takes at most `deadline`.
    ///
    /// # Errors
    /// [`SkipError`], but not that the task is in flight, is unknown, has no further occurrence, or has another next
    /// due.
    pub async fn skip_missed(&self, id: &TaskId, by: Option<&str>, deadline: Duration) -> Result<(), SkipError> {
        let (_, now) = self.shard_until(id, Duration::ZERO);
        let missed = |held: &StoredTask| held.pause.is_some() && held.due <= now;
        let Some((_, held)) = self.get(id).await?.filter(|(_, held)| missed(held)) else { return Ok(()) };
        match self.skip(id, Some(held.due), by, deadline).await {
            Ok(_)
            | Err(SkipError::InFlight(_) | SkipError::Last(_) | SkipError::NotNext(_) | SkipError::Unknown(_)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn move_due(
        &self,
        id: &TaskId,
        request: MoveRequest,
        not_after: Timestamp,
    ) -> Result<MoveAnswer, TimelineError> {
        self.timeline.move_due(Shard::of(id, self.timeline.shards()), id, request, not_after).await
    }
}

/// The request to skip the next occurrence of a task; `None` if no other one follows. What it has missed until `now` is
/// skipped with it, and counts as one.
fn skip_of(id: &TaskId, record: &Record, held: &StoredTask, now: Timestamp) -> Result<Option<Skip>, ScheduleError> {
    let mut counts = held.counts;
    counts.ended(held.due);
    counts.passed_over += 1;
    let after = held.counts.search_from(held.due).max(now);
    let next = record.task.schedule.dues_after(id, record.anchor, after, held.counts.came_due(), 1)?;
    let skip = |to| Skip { from: held.due, revision: TaskRevision::of(record), to, counts };
    Ok(next.first().copied().map(skip))
}
