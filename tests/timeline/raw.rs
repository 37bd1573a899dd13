//! The state in Redis, read key by key without any script, in the types of [`Twin`], the state of the timeline in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use punctual::clock::Timestamp;
use punctual::task::layout::lane_of;
use punctual::task::{Counts, Lane, Member, Shard};
use punctual::timeline::memory::{Change, Claim, OccurrenceMark, ReapAt, Twin, Zset};
use punctual::timeline::{DeadRecord, LanePause, TaskPause, Token};

/// Reads and edits one namespace. Dropping it removes the keys of its shards. Otherwise `KEYS` would also look at what other
/// tests have left.
pub(crate) struct Raw {
    /// One for each server.
    connections: Vec<Mutex<::redis::Connection>>,
    /// The number of the server that has a shard.
    servers: Vec<usize>,
    namespace: String,
}

impl Raw {
    pub(crate) fn new(connections: Vec<::redis::Connection>, namespace: String, shards: u16) -> Raw {
        let connections = connections.into_iter().map(Mutex::new).collect();
        let mut raw = Raw { connections, servers: Vec::new(), namespace };
        raw.servers = Shard::all(shards).map(|shard| raw.server_of(shard)).collect();
        raw
    }

    /// The first server that answers a read of a key of the shard.
    fn server_of(&self, shard: Shard) -> usize {
        let key = format!("{}nothing", self.prefix(shard));
        let has = |connection: &Mutex<::redis::Connection>| {
            ::redis::cmd("EXISTS").arg(&key).exec(&mut *connection.lock().unwrap()).is_ok()
        };
        self.connections.iter().position(has).expect("a server with the shard")
    }

    fn connection(&self, shard: Shard) -> MutexGuard<'_, ::redis::Connection> {
        self.connections[self.servers[usize::from(shard.number())]].lock().unwrap()
    }

    fn prefix(&self, shard: Shard) -> String {
        format!("punctual:{{{}:{shard}}}:", self.namespace)
    }

    /// Deletes keys of a shard, given without its prefix.
    pub(crate) fn remove(&self, shard: Shard, keys: &[String]) {
        let mut call = ::redis::cmd("DEL");
        for key in keys {
            call.arg(format!("{}{key}", self.prefix(shard)));
        }
        call.exec(&mut *self.connection(shard)).unwrap();
    }

    /// Deletes a field of a hash of a shard.
    pub(crate) fn remove_field(&self, shard: Shard, key: &str, field: &str) {
        let key = format!("{}{key}", self.prefix(shard));
        ::redis::cmd("HDEL").arg(key).arg(field).exec(&mut *self.connection(shard)).unwrap();
    }

    /// Writes the mark of an occurrence, which is in the hash `crashes`.
    pub(crate) fn set_mark(&self, shard: Shard, member: &Member, mark: OccurrenceMark) {
        let count = mark.count.map(|count| count.to_string());
        let detail = [Some(mark.due.as_millis().to_string()), mark.unreadable.then(|| "unreadable".to_owned()), count];
        let text = detail.into_iter().flatten().collect::<Vec<_>>().join(":");
        let key = format!("{}crashes", self.prefix(shard));
        ::redis::cmd("HSET").arg(key).arg(member.as_str()).arg(text).exec(&mut *self.connection(shard)).unwrap();
    }

    /// State of a shard. Panics at a key or value that the twin does not know.
    pub(crate) fn twin(&self, shard: Shard) -> Twin {
        let connection = &mut *self.connection(shard);
        let prefix = self.prefix(shard);
        // Braces are ordinary characters for KEYS.
        let keys: Vec<String> = ::redis::cmd("KEYS").arg(format!("{prefix}*")).query(connection).unwrap();
        let mut pipe = ::redis::pipe();
        pipe.cmd("PING").ignore();
        for key in &keys {
            match key[prefix.len()..].split(':').collect::<Vec<_>>()[..] {
                ["due" | "leases", _] | ["dead"] | ["dead", "order"] => {
                    pipe.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES")
                }
                ["lanes"] => pipe.cmd("SMEMBERS").arg(key),
                ["reap-at", _] | ["largest"] => pipe.cmd("GET").arg(key),
                _ => pipe.cmd("HGETALL").arg(key),
            };
        }
        let values: Vec<::redis::Value> = pipe.query(connection).unwrap();
        let mut twin = Twin::default();
        for (key, value) in keys.iter().zip(values) {
            read(&mut twin, &key[prefix.len()..], value);
        }
        check_order(&twin, connection, &prefix);
        twin
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A test that failed may have poisoned the lock or ended the server.
        for connection in &mut self.connections {
            let Ok(connection) = connection.get_mut() else { continue };
            let all = format!("punctual:{{{}:*", self.namespace);
            let Ok(keys) = ::redis::cmd("KEYS").arg(all).query::<Vec<String>>(connection) else { continue };
            let mut pipe = ::redis::pipe();
            // One by one, because a cluster removes several keys in one call only if they are in one slot.
            for key in keys {
                pipe.cmd("UNLINK").arg(key);
            }
            pipe.exec(connection).ok();
        }
    }
}

/// Compares the order of the dead in their lanes, and the bytes of each lane, with the records.
fn check_order(twin: &Twin, connection: &mut ::redis::Connection, prefix: &str) {
    let mut order = BTreeSet::new();
    let mut bytes: BTreeMap<String, usize> = BTreeMap::new();
    for (died, key) in twin.dead.iter() {
        let Some(DeadRecord { record, reason, detail }) = twin.dead_records.get(key) else { continue };
        let Some(lane) = lane_of(record) else { continue };
        let size = 4 + record.len() + reason.len() + 1 + detail.len();
        order.insert(format!("{lane} {died:015} {key} {size}"));
        *bytes.entry(lane.to_string()).or_default() += size;
    }
    let (stored, sums): (BTreeSet<String>, BTreeMap<String, usize>) = ::redis::pipe()
        .cmd("ZRANGE")
        .arg(format!("{prefix}dead:order"))
        .arg(0)
        .arg(-1)
        .cmd("HGETALL")
        .arg(format!("{prefix}dead:bytes"))
        .query(connection)
        .unwrap();
    assert_eq!((stored, sums), (order, bytes), "the order of the dead");
}

fn read(twin: &mut Twin, key: &str, value: ::redis::Value) {
    let lane = |name: &str| name.parse::<Lane>().unwrap();
    match key.split(':').collect::<Vec<_>>()[..] {
        ["due", name] => drop(twin.due.insert(lane(name), zset(value, parse))),
        ["leases", name] => drop(twin.leases.insert(lane(name), zset(value, |text| Token(text.to_owned())))),
        ["claims", name] => drop(twin.claims.insert(lane(name), hash(value, |text| Token(text.into()), claim))),
        ["reap-at", name] => drop(twin.reap_at.insert(lane(name), reap_at(&text(value)))),
        ["largest"] => twin.largest = parse(&text(value)),
        ["tasks"] => twin.tasks = hash(value, parse, |bytes| bytes),
        ["changes"] => twin.changes = hash(value, parse, |bytes| change(&utf8(&bytes))),
        ["crashes"] => twin.crashes = hash(value, parse, |bytes| mark(&utf8(&bytes))),
        ["counts"] => twin.counts = hash(value, parse, |bytes| counts(&utf8(&bytes))),
        ["dead"] => twin.dead = zset(value, |text| Arc::from(text)),
        ["dead", "records"] => twin.dead_records = hash(value, |text| Arc::from(text), |bytes| dead_record(&bytes)),
        // `check_order` compares these two with the records once all are read.
        ["dead", "order" | "bytes"] => {}
        ["pauses"] => twin.pauses = hash(value, parse, |bytes| task_pause(&utf8(&bytes))),
        ["pauses", "lanes"] => twin.paused_lanes = hash(value, parse, |bytes| pause(&utf8(&bytes))),
        ["lanes"] => {
            twin.lanes = ::redis::from_redis_value::<Vec<String>>(value).unwrap().iter().map(|n| lane(n)).collect()
        }
        _ => panic!("a key that nobody knows: `{key}`"),
    }
}

fn text(value: ::redis::Value) -> String {
    ::redis::from_redis_value(value).unwrap()
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn parse<T: FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// A time in whole milliseconds, written only in digits.
fn time(text: &str) -> Timestamp {
    assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
    Timestamp::from_millis(parse(text))
}

fn zset<M: Ord + Clone>(value: ::redis::Value, member: impl Fn(&str) -> M) -> Zset<M> {
    let mut set = Zset::default();
    for (name, score) in ::redis::from_redis_value::<Vec<(String, String)>>(value).unwrap() {
        // Redis writes whole numbers of this size exactly; another format would be a rounded one.
        set.set(member(&name), parse(&score));
    }
    set
}

fn hash<K: Ord, V>(value: ::redis::Value, key: impl Fn(&str) -> K, field: impl Fn(Bytes) -> V) -> BTreeMap<K, V> {
    let pairs: Vec<(String, Vec<u8>)> = ::redis::from_redis_value(value).unwrap();
    pairs.into_iter().map(|(name, value)| (key(&name), field(value.into()))).collect()
}

/// The number of pairs, or `part`; then the pairs, each an id and a due.
fn claim(value: Bytes) -> Claim {
    let text = utf8(&value);
    let mut detail = text.split(' ');
    let number = detail.next().unwrap();
    let detail: Vec<&str> = detail.collect();
    assert_eq!(detail.len() % 2, 0, "{text:?}");
    let pairs: Vec<(Member, Timestamp)> = detail.chunks(2).map(|pair| (parse(pair[0]), time(pair[1]))).collect();
    let whole = number != "part";
    assert!(!whole || parse::<usize>(number) == pairs.len(), "{text:?}");
    Claim { whole, pairs }
}

fn change(text: &str) -> Change {
    if text == "cancelled" { Change::Cancelled } else { Change::Due(time(text)) }
}

fn mark(text: &str) -> OccurrenceMark {
    let (due, rest) = text.split_once(':').unwrap();
    let count = rest.strip_prefix("unreadable");
    let unreadable = count.is_some();
    let count = count.map_or(Some(rest), |count| count.strip_prefix(':'));
    OccurrenceMark { due: time(due), count: count.map(parse), unreadable }
}

fn pause(text: &str) -> LanePause {
    let pause = LanePause::unpack(text).unwrap();
    assert_eq!(pause.pack(), text);
    pause
}

fn task_pause(text: &str) -> TaskPause {
    let pause = TaskPause::unpack(text).unwrap();
    assert_eq!(pause.pack(), text);
    pause
}

fn reap_at(text: &str) -> ReapAt {
    let at = text.strip_suffix(" late");
    ReapAt { at: time(at.unwrap_or(text)), postponed: at.is_some() }
}

fn counts(text: &str) -> Counts {
    let counts = Counts::unpack(text);
    assert_eq!(counts.pack(), text);
    counts
}

/// Four bytes of length, the record, the reason, a line break, the detail.
fn dead_record(value: &Bytes) -> DeadRecord {
    let length = u32::from_be_bytes(value[..4].try_into().unwrap()) as usize;
    let rest = utf8(&value[4 + length..]);
    let (reason, detail) = rest.split_once('\n').unwrap();
    DeadRecord { record: value.slice(4..4 + length), reason: reason.into(), detail: detail.into() }
}
