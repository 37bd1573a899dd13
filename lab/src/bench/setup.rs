//! The environment of a bench: the servers, started or given, and everything that is created there and must be removed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use super::broker_side::{self, BrokerSide};
use super::probe::Probe;
use super::tasks::{CLUSTER_SHARDS, TaskNamespace};
use super::{Kind, Missing, Options};
use crate::servers::{self, Program, Purpose, Server};
use punctual::clock::Timestamp;
use punctual::task::{Lane, Namespace, Shard};
use punctual::timeline::keys::{self, Keys};

/// How long removing may take.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

/// The sink of benches that do not publish.
const MEMORY_SINK_URL: &str = "memory:";

/// The servers of one bench.
pub(super) struct BenchSetup {
    /// The program to start instances from.
    pub(super) program: Program,
    /// The prefix of all names.
    name: String,
    pub(super) kind: Kind,
    pub(super) redis_url: SecretString,
    /// Number of masters of the timeline's cluster; `None` if it is in one Redis.
    pub(super) masters: Option<usize>,
    /// Number of shards of the timeline.
    pub(super) shards: u16,
    pub(super) sink_url: SecretString,
    pub(super) probe: Probe,
    /// `None` for benches that do not publish.
    broker_side: Option<Arc<dyn BrokerSide>>,
    /// The destinations that were created.
    made: Mutex<Vec<String>>,
    /// The lanes of the instances.
    lanes: Vec<Lane>,
    /// The started servers of the timeline; none if the Redis is the user's.
    redis: Vec<Server>,
    /// The started server; `None` if it is the user's.
    sink: Option<Server>,
}

impl BenchSetup {
    /// Starts the servers that are not given, and connects to all. With `masters` the timeline is in a new cluster with that
    /// many.
    ///
    /// # Errors
    /// [`Missing`] if a program is not installed or an address cannot be used; otherwise if a server does not start.
    pub(super) async fn open(options: &Options, masters: Option<usize>) -> anyhow::Result<BenchSetup> {
        let publishes = options.bench.publishes();
        options.redis.iter().try_for_each(|url| plain(Kind::Redis, url))?;
        options.sink.iter().filter(|_| publishes).try_for_each(|url| plain(options.kind, url))?;
        let redis = options.redis.is_none().then_some(Kind::Redis);
        let sink = (publishes && options.sink.is_none()).then_some(options.kind);
        redis.into_iter().chain(sink).try_for_each(servers::installed)?;
        let (redis, redis_urls) = match masters {
            Some(masters) => cluster(masters).await?,
            None => {
                let (redis, url) = server(redis, options.redis.as_ref()).await?;
                (redis.into_iter().collect(), vec![url])
            }
        };
        let (sink, sink_url) = server(sink, options.sink.as_ref().filter(|_| publishes)).await?;
        let broker_side = match publishes {
            true => Some(broker_side::open(options.kind, &sink_url).await.context("cannot reach the sink")?),
            false => None,
        };
        let names = ["default", "other"].map(str::to_owned).into_iter().chain((1..options.lanes).map(extra_lane));
        Ok(BenchSetup {
            program: options.program.clone(),
            name: options.name.clone(),
            kind: options.kind,
            probe: Probe::open(&redis_urls).await?,
            redis_url: if masters.is_some() { as_cluster(&redis_urls) } else { redis_urls[0].clone() },
            masters,
            shards: if masters.is_some() { CLUSTER_SHARDS } else { options.shards },
            sink_url,
            broker_side,
            made: Mutex::default(),
            lanes: names.filter_map(|name| name.parse().ok()).collect(),
            redis,
            sink,
        })
    }

    /// Whether the sink was just started and becomes faster with use.
    pub(super) fn warms_up(&self) -> bool {
        self.sink.is_some() && self.kind == Kind::Kafka
    }

    /// The process of the timeline's Redis, if it was started here.
    pub(super) fn redis_pid(&self) -> Option<u32> {
        self.redis.first()?.pid()
    }

    /// The last server of the timeline, if it was started here.
    pub(super) fn last_redis(&self) -> Option<&Server> {
        self.redis.last()
    }

    /// The broker behind the sink.
    ///
    /// # Errors
    /// If the bench does not publish.
    pub(super) fn broker_side(&self) -> anyhow::Result<Arc<dyn BrokerSide>> {
        self.broker_side.clone().context("nothing is published here")
    }

    /// Creates a destination with this suffix and returns its name.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) async fn make(&self, end: &str) -> anyhow::Result<String> {
        let destination = format!("{}-{end}", self.name);
        let broker_side = self.broker_side()?;
        // Noted before it exists, so that a half-created one is removed too.
        self.made.lock().push(destination.clone());
        broker_side.make(&destination).await?;
        Ok(destination)
    }

    /// The namespace of the instances.
    ///
    /// # Errors
    /// If the name is too long.
    pub(super) fn namespace(&self) -> anyhow::Result<Namespace> {
        Ok(self.name.parse()?)
    }

    /// A namespace that no instance uses.
    ///
    /// # Errors
    /// If the name is too long.
    pub(super) fn baseline_namespace(&self) -> anyhow::Result<Namespace> {
        Ok(format!("{}-floor", self.name).parse()?)
    }

    /// The timeline of the instances.
    ///
    /// # Errors
    /// If Redis is unreachable.
    pub(super) async fn task_namespace(&self) -> anyhow::Result<TaskNamespace> {
        TaskNamespace::open(&self.redis_url, self.namespace()?, self.shards).await
    }

    /// Number of occurrences that wait or are in flight with a due up to `until`.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn left(&self, namespace: &Namespace, until: Timestamp) -> anyhow::Result<u64> {
        let all = Shard::all(self.shards).map(|shard| Keys::new(namespace, shard));
        let dues = all.flat_map(|keys| self.lanes.iter().map(move |lane| keys.due(lane)));
        Ok(self.probe.due_by(&dues.collect::<Vec<_>>(), until).await?)
    }

    /// Removes all tasks. None may be in flight.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(super) async fn empty(&self, namespace: &Namespace) -> anyhow::Result<()> {
        Ok(self.probe.unlink(&self.keys(namespace)).await?)
    }

    fn keys(&self, namespace: &Namespace) -> Vec<String> {
        let mut all = Vec::new();
        for keys in Shard::all(self.shards).map(|shard| Keys::new(namespace, shard)) {
            all.extend([keys.tasks(), keys.changes(), keys.crashes(), keys.counts(), keys.lanes(), keys.largest()]);
            all.extend([keys.dead(), keys.dead_records(), keys.dead_order(), keys.dead_bytes()]);
            all.extend([keys.pauses(), keys.paused_lanes()]);
            for lane in &self.lanes {
                all.extend([keys.due(lane), keys.leases(lane), keys.claims(lane), keys.reap_at(lane)]);
            }
        }
        all
    }

    /// Removes everything from the user's servers. Returns what could not be removed.
    pub(super) async fn clear(&self) -> Vec<String> {
        let mut left = Vec::new();
        if self.redis.is_empty() {
            let removed = tokio::time::timeout(CLEAR_TIMEOUT, self.clear_redis()).await;
            if let Some(text) = failed(removed) {
                left.push(format!("keys `punctual:{{{}...` in Redis: {text}", self.name));
            }
        }
        let made = std::mem::take(&mut *self.made.lock());
        if self.sink.is_none() && !made.is_empty() {
            let removed =
                tokio::time::timeout(CLEAR_TIMEOUT, broker_side::remove(self.kind, &self.sink_url, &made)).await;
            if let Some(text) = failed(removed) {
                left.push(format!("{} in the sink: {text}", made.join(", ")));
            }
        }
        left
    }

    async fn clear_redis(&self) -> anyhow::Result<()> {
        for namespace in [self.namespace()?, self.baseline_namespace()?] {
            let mut all = self.keys(&namespace);
            all.extend([keys::layout(&namespace), keys::nothing(&namespace)]);
            self.probe.unlink(&all).await?;
        }
        Ok(())
    }
}

/// The name of an additional lane.
pub(super) fn extra_lane(number: u16) -> String {
    format!("lane-{number}")
}

/// Starts a server if needed; returns it and its address.
async fn server(own: Option<Kind>, named: Option<&SecretString>) -> anyhow::Result<(Option<Server>, SecretString)> {
    match (own, named) {
        (Some(kind), _) => {
            let server = servers::start(kind, Purpose::Measure).await?;
            let url = kind.own_url(server.port);
            Ok((Some(server), url))
        }
        (None, Some(url)) => Ok((None, url.clone())),
        (None, None) => Ok((None, MEMORY_SINK_URL.to_owned().into())),
    }
}

/// Starts a cluster; returns its masters and their addresses.
async fn cluster(masters: usize) -> anyhow::Result<(Vec<Server>, Vec<SecretString>)> {
    // A node that is silent stops its own slots alone.
    let options = ["--cluster-require-full-coverage", "no"];
    let nodes = servers::start_redis_cluster(masters, 0, &options, &[]).await?;
    let urls = nodes.iter().map(|node| Kind::Redis.own_url(node.port)).collect();
    Ok((nodes, urls))
}

/// The URL of a cluster with these nodes.
fn as_cluster(urls: &[SecretString]) -> SecretString {
    let hosts: Vec<&str> = urls.iter().map(|url| url.expose_secret().trim_start_matches("redis://")).collect();
    format!("redis+cluster://{}", hosts.join(",")).into()
}

/// Refuses addresses of a Redis or a broker that the bench itself cannot connect to.
fn plain(kind: Kind, url: &SecretString) -> Result<(), Missing> {
    let (scheme, port) = kind.scheme();
    let begins = url.expose_secret().strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://"));
    if begins {
        return Ok(());
    }
    let text = format!("`bench` itself connects by `{scheme}://` alone");
    Err(Missing::new(&text, &format!("name a plain address: {scheme}://127.0.0.1:{port}")))
}

fn failed(removed: Result<anyhow::Result<()>, tokio::time::error::Elapsed>) -> Option<String> {
    match removed {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some(format!("no answer within {CLEAR_TIMEOUT:?}")),
    }
}
