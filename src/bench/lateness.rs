//! How late occurrences are that come due steadily, and how late the naked loop is with the same.
//!
//! Both take turns of a tenth of a second: how late a machine or a broker is differs from one second to the next, and so
//! both have as much of the good ones and of the bad ones.

use std::time::Duration;

use anyhow::bail;

use super::fleet::{Fleet, LaneTo};
use super::ground::Ground;
use super::late::Late;
use super::limits;
use super::moment::{self, EVALSHA, each};
use super::naked;
use super::report::Report;
use super::tasks::{Batch, Form, Shelf};
use super::watch::Watch;
use super::{Options, Tell, millis};
use crate::clock::{Clock, Timestamp};
use crate::task::{Lane, Namespace};

/// How long a turn is, of either; a second is some of them.
const TURN: Duration = Duration::from_millis(100);

/// Seconds of either before it is measured: connections are made, and the first of everything is slow.
const WARM: u64 = 1;

/// Tasks put each second, at least.
const PUTS: u64 = 20_000;

/// How often it is tried to put all, and to serve, before the first is due.
const TRIES: usize = 4;

/// How long before the first is due all has to be put, ...
const MARGIN: Duration = Duration::from_millis(500);

/// ... and how much longer for each instance, which has to start.
const START: Duration = Duration::from_secs(2);

/// Dues that come steadily, in turns.
struct Steady {
    /// When the first turn of all begins, ...
    begin: Timestamp,
    /// ... and how long after it the first one of these.
    later: Duration,
    rate: u64,
    /// How long all of these turns are.
    seconds: u64,
}

impl Steady {
    /// What begins then: of the instances, and of the naked loop.
    fn both(begin: Timestamp, options: &Options) -> [Steady; 2] {
        let (rate, seconds) = (u64::from(options.rate), WARM + options.seconds);
        [Duration::ZERO, TURN].map(|later| Steady { begin, later, rate, seconds })
    }

    fn count(&self) -> u64 {
        self.rate * self.seconds
    }

    fn due(&self, number: u64) -> Timestamp {
        // So long have turns of these taken before it; those of the others were as many.
        let own = number * 1000 / self.rate;
        let others = own / millis(TURN) * millis(TURN);
        self.begin.plus(self.later + Duration::from_millis(own + others))
    }

    /// From when on is measured, ...
    fn from(&self) -> Timestamp {
        self.begin.plus(2 * Duration::from_secs(WARM))
    }

    /// ... and until when.
    fn until(&self) -> Timestamp {
        self.begin.plus(2 * Duration::from_secs(self.seconds))
    }

    async fn put(&self, shelf: &Shelf, options: &Options) -> anyhow::Result<()> {
        let due = |number| self.due(number);
        let batch = Batch {
            prefix: "l",
            numbers: 0..self.count(),
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
    let (late, floor) = measure(ground, options, &mut report, tell).await?;
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

/// Dues that lie ahead of one, where they are published to, and who reads it.
struct Side {
    steady: Steady,
    shelf: Shelf,
    destination: String,
    watch: Watch,
}

impl Side {
    /// Puts all. `end` tells its destination from all others: what one that was too late has published is of no account.
    async fn open(
        ground: &Ground,
        options: &Options,
        (steady, namespace): (Steady, Namespace),
        end: &str,
    ) -> anyhow::Result<Side> {
        let destination = ground.make(end).await?;
        let watch = Watch::start(ground.far()?, destination.clone(), ground.probe.clock());
        let shelf = Shelf::open(&ground.redis_url, namespace).await?;
        steady.put(&shelf, options).await?;
        Ok(Side { steady, shelf, destination, watch })
    }

    async fn reach(&self, tell: &dyn Fn(u64)) -> anyhow::Result<()> {
        self.watch.reach(self.steady.count(), self.steady.until(), tell).await
    }

    /// Removes all; how late what is measured was.
    async fn late(&self, ground: &Ground) -> anyhow::Result<Late> {
        ground.empty(&self.shelf.namespace).await?;
        self.watch.between(self.steady.from(), self.steady.until())
    }
}

/// Puts all of both, then starts the instances; begins anew, with more time, where the first is due before they serve.
///
/// # Errors
/// When it always is.
async fn ready(ground: &Ground, options: &Options, tell: Tell<'_>) -> anyhow::Result<(Side, Side, Fleet)> {
    let (clock, instances) = (ground.probe.clock(), options.one_fleet());
    let [own, floor] = Steady::both(clock.now(), options);
    let start = START * u32::try_from(instances).unwrap_or(u32::MAX);
    let mut ahead = Duration::from_millis((own.count() + floor.count()) * 1000 / PUTS) + MARGIN + start;
    for number in 0..TRIES {
        let [own, floor] = Steady::both(clock.now().plus(ahead), options);
        tell(0.0, "putting tasks");
        let own = Side::open(ground, options, (own, ground.namespace()?), &format!("due{number}")).await?;
        let floor = Side::open(ground, options, (floor, ground.floor_namespace()?), &format!("floor{number}")).await?;
        let lanes: [LaneTo<'_>; 1] = [("default", &own.destination)];
        let fleet = Fleet::start(ground, instances, &lanes).await?;
        if clock.now() < own.steady.begin {
            return Ok((own, floor, fleet));
        }
        fleet.end().await?;
        ground.empty(&own.shelf.namespace).await?;
        ground.empty(&floor.shelf.namespace).await?;
        ahead *= 2;
    }
    bail!("tasks cannot be put fast enough to be due later; try a lower `--rate`")
}

/// The whole path, and the naked loop: it sleeps until the due, claims, publishes, writes back.
async fn measure(
    ground: &Ground,
    options: &Options,
    report: &mut Report,
    tell: Tell<'_>,
) -> anyhow::Result<(Late, Late)> {
    let (own, floor, fleet) = ready(ground, options, tell).await?;
    let (form, out) = (Form::of(options.recurring), || limits::out(ground, &floor.destination, options.payload));
    let told = |count: u64| tell(count as f64 / own.steady.count() as f64, "publishing");
    let spent = async || anyhow::Ok((ground.probe.spent_in(EVALSHA).await?, fleet.cpu()));
    let publishing = async {
        ground.probe.clock().sleep_until(own.steady.from()).await;
        let before = spent().await?;
        own.reach(&told).await?;
        anyhow::Ok((before, spent().await?))
    };
    let looping = naked::on_time(ground, &floor.shelf.namespace, form, out);
    let ((before, after), ..) = tokio::try_join!(publishing, looping, floor.reach(&|_| {}))?;
    fleet.end().await?;
    let (late, floor) = (own.late(ground).await?, floor.late(ground).await?);
    let of = |before, after| each(moment::spent(before, after), late.count());
    report.figure("script_us", of(before.0, after.0), "of Redis in all scripts of the instances, for an occurrence");
    report.figure("instance_us", of(before.1, after.1), "CPU of the instances for an occurrence");
    Ok((late, floor))
}
