//! The other campaign: one of two sinks is away for long. It watches the lane of that sink, the other lane, and the
//! backlog.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use redis::streams::StreamRangeReply;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::absence::{Absence, Drain};
use super::campaign::{Options, Step};
use super::configuration::configuration;
use super::ground::Ground;
use super::key_reader::KeyReader;
use super::metrics::{Scrape, post, scrape};
use super::{Kind, Missing, TimelinePlace};
use crate::servers::{self, Instance, KEEPS_EVERYTHING};

/// How long lanes are watched before and after the absence.
const WELL: Duration = Duration::from_secs(20);

/// How long before its due a task is put.
const AHEAD: Duration = Duration::from_secs(1);

/// The lane whose sink goes away, and the other one.
const LANES: [&str; 2] = ["default", "second"];

/// Two lanes on two sinks, under load.
struct Stage {
    ground: Arc<Ground>,
    instances: Vec<Instance>,
    key_reader: KeyReader,
    /// Both sinks.
    sinks: [SecretString; 2],
    name: String,
    rate: u32,
    number: AtomicU64,
    /// Number of tasks that were answered as created, by lane.
    put: [AtomicU64; 2],
    /// Hashes of their keys, because there are millions.
    promised: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

/// A line of a batch's answer.
#[derive(Deserialize)]
struct Line {
    id: Option<String>,
    result: Option<String>,
    due_ms: Option<i64>,
}

/// Runs the campaign.
///
/// # Errors
/// [`Missing`] if a program is not installed, the sink is not Redis, or a server was named; otherwise if a server or an
/// instance fails, or it is stopped before there are figures.
pub async fn run(
    options: &Options,
    away: Duration,
    stop: &CancellationToken,
    tell: &(dyn Fn(Step) + Sync),
) -> anyhow::Result<Absence> {
    if options.kind != Kind::Redis || options.sink.is_some() || options.redis.is_some() {
        let hint = "leave `--sink` and `--redis` out";
        return Err(Missing::new("a sink is made absent among Redis Streams of this campaign's own", hint).into());
    }
    let say = |activity, share| tell(Step { activity, share, ..Step::default() });
    say("starting servers and instances", 0.0);
    let ground = Ground::open(Kind::Redis, None, None, 1, false).await?;
    let other = servers::start_redis(KEEPS_EVERYTHING).await?;
    let stage = Arc::new(Stage::open(options, Arc::new(ground), other.port).await?);
    tokio::select! {
        absence = stage.play(away, &say) => absence,
        () = stop.cancelled() => bail!("ended before there were figures"),
    }
}

impl Stage {
    async fn open(options: &Options, ground: Arc<Ground>, other: u16) -> anyhow::Result<Stage> {
        let name = format!("verify-{:08x}", rand::random::<u32>());
        let place = TimelinePlace {
            urls: ground.timeline_urls(),
            namespace: name.clone(),
            shards: 4,
            lanes: LANES.map(str::to_owned).to_vec(),
        };
        let other: SecretString = format!("redis://127.0.0.1:{other}").into();
        let sinks = [("default", &ground.sink.url), ("other", &other)];
        let lanes = [(LANES[0], "default"), (LANES[1], "other")];
        let mut instances = Vec::new();
        for number in 0..options.instances {
            let configure = |api| configuration(api, &place, &ground.redis.url, &sinks, &lanes, None);
            let instance = Instance::new(&options.program, number, configure)?;
            instance.start().await?;
            instances.push(instance);
        }
        let key_reader = KeyReader::open(place).await?;
        let sinks = [ground.sink.url.clone(), other];
        Ok(Stage {
            ground,
            instances,
            key_reader,
            sinks,
            name,
            rate: options.rate,
            number: AtomicU64::default(),
            put: Default::default(),
            promised: Mutex::default(),
            hasher: RandomState::new(),
        })
    }

    async fn play(self: &Arc<Self>, away: Duration, say: &dyn Fn(&'static str, f64)) -> anyhow::Result<Absence> {
        say("publishing a backlog while all is well", 0.05);
        let full = self.full(away).await?;
        let load = tokio::spawn(Arc::clone(self).load());
        let _ended = Ended(load.abort_handle());
        sleep(AHEAD * 2).await;
        say("all is well", 0.2);
        let begun = self.scrape().await?;
        sleep(WELL).await;
        let before = self.scrape().await?;
        say("the sink is away", 0.3);
        let sink = self.ground.sink.server.as_ref().context("a sink of our own")?;
        let gone = Instant::now();
        sink.kill().await?;
        sleep(away).await;
        let waiting = self.scrape().await?;
        let missed = self.put[0].load(Ordering::Relaxed).saturating_sub(waiting.lateness(LANES[0]).count());
        say("the sink is back", 0.8);
        sink.revive().await?;
        let (back, away) = (Instant::now(), gone.elapsed());
        let first_after_seconds = self.await_first(&waiting, back).await?;
        let backlog = self.drained(missed, &waiting, u64::from(self.rate) * 3 / 2, Instant::now()).await?;
        let drained = self.scrape().await?;
        say("all is well again", 0.9);
        sleep(WELL).await;
        let after = self.scrape().await?;
        load.abort();
        sleep(AHEAD * 2).await;
        let dead = self.ended().await?;
        let (lost, copies) = self.published().await?;
        let put: u64 = self.put.iter().map(|put| put.load(Ordering::Relaxed)).sum();
        let spans = [(&begun, &before), (&before, &waiting), (&waiting, &drained), (&drained, &after)];
        let lane = |lane, (from, to): (&Scrape, &Scrape)| to.lateness(lane).since(&from.lateness(lane));
        // New tasks are the least late ones, because the rest had waited longer.
        let fresh = f64::from(self.rate) * (backlog.seconds + first_after_seconds);
        Ok(Absence {
            instances: self.instances.len(),
            rate: self.rate,
            away_seconds: away.as_secs_f64(),
            put,
            lost,
            copies,
            dead,
            full,
            backlog,
            backlog_to_full: backlog.rate / full.rate,
            first_after_seconds,
            other_lane: spans.map(|span| lane(LANES[1], span).figures()),
            own_lane: [lane(LANES[0], spans[0]).figures(), lane(LANES[0], spans[3]).figures()],
            fresh: lane(LANES[0], spans[2]).figures_of_least(fresh),
        })
    }

    /// As many tasks as the sink will miss, due at one moment.
    async fn full(&self, away: Duration) -> anyhow::Result<Drain> {
        let all = u64::from(self.rate) * away.as_secs().max(1);
        let before = self.scrape().await?;
        // This leaves time for 5000 puts a second, and instances accept more.
        let due = self.key_reader.now() + 10_000 + i64::try_from(all / 5)?;
        let mut left = all;
        while left > 0 {
            let some = left.min(2000);
            self.put(0, some, due, 0).await?;
            left -= some;
        }
        let early =
            u64::try_from(due - self.key_reader.now()).context("putting the tasks took longer than was foreseen")?;
        sleep(Duration::from_millis(early)).await;
        self.drained(all, &before, 0, Instant::now()).await
    }

    /// Puts tasks without end: `rate` per second for each lane, each a second before its due.
    async fn load(self: Arc<Self>) {
        let tick = Duration::from_millis(100);
        let mut ticks = interval(tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut putting = JoinSet::new();
        loop {
            ticks.tick().await;
            let due = self.key_reader.now() + i64::try_from(AHEAD.as_millis()).unwrap_or_default();
            for lane in 0..LANES.len() {
                let stage = Arc::clone(&self);
                putting.spawn(async move { stage.put(lane, u64::from(stage.rate) / 10, due, 100).await });
            }
            while let Some(done) = putting.try_join_next() {
                if let Ok(Err(error)) = done {
                    tracing::warn!("tasks are not put: {error:#}");
                }
            }
        }
    }

    /// Puts `count` tasks with dues over `over` ms.
    async fn put(&self, lane: usize, count: u64, due: i64, over: u64) -> anyhow::Result<()> {
        let first = self.number.fetch_add(count, Ordering::Relaxed);
        let mut body = String::new();
        for number in 0..count {
            let due = due + i64::try_from(number * over / count.max(1))?;
            let at = jiff::Timestamp::from_millisecond(due)?;
            let (id, lane, name) = (first + number, LANES[lane], &self.name);
            body += &format!(
                "{{\"id\":\"absent-{id}\",\"lane\":\"{lane}\",\"schedule\":{{\"at\":\"{at}\"}},\
                 \"message\":{{\"destination\":\"{name}\",\"payload\":{id}}}}}\n"
            );
        }
        let api: SocketAddr = self.instances[usize::try_from(first)? % self.instances.len()].api;
        let answer = post(api, "/v1/tasks:batch", body).await?;
        let created = self.promise(&answer);
        self.put[lane].fetch_add(created, Ordering::Relaxed);
        if created != count {
            let detail: String = answer.chars().take(200).collect();
            bail!("{created} of {count} tasks were put: {detail}");
        }
        Ok(())
    }

    /// Notes the keys of the tasks that an answer reports as created; returns how many.
    fn promise(&self, answer: &str) -> u64 {
        let mut created = Vec::new();
        for line in answer.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            if let (Some("created"), Some(id), Some(due)) = (line.result.as_deref(), line.id, line.due_ms) {
                created.push(self.hash(&format!("{id}:{due}")));
            }
        }
        let count = created.len() as u64;
        self.promised.lock().extend(created);
        count
    }

    fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    async fn scrape(&self) -> anyhow::Result<Scrape> {
        let mut sum = Scrape::default();
        for instance in &self.instances {
            sum.add(&scrape(instance.api).await?);
        }
        Ok(sum)
    }

    async fn await_first(&self, before: &Scrape, back: Instant) -> anyhow::Result<f64> {
        let count = before.lateness(LANES[0]).count();
        while self.scrape().await?.lateness(LANES[0]).count() <= count {
            if back.elapsed() > Duration::from_secs(120) {
                bail!("nothing is published to the sink although it is back");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(back.elapsed().as_secs_f64())
    }

    /// Waits until only future tasks of the first lane are left.
    async fn drained(&self, occurrences: u64, before: &Scrape, waits: u64, since: Instant) -> anyhow::Result<Drain> {
        let begun = before.lateness(LANES[0]).count();
        let (mut last, mut moved) = (begun, Instant::now());
        loop {
            let published = self.scrape().await?.lateness(LANES[0]).count();
            let left = self.put[0].load(Ordering::Relaxed).saturating_sub(published);
            if published - begun >= occurrences && left <= waits {
                let seconds = since.elapsed().as_secs_f64();
                return Ok(Drain { occurrences, seconds, rate: (published - begun) as f64 / seconds });
            }
            if published != last {
                (last, moved) = (published, Instant::now());
            }
            if moved.elapsed() > Duration::from_secs(120) {
                bail!("{left} tasks of the lane `{}` are not published", LANES[0]);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until no task is left, at most half a minute; returns the number of dead ones.
    async fn ended(&self) -> anyhow::Result<u64> {
        let begun = Instant::now();
        loop {
            let size = self.key_reader.size().await?;
            let count = |name: &str| size.get(name).copied().unwrap_or_default();
            if count("redis_tasks") == 0 {
                return Ok(count("redis_dead"));
            }
            if begun.elapsed() > Duration::from_secs(30) {
                bail!("{} tasks still wait: lost messages cannot be counted yet", count("redis_tasks"));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Reads both sinks. Returns how many promised keys are missing, and how many messages there are beyond one per
    /// key.
    async fn published(&self) -> anyhow::Result<(u64, u64)> {
        let (mut keys, mut messages) = (HashSet::new(), 0);
        for sink in &self.sinks {
            let client = redis::Client::open(sink.expose_secret())?;
            let limit = Some(Duration::from_secs(10));
            let config = redis::AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut from = "-".to_owned();
            loop {
                let mut ask = redis::cmd("XRANGE");
                ask.arg(&self.name).arg(&from).arg("+").arg("COUNT").arg(5000);
                let page: StreamRangeReply = ask.query_async(&mut connection).await.context("reading a sink")?;
                let Some(last) = page.ids.last() else { break };
                from = format!("({}", last.id);
                messages += page.ids.len() as u64;
                for entry in &page.ids {
                    let key: String = entry.get("idempotency-key").context("a message without a key")?;
                    keys.insert(self.hash(&key));
                }
            }
        }
        let lost = self.promised.lock().difference(&keys).count() as u64;
        Ok((lost, messages - keys.len() as u64))
    }
}

/// Aborts a background task when dropped.
struct Ended(tokio::task::AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}
