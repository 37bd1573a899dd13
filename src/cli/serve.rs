//! `punctual serve`: the one place that puts timeline, sinks, engine and API together.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use punctual_sinks::{Password, Tls};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::descriptors;
use super::parts::Parts;
use super::program::{Failure, Signals, runtime};
use crate::clock::LocalClock;
use crate::config::{Config, ConfigError, Sources};
use crate::doors::Doors;
use crate::engine::{Engine, EngineConfig, Intake};
use crate::http::server::ServerLimits;
use crate::http::{Access, Api, BlockingPool, BodyBudget, server};
use crate::metrics::Metrics;
use crate::timeline::memory::MemoryTimeline;
use crate::timeline::redis::{Advice, RedisConfig, RedisError, RedisTimeline};
use crate::timeline::{Link, Timeline};

/// Maximum number of connections of the address for probes.
const MAX_PROBES: usize = 64;

/// How long an interactive command waits for Redis.
const REDIS_TIMEOUT: Duration = Duration::from_secs(5);

/// A running instance.
pub struct Instance {
    /// The address of its API.
    pub address: SocketAddr,
    /// The write API.
    pub intake: Intake,
    /// The instance id, the part of a claim token before the first dot.
    pub id: String,
    engine: Arc<Engine>,
    doors: Doors,
    stop: CancellationToken,
    server: JoinHandle<bool>,
}

/// Runs until SIGINT or SIGTERM; a second signal ends it at once.
pub(super) fn run(sources: Sources) -> Result<(), Failure> {
    let runtime = runtime()?;
    // Sinks may need the runtime to be built.
    let inside = runtime.enter();
    let (config, parts) = Config::load_and(sources, Parts::build)?;
    drop(inside);
    let config = &config;
    crate::telemetry::start(&config.log.filter, config.log.json).map_err(|detail| Failure::usage(anyhow!(detail)))?;
    config
        .warnings
        .iter()
        .chain(&parts.warnings)
        .for_each(|warning| warn!(detail = %warning.to_string().replace('\n', ";"), "check the configuration"));
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        if config.redis.scheme() == "memory" {
            warn!("tasks are kept in memory and are lost when this process ends");
        }
        // Redis may be unreachable for long; the API answers in the meantime.
        let opened = open_timeline(config, &parts.tls)?;
        let instance = Instance::start(config, Arc::clone(&opened.timeline), parts).await?;
        let (advice, refused) = (tell(config, opened.redis.clone()), opened.refused());
        let ended = tokio::select! {
            // Signals first, before anything is logged about Redis.
            biased;
            signal = signals.next() => {
                info!(signal, "signal received; finishing current requests and publishes");
                Ok(())
            }
            // This may come late, if Redis was unreachable at the start.
            error = refused => Err(refusal(config, error)),
            never = advice => match never {},
        };
        tokio::select! {
            () = instance.stop(config.shutdown) => ended,
            signal = signals.next() => Err(Failure::failed(anyhow!("{signal} received again: ended at once"))),
        }
    })
}

/// Logs that Redis is unreachable, if it is, and then which of its settings are dangerous.
async fn tell(config: &Config, redis: Option<Arc<RedisTimeline>>) -> Infallible {
    if let Some(redis) = redis {
        if let Link::Down(reason) = redis.first_attempt().await {
            warn!(redis = %config.redis, reason, "redis is unavailable; tasks are neither accepted nor published until it answers");
        }
        // With `strict`, such a Redis is refused instead.
        for Advice { detail, hint } in if config.strict { Vec::new() } else { redis.advice().await } {
            warn!(detail, hint, "redis may lose tasks with these settings");
        }
    }
    pending().await
}

/// The failure for a Redis that cannot store this timeline.
fn refusal(config: &Config, error: RedisError) -> Failure {
    match error {
        RedisError::Unfit(_) => Failure::usage(ConfigError(vec![config.fault("redis.strict", error.to_string())])),
        error => Failure::usage(error),
    }
}

/// A timeline, and the same one again if it is in Redis, where its checks may fail later.
pub(super) struct Opened {
    pub(super) timeline: Arc<dyn Timeline>,
    redis: Option<Arc<RedisTimeline>>,
}

impl Opened {
    /// Returns once a check of Redis has failed.
    fn refused(&self) -> impl Future<Output = RedisError> + use<> {
        let redis = self.redis.clone();
        async move {
            match redis {
                Some(redis) => redis.refused().await,
                None => pending().await,
            }
        }
    }

    /// Waits until Redis is reachable and checked; fails after a while, for interactive commands.
    pub(super) async fn there(self, config: &Config) -> Result<Arc<dyn Timeline>, Failure> {
        let Some(redis) = self.redis else { return Ok(self.timeline) };
        let there = timeout(REDIS_TIMEOUT, async {
            redis.check_layout().await?;
            // Until then the clock shows this machine's time.
            redis.all_up().await;
            Ok::<(), RedisError>(())
        });
        match there.await {
            Ok(Ok(())) => Ok(self.timeline),
            Ok(Err(error)) => Err(refusal(config, error)),
            Err(_) => Err(unreachable(config, redis.away().as_deref())),
        }
    }
}

/// The timeline of the configuration. Redis may be unreachable; it is then waited for as after any outage.
pub(super) fn open_timeline(config: &Config, tls: &Tls) -> Result<Opened, Failure> {
    if config.redis.scheme() == "memory" {
        let timeline = Arc::new(MemoryTimeline::new(Arc::new(LocalClock::new()), config.timeline.shards));
        return Ok(Opened { timeline, redis: None });
    }
    let redis = RedisTimeline::connect(redis_config(config, tls)).map_err(Failure::usage)?;
    Ok(Opened { timeline: redis.clone(), redis: Some(redis) })
}

fn unreachable(config: &Config, away: Option<&str>) -> Failure {
    let detail = away.map_or_else(|| format!("no answer within {REDIS_TIMEOUT:?}"), str::to_owned);
    Failure::failed(anyhow!("cannot reach Redis at `{}`: {detail}", config.redis))
        .hint("start one, name one with `--redis` or `PUNCTUAL__REDIS__URL`, or try without: `--redis memory:`")
}

pub(super) fn redis_config(config: &Config, tls: &Tls) -> RedisConfig {
    let namespace = config.timeline.namespace.clone();
    RedisConfig {
        tls: tls.clone(),
        password_file: config.password_file.clone(),
        password: config.url_in_file("redis.url").and_then(Password::in_url),
        sentinel_password: config.sentinel_password.clone(),
        durability: config.durability,
        strict: config.strict,
        ..RedisConfig::new(config.redis.expose(), namespace, config.timeline.shards)
    }
}

impl Instance {
    /// Starts to accept tasks and to publish. The listener is bound before anything is claimed.
    ///
    /// # Errors
    /// If an address cannot be bound, or a lane names a sink that does not exist.
    pub(super) async fn start(config: &Config, timeline: Arc<dyn Timeline>, parts: Parts) -> Result<Instance, Failure> {
        let Parts { sinks, rules, doors, listener: tls, .. } = parts;
        let listen = config.http.listen;
        let listener = bind(listen).await?;
        let address = listener.local_addr().map_err(Failure::failed)?;
        let probes = match config.http.probe_listen {
            Some(listen) => Some(bind(listen).await?),
            None => None,
        };
        let id = instance_id();
        let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION"), &id));
        timeline.count_calls(Arc::clone(&metrics));
        let intake = Intake::new(Arc::clone(&timeline), rules);
        let engine = EngineConfig { instance: id.clone(), ..config.engine.clone() };
        let engine = Engine::start(engine, timeline, sinks, config.lanes.clone(), Arc::clone(&metrics));
        let engine = engine.map_err(Failure::usage)?;
        let engine = Arc::new(engine);
        let [watched, holder, pauses, breakers] = std::array::from_fn(|_| Arc::clone(&engine));
        let doors = Doors::start(doors, &intake, &metrics);
        let access = Access::by_tokens(config.tokens.values().cloned());
        let api = Arc::new(Api {
            intake: intake.clone(),
            engine: Box::new(move || watched.state()),
            failed_attempt: Box::new(move |id| holder.failed_attempt(id)),
            is_lane_paused: Box::new(move |lane| pauses.is_lane_paused(lane)),
            is_sink_unavailable: Box::new(move |lane| breakers.is_sink_unavailable(lane)),
            doors: Box::new(doors.states()),
            access: access.clone().on_loopback(listen.ip().is_loopback()),
            metrics,
            limits: config.http.api,
            zone: config.zone.clone(),
            instance: id.clone(),
            bodies: BodyBudget::new(config.http.api.bodies),
            blocking: BlockingPool::default(),
        });
        let stop = CancellationToken::new();
        let over_tls = tls.is_some();
        let limits = ServerLimits { connections: descriptors::connections(config), ..config.http.server };
        if let Some(listener) = probes {
            let address = listener.local_addr().map_err(Failure::failed)?;
            let router = api.probe_router(access.on_loopback(address.ip().is_loopback()));
            let limits = ServerLimits { connections: MAX_PROBES, ..limits };
            tokio::spawn(server::serve(listener, None, router, limits, stop.clone(), config.shutdown));
            info!(%address, "serving probes and metrics");
        }
        let server = tokio::spawn(server::serve(listener, tls, api.router(), limits, stop.clone(), config.shutdown));
        let lanes = config.lanes.iter().map(|(lane, section)| format!("{lane} -> {}", section.sink));
        info!(
            version = env!("CARGO_PKG_VERSION"), instance = id, namespace = %config.timeline.namespace, %address,
            tls = over_tls, redis = %config.redis, lanes = lanes.collect::<Vec<_>>().join(", "), "serving"
        );
        Ok(Instance { address, intake, id, engine, doors, stop, server })
    }

    /// Stops: answers current requests, publishes claimed occurrences or returns them to their lanes, within `deadline`
    /// and a few seconds.
    pub(super) async fn stop(self, deadline: Duration) {
        self.stop.cancel();
        let until = Instant::now() + deadline;
        let stop = async {
            // They may still publish rejected messages.
            self.doors.stop(deadline / 2).await;
            self.engine.shutdown(until.saturating_duration_since(Instant::now())).await
        };
        let (served, settled) = tokio::join!(self.server, stop);
        if !served.unwrap_or(false) {
            warn!("some requests were cut off");
        }
        info!(instance = self.id, settled, "stopped");
    }
}

async fn bind(listen: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(listen).await;
    listener.with_context(|| format!("cannot listen on `{listen}`")).map_err(Failure::failed)
}

/// A new name for each start of an instance.
fn instance_id() -> String {
    format!("{:012x}", rand::random::<u64>() >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_file_and_the_engine_agree() {
        let flags = vec![("--sink", "sinks.default.url", "stdout:".to_owned())];
        let config = Config::load(Sources { flags, ..Sources::default() }).unwrap();
        assert_eq!(format!("{:?}", config.engine), format!("{:?}", EngineConfig::new("")));
    }

    #[test]
    fn instance_ids_have_no_dot_and_no_space_and_differ() {
        let (one, other) = (instance_id(), instance_id());
        assert_ne!(one, other);
        assert!(one.len() == 12 && one.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
