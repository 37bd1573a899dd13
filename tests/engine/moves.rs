//! Trigger and skip: the schedule goes on as if nothing had happened, and no key comes twice.

use punctual::engine::steering::SkipError;
use punctual::task::CatchUp;
use punctual::timeline::memory::InjectedFault;
use punctual::timeline::{MoveAnswer, PauseNote, TaskPauseRequest, Verb};
use punctual_sinks::memory::Answer;

use super::*;

const TOO_LONG: Duration = Duration::from_secs(2);

impl Bed {
    /// Triggers a task; returns its key.
    async fn trigger(&self, task: &str) -> String {
        match self.intake.trigger(&id(task), None, TOO_LONG).await.unwrap() {
            MoveAnswer::Moved { due, .. } => format!("{task}:{}", due.as_millis()),
            other => panic!("{other:?}"),
        }
    }

    /// Skips the next occurrence of a task; returns its key and the due after it.
    async fn skip(&self, task: &str) -> Result<(String, Timestamp), SkipError> {
        let skipped = self.intake.skip(&id(task), None, None, TOO_LONG).await?;
        Ok((skipped.key.to_string(), skipped.due))
    }

    async fn pause_task(&self, task: &str, request: TaskPauseRequest) {
        self.intake.pause_task(&id(task), request, None, TOO_LONG).await.unwrap();
    }

    async fn due(&self, task: &str) -> Timestamp {
        self.intake.get(&id(task)).await.unwrap().unwrap().1.due
    }
}

fn key(task: &str, due: Timestamp) -> String {
    format!("{task}:{}", due.as_millis())
}

#[tokio::test(start_paused = true)]
async fn a_triggered_task_is_published_at_once_and_its_schedule_goes_on() {
    let bed = Bed::start();
    let due = bed.put([("a", every(seconds(60), 3))]).await[0];
    let now = bed.trigger("a").await;
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), std::slice::from_ref(&now));
    assert_eq!(bed.due("a").await, due, "the due that it had");
    bed.pass(seconds(200)).await;
    // The trigger counts for the limit of three.
    assert_eq!(bed.keys(), [now, key("a", due), key("a", due.plus(seconds(60)))]);
    assert!(bed.intake.get(&id("a")).await.unwrap().is_none());
    bed.put([("once", after(seconds(60)))]).await;
    let now = bed.trigger("once").await;
    bed.pass(seconds(100)).await;
    assert_eq!(bed.keys()[3..], [now], "once");
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_trigger_after_a_skip_does_not_publish_what_was_skipped() {
    let bed = Bed::start();
    let due = bed.put([("a", every(seconds(60), 10))]).await[0];
    let after = |n: u64| due.plus(seconds(60 * n));
    assert_eq!(bed.skip("a").await.unwrap(), (key("a", due), after(1)));
    // The answer to a put computes the dues that follow by the same rule.
    let now = bed.trigger("a").await;
    let upcoming =
        bed.intake.put(PutMode::Put, vec![(id("a"), Lane::default(), every(seconds(60), 10))], TOO_LONG).await;
    assert_eq!(upcoming[0].as_ref().unwrap().next[0], after(1));
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), std::slice::from_ref(&now));
    assert_eq!(bed.due("a").await, after(1));
    // Triggered, and the triggered one skipped: the due after it is the same.
    bed.trigger("a").await;
    assert_eq!(bed.skip("a").await.unwrap().1, after(1));
    assert_eq!(bed.skip("a").await.unwrap(), (key("a", after(1)), after(2)));
    bed.pass(seconds(185)).await;
    assert_eq!(bed.keys(), [now, key("a", after(2))]);
    let counts = bed.intake.get(&id("a")).await.unwrap().unwrap().1.counts;
    assert_eq!((counts.accepted, counts.passed_over, counts.last_due), (2, 3, Some(after(2))));
}

#[tokio::test(start_paused = true)]
async fn a_trigger_of_a_paused_task_publishes_one_message() {
    let bed = Bed::start();
    let due = bed.put([("a", every(seconds(60), 10))]).await[0];
    bed.pause_task("a", TaskPauseRequest::Pause(PauseNote::default())).await;
    let now = bed.trigger("a").await;
    bed.pass(seconds(300)).await;
    assert_eq!(bed.keys(), [now]);
    // The missed occurrences are skipped before the resume, and count as one.
    bed.intake.skip_missed(&id("a"), None, TOO_LONG).await.unwrap();
    bed.pause_task("a", TaskPauseRequest::Resume).await;
    let next = bed.due("a").await;
    assert!(next > bed.clock.now() && next.since(due).as_secs() % 60 == 0, "{next}");
    bed.pass(millis(60_500)).await;
    assert_eq!(bed.keys()[1..2], [key("a", next)]);
    let counts = bed.intake.get(&id("a")).await.unwrap().unwrap().1.counts;
    assert_eq!((counts.accepted >= 2, counts.passed_over), (true, 1));
    // A task that is due once is published late.
    let due = bed.put([("once", after(seconds(1)))]).await;
    bed.pause_task("once", TaskPauseRequest::Pause(PauseNote::default())).await;
    bed.pass(seconds(10)).await;
    bed.intake.skip_missed(&id("once"), None, TOO_LONG).await.unwrap();
    bed.pause_task("once", TaskPauseRequest::Resume).await;
    bed.pass(seconds(1)).await;
    assert!(bed.keys().contains(&key("once", due[0])));
}

#[tokio::test(start_paused = true)]
async fn a_trigger_publishes_although_a_catch_up_of_none_passes_over_what_was_missed() {
    let bed = Bed::start();
    let none = |task: Task| Task { catch_up: Some(CatchUp::None), ..task };
    let due = bed.put([("a", none(every(seconds(60), 10))), ("once", none(after(seconds(60))))]).await[0];
    for task in ["a", "once"] {
        bed.pause_task(task, TaskPauseRequest::Pause(PauseNote::default())).await;
    }
    bed.pass(seconds(300)).await;
    let keys = [bed.trigger("a").await, bed.trigger("once").await];
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), keys);
    assert_eq!(bed.due("a").await, due.plus(seconds(300)), "what it missed is passed over");
    assert!(bed.intake.get(&id("once")).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_skipped_is_refused_with_the_reason() {
    let bed = Bed::start();
    assert!(matches!(bed.skip("nobody").await, Err(SkipError::Unknown(_))));
    assert!(matches!(bed.intake.trigger(&id("nobody"), None, TOO_LONG).await, Ok(MoveAnswer::Unknown)));
    bed.put([("once", after(seconds(60)))]).await;
    assert!(matches!(bed.skip("once").await, Err(SkipError::Last(_))));
    let due = bed.put([("a", every(seconds(60), 2))]).await[0];
    let other = bed.intake.skip(&id("a"), Some(due.plus(millis(1))), None, TOO_LONG).await;
    assert!(matches!(other, Err(SkipError::NotNext(next)) if next.due == due));
    assert_eq!(bed.intake.skip(&id("a"), Some(due), None, TOO_LONG).await.unwrap().key.due, due);
    // Repeated after its answer was lost.
    let again = bed.intake.skip(&id("a"), Some(due), None, TOO_LONG).await;
    assert!(matches!(again, Err(SkipError::NotNext(next)) if next.due == due.plus(seconds(60))));
    assert!(matches!(bed.skip("a").await, Err(SkipError::Last(_))), "its limit is 2");
    // In flight.
    bed.sink.answer_by(|_| Answer::Hang);
    bed.pass(seconds(121)).await;
    assert!(matches!(bed.skip("a").await, Err(SkipError::InFlight(_))));
    let flies = bed.intake.trigger(&id("a"), None, TOO_LONG).await.unwrap();
    assert_eq!(flies, MoveAnswer::InFlight { due: due.plus(seconds(60)) });
}

#[tokio::test(start_paused = true)]
async fn a_skip_whose_answer_is_lost_can_be_repeated() {
    let bed = Bed::start();
    let due = bed.put([("a", every(seconds(60), 10))]).await[0];
    bed.timeline.fail_next(Verb::MoveDue, InjectedFault::ReplyLost);
    let lost = bed.intake.skip(&id("a"), Some(due), None, TOO_LONG).await;
    assert!(matches!(lost, Err(SkipError::Timeline(_))), "{lost:?}");
    let again = bed.intake.skip(&id("a"), Some(due), None, TOO_LONG).await;
    assert!(matches!(again, Err(SkipError::NotNext(_))), "{again:?}");
    assert_eq!(bed.due("a").await, due.plus(seconds(60)));
}

#[tokio::test(start_paused = true)]
async fn what_is_overdue_is_skipped_up_to_now() {
    let bed = Bed::start();
    bed.pause_task("a", TaskPauseRequest::Resume).await;
    let due = bed.put([("a", every(seconds(1), 1000))]).await[0];
    bed.pause_task("a", TaskPauseRequest::Pause(PauseNote::default())).await;
    bed.pass(millis(100_500)).await;
    let (skipped, next) = bed.skip("a").await.unwrap();
    assert_eq!(skipped, key("a", due));
    assert!(next > bed.clock.now() && next.since(bed.clock.now()) <= seconds(1), "{next}");
    assert!(bed.keys().is_empty());
}
