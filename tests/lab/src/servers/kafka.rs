//! An Apache Kafka of our own: one node that is broker and controller.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::{Purpose, Server, free_port, write};

/// A heap that takes some hundred thousand small messages.
const JAVA: &[&str] = &["java", "-Xms256m", "-Xmx768m", "-XX:+UseSerialGC"];

/// No optimising compiler: what starts fastest.
const QUICK: &str = "-XX:TieredStopAtLevel=1";

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

/// Whether Java and Kafka's jars are there.
pub fn have_kafka() -> bool {
    super::is_there("java") && jars().is_some_and(|dir| dir.is_dir())
}

/// Where Kafka's jars lie: a folder that is named, else an installed Kafka's, else where `make setup` puts them.
fn jars() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || {
        let home = || var("HOME").or_else(std::env::home_dir);
        let cache = || var("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        Some(var("PUNCTUAL_CACHE").or_else(|| Some(cache()?.join("punctual")))?.join("kafka-4.3.1"))
    };
    var("PUNCTUAL_KAFKA").or_else(|| Some(var("KAFKA_HOME")?.join("libs"))).or_else(cache)
}

/// Starts one. A client that connects to a port of `listeners` is told to go on at the port beside it, since clients
/// follow the addresses that a broker tells. Returns when it answers.
///
/// # Errors
/// When it cannot be started.
pub async fn start_kafka(listeners: &[(u16, u16)], purpose: Purpose) -> anyhow::Result<Server> {
    let controller = free_port()?;
    let jars = format!("{}/*", jars().unwrap_or_default().display());
    Server::start("Kafka server", answers, |port, dir| {
        let text = properties(port, controller, listeners, dir);
        let file = write(dir, "server.properties", &text)?;
        let arguments = ["format", "--cluster-id", "cHVuY3R1YWwtdmVyaWZ5LQ", "--config", &file];
        run(&java(&jars, "kafka.tools.StorageTool", true), &arguments)?;
        let mut command = java(&jars, "kafka.Kafka", purpose == Purpose::Attack);
        command.push(file);
        Ok(command)
    })
    .await
}

fn properties(port: u16, controller: u16, more: &[(u16, u16)], dir: &Path) -> String {
    let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut advertised = listeners.clone();
    let mut protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
    for (number, (own, told)) in more.iter().enumerate() {
        listeners += &format!(",VIA{number}://127.0.0.1:{own}");
        advertised += &format!(",VIA{number}://127.0.0.1:{told}");
        protocols += &format!(",VIA{number}:PLAINTEXT");
    }
    format!(
        "{PROPERTIES}listeners={listeners},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\ncontroller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n",
        dir.join("data").display()
    )
}

fn java(jars: &str, class: &str, quick: bool) -> Vec<String> {
    let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn";
    let quick: &[&str] = if quick { &[QUICK] } else { &[] };
    JAVA.iter().chain(quick).chain(&[quiet, "-cp", jars, class]).map(|&argument| argument.to_owned()).collect()
}

/// Runs what must be done before the first start.
fn run(command: &[String], arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(&command[0]).args(&command[1..]).args(arguments).stdin(Stdio::null()).output()?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{} {}", said(&output.stdout), said(&output.stderr))))
}

/// Whether a broker answers for its cluster: the port opens before that.
fn answers(port: u16) -> bool {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", format!("127.0.0.1:{port}")).set("log_level", "0");
    let metadata = config.create::<BaseConsumer>().and_then(|it| it.fetch_metadata(None, Duration::from_secs(2)));
    metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
}
