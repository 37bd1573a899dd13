//! Kafka: trouble with one topic or address does not affect others, and an unknown outcome stays unknown. Uses the mock
//! cluster of the client library, which fails on request.

use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Fault, Outcome, Sink, SinkConfig, Trouble};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::{accepted, batch, publish, publish_until_accepted};
use crate::support::server::free_port;

type Mock = MockCluster<'static, DefaultProducerContext>;

/// One broker with the topics `a` and `stuck`.
fn mock() -> Mock {
    let mock = MockCluster::new(1).expect("a cluster");
    ["a", "stuck"].iter().for_each(|topic| mock.create_topic(topic, 1, 1).expect("a topic"));
    mock
}

fn sink(servers: &str) -> Arc<dyn Sink> {
    SinkConfig::parse(&format!("kafka://{servers}")).expect("a good URL").build().expect("a sink")
}

/// The topic `stuck` has no leader, so its messages stay in the client library until they time out. More messages wait
/// than one topic may have in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_without_a_leader_does_not_affect_other_topics() {
    let mock = mock();
    mock.partition_leader("stuck", 0, None).expect("no leader");
    // The library gives a message less than half of this time, and a busy machine may pause for some seconds.
    let time = SinkConfig::ANSWER_TIMEOUT * 2;
    let config = SinkConfig::parse(&format!("kafka://{}", mock.bootstrap_servers())).expect("a good URL");
    let sink = config.with_answer_timeout(time).build().expect("a sink");
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
    // Keeps messages to `a` in flight at all times.
    mock.broker_round_trip_time(1, Duration::from_millis(50)).expect("a slow broker");
    let before = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|call| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { publish(&sink, batch("stuck", call * 1000..call * 1000 + 1000)).await })
        })
        .collect();
    let mut round = 1;
    while before.elapsed() < time {
        let outcomes = publish(&sink, batch("a", round * 10..round * 10 + 10)).await;
        assert_eq!(outcomes, accepted(10), "after {:?}", before.elapsed());
        round += 1;
    }
    for call in calls {
        for outcome in call.await.expect("no panic") {
            let Outcome::Retry(Trouble { fault: Fault::Unavailable, detail, .. }) = outcome else {
                panic!("{outcome:?}")
            };
            assert!(detail.contains("min.insync.replicas") || detail.contains("not handed over"), "{detail}");
        }
    }
    sink.check().await.expect("the broker answers");
}

/// Like a host name with two addresses of which only the second one listens. On a busy machine the second may start too
/// late; the test then tries another port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_refused_at_first_is_tried_again() {
    let mock = mock();
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        let port = free_port();
        let sink = sink(&format!("127.0.0.1:{port}"));
        let broker = mock.bootstrap_servers();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
            loop {
                let (mut client, _) = listener.accept().await.expect("a connection");
                let mut server = TcpStream::connect(&broker).await.expect("a broker");
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop) });
            }
        });
        outcomes = publish(&sink, batch("a", 0..1)).await;
        if outcomes == accepted(1) {
            return;
        }
    }
    panic!("{outcomes:?}");
}

/// The broker writes the message and dies before it answers: the library queues the message again and purges it there.
/// The test tries again if the machine paused until the message timed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kafka_may_have_written_is_not_a_definite_failure() {
    for _ in 0..5 {
        let mock = mock();
        let sink = sink(&mock.bootstrap_servers());
        publish_until_accepted(&sink, batch("a", 0..1)).await;
        mock.broker_round_trip_time(1, Duration::from_secs(5)).expect("a slow broker");
        let publishing = tokio::spawn({
            let sink = Arc::clone(&sink);
            async move { publish(&sink, batch("a", 1..2)).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        mock.broker_down(1).expect("a broker that is gone");
        let outcomes = publishing.await.expect("no panic");
        match &outcomes[..] {
            [Outcome::Retry(Trouble { fault: Fault::Sink, definite: false, .. })] => return,
            [Outcome::Retry(Trouble { fault: Fault::Unavailable, definite: false, .. })] => {}
            _ => panic!("{outcomes:?}"),
        }
    }
    panic!("the end of the broker is never noticed");
}

/// The error comes when the topic's metadata is requested, or only with the first write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_topic_is_reported_and_other_topics_are_still_written() {
    let mock = mock();
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.topic_error("stuck", denied).expect("an error");
    let sink = sink(&mock.bootstrap_servers());
    let mut messages = batch("a", 0..10);
    messages[3].destination = "stuck".to_owned();
    let mut outcomes = publish(&sink, messages).await;
    let refused = Trouble::open(Fault::Destination, "Broker: Topic authorization failed");
    // When the library knows before it takes the message, the message certainly did not arrive.
    let reported = outcomes.remove(3);
    let definite = Outcome::Retry(Trouble { definite: true, ..refused.clone() });
    assert!(reported == definite || reported == Outcome::Retry(refused.clone()), "{reported:?}");
    assert_eq!(outcomes, accepted(9));
    mock.request_errors(RDKafkaApiKey::Produce, &[denied]);
    assert_eq!(publish(&sink, batch("a", 10..11)).await, [Outcome::Retry(refused)]);
    // The library checks once a second whether the permission changed.
    publish_until_accepted(&sink, batch("a", 11..12)).await;
}
