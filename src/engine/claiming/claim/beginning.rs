//! Begins a claim: parses its records, publishes the occurrences that may be published, and decides about the others.

use tokio::time::Instant;
use tracing::{debug, error};

use super::flight::{Flight, FlightStage};
use super::task::{ClaimState, Decision};
use crate::engine::claiming::judge::Reason;
use crate::engine::destinations::DestinationGate;
use crate::engine::destinations::failure_quota::QuotaReason;
use crate::task::Record;

/// Why an occurrence is not published.
enum NotPublished {
    PassedOver,
    Dead(Reason, String),
    /// Its destination is at fault, or never accepted a message, and the quota of such destinations is used up.
    OverQuota,
    /// Its destination is given up, and another message of this claim is the trial.
    Waits,
}

impl ClaimState {
    /// Parses the records, publishes, and starts to compute the next dues while the sink works.
    pub(super) fn begin(&mut self) {
        let overdue = self.claim.context.config.catch_up;
        let (mut records, mut ahead) = (Vec::new(), Vec::new());
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            let record = flight.record().map_err(|error| error.to_string());
            match record.and_then(|record| Ok((flight.next_due_search(&record, overdue)?, record))) {
                Ok((search, record)) => {
                    let withheld = self.why_not_published(index, &record);
                    ahead.push((index, search));
                    records.push((index, record, withheld));
                }
                Err(detail) => self.unreadable(index, &detail),
            }
        }
        let admitted = self.claim.lane.sink.breaker.admits(self.claim.trial);
        if admitted {
            let batch = records.iter().filter(|(_, _, withheld)| withheld.is_none());
            self.publish(batch.map(|(index, record, _)| (*index, record)));
        }
        for (index, search) in ahead {
            if let Some(next_due) = self.next_due_searches.begin(index, search) {
                self.next_due_known(index, next_due);
            }
        }
        for (index, record, withheld) in records {
            if self.flights[index].stage != FlightStage::HasVerdict {
                self.withhold(index, &record, withheld, admitted);
            }
        }
    }

    /// Why an occurrence is not published: it is poison, or passed over by its own catch-up, or its destination is at
    /// fault, given up, or new while other new destinations are at fault.
    fn why_not_published(&mut self, index: usize, record: &Record) -> Option<NotPublished> {
        let flight = &mut self.flights[index];
        let (context, shard, lane) = (&self.claim.context, &self.claim.shard, &self.claim.lane);
        let crashes = flight.occurrence.crashes;
        if crashes > context.config.poison_limit {
            let detail = format!("{crashes} of its claims expired");
            return Some(NotPublished::Dead(Reason::Poison, detail));
        }
        if flight.is_passed_over(record, context.config.catch_up) {
            return Some(NotPublished::PassedOver);
        }
        let mut destinations = lane.sink.destinations.lock();
        if destinations.all_well() {
            return None;
        }
        let destination = Flight::destination(record, lane.destination.as_deref());
        let is_spared = lane.waits_forever || flight.is_spared(shard.clock.now(), destinations.patience());
        let gate = match is_spared {
            true => destinations.gate_of_spared(destination, Instant::now()),
            false => destinations.gate(destination, Instant::now()),
        };
        match gate {
            DestinationGate::Open => None,
            DestinationGate::FirstTry => {
                let fits = flight.take_quota(lane, destination, QuotaReason::FirstTry, true);
                (!fits).then_some(NotPublished::OverQuota)
            }
            DestinationGate::AtFault { is_new } => {
                let fits = flight.take_quota(lane, destination, QuotaReason::AtFault, is_new);
                (!fits).then_some(NotPublished::OverQuota)
            }
            // Callers can make up names without end, so their trials need a share too.
            DestinationGate::Trial { is_new: true }
                if !flight.take_quota(lane, destination, QuotaReason::FirstTry, true) =>
            {
                destinations.trial_unused(destination);
                Some(NotPublished::OverQuota)
            }
            DestinationGate::Trial { .. } => {
                self.trials.begin(destination, index);
                None
            }
            DestinationGate::GivenUp(_) if self.trials.join(destination, index) => Some(NotPublished::Waits),
            DestinationGate::GivenUp(detail) => Some(NotPublished::Dead(Reason::Destination, detail)),
        }
    }

    /// Decides about an occurrence now, unless it is published.
    fn withhold(&mut self, index: usize, record: &Record, withheld: Option<NotPublished>, admitted: bool) {
        let decision = match withheld {
            Some(NotPublished::Dead(reason, detail)) => Decision::Dead(reason, detail),
            Some(NotPublished::PassedOver) if record.is_recurring() => Decision::PassedOver,
            Some(NotPublished::PassedOver) => {
                Decision::Dead(Reason::TooLate, "overdue by more than its catch-up allows".to_owned())
            }
            Some(NotPublished::OverQuota) => return self.return_over_quota(index),
            Some(NotPublished::Waits) | None if admitted => return,
            // The breaker opened after the claim, so the occurrence returns to the lane unsent.
            Some(NotPublished::Waits) | None => {
                let verdict = self.flights[index].back();
                return self.verdict(index, verdict, None);
            }
        };
        self.decide(index, decision);
    }

    /// Handles a record, or a schedule in it, that this version cannot parse. It is never dead, because other instances
    /// may be able to parse it.
    fn unreadable(&mut self, index: usize, detail: &str) {
        let flight = &mut self.flights[index];
        let (lane, member) = (&self.claim.lane.lane, &flight.occurrence.member);
        self.unreadable += 1;
        // Logged once per claim, because a claim may contain a thousand of them.
        if self.unreadable == 1 {
            error!(%lane, detail, "cannot read records, perhaps of a newer version; they wait for an instance that can");
        }
        debug!(%lane, %member, detail, "a record cannot be read");
        let verdict = flight.unreadable();
        self.verdict(index, verdict, None);
    }
}
