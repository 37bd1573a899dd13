//! Doors, over a source, a timeline and a sink in memory, on Tokio's paused clock; and over each broker.

mod bad_messages;
mod kafka;
mod kills;
mod model;
mod nats;
mod rabbitmq;
mod rabbitmq_dialects;
mod redis;
mod rights;
mod sequences;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual::clock::{Clock, LocalClock};
use punctual::doors::{Door, DoorStatus, Doors};
use punctual::engine::{Intake, LaneRequirements};
use punctual::metrics::Metrics;
use punctual::task::Shard;
use punctual::timeline::Verb;
use punctual::timeline::memory::{InjectedFault, MemoryTimeline};
use punctual_sinks::memory::Answer;
use punctual_sinks::source::Incoming;
use punctual_sinks::{Fault, MemorySink, MemorySource, Message, Trouble};

use crate::support::punctual::Punctual;

/// A running door and everything around it.
struct Bed {
    clock: Arc<dyn Clock>,
    timeline: Arc<MemoryTimeline>,
    source: MemorySource,
    sink: MemorySink,
    metrics: Metrics,
    doors: Option<Doors>,
}

impl Bed {
    fn start() -> Bed {
        Bed::start_with(|_| {})
    }

    fn start_with(configure: impl FnOnce(&mut Door)) -> Bed {
        let clock: Arc<dyn Clock> = Arc::new(LocalClock::new());
        let timeline = Arc::new(MemoryTimeline::new(Arc::clone(&clock), 1));
        let source = MemorySource::default();
        let (sink, rejected) = (MemorySink::new(1000, Duration::from_secs(2)), Some("rejected".to_owned()));
        let mut door = Door { sink: Arc::new(sink.clone()), rejected, ..door(&source) };
        configure(&mut door);
        let intake = intake(&timeline);
        let metrics = Metrics::new("0", "i0");
        let doors = Some(Doors::start(vec![door], &intake, &metrics));
        Bed { clock, timeline, source, sink, metrics, doors }
    }

    /// Sends a message at once. By the timeline's clock, its time is now plus `offset_ms`; headers are `name: value`.
    fn send(&self, place: &str, offset_ms: i64, headers: &[&str]) {
        let header = |header: &&str| {
            let (name, value) = header.split_once(": ").unwrap();
            (name.to_owned(), Bytes::copy_from_slice(value.as_bytes()))
        };
        self.source.send(Incoming {
            place: place.to_owned(),
            time_ms: Some(self.clock.now().as_millis() + offset_ms),
            key: None,
            body: Some(Bytes::from_static(b"{\"order\":1}")),
            headers: headers.iter().map(header).collect(),
            ..Incoming::default()
        });
    }

    /// Lets time pass.
    async fn pass(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// The ids of the tasks with their dues, in ms from now.
    fn tasks(&self) -> BTreeMap<String, i64> {
        let (twin, now) = (self.timeline.twin(Shard::FIRST), self.clock.now().as_millis());
        let dues = twin.due.values().flat_map(|lane| lane.iter().map(|(score, id)| (id.to_string(), score - now)));
        dues.collect()
    }

    fn status(&self) -> (DoorStatus, Option<String>) {
        let state = self.doors.as_ref().unwrap().states()().remove(0);
        (state.status, state.detail)
    }

    /// How many messages had this result.
    fn results(&self, result: &str) -> u64 {
        let line = format!("punctual_door_messages_total{{door=\"in\",result=\"{result}\"}} ");
        self.metrics.text().lines().find_map(|text| text.strip_prefix(&line)?.parse().ok()).unwrap_or(0)
    }
}

fn intake(timeline: &Arc<MemoryTimeline>) -> Intake {
    Intake::new(timeline.clone(), [("default".parse().unwrap(), LaneRequirements::default())].into())
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

#[tokio::test(start_paused = true)]
async fn each_message_becomes_a_task_and_is_acknowledged() {
    let bed = Bed::start();
    bed.send("1-0", -2000, &["punctual-in: 60s"]);
    bed.send("2-0", 0, &["punctual-at: 253402300799000", "punctual-id: own"]);
    bed.pass(10).await;
    assert_eq!(bed.source.acknowledged(), ["1-0", "2-0"]);
    let tasks = bed.tasks();
    assert_eq!(tasks.keys().map(String::as_str).collect::<Vec<_>>(), ["in.1-0", "own"]);
    assert_eq!(tasks["in.1-0"], 58_000 - 10, "from the moment of the message");
    bed.send("3-0", 0, &["punctual-do: cancel", "punctual-id: own"]);
    bed.send("4-0", 0, &["punctual-do: cancel", "punctual-id: nobody"]);
    bed.pass(10).await;
    assert_eq!(bed.tasks().len(), 1);
    let counts = ["created", "cancelled", "cancel_unknown"].map(|result| bed.results(result));
    assert_eq!((counts, bed.status()), ([2, 1, 1], (DoorStatus::Up, None)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_read_again_changes_nothing() {
    let bed = Bed::start();
    let messages = |bed: &Bed| {
        bed.send("1-0", 0, &["punctual-in: 60s"]);
        bed.send("2-0", 0, &["punctual-every: 1h"]);
        bed.send("3-0", 0, &["punctual-in: 60s", "punctual-id: own"]);
    };
    messages(&bed);
    bed.pass(10).await;
    let before = bed.timeline.twin(Shard::FIRST);
    bed.pass(5000).await;
    // The acknowledgement of the first reading was lost: the same messages, five seconds later.
    for (place, headers) in [
        ("1-0", &["punctual-in: 60s"][..]),
        ("2-0", &["punctual-every: 1h"]),
        ("3-0", &["punctual-in: 60s", "punctual-id: own"]),
    ] {
        bed.send(place, -5010, headers);
    }
    bed.pass(10).await;
    assert_eq!(bed.source.acknowledged().len(), 6);
    assert_eq!(bed.results("unchanged"), 3);
    let after = bed.timeline.twin(Shard::FIRST);
    assert_eq!((after.tasks, after.due), (before.tasks, before.due));
}

/// The calls of the first attempt fail in every way that calls can fail.
#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_the_timeline_has_answered() {
    for fault in [
        InjectedFault::CallLost,
        InjectedFault::ReplyLost,
        InjectedFault::Refused("OOM".to_owned()),
        InjectedFault::LaneChanged,
    ] {
        let bed = Bed::start();
        for _ in 0..3 {
            bed.timeline.fail_next(Verb::Put, fault.clone());
        }
        bed.timeline.fail_next(Verb::Cancel, fault.clone());
        bed.send("1-0", 0, &["punctual-in: 60s"]);
        bed.send("2-0", 0, &["punctual-in: 60s", "punctual-id: own"]);
        bed.send("3-0", 0, &["punctual-do: cancel", "punctual-id: other"]);
        bed.pass(10).await;
        assert_eq!(bed.source.acknowledged(), Vec::<String>::new(), "{fault:?}");
        bed.pass(10_000).await;
        assert_eq!(bed.source.acknowledged(), ["1-0", "2-0", "3-0"], "{fault:?}");
        assert_eq!((bed.tasks().len(), bed.status().0), (2, DoorStatus::Up), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_door_waits_for_the_timeline_and_reads_no_more_meanwhile() {
    let bed = Bed::start_with(|door| door.batch = 1);
    bed.timeline.set_link_down("no redis");
    for n in 0..10 {
        bed.send(&format!("{n}-0"), 0, &["punctual-in: 1h"]);
    }
    bed.pass(120_000).await;
    let (status, detail) = bed.status();
    assert!(status == DoorStatus::Waiting && detail.unwrap().contains("no redis"));
    assert_eq!(bed.source.acknowledged(), Vec::<String>::new());
    assert_eq!(bed.source.unread(), 8, "one batch is tried, one waits");
    bed.timeline.set_link_up();
    bed.pass(6000).await;
    assert_eq!(bed.source.acknowledged(), (0..10).map(|n| format!("{n}-0")).collect::<Vec<_>>(), "in order");
    assert_eq!((bed.tasks().len(), bed.status()), (10, (DoorStatus::Up, None)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_put_goes_to_the_rejected_ones_with_its_reason() {
    let bed = Bed::start();
    bed.send("1-0", 0, &["punctual-in: soon", "x-own: value", "idempotency-key: old", "content-type: text/plain"]);
    bed.send("2-0", 0, &["punctual-in: 60s", "punctual-lane: nowhere"]);
    bed.send("3-0", 0, &["punctual-in: 60s"]);
    bed.pass(10).await;
    assert_eq!(bed.source.acknowledged(), ["1-0", "2-0", "3-0"]);
    assert_eq!((bed.tasks().len(), bed.results("rejected"), bed.results("created")), (1, 2, 1));
    let copies = bed.sink.published();
    assert_eq!(copies.iter().map(|copy| copy.destination.as_str()).collect::<Vec<_>>(), ["rejected"; 2]);
    assert_eq!(&copies[0].payload[..], b"{\"order\":1}");
    assert_eq!(copies[0].content_type.as_deref(), Some("text/plain"));
    for (name, value) in [
        ("punctual-rejected", "bad_duration"),
        ("punctual-rejected-from", "punctual.in 1-0"),
        ("punctual-in", "soon"),
        ("x-own", "value"),
    ] {
        assert_eq!(header(&copies[0], name), Some(value), "{name}");
    }
    assert!(header(&copies[0], "punctual-rejected-detail").unwrap().starts_with("punctual-in: `soon`"));
    assert_eq!(header(&copies[0], "idempotency-key"), None);
    assert_eq!(header(&copies[1], "punctual-rejected"), Some("unknown_lane"));
    let named: Vec<_> = copies[0].all_headers().map(|(name, _)| name.to_owned()).collect();
    assert!(!named.iter().any(|name| name == "punctual-task" || name == "punctual-due"), "{named:?}");

    // A copy is led back into the source by mistake.
    let headers: Vec<String> = copies[0].headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    bed.send("4-0", 0, &headers.iter().map(String::as_str).collect::<Vec<_>>());
    bed.pass(10).await;
    assert_eq!((bed.results("loop"), bed.sink.accepted(), bed.tasks().len()), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_door_waits_for_the_destination_of_rejected_messages() {
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Retry(Trouble::definite(Fault::Destination, "no such stream")));
    bed.send("1-0", 0, &["punctual-in: soon"]);
    bed.pass(60_000).await;
    let (status, detail) = bed.status();
    let expected = "rejected messages cannot go to `rejected`: no such stream";
    assert_eq!((status, detail.as_deref()), (DoorStatus::Waiting, Some(expected)));
    assert_eq!(bed.source.acknowledged(), Vec::<String>::new());
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(6000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.sink.accepted(), bed.status().0), (1, 1, DoorStatus::Up));

    // The broker takes no message of this size.
    bed.sink.answer_by(|copy| match copy.payload.is_empty() {
        true => Answer::Accept,
        false => Answer::Reject("too large".to_owned()),
    });
    bed.send("2-0", 0, &["punctual-in: soon", "x-own: value"]);
    bed.pass(6000).await;
    let copy = bed.sink.published().pop().unwrap();
    assert_eq!((copy.payload.len(), header(&copy, "x-own")), (0, None));
    assert_eq!(header(&copy, "punctual-rejected-from"), Some("punctual.in 2-0"));
    assert_eq!(bed.source.acknowledged(), ["1-0", "2-0"]);
}

#[tokio::test(start_paused = true)]
async fn rejected_messages_without_a_destination_are_dropped_and_counted() {
    let bed = Bed::start_with(|door| door.rejected = None);
    bed.send("1-0", 0, &["punctual-in: soon"]);
    bed.pass(10).await;
    assert_eq!((bed.source.acknowledged().len(), bed.sink.accepted(), bed.results("rejected")), (1, 0, 1));
    let line = "punctual_door_rejected_total{door=\"in\",code=\"bad_duration\"} 1";
    assert!(bed.metrics.text().lines().any(|text| text == line), "{}", bed.metrics.text());
}

/// The messages are read two minutes after they were sent.
#[tokio::test(start_paused = true)]
async fn a_door_that_is_behind_publishes_nothing_that_was_cancelled_or_replaced_in_time() {
    let bed = Bed::start();
    let ago = -120_000;
    bed.send("1-0", ago, &["punctual-in: 30s", "punctual-id: cancelled"]);
    bed.send("2-0", ago, &["punctual-in: 30s", "punctual-id: replaced"]);
    bed.send("3-0", ago, &["punctual-in: 30s", "punctual-id: fired"]);
    bed.send("4-0", ago + 29_000, &["punctual-do: cancel", "punctual-id: cancelled"]);
    bed.send("5-0", ago + 29_000, &["punctual-in: 1h", "punctual-id: replaced"]);
    bed.send("6-0", ago + 31_000, &["punctual-in: 1h", "punctual-id: fired"]);
    bed.pass(10).await;
    assert_eq!(bed.source.acknowledged().len(), 6);
    assert_eq!((bed.results("superseded"), bed.results("created"), bed.results("replaced")), (2, 2, 1));
    assert_eq!(bed.tasks().keys().map(String::as_str).collect::<Vec<_>>(), ["fired", "replaced"]);
}

/// A consumer that failed sends the message again with all its properties, and a delay. The time of the message is that of
/// the first one.
#[tokio::test(start_paused = true)]
async fn a_delay_of_a_forwarded_message_counts_from_its_last_due() {
    let bed = Bed::start();
    let due = format!("punctual-due: {}", bed.clock.now().as_millis() - 100);
    bed.send("1-0", -900_000, &["punctual-in: 5s", "punctual-id: again", &due]);
    bed.send("2-0", -900_000, &["punctual-in: 5s", "punctual-id: first"]);
    bed.pass(10).await;
    let tasks = bed.tasks();
    assert_eq!((tasks["again"], tasks["first"]), (4890, -895_010));
}

/// The second put names a lane that does not exist, so it takes the place of nothing.
#[tokio::test(start_paused = true)]
async fn a_rejected_message_supersedes_nothing() {
    let bed = Bed::start();
    bed.send("1-0", 0, &["punctual-in: 1h", "punctual-id: a"]);
    bed.send("2-0", 1, &["punctual-in: 1h", "punctual-id: a", "punctual-lane: nowhere"]);
    bed.pass(10).await;
    assert_eq!((bed.results("created"), bed.results("rejected"), bed.results("superseded")), (1, 1, 0));
    assert_eq!(bed.tasks().keys().map(String::as_str).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_door_that_waits_stops_at_once() {
    let mut bed = Bed::start_with(|door| door.batch = 1);
    bed.timeline.set_link_down("no redis");
    (0..5).for_each(|n| bed.send(&format!("{n}-0"), 0, &["punctual-in: 1h"]));
    bed.pass(10_000).await;
    let begun = tokio::time::Instant::now();
    bed.doors.take().unwrap().stop(Duration::from_secs(60)).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(bed.source.acknowledged(), Vec::<String>::new());
}

/// Reads go on successfully; the status shows the failing acknowledgements all the same.
#[tokio::test(start_paused = true)]
async fn a_door_whose_acknowledgements_fail_is_not_up() {
    let bed = Bed::start();
    bed.source.accept_acknowledgements(Some(0));
    bed.send("1-0", 0, &["punctual-in: 1h"]);
    bed.pass(30_000).await;
    assert_eq!(bed.status().0, DoorStatus::Unavailable);
    bed.source.accept_acknowledgements(None);
    bed.pass(6000).await;
    assert_eq!((bed.status().0, bed.source.acknowledged().len(), bed.tasks().len()), (DoorStatus::Up, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_unavailable_is_shown_and_read_again() {
    let bed = Bed::start();
    bed.source.set_unavailable(true);
    bed.pass(5000).await;
    assert_eq!(bed.status(), (DoorStatus::Unavailable, Some("the source is unavailable".to_owned())));
    bed.source.set_unavailable(false);
    bed.send("1-0", 0, &["punctual-in: 60s"]);
    bed.pass(6000).await;
    assert_eq!((bed.tasks().len(), bed.status()), (1, (DoorStatus::Up, None)));
}

/// The second door dies after the put and before the acknowledgement. Its successor reads the message again.
#[tokio::test(start_paused = true)]
async fn a_stop_completes_what_was_read_and_a_death_repeats_it_under_the_same_id() {
    let mut bed = Bed::start();
    for n in 0..1500 {
        bed.send(&format!("{n}-0"), 0, &["punctual-in: 60s"]);
    }
    bed.pass(0).await;
    bed.doors.take().unwrap().stop(Duration::from_secs(5)).await;
    let done = bed.source.acknowledged().len();
    assert_eq!((done + bed.source.unread(), bed.tasks().len()), (1500, done), "all that was read is acknowledged");

    let bed = Bed::start();
    bed.timeline.fail_next(Verb::Put, InjectedFault::ReplyLost);
    bed.send("1-0", 0, &["punctual-in: 60s"]);
    bed.pass(1).await;
    assert_eq!(bed.tasks().len(), 1);
    let Bed { timeline, source, doors, metrics, .. } = bed;
    drop(doors);
    source.redeliver();
    let _doors = Doors::start(vec![door(&source)], &intake(&timeline), &metrics);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((source.acknowledged(), timeline.twin(Shard::FIRST).tasks.len()), (vec!["1-0".to_owned()], 1));
}

/// The message was put, and not acknowledged. Now the door gives its task another destination.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_read_again_after_the_configuration_changed_changes_nothing() {
    let bed = Bed::start();
    bed.source.accept_acknowledgements(Some(0));
    bed.send("1-0", 0, &["punctual-in: 60s"]);
    bed.pass(10).await;
    let Bed { timeline, source, doors, .. } = bed;
    drop(doors);
    let before = timeline.twin(Shard::FIRST);
    source.accept_acknowledgements(None);
    source.redeliver();
    let changed = Door { destination: Some("other".to_owned()), ..door(&source) };
    let metrics_of_second = Metrics::new("0", "i1");
    let _doors = Doors::start(vec![changed], &intake(&timeline), &metrics_of_second);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let unchanged = "punctual_door_messages_total{door=\"in\",result=\"unchanged\"} 1";
    assert!(metrics_of_second.text().lines().any(|line| line == unchanged), "{}", metrics_of_second.text());
    let after = timeline.twin(Shard::FIRST);
    assert_eq!((source.acknowledged(), after.tasks), (vec!["1-0".to_owned()], before.tasks));
}

/// A door that drops what it rejects.
fn door(source: &MemorySource) -> Door {
    let sink = MemorySink::new(0, Duration::from_secs(2));
    let timeline_timeout = Duration::from_secs(2);
    Door { timeline_timeout, ..Door::new("in", Arc::new(source.clone()), "punctual.in", Arc::new(sink)) }
}

/// The exit code and the output of `punctual check`.
fn check(config: &str) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), config).expect("a configuration");
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_punctual"));
    let output = check.arg("check").arg("--config").arg(file.path()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// Seconds since 1970.
fn unix_time() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn stats(instance: &Punctual) -> serde_json::Value {
    instance.api().send("GET", "/v1/stats", None).expect("an answer").json()
}

/// What the statistics say of the door.
fn status(instance: &Punctual) -> serde_json::Value {
    stats(instance)["doors"]["in"].clone()
}

/// How many messages had this result at this instance.
fn results(instance: &Punctual, result: &str) -> f64 {
    instance.api().metric(&format!("punctual_door_messages_total{{door=\"in\",result=\"{result}\"}}"))
}

/// How many tasks wait.
fn waiting(instance: &Punctual) -> u64 {
    let count = instance.api().send("GET", "/v1/tasks:count", None).expect("an answer").json();
    count["lanes"]["default"]["waiting"].as_u64().unwrap_or_default()
}
