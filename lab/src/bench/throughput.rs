//! Tasks published per second if all are due at one moment.

use super::fleet::LaneAndDestination;
use super::limits::Limits;
use super::moment::{BurstResult, Load};
use super::report::Report;
use super::script_times::ScriptTimes;
use super::setup::BenchSetup;
use super::tasks::ScheduleKind;
use super::{Options, Tell};

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let schedule_kind = ScheduleKind::of(options.recurring);
    let limits = Limits::before(setup, schedule_kind, options.tasks, options.payload, tell).await?;
    let (destination, task_namespace) = (setup.make("due").await?, setup.task_namespace().await?);
    let lanes: [LaneAndDestination<'_>; 1] = [("default", &destination)];
    let load = Load::new("t", options, &destination, &lanes);
    let moment = load.ready(setup, &task_namespace, tell, async |_| Ok(())).await?;
    let past = moment.pass(setup, &task_namespace, &load, tell).await?;
    moment.fleet.end().await?;
    setup.empty(&task_namespace.namespace).await?;
    let limits = limits.after(setup, tell).await?;
    let pair = ScriptTimes::measure(setup, &task_namespace, &Load { prefix: "b", ..load }, tell).await?;
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
