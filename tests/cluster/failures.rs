//! Masters die, hang and are replaced by their replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::cluster::NODE_TIMEOUT;
use crate::support::have;
use crate::support::scripted::{Asked, Scripted};
use crate::support::server::free_port;
use crate::trouble::clocks::{Wall, redis_by};

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
        until_status(instance, "degraded");
        assert_eq!(instance.api().ready().expect("an answer").status, 200);
        cluster.until_master(3, true);
        // With `replica`, the new master confirms nothing before it has a replica.
        cluster.nodes[0].server.restart();
        until_status(instance, "up");
    });
    check("a master killed", &instance, &load, &sink);
}

/// Takes more than five seconds: the master is away for longer than calls of users wait.
#[test]
fn a_master_without_a_replica_takes_its_own_shards_along_and_no_others() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start_durable(), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let (lost, kept) = (shards_of(&cluster, 0), shards_of(&cluster, 1));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    under_load(&mut instance, &load, |instance| {
        cluster.nodes[0].server.kill();
        instance
            .until("degraded", |instance| stats(instance)["timeline"]["away"][0]["shards"] == serde_json::json!(lost));
        assert_eq!(instance.api().ready().expect("an answer").status, 200);
        std::thread::sleep(NODE_TIMEOUT + Duration::from_secs(1));
        let refused = instance.api().put(&id_in(lost[0], "lost"), LATER).expect("an answer");
        assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
        for shard in &kept {
            let id = id_in(*shard, "kept");
            assert_eq!(instance.api().put(&id, LATER).expect("an answer").status, 201);
            assert_eq!(instance.api().send("DELETE", &format!("/v1/tasks/{id}"), None).expect("an answer").status, 200);
        }
        cluster.nodes[0].server.restart();
        until_status(instance, "up");
    });
    check("a master away", &instance, &load, &sink);
}

/// A master hangs. Takes more than five seconds: it hangs for longer than the response timeout.
#[test]
fn a_master_that_stands_still_delays_no_task_of_others() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    // No replica takes its place.
    let (cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let (still, others) = (shards_of(&cluster, 0), shards_of(&cluster, 1));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    // Claimers ask the master for these tasks while it hangs. If each call held a part of the lane's capacity, none
    // would be left for other shards.
    assert!(still.iter().all(|shard| load.put_as(&id_in(*shard, "held"), 3000)), "{}", load.answers());
    cluster.nodes[0].server.signal("STOP");
    let begun = tokio::time::Instant::now();
    let (mut put, mut number) = (0, 0);
    while begun.elapsed() < Duration::from_secs(15) {
        let id = id_in(others[number % others.len()], &format!("n{number}"));
        number += 1;
        put += usize::from(load.put_as(&id, 300));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(put, number, "{}", load.answers());
    let refused = instance.api().put(&id_in(still[0], "still"), LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    let arrived = patient(Duration::from_secs(30), || read_stream(sink.server.port, "out").len() == number);
    assert!(arrived, "{} of {number}", read_stream(sink.server.port, "out").len());
    cluster.nodes[0].server.signal("CONT");
    until_status(&mut instance, "up");
    check("a master stands still", &instance, &load, &sink);
}

#[test]
fn nodes_with_new_addresses_are_found_by_the_hosts_of_the_url() {
    if !have("redis-server") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let hosts: Vec<Scripted> = cluster.nodes.iter().map(|node| Scripted::before(node.server.port, |_| None)).collect();
    let addresses: Vec<String> = hosts.iter().map(|host| format!("127.0.0.1:{}", host.port)).collect();
    let url = format!("redis+cluster://{}", addresses.join(","));
    let instance = Punctual::start(&config_of(&url, &sink, ""));
    let shards: Vec<u16> = (0..3).map(|master| shards_of(&cluster, master)[0]).collect();
    let put = |name: &str, shard: u16| instance.api().put(&id_in(shard, name), LATER).expect("an answer").status;
    assert!(shards.iter().all(|shard| put("before", *shard) == 201));
    let begun = tokio::time::Instant::now();
    for (node, host) in cluster.nodes.iter_mut().zip(&hosts) {
        let mut connection = node.connect();
        let port = free_port();
        redis::cmd("CONFIG").arg("SET").arg("port").arg(port).exec(&mut connection).expect("another port");
        (node.server.port, _) = (port, host.lead_to(port));
        for kind in ["normal", "pubsub"] {
            redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg(kind).exec(&mut connection).expect("no client");
        }
    }
    for shard in shards {
        assert!(patient(PUBLISH_LIMIT, || put("after", shard) == 201), "{shard}: {}", instance.log());
    }
    say(&format!("new addresses: all shards are up again after {:?}", begun.elapsed()));
}

/// Takes more than five seconds: the other masters notice only after the node timeout that a master has gone.
#[test]
fn a_master_that_comes_back_empty_is_an_error_with_the_number_of_its_tasks() {
    if !have("redis-server") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    // Not the node of the layout, whose loss is reported as that of the timeline.
    let layout = layout_node(&cluster);
    let master = (layout + 1) % 3;
    let shard = shards_of(&cluster, master)[0];
    for number in 0..3 {
        let id = id_in(shard, &format!("lost{number}"));
        assert_eq!(instance.api().put(&id, LATER).expect("an answer").status, 201);
    }
    instance.until("aware of them", |instance| stats(instance)["lanes"]["default"]["waiting"] == 3);
    cluster.nodes[master].server.kill();
    cluster.nodes[master].server.restart();
    let shard = format!("shard={shard}");
    instance.until("heard to say so", |instance| {
        !instance.log_lines(&[" ERROR ", "a shard has lost its tasks", "default 3", &shard]).is_empty()
    });
    assert_eq!(instance.api().metric("punctual_shards_emptied_total"), 1.0);
    assert_eq!(instance.api().metric("punctual_timeline_lost_total"), 0.0);
}

#[test]
fn without_its_replica_a_master_confirms_nothing_and_others_do() {
    if !have("redis-server") {
        return;
    }
    let (cluster, sink) = (Cluster::start(1), RedisServer::start(&[]));
    let durable = "durability = \"replica\"\n";
    let instance = Punctual::start(&config(&cluster, &sink, durable));
    let (unconfirmed, confirmed) = (shards_of(&cluster, 0)[0], shards_of(&cluster, 1)[0]);
    cluster.nodes[3].server.signal("STOP");
    let put = |shard, name: &str| instance.api().put(&id_in(shard, name), LATER).expect("an answer");
    let refused = put(unconfirmed, "a");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unknown", "{refused:?}");
    assert_eq!(put(confirmed, "b").status, 201);
    let said = stats(&instance);
    assert_eq!(said["timeline"]["status"], "degraded", "{said}");
    assert_eq!(instance.api().ready().expect("an answer").status, 200);
    cluster.nodes[3].server.signal("CONT");
    let confirmed = patient(PUBLISH_LIMIT, || put(unconfirmed, "a").status == 200);
    assert!(confirmed, "the put is confirmed once the replica is back");
}

#[test]
fn an_instance_waits_for_the_node_that_has_the_layout() {
    if !have("redis-server") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start_durable(), RedisServer::start(&[]));
    let layout = layout_node(&cluster);
    let other = shards_of(&cluster, (layout + 1) % 3)[0];
    cluster.nodes[layout].server.kill();
    let mut instance = Punctual::start_unready(&config(&cluster, &sink, ""));
    let refused = instance.api().put(&id_in(other, "early"), LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_unavailable", "{refused:?}");
    assert_eq!(instance.api().ready().expect("an answer").status, 503);
    cluster.nodes[layout].server.restart();
    until_status(&mut instance, "up");
    assert_eq!(instance.api().put(&id_in(other, "early"), LATER).expect("an answer").status, 201);
    // Once the instance has read the layout, the other shards work without this node.
    cluster.nodes[layout].server.kill();
    until_status(&mut instance, "degraded");
    assert_eq!(instance.api().put(&id_in(other, "later"), LATER).expect("an answer").status, 201);
    cluster.nodes[layout].server.restart();
    until_status(&mut instance, "up");
}

/// Takes more than five seconds: a replica takes over after the node timeout.
#[test]
fn an_instance_that_starts_during_a_failover_finds_the_new_master_of_the_layout() {
    if !have("redis-server") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start(1), RedisServer::start(&[]));
    let layout = layout_node(&cluster);
    let (other, replica) = ((layout + 1) % 3, layout + 3);
    cluster.nodes[layout].server.kill();
    // Neither host of the URL is the replica.
    let port = |node: usize| cluster.nodes[node].server.port;
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", port(layout), port(other));
    let mut instance = Punctual::start_unready(&config_of(&url, &sink, ""));
    cluster.until_master(replica, true);
    until_status(&mut instance, "up");
    assert_eq!(instance.api().put("a", LATER).expect("an answer").status, 201);
}

#[test]
fn a_full_master_refuses_its_own_puts_and_publishes_what_waits() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (cluster, sink) = (Cluster::start(0), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    let (full, other) = (shards_of(&cluster, 0)[0], shards_of(&cluster, 1)[0]);
    assert!((0..20).all(|number| load.put_as(&id_in(full, &format!("w{number}")), 3000)));
    cluster.nodes[0].limit_memory(-100_000);
    let refused = instance.api().put(&id_in(full, "refused"), LATER).expect("an answer");
    assert!(refused.status == 503 && refused.json()["code"] == "timeline_refused", "{refused:?}");
    assert!(load.put_as(&id_in(other, "taken"), 100));
    assert_eq!(stats(&instance)["timeline"]["status"], "degraded");
    instance.until("done", |_| read_stream(sink.server.port, "out").len() == 21);
    check("a full master", &instance, &load, &sink);
}

/// The whole cluster is away, as after a cut of the power.
#[test]
fn a_cluster_that_was_away_as_a_whole_is_found_again() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (mut cluster, sink) = (Cluster::start_durable(), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    under_load(&mut instance, &load, |instance| {
        cluster.nodes.iter_mut().for_each(|node| node.server.kill());
        until_status(instance, "down");
        assert_eq!(instance.api().ready().expect("an answer").status, 503);
        let before = instance.log().lines().count();
        std::thread::sleep(Duration::from_secs(3));
        let lines = instance.log().lines().count() - before;
        assert!(lines < 30, "{lines} lines in 3 s: {}", instance.log());
        cluster.nodes.iter_mut().for_each(|node| node.server.restart());
        until_status(instance, "up");
    });
    check("the whole cluster away", &instance, &load, &sink);
}

/// Takes more than five seconds: a replica takes over after the node timeout. Its clock is two seconds behind, as if nobody
/// had set it.
#[test]
fn a_new_master_whose_clock_is_behind_decides_the_time_of_its_shards() {
    fail_over_to_a_clock_with(-2);
}

/// The same, two seconds ahead.
#[test]
fn a_new_master_whose_clock_is_ahead_decides_the_time_of_its_shards() {
    fail_over_to_a_clock_with(2);
}

fn fail_over_to_a_clock_with(difference_s: i64) {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let Some(wall) = Wall::new() else { return };
    wall.set(difference_s);
    let options = ["--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::start_in(1, &options, &wall.environment(":libc.so.6"));
    // The sink tells whether a message was early, so its clock is never behind one that decides.
    let sink = if difference_s > 0 { redis_by(&wall) } else { RedisServer::start(&[]) };
    let mut instance = Punctual::start(&config(&cluster, &sink, "durability = \"replica\"\n"));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    let claims = |instance: &Punctual| instance.api().metric("punctual_claims_empty_total{lane=\"default\"}");
    under_load(&mut instance, &load, |instance| {
        cluster.nodes[0].server.kill();
        cluster.until_master(3, true);
        cluster.nodes[0].server.restart();
        until_status(instance, "up");
        let before = claims(instance);
        std::thread::sleep(Duration::from_secs(3));
        // A claimer on the wrong clock would ask again and again for tasks that are not due.
        let empty = claims(instance) - before;
        assert!(empty < 3000.0, "{empty} empty claims in 3 s");
    });
    let ahead = clock_of(&cluster.nodes[3]).now() - clock_of(&cluster.nodes[1]).now();
    assert!((-1000..=1000).contains(&(ahead - difference_s * 1000)), "{ahead}");
    check(&format!("a master whose clock differs by {difference_s} s"), &instance, &load, &sink);
}

/// With Redis' default, all masters refuse while the slots of one are not covered. Takes more than five seconds: a replica
/// takes over after the node timeout.
#[test]
fn calls_wait_while_a_cluster_that_requires_full_coverage_is_down() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (mut cluster, sink) =
        (Cluster::start_with(1, &["--cluster-require-full-coverage", "yes"]), RedisServer::start(&[]));
    let mut instance = Punctual::start(&config(&cluster, &sink, ""));
    let load = Load::new(vec![instance.api()], &clock(&cluster), "default", "out");
    let others = shards_of(&cluster, 1);
    cluster.nodes[0].server.kill();
    let begun = tokio::time::Instant::now();
    let (mut longest, mut number) = (Duration::ZERO, 0);
    while begun.elapsed() < NODE_TIMEOUT * 3 {
        let sent = tokio::time::Instant::now();
        let is_put = load.put_as(&id_in(others[number % others.len()], &format!("n{number}")), 100);
        // The cluster is down for about a second. On a slow machine it is longer, so a put may wait in vain.
        assert!(is_put || sent.elapsed() >= PUT_LIMIT, "{:?}: {}", sent.elapsed(), load.answers());
        longest = longest.max(sent.elapsed());
        number += 1;
    }
    assert!(longest > Duration::from_millis(300), "no put of {number} waited: {longest:?}");
    say(&format!("full coverage: a put waited for {longest:?}"));
    cluster.until_master(3, true);
    until_status(&mut instance, "up");
    check("full coverage", &instance, &load, &sink);
}

/// One of two instances cannot reach the node that has a shard, of which it is the owner or the deputy. The other takes its
/// tasks.
#[test]
fn a_shard_whose_node_one_instance_cannot_reach_is_served_by_the_other() {
    cut_off_from_half_of_the_shards(1);
}

/// Of three instances two cannot reach it. For some shards these are the owner and the deputy.
#[test]
fn a_shard_whose_node_two_instances_cannot_reach_is_served_by_the_third() {
    cut_off_from_half_of_the_shards(2);
}

fn cut_off_from_half_of_the_shards(count: usize) {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (node, sink) = (RedisServer::start_cluster(), RedisServer::start(&[]));
    let cut = Arc::new(AtomicBool::new(false));
    let (is_cut, lost) =
        (Arc::clone(&cut), (0..SHARDS / 2).map(|shard| format!("{{default:{shard}}}")).collect::<Vec<_>>());
    let relay = Scripted::before(node.server.port, move |asked: &Asked| {
        let is_lost = |word: &String| lost.iter().any(|tag| word.contains(tag));
        let is_refused = is_cut.load(Ordering::Relaxed) && !asked.is("SUBSCRIBE") && asked.words.iter().any(is_lost);
        is_refused.then(|| "-CLUSTERDOWN the node is not there\r\n".to_owned())
    });
    let url = |port: u16| format!("redis+cluster://127.0.0.1:{port}");
    let mut others: Vec<Punctual> =
        (0..count).map(|_| Punctual::start(&config_of(&url(relay.port), &sink, ""))).collect();
    let mut reaches = Punctual::start(&config_of(&url(node.server.port), &sink, ""));
    let all = count as f64 + 1.0;
    reaches.until("aware of the others", |reaches| reaches.api().metric("punctual_instances") == all);
    cut.store(true, Ordering::Relaxed);
    others.iter_mut().for_each(|other| until_status(other, "degraded"));
    let load = Load::new(vec![reaches.api()], &clock_of(&node), "default", "out");
    for number in 0..200 {
        assert!(load.put_as(&id_in(number % (SHARDS / 2), &format!("n{number}")), 500));
    }
    let tally = check(&format!("a node that {count} instances cannot reach"), &reaches, &load, &sink);
    let [half, _, latest] = tally.late;
    // A deputy asks after 25 ms, which is not judged here, because other tests load the machine. Any other asks for what is
    // overdue by 250 ms.
    assert!(half < 1000 && (count == 1 || latest >= 250), "{tally}");
    cut.store(false, Ordering::Relaxed);
    others.iter_mut().for_each(|other| until_status(other, "up"));
}
