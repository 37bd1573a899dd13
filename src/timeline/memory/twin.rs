//! The state of one shard and the rules it obeys, without Redis, without a clock and without I/O.
//!
//! A [`Twin`] holds what the keys of a shard hold in Redis, under the same names. Its verbs take the time and answer as
//! the scripts do, so that a test can run both side by side, or try every order of steps on copies. The verbs stand in
//! `put.rs` (put, cancel, get), `claim.rs` (claim, claim_suspects), `settle.rs` (settle, extend), `reap.rs` (reap, glance) and `dead.rs` (requeue,
//! discard).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::zset::Zset;
use crate::clock::Timestamp;
use crate::task::layout::lane_of;
use crate::task::{Counts, Lane, Member};
use crate::timeline::{DeadRecord, Token};

/// The state of one shard.
///
/// As in Redis, a set without members does not exist: equal shards are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Twin {
    /// By lane: member to due in ms, positive waiting, negative claimed.
    pub due: BTreeMap<Lane, Zset<Member>>,
    /// Member to encoded record.
    pub tasks: BTreeMap<Member, Bytes>,
    /// By lane: claim to the end of its lease in ms.
    pub leases: BTreeMap<Lane, Zset<Token>>,
    /// By lane: claim to what it holds.
    pub claims: BTreeMap<Lane, BTreeMap<Token, Claim>>,
    /// What becomes of a task when the claim that holds it ends; empty at rest.
    pub changes: BTreeMap<Member, Change>,
    /// Occurrences that were handed out before and may have been sent.
    pub crashes: BTreeMap<Member, Mark>,
    /// What has happened to the occurrences of recurring tasks.
    pub counts: BTreeMap<Member, Counts>,
    /// Idempotency key of a dead occurrence to the time of its burial in ms.
    pub dead: Zset<Arc<str>>,
    /// Idempotency key of a dead occurrence to what is kept of it.
    pub dead_records: BTreeMap<Arc<str>, DeadRecord>,
    /// Every lane that ever held a task here.
    pub lanes: BTreeSet<Lane>,
    /// Bytes of the largest record that may stand.
    pub largest: usize,
    /// By lane: when to look for ended leases next.
    pub reap_at: BTreeMap<Lane, ReapAt>,
}

/// What a claim holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Nothing has left it yet.
    pub whole: bool,
    /// The occurrences: member and due.
    pub pairs: Vec<(Member, Timestamp)>,
}

/// What its user asked of a task in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// To be due then, with the record that stands there.
    Due(Timestamp),
    /// To be gone.
    Cancelled,
}

impl Change {
    /// When it is due from now on, if it is.
    #[must_use]
    pub fn due(self) -> Option<Timestamp> {
        match self {
            Change::Due(due) => Some(due),
            Change::Cancelled => None,
        }
    }
}

/// That an occurrence was handed out before and may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The occurrence's due.
    pub due: Timestamp,
    /// How many of its claims ended without word; `None` where it was never handed out without word.
    pub count: Option<u32>,
    /// An instance could not read it.
    pub unreadable: bool,
}

/// When somebody is told to reap next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReapAt {
    /// The time.
    pub at: Timestamp,
    /// It was put off by a lease, for everybody was away: it is not put off again.
    pub late: bool,
}

impl Mark {
    /// The mark of what was handed out, and whose claims ended without word so often.
    #[must_use]
    pub fn crashed(due: Timestamp, count: u32) -> Mark {
        Mark { due, count: Some(count), unreadable: false }
    }
}

/// An answer, and whom to wake: lanes whose head became earlier, with the new head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified<T> {
    /// What the caller is told.
    pub answer: T,
    /// What the sleepers are told.
    pub wakes: Vec<(Lane, Timestamp)>,
}

impl<T> Notified<T> {
    pub(super) fn quietly(answer: T) -> Notified<T> {
        Notified { answer, wakes: Vec::new() }
    }
}

impl Twin {
    /// The smallest due that waits in a lane.
    #[must_use]
    pub fn head(&self, lane: &Lane) -> Option<Timestamp> {
        self.due.get(lane)?.positive().next().map(|(score, _)| Timestamp::from_millis(score))
    }

    /// The score of a member in a lane.
    #[must_use]
    pub fn score_in(&self, lane: &Lane, member: &Member) -> Option<i64> {
        self.due.get(lane)?.score(member)
    }

    /// The lane and the score of a member, found by its record.
    #[must_use]
    pub fn place(&self, member: &Member) -> Option<(Lane, i64)> {
        let lane = lane_of(self.tasks.get(member)?)?;
        let score = self.score_in(&lane, member)?;
        Some((lane, score))
    }

    /// The mark of a member's occurrence of that due.
    pub(super) fn mark(&self, member: &Member, due: Timestamp) -> Option<Mark> {
        self.crashes.get(member).filter(|mark| mark.due == due).copied()
    }

    /// A record of so many bytes comes in. Where none stands, the largest is known anew.
    pub(super) fn comes(&mut self, bytes: usize) {
        let others = if self.tasks.is_empty() { 0 } else { self.largest };
        self.largest = others.max(bytes);
    }

    pub(super) fn set_score(&mut self, lane: &Lane, member: &Member, score: i64) {
        match self.due.get_mut(lane) {
            Some(line) => line.set(member.clone(), score),
            None => self.due.entry(lane.clone()).or_default().set(member.clone(), score),
        }
    }

    /// Changes a score that is there. Nothing but a put or a requeue brings a member in.
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

    /// Takes a claim and its lease out.
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

    /// The task has ended: nothing of it stays.
    pub(super) fn end(&mut self, lane: &Lane, member: &Member) {
        self.remove_score(lane, member);
        self.tasks.remove(member);
        self.counts.remove(member);
        self.crashes.remove(member);
    }

    /// What its user asked of it meanwhile takes effect, if there was something.
    pub(super) fn apply_change(&mut self, lane: &Lane, member: &Member) -> Option<Change> {
        let change = self.changes.remove(member)?;
        match change {
            Change::Cancelled => self.end(lane, member),
            Change::Due(due) => {
                self.turn(lane, member, due.as_millis());
                self.crashes.remove(member);
            }
        }
        Some(change)
    }

    /// Whom to wake when something came in that is due at these times where a lane's head was `before`: its sleepers, if the
    /// first is earlier, or if the head was due already, since a claimer may have gone past it.
    pub(super) fn came(
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
