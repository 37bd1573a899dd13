//! `punctual-lab bench`: measures running instances from outside, each figure with the limits of its parts.
//!
//! It drives the whole path. Tasks are in Redis, instances are processes with default settings, and their messages are
//! counted or read at the destination. In the same run it measures the limits over the same messages and records: the
//! sink alone, Redis alone with the minimum that any claim and settle must do, and that beside instances. A ratio of
//! two figures of one run is more useful than either, because it hardly depends on the machine.

mod baseline;
mod broker_side;
mod cluster;
mod cores;
mod door;
mod fleet;
mod growth;
mod herd;
mod http;
mod idle;
mod instances;
mod late;
mod lateness;
mod limits;
mod moment;
mod own_runtime;
mod pending;
mod probe;
mod process;
mod put;
pub mod report;
mod script_times;
mod setup;
mod sharing;
mod silence;
mod storm;
mod tasks;
mod throughput;
mod watch;

use std::time::Duration;

use anyhow::bail;
use secrecy::SecretString;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use self::report::Report;
use self::setup::BenchSetup;
use crate::servers::Program;
pub use crate::servers::{Kind, Missing};

/// How long messages may be under way after a bench has failed.
const CLEAN_UP_TIME: Duration = Duration::from_millis(300);

/// Called with the progress, from 0 to 1, and the current step.
pub type Tell<'a> = &'a (dyn Fn(f64, &str) + Sync);

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Tasks published per second if all are due at one moment.
    Throughput,
    /// Lateness of occurrences that become due steadily.
    Lateness,
    /// Many tasks due in one millisecond, and how late another lane is meanwhile.
    Herd,
    /// Cron tasks due at one moment, with few and many instances.
    Instances,
    /// The cost of an occurrence while millions of tasks wait.
    Pending,
    /// Tasks accepted over HTTP per second.
    Put,
    /// Calls to Redis while nothing is due.
    Idle,
    /// What several instances cost at a steady rate.
    Fleet,
    /// Lateness when instances die.
    Death,
    /// The cost of an occurrence in clusters with different numbers of masters.
    Cluster,
    /// Tasks from the messages of a broker per second.
    Door,
    /// Lateness beside a silent node of a cluster.
    Silence,
}

/// The options of a bench. Each bench uses some of them.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program to start instances from.
    pub program: Program,
    /// The bench.
    pub bench: Bench,
    /// The prefix of the namespace and all destinations; no other program uses it.
    pub name: String,
    /// The kind of sink.
    pub kind: Kind,
    /// The URL of the user's sink; `None` starts one.
    pub sink: Option<SecretString>,
    /// The URL of the user's Redis for the timeline; `None` starts one.
    pub redis: Option<SecretString>,
    /// Number of tasks, at least 1.
    pub tasks: u64,
    /// Tasks that become due each second, at least 1.
    pub rate: u32,
    /// Duration of the measurement.
    pub seconds: u64,
    /// Size of each payload in bytes, at least 2.
    pub payload: usize,
    /// Whether tasks are recurring.
    pub recurring: bool,
    /// Number of instances, of one run or of each run.
    pub instances: Vec<usize>,
    /// Number of shards of the timeline, if it is in one Redis.
    pub shards: u16,
    /// Number of masters of the cluster, for each run; ascending.
    pub masters: Vec<usize>,
    /// Number of waiting tasks beside the measured ones, for each run; ascending.
    pub pending: Vec<u64>,
    /// Number of lanes of each instance.
    pub lanes: u16,
}

impl Options {
    /// One task and one instance, with servers that are started.
    #[must_use]
    pub fn new(bench: Bench, program: Program, name: String) -> Options {
        Options {
            program,
            bench,
            name,
            kind: Kind::Redis,
            sink: None,
            redis: None,
            tasks: 1,
            rate: 1,
            seconds: 1,
            payload: 128,
            recurring: false,
            instances: vec![1],
            shards: tasks::SHARDS,
            masters: Vec::new(),
            pending: Vec::new(),
            lanes: 1,
        }
    }
}

impl Bench {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bench::Throughput => "throughput",
            Bench::Lateness => "lateness",
            Bench::Herd => "herd",
            Bench::Instances => "instances",
            Bench::Pending => "pending",
            Bench::Put => "put",
            Bench::Idle => "idle",
            Bench::Fleet => "fleet",
            Bench::Death => "death",
            Bench::Cluster => "cluster",
            Bench::Door => "door",
            Bench::Silence => "silence",
        }
    }

    /// Whether it publishes, so that it needs a sink.
    #[must_use]
    pub fn publishes(self) -> bool {
        !matches!(self, Bench::Put | Bench::Idle)
    }
}

impl Options {
    /// Number of instances, if there is one run.
    fn instance_count(&self) -> usize {
        self.instances.first().copied().unwrap_or(1).max(1)
    }
}

/// Whole milliseconds of a duration.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a bench. On `stop` it ends early, in order and without figures. It removes what it made on the user's servers,
/// and reports what it could not remove.
///
/// # Errors
/// [`Missing`] if a server cannot be started or used; otherwise if a server or an instance fails, or an occurrence is
/// not published, so that there are no figures.
pub async fn run(options: &Options, stop: &CancellationToken, tell: Tell<'_>) -> anyhow::Result<Report> {
    match options.bench {
        Bench::Cluster => {}
        Bench::Silence => return on_servers(options, Some(silence::MASTERS), stop, tell).await,
        _ => return on_servers(options, None, stop, tell).await,
    }
    let mut reports = Vec::new();
    for &masters in &options.masters {
        reports.push(on_servers(options, Some(masters), stop, tell).await?);
    }
    cluster::together(reports)
}

/// Starts the servers, measures, and removes what was made. With `masters` the timeline is in a new cluster.
async fn on_servers(
    options: &Options,
    masters: Option<usize>,
    stop: &CancellationToken,
    tell: Tell<'_>,
) -> anyhow::Result<Report> {
    tell(0.0, "starting servers");
    let setup = BenchSetup::open(options, masters).await?;
    let measuring = async {
        limits::warm_up(&setup, options, tell).await?;
        match options.bench {
            Bench::Throughput => throughput::run(&setup, options, tell).await,
            Bench::Lateness => lateness::run(&setup, options, tell).await,
            Bench::Herd => herd::run(&setup, options, tell).await,
            Bench::Instances => instances::run(&setup, options, tell).await,
            Bench::Pending => pending::run(&setup, options, tell).await,
            Bench::Put => put::run(&setup, options, tell).await,
            Bench::Idle => idle::run(&setup, options, tell).await,
            Bench::Fleet => sharing::fleet(&setup, options, tell).await,
            Bench::Death => sharing::death(&setup, options, tell).await,
            Bench::Cluster => cluster::run(&setup, options, tell).await,
            Bench::Door => door::run(&setup, options, tell).await,
            Bench::Silence => silence::run(&setup, options, tell).await,
        }
    };
    let measured = tokio::select! {
        measured = measuring => measured,
        () = stop.cancelled() => Err(anyhow::anyhow!("ended before there were figures")),
    };
    if measured.is_err() {
        // Messages under way arrive before their destinations are removed.
        sleep(CLEAN_UP_TIME).await;
    }
    tell(1.0, "removing what was made");
    let left = setup.clear().await;
    match measured {
        Ok(mut report) => {
            report.notes.extend(left.into_iter().map(|text| format!("left behind: {text}")));
            Ok(report)
        }
        Err(error) if left.is_empty() => Err(error),
        Err(error) => bail!("{error:#}; left behind: {}", left.join("; ")),
    }
}
