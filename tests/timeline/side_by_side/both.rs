//! Both timelines, and what the steps do to them.

use std::sync::Arc;
use std::time::Duration;

use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use punctual::clock::{Clock, ManualClock, Timestamp};
use punctual::task::{Counts, Key, Lane, Member, Record, Shard, TaskId, When};
use punctual::timeline::memory::{MemoryTimeline, OccurrenceMark, Twin};
use punctual::timeline::redis::RedisTimeline;
use punctual::timeline::{
    Claimed, GlanceRequest, LanePauseRequest, MoveRequest, PauseNote, Put, PutMode, ReapRequest, Skip, StoredTask,
    TaskPauseRequest, TaskRevision, Timeline, Token, Wake,
};

use super::super::raw::Raw;
use super::super::shared::{SharedServer, connect};
use super::super::stage::{self, LEASE, START, at, lane_named, ms, record};
use super::rules::Tally;
use super::steps::{Body, Due, Step, StepMode};
use super::wakes::{Wakes, wake_text};

/// Retention of dead records: short, so that runs outlast it.
const DEAD_KEEP: Duration = Duration::from_secs(20);

/// Both timelines, and what their client remembers.
pub(super) struct Both {
    pub(super) clock: Arc<ManualClock>,
    pub(super) memory: Arc<MemoryTimeline>,
    pub(super) redis: Arc<RedisTimeline>,
    pub(super) raw: Raw,
    pub(super) shards: u16,
    /// All claims so far.
    pub(super) claims: Vec<(Shard, Lane, Token, Claimed)>,
    /// Keys of all occurrences claimed so far.
    pub(super) keys: Vec<Key>,
    pub(super) next_token: u32,
    pub(super) tally: Tally,
    /// Notifications that Redis may send and the twin need not. A put of several tasks takes two rounds when one of
    /// them waits in another lane, and each round notifies about the head it found.
    pub(super) in_rounds: Vec<String>,
    /// The other way round: notifications that the twin sends and Redis may leave out, because its second round finds what
    /// its first round wrote.
    pub(super) not_in_rounds: Vec<String>,
}

impl Both {
    /// Both timelines with a new namespace, and their notifications.
    pub(super) async fn new(server: &SharedServer, shards: u16) -> (Both, Wakes) {
        let clock = Arc::new(ManualClock::new(START));
        let memory = Arc::new(MemoryTimeline::new(clock.clone(), shards));
        let (redis, raw) = connect(server, clock.clone(), shards).await;
        let wakes = Wakes { memory: memory.wakes(), redis: redis.wakes() };
        let both = Both {
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
        (both, wakes)
    }

    pub(super) fn id(&self, number: usize) -> (TaskId, Shard) {
        let id: TaskId = ["x", "y", "z", "x:1", "y.2", "Z-3"][number].parse().unwrap();
        let shard = Shard::of(&id, self.shards);
        (id, shard)
    }

    pub(super) fn lane(number: usize) -> Lane {
        lane_named(["default", "b", "c-1"][number])
    }

    /// Usually the key of a dead or requeued occurrence, else any claimed one.
    fn dead_or_any(&self, index: Index) -> Key {
        let mut dead: Vec<Key> = Vec::new();
        for twin in Shard::all(self.shards).map(|shard| self.memory.twin(shard)) {
            dead.extend(twin.dead_records.keys().filter_map(|key| key.parse().ok()));
            dead.extend(twin.tasks.keys().filter_map(|member| member.requeued_key()));
        }
        if dead.is_empty() || index.index(4) == 0 { index.get(&self.keys).clone() } else { index.get(&dead).clone() }
    }

    pub(super) fn not_after(&self, late: bool) -> Timestamp {
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

    /// Runs one step on both sides; returns its shard.
    pub(super) async fn step(&mut self, step: &Step) -> Result<Option<Shard>, TestCaseError> {
        let shard = match step {
            Step::Put { puts, mode, late } => {
                let shard = self.id(puts[0].0).1;
                let (before, mut drafts) = (self.memory.twin(shard), Vec::<Put>::new());
                // A task without a record that is put into another lane would be in both lanes. No verb causes that.
                let is_stray = |put: &Put| {
                    let (member, mut lines) = (Member::from(&put.id), before.due.iter());
                    !before.tasks.contains_key(&member)
                        && lines.any(|(lane, line)| *lane != put.lane && line.score(&member).is_some())
                };
                for put in puts.iter().filter(|put| self.id(put.0).1 == shard) {
                    let draft = self.draft(*put);
                    // A call names each id at most once.
                    if drafts.iter().all(|other| other.id != draft.id) && !is_stray(&draft) {
                        drafts.push(draft);
                    }
                }
                if drafts.is_empty() {
                    return Ok(None);
                }
                let not_after = self.not_after(*late);
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
                let first = before.get(&drafts[0].id);
                let mode = match mode {
                    StepMode::Put => PutMode::Put,
                    StepMode::Post => PutMode::Post,
                    StepMode::Match(right) => PutMode::Match(revision_of(first.as_ref(), *right)),
                    StepMode::Absent => PutMode::Absent,
                };
                let answers = both!(self, step, |timeline| timeline.put(shard, mode, drafts.clone(), not_after));
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
            Step::Cancel { id, revision, late } => {
                let ((id, shard), not_after) = (self.id(*id), self.not_after(*late));
                let held = self.memory.twin(shard).get(&id);
                let revision = revision.map(|right| revision_of(held.as_ref(), right));
                let paused = self.memory.twin(shard).pauses.contains_key(&Member::from(&id));
                let answer = both!(self, step, |timeline| timeline.cancel(shard, &id, revision, not_after));
                self.tally.cancel(paused, &answer);
                shard
            }
            Step::Get { id } => {
                let (id, shard) = self.id(*id);
                let held = both!(self, step, |timeline| timeline.get(shard, &id));
                self.tally.get(&self.memory.twin(shard), &Member::from(&id), held.ok().flatten().as_ref());
                shard
            }
            Step::Claim { .. } => self.claim(step).await?,
            Step::Settle { .. } => match self.settle(step).await? {
                Some(shard) => shard,
                None => return Ok(None),
            },
            Step::Extend { claims } if !self.claims.is_empty() => {
                // Usually some of the latest claims.
                let recent = &self.claims[self.claims.len().saturating_sub(4)..];
                let shard = claims[0].get(recent).0;
                let claims = claims.iter().map(|claim| claim.get(recent)).filter(|claim| claim.0 == shard);
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
                let after = self.memory.twin(shard);
                self.tally.reap((&before, &after), (self.clock.now(), &lane), &request, &reaped);
                shard
            }
            Step::Glance { id, lanes, depth } => {
                let shard = self.id(*id).1;
                let lanes = lanes.iter().map(|(lane, served)| (Both::lane(*lane), *served)).collect();
                let request = GlanceRequest { lanes, lease: LEASE, dead_keep: DEAD_KEEP, depth: *depth };
                let before = self.memory.twin(shard);
                let glance = both!(self, step, |timeline| timeline.glance(shard, request.clone()));
                self.tally.glance(&before, self.clock.now(), &request, &glance);
                shard
            }
            Step::Requeue { key, meant, late } | Step::Discard { key, meant, late } if !self.keys.is_empty() => {
                let (key, not_after) = (self.dead_or_any(*key), self.not_after(*late));
                let shard = Shard::of(&key.task, self.shards);
                let before = self.memory.twin(shard);
                let known = before.dead.score(&key.to_string().into()).unwrap_or(0);
                let died = meant.map(|right| Timestamp::from_millis(if right { known } else { known + 1 }));
                match step {
                    Step::Requeue { .. } => {
                        let answer = both!(self, step, |timeline| timeline.requeue(shard, &key, died, not_after));
                        self.tally.requeue(&before, &Member::requeued(&key), &answer);
                    }
                    _ => {
                        let answer = both!(self, step, |timeline| timeline.discard(shard, &key, died, not_after));
                        self.tally.discard(&answer);
                    }
                }
                shard
            }
            Step::Browse { .. } => self.browse(step).await?,
            Step::List { .. } => self.list(step).await?,
            Step::Pause { id, pause, late } => {
                let ((id, shard), not_after) = (self.id(*id), self.not_after(*late));
                let request = match pause {
                    true => TaskPauseRequest::Pause(PauseNote { by: None, note: "wrong figures".to_owned() }),
                    false => TaskPauseRequest::Resume,
                };
                let before = self.memory.twin(shard);
                let answer = both!(self, step, |timeline| timeline.pause(shard, &id, request.clone(), not_after));
                self.tally.pause(before.get(&id).as_ref(), &answer);
                shard
            }
            Step::Move { id, skip, new_key, late } => {
                let ((id, shard), not_after) = (self.id(*id), self.not_after(*late));
                let before = self.memory.twin(shard);
                let held = before.get(&id);
                let request = match (skip, &held) {
                    (Some((by, wrong)), Some(held)) => MoveRequest::Skip(skip_of(held, *by, *wrong)),
                    (Some(_), None) => return Ok(None),
                    (None, _) => MoveRequest::Trigger { new_key: *new_key },
                };
                let answer = both!(self, step, |timeline| timeline.move_due(shard, &id, request.clone(), not_after));
                self.tally.move_due(held.as_ref(), &request, &answer);
                shard
            }
            Step::PauseLane { id, lane, pause, late } => {
                let (shard, lane, not_after) = (self.id(*id).1, Both::lane(*lane), self.not_after(*late));
                let until = |span: i64| Timestamp::from_millis(self.clock.now().as_millis() + span);
                let about = PauseNote { by: (*late).then(|| "ops".to_owned()), note: format!("of {lane}") };
                let request = match pause {
                    Some(span) => LanePauseRequest::Pause { until: span.map(until), about },
                    None => LanePauseRequest::Resume,
                };
                let answer =
                    both!(self, step, |timeline| timeline.pause_lane(shard, &lane, request.clone(), not_after));
                self.tally.pause_lane(&answer);
                shard
            }
            Step::Show { key } if !self.keys.is_empty() => {
                let key = self.dead_or_any(*key);
                let shard = Shard::of(&key.task, self.shards);
                let dead = both!(self, step, |timeline| timeline.show(shard, &key));
                self.tally.show(&dead);
                shard
            }
            Step::Strand { id, lane } => {
                let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
                self.memory.edit(shard, |twin| drop(twin.leases.remove(&lane)));
                self.raw.remove(shard, &[format!("leases:{lane}")]);
                shard
            }
            Step::Mark { id, count, unreadable } => {
                let (id, shard) = self.id(*id);
                let Some(held) = self.memory.twin(shard).get(&id).filter(|held| !held.in_flight) else {
                    return Ok(None);
                };
                let mark = OccurrenceMark { due: held.due, count: *count, unreadable: *unreadable };
                self.memory.edit(shard, |twin| {
                    twin.crashes.insert(Member::from(&id), mark);
                });
                self.raw.set_mark(shard, &Member::from(&id), mark);
                shard
            }
            Step::LoseRecord { id } => {
                let (id, shard) = self.id(*id);
                if self.memory.twin(shard).get(&id).is_none_or(|held| held.in_flight || held.pause.is_some()) {
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

    pub(super) fn compare(&self, shard: Shard, step: &Step) -> Result<(), TestCaseError> {
        let (expected, found) = (self.memory.twin(shard), self.raw.twin(shard));
        check_pauses(&expected, step)?;
        if expected == found {
            return Ok(());
        }
        // Shows only the differences, because the whole state fills pages.
        let lines = |twin: &Twin| format!("{twin:#?}").lines().map(str::to_owned).collect::<Vec<_>>();
        let (expected, found) = (lines(&expected), lines(&found));
        let only = |one: &[String], other: &[String]| {
            one.iter().filter(|line| !other.contains(line)).cloned().collect::<Vec<_>>().join("\n")
        };
        let (twin, redis) = (only(&expected, &found), only(&found, &expected));
        let (expected, found) = (expected.join("\n"), found.join("\n"));
        let why = format!("state after {step:?}:\n{twin}\nbut Redis:\n{redis}\n\ntwin {expected}\nRedis {found}");
        Err(TestCaseError::fail(why))
    }
}

/// The revision of a task, or a wrong one if not `right`.
fn revision_of(held: Option<&StoredTask>, right: bool) -> TaskRevision {
    let revision = held.and_then(|held| Record::decode(&held.record).ok()).map(|record| TaskRevision::of(&record));
    let revision = revision.unwrap_or(TaskRevision { created: START, number: 1 });
    TaskRevision { number: revision.number + u32::from(!right), ..revision }
}

/// Skips a task by `by` ms, but never beyond the greatest due, because the engine never asks for that. If `wrong`, it names
/// another due or revision.
fn skip_of(held: &StoredTask, by: i64, wrong: bool) -> Skip {
    let to = Timestamp::from_millis(held.due.as_millis() + by).min(Timestamp::MAX_DUE);
    let mut revision = TaskRevision::of(&Record::decode(&held.record).unwrap());
    let mut from = held.due;
    match by {
        1 if wrong => from = to,
        500 if wrong => revision.number += 1,
        _ if wrong => revision.created = to,
        _ => {}
    }
    let counts = Counts { passed_over: held.counts.passed_over + 1, last_due: Some(from), ..held.counts };
    Skip { from, revision, to, counts }
}

/// If no claim holds a task, its score is that of a paused task if and only if it is paused. A due that a trigger lets pass is
/// the exception. Every pause belongs to a task that exists.
fn check_pauses(twin: &Twin, step: &Step) -> Result<(), TestCaseError> {
    const OFFSET: i64 = 1_000_000_000_000_000;
    let fail = |member: &Member| Err(TestCaseError::fail(format!("after {step:?}: `{member}` in\n{twin:#?}")));
    for (score, member) in twin.due.values().flat_map(|line| line.iter()).filter(|(score, _)| *score > 0) {
        let pause = twin.pauses.get(member);
        let passes = pause.is_some_and(|pause| pause.pass == Some(Timestamp::from_millis(score)));
        if (score > OFFSET) != (pause.is_some() && !passes) {
            return fail(member);
        }
    }
    match twin.pauses.keys().find(|member| twin.place(member).is_none()) {
        Some(member) => fail(member),
        None => Ok(()),
    }
}
