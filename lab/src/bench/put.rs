//! Tasks accepted over HTTP per second: one by one and in batches, over one connection and over several.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::http::{ApiConnection, Puts};
use super::moment::{each, spent};
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::{self, Batch, SHARDS, ScheduleKind};
use super::{Options, Tell};
use punctual::task::{Lane, Shard};
use punctual::timeline::keys::Keys;

/// Number of connections, if several.
const MANY_CONNECTIONS: u64 = 16;

/// How far ahead all dues are.
const TIME_AHEAD: Duration = Duration::from_secs(30 * 86_400);

/// Maximum number of single requests.
const MAX_SINGLE_PUTS: u64 = 20_000;

/// How often memory is read.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

const MIB: f64 = 1_048_576.0;

/// Runs the bench.
///
/// # Errors
/// If a task is not accepted.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    tell(0.0, "putting into the timeline alone");
    let floor = alone(setup, options).await?;
    let fleet = Fleet::start(setup, 1, &[("default", "")]).await?;
    let api = *fleet.apis().first().context("no instance runs")?;
    let singles = options.tasks.min(MAX_SINGLE_PUTS);
    let mut batch = None;
    for (share, name, connections, count, in_batch) in [
        (0.1, "put_1", 1, singles / 4 + 1, false),
        (0.2, "put_16", MANY_CONNECTIONS, singles.max(MANY_CONNECTIONS), false),
        (0.4, "batch_1", 1, options.tasks, true),
        (0.7, "batch_16", MANY_CONNECTIONS, options.tasks.max(MANY_CONNECTIONS), true),
    ] {
        let text = format!("{} by {connections}", if in_batch { "a batch" } else { "one by one," });
        tell(share, &text);
        let before = (fleet.resident(), fleet.cpu());
        let load = Load { name, connections, each: count / connections, in_batch, payload: options.payload };
        let (seconds, most) = memory_of(&fleet, load.put(setup, api)).await?;
        let put = load.each * connections;
        let rate = put as f64 / seconds;
        report.figure(format!("{name}_per_second"), rate, format!("tasks, {text} connection(s)"));
        let cpu = spent(before.1, fleet.cpu());
        report.figure(format!("{name}_instance_us"), each(cpu, put), "CPU of the instance for a task");
        if in_batch {
            let grew = most.zip(before.0).map(|(most, before)| most.saturating_sub(before) as f64 / MIB);
            report.figure(format!("{name}_grew_mib"), grew, "the most that its memory grew meanwhile");
        }
        if name == "batch_1" {
            batch = Some(rate);
        }
    }
    report.figure("resident_mib", fleet.resident().map(|bytes| bytes as f64 / MIB), "memory of the instance, at last");
    report.figure("floor_per_second", floor, "tasks by the timeline's put alone, a thousand a call");
    report.ratio("batch_to_floor", batch, floor, "one connection; budget: 100 000 tasks each second");
    fleet.end().await?;
    Ok(report)
}

/// The puts of one part.
pub(super) struct Load<'a> {
    pub(super) name: &'a str,
    pub(super) connections: u64,
    /// Tasks per connection.
    pub(super) each: u64,
    pub(super) in_batch: bool,
    pub(super) payload: usize,
}

impl Load<'_> {
    /// Puts all; returns the duration in seconds. Checks that they are stored, then removes them.
    pub(super) async fn put(&self, setup: &BenchSetup, api: SocketAddr) -> anyhow::Result<f64> {
        let due = setup.probe.now().plus(TIME_AHEAD);
        let payload = tasks::payload(self.payload);
        let body = format!(
            "\"schedule\":{{\"at\":\"{due}\"}},\"message\":{{\"payload\":{}}}",
            String::from_utf8_lossy(&payload)
        );
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(ApiConnection::open(api).await?);
        }
        let (begun, mut putting) = (Instant::now(), JoinSet::new());
        for (number, mut connection) in connections.into_iter().enumerate() {
            let letter = if self.in_batch { "b" } else { "p" };
            let prefix = format!("{letter}{}c{number}", self.connections);
            let (puts, in_batch) = (Puts { prefix, count: self.each, body: body.clone() }, self.in_batch);
            putting.spawn(async move {
                let count = puts.count;
                if in_batch {
                    let answered = connection.put_batch(puts).await?;
                    ensure!(answered == count, "{answered} of {count} lines were answered");
                    return Ok(());
                }
                connection.put_each(&puts).await
            });
        }
        while let Some(put) = putting.join_next().await {
            put??;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let (stands, put) = (count(setup).await?, self.each * self.connections);
        ensure!(stands == put, "{}: {stands} of {put} tasks stand in the timeline", self.name);
        setup.empty(&setup.namespace()?).await?;
        Ok(seconds)
    }
}

/// Number of tasks in the timeline.
pub(super) async fn count(setup: &BenchSetup) -> anyhow::Result<u64> {
    let namespace = setup.namespace()?;
    let keys: Vec<String> = Shard::all(SHARDS).map(|shard| Keys::new(&namespace, shard).tasks()).collect();
    Ok(setup.probe.fields(&keys).await?)
}

/// Runs a future and returns the maximum memory of the instances meanwhile.
async fn memory_of<T>(
    fleet: &Fleet,
    doing: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(T, Option<u64>)> {
    let mut most = None;
    let mut doing = std::pin::pin!(doing);
    loop {
        tokio::select! {
            done = doing.as_mut() => return Ok((done?, most)),
            () = sleep(MEMORY_POLL_INTERVAL) => most = most.max(fleet.resident()),
        }
    }
}

/// Tasks per second that are put directly into the timeline.
async fn alone(setup: &BenchSetup, options: &Options) -> anyhow::Result<f64> {
    let (task_namespace, due) = (setup.task_namespace().await?, setup.probe.now().plus(TIME_AHEAD));
    let (numbers, lane) = (0..options.tasks, Lane::default());
    let (schedule_kind, payload) = (ScheduleKind::Once, options.payload);
    // Each is encoded separately, as in an instance.
    let dues = |number: u64| due.plus(Duration::from_millis(number % 1000));
    let batch = Batch { prefix: "a", numbers, lane, schedule_kind, payload, destination: None, due: &dues };
    let begun = Instant::now();
    task_namespace.put(&batch, &|_| {}).await?;
    let seconds = begun.elapsed().as_secs_f64();
    setup.empty(&task_namespace.namespace).await?;
    Ok(options.tasks as f64 / seconds)
}
