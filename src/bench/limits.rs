//! What the parts can do by themselves, in the same run: the sink without a scheduler, Redis without one, and both.

use std::sync::Arc;

use bytes::Bytes;
use punctual_sinks::{Message, Sink, SinkConfig};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Tell;
use super::ground::Ground;
use super::moment::{accepted, each};
use super::naked::{self, BATCH, Floor, Out, UNDER_WAY, publish};
use super::process::own_cpu;
use super::report::Report;
use super::tasks::{self, Batch, Form, Shelf};
use crate::task::Lane;

/// Messages, and records, that the parts are measured with, at most: messages stand in memory before.
const MOST: u64 = 400_000;

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

/// All of it, over the same messages and records.
pub(super) struct Limits {
    /// The sink without Redis.
    pub(super) raw: Raw,
    /// The naked loop in Redis without a sink.
    pub(super) alone: Floor,
    /// The naked loop that publishes to the sink what it claims.
    ///
    /// What a call costs Redis depends on who else is on its cores: with others there, a sink and its client, the same
    /// call takes up to 1.7 times the CPU that it takes with Redis alone. So what Redis is held to is what the naked
    /// loop costs it among the same neighbours.
    pub(super) floor: Floor,
}

impl Limits {
    /// Measures all, one after the other, with up to so many tasks.
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
        let tasks = tasks.min(MOST);
        tell(0.0, "measuring the sink alone");
        let raw = raw(ground, tasks, payload).await?;
        tell(0.0, "measuring Redis alone");
        let alone = naked(ground, form, tasks, payload, None).await?;
        tell(0.0, "measuring Redis beside the sink");
        let floor = floor(ground, form, tasks, payload, "floor").await?;
        Ok(Limits { raw, alone, floor })
    }

    /// Measures the naked loop beside the sink once more, after what is held to it: a machine's minutes differ. Its CPU is
    /// the mean of both from then on.
    ///
    /// # Errors
    /// As [`measure`](Limits::measure).
    pub(super) async fn again(
        &mut self,
        ground: &Ground,
        form: Form,
        tasks: u64,
        payload: usize,
        tell: Tell<'_>,
    ) -> anyhow::Result<()> {
        tell(0.0, "measuring Redis beside the sink again");
        let later = floor(ground, form, tasks.min(MOST), payload, "after").await?;
        self.floor.redis_us =
            self.floor.redis_us.zip(later.redis_us).map(|(before, after)| f64::midpoint(before, after));
        Ok(())
    }

    /// What the sink and Redis can do one after the other on one machine, each second.
    pub(super) fn per_second(&self) -> f64 {
        1.0 / (1.0 / self.raw.per_second + 1.0 / self.alone.per_second)
    }

    /// Shows all.
    pub(super) fn show(&self, report: &mut Report) {
        report.figure("raw_per_second", self.raw.per_second, "messages by the sink alone");
        report.figure("raw_cpu_us", self.raw.cpu_us, "CPU of the sink's client for a message");
        report.figure("alone_per_second", self.alone.per_second, "occurrences by the naked loop in Redis alone");
        report.figure("alone_redis_us", self.alone.redis_us, "CPU of Redis for an occurrence of that");
        report.figure("limit_per_second", self.per_second(), "1 / (1 / raw + 1 / alone)");
        report.figure("floor_redis_us", self.floor.redis_us, "CPU of Redis where the naked loop publishes, too");
    }
}

/// A sink as an instance has it.
fn sink(ground: &Ground) -> anyhow::Result<Arc<dyn Sink>> {
    let config = SinkConfig::parse(ground.sink_url.expose_secret())?;
    Ok(config.with_namespace(ground.floor_namespace()?.as_str()).build()?)
}

/// A sink, and what is published to that destination.
///
/// # Errors
/// When the sink's address cannot be used.
pub(super) fn out(ground: &Ground, destination: &str, payload: usize) -> anyhow::Result<Out> {
    let (destination, payload) = (destination.to_owned(), tasks::payload(payload));
    let message = move |id: &str, due: i64| message(id, due, &destination, payload.clone());
    Ok(Out { sink: sink(ground)?, message: Arc::new(message) })
}

/// The message of an occurrence, as an instance makes it.
fn message(id: &str, due: i64, destination: &str, payload: Bytes) -> Message {
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

/// A destination, and a sink that is connected to it.
async fn open(ground: &Ground, end: &str, payload: usize) -> anyhow::Result<(String, Out)> {
    let destination = ground.make(end).await?;
    let out = out(ground, &destination, payload)?;
    let due = ground.probe.now().as_millis();
    let warm = (0..WARM).map(|number| (out.message)(&tasks::id("warm", number), due)).collect();
    publish(&*out.sink, warm).await?;
    Ok((destination, out))
}

/// Ends it, once what was accepted is seen to be there: else the figure is of something else.
async fn close(ground: &Ground, destination: &str, out: Out, messages: u64) -> anyhow::Result<()> {
    accepted(ground, &*ground.far()?, destination, 0, messages + WARM, &|_| {}).await?;
    Ok(out.sink.close(CLOSE).await?)
}

/// The sink alone.
async fn raw(ground: &Ground, messages: u64, payload: usize) -> anyhow::Result<Raw> {
    let (destination, out) = open(ground, "raw", payload).await?;
    let due = ground.probe.now().as_millis();
    let of = |number| (out.message)(&tasks::id("raw", number), due);
    let batch = |from: u64| -> Vec<Message> { (from..messages.min(from + BATCH as u64)).map(of).collect() };
    let batches: Vec<Vec<Message>> = (0..messages).step_by(BATCH).map(batch).collect();
    let (begun, before) = (Instant::now(), own_cpu());
    let mut under_way = JoinSet::new();
    for batch in batches {
        while under_way.len() >= UNDER_WAY
            && let Some(ended) = under_way.join_next().await
        {
            ended??;
        }
        let sink = Arc::clone(&out.sink);
        under_way.spawn(async move { publish(&*sink, batch).await });
    }
    while let Some(ended) = under_way.join_next().await {
        ended??;
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), own_cpu());
    close(ground, &destination, out, messages).await?;
    let cpu = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Raw { per_second: messages as f64 / seconds, cpu_us: each(cpu, messages) })
}

/// The naked loop beside the sink.
async fn floor(ground: &Ground, form: Form, tasks: u64, payload: usize, end: &str) -> anyhow::Result<Floor> {
    let (destination, out) = open(ground, end, payload).await?;
    let floor = naked(ground, form, tasks, payload, Some(&out)).await?;
    close(ground, &destination, out, tasks).await?;
    Ok(floor)
}

/// The naked loop over records that are due.
async fn naked(ground: &Ground, form: Form, tasks: u64, payload: usize, out: Option<&Out>) -> anyhow::Result<Floor> {
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
    let floor = naked::drain(ground, &shelf.namespace, form, tasks, out).await;
    ground.empty(&shelf.namespace).await?;
    floor
}
