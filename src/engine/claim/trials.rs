//! Trials of destinations that are given up: one message is sent, and the rest of its claim for the same destination waits
//! for the answer. A destination that was mended loses nothing of that claim.

use std::collections::VecDeque;

/// The trials of one claim.
#[derive(Default)]
pub(super) struct Trials(Vec<Trial>);

pub(super) struct Trial {
    destination: String,
    /// The flight that is tried, ...
    pub(super) index: usize,
    /// ... and those that wait for its answer.
    pub(super) waiting: VecDeque<usize>,
}

impl Trials {
    /// A flight is tried at its destination.
    pub(super) fn begin(&mut self, destination: &str, index: usize) {
        self.0.push(Trial { destination: destination.to_owned(), index, waiting: VecDeque::new() });
    }

    /// A flight waits for the trial of its destination, if there is one in its claim.
    pub(super) fn join(&mut self, destination: &str, index: usize) -> bool {
        let trial = self.0.iter_mut().find(|trial| trial.destination == destination);
        trial.map(|trial| trial.waiting.push_back(index)).is_some()
    }

    /// A trial goes on with another flight.
    pub(super) fn go_on(&mut self, trial: Trial) {
        self.0.push(trial);
    }

    /// Ends the trial that this flight was.
    pub(super) fn end(&mut self, index: usize) -> Option<Trial> {
        let at = self.0.iter().position(|trial| trial.index == index)?;
        Some(self.0.swap_remove(at))
    }
}
