//! A disk that confirms late delays the answer of a put, but not its retries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use punctual::engine::{Intake, LaneRequirements};
use punctual::task::{Message, Schedule, Task, When};

use super::*;
use crate::support::have;
use crate::support::scripted::Scripted;

/// Longer than the time for which a put that meets its task in flight is retried.
const LATE: Duration = Duration::from_millis(1500);

/// A task that was due long ago, with another body than the one in flight.
fn another(id: &str) -> (TaskId, Lane, Task) {
    let when = When::At(Timestamp::from_millis(1000));
    let schedule = Schedule { when, end: None, limit: None, spread: None };
    let message = Message { destination: Some("orders".into()), ..Message::default() };
    (task(id), Lane::default(), Task { schedule, message, retry: None, catch_up: None })
}

/// Puts these tasks while `held` is in flight. Its claim ends before the first retry of the put arrives. Returns the
/// results.
async fn put_while_in_flight(ids: &[&str]) -> Vec<Option<PutResult>> {
    let server = RedisServer::start(&[]);
    let plain = connected(&server.url(), Durability::Memory).await;
    plain.put(shard(), PutMode::Put, vec![new("held", 1000, "")], within(&plain, SOON)).await.unwrap();
    assert_eq!(claim(&plain, "i.1").await.len(), 1);

    let (tries, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (seen, over) = (Arc::clone(&tries), Arc::clone(&ended));
    let scripted = Scripted::before(server.server.port, move |asked| {
        if asked.is("EVALSHA") && seen.fetch_add(1, Ordering::Relaxed) == 1 {
            crate::support::patient(SOON, || over.load(Ordering::Relaxed));
        }
        asked.is("WAITAOF").then(|| {
            std::thread::sleep(LATE);
            "*2\r\n:1\r\n:0\r\n".to_owned()
        })
    });
    let timeline = connected(&scripted.url(), Durability::Fsync).await;
    let lanes = BTreeMap::from([(Lane::default(), LaneRequirements::default())]);
    let (intake, tasks) = (Intake::new(timeline, lanes), ids.iter().map(|id| another(id)).collect());
    let putting = tokio::spawn(async move { intake.put(PutMode::Put, tasks, SOON).await });
    while tries.load(Ordering::Relaxed) < 2 && !putting.is_finished() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let token = Token("i.1".to_owned());
    let settle = Settle {
        token,
        verdicts: Vec::new(),
        rest: RestOfClaim::Back,
        lease: SOON,
        dead_cap: DeadCap::of(100),
        quiet: false,
    };
    plain.settle(shard(), &Lane::default(), settle).await.unwrap();
    ended.store(true, Ordering::Relaxed);
    let answers = putting.await.unwrap();
    answers.into_iter().map(|answer| answer.ok().map(|put| put.result)).collect()
}

/// Takes more than five seconds: the disk confirms late on purpose.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_of_a_task_in_flight_is_retried_even_if_the_disk_confirms_late() {
    if !have("redis-server") {
        return;
    }
    assert_eq!(put_while_in_flight(&["held"]).await, [Some(PutResult::Replaced)]);
    let beside = put_while_in_flight(&["fresh", "held"]).await;
    assert_eq!(beside, [Some(PutResult::Created), Some(PutResult::Replaced)], "what had to be kept first");
}
