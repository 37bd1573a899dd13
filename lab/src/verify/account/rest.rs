//! Reads the content of the timeline directly, without any code of punctual.

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::judge::Dead;
use crate::verify::TimelinePlace;

/// The timeline's keys.
pub(super) struct Rest {
    client: Client,
    place: TimelinePlace,
}

/// A key of the timeline and the command that counts its entries.
type Place = (String, &'static str);

impl Rest {
    pub(super) fn new(place: &TimelinePlace) -> Result<Rest> {
        let client = Client::open(place.url.expose_secret()).context("the timeline's address")?;
        Ok(Rest { client, place: place.clone() })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let limit = Some(std::time::Duration::from_secs(5));
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        connecting.await.context("connecting to the timeline")
    }

    /// The server's time in microseconds, and when it was asked.
    pub(super) async fn time(&self) -> Result<(Instant, i64)> {
        let mut connection = self.connect().await?;
        let sent = Instant::now();
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        Ok((sent, seconds * 1_000_000 + micros))
    }

    /// Keys that must be empty at rest and are not, with the number of entries and some of them.
    pub(super) async fn left(&self) -> Result<Vec<(String, String)>> {
        let mut connection = self.connect().await?;
        let mut left = Vec::new();
        for (key, kind) in self.keys() {
            let count = if kind == "zset" { "ZCARD" } else { "HLEN" };
            let count: u64 = redis::cmd(count).arg(&key).query_async(&mut connection).await?;
            if count > 0 {
                let some = if kind == "zset" { "ZRANDMEMBER" } else { "HRANDFIELD" };
                let more = if kind == "zset" { "WITHSCORES" } else { "WITHVALUES" };
                let mut some = redis::cmd(some);
                some.arg(&key).arg(3).arg(more);
                let some: Vec<Vec<u8>> = some.query_async(&mut connection).await?;
                let some: Vec<_> = some.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
                left.push((key, format!("{count} entries, as {some:.300?}")));
            }
        }
        Ok(left)
    }

    /// Number of tasks that wait or are in flight.
    pub(super) async fn pending(&self) -> Result<u64> {
        let mut connection = self.connect().await?;
        let mut pending = 0;
        for (key, _) in self.keys().filter(|(key, _)| key.contains(":due:")) {
            let count: u64 = redis::cmd("ZCARD").arg(&key).query_async(&mut connection).await?;
            pending += count;
        }
        Ok(pending)
    }

    fn keys(&self) -> impl Iterator<Item = Place> {
        (0..self.place.shards).flat_map(|shard| {
            let of = |name: &str| self.place.key(shard, name);
            let mut keys = vec![(of("tasks"), "hash"), (of("changes"), "hash")];
            keys.extend([(of("crashes"), "hash"), (of("counts"), "hash")]);
            for lane in &self.place.lanes {
                keys.push((of(&format!("due:{lane}")), "zset"));
                keys.push((of(&format!("leases:{lane}")), "zset"));
                keys.push((of(&format!("claims:{lane}")), "hash"));
            }
            keys
        })
    }

    /// The dead occurrences.
    pub(super) async fn dead(&self) -> Result<Vec<Dead>> {
        let mut connection = self.connect().await?;
        let mut dead = Vec::new();
        for shard in 0..self.place.shards {
            let mut keys = redis::cmd("ZRANGE");
            keys.arg(self.place.key(shard, "dead")).arg(0).arg(-1).arg("WITHSCORES");
            let keys: Vec<(String, f64)> = keys.query_async(&mut connection).await?;
            for (key, died) in keys {
                let mut record = redis::cmd("HGET");
                record.arg(self.place.key(shard, "dead:records")).arg(&key);
                let record: Vec<u8> = record.query_async(&mut connection).await?;
                let (reason, detail) = reason_and_detail(&record);
                #[expect(clippy::cast_possible_truncation, reason = "whole ms")]
                dead.push(Dead { key, died: died as i64, reason, detail });
            }
        }
        Ok(dead)
    }
}

/// Reason and error text behind a record: four bytes with its length, the record, `<reason>\n<text>`.
fn reason_and_detail(value: &[u8]) -> (String, String) {
    let length = value.get(..4).map_or(0, |bytes| bytes.iter().fold(0, |sum, byte| sum * 256 + usize::from(*byte)));
    let text = String::from_utf8_lossy(value.get(4 + length..).unwrap_or_default()).into_owned();
    let (reason, detail) = text.split_once('\n').unwrap_or((&text, ""));
    (reason.to_owned(), detail.to_owned())
}
