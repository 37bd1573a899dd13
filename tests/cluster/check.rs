//! `punctual check` and `serve` with the URL of a cluster.

use super::*;
use crate::support::have;
use crate::trouble::strict::{run, serve_and_check};

/// The exit code of `check` with this URL of the timeline, and what it said.
fn check_of(url: &str, more: &[&str]) -> (Option<i32>, String) {
    let done = run(&[&["check", "--sink", "memory:", "--redis", url], more].concat());
    let said = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_check_shows_the_masters_with_their_shards_and_warns_of_what_stops_all_of_them() {
    if !have("redis-server") {
        return;
    }
    let mut cluster = Cluster::start_with(0, &["--cluster-require-full-coverage", "yes"]);
    let (code, said) = check_of(&cluster.url(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no timeline under the namespace `default` yet"), "{said}");
    for master in 0..3 {
        let (port, shards) = (cluster.nodes[master].server.port, shards_of(&cluster, master).len());
        assert!(said.contains(&format!("`127.0.0.1:{port}` ({shards} shards)")), "{said}");
    }
    assert!(said.contains("`cluster-require-full-coverage` is `yes`"), "{said}");
    assert!(!said.contains("names one node"), "{said}");
    // One host is enough to find the others, and two are safer.
    let one = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[1].server.port);
    let (code, said) = check_of(&one, &[]);
    assert!(code == Some(0) && said.contains("the URL names one node of the cluster"), "{said}");
    // A host that is down is named. A master that is down is an error.
    cluster.nodes[2].server.kill();
    let (code, said) = check_of(&cluster.url(), &[]);
    let down = cluster.nodes[2].server.port;
    assert!(code == Some(3) && said.contains(&format!("`127.0.0.1:{down}`")), "{code:?} {said}");
}

#[test]
fn two_servers_that_are_no_cluster_and_hosts_of_two_clusters_are_refused() {
    if !have("redis-server") {
        return;
    }
    let [one, two] = [RedisServer::start(&[]), RedisServer::start(&[])];
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", one.server.port, two.server.port);
    for (code, said) in serve_and_check(&["--redis", &url]) {
        assert!(code == Some(2) && said.contains("is not in cluster mode: its URL begins with `redis://`"), "{said}");
    }
    let [one, two] = [RedisServer::start_cluster(), RedisServer::start_cluster()];
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", one.server.port, two.server.port);
    let (code, said) = check_of(&url, &[]);
    assert!(code == Some(1) && said.contains("are in different clusters"), "{said}");
}

/// A Redis Streams sink needs one Redis, because a stream is on one node of a cluster.
#[test]
fn a_sink_on_a_cluster_is_refused() {
    let done = run(&["check", "--offline", "--redis", "memory:", "--sink", "redis+cluster://127.0.0.1:1,127.0.0.1:2"]);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("a Redis Streams sink needs one Redis"), "{said}");
}

#[test]
fn another_database_and_several_plain_hosts_are_refused() {
    for (url, detail) in [
        ("redis+cluster://127.0.0.1:1,127.0.0.1:2/1", "a Redis Cluster has database 0 only"),
        ("redis://127.0.0.1:1,127.0.0.1:2", "or for a cluster: `redis+cluster://`"),
    ] {
        let (code, said) = check_of(url, &[]);
        assert!(code == Some(2) && said.contains(detail), "{said}");
    }
}
