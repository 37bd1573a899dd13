//! A pause holds: after its answer nothing that it concerns is claimed, and what was in flight ends as ever.

use punctual::task::{Counts, Lane, TaskId, When};
use punctual::timeline::{
    CancelAnswer, ClaimRequest, CountRequest, DuePosition, LaneCounts, LanePause, LanePauseAnswer, LanePauseRequest,
    LanePauseResult, PauseNote, Put, PutResult, ReapRequest, RequeueAnswer, RestOfClaim, ScanRequest, SuspectsRequest,
    TaskFilter, TaskPause, TaskPauseAnswer, TaskPauseRequest, TaskStatus, UpcomingRequest, Verdict,
};

use super::stage::{
    BACK, BACK_BEGUN, DEAD_KEEP, LEASE, Stage, at, dead_record, every, key, lane, lane_named, member, ms, next, once,
    once_in, record, settlement,
};

super::laws! {
    a_paused_lane_is_not_claimed_until_it_is_resumed,
    what_is_in_flight_ends_in_spite_of_a_pause_and_returns_into_it,
    a_pause_ends_by_itself_when_its_time_has_come,
    a_paused_lane_is_not_forgotten,
    a_pause_that_comes_too_late_has_no_effect,
    a_paused_task_is_not_claimed_and_keeps_its_due,
    a_paused_suspect_is_a_suspect_again_once_it_is_resumed,
    a_task_that_is_paused_in_flight_ends_or_goes_on_paused,
    a_task_that_is_paused_in_flight_returns_paused_when_its_holder_dies,
    a_pause_of_one_task_leaves_the_others_of_its_claim,
    a_put_does_not_end_a_pause,
    a_cancelled_task_is_not_paused_when_it_is_put_again,
    claims_find_nothing_where_only_paused_tasks_follow,
    paused_tasks_are_counted_and_listed_apart,
    a_dead_occurrence_is_not_requeued_under_the_due_of_a_paused_task,
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

    /// Checks that no kind of claim takes anything.
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
    // The tasks of the lane become suspects.
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

impl Stage {
    pub(super) async fn pause_as(&self, id: &TaskId, request: TaskPauseRequest) -> TaskPauseAnswer {
        self.timeline.pause(self.shard(), id, request, self.soon()).await.unwrap()
    }

    pub(super) async fn pause(&self, id: &TaskId) -> TaskPauseAnswer {
        self.pause_as(id, TaskPauseRequest::Pause(about("wrong figures"))).await
    }

    pub(super) async fn resume(&self, id: &TaskId) -> TaskPauseAnswer {
        self.pause_as(id, TaskPauseRequest::Resume).await
    }

    /// Checks that the task is paused, waits for this due and is not claimed.
    pub(super) async fn assert_paused_at(&self, id: &TaskId, due: i64) {
        let held = self.get(id).await.unwrap();
        assert!(held.pause.is_some() && !held.in_flight && held.due == at(due), "{held:?}");
        let (token, claimed) = self.claim().await;
        assert!(claimed.occurrences.iter().all(|one| one.member != member(id)), "{claimed:?}");
        self.settle(&token, RestOfClaim::Back, Vec::new()).await;
    }
}

fn paused(due: i64, in_flight: Option<i64>) -> TaskPauseAnswer {
    TaskPauseAnswer::Paused { due: at(due), in_flight: in_flight.map(at) }
}

fn resumed(due: i64, in_flight: Option<i64>) -> TaskPauseAnswer {
    TaskPauseAnswer::Resumed { due: at(due), in_flight: in_flight.map(at) }
}

async fn a_paused_task_is_not_claimed_and_keeps_its_due(stage: Stage) {
    let ids = stage.ids(2);
    assert_eq!(stage.pause(&ids[0]).await, TaskPauseAnswer::Unknown);
    stage.create(every(&ids[0], at(500), "a")).await;
    stage.create(once(&ids[1], at(500), "a")).await;
    assert_eq!(stage.resume(&ids[0]).await, TaskPauseAnswer::Unchanged { due: at(500) });
    assert_eq!(stage.pause(&ids[0]).await, paused(500, None));
    let pause = stage.get(&ids[0]).await.unwrap().pause.unwrap();
    assert_eq!(pause, TaskPause { pass: None, at: stage.now(), about: about("wrong figures") });
    // A second pause says nothing new, and keeps the note.
    assert_eq!(
        stage.pause_as(&ids[0], TaskPauseRequest::Pause(about("x"))).await,
        TaskPauseAnswer::Unchanged { due: at(500) }
    );
    stage.clock.set(at(1000));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.member, member(&ids[1]), "the other one");
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    stage.assert_paused_at(&ids[0], 500).await;
    assert_eq!(stage.resume(&ids[0]).await, resumed(500, None));
    let (token, occurrence) = stage.claim_one().await;
    assert_eq!((occurrence.member.clone(), occurrence.due), (member(&ids[0]), at(500)));
    assert_eq!(stage.get(&ids[0]).await.unwrap().pause, None);
    stage.settle_one(&token, &occurrence, Verdict::Finished).await;
    stage.assert_nothing_is_left();
    let (shard, before) = (stage.shard(), at(999));
    for request in [TaskPauseRequest::Pause(PauseNote::default()), TaskPauseRequest::Resume] {
        Stage::assert_late(stage.timeline.pause(shard, &ids[0], request, before).await);
    }
}

async fn a_paused_suspect_is_a_suspect_again_once_it_is_resumed(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.crash(2).await;
    let mark = stage.state().crashes[&member(&id)];
    assert_eq!(stage.pause(&id).await, paused(0, Some(0)), "it was handed out");
    stage.assert_paused_at(&id, 0).await;
    assert!(stage.claim_suspects().await.1.occurrences.is_empty());
    assert_eq!(stage.state().crashes[&member(&id)], mark);
    stage.resume(&id).await;
    assert!(stage.claim().await.1.occurrences.is_empty());
    assert_eq!(stage.claim_suspects().await.1.occurrences.len(), 1);
}

async fn a_task_that_is_paused_in_flight_ends_or_goes_on_paused(stage: Stage) {
    let ids = stage.ids(6);
    for id in &ids {
        stage.create(every(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    for id in &ids {
        assert_eq!(stage.pause(id).await, paused(0, Some(0)));
    }
    let of = |n: usize| &claimed.occurrences[n];
    let counts = Counts { dead: 1, ..Counts::default() };
    let dead_next = Verdict::DeadNext { dead_record: dead_record(of(5), "rejected"), due: at(1000), counts };
    let verdicts = [
        next(at(1000), 1),
        BACK_BEGUN,
        Verdict::Unreadable,
        Verdict::Finished,
        Verdict::Dead(dead_record(of(4), "rejected")),
        dead_next,
    ];
    let mut wakes = stage.timeline.wakes();
    let verdicts = (0..).zip(verdicts).map(|(n, verdict)| settlement(of(n), verdict)).collect();
    stage.settle(&token, RestOfClaim::Keep, verdicts).await;
    let state = stage.state();
    assert_eq!(state.pauses.keys().cloned().collect::<Vec<_>>(), [0, 1, 2, 5].map(|n: usize| member(&ids[n])));
    assert_eq!((state.crashes[&member(&ids[1])].count, state.crashes[&member(&ids[2])].unreadable), (Some(0), true));
    assert_eq!(state.dead.len(), 2);
    stage.clock.set(at(5000));
    for (n, due) in [(0, 1000), (1, 0), (2, 0), (5, 1000)] {
        stage.assert_paused_at(&ids[n], due).await;
    }
    // Nobody was woken by all this. The put that follows wakes somebody.
    stage.create(once(&ids[3], at(6000), "a")).await;
    assert_eq!(wakes.recv().await.unwrap().due, at(6000));
}

async fn a_task_that_is_paused_in_flight_returns_paused_when_its_holder_dies(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.claim_one().await;
    assert_eq!(stage.pause(&id).await, paused(0, Some(0)));
    assert_eq!(stage.reap_after_lease().await.occurrences, 1);
    stage.assert_paused_at(&id, 0).await;
    assert_eq!(stage.state().crashes[&member(&id)].count, Some(1));
    assert_eq!(stage.resume(&id).await, resumed(0, None));
    assert_eq!(stage.claim_one().await.1.due, at(0), "the same key");
    // Resumed in flight.
    stage.pause(&id).await;
    assert_eq!(stage.resume(&id).await, resumed(0, Some(0)));
    stage.reap_after_lease().await;
    assert!(stage.state().pauses.is_empty());
}

async fn a_pause_of_one_task_leaves_the_others_of_its_claim(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(every(id, at(0), "a")).await;
    }
    for rest in [RestOfClaim::Back, RestOfClaim::Keep] {
        let (token, claimed) = stage.claim().await;
        stage.pause(&ids[0]).await;
        let verdicts = match rest {
            RestOfClaim::Back => Vec::new(),
            RestOfClaim::Keep => claimed.occurrences.iter().map(|one| settlement(one, BACK)).collect(),
        };
        stage.settle(&token, rest, verdicts).await;
        stage.assert_paused_at(&ids[0], 0).await;
        let (token, claimed) = stage.claim().await;
        assert_eq!(claimed.occurrences.len(), 2);
        stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
        stage.resume(&ids[0]).await;
    }
}

async fn a_put_does_not_end_a_pause(stage: Stage) {
    // A lane called `paused`: the script's answer `elsewhere paused` must not be read as that of a paused task.
    let (id, other) = (stage.id(), lane_named("paused"));
    stage.create(every(&id, at(500), "a")).await;
    stage.pause(&id).await;
    let put = stage.put(every(&id, at(500), "a")).await;
    assert_eq!((put.result, put.due, put.paused), (PutResult::Unchanged, at(500), true));
    let put = stage.put(every(&id, at(700), "b")).await;
    assert_eq!((put.result, put.due, put.paused), (PutResult::Replaced, at(700), true));
    stage.clock.set(at(1000));
    stage.assert_paused_at(&id, 700).await;
    // In flight, before the pause and after it.
    stage.resume(&id).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.put(every(&id, at(1500), "c")).await;
    assert_eq!(stage.pause(&id).await, paused(1500, Some(700)));
    let put = stage.put(every(&id, at(1600), "d")).await;
    assert_eq!((put.result, put.in_flight, put.paused), (PutResult::Replaced, Some(at(700)), true));
    stage.settle_one(&token, &occurrence, next(at(1700), 1)).await;
    stage.clock.set(at(2000));
    stage.assert_paused_at(&id, 1600).await;
    // Into another lane, and back from there.
    let moved = Put { lane: other.clone(), ..every(&id, at(1600), "d") };
    let moved = Put { record: record(When::At(at(1600)), "d", &other).encode(), ..moved };
    assert!(stage.put(moved).await.paused);
    let claimed = stage.timeline.claim(stage.shard(), &other, stage.request()).await.unwrap();
    assert!(claimed.occurrences.is_empty());
    assert!(stage.put(every(&id, at(1600), "e")).await.paused);
    assert_eq!(stage.resume(&id).await, resumed(1600, None));
    assert_eq!(stage.claim_one().await.1.due, at(1600));
}

async fn a_cancelled_task_is_not_paused_when_it_is_put_again(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    stage.pause(&id).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: None });
    assert!(stage.state().pauses.is_empty());
    let put = stage.put(once(&id, at(0), "a")).await;
    assert_eq!((put.result, put.paused), (PutResult::Created, false));
    // In flight.
    let (token, _) = stage.claim_one().await;
    stage.pause(&id).await;
    assert_eq!(stage.cancel(&id).await, CancelAnswer::InFlight { due: at(0) });
    assert_eq!(stage.pause(&id).await, TaskPauseAnswer::Unknown);
    let put = stage.put(once(&id, at(10), "b")).await;
    assert_eq!((put.result, put.paused), (PutResult::Created, false));
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    stage.clock.set(at(10));
    assert_eq!(stage.claim_one().await.1.due, at(10));
    assert!(stage.state().pauses.is_empty());
}

async fn claims_find_nothing_where_only_paused_tasks_follow(stage: Stage) {
    let ids = stage.ids(3);
    stage.create(once(&ids[0], at(0), "a")).await;
    for id in &ids[1..] {
        stage.create(once(id, at(5), "a")).await;
        stage.pause(id).await;
    }
    stage.clock.set(at(10));
    let (token, claimed) = stage.claim().await;
    assert_eq!((claimed.occurrences.len(), claimed.head), (1, None));
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    let behind = Some(DuePosition { due: at(0), member: Some(member(&ids[0])) });
    let suspects = SuspectsRequest { after: behind.clone(), ..stage.suspects() };
    for claimed in [
        stage.claim_as(ClaimRequest { after: behind, ..stage.request() }).await,
        stage.claim_suspects_as(suspects).await,
    ] {
        assert_eq!((claimed.occurrences.len(), claimed.head), (0, None), "{claimed:?}");
    }
    let newest = ClaimRequest { newest_first: true, ..stage.request() };
    let (newest, token) = (newest.clone(), newest.token);
    let claimed = stage.claim_as(newest).await;
    assert_eq!((claimed.occurrences.len(), claimed.head), (1, None));
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    assert_eq!(stage.glance(&lane(), true).await.head, Some(at(0)));
}

async fn paused_tasks_are_counted_and_listed_apart(stage: Stage) {
    let ids = stage.ids(4);
    for (id, due) in ids.iter().zip([0, 1, 2, 100_000]) {
        stage.create(once(id, at(due), "a")).await;
    }
    stage.clock.set(at(5000));
    let newest = ClaimRequest { newest_first: true, max: 1, ..stage.request() };
    assert_eq!(stage.claim_as(newest).await.occurrences[0].member, member(&ids[2]));
    stage.pause(&ids[0]).await;
    // A paused task in flight is listed and counted as in flight.
    stage.pause(&ids[2]).await;
    let counted = stage.timeline.count(stage.shard(), &lane(), CountRequest::default()).await.unwrap();
    let expected = LaneCounts { waiting: 2, overdue: 1, in_flight: 1, paused: 1, windows: Vec::new() };
    assert_eq!(counted, expected);
    let glance = stage.glance(&lane(), true).await;
    assert_eq!((glance.depth, glance.overdue, glance.paused), (Some((2, 1)), 1, 1));
    let list = async |status| {
        let filter = TaskFilter { status: Some(status), ..TaskFilter::default() };
        let request = ScanRequest { filter, cursor: 0, count: 100 };
        let scanned = stage.timeline.scan(stage.shard(), &lane(), request).await.unwrap();
        let mut tasks: Vec<_> = scanned.tasks.into_iter().map(|task| (task.id, task.due, task.paused)).collect();
        tasks.sort();
        tasks
    };
    let one = |n: usize, due, paused| (ids[n].clone(), at(due), paused);
    assert_eq!(list(TaskStatus::Paused).await, [one(0, 0, true)]);
    assert_eq!(list(TaskStatus::Overdue).await, [one(1, 1, false)]);
    assert_eq!(list(TaskStatus::Scheduled).await, [one(1, 1, false), one(3, 100_000, false)]);
    assert_eq!(list(TaskStatus::InFlight).await, [one(2, 2, false)]);
    let upcoming = UpcomingRequest { after: DuePosition { due: at(0), member: None }, max: 9, prefix: String::new() };
    let upcoming = stage.timeline.upcoming(stage.shard(), &lane(), upcoming).await.unwrap();
    assert_eq!((upcoming.tasks.len(), upcoming.last), (2, None));
}

async fn a_dead_occurrence_is_not_requeued_under_the_due_of_a_paused_task(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "rejected"))).await;
    stage.create(once(&id, at(0), "b")).await;
    stage.pause(&id).await;
    let requeued = stage.timeline.requeue(stage.shard(), &key(&id, at(0)), None, stage.soon()).await;
    assert_eq!(requeued, Ok(RequeueAnswer::InFlight));
}
