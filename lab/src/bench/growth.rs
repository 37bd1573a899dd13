//! Lets Redis finish growing its hash tables. Each access moves one bucket into the new table. Until all are moved, old and
//! new table are both in memory, and each access costs more.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult};
use tokio::time::Instant;

use super::setup::BenchSetup;
use super::tasks::{SHARDS, TaskNamespace};
use punctual::task::{Lane, Shard};
use punctual::timeline::keys::Keys;

/// How long it may take.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(120);

/// Accesses per call.
const ACCESSES_PER_CALL: u64 = 1000;

/// Number of calls that are sent at once.
const CALLS: u64 = 10;

/// Accesses each large table as often as it may have had buckets before it began to grow. Returns whether there was time for all.
///
/// # Errors
/// If Redis does not answer.
pub(super) async fn finish_growth(setup: &BenchSetup, task_namespace: &TaskNamespace) -> RedisResult<bool> {
    let (mut connection, begun) = (setup.probe.connection(), Instant::now());
    for keys in Shard::all(SHARDS).map(|shard| Keys::new(&task_namespace.namespace, shard)) {
        for (key, size, look) in [
            (keys.due(&Lane::default()), "ZCARD", "ZMSCORE"),
            (keys.tasks(), "HLEN", "HMGET"),
            (keys.counts(), "HLEN", "HMGET"),
        ] {
            let entries: u64 = redis::cmd(size).arg(&key).query_async(&mut connection).await?;
            let call = access_missing_entries(look, &key);
            // A table has up to twice as many buckets as entries; half of them existed before it began to grow.
            let mut left = if entries == 0 { 0 } else { entries.next_power_of_two().div_ceil(ACCESSES_PER_CALL) };
            while left > 0 {
                if begun.elapsed() > GROWTH_TIMEOUT {
                    return Ok(false);
                }
                let calls = left.min(CALLS);
                send(&mut connection, &call, calls).await?;
                left -= calls;
            }
        }
    }
    Ok(true)
}

/// A call with [`ACCESSES_PER_CALL`] accesses to missing entries. Each moves a bucket all the same, and the reply is short.
fn access_missing_entries(look: &str, key: &str) -> Cmd {
    let mut call = redis::cmd(look);
    call.arg(key);
    (0..ACCESSES_PER_CALL).for_each(|number| {
        call.arg(number);
    });
    call
}

async fn send(connection: &mut MultiplexedConnection, call: &Cmd, times: u64) -> RedisResult<()> {
    let mut pipe = redis::pipe();
    (0..times).for_each(|_| {
        pipe.add_command(call.clone()).ignore();
    });
    pipe.query_async(connection).await
}
