//! Kafka: a server with access control that would create topics automatically.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Fault, Outcome, Sink, SinkConfig, Trouble};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use secrecy::SecretString;

use super::{accepted, batch, publish, publish_until_accepted};
use crate::support::kafka::{KafkaServer, More, have_kafka};

const PROPERTIES: &str = "auto.create.topics.enable=true
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_nobody=\"hunter2\";
";

fn sink(url: &str) -> Arc<dyn Sink> {
    SinkConfig::parse(url).expect("a good URL").build().expect("a sink")
}

fn topics(kafka: &KafkaServer) -> Vec<String> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", kafka.address()).create().expect("a consumer");
    let metadata = consumer.fetch_metadata(None, Duration::from_secs(10)).expect("topics");
    metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
}

/// The broker would create every topic that a client asks for, and the library asks once a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_creates_no_topic_and_reports_a_user_without_write_permission() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start_with(&More {
        second_listener: Some("SASL_PLAINTEXT"),
        properties: PROPERTIES,
        scram_users: &[],
    });
    kafka.create_topic("a", 1, &[]);
    let all = sink(&kafka.url());
    let outcomes = publish(&all, batch("typo", 0..3)).await;
    for outcome in &outcomes {
        let trouble = matches!(outcome, Outcome::Retry(Trouble { fault: Fault::Destination, .. }));
        assert!(trouble, "{outcome:?}");
    }
    all.check().await.expect("it answers");
    assert_eq!(publish(&all, batch("a", 0..3)).await, accepted(3));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(topics(&kafka), ["a"]);
    let creates = BTreeMap::from([("allow.auto.create.topics".to_owned(), SecretString::from("true"))]);
    let creates =
        SinkConfig::parse(&kafka.url()).expect("a good URL").with_properties(creates).build().expect("a sink");
    // The first topic is asked for when the sink connects; a later one is not.
    kafka.create_topic("b", 1, &[]);
    publish_until_accepted(&creates, batch("b", 0..3)).await;
    publish_until_accepted(&creates, batch("made", 0..3)).await;

    // A client that may write to no topic gets no producer id, or is reported first that it may not use this topic.
    let nobody = sink(&format!("kafka://nobody:hunter2@127.0.0.1:{}", kafka.second_port));
    for outcome in publish(&nobody, batch("a", 3..6)).await {
        let reported = |fault| matches!(fault, Fault::Sink | Fault::Destination);
        assert!(matches!(&outcome, Outcome::Retry(trouble) if reported(trouble.fault)), "{outcome:?}");
    }
    assert_eq!(kafka.records("a").len(), 3);
}
