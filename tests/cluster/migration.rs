//! The steps of docs/cluster.md from one Redis to a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::support::have;

/// Number of tasks that move.
const TASKS: i64 = 100_000;

/// Number of shards of the one Redis.
const FEW_SHARDS: u16 = 4;

fn copy_folder(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-r").arg(from.join(".")).arg(to).status().expect("cp runs");
    assert!(done.success());
}

/// Runs `redis-cli --cluster`, and answers its questions with yes.
pub(super) fn redis_cluster(arguments: &[&str]) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", "yes yes | timeout 120 redis-cli --cluster \"$@\"", "sh"]).args(arguments);
    let done = command.output().expect("redis-cli runs");
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{arguments:?}: {said}");
    said
}

/// Takes more than five seconds: 100 000 tasks move, and the last are due half a minute after their put.
#[test]
fn the_documented_steps_lead_from_one_redis_to_a_cluster_and_lose_nothing() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let sink = RedisServer::start(&[]);
    let mut one = RedisServer::start(&["--appendonly", "yes"]);
    let settings = |url: &str| {
        format!(
            "[redis]\nurl = \"{url}\"\n[timeline]\nshards = {FEW_SHARDS}\n[claim]\nlease = \"5s\"\n\
             [sinks.default]\nurl = \"{}\"\nanswer_timeout = \"2s\"\n",
            sink.url()
        )
    };
    let mut instance = Punctual::start(&settings(&one.url()));
    let clock = clock_of(&one);
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    // Some are due during the move, the others after it.
    let (begun, mut lines) = (clock.now(), String::new());
    for number in 0..TASKS {
        let (id, due) = (format!("many-{number}"), begun + 2000 + number % 30_000);
        let at = jiff::Timestamp::from_millisecond(due).expect("a time");
        lines += &format!(
            "{{\"id\":\"{id}\",\"schedule\":{{\"at\":\"{at}\"}},\"message\":{{\"destination\":\"out\",\"payload\":{number}}}}}\n"
        );
        load.ledger().must(&id, due, &number.to_string());
    }
    let answer = instance.api().send("POST", "/v1/tasks:batch", Some(&lines)).expect("an answer");
    assert!(answer.status == 200 && !answer.text.contains("\"code\""), "{}", answer.status);
    (0..200).for_each(|_| _ = load.put_next());
    // Step 1.
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0);
    one.server.shut_down();
    // Steps 2 and 3.
    let copy = tempfile::tempdir().expect("a folder");
    copy_folder(&folder(&one), copy.path());
    let dir = copy.path().display().to_string();
    let quiet = ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "5000"];
    let first = RedisServer::start_node(&[&["--dir", &dir, "--appendonly", "yes"], &quiet[..]].concat());
    let loaded = || redis::cmd("DBSIZE").query::<u64>(&mut first.connect()).is_ok_and(|keys| keys > 0);
    assert!(patient(Duration::from_secs(60), loaded), "the data is loaded");
    let address = |node: &RedisServer| format!("127.0.0.1:{}", node.server.port);
    redis_cluster(&["fix", &address(&first)]);
    // Step 4.
    let others = [RedisServer::start_node(&quiet), RedisServer::start_node(&quiet)];
    for other in &others {
        redis_cluster(&["add-node", &address(other), &address(&first)]);
        first.until_cluster_info("cluster_state:ok");
        other.until_cluster_info("cluster_state:ok");
    }
    let known = patient(Duration::from_secs(60), || {
        let said = redis_cluster(&["check", &address(&first)]);
        said.contains("All nodes agree about slots configuration") && said.contains("3 masters")
            || said.matches("M: ").count() == 3
    });
    assert!(known, "the nodes do not know each other");
    redis_cluster(&["rebalance", &address(&first), "--cluster-use-empty-masters"]);
    // Step 6.
    let cluster = Cluster { nodes: std::iter::once(first).chain(others).collect() };
    let mut instance = Punctual::start(&settings(&cluster.url()));
    let load = load.on(vec![instance.api()]);
    until_status(&mut instance, "up");
    (0..200).for_each(|_| _ = load.put_next());
    let masters: std::collections::BTreeSet<usize> =
        (0..FEW_SHARDS).map(|shard| cluster.master_of(cluster.slot(shard), 0)).collect();
    assert!(masters.len() > 1, "the shards are on one master: {masters:?}");
    check("from one Redis to a cluster", &instance, &load, &sink);
}

/// The folder of a server.
fn folder(server: &RedisServer) -> PathBuf {
    server.server.log().parent().expect("a folder").to_owned()
}
