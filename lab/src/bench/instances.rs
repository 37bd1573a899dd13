//! Cron tasks that are due at one moment, with few and with many instances.

use std::time::Duration;

use super::fleet::LaneAndDestination;
use super::limits::Limits;
use super::moment::{BurstResult, Load};
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::ScheduleKind;
use super::{Options, Tell};
use punctual::clock::Timestamp;

/// Number of moments per number of instances. A single one is too short to measure its cost.
const BURSTS: u64 = 5;

/// The interval between them.
const BURST_INTERVAL: Duration = Duration::from_secs(3);

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let limits = Limits::before(setup, ScheduleKind::Cron, options.tasks, options.payload, tell).await?;
    let destination = setup.make("due").await?;
    let mut costs = Vec::new();
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("instances", options.instances.clone());
    for &instances in &options.instances {
        let all = moments(setup, options, instances, &destination, tell).await?;
        let of = |figure: fn(&BurstResult) -> Option<f64>| mean(all.iter().filter_map(figure));
        let name = |figure: &str| format!("with_{instances}_{figure}");
        let last = all.iter().map(|past| past.seconds() * 1000.0).fold(0.0, f64::max);
        report.figure(
            name("last_ms"),
            last,
            "from the due to the last accepted, in the slowest moment; budget: at most 1000",
        );
        report.figure(name("redis_us"), of(BurstResult::redis_us), "CPU of Redis for an occurrence");
        report.figure(name("instance_us"), of(BurstResult::instance_us), "CPU of all instances for an occurrence");
        costs.push(of(BurstResult::redis_us));
    }
    limits.after(setup, tell).await?.show(&mut report);
    let (first, last) = (costs.first().copied().flatten(), costs.last().copied().flatten());
    report.ratio("redis_cpu_last_to_first", last, first, "with the most and the fewest instances; budget: at most 1.5");
    Ok(report)
}

/// Starts instances and measures some moments.
async fn moments(
    setup: &BenchSetup,
    options: &Options,
    instances: usize,
    destination: &str,
    tell: Tell<'_>,
) -> anyhow::Result<Vec<BurstResult>> {
    let task_namespace = setup.task_namespace().await?;
    let lanes: [LaneAndDestination<'_>; 1] = [("default", destination)];
    // Ids differ between runs, otherwise brokers would drop the second run as duplicates.
    let prefix = format!("i{instances}x");
    let load = Load {
        prefix: &prefix,
        tasks: options.tasks,
        schedule_kind: ScheduleKind::Cron,
        payload: options.payload,
        instances,
        destination,
        lanes: &lanes,
        lead: Duration::ZERO,
        alone: true,
    };
    let put_later = async |first: Timestamp| {
        for number in 1..BURSTS {
            let prefix = format!("{prefix}{number}m");
            let due = first.plus(BURST_INTERVAL * u32::try_from(number).unwrap_or(u32::MAX));
            task_namespace.put(&load.batch(&prefix, 0..load.tasks, load.schedule_kind, &|_| due), &|_| {}).await?;
        }
        Ok(())
    };
    let mut moment = load.ready(setup, &task_namespace, tell, put_later).await?;
    let mut all = vec![moment.pass(setup, &task_namespace, &load, tell).await?];
    for _ in 1..BURSTS {
        moment.move_due(BURST_INTERVAL, load.tasks);
        all.push(moment.pass(setup, &task_namespace, &load, tell).await?);
    }
    moment.fleet.end().await?;
    setup.empty(&task_namespace.namespace).await?;
    Ok(all)
}

/// The mean of the known values; `None` if there are none.
fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}
