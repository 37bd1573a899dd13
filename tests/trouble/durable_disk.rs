//! `redis.durability = "fsync"`: no success is answered before the write is on the disk.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};

use super::*;
use crate::support::have;
use crate::support::scripted::{Asked, Scripted};

/// How Redis 7.2 and later answer `WAITAOF`: for each connection's own last write only.
#[derive(Default)]
struct Disk {
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DiskState {
    written: u64,
    own: HashMap<usize, u64>,
    synced: u64,
    waits: u32,
}

impl Disk {
    fn answer(&self, asked: &Asked) -> Option<String> {
        let mut state = self.state.lock().unwrap();
        if asked.is("EVAL") || asked.is("EVALSHA") {
            state.written += 1;
            let written = state.written;
            state.own.insert(asked.connection, written);
        }
        if !asked.is("WAITAOF") {
            return None;
        }
        assert_eq!(asked.words[1..3], ["1", "0"], "one local disk, no replica");
        state.waits += 1;
        let own = state.own.get(&asked.connection).copied().unwrap_or(0);
        let limit = Duration::from_millis(asked.words[3].parse().unwrap());
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.synced < own).unwrap();
        Some(format!("*2\r\n:{}\r\n:0\r\n", u8::from(waited.0.synced >= own)))
    }

    /// Everything written so far is on the disk now.
    fn sync(&self) {
        let mut state = self.state.lock().unwrap();
        state.synced = state.written;
        self.changed.notify_all();
    }
}

/// A Redis that answers `WAITAOF` as version 7.2 does, and its disk.
fn with_disk(server: &RedisServer) -> (Scripted, Arc<Disk>) {
    let disk = Arc::new(Disk::default());
    let answering = Arc::clone(&disk);
    (Scripted::before(server.server.port, move |command| answering.answer(command)), disk)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_not_confirmed_before_its_write_is_on_the_disk() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let (scripted, disk) = with_disk(&server);
    let timeline = connected(&scripted.url(), Durability::Fsync).await;
    let answer = put(&timeline, "a", SHORT).await;
    assert!(unconfirmed(&answer, "on its disk"), "{answer:?}");
    assert!(timeline.get(shard(), &task("a")).await.unwrap().is_some(), "it took effect");
    let waits = disk.state.lock().unwrap().waits;
    let (answer, ()) = tokio::join!(put(&timeline, "b", SOON), async {
        while disk.state.lock().unwrap().waits == waits {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        disk.sync();
    });
    assert_eq!(answer, Ok(PutResult::Created));
}

/// A refused put wrote nothing and needs no confirmation, alone or beside a task that was written. A cancel that finds
/// no task needs one, because an earlier cancel may have removed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_put_waits_for_no_confirmation() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let plain = connected(&server.url(), Durability::Memory).await;
    let puts = vec![new("used", 9_000_000_000_000, "a"), new("held", 1000, "a")];
    put_all(&plain, PutMode::Put, puts, SOON).await;
    assert_eq!(claim(&plain, "i.1").await.len(), 1);
    // The disk never confirms.
    let (scripted, disk) = with_disk(&server);
    let timeline = connected(&scripted.url(), Durability::Fsync).await;
    let waits = || disk.state.lock().unwrap().waits;
    let before = waits();
    let another = || new("used", 9_000_000_000_000, "b");
    assert_eq!(put_all(&timeline, PutMode::Post, vec![another()], SOON).await, [PutResult::KeyReused]);
    let refused = vec![new("held", 1000, "b"), new("never", 0, "b")];
    assert_eq!(put_all(&timeline, PutMode::Put, refused, SOON).await, [PutResult::InFlight, PutResult::BadDue]);
    assert_eq!(waits(), before, "Redis was not asked whether its disk has the writes");

    let beside = vec![another(), new("fresh", 9_000_000_000_000, "b")];
    let answers = put_all(&timeline, PutMode::Post, beside, SHORT).await;
    assert_eq!(answers, [PutResult::KeyReused, PutResult::Unconfirmed]);
    // An earlier call may have cancelled the task and been answered that the durability is not confirmed.
    let cancelled = timeline.cancel(shard(), &task("nobody"), None, within(&timeline, SHORT)).await;
    let detail = "there is no such task, but it is not confirmed that this is durable: Redis did not confirm in time that it is on its disk";
    assert_eq!(cancelled, Err(TimelineError::Unconfirmed(detail.to_owned())));
}

/// Against a server that has the command: which writes count for a connection is the server's decision.
#[tokio::test]
async fn a_real_disk_confirms() {
    if !have("redis-server") {
        return;
    }
    let version = std::process::Command::new("redis-server").arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let number = version.split("v=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (parts.next(), parts.next()) < (Some(7), Some(2)) {
        crate::support::say(&format!("trouble, durability fsync: this Redis is {number} and has no WAITAOF: not run"));
        return;
    }
    for fsync in ["everysec", "always"] {
        let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", fsync]);
        let timeline = connected(&server.url(), Durability::Fsync).await;
        for number in 0..5 {
            assert_eq!(put(&timeline, &number.to_string(), SOON).await, Ok(PutResult::Created), "{fsync}");
        }
        let cancelled = timeline.cancel(shard(), &task("0"), None, within(&timeline, SOON)).await;
        assert_eq!(cancelled, Ok(CancelAnswer::Cancelled { handed_out: None }), "{fsync}");
    }
}
