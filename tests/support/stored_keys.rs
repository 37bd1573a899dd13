//! The state in Redis, read from outside: who holds claims, what waits, and whether anything is left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::Connection;

use super::patient;
use super::punctual::Punctual;
use super::redis::RedisServer;

/// The keys of one namespace.
pub(crate) struct StoredKeys {
    connection: Connection,
    lanes: Vec<String>,
    shards: u16,
}

impl StoredKeys {
    /// Reads the namespace `default` with this many shards and these lanes.
    pub(crate) fn new(redis: &RedisServer, shards: u16, lanes: &[&str]) -> StoredKeys {
        let lanes = lanes.iter().map(|&lane| lane.to_owned()).collect();
        StoredKeys { connection: redis.connect(), lanes, shards }
    }

    /// Redis' time in ms.
    pub(crate) fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut self.connection).expect("a time");
        seconds * 1000 + micros / 1000
    }

    /// Tasks and dues in an instance's claims.
    pub(crate) fn held_by(&mut self, instance: &str) -> Vec<(String, i64)> {
        let mut pipeline = redis::pipe();
        self.each(|key, lane| _ = pipeline.cmd("HGETALL").arg(format!("{key}claims:{lane}")));
        let claims: Vec<Vec<(String, String)>> = pipeline.query(&mut self.connection).expect("claims");
        let own = |token: &str| token.split_once('.').is_some_and(|(id, _)| id == instance);
        let mut held = Vec::new();
        for (_, claim) in claims.iter().flatten().filter(|(token, _)| own(token)) {
            // A claim is its size, or `part` once some have left; then id and due of each occurrence.
            let detail: Vec<&str> = claim.split(' ').skip(1).collect();
            held.extend(detail.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().expect("a due"))));
        }
        held
    }

    /// Number of tasks that wait or are in flight.
    pub(crate) fn tasks(&mut self) -> u64 {
        self.count().get("tasks").copied().unwrap_or(0)
    }

    /// Number of entries per kind of key that a task, a claim or a dead occurrence leaves. Does not count pauses, nor
    /// the keys `dead:records`, `dead:order` and `dead:bytes`, which go with `dead`.
    pub(crate) fn count(&mut self) -> BTreeMap<&'static str, u64> {
        let mut kinds = Vec::new();
        let mut pipeline = redis::pipe();
        for shard in 0..self.shards {
            let key = format!("punctual:{{default:{shard}}}:");
            for kind in ["tasks", "changes", "crashes", "counts"] {
                pipeline.cmd("HLEN").arg(format!("{key}{kind}"));
                kinds.push(kind);
            }
            pipeline.cmd("ZCARD").arg(format!("{key}dead"));
            kinds.push("dead");
        }
        self.each(|key, lane| {
            pipeline.cmd("ZCARD").arg(format!("{key}due:{lane}"));
            pipeline.cmd("ZCARD").arg(format!("{key}leases:{lane}"));
            pipeline.cmd("HLEN").arg(format!("{key}claims:{lane}"));
            kinds.extend(["due", "leases", "claims"]);
        });
        let counts: Vec<u64> = pipeline.query(&mut self.connection).expect("counts");
        let mut sum = BTreeMap::new();
        for (kind, count) in kinds.into_iter().zip(counts) {
            *sum.entry(kind).or_insert(0) += count;
        }
        sum.retain(|_, count| *count > 0);
        sum
    }

    /// Dead records: idempotency key, reason, detail.
    pub(crate) fn dead(&mut self) -> Vec<(String, String, String)> {
        let mut pipeline = redis::pipe();
        for shard in 0..self.shards {
            pipeline.cmd("HGETALL").arg(format!("punctual:{{default:{shard}}}:dead:records"));
        }
        let died: Vec<Vec<(String, Vec<u8>)>> = pipeline.query(&mut self.connection).expect("the dead");
        let read = |(key, value): (String, Vec<u8>)| {
            let length = u32::from_be_bytes(value[..4].try_into().expect("a length"));
            let text = String::from_utf8_lossy(&value[4 + length as usize..]).into_owned();
            let (reason, detail) = text.split_once('\n').expect("a reason and words");
            (key, reason.to_owned(), detail.to_owned())
        };
        died.into_iter().flatten().map(read).collect()
    }

    /// Waits until nothing is left; panics with what is there if that takes too long.
    pub(crate) fn until_nothing_is_left(&mut self, limit: Duration) {
        let mut left = BTreeMap::new();
        let done = patient(limit, || {
            left = self.count();
            left.is_empty()
        });
        assert!(done, "after {limit:?} there is left in Redis: {left:?}");
    }

    fn each(&self, mut of: impl FnMut(&str, &str)) {
        for shard in 0..self.shards {
            for lane in &self.lanes {
                of(&format!("punctual:{{default:{shard}}}:"), lane);
            }
        }
    }
}

/// Stops an instance (SIGSTOP) while Redis shows a claim of it that `enough` accepts.
pub(crate) fn stop_with_a_claim(
    instance: &Punctual,
    shards: &mut StoredKeys,
    enough: impl Fn(&[(String, i64)]) -> bool,
) {
    let id = instance.id();
    // The shell runs already: starting `kill` takes longer than most claims last.
    let mut shell = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut orders = shell.stdin.take().expect("its input");
    let mut done = BufReader::new(shell.stdout.take().expect("its output"));
    let caught = patient(Duration::from_secs(60), || {
        // First look often until there is a claim: an instance that is stopped at random is mostly idle.
        let seen = (0..50).any(|_| {
            std::thread::sleep(Duration::from_micros(200));
            enough(&shards.held_by(&id))
        });
        if !seen {
            return false;
        }
        writeln!(orders, "kill -STOP {}; echo", instance.pid()).expect("the shell takes a line");
        done.read_line(&mut String::new()).expect("the shell answers");
        // Redis still runs what the instance had sent: a claim, or the end of the one just seen.
        std::thread::sleep(Duration::from_millis(20));
        let holds = enough(&shards.held_by(&id));
        if !holds {
            instance.signal("CONT");
        }
        holds
    });
    drop(orders);
    shell.wait().expect("the shell ends");
    assert!(caught, "`{id}` is never seen with such a claim");
}
