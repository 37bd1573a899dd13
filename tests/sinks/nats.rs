//! NATS JetStream: the suite, and tests for NATS alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::{Fault, Message, Outcome, Sink, SinkConfig};
use serde_json::json;

use super::{
    ANSWER_TIMEOUT, Broker, PATIENCE, Process, Received, SOON, accepted, batch, in_time, message, publish,
    publish_until_accepted, suite,
};
use crate::support::nats::NatsServer;
use crate::support::server::Server;

impl Broker for NatsServer {
    fn start() -> Option<NatsServer> {
        let nats = start("")?;
        nats.connect().create_stream("ALL", &["a", "b", "c"], &json!({}));
        Some(nats)
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.url(), "default", answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let stored = self.connect().stream_messages("ALL").into_iter();
        stored
            .filter(|stored| stored.subject == destination)
            .map(|stored| {
                let key = stored.header("idempotency-key").expect("a key").to_owned();
                assert_eq!(stored.header("nats-msg-id"), Some(format!("default/{key}").as_str()));
                Received { key, headers: stored.headers.into_iter().collect(), payload: stored.payload }
            })
            .collect()
    }
}

impl Process for NatsServer {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn start(config: &str) -> Option<NatsServer> {
    crate::support::have("nats-server").then(|| NatsServer::start(config))
}

fn sink(url: &str, namespace: &str, answer_timeout: Duration) -> Arc<dyn Sink> {
    let config = SinkConfig::parse(url).expect("a good URL").with_answer_timeout(answer_timeout);
    config.with_namespace(namespace).build().expect("a sink")
}

suite!(NatsServer:
    capabilities::a_batch_arrives_once_and_in_order,
    capabilities::an_empty_batch_ends_at_once,
    capabilities::key_headers_and_payload_arrive_intact,
    capabilities::large_payloads_arrive,
    capabilities::concurrent_batches_do_not_mix,
    capabilities::a_stream_that_is_not_polled_sends_nothing,
    capabilities::a_dropped_stream_sends_nothing_more,
    capabilities::close_under_load_loses_no_accepted_message,
    capabilities::a_check_succeeds_and_publishes_nothing,
    capabilities::a_sink_looks_for_a_destination_and_makes_none,
    capabilities::a_closed_sink_fails_the_check_and_does_not_reconnect,
    outages::a_killed_server_is_a_fault_of_the_sink_until_it_is_back,
    outages::a_server_killed_during_a_batch_leaves_every_outcome_correct,
    outages::a_stopped_server_is_a_retry_within_the_timeout_and_recovers,
    outages::messages_held_when_the_server_died_are_never_sent,
    outages::a_lost_idle_connection_is_reopened,
);

/// Publishes a batch to `a` whose second message goes to `destination`; returns the outcome of the second message.
async fn publish_among_others(nats: &NatsServer, destination: &str, change: impl Fn(&mut Message)) -> Outcome {
    let sink = nats.sink(PATIENCE);
    let mut mixed = batch("a", 0..3);
    mixed[1].destination = destination.to_owned();
    change(&mut mixed[1]);
    let mut outcomes = publish(&sink, mixed).await;
    // Repeated calls publish the same messages.
    let is_stored = |outcome: &Outcome| matches!(outcome, Outcome::Accepted | Outcome::Duplicate);
    assert!(is_stored(&outcomes[0]) && is_stored(&outcomes[2]), "{outcomes:?}");
    outcomes.remove(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_without_a_stream_is_the_destinations_fault() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let nobody = publish_among_others(&nats, "nobody", |_| {}).await;
    let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Destination && t.definite;
    assert!(matches!(&nobody, Outcome::Retry(trouble) if expected(trouble)), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_nats_can_never_accept_is_rejected_alone() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    nats.connect().create_stream("SMALL", &["small"], &json!({"max_msg_size": 1000}));
    for (destination, size) in
        [("a", 2 << 20), ("small", 2000), ("a b", 1), ("a.*", 1), ("$JS.API.STREAM.DELETE.ALL", 1)]
    {
        let outcome = publish_among_others(&nats, destination, |m| m.payload = Bytes::from(vec![b'x'; size])).await;
        assert!(matches!(&outcome, Outcome::Reject(_)), "{destination}: {outcome:?}");
    }
    let outcome =
        publish_among_others(&nats, "a", |message| message.headers.push(("a:b".to_owned(), String::new()))).await;
    assert!(matches!(&outcome, Outcome::Reject(_)), "{outcome:?}");
    assert!(nats.connect().stream_length("ALL") > 0, "the stream was not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_refuses_and_is_not_missing() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    nats.connect().create_stream("FULL", &["full"], &json!({"max_msgs": 1, "discard": "new"}));
    nats.connect().publish("full", "", &[], b"first");
    let full = publish_among_others(&nats, "full", |_| {}).await;
    let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Refusing && t.definite;
    assert!(matches!(&full, Outcome::Retry(t) if expected(t) && t.detail.contains("maximum messages")), "{full:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_is_stored_once_per_namespace() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let one = batch("a", 0..3);
    for (namespace, outcome) in
        [("default", Outcome::Accepted), ("default", Outcome::Duplicate), ("other", Outcome::Accepted)]
    {
        let sink = sink(&nats.url(), namespace, PATIENCE);
        assert_eq!(publish(&sink, one.clone()).await, vec![outcome; 3]);
    }
    let stored = nats.connect().stream_messages("ALL");
    assert_eq!(stored.len(), 6);
    assert_eq!(stored[5].header("nats-msg-id"), Some(format!("other/{}", message("a", 2).key).as_str()));
    assert_eq!(stored[5].sequence, 6);
    assert!(stored.is_sorted_by_key(|stored| stored.stored_ns));
}

/// A subscriber that is no stream receives the message and replies: that is not an acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_from_another_service_is_no_acknowledgement() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let mut service = nats.connect();
    service.subscribe("service");
    let answering = std::thread::spawn(move || {
        let request = service.next();
        service.publish(&request.reply.expect("a reply subject"), "", &[], b"{\"success\":true}");
    });
    let outcome = publish_among_others(&nats, "service", |_| {}).await;
    let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Destination && !t.definite;
    assert!(matches!(&outcome, Outcome::Retry(trouble) if expected(trouble)), "{outcome:?}");
    answering.join().expect("the service has answered");
}

/// A subscriber of the subject never replies. More messages to it are published than the whole window holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_that_never_answers_does_not_hold_up_the_others() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let mut listener = nats.connect();
    listener.subscribe("silent");
    let sink = nats.sink(PATIENCE);
    let silent: Vec<_> = (0..5)
        .map(|call| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { publish(&sink, batch("silent", call * 1000..call * 1000 + 1000)).await })
        })
        .collect();
    // Some messages are in flight. Soon they use the whole share of their subject in the window.
    listener.next();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let outcomes = in_time("another subject", SOON, publish(&sink, batch("a", 0..1000))).await;
    assert_eq!(outcomes, accepted(1000));
    assert!(!silent.iter().any(|call| call.is_finished()), "nobody has answered these");
    // Outcomes at the timeout, from a sink with a shorter one.
    let sink = nats.sink(ANSWER_TIMEOUT);
    publish_until_accepted(&sink, batch("a", 1000..1001)).await;
    for outcome in publish(&sink, batch("silent", 5000..7000)).await {
        // Sent messages have no answer. The others waited for a place in the window and were not sent.
        let fault = |definite| if definite { Fault::Unavailable } else { Fault::Unanswered };
        assert!(matches!(&outcome, Outcome::Retry(t) if t.fault == fault(t.definite)), "{outcome:?}");
    }
}

/// An invalid reply frees its place in the window: the whole batch, more than one subject's share, is tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unexpected_answers_free_their_capacity() {
    const COUNT: usize = 1500;
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let mut service = nats.connect();
    service.subscribe("service");
    let answering = std::thread::spawn(move || {
        for _ in 0..COUNT {
            let request = service.next();
            service.publish(&request.reply.expect("a reply subject"), "", &[], b"pong");
        }
    });
    let sink = nats.sink(PATIENCE);
    let outcomes = publish(&sink, batch("service", 0..COUNT)).await;
    for outcome in outcomes {
        let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Destination && !t.definite;
        assert!(matches!(&outcome, Outcome::Retry(trouble) if expected(trouble)), "{outcome:?}");
    }
    answering.join().expect("the service has answered");
}

const USERS: &str = r#"authorization { users: [
  { user: admin, password: s3cret }
  { user: sink, password: "hunter2", permissions: { publish: ["a", "$JS.API.INFO"], subscribe: "_INBOX.>" } }
  { user: narrow, password: "hunter2", permissions: { publish: ["a"], subscribe: "_INBOX.>" } }
  { user: deaf, password: "hunter2", permissions: { publish: ">", subscribe: "none" } }
] }"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_subject_is_a_definite_fault_of_the_destination() {
    let Some(nats) = start(USERS) else { return };
    let port = nats.server.port;
    let mut admin = crate::support::nats::NatsClient::connect(port, Some(("admin", "s3cret")));
    admin.create_stream("ALL", &["a", "b", "c"], &json!({}));
    for user in ["sink", "narrow"] {
        let sink = sink(&format!("nats://{user}:hunter2@127.0.0.1:{port}"), user, PATIENCE);
        sink.check().await.expect("this user may publish");
        let mut mixed = batch("a", 0..3);
        mixed[1].destination = "b".to_owned();
        let before = tokio::time::Instant::now();
        let outcomes = publish(&sink, mixed).await;
        assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Accepted, &Outcome::Accepted));
        let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Destination && t.definite;
        assert!(matches!(&outcomes[1], Outcome::Retry(trouble) if expected(trouble)), "{outcomes:?}");
        assert!(before.elapsed() < SOON, "the refusal is waited for");
    }
    assert_eq!(admin.stream_length("ALL"), 4);
    let deaf = sink(&format!("nats://deaf:hunter2@127.0.0.1:{port}"), "deaf", PATIENCE);
    let outcomes = publish(&deaf, batch("a", 0..2)).await;
    assert!(outcomes.iter().all(|o| matches!(o, Outcome::Retry(t) if t.fault == Fault::Sink)), "{outcomes:?}");
    let detail = deaf.check().await.expect_err("it could hear no answer").to_string();
    assert!(detail.contains("may not subscribe to its inbox"), "{detail}");
    for user_info in ["", "sink:wrong-s3cret@", "wrong-s3cret@"] {
        let sink = sink(&format!("nats://{user_info}127.0.0.1:{port}"), "default", PATIENCE);
        let outcomes = publish(&sink, batch("a", 0..1)).await;
        assert!(matches!(&outcomes[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite), "{outcomes:?}");
        let detail = sink.check().await.expect_err("not let in").to_string();
        assert!(detail.contains("authorization violation"), "{detail}");
        assert!(!detail.contains("s3cret") && !format!("{outcomes:?}").contains("s3cret"), "{detail}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_fails_the_check() {
    let Some(nats) = start("jetstream: disabled") else { return };
    let sink = nats.sink(PATIENCE);
    let detail = sink.check().await.expect_err("no JetStream").to_string();
    assert!(detail.contains("JetStream"), "{detail}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_server_of_several_that_is_up_is_used() {
    let Some(nats) = <NatsServer as Broker>::start() else { return };
    let absent = crate::support::server::free_port();
    let url = format!("nats://127.0.0.1:{absent},127.0.0.1:{}", nats.server.port);
    for number in 0..4 {
        let sink = sink(&url, "default", PATIENCE);
        assert_eq!(publish(&sink, batch("a", number..number + 1)).await, accepted(1));
    }
}

/// The server hangs until the sink gives up the connection, and resumes when the client library would reconnect. It
/// receives what the sockets held, and nothing that was still in the library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_held_when_the_connection_was_given_up_are_never_sent() {
    // Try again if the answer timeout passed before the sink noticed a missed ping, because the machine paused.
    for _ in 0..3 {
        let Some(nats) = <NatsServer as Broker>::start() else { return };
        let sink = nats.sink(ANSWER_TIMEOUT);
        publish_until_accepted(&sink, batch("a", 0..1)).await;
        nats.server.signal("STOP");
        let mut held = batch("b", 0..20_000);
        held.iter_mut().for_each(|message| message.payload = Bytes::from(vec![b'x'; 3000]));
        let outcomes = publish(&sink, held.clone()).await;
        nats.server.signal("CONT");
        let all_are = |faults: &[Fault]| {
            outcomes.iter().all(|outcome| matches!(outcome, Outcome::Retry(t) if faults.contains(&t.fault)))
        };
        if all_are(&[Fault::Unanswered, Fault::Unavailable]) {
            continue;
        }
        assert!(all_are(&[Fault::Sink]));
        publish_until_accepted(&sink, batch("c", 0..1)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let received = nats.received("b");
        assert!(received.len() < 20_000);
        for (held, received) in held.iter().zip(&received) {
            assert_eq!(held.key, received.key, "sent after it was answered");
        }
        return;
    }
    panic!("the connection is never given up");
}
