//! Reads the content of the timeline directly, without any code of punctual.

use std::time::Duration;

use anyhow::{Context, Result};
use redis::{Cmd, FromRedisValue};
use tokio::time::Instant;

use super::judge::Dead;
use crate::verify::TimelinePlace;
use crate::verify::timeline_servers::{TimelineServers, command};

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeline's keys.
pub(super) struct Rest {
    servers: TimelineServers,
    place: TimelinePlace,
}

/// A key of the timeline and its type in Redis, `zset` or `hash`.
type Place = (String, &'static str);

impl Rest {
    pub(super) fn new(place: &TimelinePlace) -> Result<Rest> {
        let servers = TimelineServers::new(&place.urls, ANSWER_TIMEOUT).context("the timeline's address")?;
        Ok(Rest { servers, place: place.clone() })
    }

    async fn ask<T: FromRedisValue>(&self, command: Cmd) -> Result<T> {
        self.servers.ask(&[command]).await?.pop().context("no answer")
    }

    /// The server's time in microseconds, and when it was asked.
    pub(super) async fn time(&self) -> Result<(Instant, i64)> {
        let sent = Instant::now();
        let (seconds, micros): (i64, i64) = self.ask(redis::cmd("TIME")).await?;
        Ok((sent, seconds * 1_000_000 + micros))
    }

    /// Keys that must be empty at rest and are not, with the number of entries and some of them.
    pub(super) async fn left(&self) -> Result<Vec<(String, String)>> {
        let mut left = Vec::new();
        for (key, kind) in self.keys() {
            let count = if kind == "zset" { "ZCARD" } else { "HLEN" };
            let count: u64 = self.ask(command(&[count, &key])).await?;
            if count > 0 {
                let some = if kind == "zset" { "ZRANDMEMBER" } else { "HRANDFIELD" };
                let more = if kind == "zset" { "WITHSCORES" } else { "WITHVALUES" };
                let some: Vec<Vec<u8>> = self.ask(command(&[some, &key, "3", more])).await?;
                let some: Vec<_> = some.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
                left.push((key, format!("{count} entries, as {some:.300?}")));
            }
        }
        Ok(left)
    }

    /// Number of tasks that wait or are in flight.
    pub(super) async fn pending(&self) -> Result<u64> {
        let mut pending = 0;
        for (key, _) in self.keys().filter(|(key, _)| key.contains(":due:")) {
            let count: u64 = self.ask(command(&["ZCARD", &key])).await?;
            pending += count;
        }
        Ok(pending)
    }

    fn keys(&self) -> impl Iterator<Item = Place> {
        (0..self.place.shards).flat_map(|shard| {
            let of = |name: &str| self.place.key(shard, name);
            let mut keys = vec![(of("tasks"), "hash"), (of("changes"), "hash")];
            keys.extend([(of("crashes"), "hash"), (of("counts"), "hash")]);
            keys.extend([(of("pauses"), "hash"), (of("pauses:lanes"), "hash")]);
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
        let mut dead = Vec::new();
        for shard in 0..self.place.shards {
            let all = command(&["ZRANGE", &self.place.key(shard, "dead"), "0", "-1", "WITHSCORES"]);
            let keys: Vec<(String, f64)> = self.ask(all).await?;
            for (key, died) in keys {
                let record = command(&["HGET", &self.place.key(shard, "dead:records"), &key]);
                let record: Vec<u8> = self.ask(record).await?;
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
