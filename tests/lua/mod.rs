//! The scripts on a real Redis: the whole state of a shard before and after each verb, as text. Also what only this
//! implementation of the timeline has: headers, declared keys, limits on bytes, a full Redis, connections that break.

#![expect(clippy::unwrap_used, reason = "a test fails by it, wherever it stands")]

mod claim;
mod dead;
mod declared;
mod full;
mod headers;
mod large;
mod link;
mod look;
mod put;
mod reap;
mod settle;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use punctual::clock::{ManualClock, Timestamp};
use punctual::task::layout::{self, RECURRING, RESETS as IN, TRACED};
use punctual::task::{Counts, Key, Lane, Member, Namespace, Shard, TaskId};
use punctual::timeline::redis::{RedisConfig, RedisTimeline};
use punctual::timeline::*;

use crate::support::have;
use crate::support::records::record;
use crate::support::redis::RedisServer;

/// Lease of all calls here.
const LEASE: Duration = Duration::from_secs(15);

/// One server for all tests that need no special one; it stops after the last of them.
fn shared_server() -> Option<Arc<RedisServer>> {
    if !have("redis-server") {
        return None;
    }
    static SHARED: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Some(shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(RedisServer::start(&[]));
        *shared = Arc::downgrade(&server);
        server
    }))
}

/// A server for one test.
fn own_server(arguments: &[&str]) -> Option<RedisServer> {
    have("redis-server").then(|| RedisServer::start(arguments))
}

/// A namespace that no other test uses.
fn namespace() -> Namespace {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

/// Waits for a state of the link, with a time limit.
async fn link_is(timeline: &RedisTimeline, wanted: impl FnMut(&Link) -> bool) -> Link {
    let mut link = timeline.link(Shard::FIRST);
    let seen = tokio::time::timeout(Duration::from_secs(30), link.wait_for(wanted)).await;
    seen.expect("the link in time").expect("a living timeline").clone()
}

async fn up(timeline: &RedisTimeline) -> u64 {
    match link_is(timeline, |link| matches!(link, Link::Up(_))).await {
        Link::Up(generation) => generation,
        Link::Down(reason) => panic!("{reason}"),
    }
}

/// A timeline of one shard with a manual clock, on a server that it may share.
struct Stage {
    server: Arc<RedisServer>,
    timeline: Arc<RedisTimeline>,
    clock: Arc<ManualClock>,
    prefix: String,
    shard: Shard,
}

impl Stage {
    /// On the shared server; `None` if Redis is not installed.
    async fn new() -> Option<Stage> {
        Some(Stage::on(shared_server()?).await)
    }

    /// The clock starts at 1000.
    async fn on(server: Arc<RedisServer>) -> Stage {
        Stage::with(server, |_| {}).await
    }

    /// With the test's own configuration.
    async fn with(server: Arc<RedisServer>, configure: impl FnOnce(&mut RedisConfig)) -> Stage {
        let namespace = namespace();
        let clock = Arc::new(ManualClock::new(at(1000)));
        let mut config = RedisConfig::new(&server.url(), namespace.clone(), 1);
        config.time = Some(clock.clone());
        config.response_timeout = Duration::from_secs(30);
        configure(&mut config);
        let timeline = RedisTimeline::connect(config).unwrap();
        up(&timeline).await;
        let prefix = format!("punctual:{{{namespace}:0}}:");
        Stage { server, timeline, clock, prefix, shard: Shard::all(1).next().unwrap() }
    }

    fn now(&self, ms: i64) {
        self.clock.set(at(ms));
    }

    fn raw(&self) -> ::redis::Connection {
        self.server.connect()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The state of the shard, one line per entry, sorted. Leaves out three keys that other tests check.
    fn state(&self) -> Vec<String> {
        let mut raw = self.raw();
        let keys: Vec<String> = ::redis::cmd("KEYS").arg(format!("{}*", self.prefix)).query(&mut raw).unwrap();
        let mut lines = Vec::new();
        for key in keys {
            let name = &key[self.prefix.len()..];
            // The tests of `large` cover `largest`. The laws compare `dead:order` and `dead:bytes` with the
            // records of the dead.
            if ["largest", "dead:order", "dead:bytes"].contains(&name) {
                continue;
            }
            let kind: String = ::redis::cmd("TYPE").arg(&key).query(&mut raw).unwrap();
            let pairs = |command: &str, raw: &mut ::redis::Connection| -> Vec<(String, Vec<u8>)> {
                let mut command = ::redis::cmd(command);
                command.arg(&key);
                if kind == "zset" {
                    command.arg(0).arg(-1).arg("WITHSCORES");
                }
                command.query(raw).unwrap()
            };
            match kind.as_str() {
                "zset" => {
                    let pairs = pairs("ZRANGE", &mut raw);
                    lines.extend(pairs.iter().map(|(a, b)| format!("{name} {a} {}", text(b))));
                }
                "hash" => {
                    let pairs = pairs("HGETALL", &mut raw);
                    lines.extend(pairs.iter().map(|(a, b)| match name {
                        "tasks" => format!("{name} {a} {}", sketch(b)),
                        "dead:records" => {
                            let length = u32::from_be_bytes(b[..4].try_into().unwrap()) as usize;
                            format!("{name} {a} {} {:?}", sketch(&b[4..4 + length]), text(&b[4 + length..]))
                        }
                        _ => format!("{name} {a} {}", text(b)),
                    }));
                }
                "set" => {
                    let members: BTreeSet<String> = ::redis::cmd("SMEMBERS").arg(&key).query(&mut raw).unwrap();
                    lines.extend(members.iter().map(|member| format!("{name} {member}")));
                }
                _ => {
                    let value: String = ::redis::cmd("GET").arg(&key).query(&mut raw).unwrap();
                    lines.push(format!("{name} {value}"));
                }
            }
        }
        lines.sort();
        lines
    }

    /// The state without the key `lanes`, which most tests do not need.
    fn holds(&self) -> Vec<String> {
        self.state().into_iter().filter(|line| !line.starts_with("lanes ")).collect()
    }

    async fn put(&self, puts: &[Put]) -> Vec<PutAnswer> {
        self.timeline.put(self.shard, PutMode::Put, puts.to_vec(), NEVER).await.unwrap()
    }

    /// Puts one task and returns a short answer: `created 2000`, `replaced 3000 in flight 2000`.
    async fn put_one(&self, id: &str, due: i64, body: &str) -> String {
        short(&self.put(&[put(id, due, body)]).await[0])
    }

    async fn cancel(&self, id: &str) -> CancelAnswer {
        self.timeline.cancel(self.shard, &task(id), None, NEVER).await.unwrap()
    }

    async fn get(&self, id: &str) -> Option<StoredTask> {
        self.timeline.get(self.shard, &task(id)).await.unwrap()
    }

    async fn claim(&self, token: &str, max: usize) -> Claimed {
        self.timeline.claim(self.shard, &Lane::default(), claim_of(token, max)).await.unwrap()
    }

    async fn claim_suspects(&self, token: &str) -> Claimed {
        let ClaimRequest { token, max, max_bytes, lease, not_after, .. } = claim_of(token, 1);
        let request = SuspectsRequest { token, max, max_bytes, lease, not_after, unreadable: false, after: None };
        self.timeline.claim_suspects(self.shard, &Lane::default(), request).await.unwrap()
    }

    async fn settle(&self, token: &str, rest: RestOfClaim, verdicts: Vec<Settlement>) -> Settled {
        self.settle_with(Settle {
            token: self::token(token),
            verdicts,
            rest,
            lease: LEASE,
            dead_cap: DeadCap::of(1000),
            quiet: false,
        })
        .await
    }

    async fn settle_with(&self, settle: Settle) -> Settled {
        self.timeline.settle(self.shard, &Lane::default(), settle).await.unwrap()
    }

    async fn reap(&self) -> Reaped {
        self.timeline.reap(self.shard, &Lane::default(), reaping()).await.unwrap()
    }

    async fn glance(&self, lanes: &[(&str, bool)]) -> Glance {
        self.timeline.glance(self.shard, glancing(lanes)).await.unwrap()
    }

    async fn requeue(&self, key: &str) -> RequeueAnswer {
        self.timeline.requeue(self.shard, &key.parse::<Key>().unwrap(), None, NEVER).await.unwrap()
    }

    /// Claims due tasks under this token, then lets the lease expire: the holder has crashed.
    async fn crash(&self, token: &str) {
        self.claim(token, 1000).await;
        self.clock.advance(LEASE);
        self.reap().await;
    }
}

const NEVER: Timestamp = Timestamp::MAX_DUE;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn task(id: &str) -> TaskId {
    id.parse().unwrap()
}

fn lane(name: &str) -> Lane {
    name.parse().unwrap()
}

fn token(name: &str) -> Token {
    Token(name.to_owned())
}

/// A record in short: `r<revision> c<created> <lane>:<body>`.
fn sketch(record: &[u8]) -> String {
    let revision = u32::from_be_bytes(record[layout::REVISION].try_into().unwrap());
    let created = i64::from_be_bytes(record[layout::CREATED].try_into().unwrap());
    let (lane, body) = record[layout::TAIL + 1..].split_at(usize::from(record[layout::TAIL]));
    format!("r{revision} c{created} {}:{}", text(lane), text(body))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn put(id: &str, due: i64, body: &str) -> Put {
    put_in("default", 0, id, due, body)
}

/// A put whose record was created at 1000.
fn put_in(lane_name: &str, flags: u8, id: &str, due: i64, body: &str) -> Put {
    Put { id: task(id), lane: lane(lane_name), due: at(due), record: record(flags, lane_name, 1000, body) }
}

fn short(answer: &PutAnswer) -> String {
    let flying = answer.in_flight.map(|due| format!(" in flight {}", due.as_millis())).unwrap_or_default();
    format!("{} {}{flying}", format!("{:?}", answer.result).to_lowercase(), answer.due.as_millis())
}

fn claim_of(name: &str, max: usize) -> ClaimRequest {
    ClaimRequest {
        token: token(name),
        max,
        max_bytes: MAX_CLAIM_BYTES,
        lease: LEASE,
        not_after: NEVER,
        newest_first: false,
        after: None,
    }
}

fn claimed(claimed: &Claimed) -> Vec<(String, i64)> {
    claimed.occurrences.iter().map(|one| (one.member.to_string(), one.due.as_millis())).collect()
}

fn settlement(member: &str, due: i64, verdict: Verdict) -> Settlement {
    Settlement { member: Member::try_from(member.to_owned()).unwrap(), due: at(due), verdict }
}

fn next(due: i64, accepted: u64) -> Verdict {
    Verdict::Next { due: at(due), counts: Counts { accepted, ..Counts::default() } }
}

fn dead_record(body: &str) -> DeadRecord {
    DeadRecord { record: record(0, "default", 1000, body), reason: "rejected".to_owned(), detail: "no\nway".to_owned() }
}

fn reaping() -> ReapRequest {
    ReapRequest { lease: LEASE, served: true, dead_keep: Duration::from_secs(3600), not_after: NEVER }
}

fn glancing(lanes: &[(&str, bool)]) -> GlanceRequest {
    GlanceRequest {
        lanes: lanes.iter().map(|(name, served)| (lane(name), *served)).collect(),
        lease: LEASE,
        dead_keep: Duration::from_secs(3600),
        depth: true,
    }
}
