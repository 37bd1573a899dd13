//! Reads and cleans the timeline's Redis, or the masters of its cluster, from outside: its time, its work, its keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisResult, ServerErrorKind};
use secrecy::{ExposeSecret, SecretString};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use punctual::clock::{RedisClock, Timestamp};
use punctual::task::{Lane, Namespace, Shard};
use punctual::timeline::keys::Keys;

/// How long Redis may take to be reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long Redis may take to reply; it is long because an overloaded machine is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is asked for the time, because clocks are slewed.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The section of `INFO` with the calls of each command.
const COMMANDS: &str = "commandstats";

/// Commands that only clients send. Redis also counts the commands inside scripts, which do not matter here.
const REQUESTS: [&str; 6] = ["evalsha", "eval", "ping", "wait", "waitaof", "subscribe"];

/// Reads Redis over connections of its own. Of a cluster it adds up what all masters say, but for claims.
pub(super) struct Probe {
    /// To the one Redis, or to each master. The first one tells the time.
    connections: Vec<MultiplexedConnection>,
    clock: Arc<RedisClock>,
    /// Keeps the clock up to date; ends when this is dropped.
    _keeper: JoinSet<()>,
}

impl Probe {
    /// Connects to these servers, at least one, and reads the time.
    ///
    /// # Errors
    /// If one does not answer.
    pub(super) async fn open(urls: &[SecretString]) -> anyhow::Result<Probe> {
        let connecting = future::try_join_all(urls.iter().map(connect));
        let connections = connecting.await.context("cannot reach the Redis of the timeline")?;
        let connection = connections.first().context("no Redis")?;
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
        Ok(Probe { connections, clock, _keeper: keeper })
    }

    /// Another handle of the connection to the one Redis, or to the first master.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connections[0].clone()
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
        let of_server = |text: String| {
            let sum = |end: &str| {
                let part = |kind: &str| field(&text, &format!("used_cpu_{kind}{end}"));
                Some(part("user")? + part("sys")?)
            };
            sum("_main_thread").or_else(|| sum(""))
        };
        let seconds: Option<f64> = self.info("cpu").await?.into_iter().map(of_server).sum();
        Ok(seconds.map(Duration::from_secs_f64))
    }

    /// Its memory without the buffers of connections, in bytes, once it has freed removed keys.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn memory(&self) -> RedisResult<f64> {
        let begun = Instant::now();
        loop {
            let texts = self.info("memory").await?;
            let bytes = |name: &str| texts.iter().filter_map(|text| field(text, name)).sum::<f64>();
            if bytes("lazyfree_pending_objects") == 0.0 || begun.elapsed() > ANSWER_TIMEOUT {
                return Ok(bytes("used_memory") - bytes("mem_clients_normal"));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The calls of clients so far, of the commands in `REQUESTS`. Beats are not counted, because scripts call
    /// `PUBLISH` too.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn requests(&self) -> RedisResult<f64> {
        let texts = self.info(COMMANDS).await?;
        let calls =
            |text: &String| REQUESTS.iter().filter_map(|command| of_command(text, command, "calls")).sum::<f64>();
        Ok(texts.iter().map(calls).sum())
    }

    /// The calls of a command so far, including those inside scripts.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn calls_of(&self, command: &str) -> RedisResult<f64> {
        let texts = self.info(COMMANDS).await?;
        Ok(texts.iter().filter_map(|text| of_command(text, command, "calls")).sum())
    }

    /// The entries of all claims in a lane of so many shards, by token.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn claims(
        &self,
        namespace: &Namespace,
        shards: u16,
        lane: &Lane,
    ) -> RedisResult<Vec<(String, String)>> {
        let mut pipe = redis::pipe();
        Shard::all(shards).for_each(|shard| _ = pipe.cmd("HGETALL").arg(Keys::new(namespace, shard).claims(lane)));
        let claims: Vec<Vec<(String, String)>> = pipe.query_async(&mut self.connection()).await?;
        Ok(claims.into_iter().flatten().collect())
    }

    /// The time in calls of a command so far, including the commands inside scripts; `None` if it does not report that.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn spent_in(&self, command: &str) -> RedisResult<Option<Duration>> {
        let texts = self.info(COMMANDS).await?;
        let known = texts.iter().all(|text| !text.trim().is_empty());
        // Commands without calls are not listed.
        let micros: f64 = texts.iter().filter_map(|text| of_command(text, command, "usec")).sum();
        Ok(known.then(|| Duration::from_secs_f64(micros / 1e6)))
    }

    /// A section of `INFO` of each server.
    async fn info(&self, section: &str) -> RedisResult<Vec<String>> {
        let command = redis::cmd("INFO").arg(section).to_owned();
        let ask = async |mut connection: MultiplexedConnection| command.query_async(&mut connection).await;
        future::try_join_all(self.connections.iter().cloned().map(ask)).await
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
        self.sum(pipe).await
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
        self.sum(pipe).await
    }

    /// The sum of the answers. Each server is asked everything, and only the one that has the key of a command runs it.
    async fn sum(&self, mut pipe: Pipeline) -> RedisResult<u64> {
        pipe.ignore_errors();
        let mut sum = 0;
        for connection in &self.connections {
            let counts: Vec<RedisResult<u64>> = pipe.query_async(&mut connection.clone()).await?;
            for count in counts {
                match count {
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {}
                    count => sum += count?,
                }
            }
        }
        Ok(sum)
    }

    /// The shards of the last server.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) async fn shards_of_last(&self, namespace: &Namespace, shards: u16) -> RedisResult<BTreeSet<u16>> {
        let mut of_last = BTreeSet::new();
        let Some(last) = self.connections.last() else { return Ok(of_last) };
        for shard in Shard::all(shards) {
            let key = Keys::new(namespace, shard).tasks();
            match redis::cmd("EXISTS").arg(key).query_async::<u64>(&mut last.clone()).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {}
                answer => {
                    answer?;
                    of_last.insert(shard.number());
                }
            }
        }
        Ok(of_last)
    }

    /// Removes keys.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn unlink(&self, keys: &[String]) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        // One by one, because in a cluster they may be in different slots.
        keys.iter().for_each(|key| {
            pipe.cmd("UNLINK").arg(key);
        });
        self.sum(pipe).await.map(drop)
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
