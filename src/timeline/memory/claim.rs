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

/// An occurrence whose claims ended without word this often is a suspect: it is claimed alone.
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
                crashes: self.crashes.get(&member).filter(|_| request.lone).map_or(0, |mark| mark.count),
                member,
                due,
            });
        }
        let more = claimed.head.filter(|head| *head <= now && !request.lone);
        Ok(Told { answer: claimed, wakes: more.map(|head| (lane.clone(), head)).into_iter().collect() })
    }

    fn suspected(&self, member: &Member, due: Timestamp) -> bool {
        self.crashes.get(member).is_some_and(|mark| mark.due == due && mark.count >= SUSPECT)
    }

    /// What a claim would find.
    fn look(&self, now: Timestamp, lane: &Lane, request: &ClaimRequest) -> Look {
        let mut look = Look::default();
        let max = if request.lone { 1 } else { request.max.clamp(1, MAX_BATCH) };
        // Without a mark there is no suspect to look out for.
        let window = if self.crashes.is_empty() { max } else { max + LOOKED_AT };
        let mut bytes = 0;
        for (seen, (score, member)) in self.due.get(lane).into_iter().flat_map(Zset::positive).enumerate() {
            let due = Timestamp::from_millis(score);
            if due > now || seen >= window {
                look.head = look.head.or(Some(due));
                break;
            }
            if self.suspected(member, due) != request.lone {
                if request.lone {
                    look.head = look.head.or(Some(due));
                } else {
                    look.suspects += 1;
                }
                continue;
            }
            let Some(record) = self.tasks.get(member) else {
                look.without_record.push(member.clone());
                continue;
            };
            let full = look.taken.len() == max
                || (!look.taken.is_empty() && bytes + record.len() > request.max_bytes.min(MAX_CLAIM_BYTES));
            if full && request.lone {
                look.suspects += 1;
            } else if full {
                look.head = Some(due);
                break;
            } else {
                bytes += record.len();
                look.taken.push((member.clone(), due));
            }
        }
        look
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
