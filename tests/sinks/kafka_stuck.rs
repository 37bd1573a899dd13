//! Kafka: one topic or one address in trouble is nobody else's. Against the mock cluster of the client library, whose
//! partitions can be left without a leader.

use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Fault, Outcome, Sink, SinkConfig, Trouble};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::{accepted, batch, publish};
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

/// Nobody leads `stuck`, so that what goes there stays in the client library until that gives up. More waits than one
/// topic has room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_without_a_leader_ends_nothing_of_the_others() {
    let mock = mock();
    mock.partition_leader("stuck", 0, None).expect("no leader");
    let sink = sink(&mock.bootstrap_servers());
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
    // So that something is under way to `a` at all times.
    mock.broker_round_trip_time(1, Duration::from_millis(50)).expect("a slow broker");
    let before = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|call| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { publish(&sink, batch("stuck", call * 1000..call * 1000 + 1000)).await })
        })
        .collect();
    let mut round = 1;
    while before.elapsed() < SinkConfig::ANSWER_TIMEOUT * 2 {
        let outcomes = publish(&sink, batch("a", round * 10..round * 10 + 10)).await;
        assert_eq!(outcomes, accepted(10), "after {:?}", before.elapsed());
        round += 1;
    }
    for call in calls {
        for outcome in call.await.expect("no panic") {
            assert!(matches!(&outcome, Outcome::Retry(Trouble { fault: Fault::Unclear, .. })), "{outcome:?}");
        }
    }
    sink.check().await.expect("the broker answers");
}

/// As with a name of two addresses of which only the second listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_refused_at_first_is_tried_again() {
    let mock = mock();
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
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
}
