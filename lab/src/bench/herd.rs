//! Many tasks due in the same millisecond: when the last is accepted, and how late another lane is meanwhile.

use std::time::Duration;

use super::fleet::LaneAndDestination;
use super::limits::Limits;
use super::moment::Load;
use super::report::Report;
use super::script_times::ScriptTimes;
use super::setup::BenchSetup;
use super::tasks::{Batch, ScheduleKind};
use super::throughput::costs;
use super::watch::Watch;
use super::{Options, Tell};
use punctual::clock::Timestamp;
use punctual::task::Lane;

/// The interval of tasks in the other lane.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// The tasks in the other lane begin this long before the herd. The first second does not count.
const TIME_BEFORE: Duration = Duration::from_secs(3);

/// The tasks in the other lane end this long after the herd.
const TIME_AFTER: Duration = Duration::from_secs(30);

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let schedule_kind = ScheduleKind::of(options.recurring);
    let limits = Limits::before(setup, schedule_kind, options.tasks, options.payload, tell).await?;
    let (destination, beside) = (setup.make("due").await?, setup.make("beside").await?);
    let (task_namespace, lanes) = (setup.task_namespace().await?, [("default", &*destination), ("other", &*beside)]);
    let lanes: &[LaneAndDestination<'_>] = &lanes;
    let load = Load { lead: TIME_BEFORE, ..Load::new("h", options, &destination, lanes) };
    let watch = Watch::start(setup.broker_side()?, beside.clone(), setup.probe.clock());
    let put_beside = async |due: Timestamp| {
        let first = due.minus(TIME_BEFORE);
        let count = (TIME_BEFORE + TIME_AFTER).as_millis() / PROBE_INTERVAL.as_millis();
        let numbers = 0..u64::try_from(count).unwrap_or(u64::MAX);
        let due = |number: u64| first.plus(PROBE_INTERVAL * u32::try_from(number).unwrap_or(u32::MAX));
        let lane = "other".parse::<Lane>()?;
        let schedule_kind = ScheduleKind::Once;
        let payload = options.payload;
        let batch = Batch { prefix: "o", numbers, lane, schedule_kind, payload, destination: None, due: &due };
        task_namespace.put(&batch, &|_| {}).await
    };
    let moment = load.ready(setup, &task_namespace, tell, put_beside).await?;
    let past = moment.pass(setup, &task_namespace, &load, tell).await?;
    let due = moment.due;
    let last = due.plus(Duration::from_micros(u64::try_from(past.last_us).unwrap_or(0)));
    // Messages that were due together with the last of the herd are still on their way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let calm = watch.between(due.minus(TIME_BEFORE).plus(Duration::from_secs(1)), due)?;
    let meanwhile = watch.between(due, last)?;
    moment.fleet.end().await?;
    setup.empty(&task_namespace.namespace).await?;
    let limits = limits.after(setup, tell).await?;
    let pair = ScriptTimes::measure(setup, &task_namespace, &Load { prefix: "b", ..load }, tell).await?;
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("instances", options.instance_count());
    report.figure("last_ms", past.seconds() * 1000.0, "from the due to the last accepted; budget for 100 000: 1000");
    report.figure("tasks_per_second", past.per_second(), "over that time");
    for (name, late, text) in [("calm", &calm, "before"), ("meanwhile", &meanwhile, "until the last was accepted")] {
        report.figure(format!("{name}_count"), late.count() as f64, format!("occurrences of another lane, {text}"));
        report.figure(format!("{name}_p50_ms"), late.ms(0.5), "how late those were");
        report.figure(format!("{name}_p99_ms"), late.ms(0.99), "");
    }
    limits.show(&mut report);
    costs(&mut report, &past, &limits);
    pair.show(&mut report);
    report.ratio("throughput_to_limit", past.per_second(), limits.per_second(), "budget: at least 0.75");
    report.ratio("meanwhile_p99_to_calm", meanwhile.ms(0.99), calm.ms(0.99), "what another lane notices");
    Ok(report)
}
