//! A paused lane: no waiting occurrence is claimed, its occurrences in flight end, and it costs one call a second.

use punctual::engine::steering::SteerError;
use punctual::timeline::memory::InjectedFault;
use punctual::timeline::{LanePauseAnswer, LanePauseRequest, LanePauseResult, PauseNote, TimelineError, Verb};
use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault, Trouble};

use super::*;

impl Bed {
    async fn pause(&self, lane: &str, until: Option<Timestamp>) -> Result<LanePauseAnswer, SteerError> {
        let about = PauseNote { by: None, note: "broker moves".into() };
        let request = LanePauseRequest::Pause { until, about };
        self.intake.pause_lane(&lane.parse().unwrap(), request, None, seconds(2)).await
    }

    async fn resume(&self, lane: &str) -> Result<LanePauseAnswer, SteerError> {
        self.intake.pause_lane(&lane.parse().unwrap(), LanePauseRequest::Resume, None, seconds(2)).await
    }

    /// Number of claim calls so far, of all lanes.
    fn claim_calls(&self) -> u64 {
        let text = self.metrics.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("punctual_timeline_calls_total{verb=\"claim\",result=\"ok\"} "));
        line.map_or(0, |count| count.parse().unwrap())
    }

    fn is_paused(&self, lane: &str) -> bool {
        self.engine().is_lane_paused(&lane.parse().unwrap())
    }
}

fn answer(result: LanePauseResult, in_flight: u64) -> LanePauseAnswer {
    LanePauseAnswer { result, in_flight }
}

#[tokio::test(start_paused = true)]
async fn a_paused_lane_publishes_nothing_and_costs_one_call_a_second() {
    let bed = Bed::start();
    bed.timeline.count_calls(Arc::clone(&bed.metrics));
    assert_eq!(bed.pause("default", None).await, Ok(answer(LanePauseResult::Paused, 0)));
    let ids: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
    let dues = bed.put(ids.iter().map(|id| (id.as_str(), after(seconds(1))))).await;
    bed.put_into("side", [("goes-on", after(seconds(1)))]).await;
    bed.pass(seconds(3)).await;
    assert_eq!(bed.keys().len(), 1, "that of another lane");
    assert!(bed.is_paused("default") && !bed.is_paused("side"));
    // Each put wakes the claimers.
    let before = bed.claim_calls();
    for n in 0..100 {
        bed.put([(format!("more{n}").as_str(), after(millis(1)))]).await;
        bed.pass(millis(100)).await;
    }
    let calls = bed.claim_calls() - before;
    assert!((9..=11).contains(&calls), "{calls} calls in 10 s");
    assert_eq!(bed.keys().len(), 1);
    bed.pass(seconds(2)).await;
    let state = bed.engine().state();
    let lane = state.lanes.iter().find(|lane| lane.lane.as_str() == "default").unwrap();
    let paused = lane.pause.as_ref().unwrap();
    assert_eq!((lane.waiting, paused.shards, paused.everywhere), (1100, 1, true));
    assert_eq!(paused.pause.about.note, "broker moves");

    assert_eq!(bed.resume("default").await, Ok(answer(LanePauseResult::Resumed, 0)));
    bed.pass(seconds(1)).await;
    let keys = bed.keys();
    assert_eq!(keys.len(), 1101);
    assert!(expected(&ids, &dues).iter().all(|key| keys.contains(key)));
    bed.pass(seconds(1)).await;
    assert!(!bed.is_paused("default"));
    assert_eq!(bed.resume("default").await, Ok(answer(LanePauseResult::Unchanged, 0)));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_waits_for_a_retry_returns_to_its_paused_lane() {
    let bed = Bed::start();
    let full = || Answer::Retry(Trouble::definite(Fault::Refusing, "the queue is full"));
    bed.sink.answer_by(move |_| full());
    let due = bed.put([("a", after(millis(1)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(bed.pause("default", None).await, Ok(answer(LanePauseResult::Paused, 1)));
    bed.pass(seconds(2)).await;
    bed.assert_at_rest();
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert!(bed.keys().is_empty());
    bed.resume("default").await.unwrap();
    bed.pass(seconds(1)).await;
    assert_eq!(bed.keys(), expected(["a"], &due));
}

#[tokio::test(start_paused = true)]
async fn a_lane_goes_on_within_a_second_once_its_pause_has_ended() {
    let bed = Bed::start();
    let until = bed.clock.now().plus(seconds(5));
    bed.pause("default", Some(until)).await.unwrap();
    let due = bed.put([("a", after(millis(1)))]).await;
    bed.pass(millis(4900)).await;
    assert!(bed.keys().is_empty());
    bed.pass(millis(1200)).await;
    assert_eq!(bed.keys(), expected(["a"], &due));
    bed.pass(seconds(1)).await;
    assert!(!bed.is_paused("default"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_reached_some_shards_is_shown_and_can_be_repeated() {
    let bed = Bed::start_on(4);
    bed.timeline.fail_next(Verb::PauseLane, InjectedFault::Refused("OOM".into()));
    let refused = bed.pause("default", None).await;
    assert_eq!(refused, Err(SteerError::Timeline(TimelineError::Refused("OOM".into()))));
    bed.pass(seconds(2)).await;
    let shards = |bed: &Bed| {
        let state = bed.engine().state();
        let paused = state.lanes.into_iter().find_map(|lane| lane.pause).unwrap();
        (paused.shards, paused.everywhere)
    };
    assert_eq!(shards(&bed), (3, false));
    bed.pause("default", None).await.unwrap();
    bed.pass(seconds(2)).await;
    assert_eq!(shards(&bed), (4, true));
    let unknown = bed.pause("nobody", None).await.unwrap_err().to_string();
    assert!(unknown.contains("`nobody`") && unknown.contains("`default`, `other`, `side`"), "{unknown}");
    assert!(bed.resume("nobody").await.is_err());
}
