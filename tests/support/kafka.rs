//! Apache Kafka for tests: one node that is broker and controller, from the jars that `.ci/setup` fetched.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::server::{Server, free_port};

/// A heap of 256 MiB with the serial collector and without the optimising compiler: what starts fastest on two cores
/// and takes some hundred thousand small messages.
const JAVA: &[&str] = &["java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// The broker's session is short, since one that was killed is let in again only when its last one has ended.
const PROPERTIES: &str = "process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
controller.quorum.election.timeout.ms=100
controller.quorum.election.backoff.max.ms=50
controller.quorum.fetch.timeout.ms=1000
log.cleaner.enable=false
";

/// A Kafka server of the test's own. It creates no topic by itself.
pub(crate) struct KafkaServer {
    /// The process; its port is that of the listener without TLS and log-in.
    pub(crate) server: Server,
    /// The port of another listener, where one was asked for.
    pub(crate) second_port: u16,
}

/// What a server has beside what every one has.
#[derive(Default)]
pub(crate) struct More<'a> {
    /// The protocol of a second listener: `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`.
    pub(crate) second_listener: Option<&'a str>,
    /// Further lines for its `server.properties`.
    pub(crate) properties: &'a str,
    /// Users who log in by SCRAM-SHA-512, with their passwords.
    pub(crate) scram_users: &'a [(&'a str, &'a str)],
}

/// Whether all is there that a Kafka server needs, and `kcat` to read from it; says loudly that the test is skipped if
/// not.
pub(crate) fn have_kafka() -> bool {
    if !super::have("java") || !super::have("kcat") {
        return false;
    }
    let found = jars().is_dir();
    if !found {
        super::skip(&jars().display().to_string());
    }
    found
}

/// Where `.ci/setup` puts Kafka.
fn jars() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("PUNCTUAL_CACHE").or_else(|| {
        let home = || var("HOME").or_else(std::env::home_dir);
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))?;
        Some(cache.join("punctual"))
    });
    cache.expect("a home").join("kafka-4.3.1")
}

impl KafkaServer {
    /// Starts one with a listener on 127.0.0.1 that lets everybody in. Returns when it answers, about 3 s later.
    pub(crate) fn start() -> KafkaServer {
        KafkaServer::start_with(&More::default())
    }

    /// Starts one that has more.
    pub(crate) fn start_with(more: &More) -> KafkaServer {
        let (second_port, controller) = (free_port(), free_port());
        let server = Server::start_until(answers, JAVA[0], |port, dir| {
            let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
            let mut protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
            if let Some(protocol) = more.second_listener {
                listeners += &format!(",SECOND://127.0.0.1:{second_port}");
                protocols += &format!(",SECOND:{protocol}");
            }
            let text = format!(
                "{PROPERTIES}listeners={listeners},CONTROLLER://127.0.0.1:{controller}\n\
                 advertised.listeners={listeners}\nlistener.security.protocol.map={protocols}\n\
                 controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n{}\n",
                dir.join("data").display(),
                more.properties
            );
            let file = dir.join("server.properties");
            std::fs::write(&file, text).expect("a configuration file");
            format_storage(&file, more.scram_users);
            let mut command = java("kafka.Kafka");
            command.push(file.display().to_string());
            command.split_off(1)
        });
        KafkaServer { server, second_port }
    }

    /// `127.0.0.1:<port>`.
    pub(crate) fn address(&self) -> String {
        address(self.server.port)
    }

    /// `kafka://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    /// Creates a topic with options of its own (`[("max.message.bytes", "65536")]`); returns when it can be written to.
    pub(crate) fn create_topic(&self, name: &str, partitions: i32, options: &[(&str, &str)]) {
        let config = config(self.server.port);
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topic = options.iter().fold(topic, |topic, (option, value)| topic.set(option, value));
        // On a thread of its own: a test that is asynchronous itself can wait for nothing else meanwhile.
        let created = std::thread::scope(|scope| {
            let creating = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                let admin: AdminClient<DefaultClientContext> = config.create().expect("an admin client");
                let limit = Some(Duration::from_secs(30));
                runtime.block_on(admin.create_topics([&topic], &AdminOptions::new().request_timeout(limit)))
            });
            creating.join().expect("no panic")
        });
        created.expect("an answer")[0].clone().unwrap_or_else(|error| panic!("topic `{name}`: {error:?}"));
        self.await_topic(&config, name);
    }

    /// Creates a topic with the broker's time of arrival on its messages.
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

/// Whether a broker answers for its cluster: the port opens before that.
fn answers(port: u16) -> bool {
    let consumer: BaseConsumer = config(port).create().expect("a consumer");
    consumer.fetch_metadata(None, Duration::from_secs(2)).is_ok_and(|metadata| !metadata.brokers().is_empty())
}

fn java(class: &str) -> Vec<String> {
    let mut command: Vec<String> = JAVA.iter().map(|&argument| argument.to_owned()).collect();
    let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".to_owned();
    command.extend([quiet, "-cp".to_owned(), format!("{}/*", jars().display()), class.to_owned()]);
    command
}

/// Writes what a node must find in its folder before its first start.
fn format_storage(properties: &Path, scram_users: &[(&str, &str)]) {
    let mut command = java("kafka.tools.StorageTool");
    let arguments = ["format", "--cluster-id", "cHVuY3R1YWwtdGVzdHMtMQ", "--config"];
    command.extend(arguments.map(str::to_owned));
    command.push(properties.display().to_string());
    for (user, password) in scram_users {
        command.extend(["--add-scram".to_owned(), format!("SCRAM-SHA-512=[name={user},password={password}]")]);
    }
    let output = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).output().expect("java runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
}

/// A message as the broker keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) partition: i64,
    /// What it was partitioned by.
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
    /// When it was sent by its sender's clock, or when the broker took it where the topic says so; in ms since 1970.
    pub(crate) stamp: i64,
}

impl Record {
    /// A header by its name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl KafkaServer {
    /// Every message of a topic, each partition in its order, got by `kcat`.
    pub(crate) fn records(&self, topic: &str) -> Vec<Record> {
        let address = self.address();
        let arguments = ["-C", "-J", "-e", "-q", "-o", "beginning", "-b", &address, "-t", topic];
        let output = Command::new("kcat").args(arguments).args(["-X", "fetch.wait.max.ms=10"]).output();
        let output = output.expect("kcat runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kcat {arguments:?}: {errors}");
        // kcat writes bytes as they are into its JSON: each is read as a character of its own and made a byte again.
        let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| record(&line.iter().map(|&byte| char::from(byte)).collect::<String>())).collect()
    }
}

/// Reads a line of `kcat -J`.
fn record(line: &str) -> Record {
    let value: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("kcat writes: {error}: {line:.300}"));
    let bytes = |value: &serde_json::Value| {
        let byte = |character| u8::try_from(character).expect("a byte");
        value.as_str().map(|text| text.chars().map(byte).collect::<Vec<u8>>())
    };
    let text = |value| String::from_utf8(bytes(value).expect("a text")).expect("a text");
    let headers = value["headers"].as_array().map_or(&[][..], Vec::as_slice);
    Record {
        partition: value["partition"].as_i64().expect("a partition"),
        key: bytes(&value["key"]),
        headers: headers.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
        payload: bytes(&value["payload"]).unwrap_or_default(),
        stamp: value["ts"].as_i64().expect("a time"),
    }
}
