//! Begins a claim: parses its records, publishes the occurrences that may be published, and decides about the others.

use tokio::time::Instant;
use tracing::{debug, error};

use super::flight::{Flight, Stage};
use super::task::{ClaimTask, Fate};
use crate::engine::destinations::Gate;
use crate::engine::held::Hold;
use crate::engine::judge::Reason;
use crate::task::Record;

/// Why an occurrence is not published.
enum Withheld {
    PassedOver,
    Dead(Reason, String),
    /// Its destination is at fault and holds all it may.
    TurnedBack,
    /// Its destination is given up, and another message is the trial.
    Waits,
}

impl ClaimTask {
    /// Parses the records, publishes, and starts to compute the next dues while the sink works.
    pub(super) fn begin(&mut self) {
        let overdue = self.claim.context.config.overdue;
        let (mut records, mut ahead) = (Vec::new(), Vec::new());
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            let record = flight.record().map_err(|error| error.to_string());
            match record.and_then(|record| Ok((flight.following(&record, overdue)?, record))) {
                Ok((following, record)) => {
                    let withheld = self.withheld(index, &record);
                    ahead.push((index, following));
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
        for (index, following) in ahead {
            if let Some(follow) = self.followings.begin(index, following) {
                self.followed(index, follow);
            }
        }
        for (index, record, withheld) in records {
            if self.flights[index].stage != Stage::Judged {
                self.withhold(index, &record, withheld, admitted);
            }
        }
    }

    /// Why an occurrence is not published: it is poison, passed over by its own catch-up, or its destination is at
    /// fault.
    fn withheld(&mut self, index: usize, record: &Record) -> Option<Withheld> {
        let flight = &mut self.flights[index];
        let (context, lane) = (&self.claim.context, &self.claim.lane);
        let crashes = flight.occurrence.crashes;
        if crashes > context.config.poison_limit {
            let detail = format!("{crashes} of its claims expired");
            return Some(Withheld::Dead(Reason::Poison, detail));
        }
        if flight.is_passed_over(record, context.config.overdue) {
            return Some(Withheld::PassedOver);
        }
        let mut destinations = lane.sink.destinations.lock();
        if destinations.all_well() {
            return None;
        }
        let destination = Flight::destination(record, lane.destination.as_deref());
        let spared = flight.is_spared(context.clock.now(), destinations.patience());
        match destinations.gate(destination, spared, Instant::now()) {
            Gate::Open => None,
            Gate::AtFault => {
                let bytes = flight.occurrence.record.len();
                flight.hold = Hold::take(&lane.held, &lane.sink.held, destination, bytes, true);
                destination.clone_into(&mut flight.destination);
                flight.hold.is_none().then_some(Withheld::TurnedBack)
            }
            Gate::Trial => {
                self.trials.begin(destination, index);
                None
            }
            Gate::GivenUp(_) if self.trials.join(destination, index) => Some(Withheld::Waits),
            Gate::GivenUp(detail) => Some(Withheld::Dead(Reason::Destination, detail)),
        }
    }

    /// Decides about an occurrence now, unless it is published.
    fn withhold(&mut self, index: usize, record: &Record, withheld: Option<Withheld>, admitted: bool) {
        let fate = match withheld {
            Some(Withheld::Dead(reason, detail)) => Fate::Dead(reason, detail),
            Some(Withheld::PassedOver) if record.is_recurring() => Fate::Passed,
            Some(Withheld::PassedOver) => {
                Fate::Dead(Reason::TooLate, "overdue by more than its catch-up allows".to_owned())
            }
            Some(Withheld::TurnedBack) => return self.turn_back(index),
            Some(Withheld::Waits) | None if admitted => return,
            // The breaker opened after the claim, so the occurrence returns to the lane unsent.
            Some(Withheld::Waits) | None => {
                let verdict = self.flights[index].back();
                return self.verdict(index, verdict, None);
            }
        };
        self.decide(index, fate);
    }

    /// Handles a record, or a schedule in it, that this version cannot parse. It is never dead, because other instances
    /// may be able to parse it.
    fn unreadable(&mut self, index: usize, detail: &str) {
        let flight = &mut self.flights[index];
        let (lane, member) = (&self.claim.lane.lane, &flight.occurrence.member);
        self.unreadable += 1;
        // Logged once per claim, because a claim may contain a thousand of them.
        if self.unreadable == 1 {
            error!(%lane, words = detail, "cannot read records, perhaps of a newer version; they wait for an instance that can");
        }
        debug!(%lane, %member, words = detail, "a record cannot be read");
        let verdict = flight.unreadable();
        self.verdict(index, verdict, None);
    }
}
