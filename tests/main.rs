//! Tests of several modules together, in one binary. Contents:
//!
//! - `api`         the HTTP API over the in-memory timeline and Redis: answers, bad input, the batch, limits, the
//!   OpenAPI document
//! - `attacks`     attacks by one caller and their effect on others: `make attack` runs their whole form
//! - `cli`         the program: exit codes, output, signals, the demo, the commands of README and docs
//! - `cluster`     a timeline on three masters of a Redis Cluster: slots move, masters die, hang and are replaced
//! - `compose`     docker-compose.yml, Dockerfile and README agree; read, not started
//! - `connections` TLS, passwords and Sentinels, from the configuration to the servers and the log
//! - `consumers`   the example consumers, each run against a broker that has every message twice
//! - `crash_points` an instance is killed at every step between claim and settle, for each sink (feature
//!   `fault-points`)
//! - `crontabs`    three crontabs around clock changes, against a walk over the minutes; the page on cron
//! - `destinations` messages that a broker never accepts end dead with the broker's reason, and delay no others
//! - `doors`       tasks from messages: rules and faults in memory, kills and poison on each broker
//! - `embedded`    the example that embeds punctual, run as it is
//! - `engine`      the engine over the in-memory timeline and sinks
//! - `fuzz`        readers of outside input, against any input: a corpus and mutations of it; `make fuzz` runs for
//!   minutes
//! - `glossary`    each thing has one name: words that no file has any more
//! - `jetstream`   JetStream: namespaces, step-downs, rejected subjects and payloads
//! - `lua`         the scripts on a real Redis: whole state before and after, declared keys, broken connections
//! - `memory`      large payloads in bounded memory
//! - `metrics`     docs/metrics.md, the dashboard and the alerts name the metrics of `/metrics`
//! - `modules`     which module of `src/` and of `lab/src/` may use which
//! - `mutants`     every law has a patch that breaks it, and each still applies; `make mutants` runs them
//! - `outage`      every server around an instance fails, and all promised messages are still published
//! - `recipes`     the recipes in Python and Node, Celery, and a generated client: `make test-examples` runs them
//! - `sinks`       one suite for every sink: its capabilities, and its behaviour in an outage
//! - `steering`    cancels, pauses, triggers and bulk requests, beside publishes of two instances and after a restart of Redis
//! - `support`     starts and stops servers and `punctual serve` processes
//! - `three_brokers` three lanes on three brokers, one of which is shut down
//! - `timeline`    the laws of a timeline, run against every implementation; random runs side by side; the model check
//! - `trouble`     Redis in trouble: all its states, durability, clocks that jump, holders that hang

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod api;
mod attacks;
mod cli;
mod cluster;
mod compose;
mod connections;
mod consumers;
#[cfg(feature = "fault-points")]
mod crash_points;
mod crontabs;
mod destinations;
mod doors;
mod embedded;
mod engine;
mod fuzz;
mod glossary;
mod jetstream;
mod lua;
mod memory;
mod metrics;
mod modules;
mod mutants;
mod outage;
mod recipes;
mod sinks;
mod steering;
mod support;
mod three_brokers;
mod timeline;
mod trouble;

#[test]
fn the_harness_starts_and_ends_servers() {
    if !support::have("redis-server") || !support::have("nats-server") {
        return;
    }
    let redis = support::redis::RedisServer::start_cluster();
    let nats = support::nats::NatsServer::start("");
    let answer: String = ::redis::cmd("PING").query(&mut redis.connect()).expect("an answer");
    assert_eq!(answer, "PONG");
    assert!(nats.url().starts_with("nats://"));
}

/// A plain producer writes bytes that are not valid text. They can be read back, also after a `kill -9`.
#[test]
fn the_harness_starts_kafka_and_reads_its_records_back() {
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    if !support::kafka::have_kafka() {
        return;
    }
    let mut kafka = support::kafka::KafkaServer::start();
    kafka.create_stamped_topic("bytes", 1);
    let payload: Vec<u8> = (0..=255).cycle().take(600_000).collect();
    let mut config = rdkafka::ClientConfig::new();
    let producer: BaseProducer = config.set("bootstrap.servers", kafka.address()).create().expect("a producer");
    let headers = OwnedHeaders::new().insert(Header { key: "a", value: Some("ä, b=c") });
    for payload in [&payload[..], b""] {
        let record = BaseRecord::to("bytes").key(&[0_u8, 255][..]).payload(payload).headers(headers.clone());
        producer.send(record).expect("a queue");
        producer.flush(std::time::Duration::from_secs(10)).expect("it is sent");
    }
    kafka.server.kill();
    kafka.server.restart();
    let records = kafka.records("bytes");
    assert_eq!(records.len(), 2);
    assert!(records[0].payload == payload && records[1].payload.is_empty(), "other bytes");
    let record = &records[0];
    assert_eq!((record.header("a"), record.key.as_deref(), record.partition), (Some("ä, b=c"), Some(&[0, 255][..]), 0));
    assert!(record.stamp > 1_700_000_000_000, "{}", record.stamp);
}

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[test]
fn a_rabbitmq_of_the_harness_keeps_confirmed_messages_after_a_kill() {
    if !support::have("rabbitmq-server") {
        return;
    }
    let mut rabbit = support::rabbitmq::RabbitServer::start("", &["one"], &[("user", "pass")]);
    rabbit.declare_queues("one", &["a"]);
    rabbit.with_channel("one", async |channel: lapin::Channel| {
        channel.confirm_select(Default::default()).await.expect("confirms");
        for number in 0..100_u8 {
            let persistent = lapin::BasicProperties::default().with_delivery_mode(2);
            let publishing =
                channel.basic_publish("".into(), "a".into(), Default::default(), &[number], persistent).await;
            // Their confirmations are awaited together.
            std::mem::drop(publishing.expect("a channel"));
        }
        channel.wait_for_confirms().await.expect("all are confirmed");
    });
    rabbit.server.kill();
    rabbit.server.restart();
    // A broker that blocks publishes is read nevertheless, and a second read finds the same messages.
    rabbit.control(&["set_vm_memory_high_watermark", "0.1"]);
    for _ in 0..2 {
        let numbers: Vec<u8> = rabbit.queue("one", "a").iter().map(|delivery| delivery.data[0]).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
    }
}
