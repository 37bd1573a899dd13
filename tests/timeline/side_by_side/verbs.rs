//! The verbs with the most choices: claim, settle, browse, and the lists.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::test_runner::TestCaseError;
use punctual::clock::{Clock, Timestamp};
use punctual::task::{Counts, Lane, Member, Shard};
use punctual::timeline::{
    BrowseRequest, ClaimRequest, CountRequest, DeadCursor, DeadFilter, DeadRecord, DuePosition, ScanRequest,
    ScannedTask, Settle, Settlement, SuspectsRequest, TaskFilter, Timeline, TimelineError, Token, UpcomingRequest,
    Verdict,
};

use super::super::stage::{LEASE, at};
use super::both::Both;
use super::steps::{Kind, Order, Step, StepVerdict};

impl Both {
    pub(super) async fn claim(&mut self, step: &Step) -> Result<Shard, TestCaseError> {
        let Step::Claim { id, lane, max, max_bytes, kind, after, lease, late } = step else { unreachable!() };
        let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
        self.next_token += 1;
        let (instance, n) = (["0", "1"][self.next_token as usize % 2], u64::from(self.next_token));
        // Tokens of older instances do not contain the lease.
        let lease = Duration::from_millis(*lease);
        let token = if n % 3 == 0 { Token(format!("{instance}.{n}")) } else { Token::new(instance, n, lease) };
        // Starts after an occurrence that was claimed earlier and may be gone; or, if not `named`, before the first with the same due.
        let after = after.filter(|_| !self.keys.is_empty()).map(|(place, named)| {
            let key = place.get(&self.keys);
            DuePosition { due: key.due, member: named.then(|| Member::from(&key.task)) }
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

    pub(super) async fn settle(&mut self, step: &Step) -> Result<Option<Shard>, TestCaseError> {
        let Step::Settle { claim, verdicts, rest, dead_cap, quiet, order } = step else { unreachable!() };
        if self.claims.is_empty() {
            return Ok(None);
        }
        // Usually one of the latest, because older claims have ended.
        let recent = &self.claims[self.claims.len().saturating_sub(3)..];
        let last = &self.claims[self.claims.len() - 1];
        let (shard, lane, token, claimed) = claim.map_or(last, |claim| claim.get(recent)).clone();
        // The verdicts repeat over many occurrences.
        let words = verdicts.iter().cycle();
        let mut verdicts: Vec<Settlement> = Vec::new();
        verdicts.extend(claimed.occurrences.iter().zip(words).filter_map(|(one, word)| {
            let reason = if one.due.as_millis() % 2 == 0 { "rejected" } else { "retries" };
            let dead_record =
                || DeadRecord {
                    record: one.record.clone(), reason: reason.into(), detail: "zu groß:\n1 > 0\n".into()
                };
            let due = |after: &i64| Timestamp::from_millis(one.due.as_millis() + after);
            let counts = Counts { accepted: 1, dead: 2, passed_over: 1 << 60, last_due: Some(one.due) };
            let verdict = match word {
                StepVerdict::Unnamed => return None,
                StepVerdict::Finished => Verdict::Finished,
                StepVerdict::Next(after) => Verdict::Next { due: due(after), counts },
                StepVerdict::Dead => Verdict::Dead(dead_record()),
                StepVerdict::DeadNext(after) => {
                    Verdict::DeadNext { dead_record: dead_record(), due: due(after), counts }
                }
                StepVerdict::Back(begun) => Verdict::Back { begun: *begun },
                StepVerdict::Unreadable => Verdict::Unreadable,
            };
            Some(Settlement { member: one.member.clone(), due: one.due, verdict })
        }));
        match order {
            Order::Kept => {}
            Order::Reversed => verdicts.reverse(),
            // Adds a verdict for a task that is not in the claim, but only if every occurrence of the claim has one.
            // Otherwise the number of verdicts would be that of the claim, and the script would not compare them.
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

    pub(super) async fn browse(&mut self, step: &Step) -> Result<Shard, TestCaseError> {
        let Step::Browse { id, after, from, to, lane, prefix, reason, max, whole } = step else { unreachable!() };
        let shard = self.id(*id).1;
        // After a record that exists or existed, with its time or another.
        let after = after.filter(|_| !self.keys.is_empty()).map(|place| {
            let key = place.get(&self.keys).clone();
            let known = self.memory.twin(shard).dead.score(&key.to_string().into());
            DeadCursor { died: known.map_or(self.clock.now(), Timestamp::from_millis), key }
        });
        let filter = DeadFilter {
            lane: lane.map(Both::lane),
            prefix: (*prefix).to_owned(),
            reason: reason.map(str::to_owned),
            from: from.map(at),
            to: to.map(at),
        };
        let request = BrowseRequest { filter, after, max: *max, whole: *whole };
        let browsed = both!(self, step, |timeline| timeline.browse(shard, request.clone()));
        self.tally.browse(&browsed);
        Ok(shard)
    }

    /// Lists, and counts, the tasks of a lane. A list without an order is compared as a set.
    pub(super) async fn list(&mut self, step: &Step) -> Result<Shard, TestCaseError> {
        let Step::List { id, lane, status, prefix, text, from, to, max } = step else { unreachable!() };
        let (shard, lane) = (self.id(*id).1, Both::lane(*lane));
        let filter = TaskFilter {
            status: *status,
            prefix: (*prefix).to_owned(),
            contains: (*text).to_owned(),
            due_from: from.map(at),
            due_to: to.map(at),
        };
        let scanned = both!(self, step, |timeline| all(timeline.as_ref(), shard, &lane, &filter));
        let after = DuePosition { due: from.map_or(Timestamp::MIN_DUE, at), member: None };
        let request = UpcomingRequest { after, max: *max, prefix: (*prefix).to_owned() };
        let upcoming = both!(self, step, |timeline| timeline.upcoming(shard, &lane, request.clone()));
        let borders = vec![at(-5), at(0), at(3), at(15_000)];
        let request = CountRequest { borders };
        let counted = both!(self, step, |timeline| timeline.count(shard, &lane, request.clone()));
        self.tally.list(&filter, &scanned, &upcoming, &counted);
        Ok(shard)
    }
}

/// All tasks that a scan finds, sorted.
async fn all(
    timeline: &dyn Timeline,
    shard: Shard,
    lane: &Lane,
    filter: &TaskFilter,
) -> Result<BTreeSet<ScannedTask>, TimelineError> {
    let (mut tasks, mut cursor) = (BTreeSet::new(), 0);
    loop {
        let request = ScanRequest { filter: filter.clone(), cursor, count: 100 };
        let scanned = timeline.scan(shard, lane, request).await?;
        tasks.extend(scanned.tasks);
        cursor = scanned.cursor;
        if cursor == 0 {
            return Ok(tasks);
        }
    }
}
