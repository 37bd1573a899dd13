//! The requests that list and count the tasks of a lane.

use tokio::time::Instant;

use super::RedisTimeline;
use super::call::Call;
use super::reply::{Reply, broken, name};
use super::request::Request;
use super::routes::Slot;
use super::session::CallError;
use super::verbs::position;
use super::wait_connection::server_process;
use crate::task::{Lane, Shard};
use crate::timeline::keys::Keys;
use crate::timeline::scan::{
    CountRequest, LaneCounts, MAX_UPCOMING, ScanRequest, Scanned, ScannedTask, TaskStatus, Upcoming, UpcomingRequest,
};
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{DuePosition, MAX_BATCH, TimelineError};

impl Request for ScanRequest {
    type Answer = Scanned;

    const SCRIPT: &'static Script = &scripts::SCAN;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        let filter = &self.filter;
        call.arg("cursor", self.cursor)
            .arg("count", self.count.clamp(1, MAX_BATCH))
            .arg("status", filter.status.map(TaskStatus::as_str).unwrap_or_default())
            .arg("prefix", &filter.prefix)
            .arg("text", &filter.contains)
            .time("from", filter.due_from)
            .time("to", filter.due_to);
    }

    fn decode(&self, mut reply: Reply) -> Result<Scanned, TimelineError> {
        if reply.code != Code::Scanned {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let cursor = fields.text()?.parse().map_err(|_| broken("a cursor that is no number"))?;
        let mut rows = fields.list()?;
        let mut tasks = Vec::with_capacity(rows.left() / 2);
        while rows.left() > 0 {
            let (id, score) = (rows.name()?, rows.number()?);
            tasks.push(ScannedTask::new(id, score));
        }
        // The caller fills in `process`.
        Ok(Scanned { tasks, cursor, process: 0 })
    }
}

impl Request for UpcomingRequest {
    type Answer = Upcoming;

    const SCRIPT: &'static Script = &scripts::UPCOMING;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        position(call, Some(&self.after));
        call.arg("max", self.max.clamp(1, MAX_UPCOMING)).arg("prefix", &self.prefix);
    }

    fn decode(&self, mut reply: Reply) -> Result<Upcoming, TimelineError> {
        if reply.code != Code::Upcoming {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let (due, member) = (fields.optional_time()?, fields.optional_text()?);
        let last = due.map(|due| Ok(DuePosition { due, member: member.map(name).transpose()? })).transpose()?;
        let mut rows = fields.list()?;
        let mut tasks = Vec::with_capacity(rows.left() / 2);
        while rows.left() > 0 {
            let id = rows.name()?;
            tasks.push((rows.time()?, id));
        }
        Ok(Upcoming { tasks, last })
    }
}

impl Request for CountRequest {
    type Answer = LaneCounts;

    const SCRIPT: &'static Script = &scripts::COUNT;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        call.list("border..");
        for border in &self.borders {
            call.push(border.as_millis());
        }
    }

    fn decode(&self, mut reply: Reply) -> Result<LaneCounts, TimelineError> {
        if reply.code != Code::Counted {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let (waiting, overdue) = (fields.count()?, fields.count()?);
        let (in_flight, paused) = (fields.count()?, fields.count()?);
        let mut rows = fields.list()?;
        let mut windows = Vec::with_capacity(rows.left());
        while rows.left() > 0 {
            windows.push(rows.count()?);
        }
        if windows.len() != self.borders.windows(2).len() {
            return Err(broken("`count` answered another number of windows"));
        }
        Ok(LaneCounts { waiting, overdue, in_flight, paused, windows })
    }
}

impl RedisTimeline {
    /// A number for the server process behind the connection: the beginning of its `run_id`. If the user may not call
    /// `INFO`, a number for the connection.
    pub(super) async fn process(&self, shard: Shard) -> Result<u32, TimelineError> {
        let until = Instant::now() + self.response_timeout;
        let session = self.nodes.routes.session_by(Slot::of(shard), until).await;
        let session = session.map_err(TimelineError::Unavailable)?;
        let ask = async || match server_process(&session, self.response_timeout).await {
            Ok(id) => Ok(id.get(..8).and_then(|id| u32::from_str_radix(id, 16).ok()).unwrap_or_else(rand::random)),
            Err(CallError::Refused(_)) => Ok(rand::random()),
            Err(failure) => Err(TimelineError::Unavailable(failure.to_string())),
        };
        session.process.get_or_try_init(ask).await.copied()
    }
}
