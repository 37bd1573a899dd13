//! A timeline on three masters: slots move, masters die, hang and are replaced, and every promise still holds. A node
//! in trouble delays no task on the others.

mod check;
mod failures;
mod lost_writes;
mod migration;
mod moves;
mod secured;

use std::time::Duration;

use punctual::task::Shard;
use punctual::task::TaskId;
use serde_json::Value;

use crate::support::clock::ServerClock;
use crate::support::cluster::Cluster;
use crate::support::ledger::Tally;
use crate::support::load::Load;
use crate::support::published::read_stream;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{patient, say};

/// Number of shards of the instances.
const SHARDS: u16 = 64;

/// Time limit for publishing all messages.
const PUBLISH_LIMIT: Duration = Duration::from_secs(90);

/// A put that the timeline does not take is refused after two seconds, or a little earlier.
const PUT_LIMIT: Duration = Duration::from_millis(1800);

/// A task that is not due during a test.
const LATER: &str = r#"{"schedule": {"in": "1h"}, "message": {"destination": "out"}}"#;

/// The configuration of an instance that publishes to this Redis.
fn config(cluster: &Cluster, sink: &RedisServer, more: &str) -> String {
    config_of(&cluster.url(), sink, more)
}

fn config_of(timeline: &str, sink: &RedisServer, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{timeline}\"\n{more}[claim]\nlease = \"5s\"\n[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"2s\"\n",
        sink.url()
    )
}

/// The clock of the machine, which all nodes use.
fn clock(cluster: &Cluster) -> ServerClock {
    clock_of(&cluster.nodes[0])
}

fn clock_of(server: &RedisServer) -> ServerClock {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut server.connect()).expect("its time");
    ServerClock::new(seconds * 1000 + micros / 1000)
}

/// An id of a task in this shard.
fn id_in(shard: u16, name: &str) -> String {
    let is_there = |id: &String| Shard::of(&id.parse::<TaskId>().unwrap(), SHARDS).number() == shard;
    (0..).map(|n| format!("{name}-{n}")).find(is_there).expect("an id")
}

/// The shards whose slots the master of this number has at the start.
fn shards_of(cluster: &Cluster, master: usize) -> Vec<u16> {
    (0..SHARDS).filter(|shard| cluster.master_of(cluster.slot(*shard), master) == master).collect()
}

fn stats(instance: &Punctual) -> Value {
    instance.api().send("GET", "/v1/stats", None).expect("an answer").json()
}

/// Waits until the timeline has this status.
fn until_status(instance: &mut Punctual, status: &str) {
    instance.until(status, |instance| stats(instance)["timeline"]["status"] == status);
}

/// The number of the node that has the layout.
fn layout_node(cluster: &Cluster) -> usize {
    cluster.master_of(cluster.nodes[0].slot("punctual:{default}:layout"), 0)
}

/// Lets all nodes name this port for a node, in front of which a relay listens there.
fn announce(cluster: &Cluster, node: usize, port: u16) {
    let change = ["SET", "cluster-announce-port", &port.to_string()];
    redis::cmd("CONFIG").arg(&change).exec(&mut cluster.nodes[node].connect()).expect("another port");
    let is_known = |node: &RedisServer| {
        let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut node.connect()).expect("its nodes");
        nodes.contains(&format!(":{port}@"))
    };
    assert!(patient(PUBLISH_LIMIT, || cluster.nodes.iter().all(is_known)), "{port}");
}

/// Waits until nothing waits or is in flight, and checks that the published messages equal the ledger.
fn check(name: &str, instance: &Punctual, load: &Load, sink: &RedisServer) -> Tally {
    let is_empty = || {
        let lane = &stats(instance)["lanes"]["default"];
        lane["waiting"] == 0 && lane["in_flight"] == 0
    };
    // Twice, more than a second apart, because the numbers are those of the last glances.
    let done = patient(PUBLISH_LIMIT, || {
        is_empty() && {
            std::thread::sleep(Duration::from_millis(2500));
            is_empty()
        }
    });
    assert!(done, "{name}: tasks are left: {}\n{}", stats(instance), instance.log());
    let errors = instance.log_lines(&[" ERROR "]);
    assert!(errors.is_empty(), "{errors:?}");
    let published = read_stream(sink.server.port, "out");
    let tally = load.ledger().check(&published).unwrap_or_else(|faults| panic!("{name}: {faults}{}", load.answers()));
    say(&format!("cluster, {name}: {tally}; {}", load.answers()));
    tally
}

/// Runs a load on an instance, and `trouble` in the middle of it.
fn under_load(instance: &mut Punctual, load: &Load, trouble: impl FnOnce(&mut Punctual)) {
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..4).for_each(|_| _ = scope.spawn(|| load.run()));
        std::thread::sleep(Duration::from_secs(3));
        trouble(instance);
        std::thread::sleep(Duration::from_secs(3));
    });
}
