//! Servers that behave as RabbitMQ rarely or never does. The sink accepts nothing without an acknowledgement, reports
//! nothing as certain that is not, never hangs, and sends nothing after it has given a message up.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use punctual_sinks::{Fault, Message, Outcome, Sink};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::super::{PATIENCE, accepted, batch, in_time, publish, publish_until, publish_until_accepted};
use super::scripted::{Peer, Scripted, Seen, Tune, USUAL, frame, refusal};
use super::sink;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

fn sink_of(server: &Scripted) -> Arc<dyn Sink> {
    sink(&format!("amqp://127.0.0.1:{}", server.port), ANSWER_TIMEOUT)
}

/// A sink with a long timeout, for servers that answer.
fn patient(server: &Scripted) -> Arc<dyn Sink> {
    sink(&format!("amqp://127.0.0.1:{}", server.port), PATIENCE)
}

/// Whether the outcome is a timeout, which a slow machine can cause, too.
fn is_late(detail: &str) -> bool {
    detail.contains("no answer") || detail.contains("has said nothing")
}

/// Checks the sink until the server answers. A sink with a short timeout may fail at first.
async fn reach(name: &str, sink: &Arc<dyn Sink>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = in_time(name, sink.answer_timeout(), sink.check()).await {
        assert!(is_late(&error.to_string()) && Instant::now() < deadline, "{name}: {error}");
    }
}

fn acknowledge(peer: &Peer, seen: &Seen) -> io::Result<()> {
    peer.ack(seen.channel, seen.tag, false)
}

fn may_have_arrived(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Retry(trouble) if !trouble.definite)
}

/// More than fits into the socket buffers of a server that does not read.
fn large() -> Vec<Message> {
    let payload = Bytes::from(vec![b'x'; 16 * 1024]);
    batch("a", 0..200).into_iter().map(|message| Message { payload: payload.clone(), ..message }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_leaves_messages_sent_before_it_unconfirmed() {
    for (code, detail) in [
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'"),
        (403, "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'guest'"),
        (541, "INTERNAL_ERROR"),
    ] {
        // The first three may be in their queue when the channel closes. So their outcome stays uncertain, although the
        // server refuses what the sink then sends again.
        let server = Scripted::start(USUAL, move |peer, seen| match seen.before {
            0 | 1 => Ok(()),
            2 => peer.close(seen.channel, 406, "PRECONDITION_FAILED - of one of them"),
            _ => peer.close(seen.channel, code, detail),
        });
        let outcomes = publish(&patient(&server), batch("a", 0..3)).await;
        assert!(outcomes.iter().all(may_have_arrived), "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_refusal_with_a_known_code_is_a_definite_failure() {
    for (code, definite) in [(541, false), (504, false), (999, false), (404, true), (312, true)] {
        let server = Scripted::start(USUAL, move |peer, seen| peer.close(seen.channel, code, "so it is"));
        let outcomes = publish(&patient(&server), batch("a", 0..1)).await;
        assert!(
            matches!(&outcomes[0], Outcome::Retry(trouble) if trouble.definite == definite),
            "{code}: {outcomes:?}"
        );
    }
}

/// A proxy or another server may return a message under another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_returned_under_another_name_is_not_accepted() {
    for (exchange, key, id) in [("", "A", "a-1:1700000000123"), ("x", "a", "a-1:1700000000123"), ("", "a", "other")] {
        let server = Scripted::start(USUAL, move |peer, seen| {
            if seen.tag == 3 {
                peer.return_message(seen.channel, exchange, key, id)?;
                peer.ack(seen.channel, 3, true)?;
            }
            Ok(())
        });
        let outcomes = publish(&patient(&server), batch("a", 0..3)).await;
        assert!(outcomes.iter().all(may_have_arrived), "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_given_up_while_the_server_was_blocked_are_not_sent_later() {
    let server = Scripted::start(USUAL, acknowledge);
    let sink = sink_of(&server);
    publish_until_accepted(&sink, batch("a", 0..1)).await;
    server.block(true);
    let outcomes = publish(&sink, large()).await;
    let blocked = |outcome: &Outcome| matches!(outcome, Outcome::Retry(t) if t.fault == Fault::Sink && t.detail == "blocked: low on patience");
    assert!(outcomes.iter().all(blocked), "{outcomes:?}");
    // On a new connection the sink waits for `connection.blocked` before it sends. It may arrive too late.
    let late = |outcome: &Outcome| matches!(outcome, Outcome::Retry(t) if is_late(&t.detail));
    let is_reported_blocked = |outcome: &Outcome| {
        assert!(!may_have_arrived(outcome) && (blocked(outcome) || late(outcome)), "{outcome:?}");
        blocked(outcome)
    };
    publish_until(&sink, large(), is_reported_blocked).await;
    assert!(sink.check().await.expect_err("it takes nothing").to_string().contains("blocked: low on patience"));
    server.block(false);
    sleep(Duration::from_millis(500)).await;
    assert!(server.messages() <= 10, "{} of 400", server.messages());
    publish_until_accepted(&sink, batch("a", 0..10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_dropped_publish_to_a_blocked_server_are_not_sent_later() {
    let server = Scripted::start(USUAL, acknowledge);
    let sink = sink_of(&server);
    publish_until_accepted(&sink, batch("a", 0..1)).await;
    server.block(true);
    let (mut answers, before) = (sink.publish(large()), Instant::now());
    let nothing = tokio::time::timeout(ANSWER_TIMEOUT / 4, answers.next()).await;
    // Unless the machine paused until the timeout.
    assert!(nothing.is_err() || before.elapsed() >= ANSWER_TIMEOUT / 2, "{nothing:?}");
    drop(answers);
    sleep(ANSWER_TIMEOUT * 3 / 2).await;
    server.block(false);
    sleep(Duration::from_millis(500)).await;
    assert!(server.messages() <= 10, "{} of 200", server.messages());
    publish_until_accepted(&sink, batch("a", 0..10)).await;
}

/// The server sends heartbeats but reads slowly: one message at a time, then none for a long time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_a_slow_server_did_not_read_are_not_sent_later() {
    let server = Scripted::start(USUAL, |peer, seen| {
        if seen.before == 3 {
            std::thread::sleep(ANSWER_TIMEOUT * 5 / 2);
        }
        acknowledge(peer, seen)
    });
    let sink = sink_of(&server);
    reach("at first", &sink).await;
    let outcomes = publish(&sink, large()).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Accepted).count(), 3);
    sleep(ANSWER_TIMEOUT * 2).await;
    assert!(server.messages() <= 10, "{} of 200", server.messages());
    // The closed connection has left no task behind.
    drop(sink);
    let deadline = Instant::now() + PATIENCE;
    while Handle::current().metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "{} tasks are left", Handle::current().metrics().num_alive_tasks());
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nack_of_several_messages_applies_to_each() {
    let server = Scripted::start(USUAL, |peer, seen| match seen.before {
        2 => peer.nack(seen.channel, seen.tag - 1, true).and_then(|()| peer.ack(seen.channel, seen.tag, true)),
        _ => Ok(()),
    });
    let outcomes = publish(&patient(&server), batch("a", 0..3)).await;
    assert!(may_have_arrived(&outcomes[0]) && may_have_arrived(&outcomes[1]), "{outcomes:?}");
    assert_eq!(outcomes[2], Outcome::Accepted);
}

/// Whatever the server answers: the outcome comes in time and is never `Accepted`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_answers_are_not_taken_as_outcomes_and_not_waited_for() {
    type Script = fn(&Peer, &Seen) -> io::Result<()>;
    let scripts: [(&str, Script); 20] = [
        ("silence", |_, _| Ok(())),
        ("the end", |peer, _| peer.leave()),
        ("half a frame", |peer, _| peer.raw(b"\x01\0\x01\0\0\0\x0d\0\x3c")),
        ("half a frame, and the end", |peer, _| peer.raw(b"\x01\0\x01\0\0\0\x0d\0\x3c").and_then(|()| peer.leave())),
        ("an answer cut short", |peer, seen| peer.method(seen.channel, 60, 80, &[0, 0])),
        ("an empty method", |peer, seen| peer.frame(1, seen.channel, &[])),
        ("a frame without its end", |peer, seen| {
            let mut bytes = frame(1, seen.channel, &[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            *bytes.last_mut().expect("bytes") = 0;
            peer.raw(&bytes)
        }),
        ("a frame of four gigabytes", |peer, _| peer.raw(b"\x01\0\x01\xff\xff\xff\xff")),
        ("a frame of an unknown kind", |peer, seen| peer.frame(77, seen.channel, &[1, 2, 3])),
        ("another protocol", |peer, _| peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        ("unknown methods", |peer, seen| {
            peer.method(seen.channel, 999, 1, &[1; 99])?;
            peer.method(0, 10, 70, &[])?;
            peer.method(seen.channel, 60, 81, &[0; 9])
        }),
        ("an answer for what was never sent", |peer, seen| peer.ack(seen.channel, seen.tag + 1000, false)),
        ("answers up to what was never sent", |peer, seen| {
            peer.ack(seen.channel, u64::MAX, true)?;
            peer.ack(seen.channel, seen.tag + 1000, true)
        }),
        ("answers up to nothing", |peer, seen| peer.ack(seen.channel, 0, true)),
        ("an answer on another channel", |peer, seen| peer.ack(seen.channel + 7, seen.tag, true)),
        ("an answer on no channel", |peer, seen| peer.ack(0, seen.tag, true)),
        ("a return cut short by its answer", |peer, seen| {
            peer.announce_return(seen.channel, "", "a")?;
            peer.ack(seen.channel, seen.tag, false)
        }),
        ("a body of nothing", |peer, seen| {
            peer.frame(3, seen.channel, &[1; 100])?;
            peer.frame(2, seen.channel, &[0, 60, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0])
        }),
        ("a second login", |peer, _| {
            peer.method(0, 10, 10, &[])?;
            peer.method(0, 10, 30, &[0, 1, 0, 0, 0, 1, 0, 1])
        }),
        ("the end, with words", |peer, _| peer.method(0, 10, 50, &refusal(320, "CONNECTION_FORCED - done"))),
    ];
    join_all(scripts.into_iter().map(|(name, script)| async move {
        let server = Scripted::start(USUAL, script);
        let sink = sink(&format!("amqp://127.0.0.1:{}", server.port), ANSWER_TIMEOUT * 2);
        reach(name, &sink).await;
        let outcomes = in_time(name, ANSWER_TIMEOUT * 2, publish(&sink, batch("a", 0..3))).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Retry(_))), "{name}: {outcomes:?}");
        assert!(may_have_arrived(&outcomes[0]), "{name}: {outcomes:?}");
        // The fault is over: the server answers a check.
        reach(name, &sink).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_few_channels_is_reported_at_login() {
    let server = Scripted::start(Tune { channels: 3, ..USUAL }, acknowledge);
    let sink = patient(&server);
    let reported = sink.check().await.expect_err("too few channels").to_string();
    assert!(reported.contains("3 channels"), "{reported}");
    let outcomes = publish(&sink, batch("a", 0..1)).await;
    assert!(matches!(&outcomes[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite), "{outcomes:?}");
    // The smallest limits, and no limits at all.
    for tune in [Tune { frame: 4096, channels: 4, ..USUAL }, Tune { frame: 0, channels: 0, heartbeat: 0, beats: true }]
    {
        let server = Scripted::start(tune, acknowledge);
        let sink = patient(&server);
        let calls = (0..8).map(|call| publish(&sink, batch("a", call * 100..call * 100 + 100)));
        join_all(calls).await.into_iter().for_each(|outcomes| assert_eq!(outcomes, accepted(100)));
    }
}

/// A server that asks for no heartbeats still sends them when the client asks. Otherwise no one would notice its death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_distinguished_from_a_slow_destination() {
    for (beats, fault) in [(true, Fault::Unanswered), (false, Fault::Sink)] {
        let mut reported = Vec::new();
        // The sink reports `Fault::Sink` after 2 s without a sign of the server. Try again if the machine paused.
        for _ in 0..3 {
            let server = Scripted::start(Tune { heartbeat: 0, beats, ..USUAL }, |_, _| Ok(()));
            let sink = sink(&format!("amqp://127.0.0.1:{}", server.port), ANSWER_TIMEOUT * 3);
            reach("connected", &sink).await;
            reported = publish(&sink, batch("a", 0..1)).await;
            if matches!(&reported[0], Outcome::Retry(trouble) if trouble.fault == fault) {
                break;
            }
        }
        assert!(matches!(&reported[0], Outcome::Retry(trouble) if trouble.fault == fault), "{reported:?}");
    }
}
