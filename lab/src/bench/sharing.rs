//! What several instances cost that share the shards, and how late messages are when some of them die.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::fleet::{Fleet, LaneAndDestination};
use super::late::Late;
use super::lateness::{MAX_TRIES, START_TIME};
use super::moment::EVALSHA;
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::{Batch, ScheduleKind, TaskNamespace, id};
use super::watch::Watch;
use super::{Options, Tell};
use punctual::clock::{Clock, Timestamp};
use punctual::task::Lane;

/// Tasks are due this long before the measurement begins, so that all instances know each other.
pub(super) const WARM_UP_TIME: Duration = Duration::from_secs(4);

/// The prefix of the ids of tasks that are due steadily.
const PREFIX: &str = "f";

/// Runs the bench `fleet`.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn fleet(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let mut report = Report::new(options);
    show_options(&mut report, setup, options);
    let mut calls = Vec::new();
    for &instances in &options.instances {
        let run = Run::start(setup, options, instances, tell).await?;
        let (late, per_second) = run.undisturbed(setup, tell).await?;
        let name = |figure: &str| format!("with_{instances}_{figure}");
        report.figure(name("calls_per_second"), per_second, "scripts that all instances send to Redis");
        report.figure(name("p50_ms"), late.ms(0.5), "from the due to the consumer");
        report.figure(name("p99_ms"), late.ms(0.99), "");
        report.figure(name("max_ms"), late.most_ms(), "");
        calls.push(per_second);
    }
    let text = "with the most and the fewest instances; budget: at most 2.2";
    report.ratio("calls_last_to_first", calls.last().copied(), calls.first().copied(), text);
    Ok(report)
}

/// Runs the bench `death`: kills one instance, and in another run two at once.
///
/// # Errors
/// If an occurrence is not published.
pub(super) async fn death(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let instances = options.instance_count();
    ensure!(instances > 2, "some must be left when two are killed: at least three instances are needed");
    let mut report = Report::new(options);
    show_options(&mut report, setup, options);
    for killed in [1, 2] {
        let run = Run::start(setup, options, instances, tell).await?;
        let (late, held) = run.with_deaths(setup, killed, tell).await?;
        let name = |figure: &str| format!("killed_{killed}_{figure}");
        report.figure(name("held_count"), held as f64, "occurrences in claims of the killed, left out of the rest");
        report.figure(name("p99_ms"), late.ms(0.99), "from the due to the consumer");
        let text = if killed == 1 { "budget: at most 50" } else { "budget: at most 1300" };
        report.figure(name("max_ms"), late.most_ms(), text);
    }
    Ok(report)
}

pub(super) fn show_options(report: &mut Report, setup: &BenchSetup, options: &Options) {
    report.option("rate", options.rate);
    report.option("seconds", options.seconds);
    report.option("payload", options.payload);
    report.option("instances", options.instances.clone());
    report.option("shards", setup.shards);
}

/// When a task is due, by its number.
fn due(begin: Timestamp, rate: u64, number: u64) -> Timestamp {
    begin.plus(Duration::from_millis(number * 1000 / rate))
}

/// Instances, and tasks that become due steadily from a moment on.
pub(super) struct Run {
    pub(super) fleet: Fleet,
    pub(super) task_namespace: TaskNamespace,
    pub(super) watch: Watch,
    pub(super) begin: Timestamp,
    /// When the last is due.
    pub(super) end: Timestamp,
    /// Tasks that are due each second.
    rate: u64,
    count: u64,
}

impl Run {
    /// Puts all tasks, then starts the instances. Tries again with more time if the first due passes meanwhile.
    pub(super) async fn start(
        setup: &BenchSetup,
        options: &Options,
        instances: usize,
        tell: Tell<'_>,
    ) -> anyhow::Result<Run> {
        let clock = setup.probe.clock();
        let lasting = WARM_UP_TIME + Duration::from_secs(options.seconds);
        let rate = u64::from(options.rate);
        let count = rate * lasting.as_secs();
        let mut ahead = Duration::from_secs(2) + START_TIME * u32::try_from(instances).unwrap_or(u32::MAX);
        for number in 0..MAX_TRIES {
            tell(0.0, "putting tasks");
            let begin = clock.now().plus(ahead);
            let destination = setup.make(&format!("due{instances}x{number}x{}", begin.as_millis())).await?;
            let watch = Watch::start(setup.broker_side()?, destination.clone(), setup.probe.clock());
            let task_namespace = setup.task_namespace().await?;
            let batch = Batch {
                prefix: PREFIX,
                numbers: 0..count,
                lane: Lane::default(),
                schedule_kind: ScheduleKind::Once,
                payload: options.payload,
                destination: None,
                due: &|number| due(begin, rate, number),
            };
            task_namespace.put(&batch, &|_| {}).await?;
            tell(0.0, "starting instances");
            let lanes: [LaneAndDestination<'_>; 1] = [("default", &destination)];
            let fleet = Fleet::start(setup, instances, &lanes).await?;
            if clock.now() < begin {
                return Ok(Run { fleet, task_namespace, watch, begin, end: begin.plus(lasting), rate, count });
            }
            fleet.end().await?;
            setup.empty(&task_namespace.namespace).await?;
            ahead *= 2;
        }
        bail!("tasks cannot be put fast enough to be due later; try a lower `--rate`")
    }

    /// How late messages were, and the calls of all instances per second.
    async fn undisturbed(self, setup: &BenchSetup, tell: Tell<'_>) -> anyhow::Result<(Late, f64)> {
        let (clock, from) = (setup.probe.clock(), self.begin.plus(WARM_UP_TIME));
        clock.sleep_until(from).await;
        let before = setup.probe.calls_of(EVALSHA).await?;
        self.reach(tell).await?;
        let seconds = clock.now().since(from).as_secs_f64();
        let calls = (setup.probe.calls_of(EVALSHA).await? - before) / seconds;
        self.fleet.end().await?;
        setup.empty(&self.task_namespace.namespace).await?;
        Ok((self.watch.between(from, self.end)?, calls))
    }

    /// Kills some of the instances in the middle. Returns how late messages were from then on, except those that the
    /// killed held, and how many these are.
    async fn with_deaths(mut self, setup: &BenchSetup, killed: usize, tell: Tell<'_>) -> anyhow::Result<(Late, usize)> {
        let clock = setup.probe.clock();
        let half = self.end.since(self.begin.plus(WARM_UP_TIME)) / 2;
        let from = self.begin.plus(WARM_UP_TIME + half);
        clock.sleep_until(from).await;
        let dead = self.fleet.kill(killed).await?;
        let held = self.held_by(setup, &dead).await?;
        self.reach(tell).await?;
        self.fleet.end().await?;
        setup.empty(&self.task_namespace.namespace).await?;
        Ok((self.watch.between_but(from, self.end, &held)?, held.len()))
    }

    /// The dues, in ms, of the tasks whose id is accepted. At a rate above 1000 others may have the same due.
    ///
    /// # Errors
    /// Those of `accepts`.
    pub(super) fn dues_of(&self, accepts: impl Fn(&str) -> anyhow::Result<bool>) -> anyhow::Result<BTreeSet<i64>> {
        let mut dues = BTreeSet::new();
        for number in 0..self.count {
            if accepts(&id(PREFIX, number))? {
                dues.insert(due(self.begin, self.rate, number).as_millis());
            }
        }
        Ok(dues)
    }

    pub(super) async fn reach(&self, tell: Tell<'_>) -> anyhow::Result<()> {
        let progress = |count: u64| tell(count as f64 / self.count as f64, "publishing");
        self.watch.reach(self.count, self.end, &progress).await
    }

    /// The dues, in ms, in claims of these instances.
    async fn held_by(&self, setup: &BenchSetup, instances: &[String]) -> anyhow::Result<BTreeSet<i64>> {
        let claims = setup.probe.claims(&self.task_namespace.namespace, setup.shards, &Lane::default()).await?;
        let is_held = |token: &str| token.split('.').next().is_some_and(|id| instances.iter().any(|one| one == id));
        // An entry is the number of occurrences or `part`, then the id and the due of each.
        let dues =
            |entry: &str| entry.split(' ').skip(2).step_by(2).filter_map(|due| due.parse().ok()).collect::<Vec<_>>();
        Ok(claims.iter().filter(|(token, _)| is_held(token)).flat_map(|(_, entry)| dues(entry)).collect())
    }
}
