//! The timeline in Redis: implements [`Timeline`] with the scripts in `lua/`. No other code in `src/` uses the redis
//! crate.
//!
//! [`RedisTimeline`] keeps two connections to each server and renews them (`link.rs`). Unless `redis.durability` is
//! `memory`, a third one confirms writes (`wait_connection.rs`). Usually there is one server; in a cluster, `nodes.rs`
//! learns which of them has a shard, and `routes.rs` tells each call where to go.
//!
//! Every verb calls its script (`call.rs`). A call is sent again if Redis reports that nothing was written. A call for
//! a user is also sent again if its connection ends before the reply; a trigger is not. The rules of the verbs are in
//! the scripts; `lua/README.md` explains them.

mod call;
mod check;
mod check_cluster;
mod cluster;
mod config;
mod connector;
mod dead;
mod durable;
mod expiry;
mod layout;
mod link;
mod moves;
mod node;
mod nodes;
mod pauses;
mod put;
mod redirects;
mod reply;
mod request;
mod rights;
mod routed_clock;
mod routes;
mod scan;
mod server;
mod session;
mod settle;
mod time;
mod verbs;
mod wait_connection;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

pub use self::check::{ServerCheck, ServerCheckError, check_server};
use self::config::access;
pub use self::config::{NOT_SET_UP, RedisConfig, RedisError};
use self::connector::Connector;
use self::dead::{Discard, Requeue, Show};
pub use self::durable::Durability;
use self::layout::{LastKnown, Layout};
use self::moves::MoveDue;
use self::nodes::Nodes;
use self::pauses::{PauseLane, PauseTask};
use self::routed_clock::RoutedClock;
use self::routes::Slot;
pub use self::server::{Advice, ServerState};
use self::settle::SettleCall;
use self::time::Time;
use self::verbs::{Cancel, Extend, Get};
use super::calls::{Calls, Verb};
use super::keys::{self, Keys};
use super::{
    BrowseRequest, Browsed, CancelAnswer, ClaimRequest, Claimed, CountRequest, Dead, Glance, GlanceRequest, LaneCounts,
    LanePauseAnswer, LanePauseRequest, Link, MAX_BATCH, MoveAnswer, MoveRequest, Put, PutAnswer, PutMode, ReapRequest,
    Reaped, RequeueAnswer, ScanRequest, Scanned, Settle, Settled, StoredTask, SuspectsRequest, TaskPauseAnswer,
    TaskPauseRequest, TaskRevision, Timeline, TimelineError, Token, Upcoming, UpcomingRequest, Wake,
};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metrics;
use crate::task::{Key, Lane, Shard, TaskId};

/// Maximum number of lanes that are passed to verbs that name only a task. A task in another lane costs a second call.
const MAX_LANES_REMEMBERED: usize = 32;

/// The pause before Redis is asked again for its settings.
const ADVICE_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The timeline in Redis. Dropping it closes its connections.
pub struct RedisTimeline {
    nodes: Arc<Nodes>,
    shards: u16,
    keys: Vec<Keys>,
    beat_channel: String,
    /// The clock of each slot.
    clocks: Vec<Arc<dyn Clock>>,
    /// The time argument of all scripts.
    time: Time,
    durability: Durability,
    response_timeout: Duration,
    lanes: Mutex<Vec<Lane>>,
    calls: Arc<Calls>,
    last_known: Arc<LastKnown>,
    layout: Layout,
}

impl RedisTimeline {
    /// Starts to connect and returns at once, even if Redis is unreachable. [`link`](Timeline::link) tells when the
    /// connection is up. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// If the URL cannot be parsed.
    pub fn connect(config: RedisConfig) -> Result<Arc<RedisTimeline>, RedisError> {
        let access = access(&config)?;
        let calls = Arc::new(Calls::default());
        let time = match &config.time {
            Some(clock) => Time::Given(clock.clone()),
            None => Time::of_server(Arc::clone(&calls)),
        };
        let keys: Vec<Keys> = Shard::all(config.shards).map(|shard| Keys::new(&config.namespace, shard)).collect();
        let last_known = Arc::new(LastKnown::default());
        let layout = Layout::new(
            &access.address(),
            &config.namespace,
            &keys,
            Arc::clone(&last_known),
            Arc::clone(&calls),
            config.response_timeout,
        );
        let connector = Connector::new(access, &config, &keys, layout.clone());
        let nodes = Nodes::open(connector, time.clone(), Arc::clone(&calls), config.shards);
        Ok(Arc::new(RedisTimeline {
            clocks: nodes.routes.all().map(|slot| RoutedClock::of(&nodes, slot)).collect(),
            nodes,
            shards: config.shards,
            keys,
            beat_channel: keys::beats(&config.namespace),
            time,
            durability: config.durability,
            response_timeout: config.response_timeout,
            lanes: Mutex::new(vec![Lane::default()]),
            calls,
            last_known,
            layout,
        }))
    }

    /// The result of the first attempt to connect.
    pub async fn first_attempt(&self) -> Link {
        self.nodes.routes.first_attempt(self.nodes.is_cluster()).await
    }

    /// Waits until all shards are reachable.
    pub async fn all_up(&self) {
        for shard in Shard::all(self.shards) {
            // An error means that the timeline ends.
            self.link(shard).wait_for(|link| matches!(link, Link::Up(_))).await.ok();
        }
    }

    /// Why a shard is not reachable; `None` if all are.
    pub fn away(&self) -> Option<String> {
        Shard::all(self.shards).find_map(|shard| match &*self.link(shard).borrow() {
            Link::Up(_) => None,
            Link::Down(detail) => Some(detail.clone()),
        })
    }

    /// Waits until Redis has been checked: its layout and its ability to confirm writes. Waits as long as Redis is
    /// unreachable.
    ///
    /// # Errors
    /// [`RedisError::Layout`] with both layouts, [`RedisError::Durability`], [`RedisError::Cluster`],
    /// [`RedisError::NoCluster`], [`RedisError::Unfit`].
    pub async fn check_layout(&self) -> Result<(), RedisError> {
        let mut layout = self.layout.result();
        match layout.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Waits until all shards are reachable, and returns an advice for each setting that is dangerous for a timeline. A
    /// server that does not report its settings has one advice that says so.
    pub async fn advice(&self) -> Vec<Advice> {
        loop {
            self.all_up().await;
            if let Ok(advice) = self.nodes.advice(self.durability, self.response_timeout).await {
                return advice;
            }
            tokio::time::sleep(ADVICE_RETRY_PAUSE).await;
        }
    }

    /// Returns once a check of Redis has failed for good. The errors are those of
    /// [`check_layout`](Self::check_layout).
    pub async fn refused(&self) -> RedisError {
        let mut layout = self.layout.result();
        let refused = layout.wait_for(|check| matches!(check, Some(Err(_)))).await.ok().and_then(|check| check.clone());
        match refused {
            Some(Err(error)) => error,
            _ => std::future::pending().await,
        }
    }

    fn keys(&self, shard: Shard) -> Result<&Keys, TimelineError> {
        let keys = self.keys.get(usize::from(shard.number()));
        keys.ok_or_else(|| TimelineError::Broken(format!("there is no shard {shard} among {}", self.shards)))
    }

    /// The lanes that are passed with a call that names only a task.
    fn known_lanes(&self) -> Vec<Lane> {
        self.lanes.lock().clone()
    }

    fn remember(&self, lane: &Lane) {
        let mut lanes = self.lanes.lock();
        if lanes.len() < MAX_LANES_REMEMBERED && !lanes.contains(lane) {
            lanes.push(lane.clone());
        }
    }
}

impl Drop for RedisTimeline {
    fn drop(&mut self) {
        self.nodes.close();
    }
}

#[async_trait]
impl Timeline for RedisTimeline {
    fn clock(&self, shard: Shard) -> Arc<dyn Clock> {
        let slot = self.clocks.get(usize::from(shard.number()));
        slot.map_or_else(|| self.any_clock(), Arc::clone)
    }

    fn any_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clocks[self.nodes.routes.any().number()])
    }

    fn shards(&self) -> u16 {
        self.shards
    }

    fn link(&self, shard: Shard) -> watch::Receiver<Link> {
        self.nodes.routes.link(Slot::of(shard))
    }

    fn node(&self, shard: Shard) -> Option<u64> {
        let node = self.nodes.is_cluster().then(|| self.nodes.routes.node(Slot::of(shard)))?;
        node.map(|node| node.number)
    }

    fn lost_for(&self) -> Option<Duration> {
        self.last_known.lost_for()
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.nodes.wakes.subscribe()
    }

    async fn send_beat(&self, beat: String) -> Result<(), TimelineError> {
        let routes = &self.nodes.routes;
        let session = routes.session(routes.any()).map_err(TimelineError::Unavailable)?;
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.beat_channel).arg(beat);
        let sent = session.ask(&publish, self.response_timeout, None).await;
        sent.map(drop).map_err(|failure| TimelineError::Unavailable(failure.to_string()))
    }

    fn beats(&self) -> broadcast::Receiver<Arc<str>> {
        self.nodes.beats.subscribe()
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
        self.calls.count(Verb::Put, self.put_durably(shard, mode, &puts, not_after)).await
    }

    async fn cancel(
        &self,
        shard: Shard,
        id: &TaskId,
        revision: Option<TaskRevision>,
        not_after: Timestamp,
    ) -> Result<CancelAnswer, TimelineError> {
        let cancel = Cancel { id, revision, not_after };
        self.calls.count(Verb::Cancel, self.durably(shard, not_after, self.run_in_its_lane(shard, &cancel))).await
    }

    async fn get(&self, shard: Shard, id: &TaskId) -> Result<Option<StoredTask>, TimelineError> {
        self.calls.count(Verb::Get, self.run_in_its_lane(shard, &Get { id })).await
    }

    async fn claim(&self, shard: Shard, lane: &Lane, request: ClaimRequest) -> Result<Claimed, TimelineError> {
        let claimed = self.calls.count(Verb::Claim, self.run(shard, from_ref(lane), &request)).await;
        if claimed.is_ok() {
            self.remember(lane);
        }
        claimed
    }

    async fn claim_suspects(
        &self,
        shard: Shard,
        lane: &Lane,
        request: SuspectsRequest,
    ) -> Result<Claimed, TimelineError> {
        let claimed = self.calls.count(Verb::ClaimSuspects, self.run(shard, from_ref(lane), &request)).await;
        if claimed.is_ok() {
            self.remember(lane);
        }
        claimed
    }

    async fn settle(&self, shard: Shard, lane: &Lane, settle: Settle) -> Result<Settled, TimelineError> {
        let settled = async { self.run(shard, from_ref(lane), &SettleCall::new(&settle)?).await };
        self.calls.count(Verb::Settle, settled).await
    }

    async fn extend(
        &self,
        shard: Shard,
        tokens: &[(Lane, Token)],
        lease: Duration,
    ) -> Result<Vec<bool>, TimelineError> {
        let extended = async {
            let mut live = Vec::with_capacity(tokens.len());
            for tokens in tokens.chunks(MAX_BATCH) {
                let extend = Extend { tokens, lease };
                live.extend(self.run(shard, &extend.lanes(), &extend).await?);
            }
            Ok(live)
        };
        self.calls.count(Verb::Extend, extended).await
    }

    async fn reap(&self, shard: Shard, lane: &Lane, request: ReapRequest) -> Result<Reaped, TimelineError> {
        self.calls.count(Verb::Reap, self.run(shard, from_ref(lane), &request)).await
    }

    async fn glance(&self, shard: Shard, request: GlanceRequest) -> Result<Glance, TimelineError> {
        let lanes: Vec<Lane> = request.lanes.iter().map(|(lane, _)| lane.clone()).collect();
        let glance = self.calls.count(Verb::Glance, self.run(shard, &lanes, &request)).await?;
        glance.known.iter().for_each(|lane| self.remember(lane));
        self.last_known.note(shard, &request, &glance);
        Ok(glance)
    }

    async fn requeue(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError> {
        let requeue = Requeue { key, died, not_after };
        self.calls.count(Verb::Requeue, self.durably(shard, not_after, self.run_in_its_lane(shard, &requeue))).await
    }

    async fn discard(
        &self,
        shard: Shard,
        key: &Key,
        died: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError> {
        let discard = Discard { key, died, not_after };
        self.calls.count(Verb::Discard, self.durably(shard, not_after, self.run(shard, &[], &discard))).await
    }

    async fn browse(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError> {
        self.calls.count(Verb::Browse, self.run(shard, &[], &request)).await
    }

    async fn scan(&self, shard: Shard, lane: &Lane, request: ScanRequest) -> Result<Scanned, TimelineError> {
        let scanned = async {
            let process = self.process(shard).await?;
            let scanned = self.run(shard, from_ref(lane), &request).await?;
            // Otherwise the reply may come from the process after it.
            match self.process(shard).await? == process {
                true => Ok(Scanned { process, ..scanned }),
                false => Err(TimelineError::Unavailable("the connection was replaced".to_owned())),
            }
        };
        self.calls.count(Verb::Scan, scanned).await
    }

    async fn upcoming(&self, shard: Shard, lane: &Lane, request: UpcomingRequest) -> Result<Upcoming, TimelineError> {
        self.calls.count(Verb::Upcoming, self.run(shard, from_ref(lane), &request)).await
    }

    async fn count(&self, shard: Shard, lane: &Lane, request: CountRequest) -> Result<LaneCounts, TimelineError> {
        self.calls.count(Verb::Count, self.run(shard, from_ref(lane), &request)).await
    }

    async fn pause(
        &self,
        shard: Shard,
        id: &TaskId,
        request: TaskPauseRequest,
        not_after: Timestamp,
    ) -> Result<TaskPauseAnswer, TimelineError> {
        let paused = async {
            let exists = async { Ok(self.run_in_its_lane(shard, &Get { id }).await?.is_some()) };
            if matches!(request, TaskPauseRequest::Pause(_)) && !self.allow_pauses(exists).await? {
                let is_late = self.clock(shard).now() > not_after;
                return if is_late { Err(TimelineError::Late) } else { Ok(TaskPauseAnswer::Unknown) };
            }
            let call = PauseTask { id, request: &request, not_after };
            self.durably(shard, not_after, self.run_in_its_lane(shard, &call)).await
        };
        self.calls.count(Verb::Pause, paused).await
    }

    async fn move_due(
        &self,
        shard: Shard,
        id: &TaskId,
        request: MoveRequest,
        not_after: Timestamp,
    ) -> Result<MoveAnswer, TimelineError> {
        let call = MoveDue { id, request: &request, not_after };
        self.calls.count(Verb::MoveDue, self.durably(shard, not_after, self.run_in_its_lane(shard, &call))).await
    }

    async fn pause_lane(
        &self,
        shard: Shard,
        lane: &Lane,
        request: LanePauseRequest,
        not_after: Timestamp,
    ) -> Result<LanePauseAnswer, TimelineError> {
        let paused = async {
            if matches!(request, LanePauseRequest::Pause { .. }) {
                self.allow_pauses(async { Ok(true) }).await?;
            }
            let call = PauseLane { request: &request, not_after };
            self.durably(shard, not_after, self.run(shard, from_ref(lane), &call)).await
        };
        self.calls.count(Verb::PauseLane, paused).await
    }

    async fn show(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError> {
        self.calls.count(Verb::Show, self.run(shard, &[], &Show { key })).await
    }
}
