//! Cron tasks that are all due at one moment, with few and with many instances.

use std::time::Duration;

use super::fleet::LaneTo;
use super::ground::Ground;
use super::limits::Limits;
use super::moment::{Load, Past, mean};
use super::report::Report;
use super::tasks::Form;
use super::{Options, Tell};

/// How often each number of instances is measured, all in turn: what an occurrence costs differs from minute to minute.
const PASSES: usize = 2;

/// Measures.
///
/// # Errors
/// When something is not published.
pub(super) async fn run(ground: &Ground, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let limits = Limits::before(ground, Form::Cron, options.tasks, options.payload, tell).await?;
    let destination = ground.make("due").await?;
    let mut passes = Vec::new();
    for number in 0..PASSES {
        let mut pass = Vec::new();
        for &instances in &options.instances {
            // Ids differ from run to run, or brokers would take the second for a copy of the first.
            let prefix = format!("i{instances}x{number}p");
            pass.push(measure(ground, options, instances, (&prefix, &destination), tell).await?);
        }
        passes.push(pass);
    }
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("instances", options.instances.clone());
    let mut costs = Vec::new();
    for (index, instances) in options.instances.iter().enumerate() {
        let of = |of: fn(&Past) -> Option<f64>| mean(passes.iter().filter_map(|pass| of(pass.get(index)?)));
        let name = |figure: &str| format!("with_{instances}_{figure}");
        let last = of(|past| Some(past.seconds() * 1000.0));
        report.figure(name("last_ms"), last, "from the due to the last accepted; budget: 1000");
        report.figure(name("redis_us"), of(Past::redis_us), "CPU of Redis for an occurrence");
        report.figure(name("instance_us"), of(Past::instance_us), "CPU of all instances for an occurrence");
        costs.push(of(Past::redis_us));
    }
    limits.after(ground, tell).await?.show(&mut report);
    let (first, last) = (costs.first().copied().flatten(), costs.last().copied().flatten());
    report.ratio("redis_cpu_last_to_first", last, first, "with the most and the fewest instances; budget: at most 1.5");
    Ok(report)
}

/// So many instances, one moment.
async fn measure(
    ground: &Ground,
    options: &Options,
    instances: usize,
    (prefix, destination): (&str, &str),
    tell: Tell<'_>,
) -> anyhow::Result<Past> {
    let shelf = ground.shelf().await?;
    let lanes: [LaneTo<'_>; 1] = [("default", destination)];
    let load = Load {
        prefix,
        tasks: options.tasks,
        form: Form::Cron,
        payload: options.payload,
        instances,
        destination,
        lanes: &lanes,
        lead: Duration::ZERO,
        alone: true,
    };
    let moment = load.ready(ground, &shelf, tell, async |_| Ok(())).await?;
    let past = moment.pass(ground, &shelf, &load, tell).await?;
    moment.fleet.end().await?;
    ground.empty(&shelf.namespace).await?;
    Ok(past)
}
