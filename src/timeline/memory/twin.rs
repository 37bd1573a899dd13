//! The state of one shard and its rules, without Redis, clock or I/O.
//!
//! A [`Twin`] stores the same data as the keys of a shard in Redis, under the same names. Its verbs take the time and
//! return what the scripts reply, so that a test can compare the two, or try every order of steps on copies. The verbs
//! are in `put.rs` (put, cancel, get), `claim.rs` (claim, claim_suspects), `settle.rs` (settle, extend), `reap.rs`
//! (reap, glance), `scan.rs` (scan, upcoming, count), `pauses.rs` (pause, pause_lane), `moves.rs` (move_due) and
//! `dead.rs` (requeue, discard, browse, show).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::zset::Zset;
use crate::clock::Timestamp;
use crate::task::layout::lane_of;
use crate::task::{Counts, Lane, Member};
use crate::timeline::pauses::paused_score;
use crate::timeline::{DeadRecord, LanePause, TaskPause, Token};

/// The state of one shard.
///
/// As in Redis, a set without members does not exist, so equal shards are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Twin {
    /// By lane: member to due in ms, positive while it waits, negative while it is claimed; 10^15 + due while it is
    /// paused and no claim holds it.
    pub due: BTreeMap<Lane, Zset<Member>>,
    /// Member to encoded record.
    pub tasks: BTreeMap<Member, Bytes>,
    /// By lane: claim to the end of its lease in ms.
    pub leases: BTreeMap<Lane, Zset<Token>>,
    /// By lane: claim token to the occurrences of the claim.
    pub claims: BTreeMap<Lane, BTreeMap<Token, Claim>>,
    /// Member to the put or cancel that takes effect when its claim ends.
    pub changes: BTreeMap<Member, Change>,
    /// Marks of occurrences that were handed out before and may have been published, or that are unreadable.
    pub crashes: BTreeMap<Member, OccurrenceMark>,
    /// Counters of the past occurrences of recurring tasks.
    pub counts: BTreeMap<Member, Counts>,
    /// Idempotency key of a dead occurrence to its time of death in ms.
    pub dead: Zset<Arc<str>>,
    /// Idempotency key of a dead occurrence to its entry.
    pub dead_records: BTreeMap<Arc<str>, DeadRecord>,
    /// The lanes that had a task in this shard. A reap removes an empty lane that its caller does not serve.
    pub lanes: BTreeSet<Lane>,
    /// Upper bound of the size of all records, in bytes.
    pub largest: usize,
    /// By lane: the time of the next reap.
    pub reap_at: BTreeMap<Lane, ReapAt>,
    /// Paused tasks.
    pub pauses: BTreeMap<Member, TaskPause>,
    /// Paused lanes.
    pub paused_lanes: BTreeMap<Lane, LanePause>,
}

/// The occurrences of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Whether no occurrence has left it yet.
    pub whole: bool,
    /// Member and due of each occurrence.
    pub pairs: Vec<(Member, Timestamp)>,
}

/// A put or cancel of a task in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The task becomes due at this time, with the record that is stored now.
    Due(Timestamp),
    /// The task ends.
    Cancelled,
}

/// Marks an occurrence that was handed out before and may have been published, or that is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OccurrenceMark {
    /// The occurrence's due.
    pub due: Timestamp,
    /// How many of its claims have expired; `None` if it was not handed out before.
    pub count: Option<u32>,
    /// An instance could not parse it.
    pub unreadable: bool,
}

/// The time of the next reap of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReapAt {
    /// The time.
    pub at: Timestamp,
    /// Whether the reap was postponed by one lease because no instance had looked for long. It is not postponed again
    /// until an instance looks regularly.
    pub postponed: bool,
}

impl OccurrenceMark {
    /// The mark of an occurrence with this many expired claims.
    #[must_use]
    pub fn crashed(due: Timestamp, count: u32) -> OccurrenceMark {
        OccurrenceMark { due, count: Some(count), unreadable: false }
    }
}

/// An answer with its wake-ups: lane and due, as in [`Wake`](crate::timeline::Wake).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerWithWakes<T> {
    /// The answer for the caller.
    pub answer: T,
    /// The wake-ups for claimers.
    pub wakes: Vec<(Lane, Timestamp)>,
}

impl<T> AnswerWithWakes<T> {
    pub(super) fn quietly(answer: T) -> AnswerWithWakes<T> {
        AnswerWithWakes { answer, wakes: Vec::new() }
    }
}

impl Twin {
    /// The earliest due that waits in a lane.
    #[must_use]
    pub fn head(&self, lane: &Lane) -> Option<Timestamp> {
        self.waiting(lane).next().map(|(score, _)| Timestamp::from_millis(score))
    }

    /// The members of a lane that wait and are not paused, the earliest first, with their dues.
    pub(super) fn waiting(&self, lane: &Lane) -> impl Iterator<Item = (i64, &Member)> {
        let between = |line| Zset::between(line, Timestamp::MIN_DUE.as_millis(), Timestamp::MAX_DUE.as_millis());
        self.due.get(lane).into_iter().flat_map(between)
    }

    /// The score of a member in a lane.
    #[must_use]
    pub fn score_in(&self, lane: &Lane, member: &Member) -> Option<i64> {
        self.due.get(lane)?.score(member)
    }

    /// The lane and the score of a member, found through its record.
    #[must_use]
    pub fn place(&self, member: &Member) -> Option<(Lane, i64)> {
        let lane = lane_of(self.tasks.get(member)?)?;
        let score = self.score_in(&lane, member)?;
        Some((lane, score))
    }

    /// The mark of a member, if it belongs to the occurrence with that due.
    pub(super) fn mark(&self, member: &Member, due: Timestamp) -> Option<OccurrenceMark> {
        self.crashes.get(member).filter(|mark| mark.due == due).copied()
    }

    /// Notes the size of a new record. If no other task is stored, the bound starts anew.
    pub(super) fn note_size(&mut self, bytes: usize) {
        let others = if self.tasks.is_empty() { 0 } else { self.largest };
        self.largest = others.max(bytes);
    }

    pub(super) fn set_score(&mut self, lane: &Lane, member: &Member, score: i64) {
        match self.due.get_mut(lane) {
            Some(line) => line.set(member.clone(), score),
            None => self.due.entry(lane.clone()).or_default().set(member.clone(), score),
        }
    }

    /// Changes the score of a member that is in the lane. Only a put or a requeue may add a member.
    pub(super) fn turn(&mut self, lane: &Lane, member: &Member, score: i64) {
        if let Some(line) = self.due.get_mut(lane)
            && line.score(member).is_some()
        {
            line.set(member.clone(), score);
        }
    }

    pub(super) fn remove_score(&mut self, lane: &Lane, member: &Member) {
        if let Some(line) = self.due.get_mut(lane) {
            line.remove(member);
            if line.is_empty() {
                self.due.remove(lane);
            }
        }
    }

    pub(super) fn set_lease(&mut self, lane: &Lane, token: &Token, end: Timestamp) {
        self.leases.entry(lane.clone()).or_default().set(token.clone(), end.as_millis());
    }

    /// Removes a claim and its lease.
    pub(super) fn remove_claim(&mut self, lane: &Lane, token: &Token) -> Option<Claim> {
        if let Some(leases) = self.leases.get_mut(lane) {
            leases.remove(token);
            if leases.is_empty() {
                self.leases.remove(lane);
            }
        }
        let claims = self.claims.get_mut(lane)?;
        let claim = claims.remove(token);
        if claims.is_empty() {
            self.claims.remove(lane);
        }
        claim
    }

    /// Removes an ended task with all its data.
    pub(super) fn end(&mut self, lane: &Lane, member: &Member) {
        self.remove_score(lane, member);
        self.tasks.remove(member);
        self.counts.remove(member);
        self.crashes.remove(member);
        self.pauses.remove(member);
    }

    /// Gives a member of a lane this due after its claim. Returns the due if it waits for it, or `None` if it is paused.
    pub(super) fn let_wait(&mut self, lane: &Lane, member: &Member, due: Timestamp) -> Option<Timestamp> {
        let paused = self.pauses.get(member).is_some_and(|pause| pause.keeps_back(due));
        self.turn(lane, member, if paused { paused_score(due) } else { due.as_millis() });
        (!paused).then_some(due)
    }

    /// Applies a put or cancel that was made while the task was in flight. Returns `None` if there was none, otherwise
    /// the due that the task waits for: `Some(None)` if it ended or is paused.
    pub(super) fn apply_change(&mut self, lane: &Lane, member: &Member) -> Option<Option<Timestamp>> {
        Some(match self.changes.remove(member)? {
            Change::Cancelled => {
                self.end(lane, member);
                None
            }
            Change::Due(due) => {
                self.crashes.remove(member);
                self.let_wait(lane, member, due)
            }
        })
    }

    /// The wake-up to send after dues were added to a lane whose head was `before`. There is one if the earliest new
    /// due is before the old head, or if the old head was due already, because a claimer may have gone past it.
    pub(super) fn wake_for(
        &self,
        now: Timestamp,
        lane: &Lane,
        before: Option<Timestamp>,
        dues: &[Timestamp],
    ) -> Option<(Lane, Timestamp)> {
        let due = *dues.iter().min()?;
        before.is_none_or(|before| due < before || before <= now).then(|| (lane.clone(), due))
    }
}
