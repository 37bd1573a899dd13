//! Faults of a Redis Cluster: masters and replicas die and stand still, replicas take over, slots move.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::{AsyncConnectionConfig, Client, FromRedisValue};
use tokio::time::{Instant, sleep};

use super::plan::ClusterFault;
use super::timeline_servers::command;
use crate::servers::{Server, move_redis_slot};

/// How long a master may be silent until its replica takes its place.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// Masters of the cluster, each with one replica.
pub(super) const MASTERS: usize = 3;

/// Timeout of a connection and of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the cluster may take until it is whole again.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A node as another one sees it.
struct NodeView {
    /// Its number among the servers.
    number: usize,
    id: String,
    is_master: bool,
    slots: Vec<(u16, u16)>,
}

/// The nodes of a cluster.
#[derive(Debug)]
pub(super) struct Cluster(pub(super) Vec<Server>);

impl Cluster {
    /// Causes a fault of the given length; returns once the cluster is whole again. `choice` selects the target, `key` is in
    /// the slot that moves.
    pub(super) async fn fault(&self, fault: ClusterFault, choice: usize, lasts: Duration, key: &str) -> Result<()> {
        let nodes = self.nodes().await?;
        let pick = |is_master: bool| {
            let all: Vec<&NodeView> = nodes.iter().filter(|node| node.is_master == is_master).collect();
            all.get(choice % all.len().max(1)).map(|node| node.number).context("no such node")
        };
        match fault {
            ClusterFault::MasterKill => self.kill(pick(true)?, lasts).await?,
            ClusterFault::ReplicaKill => self.kill(pick(false)?, lasts).await?,
            ClusterFault::MasterStall => {
                let server = &self.0[pick(true)?];
                server.signal("STOP")?;
                sleep(lasts).await;
                server.signal("CONT")?;
            }
            ClusterFault::Failover => self.run::<()>(pick(false)?, &["CLUSTER", "FAILOVER"]).await?,
            ClusterFault::SlotMove => self.move_slot(&nodes, choice, key, Duration::ZERO).await?,
            ClusterFault::SlotAbort => self.move_slot(&nodes, choice, key, lasts).await?,
        }
        self.until_whole().await
    }

    async fn kill(&self, number: usize, lasts: Duration) -> Result<()> {
        self.0[number].kill().await?;
        sleep(lasts).await;
        self.0[number].revive().await
    }

    /// Moves the slot of a key to another master. Stops for a while after the first key.
    async fn move_slot(&self, nodes: &[NodeView], choice: usize, key: &str, pause: Duration) -> Result<()> {
        let slot: u16 = self.run(0, &["CLUSTER", "KEYSLOT", key]).await?;
        let has = |node: &&NodeView| node.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot));
        let from = nodes.iter().filter(|node| node.is_master).find(has).context("no node has the slot")?;
        let others: Vec<&NodeView> = nodes.iter().filter(|node| node.is_master && node.id != from.id).collect();
        let to = others.get(choice % others.len().max(1)).context("no other master")?;
        move_redis_slot(slot, &self.0[from.number], &self.0[to.number], pause).await
    }

    /// Waits until all nodes report the state `ok`, and every master has a replica that follows it.
    async fn until_whole(&self) -> Result<()> {
        let until = Instant::now() + WHOLE_TIMEOUT;
        while !self.is_whole().await.unwrap_or(false) {
            if Instant::now() >= until {
                bail!("the cluster is not whole again within {WHOLE_TIMEOUT:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn is_whole(&self) -> Result<bool> {
        let mut masters = 0;
        for number in 0..self.0.len() {
            let info: String = self.run(number, &["CLUSTER", "INFO"]).await?;
            let replication: String = self.run(number, &["INFO", "replication"]).await?;
            let is_master = replication.contains("role:master");
            masters += usize::from(is_master);
            let is_well = match is_master {
                true => replication.contains("state=online"),
                false => replication.contains("master_link_status:up"),
            };
            if !is_well || !info.contains("cluster_state:ok") {
                return Ok(false);
            }
        }
        Ok(masters == MASTERS)
    }

    /// The nodes, as the first one that answers sees them.
    async fn nodes(&self) -> Result<Vec<NodeView>> {
        let mut failed = None;
        for number in 0..self.0.len() {
            match self.run::<String>(number, &["CLUSTER", "NODES"]).await {
                Ok(text) => return Ok(text.lines().filter_map(|line| self.node_view(line)).collect()),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("the cluster has no nodes")))
    }

    /// `<id> <host>:<port>@<bus> <flags> <master> <ping> <pong> <epoch> <link> <slots>...`.
    fn node_view(&self, line: &str) -> Option<NodeView> {
        let words: Vec<&str> = line.split(' ').collect();
        let port: u16 = words.get(1)?.split_once('@')?.0.rsplit_once(':')?.1.parse().ok()?;
        let slots = words.get(8..).unwrap_or_default().iter().filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(NodeView {
            number: self.0.iter().position(|server| server.port == port)?,
            id: (*words.first()?).to_owned(),
            is_master: words.get(2)?.contains("master") && !words.get(2)?.contains("fail"),
            slots: slots.collect(),
        })
    }

    async fn run<T: FromRedisValue>(&self, number: usize, words: &[&str]) -> Result<T> {
        let client = Client::open(format!("redis://127.0.0.1:{}", self.0[number].port))?;
        let limit = Some(ANSWER_TIMEOUT);
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        command(words).query_async(&mut connection).await.with_context(|| words[..words.len().min(3)].join(" "))
    }
}
