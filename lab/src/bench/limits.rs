//! Measures in the same run what the parts can do alone: the sink without a scheduler, and Redis without one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_sinks::{Message, Sink, SinkConfig};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::baseline::{self, BATCH_TASKS, MAX_BATCHES_IN_FLIGHT, SinkWithMessages, publish};
use super::moment::{accepted, each, spent};
use super::process::own_cpu;
use super::report::Report;
use super::setup::BenchSetup;
use super::tasks::{self, Batch, ScheduleKind, TaskNamespace, join, join_all};
use super::{Bench, Options, Tell};
use punctual::clock::Timestamp;
use punctual::task::Lane;

/// Maximum number of messages and records; the messages are in memory beforehand.
const MAX_MESSAGES: u64 = 400_000;

/// Messages that are sent first, so that connections exist.
const WARM_MESSAGES: u64 = 10;

/// How long a sink may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum duration of a broker's warm-up.
const WARM_UP_TIME: Duration = Duration::from_secs(10);

/// Duration of a broker's warm-up per measured task.
const WARM_UP_TIME_PER_MESSAGE: Duration = Duration::from_micros(100);

/// All limits, measured over the same messages and records, once before and once after the bench, so that a machine
/// that changes its speed does not distort the ratios.
pub(super) struct Limits {
    schedule_kind: ScheduleKind,
    tasks: u64,
    payload: usize,
    /// The sink without Redis, and the CPU time of its client library.
    raw: Part,
    /// The baseline loop in Redis without a sink.
    alone: Part,
}

/// What one part does alone.
#[derive(Default)]
struct Part {
    count: u64,
    span: Duration,
    cpu: Option<Duration>,
}

impl Limits {
    /// Measures for the first time, with up to `tasks` tasks.
    ///
    /// # Errors
    /// If a message is not accepted, or Redis does not answer.
    pub(super) async fn before(
        setup: &BenchSetup,
        schedule_kind: ScheduleKind,
        tasks: u64,
        payload: usize,
        tell: Tell<'_>,
    ) -> anyhow::Result<Limits> {
        let tasks = tasks.min(MAX_MESSAGES);
        let mut limits = Limits { schedule_kind, tasks, payload, raw: Part::default(), alone: Part::default() };
        limits.measure(setup, "raw-before", tell).await?;
        Ok(limits)
    }

    /// Measures again.
    ///
    /// # Errors
    /// As before.
    pub(super) async fn after(mut self, setup: &BenchSetup, tell: Tell<'_>) -> anyhow::Result<Limits> {
        self.measure(setup, "raw-after", tell).await?;
        Ok(self)
    }

    async fn measure(&mut self, setup: &BenchSetup, end: &str, tell: Tell<'_>) -> anyhow::Result<()> {
        tell(0.0, "measuring the sink alone");
        self.raw.add(raw(setup, end, self.tasks, self.payload).await?);
        tell(0.0, "measuring Redis alone");
        self.alone.add(baseline(setup, self.schedule_kind, self.tasks, self.payload).await?);
        Ok(())
    }

    /// Messages per second if each message takes its time in the sink and, after that, its time in Redis.
    pub(super) fn per_second(&self) -> f64 {
        1.0 / (1.0 / self.raw.per_second() + 1.0 / self.alone.per_second())
    }

    /// CPU time of the sink's client per message, in us.
    pub(super) fn raw_cpu_us(&self) -> Option<f64> {
        each(self.raw.cpu, self.raw.count)
    }

    /// Adds all figures to the report.
    pub(super) fn show(&self, report: &mut Report) {
        report.figure("raw_per_second", self.raw.per_second(), "messages by the sink alone");
        report.figure("raw_cpu_us", self.raw_cpu_us(), "CPU of the sink's client for a message");
        report.figure("alone_per_second", self.alone.per_second(), "occurrences by the baseline loop in Redis alone");
        report.figure("limit_per_second", self.per_second(), "1 / (1 / raw + 1 / alone)");
    }
}

impl Part {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.span.as_secs_f64()
    }

    fn add(&mut self, more: Part) {
        self.count += more.count;
        self.span += more.span;
        self.cpu = more.cpu.map(|cpu| cpu + self.cpu.unwrap_or_default());
    }
}

/// A sink like that of an instance.
fn sink(setup: &BenchSetup) -> anyhow::Result<Arc<dyn Sink>> {
    let config = SinkConfig::parse(setup.sink_url.expose_secret())?;
    Ok(config.with_namespace(setup.baseline_namespace()?.as_str()).build()?)
}

/// A sink with its destination.
///
/// # Errors
/// If the sink's address cannot be used.
pub(super) fn out(setup: &BenchSetup, destination: &str, payload: usize) -> anyhow::Result<SinkWithMessages> {
    let (destination, payload) = (destination.to_owned(), tasks::payload(payload));
    let message = move |id: &str, due: i64| message(id, due, &destination, payload.clone());
    Ok(SinkWithMessages { sink: sink(setup)?, message: Arc::new(message) })
}

/// The message of an occurrence, as an instance builds it.
fn message(id: &str, due: i64, destination: &str, payload: Bytes) -> Message {
    Message {
        key: format!("{id}:{due}"),
        task: id.to_owned(),
        due_ms: due,
        attempt: 1,
        destination: destination.to_owned(),
        record_key: None,
        native: None,
        headers: Vec::new(),
        is_tombstone: false,
        content_type: Some("application/json".to_owned()),
        payload,
    }
}

/// A destination and a connected sink.
///
/// # Errors
/// If it cannot be created, or a message is not accepted.
pub(super) async fn open(setup: &BenchSetup, end: &str, payload: usize) -> anyhow::Result<(String, SinkWithMessages)> {
    let destination = setup.make(end).await?;
    let out = out(setup, &destination, payload)?;
    let due = setup.probe.now().as_millis();
    let warm = (0..WARM_MESSAGES).map(|number| (out.message)(&tasks::id("warm", number), due)).collect();
    publish(&*out.sink, warm).await?;
    Ok((destination, out))
}

/// Closes it once all accepted messages have been counted; otherwise the figure would not be valid.
///
/// # Errors
/// If messages are missing.
pub(super) async fn close(
    setup: &BenchSetup,
    destination: &str,
    out: SinkWithMessages,
    messages: u64,
) -> anyhow::Result<()> {
    accepted(setup, &*setup.broker_side()?, destination, 0, messages + WARM_MESSAGES, &|_| {}).await?;
    Ok(out.sink.close(CLOSE_TIMEOUT).await?)
}

/// Measures the sink alone.
async fn raw(setup: &BenchSetup, end: &str, messages: u64, payload: usize) -> anyhow::Result<Part> {
    let (destination, out) = open(setup, end, payload).await?;
    let due = setup.probe.now().as_millis();
    let of = |number| (out.message)(&tasks::id("raw", number), due);
    let batch = |from: u64| -> Vec<Message> { (from..messages.min(from + BATCH_TASKS as u64)).map(of).collect() };
    // Built beforehand, so that only the sink is measured.
    let batches: Vec<Vec<Message>> = (0..messages).step_by(BATCH_TASKS).map(batch).collect();
    let (begun, before) = (Instant::now(), own_cpu());
    publish_all(&out.sink, batches.into_iter()).await?;
    let (span, cpu) = (begun.elapsed(), spent(before, own_cpu()));
    close(setup, &destination, out, messages).await?;
    Ok(Part { count: messages, span, cpu })
}

/// Publishes batches, several at once.
async fn publish_all(sink: &Arc<dyn Sink>, batches: impl Iterator<Item = Vec<Message>>) -> anyhow::Result<()> {
    let mut under_way = JoinSet::new();
    for batch in batches {
        while under_way.len() >= MAX_BATCHES_IN_FLIGHT {
            join(&mut under_way).await?;
        }
        let sink = Arc::clone(sink);
        under_way.spawn(async move { publish(&*sink, batch).await });
    }
    join_all(under_way).await
}

/// Runs the baseline loop over due records without a sink.
async fn baseline(setup: &BenchSetup, schedule_kind: ScheduleKind, tasks: u64, payload: usize) -> anyhow::Result<Part> {
    let task_namespace = records(setup, schedule_kind, tasks, payload, setup.probe.now()).await?;
    let floor = baseline::drain(setup, &task_namespace.namespace, schedule_kind, tasks, None).await;
    setup.empty(&task_namespace.namespace).await?;
    Ok(Part { count: tasks, span: floor?.span, cpu: None })
}

/// Records for the baseline loop, due at one moment.
///
/// # Errors
/// If Redis refuses them.
pub(super) async fn records(
    setup: &BenchSetup,
    schedule_kind: ScheduleKind,
    tasks: u64,
    payload: usize,
    due: Timestamp,
) -> anyhow::Result<TaskNamespace> {
    let task_namespace = TaskNamespace::open(&setup.redis_url, setup.baseline_namespace()?, setup.shards).await?;
    let (numbers, lane) = (0..tasks, Lane::default());
    let batch = Batch { prefix: "f", numbers, lane, schedule_kind, payload, destination: None, due: &|_| due };
    task_namespace.put(&batch, &|_| {}).await?;
    Ok(task_namespace)
}

/// Publishes for a while, in batches like an instance and in single messages, if the broker was started here and
/// becomes faster with use, as Java does. Otherwise the figures would be those of a broker that was started a second
/// ago.
///
/// # Errors
/// If a message is not accepted.
pub(super) async fn warm_up(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<()> {
    if !setup.warms_up() {
        return Ok(());
    }
    tell(0.0, "warming up the broker");
    let by_tasks = WARM_UP_TIME_PER_MESSAGE * u32::try_from(options.tasks).unwrap_or(u32::MAX);
    let span = if options.bench == Bench::Lateness { Duration::from_secs(options.seconds) } else { by_tasks };
    let until = Instant::now() + span.min(WARM_UP_TIME);
    let (destination, out) = open(setup, "warm", options.payload).await?;
    let due = setup.probe.now().as_millis();
    let (mut number, mut single) = (0, false);
    let batches = std::iter::from_fn(|| {
        if Instant::now() >= until {
            return None;
        }
        let from = number;
        single = !single;
        number += if single { 1 } else { BATCH_TASKS as u64 };
        Some((from..number).map(|number| (out.message)(&tasks::id("more", number), due)).collect())
    });
    publish_all(&out.sink, batches).await?;
    close(setup, &destination, out, number).await
}
