//! How late occurrences are that come due steadily, and how late the naked loop is with the same.

use std::time::Duration;

use super::fleet::{Fleet, LaneTo};
use super::ground::Ground;
use super::late::Late;
use super::limits;
use super::moment::each;
use super::naked;
use super::report::Report;
use super::tasks::{Batch, Form, Shelf};
use super::watch::Watch;
use super::{Options, Tell};
use crate::clock::{Clock, Timestamp};
use crate::task::Lane;

/// What comes due before it is measured: connections are made, and the first of everything is slow.
const WARM: Duration = Duration::from_secs(1);

/// Tasks put each second, at least.
const PUTS: u64 = 20_000;

/// How long an instance may take to start.
const START: Duration = Duration::from_secs(2);

/// Dues that come steadily.
struct Steady {
    begin: Timestamp,
    rate: u64,
    count: u64,
}

impl Steady {
    /// What begins as soon as all of it can be put.
    fn soon(ground: &Ground, options: &Options) -> Steady {
        let rate = u64::from(options.rate);
        let count = rate * (options.seconds + WARM.as_secs());
        let instances = START * u32::try_from(options.one_fleet()).unwrap_or(u32::MAX);
        let begin = ground.probe.now().plus(Duration::from_millis(count * 1000 / PUTS) + instances);
        Steady { begin, rate, count }
    }

    fn due(&self, number: u64) -> Timestamp {
        self.begin.plus(Duration::from_millis(number * 1000 / self.rate))
    }

    /// From when on is measured, ...
    fn from(&self) -> Timestamp {
        self.begin.plus(WARM)
    }

    /// ... and after what.
    fn end(&self) -> Timestamp {
        self.due(self.count)
    }

    async fn put(&self, shelf: &Shelf, options: &Options, tell: Tell<'_>) -> anyhow::Result<()> {
        tell(0.0, "putting tasks");
        let due = |number| self.due(number);
        let batch = Batch {
            prefix: "l",
            numbers: 0..self.count,
            lane: Lane::default(),
            form: Form::of(options.recurring),
            payload: options.payload,
            destination: None,
            due: &due,
        };
        shelf.put(&batch, &|_| {}).await
    }
}

/// Measures.
///
/// # Errors
/// When something is not published.
pub(super) async fn run(ground: &Ground, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let mut report = Report::new(options);
    report.option("rate", options.rate);
    report.option("seconds", options.seconds);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("instances", options.one_fleet());
    let late = whole(ground, options, &mut report, &|share, words| tell(share / 2.0, words)).await?;
    let floor = naked_loop(ground, options, &|share, words| tell(0.5 + share / 2.0, words)).await?;
    late.show(&mut report, "", "whole path");
    floor.show(&mut report, "floor_", "naked loop");
    for (name, share, words) in [
        ("p50_to_floor", 0.5, "budget: p50 at most 1.2 ms, else this at most 2"),
        ("p99_to_floor", 0.99, "budget: p99 at most 3 ms, else this at most 2"),
        ("p999_to_floor", 0.999, "budget: p99.9 at most 15 ms, else this at most 2"),
    ] {
        report.ratio(name, late.ms(share), floor.ms(share), words);
    }
    Ok(report)
}

/// The whole path.
async fn whole(ground: &Ground, options: &Options, report: &mut Report, tell: Tell<'_>) -> anyhow::Result<Late> {
    let (destination, shelf) = (ground.make("due").await?, ground.shelf().await?);
    let (clock, watch) = (ground.probe.clock(), Watch::start(ground.far()?, destination.clone(), ground.probe.clock()));
    let steady = Steady::soon(ground, options);
    steady.put(&shelf, options, tell).await?;
    let lanes: [LaneTo<'_>; 1] = [("default", &destination)];
    let fleet = Fleet::start(ground, options.one_fleet(), &lanes).await?;
    anyhow::ensure!(clock.now() < steady.from(), "tasks cannot be put fast enough; try a lower `--rate`");
    clock.sleep_until(steady.from()).await;
    let before = (ground.probe.cpu().await?, fleet.cpu());
    let told = |count: u64| tell(count as f64 / steady.count as f64, "publishing");
    watch.reach(steady.count, steady.end(), &told).await?;
    let after = (ground.probe.cpu().await?, fleet.cpu());
    fleet.end().await?;
    ground.empty(&shelf.namespace).await?;
    let late = watch.between(steady.from(), steady.end())?;
    let spent = |before: Option<Duration>, after: Option<Duration>| {
        each(before.zip(after).map(|(before, after)| after.saturating_sub(before)), late.count())
    };
    report.figure("redis_us", spent(before.0, after.0), "CPU of Redis for an occurrence, with the look once a second");
    report.figure("instance_us", spent(before.1, after.1), "CPU of the instances for an occurrence");
    Ok(late)
}

/// The same by the naked loop: it sleeps until the due, claims, publishes, writes back.
async fn naked_loop(ground: &Ground, options: &Options, tell: Tell<'_>) -> anyhow::Result<Late> {
    let destination = ground.make("floor").await?;
    let shelf = Shelf::open(&ground.redis_url, ground.floor_namespace()?).await?;
    let watch = Watch::start(ground.far()?, destination.clone(), ground.probe.clock());
    let steady = Steady::soon(ground, options);
    steady.put(&shelf, options, tell).await?;
    let (out, form) = (limits::out(ground, &destination, options.payload)?, Form::of(options.recurring));
    let publishing = naked::on_time(ground, &shelf.namespace, form, &out);
    let told = |count: u64| tell(count as f64 / steady.count as f64, "publishing by the naked loop");
    tokio::try_join!(publishing, watch.reach(steady.count, steady.end(), &told))?;
    ground.empty(&shelf.namespace).await?;
    watch.between(steady.from(), steady.end())
}
