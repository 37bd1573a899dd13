//! Somebody who is called at night finds the cause in the log, and in `/readyz` or the statistics. Other tests do the same
//! for a Redis that is away, full or empty, and for clocks that differ.

use serde_json::{Value, json};

use super::{config, until_logged};
use crate::support::nats::NatsServer;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, say};

/// A task that is due at once.
const NOW: &str = r#"{"schedule": {"in": "1ms"}, "message": {"destination": "orders.cancel"}}"#;

fn stats(instance: &Punctual) -> Value {
    instance.api().send("GET", "/v1/stats", None).expect("an answer").json()
}

fn put(instance: &Punctual, id: &str) {
    assert_eq!(instance.api().put(id, NOW).expect("an answer").status, 201);
}

/// Waits for the log line and for the statistics, and prints after how long both were there.
fn found(trouble: &str, instance: &mut Punctual, line: &[&str], shown: impl Fn(&Value) -> bool) {
    let begun = tokio::time::Instant::now();
    until_logged(instance, line);
    let logged = begun.elapsed();
    instance.until("aware of the trouble", |instance| shown(&stats(instance)));
    say(&format!("{trouble}: logged after {logged:.1?}, shown after {:.1?}", begun.elapsed()));
}

#[test]
fn a_subject_that_no_stream_takes_is_named_with_the_words_of_the_broker() {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let (timeline, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    let mut instance = Punctual::start(&config(&timeline, &nats.url()));
    put(&instance, "a");
    let line = [" WARN ", "destination is at fault", "orders.cancel", "no stream"];
    found("a subject without a stream", &mut instance, &line, |stats| {
        let failing = &stats["sinks"]["default"]["failing"][0];
        let detail = failing["detail"].as_str().unwrap_or_default();
        failing["destination"] == json!("orders.cancel")
            && failing["status"] == json!("at_fault")
            && detail.contains("no stream")
    });
    assert_eq!(instance.api().ready().expect("an answer").json()["failing_destinations"], json!({"default": 1}));
}

/// Takes more than five seconds: the breaker probes a broker that hangs before it opens.
#[test]
fn a_broker_that_hangs_is_said_to_answer_nothing() {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let (timeline, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    nats.connect().create_stream("ORDERS", &["orders.>"], &json!({}));
    // Later than the 1.5 s after which a sink without answers is logged.
    let config = config(&timeline, &nats.url()).replace("\"2s\"", "\"7s\"").replace("\"5s\"", "\"20s\"");
    let mut instance = Punctual::start(&config);
    put(&instance, "a");
    instance.until("done", |_| nats.connect().stream_length("ORDERS") == 1);
    nats.server.signal("STOP");
    put(&instance, "b");
    let line = [" WARN ", "answers none of the messages"];
    found("a broker that hangs", &mut instance, &line, |stats| stats["sinks"]["default"]["unanswered_s"].is_number());
    nats.server.signal("CONT");
    instance.until("done", |_| nats.connect().stream_length("ORDERS") == 2);
}

#[test]
fn a_refused_login_is_no_broken_network() {
    if !have("redis-server") || !have("nats-server") {
        return;
    }
    let login = "authorization { user: punctual, password: right }";
    let (timeline, nats) = (RedisServer::start(&[]), NatsServer::start(login));
    let url = format!("nats://punctual:wrong@127.0.0.1:{}", nats.server.port);
    let mut instance = Punctual::start(&config(&timeline, &url));
    let line = [" WARN ", "the sink is unavailable", "cannot log in to", "authorization violation"];
    found("a wrong password", &mut instance, &line, |stats| {
        stats["sinks"]["default"]["detail"].as_str().is_some_and(|detail| detail.contains("cannot log in to"))
    });
    let ready = instance.api().ready().expect("an answer").json();
    let detail = ready["unavailable_sinks"]["default"].as_str().unwrap_or_default();
    assert!(detail.contains("cannot log in to") && !detail.contains("wrong"), "{ready}");
}

#[test]
fn an_instance_that_was_killed_is_named_by_the_others() {
    if !have("redis-server") {
        return;
    }
    let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let config = config(&timeline, &sink.url());
    let (mut killed, mut left) = (Punctual::start(&config), Punctual::start(&config));
    let knows = |count: usize| move |stats: &Value| stats["instances"].as_array().map(Vec::len) == Some(count);
    left.until("aware of the other", |left| knows(2)(&stats(left)));
    let id = killed.id();
    killed.kill();
    found("an instance that was killed", &mut left, &[" WARN ", "instances are silent", &id], knows(1));
}
