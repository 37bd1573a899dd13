//! Counts the calls to Redis while nothing is due.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::report::Report;
use super::setup::{BenchSetup, extra_lane};
use super::tasks::{Batch, SHARDS, ScheduleKind};
use super::{Options, Tell};
use punctual::task::Lane;

/// How long instances may take to become idle.
const SETTLE_DOWN_TIME: Duration = Duration::from_secs(3);

/// How far ahead all dues are.
const TIME_AHEAD: Duration = Duration::from_secs(86_400);

/// Runs the bench.
///
/// # Errors
/// If an instance does not serve.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let names: Vec<String> = std::iter::once("default".to_owned()).chain((1..options.lanes).map(extra_lane)).collect();
    let (task_namespace, due) = (setup.task_namespace().await?, setup.probe.now().plus(TIME_AHEAD));
    for (number, lane) in names.iter().enumerate() {
        // Enough for a task in each shard, almost certainly.
        let (prefix, lane) = (format!("e{number}x"), lane.parse::<Lane>()?);
        let (numbers, schedule_kind, payload) = (0..32, ScheduleKind::Once, options.payload);
        let batch = Batch { prefix: &prefix, numbers, lane, schedule_kind, payload, destination: None, due: &|_| due };
        task_namespace.put(&batch, &|_| {}).await?;
    }
    // Its connections make calls to Redis too, which would be counted.
    drop(task_namespace);
    let lanes: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    tell(0.0, "starting instances");
    let fleet = Fleet::start(setup, options.instance_count(), &lanes).await?;
    tell(0.0, "coming to rest");
    sleep(SETTLE_DOWN_TIME).await;
    let begun = Instant::now();
    let before = (setup.probe.requests().await?, setup.probe.cpu().await?, fleet.cpu());
    for second in 0..options.seconds {
        tell(second as f64 / options.seconds as f64, "nothing is due");
        sleep(Duration::from_secs(1)).await;
    }
    let after = (setup.probe.requests().await?, setup.probe.cpu().await?, fleet.cpu());
    let (seconds, instances) = (begun.elapsed().as_secs_f64(), options.instance_count() as f64);
    fleet.end().await?;
    let spent = |before: Option<Duration>, after: Option<Duration>| {
        before.zip(after).map(|(before, after)| after.saturating_sub(before).as_secs_f64() * 1000.0 / seconds)
    };
    let requests = (after.0 - before.0) / seconds / instances;
    let mut report = Report::new(options);
    report.option("seconds", options.seconds);
    report.option("instances", options.instance_count());
    report.option("lanes", options.lanes);
    report.figure("requests_per_second", requests, "scripts and pings that an instance sends to Redis");
    report.figure("redis_cpu_ms_per_second", spent(before.1, after.1), "of Redis, for all instances");
    report.figure("instance_cpu_ms_per_second", spent(before.2, after.2).map(|ms| ms / instances), "of one instance");
    let text = "requests each second; budget: at most 1.2, however many lanes there are";
    report.ratio("requests_per_instance_and_shard", requests, f64::from(SHARDS), text);
    if options.redis.is_some() {
        report.notes.push("what others ask of your Redis meanwhile is counted, too".to_owned());
    }
    Ok(report)
}
