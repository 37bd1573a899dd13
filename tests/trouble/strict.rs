//! With `redis.strict`, an instance refuses a Redis that is not configured to keep tasks: at the start, or as soon as
//! Redis is up.

use std::process::{Command, Output};

use super::*;
use crate::support::have;
use crate::support::punctual::Punctual;
use crate::support::scripted::Scripted;

/// Runs the program to its end, for up to a minute; returns 124 if it still runs.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_punctual")]).args(arguments);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).current_dir(std::env::temp_dir());
    command.output().unwrap()
}

/// Output of `serve` and `check` with these options, with their exit codes.
pub(crate) fn serve_and_check(more: &[&str]) -> [(Option<i32>, String); 2] {
    ["serve", "check"].map(|command| {
        let arguments = [&[command, "--sink", "memory:", "--listen", "127.0.0.1:0"], more].concat();
        let output = run(&arguments);
        let detail = [output.stderr, output.stdout].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), detail)
    })
}

#[test]
fn strict_mode_refuses_a_redis_that_may_lose_tasks_and_accepts_a_safe_one() {
    if !have("redis-server") {
        return;
    }
    let evicting = ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb", "--appendonly", "yes"];
    for (arguments, detail) in [(&evicting[..], "Redis drops tasks when its"), (&[], "`appendonly` is off")] {
        let redis = RedisServer::start(arguments);
        for (code, said) in serve_and_check(&["--redis", &redis.url(), "--strict"]) {
            assert_eq!(code, Some(2), "{said}");
            for detail in [detail, "hint: ", "`redis.strict` (--strict)", "Redis is not set up to keep tasks"] {
                assert!(said.contains(detail), "no `{detail}` in {said}");
            }
        }
    }
    let well = RedisServer::start(&["--appendonly", "yes"]);
    drop(Punctual::start(&format!("[redis]\nurl = \"{}\"\nstrict = true\n[sinks.a]\nurl = \"memory:\"\n", well.url())));
    let checked = run(&["check", "--redis", &well.url(), "--sink", "memory:", "--strict", "--json"]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    for (code, said) in serve_and_check(&["--redis", "memory:", "--strict"]) {
        assert!(code == Some(2) && said.contains("`redis.strict` (--strict): a timeline in memory"), "{said}");
    }
}

/// A Redis that accepts everything and keeps nothing, as with `appendfsync no`.
#[test]
fn a_redis_that_confirms_no_write_is_reported_at_the_start() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let scripted =
        Scripted::before(redis.server.port, move |asked| asked.is("WAITAOF").then(|| "*2\r\n:0\r\n:0\r\n".to_owned()));
    let config = |strict| {
        let url = scripted.url();
        format!("[redis]\nurl = \"{url}\"\ndurability = \"fsync\"\nstrict = {strict}\n[sinks.a]\nurl = \"memory:\"\n")
    };
    let detail = "puts would be answered 503: `redis.durability` is `fsync`; a test write failed: Redis did not";
    let mut instance = Punctual::start(&config(false));
    instance.until("heard to warn", |instance| !instance.log_lines(&[" WARN ", detail, "appendfsync"]).is_empty());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config(true)).unwrap();
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", &file.path().display().to_string()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains(detail), "{said}");
}

/// Redis is up, but does not answer `INFO`.
#[test]
fn strictness_does_not_hold_up_a_start_for_ever_nor_its_end() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let noted = Arc::clone(&asked);
    let scripted = Scripted::before(redis.server.port, move |command| {
        if command.is("INFO") {
            noted.store(true, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(4 * SOON);
        }
        None
    });
    let (url, serve) =
        (scripted.url(), ["serve", "--strict", "--sink", "memory:", "--listen", "127.0.0.1:0", "--redis"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.args(serve).arg(&url).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    let mut child = command.current_dir(std::env::temp_dir()).spawn().unwrap();
    assert!(crate::support::patient(SOON, || asked.load(std::sync::atomic::Ordering::Relaxed)));
    let signalled = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let mut ended = None;
    crate::support::patient(SOON, || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    drop(child.kill());
    assert_eq!(ended.and_then(|ended| ended.code()), Some(0), "SIGTERM ends it");
    // An instance that waits longer starts.
    drop(Punctual::start_unready(&format!("[redis]\nurl = \"{url}\"\nstrict = true\n[sinks.a]\nurl = \"memory:\"\n")));
}

#[test]
fn a_redis_that_comes_later_is_judged_then() {
    if !have("redis-server") {
        return;
    }
    let mut redis = RedisServer::start(&[]);
    redis.server.kill();
    let config = format!("[redis]\nurl = \"{}\"\nstrict = true\n[sinks.a]\nurl = \"memory:\"\n", redis.url());
    let mut instance = Punctual::start_unready(&config);
    redis.server.restart();
    assert_eq!(instance.wait(), 2, "{}", instance.log());
    let log = instance.log();
    assert!(log.contains("error: ") && log.contains("`appendonly` is off") && log.contains("hint: "), "{log}");
    assert!(!log.contains("connected to redis"), "nothing is taken in before: {log}");
}

/// Replies of an older Redis, and of one without an append-only file.
const ANSWERS: [&str; 2] = [
    "-ERR unknown command 'WAITAOF', with args beginning with: '1' '0' '1' \r\n",
    "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n",
];

#[test]
fn durability_fsync_is_refused_with_a_redis_that_cannot_confirm_its_disk() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    for answer in ANSWERS {
        let scripted = Scripted::before(redis.server.port, move |asked| asked.is("WAITAOF").then(|| answer.to_owned()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("[redis]\nurl = \"{}\"\ndurability = \"fsync\"\n", scripted.url());
        std::fs::write(file.path(), text).unwrap();
        for (code, said) in serve_and_check(&["--config", &file.path().display().to_string()]) {
            assert_eq!(code, Some(2), "{said}");
            let needed =
                "`redis.durability = \"fsync\"` needs `appendonly yes`, `WAITAOF`, which there is since Redis 7.2";
            assert!(said.contains(needed) && said.contains("WAITAOF"), "{said}");
        }
    }
}

#[test]
fn a_new_master_that_cannot_confirm_still_publishes_but_puts_are_refused() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let able = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asked = Arc::clone(&able);
    let scripted = Scripted::before(redis.server.port, move |command| {
        let answer =
            || if asked.load(std::sync::atomic::Ordering::Relaxed) { "*2\r\n:1\r\n:0\r\n" } else { ANSWERS[1] };
        command.is("WAITAOF").then(|| answer().to_owned())
    });
    let sink = RedisServer::start(&[]);
    let config =
        format!("[redis]\nurl = \"{}\"\ndurability = \"fsync\"\n[sinks.a]\nurl = \"{}\"\n", scripted.url(), sink.url());
    let mut instance = Punctual::start(&config);
    let put = |id: &str, wait: &str| {
        let task = serde_json::json!({"schedule": {"in": wait}, "message": {"destination": "out"}});
        instance.api().put(id, &task.to_string()).unwrap()
    };
    assert_eq!(put("a", "2s").status, 201);
    able.store(false, std::sync::atomic::Ordering::Relaxed);
    scripted.cut(|_| true);
    let published = crate::support::patient(SOON, || sink.stream("out").len() == 1);
    assert!(published, "{}", instance.log());
    let mut refused = put("b", "1h").json();
    // The connection may not be back yet.
    crate::support::patient(SOON, || {
        let back = !["timeline_unavailable", "timeline_unknown"].iter().any(|code| refused["code"] == *code);
        if !back {
            refused = put("b", "1h").json();
        }
        back
    });
    assert_eq!(refused["code"], "timeline_refused", "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("`redis.durability = \"fsync\"` needs"), "{refused}");
    instance.until("heard to say why", |instance| {
        !instance.log_lines(&[" WARN ", "redis cannot confirm writes"]).is_empty()
    });
}

/// Takes more than five seconds: each put waits a second for a replica that never confirms.
#[test]
fn puts_without_a_replica_take_effect_unconfirmed_and_a_strict_start_fails() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let config =
        format!("[redis]\nurl = \"{}\"\ndurability = \"replica\"\n[sinks.a]\nurl = \"memory:\"\n", redis.url());
    let mut instance = Punctual::start_unready_in(&["PUNCTUAL__HTTP__TIMELINE_TIMEOUT=1s".to_owned()], &config);
    instance.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
    instance.until("heard to warn", |instance| {
        !instance.log_lines(&[" WARN ", "Redis has no replica, and `redis.durability` requires one"]).is_empty()
    });
    let task = r#"{"schedule": {"in": "1h"}, "message": {"destination": "out"}}"#;
    let api = instance.api();
    let reported = |method: &str, body: Option<&str>, detail: &str| {
        let mut last = None;
        // Try again if Redis was slow once: then it is unknown whether the put took effect.
        let reported = crate::support::patient(SOON, || {
            let answer = api.send(method, "/v1/tasks/a", body).unwrap();
            assert_eq!(answer.status, 503, "{answer:?}");
            let reported = answer.json()["code"] == "timeline_unknown" && answer.text.contains(detail);
            last = Some(answer);
            reported
        });
        assert!(reported, "{last:?}");
    };
    reported("PUT", Some(task), "it took effect, but its durability is not confirmed: no replica");
    // The load balancer learns that requests to this instance would fail.
    instance.until("unready", |instance| {
        assert_eq!(instance.api().put("a", task).unwrap().status, 503);
        instance
            .api()
            .ready()
            .is_some_and(|answer| answer.status == 503 && answer.text.contains("no replica has confirmed"))
    });
    assert_eq!(instance.log_lines(&[" WARN ", "redis does not confirm writes"]).len(), 1, "{}", instance.log());
    assert_eq!(instance.api().send("GET", "/v1/tasks/a", None).unwrap().status, 200);
    reported("DELETE", None, "is not confirmed: no replica");
    assert_eq!(instance.api().send("GET", "/v1/tasks/a", None).unwrap().status, 404);
    assert!(instance.api().metric("punctual_timeline_calls_total{verb=\"put\",result=\"unconfirmed\"}") >= 1.0);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &redis.server.port.to_string()]);
    let kept = crate::support::patient(SOON, || matches!(instance.api().put("b", task).unwrap().status, 200 | 201));
    assert!(kept, "{}", instance.log());
    instance.until("ready again", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
    drop(replica);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let alone = crate::support::patient(SOON, || {
        let info: String = ::redis::cmd("INFO").arg("replication").query(&mut redis.connect()).unwrap();
        info.contains("connected_slaves:0")
    });
    assert!(alone);
    let output = run(&["serve", "--strict", "--listen", "127.0.0.1:0", "--config", &file.path().display().to_string()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("Redis has no replica"), "{said}");
}
