//! The tasks of a bench, and how they are put: with the timeline's own `put`, a thousand per call.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};
use tokio::task::JoinSet;

use punctual::clock::Timestamp;
use punctual::task::{Lane, Message, Namespace, Payload, Record, Schedule, Shard, Task, TaskId, When};
use punctual::timeline::redis::{RedisConfig, RedisTimeline};
use punctual::timeline::{Link, MAX_PUT_BYTES, MAX_PUTS, Put, PutMode, PutResult, Timeline};

/// Number of shards of a timeline in one Redis, the default of an instance.
pub(super) const SHARDS: u16 = 4;

/// The same of a timeline in a cluster.
pub(super) const CLUSTER_SHARDS: u16 = 64;

/// How long Redis may take to be reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Calls under way at once.
const MAX_CALLS_IN_FLIGHT: usize = 8;

/// The interval of recurring tasks, longer than any bench.
pub(super) const GAP: Duration = Duration::from_secs(86_400);

/// A kind of schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleKind {
    /// `at`.
    Once,
    /// `every`, once a day.
    Every,
    /// `cron`, once a day at this second.
    Cron,
}

/// Tasks that differ only in id and due.
pub(super) struct Batch<'a> {
    /// Lower-case letters and digits, beginning with a letter; no other batch of the bench has the same prefix.
    pub(super) prefix: &'a str,
    /// Their numbers.
    pub(super) numbers: Range<u64>,
    pub(super) lane: Lane,
    pub(super) schedule_kind: ScheduleKind,
    pub(super) payload: usize,
    /// `None` for that of the lane.
    pub(super) destination: Option<String>,
    /// The first due of a task by its number.
    pub(super) due: &'a (dyn Fn(u64) -> Timestamp + Sync),
}

impl ScheduleKind {
    /// One-shot or recurring.
    pub(super) fn of(recurring: bool) -> ScheduleKind {
        if recurring { ScheduleKind::Every } else { ScheduleKind::Once }
    }

    fn when(self, due: Timestamp) -> When {
        match self {
            ScheduleKind::Once => When::At(due),
            ScheduleKind::Every => When::Every { gap: GAP, start: Some(due) },
            ScheduleKind::Cron => {
                let seconds = due.as_millis().div_euclid(1000);
                let (second, minute, hour) = (seconds % 60, seconds / 60 % 60, seconds / 3600 % 24);
                When::Cron { expression: format!("{second} {minute} {hour} * * *"), zone: None, start: None }
            }
        }
    }
}

impl Batch<'_> {
    /// The encoded record of the tasks with this due.
    pub(super) fn record(&self, due: Timestamp, now: Timestamp) -> Bytes {
        let schedule = Schedule { when: self.schedule_kind.when(due), end: None, limit: None, spread: None };
        let payload = Payload::Json(payload(self.payload));
        let message = Message { destination: self.destination.clone(), payload, ..Message::default() };
        let task = Task { schedule, message, retry: None, catch_up: None };
        Record::new(task, self.lane.clone(), now).encode()
    }
}

/// JSON with this many bytes.
pub(super) fn payload(bytes: usize) -> Bytes {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))).into()
}

/// An id of 17 bytes, with a short prefix.
pub(super) fn id(prefix: &str, number: u64) -> String {
    format!("{prefix}-{number:0width$}", width = 16_usize.saturating_sub(prefix.len()))
}

/// One namespace of the timeline.
pub(super) struct TaskNamespace {
    timeline: Arc<RedisTimeline>,
    pub(super) namespace: Namespace,
    shards: u16,
}

impl TaskNamespace {
    /// Connects.
    ///
    /// # Errors
    /// If Redis is unreachable.
    pub(super) async fn open(url: &SecretString, namespace: Namespace, shards: u16) -> anyhow::Result<TaskNamespace> {
        let config = RedisConfig::new(url.expose_secret(), namespace.clone(), shards);
        // An overloaded machine is slow.
        let timeline = RedisTimeline::connect(RedisConfig { response_timeout: CALL_TIMEOUT, ..config })?;
        let up = tokio::time::timeout(CONNECT_TIMEOUT, async {
            timeline.check_layout().await?;
            for shard in Shard::all(shards) {
                let mut link = timeline.link(shard);
                link.wait_for(|link| matches!(link, Link::Up(_))).await.context("the timeline is closed")?;
            }
            anyhow::Ok(())
        });
        match up.await {
            Ok(up) => up?,
            Err(_) => bail!("the Redis of the timeline does not answer within {CONNECT_TIMEOUT:?}"),
        }
        Ok(TaskNamespace { timeline, namespace, shards })
    }

    /// The timeline itself.
    pub(super) fn timeline(&self) -> &Arc<RedisTimeline> {
        &self.timeline
    }

    /// Puts all tasks of a batch; `tell` is called with the number so far.
    ///
    /// # Errors
    /// If one of them is not created.
    pub(super) async fn put(&self, batch: &Batch<'_>, tell: &(dyn Fn(u64) + Sync)) -> anyhow::Result<()> {
        let now = self.timeline.any_clock().now();
        let mut waiting: Vec<Vec<Put>> = Shard::all(self.shards).map(|_| Vec::new()).collect();
        let mut calls = JoinSet::new();
        let mut last: Option<(Timestamp, Bytes)> = None;
        for number in batch.numbers.clone() {
            let due = (batch.due)(number);
            let record = match last.take() {
                Some((of, record)) if of == due => record,
                _ => batch.record(due, now),
            };
            last = Some((due, record.clone()));
            let most = (MAX_PUT_BYTES / record.len().max(1)).clamp(1, MAX_PUTS);
            let id: TaskId = id(batch.prefix, number).parse()?;
            let shard = Shard::of(&id, self.shards);
            let full = &mut waiting[usize::from(shard.number())];
            full.push(Put { id, lane: batch.lane.clone(), due, record });
            if full.len() < most {
                continue;
            }
            let puts = std::mem::take(full);
            while calls.len() >= MAX_CALLS_IN_FLIGHT {
                join(&mut calls).await?;
            }
            calls.spawn(call(Arc::clone(&self.timeline), shard, puts));
            tell(number - batch.numbers.start);
        }
        for (shard, puts) in Shard::all(self.shards).zip(waiting).filter(|(_, puts)| !puts.is_empty()) {
            calls.spawn(call(Arc::clone(&self.timeline), shard, puts));
        }
        join_all(calls).await
    }
}

/// Waits until one of the futures has ended, if there are any.
///
/// # Errors
/// Those of that future.
pub(super) async fn join(calls: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    match calls.join_next().await {
        Some(done) => done?,
        None => Ok(()),
    }
}

/// Waits until all have ended.
///
/// # Errors
/// That of the first that failed.
pub(super) async fn join_all(mut calls: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while !calls.is_empty() {
        join(&mut calls).await?;
    }
    Ok(())
}

async fn call(timeline: Arc<RedisTimeline>, shard: Shard, puts: Vec<Put>) -> anyhow::Result<()> {
    let not_after = timeline.any_clock().now().plus(CALL_TIMEOUT);
    let answers = timeline.put(shard, PutMode::Put, puts, not_after).await.context("cannot put tasks")?;
    let other = answers.iter().find(|answer| answer.result != PutResult::Created);
    ensure!(other.is_none(), "a new task was not created: {other:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_17_bytes_and_payloads_have_the_requested_size() {
        assert_eq!(id("t", 7), "t-000000000000007");
        assert_eq!(id("warm", 1).len(), 17);
        assert_eq!((payload(2).as_ref(), payload(128).len()), (&b"\"\""[..], 128));
    }

    #[test]
    fn a_cron_task_is_due_at_its_second_and_a_day_later() {
        let due = Timestamp::from_millis(1_795_263_301_000);
        let schedule = Schedule { when: ScheduleKind::Cron.when(due), end: None, limit: None, spread: None };
        let (id, before) = ("a".parse().unwrap(), due.minus(Duration::from_secs(5)));
        assert_eq!(schedule.first(&id, before).unwrap(), Some(due));
        assert_eq!(schedule.next_after(&id, before, due).unwrap(), Some(due.plus(GAP)));
    }
}
