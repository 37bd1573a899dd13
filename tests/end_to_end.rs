//! Everything from HTTP to the broker: three instances on one Redis, one of which is killed while it holds a claim, and
//! one is stopped. Exactly the requested messages are published, each with its key, never early.

mod answers;
mod stories;
mod traces;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::support::consumer::Consumer;
use crate::support::http::Fleet;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::published::{Published, read_arrivals, read_stream, read_subject, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::shards::{Shards, stop_with_a_claim};
use crate::support::stage::Stage;
use crate::support::{have, say};
use stories::{KILLING, Users, WINDOW};

/// How many shards the instances use.
const SHARDS: u16 = 4;

/// Number of threads that send requests.
const THREADS: usize = 8;

/// Takes more than five seconds: an instance is killed, and what it held waits for its lease to end.
#[test]
fn redis_streams_receives_every_requested_occurrence_and_no_other() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let redis = RedisServer::start(&[]);
    run("Redis Streams", &redis, &redis.url(), "end-to-end", |_| read_stream(redis.server.port, "end-to-end"));
}

/// Takes more than five seconds: an instance is killed, and what it held waits for its lease to end.
#[test]
fn nats_jetstream_receives_every_requested_occurrence_and_no_other() {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    // A short window keeps the copies, so that they are counted and compared.
    let window = json!({"duplicate_window": 100_000_000});
    nats.connect().create_stream("END", &["end-to-end"], &window);
    run("NATS JetStream", &redis, &nats.url(), "end-to-end", |_| read_subject(&nats, "END"));
}

/// Takes more than five seconds: an instance is killed, and what it held waits for its lease to end.
#[test]
fn kafka_receives_every_requested_occurrence_and_no_other() {
    if !have("redis-server") || !have_kafka() {
        return;
    }
    let (redis, kafka) = (RedisServer::start(&[]), KafkaServer::start());
    kafka.create_stamped_topic("end-to-end", 4);
    run("Kafka", &redis, &kafka.url(), "end-to-end", |_| read_topic(&kafka, "end-to-end"));
}

/// RabbitMQ does not stamp messages; the arrival at a consumer that is attached all the time is used instead.
#[test]
fn rabbitmq_receives_every_requested_occurrence_and_no_other() {
    if !have("redis-server") || !have("rabbitmq-server") {
        return;
    }
    let (redis, rabbit) = (RedisServer::start(&[]), RabbitServer::start("", &[], &[]));
    rabbit.declare_queues("", &["end-to-end"]);
    let arrivals = Consumer::start("consume_rabbitmq", &[&rabbit.url("%2f"), "end-to-end"]);
    run("RabbitMQ", &redis, &rabbit.url(""), "end-to-end", |expected| {
        let all = read_arrivals(&arrivals, expected);
        assert_eq!(rabbit.queue("", "end-to-end").len(), 0, "the consumer has not had all of it");
        all
    });
}

/// Everything except the sink's server; `read` reads it back, with this many expected keys.
fn run(
    name: &str,
    redis: &RedisServer,
    sink: &str,
    destination: &'static str,
    read: impl FnOnce(usize) -> Vec<Published>,
) {
    // A short answer timeout would make messages dead if a broker on a busy machine answers only some of them in time.
    let config = format!(
        "[redis]\nurl = \"{}\"\n[timeline]\nshards = {SHARDS}\n[claim]\nlease = \"15s\"\n\
         [sinks.default]\nurl = \"{sink}\"\nanswer_timeout = \"5s\"\n",
        redis.url()
    );
    let mut instances: Vec<Punctual> = (0..3).map(|_| Punctual::start(&config)).collect();
    assert_eq!(instances.iter().map(Punctual::id).collect::<BTreeSet<_>>().len(), 3, "ids of their own");
    let mut shards = Shards::new(redis, SHARDS, &["default"]);
    let stage = Stage::new(shards.now());
    let from = (stage.now() + 3999) / 1000 * 1000;
    let users = Users::new(stage, Fleet::new(instances.iter().map(|instance| instance.port)), destination, from);
    users.plan();
    std::thread::scope(|scope| {
        scope.spawn(|| users.stage.play(THREADS));
        wait_until(&users, from + KILLING);
        stop_with_a_claim(&instances[0], &mut shards, |held| {
            held.iter().filter(|(id, _)| id.starts_with("herd-")).count() >= 6
        });
        // Long enough for some requests to be under way in it, too. Its tasks are changed in the meantime.
        std::thread::sleep(Duration::from_millis(300));
        users.fleet.without(instances[0].port);
        users.change_held(&shards.held_by(&instances[0].id()));
        assert!(!shards.held_by(&instances[0].id()).is_empty(), "it is killed with a claim in its hands");
        instances[0].kill();
        wait_until(&users, from + WINDOW / 2);
        instances[1].signal("TERM");
        let status = instances[1].wait();
        users.fleet.without(instances[1].port);
        assert_eq!(status, 0, "stopped by SIGTERM\n{}", instances[1].log());
    });
    // On a machine of which other tests take most, RabbitMQ needs minutes.
    shards.until_nothing_is_left(Duration::from_secs(240));
    users.close();
    let met = ["held in flight", "held replaced, in flight"].map(|story| users.answered(story));
    assert!(met.iter().all(|&met| met > 0), "nothing was changed in a dead claim: {}", users.answers());
    instances[2].signal("TERM");
    assert_eq!(instances[2].wait(), 0, "stopped by SIGTERM");
    for instance in &instances {
        let errors = instance.log_lines(&[" ERROR "]);
        assert!(errors.is_empty(), "{errors:?}");
    }
    let expected = users.ledger().expected();
    let tally = users.ledger().check(&read(expected));
    let tally = tally.unwrap_or_else(|faults| panic!("{name}: {faults}{}", users.answers()));
    assert!(tally.expected >= 15_000 + 4_000, "{tally}");
    let unknown = users.fleet.unknown();
    say(&format!("end to end, {name}: {tally}; {unknown} requests not answered and repeated; {}", users.answers()));
}

fn wait_until(users: &Users, at: i64) {
    while users.stage.now() < at {
        std::thread::sleep(Duration::from_millis(10));
    }
}
