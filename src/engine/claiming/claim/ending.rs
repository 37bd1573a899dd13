//! Returns occurrences to the lane if a claim ends before all of them are published.

use super::flight::FlightStage;
use super::task::ClaimState;

impl ClaimState {
    /// If the sink is unavailable, opens its breaker and returns every occurrence without a decision to the lane.
    pub(super) fn return_undecided_if_unavailable(&mut self) {
        if let Some(detail) = self.unavailable.take() {
            self.claim.lane.sink.trip(&detail);
            self.return_undecided();
        }
    }

    /// Returns every occurrence without a verdict.
    pub(super) fn return_all(&mut self) {
        self.return_undecided();
        self.return_those(|_| true);
    }

    /// Returns every occurrence without a decision. Messages under way may still be delivered.
    pub(super) fn return_undecided(&mut self) {
        self.ending = true;
        while let Some(answer) = self.outbox.try_answer() {
            self.take_in(answer);
        }
        self.outbox.drop_answers();
        self.unavailable = None;
        self.record_uncopied();
        self.return_those(|stage| !matches!(stage, FlightStage::Decided { .. }));
    }

    /// The engine stops, or the lane is paused: returns the occurrences that wait for a retry. Messages under way stay in the
    /// claim until they are answered.
    pub(super) fn stop(&mut self) {
        self.ending = true;
        self.return_those(|stage| stage == FlightStage::Waiting);
    }

    fn return_those(&mut self, which: impl Fn(FlightStage) -> bool) {
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.stage != FlightStage::HasVerdict && which(flight.stage) {
                let verdict = flight.back();
                self.verdict(index, verdict, None);
            }
        }
        self.outbox.clear_retries();
        self.next_due_searches.retain(|index| self.flights[index].stage != FlightStage::HasVerdict);
    }
}
