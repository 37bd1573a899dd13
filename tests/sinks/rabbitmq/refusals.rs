//! How RabbitMQ refuses: it returns a message, sends a nack, closes the channel, blocks all publishers, or denies the
//! login.

use std::sync::Arc;

use bytes::Bytes;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use punctual_sinks::{Fault, Message, Outcome};
use tokio::time::Instant;

use super::super::{
    ANSWER_TIMEOUT, Broker, PATIENCE, SOON, accepted, batch, in_time, keys, message, publish, publish_until_accepted,
};
use super::{Shared, sink};
use crate::support::rabbitmq::RabbitServer;

/// Whether the outcome blames the destination, and the message certainly did not arrive.
pub(super) fn is_fault_of_destination(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Retry(trouble) if trouble.fault == Fault::Destination && trouble.definite)
}

pub(super) fn detail(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Accepted | Outcome::Duplicate => "",
        Outcome::Retry(trouble) => &trouble.detail,
        Outcome::Reject(detail) => detail,
    }
}

pub(super) fn to(destination: &str, number: usize) -> Message {
    Message { destination: destination.to_owned(), ..message("a", number) }
}

/// A direct exchange, with a queue bound under `key`.
pub(in super::super) fn declare_exchange(rabbit: &RabbitServer, vhost: &str, name: &str) {
    rabbit.with_channel(vhost, async |channel: Channel| {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default;
        channel.exchange_declare(name.into(), ExchangeKind::Direct, options, none()).await.expect("an exchange");
        let bound = channel.queue_bind("b".into(), name.into(), "key".into(), QueueBindOptions::default(), none());
        bound.await.expect("it is bound");
    });
}

/// RabbitMQ acknowledges persistent messages later, and several at once. It returns unroutable ones immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_messages_are_distinguished_from_routed_ones() {
    let Some(broker) = Shared::start() else { return };
    declare_exchange(&broker.server, &broker.vhost, "x");
    let sink = broker.sink(PATIENCE);
    let lost = |number: usize| number % 7 == 3;
    for round in 0..10 {
        let mixed: Vec<Message> = (round * 1000..round * 1000 + 1000)
            .map(|number| {
                to(
                    if lost(number) { ["nobody", "x/nobody", "x/"][number % 3] } else { ["a", "x/key"][number % 2] },
                    number,
                )
            })
            .collect();
        let outcomes = publish(&sink, mixed).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            let number = round * 1000 + index;
            if lost(number) {
                assert!(
                    is_fault_of_destination(outcome) && detail(outcome).contains("NO_ROUTE"),
                    "{number}: {outcome:?}"
                );
            } else {
                assert_eq!(*outcome, Outcome::Accepted, "{number}");
            }
        }
    }
    let mut received = broker.received("a");
    received.extend(broker.received("b"));
    let mut received = keys(&received);
    received.sort_unstable();
    let mut expected: Vec<String> = (0..10_000).filter(|number| !lost(*number)).map(|n| message("a", n).key).collect();
    expected.sort_unstable();
    assert_eq!(received, expected);
}

/// The same key twice in one batch, once to a queue and once to none. That is misuse, but no message may be lost
/// silently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_with_the_same_key_in_one_batch_get_their_own_outcomes() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    let outcomes = publish(&sink, vec![to("a", 1), to("nobody", 1), to("a", 1), to("nobody", 1)]).await;
    assert!(outcomes[0] == Outcome::Accepted && outcomes[2] == Outcome::Accepted, "{outcomes:?}");
    assert!(is_fault_of_destination(&outcomes[1]) && is_fault_of_destination(&outcomes[3]), "{outcomes:?}");
}

/// Rejecting one message closes the channel with two hundred others on it, while another call of the sink publishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversize_messages_are_rejected_and_the_two_hundred_others_are_accepted() {
    let Some(broker) = Shared::small() else { return };
    let sink = broker.sink(PATIENCE);
    for (size, round) in [(1, 0), (60_000, 1), (65_536, 2)] {
        let mut mixed = batch("a", round * 1000..round * 1000 + 203);
        mixed.iter_mut().for_each(|message| message.payload = Bytes::from(vec![b'x'; size]));
        for (at, size) in [(0, 65_537), (100, 70_000), (150, 1 << 20)] {
            mixed[at].payload = Bytes::from(vec![b'x'; size]);
        }
        let other = {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { publish(&sink, batch("b", round * 500..round * 500 + 500)).await })
        };
        let before = Instant::now();
        let outcomes = publish(&sink, mixed).await;
        assert!(before.elapsed() < SOON, "{:?}", before.elapsed());
        for (index, outcome) in outcomes.iter().enumerate() {
            if [0, 100, 150].contains(&index) {
                assert!(matches!(outcome, Outcome::Reject(detail) if detail.contains("message size")), "{outcome:?}");
            } else {
                assert_eq!(*outcome, Outcome::Accepted, "{index} of {size} bytes");
            }
        }
        assert_eq!(other.await.expect("no panic"), accepted(500), "another call notices");
    }
    let received = broker.received("a");
    let mut distinct = keys(&received);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 600);
    assert_eq!(broker.received("b").len(), 1500);
}

/// Every second message is too large, each by less than the one before. Each of these is rejected alone. The messages
/// between them are accepted, and sent twice at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_oversize_messages_are_all_rejected() {
    let Some(broker) = Shared::small() else { return };
    let mut mixed = batch("a", 0..200);
    for (index, message) in mixed.iter_mut().enumerate().step_by(2) {
        message.payload = Bytes::from(vec![b'x'; 65_736 - index]);
    }
    let sink = broker.sink(PATIENCE);
    for (index, outcome) in publish(&sink, mixed).await.iter().enumerate() {
        let is = if index % 2 == 0 { matches!(outcome, Outcome::Reject(_)) } else { *outcome == Outcome::Accepted };
        assert!(is, "{index}: {outcome:?}");
    }
    let received = broker.received("a").len();
    assert!((100..=200).contains(&received), "{received}");
}

/// The queue is full and rejects new messages, whatever they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nack_says_that_the_destination_refuses() {
    let Some(broker) = Shared::start() else { return };
    broker.server.with_channel(&broker.vhost, async |channel: Channel| {
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(3));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare("full".into(), options, arguments).await.expect("a queue");
    });
    let sink = broker.sink(PATIENCE);
    let mut mixed = batch("a", 0..100);
    mixed.iter_mut().step_by(2).for_each(|message| message.destination = "full".to_owned());
    let outcomes = publish(&sink, mixed).await;
    let nacked = |outcome: &Outcome| matches!(outcome, Outcome::Retry(trouble) if trouble.fault == Fault::Refusing && trouble.detail.starts_with("nack"));
    assert!(outcomes.iter().skip(1).step_by(2).all(|outcome| *outcome == Outcome::Accepted), "{outcomes:?}");
    let taken = outcomes.iter().step_by(2).filter(|outcome| **outcome == Outcome::Accepted).count();
    let refused = outcomes.iter().filter(|outcome| nacked(outcome)).count();
    assert_eq!(taken + refused, 50, "{outcomes:?}");
    assert_eq!(broker.received("full").len(), taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_amqp_cannot_carry_is_rejected() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    let long = "x".repeat(256);
    let with_header = |name: &str, value: &str| {
        let mut message = message("a", 1);
        message.headers = vec![(name.to_owned(), value.to_owned())];
        message
    };
    let bad = [
        to(&long, 1),
        to(&format!("{long}/key"), 1),
        to("", 1),
        to("/", 1),
        with_header(&long, ""),
        with_header("large", &"x".repeat(131_000)),
    ];
    for message in bad {
        if message.headers == super::super::message("a", 1).headers {
            sink.check_destination(&message.destination).expect_err(&message.destination);
        }
        let outcomes = publish(&sink, vec![super::super::message("a", 0), message]).await;
        assert_eq!(outcomes[0], Outcome::Accepted);
        assert!(matches!(outcomes[1], Outcome::Reject(_)), "{outcomes:?}");
    }
    let fits = with_header("large", &"x".repeat(65_000));
    assert_eq!(publish(&sink, vec![fits, to(&format!("/{}", "a"), 2)]).await, accepted(2));
    for good in ["queue", "exchange/", "exchange/a/b", "amq.topic/a.b", &long[1..]] {
        assert_eq!(sink.check_destination(good), Ok(()));
    }
}

/// The node's memory is full: it stops reading from publishers and tells them so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_server_gives_its_reason_and_receives_nothing_later() {
    let Some(rabbit) = <RabbitServer as Broker>::start() else { return };
    // A new connection must be reported within a quarter of this.
    let answer_timeout = ANSWER_TIMEOUT * 2;
    let sink = rabbit.sink(answer_timeout);
    publish_until_accepted(&sink, batch("a", 0..10)).await;
    rabbit.control(&["set_vm_memory_high_watermark", "0.0000001"]);
    let mut open: Vec<String> = Vec::new();
    for round in 0..3 {
        // More than the whole window, and more than the socket buffers.
        let payload = Bytes::from(vec![b'x'; 60_000]);
        let mut large = batch("b", round * 1000..round * 1000 + 1000);
        large.iter_mut().for_each(|message| message.payload = payload.clone());
        let keys: Vec<String> = large.iter().map(|message| message.key.clone()).collect();
        let outcomes = in_time(&format!("round {round}"), answer_timeout, publish(&sink, large)).await;
        for (key, outcome) in keys.into_iter().zip(&outcomes) {
            let Outcome::Retry(trouble) = outcome else { panic!("{outcome:?}") };
            assert!(trouble.fault == Fault::Sink && trouble.detail.starts_with("blocked: "), "{trouble:?}");
            if !trouble.definite {
                assert_eq!(round, 0, "a new connection is asked before anything is sent");
                open.push(key);
            }
        }
        // Each check uses a connection of its own.
        for sink in [&sink, &rabbit.sink(PATIENCE), &rabbit.sink(PATIENCE)] {
            let reason = sink.check().await.expect_err("it takes nothing").to_string();
            assert!(reason.contains("blocked: low on memory"), "{reason}");
        }
    }
    rabbit.control(&["set_vm_memory_high_watermark", "0.4"]);
    publish_until_accepted(&sink, batch("c", 0..100)).await;
    sink.check().await.expect("it takes messages again");
    // The node keeps what it received before the connection ended: at most some hundred kilobytes from its socket
    // buffer.
    let late = rabbit.received("b");
    let late = keys(&late);
    crate::support::say(&format!("RabbitMQ took {} of {} open messages later", late.len(), open.len()));
    assert!(late.iter().all(|key| open.iter().any(|open| open == key)), "what was certain not to arrive is there");
    assert!(late.len() <= 16, "what was answered long ago is sent now: {} of {}", late.len(), open.len());
}

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue_is_noticed_between_two_publishes() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("c", 0..10)).await, accepted(10));
    broker.server.with_channel(&broker.vhost, async |channel: Channel| {
        channel.queue_delete("c".into(), QueueDeleteOptions::default()).await.expect("it is deleted");
    });
    assert!(publish(&sink, batch("c", 0..10)).await.iter().all(is_fault_of_destination));
    broker.server.declare_queues(&broker.vhost, &["c"]);
    assert_eq!(publish(&sink, batch("c", 0..10)).await, accepted(10));
}

#[test]
fn a_user_without_a_password_is_refused() {
    let config = punctual_sinks::SinkConfig::parse("amqp://orders@127.0.0.1").expect("a URL");
    let reported = config.build().err().expect("no password").to_string();
    assert!(reported.contains("names a user without a password") && !reported.contains("orders"), "{reported}");
}

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_login_is_reported_with_its_reason_and_without_the_secret() {
    let Some(broker) = Shared::start() else { return };
    let (port, vhost) = (broker.server.server.port, &broker.vhost);
    let good = sink(&format!("amqp://us%40er:s3cret%2F%3A@127.0.0.1:{port}/{vhost}"), PATIENCE);
    good.check().await.expect("let in");
    assert_eq!(publish(&good, batch("a", 0..1)).await, accepted(1));
    for (url, expected) in [
        (format!("amqp://us%40er:wrong-s3cret@127.0.0.1:{port}"), "ACCESS_REFUSED - Login was refused"),
        (format!("amqp://nobody:s3cret@127.0.0.1:{port}"), "ACCESS_REFUSED - Login was refused"),
        (format!("amqp://us%40er:s3cret%2F%3A@127.0.0.1:{port}/elsewhere"), "vhost elsewhere not found"),
    ] {
        let sink = sink(&url, PATIENCE);
        let before = Instant::now();
        let outcomes = publish(&sink, batch("a", 0..1)).await;
        assert!(before.elapsed() < SOON, "the refusal is waited for");
        let is = matches!(&outcomes[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite);
        assert!(is && detail(&outcomes[0]).contains(expected), "{outcomes:?}");
        let reported = sink.check().await.expect_err("not let in").to_string();
        assert!(reported.contains(expected), "{reported}");
        assert!(!reported.contains("s3cret") && !format!("{outcomes:?}").contains("s3cret"), "{reported}");
    }
}

/// An operation that the user may not do is the destination's fault; other destinations continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_operation_is_the_fault_of_the_destination() {
    let Some(Shared { server: rabbit, vhost }) = Shared::start() else { return };
    declare_exchange(&rabbit, &vhost, "mine");
    declare_exchange(&rabbit, &vhost, "theirs");
    let permit = |write| rabbit.control(&["set_permissions", "--vhost", &vhost, "narrow", "", write, ""]);
    permit("mine|amq\\.default");
    let url = format!("amqp://narrow:pass@127.0.0.1:{}/{vhost}", rabbit.server.port);
    let narrow = sink(&url, PATIENCE);
    narrow.check().await.expect("this user may publish");
    let mut mixed: Vec<Message> = (0..100).map(|number| to(["a", "mine/key"][number % 2], number)).collect();
    mixed[30].destination = "theirs/key".to_owned();
    let outcomes = publish(&narrow, mixed).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 30 {
            let is = matches!(outcome, Outcome::Retry(trouble) if trouble.fault == Fault::Destination);
            assert!(is && detail(outcome).contains("ACCESS_REFUSED"), "{outcome:?}");
        } else {
            assert_eq!(*outcome, Outcome::Accepted, "{index}");
        }
    }
    permit("nothing");
    narrow.check().await.expect("the server answers");
}

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_server_of_several_that_is_up_is_used() {
    let Some(broker) = Shared::start() else { return };
    let absent = crate::support::server::free_port();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_port = silent.local_addr().expect("an address").port();
    let (port, vhost) = (broker.server.server.port, &broker.vhost);
    let behind = |other: u16| format!("amqp://127.0.0.1:{other},127.0.0.1:{port}/{vhost}");
    assert_eq!(publish(&sink(&behind(absent), PATIENCE), batch("a", 0..1)).await, accepted(1));
    // The sink waits for the silent server's share of the time. With a short timeout, a busy server may not answer in
    // the rest.
    publish_until_accepted(&sink(&behind(silent_port), ANSWER_TIMEOUT), batch("a", 0..1)).await;
    let neither = sink(&format!("amqp://127.0.0.1:{absent},127.0.0.1:{silent_port}"), ANSWER_TIMEOUT);
    let reported = neither.check().await.expect_err("nobody is there").to_string();
    assert!(reported.contains("refused") && reported.contains("no answer within"), "{reported}");
}
