//! Trials of destinations that are given up. One message is sent, and the other messages of the claim for this
//! destination wait for its outcome. If the destination has been repaired, they are published too.

use std::collections::VecDeque;

/// The trials of one claim.
#[derive(Default)]
pub(super) struct DestinationTrials(Vec<DestinationTrial>);

pub(super) struct DestinationTrial {
    destination: String,
    /// The flight that is sent.
    pub(super) index: usize,
    /// The flights that wait for its outcome.
    pub(super) waiting: VecDeque<usize>,
}

impl DestinationTrials {
    /// Starts a trial with a flight.
    pub(super) fn begin(&mut self, destination: &str, index: usize) {
        self.0.push(DestinationTrial { destination: destination.to_owned(), index, waiting: VecDeque::new() });
    }

    /// Adds a flight to the trial of its destination. Returns whether there is one.
    pub(super) fn join(&mut self, destination: &str, index: usize) -> bool {
        let trial = self.0.iter_mut().find(|trial| trial.destination == destination);
        trial.map(|trial| trial.waiting.push_back(index)).is_some()
    }

    /// Puts a trial back that goes on with another flight.
    pub(super) fn put_back(&mut self, trial: DestinationTrial) {
        self.0.push(trial);
    }

    /// Ends the trial of a flight.
    pub(super) fn end(&mut self, index: usize) -> Option<DestinationTrial> {
        let at = self.0.iter().position(|trial| trial.index == index)?;
        Some(self.0.swap_remove(at))
    }
}
