//! Slots move to other masters.

use super::*;
use crate::support::have;

/// Takes more than five seconds: slots move under load.
#[test]
fn slots_move_under_load_and_every_task_ends_once() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    let moved = shards_of(&cluster, 0);
    under_load(&mut instance, &load, |_| {
        for (number, shard) in moved.iter().take(12).enumerate() {
            cluster.nodes[0].move_slot(cluster.slot(*shard), &cluster.nodes[1 + number % 2]);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    assert!(!load.answers().contains("503"), "{}", load.answers());
    check("slots moved", &instance, &load, &sink);
    // The new masters wake the claimers of their new shards, too.
    let published = read_stream(sink.server.port, "out").len();
    let id = id_in(moved[0], "after");
    let task = r#"{"schedule": {"in": "50ms"}, "message": {"destination": "out"}}"#;
    assert_eq!(instance.api().put(&id, task).expect("an answer").status, 201);
    assert!(patient(PUBLISH_LIMIT, || read_stream(sink.server.port, "out").len() > published));
}

/// The program that moves a slot dies half-way.
#[test]
fn a_slot_that_is_left_between_two_nodes_takes_no_other_shard_along() {
    if !have("redis-server") {
        return;
    }
    let (cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let shard = shards_of(&cluster, 0)[0];
    let (slot, [from, to]) = (cluster.slot(shard).to_string(), [&cluster.nodes[0], &cluster.nodes[1]]);
    let (stuck, other) = (id_in(shard, "stuck"), id_in(shards_of(&cluster, 0)[1], "other"));
    assert_eq!(instance.api().put(&stuck, LATER).expect("an answer").status, 201);
    to.cluster(&["SETSLOT", &slot, "IMPORTING", &from.node_id()]);
    from.cluster(&["SETSLOT", &slot, "MIGRATING", &to.node_id()]);
    instance.until("degraded", |instance| stats(instance)["timeline"]["status"] == "degraded");
    let ready = instance.api().ready().expect("an answer");
    assert_eq!(ready.status, 200, "{ready:?}");
    let said = stats(&instance);
    assert_eq!(said["timeline"]["away"][0]["shards"], serde_json::json!([shard]), "{said}");
    assert!(said["timeline"]["away"][0]["detail"].to_string().contains("being moved"), "{said}");
    let refused = instance.api().put(&stuck, LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    assert_eq!(instance.api().put(&other, LATER).expect("an answer").status, 201);
    // Somebody mends the cluster.
    from.cluster(&["SETSLOT", &slot, "STABLE"]);
    to.cluster(&["SETSLOT", &slot, "STABLE"]);
    instance.until("up", |instance| stats(instance)["timeline"]["status"] == "up");
    assert_eq!(instance.api().put(&stuck, LATER).expect("an answer").status, 200);
}
