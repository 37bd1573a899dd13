//! An Apache Kafka for tests: one node that is broker and controller.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::{READY_TIMEOUT, Server, find_program, free_port, write};

/// A heap for some hundred thousand small messages.
const JAVA: &[&str] = &["java", "-Xms256m", "-Xmx768m", "-XX:+UseSerialGC"];

/// Without the optimising compiler, for a fast start.
const QUICK: &str = "-XX:TieredStopAtLevel=1";

/// The exit code of a broker after SIGTERM.
const ENDED_BY_TERM: i32 = 128 + 15;

/// Where a broker keeps its data, in its own folder.
const DATA: &str = "data";

/// The session of the broker is short, because a killed broker can only register again when its last session has ended.
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

/// Whether Java and Kafka's jars are installed.
pub fn have_kafka() -> bool {
    super::is_there("java") && jars().is_some_and(|dir| dir.is_dir())
}

/// The folder of Kafka's jars: a named one, else that of an installed Kafka, else that of `make setup`.
fn jars() -> Option<PathBuf> {
    var("PUNCTUAL_KAFKA").or_else(|| Some(var("KAFKA_HOME")?.join("libs"))).or_else(cached_jars)
}

/// The folder where `make setup` puts Kafka's jars.
fn cached_jars() -> Option<PathBuf> {
    let home = || var("HOME").or_else(std::env::home_dir);
    let cache = || var("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
    Some(var("PUNCTUAL_CACHE").or_else(|| Some(cache()?.join("punctual")))?.join("kafka-4.3.1"))
}

fn var(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Options of a broker.
#[derive(Clone, Copy, Debug, Default)]
pub struct KafkaOptions<'a> {
    /// Additional listeners without login: a port, and the port that the broker advertises for it, because clients
    /// follow advertised addresses.
    pub listeners: &'a [(u16, u16)],
    /// A listener `SECURED` with another protocol: its port, and `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
    pub secured: Option<(u16, &'a str)>,
    /// Additional lines for `server.properties`.
    pub properties: &'a str,
    /// SCRAM-SHA-512 users with their passwords.
    pub scram_users: &'a [(&'a str, &'a str)],
    /// Whether to start as fast as possible and run slower.
    pub is_quick: bool,
}

/// Starts a broker that creates no topics by itself; returns when it answers.
///
/// # Errors
/// If it cannot be started.
pub async fn start_kafka(options: &KafkaOptions<'_>) -> anyhow::Result<Server> {
    static ARCHIVE: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    // Without an archive a broker only starts slower.
    let archive = async || {
        let archive = timeout(READY_TIMEOUT, archive_classes()).await.map_err(anyhow::Error::from).flatten();
        let why = |error: &anyhow::Error| tracing::debug!("Kafka starts without an archive of its classes: {error:#}");
        archive.inspect_err(why).ok()
    };
    let archive = ARCHIVE.get_or_init(archive).await;
    let option = archive.as_ref().map(|file| format!("-XX:SharedArchiveFile={}", file.display()));
    start_with(options, option.as_deref()).await
}

/// Java's archive of the classes that a broker loads, in the folder of the jars of `make setup`. With it a broker
/// starts in half of the CPU time. Java writes the archive when it ends; if there is none, this starts and stops a
/// broker first. After an update of Java another archive is used.
async fn archive_classes() -> anyhow::Result<PathBuf> {
    let ours = cached_jars().filter(|ours| jars().as_ref() == Some(ours)).context("the jars are not ours")?;
    let java = find_program("java").context("no Java")?.canonicalize()?;
    let changed = std::fs::metadata(java)?.modified()?.duration_since(UNIX_EPOCH)?.as_secs();
    let archive = ours.join(format!("java-{changed}.jsa"));
    if !archive.is_file() {
        // Another process may write one, too.
        let own = tempfile::tempdir_in(&ours)?;
        let file = own.path().join("classes.jsa");
        let options = KafkaOptions { is_quick: true, ..KafkaOptions::default() };
        let broker = start_with(&options, Some(&format!("-XX:ArchiveClassesAtExit={}", file.display()))).await?;
        broker.signal("TERM")?;
        let code = broker.await_end().await?;
        anyhow::ensure!(code == Some(ENDED_BY_TERM), "the broker ended with code {code:?}");
        std::fs::rename(file, &archive)?;
    }
    Ok(archive)
}

/// Starts a broker whose Java has one more option.
async fn start_with(options: &KafkaOptions<'_>, option: Option<&str>) -> anyhow::Result<Server> {
    let controller = free_port()?;
    let jars = format!("{}/*", jars().unwrap_or_default().display());
    Server::start("Kafka server", answers, |port, dir| {
        let file = write(dir, "server.properties", &properties(port, controller, options, dir))?;
        format_data(&jars, &file, &dir.join(DATA), options.scram_users)?;
        let mut command = java(&jars, "kafka.Kafka", options.is_quick, option);
        command.push(file);
        Ok(command)
    })
    .await
}

/// The formatted data of the first broker without users. It is reused, because formatting in Java takes seconds.
static FORMATTED: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();

/// Makes the folder of a broker's data, which a broker needs before its first start.
fn format_data(jars: &str, properties: &str, data: &Path, users: &[(&str, &str)]) -> io::Result<()> {
    if let Some(files) = FORMATTED.get().filter(|_| users.is_empty()) {
        std::fs::create_dir(data)?;
        return files.iter().try_for_each(|(name, content)| std::fs::write(data.join(name), content));
    }
    let mut format = java(jars, "kafka.tools.StorageTool", true, None);
    format.extend(["format", "--cluster-id", "cHVuY3R1YWwtdmVyaWZ5LQ", "--config", properties].map(str::to_owned));
    for (user, password) in users {
        format.extend(["--add-scram".to_owned(), format!("SCRAM-SHA-512=[name={user},password={password}]")]);
    }
    run(&format)?;
    if users.is_empty() {
        let file = |entry: io::Result<DirEntry>| entry.and_then(|it| Ok((it.file_name(), std::fs::read(it.path())?)));
        let files = std::fs::read_dir(data)?.map(file).collect::<io::Result<Vec<_>>>()?;
        // Another thread may have been first, with as good a folder.
        FORMATTED.set(files).ok();
    }
    Ok(())
}

fn properties(port: u16, controller: u16, options: &KafkaOptions, dir: &Path) -> String {
    let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut advertised = listeners.clone();
    let mut protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
    let plain = options.listeners.iter().enumerate();
    let plain = plain.map(|(number, &(own, public_port))| (format!("VIA{number}"), own, public_port, "PLAINTEXT"));
    let secured = options.secured.map(|(port, protocol)| ("SECURED".to_owned(), port, port, protocol));
    for (name, own, public_port, protocol) in plain.chain(secured) {
        listeners += &format!(",{name}://127.0.0.1:{own}");
        advertised += &format!(",{name}://127.0.0.1:{public_port}");
        protocols += &format!(",{name}:{protocol}");
    }
    format!(
        "{PROPERTIES}listeners={listeners},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\ncontroller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n{}\n",
        dir.join(DATA).display(),
        options.properties
    )
}

fn java(jars: &str, class: &str, is_quick: bool, option: Option<&str>) -> Vec<String> {
    let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn";
    let options = is_quick.then_some(QUICK).into_iter().chain(option);
    let rest = [quiet, "-cp", jars, class];
    JAVA.iter().copied().chain(options).chain(rest).map(str::to_owned).collect()
}

/// Runs a command that is needed before the first start.
fn run(command: &[String]) -> io::Result<()> {
    let output = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).output()?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{} {}", said(&output.stdout), said(&output.stderr))))
}

/// Whether the broker answers for its cluster; the port opens earlier.
fn answers(port: u16) -> bool {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", format!("127.0.0.1:{port}")).set("log_level", "0");
    let metadata = config.create::<BaseConsumer>().and_then(|it| it.fetch_metadata(None, Duration::from_secs(2)));
    metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
}
