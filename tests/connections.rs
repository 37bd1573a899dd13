//! Connections as used in companies, from the configuration to the servers: TLS with passwords, Sentinels; and what an
//! instance logs, and never logs, when they fail.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::certificates::Certificates;
use crate::support::http::Api;
use crate::support::nats::NatsServer;
use crate::support::punctual::Punctual;
use crate::support::redis::{RedisServer, SecureRedis};
use crate::support::server::Server;
use crate::support::{have, patient, say};

/// How long something may take that happens by itself: a generous deadline, not an expectation.
const SOON: Duration = Duration::from_secs(30);

/// How long a failover may take: a Sentinel that was paused itself does nothing for half a minute.
const FAILOVER: Duration = Duration::from_secs(120);

/// After how many ms without a reply the Sentinel takes a killed master for dead.
const DEAD: u32 = 1000;

/// The same while no master is to be replaced, so that a slow one on a busy machine stays master. Otherwise writes that
/// its replica lacks would be lost.
const SLOW: u32 = 60_000;

const PASSWORD: &str = "hunter2";

/// Puts tasks that are due at once, until all are confirmed.
fn put(api: &Api, lane: &str, destination: &str, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let message = json!({"destination": destination, "payload": number});
        let task = json!({"schedule": {"in": "10ms"}, "lane": lane, "message": message});
        let mut again = false;
        let promised = patient(SOON, || {
            let answer = api.put(&format!("{lane}-{number}"), &task.to_string()).expect("an answer");
            assert!(matches!((answer.status, again), (201 | 503, _) | (200, true)), "{answer:?}");
            // It may or may not have taken effect.
            again |= answer.status == 503;
            answer.status != 503
        });
        assert!(promised, "`{lane}-{number}` is never promised");
    }
}

fn length(connection: &mut redis::Connection, stream: &str) -> u32 {
    redis::cmd("XLEN").arg(stream).query(connection).expect("a length")
}

/// A new password applies at the next login: in a file of its own, and in the URL of punctual.toml.
#[test]
fn a_password_that_is_replaced_needs_no_restart() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    let set = |password: &str, former: Option<&str>| {
        let former = former.map(|former| format!(":{former}@")).unwrap_or_default();
        let client = redis::Client::open(format!("redis://{former}127.0.0.1:{}", server.server.port));
        let mut admin = client.and_then(|client| client.get_connection()).expect("a connection");
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(password).exec(&mut admin).expect("a new password");
        std::fs::write(&file, format!("{password}\n")).expect("a file");
        for kind in ["normal", "pubsub"] {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes");
            kill.exec(&mut admin).expect("connections that are closed");
        }
    };
    let config = |password: &str, in_file: bool| {
        let port = server.server.port;
        let url = |password: &str| match in_file {
            true => format!("url = \"redis://default@127.0.0.1:{port}\"\npassword_file = \"{}\"", file.display()),
            false => format!("url = \"redis://:{password}@127.0.0.1:{port}\""),
        };
        format!("[redis]\n{0}\n[sinks.default]\n{0}\n[lanes.default]\ndestination = \"out\"\n", url(password))
    };
    let mut former = None;
    for in_file in [true, false] {
        let (one, two) = (format!("hunter-one-{in_file}"), format!("hunter-two-{in_file}"));
        set(&one, former.as_deref());
        let mut instance = Punctual::start(&config(&one, in_file));
        put(&instance.api(), "default", &format!("out-{in_file}"), 0..1);
        instance.rewrite(&config(&two, in_file));
        set(&two, Some(&one));
        instance.until("ready with the new password", |instance| {
            instance.api().ready().is_some_and(|answer| answer.status == 200)
                && !instance.log_lines(&["link=2"]).is_empty()
        });
        put(&instance.api(), "default", &format!("out-{in_file}"), 1..2);
        let client = redis::Client::open(format!("redis://:{two}@127.0.0.1:{}", server.server.port));
        let mut raw = client.and_then(|client| client.get_connection()).expect("a connection");
        let arrived = patient(SOON, || length(&mut raw, &format!("out-{in_file}")) == 2);
        assert!(arrived, "{}", instance.log());
        assert!(!instance.log().contains("hunter"), "{}", instance.log());
        redis::cmd("FLUSHALL").exec(&mut raw).expect("an empty server");
        former = Some(two);
    }
}

/// NATS and Redis over TLS, each with a password.
struct Secured {
    certificates: Arc<Certificates>,
    redis: SecureRedis,
    nats: NatsServer,
}

impl Secured {
    fn start() -> Option<Secured> {
        if !have("redis-server") || !have("nats-server") {
            return None;
        }
        let certificates = Arc::new(Certificates::new());
        let redis = SecureRedis::start(&certificates, PASSWORD);
        // The test's own client has no TLS.
        let nats = NatsServer::start(&format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\nallow_non_tls: true\n\
             authorization {{ user: punctual, password: \"{PASSWORD}\" }}",
            certificates.certificate_file().display(),
            certificates.key_file().display()
        ));
        Some(Secured { certificates, redis, nats })
    }

    /// A configuration with two lanes, `default` on NATS and `streams` on Redis; with this timeline, authority and
    /// password.
    fn config(&self, timeline: &str, certificates: &Certificates, password: &str) -> String {
        format!(
            "[redis]\nurl = \"{timeline}\"\n[tls]\nca_file = \"{}\"\n[sinks]\nanswer_timeout = \"2s\"\n\
             [sinks.nats]\nurl = \"tls://punctual:{password}@127.0.0.1:{}\"\n[sinks.streams]\nurl = \"{}\"\n\
             [lanes.default]\nsink = \"nats\"\n[lanes.streams]\nsink = \"streams\"\n",
            certificates.ca_file().display(),
            self.nats.server.port,
            self.redis.url_with(password)
        )
    }

    fn nats(&self) -> crate::support::nats::NatsClient {
        crate::support::nats::NatsClient::connect(self.nats.server.port, Some(("punctual", PASSWORD)))
    }
}

#[test]
fn an_instance_reaches_all_over_tls_with_passwords() {
    let Some(servers) = Secured::start() else { return };
    servers.nats().create_stream("OUT", &["out"], &json!({}));
    let config = servers.config(&servers.redis.url(), &servers.certificates, PASSWORD);
    let instance = Punctual::start(&(config + "[sinks.idle]\nurl = \"memory:\"\n"));
    let warned = instance.log_lines(&[" WARN ", "`sinks.idle.url` (", "punctual.toml:", "no lane uses this sink"]);
    assert_eq!(warned.len(), 1, "{}", instance.log());
    put(&instance.api(), "default", "out", 0..50);
    put(&instance.api(), "streams", "out", 0..50);
    let (mut redis, mut nats) = (servers.redis.connect(), servers.nats());
    let all = patient(SOON, || length(&mut redis, "out") == 50 && nats.stream_length("OUT") == 50);
    assert!(all, "{} and {}\n{}", length(&mut redis, "out"), nats.stream_length("OUT"), instance.log());
    let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").text;
    assert!(!instance.log().contains(PASSWORD) && !stats.contains(PASSWORD), "{}", instance.log());
    say("connections: 50 tasks each over TLS to NATS and Redis Streams, from a timeline over TLS");
}

/// The state of the instance once it reports these texts for the unavailable sinks; earlier it has not tried them.
fn troubles(instance: &mut Punctual, sinks: &[(&str, &str)]) -> String {
    let mut said = String::new();
    instance.until(&format!("heard to say {sinks:?}"), |instance| {
        let answer = instance.api().ready().expect("an answer");
        let unavailable = &answer.json()["unavailable_sinks"];
        said = answer.text;
        sinks.iter().all(|(sink, detail)| unavailable[sink].as_str().is_some_and(|said| said.contains(detail)))
    });
    said
}

#[test]
fn a_wrong_password_or_authority_is_reported_without_secrets() {
    let Some(servers) = Secured::start() else { return };
    let other = Certificates::new();
    let right = &*servers.certificates;
    let trust = other.ca_file().display().to_string();
    for (certificates, password, of_nats, of_redis) in [
        (right, "hunter3", "authorization violation", "user or password are wrong"),
        (&other, PASSWORD, "invalid peer certificate", "invalid peer certificate"),
    ] {
        let mut sinks = Punctual::start(&servers.config("memory:", certificates, password));
        put(&sinks.api(), "default", "out", 0..3);
        put(&sinks.api(), "streams", "out", 0..3);
        let said = troubles(&mut sinks, &[("nats", of_nats), ("streams", of_redis)]);
        let mut timeline =
            Punctual::start_unready(&servers.config(&servers.redis.url_with(password), certificates, password));
        timeline.until("heard to say why", |timeline| {
            !timeline.log_lines(&[" WARN ", "redis is unavailable", of_redis]).is_empty()
        });
        let away = timeline.api().ready().expect("an answer");
        assert!(away.status == 503 && away.text.contains(of_redis), "{away:?}");
        let text = format!("{said}{}{}{}", sinks.log(), timeline.log(), away.text);
        assert!(password != PASSWORD || text.contains(&trust), "whom it trusts is not said: {text}");
        for secret in [PASSWORD, "hunter3"] {
            assert!(!text.contains(secret), "`{secret}` stands in:\n{text}");
        }
    }
}

/// A master, a replica and a Sentinel, all with passwords; with TLS only, or without.
struct Watched {
    tls: Option<Certificates>,
    redis: Vec<Server>,
    sentinel: Server,
    /// A port without a listener: a Sentinel that is down.
    down: u16,
}

const SENTINELS_OWN: &str = "hunter4";

impl Watched {
    fn start(tls: Option<Certificates>) -> Watched {
        // Configuration lines for the address.
        let listen = |port: u16| match &tls {
            None => format!("port {port}\n"),
            Some(own) => format!(
                "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {}\n\
                 tls-key-file {}\ntls-ca-cert-file {}\n",
                own.certificate_file().display(),
                own.key_file().display(),
                own.ca_file().display()
            ),
        };
        let redis = |more: &str| {
            Server::start("redis-server", |port, dir| {
                let file = dir.join("redis.conf");
                let text = format!(
                    "bind 127.0.0.1\n{}dir \"{}\"\nsave \"\"\nrequirepass {PASSWORD}\nmasterauth {PASSWORD}\n\
                     repl-diskless-sync-delay 0\n{more}",
                    listen(port),
                    dir.display()
                );
                std::fs::write(&file, text).expect("a configuration file");
                vec![file.display().to_string()]
            })
        };
        let master = redis("");
        let replica = redis(&format!("replicaof 127.0.0.1 {}\n", master.port));
        let sentinel = Server::start("redis-server", |port, dir| {
            let file = dir.join("sentinel.conf");
            let text = format!(
                "bind 127.0.0.1\n{}dir \"{}\"\nrequirepass {SENTINELS_OWN}\n\
                 sentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main {PASSWORD}\n\
                 sentinel down-after-milliseconds main {SLOW}\nsentinel failover-timeout main 6000\n",
                listen(port),
                dir.display(),
                master.port
            );
            std::fs::write(&file, text).expect("a configuration file");
            vec![file.display().to_string(), "--sentinel".to_owned()]
        });
        let down = crate::support::server::free_port();
        let watched = Watched { redis: vec![master, replica], sentinel, down, tls };
        let known = patient(SOON, || {
            let mut ask = redis::cmd("SENTINEL");
            let asked =
                watched.sentinel().and_then(|mut sentinel| ask.arg("replicas").arg("main").query(&mut sentinel));
            asked.is_ok_and(|replicas: Vec<redis::Value>| replicas.len() == 1) && watched.in_step()
        });
        assert!(known, "the Sentinel knows no replica");
        watched
    }

    fn url(&self) -> String {
        let (scheme, port) = (if self.tls.is_some() { "rediss" } else { "redis" }, self.sentinel.port);
        format!("{scheme}+sentinel://:{PASSWORD}@127.0.0.1:{},127.0.0.1:{port}/main", self.down)
    }

    // A failover cuts connections at any moment, so every request may fail and is repeated.

    fn sentinel(&self) -> redis::RedisResult<redis::Connection> {
        self.client(self.sentinel.port, SENTINELS_OWN).get_connection()
    }

    fn client(&self, port: u16, password: &str) -> redis::Client {
        let Some(own) = &self.tls else {
            return redis::Client::open(format!("redis://:{password}@127.0.0.1:{port}")).expect("a client");
        };
        let root_cert = Some(std::fs::read(own.ca_file()).expect("a certificate"));
        let certificates = redis::TlsCertificates { client_tls: None, root_cert };
        let client = redis::Client::build_with_tls(format!("rediss://:{password}@127.0.0.1:{port}"), certificates);
        client.expect("a client")
    }

    /// The server that the Sentinel names.
    fn master(&self) -> Option<usize> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg("main");
        let (_, port): (String, u16) = ask.query(&mut self.sentinel().ok()?).ok()?;
        self.redis.iter().position(|server| server.port == port)
    }

    /// The reply of one of the two; `None` after an error.
    fn ask<T: redis::FromRedisValue>(&self, index: usize, command: &redis::Cmd) -> Option<T> {
        command.query(&mut self.client(self.redis[index].port, PASSWORD).get_connection().ok()?).ok()
    }

    /// Whether the replica has all writes of the master.
    fn in_step(&self) -> bool {
        let wait = redis::cmd("WAIT").arg(1).arg(1000).to_owned();
        self.master().and_then(|master| self.ask(master, &wait)) == Some(1)
    }

    /// The length of a stream on the master.
    fn length(&self, stream: &str) -> Option<u32> {
        self.ask(self.master()?, redis::cmd("XLEN").arg(stream))
    }

    /// Waits until the Sentinel names this server and it is the only master; writes to another one would be lost.
    fn until_master(&self, index: usize) {
        let moved =
            patient(FAILOVER, || self.master() == Some(index) && self.is_master(index) && !self.is_master(1 - index));
        assert!(moved, "no failover");
    }

    /// Sets after how many ms without a reply the Sentinel takes the master for dead.
    fn down_after(&self, ms: u32) {
        let set = redis::cmd("SENTINEL").arg("set").arg("main").arg("down-after-milliseconds").arg(ms).to_owned();
        let is_set = || self.sentinel().and_then(|mut sentinel| set.query::<()>(&mut sentinel)).is_ok();
        assert!(patient(SOON, is_set), "the Sentinel takes no such setting");
    }

    fn is_master(&self, index: usize) -> bool {
        let role: Option<Vec<redis::Value>> = self.ask(index, &redis::cmd("ROLE"));
        role.is_some_and(|role| matches!(role.first(), Some(redis::Value::BulkString(role)) if role == b"master"))
    }
}

/// Timeline and sink behind one Sentinel; the first one in the URL is down. The master is killed, then the old one
/// comes back and becomes the master again while connections to the other one exist.
fn follow_a_failover(tls: Option<Certificates>) {
    let mut watched = Watched::start(tls);
    let trusted = watched.tls.as_ref().map_or_else(String::new, |own| own.ca_file().display().to_string());
    let config = format!(
        "[tls]\nca_file = \"{trusted}\"\n[redis]\nurl = \"{0}\"\nsentinel_password = \"{SENTINELS_OWN}\"\n[claim]\nlease = \"5s\"\n\
         [sinks.default]\nurl = \"{0}\"\nsentinel_password = \"{SENTINELS_OWN}\"\nanswer_timeout = \"2s\"\n",
        watched.url()
    );
    let mut instance = Punctual::start(&config);
    put(&instance.api(), "default", "out", 0..50);
    until_length(&watched, &instance, 50);
    assert!(patient(SOON, || watched.in_step()));

    watched.redis[0].kill();
    watched.down_after(DEAD);
    watched.until_master(1);
    watched.down_after(SLOW);
    until_ready(&mut instance);
    put(&instance.api(), "default", "out", 50..100);
    until_length(&watched, &instance, 100);

    watched.redis[0].restart();
    assert!(patient(FAILOVER, || watched.in_step()), "the old master is no replica");
    let begin = redis::cmd("SENTINEL").arg("failover").arg("main").to_owned();
    let failover = || watched.sentinel().and_then(|mut sentinel| begin.query::<()>(&mut sentinel)).is_ok();
    assert!(patient(SOON, failover), "no failover is begun");
    watched.until_master(0);
    until_ready(&mut instance);
    put(&instance.api(), "default", "out", 100..150);
    until_length(&watched, &instance, 150);

    let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").json();
    assert_eq!(stats["dead"], 0, "{stats}");
    let log = instance.log();
    assert!(!log.contains(PASSWORD) && !log.contains(SENTINELS_OWN), "{log}");
    let over = if trusted.is_empty() { "without TLS" } else { "over TLS" };
    say(&format!("connections, Sentinel {over}: 150 tasks across a killed master and a failover back, none dead"));
}

/// Takes more than five seconds: Sentinels need some seconds to find the master dead and to name another one.
#[test]
fn timeline_and_sink_follow_a_failover() {
    if have("redis-server") {
        follow_a_failover(None);
    }
}

/// Takes more than five seconds: Sentinels need some seconds to find the master dead and to name another one.
#[test]
fn timeline_and_sink_follow_a_failover_over_tls() {
    if have("redis-server") {
        follow_a_failover(Some(Certificates::new()));
    }
}

/// Waits until puts are answered.
fn until_ready(instance: &mut Punctual) {
    let probe = json!({"schedule": {"in": "1h"}, "message": {"destination": "out"}}).to_string();
    instance.until("taking tasks in", |instance| {
        instance.api().put("probe", &probe).is_ok_and(|answer| matches!(answer.status, 200 | 201))
    });
}

fn until_length(watched: &Watched, instance: &Punctual, expected: u32) {
    let there = patient(FAILOVER, || watched.length("out").is_some_and(|length| length >= expected));
    assert!(there, "{:?} of {expected}\n{}", watched.length("out"), instance.log());
}

#[test]
fn a_sentinel_that_does_not_know_the_master_or_password_is_reported() {
    if !have("redis-server") {
        return;
    }
    let watched = Watched::start(None);
    let wrong = [
        (watched.url().replace("/main", "/mein"), SENTINELS_OWN, "it knows no master `mein`"),
        (watched.url(), "hunter5", "user or password are wrong"),
        (watched.url().replace(PASSWORD, "hunter5"), SENTINELS_OWN, "user or password are wrong"),
    ];
    for (url, own, detail) in wrong {
        let config = format!(
            "[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"{url}\"\nsentinel_password = \"{own}\"\nanswer_timeout = \"2s\"\n"
        );
        let mut instance = Punctual::start(&config);
        put(&instance.api(), "default", "out", 0..1);
        let said = troubles(&mut instance, &[("default", detail)]);
        assert!(said.contains("Connection refused"), "{said}");
        let text = said + &instance.log();
        assert!(!["hunter5", SENTINELS_OWN, PASSWORD].iter().any(|secret| text.contains(secret)), "{text}");
    }
}
