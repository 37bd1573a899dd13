//! The tests that need more than one room, in one binary. Table of contents:
//!
//! - `api`         the HTTP API over the in-memory timeline and Redis: answers, bad input, the batch, limits, the OpenAPI document
//! - `cli`         the program: exit codes, words, signals, the demo, the commands of README and docs
//! - `compose`     docker-compose.yml, Dockerfile and README say the same; read, not started
//! - `connections` TLS, passwords and Sentinels, from the configuration to the servers and into the log
//! - `consumers`   the examples that consume, each run against a broker that has every message twice
//! - `crash_points` an instance ends at every step between claim and settle, for each sink (feature `fault-points`)
//! - `destinations` what a broker never takes ends dead with its words, and delays nothing else
//! - `embedded`    the example that embeds punctual, run as it stands
//! - `end_to_end`  three instances, one killed, one stopped: exactly what was asked for is published
//! - `engine`      the engine over the in-memory timeline and sinks
//! - `fuzz`        readers of what others write, against any input: a corpus and what is made of it; `make fuzz` goes on for minutes
//! - `jetstream`   what JetStream is asked of the whole: namespaces, step-downs, subjects and payloads that it refuses
//! - `lua`         the scripts on a real Redis: whole state before and after, declared keys, dying connections
//! - `memory`      large payloads in bounded memory
//! - `metrics`     the table of docs/metrics.md, the board and the alerts name what `/metrics` shows
//! - `mutants`     every law has a patch that breaks it, and each still applies; `make mutants` runs them
//! - `outage`      everything around an instance fails, and what was promised is published all the same
//! - `rooms`       who may know whom in `src/`
//! - `sinks`       one suite for every sink: what it can do, and what it does in an outage
//! - `support`     starts servers and `punctual serve` processes, and ends them
//! - `three_brokers` three lanes on three brokers, one of which is shut down
//! - `timeline`    the laws of a timeline, run against every implementation; random runs side by side; the model check
//! - `trouble`     Redis in trouble: every state that it can be in, what is kept where, clocks that jump, holders that stand still

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod api;
mod cli;
mod compose;
mod connections;
mod consumers;
#[cfg(feature = "fault-points")]
mod crash_points;
mod destinations;
mod embedded;
mod end_to_end;
mod engine;
mod fuzz;
mod jetstream;
mod lua;
mod memory;
mod metrics;
mod mutants;
mod outage;
mod rooms;
mod sinks;
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

/// A producer without anything of punctual writes bytes that no text has; they come back, after a `kill -9` too.
#[test]
fn the_harness_starts_kafka_and_reads_back_what_it_holds() {
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

/// Takes more than five seconds because RabbitMQ needs as long to start.
#[test]
fn a_rabbitmq_of_the_harness_keeps_what_it_has_confirmed() {
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
            // Taken up together.
            std::mem::drop(publishing.expect("a channel"));
        }
        channel.wait_for_confirms().await.expect("all are confirmed");
    });
    rabbit.server.kill();
    rabbit.server.restart();
    rabbit.control(&["set_vm_memory_high_watermark", "0.1"]);
    for _ in 0..2 {
        let numbers: Vec<u8> = rabbit.queue("one", "a").iter().map(|delivery| delivery.data[0]).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
    }
}
