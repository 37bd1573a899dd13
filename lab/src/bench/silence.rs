//! What the tasks on other nodes of a cluster notice while one node is silent.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use punctual::clock::Clock;
use punctual::task::Shard;
use tokio::time::{Instant, interval};

use super::http::ApiConnection;
use super::report::Report;
use super::setup::BenchSetup;
use super::sharing::{Run, WARM_UP_TIME, show_options};
use super::tasks::id;
use super::{Options, Tell};

/// Number of masters of the cluster.
pub(super) const MASTERS: usize = 3;

/// The share of the time before the node is silent.
const SHARE_BEFORE: f64 = 0.3;

/// The node answers again this long before the last task is due, so that its tasks are published too.
const TIME_AFTER: Duration = Duration::from_secs(2);

/// How often a task is put over HTTP into a shard of another node.
const PUT_INTERVAL: Duration = Duration::from_millis(20);

/// The tasks that are put meanwhile are due after the bench.
const BODY: &str = r#""schedule":{"in":"1h"},"message":{"payload":1}"#;

/// The puts over HTTP.
#[derive(Default)]
struct Puts {
    sent: u64,
    refused: u64,
    longest: Duration,
}

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published, or the node cannot be stopped.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let run = Run::start(setup, options, options.instance_count(), tell).await?;
    let clock = setup.probe.clock();
    let silent = setup.probe.shards_of_last(&run.task_namespace.namespace, setup.shards).await?;
    let node = setup.last_redis().context("the cluster was not started here")?;
    let api = *run.fleet.apis().first().context("no instance runs")?;
    let from = run.begin.plus(WARM_UP_TIME);
    let before = run.end.since(from).mul_f64(SHARE_BEFORE);
    let (stop, resume) = (from.plus(before), run.end.minus(TIME_AFTER));
    tell(0.1, "publishing");
    clock.sleep_until(stop).await;
    node.signal("STOP")?;
    tell(SHARE_BEFORE, "publishing beside a silent node");
    let mut puts = Puts::default();
    let waited = tokio::select! {
        () = clock.sleep_until(resume) => Ok(()),
        ended = puts.put(api, &silent, setup.shards) => ended,
    };
    node.signal("CONT")?;
    waited?;
    run.reach(tell).await?;
    let of_silent = run.dues_of(|id| is_in(id, &silent, setup.shards))?;
    run.fleet.end().await?;
    setup.empty(&run.task_namespace.namespace).await?;

    let (well, beside) =
        (run.watch.between_but(from, stop, &of_silent)?, run.watch.between_but(stop, resume, &of_silent)?);
    let mut report = Report::new(options);
    show_options(&mut report, setup, options);
    report.option("masters", MASTERS);
    report.figure("silent_s", resume.since(stop).as_secs_f64(), "how long one master was stopped");
    report.figure("shards_silent_count", silent.len() as f64, "its shards");
    for (name, late) in [("before", &well), ("beside", &beside)] {
        report.figure(format!("{name}_count"), late.count() as f64, "occurrences of the other nodes");
        report.figure(format!("{name}_p50_ms"), late.ms(0.5), "from the due to the consumer");
        report.figure(format!("{name}_p99_ms"), late.ms(0.99), "");
        report.figure(format!("{name}_max_ms"), late.most_ms(), "");
    }
    let later = late_by(beside.ms(0.99), well.ms(0.99));
    report.figure("p99_later_ms", later, "the p99 beside the silent node minus that before; budget: at most 20");
    report.figure("put_count", puts.sent as f64, "tasks of the other nodes put over HTTP meanwhile, one by one");
    report.figure("put_refused_count", puts.refused as f64, "of these not answered with success; budget: 0");
    report.figure("put_max_ms", puts.longest.as_secs_f64() * 1000.0, "the longest answer");
    Ok(report)
}

fn late_by(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| one - other)
}

/// Whether a task is in one of these shards.
fn is_in(id: &str, shards: &BTreeSet<u16>, of: u16) -> anyhow::Result<bool> {
    Ok(shards.contains(&Shard::of(&id.parse()?, of).number()))
}

impl Puts {
    /// Puts tasks into shards of other nodes, one after the other. Ends only with an error.
    async fn put(&mut self, api: std::net::SocketAddr, silent: &BTreeSet<u16>, shards: u16) -> anyhow::Result<()> {
        let mut connection = ApiConnection::open(api).await?;
        let mut ticks = interval(PUT_INTERVAL);
        for number in 0.. {
            let id = id("put", number);
            if is_in(&id, silent, shards)? {
                continue;
            }
            ticks.tick().await;
            let begun = Instant::now();
            let status = connection.put_one(&id, BODY).await?;
            self.sent += 1;
            self.refused += u64::from(!status.is_success());
            self.longest = self.longest.max(begun.elapsed());
        }
        Ok(())
    }
}
