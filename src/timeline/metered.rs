//! A timeline that counts and times the calls of another one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::{
    BrowseRequest, Browsed, CancelAnswer, ClaimRequest, Claimed, Dead, Glance, GlanceRequest, Held, Link, Put,
    PutAnswer, PutMode, ReapRequest, Reaped, RequeueAnswer, Settle, Settled, SuspectsRequest, Timeline, TimelineError,
    Token, Wake,
};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metrics;
use crate::task::{Key, Lane, Shard, TaskId};

/// A timeline whose calls are counted, by verb and result, and timed.
pub struct Metered {
    inner: Arc<dyn Timeline>,
    metrics: Arc<Metrics>,
}

impl Metered {
    /// Counts the calls of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Timeline>, metrics: Arc<Metrics>) -> Metered {
        Metered { inner, metrics }
    }

    async fn count<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, TimelineError>>,
    ) -> Result<T, TimelineError> {
        let begun = Instant::now();
        let answer = call.await;
        let result = match &answer {
            Ok(_) => "ok",
            Err(TimelineError::Late) => "late",
            Err(TimelineError::Refused(_)) => "refused",
            Err(TimelineError::Moving) => "moving",
            Err(TimelineError::Away(_)) => "away",
            Err(TimelineError::Unknown(_)) => "unknown",
            Err(TimelineError::Unkept(_)) => "unkept",
            Err(TimelineError::Broken(_)) => "broken",
        };
        self.metrics.timeline_call(verb, result, begun.elapsed().as_secs_f64());
        answer
    }
}

#[async_trait]
impl Timeline for Metered {
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn shards(&self) -> u16 {
        self.inner.shards()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.inner.link()
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakes()
    }

    async fn put(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: Vec<Put>,
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError> {
        self.count("put", self.inner.put(shard, mode, puts, not_after)).await
    }

    async fn cancel(&self, shard: Shard, id: &TaskId, not_after: Timestamp) -> Result<CancelAnswer, TimelineError> {
        self.count("cancel", self.inner.cancel(shard, id, not_after)).await
    }

    async fn get(&self, shard: Shard, id: &TaskId) -> Result<Option<Held>, TimelineError> {
        self.count("get", self.inner.get(shard, id)).await
    }

    async fn claim(&self, shard: Shard, lane: &Lane, request: ClaimRequest) -> Result<Claimed, TimelineError> {
        self.count("claim", self.inner.claim(shard, lane, request)).await
    }

    async fn claim_suspects(
        &self,
        shard: Shard,
        lane: &Lane,
        request: SuspectsRequest,
    ) -> Result<Claimed, TimelineError> {
        self.count("claim_suspects", self.inner.claim_suspects(shard, lane, request)).await
    }

    async fn settle(&self, shard: Shard, lane: &Lane, settle: Settle) -> Result<Settled, TimelineError> {
        self.count("settle", self.inner.settle(shard, lane, settle)).await
    }

    async fn extend(
        &self,
        shard: Shard,
        tokens: &[(Lane, Token)],
        lease: Duration,
    ) -> Result<Vec<bool>, TimelineError> {
        self.count("extend", self.inner.extend(shard, tokens, lease)).await
    }

    async fn reap(&self, shard: Shard, lane: &Lane, request: ReapRequest) -> Result<Reaped, TimelineError> {
        self.count("reap", self.inner.reap(shard, lane, request)).await
    }

    async fn glance(&self, shard: Shard, request: GlanceRequest) -> Result<Glance, TimelineError> {
        self.count("glance", self.inner.glance(shard, request)).await
    }

    async fn requeue(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError> {
        self.count("requeue", self.inner.requeue(shard, key, buried, not_after)).await
    }

    async fn discard(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError> {
        self.count("discard", self.inner.discard(shard, key, buried, not_after)).await
    }

    async fn browse(&self, shard: Shard, request: BrowseRequest) -> Result<Browsed, TimelineError> {
        self.count("browse", self.inner.browse(shard, request)).await
    }

    async fn show(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError> {
        self.count("show", self.inner.show(shard, key)).await
    }
}
