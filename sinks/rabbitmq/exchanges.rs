//! What the sink remembers of exchanges, whichever connection looked for them. Each look for a missing one costs the
//! server a channel, and a caller can make up any number of names: while many are missing, only few more are looked for
//! at once. An exchange that was refused for that reason is looked for the next time, and so is one that existed before.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::refusal::Refusal;

/// How long a missing exchange is remembered.
const MISSING_TIME: Duration = Duration::from_secs(5);

/// How often old ones are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of exchanges of each kind that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// How many exchanges were missing lately when the next ones are looked for with a limit.
const MANY_MISSING: usize = 64;

/// Maximum number of exchanges that wait to be looked for, while many are missing.
const MAX_WAITING: usize = 64;

/// The exchanges that the sink remembers.
#[derive(Default)]
pub(super) struct Exchanges(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    /// Those that did not exist or were forbidden lately, with the refusal.
    missing: HashMap<String, (Instant, Refusal)>,
    /// When old ones were last removed.
    swept: Option<Instant>,
    /// Those that existed, or were not looked for when they were first named.
    preferred: HashSet<String>,
    /// Number of those that wait to be looked for.
    waiting: usize,
}

/// An exchange that waits to be looked for, until this is dropped.
pub(super) struct Waiting<'a> {
    exchanges: &'a Exchanges,
    exchange: &'a str,
}

impl Exchanges {
    /// The refusal of an exchange that was looked for lately.
    pub(super) fn refusal(&self, exchange: &str) -> Option<Refusal> {
        let remembered = self.0.lock();
        let (at, refusal) = remembered.missing.get(exchange)?;
        (at.elapsed() < MISSING_TIME).then(|| refusal.clone())
    }

    /// Lets an exchange wait to be looked for. `None` if too many do.
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
        if remembered.missing.len() < MAX_REMEMBERED {
            remembered.missing.insert(exchange.to_owned(), (Instant::now(), refusal.clone()));
        }
    }
}

impl Waiting<'_> {
    /// Whether it may be looked for. Asked again when its turn has come: while it waited, many may have turned out to be
    /// missing.
    pub(super) fn is_admitted(&self) -> bool {
        let mut remembered = self.exchanges.0.lock();
        remembered.sweep();
        let too_many = remembered.waiting > MAX_WAITING && remembered.missing.len() >= MANY_MISSING;
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
    /// Of those that were refused and never named again none leaves, so all do once there are too many.
    fn prefer(&mut self, exchange: &str) {
        if self.preferred.len() >= MAX_REMEMBERED {
            self.preferred.clear();
        }
        self.preferred.insert(exchange.to_owned());
    }

    fn sweep(&mut self) {
        if self.swept.is_none_or(|at| at.elapsed() >= SWEEP_INTERVAL) {
            let now = Instant::now();
            self.swept = Some(now);
            self.missing.retain(|_, (at, _)| now.duration_since(*at) < MISSING_TIME);
        }
    }
}
