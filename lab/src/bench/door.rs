//! Tasks from the messages of a broker: how many a second, what one costs, and how soon it is stored.
//!
//! The limits are a consumer alone, which reads and acknowledges the same messages with the same client, and one batch of
//! puts over HTTP with the same tasks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use punctual::doors::SourceOptions;
use punctual_sinks::source::Source;
use punctual_sinks::{Message, SinkConfig};
use secrecy::ExposeSecret;
use tokio::time::{Instant, sleep, sleep_until};

use super::baseline::{BATCH_TASKS, publish};
use super::fleet::Fleet;
use super::moment::{each, spent};
use super::process::own_cpu;
use super::put::{self, Load};
use super::report::Report;
use super::setup::BenchSetup;
use super::{Options, Tell, tasks};

/// The batch of a door, as shipped.
const BATCH: usize = 500;

/// How often stored tasks are counted.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum duration of a part without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// Duration of the steady part.
const STEADY_TIME: Duration = Duration::from_secs(10);

/// The interval at which messages of the steady part are sent.
const STEADY_INTERVAL: Duration = Duration::from_millis(10);

/// How long a sink or a source may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// What one part did: its messages, how long they took, and its CPU time.
struct Part {
    messages: u64,
    span: Duration,
    cpu: Option<Duration>,
}

/// Runs the bench.
///
/// # Errors
/// If a message does not become a task.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    let out = setup.make("out").await?;
    tell(0.0, "reading with a consumer alone");
    let consumer = consumer(setup, options, &out).await?;
    tell(0.3, "putting a batch over HTTP alone");
    let batch = batch(setup, options, &out).await?;
    tell(0.6, "reading with a door");
    let from = setup.make("in").await?;
    let sender = Sender::open(setup, &from, &out, options.payload)?;
    let source = setup.broker_side()?.make_source(&from).await?;
    sender.send(0, options.tasks).await?;
    let fleet = start(setup, &source, &out).await?;
    let door = door(setup, options, &fleet).await?;
    tell(0.8, "reading at a steady rate");
    let mut soon = steady(setup, options, &sender).await?;
    sender.sink.close(CLOSE_TIMEOUT).await?;
    fleet.end().await?;

    let per_second = |part: &Part| part.messages as f64 / part.span.as_secs_f64();
    let cpu = |part: &Part| each(part.cpu, part.messages);
    let limit = 1.0 / (1.0 / per_second(&consumer) + 1.0 / per_second(&batch));
    report.figure("door_per_second", per_second(&door), "tasks from messages, from when the instance serves");
    report.figure("consumer_per_second", per_second(&consumer), "messages read and acknowledged alone");
    report.figure("batch_per_second", per_second(&batch), "tasks by one batch over HTTP alone");
    report.figure("limit_per_second", limit, "1 / (1 / consumer + 1 / batch)");
    report.figure("door_cpu_us", cpu(&door), "CPU of the instance for a message");
    report.figure("consumer_cpu_us", cpu(&consumer), "CPU of the consumer for a message");
    report.figure("batch_cpu_us", cpu(&batch), "CPU of the instance for a task of the batch");
    soon.sort_unstable();
    for (name, share) in [("stored_p50_ms", 0.5), ("stored_p99_ms", 0.99)] {
        let at = ((soon.len() as f64 * share) as usize).min(soon.len().saturating_sub(1));
        let ms = soon.get(at).map(|span| span.as_secs_f64() * 1000.0);
        report.figure(name, ms, format!("from the sending of a message to its task, at {} a second", options.rate));
    }
    report.ratio("door_to_limit", Some(per_second(&door)), limit, "budget: 0.75");
    let alone = cpu(&consumer).zip(cpu(&batch)).map(|(consumer, batch)| consumer + batch);
    report.ratio("door_cpu_to_alone", cpu(&door), alone.unwrap_or(f64::NAN), "budget: 1.3");
    Ok(report)
}

/// An instance with a door.
async fn start(setup: &BenchSetup, from: &str, out: &str) -> anyhow::Result<Fleet> {
    let door = format!("[doors.in]\nsink = \"default\"\nfrom = \"{from}\"\nrejected = \"\"\n");
    Fleet::start_with(setup, 1, &[("default", out)], &door).await
}

/// Waits until the door has put all. It may have put some before: they do not count.
async fn door(setup: &BenchSetup, options: &Options, fleet: &Fleet) -> anyhow::Result<Part> {
    let early = put::count(setup).await?;
    ensure!(early < options.tasks, "the door had put all messages when the instance served: give more `--tasks`");
    let (begun, before) = (Instant::now(), fleet.cpu());
    let (mut last, mut progress) = (early, begun);
    loop {
        let now = put::count(setup).await?;
        if now == options.tasks {
            let messages = options.tasks - early;
            return Ok(Part { messages, span: begun.elapsed(), cpu: spent(before, fleet.cpu()) });
        }
        if now > last {
            (last, progress) = (now, Instant::now());
        }
        ensure!(progress.elapsed() < PROGRESS_TIMEOUT, "the door has put {now} of {} tasks", options.tasks);
        sleep(POLL_INTERVAL).await;
    }
}

/// Sends messages at a steady rate, and returns how soon each was a task: the k-th task is that of the k-th message.
async fn steady(setup: &BenchSetup, options: &Options, sender: &Sender) -> anyhow::Result<Vec<Duration>> {
    let at_once = (u64::from(options.rate) * STEADY_INTERVAL.as_millis() as u64 / 1000).max(1);
    let sends = STEADY_TIME.as_millis() / STEADY_INTERVAL.as_millis();
    let before = put::count(setup).await?;
    let begun = Instant::now();
    let sending = async {
        let mut sent = Vec::new();
        for number in 0..u64::try_from(sends)? {
            sleep_until(begun + STEADY_INTERVAL * u32::try_from(number)?).await;
            sent.extend(std::iter::repeat_n(Instant::now(), usize::try_from(at_once)?));
            sender.send(options.tasks + number * at_once, at_once).await?;
        }
        anyhow::Ok(sent)
    };
    let all = u64::try_from(sends)? * at_once;
    let counting = async {
        let (mut stored, mut progress) = (Vec::new(), Instant::now());
        while (stored.len() as u64) < all {
            let count = put::count(setup).await?.saturating_sub(before);
            let more = usize::try_from(count)?.saturating_sub(stored.len());
            let now = Instant::now();
            stored.extend(std::iter::repeat_n(now, more));
            progress = if more > 0 { now } else { progress };
            ensure!(progress.elapsed() < PROGRESS_TIMEOUT, "the door has put {count} of {all} tasks");
            sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(stored)
    };
    let (sent, stored) = tokio::try_join!(sending, counting)?;
    Ok(sent.into_iter().zip(stored).map(|(sent, stored)| stored.saturating_duration_since(sent)).collect())
}

/// Reads and acknowledges as many messages with the client of a door.
async fn consumer(setup: &BenchSetup, options: &Options, out: &str) -> anyhow::Result<Part> {
    let from = setup.make("alone").await?;
    let sender = Sender::open(setup, &from, out, options.payload)?;
    let source = setup.broker_side()?.make_source(&from).await?;
    sender.send(0, options.tasks).await?;
    sender.sink.close(CLOSE_TIMEOUT).await?;
    let with = SourceOptions { from: source, batch: BATCH, group: format!("{from}-alone"), delete: false };
    let source: Arc<dyn Source> = SinkConfig::parse(setup.sink_url.expose_secret())?.source(&with)?;
    let (begun, before, mut read) = (Instant::now(), own_cpu(), 0);
    while read < options.tasks {
        let batch = tokio::time::timeout(PROGRESS_TIMEOUT, source.next(BATCH))
            .await
            .context("the consumer reads nothing")??;
        read += batch.len() as u64;
        source.acknowledge(batch.into_iter().map(|message| message.receipt).collect()).await?;
    }
    let part = Part { messages: read, span: begun.elapsed(), cpu: spent(before, own_cpu()) };
    source.close(CLOSE_TIMEOUT).await;
    Ok(part)
}

/// Puts as many tasks in one batch over HTTP.
async fn batch(setup: &BenchSetup, options: &Options, out: &str) -> anyhow::Result<Part> {
    let fleet = Fleet::start(setup, 1, &[("default", out)]).await?;
    let api = *fleet.apis().first().context("no instance runs")?;
    let load = Load { name: "batch", connections: 1, each: options.tasks, in_batch: true, payload: options.payload };
    let before = fleet.cpu();
    let seconds = load.put(setup, api).await?;
    let cpu = spent(before, fleet.cpu());
    fleet.end().await?;
    Ok(Part { messages: options.tasks, span: Duration::from_secs_f64(seconds), cpu })
}

/// Sends messages to the source of a door.
struct Sender {
    sink: Arc<dyn punctual_sinks::Sink>,
    from: String,
    out: String,
    payload: Bytes,
}

impl Sender {
    fn open(setup: &BenchSetup, from: &str, out: &str, payload: usize) -> anyhow::Result<Sender> {
        let config = SinkConfig::parse(setup.sink_url.expose_secret())?;
        let sink = config.with_namespace(setup.baseline_namespace()?.as_str()).build()?;
        Ok(Sender { sink, from: from.to_owned(), out: out.to_owned(), payload: tasks::payload(payload) })
    }

    /// Sends `count` messages, numbered from `first`; all are accepted. Two calls must not use the same numbers.
    async fn send(&self, first: u64, count: u64) -> anyhow::Result<()> {
        for from in (first..first + count).step_by(BATCH_TASKS) {
            let to = (first + count).min(from + BATCH_TASKS as u64);
            publish(&*self.sink, (from..to).map(|number| self.message(number)).collect()).await?;
        }
        Ok(())
    }

    fn message(&self, number: u64) -> Message {
        let headers = [("punctual-in", "1h"), ("punctual-destination", self.out.as_str())];
        Message {
            key: format!("{}/{number}", self.from),
            // A message without a task has no headers about one.
            task: String::new(),
            due_ms: 0,
            attempt: 1,
            destination: self.from.clone(),
            record_key: Some(number.to_string()),
            native: None,
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            is_tombstone: false,
            content_type: Some("application/json".to_owned()),
            payload: self.payload.clone(),
        }
    }
}
