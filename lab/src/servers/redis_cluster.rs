//! A Redis Cluster for tests.

use std::time::Duration;

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use redis::{Client, FromRedisValue};
use tokio::time::{Instant, sleep};

use super::redis::start_redis_in;
use super::{Server, free_port};

/// How long the nodes may take until they know each other and serve all slots.
const FORM_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The hash slots of a cluster.
const SLOTS: usize = 16384;

/// Starts the nodes of a cluster without persistence, unless `options` say otherwise: first the masters, which share the
/// slots evenly, then their replicas in the same order, `replicas` for each. `environment` (`["NAME=value"]`) is set for
/// the replicas only. Returns when all slots are served and all replicas follow.
///
/// # Errors
/// If a node cannot be started, or the cluster does not form in time.
pub async fn start_redis_cluster(
    masters: usize,
    replicas: usize,
    options: &[&str],
    environment: &[String],
) -> anyhow::Result<Vec<Server>> {
    let mut nodes = Vec::new();
    for number in 0..masters * (1 + replicas) {
        nodes.push(start_redis_node(options, if number < masters { &[] } else { environment }).await?);
    }
    let mut connections = Vec::new();
    for node in &nodes {
        connections.push(connect(node).await?);
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        // Nodes accept each other's gossip only if their epochs differ.
        cluster::<()>(connection, &["SET-CONFIG-EPOCH", &(number + 1).to_string()]).await?;
        if number < masters {
            let (first, last) = (number * SLOTS / masters, (number + 1) * SLOTS / masters - 1);
            cluster::<()>(connection, &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await?;
        }
    }
    let mut bus_ports = Vec::new();
    for connection in &mut connections {
        let reply: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("cluster-port").query_async(connection).await?;
        bus_ports.push(reply.get(1).cloned().context("no port of the cluster bus")?);
    }
    // Every node meets every other one, so that no node waits for gossip.
    for (number, connection) in connections.iter_mut().enumerate() {
        for (node, bus) in nodes.iter().zip(&bus_ports).skip(number + 1) {
            cluster::<()>(connection, &["MEET", "127.0.0.1", &node.port.to_string(), bus]).await?;
        }
    }
    let until = Instant::now() + FORM_TIMEOUT;
    for number in masters..nodes.len() {
        let master: String = cluster(&mut connections[(number - masters) / replicas], &["MYID"]).await?;
        // Until it knows the master.
        while let Err(error) = cluster::<()>(&mut connections[number], &["REPLICATE", &master]).await {
            wait(until, &format!("a node does not become a replica: {error}")).await?;
        }
    }
    let known = format!("cluster_known_nodes:{}", nodes.len());
    for (number, connection) in connections.iter_mut().enumerate() {
        loop {
            let info: String = cluster(connection, &["INFO"]).await?;
            let replication: String = redis::cmd("INFO").arg("replication").query_async(connection).await?;
            let follows = number < masters || replication.contains("master_link_status:up");
            if info.contains("cluster_state:ok") && info.contains(&known) && follows {
                break;
            }
            wait(until, "the cluster does not form").await?;
        }
    }
    Ok(nodes)
}

/// Moves a slot with its keys to another node of its cluster, as `redis-cli --cluster reshard` does. Stops for `pause`
/// after the first key.
///
/// # Errors
/// If a command fails. The slot is then left between both.
pub async fn move_redis_slot(slot: u16, from: &Server, to: &Server, pause: Duration) -> anyhow::Result<()> {
    let (mut source, mut target) = (connect(from).await?, connect(to).await?);
    let from_id: String = cluster(&mut source, &["MYID"]).await?;
    let to_id: String = cluster(&mut target, &["MYID"]).await?;
    let slot = slot.to_string();
    cluster::<()>(&mut target, &["SETSLOT", &slot, "IMPORTING", &from_id]).await?;
    cluster::<()>(&mut source, &["SETSLOT", &slot, "MIGRATING", &to_id]).await?;
    let mut pause = Some(pause).filter(|pause| !pause.is_zero());
    loop {
        let count = if pause.is_some() { "1" } else { "100" };
        let keys: Vec<String> = cluster(&mut source, &["GETKEYSINSLOT", &slot, count]).await?;
        if keys.is_empty() {
            break;
        }
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(to.port).arg("").arg(0).arg(5000).arg("KEYS").arg(keys);
        migrate.exec_async(&mut source).await.context("MIGRATE")?;
        if let Some(pause) = pause.take() {
            sleep(pause).await;
        }
    }
    for connection in [&mut target, &mut source] {
        cluster::<()>(connection, &["SETSLOT", &slot, "NODE", &to_id]).await?;
    }
    Ok(())
}

/// Starts a node without slots. Its cluster bus gets a free port, too. By default Redis takes the port 10 000 above the
/// first. Another process may use that one, and Redis then exits after the first port has answered.
///
/// # Errors
/// If it cannot be started.
pub async fn start_redis_node(options: &[&str], environment: &[String]) -> anyhow::Result<Server> {
    let bus = free_port()?.to_string();
    start_redis_in(environment, &[&["--cluster-enabled", "yes", "--cluster-port", &bus], options].concat()).await
}

async fn connect(node: &Server) -> anyhow::Result<MultiplexedConnection> {
    let client = Client::open(format!("redis://127.0.0.1:{}", node.port))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

async fn cluster<T: FromRedisValue>(connection: &mut MultiplexedConnection, arguments: &[&str]) -> anyhow::Result<T> {
    let answer = redis::cmd("CLUSTER").arg(arguments).query_async(connection).await;
    answer.with_context(|| format!("CLUSTER {}", arguments.first().unwrap_or(&"")))
}

async fn wait(until: Instant, what: &str) -> anyhow::Result<()> {
    if Instant::now() >= until {
        bail!("{what} within {FORM_TIMEOUT:?}");
    }
    sleep(PAUSE).await;
    Ok(())
}
