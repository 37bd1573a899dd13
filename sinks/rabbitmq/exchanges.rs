//! What a connection knows of exchanges: those that exist, and those that were missing lately.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::refusal::Refusal;

/// How long a missing exchange is remembered.
const MISSING_TIME: Duration = Duration::from_secs(5);

/// How often old ones are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of missing exchanges that are remembered.
const MAX_MISSING: usize = 10_000;

/// What is known of exchanges.
#[derive(Default)]
pub(super) struct Exchanges {
    pub(super) existing: HashSet<String>,
    /// Those that did not exist or were forbidden lately, with the refusal.
    missing: HashMap<String, (Instant, Refusal)>,
    /// When old ones were last removed.
    swept: Option<Instant>,
}

impl Exchanges {
    /// The refusal of an exchange that was looked for lately.
    pub(super) fn missing(&self, exchange: &str) -> Option<Refusal> {
        let (at, refusal) = self.missing.get(exchange)?;
        (at.elapsed() < MISSING_TIME).then(|| refusal.clone())
    }

    pub(super) fn note_missing(&mut self, exchange: &str, refusal: &Refusal) {
        let swept_lately = self.swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL);
        if self.missing.len() >= MAX_MISSING && !swept_lately {
            self.swept = Some(Instant::now());
            self.missing.retain(|_, (at, _)| at.elapsed() < MISSING_TIME);
        }
        if self.missing.len() < MAX_MISSING {
            self.missing.insert(exchange.to_owned(), (Instant::now(), refusal.clone()));
        }
    }
}
