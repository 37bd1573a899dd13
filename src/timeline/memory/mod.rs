//! The timeline without Redis. It follows the same rules in the memory of this process and is lost with it.
//!
//! [`Twin`] is the state of one shard as a plain value. [`MemoryTimeline`] implements [`Timeline`] with several of them
//! and can inject faults. It serves tests, programs that embed punctual, and a first try without Redis.

mod claim;
mod dead;
mod moves;
mod pauses;
mod put;
mod reap;
mod scan;
mod settle;
pub mod twin;
mod zset;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

pub use twin::{AnswerWithWakes, Change, Claim, OccurrenceMark, ReapAt, Twin};
pub use zset::Zset;

use super::calls::{Calls, Verb};
use super::{
    BrowseRequest, Browsed, CancelAnswer, ClaimRequest, Claimed, CountRequest, Dead, Glance, GlanceRequest, LaneCounts,
    LanePauseAnswer, LanePauseRequest, Link, MoveAnswer, MoveRequest, Put, PutAnswer, PutMode, ReapRequest, Reaped,
    RequeueAnswer, ScanRequest, Scanned, Settle, Settled, StoredTask, SuspectsRequest, TaskPauseAnswer,
    TaskPauseRequest, TaskRevision, Timeline, TimelineError, Token, Upcoming, UpcomingRequest, Wake,
};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metrics;
use crate::task::{Key, Lane, Shard, TaskId};

/// How many wake-ups, or beats, a slow receiver may fall behind before it misses some.
const MAX_MESSAGES_KEPT: usize = 1024;

/// A timeline in the memory of this process.
pub struct MemoryTimeline {
    clock: Arc<dyn Clock>,
    shards: Mutex<Vec<Twin>>,
    link: watch::Sender<Link>,
    /// Number of times the link came up.
    ups: AtomicU64,
    wakes: broadcast::Sender<Wake>,
    /// For each receiver of beats, in the order in which they began.
    beats: Mutex<Vec<broadcast::Sender<Arc<str>>>>,
    receives: Mutex<BeatFilter>,
    /// Number of servers that share the shards, the first of which does not answer; 0 while one server has all.
    servers: AtomicU64,
    faults: Mutex<VecDeque<(Verb, InjectedFault)>>,
    calls: Calls,
}

/// Whether the receiver with this number, counted from 0, receives a beat.
type BeatFilter = Box<dyn Fn(usize, &str) -> bool + Send>;

/// A fault of one call, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// No fault. The next fault in the list meets the next call.
    Nothing,
    /// The call takes effect, but its reply is lost.
    ReplyLost,
    /// The call is lost before it takes effect. The caller cannot tell this from a lost reply.
    CallLost,
    /// The timeline refuses the call with this error text.
    Refused(String),
    /// The task is in another lane at each attempt.
    LaneChanged,
}

impl MemoryTimeline {
    /// An empty timeline with `shards` shards (at least 1) that uses `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, shards: u16) -> MemoryTimeline {
        MemoryTimeline {
            clock,
            shards: Mutex::new(vec![Twin::default(); usize::from(shards.max(1))]),
            link: watch::Sender::new(Link::Up(1)),
            ups: AtomicU64::new(1),
            wakes: broadcast::Sender::new(MAX_MESSAGES_KEPT),
            beats: Mutex::default(),
            receives: Mutex::new(Box::new(|_, _| true)),
            servers: AtomicU64::new(0),
            faults: Mutex::default(),
            calls: Calls::default(),
        }
    }

    /// Lets every verb fail with [`TimelineError::Unavailable`] from now on, for tests.
    pub fn set_link_down(&self, detail: &str) {
        self.link.send_replace(Link::Down(detail.to_owned()));
    }

    /// Ends the effect of [`set_link_down`](Self::set_link_down).
    pub fn set_link_up(&self) {
        self.link.send_replace(Link::Up(self.ups.fetch_add(1, Ordering::Relaxed) + 1));
    }

    /// Loses the beats for which `receives` is false from now on, for tests. It is given the number of the receiver,
    /// which counts the calls of [`beats`](Timeline::beats) from 0, and the beat.
    pub fn filter_beats(&self, receives: impl Fn(usize, &str) -> bool + Send + 'static) {
        *self.receives.lock() = Box::new(receives);
    }

    /// Spreads the shards over this many servers, the first of which does not answer, for tests.
    pub fn silence_first_of(&self, servers: u64) {
        self.servers.store(servers, Ordering::Relaxed);
    }

    /// The next call of `verb` meets `fault`, for tests. Several faults meet the calls in the order they were set.
    ///
    /// The caller of a lost call or reply gets its error once `not_after` has passed.
    pub fn fail_next(&self, verb: Verb, fault: InjectedFault) {
        self.faults.lock().push_back((verb, fault));
    }

    /// A copy of the state of a shard.
    #[must_use]
    pub fn twin(&self, shard: Shard) -> Twin {
        self.shards.lock()[usize::from(shard.number())].clone()
    }

    /// Changes the state of a shard directly, for tests.
    pub fn edit(&self, shard: Shard, change: impl FnOnce(&mut Twin)) {
        change(&mut self.shards.lock()[usize::from(shard.number())]);
    }

    /// Runs one verb: changes the state and sends the wake-ups in one step, unless a fault is injected.
    async fn step<T>(
        &self,
        verb: Verb,
        shard: Shard,
        not_after: Option<Timestamp>,
        step: impl FnOnce(&mut Twin, Timestamp) -> Result<AnswerWithWakes<T>, TimelineError> + Send,
    ) -> Result<T, TimelineError> {
        let call = async {
            if let Link::Down(detail) = &*self.link.borrow() {
                return Err(TimelineError::Unavailable(detail.clone()));
            }
            let silent = || (self.node(shard) == Some(0)).then_some(InjectedFault::CallLost);
            let fault = self.fault(verb).or_else(silent).filter(|fault| *fault != InjectedFault::Nothing);
            match fault {
                Some(InjectedFault::Refused(detail)) => return Err(TimelineError::Refused(detail)),
                Some(InjectedFault::LaneChanged) => return Err(TimelineError::LaneChanged),
                _ => {}
            }
            let answer = (fault != Some(InjectedFault::CallLost)).then(|| self.run(shard, step));
            match (fault, answer) {
                (None, Some(answer)) => answer,
                _ => {
                    if let Some(not_after) = not_after {
                        self.clock.sleep_until(not_after.plus(Duration::from_millis(1))).await;
                    }
                    Err(TimelineError::Unknown("the reply was lost".into()))
                }
            }
        };
        self.calls.count(verb, call).await
    }

    fn run<T>(
        &self,
        shard: Shard,
        step: impl FnOnce(&mut Twin, Timestamp) -> Result<AnswerWithWakes<T>, TimelineError>,
    ) -> Result<T, TimelineError> {
        let mut shards = self.shards.lock();
        let Some(twin) = shards.get_mut(usize::from(shard.number())) else {
            return Err(TimelineError::Broken(format!("there is no shard {shard}")));
        };
        let done = step(twin, self.clock.now())?;
        for (lane, due) in done.wakes {
            // An error means that there is no receiver.
            let _nobody = self.wakes.send(Wake { shard, lane, due });
        }
        Ok(done.answer)
    }

    fn fault(&self, verb: Verb) -> Option<InjectedFault> {
        let mut faults = self.faults.lock();
        let at = faults.iter().position(|(of, _)| *of == verb)?;
        faults.remove(at).map(|(_, fault)| fault)
    }
}

#[async_trait]
impl Timeline for MemoryTimeline {
    fn clock(&self, _: Shard) -> Arc<dyn Clock> {
        self.any_clock()
    }

    fn any_clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn shards(&self) -> u16 {
        u16::try_from(self.shards.lock().len()).unwrap_or(u16::MAX)
    }

    fn link(&self, _: Shard) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn node(&self, shard: Shard) -> Option<u64> {
        u64::from(shard.number()).checked_rem(self.servers.load(Ordering::Relaxed))
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.wakes.subscribe()
    }

    async fn send_beat(&self, beat: String) -> Result<(), TimelineError> {
        if let Link::Down(detail) = &*self.link.borrow() {
            return Err(TimelineError::Unavailable(detail.clone()));
        }
        let (beat, receives) = (Arc::from(beat), self.receives.lock());
        for (_, receiver) in self.beats.lock().iter().enumerate().filter(|(number, _)| receives(*number, &beat)) {
            // An error means that this receiver has gone.
            drop(receiver.send(Arc::clone(&beat)));
        }
        Ok(())
    }

    fn beats(&self) -> broadcast::Receiver<Arc<str>> {
        let (sender, receiver) = broadcast::channel(MAX_MESSAGES_KEPT);
        self.beats.lock().push(sender);
        receiver
    }

    fn count_calls(&self, metrics: Arc<Metrics>) {
        self.calls.count_in(metrics);
    }

    async fn put(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: Vec<Put>,
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError> {
        self.step(Verb::Put, shard, Some(not_after), |twin, now| twin.put(now, mode, &puts, not_after)).await
    }

    async fn cancel(
        &self,
        shard: Shard,
        id: &TaskId,
        revision: Option<TaskRevision>,
        not_after: Timestamp,
    ) -> Result<CancelAnswer, TimelineError> {
        self.step(Verb::Cancel, shard, Some(not_after), |twin, now| twin.cancel(now, id, revision, not_after)).await
    }

    async fn get(&self, shard: Shard, id: &TaskId) -> Result<Option<StoredTask>, TimelineError> {
        self.step(Verb::Get, shard, None, |twin, _| Ok(AnswerWithWakes::quietly(twin.get(id)))).await
    }

    async fn claim(&self, shard: Shard, lane: &Lane, request: ClaimRequest) -> Result<Claimed, TimelineError> {
        let not_after = Some(request.not_after);
        self.step(Verb::Claim, shard, not_after, |twin, now| twin.claim(now, lane, &request)).await
    }

    async fn claim_suspects(
        &self,
        shard: Shard,
        lane: &Lane,
        request: SuspectsRequest,
    ) -> Result<Claimed, TimelineError> {
        let not_after = Some(request.not_after);
        self.step(Verb::ClaimSuspects, shard, not_after, |twin, now| twin.claim_suspects(now, lane, &request)).await
    }

    async fn settle(&self, shard: Shard, lane: &Lane, settle: Settle) -> Result<Settled, TimelineError> {
        self.step(Verb::Settle, shard, None, |twin, now| twin.settle(now, lane, &settle)).await
    }

    async fn extend(
        &self,
        shard: Shard,
        tokens: &[(Lane, Token)],
        lease: Duration,
    ) -> Result<Vec<bool>, TimelineError> {
        self.step(Verb::Extend, shard, None, |twin, now| Ok(AnswerWithWakes::quietly(twin.extend(now, tokens, lease))))
            .await
    }

    async fn reap(&self, shard: Shard, lane: &Lane, request: ReapRequest) -> Result<Reaped, TimelineError> {
        let not_after = Some(request.not_after);
        self.step(Verb::Reap, shard, not_after, |twin, now| twin.reap(now, lane, &request)).await
    }

    async fn glance(&self, shard: Shard, request: GlanceRequest) -> Result<Glance, TimelineError> {
        self.step(Verb::Glance, shard, None, |twin, now| Ok(AnswerWithWakes::quietly(twin.glance(now, &request)))).await
    }

    async fn requeue(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError> {
        self.step(Verb::Requeue, shard, Some(not_after), |twin, now| twin.requeue(now, key, died, not_after)).await
    }

    async fn discard(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError> {
        self.step(Verb::Discard, shard, Some(not_after), |twin, now| twin.discard(now, key, died, not_after)).await
    }

    async fn browse(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError> {
        self.step(Verb::Browse, shard, None, |twin, _| Ok(AnswerWithWakes::quietly(twin.browse(&request)))).await
    }

    async fn scan(&self, shard: Shard, lane: &Lane, request: ScanRequest) -> Result<Scanned, TimelineError> {
        self.step(Verb::Scan, shard, None, |twin, now| Ok(AnswerWithWakes::quietly(twin.scan(now, lane, &request))))
            .await
    }

    async fn upcoming(&self, shard: Shard, lane: &Lane, request: UpcomingRequest) -> Result<Upcoming, TimelineError> {
        self.step(Verb::Upcoming, shard, None, |twin, _| Ok(AnswerWithWakes::quietly(twin.upcoming(lane, &request))))
            .await
    }

    async fn count(&self, shard: Shard, lane: &Lane, request: CountRequest) -> Result<LaneCounts, TimelineError> {
        self.step(Verb::Count, shard, None, |twin, now| Ok(AnswerWithWakes::quietly(twin.count(now, lane, &request))))
            .await
    }

    async fn pause(
        &self,
        shard: Shard,
        id: &TaskId,
        request: TaskPauseRequest,
        not_after: Timestamp,
    ) -> Result<TaskPauseAnswer, TimelineError> {
        let step = |twin: &mut Twin, now| twin.pause(now, id, &request, not_after);
        self.step(Verb::Pause, shard, Some(not_after), step).await
    }

    async fn move_due(
        &self,
        shard: Shard,
        id: &TaskId,
        request: MoveRequest,
        not_after: Timestamp,
    ) -> Result<MoveAnswer, TimelineError> {
        let step = |twin: &mut Twin, now| twin.move_due(now, id, &request, not_after);
        self.step(Verb::MoveDue, shard, Some(not_after), step).await
    }

    async fn pause_lane(
        &self,
        shard: Shard,
        lane: &Lane,
        request: LanePauseRequest,
        not_after: Timestamp,
    ) -> Result<LanePauseAnswer, TimelineError> {
        let step = |twin: &mut Twin, now| twin.pause_lane(now, lane, &request, not_after);
        self.step(Verb::PauseLane, shard, Some(not_after), step).await
    }

    async fn show(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError> {
        self.step(Verb::Show, shard, None, |twin, _| Ok(AnswerWithWakes::quietly(twin.show(key)))).await
    }
}
