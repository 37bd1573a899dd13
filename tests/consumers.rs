//! The consumer examples, run unchanged against a broker that has every message twice.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_sinks::{Message, Outcome, SinkConfig};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientConfig, TopicPartitionList};
use serde_json::json;

use crate::support::consumer::{Consumer, Delivery};
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::{self, patient};

/// Number of occurrences; each is published twice.
pub(crate) const OCCURRENCES: usize = 500;
/// JetStream's deduplication window (100 ms is the minimum); later copies are kept.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);

/// Occurrences of many tasks for one destination, with distinct payloads.
pub(crate) fn occurrences(destination: &str) -> Vec<Message> {
    let message = |number: usize| {
        let task = format!("order-{number}.unpaid");
        Message {
            key: format!("{task}:1700000000123"),
            due_ms: 1_700_000_000_123,
            attempt: 1,
            destination: destination.to_owned(),
            record_key: None,
            native: None,
            headers: vec![("tenant".to_owned(), "acme".to_owned())],
            is_tombstone: false,
            content_type: Some("application/json".to_owned()),
            payload: format!("{{\"order\": {number}}}").into(),
            task,
        }
    };
    (0..OCCURRENCES).map(message).collect()
}

/// Publishes all messages; every one must be accepted.
pub(crate) async fn publish(url: &str, batch: Vec<Message>) {
    use futures_util::StreamExt;

    let answer_timeout = Duration::from_secs(30);
    let config = SinkConfig::parse(url).map(|config| config.with_answer_timeout(answer_timeout));
    let sink = config.and_then(|config| config.build()).expect("a sink");
    let outcomes: Vec<(usize, Outcome)> = sink.publish(batch).collect().await;
    assert_eq!(outcomes.len(), OCCURRENCES);
    assert!(outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Accepted), "{outcomes:?}");
    sink.close(Duration::from_secs(5)).await.expect("a sink that closes");
}

/// Publishes everything twice and runs the example: each key is new once and repeated once. Returns the running
/// example.
async fn each_key_counts_once(example: &str, arguments: &[&str], url: &str, destination: &str) -> Consumer {
    let batch = occurrences(destination);
    publish(url, batch.clone()).await;
    tokio::time::sleep(4 * DUPLICATE_WINDOW).await;
    publish(url, batch.clone()).await;
    let consumer = Consumer::start(example, arguments);
    let deliveries = consumer.wait(2 * OCCURRENCES);
    let mut seen: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
    deliveries.iter().for_each(|delivery| seen.entry(&delivery.key).or_default().push(delivery));
    assert_eq!((deliveries.len(), seen.len()), (2 * OCCURRENCES, OCCURRENCES));
    for message in &batch {
        let copies = &seen[message.key.as_str()];
        assert_eq!(copies.iter().map(|copy| copy.repeat).collect::<Vec<_>>(), [false, true], "{copies:?}");
        assert!(copies.iter().all(|copy| copy.payload.as_bytes() == message.payload), "{copies:?}");
        assert!(copies.iter().all(|copy| copy.received_ms > message.due_ms), "{copies:?}");
    }
    consumer
}

/// Messages that an example has acknowledged are not delivered again.
fn nothing_comes_again(example: &str, arguments: &[&str]) {
    let again = Consumer::start(example, arguments);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(again.deliveries(), [], "{}", again.output());
}

#[tokio::test]
async fn the_redis_example_counts_each_key_once() {
    if !support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let arguments = [url.as_str(), "orders.cancel"];
    drop(each_key_counts_once("consume_redis", &arguments, &url, "orders.cancel").await);
    nothing_comes_again("consume_redis", &arguments);
}

#[tokio::test]
async fn the_nats_example_counts_each_key_once() {
    if !support::have("nats-server") {
        return;
    }
    let nats = NatsServer::start("");
    let window = json!({"duplicate_window": DUPLICATE_WINDOW.as_nanos()});
    nats.connect().create_stream("ORDERS", &["orders.>"], &window);
    let url = nats.url();
    let arguments = [url.as_str(), "ORDERS"];
    drop(each_key_counts_once("consume_nats", &arguments, &url, "orders.cancel").await);
    nothing_comes_again("consume_nats", &arguments);
}

/// Takes more than five seconds because RabbitMQ needs as long to start.
#[tokio::test]
async fn the_rabbitmq_example_counts_each_key_once() {
    if !support::have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["orders.cancel"]);
    let url = rabbit.url("");
    // For other clients than punctual, a URL that ends with `/` names a virtual host without a name.
    let arguments = [url.trim_end_matches('/'), "orders.cancel"];
    drop(each_key_counts_once("consume_rabbitmq", &arguments, &url, "orders.cancel").await);
    nothing_comes_again("consume_rabbitmq", &arguments);
}

/// Takes more than five seconds because Kafka needs as long to start.
#[tokio::test]
async fn the_kafka_example_counts_each_key_once() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    kafka.create_topic("orders.cancel", 3, &[]);
    let arguments = [&kafka.address(), "orders.cancel"];
    let consumer = each_key_counts_once("consume_kafka", &arguments, &kafka.url(), "orders.cancel").await;
    // A killed consumer stays in its group for 45 s, in which no other one would get messages. So check the committed
    // offsets instead.
    let group: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.address())
        .set("group.id", "cancellations")
        .create()
        .expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range("orders.cancel", 0, 2);
    let offset = |element: TopicPartitionListElem<'_>| element.offset().to_raw().unwrap_or(0).max(0);
    let committed = || -> i64 {
        let found = group.committed_offsets(partitions.clone(), Duration::from_secs(10)).expect("offsets");
        found.elements().into_iter().map(offset).sum()
    };
    // It commits twice a second.
    let all = 2 * i64::try_from(OCCURRENCES).expect("a count");
    patient(Duration::from_secs(30), || committed() == all);
    drop(consumer);
    assert_eq!(committed(), all);
}

#[test]
fn the_consumer_examples_are_short_and_use_no_punctual_crate() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for broker in ["kafka", "nats", "rabbitmq", "redis"] {
        let source = std::fs::read_to_string(folder.join(format!("consume_{broker}.rs"))).unwrap();
        assert!(source.lines().count() < 80, "consume_{broker}.rs is for reading: it shall stay under 80 lines");
        assert!(!source.contains("punctual::") && !source.contains("punctual_sinks"), "it links nothing of ours");
    }
}

/// Otherwise a failed effect would be lost: the message would be delivered again, count as a repeat, and be
/// acknowledged.
#[test]
fn the_examples_remember_a_key_after_the_effect_and_before_the_acknowledgement() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for (broker, acknowledgement) in
        [("kafka", ".store_offset"), ("nats", ".ack("), ("rabbitmq", ".ack("), ("redis", ".xack(")]
    {
        let source = std::fs::read_to_string(folder.join(format!("consume_{broker}.rs"))).unwrap();
        let steps = ["keys.know(", "// Unless it is a repeat", "keys.remember(", acknowledgement];
        let places: Vec<usize> = steps.iter().map(|step| source.find(step).expect(step)).collect();
        assert!(places.is_sorted(), "consume_{broker}.rs does not go by {steps:?}");
        let once = steps.iter().all(|step| source.matches(step).count() == 1);
        assert!(once, "consume_{broker}.rs has one of {steps:?} twice");
    }
}
