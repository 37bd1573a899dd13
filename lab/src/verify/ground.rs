//! The environment of a campaign: the servers, started or given, and a proxy in front of each for every instance.

use std::sync::Arc;

use anyhow::Context;
use secrecy::SecretString;
use tokio::sync::Mutex;

use super::Kind;
use super::address::Address;
use super::cluster::{Cluster, MASTERS, NODE_TIMEOUT};
use super::plan::{FaultKind, Side};
use super::proxy::Proxy;
use crate::servers::{self, Purpose, Server, installed};

/// A server under attack.
#[derive(Debug)]
pub(super) struct Backend {
    /// `None` if it is the user's.
    pub(super) server: Option<Server>,
    /// Without a proxy. May contain a password.
    pub(super) url: SecretString,
    /// Allows one fault at a time.
    pub(super) turn: Arc<Mutex<()>>,
}

/// The proxies between an instance and its servers.
#[derive(Debug)]
pub(super) struct Links {
    /// `None` if Redis is a cluster, whose nodes name each other.
    pub(super) redis: Option<Proxy>,
    /// `None` if clients would not use it.
    pub(super) sink: Option<Proxy>,
    /// The URLs through the proxies.
    pub(super) redis_url: SecretString,
    pub(super) sink_url: SecretString,
}

/// The servers and the proxies.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) kind: Kind,
    pub(super) redis: Backend,
    /// The timeline's Redis, if it is a cluster.
    pub(super) cluster: Option<Cluster>,
    pub(super) sink: Backend,
    pub(super) links: Vec<Links>,
}

impl Ground {
    /// Starts the servers that are not given, and the proxies.
    ///
    /// # Errors
    /// [`super::Missing`] if a program is not installed or an address cannot be attacked; otherwise if a server does
    /// not start.
    pub(super) async fn open(
        kind: Kind,
        redis: Option<&str>,
        sink: Option<&str>,
        instances: usize,
        is_cluster: bool,
    ) -> anyhow::Result<Ground> {
        let named = |kind, url: Option<&str>| url.map(|url| Address::of(kind, url)).transpose();
        let (redis, sink) = (named(Kind::Redis, redis)?, named(kind, sink)?);
        let needed = redis.is_none().then_some(Kind::Redis).into_iter().chain(sink.is_none().then_some(kind));
        needed.into_iter().try_for_each(installed)?;
        let (redis, redis_address, cluster) = match is_cluster {
            true => own_cluster().await?,
            false => {
                let (redis, address) = Backend::open(Kind::Redis, redis).await?;
                (redis, Some(address), None)
            }
        };
        let mut links = Vec::with_capacity(instances);
        if kind == Kind::Kafka && sink.is_none() {
            let (sink, ways) = own_kafka(instances).await?;
            for (proxy, url) in ways {
                links.push(Links::new(&redis, redis_address.as_ref(), Some(proxy), url).await?);
            }
            return Ok(Ground { kind, redis, cluster, sink, links });
        }
        let (sink, sink_address) = Backend::open(kind, sink).await?;
        for _ in 0..instances {
            // Clients of Kafka follow the address that the broker advertises.
            let proxy = match kind {
                Kind::Kafka => None,
                _ => Some(Proxy::start(sink_address.server()).await?),
            };
            let url = proxy.as_ref().map_or_else(|| sink_address.url(), |proxy| sink_address.through(proxy.port));
            links.push(Links::new(&redis, redis_address.as_ref(), proxy, url).await?);
        }
        Ok(Ground { kind, redis, cluster, sink, links })
    }

    /// The addresses of the servers of the timeline, without proxies.
    pub(super) fn timeline_urls(&self) -> Vec<SecretString> {
        match &self.cluster {
            Some(Cluster(nodes)) => {
                nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port).into()).collect()
            }
            None => vec![self.redis.url.clone()],
        }
    }

    /// Whether the servers of the timeline were started for this campaign.
    pub(super) fn owns_timeline(&self) -> bool {
        self.redis.server.is_some() || self.cluster.is_some()
    }

    /// The kinds of faults that are possible here: the user's servers are not killed or stopped.
    pub(super) fn fault_kinds(&self) -> Vec<FaultKind> {
        let ours = |side: Side| self.backend(side).server.is_some();
        let can = |fault_kind: &FaultKind| match *fault_kind {
            FaultKind::Restart(side) | FaultKind::Stall(side) => ours(side),
            FaultKind::Flush => ours(Side::Redis) || self.cluster.is_some(),
            FaultKind::Link(side, _) => self.links.iter().all(|links| links.proxy(side).is_some()),
            FaultKind::Cluster(_) => self.cluster.is_some(),
            _ => true,
        };
        FaultKind::all().into_iter().map(|(fault_kind, _)| fault_kind).filter(can).collect()
    }

    pub(super) fn backend(&self, side: Side) -> &Backend {
        match side {
            Side::Redis => &self.redis,
            Side::Sink => &self.sink,
        }
    }
}

impl Links {
    async fn new(
        redis: &Backend,
        address: Option<&Address>,
        sink: Option<Proxy>,
        sink_url: SecretString,
    ) -> anyhow::Result<Links> {
        let Some(address) = address else {
            return Ok(Links { redis: None, sink, redis_url: redis.url.clone(), sink_url });
        };
        let proxy = Proxy::start(address.server()).await.context("cannot start a proxy")?;
        let redis_url = address.through(proxy.port);
        Ok(Links { redis: Some(proxy), sink, redis_url, sink_url })
    }

    pub(super) fn proxy(&self, side: Side) -> Option<&Proxy> {
        match side {
            Side::Redis => self.redis.as_ref(),
            Side::Sink => self.sink.as_ref(),
        }
    }
}

impl Backend {
    async fn open(kind: Kind, named: Option<Address>) -> anyhow::Result<(Backend, Address)> {
        let (server, address) = match named {
            Some(address) => (None, address),
            None => {
                let server = servers::start(kind, Purpose::Attack).await?;
                let address = Address::own(kind, server.port);
                (Some(server), address)
            }
        };
        let backend = Backend { server, url: address.url(), turn: Arc::default() };
        Ok((backend, address))
    }
}

/// A cluster that keeps everything: a master that is started again before its replica has taken over must have its data.
async fn own_cluster() -> anyhow::Result<(Backend, Option<Address>, Option<Cluster>)> {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    let more = ["--cluster-node-timeout", &timeout, "--cluster-require-full-coverage", "no"];
    let options = [servers::KEEPS_EVERYTHING, &more, &["--repl-diskless-sync-delay", "0"]].concat();
    let nodes = servers::start_redis_cluster(MASTERS, 1, &options, &[]).await?;
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let url = format!("redis+cluster://{}", hosts.join(",")).into();
    Ok((Backend { server: None, url, turn: Arc::default() }, None, Some(Cluster(nodes))))
}

/// A Kafka with one listener per instance, which advertises the address of that instance's proxy.
async fn own_kafka(instances: usize) -> anyhow::Result<(Backend, Vec<(Proxy, SecretString)>)> {
    let mut ways = Vec::with_capacity(instances);
    let mut listeners = Vec::with_capacity(instances);
    for _ in 0..instances {
        let port = servers::free_port()?;
        let proxy = Proxy::start(format!("127.0.0.1:{port}")).await?;
        listeners.push((port, proxy.port));
        let url = Address::own(Kind::Kafka, proxy.port).url();
        ways.push((proxy, url));
    }
    let server = servers::start_kafka(&servers::KafkaOptions {
        listeners: &listeners,
        is_quick: true,
        ..servers::KafkaOptions::default()
    })
    .await?;
    let url = Address::own(Kind::Kafka, server.port).url();
    Ok((Backend { server: Some(server), url, turn: Arc::default() }, ways))
}
