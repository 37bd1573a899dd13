//! The write API: which errors it returns when the timeline fails.

use punctual::engine::intake::PutError;
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

#[tokio::test(start_paused = true)]
async fn a_task_that_keeps_moving_says_nothing_of_others() {
    let bed = Bed::start();
    assert_eq!(put_into(&bed, InjectedFault::Moving).await, PutError::Timeline(TimelineError::Moving));
    assert_eq!(bed.intake.refused(), None, "it concerns one task: the instance takes others in");
    let full = "OOM command not allowed".to_owned();
    assert_eq!(
        put_into(&bed, InjectedFault::Refused(full.clone())).await,
        PutError::Timeline(TimelineError::Refused(full.clone()))
    );
    assert_eq!(bed.intake.refused(), Some(full), "it concerns every task");
    bed.pass(seconds(5)).await;
    assert_eq!(bed.intake.refused(), None, "one has to try again");
}
