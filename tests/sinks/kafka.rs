//! Kafka: the suite, and tests for Kafka alone.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use punctual_sinks::{DestinationState, Fault, Message, Outcome, Sink, SinkConfig, SinkError, Tls, Trouble};

use super::{Broker, PATIENCE, Process, Received, SOON, accepted, batch, keys, publish, suite};
use crate::support::certificates::Certificates;
use crate::support::kafka::{KafkaServer, More, have_kafka};
use crate::support::server::Server;

/// Topics with one partition each, so that messages have one order.
impl Broker for KafkaServer {
    fn start() -> Option<KafkaServer> {
        let kafka = have_kafka().then(KafkaServer::start)?;
        ["a", "b", "c"].iter().for_each(|topic| kafka.create_topic(topic, 1, &[]));
        Some(kafka)
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        sink(&self.url(), answer_timeout)
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        let received = self.records(destination).into_iter();
        received
            .map(|record| {
                let key = record.header("idempotency-key").expect("a key").to_owned();
                assert_eq!(record.key.as_deref(), record.header("punctual-task").map(str::as_bytes));
                Received {
                    key,
                    headers: record
                        .headers
                        .into_iter()
                        .map(|(name, value)| (name, value.unwrap_or_default()))
                        .collect(),
                    payload: record.payload,
                }
            })
            .collect()
    }
}

impl Process for KafkaServer {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn sink(url: &str, answer_timeout: Duration) -> Arc<dyn Sink> {
    SinkConfig::parse(url).expect("a good URL").with_answer_timeout(answer_timeout).build().expect("a sink")
}

/// Topics of one test, on a server that tests share while any of them runs.
struct Topics {
    kafka: Arc<KafkaServer>,
    prefix: String,
}

impl Topics {
    fn create(&self, topic: &str, partitions: i32, options: &[(&str, &str)]) {
        self.kafka.create_topic(&format!("{}{topic}", self.prefix), partitions, options);
    }
}

impl Broker for Topics {
    fn start() -> Option<Topics> {
        static SHARED: Mutex<Weak<KafkaServer>> = Mutex::new(Weak::new());
        static TESTS: AtomicU32 = AtomicU32::new(0);
        if !have_kafka() {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let kafka = shared.upgrade().unwrap_or_else(|| Arc::new(KafkaServer::start()));
        *shared = Arc::downgrade(&kafka);
        drop(shared);
        let topics = Topics { kafka, prefix: format!("{}-", TESTS.fetch_add(1, Ordering::Relaxed)) };
        ["a", "b", "c"].iter().for_each(|topic| topics.create(topic, 1, &[]));
        Some(topics)
    }

    fn sink(&self, answer_timeout: Duration) -> Arc<dyn Sink> {
        Arc::new(Prefixed { sink: self.kafka.sink(answer_timeout), prefix: self.prefix.clone() })
    }

    fn received(&self, destination: &str) -> Vec<Received> {
        self.kafka.received(&format!("{}{destination}", self.prefix))
    }
}

/// Publishes to the topics of one test. A name that does not begin with a letter or digit stays as it is.
struct Prefixed {
    sink: Arc<dyn Sink>,
    prefix: String,
}

#[async_trait]
impl Sink for Prefixed {
    fn publish(&self, mut batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        for message in batch.iter_mut().filter(|message| message.destination.starts_with(char::is_alphanumeric)) {
            message.destination.insert_str(0, &self.prefix);
        }
        self.sink.publish(batch)
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.sink.check().await
    }

    async fn look_for(&self, destination: &str) -> Result<DestinationState, SinkError> {
        self.sink.look_for(&format!("{}{destination}", self.prefix)).await
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        self.sink.close(deadline).await
    }

    fn answer_timeout(&self) -> Duration {
        self.sink.answer_timeout()
    }

    fn kind(&self) -> &'static str {
        self.sink.kind()
    }
}

suite!(Topics:
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

suite!(KafkaServer:
    outages::a_killed_server_is_a_fault_of_the_sink_until_it_is_back,
    outages::a_server_killed_during_a_batch_leaves_every_outcome_correct,
    outages::a_stopped_server_is_a_retry_within_the_timeout_and_recovers,
    outages::messages_held_when_the_server_died_are_never_sent,
    outages::a_lost_idle_connection_is_reopened,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_topic_is_at_fault_itself_and_delays_no_other_topic() {
    let Some(topics) = Topics::start() else { return };
    let sink = topics.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("b", 0..1)).await, accepted(1));
    for round in 0..3 {
        let mut mixed = batch("a", round * 100..round * 100 + 100);
        (0..10).for_each(|index| mixed[index * 7].destination = "nobody".to_owned());
        let before = tokio::time::Instant::now();
        let outcomes = publish(&sink, mixed.clone()).await;
        assert!(before.elapsed() < SOON, "round {round} took {:?}", before.elapsed());
        for (message, outcome) in mixed.iter().zip(outcomes) {
            let known = message.destination == "a";
            // Refused by the sink, not by librdkafka, which would remember the topic.
            let is_unlisted = matches!(&outcome, Outcome::Retry(Trouble { fault: Fault::Destination, detail, .. })
                if detail.contains("there is no such topic"));
            assert!(if known { outcome == Outcome::Accepted } else { is_unlisted }, "{outcome:?}");
        }
    }
    assert_eq!(topics.received("a").len(), 270);
    topics.create("nobody", 1, &[]);
    super::publish_until_accepted(&sink, batch("nobody", 0..3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversize_message_is_rejected_and_the_other_200_are_accepted() {
    let Some(topics) = Topics::start() else { return };
    topics.create("narrow", 1, &[("max.message.bytes", "65536")]);
    let sink = topics.sink(PATIENCE);
    let mut mixed = batch("narrow", 0..201);
    mixed[100].payload = Bytes::from(vec![b'x'; 100_000]);
    let mut outcomes = publish(&sink, mixed.clone()).await;
    assert_eq!(outcomes.remove(100), Outcome::Reject("Broker: Message size too large".to_owned()));
    assert_eq!(outcomes, accepted(200));
    let received = topics.received("narrow");
    let mut received = keys(&received);
    received.sort_unstable();
    mixed.remove(100);
    let mut sent: Vec<&str> = mixed.iter().map(|message| message.key.as_str()).collect();
    sent.sort_unstable();
    assert_eq!(received, sent);
}

/// The library's record batches hold up to 1 MB, more than these topics accept. No message of them is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversize_record_batches_are_split() {
    let Some(topics) = Topics::start() else { return };
    topics.create("narrow", 1, &[("max.message.bytes", "4096")]);
    let sink = topics.sink(PATIENCE);
    assert_eq!(publish(&sink, batch("narrow", 0..1000)).await, accepted(1000));
    assert_eq!(topics.received("narrow").len(), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_topic_or_a_message_too_large_to_send_is_rejected_alone() {
    let Some(topics) = Topics::start() else { return };
    let sink = topics.sink(PATIENCE);
    for (destination, size) in [("a b", 1), ("..", 1), ("__consumer_offsets", 1), ("a", 70 << 20)] {
        let mut mixed = batch("a", 0..3);
        mixed[1].destination = destination.to_owned();
        mixed[1].payload = Bytes::from(vec![b'x'; size]);
        let outcomes = publish(&sink, mixed).await;
        assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Accepted, &Outcome::Accepted));
        assert!(matches!(&outcomes[1], Outcome::Reject(_)), "{destination}: {:?}", outcomes[1]);
    }
}

/// A message without a value, which deletes its key from a compacted topic, is not an empty one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_has_no_value() {
    let Some(topics) = Topics::start() else { return };
    topics.create("compacted", 1, &[]);
    let sink = topics.sink(PATIENCE);
    let mut messages = batch("compacted", 0..2);
    messages.iter_mut().for_each(|message| message.payload = Bytes::new());
    messages[1].is_tombstone = true;
    assert_eq!(publish(&sink, messages).await, accepted(2));
    let lengths = topics.kafka.value_lengths(&format!("{}compacted", topics.prefix));
    assert_eq!(lengths, [Some(0), None]);
}

/// A key maps to the same partition in every client: known answers of Java's `Utils.murmur2`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_key_maps_to_the_same_partition_as_in_other_clients() {
    let Some(topics) = Topics::start() else { return };
    topics.create("eight", 8, &[]);
    let sink = topics.sink(PATIENCE);
    let known = [("21", 4), ("foobar", 6), ("a-little-bit-long-string", 0)];
    let mut messages = batch("eight", 0..3);
    messages.iter_mut().zip(known).for_each(|(message, (key, _))| message.record_key = Some(key.to_owned()));
    assert_eq!(publish(&sink, messages).await, accepted(3));
    let found: BTreeMap<Vec<u8>, i64> = topics
        .kafka
        .records(&format!("{}eight", topics.prefix))
        .into_iter()
        .map(|record| (record.key.expect("a key"), record.partition))
        .collect();
    let known: BTreeMap<Vec<u8>, i64> =
        known.iter().map(|(key, partition)| (key.as_bytes().to_vec(), *partition)).collect();
    assert_eq!(found, known);
}

/// No server listens: the outcome comes at once, with the library's reason, not after the answer timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_reported_before_the_answer_timeout() {
    let port = crate::support::server::free_port();
    let sink = sink(&format!("kafka://127.0.0.1:{port}"), PATIENCE);
    let before = tokio::time::Instant::now();
    let outcomes = publish(&sink, batch("a", 0..10)).await;
    let refused =
        |o: &Outcome| matches!(o, Outcome::Retry(t) if t.fault == Fault::Sink && t.detail.contains("refused"));
    assert!(outcomes.iter().all(refused), "{outcomes:?}");
    let detail = sink.check().await.expect_err("nobody is there").to_string();
    assert!(detail.contains(&format!("127.0.0.1:{port}")) && detail.contains("refused"), "{detail}");
    assert!(before.elapsed() < SOON, "{:?}", before.elapsed());
}

/// A relay that forwards the first byte of a connection only after this time, as a busy broker or a slow network does.
fn slow_relay(server: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).expect("the broker");
                let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
                std::io::copy(&mut &server, &mut &client)
            });
        }
    });
    port
}

/// A connection may take up to half of the answer timeout until a broker can answer on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_long_is_waited_for() {
    let Some(topics) = Topics::start() else { return };
    let port = slow_relay(topics.kafka.server.port, Duration::from_secs(2));
    let sink = sink(&format!("kafka://127.0.0.1:{port}"), Duration::from_secs(10));
    sink.check().await.expect("a broker answers");
    let mut messages = batch("a", 0..3);
    messages.iter_mut().for_each(|message| message.destination = format!("{}a", topics.prefix));
    assert_eq!(publish(&sink, messages).await, accepted(3));
}

/// Over TLS, with PLAIN and with SCRAM; and the errors for a wrong password and a wrong authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_logs_in_over_tls_and_reports_a_failure_without_secrets() {
    if !have_kafka() {
        return;
    }
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let properties = format!(
        "listener.name.secured.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n\
         listener.name.secured.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_sink=\"hunter2-plain\";\n\
         listener.name.secured.scram-sha-512.sasl.jaas.config=\
         org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
         listener.name.secured.ssl.keystore.type=PEM\nlistener.name.secured.ssl.keystore.location={}\n",
        certificates.key_and_certificate_file().display()
    );
    let kafka = KafkaServer::start_with(&More {
        second_listener: Some("SASL_SSL"),
        properties: &properties,
        scram_users: &[("sink", "hunter2-scram")],
    });
    kafka.create_topic("a", 1, &[]);
    let port = kafka.second_port;
    let sink = |password: &str, mechanism: &str, certificates: &Certificates| {
        let config = SinkConfig::parse(&format!("kafka+ssl://sink:{password}@localhost:{port}")).expect("a good URL");
        let properties = BTreeMap::from([("sasl.mechanism".to_owned(), mechanism.into())]);
        let tls = Tls::from_ca_file(&certificates.ca_file()).expect("a certificate");
        let config = config.with_tls(tls).with_properties(properties).with_answer_timeout(PATIENCE);
        assert!(!format!("{config:?}").contains("hunter2"));
        config.build().expect("a sink")
    };
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let password = format!("hunter2-{}", &mechanism[..5].to_lowercase());
        let right = sink(&password, mechanism, &certificates);
        assert_eq!(publish(&right, batch("a", 0..3)).await, accepted(3));
        right.check().await.expect("let in");
        for (password, certificates, expected) in
            [("hunter2-wrong", &certificates, "uthentication failed"), (&password, &others, "certificate")]
        {
            let wrong = sink(password, mechanism, certificates);
            let outcomes = publish(&wrong, batch("a", 0..1)).await;
            assert!(matches!(&outcomes[0], Outcome::Retry(t) if t.fault == Fault::Sink), "{outcomes:?}");
            let detail = wrong.check().await.expect_err("not let in").to_string();
            for detail in [&detail, &format!("{outcomes:?}")] {
                assert!(detail.contains(expected) && !detail.contains("hunter2"), "{mechanism}: {detail}");
            }
        }
    }
    assert_eq!(kafka.received("a").len(), 6);
}
