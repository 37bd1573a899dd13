//! How late occurrences are that come due steadily, and how late the naked loop is with the same.

use std::time::Duration;

use anyhow::bail;

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

/// How often it is tried to put all, and to serve, before the first is due.
const TRIES: usize = 4;

/// How long before the first is due all has to be put, ...
const MARGIN: Duration = Duration::from_millis(500);

/// ... and how much longer for each instance, which has to start.
const START: Duration = Duration::from_secs(2);

/// Dues that come steadily.
struct Steady {
    begin: Timestamp,
    rate: u64,
    count: u64,
}

impl Steady {
    /// What begins then.
    fn from_then(begin: Timestamp, options: &Options) -> Steady {
        let rate = u64::from(options.rate);
        Steady { begin, rate, count: rate * (options.seconds + WARM.as_secs()) }
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

    async fn put(&self, shelf: &Shelf, options: &Options) -> anyhow::Result<()> {
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

/// Dues that lie ahead, with instances that wait for them.
struct Ready {
    steady: Steady,
    destination: String,
    watch: Watch,
    fleet: Fleet,
}

impl Ready {
    /// Puts all, then starts so many instances; begins anew, with more time, where the first is due before they serve.
    ///
    /// # Errors
    /// When it always is.
    async fn open(
        ground: &Ground,
        shelf: &Shelf,
        options: &Options,
        (end, instances): (&str, usize),
        tell: Tell<'_>,
    ) -> anyhow::Result<Ready> {
        let clock = ground.probe.clock();
        let count = Steady::from_then(clock.now(), options).count;
        let start = START * u32::try_from(instances).unwrap_or(u32::MAX);
        let mut ahead = Duration::from_millis(count * 1000 / PUTS) + MARGIN + start;
        for number in 0..TRIES {
            // Each try has a destination of its own: what one that was too late has published is of no account.
            let destination = ground.make(&format!("{end}{number}")).await?;
            let watch = Watch::start(ground.far()?, destination.clone(), ground.probe.clock());
            let steady = Steady::from_then(clock.now().plus(ahead), options);
            tell(0.0, "putting tasks");
            steady.put(shelf, options).await?;
            let lanes: [LaneTo<'_>; 1] = [("default", &destination)];
            let fleet = Fleet::start(ground, instances, &lanes).await?;
            if clock.now() < steady.begin {
                return Ok(Ready { steady, destination, watch, fleet });
            }
            fleet.end().await?;
            ground.empty(&shelf.namespace).await?;
            ahead *= 2;
        }
        bail!("tasks cannot be put fast enough to be due later; try a lower `--rate`")
    }
}

/// The whole path.
async fn whole(ground: &Ground, options: &Options, report: &mut Report, tell: Tell<'_>) -> anyhow::Result<Late> {
    let (shelf, clock) = (ground.shelf().await?, ground.probe.clock());
    let Ready { steady, watch, fleet, .. } =
        Ready::open(ground, &shelf, options, ("due", options.one_fleet()), tell).await?;
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
    let shelf = Shelf::open(&ground.redis_url, ground.floor_namespace()?).await?;
    // It serves as soon as all is put.
    let Ready { steady, destination, watch, .. } = Ready::open(ground, &shelf, options, ("floor", 0), tell).await?;
    let (out, form) = (limits::out(ground, &destination, options.payload)?, Form::of(options.recurring));
    let publishing = naked::on_time(ground, &shelf.namespace, form, &out);
    let told = |count: u64| tell(count as f64 / steady.count as f64, "publishing by the naked loop");
    tokio::try_join!(publishing, watch.reach(steady.count, steady.end(), &told))?;
    ground.empty(&shelf.namespace).await?;
    watch.between(steady.from(), steady.end())
}
