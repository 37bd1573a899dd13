//! The layout of a timeline: its version and its number of shards, stored in Redis. Instances with different layouts do
//! not see each other's tasks, so an instance refuses a Redis that stores another one. A Redis that had the layout and has
//! none any more has lost the timeline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::RedisError;
use super::session::{CallError, Session};
use crate::task::{Lane, Namespace, Shard};
use crate::timeline::calls::Calls;
use crate::timeline::keys::{self, Keys};
use crate::timeline::{Glance, GlanceRequest, TimelineError};

/// How often the stored layout is read, because somebody may empty Redis or restore an old backup. Together with the
/// glances this stays within the budget of the bench `idle`.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Replaces one layout by another, unless a third one is stored; the mark behind it stays. Begins with a delete of a key
/// that never exists, because a full Redis then lets the write pass.
const ALLOW_PAUSES: &str = "redis.call('DEL', KEYS[2])
local layout = redis.call('GET', KEYS[1]) or ''
local rest = string.sub(layout, #ARGV[1] + 1)
if string.sub(layout, 1, #ARGV[1]) == ARGV[1] and (rest == '' or string.sub(rest, 1, 1) == ' ') then
  redis.call('SET', KEYS[1], ARGV[2] .. rest)
end
return redis.call('GET', KEYS[1])";

/// What this instance last knew of the stored timeline.
#[derive(Default)]
pub(super) struct LastKnown {
    /// Number of tasks by shard and lane.
    tasks: Mutex<BTreeMap<(Shard, Lane), TaskCount>>,
    /// The marks of the layouts that were stored: more than one if a timeline was lost.
    marks: Mutex<BTreeSet<String>>,
    /// When the timeline was found to be lost.
    lost: Mutex<Option<Instant>>,
}

/// Number of tasks in a lane of one shard.
#[derive(Clone, Copy, Default)]
struct TaskCount {
    latest: u64,
    /// The most since the layout was last found. Glances of a Redis that was emptied show no tasks any more.
    most: u64,
}

impl LastKnown {
    /// Notes the number of tasks in the lanes of a shard.
    pub(super) fn note(&self, shard: Shard, request: &GlanceRequest, glance: &Glance) {
        let mut tasks = self.tasks.lock();
        for ((lane, _), seen) in request.lanes.iter().zip(&glance.lanes) {
            if let Some((waiting, in_flight)) = seen.depth {
                let count = tasks.entry((shard, lane.clone())).or_default();
                count.latest = waiting + in_flight + seen.paused;
                count.most = count.most.max(count.latest);
            }
        }
    }

    /// The layout was found, so the latest numbers are right.
    fn confirm(&self) {
        self.tasks.lock().values_mut().for_each(|count| count.most = count.latest);
    }

    /// Notes the mark of the stored layout. Returns whether other marks are known and this one is not. One that is known is
    /// that of a backup that was restored.
    fn is_new_mark(&self, mark: &str) -> bool {
        let mut marks = self.marks.lock();
        let has_others = !marks.is_empty();
        marks.insert(mark.to_owned()) && has_others
    }

    /// How long ago the timeline was found to be lost, if it was.
    pub(super) fn lost_for(&self) -> Option<Duration> {
        self.lost.lock().map(|lost| lost.elapsed())
    }

    /// The number of tasks in each lane at the last glance, as text.
    pub(super) fn latest_tasks(&self) -> String {
        described(self.tasks.lock().iter().map(|((_, lane), count)| (lane, count.latest)))
    }

    /// The most tasks in each lane since the layout was last found, as text. Forgets them.
    fn take_tasks(&self) -> String {
        described(std::mem::take(&mut *self.tasks.lock()).iter().map(|((_, lane), count)| (lane, count.most)))
    }
}

/// The sum for each lane over its shards.
fn described<'a>(counts: impl Iterator<Item = (&'a Lane, u64)>) -> String {
    let mut lanes: BTreeMap<&Lane, u64> = BTreeMap::new();
    counts.for_each(|(lane, count)| *lanes.entry(lane).or_default() += count);
    let shown: Vec<String> = lanes.iter().map(|(lane, count)| format!("{lane} {count}")).collect();
    if shown.is_empty() { "unknown".to_owned() } else { shown.join(", ") }
}

/// The layout of this instance, and where it is stored.
#[derive(Clone)]
pub(super) struct Layout {
    /// The URL for logs, without user and password.
    address: String,
    namespace: Namespace,
    key: String,
    shards: u16,
    /// The key of each shard's `tasks` hash.
    tasks: Vec<String>,
    pub(super) last_known: Arc<LastKnown>,
    /// The result of the checks of Redis, once there is one.
    result: Arc<watch::Sender<Option<Result<(), RedisError>>>>,
    calls: Arc<Calls>,
    response_timeout: Duration,
}

impl Layout {
    pub(super) fn new(
        address: &str,
        namespace: &Namespace,
        keys: &[Keys],
        last_known: Arc<LastKnown>,
        calls: Arc<Calls>,
        response_timeout: Duration,
    ) -> Layout {
        let shards = u16::try_from(keys.len()).unwrap_or(u16::MAX);
        Layout {
            address: address.to_owned(),
            key: keys::layout(namespace),
            shards,
            namespace: namespace.clone(),
            tasks: keys.iter().map(Keys::tasks).collect(),
            last_known,
            result: Arc::new(watch::Sender::new(None)),
            calls,
            response_timeout,
        }
    }

    /// The result of the checks of Redis, once there is one.
    pub(super) fn result(&self) -> watch::Receiver<Option<Result<(), RedisError>>> {
        self.result.subscribe()
    }

    /// Whether the layout was found, and is that of this instance.
    pub(super) fn is_found(&self) -> bool {
        matches!(*self.result.borrow(), Some(Ok(())))
    }

    /// Sets the result of the checks of Redis.
    pub(super) fn publish(&self, result: Result<(), RedisError>) {
        self.result.send_replace(Some(result));
    }

    /// Sets the result of the checks of one of several nodes: a failure of another one stays.
    pub(super) fn publish_of_node(&self, result: Result<(), RedisError>) {
        if result.is_err() || !matches!(*self.result.borrow(), Some(Err(_))) {
            self.publish(result);
        }
    }

    /// Stores this layout if there is none yet. If it was `known` to be stored, or another instance has stored it anew, the
    /// timeline is lost, which is logged and counted. At the first check it logs how many tasks the timeline has. The inner
    /// error means that another layout is stored.
    pub(super) async fn check(&self, session: &Session, known: bool) -> Result<Result<(), RedisError>, String> {
        let get = redis::cmd("GET").arg(&self.key).to_owned();
        let mut found = self.ask(session, &get).await?;
        let is_missing = found == Value::Nil;
        if is_missing {
            if known {
                self.report_lost("its layout is gone from redis");
            }
            let new = format!("{} {:016x}", keys::layout_value(self.shards), rand::random::<u64>());
            // SET is sent only if needed: a full Redis would refuse it although the layout is stored.
            self.ask(session, redis::cmd("SET").arg(&self.key).arg(&new).arg("NX")).await?;
            found = self.ask(session, &get).await?;
        }
        let found = match found {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => format!("{other:?}"),
        };
        if !keys::is_own_layout(&found, self.shards) {
            let wanted = keys::layout_value(self.shards);
            let (namespace, found) = (self.namespace.clone(), keys::split_layout(&found).0.to_owned());
            return Ok(Err(RedisError::Layout { namespace, found, wanted }));
        }
        let is_new = self.last_known.is_new_mark(keys::split_layout(&found).1);
        match (is_missing, is_new) {
            // It is reported above.
            (true, _) => {}
            (false, true) => self.report_lost("another layout has taken the place of the known one"),
            (false, false) => self.last_known.confirm(),
        }
        if !known {
            self.report_found(session, is_missing).await?;
        }
        Ok(Ok(()))
    }

    /// Whether the stored layout is that of a timeline with pauses.
    pub(super) async fn allows_pauses(&self, session: &Session) -> Result<bool, TimelineError> {
        let found = self.ask(session, redis::cmd("GET").arg(&self.key)).await.map_err(TimelineError::Unavailable)?;
        let found: String = redis::from_redis_value(found).unwrap_or_default();
        Ok(keys::split_layout(&found).0 == keys::layout_value_with_pauses(self.shards))
    }

    /// Stores the layout of a timeline with pauses, before the first pause. From then on, versions of punctual that would
    /// publish what is paused refuse this Redis.
    ///
    /// # Errors
    /// Nothing was paused: Redis did not answer, or it has lost its layout and this instance has not noticed yet.
    pub(super) async fn allow_pauses(&self, session: &Session) -> Result<(), TimelineError> {
        let (before, after) = (keys::layout_value(self.shards), keys::layout_value_with_pauses(self.shards));
        let ask = async |command: &Cmd| self.ask(session, command).await.map_err(TimelineError::Unavailable);
        let script: String = redis::from_redis_value(ask(redis::cmd("SCRIPT").arg("LOAD").arg(ALLOW_PAUSES)).await?)
            .map_err(|error| TimelineError::Broken(error.to_string()))?;
        let nothing = keys::nothing(&self.namespace);
        let mut run = redis::cmd("EVALSHA");
        run.arg(script).arg(2).arg(&self.key).arg(nothing).arg(before).arg(&after);
        let found: String = redis::from_redis_value(ask(&run).await?).unwrap_or_else(|_| "missing".to_owned());
        let (found, _) = keys::split_layout(&found);
        if found == after {
            return Ok(());
        }
        Err(TimelineError::Unavailable(format!("its layout is `{found}`, not that of this instance")))
    }

    /// Reads the stored layout again and again while `has_layout` says that it is there, and stores it if it is missing.
    /// Calls `failed` if that is not possible. Returns once another one is stored.
    pub(super) async fn changed(
        &self,
        session: &Session,
        has_layout: impl Fn() -> bool,
        failed: impl Fn(&str),
    ) -> RedisError {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if !has_layout() {
                continue;
            }
            match self.check(session, true).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(detail) => failed(&detail),
            }
        }
    }

    fn report_lost(&self, reason: &str) {
        *self.last_known.lost.lock() = Some(Instant::now());
        self.calls.timeline_lost();
        tracing::error!(
            address = self.address,
            namespace = %self.namespace,
            tasks = self.last_known.take_tasks(),
            reason,
            hint = "Redis was emptied, restarted without its data, or has evicted keys; the tasks are lost unless a backup is \
                    restored or they are put again",
            "the timeline is lost"
        );
    }

    /// Logs whether the timeline was created now, so that a mistyped namespace shows, or how many tasks it has.
    async fn report_found(&self, session: &Session, is_new: bool) -> Result<(), String> {
        if is_new {
            tracing::info!(address = self.address, namespace = %self.namespace, "timeline created; it has no tasks yet");
            return Ok(());
        }
        let (mut tasks, mut shards) = (0, 0);
        for key in &self.tasks {
            match session.ask(redis::cmd("HLEN").arg(key), self.response_timeout, None).await {
                Ok(count) => {
                    tasks += redis::from_redis_value::<u64>(count).map_err(|error| error.to_string())?;
                    shards += 1;
                }
                // Another node of the cluster has the shard.
                Err(CallError::Refused(error))
                    if matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN") => {}
                Err(failure) => return Err(failure.to_string()),
            }
        }
        // In a cluster only the shards of this node are counted.
        let of = (shards < self.tasks.len()).then_some(shards);
        tracing::info!(address = self.address, namespace = %self.namespace, tasks, in_shards = of, "timeline found");
        Ok(())
    }

    async fn ask(&self, session: &Session, command: &Cmd) -> Result<Value, String> {
        session.ask(command, self.response_timeout, None).await.map_err(|failure| failure.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::LaneGlance;

    #[test]
    fn the_last_known_tasks_are_summed_over_the_shards() {
        let known = LastKnown::default();
        let (default, other): (Lane, Lane) = (Lane::default(), "other".parse().unwrap());
        let lane = |depth| LaneGlance { depth, ..LaneGlance::default() };
        let note = |depth| {
            for shard in Shard::all(2) {
                let lanes = vec![(default.clone(), true), (other.clone(), false)];
                let request = GlanceRequest { lanes, lease: Duration::ZERO, dead_keep: Duration::ZERO, depth: true };
                let glance = Glance { lanes: vec![lane(Some(depth)), lane(None)], ..Glance::default() };
                known.note(shard, &request, &glance);
            }
        };
        note((3, 1));
        known.confirm();
        // Redis was emptied, and the layout is not read yet.
        note((0, 0));
        assert_eq!(known.latest_tasks(), "default 0");
        assert_eq!((known.take_tasks(), known.take_tasks()), ("default 8".to_owned(), "unknown".to_owned()));
        assert_eq!(known.lost_for(), None);
    }
}
