//! The trace context of the request that puts a task is in every copy of its messages.

use std::sync::Mutex;

use punctual::engine::intake::NewTask;
use punctual::task::{Key, Traceparent};
use punctual_sinks::memory::Answer;

use super::*;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Puts a task with a trace context and returns its due time.
async fn put_traced(bed: &Bed, name: &str, task: Task) -> Timestamp {
    let trace: Traceparent = TRACE.parse().unwrap();
    let new = NewTask { id: id(name), lane: Lane::default(), task, trace: Some(trace) };
    let put = bed.intake.put_traced(PutMode::Put, vec![new], seconds(2)).await.remove(0);
    put.unwrap().due
}

fn traces(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    let is_one = |name: &str| name.eq_ignore_ascii_case("traceparent");
    headers.iter().filter(|(name, _)| is_one(name)).map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn every_copy_of_a_message_carries_the_trace_of_the_put() {
    let bed = Bed::start();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copies = Arc::clone(&seen);
    // The sink asks for a retry, then its answer is lost, then it rejects: the message is dead. Once requeued it is
    // accepted.
    bed.sink.answer_by(move |message| {
        let mut copies = copies.lock().unwrap();
        copies.push(message.headers.clone());
        match copies.len() {
            1 => unclear("not now"),
            2 => Answer::Lose,
            3 => Answer::Reject("too large".into()),
            _ => Answer::Accept,
        }
    });
    let due = put_traced(&bed, "a", after(millis(10))).await;
    bed.pass(seconds(60)).await;
    let key = Key { task: id("a"), due };
    assert_eq!(bed.dead().iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>(), [key.to_string()]);
    let shard = Shard::of(&key.task, 1);
    bed.timeline.requeue(shard, &key, None, bed.clock.now().plus(seconds(1))).await.unwrap();
    bed.pass(seconds(1)).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 4);
    for headers in seen.iter() {
        assert_eq!(traces(headers), [("traceparent", TRACE)]);
    }
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_trace_that_the_task_names_itself_is_the_only_one() {
    let bed = Bed::start();
    let mut task = after(millis(10));
    task.message.headers.insert("TraceParent".to_owned(), "mine".to_owned());
    put_traced(&bed, "own", task).await;
    bed.put([("none", after(millis(10)))]).await;
    let due = put_traced(&bed, "tick", every(seconds(1), 3)).await;
    bed.pass(seconds(5)).await;
    let published = bed.sink.published();
    let of = |task: &str| published.iter().filter(|message| message.task == task).collect::<Vec<_>>();
    assert_eq!(traces(&of("own")[0].headers), [("TraceParent", "mine")]);
    assert_eq!(traces(&of("none")[0].headers), []);
    assert_eq!(of("tick")[0].due_ms, due.as_millis());
    assert_eq!(of("tick").len(), 3, "of a recurring task each occurrence is part of it");
    assert!(of("tick").iter().all(|message| traces(&message.headers) == [("traceparent", TRACE)]));
}
