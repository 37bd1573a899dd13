//! The twin is Redis: random verbs on both, every answer, every wake-up and the whole state of a shard compared.
//!
//! Few ids, few dues, few lanes and a clock that steps over leases make collisions the rule; now and then a few hundred tasks
//! come at once. A run that differs is cut down to its shortest form, which is printed. A table counts how often each rule
//! was met.

mod rules;
mod steps;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use proptest::prop_assert;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use punctual::clock::{Clock, ManualClock, Timestamp};
use punctual::task::{Counts, Key, Lane, Member, Record, Shard, TaskId, When};
use punctual::timeline::memory::MemoryTimeline;
use punctual::timeline::redis::RedisTimeline;
use punctual::timeline::{
    BrowseRequest, Burial, ClaimRequest, Claimed, DeadFilter, GlanceRequest, Grave, Place, Put, PutMode, ReapRequest,
    Settle, Settlement, SuspectsRequest, Timeline, Token, Verdict, Wake,
};
use tokio::sync::broadcast;

use self::rules::Tally;
use self::steps::{Body, Due, Kind, Order, Step, Word, any_step};
use super::raw::Raw;
use super::stage::{self, LEASE, START, Shape, at, connect, lane_named, ms, record, shared_server};

/// How long the dead are kept: short, so that runs outlive it.
const DEAD_KEEP: Duration = Duration::from_secs(20);

/// Verbs in one run at most, and runs of each shape.
const STEPS: usize = 150;
const RUNS: u32 = 50;

/// Both timelines, and what a client of theirs remembers.
struct Both {
    clock: Arc<ManualClock>,
    memory: Arc<MemoryTimeline>,
    redis: Arc<RedisTimeline>,
    raw: Raw,
    shards: u16,
    /// Every claim that was ever made.
    claims: Vec<(Shard, Lane, Token, Claimed)>,
    /// The key of every occurrence that was ever claimed.
    keys: Vec<Key>,
    next_token: u32,
    tally: Tally,
    /// Wake-ups that Redis may send and the twin need not: a put of several tasks takes two rounds when one of them
    /// waits in another lane, and each round tells the head it found.
    in_rounds: Vec<String>,
    /// Wake-ups of such puts that the twin sends and Redis need not: the first round has written what the second one finds.
    not_in_rounds: Vec<String>,
}

/// Asks both and compares.
macro_rules! both {
    ($both:expr, $step:expr, |$timeline:ident| $call:expr) => {{
        let $timeline = &$both.memory;
        let expected = $call.await;
        let $timeline = &$both.redis;
        let found = $call.await;
        if found != expected {
            return Err(TestCaseError::fail(format!("{:?}:\n  twin  {expected:?}\n  Redis {found:?}", $step)));
        }
        expected
    }};
}

impl Both {
    fn id(&self, number: usize) -> (TaskId, Shard) {
        let id: TaskId = ["x", "y", "z", "x:1", "y.2", "Z-3"][number].parse().unwrap();
        let shard = Shard::of(&id, self.shards);
        (id, shard)
    }

    fn lane(number: usize) -> Lane {
        lane_named(["default", "b", "c-1"][number])
    }

    /// Mostly the key of one that is dead, else of any that was claimed.
    fn dead_or_any(&self, index: Index) -> Key {
        let keys = |shard| self.memory.twin(shard).dead_records.into_keys();
        let dead: Vec<Key> = Shard::all(self.shards).flat_map(keys).filter_map(|key| key.parse().ok()).collect();
        if dead.is_empty() || index.index(4) == 0 { index.get(&self.keys).clone() } else { index.get(&dead).clone() }
    }

    fn not_after(&self, late: bool) -> Timestamp {
        if late { self.clock.now().minus(ms(1)) } else { self.clock.now() }
    }

    fn due(&self, due: Due) -> Timestamp {
        match due {
            Due::Start(after) => at(after),
            Due::Now(after) => Timestamp::from_millis(self.clock.now().as_millis() + after),
            Due::At(ms) => Timestamp::from_millis(ms),
        }
    }

    fn draft(&self, (id, due, body, lane, trace): (usize, Due, Body, usize, u8)) -> Put {
        let (due, lane) = (self.due(due), Both::lane(lane));
        let (when, payload) = match body {
            Body::At(payload) => (When::At(due), payload),
            Body::In(payload) => (When::In(ms(500)), payload),
            Body::Every(payload) => (When::Every { gap: ms(500), start: None }, payload),
        };
        let now = self.clock.now();
        let trace = stage::trace(trace);
        let record = Record { created: now, updated: now, anchor: now, trace, ..record(when, payload, &lane) };
        Put { id: self.id(id).0, lane, due, record: record.encode() }
    }

    /// Takes one step on both sides; the shard it was about.
    async fn step(&mut self, step: &Step) -> Result<Option<Shard>, TestCaseError> {
        let shard = match step {
            Step::Put { puts, mode, late } => {
                let shard = self.id(puts[0].0).1;
                let mut drafts: Vec<Put> = Vec::new();
                for put in puts.iter().filter(|put| self.id(put.0).1 == shard) {
                    let draft = self.draft(*put);
                    // No id twice in a call.
                    if drafts.iter().all(|other| other.id != draft.id) {
                        drafts.push(draft);
                    }
                }
                let not_after = self.not_after(*late);
                let before = self.memory.twin(shard);
                if drafts.len() > 1 {
                    let wake = |put: &Put| Wake { shard, lane: put.lane.clone(), due: put.due };
                    let wakes = || drafts.iter().map(|put| wake_text(wake(put)));
                    self.in_rounds.extend(wakes());
                    let moves = |put: &Put| {
                        let member = Member::from(&put.id);
                        before.due.iter().any(|(lane, line)| *lane != put.lane && line.score(&member).is_some())
                    };
                    if drafts.iter().any(moves) {
                        self.not_in_rounds.extend(wakes());
                    }
                }
                let answers = both!(self, step, |timeline| timeline.put(shard, *mode, drafts.clone(), not_after));
                self.tally.put(&before, &drafts, &answers);
                shard
            }
            Step::Many { id, due, spread, count } => {
                let (shard, due) = (self.id(*id).1, self.due(*due));
                let ids = (0..).map(|n| format!("many-{n}").parse::<TaskId>().unwrap());
                let ids = ids.filter(|id| Shard::of(id, self.shards) == shard).take(*count).enumerate();
                let puts: Vec<Put> = ids
                    .map(|(n, id)| {
                        let due = Timestamp::from_millis(due.as_millis() + if *spread { n as i64 / 3 } else { 0 });
                        let record = record(When::At(due), "many", &Both::lane(0)).encode();
                        Put { id, lane: Both::lane(0), due, record }
                    })
                    .collect();
                let wake = |put: &Put| Wake { shard, lane: put.lane.clone(), due: put.due };
                self.in_rounds.extend(puts.iter().map(|put| wake_text(wake(put))));
                let now = self.clock.now();
                drop(both!(self, step, |timeline| timeline.put(shard, PutMode::Put, puts.clone(), now)));
                shard
            }
            Step::Cancel { id, late } => {
                let ((id, shard), not_after) = (self.id(*id), self.not_after(*late));
                let answer = both!(self, step, |timeline| timeline.cancel(shard, &id, not_after));
                self.tally.cancel(&answer);
                shard
            }
            Step::Get { id } => {
                let (id, shard) = self.id(*id);
                let held = both!(self, step, |timeline| timeline.get(shard, &id));
                self.tally.get(held.ok().flatten().as_ref());
                shard
            }
            Step::Claim { .. } => self.claim(step).await?,
            Step::Settle { .. } => match self.settle(step).await? {
                Some(shard) => shard,
                None => return Ok(None),
            },
            Step::Extend { claims } if !self.claims.is_empty() => {
                let shard = claims[0].get(&self.claims).0;
                let claims = claims.iter().map(|claim| claim.get(&self.claims)).filter(|claim| claim.0 == shard);
                let tokens: Vec<_> = claims.map(|(_, lane, token, _)| (lane.clone(), token.clone())).collect();
                let lives = both!(self, step, |timeline| timeline.extend(shard, &tokens, LEASE));
                self.tally.extend(&lives);
                shard
            }
            Step::Reap { id, lane, served, late } => {
                let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
                let request = ReapRequest {
                    lease: LEASE,
                    served: *served,
                    dead_keep: DEAD_KEEP,
                    not_after: self.not_after(*late),
                };
                let before = self.memory.twin(shard);
                let reaped = both!(self, step, |timeline| timeline.reap(shard, &lane, request));
                self.tally.reap(&before, self.clock.now(), &request, &reaped);
                shard
            }
            Step::Glance { id, lanes, depth } => {
                let shard = self.id(*id).1;
                let lanes = lanes.iter().map(|(lane, served)| (Both::lane(*lane), *served)).collect();
                let request = GlanceRequest { lanes, lease: LEASE, dead_keep: DEAD_KEEP, depth: *depth };
                let glance = both!(self, step, |timeline| timeline.glance(shard, request.clone()));
                self.tally.glance(&glance);
                shard
            }
            Step::Requeue { key, meant, late } | Step::Discard { key, meant, late } if !self.keys.is_empty() => {
                let (key, not_after) = (self.dead_or_any(*key), self.not_after(*late));
                let shard = Shard::of(&key.task, self.shards);
                let known = self.memory.twin(shard).dead.score(&key.to_string().into()).unwrap_or(0);
                let buried = meant.map(|right| Timestamp::from_millis(if right { known } else { known + 1 }));
                match step {
                    Step::Requeue { .. } => {
                        let answer = both!(self, step, |timeline| timeline.requeue(shard, &key, buried, not_after));
                        self.tally.requeue(&answer);
                    }
                    _ => {
                        let answer = both!(self, step, |timeline| timeline.discard(shard, &key, buried, not_after));
                        self.tally.discard(&answer);
                    }
                }
                shard
            }
            Step::Browse { .. } => self.browse(step).await?,
            Step::Show { key } if !self.keys.is_empty() => {
                let key = key.get(&self.keys).clone();
                let shard = Shard::of(&key.task, self.shards);
                drop(both!(self, step, |timeline| timeline.show(shard, &key)));
                shard
            }
            Step::Strand { id, lane } => {
                let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
                self.memory.edit(shard, |twin| drop(twin.leases.remove(&lane)));
                self.raw.remove(shard, &[format!("leases:{lane}")]);
                shard
            }
            Step::LoseRecord { id } => {
                let (id, shard) = self.id(*id);
                if self.memory.twin(shard).get(&id).is_none_or(|held| held.in_flight) {
                    return Ok(None);
                }
                self.memory.edit(shard, |twin| drop(twin.tasks.remove(&Member::from(&id))));
                self.raw.remove_field(shard, "tasks", id.as_str());
                shard
            }
            Step::Advance(by) => {
                self.clock.set(Timestamp::from_millis(self.clock.now().as_millis() + by));
                return Ok(None);
            }
            Step::Extend { .. } | Step::Requeue { .. } | Step::Discard { .. } | Step::Show { .. } => return Ok(None),
        };
        Ok(Some(shard))
    }

    async fn claim(&mut self, step: &Step) -> Result<Shard, TestCaseError> {
        let Step::Claim { id, lane, max, max_bytes, kind, after, lease, late } = step else { unreachable!() };
        let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
        self.next_token += 1;
        let (instance, n) = (["0", "1"][self.next_token as usize % 2], u64::from(self.next_token));
        // Those of older instances do not tell their lease.
        let lease = Duration::from_millis(*lease);
        let token = if n % 3 == 0 { Token(format!("{instance}.{n}")) } else { Token::new(instance, n, lease) };
        // Behind one that was claimed once, whether it stands there or not, or before the first of its due.
        let after = after.filter(|_| !self.keys.is_empty()).map(|(place, named)| {
            let key = place.get(&self.keys);
            Place { due: key.due, member: named.then(|| Member::from(&key.task)) }
        });
        let (max, max_bytes, not_after) = (*max, *max_bytes, self.not_after(*late));
        let before = self.memory.twin(shard);
        let claimed = match kind {
            Kind::Suspects | Kind::Unreadable => {
                let (token, unreadable) = (token.clone(), *kind == Kind::Unreadable);
                let request = SuspectsRequest { token, max, max_bytes, lease, not_after, unreadable, after };
                let claimed = both!(self, step, |timeline| timeline.claim_suspects(shard, &lane, request.clone()));
                self.tally.claim_suspects(&request, &claimed);
                claimed
            }
            Kind::Ordinary | Kind::Newest => {
                let (token, newest_first) = (token.clone(), *kind == Kind::Newest);
                let after = after.filter(|_| !newest_first);
                let request = ClaimRequest { token, max, max_bytes, lease, not_after, newest_first, after };
                let claimed = both!(self, step, |timeline| timeline.claim(shard, &lane, request.clone()));
                self.tally.claim(&before, &request, &claimed);
                claimed
            }
        };
        if let Ok(claimed) = claimed {
            self.keys.extend(claimed.occurrences.iter().map(|one| one.member.key(one.due)).take(5));
            self.claims.push((shard, lane, token, claimed));
        }
        Ok(shard)
    }

    async fn settle(&mut self, step: &Step) -> Result<Option<Shard>, TestCaseError> {
        let Step::Settle { claim, verdicts, rest, dead_cap, quiet, order } = step else { unreachable!() };
        if self.claims.is_empty() {
            return Ok(None);
        }
        // Mostly one of the last: the older are gone.
        let recent = &self.claims[self.claims.len().saturating_sub(3)..];
        let (shard, lane, token, claimed) = claim.get(recent).clone();
        // Of many the same for all in turn.
        let words = verdicts.iter().cycle();
        let mut verdicts: Vec<Settlement> = Vec::new();
        verdicts.extend(claimed.occurrences.iter().zip(words).filter_map(|(one, word)| {
            let reason = if one.due.as_millis() % 2 == 0 { "rejected" } else { "retries" };
            let burial =
                || Burial { record: one.record.clone(), reason: reason.into(), words: "zu groß:\n1 > 0\n".into() };
            let due = |after: &i64| Timestamp::from_millis(one.due.as_millis() + after);
            let counts = Counts { accepted: 1, dead: 2, passed_over: 1 << 60, last_due: Some(one.due) };
            let verdict = match word {
                Word::Unnamed => return None,
                Word::Finished => Verdict::Finished,
                Word::Next(after) => Verdict::Next { due: due(after), counts },
                Word::Dead => Verdict::Dead(burial()),
                Word::DeadNext(after) => Verdict::DeadNext { burial: burial(), due: due(after), counts },
                Word::Back(begun) => Verdict::Back { begun: *begun },
                Word::Unreadable => Verdict::Unreadable,
            };
            Some(Settlement { member: one.member.clone(), due: one.due, verdict })
        }));
        match order {
            Order::Kept => {}
            Order::Reversed => verdicts.reverse(),
            // One that is not in the claim, or not under that due; where all are named, for as many as it holds are believed.
            Order::Foreign(key) if verdicts.len() == claimed.occurrences.len() && !self.keys.is_empty() => {
                let key = key.get(&self.keys);
                let (member, due) = (Member::from(&key.task), key.due);
                if verdicts.iter().all(|one| one.member != member) {
                    verdicts.push(Settlement { member, due, verdict: Verdict::Finished });
                }
            }
            Order::Foreign(_) => {}
        }
        let settle = Settle { token, verdicts, rest: *rest, lease: LEASE, dead_cap: *dead_cap, quiet: *quiet };
        let before = self.memory.twin(shard);
        let settled = both!(self, step, |timeline| timeline.settle(shard, &lane, settle.clone()));
        self.tally.settle((&before, &self.memory.twin(shard)), &lane, &settle, &settled);
        Ok(Some(shard))
    }

    async fn browse(&mut self, step: &Step) -> Result<Shard, TestCaseError> {
        let Step::Browse { id, after, from, to, lane, reason, max, whole } = step else { unreachable!() };
        let shard = self.id(*id).1;
        // Behind one that is there, or was: buried then, or at another time.
        let after = after.filter(|_| !self.keys.is_empty()).map(|place| {
            let key = place.get(&self.keys).clone();
            let known = self.memory.twin(shard).dead.score(&key.to_string().into());
            Grave { buried: known.map_or(self.clock.now(), Timestamp::from_millis), key }
        });
        let filter = DeadFilter {
            lane: lane.map(Both::lane),
            reason: reason.map(str::to_owned),
            from: from.map(at),
            to: to.map(at),
        };
        let request = BrowseRequest { filter, after, max: *max, whole: *whole };
        drop(both!(self, step, |timeline| timeline.browse(shard, request.clone())));
        Ok(shard)
    }

    fn compare(&self, shard: Shard, step: &Step) -> Result<(), TestCaseError> {
        let (expected, found) = (self.memory.twin(shard), self.raw.twin(shard));
        if expected == found {
            return Ok(());
        }
        Err(TestCaseError::fail(format!("state after {step:?}:\n  twin  {expected:#?}\n  Redis {found:#?}")))
    }
}

fn wake_text(wake: Wake) -> String {
    format!("{} {} {}", wake.shard, wake.lane, wake.due.as_millis())
}

/// Compares every wake-up that both sides sent, in any order: a script may wake several lanes.
async fn compare_wakes(
    mut memory: broadcast::Receiver<Wake>,
    mut redis: broadcast::Receiver<Wake>,
    (in_rounds, not_in_rounds): (&[String], &[String]),
    patience: Duration,
) -> Result<(), TestCaseError> {
    let (mut missing, mut more) = (Vec::new(), Vec::new());
    while let Ok(wake) = memory.try_recv() {
        missing.push(wake_text(wake));
    }
    missing.retain(|wake| !not_in_rounds.contains(wake));
    while !missing.is_empty() {
        let Ok(Ok(wake)) = tokio::time::timeout(patience, redis.recv()).await else {
            return Err(TestCaseError::fail(format!("nobody was woken for {missing:?}, but for {more:?}")));
        };
        let wake = wake_text(wake);
        match missing.iter().position(|other| *other == wake) {
            Some(place) => drop(missing.swap_remove(place)),
            None => more.push(wake),
        }
    }
    while let Ok(wake) = redis.try_recv() {
        more.push(wake_text(wake));
    }
    more.retain(|wake| !in_rounds.contains(wake) && !not_in_rounds.contains(wake));
    prop_assert!(more.is_empty(), "woken for nothing: {more:?}");
    Ok(())
}

/// Random runs against one shape of Redis.
fn the_twin_is_redis(shape: Shape, shards: u16) {
    let Some(server) = shared_server(shape) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases: RUNS, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let steps = proptest::collection::vec(any_step(), 1..=STEPS);
    let (tally, failed) = (RefCell::new(Tally::default()), Cell::new(false));
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(async {
            let clock = Arc::new(ManualClock::new(START));
            let memory = Arc::new(MemoryTimeline::new(clock.clone(), shards));
            let (redis, raw) = connect(&server, clock.clone(), shards).await;
            let wakes = (memory.wakes(), redis.wakes());
            let mut both = Both {
                clock,
                memory,
                redis,
                raw,
                shards,
                claims: Vec::new(),
                keys: Vec::new(),
                next_token: 0,
                in_rounds: Vec::new(),
                not_in_rounds: Vec::new(),
                tally: Tally::default(),
            };
            for step in &steps {
                if let Some(shard) = both.step(step).await? {
                    both.compare(shard, step)?;
                }
            }
            tally.borrow_mut().add(&both.tally);
            // A run that is cut down to its shortest form need not wait as long each time.
            let patience = ms(if failed.get() { 300 } else { 10_000 });
            let compared = compare_wakes(wakes.0, wakes.1, (&both.in_rounds, &both.not_in_rounds), patience).await;
            failed.set(failed.get() || compared.is_err());
            compared
        })
    });
    match outcome {
        Ok(()) => tally.borrow().show(),
        Err(TestError::Abort(why)) => panic!("{why}"),
        Err(TestError::Fail(why, steps)) => {
            let steps: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
            panic!("{why}\nafter\n{}", steps.join("\n"));
        }
    }
}

/// Takes more than five seconds: 50 random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_with_1_shard() {
    the_twin_is_redis(Shape::Plain, 1);
}

/// Takes more than five seconds: 50 random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_with_4_shards() {
    the_twin_is_redis(Shape::Plain, 4);
}

/// Takes more than five seconds: 50 random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_cluster_with_1_shard() {
    the_twin_is_redis(Shape::Cluster, 1);
}

/// Takes more than five seconds: 50 random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_cluster_with_4_shards() {
    the_twin_is_redis(Shape::Cluster, 4);
}
