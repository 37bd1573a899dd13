//! A consumer of the bench: when each message of a destination arrived, on Redis' time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::broker_side::BrokerSide;
use super::late::Late;
use punctual::clock::{RedisClock, Timestamp};

/// How long no message may arrive while some are missing.
const MAX_TIME_WITHOUT_PROGRESS: Duration = Duration::from_secs(60);

/// Reads a destination until this is dropped.
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    clock: Arc<RedisClock>,
    _reading: JoinSet<()>,
}

/// What has arrived so far.
#[derive(Default)]
struct Seen {
    /// For each message its due in ms and its lateness in us.
    messages: Vec<(i64, i64)>,
    /// Why reading has ended.
    failed: Option<String>,
}

impl Watch {
    /// Starts to read.
    pub(super) fn start(broker_side: Arc<dyn BrokerSide>, destination: String, clock: Arc<RedisClock>) -> Watch {
        let seen = Arc::<Mutex<Seen>>::default();
        let (into, asked) = (Arc::clone(&seen), Arc::clone(&clock));
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            let take = |key: &str, at: Instant| {
                let due: Option<i64> = key.rsplit_once(':').and_then(|(_, due)| due.parse().ok());
                // A message without a key is not counted. The wait for the missing one then ends with an error.
                if let Some(due) = due {
                    let late = asked.micros_at(at) - due * 1000;
                    into.lock().messages.push((due, late));
                }
            };
            if let Err(error) = broker_side.follow(&destination, &take).await {
                into.lock().failed = Some(format!("{error:#}"));
            }
        });
        Watch { seen, clock, _reading: reading }
    }

    /// Number of messages that have arrived.
    pub(super) fn count(&self) -> u64 {
        self.seen.lock().messages.len() as u64
    }

    /// Waits until this many have arrived, the last of them due at `last`; `tell` is called with the number so far.
    ///
    /// # Errors
    /// If the sink cannot be read, or none arrives for a minute.
    pub(super) async fn reach(&self, count: u64, last: Timestamp, tell: &dyn Fn(u64)) -> anyhow::Result<()> {
        let (mut before, mut moved) = (0, Instant::now());
        loop {
            let now = self.count();
            tell(now);
            if now >= count {
                return Ok(());
            }
            if let Some(text) = &self.seen.lock().failed {
                bail!("what was published cannot be read: {text}");
            }
            // Until the last task is due, a time without messages is normal.
            let is_before_last_due = self.clock.micros_at(Instant::now()) < last.as_millis() * 1000;
            if now > before || is_before_last_due {
                (before, moved) = (now, Instant::now());
            }
            if moved.elapsed() > MAX_TIME_WITHOUT_PROGRESS {
                bail!("{now} of {count} messages came, then none for {MAX_TIME_WITHOUT_PROGRESS:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The lateness of messages with a due from `from` and before `until`.
    ///
    /// # Errors
    /// If there is no memory for the figures.
    pub(super) fn between(&self, from: Timestamp, until: Timestamp) -> anyhow::Result<Late> {
        self.between_but(from, until, &BTreeSet::new())
    }

    /// The same without the messages with these dues, in ms.
    ///
    /// # Errors
    /// As for [`between`](Watch::between).
    pub(super) fn between_but(
        &self,
        from: Timestamp,
        until: Timestamp,
        left_out: &BTreeSet<i64>,
    ) -> anyhow::Result<Late> {
        let mut late = Late::new()?;
        let seen = self.seen.lock();
        let range = from.as_millis()..until.as_millis();
        let counts = |due: &i64| range.contains(due) && !left_out.contains(due);
        seen.messages.iter().filter(|(due, _)| counts(due)).for_each(|(_, micros)| late.add(*micros));
        Ok(late)
    }
}
