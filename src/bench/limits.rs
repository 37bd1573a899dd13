//! What the parts can do by themselves, in the same run: the sink without a scheduler, Redis without one.

use std::sync::Arc;

use bytes::Bytes;
use punctual_sinks::{Message, Sink, SinkConfig};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Tell;
use super::ground::Ground;
use super::moment::{accepted, each};
use super::naked::{self, Floor, publish};
use super::process::own_cpu;
use super::report::Report;
use super::tasks::{self, Batch, Form, Shelf};
use crate::task::Lane;

/// Messages that the sink alone is measured with, at most: they stand in memory before.
const RAW: u64 = 200_000;

/// Records that Redis alone is measured with, at most.
const FLOOR: u64 = 500_000;

/// Messages of a batch, as an instance has them, ...
const BATCH: u64 = 1000;

/// ... and batches under way, as its lane has room for them.
const UNDER_WAY: usize = 10;

/// Messages before it is measured, so that nothing has to be connected.
const WARM: u64 = 10;

/// How long a sink may take to close.
const CLOSE: std::time::Duration = std::time::Duration::from_secs(20);

/// What the sink does by itself.
pub(super) struct Raw {
    /// Messages each second.
    pub(super) per_second: f64,
    /// CPU time of its client library for each, in us.
    pub(super) cpu_us: Option<f64>,
}

/// Both parts.
pub(super) struct Limits {
    pub(super) raw: Raw,
    pub(super) floor: Floor,
}

impl Limits {
    /// Measures both, one after the other, with up to so many tasks.
    ///
    /// # Errors
    /// When a message is not accepted, or Redis does not answer.
    pub(super) async fn measure(
        ground: &Ground,
        form: Form,
        tasks: u64,
        payload: usize,
        tell: Tell<'_>,
    ) -> anyhow::Result<Limits> {
        tell(0.0, "measuring the sink alone");
        let raw = raw(ground, tasks.min(RAW), payload).await?;
        tell(0.0, "measuring Redis alone");
        let floor = floor(ground, form, tasks.min(FLOOR), payload).await?;
        Ok(Limits { raw, floor })
    }

    /// What both can do one after the other on one machine, each second.
    pub(super) fn per_second(&self) -> f64 {
        1.0 / (1.0 / self.raw.per_second + 1.0 / self.floor.per_second)
    }

    /// Shows both.
    pub(super) fn show(&self, report: &mut Report) {
        report.figure("raw_per_second", self.raw.per_second, "messages by the sink alone");
        report.figure("floor_per_second", self.floor.per_second, "occurrences by the naked loop in Redis alone");
        report.figure("limit_per_second", self.per_second(), "1 / (1 / raw + 1 / floor)");
        report.figure("raw_cpu_us", self.raw.cpu_us, "CPU of the sink's client for a message");
        report.figure("floor_redis_us", self.floor.redis_us, "CPU of Redis for an occurrence of the naked loop");
    }
}

/// A sink as an instance has it.
///
/// # Errors
/// When its address cannot be used.
pub(super) fn sink(ground: &Ground) -> anyhow::Result<Arc<dyn Sink>> {
    let config = SinkConfig::parse(ground.sink_url.expose_secret())?;
    Ok(config.with_namespace(ground.floor_namespace()?.as_str()).build()?)
}

/// The message of an occurrence, as an instance makes it.
pub(super) fn message(id: &str, due: i64, destination: &str, payload: Bytes) -> Message {
    Message {
        key: format!("{id}:{due}"),
        task: id.to_owned(),
        due_ms: due,
        attempt: 1,
        destination: destination.to_owned(),
        record_key: None,
        headers: Vec::new(),
        content_type: Some("application/json".to_owned()),
        payload,
    }
}

async fn raw(ground: &Ground, messages: u64, payload: usize) -> anyhow::Result<Raw> {
    let (destination, due, payload) = (ground.make("raw").await?, ground.probe.now(), tasks::payload(payload));
    let of = |prefix: &str, number| message(&tasks::id(prefix, number), due.as_millis(), &destination, payload.clone());
    let sink = sink(ground)?;
    publish(&*sink, (0..WARM).map(|number| of("warm", number)).collect()).await?;
    let batch =
        |from: u64| -> Vec<Message> { (from..messages.min(from + BATCH)).map(|number| of("raw", number)).collect() };
    let batches: Vec<Vec<Message>> = (0..messages).step_by(BATCH as usize).map(batch).collect();
    let (begun, before) = (Instant::now(), own_cpu());
    let mut under_way = JoinSet::new();
    for batch in batches {
        while under_way.len() >= UNDER_WAY
            && let Some(ended) = under_way.join_next().await
        {
            ended??;
        }
        let sink = Arc::clone(&sink);
        under_way.spawn(async move { publish(&*sink, batch).await });
    }
    while let Some(ended) = under_way.join_next().await {
        ended??;
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), own_cpu());
    // What was accepted is there: else the figure is of something else.
    accepted(ground, &*ground.far()?, &destination, 0, messages + WARM, &|_| {}).await?;
    sink.close(CLOSE).await?;
    let cpu = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Raw { per_second: messages as f64 / seconds, cpu_us: each(cpu, messages) })
}

/// The naked loop over records that are due.
///
/// # Errors
/// When Redis does not answer.
pub(super) async fn floor(ground: &Ground, form: Form, tasks: u64, payload: usize) -> anyhow::Result<Floor> {
    let shelf = Shelf::open(&ground.redis_url, ground.floor_namespace()?).await?;
    let now = ground.probe.now();
    let batch = Batch {
        prefix: "f",
        numbers: 0..tasks,
        lane: Lane::default(),
        form,
        payload,
        destination: None,
        due: &|_| now,
    };
    shelf.put(&batch, &|_| {}).await?;
    let floor = naked::drain(ground, &shelf.namespace, form, tasks).await;
    ground.empty(&shelf.namespace).await?;
    floor
}
