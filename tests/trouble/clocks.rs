//! Clocks that are wrong, and clocks that jump. The clocks of instances decide nothing. When Redis' own clock is set
//! back, nothing is published early, lost or stuck. libfaketime changes the wall clock alone, as NTP or an operator
//! does; the monotonic clock is not changed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::outage::{check, stored_keys};
use crate::support::clock::ServerClock;
use crate::support::http::Api;
use crate::support::load::{Load, put_recurring};
use crate::support::punctual::Punctual;
use crate::support::server::Server;
use crate::support::stored_keys::{StoredKeys, stop_with_a_claim};
use crate::support::{have, patient, say, skip};

const HOUR: i64 = 3600;

/// A wall clock for one process.
pub(crate) struct Wall {
    file: tempfile::NamedTempFile,
    library: PathBuf,
}

impl Wall {
    /// A clock with the right time; `None` if libfaketime is not installed.
    pub(crate) fn new() -> Option<Wall> {
        let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists());
        if found.is_none() {
            skip("libfaketime");
        }
        let wall = Wall { file: tempfile::NamedTempFile::new().unwrap(), library: found? };
        wall.set(0);
        Some(wall)
    }

    /// From now on the clock is off by this many seconds.
    pub(crate) fn set(&self, seconds: i64) {
        // Rename the file, because a process could read a half-written one.
        let fresh = self.file.path().with_extension("fresh");
        std::fs::write(&fresh, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(fresh, self.file.path()).unwrap();
    }

    /// Environment of a program that uses this clock; `more` is preloaded after the library.
    pub(crate) fn environment(&self, more: &str) -> Vec<String> {
        let file: &Path = self.file.path();
        vec![
            format!("LD_PRELOAD={}{more}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}

/// A Redis that uses this clock. Its allocator asks for the time before libfaketime is ready, and gets the system's.
pub(crate) fn redis_by(wall: &Wall) -> RedisServer {
    let server = Server::start("env", |port, dir| {
        let mut arguments = wall.environment(":libc.so.6");
        let (port, dir) = (port.to_string(), dir.display().to_string());
        let redis = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--port", &port, "--dir", &dir];
        arguments.extend(redis.map(str::to_owned));
        arguments
    });
    RedisServer { server }
}

fn now(redis: &RedisServer) -> i64 {
    let (seconds, micros): (i64, i64) = ::redis::cmd("TIME").query(&mut redis.connect()).unwrap();
    seconds * 1000 + micros / 1000
}

fn put_task(api: &Api, id: &str, schedule: Value) -> i64 {
    let task = json!({"schedule": schedule, "message": {"destination": "out", "payload": id}});
    let answer = api.put(id, &task.to_string()).unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["due_ms"].as_i64().unwrap()
}

/// Takes more than five seconds: the clock of one instance jumps ten times, 0.6 s apart.
#[test]
fn redis_decides_the_time_when_the_clocks_of_instances_are_wrong() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let walls: Option<Vec<Wall>> = (0..3).map(|_| Wall::new()).collect();
    let Some(walls) = walls else { return };
    walls[0].set(HOUR);
    walls[1].set(-HOUR);
    let config = crate::outage::config(&timeline, &sink.url());
    let mut instances: Vec<Punctual> =
        walls.iter().map(|wall| Punctual::start_unready_in(&wall.environment(""), &config)).collect();
    for instance in &mut instances {
        instance.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
    }
    // Their logs prove that the clocks are wrong.
    let hour = |instance: &Punctual| instance.log().chars().take(13).collect::<String>();
    assert_ne!(hour(&instances[0]), hour(&instances[1]));
    let stage = ServerClock::new(stored_keys(&timeline, &["default"]).now());
    let load = Load::new(instances.iter().map(Punctual::api).collect(), &stage, "default", "out");
    for (place, instance) in instances.iter().enumerate() {
        let before = now(&timeline);
        let task = json!({"schedule": {"in": "30m"}, "message": {"destination": "out"}});
        let answer = instance.api().put(&format!("in-{place}"), &task.to_string()).unwrap().json();
        let off = answer["due_ms"].as_i64().unwrap() - before - 30 * 60_000;
        assert!((0..600_000).contains(&off), "`in` is off by {off} ms: {answer}");
        instance.api().send("DELETE", &format!("/v1/tasks/in-{place}"), None).unwrap();
    }
    put_recurring(&instances[0].api(), &load, 10, 8);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..3).for_each(|_| _ = scope.spawn(|| load.run()));
        for jump in [HOUR, -HOUR, 1, -1, HOUR, 0, -HOUR, 30, HOUR, -30] {
            walls[2].set(jump);
            std::thread::sleep(Duration::from_millis(600));
        }
    });
    let instances: Vec<&Punctual> = instances.iter().collect();
    let left = stored_keys(&timeline, &["default"]);
    check("clocks of instances an hour off, and jumping", &instances, &load, left, || {
        crate::support::published::read_stream(sink.server.port, "out")
    });
}

/// Keys published so far. Panics if one was published before its due by Redis' clock.
fn published(timeline: &RedisServer, sink: &RedisServer) -> Vec<String> {
    let entries = sink.stream("out");
    let keys: Vec<String> = entries.iter().map(|entry| entry.text("idempotency-key").unwrap().to_owned()).collect();
    let now = now(timeline);
    for key in &keys {
        let due: i64 = key.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(due <= now, "{key} is early by {} ms", due - now);
    }
    keys
}

/// Waits for these keys, and checks that none is early.
fn until_published(timeline: &RedisServer, sink: &RedisServer, expected: &[(String, i64)], limit: Duration) {
    let mut missing: Vec<String> = Vec::new();
    let done = patient(limit, || {
        let keys = published(timeline, sink);
        let key = |(id, due): &(String, i64)| format!("{id}:{due}");
        missing = expected.iter().map(key).filter(|key| !keys.contains(key)).collect();
        missing.is_empty()
    });
    assert!(done, "at {} still missing: {missing:?}", now(timeline));
}

/// A Redis whose clock is three hours behind: messages are on its time, and the log and a metric say that the clocks
/// differ.
#[test]
fn an_instance_reports_that_its_clock_and_that_of_redis_differ() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let Some(wall) = Wall::new() else { return };
    let timeline = redis_by(&wall);
    wall.set(-3 * HOUR);
    let mut instance = Punctual::start(&crate::outage::config(&timeline, "memory:"));
    crate::outage::until_logged(&mut instance, &[" WARN ", "clocks of this machine and of redis differ", "ahead"]);
    let shown = || (instance.api().metric("punctual_clock_difference_seconds") - 10_800.0).abs() < 60.0;
    assert!(patient(SOON, shown), "{}", instance.log());
}

/// Tasks that are due by the old time wait for the new clock. Tasks put after the step are due by the new clock.
/// Occurrences of a dead or stopped holder are returned, although its lease ends much later.
fn redis_steps_back(by: i64) {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let Some(wall) = Wall::new() else { return };
    let (timeline, sink) = (redis_by(&wall), RedisServer::start(&[]));
    let config = crate::outage::config(&timeline, &sink.url());
    let (silent, mut other) = (Punctual::start(&config), Punctual::start(&config));
    let api = other.api();
    let at = |ms: i64| jiff::Timestamp::from_millisecond(ms).unwrap().to_string();

    // Due by the old and the new time; a holder is stopped with some of them.
    let past = now(&timeline) - 2 * HOUR * 1000;
    let mut overdue = Vec::new();
    let mut left = StoredKeys::new(&timeline, 4, &["default"]);
    let ending = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let puts = scope.spawn(|| {
            let mut put = Vec::new();
            for number in 0.. {
                if ending.load(std::sync::atomic::Ordering::Relaxed) {
                    return put;
                }
                let id = format!("past-{number}");
                put.push((id.clone(), put_task(&api, &id, json!({"at": at(past + number)}))));
            }
            put
        });
        stop_with_a_claim(&silent, &mut left, |held| !held.is_empty());
        ending.store(true, std::sync::atomic::Ordering::Relaxed);
        overdue = puts.join().unwrap();
    });
    let soon = put_task(&api, "old-time", json!({"in": "3s"}));
    let before = now(&timeline);
    wall.set(-by);
    let stepped = before - now(&timeline);
    assert!(stepped > (by - 2) * 1000, "the clock stepped back by {stepped} ms alone");

    crate::outage::until_logged(&mut other, &[" WARN ", "clock of redis was set", "before=", "after="]);
    let metrics = other.api().send("GET", "/metrics", None).unwrap().text;
    assert!(metrics.contains("punctual_clock_steps_total 1\n"), "{metrics}");
    until_published(&timeline, &sink, &overdue, SOON);
    // The holder may have published some of them before it was stopped.
    let reaped = patient(SOON, || {
        published(&timeline, &sink);
        left.held_by(&silent.id()).is_empty()
    });
    assert!(reaped, "a silent holder's lease of before is never over\n{}", other.log());
    silent.signal("CONT");
    let fresh: Vec<(String, i64)> = (0..20)
        .map(|number| {
            let id = format!("fresh-{number}");
            let due = put_task(&api, &id, json!({"in": "500ms"}));
            (id, due)
        })
        .collect();
    assert!(fresh.iter().all(|(_, due)| (due - now(&timeline)).abs() < 60_000), "dues by the new time: {fresh:?}");
    until_published(&timeline, &sink, &fresh, SOON);
    let old = [("old-time".to_owned(), soon)];
    // The clock is corrected, so that the test does not wait an hour.
    wall.set(0);
    until_published(&timeline, &sink, &old, SOON);
    left.until_nothing_is_left(SOON);
    other.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
    for instance in [&silent, &other] {
        assert!(instance.log_lines(&[" ERROR "]).is_empty(), "{}", instance.log());
    }
    let messages = sink.stream("out").len();
    let keys = overdue.len() + fresh.len() + 1;
    say(&format!(
        "trouble, Redis' clock back by {by} s: {keys} keys expected, none missing, none early; {messages} messages"
    ));
}

/// Takes more than five seconds: a lease must expire while its holder is stopped.
#[test]
fn redis_clock_may_step_back_ten_seconds() {
    redis_steps_back(10);
}

/// Takes more than five seconds: a lease must expire while its holder is stopped.
#[test]
fn redis_clock_may_step_back_an_hour() {
    redis_steps_back(HOUR);
}
