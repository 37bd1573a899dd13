//! `redis.durability`: no success is answered before the write is where the configuration requires it: here, on a
//! replica.

use std::sync::Mutex;

use super::*;
use crate::support::have;
use crate::support::scripted::Scripted;

/// Takes more than five seconds: each answer without a replica's confirmation waits until its deadline.
#[tokio::test]
async fn writes_without_a_following_replica_take_effect_but_are_not_confirmed() {
    if !have("redis-server") {
        return;
    }
    let pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    assert_eq!(put(&timeline, "a", SOON).await, Ok(PutResult::Created));
    assert_eq!(put(&timeline, "gone", SOON).await, Ok(PutResult::Created));

    pair.replica.server.signal("STOP");
    let answer = put(&timeline, "b", SHORT).await;
    assert!(unconfirmed(&answer, "no replica has confirmed it"), "{answer:?}");
    let cancelled = timeline.cancel(shard(), &task("gone"), None, within(&timeline, SHORT)).await;
    assert!(matches!(&cancelled, Err(TimelineError::Unconfirmed(_))), "{cancelled:?}");
    // A repeated call must not be answered with success without asking a replica.
    let again = put(&timeline, "b", SHORT).await;
    assert!(unconfirmed(&again, "no replica"), "{again:?}");
    assert!(timeline.get(shard(), &task("b")).await.unwrap().is_some());
    assert_eq!(timeline.get(shard(), &task("gone")).await, Ok(None));

    pair.replica.server.signal("CONT");
    assert_eq!(put(&timeline, "b", SOON).await, Ok(PutResult::Unchanged));
    let gone = timeline.cancel(shard(), &task("gone"), None, within(&timeline, SOON)).await;
    assert_eq!(gone, Ok(CancelAnswer::Unknown));
}

/// The connection that carries a put and the connection that confirms it end together. The put is sent again, and
/// confirmed on the next connections.
#[tokio::test]
async fn a_put_after_closed_connections_is_confirmed_on_the_next_ones() {
    if !have("redis-server") {
        return;
    }
    let pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    for id in ["a", "b", "c"] {
        for kind in ["normal", "pubsub"] {
            let mut kill = ::redis::cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes");
            kill.exec(&mut pair.master.connect()).unwrap();
        }
        let answer = put(&timeline, id, SOON).await;
        assert!(matches!(answer, Ok(PutResult::Created | PutResult::Unchanged)), "{id}: {answer:?}");
    }
}

/// Puts tasks that are due, and records them as dead.
async fn make_dead(timeline: &RedisTimeline, ids: &[&str]) -> Vec<Key> {
    put_all(timeline, PutMode::Put, ids.iter().map(|id| new(id, 1000, "")).collect(), SOON).await;
    let taken = claim(timeline, "i.dead").await;
    let dead_record =
        |one: &Occurrence| DeadRecord { record: one.record.clone(), reason: "rejected".into(), detail: "no".into() };
    let dead = |one: &Occurrence| Settlement {
        member: one.member.clone(),
        due: one.due,
        verdict: Verdict::Dead(dead_record(one)),
    };
    let settle = Settle {
        token: Token("i.dead".to_owned()),
        verdicts: taken.iter().map(dead).collect(),
        rest: RestOfClaim::Keep,
        lease: SOON,
        dead_cap: DeadCap::of(100),
        quiet: false,
    };
    let settled = timeline.settle(shard(), &Lane::default(), settle).await.unwrap();
    assert_eq!((taken.len(), settled), (ids.len(), Settled::default()));
    ids.iter().map(|id| Key { task: task(id), due: Timestamp::from_millis(1000) }).collect()
}

/// Takes more than five seconds: each answer without a replica's confirmation waits until its deadline.
#[tokio::test]
async fn user_calls_wait_for_the_replica_but_calls_of_instances_do_not() {
    if !have("redis-server") {
        return;
    }
    let pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    let keys = make_dead(&timeline, &["back", "away"]).await;
    pair.replica.server.signal("STOP");
    let deadline = || within(&timeline, SHORT);
    let posted = timeline.put(shard(), PutMode::Post, vec![new("post", 9_000_000_000_000, "")], deadline()).await;
    let requeued = timeline.requeue(shard(), &keys[0], None, deadline()).await;
    let discarded = timeline.discard(shard(), &keys[1], None, deadline()).await;
    let reported = [posted.map(drop), requeued.map(drop), discarded.map(drop)];
    for reported in reported {
        let detail = "it took effect, but its durability is not confirmed: no replica has confirmed it in time";
        assert_eq!(reported, Err(TimelineError::Unconfirmed(detail.to_owned())));
    }
    // All calls took effect. Publishing does not wait for a replica.
    assert!(timeline.get(shard(), &task("post")).await.unwrap().is_some());
    assert_eq!(claim(&timeline, "i.publish").await.len(), 1);
    assert_eq!(timeline.show(shard(), &keys[1]).await, Ok(None));
    pair.replica.server.signal("CONT");
    assert_eq!(timeline.discard(shard(), &keys[1], None, within(&timeline, SOON)).await, Ok(false));
}

/// The wait blocks its connection, so no other call may use that one.
#[tokio::test]
async fn a_put_that_waits_for_a_replica_blocks_no_other_call() {
    if !have("redis-server") {
        return;
    }
    let pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    pair.replica.server.signal("STOP");
    let (waiting, other) = (put(&timeline, "a", Duration::from_secs(20)), async {
        while timeline.get(shard(), &task("a")).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let glance = GlanceRequest { lanes: Vec::new(), lease: SOON, dead_keep: SOON, depth: false };
        timeline.glance(shard(), glance).await.unwrap();
        // Calls that arrive during a wait share the next one.
        let others = ["b", "c", "d"].map(|id| put(&timeline, id, Duration::from_secs(20)));
        let resumed = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            pair.replica.server.signal("CONT");
        };
        tokio::join!(futures_util::future::join_all(others), resumed).0
    });
    let (first, others) = tokio::join!(waiting, other);
    assert_eq!(first, Ok(PutResult::Created));
    assert!(others.iter().all(|other| *other == Ok(PutResult::Created)), "{others:?}");
}

#[tokio::test]
async fn confirmed_puts_are_on_the_replica_that_takes_over() {
    if !have("redis-server") {
        return;
    }
    let mut pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    let promised = Mutex::new(Vec::new());
    let puts = futures_util::future::join_all((0..8).map(|client| {
        let (timeline, promised) = (&timeline, &promised);
        async move {
            for number in 0.. {
                let id = format!("{client}-{number}");
                match put(timeline, &id, SHORT).await {
                    Ok(_) => promised.lock().unwrap().push(id),
                    // The master is dead.
                    Err(TimelineError::Unavailable(_)) => return,
                    Err(_) => {}
                }
            }
        }
    }));
    let failover = async {
        // The replica may still be synchronizing.
        while promised.lock().unwrap().len() < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            pair.replica.server.signal("STOP");
            tokio::time::sleep(Duration::from_millis(150)).await;
            pair.replica.server.signal("CONT");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Writes from here on are never replicated.
        pair.replica.server.signal("STOP");
        tokio::time::sleep(Duration::from_millis(150)).await;
        pair.master.server.kill();
    };
    tokio::join!(puts, failover);
    pair.replica.server.signal("CONT");
    let mut raw = pair.replica.connect();
    ::redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut raw).unwrap();
    let promised = promised.into_inner().unwrap();
    let key = "punctual:{default:0}:tasks";
    let there: Vec<String> = ::redis::cmd("HKEYS").arg(key).query(&mut raw).unwrap();
    let lost: Vec<_> = promised.iter().filter(|id| !there.contains(id)).collect();
    assert!(lost.is_empty() && promised.len() >= 20, "of {} promised, lost: {lost:?}", promised.len());
    crate::support::say(&format!(
        "trouble, durability replica: {} puts promised across a kill of the master, 0 lost; {} tasks on the replica",
        promised.len(),
        there.len()
    ));
}

/// A cancel must be possible on a full Redis, and so must the write of its wait.
#[tokio::test]
async fn a_cancel_is_confirmed_by_the_replica_while_redis_is_full() {
    if !have("redis-server") {
        return;
    }
    let pair = Pair::start();
    let timeline = connected(&pair.master.url(), Durability::Replica).await;
    assert_eq!(put(&timeline, "a", SOON).await, Ok(PutResult::Created));
    let mut raw = pair.master.connect();
    ::redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(&mut raw).unwrap();
    let refused = put(&timeline, "b", SOON).await;
    assert!(matches!(&refused, Err(TimelineError::Refused(detail)) if detail.starts_with("OOM")), "{refused:?}");
    let cancelled = timeline.cancel(shard(), &task("a"), None, within(&timeline, SOON)).await;
    assert_eq!(cancelled, Ok(CancelAnswer::Cancelled { handed_out: None }));
    let left: u64 = ::redis::cmd("EXISTS").arg("punctual:{default}:nothing").query(&mut raw).unwrap();
    assert_eq!(left, 0, "the write that the wait confirms leaves no key");
}

/// The connection of the wait may be closed at any time. Another one replaces it without an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_wait_connection_is_replaced_without_losing_the_session() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let state = Arc::new(Mutex::new((None, 0, Vec::new())));
    let seen = Arc::clone(&state);
    let scripted = Scripted::before(server.server.port, move |asked| {
        let mut state = seen.lock().unwrap();
        // All other connections send scripts by their hashes.
        if asked.is("EVAL") {
            state.0 = Some(asked.connection);
            if state.1 > 0 {
                state.1 -= 1;
                drop(state);
                // Longer than the response timeout.
                std::thread::sleep(Duration::from_millis(2500));
                return None;
            }
        }
        if asked.is("PING") && state.0 == Some(asked.connection) {
            state.2.push(asked.connection);
        }
        asked.is("WAIT").then(|| ":1\r\n".to_owned())
    });
    let config = RedisConfig {
        durability: Durability::Replica,
        response_timeout: Duration::from_secs(1),
        ..RedisConfig::new(&scripted.url(), "default".parse().unwrap(), 1)
    };
    let timeline = RedisTimeline::connect(config).unwrap();
    until_up(&timeline).await;
    assert_eq!(put(&timeline, "a", SOON).await, Ok(PutResult::Created));
    let line = || state.lock().unwrap().0.unwrap();
    let first = line();
    assert!(crate::support::patient(SOON, || state.lock().unwrap().2.contains(&first)), "it is left idle");
    scripted.cut(|number| number == first);
    assert_eq!(put(&timeline, "b", SOON).await, Ok(PutResult::Created));
    let second = line();
    assert_ne!(first, second);
    state.lock().unwrap().1 = 1;
    assert_eq!(put(&timeline, "c", SOON).await, Ok(PutResult::Created));
    assert_ne!(line(), second, "one that is silent is given up");
    assert_eq!(*timeline.link(Shard::FIRST).borrow(), Link::Up(1), "the session of the other connections goes on");
}

/// A wait confirms only writes of its own session. After the command connection was lost, it says nothing about earlier
/// writes. A put is then put again, and confirmed by the next session.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_does_not_count_after_its_session_was_given_up() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let relay: Arc<std::sync::OnceLock<Scripted>> = Arc::default();
    let (cutting, cuts) = (Arc::clone(&relay), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let (cut, opened) = (Arc::clone(&cuts), std::sync::atomic::AtomicU32::new(0));
    let waits = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = Arc::clone(&waits);
    let scripted = Scripted::before(server.server.port, move |asked| {
        // Every session begins with this command, after the previous session was given up.
        if asked.is("DEL") {
            opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        // The waiting connection stays open: it confirms after the others are cut.
        asked.is("WAIT").then(|| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // Only once, because the next session waits, too.
            if cut.swap(false, std::sync::atomic::Ordering::Relaxed) {
                let before = opened.load(std::sync::atomic::Ordering::Relaxed);
                cutting.get().unwrap().cut(|number| number != asked.connection);
                crate::support::patient(SOON, || opened.load(std::sync::atomic::Ordering::Relaxed) > before);
            }
            ":1\r\n".to_owned()
        })
    });
    let scripted = relay.get_or_init(|| scripted);
    let timeline = connected(&scripted.url(), Durability::Replica).await;
    assert_eq!(put(&timeline, "a", SOON).await, Ok(PutResult::Created));
    // Another call uses the connection and notices the loss.
    let noticed = async || {
        for _ in 0..40 {
            drop(timeline.get(shard(), &task("b")).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    cuts.store(true, std::sync::atomic::Ordering::Relaxed);
    let id = task("a");
    let (answer, ()) = tokio::join!(timeline.cancel(shard(), &id, None, within(&timeline, SOON)), noticed());
    assert!(matches!(answer, Err(TimelineError::Unconfirmed(_))), "{answer:?}");
    until_up(&timeline).await;
    let before = waits.load(std::sync::atomic::Ordering::Relaxed);
    cuts.store(true, std::sync::atomic::Ordering::Relaxed);
    let (answer, ()) = tokio::join!(put(&timeline, "b", SOON), noticed());
    assert_eq!(answer, Ok(PutResult::Unchanged), "the first copy created it");
    let waited = waits.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert!(waited >= 2, "the confirmation of the lost session does not count: {waited}");
}

/// Two connections to one address may lead to two servers while the address moves.
#[tokio::test]
async fn a_connection_to_another_process_confirms_nothing() {
    if !have("redis-server") {
        return;
    }
    let server = RedisServer::start(&[]);
    let starts = std::sync::atomic::AtomicU32::new(0);
    let scripted = Scripted::before(server.server.port, move |asked| {
        let info = |id: u32| format!("# Server\r\nredis_version:7.2.0\r\nrun_id:{id:040}\r\n");
        let answer = |text: String| format!("${}\r\n{text}\r\n", text.len());
        // Every answer comes from a different server.
        asked.is("INFO").then(|| answer(info(starts.fetch_add(1, std::sync::atomic::Ordering::Relaxed))))
    });
    let config = RedisConfig {
        durability: Durability::Replica,
        ..RedisConfig::new(&scripted.url(), "default".parse().unwrap(), 1)
    };
    let timeline = RedisTimeline::connect(config).unwrap();
    let mut link = timeline.link(Shard::FIRST);
    let reported = |link: &Link| matches!(link, Link::Down(detail) if detail.contains("lead to two servers"));
    tokio::time::timeout(SOON, link.wait_for(reported)).await.unwrap().unwrap();
}
