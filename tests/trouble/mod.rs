//! Redis in trouble: how each of its states affects puts, claims and settles; answers that wait for durability; and
//! that all promised messages are published once the trouble is over.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

pub(crate) mod clocks;
mod cluster;
mod durable;
mod durable_disk;
mod hostile;
mod late_disk;
mod layouts;
mod states;
mod stopped;
pub(crate) mod strict;

use std::sync::Arc;
use std::time::Duration;

use punctual::clock::Timestamp;
use punctual::task::{Key, Lane, Shard, TaskId};
use punctual::timeline::redis::{Durability, RedisConfig, RedisTimeline};
use punctual::timeline::*;

use crate::support::records::record;
use crate::support::redis::RedisServer;

/// Time limit for steps that complete by themselves. It is generous and expects nothing.
const SOON: Duration = Duration::from_secs(30);

/// Long enough for a call on a busy machine; after that the write counts as not confirmed.
const SHORT: Duration = Duration::from_secs(4);

fn shard() -> Shard {
    Shard::all(1).next().unwrap()
}

fn task(id: &str) -> TaskId {
    id.parse().unwrap()
}

/// A timeline of one shard with Redis' own time, once it is up.
async fn connected(url: &str, durability: Durability) -> Arc<RedisTimeline> {
    let namespace = "default".parse().unwrap();
    let config = RedisConfig { durability, response_timeout: SOON, ..RedisConfig::new(url, namespace, 1) };
    let timeline = RedisTimeline::connect(config).unwrap();
    until_up(&timeline).await;
    timeline
}

async fn until_up(timeline: &RedisTimeline) {
    let mut link = timeline.link(Shard::FIRST);
    let up = tokio::time::timeout(SOON, link.wait_for(|link| matches!(link, Link::Up(_)))).await;
    up.unwrap().unwrap();
}

fn within(timeline: &RedisTimeline, span: Duration) -> Timestamp {
    timeline.any_clock().now().plus(span)
}

fn new(id: &str, due: i64, body: &str) -> Put {
    Put { id: task(id), lane: Lane::default(), due: Timestamp::from_millis(due), record: record(0, "default", 0, body) }
}

/// Puts a task with a distant due, within this time.
async fn put(timeline: &RedisTimeline, id: &str, span: Duration) -> Result<PutResult, TimelineError> {
    let put = new(id, 9_000_000_000_000, "");
    let answers = timeline.put(shard(), PutMode::Put, vec![put], within(timeline, span)).await;
    answers.map(|answers| answers[0].result)
}

async fn put_all(timeline: &RedisTimeline, mode: PutMode, puts: Vec<Put>, span: Duration) -> Vec<PutResult> {
    let answers = timeline.put(shard(), mode, puts, within(timeline, span)).await.unwrap();
    answers.iter().map(|answer| answer.result).collect()
}

/// Claims everything due with this token.
async fn claim(timeline: &RedisTimeline, token: &str) -> Vec<Occurrence> {
    let request = ClaimRequest {
        token: Token(token.to_owned()),
        max: 10,
        max_bytes: 1 << 20,
        lease: SOON,
        not_after: within(timeline, SOON),
        newest_first: false,
        after: None,
    };
    timeline.claim(shard(), &Lane::default(), request).await.unwrap().occurrences
}

fn unconfirmed(answer: &Result<PutResult, TimelineError>, detail: &str) -> bool {
    matches!(answer, Err(TimelineError::Unconfirmed(reported)) if reported.contains(detail))
}

/// A server and a replica in sync.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
}

impl Pair {
    fn start() -> Pair {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master.server.port.to_string()]);
        let pair = Pair { master, replica };
        assert!(crate::support::patient(SOON, || pair.in_step()), "the replica does not follow");
        pair
    }

    fn in_step(&self) -> bool {
        let mut raw = self.master.connect();
        ::redis::cmd("PING").exec(&mut raw).unwrap();
        ::redis::cmd("WAIT").arg(1).arg(100).query::<u32>(&mut raw).unwrap() == 1
    }
}
