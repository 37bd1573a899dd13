//! The engine with the in-memory timeline and sink, on Tokio's paused clock: time only passes when every Tokio task
//! waits. One test in `flow` uses real time.

mod at_fault;
mod bulk;
mod copies;
mod faults;
mod flow;
mod instances;
mod intake;
mod metrics;
mod moves;
mod pause;
mod sink_faults;
mod sink_log;
mod traces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual::clock::{Clock, LocalClock, Timestamp};
use punctual::engine::{Engine, EngineConfig, EngineLane, EngineSink, Intake, LaneRequirements};
use punctual::metrics::Metrics;
use punctual::task::{Lane, Message, Payload, Schedule, Shard, Task, TaskId, When};
use punctual::timeline::memory::MemoryTimeline;
use punctual::timeline::{PutMode, Timeline};
use punctual_sinks::memory::MemorySink;

/// `answer_timeout` of the sinks in these tests.
const ANSWER: Duration = Duration::from_secs(2);

/// `patience` of the sinks in these tests: how long a destination may be at fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine with the lanes `default` and `side` on one memory sink, and `other` on another.
struct Bed {
    timeline: Arc<MemoryTimeline>,
    clock: Arc<dyn Clock>,
    sink: MemorySink,
    other: MemorySink,
    metrics: Arc<Metrics>,
    intake: Intake,
    engine: Option<Engine>,
    /// Dead-letter destination of the lanes.
    dead_destination: Option<String>,
    /// Whether messages of the lane `side` wait without end for a destination that refuses them.
    side_waits_forever: bool,
}

impl Bed {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it runs")
    }

    /// Starts with the defaults and a lease of 5 s.
    fn start() -> Bed {
        Bed::start_with(|_| {})
    }

    /// Starts with the test's own configuration.
    fn start_with(configure: impl FnOnce(&mut EngineConfig)) -> Bed {
        Bed::start_full(configure, None)
    }

    /// Starts with a lane `side` whose messages wait without end.
    fn start_with_a_forever_lane() -> Bed {
        let mut bed = Bed::start();
        bed.engine = None;
        bed.side_waits_forever = true;
        let mut config = EngineConfig::new("i1");
        config.lease = Duration::from_secs(5);
        bed.engine = Some(bed.another(config));
        bed
    }

    /// Starts with a timeline of `shards` shards.
    fn start_on(shards: u16) -> Bed {
        let mut bed = Bed::start_full(|_| {}, None);
        bed.engine = None;
        bed.timeline = Arc::new(MemoryTimeline::new(Arc::clone(&bed.clock), shards));
        let lanes = ["default", "side", "other"].map(|lane| (lane.parse().unwrap(), LaneRequirements::default()));
        bed.intake = Intake::new(bed.timeline.clone(), BTreeMap::from(lanes));
        let mut config = EngineConfig::new("i0");
        config.lease = Duration::from_secs(5);
        bed.engine = Some(bed.another(config));
        bed
    }

    /// Starts with a configuration and a dead-letter destination.
    fn start_full(configure: impl FnOnce(&mut EngineConfig), dead_destination: Option<String>) -> Bed {
        let clock: Arc<dyn Clock> = Arc::new(LocalClock::new());
        let timeline = Arc::new(MemoryTimeline::new(Arc::clone(&clock), 1));
        let lanes = ["default", "side", "other"].map(|lane| (lane.parse().unwrap(), LaneRequirements::default()));
        let intake = Intake::new(timeline.clone(), BTreeMap::from(lanes));
        let mut bed = Bed {
            timeline,
            clock,
            sink: MemorySink::new(100_000, ANSWER),
            other: MemorySink::new(100_000, ANSWER),
            metrics: Arc::new(Metrics::new("0", "i0")),
            intake,
            engine: None,
            dead_destination,
            side_waits_forever: false,
        };
        let mut config = EngineConfig::new("i0");
        config.lease = Duration::from_secs(5);
        configure(&mut config);
        bed.engine = Some(bed.another(config));
        bed
    }

    /// Starts an engine on the bed's timeline and sinks; there may be others.
    fn another(&self, config: EngineConfig) -> Engine {
        let sink = |sink: &MemorySink| EngineSink { sink: Arc::new(sink.clone()), patience: PATIENCE };
        let sinks = BTreeMap::from([("sink".to_owned(), sink(&self.sink)), ("other".to_owned(), sink(&self.other))]);
        let lane = |name: &str, sink: &str| EngineLane {
            sink: sink.to_owned(),
            destination: Some("news".to_owned()),
            dead_destination: self.dead_destination.clone(),
            waits_forever: self.side_waits_forever && name == "side",
        };
        let lanes = [("default", "sink"), ("side", "sink"), ("other", "other")];
        let lanes = lanes.map(|(name, sink)| (name.parse().unwrap(), lane(name, sink)));
        let lanes = BTreeMap::from(lanes);
        Engine::start(config, self.timeline.clone(), sinks, lanes, Arc::clone(&self.metrics)).unwrap()
    }

    /// Puts tasks into lane `default` and returns their due times.
    async fn put(&self, tasks: impl IntoIterator<Item = (&str, Task)>) -> Vec<Timestamp> {
        self.put_into("default", tasks).await
    }

    async fn put_into(&self, lane: &str, tasks: impl IntoIterator<Item = (&str, Task)>) -> Vec<Timestamp> {
        let tasks = tasks.into_iter().map(|(id, task)| (id.parse().unwrap(), lane.parse().unwrap(), task)).collect();
        let answers = self.intake.put(PutMode::Put, tasks, Duration::from_secs(2)).await;
        answers.into_iter().map(|answer| answer.unwrap().due).collect()
    }

    /// Keys of the messages that the default lane's sink accepted, in order.
    fn keys(&self) -> Vec<String> {
        self.sink.published().into_iter().map(|message| message.key).collect()
    }

    /// Number of claims that took occurrences of the default lane.
    fn claims(&self) -> u64 {
        self.metrics.lane("default").claims.get()
    }

    /// Dead records: key, reason, detail.
    fn dead(&self) -> Vec<(String, String, String)> {
        let twin = self.timeline.twin(Shard::of(&id("any"), 1));
        let dead = twin.dead_records.iter();
        dead.map(|(key, dead_record)| (key.to_string(), dead_record.reason.clone(), dead_record.detail.clone()))
            .collect()
    }

    /// Checks that no claim, lease or trace of a past holder is left.
    fn assert_at_rest(&self) {
        let twin = self.timeline.twin(Shard::of(&id("any"), 1));
        assert!(twin.claims.is_empty() && twin.leases.is_empty(), "{:?}", twin.claims);
        assert!(twin.changes.is_empty() && twin.crashes.is_empty(), "{:?} {:?}", twin.changes, twin.crashes);
        assert!(twin.due.values().all(|lane| lane.negative().next().is_none()));
    }

    /// Lets time pass.
    async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }
}

fn id(text: &str) -> TaskId {
    text.parse().unwrap()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn task(when: When) -> Task {
    let payload = Payload::Json(b"{\"order\":1}".as_slice().into());
    Task {
        schedule: Schedule { when, end: None, limit: None, spread: None },
        message: Message { payload, ..Message::default() },
        retry: None,
        catch_up: None,
    }
}

/// A task that is due once, `span` from now.
fn after(span: Duration) -> Task {
    task(When::In(span))
}

/// A task that is due every `gap`, `limit` times.
fn every(gap: Duration, limit: u64) -> Task {
    let mut task = task(When::Every { gap, start: None });
    task.schedule.limit = Some(limit);
    task
}

/// A task that is due once, `span` from now, with its own destination.
fn to(destination: &str, span: Duration) -> Task {
    let mut task = after(span);
    task.message.destination = Some(destination.to_owned());
    task
}

/// Expected keys of these tasks; each is due once.
fn expected(ids: impl IntoIterator<Item = impl AsRef<str>>, dues: &[Timestamp]) -> Vec<String> {
    ids.into_iter().zip(dues).map(|(id, due)| format!("{}:{}", id.as_ref(), due.as_millis())).collect()
}

fn sorted(mut keys: Vec<String>) -> Vec<String> {
    keys.sort();
    keys
}

/// An answer of the sink that decides nothing about the message.
fn unclear(detail: &str) -> punctual_sinks::memory::Answer {
    let fault = punctual_sinks::Fault::Unclear;
    punctual_sinks::memory::Answer::Retry(punctual_sinks::Trouble { fault, definite: true, detail: detail.to_owned() })
}

/// The bed's timeline, as other instances use it.
fn shared(bed: &Bed) -> Arc<dyn Timeline> {
    bed.timeline.clone()
}
