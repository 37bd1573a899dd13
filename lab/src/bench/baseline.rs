//! The baseline loop: the minimum that Redis must do for an occurrence in this design, over the same records. It finds
//! due tasks, negates their scores and reads their records; then it removes both, or writes the next due and the
//! counts. It has no lease, no fencing and no error handling.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::StreamExt;
use punctual_sinks::{Message, Outcome, Sink};
use redis::aio::MultiplexedConnection;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::moment::{each, spent};
use super::own_runtime::OwnRuntime;
use super::probe::connect;
use super::setup::BenchSetup;
use super::tasks::{GAP, SHARDS, ScheduleKind, join_all};
use punctual::clock::{Clock, RedisClock, Timestamp};
use punctual::task::{Lane, Namespace, Shard};
use punctual::timeline::keys::Keys;

/// Occurrences in a batch, as in an instance.
pub(super) const BATCH_TASKS: usize = 500;

/// Maximum number of batches under way at once.
pub(super) const MAX_BATCHES_IN_FLIGHT: usize = 7;

/// The command by which its scripts are called. Instances do not use it while they publish, so Redis counts these calls
/// separately.
const EVAL: &str = "eval";

/// KEYS due, tasks; ARGV max. Replies with ids and dues, records, and the next head.
const CLAIM_SCRIPT: &str = "
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(0', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local records = {}
if #found > 0 then
  local ids, pairs_of = {}, {}
  for i = 1, #found, 2 do
    ids[#ids + 1], pairs_of[i], pairs_of[i + 1] = found[i], '-' .. found[i + 1], found[i]
  end
  redis.call('ZADD', KEYS[1], 'XX', unpack(pairs_of))
  records = redis.call('HMGET', KEYS[2], unpack(ids))
end
return { found, records, redis.call('ZRANGEBYSCORE', KEYS[1], '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '' }
";

/// KEYS due, tasks; ARGV ids.
const SETTLE_ONE_SHOT: &str = "
redis.call('ZREM', KEYS[1], unpack(ARGV))
redis.call('HDEL', KEYS[2], unpack(ARGV))
return 1
";

/// KEYS due, counts; ARGV the number of ids, then dues and ids, then ids and counts.
const SETTLE_RECURRING: &str = "
local n = tonumber(ARGV[1])
redis.call('ZADD', KEYS[1], 'XX', unpack(ARGV, 2, 1 + 2 * n))
redis.call('HSET', KEYS[2], unpack(ARGV, 2 + 2 * n))
return 1
";

/// The result of the baseline loop.
pub(super) struct Baseline {
    /// The time for all occurrences.
    pub(super) span: Duration,
    /// Time of Redis in the loop's scripts per occurrence, in us.
    pub(super) script_us: Option<f64>,
}

/// Builds the message of an id and a due.
pub(super) type Make = dyn Fn(&str, i64) -> Message + Send + Sync;

/// Where the baseline loop publishes to.
#[derive(Clone)]
pub(super) struct SinkWithMessages {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) message: Arc<Make>,
}

/// One shard of a namespace that no instance uses.
struct BaselineLoop {
    connection: MultiplexedConnection,
    keys: Keys,
    schedule_kind: ScheduleKind,
}

/// The reply of [`CLAIM_SCRIPT`].
type Claimed = (Vec<(String, i64)>, Vec<Vec<u8>>, String);

/// A claimed batch.
struct Taken {
    /// Ids and dues.
    due: Vec<(String, i64)>,
    /// The next due.
    head: Option<i64>,
}

/// Processes all due tasks of a namespace as fast as possible; publishes them before they are settled if `out` is
/// given.
///
/// # Errors
/// If Redis does not answer, the sink does not accept a message, or tasks are missing.
pub(super) async fn drain(
    setup: &BenchSetup,
    namespace: &Namespace,
    schedule_kind: ScheduleKind,
    tasks: u64,
    out: Option<&SinkWithMessages>,
) -> anyhow::Result<Baseline> {
    let room = Arc::new(Semaphore::new(MAX_BATCHES_IN_FLIGHT));
    let shards = BaselineLoop::all(&setup.probe.connection(), namespace, schedule_kind);
    let (scripts, begun) = (setup.probe.spent_in(EVAL).await?, Instant::now());
    let mut loops = JoinSet::new();
    for shard in shards {
        match out {
            Some(out) => loops.spawn(publish_all(Arc::new(shard), out.clone(), Arc::clone(&room))),
            None => loops.spawn(settle_all(shard)),
        };
    }
    let mut count = 0;
    while let Some(emptied) = loops.join_next().await {
        count += emptied??;
    }
    let span = begun.elapsed();
    ensure!(count == tasks, "the baseline loop found {count} of {tasks} tasks");
    Ok(Baseline { span, script_us: each(spent(scripts, setup.probe.spent_in(EVAL).await?), count) })
}

/// Claims and settles until nothing is left; returns how many.
async fn settle_all(shard: BaselineLoop) -> anyhow::Result<u64> {
    let mut count = 0;
    loop {
        let due = shard.claim().await?.due;
        if due.is_empty() {
            return Ok(count);
        }
        count += due.len() as u64;
        shard.settle(&due).await?;
    }
}

/// The same, but publishes each batch before it is settled. `room` limits the batches of all shards.
async fn publish_all(shard: Arc<BaselineLoop>, out: SinkWithMessages, room: Arc<Semaphore>) -> anyhow::Result<u64> {
    let (mut count, mut under_way) = (0, JoinSet::new());
    loop {
        let place = Arc::clone(&room).acquire_owned().await?;
        let due = shard.claim().await?.due;
        if due.is_empty() {
            break;
        }
        count += due.len() as u64;
        let (shard, out) = (Arc::clone(&shard), out.clone());
        under_way.spawn(async move {
            let _place = place;
            let batch = due.iter().map(|(id, due)| (out.message)(id, *due)).collect();
            publish(&*out.sink, batch).await?;
            shard.settle(&due).await
        });
        while let Some(ended) = under_way.try_join_next() {
            ended??;
        }
    }
    join_all(under_way).await?;
    Ok(count)
}

/// Publishes the tasks of a namespace when they are due, until none waits: sleeps until the head is due, claims,
/// publishes, writes back.
///
/// It has a runtime and a connection of its own, like an instance, so that the bench does not delay it.
///
/// # Errors
/// If Redis does not answer, or the sink does not accept a message.
pub(super) async fn on_time(
    setup: &BenchSetup,
    namespace: &Namespace,
    schedule_kind: ScheduleKind,
    make: impl FnOnce() -> anyhow::Result<SinkWithMessages>,
) -> anyhow::Result<()> {
    let runtime = OwnRuntime::new()?;
    let out = runtime.make(make)?;
    let (url, clock, namespace) = (setup.redis_url.clone(), setup.probe.clock(), namespace.clone());
    let publishing = async move {
        let connection = connect(&url).await?;
        let mut loops = JoinSet::new();
        for shard in BaselineLoop::all(&connection, &namespace, schedule_kind) {
            loops.spawn(keep_time(Arc::new(shard), Arc::clone(&clock), out.clone()));
        }
        join_all(loops).await
    };
    runtime.run(publishing).await
}

async fn keep_time(shard: Arc<BaselineLoop>, clock: Arc<RedisClock>, out: SinkWithMessages) -> anyhow::Result<()> {
    let mut under_way = JoinSet::new();
    loop {
        let Taken { due, head } = shard.claim().await?;
        if !due.is_empty() {
            let batch = due.iter().map(|(id, due)| (out.message)(id, *due)).collect();
            let (shard, sink) = (Arc::clone(&shard), Arc::clone(&out.sink));
            under_way.spawn(async move {
                publish(&*sink, batch).await?;
                shard.settle(&due).await
            });
        }
        while let Some(ended) = under_way.try_join_next() {
            ended??;
        }
        // The next due of a recurring task is a day away.
        let near = clock.now().plus(GAP / 2);
        match head.map(Timestamp::from_millis).filter(|head| *head < near) {
            Some(head) => clock.sleep_until(head).await,
            None => break,
        }
    }
    join_all(under_way).await
}

/// Publishes a batch.
///
/// # Errors
/// If not all messages are accepted.
pub(super) async fn publish(sink: &dyn Sink, batch: Vec<Message>) -> anyhow::Result<()> {
    let (count, mut accepted) = (batch.len(), 0);
    let mut outcomes = sink.publish(batch);
    while let Some((_, outcome)) = outcomes.next().await {
        ensure!(outcome == Outcome::Accepted, "the sink does not accept a message: {outcome:?}");
        accepted += 1;
    }
    ensure!(accepted == count, "the sink answered {accepted} of {count} messages");
    Ok(())
}

impl BaselineLoop {
    /// One loop per shard.
    fn all(
        connection: &MultiplexedConnection,
        namespace: &Namespace,
        schedule_kind: ScheduleKind,
    ) -> Vec<BaselineLoop> {
        let shard =
            |shard| BaselineLoop { connection: connection.clone(), keys: Keys::new(namespace, shard), schedule_kind };
        Shard::all(SHARDS).map(shard).collect()
    }

    async fn claim(&self) -> anyhow::Result<Taken> {
        let mut call = redis::cmd(EVAL);
        call.arg(CLAIM_SCRIPT).arg(2).arg(self.keys.due(&Lane::default())).arg(self.keys.tasks()).arg(BATCH_TASKS);
        let (due, records, head): Claimed = call.query_async(&mut self.connection.clone()).await?;
        ensure!(records.len() == due.len(), "{} records of {} tasks", records.len(), due.len());
        Ok(Taken { due, head: head.parse().ok() })
    }

    async fn settle(&self, due: &[(String, i64)]) -> anyhow::Result<()> {
        let mut call = redis::cmd(EVAL);
        let script = if self.schedule_kind == ScheduleKind::Once { SETTLE_ONE_SHOT } else { SETTLE_RECURRING };
        call.arg(script).arg(2).arg(self.keys.due(&Lane::default()));
        if self.schedule_kind == ScheduleKind::Once {
            call.arg(self.keys.tasks());
            due.iter().for_each(|(id, _)| {
                call.arg(id);
            });
        } else {
            call.arg(self.keys.counts()).arg(due.len());
            due.iter().for_each(|(id, due)| {
                call.arg(due + gap_ms(GAP)).arg(id);
            });
            due.iter().for_each(|(id, due)| {
                call.arg(id).arg(format!("1 0 0 {due}"));
            });
        }
        Ok(call.query_async(&mut self.connection.clone()).await?)
    }
}

fn gap_ms(gap: Duration) -> i64 {
    i64::try_from(gap.as_millis()).unwrap_or(i64::MAX)
}
