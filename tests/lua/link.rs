//! Connections that break, hang, or lead to the wrong server; and calls without a reply.

use std::sync::atomic::AtomicU32;

use punctual::timeline::redis::{Durability, RedisError};
use punctual::timeline::{MoveRequest, TaskPauseRequest};
use tokio::time::Instant;

use super::*;
use crate::support::log::Log;
use crate::support::scripted::Scripted;
use crate::support::server::free_port;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// For tests in which no server hangs: a late reply means nothing there.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// Short timeouts, and Redis' own clock.
fn config(url: &str) -> RedisConfig {
    let mut config = RedisConfig::new(url, namespace(), 1);
    config.connect_timeout = SHORT_TIMEOUT;
    config.response_timeout = SHORT_TIMEOUT;
    config
}

/// An operator who looks at the end of the log sees that the outage lasts.
#[tokio::test(start_paused = true)]
async fn an_outage_of_redis_is_logged_again_every_minute_with_its_length() {
    let (log, _guard) = Log::begin();
    let mut config = config(&format!("redis://127.0.0.1:{}", free_port()));
    (config.connect_timeout, config.response_timeout) = (LONG_TIMEOUT, LONG_TIMEOUT);
    let timeline = RedisTimeline::connect(config).unwrap();
    assert!(matches!(timeline.first_attempt().await, Link::Down(_)));
    let lines = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!((lines("redis is unavailable"), lines("still unavailable")), (1, 0), "{}", log.text());
    tokio::time::sleep(Duration::from_secs(140)).await;
    assert!((2..=3).contains(&lines("still unavailable")), "{}", log.text());
    assert_eq!(lines("tasks=\"unknown\""), lines("outage_s="), "{}", log.text());
}

async fn connected(server: &RedisServer) -> Arc<RedisTimeline> {
    let timeline = RedisTimeline::connect(config(&server.url())).unwrap();
    assert_eq!(up(&timeline).await, 1);
    timeline
}

/// The same with timeouts that no call reaches.
async fn with_long_timeouts(server: &RedisServer) -> Arc<RedisTimeline> {
    let mut config = config(&server.url());
    (config.connect_timeout, config.response_timeout) = (LONG_TIMEOUT, LONG_TIMEOUT);
    let timeline = RedisTimeline::connect(config).unwrap();
    assert_eq!(up(&timeline).await, 1);
    timeline
}

fn shard() -> Shard {
    Shard::all(1).next().unwrap()
}

fn within(timeline: &RedisTimeline, span: Duration) -> Timestamp {
    timeline.any_clock().now().plus(span)
}

async fn put_at(timeline: &RedisTimeline, id: &str, not_after: Timestamp) -> Result<PutResult, TimelineError> {
    let puts = vec![put(id, 9_000_000_000_000, "x")];
    timeline.put(shard(), PutMode::Put, puts, not_after).await.map(|answers| answers[0].result)
}

async fn put_now(timeline: &RedisTimeline, id: &str) -> Result<PutResult, TimelineError> {
    put_at(timeline, id, within(timeline, Duration::from_secs(10))).await
}

#[tokio::test]
async fn the_clock_is_redis_own() {
    let Some(server) = shared_server() else { return };
    let timeline = with_long_timeouts(&server).await;
    assert!(timeline.any_clock().uncertainty() < LONG_TIMEOUT, "known from the first connection on");
    let reported = || {
        let (seconds, micros): (i64, i64) = ::redis::cmd("TIME").query(&mut server.connect()).unwrap();
        at(seconds * 1000 + micros / 1000)
    };
    let off = timeline.any_clock().uncertainty() + Duration::from_secs(1);
    let (before, now, after) = (reported(), timeline.any_clock().now(), reported());
    assert!(before.minus(off) < now && now < after.plus(off), "{before} {now} {after}");
    let glance = timeline.glance(shard(), glancing(&[("default", true)])).await.unwrap();
    assert_eq!(glance.dead, 0);
}

/// Commands that were sent while the server hung wait in its buffer: one instance's reap before the others' extends.
#[tokio::test]
async fn a_reap_that_redis_reads_after_a_hang_ends_no_claim() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    let due = timeline.any_clock().now().plus(Duration::from_millis(1));
    let puts = vec![Put { due, ..put("a", 1, "x") }];
    timeline.put(shard(), PutMode::Put, puts, within(&timeline, Duration::from_secs(10))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let lease = Duration::from_millis(500);
    let not_after = within(&timeline, Duration::from_secs(10));
    let claim = ClaimRequest { lease, not_after, ..claim_of("i.1", 1) };
    assert_eq!(timeline.claim(shard(), &Lane::default(), claim).await.unwrap().occurrences.len(), 1);

    server.server.signal("STOP");
    let reap = ReapRequest { lease, not_after: within(&timeline, Duration::from_millis(100)), ..reaping() };
    let reaped = timeline.reap(shard(), &Lane::default(), reap).await;
    assert!(matches!(reaped, Err(TimelineError::Unknown(_))), "{reaped:?}");
    tokio::time::sleep(lease).await;
    server.server.signal("CONT");
    up(&timeline).await;
    let tokens = [(Lane::default(), token("i.1"))];
    let extended = tokio::time::timeout(LONG_TIMEOUT, async {
        loop {
            if let Ok(live) = timeline.extend(shard(), &tokens, LEASE).await {
                return live;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(extended.await.expect("an answer"), [true]);
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = with_long_timeouts(&server).await;
    let mut raw = server.connect();
    for id in ["a", "b"] {
        let _: () = ::redis::cmd("SCRIPT").arg("FLUSH").query(&mut raw).unwrap();
        assert_eq!(put_now(&timeline, id).await, Ok(PutResult::Created));
    }
    let mut knows_claim = || -> Vec<u8> {
        let sha = ::redis::Script::new(scripts::CLAIM.source).get_hash().to_owned();
        ::redis::cmd("SCRIPT").arg("EXISTS").arg(sha).query(&mut raw).unwrap()
    };
    assert_eq!(knows_claim(), [0], "each is loaded by its own call");
    timeline.claim(shard(), &Lane::default(), claim_of("i.1", 2)).await.unwrap();
    assert_eq!(knows_claim(), [1]);
    assert_eq!(up(&timeline).await, 1);
}

#[tokio::test]
async fn a_timeline_starts_while_redis_is_away() {
    let Some(mut server) = own_server(&[]) else { return };
    server.server.kill();
    let timeline = RedisTimeline::connect(config(&server.url())).unwrap();
    let refused = |link: &Link| matches!(link, Link::Down(reason) if reason.to_lowercase().contains("refused"));
    link_is(&timeline, refused).await;
    let away = put_now(&timeline, "a").await;
    assert!(matches!(&away, Err(TimelineError::Unavailable(reason)) if reason.contains("127.0.0.1:")), "{away:?}");
    server.server.restart();
    assert_eq!(up(&timeline).await, 1);
    assert_eq!(put_now(&timeline, "a").await, Ok(PutResult::Created));
}

#[tokio::test]
async fn a_redis_that_was_killed_is_found_again() {
    let Some(mut server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    for generation in 2..4 {
        server.server.kill();
        link_is(&timeline, |link| matches!(link, Link::Down(_))).await;
        server.server.restart();
        assert_eq!(up(&timeline).await, generation);
        assert_eq!(put_now(&timeline, "a").await, Ok(PutResult::Created), "with its scripts, though it lost its data");
    }
}

/// Redis, or a proxy, closes connections without notice. The calls of users that follow are sent on the next connection.
#[tokio::test]
async fn calls_after_closed_connections_are_answered() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    let cut = || {
        for kind in ["normal", "pubsub"] {
            ::redis::cmd("CLIENT")
                .arg("KILL")
                .arg("TYPE")
                .arg(kind)
                .arg("SKIPME")
                .arg("yes")
                .exec(&mut server.connect())
                .unwrap();
        }
    };
    for id in ["a", "b", "c"] {
        cut();
        assert_eq!(put_now(&timeline, id).await, Ok(PutResult::Created));
    }
    cut();
    assert!(timeline.get(shard(), &task("a")).await.unwrap().is_some());
    cut();
    let cancelled = timeline.cancel(shard(), &task("a"), None, within(&timeline, LONG_TIMEOUT)).await;
    assert_eq!(cancelled, Ok(CancelAnswer::Cancelled { handed_out: None }));
    let keys = [one_dead(&timeline, "d").await, one_dead(&timeline, "e").await];
    cut();
    let requeued = timeline.requeue(shard(), &keys[0], None, within(&timeline, LONG_TIMEOUT)).await;
    assert_eq!(requeued, Ok(RequeueAnswer::Requeued));
    cut();
    assert_eq!(timeline.discard(shard(), &keys[1], None, within(&timeline, LONG_TIMEOUT)).await, Ok(true));
}

/// A dead occurrence; returns its key.
async fn one_dead(timeline: &RedisTimeline, id: &str) -> Key {
    let puts = vec![put(id, 1000, "x")];
    timeline.put(shard(), PutMode::Put, puts, within(timeline, LONG_TIMEOUT)).await.unwrap();
    timeline.claim(shard(), &Lane::default(), claim_of(&format!("{id}.1"), 1)).await.unwrap();
    let settle = Settle {
        token: token(&format!("{id}.1")),
        verdicts: vec![settlement(id, 1000, Verdict::Dead(dead_record("x")))],
        rest: RestOfClaim::Keep,
        lease: LEASE,
        dead_cap: DeadCap::of(1000),
        quiet: false,
    };
    timeline.settle(shard(), &Lane::default(), settle).await.unwrap();
    format!("{id}:1000").parse().unwrap()
}

/// Redis runs a call, and the connection ends before its reply. A put or a get is sent again, and its answer is
/// correct. A cancel, requeue, discard or resume is sent again too. Here the second reply does not tell whether the
/// first call had an effect, so the outcome is unknown. A trigger is not sent again.
#[tokio::test]
async fn a_call_with_a_lost_reply_is_sent_again_and_is_unknown_if_uncertain() {
    let Some(server) = own_server(&[]) else { return };
    let (next, lost) = (Arc::new(Mutex::new(None::<String>)), Arc::new(AtomicU32::new(0)));
    let (wanted, count) = (Arc::clone(&next), Arc::clone(&lost));
    let relay = Scripted::losing(
        server.server.port,
        |_| None,
        move |asked| {
            let mut wanted = wanted.lock().unwrap();
            let loses = asked.is("EVALSHA") && wanted.as_ref() == asked.words.get(1);
            if loses {
                *wanted = None;
                count.fetch_add(1, Ordering::Relaxed);
            }
            loses
        },
    );
    let mut config = config(&relay.url());
    (config.connect_timeout, config.response_timeout) = (LONG_TIMEOUT, LONG_TIMEOUT);
    let timeline = RedisTimeline::connect(config).unwrap();
    up(&timeline).await;
    let lose = |script: &scripts::Script| {
        *next.lock().unwrap() = Some(::redis::Script::new(script.source).get_hash().to_owned());
    };
    let soon = || within(&timeline, Duration::from_secs(2));

    lose(&scripts::PUT);
    assert_eq!(put_now(&timeline, "a").await, Ok(PutResult::Unchanged), "the first copy created it");
    let counted = || vec![put_in("default", IN, "in", 9_000_000_000_000, "x")];
    lose(&scripts::PUT);
    let answers = timeline.put(shard(), PutMode::Put, counted(), within(&timeline, LONG_TIMEOUT)).await.unwrap();
    assert_eq!(short(&answers[0]), "unchanged 9000000000000");
    lose(&scripts::PUT);
    let answers = timeline.put(shard(), PutMode::Post, vec![put("post", 9_000_000_000_000, "x")], soon()).await;
    assert_eq!(short(&answers.unwrap()[0]), "unchanged 9000000000000");
    lose(&scripts::GET);
    assert!(timeline.get(shard(), &task("a")).await.unwrap().is_some());

    let is_unknown = |answer: &Result<bool, TimelineError>| matches!(answer, Err(TimelineError::Unknown(_)));
    let keys = [one_dead(&timeline, "d").await, one_dead(&timeline, "e").await];
    lose(&scripts::CANCEL);
    let not_after = soon();
    assert!(is_unknown(&timeline.cancel(shard(), &task("a"), None, not_after).await.map(|_| true)));
    assert!(timeline.any_clock().now() > not_after, "no copy can take effect any more");
    assert!(timeline.get(shard(), &task("a")).await.unwrap().is_none());
    lose(&scripts::REQUEUE);
    assert!(is_unknown(&timeline.requeue(shard(), &keys[0], None, soon()).await.map(|_| true)));
    lose(&scripts::DISCARD);
    assert!(is_unknown(&timeline.discard(shard(), &keys[1], None, soon()).await));
    // The first copy may have resumed a task that was due, and it has ended since.
    for id in ["post", "ended"] {
        lose(&scripts::PAUSE);
        let resume = timeline.pause(shard(), &task(id), TaskPauseRequest::Resume, soon()).await;
        assert!(is_unknown(&resume.map(|_| true)), "{id}");
    }

    // A second copy of a trigger would publish a second message, so there is none.
    let calls = || {
        let stats: String = ::redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap().to_owned();
        line.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    let puts = vec![put_in("default", RECURRING, "t", 9_000_000_000_000, "x")];
    timeline.put(shard(), PutMode::Put, puts, within(&timeline, LONG_TIMEOUT)).await.unwrap();
    let before = calls();
    lose(&scripts::MOVE_DUE);
    assert!(is_unknown(
        &timeline.move_due(shard(), &task("t"), MoveRequest::Trigger { new_key: false }, soon()).await.map(|_| true)
    ));
    assert_eq!(calls() - before, 1);
    let held = timeline.get(shard(), &task("t")).await.unwrap().unwrap();
    assert!(held.due < timeline.any_clock().now(), "it was triggered");
    assert_eq!(lost.load(Ordering::Relaxed), 10);
}

#[tokio::test]
async fn a_connection_to_a_redis_that_hangs_is_given_up_and_made_again() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    server.server.signal("STOP");
    for _ in 0..3 {
        let began = Instant::now();
        let unanswered = timeline.get(shard(), &task("a")).await;
        assert!(matches!(unanswered, Err(TimelineError::Unknown(_))), "{unanswered:?}");
        assert!(began.elapsed() < 10 * SHORT_TIMEOUT, "a look waits for no `not_after`");
    }
    link_is(&timeline, |link| matches!(link, Link::Down(_))).await;
    assert!(matches!(timeline.get(shard(), &task("a")).await, Err(TimelineError::Unavailable(_))));
    server.server.signal("CONT");
    assert_eq!(up(&timeline).await, 2);
    assert_eq!(put_now(&timeline, "a").await, Ok(PutResult::Created));
}

#[tokio::test]
async fn an_unanswered_put_took_effect_before_its_error_or_never_will() {
    let Some(server) = own_server(&[]) else { return };
    let config = config(&server.url());
    let timeline = RedisTimeline::connect(config.clone()).unwrap();
    up(&timeline).await;
    server.server.signal("STOP");
    let not_after = within(&timeline, Duration::from_millis(1200));
    let unknown = put_at(&timeline, "a", not_after).await;
    assert!(matches!(unknown, Err(TimelineError::Unknown(_))), "{unknown:?}");
    assert!(
        timeline.any_clock().surely_past(not_after),
        "the error waited for the moment after which nothing is written"
    );
    // Redis now runs the command from its socket buffer, after `not_after`.
    server.server.signal("CONT");
    let reader = RedisTimeline::connect(RedisConfig { response_timeout: LONG_TIMEOUT, ..config }).unwrap();
    up(&reader).await;
    assert_eq!(reader.get(shard(), &task("a")).await, Ok(None));
    let calls: String = ::redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
    assert!(calls.contains("cmdstat_evalsha:calls=2,"), "the put was executed: {calls}");
}

#[tokio::test]
async fn a_slow_answer_that_comes_before_not_after_counts() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    server.server.signal("STOP");
    let not_after = within(&timeline, Duration::from_secs(20));
    let (put, ()) = tokio::join!(put_at(&timeline, "a", not_after), async {
        tokio::time::sleep(2 * SHORT_TIMEOUT).await;
        server.server.signal("CONT");
    });
    assert_eq!(put, Ok(PutResult::Created));
    assert_eq!(up(&timeline).await, 1, "one silence is not the end");
}

#[tokio::test]
async fn a_put_cut_off_by_the_death_of_redis_waits_for_its_not_after() {
    let Some(mut server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    server.server.signal("STOP");
    let not_after = within(&timeline, Duration::from_millis(900));
    let (put, ()) = tokio::join!(put_at(&timeline, "a", not_after), async {
        tokio::time::sleep(SHORT_TIMEOUT / 3).await;
        server.server.kill();
    });
    assert!(matches!(put, Err(TimelineError::Unknown(_))), "{put:?}");
    assert!(timeline.any_clock().surely_past(not_after));
}

#[tokio::test]
async fn a_lost_subscription_alone_makes_a_new_generation() {
    let Some(server) = own_server(&[]) else { return };
    let timeline = connected(&server).await;
    let mut raw = server.connect();
    let killed: u32 = ::redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut raw).unwrap();
    assert_eq!(killed, 1);
    let mut link = timeline.link(Shard::FIRST);
    let again = tokio::time::timeout(LONG_TIMEOUT, link.wait_for(|link| *link == Link::Up(2)));
    again.await.unwrap().unwrap();
    let mut wakes = timeline.wakes();
    put_now(&timeline, "a").await.unwrap();
    let wake = tokio::time::timeout(LONG_TIMEOUT, wakes.recv()).await.unwrap().unwrap();
    assert_eq!(wake, Wake { shard: shard(), lane: Lane::default(), due: at(9_000_000_000_000) });
}

#[tokio::test]
async fn another_layout_is_refused_and_the_error_names_both() {
    let Some(server) = shared_server() else { return };
    let first = config(&server.url());
    let mut second = first.clone();
    second.shards = 4;
    let first = RedisTimeline::connect(first).unwrap();
    assert_eq!(first.check_layout().await, Ok(()));
    up(&first).await;
    let second = RedisTimeline::connect(second).unwrap();
    let error = second.check_layout().await.unwrap_err();
    assert!(matches!(&error, RedisError::Layout { found, wanted, .. } if found == "1 1" && wanted == "1 4"));
    let down = link_is(&second, |link| matches!(link, Link::Down(reason) if reason.contains("`1 4`"))).await;
    assert!(matches!(down, Link::Down(reason) if reason.contains("`1 1`")));
    assert!(matches!(put_now(&second, "a").await, Err(TimelineError::Unavailable(_))));
}

#[tokio::test]
async fn the_first_pause_stores_a_layout_that_older_versions_refuse() {
    let Some(server) = own_server(&[]) else { return };
    let config = config(&server.url());
    let key = punctual::timeline::keys::layout(&config.namespace);
    let first = RedisTimeline::connect(config.clone()).unwrap();
    up(&first).await;
    let stored = || ::redis::cmd("GET").arg(&key).query::<Option<String>>(&mut server.connect()).unwrap();
    let (lane, soon) = (Lane::default(), || first.any_clock().now().plus(LONG_TIMEOUT));
    let pause = LanePauseRequest::Pause { until: None, about: PauseNote::default() };
    // A resume changes nothing.
    first.pause_lane(shard(), &lane, LanePauseRequest::Resume, soon()).await.unwrap();
    let mark = stored().expect("a layout").strip_prefix("1 1 ").expect("a new layout").to_owned();
    assert_eq!(mark.len(), 16);
    // Neither does a pause of a task that does not exist.
    let (nobody, pause_task) = ("nobody".parse().unwrap(), TaskPauseRequest::Pause(PauseNote::default()));
    let unknown = first.pause(shard(), &nobody, pause_task, soon()).await;
    assert_eq!((unknown, stored().as_deref()), (Ok(TaskPauseAnswer::Unknown), Some(&*format!("1 1 {mark}"))));
    for _ in 0..2 {
        first.pause_lane(shard(), &lane, pause.clone(), soon()).await.unwrap();
        assert_eq!(stored().as_deref(), Some(&*format!("2 1 {mark}")));
    }
    let second = RedisTimeline::connect(config).unwrap();
    assert_eq!(second.check_layout().await, Ok(()));
    up(&second).await;
    // Somebody went back to an older version and upgraded again.
    ::redis::cmd("SET").arg(&key).arg("1 1").exec(&mut server.connect()).unwrap();
    second.pause_lane(shard(), &lane, pause.clone(), soon()).await.unwrap();
    assert_eq!(stored().as_deref(), Some("2 1"));
    ::redis::cmd("SET").arg(&key).arg("3 1").exec(&mut server.connect()).unwrap();
    let refused = first.pause_lane(shard(), &lane, pause, soon()).await;
    assert!(matches!(&refused, Err(TimelineError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_dropped_timeline_closes_its_connections() {
    let Some(server) = own_server(&[]) else { return };
    let mut raw = server.connect();
    let mut clients = || {
        let list: String = ::redis::cmd("CLIENT").arg("LIST").query(&mut raw).unwrap();
        list.lines().count()
    };
    // With any durability other than `memory` there is one more connection, which confirms writes.
    for (durability, connections) in [(Durability::Memory, 2), (Durability::Replica, 3)] {
        let timeline = RedisTimeline::connect(RedisConfig { durability, ..config(&server.url()) }).unwrap();
        up(&timeline).await;
        assert_eq!(clients(), 1 + connections);
        drop(timeline);
        let deadline = Instant::now() + Duration::from_secs(30);
        while clients() > 1 {
            assert!(Instant::now() < deadline, "the connections are still there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_redis_password_appears_in_no_error_and_no_debug_output() {
    let Some(server) = own_server(&["--requirepass", "sesame-open"]) else { return };
    let url = |password: &str| server.url().replace("redis://", &format!("redis://:{password}@"));
    let right = config(&url("sesame-open"));
    assert!(!format!("{right:?}").contains("sesame"));
    let timeline = RedisTimeline::connect(right).unwrap();
    up(&timeline).await;
    assert_eq!(put_now(&timeline, "a").await, Ok(PutResult::Created));

    let timeline = RedisTimeline::connect(config(&url("sesame-shut"))).unwrap();
    let down = link_is(&timeline, |link| matches!(link, Link::Down(reason) if reason.contains("redis at"))).await;
    assert!(!format!("{down:?} {:?}", put_now(&timeline, "a").await).contains("sesame"), "{down:?}");
    for bad in ["redis://:sesame@host:99999", "http://:sesame@host", "sesame"] {
        let error = RedisTimeline::connect(config(bad)).err().expect("a bad url");
        assert!(!error.to_string().contains("sesame"), "{error}");
    }
}
