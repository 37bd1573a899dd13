//! Large payloads fill neither the memory of an instance nor Redis' output buffers, and the memory of a herd is
//! released.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::support::http::{Answer, Api};
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

const MIB: u64 = 1 << 20;

/// Number of tasks that are due at once.
const TASKS: i64 = 1000;

/// Size of each payload, in bytes.
const PAYLOAD: usize = 500 << 10;

/// Number of tasks that are put to measure the duration of a put.
const TRIAL: i64 = 40;

/// Takes more than five seconds: all tasks have one due, which must be later than the last put.
#[test]
fn large_payloads_are_published_in_bounded_memory() {
    if !have("redis-server") {
        return;
    }
    let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let instance =
        Punctual::start(&format!("[redis]\nurl = \"{}\"\n[sinks.default]\nurl = \"{}\"\n", timeline.url(), sink.url()));
    let mut shards = StoredKeys::new(&timeline, 4, &["default"]);
    // All tasks must be put before their common due, so measure how long a put takes here.
    let from = shards.now();
    put_all(&instance.api(), "trial", TRIAL, from + 3_600_000);
    let took = shards.now() - from;
    (0..TRIAL).for_each(|number| cancel(&instance.api(), &format!("trial-{number}")));
    let due = shards.now() + took * TASKS / TRIAL * 3 / 2 + 8000;
    let before = instance.memory("VmRSS");
    put_all(&instance.api(), "large", TASKS, due);
    assert!(shards.now() < due, "the puts took more than 1.5 times as long as in the trial, and 8 s");
    // From now on VmHWM is the peak since this moment.
    std::fs::write(format!("/proc/{}/clear_refs", instance.pid()), "5").expect("the peak can be set back");
    let put = instance.memory("VmRSS");

    let (ended, buffer) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| watch_buffers(&timeline, &buffer, &ended));
        let published = patient(Duration::from_secs(120), || shards.tasks() == 0);
        ended.store(true, Ordering::Relaxed);
        assert!(published, "{:?} are left\n{}", shards.count(), instance.log());
    });
    let (peak, buffer) = (instance.memory("VmHWM"), buffer.into_inner());
    let length: u64 = redis::cmd("XLEN").arg("out").query(&mut sink.connect()).expect("a length");
    let last: i64 = last_entry(&sink);
    say(&format!(
        "memory: {length} messages of {PAYLOAD} bytes, the last one {} ms after they were due; resident {} MiB before \
         the puts, {} after them, {} at the peak; Redis' largest output buffer {} KiB",
        last - due,
        before / MIB,
        put / MIB,
        peak / MIB,
        buffer / 1024
    ));
    assert!(length >= 1000, "{length} published");
    assert!(shards.count().is_empty(), "{:?}", shards.count());
    assert!(peak.saturating_sub(put) < 64 * MIB, "the instance grew by {} bytes", peak.saturating_sub(put));
    assert!(buffer < 16 * MIB, "Redis kept {buffer} bytes for one client");
}

/// Many batches in parallel, all due at once: the instance soon returns that memory to the system.
#[test]
fn the_memory_of_a_herd_is_given_back() {
    const BATCHES: usize = 40;
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--save", ""]);
    let instance = Punctual::start(&format!("[redis]\nurl = \"{0}\"\n[sinks.default]\nurl = \"{0}\"\n", redis.url()));
    let mut shards = StoredKeys::new(&redis, 4, &["default"]);
    let (before, peak) = (instance.memory("VmRSS"), AtomicU64::new(0));
    let at = jiff::Timestamp::from_millisecond(shards.now() + 5000).expect("a time").to_string();
    let message = json!({"destination": "out", "payload": "x".repeat(800)});
    let line = |batch: usize, number: usize| {
        let id = format!("herd-{batch}-{number}");
        format!("{}\n", json!({"id": id, "schedule": {"at": &at}, "message": &message}))
    };
    std::thread::scope(|scope| {
        for batch in 0..BATCHES {
            let (api, line) = (instance.api(), &line);
            scope.spawn(move || {
                let lines: String = (0..1000).map(|number| line(batch, number)).collect();
                // On a machine that pauses for seconds, Redis' answer may be missing: then it is put again.
                let mut answer = None;
                let put = patient(Duration::from_secs(60), || {
                    answer = api.send("POST", "/v1/tasks:batch", Some(&lines)).ok();
                    let lines = answer.as_ref().map(Answer::lines).unwrap_or_default();
                    lines.iter().filter(|line| line["result"].is_string()).count() == 1000
                });
                assert!(put, "{answer:?}");
            });
        }
    });
    let drained = patient(Duration::from_secs(120), || {
        peak.fetch_max(instance.memory("VmRSS"), Ordering::Relaxed);
        shards.tasks() == 0
    });
    assert!(drained, "{:?} are left\n{}", shards.count(), instance.log());
    let (peak, mut after) = (instance.memory("VmHWM").max(peak.into_inner()), 0);
    let back = patient(Duration::from_secs(60), || {
        after = instance.memory("VmRSS");
        after < before + 32 * MIB
    });
    let [before, peak, after] = [before, peak, after].map(|bytes| bytes / MIB);
    say(&format!("memory: a herd of {BATCHES} 000: resident {before} MiB before, {peak} at the peak, {after} after"));
    assert!(back, "the memory is kept");
}

/// Puts tasks over a few connections.
fn put_all(api: &Api, name: &str, tasks: i64, due: i64) {
    let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
    let number = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = number.fetch_add(1, Ordering::Relaxed);
                    if number >= tasks {
                        return;
                    }
                    let text = "x".repeat(PAYLOAD - 2);
                    let task = json!({"schedule": {"at": &at}, "message": {"destination": "out", "payload": text}});
                    let answer = api.put(&format!("{name}-{number}"), &task.to_string()).expect("an answer");
                    assert_eq!(answer.status, 201, "{answer:?}");
                }
            });
        }
    });
}

fn cancel(api: &Api, id: &str) {
    let answer = api.send("DELETE", &format!("/v1/tasks/{id}"), None).expect("an answer");
    assert_eq!(answer.json()["result"], "cancelled", "{answer:?}");
}

/// Records the largest output buffer that Redis reports for one client.
fn watch_buffers(redis: &RedisServer, largest: &AtomicU64, ended: &AtomicBool) {
    let mut connection = redis.connect();
    while !ended.load(Ordering::Relaxed) {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut connection).expect("clients");
        for client in clients.lines() {
            let field = |name: &str| {
                let value = client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("no `{name}` in {client}"))
            };
            largest.fetch_max(field("obl") + field("omem"), Ordering::Relaxed);
        }
    }
}

/// When the last message was accepted, by the sink's clock, in ms.
fn last_entry(sink: &RedisServer) -> i64 {
    let entries: Vec<(String, redis::Value)> = redis::cmd("XREVRANGE")
        .arg("out")
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1)
        .query(&mut sink.connect())
        .expect("an entry");
    entries[0].0.split_once('-').and_then(|(ms, _)| ms.parse().ok()).expect("an id with a time")
}
