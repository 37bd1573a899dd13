//! A sink whose server is killed, hangs, or is restarted between two publishes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::{Fault, Outcome, Sink};

use super::{ANSWER_TIMEOUT, PATIENCE, Process, accepted, batch, in_time, keys, publish, publish_until_accepted};

/// The answer timeout, plus the time that a busy machine needs to count 20 000 outcomes.
const IN_TIME: Duration = Duration::from_millis(4000);

pub(super) async fn a_killed_server_is_a_fault_of_the_sink_until_it_is_back(mut broker: impl Process) {
    let sink = broker.sink(ANSWER_TIMEOUT);
    publish_until_accepted(&sink, batch("a", 0..10)).await;
    broker.server().kill();
    for round in 0..3 {
        for outcome in in_time(&format!("round {round}"), IN_TIME, publish(&sink, batch("b", 0..500))).await {
            assert!(matches!(&outcome, Outcome::Retry(t) if t.fault == Fault::Sink), "{outcome:?}");
        }
    }
    sink.check().await.expect_err("nobody is there");
    broker.server().restart();
    publish_until_accepted(&sink, batch("c", 0..500)).await;
    sink.check().await.expect("it is back");
    assert_eq!(broker.received("b"), [], "what was answered long ago is sent now");
    leaves_nothing_behind(sink).await;
}

/// Publishes batches until the server is killed during one. After its restart it has every accepted message, and none
/// that was reported as definitely not sent.
pub(super) async fn a_server_killed_during_a_batch_leaves_every_outcome_correct(mut broker: impl Process) {
    let sink = broker.sink(PATIENCE);
    let under_load = Arc::new(tokio::sync::Notify::new());
    let mut load = {
        let (sink, under_load) = (Arc::clone(&sink), Arc::clone(&under_load));
        tokio::spawn(async move {
            let (mut accepted_keys, mut refused_keys) = (Vec::new(), Vec::new());
            for round in 0..200 {
                let batch = batch("a", round * 1000..round * 1000 + 1000);
                let outcomes = publish(&sink, batch.clone()).await;
                assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Reject(_))));
                for (message, outcome) in batch.into_iter().zip(&outcomes) {
                    match outcome {
                        Outcome::Accepted => accepted_keys.push(message.key),
                        Outcome::Retry(trouble) if trouble.definite => refused_keys.push(message.key),
                        _ => {}
                    }
                }
                if outcomes.iter().any(|outcome| *outcome != Outcome::Accepted) {
                    return (accepted_keys, refused_keys);
                }
                under_load.notify_one();
            }
            panic!("the server was killed and nobody noticed");
        })
    };
    tokio::select! {
        () = under_load.notified() => {}
        ended = &mut load => panic!("not all is accepted of a server that is there: {:?}", ended.map(drop)),
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    broker.server().kill();
    let (accepted_keys, refused_keys) = load.await.expect("no panic");
    broker.server().restart();
    publish_until_accepted(&sink, batch("b", 0..10)).await;
    let received = broker.received("a");
    let received: HashSet<&str> = keys(&received).into_iter().collect();
    for key in accepted_keys {
        assert!(received.contains(key.as_str()), "{key} was accepted and is lost");
    }
    for key in refused_keys {
        assert!(!received.contains(key.as_str()), "{key} was definitely not taken and is there");
    }
}

pub(super) async fn a_stopped_server_is_a_retry_within_the_timeout_and_recovers(mut broker: impl Process) {
    let sink = broker.sink(ANSWER_TIMEOUT);
    publish_until_accepted(&sink, batch("a", 0..10)).await;
    broker.server().signal("STOP");
    // The first round finds the connection open; the second opens a new one to a server that does not answer.
    for round in 0..2 {
        for outcome in in_time(&format!("round {round}"), IN_TIME, publish(&sink, batch("b", 0..20_000))).await {
            assert!(matches!(&outcome, Outcome::Retry(t) if t.fault != Fault::Destination), "{outcome:?}");
        }
    }
    in_time("the check", IN_TIME, sink.check()).await.expect_err("nobody answers");
    broker.server().signal("CONT");
    publish_until_accepted(&sink, batch("c", 0..500)).await;
    assert!(broker.received("c").len() >= 500);
    leaves_nothing_behind(sink).await;
}

/// The server hangs with more in flight than the sockets hold, then dies. Every message is answered `Retry`. A client
/// library that sent the rest to the next server would publish messages that the engine no longer waits for.
pub(super) async fn messages_held_when_the_server_died_are_never_sent(mut broker: impl Process) {
    // A long timeout, so that the server's death decides the outcomes.
    let sink = broker.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
    broker.server().signal("STOP");
    let mut held = batch("b", 0..20_000);
    held.iter_mut().for_each(|message| message.payload = Bytes::from(vec![b'x'; 3000]));
    let publishing = {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move { publish(&sink, held).await })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    broker.server().restart();
    let outcomes = publishing.await.expect("no panic");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Retry(t) if t.fault == Fault::Sink)));
    publish_until_accepted(&sink, batch("c", 0..1)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(broker.received("b").len(), 0, "sent after it was answered");
}

/// A restart between two publishes costs nothing: the sink noticed the lost connection and gave it no message.
pub(super) async fn a_lost_idle_connection_is_reopened(mut broker: impl Process) {
    let sink = broker.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
    broker.server().kill();
    broker.server().restart();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(publish(&sink, batch("b", 0..1)).await, accepted(1));
    assert_eq!(keys(&broker.received("b")), ["b-0:1700000000123"]);
}

/// Checks that no task is left: a task of the client library that outlives its connection would keep its unsent
/// messages.
async fn leaves_nothing_behind(sink: Arc<dyn Sink>) {
    drop(sink);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // 3 s, not counting pauses of this process.
    for _ in 0..300 {
        if tasks() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} tasks are left", tasks());
}
