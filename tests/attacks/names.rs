//! Destinations that a caller makes up, each of which the broker does not know.

use std::time::Duration;

use serde_json::json;

use super::victim::Victim;
use super::{Form, REPORT};
use crate::support::consumer::Consumer;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::published::{Published, read_arrivals, read_subject, read_topic};
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::{have, patient, say};

/// A broker with the destination `same`, for good tasks of the attacked lane, and `other`, for those of another lane.
struct Broker<'a> {
    name: &'a str,
    url: &'a str,
    /// A destination that it does not know.
    unknown: &'a dyn Fn(usize) -> String,
    read: &'a dyn Fn(&str, usize) -> Vec<Published>,
}

/// Puts tasks for many unknown destinations, due at once, beside good tasks of the same lane and of another.
fn make_up_names(broker: &Broker, form: Form) {
    let redis = RedisServer::start(&[]);
    let patience = form.choose(1, 30);
    let instance = Punctual::start(&format!(
        "[redis]\nurl = \"{}\"\n[sinks.default]\nurl = \"{}\"\npatience = \"{patience}s\"\n\
         [lanes.default]\nsink = \"default\"\n[lanes.other]\nsink = \"default\"\n",
        redis.url(),
        broker.url,
    ));
    let api = instance.api();
    let lanes = [("default", "same"), ("other", "other")];
    let watch = |what: &str, act: &dyn Fn()| {
        let victims = lanes.map(|(lane, destination)| Victim::start(&api, lane, destination));
        act();
        let mut figures = Vec::new();
        for (victim, (lane, destination)) in victims.into_iter().zip(lanes) {
            let found = victim.stop(&|count| (broker.read)(destination, count));
            say(&format!("{REPORT} names, {}, {what}, lane {lane}: {found}", broker.name));
            figures.push(found);
        }
        figures
    };
    let span = Duration::from_secs(form.choose(1, 20));
    let before = watch("before", &|| std::thread::sleep(span));
    let count = form.choose(600, 20_000);
    let dead = || api.metric("punctual_dead_total{lane=\"default\",reason=\"destination\"}") as usize;
    let during = watch("meanwhile", &|| {
        let line = |n: usize| {
            let destination = (broker.unknown)(n);
            format!(
                "{{\"id\":\"nobody-{n}\",\"schedule\":{{\"in\":\"1ms\"}},\"message\":{{\"destination\":\"{destination}\"}}}}\n"
            )
        };
        let lines: String = (0..count).map(line).collect();
        let answer = api.send("POST", "/v1/tasks:batch", Some(&lines)).expect("an answer");
        assert_eq!(answer.lines().iter().filter(|line| line["result"] == "created").count(), count);
        if !form.is_short() {
            std::thread::sleep(span * 2);
        }
        let gone = patient(Duration::from_secs(600), || dead() >= count);
        assert!(gone, "{} of {count} are dead\n{}", dead(), instance.log());
    });
    for (before, during) in before.iter().zip(&during) {
        form.judge(&instance, before, during);
    }
}

pub(super) fn by_nats(form: Form) {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let nats = NatsServer::start("");
    for stream in ["same", "other"] {
        nats.connect().create_stream(stream, &[stream], &json!({}));
    }
    make_up_names(
        &Broker {
            name: "NATS",
            url: &nats.url(),
            unknown: &|n| format!("nobody.{n}"),
            read: &|subject, _| {
                // The tests' client reads a stream that has come to rest.
                let mut client = nats.connect();
                let length = client.stream_length(subject);
                std::thread::sleep(Duration::from_millis(300));
                if client.stream_length(subject) == length { read_subject(&nats, subject) } else { Vec::new() }
            },
        },
        form,
    );
}

pub(super) fn by_rabbitmq(form: Form) {
    if !have("redis-server") || !have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["same", "other"]);
    let arrivals =
        ["same", "other"].map(|queue| (queue, Consumer::start("consume_rabbitmq", &[&rabbit.url("%2f"), queue])));
    make_up_names(
        &Broker {
            name: "RabbitMQ",
            url: &rabbit.url(""),
            unknown: &|n| format!("nobody{n}/x"),
            read: &|queue, _| {
                let (_, consumer) = arrivals.iter().find(|(name, _)| *name == queue).expect("a consumer");
                read_arrivals(consumer, 1)
            },
        },
        form,
    );
}

pub(super) fn by_kafka(form: Form) {
    if !have("redis-server") || !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    ["same", "other"].iter().for_each(|topic| kafka.create_stamped_topic(topic, 1));
    make_up_names(
        &Broker {
            name: "Kafka",
            url: &kafka.url(),
            unknown: &|n| format!("nobody-{n}"),
            read: &|topic, _| read_topic(&kafka, topic),
        },
        form,
    );
}

whole_forms!(by_nats, by_rabbitmq, by_kafka);
