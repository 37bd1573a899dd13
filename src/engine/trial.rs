//! Trials of destinations that are given up: one message is sent, and the rest of its claim for the same destination waits
//! for the answer. A destination that was mended loses nothing of that claim.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::dispatcher::{ClaimTask, Fate};
use super::judge::{Judgement, Reason};

/// The trials of one claim.
#[derive(Default)]
pub(super) struct Trials(Vec<Trial>);

struct Trial {
    destination: String,
    /// The flight that is tried, ...
    index: usize,
    /// ... and those that wait for its answer.
    waiting: VecDeque<usize>,
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

    /// Ends the trial that this flight was.
    fn end(&mut self, index: usize) -> Option<Trial> {
        let at = self.0.iter().position(|trial| trial.index == index)?;
        Some(self.0.swap_remove(at))
    }
}

impl ClaimTask {
    /// A flight was judged: if it was a trial, those that waited for it share its fate, or are published.
    pub(super) fn tried(&mut self, index: usize, judgement: &Judgement) {
        let Some(mut trial) = self.trials.end(index) else { return };
        match judgement {
            Judgement::Dead(Reason::Destination, words) => {
                for index in trial.waiting {
                    self.decide(index, Fate::Dead(Reason::Destination, words.clone()));
                }
            }
            // The message was at fault, which says nothing of the destination: the next one is tried.
            Judgement::Dead(Reason::Rejected, _) => {
                if let Some(next) = trial.waiting.pop_front() {
                    trial.index = next;
                    self.publish_soon(next);
                    self.trials.0.push(trial);
                }
            }
            // All that is held goes back.
            Judgement::Absent(_) => {}
            Judgement::Accepted | Judgement::Again { .. } | Judgement::Dead(..) => {
                trial.waiting.into_iter().for_each(|index| self.publish_soon(index));
            }
        }
    }

    fn publish_soon(&mut self, index: usize) {
        self.publish_at(Instant::now(), index);
    }
}
