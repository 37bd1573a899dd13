//! Reads the timeline's Redis from outside: who holds a claim, its time, its size.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, Pipeline};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::TimelinePlace;

/// The keys of a shard, without those of its lanes.
const SHARD_KEYS: [(&str, &str); 7] = [
    ("tasks", "HLEN"),
    ("changes", "HLEN"),
    ("crashes", "HLEN"),
    ("counts", "HLEN"),
    ("dead", "ZCARD"),
    ("dead:records", "HLEN"),
    ("lanes", "SCARD"),
];

/// The keys of each lane of a shard.
const LANE_KEYS: [(&str, &str); 3] = [("due", "ZCARD"), ("leases", "ZCARD"), ("claims", "HLEN")];

/// Timeout of a reply that matters more than its moment.
const PATIENCE: Duration = Duration::from_secs(15);

/// Reads one namespace, on a connection without a proxy.
#[derive(Debug)]
pub(super) struct KeyReader {
    client: redis::Client,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    place: TimelinePlace,
    /// A local moment, and Redis' time at it, in ms.
    clock: Mutex<(Instant, i64)>,
}

impl KeyReader {
    /// Reads Redis' time.
    ///
    /// # Errors
    /// If Redis cannot be reached.
    pub(super) async fn open(place: TimelinePlace) -> redis::RedisResult<KeyReader> {
        let client = redis::Client::open(place.url.expose_secret())?;
        let clock = Mutex::new((Instant::now(), 0));
        let key_reader = KeyReader { client, connection: tokio::sync::Mutex::default(), place, clock };
        patiently(|| key_reader.set_clock()).await?;
        Ok(key_reader)
    }

    /// The estimate of Redis' time, in ms.
    pub(super) fn now(&self) -> i64 {
        let (then, ms) = *self.clock.lock();
        ms.saturating_add(i64::try_from(then.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Reads Redis' time again.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn set_clock(&self) -> redis::RedisResult<()> {
        let asked = Instant::now();
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let ((seconds, micros),): ((i64, i64),) = self.ask(&pipe).await?;
        let middle = asked + asked.elapsed() / 2;
        *self.clock.lock() = (middle, seconds * 1000 + micros / 1000);
        Ok(())
    }

    /// The ids of the instances that hold a claim with a valid lease; empty if Redis does not answer.
    pub(super) async fn holders(&self) -> BTreeSet<String> {
        let (now, mut pipe) = (self.now(), redis::pipe());
        self.lane_keys("leases").for_each(|key| {
            pipe.cmd("ZRANGEBYSCORE").arg(key).arg(format!("({now}")).arg("+inf");
        });
        let tokens: Vec<Vec<String>> = self.ask(&pipe).await.unwrap_or_default();
        let id = |token: &String| token.split_once('.').map_or(token.clone(), |(id, _)| id.to_owned());
        tokens.iter().flatten().map(id).collect()
    }

    /// The tokens of claims that a dead instance left.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn claims_of(&self, id: &str) -> redis::RedisResult<Vec<String>> {
        let mut pipe = redis::pipe();
        self.lane_keys("claims").for_each(|key| {
            pipe.cmd("HKEYS").arg(key);
        });
        let tokens: Vec<Vec<String>> = self.ask(&pipe).await?;
        let own = |token: &String| token.strip_prefix(id).is_some_and(|rest| rest.starts_with('.'));
        Ok(tokens.into_iter().flatten().filter(own).collect())
    }

    /// Flushes the scripts.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn flush_scripts(&self) -> redis::RedisResult<()> {
        let mut pipe = redis::pipe();
        pipe.cmd("SCRIPT").arg("FLUSH").ignore();
        self.ask(&pipe).await
    }

    /// Its memory without the buffers of connections, and the number of entries of each kind of key.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn size(&self) -> redis::RedisResult<BTreeMap<String, u64>> {
        let keys: Vec<(&str, &str, String)> = self.all_keys().collect();
        let mut pipe = redis::pipe();
        keys.iter().for_each(|(_, count, key)| {
            pipe.cmd(count).arg(key);
        });
        let counts: Vec<u64> = self.ask(&pipe).await?;
        let mut size = BTreeMap::new();
        for ((sort, ..), count) in keys.iter().zip(counts) {
            *size.entry(format!("redis_{}", sort.replace(':', "_"))).or_default() += count;
        }
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("memory").cmd("DBSIZE");
        let (memory, keys): (String, u64) = self.ask(&pipe).await?;
        let bytes = |name: &str| -> u64 {
            let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or_default()
        };
        let used = bytes("used_memory").saturating_sub(bytes("mem_clients_normal"));
        size.insert("redis_memory".to_owned(), used);
        size.insert("redis_keys".to_owned(), keys);
        Ok(size)
    }

    /// Removes the keys of the campaign.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn clear(&self) -> redis::RedisResult<()> {
        let namespace = &self.place.namespace;
        let reaps = self.lane_keys("reap-at");
        let mut pipe = redis::pipe();
        // One by one, because in a cluster they may be in different slots.
        let largest = (0..self.place.shards).map(|shard| self.place.key(shard, "largest"));
        let all = self.all_keys().map(|(.., key)| key).chain(reaps).chain(largest);
        for key in all.chain(["layout", "nothing"].map(|key| format!("punctual:{{{namespace}}}:{key}"))) {
            pipe.cmd("UNLINK").arg(key).ignore();
        }
        patiently(|| self.ask(&pipe)).await
    }

    fn all_keys(&self) -> impl Iterator<Item = (&'static str, &'static str, String)> {
        let of_shards = SHARD_KEYS.into_iter().flat_map(move |(sort, count)| {
            (0..self.place.shards).map(move |shard| (sort, count, self.place.key(shard, sort)))
        });
        let of_lanes = LANE_KEYS
            .into_iter()
            .flat_map(move |(sort, count)| self.lane_keys(sort).map(move |key| (sort, count, key)));
        of_shards.chain(of_lanes)
    }

    fn lane_keys(&self, sort: &str) -> impl Iterator<Item = String> {
        (0..self.place.shards).flat_map(move |shard| {
            self.place.lanes.iter().map(move |lane| self.place.key(shard, &format!("{sort}:{lane}")))
        })
    }

    async fn ask<T: FromRedisValue>(&self, pipe: &Pipeline) -> redis::RedisResult<T> {
        let mut guard = self.connection.lock().await;
        let mut connection = match guard.take() {
            Some(connection) => connection,
            None => {
                let limit = Some(Duration::from_secs(1));
                let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
                self.client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        // A failed connection is not used again.
        let answer = pipe.query_async(&mut connection).await?;
        *guard = Some(connection);
        Ok(answer)
    }
}

/// Repeats a request while there is no timely answer, for requests that a campaign cannot do without.
async fn patiently<T, A: Future<Output = redis::RedisResult<T>>>(ask: impl Fn() -> A) -> redis::RedisResult<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(error) if error.is_timeout() && Instant::now() < until => {}
            answered => return answered,
        }
    }
}
