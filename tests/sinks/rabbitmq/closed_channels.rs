//! Channels that close with many messages in flight, beside other channels that must not be affected; and many returned
//! messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use punctual_sinks::{Fault, Message, Outcome};

use super::super::{Broker, PATIENCE, accepted, batch, keys, message, publish};
use super::Shared;

/// Again and again, the server closes a channel for a message that is too large, and the sink closes one whose publish
/// was dropped. A frame sent after either would end the connection, and the other publish with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_or_dropped_publish_does_not_affect_other_publishes() {
    const ROUNDS: usize = 40;
    let Some(broker) = Shared::small() else { return };
    let sink = broker.sink(PATIENCE);
    let of_size = |batch: Vec<Message>, size: usize| -> Vec<Message> {
        let payload = Bytes::from(vec![b'x'; size]);
        batch.into_iter().map(|message| Message { payload: payload.clone(), ..message }).collect()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let other = {
        let (sink, stop) = (Arc::clone(&sink), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut published = 0;
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(publish(&sink, batch("b", published..published + 100)).await, accepted(100));
                published += 100;
            }
            published
        })
    };
    for round in 0..ROUNDS {
        let mut refused = of_size(batch("a", round * 100..round * 100 + 100), 60_000);
        let large = round % 10;
        refused[large].payload = Bytes::from(vec![b'x'; 70_000]);
        let dropped = async {
            let mut answers = sink.publish(of_size(batch("c", round * 200..round * 200 + 200), 16_000));
            answers.next().await;
        };
        let (outcomes, ()) = tokio::join!(publish(&sink, refused), dropped);
        for (index, outcome) in outcomes.iter().enumerate() {
            assert_eq!(matches!(outcome, Outcome::Reject(_)), index == large, "round {round}, {index}: {outcome:?}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    let published = other.await.expect("no panic");
    let received = broker.received("b");
    let mut distinct = keys(&received);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((received.len(), distinct.len()), (published, published));
}

/// Every hundredth or every second message of each publish matches no queue. The sink tells exactly those from the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_unroutable_message_is_found_among_many_concurrent_publishes() {
    const CALLS: usize = 16;
    const EACH: usize = 3125;
    for every in [100, 2] {
        let Some(broker) = Shared::start() else { return };
        let sink = broker.sink(PATIENCE);
        let is_lost = |number: usize| number % every == 1;
        let calls = (0..CALLS).map(|call| {
            let numbers = call * EACH..(call + 1) * EACH;
            let to = |number| message(if is_lost(number) { "nobody" } else { "a" }, number);
            publish(&sink, numbers.map(to).collect())
        });
        let outcomes = join_all(calls).await.into_iter().flatten();
        let mut lost = 0;
        for (number, outcome) in outcomes.enumerate() {
            if is_lost(number) {
                lost += 1;
                let is = matches!(&outcome, Outcome::Retry(t) if t.fault == Fault::Destination && t.definite);
                assert!(is, "{number}, every {every}th: {outcome:?}");
            } else {
                assert_eq!(outcome, Outcome::Accepted, "{number}, every {every}th");
            }
        }
        assert_eq!(broker.server.count(&broker.vhost, "a"), CALLS * EACH - lost);
    }
}
