//! A cluster whose nodes speak TLS alone, and ask for a password.

use std::sync::Arc;

use super::*;
use crate::support::certificates::Certificates;
use crate::support::have;
use crate::support::redis::SecureRedis;
use crate::support::server::free_port;

/// The password of the user.
const PASSWORD: &str = "hunter2";

fn cluster(node: &SecureRedis, arguments: &[&str]) -> String {
    let answer: redis::Value = redis::cmd("CLUSTER").arg(arguments).query(&mut node.connect()).expect("an answer");
    redis::from_redis_value(answer).expect("a text")
}

/// Two masters over TLS, each with half of the slots.
fn start(certificates: &Arc<Certificates>) -> [SecureRedis; 2] {
    let ports = [free_port(), free_port()].map(|port| port.to_string());
    let nodes = ports.each_ref().map(|bus| {
        let options = ["--cluster-enabled", "yes", "--cluster-port", bus, "--tls-cluster", "yes"];
        SecureRedis::start_with(certificates, PASSWORD, &options)
    });
    for (node, (slots, epoch)) in nodes.iter().zip([(["0", "8191"], "1"), (["8192", "16383"], "2")]) {
        cluster(node, &[&["ADDSLOTSRANGE"], &slots[..]].concat());
        cluster(node, &["SET-CONFIG-EPOCH", epoch]);
    }
    cluster(&nodes[0], &["MEET", "127.0.0.1", &nodes[1].server.port.to_string(), &ports[1]]);
    let is_whole = |node: &SecureRedis| {
        let info = cluster(node, &["INFO"]);
        info.contains("cluster_known_nodes:2") && info.contains("cluster_state:ok")
    };
    assert!(patient(PUBLISH_LIMIT, || nodes.iter().all(is_whole)), "{}", cluster(&nodes[0], &["INFO"]));
    nodes
}

#[test]
fn a_cluster_is_reached_over_tls_with_a_password_at_all_its_nodes() {
    if !have("redis-server") {
        return;
    }
    let certificates = Arc::new(Certificates::new());
    let (nodes, sink) = (start(&certificates), RedisServer::start(&[]));
    // The second node is known from answers of the first alone.
    let url = |password: &str| format!("rediss+cluster://punctual:{password}@127.0.0.1:{}", nodes[0].server.port);
    let ca_file = format!("[tls]\nca_file = \"{}\"\n", certificates.ca_file().display());
    let instance = Punctual::start(&config_of(&url(PASSWORD), &sink, &ca_file));
    let soon = r#"{"schedule": {"in": "50ms"}, "message": {"destination": "out"}}"#;
    for shard in 0..SHARDS {
        assert_eq!(instance.api().put(&id_in(shard, "a"), soon).expect("an answer").status, 201);
    }
    let published = || read_stream(sink.server.port, "out").len();
    assert!(patient(PUBLISH_LIMIT, || published() == usize::from(SHARDS)), "{}", published());
    for node in &nodes {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut node.connect()).expect("a number");
        assert!(keys > 0, "both nodes have shards");
    }
    assert!(!instance.log().contains(PASSWORD));
}
