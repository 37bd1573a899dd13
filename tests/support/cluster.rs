//! A Redis Cluster for tests: masters, and replicas that may take their places.

use std::time::Duration;

use punctual_lab::servers::{KEEPS_EVERYTHING, start_redis_cluster};
use punctual_lab::testing::block_on;

use super::patient;
use super::redis::RedisServer;
use super::server::Server;

/// How long a master may be silent until its replica takes its place.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Three masters and their replicas.
pub(crate) struct Cluster {
    /// The masters at the start, then their replicas in the same order.
    pub(crate) nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts three masters, each with this many replicas. Masters whose slots are covered serve while others are not.
    pub(crate) fn start(replicas: usize) -> Cluster {
        Cluster::start_with(replicas, &["--cluster-require-full-coverage", "no"])
    }

    /// Starts three masters without replicas that keep everything through a kill -9.
    pub(crate) fn start_durable() -> Cluster {
        let options = [&["--cluster-require-full-coverage", "no"], KEEPS_EVERYTHING].concat();
        Cluster::start_with(0, &options)
    }

    /// Starts three masters with these options.
    pub(crate) fn start_with(replicas: usize, options: &[&str]) -> Cluster {
        Cluster::start_in(replicas, options, &[])
    }

    /// The same, with these variables in the environment of the replicas.
    pub(crate) fn start_in(replicas: usize, options: &[&str], environment: &[String]) -> Cluster {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let more = ["--cluster-node-timeout", &timeout, "--repl-diskless-sync-delay", "0"];
        let nodes = block_on(async || start_redis_cluster(3, replicas, &[&more, options].concat(), environment).await);
        let nodes = nodes.unwrap_or_else(|error| panic!("{error:#}"));
        Cluster { nodes: nodes.into_iter().map(|node| RedisServer { server: Server::from(node) }).collect() }
    }

    /// `redis+cluster://` with all nodes.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.server.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The slot of a shard of the default namespace.
    pub(crate) fn slot(&self, shard: u16) -> u16 {
        self.nodes[0].slot(&format!("punctual:{{default:{shard}}}:tasks"))
    }

    /// The number of the node that has a slot now, as the node of this number sees it.
    pub(crate) fn master_of(&self, slot: u16, seen_by: usize) -> usize {
        /// First and last slot, and the master with its host, port, id and more; replicas follow.
        type Range = (u16, u16, (String, u16, String, redis::Value));
        let answer: Vec<Vec<redis::Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query(&mut self.nodes[seen_by].connect()).expect("its slots");
        let read = |range: Vec<redis::Value>| {
            let of_master = range.into_iter().take(3).collect();
            redis::from_redis_value::<Range>(redis::Value::Array(of_master)).expect("a range")
        };
        let ranges: Vec<Range> = answer.into_iter().map(read).collect();
        let found = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let port = found.unwrap_or_else(|| panic!("no node has the slot {slot}")).2.1;
        self.nodes.iter().position(|node| node.server.port == port).expect("a node of this cluster")
    }

    /// Waits until a node is a master, or until it is a replica.
    pub(crate) fn until_master(&self, node: usize, is_master: bool) {
        let done = patient(Duration::from_secs(60), || {
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut self.nodes[node].connect()).expect("its role");
            (role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))) == is_master
        });
        assert!(done, "the node {node} did not change its role");
    }
}
