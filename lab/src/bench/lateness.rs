//! How late occurrences are that become due steadily, and how late the baseline loop is with the same load.
//!
//! The two take turns of a tenth of a second, so that both get the same share of the good and bad seconds of the
//! machine and the broker. Both are started several times, because the threads of a process stay on the cores that they
//! found first, which affects its lateness.

use std::time::Duration;

use anyhow::bail;

use super::baseline;
use super::fleet::{Fleet, LaneAndDestination};
use super::late::Late;
use super::limits;
use super::moment::{self, EVALSHA, each};
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::{Batch, ScheduleKind, TaskNamespace};
use super::watch::Watch;
use super::{Options, Tell, millis};
use punctual::clock::{Clock, Timestamp};
use punctual::task::{Lane, Namespace};

/// The length of a turn; a second has several.
const TURN_TIME: Duration = Duration::from_millis(100);

/// How long each runs before it is measured, because the first connections and calls are slow.
const WARM_UP_TIME: Duration = Duration::from_millis(500);

/// Maximum number of runs, each with new instances and a new baseline loop; each lasts at least a second.
const MAX_RUNS: u64 = 5;

/// The assumed number of puts per second, for the first attempt.
const ASSUMED_PUTS_PER_SECOND: u64 = 20_000;

/// Maximum number of attempts to put all and to serve before the first due.
pub(super) const MAX_TRIES: usize = 4;

/// How long before the first due all tasks must be put.
const MARGIN_TIME: Duration = Duration::from_millis(500);

/// The additional time for each instance to start.
pub(super) const START_TIME: Duration = Duration::from_millis(1200);

/// Dues at a steady rate, in turns.
struct Steady {
    /// When the first turn of all begins, ...
    begin: Timestamp,
    /// ... and how long after that the first turn of this side begins.
    later: Duration,
    rate: u64,
    /// The length of all these turns together.
    lasting: Duration,
}

impl Steady {
    /// The turns of the instances and those of the baseline loop.
    fn both(begin: Timestamp, options: &Options) -> [Steady; 2] {
        let (rate, seconds) = (u64::from(options.rate), options.seconds);
        let lasting = WARM_UP_TIME + Duration::from_millis(seconds * 1000 / starts(options));
        [Duration::ZERO, TURN_TIME].map(|later| Steady { begin, later, rate, lasting })
    }

    fn count(&self) -> u64 {
        (self.rate * millis(self.lasting)).div_ceil(1000)
    }

    fn due(&self, number: u64) -> Timestamp {
        // How long the turns of this side lasted before this due; those of the other side lasted as long.
        let own = number * 1000 / self.rate;
        let others = own / millis(TURN_TIME) * millis(TURN_TIME);
        self.begin.plus(self.later + Duration::from_millis(own + others))
    }

    /// The begin of the measured time, ...
    fn from(&self) -> Timestamp {
        self.begin.plus(2 * WARM_UP_TIME)
    }

    /// ... and its end.
    fn until(&self) -> Timestamp {
        self.begin.plus(2 * self.lasting)
    }

    async fn put(&self, task_namespace: &TaskNamespace, options: &Options) -> anyhow::Result<()> {
        let due = |number| self.due(number);
        let batch = Batch {
            prefix: "l",
            numbers: 0..self.count(),
            lane: Lane::default(),
            schedule_kind: ScheduleKind::of(options.recurring),
            payload: options.payload,
            destination: None,
            due: &due,
        };
        task_namespace.put(&batch, &|_| {}).await
    }
}

/// Number of starts.
fn starts(options: &Options) -> u64 {
    options.seconds.clamp(1, MAX_RUNS)
}

/// Runs the bench.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let mut report = Report::new(options);
    report.option("rate", options.rate);
    report.option("seconds", options.seconds);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("instances", options.instance_count());
    let mut all = measure(setup, options, 0, tell).await?;
    for number in 1..starts(options) {
        all.add(&measure(setup, options, number, tell).await?)?;
    }
    let Measured { late, floor, scripts, cpu } = all;
    late.show(&mut report, "", "whole path");
    floor.show(&mut report, "floor_", "baseline loop");
    for (name, share, text) in [
        ("p50_to_floor", 0.5, "budget: this ratio at most 2, unless p50 is at most 1.2 ms"),
        ("p99_to_floor", 0.99, "budget: this ratio at most 2, unless p99 is at most 3 ms"),
        ("p999_to_floor", 0.999, "budget: this ratio at most 2, unless p99.9 is at most 15 ms"),
    ] {
        report.ratio(name, late.ms(share), floor.ms(share), text);
    }
    report.figure(
        "script_us",
        each(scripts, late.count()),
        "time of Redis in all scripts of the instances, for one occurrence",
    );
    report.figure("instance_us", each(cpu, late.count()), "CPU of the instances for an occurrence");
    Ok(report)
}

/// The result of one start.
struct Measured {
    late: Late,
    /// Of the baseline loop.
    floor: Late,
    /// Time of Redis in scripts of the instances.
    scripts: Option<Duration>,
    /// CPU time of the instances.
    cpu: Option<Duration>,
}

impl Measured {
    /// Adds the result of another start.
    ///
    /// # Errors
    /// None that is known of.
    fn add(&mut self, other: &Measured) -> anyhow::Result<()> {
        self.late.add_all(&other.late)?;
        self.floor.add_all(&other.floor)?;
        self.scripts = self.scripts.zip(other.scripts).map(|(one, other)| one + other);
        self.cpu = self.cpu.zip(other.cpu).map(|(one, other)| one + other);
        Ok(())
    }
}

/// One of the two sides: its future dues, their destination, and its reader.
struct Side {
    steady: Steady,
    task_namespace: TaskNamespace,
    destination: String,
    watch: Watch,
}

impl Side {
    /// Puts all tasks. `end` is part of the destination's name, so that messages of an attempt that started too late are
    /// ignored.
    async fn open(
        setup: &BenchSetup,
        options: &Options,
        (steady, namespace): (Steady, Namespace),
        end: &str,
    ) -> anyhow::Result<Side> {
        let destination = setup.make(end).await?;
        let watch = Watch::start(setup.broker_side()?, destination.clone(), setup.probe.clock());
        let task_namespace = TaskNamespace::open(&setup.redis_url, namespace, setup.shards).await?;
        steady.put(&task_namespace, options).await?;
        Ok(Side { steady, task_namespace, destination, watch })
    }

    /// Waits until the messages of all its tasks have arrived.
    async fn reach(&self, tell: &dyn Fn(u64)) -> anyhow::Result<()> {
        self.watch.reach(self.steady.count(), self.steady.until(), tell).await
    }

    /// Removes all tasks; returns the lateness of the measured ones.
    async fn late(&self, setup: &BenchSetup) -> anyhow::Result<Late> {
        setup.empty(&self.task_namespace.namespace).await?;
        self.watch.between(self.steady.from(), self.steady.until())
    }
}

/// Puts the tasks of both sides, then starts the instances. Tries again with more time if the first due passes before
/// they serve.
///
/// # Errors
/// If that fails each time.
async fn ready(
    setup: &BenchSetup,
    options: &Options,
    start: u64,
    tell: Tell<'_>,
) -> anyhow::Result<(Side, Side, Fleet)> {
    let (clock, instances) = (setup.probe.clock(), options.instance_count());
    let [own, floor] = Steady::both(clock.now(), options);
    let served = START_TIME * u32::try_from(instances).unwrap_or(u32::MAX);
    let mut ahead =
        Duration::from_millis((own.count() + floor.count()) * 1000 / ASSUMED_PUTS_PER_SECOND) + MARGIN_TIME + served;
    for number in 0..MAX_TRIES {
        let [own, floor] = Steady::both(clock.now().plus(ahead), options);
        tell(start as f64 / starts(options) as f64, "putting tasks");
        let end = |side: &str| format!("{side}{start}x{number}");
        let own = Side::open(setup, options, (own, setup.namespace()?), &end("due")).await?;
        let floor = Side::open(setup, options, (floor, setup.baseline_namespace()?), &end("floor")).await?;
        let lanes: [LaneAndDestination<'_>; 1] = [("default", &own.destination)];
        let fleet = Fleet::start(setup, instances, &lanes).await?;
        if clock.now() < own.steady.begin {
            return Ok((own, floor, fleet));
        }
        fleet.end().await?;
        setup.empty(&own.task_namespace.namespace).await?;
        setup.empty(&floor.task_namespace.namespace).await?;
        ahead *= 2;
    }
    bail!("tasks cannot be put fast enough to be due later; try a lower `--rate`")
}

/// Measures the instances, and the baseline loop, which sleeps until the due, claims, publishes and writes back.
/// Afterwards everything is as before.
async fn measure(setup: &BenchSetup, options: &Options, start: u64, tell: Tell<'_>) -> anyhow::Result<Measured> {
    let (own, floor, fleet) = ready(setup, options, start, tell).await?;
    let (schedule_kind, out) =
        (ScheduleKind::of(options.recurring), || limits::out(setup, &floor.destination, options.payload));
    let progress = |count: u64| {
        let done = start as f64 + count as f64 / own.steady.count() as f64;
        tell(done / starts(options) as f64, "publishing");
    };
    let spent = async || anyhow::Ok((setup.probe.spent_in(EVALSHA).await?, fleet.cpu()));
    let publishing = async {
        setup.probe.clock().sleep_until(own.steady.from()).await;
        let before = spent().await?;
        own.reach(&progress).await?;
        anyhow::Ok((before, spent().await?))
    };
    let looping = baseline::on_time(setup, &floor.task_namespace.namespace, schedule_kind, out);
    let ((before, after), ..) = tokio::try_join!(publishing, looping, floor.reach(&|_| {}))?;
    fleet.end().await?;
    Ok(Measured {
        late: own.late(setup).await?,
        floor: floor.late(setup).await?,
        scripts: moment::spent(before.0, after.0),
        cpu: moment::spent(before.1, after.1),
    })
}
