//! Cron tasks that are all due at one moment, with few and with many instances.

use std::time::Duration;

use super::fleet::LaneTo;
use super::ground::Ground;
use super::limits::Limits;
use super::moment::Load;
use super::report::Report;
use super::tasks::Form;
use super::{Options, Tell};

/// Measures.
///
/// # Errors
/// When something is not published.
pub(super) async fn run(ground: &Ground, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let limits = Limits::before(ground, Form::Cron, options.tasks, options.payload, tell).await?;
    let (destination, shelf) = (ground.make("due").await?, ground.shelf().await?);
    let lanes: [LaneTo<'_>; 1] = [("default", &destination)];
    let mut costs = Vec::new();
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("instances", options.instances.clone());
    for &instances in &options.instances {
        // Ids differ from run to run, or brokers would take the second for a copy of the first.
        let prefix = format!("i{instances}x");
        let (tasks, payload) = (options.tasks, options.payload);
        let load = Load {
            prefix: &prefix,
            tasks,
            form: Form::Cron,
            payload,
            instances,
            destination: &destination,
            lanes: &lanes,
            lead: Duration::ZERO,
            alone: true,
        };
        let moment = load.ready(ground, &shelf, tell, async |_| Ok(())).await?;
        let past = moment.pass(ground, &shelf, &load, tell).await?;
        moment.fleet.end().await?;
        ground.empty(&shelf.namespace).await?;
        let name = |figure: &str| format!("with_{instances}_{figure}");
        report.figure(name("last_ms"), past.seconds() * 1000.0, "from the due to the last accepted; budget: 1000");
        report.figure(name("redis_us"), past.redis_us(), "CPU of Redis for an occurrence");
        report.figure(name("instance_us"), past.instance_us(), "CPU of all instances for an occurrence");
        costs.push(past.redis_us());
    }
    limits.after(ground, tell).await?.show(&mut report);
    let (first, last) = (costs.first().copied().flatten(), costs.last().copied().flatten());
    report.ratio("redis_cpu_last_to_first", last, first, "with the most and the fewest instances; budget: at most 1.5");
    Ok(report)
}
