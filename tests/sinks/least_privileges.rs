//! The least privileges of a broker's user are those in `docs/sinks.md`: with them a sink publishes to its own
//! destinations, passes its check, and cannot publish to another destination.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use punctual_sinks::{Fault, Outcome, Sink, SinkConfig};
use serde_json::json;

use super::rabbitmq::refusals::declare_exchange;
use super::{Broker, PATIENCE, message, publish};
use crate::support::have;
use crate::support::kafka::{KafkaServer, More, have_kafka};
use crate::support::nats::{NatsClient, NatsServer};
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;

/// The rest of the line in `docs/sinks.md` that begins with this.
fn documented(beginning: &str) -> &'static str {
    let mut lines = include_str!("../../docs/sinks.md").lines();
    lines.find_map(|line| line.trim_start().strip_prefix(beginning)).unwrap_or_else(|| panic!("no line `{beginning}`"))
}

fn sink(url: &str) -> Arc<dyn Sink> {
    SinkConfig::parse(url).expect("a good URL").with_answer_timeout(PATIENCE).build().expect("a sink")
}

/// The user's own destination accepts messages, the foreign one does not, and the check succeeds.
async fn only_own(url: &str, own: &[&str], foreign: &str) {
    let sink = sink(url);
    sink.check().await.expect("the check needs no more than publishing");
    let own = own.iter().enumerate().map(|(number, destination)| message(destination, number));
    let outcomes = publish(&sink, own.collect()).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Accepted), "{outcomes:?}");
    let refused = publish(&sink, vec![message(foreign, 9)]).await;
    assert!(matches!(&refused[0], Outcome::Retry(t) if t.fault == Fault::Destination), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_documented_redis_streams_user_publishes_only_to_its_own_destinations() {
    let Some(redis) = <RedisServer as Broker>::start() else { return };
    let mut admin = redis.connect();
    let mut user = ::redis::cmd("ACL");
    user.arg("SETUSER").arg("audit").arg(documented("ACL SETUSER audit ").split(' ').collect::<Vec<_>>());
    user.exec(&mut admin).expect("a user");
    only_own(&format!("redis://audit:secret@127.0.0.1:{}", redis.server.port), &["audit:orders"], "session:alice")
        .await;
    let log: Vec<::redis::Value> = ::redis::cmd("ACL").arg("LOG").query(&mut admin).expect("the log");
    assert_eq!(log.len(), 1, "the foreign key alone: {log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_documented_nats_user_publishes_only_to_its_own_destinations() {
    if !have("nats-server") {
        return;
    }
    let users = format!(
        "authorization {{ users: [ {{ user: admin, password: admin }}, {{ user: alerts, password: secret, permissions: {} }} ] }}",
        documented("permissions: ")
    );
    let nats = NatsServer::start(&users);
    let port = nats.server.port;
    NatsClient::connect(port, Some(("admin", "admin"))).create_stream("ALL", &["alerts.>", "theirs"], &json!({}));
    only_own(&format!("nats://alerts:secret@127.0.0.1:{port}"), &["alerts.due"], "theirs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_documented_rabbitmq_user_publishes_only_to_its_own_destinations() {
    if !have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("", &["shop"], &[("orders", "secret")]);
    rabbit.declare_queues("shop", &["orders.cancel", "b"]);
    declare_exchange(&rabbit, "shop", "orders");
    declare_exchange(&rabbit, "shop", "theirs");
    let rules = documented("rabbitmqctl set_permissions --vhost shop orders ").replace('\'', "");
    let rules: Vec<&str> = rules.split(' ').collect();
    rabbit.control(&[["set_permissions", "--vhost", "shop", "orders"].as_slice(), &rules].concat());
    let url = format!("amqp://orders:secret@127.0.0.1:{}/shop", rabbit.server.port);
    only_own(&url, &["orders/key", "orders.cancel"], "theirs/key").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_documented_kafka_user_publishes_only_to_its_own_destinations() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start_with(&More {
        second_listener: Some("SASL_PLAINTEXT"),
        properties: "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_orders=\"secret\";
",
        scram_users: &[],
    });
    kafka.create_topic("orders.cancel", 1, &[]);
    kafka.create_topic("theirs", 1, &[]);
    let rule = documented("--allow-principal ");
    let rule: Vec<&str> = rule.split(' ').collect();
    let [principal, "--operation", "Write", "--topic", prefix, "--resource-pattern-type", "prefixed"] = rule[..] else {
        panic!("another rule: {rule:?}")
    };
    allow_write(kafka.server.port, principal, prefix);
    let url = format!("kafka://orders:secret@127.0.0.1:{}", kafka.second_port);
    only_own(&url, &["orders.cancel"], "theirs").await;
}

/// Allows the principal to write to all topics with this prefix: the request `CreateAcls` in version 1, because
/// `kafka-acls.sh` is in none of the jars of the tests.
/// <https://kafka.apache.org/protocol#The_Messages_CreateAcls>
fn allow_write(port: u16, principal: &str, prefix: &str) {
    const CREATE_ACLS: [u8; 4] = [0, 30, 0, 1];
    const CORRELATION: [u8; 4] = [0, 0, 0, 7];
    const NO_CLIENT_ID: [u8; 2] = [0xff, 0xff];
    const ONE: [u8; 4] = [0, 0, 0, 1];
    const TOPIC: u8 = 2;
    const PREFIXED: u8 = 4;
    const WRITE: u8 = 4;
    const ALLOW: u8 = 3;
    let text = |text: &str| [&u16::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat();
    let mut request = [CREATE_ACLS.as_slice(), &CORRELATION, &NO_CLIENT_ID, &ONE, &[TOPIC]].concat();
    request.extend([text(prefix), vec![PREFIXED], text(principal), text("*"), vec![WRITE, ALLOW]].concat());
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(&u32::try_from(request.len()).expect("short").to_be_bytes()).expect("sent");
    stream.write_all(&request).expect("sent");
    // Length, correlation, throttle time, number of results, error code.
    let mut answer = [0; 18];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[12..], [0, 0, 0, 1, 0, 0], "one result without an error");
}
