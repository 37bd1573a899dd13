//! Apache Kafka for tests: one node that is broker and controller, from the jars that `.ci/setup` downloads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use punctual_lab::servers::{KafkaOptions, Kind, remove, start_kafka};
use punctual_lab::testing::{self, block_on};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use secrecy::SecretString;

use super::server::{Server, free_port};

/// A Kafka server for one test. It creates no topics automatically.
pub(crate) struct KafkaServer {
    /// The process; its port is that of the listener without TLS and login.
    pub(crate) server: Server,
    /// Port of the second listener, if one was requested.
    pub(crate) second_port: u16,
}

/// Additional settings of a server.
#[derive(Default)]
pub(crate) struct More<'a> {
    /// Protocol of a second listener: `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`.
    pub(crate) second_listener: Option<&'a str>,
    /// More lines for its `server.properties`.
    pub(crate) properties: &'a str,
    /// Users that log in with SCRAM-SHA-512, and their passwords.
    pub(crate) scram_users: &'a [(&'a str, &'a str)],
}

/// What a user may do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Acl<'a> {
    /// Read this topic.
    Read(&'a str),
    /// Write to this topic.
    Write(&'a str),
    /// Read as a member of this group.
    ReadGroup(&'a str),
}

/// Whether a Kafka server and `kcat` are installed. If not, prints that the test is skipped.
pub(crate) fn have_kafka() -> bool {
    super::have("kcat") && testing::have_kafka()
}

impl KafkaServer {
    /// Starts a server with a listener on 127.0.0.1 without login. Returns when it answers, after some seconds.
    pub(crate) fn start() -> KafkaServer {
        KafkaServer::start_with(&More::default())
    }

    /// Starts a server with additional settings.
    pub(crate) fn start_with(more: &More) -> KafkaServer {
        let second_port = free_port();
        let options = KafkaOptions {
            secured: more.second_listener.map(|protocol| (second_port, protocol)),
            properties: more.properties,
            scram_users: more.scram_users,
            is_quick: true,
            ..KafkaOptions::default()
        };
        KafkaServer { server: Server::of(async || start_kafka(&options).await), second_port }
    }

    /// Allows a user this. The client library cannot: a request of the protocol, see
    /// <https://kafka.apache.org/protocol#The_Messages_CreateAcls>.
    pub(crate) fn allow(&self, user: &str, acls: &[Acl<'_>]) {
        let (create_acls, version) = (30_i16, 1_i16);
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend(i16::try_from(text.len()).expect("a short text").to_be_bytes());
            bytes.extend(text.as_bytes());
        };
        let mut request = [create_acls.to_be_bytes(), version.to_be_bytes()].concat();
        request.extend(7_i32.to_be_bytes());
        text(&mut request, "test");
        request.extend(i32::try_from(acls.len()).expect("a few").to_be_bytes());
        for acl in acls {
            // Topics are 2, groups 3; to read is 3, to write 4.
            let (resource, name, operation) = match *acl {
                Acl::Read(topic) => (2, topic, 3),
                Acl::Write(topic) => (2, topic, 4),
                Acl::ReadGroup(group) => (3, group, 3),
            };
            request.push(resource);
            text(&mut request, name);
            // Exactly this name.
            request.push(3);
            text(&mut request, &format!("User:{user}"));
            text(&mut request, "*");
            // 3 allows.
            request.extend([operation, 3]);
        }
        let mut socket = TcpStream::connect(self.address()).expect("a connection to Kafka");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket option");
        let length = i32::try_from(request.len()).expect("a short request").to_be_bytes();
        socket.write_all(&[&length[..], &request].concat()).expect("it reads");
        let mut length = [0; 4];
        socket.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut answer).expect("an answer");
        // Number of the request, wait in ms, count, and for each its error and text: 0 and empty.
        let expected = [vec![0, 0, 0, 7], vec![0; 4], request[14..18].to_vec(), vec![0; 4 * acls.len()]];
        assert_eq!(answer, expected.concat());
    }

    /// `127.0.0.1:<port>`.
    pub(crate) fn address(&self) -> String {
        address(self.server.port)
    }

    /// `kafka://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    /// Creates a topic with these options (`[("max.message.bytes", "65536")]`); returns when it accepts writes.
    pub(crate) fn create_topic(&self, name: &str, partitions: i32, options: &[(&str, &str)]) {
        let config = config(self.server.port);
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topic = options.iter().fold(topic, |topic, (option, value)| topic.set(option, value));
        let created = block_on(async || {
            let admin: AdminClient<DefaultClientContext> = config.create().expect("an admin client");
            let limit = Some(Duration::from_secs(30));
            admin.create_topics([&topic], &AdminOptions::new().request_timeout(limit)).await
        });
        created.expect("an answer")[0].clone().unwrap_or_else(|error| panic!("topic `{name}`: {error:?}"));
        self.await_topic(&config, name);
    }

    /// Deletes a topic with its messages.
    pub(crate) fn delete_topic(&self, name: &str) {
        let (url, names) = (SecretString::from(self.url()), [name.to_owned()]);
        block_on(async || remove(Kind::Kafka, &url, &names).await).expect("the topic is deleted");
    }

    /// Creates a topic whose messages carry the broker's time of arrival.
    pub(crate) fn create_stamped_topic(&self, name: &str, partitions: i32) {
        self.create_topic(name, partitions, &[("message.timestamp.type", "LogAppendTime")]);
    }

    #[expect(clippy::disallowed_methods, reason = "servers are waited for in real time, whatever a test pauses")]
    fn await_topic(&self, config: &ClientConfig, name: &str) {
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let deadline = Instant::now() + Duration::from_secs(30);
        let led = || {
            let metadata = consumer.fetch_metadata(Some(name), Duration::from_secs(5)).ok()?;
            let topic = metadata.topics().first()?;
            (topic.error().is_none() && topic.partitions().iter().all(|partition| partition.leader() >= 0))
                .then_some(())
        };
        while led().is_none() {
            assert!(Instant::now() < deadline, "topic `{name}` has no leader");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn config(port: u16) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address(port)).set("log_level", "0");
    config
}

/// A message as the broker stores it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) partition: i64,
    /// The key that chose its partition.
    pub(crate) key: Option<Vec<u8>>,
    /// Names and values; a value may be missing.
    pub(crate) headers: Vec<(String, Option<String>)>,
    pub(crate) payload: Vec<u8>,
    /// Send time by the sender's clock, or arrival time if the topic says so; in ms since 1970.
    pub(crate) stamp: i64,
}

impl Record {
    /// A header by name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name)?.1.as_deref()
    }
}

impl KafkaServer {
    /// Every message of a topic, each partition in order, read with `kcat`.
    pub(crate) fn records(&self, topic: &str) -> Vec<Record> {
        let address = self.address();
        let arguments = ["-C", "-J", "-e", "-q", "-o", "beginning", "-b", &address, "-t", topic];
        let output = Command::new("kcat").args(arguments).args(["-X", "fetch.wait.max.ms=10"]).output();
        let output = output.expect("kcat runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kcat {arguments:?}: {errors}");
        // kcat writes raw bytes into its JSON. Read each byte as a character, and convert it back later.
        let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| record(&line.iter().map(|&byte| char::from(byte)).collect::<String>())).collect()
    }
}

impl KafkaServer {
    /// The lengths of the values in a topic of one partition, in order; `None` for a tombstone.
    pub(crate) fn value_lengths(&self, topic: &str) -> Vec<Option<usize>> {
        let address = self.address();
        // kcat writes -1 for a message without a value.
        let arguments = ["-C", "-f", "%S\n", "-e", "-q", "-o", "beginning", "-b", &address, "-t", topic];
        let output = Command::new("kcat").args(arguments).output().expect("kcat runs");
        let lengths = String::from_utf8(output.stdout).expect("numbers");
        lengths.lines().map(|length| length.parse().ok()).collect()
    }
}

/// Parses a line of `kcat -J`.
fn record(line: &str) -> Record {
    let value: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("kcat writes: {error}: {line:.300}"));
    let bytes = |value: &serde_json::Value| {
        let byte = |character| u8::try_from(character).expect("a byte");
        value.as_str().map(|text| text.chars().map(byte).collect::<Vec<u8>>())
    };
    let text = |value| bytes(value).map(|bytes| String::from_utf8(bytes).expect("a text"));
    let headers = value["headers"].as_array().map_or(&[][..], Vec::as_slice);
    Record {
        partition: value["partition"].as_i64().expect("a partition"),
        key: bytes(&value["key"]),
        headers: headers.chunks_exact(2).map(|pair| (text(&pair[0]).expect("a name"), text(&pair[1]))).collect(),
        payload: bytes(&value["payload"]).unwrap_or_default(),
        stamp: value["ts"].as_i64().expect("a time"),
    }
}
