//! `punctual-lab verify`: attacks instances while they publish, and checks what they published.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use punctual::cli::out::tell;
use punctual::cli::program::{Failure, runtime};
use punctual::task::duration;
use tokio_util::sync::CancellationToken;

use super::{LOGS, bar, kind, left, run_until_signal, show};
use crate::servers::Program;
use crate::verify::absent;
use crate::verify::campaign::{self, Options, Step};

/// Shown on the first signal.
const STOPPING: &str = "no more faults; waiting until all is published";

#[derive(Args)]
pub(super) struct VerifyArguments {
    /// What to publish to: redis, kafka, rabbitmq or nats, started for this alone; or a URL of yours
    #[arg(long, value_name = "SINK", default_value = "redis")]
    sink: String,
    /// Where tasks wait, in a namespace of this campaign's own; without it a redis-server started for this alone
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Where tasks wait instead: a Redis Cluster started for this alone, three masters with a replica each, which also die, stand
    /// still, take over and exchange slots; every write waits for a replica
    #[arg(long, conflicts_with_all = ["redis", "absent"])]
    cluster: bool,
    /// Let users also schedule by sending messages to a door, which every instance has at the sink's broker
    #[arg(long, conflicts_with = "absent")]
    door: bool,
    /// How many instances to attack
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=32))]
    instances: u16,
    /// How many tasks to put each second
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// How long faults come in each round
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: u64,
    /// How many rounds, each on its own and with the next seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rounds: u64,
    /// Number that determines the faults, to repeat a campaign; without it a random one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The mean time between two faults
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    pause: Duration,
    /// Instead of all that: let one of two sinks be away for this long, and tell what becomes of its lane and the other
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["seconds", "rounds", "pause"])]
    absent: Option<Duration>,
    /// Show the report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &VerifyArguments, program: Program) -> Result<(), Failure> {
    punctual::telemetry::start(LOGS, false).map_err(|error| Failure::usage(anyhow!(error)))?;
    let options = options(arguments, program)?;
    runtime()?.block_on(async {
        let (stop, progress) = (CancellationToken::new(), Progress::new(&options));
        let step = |step: Step| progress.show(&step);
        match arguments.absent {
            None => {
                let left = left(&options.name, options.redis.is_some(), options.sink.is_some());
                let campaign = run_until_signal(campaign::run(&options, &stop, &step), &stop, STOPPING, left).await;
                progress.bar.finish_and_clear();
                let report = campaign?;
                show(&report, arguments.json)?;
                if report.violations == 0 && report.shows_nothing() {
                    let detail = "the run proves nothing: a round had no fault, no promised task or no message";
                    return Err(Failure::failed(anyhow!(detail)).hint("more `--seconds`, or a shorter `--pause`"));
                }
                judged(report.violations, &format!("the same faults come again with `--seed {}`", report.seed))
            }
            Some(away) => {
                let absence = run_until_signal(absent::run(&options, away, &stop, &step), &stop, STOPPING, None).await;
                progress.bar.finish_and_clear();
                let absence = absence?;
                show(&absence, arguments.json)?;
                judged(absence.lost.max(absence.dead), "an absent sink must cost nothing")
            }
        }
    })
}

fn judged(violations: u64, hint: &str) -> Result<(), Failure> {
    match violations {
        0 => Ok(()),
        count => Err(Failure::failed(anyhow!("{count} violations of the laws")).hint(hint)),
    }
}

fn options(arguments: &VerifyArguments, program: Program) -> Result<Options, Failure> {
    let (kind, sink) = kind(&arguments.sink, "attacked")?;
    if arguments.pause < Duration::from_millis(10) {
        return Err(Failure::usage(anyhow!("`--pause` is at least 10ms")));
    }
    Ok(Options {
        program,
        name: format!("verify-{:08x}", rand::random::<u32>()),
        kind,
        sink: sink.map(Into::into),
        redis: arguments.redis.clone().map(Into::into),
        cluster: arguments.cluster,
        door: arguments.door,
        instances: arguments.instances.into(),
        rate: arguments.rate,
        length: Duration::from_secs(arguments.seconds),
        rounds: arguments.rounds,
        seed: arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
        pause: arguments.pause,
    })
}

/// A progress bar on a terminal, otherwise one line per activity. The result of a round is a line in both cases.
struct Progress {
    bar: ProgressBar,
    activity: Mutex<&'static str>,
}

impl Progress {
    fn new(options: &Options) -> Progress {
        tell(&format!("verify: sink {}, seed {}\n", options.kind.name(), options.seed));
        Progress { bar: bar(), activity: Mutex::default() }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 1000")]
    fn show(&self, step: &Step) {
        if let Some(line) = &step.line {
            return self.bar.suspend(|| tell(&format!("{line}\n")));
        }
        self.bar.set_position((step.share * 1000.0) as u64);
        let Step { round, faults, promised, published, activity, .. } = step;
        self.bar
            .set_message(format!("round {round}: {activity}, faults {faults}, promised {promised}, read {published}"));
        let mut shown = self.activity.lock();
        if self.bar.is_hidden() && *shown != *activity {
            *shown = activity;
            tell(&format!("round {round}: {activity}\n"));
        }
    }
}
