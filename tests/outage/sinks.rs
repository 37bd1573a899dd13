//! A sink is killed, or stands still, while another sink serves another lane: nothing is lost, and the other lane does
//! not notice.

use std::time::Duration;

use super::{DURABLE, PUBLISH_LIMIT, SOON, check, config, stored_keys, until_logged};
use crate::support::clock::ServerClock;
use crate::support::consumer::Consumer;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::load::{Load, put_recurring};
use crate::support::nats::NatsServer;
use crate::support::published::{Published, read_arrivals, read_stream, read_subject, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::{have, patient};

/// Calls `kill` and later `restart` for the sink of lane `default`, while another sink serves lane `other`. `published`
/// gets the expected number of keys and reads the messages of the first sink.
fn sink_killed(
    name: &str,
    sink: &str,
    kill: impl FnOnce(),
    restart: impl FnOnce(),
    published: impl FnOnce(usize) -> Vec<Published>,
) {
    let (timeline, other_sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let more = format!(
        "[sinks.other]\nurl = \"{}\"\nanswer_timeout = \"2s\"\n[lanes.default]\nsink = \"default\"\n[lanes.other]\nsink = \"other\"\n",
        other_sink.url()
    );
    // A broker that has just restarted may answer slowly.
    let config = config(&timeline, sink).replace("\"5s\"", "\"10s\"").replace("\"2s\"", "\"5s\"");
    let mut instance = Punctual::start(&(config + &more));
    let mut left = stored_keys(&timeline, &["default", "other"]);
    let clock = ServerClock::new(left.now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    let other = Load::new(vec![instance.api()], &clock, "other", "out");
    put_recurring(&instance.api(), &load, 20, 12);
    put_recurring(&instance.api(), &other, 20, 5);
    std::thread::scope(|scope| {
        let (_ends, _other_ends) = (load.guard(), other.guard());
        scope.spawn(|| load.run());
        let others = scope.spawn(|| other.run());
        std::thread::sleep(Duration::from_secs(3));
        kill();
        instance.until("aware of its unavailable sink", |instance| {
            let ready = instance.api().ready().expect("an answer");
            assert_eq!(ready.status, 200, "an unavailable sink keeps nobody from putting tasks: {ready:?}");
            ready.json()["unavailable_sinks"]["default"].is_string()
        });
        until_logged(&mut instance, &[" WARN ", "the sink is unavailable", "sink=\"default\""]);
        std::thread::sleep(Duration::from_secs(2));
        // The other lane is not affected: all its messages are published before the sink is back.
        other.end();
        others.join().expect("a load without fault");
        let all = patient(SOON, || read_stream(other_sink.server.port, "out").len() >= other.ledger().expected());
        assert!(all, "the other lane waits for a sink that is not its own\n{}", instance.log());
        restart();
        instance.until("aware of its sink", |instance| {
            instance.api().ready().is_some_and(|ready| ready.json()["unavailable_sinks"]["default"].is_null())
        });
        std::thread::sleep(Duration::from_secs(2));
    });
    left.until_nothing_is_left(PUBLISH_LIMIT);
    assert!(instance.threads("lapin-io-loop") <= 1, "a connection that was given up has left its thread");
    check(&format!("{name} killed, the other lane"), &[], &other, stored_keys(&timeline, &["other"]), || {
        read_stream(other_sink.server.port, "out")
    });
    let expected = load.ledger().expected();
    check(&format!("{name} killed"), &[&instance], &load, left, || published(expected));
}

/// Takes more than five seconds: messages are published before and after the kill, and the breaker probes between.
#[test]
fn a_killed_redis_streams_sink_loses_no_message() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let sink = std::cell::RefCell::new(RedisServer::start(DURABLE));
    let (url, port) = (sink.borrow().url(), sink.borrow().server.port);
    let (kill, restart) = (|| sink.borrow_mut().server.kill(), || sink.borrow_mut().server.restart());
    sink_killed("Redis Streams", &url, kill, restart, |_| read_stream(port, "out"));
}

/// Takes more than five seconds: messages are published before and after the kill, and the breaker probes between.
#[test]
fn a_killed_nats_server_loses_no_message() {
    if !have("redis-server") || !have("redis-cli") || !have("nats-server") {
        return;
    }
    let nats = std::cell::RefCell::new(NatsServer::start(""));
    nats.borrow().connect().create_stream("OUT", &["out"], &serde_json::json!({}));
    let url = nats.borrow().url();
    let (kill, restart) = (|| nats.borrow_mut().server.kill(), || nats.borrow_mut().server.restart());
    sink_killed("NATS", &url, kill, restart, |_| read_subject(&nats.borrow(), "OUT"));
}

/// Takes more than five seconds: messages are published before and after the kill, and the breaker probes between.
#[test]
fn a_killed_kafka_loses_no_message() {
    if !have("redis-server") || !have("redis-cli") || !have_kafka() {
        return;
    }
    let kafka = std::cell::RefCell::new(KafkaServer::start());
    kafka.borrow().create_stamped_topic("out", 2);
    let url = kafka.borrow().url();
    let (kill, restart) = (|| kafka.borrow_mut().server.kill(), || kafka.borrow_mut().server.restart());
    sink_killed("Kafka", &url, kill, restart, |_| read_topic(&kafka.borrow(), "out"));
}

/// The consumer loses its connection too, and gets its unacknowledged messages again.
#[test]
fn a_killed_rabbitmq_loses_no_message() {
    if !have("redis-server") || !have("redis-cli") || !have("rabbitmq-server") {
        return;
    }
    let rabbit = std::cell::RefCell::new(RabbitServer::start("", &[], &[]));
    rabbit.borrow().declare_queues("", &["out"]);
    let arrivals = Consumer::start("consume_rabbitmq", &[&rabbit.borrow().url("%2f"), "out"]);
    let url = rabbit.borrow().url("");
    let (kill, restart) = (|| rabbit.borrow_mut().server.kill(), || rabbit.borrow_mut().server.restart());
    sink_killed("RabbitMQ", &url, kill, restart, |expected| read_arrivals(&arrivals, expected));
}

/// The server accepts nothing, and its connections stay open. The sink gives up these connections and their messages.
#[test]
fn a_stopped_rabbitmq_loses_no_message() {
    if !have("redis-server") || !have("redis-cli") || !have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["out"]);
    let arrivals = Consumer::start("consume_rabbitmq", &[&rabbit.url("%2f"), "out"]);
    let (stop, resume) = (|| rabbit.server.signal("STOP"), || rabbit.server.signal("CONT"));
    sink_killed("RabbitMQ", &rabbit.url(""), stop, resume, |expected| read_arrivals(&arrivals, expected));
}
