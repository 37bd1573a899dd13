//! Exchanges that were missing lately, by whichever connection. Each look for one costs the server a channel.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::refusal::Refusal;

/// How long a missing exchange is remembered.
const MISSING_TIME: Duration = Duration::from_secs(5);

/// How often old ones are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of missing exchanges that are remembered.
const MAX_MISSING: usize = 10_000;

/// Exchanges that did not exist or were forbidden lately, with the refusal.
#[derive(Default)]
pub(super) struct MissingExchanges(Mutex<Refused>);

#[derive(Default)]
struct Refused {
    exchanges: HashMap<String, (Instant, Refusal)>,
    /// When old ones were last removed.
    swept: Option<Instant>,
}

impl MissingExchanges {
    /// The refusal of an exchange that was looked for lately.
    pub(super) fn refusal(&self, exchange: &str) -> Option<Refusal> {
        let refused = self.0.lock();
        let (at, refusal) = refused.exchanges.get(exchange)?;
        (at.elapsed() < MISSING_TIME).then(|| refusal.clone())
    }

    pub(super) fn insert(&self, exchange: &str, refusal: &Refusal) {
        let mut refused = self.0.lock();
        let swept_lately = refused.swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL);
        if refused.exchanges.len() >= MAX_MISSING && !swept_lately {
            refused.swept = Some(Instant::now());
            refused.exchanges.retain(|_, (at, _)| at.elapsed() < MISSING_TIME);
        }
        if refused.exchanges.len() < MAX_MISSING {
            refused.exchanges.insert(exchange.to_owned(), (Instant::now(), refusal.clone()));
        }
    }
}
