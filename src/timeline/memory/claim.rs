//! What instances do to occurrences: claim, settle, extend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::twin::{Claim, Mark, Told, Twin, recurs};
use super::zset::Zset;
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, Member};
use crate::timeline::{
    Burial, ClaimRequest, Claimed, MAX_BATCH, MAX_CLAIM_BYTES, Occurrence, Rest, Settle, Settled, Settlement,
    TimelineError, Token, Verdict,
};

/// How many due members a claim looks at beyond those it takes, while it looks out for suspects.
const LOOKED_AT: usize = 1000;

/// A lane whose head has waited this long, and of which more is due than fits, is claimed from both ends.
const BEHIND: Duration = Duration::from_secs(5);

/// An occurrence whose claims ended without word this often is a suspect: it is claimed with its like, and alone from then on.
const SUSPECT: u32 = 2;

impl Twin {
    /// Locks due occurrences of a lane under one new lease.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn claim(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        request: &ClaimRequest,
    ) -> Result<Told<Claimed>, TimelineError> {
        if now > request.not_after {
            return Err(TimelineError::Late);
        }
        let look = self.look(now, lane, request);
        let mut claimed =
            Claimed { now, occurrences: Vec::new(), head: look.head, suspects: look.suspects, removed: 0 };
        for member in &look.without_record {
            self.remove_score(lane, member);
            claimed.removed += 1;
        }
        if look.taken.is_empty() {
            return Ok(Told::quietly(claimed));
        }
        self.set_lease(lane, &request.token, now.plus(request.lease));
        let claim = Claim { whole: true, pairs: look.taken.clone() };
        self.claims.entry(lane.clone()).or_default().insert(request.token.clone(), claim);
        for (member, due) in look.taken {
            self.turn(lane, &member, -due.as_millis());
            let record = self.tasks.get(&member).cloned().unwrap_or_default();
            claimed.occurrences.push(Occurrence {
                counts: self.counts.get(&member).filter(|_| recurs(&record)).copied().unwrap_or_default(),
                record,
                crashes: self.crashes.get(&member).filter(|_| request.suspects_only).map_or(0, |mark| mark.count),
                member,
                due,
            });
        }
        let more = claimed.head.filter(|head| *head <= now && !request.suspects_only);
        Ok(Told { answer: claimed, wakes: more.map(|head| (lane.clone(), head)).into_iter().collect() })
    }

    /// How often the claims of this very occurrence ended without word.
    fn crash_count(&self, member: &Member, due: Timestamp) -> u32 {
        self.crashes.get(member).filter(|mark| mark.due == due).map_or(0, |mark| mark.count)
    }

    /// What a claim would find.
    fn look(&self, now: Timestamp, lane: &Lane, request: &ClaimRequest) -> Look {
        let Some(line) = self.due.get(lane) else { return Look::default() };
        let due = line.between(1, now.as_millis());
        let (max, bytes) = (request.max.clamp(1, MAX_BATCH), request.max_bytes.min(MAX_CLAIM_BYTES));
        // Without a mark there is no suspect to look out for.
        let beyond = if self.crashes.is_empty() { 0 } else { LOOKED_AT };
        let mut scan = Scan::new(self, request.suspects_only);
        if request.suspects_only {
            scan.along_suspects(due.take(1 + beyond), max, bytes);
        } else if self.is_behind(now, due.clone(), max, bytes) {
            let half = max.div_ceil(2);
            let (first, second) = (half + beyond, max - half + beyond);
            // Where only one fits, the ends take turns.
            if now.as_millis() % 2 == 0 {
                scan.along(due.clone().take(first), half, bytes / 2);
                let last = scan.looked.last().copied();
                let unseen = due.rev().take_while(|place| last.is_none_or(|last| *place > last));
                scan.along(unseen.take(second), max, bytes);
            } else {
                scan.along(due.clone().rev().take(first), half, bytes / 2);
                let last = scan.looked.first().copied();
                let unseen = due.take_while(|place| last.is_none_or(|last| *place < last));
                scan.along(unseen.take(second), max, bytes);
            }
        } else {
            scan.along(due.take(max + beyond), max, bytes);
        }
        scan.found(line)
    }

    /// Whether a lane's head has waited long, and more is due than fits into a claim; not of one moment only, but where
    /// there may be suspects.
    fn is_behind<'a>(
        &self,
        now: Timestamp,
        due: impl DoubleEndedIterator<Item = (i64, &'a Member)> + Clone,
        max: usize,
        bytes: usize,
    ) -> bool {
        let waits = due.clone().next().is_some_and(|(head, _)| Timestamp::from_millis(head).plus(BEHIND) <= now);
        let spread = due.clone().next().map(|place| place.0) != due.clone().next_back().map(|place| place.0);
        let size = |(_, member): (i64, &Member)| self.tasks.get(member).map_or(0, |record| record.len());
        waits
            && (spread || !self.crashes.is_empty())
            && (due.clone().nth(max).is_some() || due.map(size).sum::<usize>() > bytes)
    }

    /// Writes verdicts back; what is not named stays under the token with a fresh lease, or goes back.
    ///
    /// # Errors
    /// [`TimelineError::Refused`] when a next due is not later than the one that ended, or out of range.
    pub fn settle(&mut self, now: Timestamp, lane: &Lane, settle: &Settle) -> Result<Told<Settled>, TimelineError> {
        for Settlement { due, verdict, .. } in &settle.verdicts {
            if let Verdict::Next { due: next, .. } | Verdict::DeadNext { due: next, .. } = verdict
                && !(next > due && next.is_due())
            {
                return Err(TimelineError::Refused(format!("bad_due {}", next.as_millis())));
            }
        }
        let Some(mut claim) = self.claims.get(lane).and_then(|claims| claims.get(&settle.token)).cloned() else {
            return Ok(Told::quietly(Settled { lost: true, ..Settled::default() }));
        };
        let before = self.head(lane);
        let mut settled = Settled::default();
        let (mut named, mut buried) = (BTreeSet::new(), false);
        // The short cut: nothing has left the claim, and as many are named as it holds, so they need not be looked up.
        let all = claim.whole && settle.verdicts.len() == claim.pairs.len() && self.changes.is_empty();
        let held: BTreeMap<Member, Timestamp> =
            if all { BTreeMap::new() } else { claim.pairs.iter().cloned().collect() };
        for settlement in &settle.verdicts {
            if all || held.get(&settlement.member) == Some(&settlement.due) {
                named.insert(&settlement.member);
                buried |= self.judge(now, lane, settlement, &mut settled);
            } else {
                settled.skipped.push(settlement.member.clone());
            }
        }
        if all {
            claim.pairs.clear();
        } else if !named.is_empty() {
            claim.whole = false;
            claim.pairs.retain(|(member, _)| !named.contains(member));
        }
        if settle.rest == Rest::Back {
            for (member, due) in claim.pairs.drain(..) {
                if self.apply_change(lane, &member) {
                    settled.changed.push(member);
                } else {
                    self.turn(lane, &member, due.as_millis());
                }
            }
        }
        if buried {
            settled.dropped = self.drop_dead_over(settle.dead_cap, MAX_BATCH);
        }
        if claim.pairs.is_empty() {
            self.remove_claim(lane, &settle.token);
        } else {
            self.claims.entry(lane.clone()).or_default().insert(settle.token.clone(), claim);
            self.extend(now, &[(lane.clone(), settle.token.clone())], settle.lease);
        }
        Ok(Told { answer: settled, wakes: self.earlier(lane, before).into_iter().collect() })
    }

    /// One occurrence takes its verdict, or what its user asked meanwhile; whether it was buried.
    fn judge(&mut self, now: Timestamp, lane: &Lane, settlement: &Settlement, settled: &mut Settled) -> bool {
        let Settlement { member, due, verdict } = settlement;
        if self.apply_change(lane, member) {
            settled.changed.push(member.clone());
            return false;
        }
        match verdict {
            Verdict::Finished => self.end(lane, member),
            Verdict::Next { due, counts } => self.go_on(lane, member, *due, *counts),
            Verdict::Dead(burial) => {
                self.bury(now, member, *due, burial);
                self.end(lane, member);
            }
            Verdict::DeadNext { burial, due: next, counts } => {
                self.bury(now, member, *due, burial);
                self.go_on(lane, member, *next, *counts);
            }
            Verdict::Back { begun } => {
                self.turn(lane, member, due.as_millis());
                if *begun {
                    self.crashes.entry(member.clone()).or_insert(Mark { due: *due, count: 0 });
                }
            }
        }
        matches!(verdict, Verdict::Dead(_) | Verdict::DeadNext { .. })
    }

    fn go_on(&mut self, lane: &Lane, member: &Member, next: Timestamp, counts: Counts) {
        self.turn(lane, member, next.as_millis());
        self.counts.insert(member.clone(), counts);
        self.crashes.remove(member);
    }

    fn bury(&mut self, now: Timestamp, member: &Member, due: Timestamp, burial: &Burial) {
        let key: std::sync::Arc<str> = member.key(due).to_string().into();
        self.dead.set(key.clone(), now.as_millis());
        self.dead_records.insert(key, burial.clone());
    }

    /// Renews leases; says of each token whether it still lives.
    pub fn extend(&mut self, now: Timestamp, tokens: &[(Lane, Token)], lease: Duration) -> Vec<bool> {
        let renew = |(lane, token): &(Lane, Token)| {
            let lives = self.leases.get(lane).is_some_and(|leases| leases.score(token).is_some());
            if lives {
                self.set_lease(lane, token, now.plus(lease));
            }
            lives
        };
        tokens.iter().map(renew).collect()
    }
}

/// What a claim finds in a lane.
#[derive(Default)]
struct Look {
    /// Due, and to be taken.
    taken: Vec<(Member, Timestamp)>,
    /// Due, but without a record.
    without_record: Vec<Member>,
    /// Due suspects that are not taken.
    suspects: u64,
    /// The first due that is neither taken nor a suspect.
    head: Option<Timestamp>,
}

/// A claim looking along a lane.
struct Scan<'a> {
    twin: &'a Twin,
    suspects_only: bool,
    /// What was found to be taken, without a record, or a suspect that is left out.
    looked: BTreeSet<(i64, &'a Member)>,
    taken: Vec<(i64, &'a Member)>,
    without_record: Vec<&'a Member>,
    suspects: Vec<(i64, &'a Member)>,
    bytes: usize,
}

impl<'a> Scan<'a> {
    fn new(twin: &'a Twin, suspects_only: bool) -> Scan<'a> {
        let (taken, without_record, suspects) = (Vec::new(), Vec::new(), Vec::new());
        Scan { twin, suspects_only, looked: BTreeSet::new(), taken, without_record, suspects, bytes: 0 }
    }

    /// Takes what is to be taken until `max` occurrences or `bytes` are reached.
    fn along(&mut self, places: impl Iterator<Item = (i64, &'a Member)>, max: usize, bytes: usize) {
        for (score, member) in places {
            if self.twin.crash_count(member, Timestamp::from_millis(score)) >= SUSPECT {
                self.suspects.push((score, member));
                self.looked.insert((score, member));
                continue;
            }
            let record = self.twin.tasks.get(member);
            match record {
                None => self.without_record.push(member),
                Some(record)
                    if self.taken.is_empty() || (self.taken.len() < max && self.bytes + record.len() <= bytes) =>
                {
                    self.bytes += record.len();
                    self.taken.push((score, member));
                }
                Some(_) => return,
            }
            self.looked.insert((score, member));
        }
    }

    /// Takes the first suspect; if its claims ended without word only twice, more of that kind with it.
    fn along_suspects(&mut self, places: impl Iterator<Item = (i64, &'a Member)>, max: usize, bytes: usize) {
        let mut crashed = 0;
        for (score, member) in places {
            let count = self.twin.crash_count(member, Timestamp::from_millis(score));
            if count < SUSPECT {
                continue;
            }
            self.looked.insert((score, member));
            let first = self.taken.is_empty();
            let may = first || (self.taken.len() < max && count == SUSPECT && crashed == SUSPECT);
            match self.twin.tasks.get(member) {
                None if may => self.without_record.push(member),
                Some(record) if may && (first || self.bytes + record.len() <= bytes) => {
                    crashed = count;
                    self.bytes += record.len();
                    self.taken.push((score, member));
                }
                _ => self.suspects.push((score, member)),
            }
        }
    }

    /// What was found, and what stands first in the lane besides. Suspects at the newest end are told of once everything
    /// before them has been looked at.
    fn found(self, line: &Zset<Member>) -> Look {
        let head = line.positive().find(|place| !self.looked.contains(place));
        let before = |suspect: &&(i64, &Member)| self.suspects_only || head.is_none_or(|head| **suspect < head);
        Look {
            suspects: self.suspects.iter().filter(before).count() as u64,
            taken: self
                .taken
                .iter()
                .map(|(score, member)| ((*member).clone(), Timestamp::from_millis(*score)))
                .collect(),
            without_record: self.without_record.into_iter().cloned().collect(),
            head: head.map(|(score, _)| Timestamp::from_millis(score)),
        }
    }
}
