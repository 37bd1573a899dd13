//! Masters are replaced by replicas that lack their last writes. What was published then comes again, under the same key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::have;
use crate::support::scripted::{Asked, Scripted};

/// Number of tasks of each kind.
const TASKS: usize = 10;

/// Stops the replica of the first master, so that it lacks all later writes.
fn stop_replica(cluster: &Cluster) {
    let mut master = cluster.nodes[0].connect();
    let replicas: u32 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut master).expect("a number");
    assert_eq!(replicas, 1, "the replica has what was written until now");
    cluster.nodes[3].server.signal("STOP");
    // What the master sends from now on would wait in the socket.
    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica").exec(&mut master).expect("no replica");
}

/// Kills the first master, and lets its replica take its place.
fn fail_over(cluster: &mut Cluster) {
    cluster.nodes[0].server.kill();
    cluster.nodes[3].server.signal("CONT");
    cluster.until_master(3, true);
}

/// Takes more than five seconds: a replica takes over after the node timeout. The failover loses a claim with its settle,
/// and a claim that is open.
#[test]
fn what_was_claimed_before_a_failover_that_lost_the_claim_comes_again_under_its_key() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start(1), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    let shards = shards_of(&cluster, 0);
    let put = |kind: &str, ahead: i64| {
        let put = shards.iter().take(TASKS).all(|shard| load.put_as(&id_in(*shard, kind), ahead));
        assert!(put, "{}", load.answers());
    };
    put("settled", 3000);
    put("open", 8000);
    stop_replica(&cluster);
    let published = || read_stream(sink.server.port, "out").len();
    instance.until("done with the first", |instance| {
        published() == TASKS && stats(instance)["lanes"]["default"]["in_flight"] == 0
    });
    sink.server.signal("STOP");
    instance.until("about to publish the others", |instance| stats(instance)["lanes"]["default"]["in_flight"] == TASKS);
    fail_over(&mut cluster);
    sink.server.signal("CONT");
    until_status(&mut instance, "up");
    let tally = check("lost claims", &instance, &load, &sink);
    assert!(tally.expected == 2 * TASKS && tally.copies >= TASKS, "{tally}");
    let lost = instance.log_lines(&["lease lost before the claim was settled"]);
    assert!(!lost.is_empty(), "a settle of a claim that the new master does not know: {}", instance.log());
}

/// The master runs a put and dies before its reply arrives. Takes more than five seconds: a replica takes over after the node
/// timeout.
#[test]
fn a_put_whose_reply_dies_with_the_master_is_published_once() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (cluster, sink) = (Arc::new(Cluster::start(1)), RedisServer::start(&[]));
    let shard = shards_of(&cluster, 0)[0];
    let (id, written) = (id_in(shard, "unanswered"), format!("{{default:{shard}}}"));
    let (seen, killer, was_killed) = (id.clone(), Arc::clone(&cluster), AtomicBool::new(false));
    let relay = Scripted::losing(
        cluster.nodes[0].server.port,
        |_| None,
        move |asked: &Asked| {
            let is_put =
                asked.words.iter().any(|word| word.contains(&seen)) && !was_killed.swap(true, Ordering::Relaxed);
            if is_put {
                let mut master = killer.nodes[0].connect();
                // `WAIT` counts the replicas that have this write, and so all before it.
                redis::cmd("SET").arg(&written).arg("").arg("EX").arg(1).exec(&mut master).expect("a write");
                let replicas: u32 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut master).expect("a number");
                assert_eq!(replicas, 1);
                killer.nodes[0].server.signal("KILL");
            }
            is_put
        },
    );
    announce(&cluster, 0, relay.port);
    // Only the relay leads to the first master.
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", relay.port, cluster.nodes[1].server.port);
    let mut instance = Punctual::start(&config_of(&url, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock_of(&cluster.nodes[1]), "default", "out");
    assert!(!load.put_as(&id, 6000), "{}", load.answers());
    assert!(load.answers().contains("503 timeline_unknown"), "{}", load.answers());
    cluster.until_master(3, true);
    instance.until("done", |_| read_stream(sink.server.port, "out").len() == 1);
    let tally = check("a put without a reply", &instance, &load, &sink);
    assert_eq!((tally.messages, tally.copies), (1, 0));
}

/// An old master serves on: it and the rest of the cluster do not know of each other any more, and one of two instances
/// reaches it. Takes more than five seconds: both publish what waited there.
#[test]
fn an_old_master_that_is_cut_off_with_an_instance_confirms_nothing_and_causes_copies_at_most() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (cluster, sink) = (Cluster::start(1), RedisServer::start(&[]));
    let old = layout_node(&cluster);
    let durable = "durability = \"replica\"\n";
    let url = |node: usize| format!("redis+cluster://127.0.0.1:{}", cluster.nodes[node].server.port);
    let mut inside = Punctual::start(&config_of(&url(old), &sink, durable));
    let load = Load::new(vec![inside.api()], &clock(&cluster), "default", "out");
    let shards = shards_of(&cluster, old);
    let put = shards.iter().take(TASKS).all(|shard| load.put_as(&id_in(*shard, "waits"), 8000));
    assert!(put, "{}", load.answers());
    let ids: Vec<String> = cluster.nodes.iter().map(RedisServer::node_id).collect();
    for other in (0..cluster.nodes.len()).filter(|other| *other != old) {
        cluster.nodes[old].cluster(&["FORGET", &ids[other]]);
    }
    cluster.nodes[old + 3].cluster(&["FAILOVER", "TAKEOVER"]);
    cluster.until_master(old + 3, true);
    let mut outside = Punctual::start(&config_of(&url((old + 1) % 3), &sink, durable));
    assert_eq!(cluster.master_of(cluster.slot(shards[0]), (old + 1) % 3), old + 3, "the others know the new master");
    assert_eq!(cluster.master_of(cluster.slot(shards[0]), old), old, "the old one does not");
    let refused = inside.api().put(&id_in(shards[0], "lost"), LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unknown", "{refused:?}");
    let published = || read_stream(sink.server.port, "out").len();
    assert!(patient(PUBLISH_LIMIT, || published() == 2 * TASKS), "{} messages", published());
    // The cluster is one again. The old master becomes a replica, and discards what only it had.
    let port = cluster.nodes[(old + 1) % 3].server.port.to_string();
    let mut other = cluster.nodes[(old + 1) % 3].connect();
    let bus: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut other).expect("its port");
    cluster.nodes[old].cluster(&["MEET", "127.0.0.1", &port, &bus[1]]);
    cluster.until_master(old, false);
    until_status(&mut inside, "up");
    until_status(&mut outside, "up");
    let again = id_in(shards[0], "again");
    let confirmed =
        patient(PUBLISH_LIMIT, || matches!(inside.api().put(&again, LATER), Ok(answer) if answer.status < 300));
    assert!(confirmed, "the new master has a replica now");
    let kept = inside.api().send("GET", &format!("/v1/tasks/{}", id_in(shards[0], "lost")), None).expect("an answer");
    assert_eq!(kept.status, 404, "it was not confirmed");
    let removed = inside.api().send("DELETE", &format!("/v1/tasks/{again}"), None);
    assert_eq!(removed.expect("an answer").status, 200);
    let tally = check("an old master cut off", &inside, &load, &sink);
    assert_eq!((tally.expected, tally.copies), (TASKS, TASKS));
}
