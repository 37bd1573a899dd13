//! The cost of an occurrence in a Redis Cluster, with few and with many masters.

use anyhow::Context;

use super::fleet::LaneAndDestination;
use super::moment::Load;
use super::report::{Report, over};
use super::setup::BenchSetup;
use super::{Options, Tell};

/// The end of the names of two figures.
const SCRIPTS: &str = "script_us";
const REDIS_CPU: &str = "redis_us";

/// Runs the bench with one cluster.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let masters = setup.masters.context("the timeline is not in a cluster")?;
    let (destination, task_namespace) = (setup.make("due").await?, setup.task_namespace().await?);
    let lanes: [LaneAndDestination<'_>; 1] = [("default", &destination)];
    let load = Load::new("c", options, &destination, &lanes);
    let moment = load.ready(setup, &task_namespace, tell, async |_| Ok(())).await?;
    let past = moment.pass(setup, &task_namespace, &load, tell).await?;
    moment.fleet.end().await?;
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("instances", options.instance_count());
    report.option("masters", options.masters.clone());
    report.option("shards", setup.shards);
    let name = |figure: &str| format!("with_{masters}_{figure}");
    report.figure(name("tasks_per_second"), past.per_second(), "from the due to the last accepted");
    report.figure(name(SCRIPTS), past.script_us(), "time of all masters in scripts for an occurrence");
    report.figure(name(REDIS_CPU), past.redis_us(), "CPU of all masters for an occurrence");
    report.figure(name("calls"), past.calls(), "calls of scripts for an occurrence");
    report.figure(name("instance_us"), past.instance_us(), "CPU of the instances for an occurrence");
    let cpu_us = past.redis_us().zip(past.instance_us()).map(|(redis, instance)| redis + instance);
    let text = "occurrences of a core each second, if it does nothing else";
    report.figure(name("per_second_and_core"), over(Some(1e6), cpu_us), text);
    Ok(report)
}

/// One report with the figures of all, which are sorted by the number of masters, and ratios of the last to the first.
///
/// # Errors
/// If there is none.
pub(super) fn together(reports: Vec<Report>) -> anyhow::Result<Report> {
    let ratio = |figure: &str| {
        let of = |report: &Report| report.figures.iter().find(|one| one.name.ends_with(figure))?.value;
        (reports.last().and_then(of), reports.first().and_then(of))
    };
    let (scripts, redis_cpu) = (ratio(SCRIPTS), ratio(REDIS_CPU));
    let mut reports = reports.into_iter();
    let mut report = reports.next().context("no number of masters is given")?;
    for more in reports {
        report.figures.extend(more.figures);
        let new = more.notes.into_iter().filter(|note| !report.notes.contains(note)).collect::<Vec<_>>();
        report.notes.extend(new);
    }
    let text = "with the most and the fewest masters; budget: at most 1.1";
    report.ratio("scripts_last_to_first", scripts.0, scripts.1, text);
    report.ratio("redis_cpu_last_to_first", redis_cpu.0, redis_cpu.1, "the same of the CPU of all masters");
    Ok(report)
}
