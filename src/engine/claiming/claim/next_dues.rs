//! Computes the next dues of a claim's tasks where this takes long: catching up on a cron task after a long outage may
//! take millions of steps. It works in slices, so that the claim can handle its other events in between.

use std::collections::VecDeque;

use crate::task::{NextDue, NextDueSearch};

/// Number of occurrences that one slice passes over.
const SLICE_STEPS: u32 = 64;

/// The computations under way, by flight.
#[derive(Default)]
pub(super) struct NextDueSearches(VecDeque<(usize, NextDueSearch)>);

impl NextDueSearches {
    /// Makes the first step, which is enough for nearly all tasks. Returns the result if it is known.
    pub(super) fn begin(&mut self, index: usize, mut search: NextDueSearch) -> Option<Result<NextDue, String>> {
        let first = advance(&mut search, 1);
        if first.is_none() {
            self.0.push_back((index, search));
        }
        first
    }

    /// Continues until one result is known; waits for ever if there are no computations.
    ///
    /// # Cancel safety
    /// Progress is kept.
    pub(super) async fn next(&mut self) -> (usize, Result<NextDue, String>) {
        while let Some((index, mut search)) = self.0.pop_front() {
            if let Some(known) = advance(&mut search, SLICE_STEPS) {
                return (index, known);
            }
            self.0.push_back((index, search));
            tokio::task::yield_now().await;
        }
        std::future::pending().await
    }

    /// Keeps only these.
    pub(super) fn retain(&mut self, which: impl Fn(usize) -> bool) {
        self.0.retain(|(index, _)| which(*index));
    }
}

fn advance(search: &mut NextDueSearch, steps: u32) -> Option<Result<NextDue, String>> {
    search.advance(steps).map_err(|error| error.to_string()).transpose()
}
