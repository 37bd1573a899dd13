//! Decides what happens to each occurrence, and writes it.

use std::sync::Arc;

use tracing::{debug, error};

use super::dead_copies::{DeadCopyResult, FAILURE_PAUSE, PendingDeadCopy, headers_of};
use super::flight::{Flight, FlightStage};
use super::task::{ClaimState, Decision};
use super::verdicts::{VerdictMetrics, waits_until};
use crate::engine::claiming::judge::Reason;
use crate::engine::claiming::next_claim::OLDEST_INTERVAL;
use crate::engine::claiming::settling::settle_until_answered;
use crate::engine::fault::{self, Point};
use crate::task::{NextDue, Record};
use crate::timeline::{RestOfClaim, Settle, Settled, Settlement, Verdict};

impl ClaimState {
    /// Notes the decision about an occurrence. It is written once the next due is known too.
    pub(super) fn decide(&mut self, index: usize, decision: Decision) {
        let flight = &mut self.flights[index];
        if flight.stage == FlightStage::HasVerdict {
            return;
        }
        if flight.knows_next_due() {
            return self.conclude(index, decision);
        }
        flight.decided();
        self.decisions.insert(index, decision);
    }

    /// Notes the next due of an occurrence's task.
    pub(super) fn next_due_known(&mut self, index: usize, next_due: Result<NextDue, String>) {
        // The occurrence was returned to the lane in the meantime.
        if self.flights[index].stage == FlightStage::HasVerdict {
            return;
        }
        match next_due {
            Ok(next_due) => {
                self.flights[index].set_next_due(next_due);
                if let Some(decision) = self.decisions.remove(&index) {
                    self.conclude(index, decision);
                }
            }
            Err(detail) => {
                let (lane, member) = (&self.claim.lane.lane, &self.flights[index].occurrence.member);
                error!(%lane, %member, detail, "cannot compute the next due; returning the occurrence");
                self.decisions.remove(&index);
                let verdict = self.flights[index].back();
                self.verdict(index, verdict, None);
            }
        }
    }

    fn conclude(&mut self, index: usize, decision: Decision) {
        let verdict = match decision {
            Decision::Accepted => self.flights[index].accepted(),
            Decision::PassedOver => self.flights[index].passed(),
            Decision::Dead(reason, detail) => {
                let record = self.flights[index].record().ok();
                return self.record_dead(index, record.as_ref(), reason, detail);
            }
        };
        self.verdict(index, verdict, None);
    }

    /// Returns an occurrence to the lane because its destination has reached its quota.
    pub(super) fn return_over_quota(&mut self, index: usize) {
        self.claim.lane.returned_over_quota(&self.flights[index].destination);
        // Claims of this lane now start behind it, so wake the claimer when a claim is to start at the oldest again.
        self.claim.signal.raise(self.claim.shard.clock.now().plus(OLDEST_INTERVAL));
        let flight = &mut self.flights[index];
        flight.over_quota = true;
        let verdict = flight.back();
        self.verdict(index, verdict, None);
    }

    /// Declares an occurrence dead.
    pub(super) fn record_dead(&mut self, index: usize, record: Option<&Record>, reason: Reason, detail: String) {
        let flight = &mut self.flights[index];
        let lane = &self.claim.lane;
        let destination = record.map_or("", |record| Flight::destination(record, lane.destination.as_deref()));
        lane.log_death(reason, destination, &detail);
        let member = &flight.occurrence.member;
        debug!(lane = lane.lane.as_str(), %member, reason = reason.as_str(), detail, "an occurrence is dead");
        let copied = lane.dead_destination.as_deref().zip(record).filter(|_| reason != Reason::Poison);
        let copy = copied.map(|(to, record)| flight.copy(record, to, headers_of(reason, &detail)));
        let verdict = flight.dead(record, reason, detail);
        match copy {
            Some(message) => {
                self.dead_copies.add(PendingDeadCopy { index, verdict, reason, copy: Some(message) });
            }
            None => self.verdict(index, verdict, Some(reason)),
        }
    }

    /// Sends the waiting copies, unless others are under way. While the lane pauses its copies, the dead are recorded
    /// without one.
    pub(super) fn send_copies(&mut self) {
        let lane = Arc::clone(&self.claim.lane);
        if lane.copies.paused_until().is_none() {
            return self.dead_copies.send_if_idle(&lane.sink.sink, &self.claim.lease);
        }
        for PendingDeadCopy { index, verdict, reason, .. } in self.dead_copies.take_unsent() {
            lane.count_copy(Err("another one failed a moment ago"));
            self.verdict(index, verdict, Some(reason));
        }
    }

    /// Records the death of an occurrence once its copy has a result.
    pub(super) fn dead_copy_answered(&mut self, (index, copied): DeadCopyResult) {
        let Some(PendingDeadCopy { verdict, reason, .. }) = self.dead_copies.take(index) else { return };
        let lane = &self.claim.lane;
        if copied.as_ref().is_err_and(|error| error.others_too) {
            lane.copies.pause(FAILURE_PAUSE);
        }
        lane.count_copy(copied.as_ref().copied().map_err(|error| error.detail.as_str()));
        self.verdict(index, verdict, Some(reason));
    }

    /// Records the deaths whose copies have no result yet.
    pub(super) fn record_uncopied(&mut self) {
        for PendingDeadCopy { index, verdict, reason, .. } in self.dead_copies.take_unanswered() {
            self.claim.lane.count_copy(Err("it was not answered before its claim ended"));
            self.verdict(index, verdict, Some(reason));
        }
    }

    /// Adds a verdict, which waits a little for others.
    pub(super) fn verdict(&mut self, index: usize, verdict: Settlement, dead: Option<Reason>) {
        let flight = &self.flights[index];
        let passed_over = flight.tally(&verdict.verdict);
        let (member, catch_up) = (&verdict.member, flight.catch_up);
        let counted = (dead.is_some() || passed_over > 0).then(|| VerdictMetrics {
            member: member.clone(),
            dead,
            passed_over,
            catch_up,
        });
        self.open -= 1;
        self.verdicts.add(index, verdict, counted, self.claim.shard.clock.now());
    }

    /// Starts a settle, if it is time and no other is under way.
    pub(super) fn settle_if_due(&mut self) {
        let all = self.open == 0;
        let Some(verdicts) = self.verdicts.take_due(all) else { return };
        if all {
            fault::reached(Point::AfterPublish);
        }
        let others =
            || verdicts.iter().filter(|(index, _)| !self.flights[*index].over_quota).map(|(_, verdict)| verdict);
        let head = others().filter_map(waits_until).min();
        // A wake-up for occurrences over quota would only lead to useless claims. All other returns send one.
        let returns = |settlement: &Settlement| matches!(settlement.verdict, Verdict::Back { .. });
        let quiet = others().count() < verdicts.len() && !others().any(returns);
        let (context, lease) = (&self.claim.context, &self.claim.lease);
        let settle = Settle {
            token: lease.token.clone(),
            verdicts: verdicts.into_iter().map(|(_, verdict)| verdict).collect(),
            rest: RestOfClaim::Keep,
            lease: context.config.lease,
            dead_cap: context.config.dead_cap,
            quiet,
        };
        let (shard, lane) = (Arc::clone(&self.claim.shard), Arc::clone(&self.claim.lane));
        let (context, lease) = (Arc::clone(context), Arc::clone(lease));
        self.verdicts.settle(settle_until_answered(context, shard, lane, settle, Some((lease, all))), head);
    }

    /// The verdicts are written: frees their capacity, and wakes the claimer for the next dues.
    pub(super) fn settled(&mut self, settled: &Settled) {
        let Some((head, tally)) = self.verdicts.settled() else { return };
        if let Some(head) = head {
            self.claim.signal.raise(head);
        }
        let (lane, metrics) = (self.claim.lane.lane.as_str(), &self.claim.context.metrics);
        for counted in tally {
            if settled.skipped.contains(&counted.member) || settled.changed.contains(&counted.member) {
                continue;
            }
            metrics.passed_over(lane, counted.catch_up.as_str(), counted.passed_over);
            self.claim.lane.log_passed_over(counted.passed_over);
            if let Some(reason) = counted.dead {
                metrics.dead(lane, reason.as_str(), 1);
            }
        }
        metrics.dead_dropped.inc_by(settled.dropped);
        self.claim.lane.log_dropped(settled.dropped);
        let bytes = self.flights.iter().map(|flight| flight.occurrence.record.len()).sum();
        let left = self.open + self.verdicts.waiting();
        self.claim.shares.iter_mut().for_each(|share| share.fit_to(left, bytes));
    }
}
