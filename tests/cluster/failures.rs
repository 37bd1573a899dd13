//! Masters die, hang and are replaced by their replicas.

use super::*;
use crate::support::cluster::NODE_TIMEOUT;
use crate::support::have;

/// Takes more than five seconds: a replica takes the place of its master only after the node timeout.
#[test]
fn a_replica_takes_the_place_of_a_killed_master() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start(1), RedisServer::start(&[]));
    let durable = "durability = \"replica\"\n";
    let mut instance = Punctual::start(&config(&cluster, &sink, durable));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    under_load(&mut instance, &load, |instance| {
        cluster.nodes[0].server.kill();
        instance.until("degraded", |instance| stats(instance)["timeline"]["status"] == "degraded");
        assert_eq!(instance.api().ready().expect("an answer").status, 200);
        cluster.until_master(3, true);
        // With `replica`, the new master confirms nothing before it has a replica.
        cluster.nodes[0].server.restart();
        instance.until("up", |instance| stats(instance)["timeline"]["status"] == "up");
    });
    check("a master killed", &instance, &load, &sink);
}

/// Takes more than five seconds: the master is away for longer than calls of users wait.
#[test]
fn a_master_without_a_replica_takes_its_own_shards_along_and_no_others() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let more = ["--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync", "always"];
    let (mut cluster, sink) = (Cluster::start_with(0, &more), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let (lost, kept) = (shards_of(&cluster, 0), shards_of(&cluster, 1));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    under_load(&mut instance, &load, |instance| {
        cluster.nodes[0].server.kill();
        instance
            .until("degraded", |instance| stats(instance)["timeline"]["away"][0]["shards"] == serde_json::json!(lost));
        std::thread::sleep(NODE_TIMEOUT + Duration::from_secs(1));
        let refused = instance.api().put(&id_in(lost[0], "lost"), LATER).expect("an answer");
        assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
        for shard in &kept {
            let id = id_in(*shard, "kept");
            assert_eq!(instance.api().put(&id, LATER).expect("an answer").status, 201);
            assert_eq!(instance.api().send("DELETE", &format!("/v1/tasks/{id}"), None).expect("an answer").status, 200);
        }
        cluster.nodes[0].server.restart();
        instance.until("up", |instance| stats(instance)["timeline"]["status"] == "up");
    });
    check("a master away", &instance, &load, &sink);
}
