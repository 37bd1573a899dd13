//! A sink that counts what another sink accepts: the demo learns from it what was published, how often and how late.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use parking_lot::{Mutex, MutexGuard};
use punctual_sinks::{DestinationState, Fault, Message, Outcome, Sink, SinkError, Trouble};
use tokio::sync::watch;

use crate::clock::{Clock, Timestamp};

/// A sink around another one that counts messages by the prefix of their task ids.
pub(super) struct Watch {
    inner: Arc<dyn Sink>,
    clock: Arc<dyn Clock>,
    prefix: String,
    book: Arc<Book>,
}

/// What was counted so far.
pub(super) struct Book {
    seen: Mutex<Seen>,
    distinct: watch::Sender<usize>,
}

struct Seen {
    /// Messages with a later due are not passed on any more.
    cut: Option<Timestamp>,
    /// The latest due that was passed on.
    latest: Timestamp,
    published: usize,
    keys: HashSet<String>,
    early: usize,
    /// Accepted minus due in ms, of the first copy of each message.
    lateness: Vec<u64>,
}

/// The numbers at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) published: usize,
    pub(super) distinct: usize,
    pub(super) early: usize,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

impl Book {
    pub(super) fn new() -> Arc<Book> {
        let seen = Seen {
            cut: None,
            latest: Timestamp::MIN_DUE,
            published: 0,
            keys: HashSet::new(),
            early: 0,
            lateness: Vec::new(),
        };
        Arc::new(Book { seen: Mutex::new(seen), distinct: watch::Sender::new(0) })
    }

    /// From now on, messages with a due after the returned time are not passed on. That time is now, or the latest due
    /// that was passed on if the clock is behind it, and at most `end`.
    pub(super) fn cut(&self, clock: &dyn Clock, end: Timestamp) -> Timestamp {
        let mut seen = self.seen();
        let cut = clock.now().max(seen.latest).min(end);
        seen.cut = Some(cut);
        cut
    }

    /// Waits until this many different keys were accepted.
    pub(super) async fn reached(&self, distinct: usize) {
        // The sender lives as long as this book, so the wait ends only with the number.
        if self.distinct.subscribe().wait_for(|seen| *seen >= distinct).await.is_err() {
            std::future::pending().await
        }
    }

    pub(super) fn tally(&self) -> Tally {
        let seen = self.seen();
        let mut lateness = seen.lateness.clone();
        lateness.sort_unstable();
        // The smallest value that covers this share of all.
        let at = |percent: usize| lateness.get((lateness.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Tally {
            published: seen.published,
            distinct: seen.keys.len(),
            early: seen.early,
            p50: at(50).unwrap_or(0),
            p99: at(99).unwrap_or(0),
            max: at(100).unwrap_or(0),
        }
    }

    fn lets_through(&self, due: Timestamp) -> bool {
        let mut seen = self.seen();
        let through = seen.cut.is_none_or(|cut| due <= cut);
        if through {
            seen.latest = seen.latest.max(due);
        }
        through
    }

    fn accepted(&self, key: &str, due: Timestamp, early: bool, now: Timestamp) {
        let mut seen = self.seen();
        seen.published += 1;
        seen.early += usize::from(early);
        if seen.keys.insert(key.to_owned()) {
            seen.lateness.push(u64::try_from(now.since(due).as_millis()).unwrap_or(u64::MAX));
        }
        let distinct = seen.keys.len();
        drop(seen);
        self.distinct.send_replace(distinct);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

impl Watch {
    pub(super) fn new(inner: Arc<dyn Sink>, clock: Arc<dyn Clock>, prefix: &str, book: Arc<Book>) -> Watch {
        Watch { inner, clock, prefix: prefix.to_owned(), book }
    }
}

#[async_trait]
impl Sink for Watch {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let mut through = Vec::with_capacity(batch.len());
        let mut watched = Vec::with_capacity(batch.len());
        let mut refused = Vec::new();
        let now = self.clock.now();
        let uncertainty = self.clock.uncertainty() + Duration::from_micros(999);
        for (index, message) in batch.into_iter().enumerate() {
            let due = Timestamp::from_millis(message.due_ms);
            if !message.task.starts_with(&self.prefix) {
                watched.push((index, None));
                through.push(message);
            } else if self.book.lets_through(due) {
                // Early even if the clock is behind by its whole uncertainty.
                watched.push((index, Some((message.key.clone(), due, now.plus(uncertainty) < due))));
                through.push(message);
            } else {
                let trouble = Trouble::definite(Fault::Unclear, "the demo has ended");
                refused.push((index, Outcome::Retry(trouble)));
            }
        }
        let (book, clock) = (Arc::clone(&self.book), Arc::clone(&self.clock));
        let answers = self.inner.publish(through).map(move |(position, outcome)| {
            let (index, ours) = &watched[position];
            if let (Outcome::Accepted | Outcome::Duplicate, Some((key, due, early))) = (&outcome, ours) {
                book.accepted(key, *due, *early, clock.now());
            }
            (*index, outcome)
        });
        stream::iter(refused).chain(answers).boxed()
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.inner.check().await
    }

    async fn look_for(&self, destination: &str) -> Result<DestinationState, SinkError> {
        self.inner.look_for(destination).await
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        self.inner.close(deadline).await
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout()
    }

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn takes_tombstones(&self) -> bool {
        self.inner.takes_tombstones()
    }

    fn needs_destination(&self) -> bool {
        self.inner.needs_destination()
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        self.inner.check_destination(destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use punctual_sinks::MemorySink;

    fn message(task: &str, due: i64) -> Message {
        Message {
            key: format!("{task}:{due}"),
            task: task.into(),
            due_ms: due,
            attempt: 1,
            destination: String::new(),
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: bytes::Bytes::new(),
        }
    }

    #[tokio::test]
    async fn watch_counts_copies_and_early_messages_and_accepts_none_due_after_the_cut() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1000)));
        let inner = Arc::new(MemorySink::new(100, Duration::from_secs(1)));
        let book = Book::new();
        let watch = Watch::new(inner.clone(), clock.clone(), "demo-", Arc::clone(&book));
        let first: Vec<_> = watch.publish(vec![message("demo-b", 1005)]).collect().await;
        assert_eq!(first, [(0, Outcome::Accepted)]);
        assert_eq!(book.cut(&*clock, Timestamp::from_millis(5000)), Timestamp::from_millis(1005));
        let batch = vec![
            message("other", 1),
            message("demo-a", 990),
            message("demo-b", 1005),
            message("demo-a", 990),
            message("demo-c", 1006),
            message("other", 2000),
        ];
        let mut outcomes: Vec<_> = watch.publish(batch).collect().await;
        outcomes.sort_by_key(|(index, _)| *index);
        let accepted: Vec<_> = outcomes.iter().map(|(_, outcome)| *outcome == Outcome::Accepted).collect();
        assert_eq!(accepted, [true, true, true, true, false, true]);
        let tally = Tally { published: 4, distinct: 2, early: 2, p50: 0, p99: 10, max: 10 };
        assert_eq!(book.tally(), tally);
        assert_eq!(inner.published().len(), 6);
        book.reached(2).await;
    }
}
