//! One timeline of each kind, with a manual clock, and short forms of its verbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use punctual::clock::{Clock, ManualClock, Timestamp};
use punctual::task::{
    Counts, Key, Lane, Member, Message, Payload, Record, Schedule, Shard, Task, TaskId, Traceparent, When,
};
use punctual::timeline::memory::{MemoryTimeline, Twin};
use punctual::timeline::{
    CancelAnswer, ClaimRequest, Claimed, DeadCap, DeadRecord, GlanceRequest, LaneGlance, Occurrence, Put, PutAnswer,
    PutMode, PutResult, ReapRequest, Reaped, RestOfClaim, Settle, Settled, Settlement, StoredTask, SuspectsRequest,
    Timeline, TimelineError, Token, Verdict,
};

use super::raw::Raw;
use super::shared::{Shape, SharedServer, connect, shared_server};

/// Lease of all claims.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

/// Retention of dead records.
pub(crate) const DEAD_KEEP: Duration = Duration::from_secs(30 * 86_400);

/// Time at which every test begins.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// A timeline, its clock, and a view of its state.
pub(crate) struct Stage {
    pub(crate) timeline: Arc<dyn Timeline>,
    pub(crate) clock: Arc<ManualClock>,
    place: Place,
    tokens: AtomicU64,
}

/// Where a timeline keeps its state.
enum Place {
    Memory(Arc<MemoryTimeline>),
    Redis { raw: Raw, _server: Arc<SharedServer> },
}

/// `START` plus this many milliseconds.
pub(crate) fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(START.as_millis() + ms)
}

/// This many milliseconds.
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The lane that most tests use.
pub(crate) fn lane() -> Lane {
    Lane::default()
}

/// A lane by name.
pub(crate) fn lane_named(name: &str) -> Lane {
    name.parse().unwrap()
}

/// A record of a task with this schedule and payload.
pub(crate) fn record(when: When, payload: &str, lane: &Lane) -> Record {
    let schedule = Schedule { when, end: None, limit: None, spread: None };
    let payload = Payload::Json(Bytes::from(format!("{payload:?}")));
    let message = Message { destination: Some("orders".into()), payload, ..Message::default() };
    Record::new(Task { schedule, message, retry: None, catch_up: None }, lane.clone(), START)
}

fn draft(id: &TaskId, due: Timestamp, when: When, payload: &str, lane: &Lane) -> Put {
    Put { id: id.clone(), lane: lane.clone(), due, record: record(when, payload, lane).encode() }
}

/// A task that is due once.
pub(crate) fn once(id: &TaskId, due: Timestamp, payload: &str) -> Put {
    draft(id, due, When::At(due), payload, &lane())
}

/// A task that is due once, in this lane.
pub(crate) fn once_in(id: &TaskId, due: Timestamp, payload: &str, lane: &Lane) -> Put {
    draft(id, due, When::At(due), payload, lane)
}

/// A task with `in`: a repeated put counts anew.
pub(crate) fn within(id: &TaskId, due: Timestamp, payload: &str) -> Put {
    draft(id, due, When::In(ms(1000)), payload, &lane())
}

/// A recurring task.
pub(crate) fn every(id: &TaskId, due: Timestamp, payload: &str) -> Put {
    draft(id, due, When::Every { gap: ms(1000), start: None }, payload, &lane())
}

/// The same put, from a request in trace `number`; 0: without a trace.
pub(crate) fn traced(put: Put, number: u8) -> Put {
    let record = Record { trace: trace(number), ..Record::decode(&put.record).unwrap() };
    Put { record: record.encode(), ..put }
}

/// A trace for every number but 0.
pub(crate) fn trace(number: u8) -> Option<Traceparent> {
    (number > 0).then(|| format!("00-{}-00f067aa0ba902b7-01", format!("{number:02x}").repeat(16)).parse().unwrap())
}

/// The dead record of an occurrence.
pub(crate) fn dead_record(occurrence: &Occurrence, reason: &str) -> DeadRecord {
    let record = Record::decode(&occurrence.record).unwrap();
    let record = record.of_dead(occurrence.member.key(occurrence.due)).encode();
    DeadRecord { record, reason: reason.into(), detail: format!("the broker says: {reason}") }
}

/// The key of a task and a due.
pub(crate) fn key(id: &TaskId, due: Timestamp) -> Key {
    Key { task: id.clone(), due }
}

/// One occurrence and its verdict.
pub(crate) fn settlement(occurrence: &Occurrence, verdict: Verdict) -> Settlement {
    Settlement { member: occurrence.member.clone(), due: occurrence.due, verdict }
}

/// Returned with its due; no publish has begun.
pub(crate) const BACK: Verdict = Verdict::Back { begun: false };

/// Returned with its due, after a publish without a definite answer.
pub(crate) const BACK_BEGUN: Verdict = Verdict::Back { begun: true };

/// Due again, with this count of accepted messages.
pub(crate) fn next(due: Timestamp, accepted: u64) -> Verdict {
    Verdict::Next { due, counts: Counts { accepted, ..Counts::default() } }
}

impl Stage {
    /// The timeline in memory.
    pub(crate) fn in_memory(shards: u16) -> Stage {
        let clock = Arc::new(ManualClock::new(START));
        let memory = Arc::new(MemoryTimeline::new(clock.clone(), shards));
        let timeline = memory.clone();
        Stage { timeline, clock, place: Place::Memory(memory), tokens: AtomicU64::new(1) }
    }

    /// The timeline in Redis; `None` if Redis is not installed.
    pub(crate) async fn in_redis(shape: Shape, shards: u16) -> Option<Stage> {
        let server = shared_server(shape)?;
        let clock = Arc::new(ManualClock::new(START));
        let (timeline, raw) = connect(&server, clock.clone(), shards).await;
        Some(Stage { timeline, clock, place: Place::Redis { raw, _server: server }, tokens: AtomicU64::new(1) })
    }

    /// This many ids of one shard, in the order of their bytes.
    pub(crate) fn ids(&self, count: usize) -> Vec<TaskId> {
        let shards = self.timeline.shards();
        let all = (0..).map(|n| format!("task-{n:05}").parse::<TaskId>().unwrap());
        all.filter(|id| Shard::of(id, shards).number() == shards - 1).take(count).collect()
    }

    /// One id.
    pub(crate) fn id(&self) -> TaskId {
        self.ids(1).remove(0)
    }

    /// The shard of [`ids`](Self::ids).
    pub(crate) fn shard(&self) -> Shard {
        Shard::of(&self.id(), self.timeline.shards())
    }

    /// State of that shard.
    pub(crate) fn state(&self) -> Twin {
        match &self.place {
            Place::Memory(memory) => memory.twin(self.shard()),
            Place::Redis { raw, .. } => raw.twin(self.shard()),
        }
    }

    /// Deletes the leases of the lane, which no verb does.
    pub(crate) fn strand(&self) {
        match &self.place {
            Place::Memory(memory) => memory.edit(self.shard(), |twin| drop(twin.leases.remove(&lane()))),
            Place::Redis { raw, .. } => raw.remove(self.shard(), &[format!("leases:{}", lane())]),
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A second from now: long enough for every call.
    pub(crate) fn soon(&self) -> Timestamp {
        self.now().plus(ms(1000))
    }

    /// A token that was never used before.
    pub(crate) fn token(&self) -> Token {
        Token(format!("i.{}", self.tokens.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) async fn put_as(&self, mode: PutMode, put: Put) -> PutAnswer {
        let answers = self.timeline.put(self.shard(), mode, vec![put], self.soon()).await.unwrap();
        assert_eq!(answers.len(), 1);
        answers[0]
    }

    pub(crate) async fn put(&self, put: Put) -> PutAnswer {
        self.put_as(PutMode::Put, put).await
    }

    /// Puts a new task.
    pub(crate) async fn create(&self, put: Put) {
        assert_eq!(self.put(put).await.result, PutResult::Created);
    }

    pub(crate) async fn cancel(&self, id: &TaskId) -> CancelAnswer {
        self.timeline.cancel(self.shard(), id, None, self.soon()).await.unwrap()
    }

    pub(crate) async fn get(&self, id: &TaskId) -> Option<StoredTask> {
        self.timeline.get(self.shard(), id).await.unwrap()
    }

    /// A claim of everything due, with a new token.
    pub(crate) fn request(&self) -> ClaimRequest {
        ClaimRequest {
            token: self.token(),
            max: 1000,
            max_bytes: 4 << 20,
            lease: LEASE,
            not_after: self.soon(),
            newest_first: false,
            after: None,
        }
    }

    /// A claim of the suspects that are due, with a new token.
    pub(crate) fn suspects(&self) -> SuspectsRequest {
        let ClaimRequest { token, max, max_bytes, lease, not_after, .. } = self.request();
        SuspectsRequest { token, max, max_bytes, lease, not_after, unreadable: false, after: None }
    }

    pub(crate) async fn claim_as(&self, request: ClaimRequest) -> Claimed {
        self.timeline.claim(self.shard(), &lane(), request).await.unwrap()
    }

    pub(crate) async fn claim_suspects_as(&self, request: SuspectsRequest) -> Claimed {
        self.timeline.claim_suspects(self.shard(), &lane(), request).await.unwrap()
    }

    /// Claims everything due.
    pub(crate) async fn claim(&self) -> (Token, Claimed) {
        let request = self.request();
        (request.token.clone(), self.claim_as(request).await)
    }

    /// Claims the suspects that are due.
    pub(crate) async fn claim_suspects(&self) -> (Token, Claimed) {
        let request = self.suspects();
        (request.token.clone(), self.claim_suspects_as(request).await)
    }

    /// Claims the one occurrence that is due.
    pub(crate) async fn claim_one(&self) -> (Token, Occurrence) {
        let (token, mut claimed) = self.claim().await;
        assert_eq!(claimed.occurrences.len(), 1, "{claimed:?}");
        (token, claimed.occurrences.remove(0))
    }

    pub(crate) async fn settle(&self, token: &Token, rest: RestOfClaim, verdicts: Vec<Settlement>) -> Settled {
        let settle =
            Settle { token: token.clone(), verdicts, rest, lease: LEASE, dead_cap: DeadCap::of(1000), quiet: false };
        self.timeline.settle(self.shard(), &lane(), settle).await.unwrap()
    }

    /// Settles one occurrence; the others stay in the claim.
    pub(crate) async fn settle_one(&self, token: &Token, occurrence: &Occurrence, verdict: Verdict) -> Settled {
        self.settle(token, RestOfClaim::Keep, vec![settlement(occurrence, verdict)]).await
    }

    pub(crate) async fn reap(&self) -> Reaped {
        let request = ReapRequest { lease: LEASE, served: true, dead_keep: DEAD_KEEP, not_after: self.now() };
        self.timeline.reap(self.shard(), &lane(), request).await.unwrap()
    }

    /// Lets the lease expire and reaps.
    pub(crate) async fn reap_after_lease(&self) -> Reaped {
        self.clock.advance(LEASE);
        self.reap().await
    }

    /// Claims everything due and lets the claim expire, `times` times.
    pub(crate) async fn crash(&self, times: u32) {
        for _ in 0..times {
            self.claim().await;
            self.reap_after_lease().await;
        }
    }

    pub(crate) async fn extend(&self, token: &Token) -> bool {
        let lives = self.timeline.extend(self.shard(), &[(lane(), token.clone())], LEASE).await.unwrap();
        assert_eq!(lives.len(), 1);
        lives[0]
    }

    /// Polls one lane.
    pub(crate) async fn glance(&self, lane: &Lane, served: bool) -> LaneGlance {
        let request =
            GlanceRequest { lanes: vec![(lane.clone(), served)], lease: LEASE, dead_keep: DEAD_KEEP, depth: true };
        self.timeline.glance(self.shard(), request).await.unwrap().lanes.remove(0)
    }

    /// All lanes that ever held a task here.
    pub(crate) async fn known(&self) -> Vec<Lane> {
        let request = GlanceRequest { lanes: Vec::new(), lease: LEASE, dead_keep: DEAD_KEEP, depth: false };
        self.timeline.glance(self.shard(), request).await.unwrap().known
    }

    /// Checks that nothing is left but the keys that a lane has while it is configured.
    pub(crate) fn assert_nothing_is_left(&self) {
        let left = self.state();
        let rest =
            Twin { lanes: left.lanes.clone(), reap_at: left.reap_at.clone(), largest: left.largest, ..Twin::default() };
        assert_eq!(left, rest);
    }

    /// Checks that a call came too late.
    pub(crate) fn assert_late<T: std::fmt::Debug>(answer: Result<T, TimelineError>) {
        assert!(matches!(answer, Err(TimelineError::Late)), "{answer:?}");
    }
}

/// The member of a task.
pub(crate) fn member(id: &TaskId) -> Member {
    Member::from(id)
}
