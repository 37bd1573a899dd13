//! Redis Streams: the suite, and tests for Redis alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::{DestinationState, Fault, Outcome, Sink, SinkConfig, Trouble};

use super::{Broker, PATIENCE, Process, Received, accepted, batch, in_time, keys, message, publish, suite};
use crate::support::redis::RedisServer;
use crate::support::server::Server;

impl Broker for RedisServer {
    /// Keeps everything that it has answered through a kill: Redis writes before it answers, and a busy disk never
    /// delays the write.
    fn start() -> Option<RedisServer> {
        let arguments = ["--proto-max-bulk-len", "1mb", "--appendonly", "yes", "--appendfsync", "no"];
        crate::support::have("redis-server").then(|| RedisServer::start(&arguments))
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.url(), answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let entries = self.stream(destination);
        assert!(entries.is_sorted_by_key(|entry| entry.stored_ms));
        entries
            .into_iter()
            .map(|entry| {
                let headers = entry.fields.iter().map(|(name, _)| name.as_str());
                let headers = headers.filter(|name| !matches!(*name, "idempotency-key" | "payload"));
                let text = |name: &str| entry.text(name).expect("a field").to_owned();
                Received {
                    key: text("idempotency-key"),
                    headers: headers.map(|name| (name.to_owned(), text(name))).collect(),
                    payload: entry.field("payload").expect("a payload").to_vec(),
                }
            })
            .collect()
    }
}

impl Process for RedisServer {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn sink(url: &str, answer_timeout: Duration) -> Arc<dyn Sink> {
    let config = SinkConfig::parse(url).expect("a good URL").with_answer_timeout(answer_timeout);
    config.build().expect("a sink")
}

suite!(RedisServer:
    capabilities::a_batch_arrives_once_and_in_order,
    capabilities::an_empty_batch_ends_at_once,
    capabilities::key_headers_and_payload_arrive_intact,
    capabilities::large_payloads_arrive,
    capabilities::concurrent_batches_do_not_mix,
    capabilities::a_stream_that_is_not_polled_sends_nothing,
    capabilities::a_dropped_stream_sends_nothing_more,
    capabilities::close_under_load_loses_no_accepted_message,
    capabilities::a_check_succeeds_and_publishes_nothing,
    capabilities::a_closed_sink_fails_the_check_and_does_not_reconnect,
    outages::a_killed_server_is_a_fault_of_the_sink_until_it_is_back,
    outages::a_server_killed_during_a_batch_leaves_every_outcome_correct,
    outages::a_stopped_server_is_a_retry_within_the_timeout_and_recovers,
    outages::messages_held_when_the_server_died_are_never_sent,
    outages::a_lost_idle_connection_is_reopened,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_message_does_not_affect_the_others_of_its_batch() {
    let Some(redis) = <RedisServer as Broker>::start() else { return };
    ::redis::cmd("SET").arg("b").arg("no stream").exec(&mut redis.connect()).expect("SET");
    let sink = redis.sink(PATIENCE);
    let mut mixed = batch("a", 0..5);
    mixed[1].destination = "b".to_owned();
    mixed[3].destination = "punctual:{default:0}:tasks".to_owned();
    let outcomes = publish(&sink, mixed).await;
    let of_stream = |trouble: &Trouble| trouble.fault == Fault::Destination && trouble.detail.starts_with("WRONGTYPE ");
    assert!(
        matches!(&outcomes[1], Outcome::Retry(trouble) if of_stream(trouble)),
        "an operator can repair the key: {outcomes:?}"
    );
    assert!(matches!(&outcomes[3], Outcome::Reject(detail) if detail.contains("punctual:")), "{outcomes:?}");
    let no_stream = DestinationState::Missing("the key is no stream but a string".to_owned());
    assert_eq!(sink.look_for("b").await.unwrap(), no_stream);
    for stream in ["a", "made by the first message"] {
        assert_eq!(sink.look_for(stream).await.unwrap(), DestinationState::Exists);
    }
    for index in [0, 2, 4] {
        assert_eq!(outcomes[index], Outcome::Accepted);
    }
    assert_eq!(redis.received("a").len(), 3);
}

/// The server would close the connection on such a command, and every command in flight would be lost with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversize_payload_is_rejected_alone() {
    let Some(redis) = <RedisServer as Broker>::start() else { return };
    let sink = redis.sink(PATIENCE);
    let mut mixed = batch("a", 0..9);
    mixed[2].payload = Bytes::from(vec![b'x'; 1 << 20]);
    mixed[4].payload = Bytes::from(vec![b'x'; (1 << 20) + 1]);
    let mut outcomes = publish(&sink, mixed).await;
    let rejected = outcomes.remove(4);
    assert!(matches!(&rejected, Outcome::Reject(detail) if detail.contains("1048577 bytes are over")), "{rejected:?}");
    assert_eq!(outcomes, accepted(8));
    assert_eq!(redis.received("a").len(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_or_read_only_redis_is_the_sinks_fault() {
    let Some(redis) = <RedisServer as Broker>::start() else { return };
    let sink = redis.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("a", 0..1)).await, accepted(1));
    let set = |name: &str, value: &str| {
        ::redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut redis.connect()).expect("CONFIG SET");
    };
    set("maxmemory", "100kb");
    let full = publish(&sink, batch("a", 1..2)).await;
    assert!(
        matches!(&full[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite && t.detail.starts_with("OOM "))
    );
    set("maxmemory", "0");
    let replica_of = |host: &str, port: &str| {
        ::redis::cmd("REPLICAOF").arg(host).arg(port).exec(&mut redis.connect()).expect("REPLICAOF");
    };
    replica_of("127.0.0.1", "1");
    let read_only = publish(&sink, batch("a", 1..2)).await;
    assert!(matches!(&read_only[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite), "{read_only:?}");
    replica_of("NO", "ONE");
    assert_eq!(publish(&sink, batch("a", 1..2)).await, accepted(1));
    assert_eq!(keys(&redis.received("a")), [message("a", 0).key, message("a", 1).key]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_does_not_serve_the_stream_is_the_sinks_fault() {
    if !crate::support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start_node(&["--cluster-require-full-coverage", "no"]);
    let sink = redis.sink(PATIENCE);
    let outcomes = publish(&sink, batch("a", 0..2)).await;
    assert!(outcomes.iter().all(|o| matches!(o, Outcome::Retry(t)
            if t.fault == Fault::Sink && t.definite && t.detail.starts_with("CLUSTERDOWN"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_that_is_refused_is_the_sinks_fault_and_shows_no_secret() {
    if !crate::support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let address = format!("127.0.0.1:{}", redis.server.port);
    let good = sink(&format!("redis://:hunter2@{address}/1"), PATIENCE);
    good.check().await.expect("the right password");
    assert_eq!(publish(&good, batch("a", 0..1)).await, accepted(1));
    for user_info in ["", ":s3cret@"] {
        let sink = sink(&format!("redis://{user_info}{address}"), PATIENCE);
        let outcomes = publish(&sink, batch("a", 0..1)).await;
        assert!(matches!(&outcomes[0], Outcome::Retry(t) if t.fault == Fault::Sink && t.definite), "{outcomes:?}");
        let detail = sink.check().await.expect_err("not let in").to_string();
        assert!(detail.contains(&address) && !detail.contains("s3cret") && !format!("{outcomes:?}").contains("s3cret"));
    }
}

/// A stream that the user may not write is only that stream's trouble: the connection stays, with all commands in
/// flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_permission_does_not_affect_other_streams() {
    let Some(redis) = <RedisServer as Broker>::start() else { return };
    let mut admin = redis.connect();
    let mut user = ::redis::cmd("ACL");
    user.arg(&["SETUSER", "sink", "on", ">hunter2", "~a", "+xadd", "+ping", "+client", "+select"]);
    user.exec(&mut admin).expect("a user");
    let connections = |admin: &mut ::redis::Connection| {
        let list: String = ::redis::cmd("CLIENT").arg("LIST").query(admin).expect("CLIENT LIST");
        let ours = list.lines().filter(|line| line.contains(" user=sink "));
        ours.map(|line| line.split(' ').next().expect("id=").to_owned()).collect::<Vec<_>>()
    };
    let sink = sink(&format!("redis://sink:hunter2@127.0.0.1:{}", redis.server.port), PATIENCE);
    sink.check().await.expect("this user is let in");
    let before = connections(&mut admin);
    assert_eq!(before.len(), 1, "{before:?}");
    let others = {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move { publish(&sink, batch("a", 0..20_000)).await })
    };
    while !others.is_finished() {
        let refused = publish(&sink, batch("b", 0..1)).await;
        let expected = |t: &punctual_sinks::Trouble| t.fault == Fault::Destination && t.definite;
        assert!(matches!(&refused[0], Outcome::Retry(trouble) if expected(trouble)), "{refused:?}");
    }
    assert_eq!(others.await.expect("no panic"), accepted(20_000));
    assert_eq!(connections(&mut admin), before, "the connection stays");
}

/// A listener that accepts connections and never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_listener_is_a_retry_within_the_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = silent.local_addr().expect("an address");
    for scheme in ["redis", "nats"] {
        let sink = sink(&format!("{scheme}://{address}"), Duration::from_secs(1));
        let calls = futures_util::future::join_all((0..10).map(|_| publish(&sink, batch("a", 0..10))));
        for outcome in in_time(scheme, Duration::from_secs(2), calls).await.into_iter().flatten() {
            assert!(matches!(&outcome, Outcome::Retry(t) if t.fault == Fault::Sink && t.definite), "{outcome:?}");
        }
    }
}
