//! The HTTP API without an engine, over the timeline in memory and over Redis, byte by byte.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod access;
mod answers;
mod bad_input;
mod batch;
mod bulk;
mod client;
mod conditions;
mod dead;
mod document;
mod limits;
mod list;
mod long_batch;
mod malformed_http;
mod moves;
mod openapi;
mod post;
mod preview;
mod state;
mod tls;
mod tokens;
mod traces;
mod upcoming;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use punctual::clock::{Clock, ManualClock, Timestamp};
use punctual::engine::FailedAttempt;
use punctual::engine::{EngineState, Intake, LaneRequirements};
use punctual::http::server::tls::ServerTls;
use punctual::http::server::{self, ServerLimits};
use punctual::http::{Access, Api, ApiLimits, BlockingPool, BodyBudget};
use punctual::metrics::Metrics;
use punctual::task::{Lane, Limits, Namespace, Shard};
use punctual::timeline::memory::MemoryTimeline;
use punctual::timeline::redis::{RedisConfig, RedisTimeline};
use punctual::timeline::{ClaimRequest, Claimed, Link, MAX_BATCH, MAX_CLAIM_BYTES, Timeline, Token};
use punctual_sinks::SinkConfig;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::client::{Answer, Client};
use crate::support::redis::RedisServer;

/// 2026-11-21T12:00:00Z, the time of these tests.
const NOON: i64 = 1_795_262_400_000;

/// An API over a timeline of one shard, without an engine; `T` is the type of the timeline.
struct Stage<T = MemoryTimeline> {
    client: Client,
    clock: Arc<ManualClock>,
    timeline: Arc<T>,
    metrics: Arc<Metrics>,
    state: Arc<std::sync::Mutex<EngineState>>,
    /// The address for probes.
    probes: Client,
    /// The paths of the routes in the router's form.
    paths: Vec<String>,
    stop: CancellationToken,
    server: JoinHandle<bool>,
}

/// Options of a stage.
struct StageOptions {
    zone: Option<String>,
    access: Access,
    tls: Option<ServerTls>,
    api: ApiLimits,
    server: ServerLimits,
    deadline: Duration,
}

impl Stage {
    async fn start() -> Stage {
        Stage::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut StageOptions)) -> Stage {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOON)));
        let timeline = Arc::new(MemoryTimeline::new(clock.clone(), 1));
        Stage::serve(clock, timeline, change).await
    }

    /// Claims due tasks of the default lane, like an instance.
    async fn claim(&self, token: &str) -> Claimed {
        let request = ClaimRequest {
            token: Token(token.into()),
            max: MAX_BATCH,
            max_bytes: MAX_CLAIM_BYTES,
            lease: Duration::from_secs(15),
            not_after: self.clock.now().plus(Duration::from_secs(1)),
            newest_first: false,
            after: None,
        };
        self.timeline.claim(shard(), &Lane::default(), request).await.unwrap()
    }
}

impl Stage<RedisTimeline> {
    /// An API over a Redis of its own.
    async fn over(redis: &RedisServer) -> Stage<RedisTimeline> {
        Stage::over_with(redis, |_| {}).await
    }

    async fn over_with(redis: &RedisServer, change: impl FnOnce(&mut StageOptions)) -> Stage<RedisTimeline> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOON)));
        let mut config = RedisConfig::new(&redis.url(), Namespace::default(), 1);
        config.time = Some(clock.clone());
        // A slow answer of a busy machine must not count as a dead server.
        config.response_timeout = Duration::from_secs(30);
        let timeline = RedisTimeline::connect(config).unwrap();
        let mut link = timeline.link(Shard::FIRST);
        let up = link.wait_for(|link| matches!(link, Link::Up(_)));
        drop(timeout(Duration::from_secs(30), up).await.expect("a server that answers").unwrap());
        Stage::serve(clock, timeline, change).await
    }
}

impl<T: Timeline> Stage<T> {
    async fn serve(clock: Arc<ManualClock>, timeline: Arc<T>, change: impl FnOnce(&mut StageOptions)) -> Stage<T> {
        let mut terms = StageOptions {
            zone: None,
            access: Access::default(),
            tls: None,
            api: ApiLimits {
                body: 1 << 20,
                bodies: 64 << 20,
                body_timeout: Duration::from_secs(20),
                timeline_timeout: Duration::from_secs(5),
                task: Limits::default(),
            },
            server: ServerLimits {
                header_timeout: Duration::from_secs(20),
                write_timeout: Duration::from_secs(20),
                connections: 100,
            },
            deadline: Duration::from_secs(20),
        };
        change(&mut terms);
        let rules = [("default", false), ("alerts", true)].map(|(lane, destination_required)| {
            let sink = SinkConfig::parse("nats://127.0.0.1:1").unwrap().build().unwrap();
            let sink = destination_required.then_some(sink);
            (lane.parse().unwrap(), LaneRequirements { destination_required, sink, destination: None })
        });
        let metrics = Arc::new(Metrics::new("0", "i0"));
        let state = EngineState::new(Link::Up(1));
        let state = Arc::new(std::sync::Mutex::new(state));
        let (shown, pauses) = (Arc::clone(&state), Arc::clone(&state));
        let api = Arc::new(Api {
            intake: Intake::new(timeline.clone(), BTreeMap::from(rules)),
            engine: Box::new(move || shown.lock().unwrap().clone()),
            failed_attempt: Box::new(|id| {
                let (destination, detail) = ("orders".to_owned(), "no such topic".to_owned());
                (id.as_str() == "failing").then_some(FailedAttempt { destination, attempts: 3, detail })
            }),
            is_lane_paused: Box::new(move |lane| {
                let state = pauses.lock().unwrap();
                state.lanes.iter().any(|state| state.lane == *lane && state.pause.is_some())
            }),
            is_sink_unavailable: Box::new(move |lane| lane.as_str() == "alerts"),
            doors: Box::new(Vec::new),
            access: terms.access,
            metrics: Arc::clone(&metrics),
            limits: terms.api,
            zone: terms.zone,
            instance: "i0".into(),
            bodies: BodyBudget::new(terms.api.bodies),
            blocking: BlockingPool::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client(listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let router = api.router();
        let paths = access::paths(&format!("{router:?}"));
        let probe_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let probes = Client(probe_listener.local_addr().unwrap());
        let limits = ServerLimits { connections: 10, ..terms.server };
        tokio::spawn(server::serve(
            probe_listener,
            None,
            api.probe_router(api.access.clone()),
            limits,
            stop.clone(),
            terms.deadline,
        ));
        let serving = server::serve(listener, terms.tls, router, terms.server, stop.clone(), terms.deadline);
        Stage { client, clock, timeline, metrics, state, probes, paths, stop, server: tokio::spawn(serving) }
    }

    async fn end(self) -> bool {
        self.stop.cancel();
        self.server.await.unwrap()
    }
}

impl<T> Deref for Stage<T> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

fn shard() -> Shard {
    Shard::all(1).next().unwrap()
}
