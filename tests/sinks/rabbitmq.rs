//! RabbitMQ: the suite, and tests for RabbitMQ alone.

mod client;
mod closed_channels;
mod exchanges;
mod odd;
mod read_by_http;
pub(super) mod refusals;
mod scripted;
mod secured;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lapin::message::Delivery;
use lapin::types::AMQPValue;
use punctual_sinks::{Fault, Outcome, Sink, SinkConfig};

use super::{Broker, Process, Received, batch, publish, publish_until_accepted, suite};
use crate::support::have;
use crate::support::rabbitmq::RabbitServer;
use crate::support::server::Server;

/// A virtual host on a server that several tests share, because each server takes some seconds to start.
struct Shared {
    server: Arc<RabbitServer>,
    vhost: String,
}

/// A server while a test uses it, and how many of its virtual hosts are taken.
type Running = Mutex<(Weak<RabbitServer>, usize)>;

/// More virtual hosts than tests that share a server.
const VHOSTS: usize = 32;

impl Shared {
    /// On a server that takes messages of 64 KiB at most.
    fn small() -> Option<Shared> {
        static RUNNING: Running = Mutex::new((Weak::new(), 0));
        Shared::on(&RUNNING, "max_message_size = 65536")
    }

    fn on(running: &Running, config: &str) -> Option<Shared> {
        if !have("rabbitmq-server") {
            return None;
        }
        let mut running = running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let server = running.0.upgrade().filter(|_| running.1 < VHOSTS).unwrap_or_else(|| {
            let vhosts: Vec<String> = (1..=VHOSTS).map(|number| format!("v{number}")).collect();
            let vhosts: Vec<&str> = vhosts.iter().map(String::as_str).collect();
            running.1 = 0;
            Arc::new(RabbitServer::start(config, &vhosts, &[("us@er", "s3cret/:"), ("narrow", "pass")]))
        });
        running.0 = Arc::downgrade(&server);
        running.1 += 1;
        let shared = Shared { server, vhost: format!("v{}", running.1) };
        drop(running);
        shared.server.declare_queues(&shared.vhost, &["a", "b", "c"]);
        Some(shared)
    }
}

impl Broker for Shared {
    fn start() -> Option<Shared> {
        static RUNNING: Running = Mutex::new((Weak::new(), 0));
        Shared::on(&RUNNING, "")
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.server.url(&self.vhost), answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        received(&self.server, &self.vhost, destination)
    }
}

impl Broker for RabbitServer {
    fn start() -> Option<RabbitServer> {
        let rabbit = have("rabbitmq-server").then(|| RabbitServer::start("", &[], &[]))?;
        rabbit.declare_queues("", &["a", "b", "c"]);
        Some(rabbit)
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.url(""), answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        received(self, "", destination)
    }
}

impl Process for RabbitServer {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn sink(url: &str, answer_timeout: Duration) -> Arc<dyn Sink> {
    let config = SinkConfig::parse(url).expect("a good URL").with_answer_timeout(answer_timeout);
    config.build().expect("a sink")
}

/// A new password in the file applies at the next login.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_is_read_again_at_each_login() {
    if !have("rabbitmq-server") {
        return;
    }
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["a"]);
    rabbit.control(&["add_user", "rotated", "one"]);
    rabbit.control(&["set_permissions", "rotated", ".*", ".*", ".*"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "one\n").expect("a file");
    let url = rabbit.url("").replace("amqp://", "amqp://rotated@");
    let config = SinkConfig::parse(&url).expect("a good URL").with_answer_timeout(Duration::from_secs(3));
    let sink = config.with_password_file(&file).expect("a password").build().expect("a sink");
    publish_until_accepted(&sink, batch("a", 0..1)).await;
    rabbit.control(&["change_password", "rotated", "two"]);
    rabbit.control(&["close_all_connections", "the password is replaced"]);
    let refused = publish(&sink, batch("a", 1..2)).await;
    assert!(matches!(&refused[0], Outcome::Retry(t) if t.fault == Fault::Sink), "{refused:?}");
    std::fs::write(&file, "two\n").expect("a file");
    publish_until_accepted(&sink, batch("a", 2..3)).await;
}

/// The messages of a queue. They are persistent, with the key as their id.
fn received(rabbit: &RabbitServer, vhost: &str, queue: &str) -> Vec<Received> {
    rabbit.queue(vhost, queue).into_iter().map(as_received).collect()
}

fn as_received(delivery: Delivery) -> Received {
    let properties = delivery.properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "it would not survive a restart");
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).expect("text"),
        other => panic!("a header that is no text: {other:?}"),
    };
    let headers = properties.headers().iter().flat_map(|table| table.inner());
    let mut headers: BTreeMap<String, String> =
        headers.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    headers.extend(properties.content_type().iter().map(|kind| ("content-type".to_owned(), kind.as_str().to_owned())));
    let key = properties.message_id().as_ref().expect("a message id").as_str().to_owned();
    Received { key, headers, payload: delivery.data }
}

suite!(Shared:
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
);

suite!(RabbitServer:
    outages::a_killed_server_is_a_fault_of_the_sink_until_it_is_back,
    outages::a_server_killed_during_a_batch_leaves_every_outcome_correct,
    outages::a_stopped_server_is_a_retry_within_the_timeout_and_recovers,
    outages::messages_held_when_the_server_died_are_never_sent,
    outages::a_lost_idle_connection_is_reopened,
);
