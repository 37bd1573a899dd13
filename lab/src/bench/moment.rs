//! Tasks that are due at one moment: put before it, published after it, and their cost.

use std::ops::Range;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

use super::broker_side::BrokerSide;
use super::fleet::{Fleet, LaneAndDestination};
use super::setup::BenchSetup;
use super::tasks::{Batch, ScheduleKind, TaskNamespace};
use super::{Options, Tell};
use punctual::clock::{Clock, Timestamp};
use punctual::task::Lane;

/// Tasks that are due before the moment, so that connections exist.
const WARM_UP_TASKS: u64 = 100;

/// How long before the moment those are due.
const WARM_UP_LEAD: Duration = Duration::from_millis(700);

/// How long before the moment the measurement begins.
const MEASURE_LEAD: Duration = Duration::from_millis(100);

/// How long instances may take to start, together and each.
const START_TIME: Duration = Duration::from_secs(2);
const START_TIME_PER_INSTANCE: Duration = Duration::from_millis(800);

/// The expected number of puts per second, before it is measured.
const ASSUMED_PUTS_PER_SECOND: f64 = 40_000.0;

/// Maximum number of attempts to put all tasks before the moment.
const MAX_TRIES: usize = 4;

/// The command by which instances call their scripts.
pub(super) const EVALSHA: &str = "evalsha";

/// How long to wait for the next accepted message while some are missing.
const MAX_TIME_WITHOUT_PROGRESS: Duration = Duration::from_secs(60);

/// How long after the last acceptance the settle may take.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The tasks of a moment.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) prefix: &'a str,
    pub(super) tasks: u64,
    pub(super) schedule_kind: ScheduleKind,
    pub(super) payload: usize,
    pub(super) instances: usize,
    /// The destination of all of them.
    pub(super) destination: &'a str,
    /// The lanes that are served; all tasks are in the lane `default`.
    pub(super) lanes: &'a [LaneAndDestination<'a>],
    /// How long before the moment instances must serve.
    pub(super) lead: Duration,
    /// Whether the timeline is otherwise empty, so that everything can be removed for another attempt.
    pub(super) alone: bool,
}

/// A future moment, with instances that wait for it.
pub(super) struct Burst {
    pub(super) due: Timestamp,
    pub(super) fleet: Fleet,
    /// Number of messages in the destination before.
    held: u64,
}

/// The result of a moment.
pub(super) struct BurstResult {
    /// When the last one was accepted, in us after the due.
    pub(super) last_us: i64,
    /// The CPU time of Redis and of the instances.
    pub(super) redis_cpu: Option<Duration>,
    pub(super) instance_cpu: Option<Duration>,
    /// The time of Redis in scripts of the instances.
    scripts: Option<Duration>,
    /// The calls of these scripts.
    calls: f64,
    tasks: u64,
}

impl<'a> Load<'a> {
    /// The load that the options name, alone in its timeline.
    pub(super) fn new(
        prefix: &'a str,
        options: &Options,
        destination: &'a str,
        lanes: &'a [LaneAndDestination<'a>],
    ) -> Load<'a> {
        Load {
            prefix,
            tasks: options.tasks,
            schedule_kind: ScheduleKind::of(options.recurring),
            payload: options.payload,
            instances: options.instance_count(),
            destination,
            lanes,
            lead: Duration::ZERO,
            alone: true,
        }
    }

    /// The expected number of messages in the destination.
    pub(super) fn messages(&self) -> u64 {
        self.tasks + WARM_UP_TASKS
    }

    /// Puts all tasks, due at one future moment, then starts instances. `more` puts other tasks around it.
    ///
    /// # Errors
    /// If the moment passes each time before all tasks are put and all instances serve.
    pub(super) async fn ready(
        &self,
        setup: &BenchSetup,
        task_namespace: &TaskNamespace,
        tell: Tell<'_>,
        more: impl AsyncFn(Timestamp) -> anyhow::Result<()>,
    ) -> anyhow::Result<Burst> {
        let (broker_side, clock, mut rate) = (setup.broker_side()?, setup.probe.clock(), ASSUMED_PUTS_PER_SECOND);
        let mut start = START_TIME + START_TIME_PER_INSTANCE * u32::try_from(self.instances).unwrap_or(u32::MAX);
        for number in 0..MAX_TRIES {
            let span = Duration::from_secs_f64(self.tasks as f64 / rate);
            let ahead = clock.now().plus(span + start + WARM_UP_LEAD.max(self.lead));
            // A whole second, because cron counts in seconds.
            let due = Timestamp::from_millis((ahead.as_millis().div_euclid(1000) + 1) * 1000);
            let begun = Instant::now();
            self.put_all(task_namespace, due, number, tell).await?;
            more(due).await?;
            rate = (self.tasks as f64 / begun.elapsed().as_secs_f64()).min(rate) * 0.8;
            let held = broker_side.held(self.destination).await?;
            let is_put = clock.now().plus(start / 2 + self.lead) < due;
            if is_put || !self.alone {
                let fleet = Fleet::start(setup, self.instances, self.lanes).await?;
                if is_put && clock.now().plus((2 * MEASURE_LEAD).max(self.lead)) < due {
                    return Ok(Burst { due, fleet, held });
                }
                // They started too late; ignore what they publish now.
                start *= 2;
                accepted(setup, &*broker_side, self.destination, held, self.messages(), &|_| {}).await?;
                settled(setup, task_namespace, due).await?;
                fleet.end().await?;
            }
            if self.alone {
                setup.empty(&task_namespace.namespace).await?;
            }
        }
        bail!("tasks cannot be put fast enough to be due at one moment; try fewer `--tasks`")
    }

    /// Puts all tasks. Ids differ between attempts, because brokers deduplicate by them.
    async fn put_all(
        &self,
        task_namespace: &TaskNamespace,
        due: Timestamp,
        number: usize,
        tell: Tell<'_>,
    ) -> anyhow::Result<()> {
        let prefix = format!("{}{number}", self.prefix);
        let warm = format!("w{prefix}");
        task_namespace
            .put(&self.batch(&warm, 0..WARM_UP_TASKS, ScheduleKind::Once, &|_| due.minus(WARM_UP_LEAD)), &|_| {})
            .await?;
        let tasks = self.tasks;
        let progress = |put: u64| tell(put as f64 / tasks as f64, "putting tasks");
        task_namespace.put(&self.batch(&prefix, 0..tasks, self.schedule_kind, &|_| due), &progress).await
    }

    /// Some of the tasks with other dues.
    pub(super) fn batch<'b>(
        &self,
        prefix: &'b str,
        numbers: Range<u64>,
        schedule_kind: ScheduleKind,
        due: &'b (dyn Fn(u64) -> Timestamp + Sync),
    ) -> Batch<'b> {
        let (lane, payload) = (Lane::default(), self.payload);
        Batch { prefix, numbers, lane, schedule_kind, payload, destination: None, due }
    }
}

impl Burst {
    /// Moves on to a later moment with as many tasks, which were put together with the first ones.
    pub(super) fn move_due(&mut self, by: Duration, tasks: u64) {
        self.due = self.due.plus(by);
        self.held += tasks;
    }

    /// Waits for the moment, and until all its tasks are accepted and settled.
    ///
    /// # Errors
    /// If no more are accepted or settled.
    pub(super) async fn pass(
        &self,
        setup: &BenchSetup,
        task_namespace: &TaskNamespace,
        load: &Load<'_>,
        tell: Tell<'_>,
    ) -> anyhow::Result<BurstResult> {
        tell(0.0, "waiting for the moment");
        let clock = setup.probe.clock();
        clock.sleep_until(self.due.minus(MEASURE_LEAD)).await;
        let (redis_before, instance_before) = (setup.probe.cpu().await?, self.fleet.cpu());
        let scripts_before = setup.probe.spent_in(EVALSHA).await?;
        let calls_before = setup.probe.calls_of(EVALSHA).await?;
        clock.sleep_until(self.due).await;
        let broker_side = setup.broker_side()?;
        let progress = |count: u64| tell(count as f64 / load.messages() as f64, "publishing");
        let last = accepted(setup, &*broker_side, load.destination, self.held, load.messages(), &progress).await?;
        settled(setup, task_namespace, self.due).await?;
        Ok(BurstResult {
            last_us: last - self.due.as_millis() * 1000,
            redis_cpu: spent(redis_before, setup.probe.cpu().await?),
            instance_cpu: spent(instance_before, self.fleet.cpu()),
            scripts: spent(scripts_before, setup.probe.spent_in(EVALSHA).await?),
            calls: setup.probe.calls_of(EVALSHA).await? - calls_before,
            tasks: load.tasks,
        })
    }
}

/// Waits until a destination has this many new messages; returns when, in us of Redis' time.
///
/// # Errors
/// If none arrives for a minute.
pub(super) async fn accepted(
    setup: &BenchSetup,
    broker_side: &dyn BrokerSide,
    destination: &str,
    held: u64,
    count: u64,
    tell: &dyn Fn(u64),
) -> anyhow::Result<i64> {
    let (mut before, mut moved) = (0, Instant::now());
    loop {
        let asked = setup.probe.now_us();
        let now = broker_side.held(destination).await?.saturating_sub(held);
        tell(now);
        if now >= count {
            // They arrived before the question, or while it was answered.
            return Ok(i64::midpoint(asked, setup.probe.now_us()));
        }
        if now > before {
            (before, moved) = (now, Instant::now());
        }
        if moved.elapsed() > MAX_TIME_WITHOUT_PROGRESS {
            bail!("{now} of {count} messages were accepted, then none for {MAX_TIME_WITHOUT_PROGRESS:?}");
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until no task with a due up to `due` is left.
///
/// # Errors
/// If some remain.
pub(super) async fn settled(setup: &BenchSetup, task_namespace: &TaskNamespace, due: Timestamp) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let left = setup.left(&task_namespace.namespace, due).await?;
        if left == 0 {
            return Ok(());
        }
        if begun.elapsed() > SETTLE_TIMEOUT {
            bail!("{left} occurrences are accepted, but not settled within {SETTLE_TIMEOUT:?}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

impl BurstResult {
    /// When the last was accepted, in seconds after the due.
    pub(super) fn seconds(&self) -> f64 {
        self.last_us.max(1) as f64 / 1e6
    }

    /// Tasks published per second.
    pub(super) fn per_second(&self) -> f64 {
        self.tasks as f64 / self.seconds()
    }

    /// CPU time of Redis per occurrence, in us.
    pub(super) fn redis_us(&self) -> Option<f64> {
        each(self.redis_cpu, self.tasks)
    }

    /// Time of Redis in scripts per occurrence, in us.
    pub(super) fn script_us(&self) -> Option<f64> {
        each(self.scripts, self.tasks)
    }

    /// Calls of scripts per occurrence.
    pub(super) fn calls(&self) -> f64 {
        self.calls / self.tasks.max(1) as f64
    }

    /// CPU time of the instances per occurrence, in us.
    pub(super) fn instance_us(&self) -> Option<f64> {
        each(self.instance_cpu, self.tasks)
    }
}

/// The difference, if both are known.
pub(super) fn spent(before: Option<Duration>, after: Option<Duration>) -> Option<Duration> {
    Some(after?.saturating_sub(before?))
}

/// CPU time divided by a count, in us.
pub(super) fn each(cpu: Option<Duration>, count: u64) -> Option<f64> {
    Some(cpu?.as_secs_f64() * 1e6 / count.max(1) as f64)
}
