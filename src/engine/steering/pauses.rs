//! Pauses and resumes tasks and lanes.

use std::time::Duration;

use futures_util::future::join_all;
use tracing::info;

use crate::engine::intake::{Intake, UnknownLane};
use crate::task::{Key, Lane, Shard, TaskId};
use crate::timeline::{
    LanePauseAnswer, LanePauseRequest, LanePauseResult, PauseNote, TaskPauseAnswer, TaskPauseRequest, TimelineError,
};

/// Why a lane was not paused or resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// The lane is not configured, and has no tasks.
    #[error(transparent)]
    UnknownLane(#[from] UnknownLane),
    /// An error of the timeline. Some shards may have done what was asked for, so the request has to be repeated.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

impl Intake {
    /// Pauses a task or resumes it. After the answer to a pause it is not claimed; what is in flight may still be
    /// published. A resumed task keeps its due, and its catch-up decides about what it missed.
    ///
    /// `by` is who asks. Takes at most `deadline`.
    ///
    /// # Errors
    /// An error of the timeline.
    pub async fn pause_task(
        &self,
        id: &TaskId,
        request: TaskPauseRequest,
        by: Option<&str>,
        deadline: Duration,
    ) -> Result<TaskPauseAnswer, TimelineError> {
        let (shard, not_after) = self.shard_until(id, deadline);
        let note = if let TaskPauseRequest::Pause(about) = &request { about.note.clone() } else { String::new() };
        let answer = self.timeline.pause(shard, id, request, not_after).await?;
        let (result, in_flight) = match &answer {
            TaskPauseAnswer::Paused { in_flight, .. } => ("paused", in_flight),
            TaskPauseAnswer::Resumed { in_flight, .. } => ("resumed", in_flight),
            TaskPauseAnswer::Unchanged { .. } | TaskPauseAnswer::Unknown => return Ok(answer),
        };
        let (by, in_flight) = (by.unwrap_or("-"), in_flight.map(|due| Key { task: id.clone(), due }.to_string()));
        info!(target: "punctual::audit", task = %id, result, by, note, in_flight, "task paused or resumed");
        Ok(answer)
    }

    /// Pauses a lane in all shards, or resumes it. After the answer to a pause, no instance claims anything of the lane;
    /// what is in flight may still be published. A resumed lane is claimed within a second.
    ///
    /// `by` is who asks. Takes at most `deadline`.
    ///
    /// # Errors
    /// [`SteerError`].
    pub async fn pause_lane(
        &self,
        lane: &Lane,
        request: LanePauseRequest,
        by: Option<&str>,
        deadline: Duration,
    ) -> Result<LanePauseAnswer, SteerError> {
        let is_pause = matches!(request, LanePauseRequest::Pause { .. });
        // Before the check, which may take long.
        let not_after = self.all_shards_until(deadline);
        if is_pause {
            self.check_known(lane).await?;
        }
        let shards = Shard::all(self.timeline.shards());
        let answers = shards
            .zip(not_after)
            .map(|(shard, not_after)| self.timeline.pause_lane(shard, lane, request.clone(), not_after));
        let answers = join_all(answers).await;
        let error = answers.iter().find_map(|answer| answer.as_ref().err().cloned());
        let answers: Vec<LanePauseAnswer> = answers.into_iter().flatten().collect();
        let resumed = answers.iter().any(|answer| answer.result == LanePauseResult::Resumed);
        let in_flight = answers.iter().map(|answer| answer.in_flight).sum();
        let paused_or_resumed =
            if is_pause { Some(LanePauseResult::Paused) } else { resumed.then_some(LanePauseResult::Resumed) };
        // Also if only some shards did what was asked for.
        if let Some(result) = paused_or_resumed.filter(|_| !answers.is_empty()) {
            log(lane, &request, by, result, in_flight, answers.len());
        }
        if let Some(error) = error {
            return Err(error.into());
        }
        if paused_or_resumed.is_none() {
            // Its name may be mistyped.
            self.check_known(lane).await?;
        }
        Ok(LanePauseAnswer { result: paused_or_resumed.unwrap_or(LanePauseResult::Unchanged), in_flight })
    }

    /// Checks that a lane is configured or has tasks.
    async fn check_known(&self, lane: &Lane) -> Result<(), SteerError> {
        if self.lanes.contains_key(lane) {
            return Ok(());
        }
        for shard in Shard::all(self.timeline.shards()) {
            if self.lanes_of(shard).await?.contains(lane) {
                return Ok(());
            }
        }
        Err(self.unknown_lane(lane).into())
    }
}

fn log(
    lane: &Lane,
    request: &LanePauseRequest,
    by: Option<&str>,
    result: LanePauseResult,
    in_flight: u64,
    shards: usize,
) {
    let (until, note) = match request {
        LanePauseRequest::Pause { until, about: PauseNote { note, .. } } => (*until, note.as_str()),
        LanePauseRequest::Resume => (None, ""),
    };
    let (by, until) = (by.unwrap_or("-"), until.map(|until| until.to_string()));
    info!(target: "punctual::audit", %lane, result = result.as_str(), by, until, note, in_flight, shards, "lane paused or resumed");
}
