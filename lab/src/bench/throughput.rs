//! Tasks published per second if all are due at one moment.

use std::time::Duration;

use super::fleet::LaneAndDestination;
use super::ground::BenchSetup;
use super::limits::Limits;
use super::moment::{BurstResult, Load};
use super::pair::ScriptTimes;
use super::report::Report;
use super::tasks::ScheduleKind;
use super::{Options, Tell};

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(ground: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let form = ScheduleKind::of(options.recurring);
    let limits = Limits::before(ground, form, options.tasks, options.payload, tell).await?;
    let (destination, task_namespace) = (ground.make("due").await?, ground.task_namespace().await?);
    let lanes: [LaneAndDestination<'_>; 1] = [("default", &destination)];
    let load = Load {
        prefix: "t",
        tasks: options.tasks,
        form,
        payload: options.payload,
        instances: options.instance_count(),
        destination: &destination,
        lanes: &lanes,
        lead: Duration::ZERO,
        alone: true,
    };
    let moment = load.ready(ground, &task_namespace, tell, async |_| Ok(())).await?;
    let past = moment.pass(ground, &task_namespace, &load, tell).await?;
    moment.fleet.end().await?;
    ground.empty(&task_namespace.namespace).await?;
    let limits = limits.after(ground, tell).await?;
    let pair = ScriptTimes::measure(ground, &task_namespace, &Load { prefix: "b", ..load }, tell).await?;
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("instances", options.instance_count());
    report.figure("tasks_per_second", past.per_second(), "from the due to the last accepted");
    report.figure("seconds", past.seconds(), "seconds from the due to the last accepted");
    limits.show(&mut report);
    costs(&mut report, &past, &limits);
    pair.show(&mut report);
    report.ratio("throughput_to_limit", past.per_second(), limits.per_second(), "budget: at least 0.75");
    Ok(report)
}

/// Adds the cost of an occurrence, beside that of its parts.
pub(super) fn costs(report: &mut Report, past: &BurstResult, limits: &Limits) {
    report.figure("redis_us", past.redis_us(), "CPU of Redis for an occurrence");
    report.figure("instance_us", past.instance_us(), "CPU of the instances for an occurrence");
    report.ratio("instance_cpu_to_raw", past.instance_us(), limits.raw_cpu_us(), "budget: at most 2");
}
