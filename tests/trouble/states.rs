//! The states in which Redis answers with an error. Each is caused on a real server under load, or simulated by a
//! relay. The test checks puts, claims and log lines meanwhile. Then the state ends, and all promised messages must be
//! published. `outage` has the states in which Redis does not answer at all, and the state in which its memory is full; `connections` has a
//! failover by Sentinel.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use punctual::timeline::scripts;

use super::*;
use crate::outage::{DURABLE, Servers, check, config, stored_keys, until_logged, until_ready};
use crate::support::clock::ServerClock;
use crate::support::load::{Load, put_recurring};
use crate::support::published::read_stream;
use crate::support::punctual::Punctual;
use crate::support::scripted::Scripted;
use crate::support::{have, patient};

/// A state of Redis and its effects.
struct State {
    name: &'static str,
    /// Arguments of redis-server.
    redis: &'static [&'static str],
    /// Error code of a put, and words of its detail.
    code: &'static str,
    detail: &'static str,
    /// The timeline's status in `/readyz`.
    ready: &'static str,
    /// Words of one log line, which is at WARN.
    log: &'static [&'static str],
}

const CLAIMS_REFUSED: &[&str] = &[" WARN ", "redis refuses claims"];

/// Causes a state under load, checks its effects, ends it, and compares the published messages with the promised ones.
fn play(state: &State, begin: impl FnOnce(&mut Servers), end: impl FnOnce(&mut Servers)) {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let mut servers = Servers::start(state.redis, &[]);
    let mut instance = Punctual::start(&servers.config());
    let clock = ServerClock::new(stored_keys(&servers.timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 10, 12);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..2).for_each(|_| _ = scope.spawn(|| load.run()));
        assert!(patient(SOON, || load.ledger().expected() > 250), "{}", load.answers());
        begin(&mut servers);
        let mut last = None;
        let refused = patient(SOON, || {
            last = load.refused();
            let detail =
                |reported: &serde_json::Value| reported["detail"].as_str().unwrap_or_default().contains(state.detail);
            last.as_ref().is_some_and(|reported| reported["code"] == state.code && detail(reported))
        });
        assert!(refused, "{}: {last:?}\n{}", state.name, instance.log());
        let said = until_ready(&mut instance, false).json();
        assert_eq!(said["timeline"]["status"], state.ready, "{}: {said}", state.name);
        until_logged(&mut instance, state.log);
        end(&mut servers);
        until_ready(&mut instance, true);
        let before = load.ledger().expected();
        assert!(patient(SOON, || load.ledger().expected() > before + 100), "{}", load.answers());
    });
    let left = stored_keys(&servers.timeline, &["default"]);
    check(state.name, &[&instance], &load, left, || servers.published());
}

fn set(servers: &Servers, option: &str, value: &str) {
    ::redis::cmd("CONFIG").arg("SET").arg(option).arg(value).exec(&mut servers.timeline.connect()).unwrap();
}

fn info_has_line(servers: &Servers, line: &str) -> bool {
    let info: String = ::redis::cmd("INFO").query(&mut servers.timeline.connect()).unwrap();
    info.lines().any(|reported| reported.trim() == line)
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the trouble.
#[test]
fn redis_may_become_a_replica_and_a_master_again() {
    let state = State {
        name: "READONLY",
        redis: &[],
        code: "timeline_unavailable",
        detail: "READONLY",
        ready: "down",
        log: &[" WARN ", "redis is unavailable", "READONLY"],
    };
    let role = |servers: &Servers, host: &str, port: &str| {
        ::redis::cmd("REPLICAOF").arg(host).arg(port).exec(&mut servers.timeline.connect()).unwrap();
    };
    // A replica of a master that does not exist keeps its data.
    play(&state, |servers| role(servers, "127.0.0.1", "1"), |servers| role(servers, "NO", "ONE"));
}

/// A folder has the name of the file to write: that needs no full disk, and works for root too.
#[test]
fn redis_may_fail_to_write_to_its_disk() {
    let state = State {
        name: "MISCONF",
        redis: &[],
        code: "timeline_refused",
        detail: "MISCONF",
        ready: "refusing",
        log: CLAIMS_REFUSED,
    };
    let save = |servers: &Servers| {
        ::redis::cmd("BGSAVE").exec(&mut servers.timeline.connect()).unwrap();
    };
    let folder = |servers: &Servers| servers.timeline.server.log().with_file_name("dump.rdb");
    play(
        &state,
        |servers| {
            std::fs::create_dir(folder(servers)).unwrap();
            std::fs::write(folder(servers).join("file"), "").unwrap();
            // Without a schedule to save, Redis accepts writes anyway.
            set(servers, "save", "3600 1");
            save(servers);
            assert!(patient(SOON, || info_has_line(servers, "rdb_last_bgsave_status:err")));
        },
        |servers| {
            std::fs::remove_dir_all(folder(servers)).unwrap();
            // The failed save may not have been noticed yet.
            assert!(patient(SOON, || {
                drop(::redis::cmd("BGSAVE").exec(&mut servers.timeline.connect()));
                info_has_line(servers, "rdb_last_bgsave_status:ok")
            }));
        },
    );
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the trouble.
#[test]
fn redis_may_lack_the_replicas_that_it_requires() {
    let state = State {
        name: "NOREPLICAS",
        redis: &[],
        code: "timeline_refused",
        detail: "NOREPLICAS",
        ready: "refusing",
        log: CLAIMS_REFUSED,
    };
    let ask = |servers: &mut Servers, number| set(servers, "min-replicas-to-write", number);
    play(&state, |servers| ask(servers, "1"), |servers| ask(servers, "0"));
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the trouble.
#[test]
fn redis_may_be_kept_busy_by_the_script_of_another_client() {
    let state = State {
        name: "BUSY",
        redis: &["--busy-reply-threshold", "100"],
        code: "timeline_refused",
        detail: "BUSY",
        ready: "refusing",
        log: CLAIMS_REFUSED,
    };
    play(
        &state,
        |servers| {
            let mut other = servers.timeline.connect();
            // The script is killed, which is an error.
            std::thread::spawn(move || ::redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut other).is_err());
        },
        |servers| {
            let mut other = ::redis::Client::open(servers.timeline.url()).unwrap().get_connection().unwrap();
            ::redis::cmd("SCRIPT").arg("KILL").exec(&mut other).unwrap();
        },
    );
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the trouble.
#[test]
fn redis_may_load_its_data_slowly_after_a_restart() {
    let state = State {
        name: "LOADING",
        redis: &[DURABLE, &["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]]
            .concat()
            .leak()[..],
        code: "timeline_unavailable",
        detail: "LOADING",
        ready: "down",
        log: &[" WARN ", "redis is unavailable", "LOADING"],
    };
    play(
        &state,
        |servers| {
            // Other keys, which load slowly, a millisecond each, so that the test has time for its checks.
            let mut pipeline = ::redis::pipe();
            (0..30_000).for_each(|number| _ = pipeline.cmd("SET").arg(format!("filler:{number}")).arg("x").ignore());
            pipeline.exec(&mut servers.timeline.connect()).unwrap();
            servers.timeline.server.kill();
            servers.timeline.server.restart();
        },
        |servers| {
            // Load the rest at once.
            set(servers, "key-load-delay", "0");
            assert!(patient(Duration::from_secs(60), || ready(&servers.timeline)));
        },
    );
}

/// Whether it has loaded its data.
fn ready(redis: &RedisServer) -> bool {
    let pong = ::redis::Client::open(redis.url()).and_then(|client| client.get_connection());
    pong.and_then(|mut raw| ::redis::cmd("DBSIZE").query::<u64>(&mut raw)).is_ok()
}

/// Another client flushes the script cache again and again: no user notices.
#[test]
fn scripts_may_be_flushed_under_load() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let instance = Punctual::start(&servers.config());
    let clock = ServerClock::new(stored_keys(&servers.timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 10, 6);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..2).for_each(|_| _ = scope.spawn(|| load.run()));
        let mut raw = servers.timeline.connect();
        for _ in 0..100 {
            ::redis::cmd("SCRIPT").arg("FLUSH").exec(&mut raw).unwrap();
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    // One answer may have been late, but no error names a script.
    let of_a_script = load.refused().is_some_and(|reported| reported.to_string().to_lowercase().contains("script"));
    assert!(!of_a_script && !load.answers().contains("timeline_refused"), "{:?}: {}", load.refused(), load.answers());
    let left = stored_keys(&servers.timeline, &["default"]);
    check("SCRIPT FLUSH", &[&instance], &load, left, || servers.published());
}

/// A relay that answers script calls with this error while it is switched on.
fn refusing(
    redis: &RedisServer,
    error: &'static str,
    script: Option<String>,
) -> (Scripted, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (on, said) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (switch, count) = (Arc::clone(&on), Arc::clone(&said));
    let scripted = Scripted::before(redis.server.port, move |command| {
        let meant = command.is("EVALSHA") && script.as_ref().is_none_or(|script| command.words[1] == *script);
        (meant && switch.load(Ordering::Relaxed)).then(|| {
            count.fetch_add(1, Ordering::Relaxed);
            format!("-{error}\r\n")
        })
    });
    (scripted, on, said)
}

fn config_at(url: &str, sink: &RedisServer) -> String {
    // Like `config`, with another address for the timeline.
    let own = config(sink, &sink.url());
    own.replacen(&sink.url(), url, 1)
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the trouble.
#[test]
fn keys_may_be_on_the_move_to_another_node() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let error = "TRYAGAIN Multiple keys request during rehashing of slot";
    let (scripted, on, _) = refusing(&timeline, error, None);
    let mut instance = Punctual::start(&config_at(&scripted.url(), &sink));
    let clock = ServerClock::new(stored_keys(&timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 10, 10);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..2).for_each(|_| _ = scope.spawn(|| load.run()));
        assert!(patient(SOON, || load.ledger().expected() > 250), "{}", load.answers());
        on.store(true, Ordering::Relaxed);
        let reported = |reported: serde_json::Value| {
            reported["code"] == "timeline_refused" && reported.to_string().contains("TRYAGAIN")
        };
        assert!(patient(SOON, || load.refused().is_some_and(reported)), "{}", load.answers());
        assert_eq!(until_ready(&mut instance, false).json()["timeline"]["status"], "refusing");
        until_logged(&mut instance, CLAIMS_REFUSED);
        on.store(false, Ordering::Relaxed);
        until_ready(&mut instance, true);
    });
    let left = stored_keys(&timeline, &["default"]);
    check("TRYAGAIN", &[&instance], &load, left, || read_stream(sink.server.port, "out"));
}

/// A published message is settled when Redis accepts settles again, and is published once: the claim is held until
/// then.
#[test]
fn a_settle_that_redis_refuses_is_retried_until_redis_accepts_it() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    for error in [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "NOREPLICAS Not enough good replicas to write.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOSCRIPT No matching script. Please use EVAL.",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ] {
        let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
        let settle = ::redis::Script::new(scripts::SETTLE.source).get_hash().to_owned();
        let (scripted, on, said) = refusing(&timeline, error, Some(settle));
        // Long timeouts and leases, because a repeated publish or an expired lease would make a copy.
        let config = config_at(&scripted.url(), &sink).replace("\"5s\"", "\"30s\"").replace("\"2s\"", "\"10s\"");
        let instance = Punctual::start(&config);
        let task = |number: u32| {
            let message = serde_json::json!({"destination": "out", "payload": number});
            format!(
                "{}\n",
                serde_json::json!({"id": format!("t{number}"), "schedule": {"in": "1s"}, "message": message})
            )
        };
        on.store(true, Ordering::Relaxed);
        let batch: String = (0..20).map(task).collect();
        let answers = instance.api().send("POST", "/v1/tasks:batch", Some(&batch)).unwrap().lines();
        assert!(
            answers.len() == 20 && answers.iter().all(|answer| answer["result"] == "created"),
            "{error}: {answers:?}"
        );
        let tried = patient(SOON, || sink.stream("out").len() >= 20 && said.load(Ordering::Relaxed) > 30);
        assert!(tried, "{error}: {}\n{}", said.load(Ordering::Relaxed), instance.log());
        let mut left = stored_keys(&timeline, &["default"]);
        assert_eq!(left.tasks(), 20, "{error}: nothing is settled yet");
        on.store(false, Ordering::Relaxed);
        left.until_nothing_is_left(SOON);
        let keys: std::collections::BTreeSet<_> =
            sink.stream("out").iter().map(|entry| entry.text("idempotency-key").unwrap().to_owned()).collect();
        assert_eq!((keys.len(), sink.stream("out").len()), (20, 20), "{error}: a settle that is late makes no copy");
        assert!(instance.log_lines(&[" ERROR "]).is_empty(), "{error}: {}", instance.log());
    }
}
