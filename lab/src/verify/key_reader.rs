//! Reads the timeline's Redis from outside: who holds a claim, its time, its size.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::TimelinePlace;
use super::timeline_servers::{TimelineServers, command};

/// The keys of a shard, without those of its lanes.
const SHARD_KEYS: [(&str, &str); 11] = [
    ("tasks", "HLEN"),
    ("changes", "HLEN"),
    ("crashes", "HLEN"),
    ("counts", "HLEN"),
    ("dead", "ZCARD"),
    ("dead:records", "HLEN"),
    ("dead:order", "ZCARD"),
    ("dead:bytes", "HLEN"),
    ("pauses", "HLEN"),
    ("pauses:lanes", "HLEN"),
    ("lanes", "SCARD"),
];

/// The keys of each lane of a shard.
const LANE_KEYS: [(&str, &str); 3] = [("due", "ZCARD"), ("leases", "ZCARD"), ("claims", "HLEN")];

/// How long a request that a campaign cannot do without is repeated while there is no timely answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Reads one namespace, on a connection without a proxy.
#[derive(Debug)]
pub(super) struct KeyReader {
    servers: TimelineServers,
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
        let servers = TimelineServers::new(&place.urls, Duration::from_secs(1))?;
        let key_reader = KeyReader { servers, place, clock: Mutex::new((Instant::now(), 0)) };
        patiently(|| key_reader.set_clock()).await?;
        Ok(key_reader)
    }

    /// A key of one of the shards.
    pub(super) fn key_of_shard(&self, choice: usize) -> String {
        let shard = u16::try_from(choice % usize::from(self.place.shards)).unwrap_or_default();
        self.place.key(shard, "tasks")
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
        let times: Vec<(i64, i64)> = self.servers.ask(&[redis::cmd("TIME")]).await?;
        let middle = asked + asked.elapsed() / 2;
        for (seconds, micros) in times {
            *self.clock.lock() = (middle, seconds * 1000 + micros / 1000);
        }
        Ok(())
    }

    /// The ids of the instances that hold a claim with a valid lease; empty if Redis does not answer.
    pub(super) async fn holders(&self) -> BTreeSet<String> {
        let after = format!("({}", self.now());
        let read = |key: String| command(&["ZRANGEBYSCORE", &key, &after, "+inf"]);
        let commands: Vec<_> = self.lane_keys("leases").map(read).collect();
        let tokens: Vec<Vec<String>> = self.servers.ask(&commands).await.unwrap_or_default();
        let id = |token: &String| token.split_once('.').map_or(token.clone(), |(id, _)| id.to_owned());
        tokens.iter().flatten().map(id).collect()
    }

    /// The tokens of claims that an instance left when it ended.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn claims_of(&self, id: &str) -> redis::RedisResult<Vec<String>> {
        let commands: Vec<_> = self.lane_keys("claims").map(|key| command(&["HKEYS", &key])).collect();
        let tokens: Vec<Vec<String>> = self.servers.ask(&commands).await?;
        let own = |token: &String| token.strip_prefix(id).is_some_and(|rest| rest.starts_with('.'));
        Ok(tokens.into_iter().flatten().filter(own).collect())
    }

    /// Flushes the scripts.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn flush_scripts(&self) -> redis::RedisResult<()> {
        self.servers.ask::<redis::Value>(&[command(&["SCRIPT", "FLUSH"])]).await.map(drop)
    }

    /// The memory of Redis without the buffers of connections, the number of its keys, and the number of entries of
    /// each kind of key. Of a cluster, memory and number of keys are those of one node.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn size(&self) -> redis::RedisResult<BTreeMap<String, u64>> {
        let keys: Vec<(&str, &str, String)> = self.all_keys().collect();
        let commands: Vec<_> = keys.iter().map(|(_, count, key)| command(&[count, key])).collect();
        let counts: Vec<u64> = self.servers.ask(&commands).await?;
        let mut size = BTreeMap::new();
        for ((sort, ..), count) in keys.iter().zip(counts) {
            *size.entry(format!("redis_{}", sort.replace(':', "_"))).or_default() += count;
        }
        let memory: String = self.servers.ask(&[command(&["INFO", "memory"])]).await?.pop().unwrap_or_default();
        let keys: u64 = self.servers.ask(&[redis::cmd("DBSIZE")]).await?.pop().unwrap_or_default();
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
        // One by one, because in a cluster they may be in different slots.
        let largest = (0..self.place.shards).map(|shard| self.place.key(shard, "largest"));
        let all = self.all_keys().map(|(.., key)| key).chain(reaps).chain(largest);
        let all = all.chain(["layout", "nothing"].map(|key| format!("punctual:{{{namespace}}}:{key}")));
        let commands: Vec<_> = all.map(|key| command(&["UNLINK", &key])).collect();
        patiently(|| self.servers.ask::<u64>(&commands)).await.map(drop)
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
