//! The Redis servers that the tests of the timeline share. Each test has a namespace of its own, and a user that may do
//! what docs/operations.md says and nothing more.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use punctual::clock::ManualClock;
use punctual::task::Namespace;
use punctual::timeline::redis::{RedisConfig, RedisTimeline};

use super::raw::Raw;
use crate::support::cluster::Cluster;
use crate::support::have;
use crate::support::redis::RedisServer;

/// A kind of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain,
    /// A cluster of three masters.
    Cluster,
}

/// A server that tests share, or the masters of a cluster. When they stop, they must have refused no command.
pub(crate) struct SharedServer(Vec<RedisServer>);

impl Deref for SharedServer {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0[0]
    }
}

impl SharedServer {
    /// The URL, with the user of this namespace.
    fn url(&self, namespace: &Namespace) -> String {
        let hosts: Vec<String> = self.0.iter().map(|node| format!("127.0.0.1:{}", node.server.port)).collect();
        let scheme = if hosts.len() > 1 { "redis+cluster" } else { "redis" };
        format!("{scheme}://{namespace}:secret@{}", hosts.join(","))
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        for node in &self.0 {
            let log: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut node.connect()).expect("its log");
            assert!(
                log.is_empty() || std::thread::panicking(),
                "the user of docs/operations.md may do too little: {log:?}"
            );
        }
    }
}

/// What the Redis user of docs/operations.md may do, in another namespace.
fn user_rules(namespace: &Namespace) -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).expect("the page");
    let (_, rules) = page.split_once("ACL SETUSER punctual on '>secret'").expect("its rules");
    let (rules, _) = rules.split_once("punctual serve").expect("their end");
    let rules = rules.replace("\\|", "|").replace("{default", &format!("{{{namespace}"));
    rules.split_whitespace().filter(|rule| *rule != "\\").map(|rule| rule.trim_matches('\'').to_owned()).collect()
}

/// The server of a kind that all running tests share; it stops with the last of them.
pub(crate) fn shared_server(shape: Shape) -> Option<Arc<SharedServer>> {
    static SHARED: Mutex<[Weak<SharedServer>; 2]> = Mutex::new([Weak::new(), Weak::new()]);
    if !have("redis-server") {
        return None;
    }
    let shared = &mut SHARED.lock().unwrap_or_else(PoisonError::into_inner)[shape as usize];
    Some(shared.upgrade().unwrap_or_else(|| {
        let server = match shape {
            Shape::Plain => vec![RedisServer::start(&[])],
            Shape::Cluster => Cluster::start(0).nodes,
        };
        let server = Arc::new(SharedServer(server));
        *shared = Arc::downgrade(&server);
        server
    }))
}

/// A namespace that no other test uses.
pub(crate) fn namespace() -> Namespace {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("laws-{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

/// A timeline on a server, once it is up, and a view of its state.
pub(crate) async fn connect(server: &SharedServer, clock: Arc<ManualClock>, shards: u16) -> (Arc<RedisTimeline>, Raw) {
    let namespace = namespace();
    let connections = server.0.iter().map(RedisServer::connect).collect();
    let raw = Raw::new(connections, namespace.to_string(), shards);
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg(namespace.as_str()).arg("on").arg(">secret").arg(user_rules(&namespace));
    for node in &server.0 {
        user.exec(&mut node.connect()).expect("its rules are understood");
    }
    let mut config = RedisConfig::new(&server.url(&namespace), namespace, shards);
    config.time = Some(clock);
    // A long timeout, so that a busy machine is not taken for a dead server.
    config.response_timeout = Duration::from_secs(30);
    let timeline = RedisTimeline::connect(config).unwrap();
    tokio::time::timeout(Duration::from_secs(30), timeline.all_up()).await.expect("a server that answers");
    (timeline, raw)
}
