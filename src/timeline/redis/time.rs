//! The clock that scripts use: that of a server, or the one of a test.

use std::sync::Arc;

use tokio::time::Instant;

use crate::clock::{Clock, ManualClock, RedisClock};
use crate::timeline::calls::Calls;

/// The clock that scripts use.
#[derive(Clone)]
pub(super) enum Time {
    /// The clock of one server. Every reply updates the estimate of it. Steps are counted.
    Server(Arc<RedisClock>, Arc<Calls>),
    /// The clock of a test.
    Given(Arc<ManualClock>),
}

impl Time {
    /// The clock of a server of which nothing is known yet.
    pub(super) fn of_server(calls: Arc<Calls>) -> Time {
        Time::Server(Arc::default(), calls)
    }

    /// The first argument of every script: empty for the server's clock.
    pub(super) fn argument(&self) -> String {
        match self {
            Time::Server(..) => String::new(),
            Time::Given(clock) => clock.now().as_millis().to_string(),
        }
    }

    /// The clock.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Time::Server(clock, _) => clock.clone(),
            Time::Given(clock) => clock.clone(),
        }
    }

    /// The same for another server, of whose clock nothing is known yet.
    pub(super) fn of_another_server(&self) -> Time {
        match self {
            Time::Server(_, calls) => Time::of_server(Arc::clone(calls)),
            Time::Given(clock) => Time::Given(Arc::clone(clock)),
        }
    }

    /// Updates the estimate of the server's clock from a reply.
    pub(super) fn observe(&self, sent: Instant, micros: i64) {
        if let Time::Server(clock, calls) = self
            && let Some(step) = clock.observe(sent, Instant::now(), micros)
        {
            calls.clock_stepped(step);
        }
    }
}
