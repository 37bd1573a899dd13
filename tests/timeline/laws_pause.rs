//! A pause holds: after its answer nothing that it concerns is claimed, and what was in flight ends as ever.

use punctual::task::Lane;
use punctual::timeline::{
    ClaimRequest, LanePause, LanePauseAnswer, LanePauseRequest, LanePauseResult, PauseNote, PutResult, ReapRequest,
    RestOfClaim, SuspectsRequest, Verdict,
};

use super::stage::{BACK, DEAD_KEEP, LEASE, Stage, at, every, lane, lane_named, ms, next, once, once_in, settlement};

super::laws! {
    a_paused_lane_is_not_claimed_until_it_is_resumed,
    what_is_in_flight_ends_in_spite_of_a_pause_and_returns_into_it,
    a_pause_ends_by_itself_when_its_time_has_come,
    a_paused_lane_is_not_forgotten,
    a_pause_that_comes_too_late_has_no_effect,
}

fn about(note: &str) -> PauseNote {
    PauseNote { by: Some("ops".into()), note: note.into() }
}

impl Stage {
    async fn pause_lane(&self, lane: &Lane, until: Option<i64>) -> LanePauseAnswer {
        let request = LanePauseRequest::Pause { until: until.map(at), about: about("broker moves") };
        self.timeline.pause_lane(self.shard(), lane, request, self.soon()).await.unwrap()
    }

    async fn resume_lane(&self, lane: &Lane) -> LanePauseAnswer {
        self.timeline.pause_lane(self.shard(), lane, LanePauseRequest::Resume, self.soon()).await.unwrap()
    }

    /// Checks that neither kind of claim takes anything.
    async fn assert_paused(&self) {
        let newest = ClaimRequest { newest_first: true, ..self.request() };
        let unreadable = SuspectsRequest { unreadable: true, ..self.suspects() };
        for claimed in [
            self.claim_as(self.request()).await,
            self.claim_as(newest).await,
            self.claim_suspects_as(self.suspects()).await,
            self.claim_suspects_as(unreadable).await,
        ] {
            assert!(claimed.paused && claimed.occurrences.is_empty() && claimed.head.is_none(), "{claimed:?}");
        }
    }
}

fn answer(result: LanePauseResult, in_flight: u64) -> LanePauseAnswer {
    LanePauseAnswer { result, in_flight }
}

async fn a_paused_lane_is_not_claimed_until_it_is_resumed(stage: Stage) {
    let (ids, other) = (stage.ids(4), lane_named("other"));
    stage.create(once(&ids[0], at(0), "a")).await;
    stage.create(once_in(&ids[1], at(0), "a", &other)).await;
    // A suspect.
    stage.create(once(&ids[2], at(0), "a")).await;
    stage.crash(2).await;
    assert_eq!(stage.pause_lane(&lane(), None).await, answer(LanePauseResult::Paused, 0));
    stage.assert_paused().await;
    let pause = stage.glance(&lane(), true).await.pause.unwrap();
    assert_eq!(pause, LanePause { until: None, at: stage.now(), about: about("broker moves") });
    // A put, also of an equal task, does not end the pause, and a second pause replaces the first.
    assert_eq!(stage.put(once(&ids[3], at(0), "a")).await.result, PutResult::Created);
    assert_eq!(stage.put(once(&ids[0], at(0), "a")).await.result, PutResult::Unchanged);
    stage.clock.advance(ms(5));
    assert_eq!(stage.pause_lane(&lane(), Some(1 << 40)).await, answer(LanePauseResult::Paused, 0));
    stage.assert_paused().await;
    let pause = stage.glance(&lane(), true).await.pause.unwrap();
    assert_eq!((pause.until, pause.at), (Some(at(1 << 40)), stage.now()));
    // Other lanes go on.
    let claimed = stage.timeline.claim(stage.shard(), &other, stage.request()).await.unwrap();
    assert_eq!((claimed.paused, claimed.occurrences.len()), (false, 1));
    assert_eq!(stage.glance(&other, true).await.pause, None);
    assert_eq!(stage.resume_lane(&lane()).await, answer(LanePauseResult::Resumed, 0));
    assert_eq!(stage.resume_lane(&lane()).await, answer(LanePauseResult::Unchanged, 0));
    assert_eq!(stage.glance(&lane(), true).await.pause, None);
    assert_eq!(stage.claim().await.1.occurrences.len(), 1, "the other two are suspects");
    assert_eq!(stage.claim_suspects().await.1.occurrences.len(), 2);
}

async fn what_is_in_flight_ends_in_spite_of_a_pause_and_returns_into_it(stage: Stage) {
    let ids = stage.ids(4);
    stage.create(once(&ids[0], at(0), "ends")).await;
    stage.create(every(&ids[1], at(0), "goes on")).await;
    stage.create(once(&ids[2], at(0), "returns")).await;
    stage.create(once(&ids[3], at(0), "is reaped")).await;
    let (token, claimed) = stage.claim().await;
    assert_eq!(stage.pause_lane(&lane(), None).await, answer(LanePauseResult::Paused, 4));
    let occurrences = &claimed.occurrences;
    let verdicts = vec![
        settlement(&occurrences[0], Verdict::Finished),
        settlement(&occurrences[1], next(at(1000), 1)),
        settlement(&occurrences[2], BACK),
    ];
    let settled = stage.settle(&token, RestOfClaim::Keep, verdicts).await;
    assert!(!settled.lost && settled.skipped.is_empty(), "{settled:?}");
    assert!(stage.extend(&token).await);
    assert_eq!(stage.reap_after_lease().await.occurrences, 1);
    stage.assert_paused().await;
    assert_eq!(stage.get(&ids[0]).await, None);
    assert_eq!(stage.resume_lane(&lane()).await, answer(LanePauseResult::Resumed, 0));
    let mut dues: Vec<_> =
        stage.claim().await.1.occurrences.into_iter().map(|one| (one.due, one.member.task())).collect();
    dues.sort();
    assert_eq!(dues, [(at(0), ids[2].clone()), (at(0), ids[3].clone()), (at(1000), ids[1].clone())]);
}

async fn a_pause_ends_by_itself_when_its_time_has_come(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.pause_lane(&lane(), Some(1000)).await;
    stage.clock.set(at(999));
    stage.assert_paused().await;
    stage.clock.set(at(1000));
    // No glance has removed it yet.
    assert_eq!(stage.state().paused_lanes.len(), 1);
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK).await;
    assert_eq!(stage.resume_lane(&lane()).await, answer(LanePauseResult::Unchanged, 0));
    stage.pause_lane(&lane(), Some(2000)).await;
    stage.clock.set(at(2000));
    assert_eq!(stage.glance(&lane(), true).await.pause, None);
    assert!(stage.state().paused_lanes.is_empty());
}

async fn a_paused_lane_is_not_forgotten(stage: Stage) {
    let (id, other) = (stage.id(), lane_named("other"));
    stage.create(once_in(&id, at(0), "a", &other)).await;
    stage.cancel(&id).await;
    stage.pause_lane(&other, None).await;
    let reap = async |after| {
        stage.clock.advance(after);
        let asked = stage.glance(&other, false).await.reap;
        let request = ReapRequest { lease: LEASE, served: false, dead_keep: DEAD_KEEP, not_after: stage.now() };
        stage.timeline.reap(stage.shard(), &other, request).await.unwrap();
        asked
    };
    // The first glance only notes when to reap.
    stage.glance(&other, false).await;
    assert!(!reap(LEASE).await, "there is no work");
    assert_eq!(stage.known().await, std::slice::from_ref(&other), "another instance may serve it");
    assert!(stage.glance(&other, false).await.pause.is_some());
    stage.resume_lane(&other).await;
    assert!(reap(ms(1000)).await);
    assert!(stage.known().await.is_empty());
}

async fn a_pause_that_comes_too_late_has_no_effect(stage: Stage) {
    let (shard, lane, before) = (stage.shard(), lane(), at(-1));
    let pause = LanePauseRequest::Pause { until: None, about: PauseNote::default() };
    Stage::assert_late(stage.timeline.pause_lane(shard, &lane, pause, before).await);
    assert!(stage.state().paused_lanes.is_empty());
    stage.pause_lane(&lane, None).await;
    Stage::assert_late(stage.timeline.pause_lane(shard, &lane, LanePauseRequest::Resume, before).await);
    assert_eq!(stage.state().paused_lanes.len(), 1);
}
