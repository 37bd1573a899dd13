//! The Redis servers that the tests of the timeline share. Each test has a namespace of its own, and a user that may do
//! what docs/operations.md says and nothing more.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use punctual::clock::ManualClock;
use punctual::task::{Namespace, Shard};
use punctual::timeline::redis::{RedisConfig, RedisTimeline};
use punctual::timeline::{Link, Timeline};

use super::raw::Raw;
use crate::support::have;
use crate::support::redis::RedisServer;

/// A kind of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain,
    /// In cluster mode: one node that has all slots.
    Cluster,
}

/// A server that tests share. When it stops, it must have refused no command.
pub(crate) struct SharedServer(RedisServer);

impl Deref for SharedServer {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        let log: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut self.0.connect()).expect("its log");
        assert!(
            log.is_empty() || std::thread::panicking(),
            "the user of docs/operations.md may do too little: {log:?}"
        );
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
            Shape::Plain => RedisServer::start(&[]),
            Shape::Cluster => RedisServer::start_cluster(),
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
pub(crate) async fn connect(server: &RedisServer, clock: Arc<ManualClock>, shards: u16) -> (Arc<RedisTimeline>, Raw) {
    let namespace = namespace();
    let raw = Raw::new(server.connect(), namespace.to_string());
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg(namespace.as_str()).arg("on").arg(">secret").arg(user_rules(&namespace));
    user.exec(&mut server.connect()).expect("its rules are understood");
    let url = server.url().replace("://", &format!("://{namespace}:secret@"));
    let mut config = RedisConfig::new(&url, namespace, shards);
    config.time = Some(clock);
    // A long timeout, so that a busy machine is not taken for a dead server.
    config.response_timeout = Duration::from_secs(30);
    let timeline = RedisTimeline::connect(config).unwrap();
    let mut link = timeline.link(Shard::FIRST);
    let up = link.wait_for(|link| matches!(link, Link::Up(_)));
    drop(tokio::time::timeout(Duration::from_secs(30), up).await.expect("a server that answers").unwrap());
    (timeline, raw)
}
