//! `punctual check` with real servers: correct, wrong address, wrong password, wrong authority, each with its own text
//! and exit code; it leaves nothing behind.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Run, punctual, read};
use crate::support::certificates::Certificates;
use crate::support::kafka::{KafkaServer, More, have_kafka};
use crate::support::nats::{NatsClient, NatsServer};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::{RedisServer, SecureRedis};
use crate::support::server::free_port;
use crate::support::{have, patient};

const PASSWORD: &str = "hunter2";
const WRONG: &str = "hunter3";

/// The output for a configuration, as text and as JSON; both have the same exit code and contain no secret.
fn check(config: &str) -> (Run, Value) {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(file.path(), config).unwrap();
    let path = file.path().to_str().unwrap();
    let text = read(punctual(&["check", "--config", path]).output().unwrap());
    let json = read(punctual(&["check", "--json", "--config", path]).output().unwrap());
    assert_eq!(text.code, json.code, "{}{}\n{}", text.out, text.err, json.out);
    for secret in [PASSWORD, WRONG] {
        assert!(!format!("{}{}{}", text.out, text.err, json.out).contains(secret), "{}{}", text.out, text.err);
    }
    let found: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(found["exit_code"], text.code.unwrap());
    (text, found)
}

/// Redis 7 gives a new user no channel. `serve` would start, and answer 503 for ever.
#[test]
fn a_check_names_the_permissions_that_the_redis_user_lacks() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let keys = ["~punctual:{default}:*", "~punctual:{default:[0-9]*}:*"];
    let cases: [(&[&str], i32, &str); 9] = [
        (&["&*", "+@all"], 0, ""),
        (&["resetchannels", "+@all"], 1, "cannot subscribe to its channels"),
        (&["&*", "+@all", "-subscribe"], 1, "'subscribe'"),
        (&["&*", "+@all", "-evalsha"], 1, "'evalsha'"),
        (&["&*", "+@all", "-script|load"], 1, "script|load"),
        (&["&*", "+@all", "-ping"], 1, "'ping'"),
        (&["&*", "+@all", "-hset"], 1, "the right to HSET;"),
        (&["&*", "+@all", "-zadd", "-hincrby"], 1, "the right to HINCRBY, ZADD;"),
        (&["&*", "+@all", "-publish"], 1, "the right to PUBLISH;"),
    ];
    for (rights, code, words) in cases {
        let mut user = ::redis::cmd("ACL");
        user.arg("SETUSER").arg("weak").arg("reset").arg("on").arg(format!(">{PASSWORD}")).arg(&keys).arg(rights);
        user.exec(&mut redis.connect()).unwrap();
        let port = redis.server.port;
        let (run, found) = check(&format!(
            "[redis]\nurl = \"redis://weak:{PASSWORD}@127.0.0.1:{port}\"\n[sinks.default]\nurl = \"memory:\"\n"
        ));
        assert_eq!(run.code, Some(code), "{rights:?}: {}", run.out);
        assert!(run.out.contains(words), "{rights:?}: {}", run.out);
        let timeline = found["checks"].as_array().unwrap().iter().find(|check| check["check"] == "timeline").unwrap();
        assert_eq!(timeline["result"], if code == 0 { "ok" } else { "failed" }, "{found}");
    }
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut redis.connect()).unwrap();
    assert_eq!(keys, 0, "a check leaves nothing behind");
}

/// A failure: its kind and exit code, and how it is caused.
const CASES: [(&str, i32, &str, bool, bool); 4] = [
    ("ok", 0, PASSWORD, true, true),
    ("unreachable", 3, PASSWORD, false, true),
    ("log_in", 4, WRONG, true, true),
    ("untrusted", 5, PASSWORD, true, false),
];

/// Checks a server in each of these ways; `config` gets the password and the port of a server with TLS.
fn each_way(of: &str, port: u16, right: &Path, config: impl Fn(&str, u16) -> String) {
    let other = Certificates::new();
    let trusted = |right_one: bool| if right_one { right.to_owned() } else { other.ca_file() };
    let reported = CASES.map(|(kind, code, password, there, trust)| {
        let port = if there { port } else { free_port() };
        let tls = format!(
            "[tls]\nca_file = \"{}\"\n[claim]\nlease = \"20s\"\n[sinks]\nanswer_timeout = \"10s\"\n",
            trusted(trust).display()
        );
        let (run, found) = check(&format!("{tls}{}", config(password, port)));
        let shown = format!("{of}, {kind}:\n{}{}", run.out, run.err);
        assert_eq!(run.code, Some(code), "{shown}");
        let failed: Vec<&Value> =
            found["checks"].as_array().unwrap().iter().filter(|c| c["result"] == "failed").collect();
        if kind == "ok" {
            assert!(failed.is_empty() && run.err.is_empty(), "{shown}");
        } else {
            assert!(failed.len() == 1 && failed[0]["kind"] == kind, "{shown}{found}");
            assert!(run.err.starts_with("error: 1 of ") && run.out.contains("hint: "), "{shown}");
        }
        if kind == "untrusted" {
            assert!(run.out.contains("`tls.ca_file`"), "{shown}");
        }
        let detail = |found: &Value| found["fault"]["detail"].as_str().unwrap_or_default().to_owned();
        failed.first().map(|failed| detail(failed)).unwrap_or_default()
    });
    let beginnings = ["", "it cannot be reached: ", "the login was refused: ", "its certificate is not trusted: "];
    for (reported, beginning) in reported.iter().zip(beginnings) {
        assert!(reported.starts_with(beginning), "{of}: `{reported}`");
    }
}

#[test]
fn a_check_of_the_timeline_writes_nothing() {
    if !have("redis-server") {
        return;
    }
    let certificates = Arc::new(Certificates::new());
    let redis = SecureRedis::start(&certificates, PASSWORD);
    each_way("timeline", redis.server.port, &certificates.ca_file(), |password, port| {
        let url = format!("rediss://punctual:{password}@127.0.0.1:{port}");
        format!("[redis]\nurl = \"{url}\"\n[sinks.a]\nurl = \"memory:\"\n")
    });
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut redis.connect()).unwrap();
    assert_eq!(keys, 0, "a check writes nothing");
}

#[test]
fn a_check_of_redis_streams_writes_nothing() {
    if !have("redis-server") {
        return;
    }
    let certificates = Arc::new(Certificates::new());
    let redis = SecureRedis::start(&certificates, PASSWORD);
    each_way("redis", redis.server.port, &certificates.ca_file(), |password, port| {
        format!("[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"rediss://punctual:{password}@127.0.0.1:{port}\"\n")
    });
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut redis.connect()).unwrap();
    assert_eq!(keys, 0, "a check writes nothing");
}

#[test]
fn a_check_of_nats_publishes_nothing() {
    if !have("nats-server") {
        return;
    }
    let certificates = Certificates::new();
    let nats = NatsServer::start(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\nallow_non_tls: true\n\
         authorization {{ user: punctual, password: \"{PASSWORD}\" }}",
        certificates.certificate_file().display(),
        certificates.key_file().display()
    ));
    let mut client = NatsClient::connect(nats.server.port, Some(("punctual", PASSWORD)));
    client.create_stream("ALL", &["a", "a.>"], &json!({}));
    each_way("nats", nats.server.port, &certificates.ca_file(), |password, port| {
        let url = format!("tls://punctual:{password}@127.0.0.1:{port}");
        format!("[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"{url}\"\n[lanes.default]\ndestination = \"a\"\n")
    });
    assert_eq!(client.stream_length("ALL"), 0, "a check publishes nothing");
}

/// A missing destination of a lane is a warning, because some brokers make it; a missing one of `--destination` is a
/// failure.
#[test]
fn a_check_looks_for_the_destinations_of_lanes_and_for_a_named_one() {
    if !have("nats-server") {
        return;
    }
    let nats = NatsServer::start("");
    let mut client = NatsClient::connect(nats.server.port, None);
    client.create_stream("ALL", &["orders.>"], &json!({}));
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let port = nats.server.port;
    std::fs::write(
        file.path(),
        format!(
            "[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"nats://127.0.0.1:{port}\"\n[lanes.default]\n\
             destination = \"orders.cancel\"\ndead_destination = \"nobody\"\n"
        ),
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let plain = read(punctual(&["check", "--config", path]).output().unwrap());
    assert_eq!(plain.code, Some(0), "{}{}", plain.out, plain.err);
    assert!(plain.out.contains("`orders.cancel` takes messages"), "{}", plain.out);
    assert!(
        plain.out.contains("messages for `nobody` would be refused: no stream takes this subject"),
        "{}",
        plain.out
    );
    for (arguments, code, text) in [
        (&["--destination", "orders.x"][..], 0, "`orders.x` takes messages"),
        (&["--destination", "nobody"], 1, "messages would be refused: `nobody`: no stream takes this subject"),
        (&["--destination", "a b"], 1, "`a b` is no subject that can be published to"),
        (
            &["--destination", "orders.x", "--lane", "mail"],
            2,
            "the lane `mail` is not configured; configured are `default`",
        ),
    ] {
        let run = read(punctual(&[&["check", "--config", path], arguments].concat()).output().unwrap());
        assert_eq!(run.code, Some(code), "{arguments:?}: {}{}", run.out, run.err);
        assert!(run.out.contains(text), "{arguments:?}: {}", run.out);
    }
    assert_eq!(client.stream_length("ALL"), 0, "a check publishes nothing");
}

/// Takes more than five seconds because RabbitMQ needs as long to start.
#[test]
fn a_check_of_rabbitmq_publishes_nothing() {
    if !have("rabbitmq-server") {
        return;
    }
    let (certificates, port) = (Certificates::new(), free_port());
    let config = format!(
        "listeners.ssl.default = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_none\n",
        certificates.ca_file().display(),
        certificates.certificate_file().display(),
        certificates.key_file().display()
    );
    let rabbit = RabbitServer::start(&config, &["own"], &[("punctual", PASSWORD)]);
    rabbit.declare_queues("own", &["a"]);
    each_way("rabbitmq", port, &certificates.ca_file(), |password, port| {
        let url = format!("amqps://punctual:{password}@127.0.0.1:{port}/own");
        format!("[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"{url}\"\n[lanes.default]\ndestination = \"a\"\n")
    });
    assert!(rabbit.queue("own", "a").is_empty(), "a check publishes nothing");
}

/// Takes more than five seconds because Kafka needs as long to start.
#[test]
fn a_check_of_kafka_publishes_nothing() {
    if !have_kafka() {
        return;
    }
    let certificates = Certificates::new();
    let properties = format!(
        "listener.name.secured.sasl.enabled.mechanisms=PLAIN\n\
         listener.name.secured.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_sink=\"{PASSWORD}\";\n\
         listener.name.secured.ssl.keystore.type=PEM\nlistener.name.secured.ssl.keystore.location={}\n",
        certificates.key_and_certificate_file().display()
    );
    let more = More { second_listener: Some("SASL_SSL"), properties: &properties, scram_users: &[] };
    let kafka = KafkaServer::start_with(&more);
    kafka.create_topic("a", 1, &[]);
    each_way("kafka", kafka.second_port, &certificates.ca_file(), |password, port| {
        let url = format!("kafka+ssl://sink:{password}@localhost:{port}");
        format!("[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"{url}\"\n[lanes.default]\ndestination = \"a\"\n")
    });
    assert!(kafka.records("a").is_empty(), "a check publishes nothing");
}

#[test]
fn a_check_reports_every_failure_and_exits_with_the_code_of_the_first() {
    if !have("nats-server") {
        return;
    }
    let nats = NatsServer::start(&format!("authorization {{ user: punctual, password: \"{PASSWORD}\" }}"));
    let (redis, port) = (free_port(), nats.server.port);
    let config = |timeline: &str| {
        format!(
            "[redis]\nurl = \"{timeline}\"\n[sinks.a]\nurl = \"nats://punctual:{WRONG}@127.0.0.1:{port}\"\n\
             [sinks.b]\nurl = \"nats://punctual:{PASSWORD}@127.0.0.1:{port}\"\n[sinks.c]\nurl = \"amqp://127.0.0.1:{redis}\"\n\
             [lanes.default]\nsink = \"a\"\n[lanes.b]\nsink = \"b\"\n"
        )
    };
    let (run, found) = check(&config(&format!("redis://127.0.0.1:{redis}")));
    assert_eq!(run.code, Some(3), "{}", run.out);
    let states = run.out.lines().filter(|line| !line.starts_with(' ')).map(|line| {
        let mut detail = line.split_whitespace();
        (detail.next().unwrap(), detail.next().unwrap())
    });
    let expected = [
        ("ok", "configuration"),
        ("warning", "configuration"),
        ("failed", "timeline"),
        ("failed", "sink"),
        ("ok", "sink"),
        ("failed", "sink"),
    ];
    assert_eq!(states.collect::<Vec<_>>(), expected, "{}", run.out);
    assert!(run.err.starts_with("error: 3 of 5 checks failed"), "{}", run.err);
    assert_eq!(found["checks"][4]["name"], "c");
    assert!(run.out.contains("`sinks.a.url` (") && run.out.contains(".toml:4): the login was refused"), "{}", run.out);
    // Without the timeline's failure, the exit code of the next one.
    assert_eq!(check(&config("memory:")).0.code, Some(4));
}

#[test]
fn offline_only_the_configuration_is_looked_at() {
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let run =
        read(punctual(&["check", "--offline", "--redis", &nowhere, "--sink", "nats://127.0.0.1:1"]).output().unwrap());
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert!(run.out.starts_with("ok       configuration") && run.out.lines().count() == 1, "{}", run.out);
    let (run, found) = check("[claim]\nleese = \"1s\"\nbatch = 5000\n[sinks.a]\nurl = \"stdout:\"\n");
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    let faults = found["checks"][0]["faults"].as_array().unwrap();
    assert!(faults.len() == 2 && run.err.contains("did you mean `claim.lease`?"), "{}", run.err);
}

/// A Redis that may lose tasks, and the warnings.
fn careless() -> [(&'static [&'static str], &'static [&'static str]); 2] {
    [
        (
            &["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb", "--appendonly", "yes"],
            &["Redis drops tasks when its 104857600 bytes are full: `maxmemory-policy` is `allkeys-lru`"],
        ),
        (&[], &["`appendonly` is off, and it has made no snapshot since its start"]),
    ]
}

#[test]
fn a_check_warns_of_a_redis_that_evicts_or_does_not_persist() {
    if !have("redis-server") {
        return;
    }
    for (arguments, expected) in careless() {
        let redis = RedisServer::start(arguments);
        let config = format!("[redis]\nurl = \"{}\"\n[sinks.a]\nurl = \"memory:\"\n", redis.url());
        let (run, found) = check(&config);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{}", run.out);
        let warnings: Vec<_> = run.out.lines().filter(|line| line.starts_with("warning  timeline")).collect();
        assert!(warnings.len() == expected.len() && run.out.contains("hint: "), "{}", run.out);
        assert!(warnings.iter().zip(expected).all(|(line, detail)| line.contains(detail)), "{}", run.out);
        assert_eq!(found["checks"][1]["warnings"].as_array().unwrap().len(), expected.len());
        // An instance logs the same, once.
        let instance = Punctual::start(&config);
        let reported = || instance.log_lines(&[" WARN ", expected[0]]).len();
        assert!(patient(std::time::Duration::from_secs(10), || reported() > 0), "{}", instance.log());
        assert_eq!(reported(), 1, "{}", instance.log());
    }
    let well = RedisServer::start(&["--appendonly", "yes"]);
    let config = format!("[redis]\nurl = \"{}\"\n[sinks.a]\nurl = \"memory:\"\n", well.url());
    let (run, _) = check(&config);
    assert!(run.code == Some(0) && !run.out.contains("warning"), "{}", run.out);
    // Once an instance has started, its layout is stored, and another number of shards is refused.
    drop(Punctual::start(&config));
    let (run, _) = check(&config);
    assert!(run.out.contains("a timeline of 4 shards under the namespace `default`"), "{}", run.out);
    let (run, _) = check(&format!("{config}[timeline]\nshards = 8\n"));
    assert!(run.code == Some(2) && run.out.contains("`timeline.shards` ("), "{}", run.out);
    assert!(run.out.contains("it cannot be used: this Redis has a timeline of 4 shards"), "{}", run.out);
}

#[test]
fn a_check_reports_a_replica_as_neither_an_address_nor_a_password_failure() {
    if !have("redis-server") {
        return;
    }
    let master = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master.server.port.to_string()]);
    let (run, found) = check(&format!("[redis]\nurl = \"{}\"\n[sinks.a]\nurl = \"memory:\"\n", replica.url()));
    assert_eq!((run.code, &found["checks"][1]["kind"]), (Some(1), &json!("other")), "{}", run.out);
    assert!(run.out.contains("it refuses calls: READONLY") || run.out.contains("MASTERDOWN"), "{}", run.out);
}

#[test]
fn a_check_reports_a_full_redis_and_writes_nothing() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let config = format!("[redis]\nurl = \"{}\"\n[sinks.a]\nurl = \"memory:\"\n", redis.url());
    assert_eq!(check(&config).0.code, Some(0));
    redis.limit_memory(-1024);
    let (run, found) = check(&config);
    assert_eq!((run.code, &found["checks"][1]["kind"]), (Some(1), &json!("other")), "{}", run.out);
    assert!(run.out.contains("it refuses calls: OOM "), "{}", run.out);
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut redis.connect()).unwrap();
    assert_eq!(keys, 0, "a check writes nothing");
}

#[test]
fn a_check_reports_an_address_of_another_machine_but_not_a_port_in_use() {
    // An address that is reserved for documentation.
    let listen = |address: &str| {
        let token = format!("[tokens.a]\nsha256 = \"{}\"\nscope = \"read\"\n", "1".repeat(64));
        format!("[http]\nlisten = \"{address}\"\n[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"stdout:\"\n{token}")
    };
    let (run, found) = check(&listen("203.0.113.1:7171"));
    assert_eq!((run.code, &found["checks"][0]["kind"]), (Some(2), &json!("configuration")), "{}", run.out);
    assert!(run.out.contains(".toml:2): it cannot be used: cannot listen on `203.0.113.1`: "), "{}", run.out);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(check(&listen(&taken.local_addr().unwrap().to_string())).0.code, Some(0));
}

/// Another kind of server answers: reported in one line, and as what it is.
#[test]
fn a_check_names_a_server_of_another_kind() {
    if !have("redis-server") {
        return;
    }
    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = web.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in web.incoming().map_while(Result::ok) {
            drop(std::io::Write::write_all(&mut &stream, b"HTTP/1.1 400 Bad Request\r\n\r\n"));
            // Until the other side has read it.
            drop(std::io::copy(&mut &stream, &mut std::io::sink()));
        }
    });
    let config = |url: &str| format!("[redis]\nurl = \"{url}\"\n[sinks.a]\nurl = \"memory:\"\n");
    let (run, _) = check(&config(&format!("redis://127.0.0.1:{port}")));
    assert!(run.out.contains("it cannot be reached: the server there is no Redis"), "{}", run.out);
    assert_eq!((run.code, run.out.lines().count()), (Some(3), 4), "{}", run.out);
    let redis = RedisServer::start(&[]);
    let (run, _) = check(&config(&format!("redis+sentinel://127.0.0.1:{}/mymaster", redis.server.port)));
    assert!(run.out.contains("it cannot be reached: ") && run.out.contains(" is no Sentinel: "), "{}", run.out);
    assert_eq!(run.code, Some(3), "{}", run.out);
}
