//! Reads the timeline's Redis from outside: its time, its work, its keys.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisResult};
use secrecy::{ExposeSecret, SecretString};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::tasks::SHARDS;
use punctual::clock::{RedisClock, Timestamp};
use punctual::task::{Lane, Namespace, Shard};
use punctual::timeline::keys::Keys;

/// How long Redis may take to be reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long Redis may take to reply; it is long because an overloaded machine is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is asked for the time, because clocks are slewed.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Commands that only clients send. Redis also counts the commands inside scripts, which do not matter here.
const REQUESTS: [&str; 6] = ["evalsha", "eval", "ping", "wait", "waitaof", "subscribe"];

/// Reads Redis over a connection of its own.
pub(super) struct Probe {
    connection: MultiplexedConnection,
    clock: Arc<RedisClock>,
    /// Keeps the clock up to date; ends when this is dropped.
    _keeper: JoinSet<()>,
}

impl Probe {
    /// Connects, and reads the time.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn open(url: &SecretString) -> anyhow::Result<Probe> {
        let connection = connect(url).await.context("cannot reach the Redis of the timeline")?;
        let clock = Arc::new(RedisClock::new());
        for _ in 0..20 {
            observe(&mut connection.clone(), &clock).await?;
        }
        let mut keeper = JoinSet::new();
        let (mut time_connection, kept_clock) = (connection.clone(), Arc::clone(&clock));
        keeper.spawn(async move {
            loop {
                sleep(CLOCK_POLL_INTERVAL).await;
                if let Err(error) = observe(&mut time_connection, &kept_clock).await {
                    tracing::debug!(%error, "Redis does not tell the time");
                }
            }
        });
        Ok(Probe { connection, clock, _keeper: keeper })
    }

    /// Another handle of the connection.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// The estimate of Redis' clock.
    pub(super) fn clock(&self) -> Arc<RedisClock> {
        Arc::clone(&self.clock)
    }

    /// Redis' time now, in us.
    pub(super) fn now_us(&self) -> i64 {
        self.clock.micros_at(Instant::now())
    }

    /// Redis' time now.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now_us().div_euclid(1000))
    }

    /// The CPU time of its main thread so far, or of all threads if it does not report that.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn cpu(&self) -> RedisResult<Option<Duration>> {
        let text: String = redis::cmd("INFO").arg("cpu").query_async(&mut self.connection()).await?;
        let sum = |end: &str| {
            let part = |kind: &str| field(&text, &format!("used_cpu_{kind}{end}"));
            Some(part("user")? + part("sys")?)
        };
        let seconds = sum("_main_thread").or_else(|| sum(""));
        Ok(seconds.map(Duration::from_secs_f64))
    }

    /// Its memory without the buffers of connections, in bytes, once it has freed removed keys.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn memory(&self) -> RedisResult<f64> {
        let begun = Instant::now();
        loop {
            let text: String = redis::cmd("INFO").arg("memory").query_async(&mut self.connection()).await?;
            let bytes = |name: &str| field(&text, name).unwrap_or_default();
            if bytes("lazyfree_pending_objects") == 0.0 || begun.elapsed() > ANSWER_TIMEOUT {
                return Ok(bytes("used_memory") - bytes("mem_clients_normal"));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The calls of clients so far, without those that only this probe makes.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn requests(&self) -> RedisResult<f64> {
        let text = self.commands().await?;
        Ok(REQUESTS.iter().filter_map(|command| of_command(&text, command, "calls")).sum())
    }

    /// The calls of a command so far, including those inside scripts.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn calls_of(&self, command: &str) -> RedisResult<f64> {
        Ok(of_command(&self.commands().await?, command, "calls").unwrap_or_default())
    }

    /// The entries of all claims in a lane, by token.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn claims(&self, namespace: &Namespace, lane: &Lane) -> RedisResult<Vec<(String, String)>> {
        let mut pipe = redis::pipe();
        Shard::all(SHARDS).for_each(|shard| _ = pipe.cmd("HGETALL").arg(Keys::new(namespace, shard).claims(lane)));
        let claims: Vec<Vec<(String, String)>> = pipe.query_async(&mut self.connection()).await?;
        Ok(claims.into_iter().flatten().collect())
    }

    /// The time in calls of a command so far, including the commands inside scripts; `None` if it does not report that.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn spent_in(&self, command: &str) -> RedisResult<Option<Duration>> {
        let text = self.commands().await?;
        let known = !text.trim().is_empty();
        // Commands without calls are not listed.
        let micros = known.then(|| of_command(&text, command, "usec").unwrap_or_default());
        Ok(micros.map(|micros| Duration::from_secs_f64(micros / 1e6)))
    }

    async fn commands(&self) -> RedisResult<String> {
        redis::cmd("INFO").arg("commandstats").query_async(&mut self.connection()).await
    }

    /// Number of members of sorted sets with a score up to `until`, including negative ones.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn due_by(&self, keys: &[String], until: Timestamp) -> RedisResult<u64> {
        let mut pipe = redis::pipe();
        keys.iter().for_each(|key| {
            pipe.cmd("ZCOUNT").arg(key).arg("-inf").arg(until.as_millis());
        });
        self.sum(&pipe).await
    }

    /// Number of fields of hashes.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn fields(&self, keys: &[String]) -> RedisResult<u64> {
        let mut pipe = redis::pipe();
        keys.iter().for_each(|key| {
            pipe.cmd("HLEN").arg(key);
        });
        self.sum(&pipe).await
    }

    async fn sum(&self, pipe: &Pipeline) -> RedisResult<u64> {
        let counts: Vec<u64> = pipe.query_async(&mut self.connection()).await?;
        Ok(counts.iter().sum())
    }

    /// Removes keys.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn unlink(&self, keys: &[String]) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        // One by one, because in a cluster they may be in different slots.
        keys.iter().for_each(|key| {
            pipe.cmd("UNLINK").arg(key).ignore();
        });
        pipe.query_async(&mut self.connection()).await
    }
}

/// A connection with long timeouts.
pub(super) async fn connect(url: &SecretString) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    redis::Client::open(url.expose_secret())?.get_multiplexed_async_connection_with_config(&config).await
}

async fn observe(connection: &mut MultiplexedConnection, clock: &RedisClock) -> RedisResult<()> {
    let sent = Instant::now();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    clock.observe(sent, Instant::now(), seconds * 1_000_000 + micros);
    Ok(())
}

/// A number in `INFO commandstats` about a command.
fn of_command(text: &str, command: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))?;
    line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?.trim().parse().ok()
}

/// A number in `INFO`.
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
}
