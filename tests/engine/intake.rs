//! The write API: which errors it returns when the timeline fails, or when the sink of a lane takes no tombstones.

use punctual::engine::intake::{PutError, RefusedPuts};
use punctual::timeline::TimelineError;
use punctual::timeline::Verb;
use punctual::timeline::memory::InjectedFault;

use super::*;

/// Puts one task while this fault is injected into the timeline.
async fn put_into(bed: &Bed, fault: InjectedFault) -> PutError {
    bed.timeline.fail_next(Verb::Put, fault);
    let tasks = vec![(id("a"), Lane::default(), after(seconds(60)))];
    bed.intake.put(PutMode::Put, tasks, seconds(1)).await.remove(0).unwrap_err()
}

/// Only Kafka has messages without a value. If the lane had a Kafka sink when the task was put, and has another now, the
/// message is dead rather than published as an empty one.
#[tokio::test(start_paused = true)]
async fn a_tombstone_is_refused_where_the_sink_has_none() {
    let bed = Bed::start();
    let mut task = after(seconds(1));
    task.message.payload = Payload::Tombstone;
    let lanes = [(Lane::default(), LaneRequirements { sink: Some(Arc::new(bed.sink.clone())), ..Default::default() })];
    let intake = Intake::new(bed.timeline.clone(), BTreeMap::from(lanes));
    let tasks = vec![(id("a"), Lane::default(), task.clone())];
    let refused = intake.put(PutMode::Put, tasks, seconds(1)).await.remove(0);
    assert_eq!(refused, Err(PutError::NoTombstones(Lane::default())));
    let due = bed.put([("before", task)]).await;
    bed.pass(seconds(5)).await;
    let dead = bed.dead();
    assert_eq!((dead[0].0.clone(), dead[0].1.as_str()), (expected(["before"], &due)[0].clone(), "rejected"));
    assert_eq!(bed.sink.accepted(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_put_that_fails_because_its_task_keeps_moving_blocks_no_other_put() {
    let bed = Bed::start();
    assert_eq!(put_into(&bed, InjectedFault::LaneChanged).await, PutError::Timeline(TimelineError::LaneChanged));
    assert_eq!(bed.intake.refused(), None, "it concerns one task: the instance takes others in");
    let full = "OOM command not allowed".to_owned();
    assert_eq!(
        put_into(&bed, InjectedFault::Refused(full.clone())).await,
        PutError::Timeline(TimelineError::Refused(full.clone()))
    );
    let refused = RefusedPuts { everywhere: true, detail: full };
    assert_eq!(bed.intake.refused(), Some(refused), "it concerns every task");
    bed.pass(seconds(5)).await;
    assert_eq!(bed.intake.refused(), None, "after a while puts are tried again");
}
