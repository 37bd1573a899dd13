//! The verbs settle and extend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::twin::{AnswerWithWakes, OccurrenceMark, Twin};
use crate::clock::Timestamp;
use crate::task::layout::lane_of;
use crate::task::{Counts, Key, Lane, Member};
use crate::timeline::{DeadRecord, MAX_BATCH, RestOfClaim, Settle, Settled, Settlement, TimelineError, Token, Verdict};

impl Twin {
    /// Writes verdicts. [`Settle::rest`] decides whether the other occurrences stay in the claim or return to the lane.
    ///
    /// # Errors
    /// [`TimelineError::Refused`] if a next due is out of range or not later than the one that ended.
    pub fn settle(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        settle: &Settle,
    ) -> Result<AnswerWithWakes<Settled>, TimelineError> {
        for Settlement { due, verdict, .. } in &settle.verdicts {
            if let Verdict::Next { due: next, .. } | Verdict::DeadNext { due: next, .. } = verdict
                && !(next > due && next.is_valid_due())
            {
                return Err(TimelineError::Refused(format!("bad_due {}", next.as_millis())));
            }
        }
        let Some(mut claim) = self.claims.get(lane).and_then(|claims| claims.get(&settle.token)).cloned() else {
            return Ok(AnswerWithWakes::quietly(Settled { lost: true, ..Settled::default() }));
        };
        let before = self.head(lane);
        let mut settled = Settled::default();
        // `waits`: the dues of occurrences that wait again, for the wake-up.
        let (mut named, mut died, mut waits) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut recurring_dead = BTreeSet::new();
        // The short cut: nothing has left the claim and all its occurrences are named, so none has to be looked up.
        let all = claim.whole && settle.verdicts.len() == claim.pairs.len() && self.changes.is_empty();
        let held: BTreeMap<Member, Timestamp> =
            if all { BTreeMap::new() } else { claim.pairs.iter().cloned().collect() };
        for settlement in &settle.verdicts {
            let Settlement { member, due, verdict } = settlement;
            if !all && held.get(member) != Some(due) {
                settled.skipped.push(member.clone());
                continue;
            }
            named.insert(member);
            if let Some(due) = self.apply_change(lane, member) {
                settled.changed.push(member.clone());
                waits.extend(due);
                continue;
            }
            let due = self.judge(now, lane, settlement, &mut recurring_dead);
            if let Verdict::Dead(dead_record) | Verdict::DeadNext { dead_record, .. } = verdict {
                died.extend(lane_of(&dead_record.record));
            }
            let returns = matches!(verdict, Verdict::Back { .. } | Verdict::Unreadable);
            waits.extend(due.filter(|_| !(returns && settle.quiet)));
        }
        if all {
            claim.pairs.clear();
        } else if !named.is_empty() {
            claim.whole = false;
            claim.pairs.retain(|(member, _)| !named.contains(member));
        }
        if settle.rest == RestOfClaim::Back {
            for (member, due) in claim.pairs.drain(..) {
                if let Some(due) = self.apply_change(lane, &member) {
                    settled.changed.push(member);
                    waits.extend(due);
                } else {
                    waits.extend(self.let_wait(lane, &member, due).filter(|_| !settle.quiet));
                }
            }
        }
        for lane in died {
            settled.dropped += self.drop_dead_over(&lane, settle.dead_cap, MAX_BATCH);
        }
        if claim.pairs.is_empty() {
            self.remove_claim(lane, &settle.token);
        } else {
            self.claims.entry(lane.clone()).or_default().insert(settle.token.clone(), claim);
            self.extend(now, &[(lane.clone(), settle.token.clone())], settle.lease);
        }
        let wakes = self.wake_for(now, lane, before, &waits).into_iter().collect();
        Ok(AnswerWithWakes { answer: settled, wakes })
    }

    /// Applies one verdict. Returns the due if the task waits again.
    ///
    /// A task and its requeued occurrence may die under the same key in one settle. Then the record of the task with a
    /// next due is kept, as in the script. `recurring_dead` collects the keys of dead occurrences whose task has a next
    /// due.
    fn judge(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        Settlement { member, due, verdict }: &Settlement,
        recurring_dead: &mut BTreeSet<Key>,
    ) -> Option<Timestamp> {
        match verdict {
            Verdict::Finished => {
                self.end(lane, member);
                None
            }
            Verdict::Next { due, counts } => self.go_on(lane, member, *due, *counts),
            Verdict::Dead(dead_record) => {
                if !recurring_dead.contains(&member.key(*due)) {
                    self.add_dead(now, member, *due, dead_record);
                }
                self.end(lane, member);
                None
            }
            Verdict::DeadNext { dead_record, due: next, counts } => {
                recurring_dead.insert(member.key(*due));
                self.add_dead(now, member, *due, dead_record);
                self.go_on(lane, member, *next, *counts)
            }
            Verdict::Back { begun } => {
                let count = self.mark(member, *due).and_then(|mark| mark.count);
                // Drop a mark of unreadability: this holder could parse the occurrence.
                match count.or_else(|| begun.then_some(0)) {
                    Some(count) => self.crashes.insert(member.clone(), OccurrenceMark::crashed(*due, count)),
                    None => self.crashes.remove(member),
                };
                self.let_wait(lane, member, *due)
            }
            Verdict::Unreadable => {
                let count = self.mark(member, *due).and_then(|mark| mark.count);
                self.crashes.insert(member.clone(), OccurrenceMark { due: *due, count, unreadable: true });
                self.let_wait(lane, member, *due)
            }
        }
    }

    fn go_on(&mut self, lane: &Lane, member: &Member, next: Timestamp, counts: Counts) -> Option<Timestamp> {
        self.counts.insert(member.clone(), counts);
        self.crashes.remove(member);
        self.let_wait(lane, member, next)
    }

    fn add_dead(&mut self, now: Timestamp, member: &Member, due: Timestamp, dead_record: &DeadRecord) {
        let key: std::sync::Arc<str> = member.key(due).to_string().into();
        self.dead.set(key.clone(), now.as_millis());
        self.dead_records.insert(key, dead_record.clone());
    }

    /// Renews leases. Returns for each token whether its claim still exists.
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
