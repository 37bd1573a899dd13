//! What a sink can do in normal operation.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use punctual_sinks::{DestinationState, Fault, Outcome};

use super::{Broker, PATIENCE, accepted, batch, keys, message, publish};

/// 2500 messages are more than one pipeline of Redis Streams (1000). Those to `a` are more than the share of one
/// destination in the windows of NATS and RabbitMQ (1024).
pub(super) async fn a_batch_arrives_once_and_in_order(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let mut mixed = batch("a", 0..2500);
    for (index, other) in mixed.iter_mut().enumerate().filter(|(index, _)| index % 3 == 0) {
        *other = message("b", index);
    }
    assert_eq!(publish(&sink, mixed.clone()).await, accepted(2500));
    for destination in ["a", "b"] {
        let sent = mixed.iter().filter(|message| message.destination == destination);
        let sent: Vec<&str> = sent.map(|message| message.key.as_str()).collect();
        assert_eq!(keys(&broker.received(destination)), sent);
    }
}

pub(super) async fn an_empty_batch_ends_at_once(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    assert_eq!(publish(&sink, Vec::new()).await, []);
}

pub(super) async fn key_headers_and_payload_arrive_intact(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let mut sent = batch("a", 0..4);
    sent[0].payload = Bytes::from((0..=255).cycle().take(3000).collect::<Vec<u8>>());
    sent[1].payload = Bytes::new();
    sent[1].content_type = None;
    sent[2].payload = Bytes::from_static(b"{\"a\": 1.0,  \"b\":[]}");
    sent[2].content_type = Some("application/json".to_owned());
    sent[3].payload = Bytes::from_static(b"\r\n.\r\n$5\r\nMSG x 1 0\r\n");
    assert_eq!(publish(&sink, sent.clone()).await, accepted(4));
    let received = broker.received("a");
    assert_eq!(received.len(), 4);
    for (sent, received) in sent.iter().zip(received) {
        assert_eq!(received.key, sent.key);
        assert!(received.payload == sent.payload, "the payload of {} is another", sent.key);
        let header = |name: &str| received.headers.get(name).map(String::as_str);
        assert_eq!(header("tenant"), Some("acme & söhne"));
        assert_eq!(header("punctual-task"), Some(sent.task.as_str()));
        assert_eq!(header("punctual-due"), Some("1700000000123"));
        assert_eq!(header("punctual-attempt"), Some("2"));
        assert_eq!(header("content-type"), sent.content_type.as_deref());
    }
}

/// 512 KiB is the default limit of a task's payload, and every sink accepts it by default.
pub(super) async fn large_payloads_arrive(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let mut sent = batch("a", 0..24);
    sent.iter_mut().for_each(|message| message.payload = Bytes::from(vec![b'x'; 512 * 1024]));
    assert_eq!(publish(&sink, sent).await, accepted(24));
    let received = broker.received("a");
    assert_eq!(received.len(), 24);
    assert!(received.iter().all(|message| message.payload.len() == 512 * 1024));
}

pub(super) async fn concurrent_batches_do_not_mix(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let calls = (0..20).map(|call| {
        let sink = &sink;
        async move { publish(sink, batch("a", call * 100..call * 100 + 100)).await }
    });
    let outcomes = futures_util::future::join_all(calls).await;
    assert!(outcomes.into_iter().flatten().all(|outcome| outcome == Outcome::Accepted));
    let received = broker.received("a");
    let mut keys = keys(&received);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), received.len()), (2000, 2000));
}

pub(super) async fn a_stream_that_is_not_polled_sends_nothing(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let answers = sink.publish(batch("a", 0..10));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(broker.received("a"), []);
    drop(answers);
    // This message is delivered, after anything that the dropped call might have sent.
    assert_eq!(publish(&sink, batch("b", 0..1)).await, accepted(1));
    assert_eq!(broker.received("a"), []);
}

pub(super) async fn a_dropped_stream_sends_nothing_more(broker: impl Broker) {
    const COUNT: usize = 30_000;
    let sink = broker.sink(PATIENCE);
    let mut answers = sink.publish(batch("a", 0..COUNT));
    assert!(matches!(answers.next().await, Some((_, Outcome::Accepted))));
    drop(answers);
    // Messages are delivered in order: once this one has arrived, all earlier ones have.
    assert_eq!(publish(&sink, vec![message("a", COUNT)]).await, accepted(1));
    let first = broker.received("a").len();
    assert!(first < COUNT, "the whole batch was sent");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(broker.received("a").len(), first, "more was sent after the drop");
}

pub(super) async fn close_under_load_loses_no_accepted_message(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    let calls: Vec<_> = (0..10)
        .map(|call| {
            let sink = std::sync::Arc::clone(&sink);
            tokio::spawn(async move { publish(&sink, batch("a", call * 1000..call * 1000 + 1000)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(5)).await;
    sink.close(PATIENCE).await.expect("everything is flushed in time");
    let mut accepted_keys = Vec::new();
    for (call, outcomes) in calls.into_iter().enumerate() {
        for (index, outcome) in outcomes.await.expect("no panic").into_iter().enumerate() {
            match outcome {
                Outcome::Accepted => accepted_keys.push(message("a", call * 1000 + index).key),
                Outcome::Retry(trouble) => assert!(trouble.definite && trouble.fault == Fault::Sink, "{trouble:?}"),
                Outcome::Duplicate => panic!("each was sent once"),
                Outcome::Reject(detail) => panic!("rejected: {detail}"),
            }
        }
    }
    let received = broker.received("a");
    let mut received = keys(&received);
    received.sort_unstable();
    accepted_keys.sort_unstable();
    assert_eq!(received, accepted_keys);

    let after = publish(&sink, batch("a", 0..2)).await;
    assert!(after.iter().all(|outcome| matches!(outcome, Outcome::Retry(t) if t.definite && t.fault == Fault::Sink)));
}

pub(super) async fn a_check_succeeds_and_publishes_nothing(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    sink.check().await.expect("the right address");
    for destination in ["a", "b", "c"] {
        assert_eq!(broker.received(destination), []);
    }
}

pub(super) async fn a_closed_sink_fails_the_check_and_does_not_reconnect(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    sink.check().await.expect("it is open");
    sink.close(PATIENCE).await.expect("nothing is under way");
    let detail = sink.check().await.expect_err("it is closed").to_string();
    assert!(detail.contains("the sink is closed"), "{detail}");
}

/// `a` exists on every broker. Nothing is published, and no destination is made.
pub(super) async fn a_sink_looks_for_a_destination_and_makes_none(broker: impl Broker) {
    let sink = broker.sink(PATIENCE);
    assert_eq!(sink.look_for("a").await.unwrap(), DestinationState::Exists);
    for _ in 0..2 {
        let state = sink.look_for("nobody.made.this").await.unwrap();
        assert!(matches!(state, DestinationState::Missing(_)), "{state:?}");
    }
    assert_eq!(broker.received("a"), []);
    assert_eq!(publish(&sink, batch("a", 0..3)).await, accepted(3), "the connection still works");
}
