//! What follows the occurrences of a claim, where that takes long to work out: what a long outage missed of a cron task
//! may be millions of steps. Goes on in slices beside all else that the claim's holder does, a slice of each in turn.

use std::collections::VecDeque;

use crate::task::{Follow, Following};

/// Occurrences that are passed over in one slice.
const SLICE: u32 = 256;

/// What is being worked out, by flight.
#[derive(Default)]
pub(super) struct Followings(VecDeque<(usize, Following)>);

impl Followings {
    /// Begins with one step, which is enough for nearly all: then what follows is known at once.
    pub(super) fn begin(&mut self, index: usize, mut following: Following) -> Option<Result<Follow, String>> {
        let first = advance(&mut following, 1);
        if first.is_none() {
            self.0.push_back((index, following));
        }
        first
    }

    /// Goes on until one is known; for ever if none is left.
    ///
    /// # Cancel safety
    /// What was worked out is kept.
    pub(super) async fn next(&mut self) -> (usize, Result<Follow, String>) {
        while let Some((index, mut following)) = self.0.pop_front() {
            if let Some(known) = advance(&mut following, SLICE) {
                return (index, known);
            }
            self.0.push_back((index, following));
            tokio::task::yield_now().await;
        }
        std::future::pending().await
    }

    /// Goes on with those alone.
    pub(super) fn retain(&mut self, which: impl Fn(usize) -> bool) {
        self.0.retain(|(index, _)| which(*index));
    }
}

fn advance(following: &mut Following, steps: u32) -> Option<Result<Follow, String>> {
    following.advance(steps).map_err(|error| error.to_string()).transpose()
}
