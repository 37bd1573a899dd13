//! A consumer of our own: when each message of a destination came, on the time of Redis.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::far::BrokerSide;
use super::late::Late;
use punctual::clock::{RedisClock, Timestamp};

/// How long nothing may come while something is owed.
const STILL: Duration = Duration::from_secs(60);

/// Reads a destination until it is dropped.
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    clock: Arc<RedisClock>,
    _reading: JoinSet<()>,
}

/// What has come so far.
#[derive(Default)]
struct Seen {
    /// Of each message its due, in ms, and how late it came, in us.
    messages: Vec<(i64, i64)>,
    /// Why nothing more is read.
    failed: Option<String>,
}

impl Watch {
    /// Begins to read.
    pub(super) fn start(far: Arc<dyn BrokerSide>, destination: String, clock: Arc<RedisClock>) -> Watch {
        let seen = Arc::<Mutex<Seen>>::default();
        let (into, asked) = (Arc::clone(&seen), Arc::clone(&clock));
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            let take = |key: &str, at: Instant| {
                let due: Option<i64> = key.rsplit_once(':').and_then(|(_, due)| due.parse().ok());
                // What has no key is not counted, and so owed for ever: that ends in words.
                if let Some(due) = due {
                    let late = asked.micros_at(at) - due * 1000;
                    into.lock().messages.push((due, late));
                }
            };
            if let Err(error) = far.follow(&destination, &take).await {
                into.lock().failed = Some(format!("{error:#}"));
            }
        });
        Watch { seen, clock, _reading: reading }
    }

    /// How many messages have come.
    pub(super) fn count(&self) -> u64 {
        self.seen.lock().messages.len() as u64
    }

    /// Waits until so many have come, the last of them due then; `tell` hears how many.
    ///
    /// # Errors
    /// When the sink cannot be read, or nothing more comes for a minute.
    pub(super) async fn reach(&self, count: u64, last: Timestamp, tell: &dyn Fn(u64)) -> anyhow::Result<()> {
        let (mut before, mut moved) = (0, Instant::now());
        loop {
            let now = self.count();
            tell(now);
            if now >= count {
                return Ok(());
            }
            if let Some(words) = &self.seen.lock().failed {
                bail!("what was published cannot be read: {words}");
            }
            // Until the last is due there may be nothing to come.
            let due = self.clock.micros_at(Instant::now()) < last.as_millis() * 1000;
            if now > before || due {
                (before, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STILL {
                bail!("{now} of {count} messages came, then none for {STILL:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// How late those were that were due from one moment until before another.
    ///
    /// # Errors
    /// When there is no room for figures.
    pub(super) fn between(&self, from: Timestamp, until: Timestamp) -> anyhow::Result<Late> {
        let mut late = Late::new()?;
        let seen = self.seen.lock();
        let range = from.as_millis()..until.as_millis();
        seen.messages.iter().filter(|(due, _)| range.contains(due)).for_each(|(_, micros)| late.add(*micros));
        Ok(late)
    }
}
