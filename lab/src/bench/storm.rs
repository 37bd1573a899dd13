//! A restart after an absence: many recurring tasks are overdue, and new tasks should not wait for them.

use std::time::Duration;

use super::fleet::{Fleet, LaneAndDestination};
use super::moment::{accepted, settled};
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::{Batch, ScheduleKind, TaskNamespace};
use super::watch::Watch;
use super::{Options, Tell, millis};
use punctual::clock::Timestamp;
use punctual::task::Lane;

/// How long they have been overdue: longer than the grace, so that catch-up decides.
const OVERDUE_TIME: Duration = Duration::from_secs(600);

/// The interval of new tasks.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// For how long new tasks come due, counted from just before they are put.
const PROBE_TIME: Duration = Duration::from_secs(120);

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(
    setup: &BenchSetup,
    task_namespace: &TaskNamespace,
    options: &Options,
    destination: &str,
    report: &mut Report,
    tell: Tell<'_>,
) -> anyhow::Result<()> {
    let (broker_side, fresh) = (setup.broker_side()?, setup.make("fresh").await?);
    let watch = Watch::start(setup.broker_side()?, fresh.clone(), setup.probe.clock());
    let held = broker_side.held(destination).await?;
    tell(0.0, "putting what is overdue");
    let (now, payload) = (setup.probe.now(), options.payload);
    let (overdue, lane) = (now.minus(OVERDUE_TIME), Lane::default());
    let (numbers, schedule_kind) = (0..options.tasks, ScheduleKind::Every);
    let batch = Batch { prefix: "s", numbers, lane, schedule_kind, payload, destination: None, due: &|_| overdue };
    task_namespace.put(&batch, &|_| {}).await?;
    let (first, numbers) = (setup.probe.now(), 0..millis(PROBE_TIME) / millis(PROBE_INTERVAL));
    let due = |number: u64| first.plus(Duration::from_millis(number * millis(PROBE_INTERVAL)));
    let (lane, schedule_kind) = (Lane::default(), ScheduleKind::Once);
    let batch = Batch { prefix: "n", numbers, lane, schedule_kind, payload, destination: Some(fresh), due: &due };
    task_namespace.put(&batch, &|_| {}).await?;
    let lanes: [LaneAndDestination<'_>; 1] = [("default", destination)];
    let fleet = Fleet::start(setup, 1, &lanes).await?;
    let served = setup.probe.now();
    let progress = |count: u64| tell(count as f64 / options.tasks as f64, "publishing what is overdue");
    let last = accepted(setup, &*broker_side, destination, held, options.tasks, &progress).await?;
    settled(setup, task_namespace, overdue).await?;
    let drained = Timestamp::from_millis(last.div_euclid(1000));
    // Messages that were due together with the last of the storm are still on their way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let late = watch.between(served, drained)?;
    fleet.end().await?;
    let seconds = drained.since(served).as_secs_f64();
    report.figure("storm_seconds", seconds, "from when the instance serves until the last overdue task was accepted");
    report.figure("storm_fresh_count", late.count() as f64, "occurrences that came due meanwhile, in the same lane");
    report.figure("storm_fresh_p50_ms", late.ms(0.5), "how late those were");
    report.figure("storm_fresh_p99_ms", late.ms(0.99), "");
    report.figure("storm_fresh_max_ms", late.most_ms(), "");
    Ok(())
}
