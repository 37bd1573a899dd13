//! The twin's verbs as the model calls them, with one rule removed when a test proves that the rule is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use punctual::clock::Timestamp;
use punctual::task::{Key, Lane, Member, TaskId};
use punctual::timeline::memory::{Change, Twin, Zset};
use punctual::timeline::{
    CancelAnswer, ClaimRequest, Claimed, DuePosition, MAX_CLAIM_BYTES, MoveAnswer, MoveRequest, PauseNote, Put,
    PutAnswer, PutMode, PutResult, ReapRequest, RequeueAnswer, Settle, Settled, SuspectsRequest, TaskPause,
    TaskPauseAnswer, TaskPauseRequest, TimelineError, Token,
};

use super::choices::Take;
use super::world::member_of;

/// Which rule is removed, and what is checked.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Which events may happen, and how often.
    pub(crate) plan: &'static Plan,
    /// The rule that is removed.
    pub(crate) flaw: Option<Flaw>,
    /// Checks only what users and consumers see, not the shard's keys.
    pub(crate) outside_only: bool,
}

/// Which events may happen in a search, and how often.
pub(crate) struct Plan {
    /// Tasks that exist at the start.
    pub(crate) standing: &'static [Wish],
    /// Tasks that users may put.
    pub(crate) wishes: &'static [Wish],
    /// Number of task ids.
    pub(crate) ids: u8,
    /// Number of lanes.
    pub(crate) lanes: u8,
    /// Whether a sink may reject a message for good.
    pub(crate) rejects: bool,
    /// Whether an instance may be unable to read a record.
    pub(crate) unreadable: bool,
    /// Which other kinds of claims there are, besides those of the oldest.
    pub(crate) takes: &'static [Take],
    /// Lease of claims, in ticks; the reaper's own lease is one tick.
    pub(crate) lease: u8,
    /// Whether users may discard dead records.
    pub(crate) discards: bool,
    /// How many dead records are kept, and for how many ticks.
    pub(crate) dead_cap: u8,
    pub(crate) dead_keep: u8,
    /// Whether a reap may arrive later than it was sent.
    pub(crate) parks_reaps: bool,
    /// How often the other events may happen.
    pub(crate) budget: Budget,
}

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) puts: u8,
    pub(crate) cancels: u8,
    /// Requeues and discards.
    pub(crate) requeues: u8,
    pub(crate) claims: u8,
    pub(crate) publishes: u8,
    pub(crate) extends: u8,
    /// Replies that are lost, and calls that arrive later than they were sent.
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    pub(crate) ticks: u8,
    /// Pauses, resumes and triggers.
    pub(crate) pauses: u8,
    /// Steps of the server's clock.
    pub(crate) steps: u8,
}

impl Budget {
    /// This budget with one more of each event in turn, with the event's name.
    pub(crate) fn one_more(self) -> [(&'static str, Budget); 11] {
        [
            ("put", Budget { puts: self.puts + 1, ..self }),
            ("cancel", Budget { cancels: self.cancels + 1, ..self }),
            ("requeue", Budget { requeues: self.requeues + 1, ..self }),
            ("claim", Budget { claims: self.claims + 1, ..self }),
            ("publish", Budget { publishes: self.publishes + 1, ..self }),
            ("extend", Budget { extends: self.extends + 1, ..self }),
            ("loss", Budget { losses: self.losses + 1, ..self }),
            ("crash", Budget { crashes: self.crashes + 1, ..self }),
            ("tick", Budget { ticks: self.ticks + 1, ..self }),
            ("pause", Budget { pauses: self.pauses + 1, ..self }),
            ("step of the clock", Budget { steps: self.steps + 1, ..self }),
        ]
    }
}

/// A task that a user may put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wish {
    pub(crate) id: u8,
    pub(crate) due: u8,
    pub(crate) payload: u8,
    pub(crate) lane: u8,
    pub(crate) kind: Kind,
    /// `PUT`, or `POST` with an idempotency key that may be repeated.
    pub(crate) mode: PutMode,
}

/// The kinds of schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Once; the due is part of the request.
    At,
    /// Once; a repeated put counts anew.
    In,
    /// At every due up to the last.
    Every,
}

/// What users do to a task besides puts and cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Steering {
    Pause,
    Resume,
    Trigger,
}

/// The answer to a [`Steering`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Steered {
    Paused(TaskPauseAnswer),
    Moved(MoveAnswer),
}

/// A rule that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A settled occurrence stays in its claim.
    SettledPairStays,
    /// Calls take effect however late they arrive.
    NoNotAfter,
    /// A put may give another message the due in flight.
    NoRefusalOfTheDueInFlight,
    /// A reap drops what users requested in the meantime.
    ReapDropsChanges,
    /// No mark says that an occurrence was handed out.
    NoMarks,
    /// Claims never expire.
    NoReap,
    /// A reap returns occurrences with the current time as their due.
    ReapRestoresNow,
    /// A claimed occurrence still looks like a waiting one.
    ClaimDoesNotNegate,
    /// The shortcut is used even after something has left the claim.
    ShortCutAlways,
    /// A settle overwrites what its user requested in the meantime.
    SettleIgnoresChanges,
    /// A put of a waiting task does not tell what was handed out.
    PutForgetsMarks,
    /// An instance publishes without checking its lease.
    PublishWithoutLease,
    /// An instance does not report that a publish had begun.
    BegunNotTold,
    /// A `POST` replaces the task of its key.
    PostReplaces,
    /// A put that moves a task leaves it in its old lane, too.
    MoveLeavesBehind,
    /// A put may move a task in flight.
    MoveInFlight,
    /// A put ignores requeued occurrences.
    PutOverlooksRequeued,
    /// A repeated put does not tell what is in flight.
    UnchangedNamesNoKey,
    /// A reap cuts all leases to its own.
    ReapCutsToItsOwnLease,
    /// An unreadable occurrence is no longer marked as handed out.
    UnreadableForgets,
    /// Above the cap the newest dead records are dropped.
    NewestDeadDropped,
    /// A requeue returns a dead record although a task has its key.
    RequeueOverlooksTask,
    /// A put ends the pause of its task.
    PutEndsPause,
    /// A settle gives paused tasks the score of waiting ones, so that claims take them.
    SettleForgetsPauses,
    /// A reap gives paused tasks the score of waiting ones, so that claims take them.
    ReapForgetsPauses,
    /// A trigger ends the pause of its task.
    TriggerEndsPause,
}

/// Lanes by number.
pub(crate) fn lane(number: u8) -> Lane {
    thread_local!(static LANES: [Lane; 2] = ["l", "m"].map(|name| name.parse().unwrap()));
    LANES.with(|lanes| lanes[usize::from(number)].clone())
}

/// The model's time as a timeline's time.
pub(crate) fn time(tick: u8) -> Timestamp {
    // All dues are from 1 to 9; the model begins after them.
    Timestamp::from_millis(10 + i64::from(tick))
}

/// A timeline's time as a due.
pub(crate) fn small(time: Timestamp) -> u8 {
    u8::try_from(time.as_millis()).unwrap()
}

/// The due of a score: negative while it is claimed, with 10^15 more while it is paused.
pub(crate) fn due_of_score(score: i64) -> i64 {
    score.abs() % 1_000_000_000_000_000
}

/// A due as a timeline's time.
pub(crate) fn due(due: u8) -> Timestamp {
    Timestamp::from_millis(i64::from(due))
}

impl Rules {
    fn has(self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn not_after(self, tick: u8) -> Timestamp {
        if self.has(Flaw::NoNotAfter) { Timestamp::MAX_DUE } else { time(tick) }
    }

    /// A put that was sent at `sent`.
    pub(crate) fn put(
        self,
        twin: &mut Twin,
        now: u8,
        sent: u8,
        put: &Put,
        mode: PutMode,
    ) -> Result<PutAnswer, TimelineError> {
        let mode = if self.has(Flaw::PostReplaces) { PutMode::Put } else { mode };
        let member = Member::from(&put.id);
        let before = self.flaw.and_then(|_| twin.place(&member));
        let marks = self.flaw.map(|_| twin.crashes.clone()).unwrap_or_default();
        if self.has(Flaw::PutForgetsMarks) {
            twin.crashes.clear();
        }
        if self.has(Flaw::PutOverlooksRequeued) {
            twin.crashes.retain(|member, _| member.requeued_key().is_none());
        }
        let pauses = self.forgets(Flaw::PutEndsPause, twin);
        let answers = twin.put(time(now), mode, std::slice::from_ref(put), self.not_after(sent))?;
        remember(pauses, twin);
        if self.has(Flaw::PutForgetsMarks) {
            twin.crashes.clone_from(&marks);
            twin.crashes.retain(|member, mark| score(&twin.due, member) == Some(mark.due.as_millis()));
        }
        let mut answer = answers.answer[0];
        if self.has(Flaw::PutOverlooksRequeued) {
            twin.crashes.extend(marks.into_iter().filter(|(member, _)| member.requeued_key().is_some()));
        }
        if self.has(Flaw::UnchangedNamesNoKey) && answer.result == PutResult::Unchanged {
            answer.in_flight = None;
        }
        let flies = score(&twin.due, &member).is_some_and(|score| score < 0);
        if self.has(Flaw::NoRefusalOfTheDueInFlight) && answer.result == PutResult::InFlight && flies {
            twin.changes.insert(member.clone(), Change::Due(put.due));
            answer = PutAnswer { result: PutResult::Replaced, due: put.due, in_flight: Some(put.due), paused: false };
            twin.tasks.insert(member.clone(), put.record.clone());
        }
        if let Some((lane, score)) = before.filter(|(lane, _)| *lane != put.lane) {
            if self.has(Flaw::MoveLeavesBehind) && answer.result == PutResult::Replaced {
                twin.due.entry(lane).or_default().set(member.clone(), score);
            } else if self.has(Flaw::MoveInFlight)
                && answer.result == PutResult::InFlight
                && put.due.as_millis() != -score
            {
                twin.due.entry(put.lane.clone()).or_default().set(member.clone(), put.due.as_millis());
                answer = PutAnswer {
                    result: PutResult::Replaced,
                    due: put.due,
                    in_flight: Some(Timestamp::from_millis(-score)),
                    paused: false,
                };
            }
        }
        // Revision and record size do not matter here and would only make states differ.
        twin.largest = 0;
        if matches!(answer.result, PutResult::Created | PutResult::Replaced) {
            twin.tasks.insert(member, put.record.clone());
        }
        self.forget_marks(twin);
        Ok(answer)
    }

    /// A cancel that was sent at `sent`.
    pub(crate) fn cancel(self, twin: &mut Twin, now: u8, sent: u8, id: &TaskId) -> Result<CancelAnswer, TimelineError> {
        twin.cancel(time(now), id, None, self.not_after(sent)).map(|reported| reported.answer)
    }

    /// A requeue that was sent at `sent`.
    pub(crate) fn requeue(self, twin: &mut Twin, now: u8, sent: u8, key: &Key) -> Result<RequeueAnswer, TimelineError> {
        let parent = twin.tasks.get(&Member::from(&key.task)).cloned().filter(|_| self.has(Flaw::RequeueOverlooksTask));
        if parent.is_some() {
            twin.tasks.remove(&Member::from(&key.task));
        }
        let reported = twin.requeue(time(now), key, None, self.not_after(sent));
        twin.largest = 0;
        twin.tasks.extend(parent.map(|record| (Member::from(&key.task), record)));
        reported.map(|reported| reported.answer)
    }

    /// A claim that was sent at `sent`.
    pub(crate) fn claim(
        self,
        twin: &mut Twin,
        now: u8,
        sent: u8,
        token: &Token,
        (lane, take): (&Lane, Take),
    ) -> Result<Claimed, TimelineError> {
        let (token, max_bytes, lease, not_after) = (token.clone(), MAX_CLAIM_BYTES, self.lease(), self.not_after(sent));
        let claimed = if matches!(take, Take::Suspects | Take::Unreadable) {
            let unreadable = take == Take::Unreadable;
            let request = SuspectsRequest { token, max: 2, max_bytes, lease, not_after, unreadable, after: None };
            twin.claim_suspects(time(now), lane, &request)?.answer
        } else {
            let (newest_first, max) = (take == Take::Newest, if take == Take::Newest { 1 } else { 2 });
            let after = (take == Take::Behind).then(|| DuePosition { due: due(1), member: Some(member_of(0)) });
            let request = ClaimRequest { token, max, max_bytes, lease, not_after, newest_first, after };
            twin.claim(time(now), lane, &request)?.answer
        };
        if self.has(Flaw::ClaimDoesNotNegate)
            && let Some(line) = twin.due.get_mut(lane)
        {
            for one in &claimed.occurrences {
                line.set(one.member.clone(), one.due.as_millis());
            }
        }
        Ok(claimed)
    }

    /// A settle.
    pub(crate) fn settle(self, twin: &mut Twin, now: u8, lane: &Lane, settle: &Settle) -> Settled {
        let before = self.flaw.map(|_| twin.clone());
        if self.has(Flaw::ShortCutAlways) {
            for claim in twin.claims.values_mut().flat_map(|claims| claims.values_mut()) {
                claim.whole = true;
            }
        }
        if self.has(Flaw::SettleIgnoresChanges) {
            twin.changes.clear();
        }
        let pauses = self.forgets(Flaw::SettleForgetsPauses, twin);
        let settled = twin.settle(time(now), lane, settle).unwrap().answer;
        remember(pauses, twin);
        if let Some(before) = before {
            self.after_settle(twin, before, (lane, settle), &settled);
        }
        settled
    }

    /// What the removed rule would have prevented in a settle.
    fn after_settle(self, twin: &mut Twin, before: Twin, (lane, settle): (&Lane, &Settle), settled: &Settled) {
        if self.has(Flaw::NewestDeadDropped) && settled.dropped > 0 {
            (twin.dead, twin.dead_records) = (before.dead, before.dead_records);
        }
        for mark in twin.crashes.values_mut().filter(|mark| mark.unreadable && self.has(Flaw::UnreadableForgets)) {
            mark.count = None;
        }
        if self.has(Flaw::SettleIgnoresChanges) {
            twin.changes = before.changes;
            twin.changes.retain(|member, _| score(&twin.due, member).is_some_and(|score| score < 0));
        }
        if self.has(Flaw::SettledPairStays)
            && let Some(claim) = twin.claims.get_mut(lane).and_then(|claims| claims.get_mut(&settle.token))
        {
            claim.pairs.clone_from(&before.claims[lane][&settle.token].pairs);
        }
        self.forget_marks(twin);
    }

    /// A reap that was sent at `sent`; returns whether it took effect.
    pub(crate) fn reap(self, twin: &mut Twin, now: u8, sent: u8) -> bool {
        if self.has(Flaw::NoReap) {
            return false;
        }
        if self.has(Flaw::ReapDropsChanges) && now <= sent {
            twin.changes.clear();
        }
        let flying = || twin.due.values().flat_map(|line| line.negative()).map(|(_, member)| member.clone()).collect();
        let flew: Vec<_> = self.flaw.map(|_| flying()).unwrap_or_default();
        for leases in twin.leases.values_mut().filter(|_| self.has(Flaw::ReapCutsToItsOwnLease)) {
            let end = time(now).as_millis() + 1;
            let long: Vec<_> = leases.iter().filter(|(at, _)| *at > end).map(|(_, token)| token.clone()).collect();
            long.into_iter().for_each(|token| leases.set(token, end));
        }
        let dead_keep = Duration::from_millis(self.plan.dead_keep.into());
        let request =
            ReapRequest { lease: Duration::from_millis(1), served: true, dead_keep, not_after: self.not_after(sent) };
        let pauses = self.forgets(Flaw::ReapForgetsPauses, twin);
        for number in 0..self.plan.lanes {
            if twin.reap(time(now), &lane(number), &request).is_err() {
                return false;
            }
        }
        remember(pauses, twin);
        for line in twin.due.values_mut().filter(|_| self.has(Flaw::ReapRestoresNow)) {
            for member in &flew {
                if line.score(member).is_some_and(|score| score > 0) {
                    line.set(member.clone(), time(now).as_millis());
                }
            }
        }
        self.forget_marks(twin);
        true
    }

    /// A pause, a resume or a trigger.
    pub(crate) fn steer(self, twin: &mut Twin, now: u8, id: &TaskId, steering: Steering) -> Steered {
        let request = match steering {
            Steering::Pause => TaskPauseRequest::Pause(PauseNote::default()),
            Steering::Resume => TaskPauseRequest::Resume,
            Steering::Trigger => {
                let moved =
                    twin.move_due(time(now), id, &MoveRequest::Trigger { new_key: false }, time(now)).unwrap().answer;
                if self.has(Flaw::TriggerEndsPause) && matches!(moved, MoveAnswer::Moved { .. }) {
                    twin.pauses.clear();
                }
                return Steered::Moved(moved);
            }
        };
        let answer = twin.pause(time(now), id, &request, time(now)).unwrap().answer;
        // When it was paused does not matter here and would only make states differ.
        twin.pauses.values_mut().for_each(|pause| pause.at = time(0));
        Steered::Paused(answer)
    }

    /// The pauses, which are taken away if this rule is removed.
    fn forgets(self, flaw: Flaw, twin: &mut Twin) -> BTreeMap<Member, TaskPause> {
        if self.has(flaw) { std::mem::take(&mut twin.pauses) } else { BTreeMap::new() }
    }

    fn forget_marks(self, twin: &mut Twin) {
        if self.has(Flaw::NoMarks) {
            twin.crashes.clear();
        }
    }

    /// Lease of claims.
    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(self.plan.lease.into())
    }

    /// Whether instances check their lease before they publish.
    pub(crate) fn looks_at_lease(self) -> bool {
        !self.has(Flaw::PublishWithoutLease)
    }

    /// Whether instances report that a publish had begun.
    pub(crate) fn tells_begun(self) -> bool {
        !self.has(Flaw::BegunNotTold)
    }
}

/// Puts back the pauses of tasks that still exist.
fn remember(pauses: BTreeMap<Member, TaskPause>, twin: &mut Twin) {
    twin.pauses.extend(pauses.into_iter().filter(|(member, _)| twin.tasks.contains_key(member)).collect::<Vec<_>>());
}

fn score(due: &BTreeMap<Lane, Zset<Member>>, member: &Member) -> Option<i64> {
    due.values().find_map(|line| line.score(member))
}

/// The record of a task.
pub(crate) fn record(kind: Kind, due: u8, payload: u8, lane: u8) -> Bytes {
    let (flags, body): (u8, &[u8]) = match kind {
        Kind::At => (0, &[payload, due]),
        Kind::In => (2, &[payload]),
        Kind::Every => (1, &[payload]),
    };
    let lane = char::from(b'l' + lane).to_string();
    crate::support::records::record(flags, &lane, 0, body)
}

/// Kind and payload of a record.
pub(crate) fn read_record(record: &[u8]) -> (Kind, u8) {
    let kind = match record[1] {
        0 => Kind::At,
        1 => Kind::Every,
        _ => Kind::In,
    };
    (kind, record[32])
}
