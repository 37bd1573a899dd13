//! With a `redis://` URL, a node of a cluster that does not serve the slots of all shards is refused, at the start and while an
//! instance runs.

use super::strict::{run, serve_and_check};
use super::*;
use crate::outage::{config, until_logged, until_ready};
use crate::support::have;
use crate::support::punctual::Punctual;

/// Part of the error.
const SUPPORTED: &str = "a URL of a cluster begins with `redis+cluster://`";

const TASK: &str = r#"{"schedule": {"in": "1h"}, "message": {"destination": "out"}}"#;

/// `check` and `serve` refuse this node with this detail, and leave no keys there.
fn assert_refused(node: &RedisServer, detail: &str) {
    for (code, said) in serve_and_check(&["--redis", &node.url()]) {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(SUPPORTED) && said.contains(detail), "no `{detail}` in {said}");
    }
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut node.connect()).unwrap();
    assert_eq!(keys, 0, "nothing is written there");
}

/// A node with all slots except the last, which no key of the tests uses, and a node with that slot. A master that
/// loses its only slot becomes a replica.
fn almost_all() -> [RedisServer; 2] {
    RedisServer::start_masters(16383)
}

/// Slot of the last of four shards, an id on that shard, and an id on another.
fn last_shard(node: &RedisServer) -> (u16, String, String) {
    let shard = |id: &String| Shard::of(&task(id), 4).number();
    let id = |there: bool| (0..).map(|n| format!("t{n}")).find(|id| (shard(id) == 3) == there).unwrap();
    (node.slot("punctual:{default:3}:tasks"), id(true), id(false))
}

#[test]
fn either_of_two_masters_is_refused() {
    if !have("redis-server") {
        return;
    }
    let masters = RedisServer::start_masters(8192);
    masters.iter().for_each(|master| assert_refused(master, "`MOVED "));
}

/// The slot of every shard counts, also while it is migrating.
#[test]
fn a_node_without_the_slot_of_one_shard_is_refused() {
    if !have("redis-server") {
        return;
    }
    let [node, other] = almost_all();
    let (slot, ..) = last_shard(&node);
    let id = other.node_id();
    node.cluster(&["SETSLOT", &slot.to_string(), "MIGRATING", &id]);
    assert_refused(&node, &format!("`ASK {slot} "));
    node.cluster(&["SETSLOT", &slot.to_string(), "STABLE"]);
    node.move_slot(slot, &other);
    assert_refused(&node, &format!("`MOVED {slot} "));
    other.move_slot(slot, &node);
    drop(Punctual::start(&config(&node, "memory:")));
}

/// An instance waits for a cluster that is not ready yet, as after its node's start.
#[test]
fn an_instance_waits_for_a_cluster_that_is_down() {
    if !have("redis-server") {
        return;
    }
    let node = RedisServer::start_node(&[]);
    let mut instance = Punctual::start_unready(&config(&node, "memory:"));
    instance.until("heard to say why", |instance| {
        let text = instance.api().ready().map(|answer| answer.text).unwrap_or_default();
        text.contains("CLUSTERDOWN") && text.contains(SUPPORTED)
    });
    let checked = run(&["check", "--sink", "memory:", "--redis", &node.url()]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("CLUSTERDOWN") && said.contains(SUPPORTED), "{said}");
    node.add_slots(0..16384);
    until_ready(&mut instance, true);
    assert_eq!(instance.api().put("a", TASK).unwrap().status, 201);
}

#[test]
fn an_instance_is_unready_while_a_slot_is_moved_away_from_its_node() {
    if !have("redis-server") {
        return;
    }
    let [node, other] = almost_all();
    let (slot, there, elsewhere) = last_shard(&node);
    let mut instance = Punctual::start(&config(&node, "memory:"));
    let api = instance.api();
    assert_eq!(api.put(&there, TASK).unwrap().status, 201);
    node.move_slot(slot, &other);
    // No client puts anything.
    let said = until_ready(&mut instance, false).json();
    assert_eq!(said["timeline"]["status"], "down", "{said}");
    let detail = format!("MOVED {slot} ");
    instance.until("heard to say why", |instance| {
        let text = instance.api().ready().map(|answer| answer.text).unwrap_or_default();
        text.contains(SUPPORTED) && text.contains(&detail)
    });
    until_logged(&mut instance, &[" WARN ", "redis is unavailable", SUPPORTED]);
    for id in [&there, &elsewhere] {
        let refused = api.put(id, TASK).unwrap();
        assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    }
    other.move_slot(slot, &node);
    until_ready(&mut instance, true);
    assert_eq!([&there, &elsewhere].map(|id| api.put(id, TASK).unwrap().status), [200, 201]);
}
