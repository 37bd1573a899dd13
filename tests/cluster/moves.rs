//! Slots move to other masters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::migration::redis_cluster;
use super::*;
use crate::support::have;
use crate::support::scripted::{Asked, Scripted};

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
    let tally = check("slots moved", &instance, &load, &sink);
    assert_eq!(tally.copies, 0, "no claim is lost by a move");
    // The new masters wake the claimers of their new shards, too.
    let published = read_stream(sink.server.port, "out").len();
    let id = id_in(moved[0], "after");
    let task = r#"{"schedule": {"in": "50ms"}, "message": {"destination": "out"}}"#;
    assert_eq!(instance.api().put(&id, task).expect("an answer").status, 201);
    assert!(patient(PUBLISH_LIMIT, || read_stream(sink.server.port, "out").len() > published));
}

/// The layout decides whether pauses are allowed, and is read every five seconds.
#[test]
fn the_slot_of_the_layout_may_move_too() {
    if !have("redis-server") {
        return;
    }
    let (cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let key = "punctual:{default}:layout";
    let slot = cluster.nodes[0].slot(key);
    let from = cluster.master_of(slot, 0);
    let to = &cluster.nodes[(from + 1) % 3];
    assert_eq!(instance.api().put("a", LATER).expect("an answer").status, 201);
    cluster.nodes[from].move_slot(slot, to);
    let paused = instance.api().send("POST", "/v1/tasks/a/pause", Some("{}")).expect("an answer");
    assert_eq!(paused.status, 200, "{paused:?}");
    let layout: String = redis::cmd("GET").arg(key).query(&mut to.connect()).expect("the layout");
    assert!(layout.starts_with(&format!("2 {SHARDS} ")), "{layout}");
    // From now on the instance reads the layout from the new node.
    redis::cmd("DEL").arg(key).exec(&mut to.connect()).expect("it is removed");
    instance.until("logging that the layout is gone", |instance| {
        !instance.log_lines(&[" ERROR ", "the timeline is lost"]).is_empty()
    });
}

/// The slot moves after the write of a put, and before the old master is asked whether its replica has it. The put is sent
/// again, to the new master.
#[test]
fn a_put_whose_slot_moves_before_it_is_confirmed_is_confirmed_by_the_new_master() {
    if !have("redis-server") {
        return;
    }
    let (cluster, sink) = (Arc::new(Cluster::start(1)), RedisServer::start(&[]));
    let shard = shards_of(&cluster, 0)[0];
    let moved = id_in(shard, "moved");
    let (mover, id, is_written, move_begun) =
        (Arc::clone(&cluster), moved.clone(), AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let begun = Arc::clone(&move_begun);
    let relay = Scripted::before(cluster.nodes[0].server.port, move |asked: &Asked| {
        if asked.words.iter().any(|word| word.contains(&id)) {
            is_written.store(true, Ordering::Relaxed);
        }
        if asked.is("WAIT") && is_written.load(Ordering::Relaxed) && !begun.swap(true, Ordering::Relaxed) {
            mover.nodes[0].move_slot(mover.slot(shard), &mover.nodes[1]);
        }
        None
    });
    announce(&cluster, 0, relay.port);
    let url = format!("redis+cluster://127.0.0.1:{}", relay.port);
    let instance = Punctual::start(&config_of(&url, &sink, "durability = \"replica\"\n"));
    let put = |id: &str| instance.api().put(id, LATER).expect("an answer");
    assert_eq!(put(&id_in(shard, "before")).status, 201);
    // `created` would be the answer of the old master, which cannot confirm it any more.
    let answer = put(&moved);
    assert!(answer.status == 200 && answer.json()["result"] == "unchanged", "{answer:?}");
    assert!(move_begun.load(Ordering::Relaxed), "the slot has moved");
}

/// The program that moves a slot dies half-way.
#[test]
fn a_slot_that_is_left_between_two_nodes_takes_no_other_shard_along() {
    if !have("redis-server") || !have("redis-cli") {
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
    until_status(&mut instance, "degraded");
    let ready = instance.api().ready().expect("an answer");
    assert!(ready.status == 200 && ready.text.contains("being moved"), "{ready:?}");
    let said = stats(&instance);
    assert_eq!(said["timeline"]["away"][0]["shards"], serde_json::json!([shard]), "{said}");
    assert!(said["timeline"]["away"][0]["detail"].to_string().contains("being moved"), "{said}");
    let refused = instance.api().put(&stuck, LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    assert_eq!(instance.api().put(&other, LATER).expect("an answer").status, 201);
    // Somebody mends the cluster.
    redis_cluster(&["fix", &format!("127.0.0.1:{}", from.server.port)]);
    until_status(&mut instance, "up");
    assert_eq!(instance.api().put(&stuck, LATER).expect("an answer").status, 200);
}

/// Each says that the other has the slot, as after a mistake of an operator.
#[test]
fn two_nodes_that_name_each_other_end_in_an_error_and_harm_no_other_shard() {
    if !have("redis-server") {
        return;
    }
    let (node, sink) = (RedisServer::start_cluster(), RedisServer::start(&[]));
    let (shard, wrong) = (7, Arc::new(AtomicBool::new(false)));
    let (slot, tag) = (node.slot("punctual:{default:7}:tasks"), format!("{{default:{shard}}}"));
    let ports: [Arc<OnceLock<u16>>; 2] = [Arc::default(), Arc::default()];
    let sends = Arc::new(Mutex::new(Vec::new()));
    let relay = |other: usize| {
        let (wrong, port, tag, sends) =
            (Arc::clone(&wrong), Arc::clone(&ports[other]), tag.clone(), Arc::clone(&sends));
        Scripted::before(node.server.port, move |asked: &Asked| {
            let is_of_slot = !asked.is("SUBSCRIBE") && asked.words.iter().any(|word| word.contains(&tag));
            let port = port.get().filter(|_| wrong.load(Ordering::Relaxed) && is_of_slot)?;
            if asked.words.iter().any(|word| word.contains("counted")) {
                sends.lock().expect("nobody panics holding it").push(tokio::time::Instant::now());
            }
            Some(format!("-MOVED {slot} 127.0.0.1:{port}\r\n"))
        })
    };
    let relays = [relay(1), relay(0)];
    ports.iter().zip(&relays).for_each(|(port, relay)| port.set(relay.port).expect("it is set once"));
    let hosts = relays.each_ref().map(|relay| format!("127.0.0.1:{}", relay.port)).join(",");
    let mut instance = Punctual::start(&config_of(&format!("redis+cluster://{hosts}"), &sink, ""));
    let put = |id: &str| instance.api().put(id, LATER).expect("an answer");
    let (there, elsewhere) = (id_in(shard, "there"), id_in(shard + 1, "elsewhere"));
    assert_eq!(put(&there).status, 201);
    wrong.store(true, Ordering::Relaxed);
    // The first answers may come while it still connects to the other node.
    let mut refused = put(&there);
    let is_refused = patient(PUBLISH_LIMIT, || {
        refused = put(&there);
        refused.status == 503 && refused.json()["code"] == "timeline_refused" && refused.text.contains("MOVED")
    });
    assert!(is_refused, "{refused:?}");
    assert_eq!(put(&elsewhere).status, 201);
    let counted = put(&id_in(shard, "counted"));
    assert_eq!(counted.status, 503, "{counted:?}");
    // It was sent four times without a pause, and then every 20 ms until its time was over.
    let sends = std::mem::take(&mut *sends.lock().expect("nobody panics holding it"));
    let pauses: Vec<Duration> = sends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() > 3, "{pauses:?}");
    assert!(pauses[3..].iter().all(|pause| *pause >= Duration::from_millis(19)), "{pauses:?}");
    wrong.store(false, Ordering::Relaxed);
    assert!(patient(PUBLISH_LIMIT, || put(&there).status == 200));
    until_status(&mut instance, "up");
}
