//! `punctual-lab bench`: measures running instances from outside, each figure beside what the parts can do by themselves.
//!
//! It drives the whole path: tasks stand in Redis, instances are processes with the settings that are shipped, and what
//! they publish is counted or read where it arrives. In the same run it measures its own limits over the same messages
//! and records: the sink alone, Redis alone with the least that any claim and settle must do, and that beside instances.
//! A ratio of two figures of one run says more than either, since it hardly depends on the machine.

mod apart;
mod cores;
mod far;
mod fleet;
mod ground;
mod growth;
mod herd;
mod http;
mod idle;
mod instances;
mod late;
mod lateness;
mod limits;
mod moment;
mod naked;
mod pair;
mod pending;
mod probe;
mod process;
mod put;
pub mod report;
mod storm;
mod tasks;
mod throughput;
mod watch;

use std::time::Duration;

use anyhow::bail;
use secrecy::SecretString;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::ground::Ground;
pub use self::report::Report;
use crate::servers::Program;
pub use crate::servers::{Kind, Missing};

/// How long what was sent may be on its way when a bench has failed.
const LEFT: Duration = Duration::from_millis(300);

/// Hears how far a bench is: a share from 0 to 1, and what is being done.
pub type Tell<'a> = &'a (dyn Fn(f64, &str) + Sync);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// How many tasks a second are published when all are due at one moment.
    Throughput,
    /// How late occurrences are that come due steadily.
    Lateness,
    /// Many due in one millisecond, and what another lane notices of it.
    Herd,
    /// Cron tasks due at one moment, with few and many instances.
    Instances,
    /// What an occurrence costs beside millions that are not due yet.
    Pending,
    /// How many tasks a second are taken in over HTTP.
    Put,
    /// What is asked of Redis while nothing is due.
    Idle,
}

/// What is asked of a bench. Each looks at what means something to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// What instances are started from.
    pub program: Program,
    /// What is measured.
    pub bench: Bench,
    /// How the namespace and all destinations begin; nobody else's begin so.
    pub name: String,
    /// What is published to.
    pub kind: Kind,
    /// A sink of the user's, as its URL; else one of our own.
    pub sink: Option<SecretString>,
    /// A Redis of the user's for the timeline; else one of our own.
    pub redis: Option<SecretString>,
    /// Tasks, at least 1.
    pub tasks: u64,
    /// Tasks that come due each second, at least 1.
    pub rate: u32,
    /// How long it is measured.
    pub seconds: u64,
    /// Bytes of each payload, at least 2.
    pub payload: usize,
    /// Whether tasks are recurring.
    pub recurring: bool,
    /// Instances: of one run, or of each.
    pub instances: Vec<usize>,
    /// How many tasks wait beside those that are measured, in each run; rising.
    pub pending: Vec<u64>,
    /// Lanes of each instance.
    pub lanes: u16,
}

impl Options {
    /// The least of everything, on servers of our own.
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
            pending: Vec::new(),
            lanes: 1,
        }
    }
}

impl Bench {
    /// As the command line names it.
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
        }
    }

    /// Whether it publishes, so that there has to be a sink.
    #[must_use]
    pub fn publishes(self) -> bool {
        !matches!(self, Bench::Put | Bench::Idle)
    }
}

impl Options {
    /// How many instances run, where there is one run.
    fn one_fleet(&self) -> usize {
        self.instances.first().copied().unwrap_or(1).max(1)
    }
}

/// Whole milliseconds of a span.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Measures. Ends early, in order and without figures, on `stop`. Servers of the user hold nothing of it afterwards.
///
/// # Errors
/// [`Missing`] when a server is not there to be started, or cannot be used; else when a server or an instance fails, or
/// something is not published, so that there are no figures.
pub async fn run(options: &Options, stop: &CancellationToken, tell: Tell<'_>) -> anyhow::Result<Report> {
    tell(0.0, "starting servers");
    let ground = Ground::open(options).await?;
    let measuring = async {
        limits::warm_up(&ground, options, tell).await?;
        match options.bench {
            Bench::Throughput => throughput::run(&ground, options, tell).await,
            Bench::Lateness => lateness::run(&ground, options, tell).await,
            Bench::Herd => herd::run(&ground, options, tell).await,
            Bench::Instances => instances::run(&ground, options, tell).await,
            Bench::Pending => pending::run(&ground, options, tell).await,
            Bench::Put => put::run(&ground, options, tell).await,
            Bench::Idle => idle::run(&ground, options, tell).await,
        }
    };
    let measured = tokio::select! {
        measured = measuring => measured,
        () = stop.cancelled() => Err(anyhow::anyhow!("ended before there were figures")),
    };
    if measured.is_err() {
        // What was on its way is there before it is removed.
        sleep(LEFT).await;
    }
    tell(1.0, "removing what was made");
    let left = ground.clear().await;
    match measured {
        Ok(mut report) => {
            report.notes.extend(left.into_iter().map(|words| format!("left behind: {words}")));
            Ok(report)
        }
        Err(error) if left.is_empty() => Err(error),
        Err(error) => bail!("{error:#}; left behind: {}", left.join("; ")),
    }
}
