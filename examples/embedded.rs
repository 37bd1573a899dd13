//! Schedules and receives in one process, with the timeline in memory: no Redis, no broker.
//!
//! ```sh
//! cargo run --example embedded
//! ```

#![expect(clippy::print_stdout, reason = "it shows what happens")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use punctual::clock::LocalClock;
use punctual::engine::{Engine, EngineConfig, EngineLane, EngineSink, Intake, LaneRequirements};
use punctual::metrics::Metrics;
use punctual::task::{Lane, Limits, TaskId, spec};
use punctual::timeline::memory::MemoryTimeline;
use punctual::timeline::{PutMode, Timeline};
use punctual_sinks::memory::MemorySink;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The parts: a timeline, a sink, an engine between them, and the write API.
    let timeline: Arc<dyn Timeline> = Arc::new(MemoryTimeline::new(Arc::new(LocalClock::new()), 1));
    // The sink keeps no messages itself, because the receiver gets them.
    let (keep, answer_timeout) = (0, Duration::from_secs(7));
    let sink = MemorySink::new(keep, answer_timeout);
    let mut messages = sink.receive(100);
    let sinks =
        BTreeMap::from([("here".to_owned(), EngineSink { sink: Arc::new(sink), patience: Duration::from_secs(30) })]);
    let lane = EngineLane {
        sink: "here".to_owned(),
        destination: Some("orders".to_owned()),
        dead_destination: None,
        waits_forever: false,
    };
    let lanes = BTreeMap::from([(Lane::default(), lane)]);
    let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION"), "embedded"));
    let engine = Engine::start(EngineConfig::new("embedded"), Arc::clone(&timeline), sinks, lanes, metrics)?;
    let intake = Intake::new(timeline, BTreeMap::from([(Lane::default(), LaneRequirements::default())]));

    // Two orders that are cancelled unless they are paid; the second one is paid in time.
    for id in ["order-1.unpaid", "order-2.unpaid"] {
        let json = br#"{"schedule": {"in": "2s"}, "message": {"payload": {"cancel": true}}}"#;
        let has_id = false;
        let task = spec::read(json, &Limits::default(), has_id, intake.clock().now()).map_err(|f| format!("{f:?}"))?;
        let put = (id.parse::<TaskId>()?, task.lane, task.task);
        for answer in intake.put(PutMode::Put, vec![put], Duration::from_secs(1)).await {
            println!("{id} is due at {}", answer?.due);
        }
    }
    let answer = intake.cancel(&"order-2.unpaid".parse()?, Duration::from_secs(1)).await?;
    println!("order-2.unpaid: {answer:?}");

    let message = messages.recv().await.ok_or("the sink was closed")?;
    println!("received {} at `{}`: {}", message.key, message.destination, String::from_utf8_lossy(&message.payload));
    engine.shutdown(Duration::from_secs(1)).await;
    println!("a second message came: {}", messages.try_recv().is_ok());
    Ok(())
}
