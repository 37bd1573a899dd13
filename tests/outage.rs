//! Every server around an instance fails in turn, under load. All promised messages are still published, never early,
//! and work resumes without help. The log names the fault, and `/readyz` tells whether the instance accepts tasks.

mod causes;
mod sinks;

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::clock::ServerClock;
use crate::support::http::Answer;
use crate::support::load::{Load, put_recurring};
use crate::support::published::{Published, read_stream};
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::stored_keys::{StoredKeys, stop_with_a_claim};
use crate::support::{have, patient, say};

/// A Redis with these arguments keeps everything it has answered through a kill -9.
pub(crate) const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// Time limit for steps that complete by themselves. It is generous: no test measures how long they take.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Time limit for publishing all messages.
pub(crate) const PUBLISH_LIMIT: Duration = Duration::from_secs(60);

/// The timeline's Redis, and one for the published messages.
pub(crate) struct Servers {
    pub(crate) timeline: RedisServer,
    pub(crate) sink: RedisServer,
}

impl Servers {
    pub(crate) fn start(timeline: &[&str], sink: &[&str]) -> Servers {
        Servers { timeline: RedisServer::start(timeline), sink: RedisServer::start(sink) }
    }

    pub(crate) fn config(&self) -> String {
        config(&self.timeline, &self.sink.url())
    }

    pub(crate) fn published(&self) -> Vec<Published> {
        read_stream(self.sink.server.port, "out")
    }
}

pub(crate) fn config(timeline: &RedisServer, sink: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"5s\"\n[sinks.default]\nurl = \"{sink}\"\nanswer_timeout = \"2s\"\n",
        timeline.url()
    )
}

pub(crate) fn stored_keys(timeline: &RedisServer, lanes: &[&str]) -> StoredKeys {
    StoredKeys::new(timeline, 4, lanes)
}

/// Waits until an instance reports that it is ready, or not ready; returns that report.
pub(crate) fn until_ready(instance: &mut Punctual, ready: bool) -> Answer {
    let mut said = None;
    instance.until(if ready { "ready" } else { "known to be not ready" }, |instance| {
        said = instance.api().ready().filter(|answer| answer.status == if ready { 200 } else { 503 });
        said.is_some()
    });
    said.expect("it holds")
}

/// Waits for a log line that contains these words.
pub(crate) fn until_logged(instance: &mut Punctual, texts: &[&str]) {
    instance.until(&format!("heard to say {texts:?}"), |instance| !instance.log_lines(texts).is_empty());
}

/// Checks that Redis is empty, that the published messages equal the ledger, and that no log line asks for an operator.
pub(crate) fn check(
    name: &str,
    instances: &[&Punctual],
    load: &Load,
    mut stored: StoredKeys,
    published: impl FnOnce() -> Vec<Published>,
) {
    stored.until_nothing_is_left(PUBLISH_LIMIT);
    for instance in instances {
        let errors = instance.log_lines(&[" ERROR "]);
        assert!(errors.is_empty(), "{errors:?}");
    }
    let tally = load.ledger().check(&published()).unwrap_or_else(|faults| panic!("{name}: {faults}{}", load.answers()));
    say(&format!("outage, {name}: {tally}; {}", load.answers()));
}

#[test]
fn redis_may_be_away_at_the_start() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let mut servers = Servers::start(&[], &[]);
    let mut stored = stored_keys(&servers.timeline, &["default"]);
    let clock = ServerClock::new(stored.now());
    servers.timeline.server.kill();
    let mut instance = Punctual::start_unready(&servers.config());
    let said = until_ready(&mut instance, false).json();
    assert_eq!((&said["ready"], &said["timeline"]["status"]), (&Value::Bool(false), &"down".into()), "{said}");
    until_logged(&mut instance, &[" WARN ", "redis is unavailable"]);
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    assert!(!load.put_next(), "nothing can be promised now");
    let refused = load.refused().expect("a put is refused");
    assert_eq!(refused["code"], "timeline_unavailable", "{refused}");
    servers.timeline.server.restart();
    until_ready(&mut instance, true);
    assert!(load.put_next(), "{}", load.answers());
    stored = stored_keys(&servers.timeline, &["default"]);
    check("Redis away at the start", &[&instance], &load, stored, || servers.published());
}

/// The instance answers before its first attempt to connect has ended.
#[test]
fn an_instance_listens_at_once_while_redis_is_away() {
    if !have("redis-server") {
        return;
    }
    let mut servers = Servers::start(&[], &[]);
    servers.timeline.server.kill();
    // In its place listens a server that accepts connections and never answers, so that the attempt lasts.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, servers.timeline.server.port)).expect("a free port");
    silent.set_nonblocking(true).expect("no blocking");
    // Try again if the machine paused meanwhile.
    let found = (0..5).find_map(|_| {
        let mut instance = Punctual::spawn_in(&[], &servers.config());
        let mut first = None;
        instance.until("connecting", |_| {
            first = silent.accept().ok();
            first.is_some()
        });
        instance.until("listening", |instance| instance.api().ready().is_some());
        let said = instance.api().ready().expect("an answer");
        let (mut first, _) = first.expect("a connection");
        first.set_nonblocking(true).expect("no blocking");
        let read = std::iter::repeat_with(|| first.read(&mut [0; 4096])).find(|read| !matches!(read, Ok(1..)));
        let open = read.is_some_and(|read| read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        open.then_some((instance, said))
    });
    let (mut instance, said) = found.expect("it listens before the first attempt has ended");
    assert_eq!(said.status, 503, "{said:?}");
    assert_eq!(said.json()["timeline"], json!({"status": "down", "detail": "connecting"}));
    let api = instance.api();
    let answer = |path: &str| api.send("GET", path, None).expect("an answer");
    for path in ["/healthz", "/metrics", "/v1/stats", "/openapi.json"] {
        assert_eq!(answer(path).status, 200, "{path}");
    }
    assert_eq!(answer("/v1/stats").json()["timeline"]["status"], "down");
    assert_eq!(api.metric("punctual_timeline_up"), 0.0);
    let task = r#"{"schedule": {"in": "1h"}, "message": {"destination": "out"}}"#;
    let refused = api.put("a", task).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    let address = format!("127.0.0.1:{}", servers.timeline.server.port);
    until_logged(
        &mut instance,
        &[" WARN ", "redis is unavailable; tasks are neither accepted nor published until", &address],
    );
    drop(silent);
    servers.timeline.server.restart();
    until_ready(&mut instance, true);
    assert_eq!(api.put("a", task).expect("an answer").status, 201);
}

/// Takes more than five seconds: tasks are put and published for some seconds before, during and after the outage.
#[test]
fn redis_may_be_killed_and_started_again() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let mut servers = Servers::start(DURABLE, &[]);
    let mut instance = Punctual::start(&servers.config());
    let clock = ServerClock::new(stored_keys(&servers.timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 20, 12);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..4).for_each(|_| _ = scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_secs(4));
        servers.timeline.server.kill();
        until_ready(&mut instance, false);
        until_logged(&mut instance, &[" WARN ", "redis is unavailable"]);
        std::thread::sleep(Duration::from_secs(2));
        servers.timeline.server.restart();
        until_ready(&mut instance, true);
        std::thread::sleep(Duration::from_secs(3));
    });
    let stored = stored_keys(&servers.timeline, &["default"]);
    check("Redis killed and started again", &[&instance], &load, stored, || servers.published());
}

/// Takes more than five seconds: Redis hangs for 20 s, longer than a lease.
#[test]
fn redis_may_hang_for_some_seconds() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let mut instance = Punctual::start(&servers.config());
    let stored = stored_keys(&servers.timeline, &["default"]);
    let clock = ServerClock::new(stored_keys(&servers.timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 20, 12);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..4).for_each(|_| _ = scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_secs(3));
        servers.timeline.server.signal("STOP");
        let stopped = clock.now();
        until_ready(&mut instance, false);
        until_logged(&mut instance, &[" WARN ", "redis is unavailable"]);
        while clock.now() < stopped + 20_000 {
            std::thread::sleep(Duration::from_millis(50));
        }
        servers.timeline.server.signal("CONT");
        until_ready(&mut instance, true);
        std::thread::sleep(Duration::from_secs(2));
    });
    check("Redis stopped for 20 s", &[&instance], &load, stored, || servers.published());
}

/// Takes more than five seconds: Redis is filled, and drains.
#[test]
fn a_full_redis_still_drains() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let mut instance = Punctual::start(&servers.config());
    let stored = stored_keys(&servers.timeline, &["default"]);
    let clock = ServerClock::new(stored_keys(&servers.timeline, &["default"]).now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 20, 12);
    servers.timeline.limit_memory(2 << 20);
    let padding = "x".repeat(20_000);
    // The tasks that fill Redis normally become due after all checks of a full one.
    let filled = patient(SOON, || !load.put(8000, &padding));
    assert!(filled, "2 MiB become full: {}", load.answers());
    let refused = load.refused().expect("a put is refused");
    assert_eq!(refused["code"], "timeline_refused", "{refused}");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("OOM")), "{refused}");
    let said = until_ready(&mut instance, false).json();
    assert_eq!(said["timeline"]["status"], "refusing", "{said}");
    until_logged(&mut instance, &[" WARN ", "redis refuses puts", "OOM"]);
    // Try again if that took so long that the filling tasks became due, too.
    let goes_on = (0..5).any(|_| {
        patient(SOON, || !load.put(8000, &padding));
        // Redis now uses more than its limit: exactly at the limit every other put would still succeed. Existing tasks
        // are still published.
        servers.timeline.limit_memory(-(256 << 10));
        let before = servers.published().len();
        let goes_on = patient(SOON, || load.put(8000, &padding) || servers.published().len() >= before + 20);
        goes_on && !load.put(8000, &padding)
    });
    assert!(goes_on, "a full Redis does not drain: {}", load.answers());
    // Publishing frees memory without help.
    let room = patient(SOON, || load.put(500, &padding));
    assert!(room, "a full Redis does not drain: {}", load.answers());
    until_ready(&mut instance, true);
    check("Redis full", &[&instance], &load, stored, || servers.published());
}

/// Takes more than five seconds: a lease must expire while its holder hangs.
#[test]
fn an_instance_may_hang_until_its_lease_has_expired() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let frozen = Punctual::start(&servers.config());
    let other = Punctual::start(&servers.config());
    let mut stored = stored_keys(&servers.timeline, &["default"]);
    let clock = ServerClock::new(stored.now());
    let load = Load::new(vec![frozen.api(), other.api()], &clock, "default", "out");
    put_recurring(&frozen.api(), &load, 50, 14);
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..4).for_each(|_| _ = scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_secs(3));
        stop_with_a_claim(&frozen, &mut stored, |held| !held.is_empty());
        let reaped = patient(SOON, || stored.held_by(&frozen.id()).is_empty());
        assert!(reaped, "nobody reaps what a silent instance holds\n{}", other.log());
        std::thread::sleep(Duration::from_secs(1));
        frozen.signal("CONT");
        let works = patient(SOON, || !stored.held_by(&frozen.id()).is_empty());
        assert!(works, "it claims nothing any more\n{}", frozen.log());
        std::thread::sleep(Duration::from_secs(2));
    });
    let ended = other.log_lines(&[" WARN ", "leases expired; their occurrences"]);
    assert!(!ended.is_empty(), "{}", other.log());
    // An instance that was stopped before it read the claim's reply returns occurrences that it no longer owns.
    // Otherwise it learns that the claim is lost.
    let reported = [[" WARN ", "lost"], [" WARN ", "no reply to a claim"]].map(|words| frozen.log_lines(&words).len());
    assert!(reported.iter().any(|&lines| lines > 0), "{}", frozen.log());
    check("an instance stopped past its lease", &[&frozen, &other], &load, stored, || servers.published());
}
