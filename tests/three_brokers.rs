//! One instance serves three lanes on three brokers. The broker in the middle is shut down for 30 s: its lane waits,
//! the other two are not affected, and nothing is dead.

use std::time::Duration;

use serde_json::json;

use crate::support::clock::ServerClock;
use crate::support::consumer::Consumer;
use crate::support::http::Api;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::load::{Load, put_recurring};
use crate::support::nats::NatsServer;
use crate::support::published::{Published, read_subject, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

/// How long the broker in the middle is down.
const AWAY: Duration = Duration::from_secs(30);

/// The lanes; the one of the broker that is shut down is in the middle. Each publishes to a destination of the same
/// name.
const LANES: [&str; 3] = ["alerts", "orders", "invoices"];

/// Values of the breaker's metric.
const CLOSED: u64 = 0;
const OPEN: u64 = 2;

/// Takes more than five seconds: three brokers start, and one is shut down and started again.
#[test]
fn a_broker_that_is_shut_down_stops_only_its_own_lane() {
    if !["redis-server", "nats-server", "rabbitmq-server"].iter().all(|program| have(program)) || !have_kafka() {
        return;
    }
    let (redis, nats, mut kafka) = (RedisServer::start(&[]), NatsServer::start(""), KafkaServer::start());
    let rabbit = RabbitServer::start("", &[], &[]);
    nats.connect().create_stream("ALERTS", &["alerts"], &json!({}));
    kafka.create_stamped_topic("orders", 3);
    rabbit.declare_queues("", &["invoices"]);
    let consumer = Consumer::start("consume_rabbitmq", &[&rabbit.url("%2f"), "invoices"]);
    let config = config(&redis, [&nats.url(), &kafka.url(), &rabbit.url("")]);
    let mut instance = Punctual::start(&config);
    let mut left = StoredKeys::new(&redis, 4, &LANES);
    let stage = ServerClock::new(left.now());
    let loads = LANES.map(|lane| Load::new(vec![instance.api()], &stage, lane, lane));
    loads.iter().for_each(|load| put_recurring(&instance.api(), load, 20, 40));
    let (mut away, mut claims) = ((0, 0), (0, 0));
    std::thread::scope(|scope| {
        let _ends = loads.each_ref().map(Load::guard);
        let running = loads.each_ref().map(|load| scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_secs(4));
        kafka.server.shut_down();
        // From here on the broker is gone; a controlled shutdown may take a while.
        away.0 = stage.now();
        instance.until("aware of its unavailable broker", |instance| breaker(&instance.api(), "kafka") == OPEN);
        // A claim that was sent before may be answered a moment later.
        std::thread::sleep(Duration::from_millis(500));
        let opened = claims_of(&instance.api(), "orders");
        while stage.now() < away.0 + i64::try_from(AWAY.as_millis()).expect("a short time") {
            std::thread::sleep(Duration::from_millis(100));
        }
        let waiting = claims_of(&instance.api(), "orders");
        assert_eq!(breaker(&instance.api(), "kafka"), OPEN, "the broker is still away");
        away.1 = stage.now();
        kafka.server.restart();
        // Read as often as an answer takes, because claims after the breaker has closed do not count.
        let mut closed = waiting;
        instance.until("aware of its broker", |instance| {
            let now = claims_of(&instance.api(), "orders");
            let back = breaker(&instance.api(), "kafka") == CLOSED;
            closed = if back { closed } else { now };
            back
        });
        claims = (waiting - opened, closed - waiting);
        std::thread::sleep(Duration::from_secs(3));
        loads.iter().for_each(Load::end);
        running.into_iter().for_each(|load| load.join().expect("a load without fault"));
    });
    left.until_nothing_is_left(Duration::from_secs(120));
    let errors = instance.log_lines(&[" ERROR "]);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(claims.0, 0, "an unavailable broker's lane is claimed");
    assert!(claims.1 <= 10, "{} claims before the breaker closed: more than half-open batches", claims.1);
    say(&format!(
        "three brokers, the one in the middle away for 30 s: {} claims of its lane from the opening of the breaker until \
         the restart, {} from there until the breaker was closed",
        claims.0, claims.1
    ));
    let invoices = || {
        let all = patient(Duration::from_secs(60), || consumer.deliveries().len() >= loads[2].ledger().expected());
        assert!(all, "{} of {}", consumer.deliveries().len(), loads[2].ledger().expected());
        consumer.deliveries().into_iter().map(Published::from).collect::<Vec<_>>()
    };
    let published = [read_subject(&nats, "ALERTS"), read_topic(&kafka, "orders"), invoices()];
    for published in [&published[0], &published[2]] {
        let waited = |message: &&Published| message.parts().1 < away.1 - 10_000 && message.stamp >= away.1;
        assert_eq!(published.iter().find(waited), None, "it waited for a broker that is not its own");
    }
    for ((lane, load), published) in LANES.iter().zip(&loads).zip(&published) {
        let tally =
            load.ledger().check(published).unwrap_or_else(|faults| panic!("{lane}: {faults}{}", load.answers()));
        let meanwhile = lateness(published, away);
        say(&format!("three brokers, lane {lane}: {tally}; of those due while one was away: {meanwhile}"));
    }
}

/// One instance with a sink per broker and a lane per sink; the breaker has its default settings.
fn config(redis: &RedisServer, urls: [&str; 3]) -> String {
    let mut text = format!("[redis]\nurl = \"{}\"\n[claim]\nlease = \"10s\"\n", redis.url());
    // A broker that has just restarted may answer slowly.
    for ((lane, sink), url) in LANES.iter().zip(["nats", "kafka", "rabbitmq"]).zip(urls) {
        text +=
            &format!("[sinks.{sink}]\nurl = \"{url}\"\nanswer_timeout = \"5s\"\n[lanes.{lane}]\nsink = \"{sink}\"\n");
    }
    text + "[lanes.default]\nsink = \"nats\"\n"
}

/// Lateness of the occurrences that became due while the broker was down.
fn lateness(published: &[Published], away: (i64, i64)) -> String {
    let due_meanwhile = published.iter().filter(|message| (away.0..away.1).contains(&message.parts().1));
    let mut late: Vec<i64> = due_meanwhile.map(|message| message.stamp - message.parts().1).collect();
    late.sort_unstable();
    let Some(last) = late.last() else { return "none".to_owned() };
    let share = |share: usize| late[(late.len() * share / 100).min(late.len() - 1)];
    format!("{}, late by {} ms (50 %), {} (99 %), {last} (all)", late.len(), share(50), share(99))
}

fn claims_of(api: &Api, lane: &str) -> u64 {
    metric(api, "punctual_claims_total", &format!("lane=\"{lane}\""))
}

fn breaker(api: &Api, sink: &str) -> u64 {
    metric(api, "punctual_breaker", &format!("sink=\"{sink}\""))
}

/// A metric with this label.
fn metric(api: &Api, name: &str, label: &str) -> u64 {
    let answer = api.send("GET", "/metrics", None).expect("an answer");
    let mine = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    let line = answer.text.lines().find(mine).unwrap_or_else(|| panic!("no {name} of {label}:\n{}", answer.text));
    let value = line.rsplit(' ').next().expect("a value");
    value.parse::<u64>().unwrap_or_else(|error| panic!("{error}: {line}"))
}
