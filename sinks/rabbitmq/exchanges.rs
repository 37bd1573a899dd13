//! Remembers which exchanges exist or are missing, for all connections of the sink. Each check of a missing exchange
//! costs the server a channel, and a caller can invent any number of names. So while many are missing, only a few
//! exchanges may wait for a check. This limit does not apply to an exchange that existed before, nor to the next
//! check of one that was refused because of it.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::refusal::Refusal;
use crate::RecentMap;

/// How long a missing exchange is remembered.
const MISSING_TIME: Duration = Duration::from_secs(5);

/// Maximum number of exchanges of each kind that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// The limit of waiting exchanges applies while at least this many are missing.
const MIN_MANY_MISSING: usize = 64;

/// Maximum number of exchanges that wait to be looked for, while many are missing.
const MAX_WAITING: usize = 64;

/// The exchanges that the sink remembers.
pub(super) struct Exchanges(Mutex<Remembered>);

struct Remembered {
    /// Exchanges that recently did not exist or were forbidden, with the refusal.
    missing: RecentMap<Refusal>,
    /// Exchanges without the limit: they existed, or were refused because of it.
    preferred: HashSet<String>,
    /// Number of exchanges that wait for a check.
    waiting: usize,
}

/// An exchange that waits for a check. Dropping this ends the wait.
pub(super) struct Waiting<'a> {
    exchanges: &'a Exchanges,
    exchange: &'a str,
}

impl Default for Exchanges {
    fn default() -> Exchanges {
        let missing = RecentMap::new(MISSING_TIME, MAX_REMEMBERED);
        Exchanges(Mutex::new(Remembered { missing, preferred: HashSet::new(), waiting: 0 }))
    }
}

impl Exchanges {
    /// The refusal of an exchange that was looked for lately.
    pub(super) fn refusal(&self, exchange: &str) -> Option<Refusal> {
        self.0.lock().missing.get(exchange, Instant::now()).cloned()
    }

    /// Registers an exchange that waits for a check. `None` if too many wait.
    pub(super) fn wait<'a>(&'a self, exchange: &'a str) -> Option<Waiting<'a>> {
        self.0.lock().waiting += 1;
        let waiting = Waiting { exchanges: self, exchange };
        waiting.is_admitted().then_some(waiting)
    }

    pub(super) fn note_existing(&self, exchange: &str) {
        self.0.lock().prefer(exchange);
    }

    pub(super) fn note_missing(&self, exchange: &str, refusal: &Refusal) {
        let mut remembered = self.0.lock();
        remembered.preferred.remove(exchange);
        let now = Instant::now();
        remembered.missing.remove(exchange, now);
        remembered.missing.touch(exchange, now, || refusal.clone());
    }
}

impl Waiting<'_> {
    /// Whether the exchange may be checked. To be called again when its turn has come, because many others may have
    /// been found missing while it waited.
    pub(super) fn is_admitted(&self) -> bool {
        let mut remembered = self.exchanges.0.lock();
        remembered.missing.sweep(Instant::now());
        let too_many = remembered.waiting > MAX_WAITING && remembered.missing.len() >= MIN_MANY_MISSING;
        if too_many && !remembered.preferred.contains(self.exchange) {
            remembered.prefer(self.exchange);
            return false;
        }
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.exchanges.0.lock().waiting -= 1;
    }
}

impl Remembered {
    /// Entries never expire, so the set is cleared when it is full.
    fn prefer(&mut self, exchange: &str) {
        if self.preferred.len() >= MAX_REMEMBERED {
            self.preferred.clear();
        }
        self.preferred.insert(exchange.to_owned());
    }
}
