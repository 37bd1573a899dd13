//! The rights that docs/doors.md names for Kafka and JetStream are enough, and without the right to read a door says so.

use serde_json::json;

use super::{check, kafka, nats};
use crate::support::kafka::{Acl, KafkaServer, More, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, patient};

/// `ANONYMOUS`, the user of the listener without login, may do all.
const PROPERTIES: &str = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_door=\"secret\";
";

fn detail(instance: &Punctual) -> String {
    let stats = instance.api().send("GET", "/v1/stats", None).expect("an answer").json();
    stats["doors"]["in"]["detail"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn least_rights_are_enough_on_kafka() {
    if !have_kafka() || !have("redis-server") {
        return;
    }
    let listener = Some("SASL_PLAINTEXT");
    let server =
        KafkaServer::start_with(&More { second_listener: listener, properties: PROPERTIES, ..More::default() });
    ["punctual.in", "punctual.rejected", "out"].iter().for_each(|topic| server.create_stamped_topic(topic, 1));
    let timeline = RedisServer::start(&[]);
    let url = format!("kafka://door:secret@127.0.0.1:{}", server.second_port);
    let config = kafka::config(&timeline, &server, "destination = \"out\"\n").replace(&server.url(), &url);
    server.allow("door", &[Acl::Write("punctual.rejected"), Acl::Write("out")]);
    let mut instance = Punctual::start(&config);
    instance.until("refused as a group", |instance| detail(instance).contains("punctual.default.in"));
    let (code, out) = check(&config);
    assert!(code == Some(1) && out.contains("punctual.in"), "{code:?} {out}");
    server.allow("door", &[Acl::ReadGroup("punctual.default.in")]);
    instance.until("refused the topic", |instance| detail(instance).contains("the topic `punctual.in`"));
    server.allow("door", &[Acl::Read("punctual.in")]);
    kafka::send(&server, &["punctual-in=1ms"], "good\n");
    kafka::send(&server, &["punctual-in=soon"], "bad\n");
    let done = || server.records("out").len() == 1 && server.records("punctual.rejected").len() == 1;
    assert!(patient(kafka::TIME_LIMIT, done), "{}", instance.log());
    let (code, out) = check(&config);
    assert_eq!(code, Some(0), "{out}");
}

#[test]
fn least_rights_are_enough_on_jetstream() {
    if !have("nats-server") || !have("redis-server") {
        return;
    }
    let server = NatsServer::start(
        "authorization { users = [
           { user: admin, password: admin }
           { user: door, password: secret, permissions: {
             publish: [\"$JS.API.CONSUMER.MSG.NEXT.IN.punctual\", \"$JS.ACK.IN.punctual.>\",
               \"$JS.API.CONSUMER.INFO.IN.punctual\", \"out\", \"punctual.rejected\"]
             subscribe: \"_INBOX.>\" } }
           { user: writer, password: secret, permissions: { publish: [\"out\", \"punctual.rejected\"], subscribe: \"_INBOX.>\" } }
         ] }
         no_auth_user: admin",
    );
    let mut client = server.connect();
    client.create_stream("REJECTED", &["punctual.rejected"], &json!({}));
    client.create_stream("OUT", &["out"], &json!({}));
    nats::create_source(&mut client, 10);
    let timeline = RedisServer::start(&[]);
    let config = |user: &str| {
        let url = server.url().replace("nats://", &format!("nats://{user}:secret@"));
        nats::config(&timeline, &server, "destination = \"out\"\n").replace(&server.url(), &url)
    };
    let mut instance = Punctual::start(&config("door"));
    nats::send(&server, &[("punctual-in", "1ms")], ["good".to_owned()]);
    nats::send(&server, &[("punctual-in", "soon")], ["bad".to_owned()]);
    let done =
        || nats::length(&server, "OUT") == 1 && nats::length(&server, "REJECTED") == 1 && nats::open(&server) == 0;
    assert!(patient(nats::TIME_LIMIT, done), "{}", instance.log());
    let (code, out) = check(&config("door"));
    assert_eq!(code, Some(0), "{out}");
    instance.kill();
    let mut instance = Punctual::start(&config("writer"));
    instance.until("refused", |instance| !detail(instance).is_empty());
    let (code, out) = check(&config("writer"));
    assert!(detail(&instance).contains("IN") && code == Some(1), "{}: {code:?} {out}", detail(&instance));
}
