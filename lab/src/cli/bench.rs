//! `punctual-lab bench`: measures instances, each figure with the limits of its parts.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use punctual::cli::out::tell;
use punctual::cli::program::{Failure, runtime};
use tokio_util::sync::CancellationToken;

use super::{LOGS, bar, kind, left, run_until_signal, show};
use crate::bench::{self, Bench, Options};
use crate::servers::Program;

/// Shown on the first signal.
const STOPPING: &str = "no figures; removing what was made";

#[derive(Subcommand)]
pub(super) enum BenchCommand {
    /// How many tasks a second are published when all are due at one moment
    Throughput {
        #[command(flatten)]
        place: Place,
        /// How many tasks are due
        #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        tasks: u64,
        #[command(flatten)]
        shape: Shape,
    },
    /// How late occurrences are that come due steadily
    Lateness {
        #[command(flatten)]
        place: Place,
        /// How many come due each second
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rate: u32,
        /// For how long
        #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
        #[command(flatten)]
        shape: Shape,
    },
    /// Many tasks due in one millisecond, and what another lane notices of it
    Herd {
        #[command(flatten)]
        place: Place,
        /// How many tasks are due
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        tasks: u64,
        #[command(flatten)]
        shape: Shape,
    },
    /// Cron tasks that are due at one moment, with few and with many instances
    Instances {
        #[command(flatten)]
        place: Place,
        /// How many tasks are due
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        tasks: u64,
        /// How many instances, in one run each
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,5,20",
            value_parser = clap::value_parser!(u16).range(1..=100))]
        instances: Vec<u16>,
        #[command(flatten)]
        payload: Payload,
    },
    /// What an occurrence costs beside many that are not due, and what a restart after an absence is like
    Pending {
        #[command(flatten)]
        place: Place,
        /// How many tasks are due
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        tasks: u64,
        /// How many wait beside them, in one run each
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "100000,1000000,10000000",
            value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
        pending: Vec<u64>,
        /// Tasks that are due again a day later, not once
        #[arg(long)]
        recurring: bool,
        #[command(flatten)]
        payload: Payload,
    },
    /// How many tasks a second are taken in over HTTP
    Put {
        #[command(flatten)]
        redis: Redis,
        /// How many tasks a batch has
        #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        tasks: u64,
        #[command(flatten)]
        payload: Payload,
    },
    /// What is asked of Redis while nothing is due
    Idle {
        #[command(flatten)]
        redis: Redis,
        /// For how long
        #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
        /// How many instances
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
        instances: u16,
        /// How many lanes each serves
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=100))]
        lanes: u16,
        /// Show the figures as JSON
        #[arg(long)]
        json: bool,
    },
    /// What several instances ask of Redis at a steady rate, and how late they are
    Fleet {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        steady: Steady,
        /// How many instances, in one run each
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,5,20",
            value_parser = clap::value_parser!(u16).range(1..=100))]
        instances: Vec<u16>,
        #[command(flatten)]
        payload: Payload,
    },
    /// What an occurrence costs in a Redis Cluster with few and with many masters, started for this alone
    Cluster {
        #[command(flatten)]
        sink: Sink,
        /// How many masters, in one run each
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,3,6",
            value_parser = clap::value_parser!(u16).range(1..=32))]
        masters: Vec<u16>,
        /// How many tasks are due
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        tasks: u64,
        #[command(flatten)]
        shape: Shape,
    },
    /// How many messages a second a door turns into tasks, beside a consumer alone and puts over HTTP alone
    Door {
        #[command(flatten)]
        place: Place,
        /// How many messages wait for the door
        #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        tasks: u64,
        /// How many are sent each second after that
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rate: u32,
        /// Bytes of each payload
        #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=524_288))]
        payload: u32,
        /// Show the figures as JSON
        #[arg(long)]
        json: bool,
    },
    /// How late messages of the other nodes of a Redis Cluster are while one node is silent, and whether those nodes
    /// accept puts
    Silence {
        #[command(flatten)]
        sink: Sink,
        /// How many tasks are due each second
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rate: u32,
        /// For how long; for two thirds of that a node is silent
        #[arg(long, value_name = "S", default_value_t = 90, value_parser = clap::value_parser!(u64).range(10..=3600))]
        seconds: u64,
        /// How many instances
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
        instances: u16,
        #[command(flatten)]
        payload: Payload,
    },
    /// How late messages are when one instance is killed, and when two are
    Death {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        steady: Steady,
        /// How many instances
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(3..=100))]
        instances: u16,
        #[command(flatten)]
        payload: Payload,
    },
}

/// Where messages are published to.
#[derive(Args, Clone)]
pub(super) struct Sink {
    /// What to publish to: redis, kafka, rabbitmq or nats, started for this alone; or a URL of yours
    #[arg(long, value_name = "SINK", default_value = "redis")]
    sink: String,
}

/// The sink, and where tasks wait.
#[derive(Args, Clone)]
pub(super) struct Place {
    #[command(flatten)]
    sink: Sink,
    #[command(flatten)]
    redis: Redis,
}

/// Where tasks wait.
#[derive(Args, Clone)]
pub(super) struct Redis {
    /// Where tasks wait, in a namespace of this bench's own; without it a redis-server started for this alone
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
}

/// Tasks that are due steadily.
#[derive(Args, Clone)]
pub(super) struct Steady {
    /// How many tasks are due each second
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// For how long
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Over how many shards they are spread
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: u16,
}

/// The payload, and the form of the output.
#[derive(Args, Clone)]
pub(super) struct Payload {
    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=524_288))]
    payload: u32,
    /// Show the figures as JSON
    #[arg(long)]
    json: bool,
}

/// The kind of tasks, and the number of instances.
#[derive(Args, Clone)]
pub(super) struct Shape {
    /// Tasks that are due again a day later, not once
    #[arg(long)]
    recurring: bool,
    /// How many instances
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    instances: u16,
    #[command(flatten)]
    payload: Payload,
}

pub(super) fn run(command: &BenchCommand, program: Program) -> Result<(), Failure> {
    punctual::telemetry::start(LOGS, false).map_err(|text| Failure::usage(anyhow!(text)))?;
    let (options, json) = command.options(program)?;
    runtime()?.block_on(async {
        let (stop, progress) = (CancellationToken::new(), Progress::new(&options));
        let step = |share: f64, text: &str| progress.show(share, text);
        let left = left(&options.name, options.redis.is_some(), options.sink.is_some());
        let report = run_until_signal(bench::run(&options, &stop, &step), &stop, STOPPING, left).await;
        progress.bar.finish_and_clear();
        show(&report?, json)
    })
}

impl BenchCommand {
    /// The options, and whether the output is JSON.
    fn options(&self, program: Program) -> Result<(Options, bool), Failure> {
        let name = format!("bench-{:08x}", rand::random::<u32>());
        let mut options = Options::new(Bench::Throughput, program, name);
        let json = match self {
            BenchCommand::Throughput { place, tasks, shape } => {
                options = Options { tasks: *tasks, ..place.of(options)? };
                shape.of(&mut options)
            }
            BenchCommand::Lateness { place, rate, seconds, shape } => {
                let (rate, seconds) = (*rate, *seconds);
                options = Options { bench: Bench::Lateness, rate, seconds, ..place.of(options)? };
                shape.of(&mut options)
            }
            BenchCommand::Herd { place, tasks, shape } => {
                options = Options { bench: Bench::Herd, tasks: *tasks, ..place.of(options)? };
                shape.of(&mut options)
            }
            BenchCommand::Instances { place, tasks, instances, payload } => {
                let instances = rising(instances).into_iter().map(usize::from).collect();
                options = Options { bench: Bench::Instances, tasks: *tasks, instances, ..place.of(options)? };
                payload.of(&mut options)
            }
            BenchCommand::Pending { place, tasks, pending, recurring, payload } => {
                let (pending, recurring) = (rising(pending), *recurring);
                options = Options { bench: Bench::Pending, tasks: *tasks, pending, recurring, ..place.of(options)? };
                payload.of(&mut options)
            }
            BenchCommand::Put { redis, tasks, payload } => {
                options = Options { bench: Bench::Put, tasks: *tasks, ..redis.of(options) };
                payload.of(&mut options)
            }
            BenchCommand::Idle { redis, seconds, instances, lanes, json } => {
                let (seconds, lanes, instances) = (*seconds, *lanes, vec![usize::from(*instances)]);
                options = Options { bench: Bench::Idle, seconds, lanes, instances, ..redis.of(options) };
                *json
            }
            BenchCommand::Fleet { place, steady, instances, payload } => {
                let instances = rising(instances).into_iter().map(usize::from).collect();
                options = Options { bench: Bench::Fleet, instances, ..steady.of(place.of(options)?) };
                payload.of(&mut options)
            }
            BenchCommand::Cluster { sink, masters, tasks, shape } => {
                let masters = rising(masters).into_iter().map(usize::from).collect();
                options = Options { bench: Bench::Cluster, tasks: *tasks, masters, ..sink.of(options)? };
                shape.of(&mut options)
            }
            BenchCommand::Door { place, tasks, rate, payload, json } => {
                let (tasks, rate, payload) = (*tasks, *rate, usize::try_from(*payload).unwrap_or(usize::MAX));
                options = Options { bench: Bench::Door, tasks, rate, payload, ..place.of(options)? };
                *json
            }
            BenchCommand::Silence { sink, rate, seconds, instances, payload } => {
                let (rate, seconds, instances) = (*rate, *seconds, vec![usize::from(*instances)]);
                options = Options { bench: Bench::Silence, rate, seconds, instances, ..sink.of(options)? };
                payload.of(&mut options)
            }
            BenchCommand::Death { place, steady, instances, payload } => {
                let instances = vec![usize::from(*instances)];
                options = Options { bench: Bench::Death, instances, ..steady.of(place.of(options)?) };
                payload.of(&mut options)
            }
        };
        Ok((options, json))
    }
}

/// Sorted, without duplicates.
fn rising<T: Ord + Copy>(list: &[T]) -> Vec<T> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list.dedup();
    list
}

impl Place {
    fn of(&self, options: Options) -> Result<Options, Failure> {
        self.sink.of(self.redis.of(options))
    }
}

impl Sink {
    fn of(&self, options: Options) -> Result<Options, Failure> {
        let (kind, sink) = kind(&self.sink, "measured")?;
        Ok(Options { kind, sink: sink.map(Into::into), ..options })
    }
}

impl Redis {
    fn of(&self, options: Options) -> Options {
        Options { redis: self.redis.clone().map(Into::into), ..options }
    }
}

impl Steady {
    fn of(&self, options: Options) -> Options {
        Options { rate: self.rate, seconds: self.seconds, shards: self.shards, ..options }
    }
}

impl Payload {
    /// Sets the options; returns whether the output is JSON.
    fn of(&self, options: &mut Options) -> bool {
        options.payload = usize::try_from(self.payload).unwrap_or(usize::MAX);
        self.json
    }
}

impl Shape {
    /// Sets the options; returns whether the output is JSON.
    fn of(&self, options: &mut Options) -> bool {
        options.recurring = self.recurring;
        options.instances = vec![usize::from(self.instances)];
        self.payload.of(options)
    }
}

/// A progress bar on a terminal, otherwise one line per step.
struct Progress {
    bar: ProgressBar,
    text: Mutex<String>,
}

impl Progress {
    fn new(options: &Options) -> Progress {
        tell(&format!("bench {}\n", options.bench.name()));
        Progress { bar: bar(), text: Mutex::default() }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 1000")]
    fn show(&self, share: f64, text: &str) {
        self.bar.set_position((share.clamp(0.0, 1.0) * 1000.0) as u64);
        let mut shown = self.text.lock();
        if *shown != text {
            text.clone_into(&mut shown);
            self.bar.set_message(text.to_owned());
            if self.bar.is_hidden() {
                tell(&format!("{text}\n"));
            }
        }
    }
}
