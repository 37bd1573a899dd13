//! What instances do to occurrences that they hold: settle, extend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::twin::{Mark, Told, Twin};
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, Member};
use crate::timeline::{Burial, MAX_BATCH, Rest, Settle, Settled, Settlement, TimelineError, Token, Verdict};

impl Twin {
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
        let mut back: Vec<Member> = settle.verdicts.iter().map(|settlement| settlement.member.clone()).collect();
        back.retain(|member| !settled.skipped.contains(member));
        if settle.rest == Rest::Back {
            for (member, due) in claim.pairs.drain(..) {
                back.push(member.clone());
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
        let wakes = self.came_back(now, lane, before, &back).filter(|_| !settle.quiet).into_iter().collect();
        Ok(Told { answer: settled, wakes })
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
                let count = self.mark(member, *due).and_then(|mark| mark.count);
                // A mark that it cannot be read goes: its holder could.
                match count.or_else(|| begun.then_some(0)) {
                    Some(count) => self.crashes.insert(member.clone(), Mark::crashed(*due, count)),
                    None => self.crashes.remove(member),
                };
            }
            Verdict::Unreadable => {
                self.turn(lane, member, due.as_millis());
                let count = self.mark(member, *due).and_then(|mark| mark.count);
                self.crashes.insert(member.clone(), Mark { due: *due, count, unreadable: true });
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
