//! What sinks with a connection share: the connection, which is made when needed and again when lost
//! ([`SharedConnection`]), and the [`PublishTracker`] that `close` shuts.
//!
//! The first caller that needs a connection makes it, and the others wait for this attempt and share its result, so
//! that a broker that is down sees one attempt at a time. A connection is only made for a publish, a check or a
//! question about a destination.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{Away, Cause, SinkError, Trouble};

/// How long a worn connection is used before another attempt to replace it.
const WORN_PAUSE: Duration = Duration::from_secs(5);

/// The deadline of a publish. It is a twentieth of `answer_timeout` early, at most 100 ms, so that the last answers are
/// reported in time.
pub(crate) fn deadline(answer_timeout: Duration) -> Instant {
    Instant::now() + answer_timeout - (answer_timeout / 20).min(Duration::from_millis(100))
}

/// The error text if no answer arrived in time.
pub(crate) fn no_answer(address: &str, answer_timeout: Duration) -> String {
    format!("no answer from `{address}` within {answer_timeout:?}")
}

fn closed() -> Trouble {
    no_more().into()
}

fn no_more() -> Away {
    Away::new(Cause::Refused, "the sink is closed")
}

/// A connection that can be lost.
pub(crate) trait Connection: Send + Sync + 'static {
    /// Whether the connection seems usable.
    fn alive(&self) -> bool;

    /// Whether the next caller should have another connection. Callers that already use this one keep it.
    fn is_worn(&self) -> bool {
        false
    }

    /// Ends the connection at once, for all its users.
    fn end(&self);
}

/// One connection, which is made when needed until the link is closed.
pub(crate) struct SharedConnection<C> {
    slot: Mutex<Slot<C>>,
    closed: watch::Sender<bool>,
}

struct Slot<C> {
    connection: Option<Arc<C>>,
    failed: Option<(Instant, Away)>,
    /// Worn connections that were replaced and are still in use.
    replaced: Vec<Weak<C>>,
}

impl<C: Connection> SharedConnection<C> {
    pub(crate) fn new() -> SharedConnection<C> {
        SharedConnection {
            slot: Mutex::new(Slot { connection: None, failed: None, replaced: Vec::new() }),
            closed: watch::Sender::new(false),
        }
    }

    /// The connection; `connect` makes it if there is none.
    pub(crate) async fn get(&self, connect: impl Future<Output = Result<C, Away>>) -> Result<Arc<C>, Away> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        if *self.closed.borrow() {
            return Err(no_more());
        }
        if let Some(connection) = slot.connection.take_if(|connection| !connection.alive()) {
            connection.end();
        }
        let worn = slot.connection.clone().filter(|connection| connection.is_worn());
        let failed_lately = slot.failed.as_ref().is_some_and(|(at, _)| at.elapsed() < WORN_PAUSE);
        if let Some(connection) = slot.connection.as_ref().filter(|_| worn.is_none() || failed_lately) {
            return Ok(Arc::clone(connection));
        }
        if let Some((at, away)) = &slot.failed
            && *at > asked
        {
            return Err(away.clone());
        }
        let mut ending = self.closed.subscribe();
        let connected = tokio::select! {
            biased;
            _ = ending.wait_for(|closed| *closed) => return Err(no_more()),
            connected = connect => connected,
        };
        match connected {
            Ok(connection) => {
                slot.replaced.retain(|former| former.strong_count() > 0);
                slot.replaced.extend(worn.as_ref().map(Arc::downgrade));
                Ok(Arc::clone(slot.connection.insert(Arc::new(connection))))
            }
            Err(away) => {
                slot.failed = Some((Instant::now(), away.clone()));
                // What is worn can still be used.
                worn.ok_or(away)
            }
        }
    }

    /// Ends the connection, if there is one, and makes no other. Takes no longer than `until`.
    pub(crate) async fn close(&self, until: Instant) {
        self.closed.send_replace(true);
        // A caller that keeps the slot for longer is still connecting, and will fail because the link is closed.
        if let Ok(mut slot) = timeout_at(until, self.slot.lock()).await {
            let replaced = std::mem::take(&mut slot.replaced);
            let replaced = replaced.into_iter().filter_map(|former| former.upgrade());
            slot.connection.take().into_iter().chain(replaced).for_each(|connection| connection.end());
        }
    }
}

/// Admits publishes until it is shut, and knows when the last of them has ended.
#[derive(Default)]
pub(crate) struct PublishTracker(TaskTracker);

impl PublishTracker {
    /// A token to hold while publishing.
    pub(crate) fn enter(&self) -> Result<TaskTrackerToken, Trouble> {
        let pass = self.0.token();
        // Checked after the token exists; otherwise `shut` might not wait for it.
        self.check_open().map(|()| pass)
    }

    /// Whether it still admits publishes; for calls that `close` does not wait for.
    pub(crate) fn check_open(&self) -> Result<(), Trouble> {
        if self.0.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Admits no more publishes and waits for those under way.
    pub(crate) async fn shut(&self, limit: Duration) -> Result<(), SinkError> {
        self.0.close();
        let all = tokio::time::timeout(limit, self.0.wait()).await;
        all.map_err(|_| SinkError::Timeout { doing: "flushing what is under way", limit })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;

    use super::*;

    struct Wire(AtomicBool);

    impl Connection for Wire {
        fn alive(&self) -> bool {
            !self.0.load(Ordering::SeqCst)
        }

        fn end(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    async fn connect() -> Result<Wire, Away> {
        Ok(Wire(AtomicBool::new(false)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_link_ends_its_connection_and_opens_no_other() {
        let link = SharedConnection::new();
        let wire = link.get(connect()).await.expect("a connection");
        link.close(Instant::now()).await;
        assert!(!wire.alive());
        assert_eq!(link.get(connect()).await.err(), Some(no_more()));
    }

    /// One caller waits for an answer that never arrives, the other is not polled.
    #[tokio::test(start_paused = true)]
    async fn close_does_not_wait_for_a_connection_attempt() {
        let limit = Duration::from_millis(100);
        let link = Arc::new(SharedConnection::<Wire>::new());
        let silent = tokio::spawn({
            let link = Arc::clone(&link);
            async move { link.get(std::future::pending()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let before = Instant::now();
        link.close(before + limit).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(silent.await.expect("no panic"), Err(no_more()));

        let link = SharedConnection::<Wire>::new();
        let mut left = Box::pin(link.get(async {
            tokio::task::yield_now().await;
            connect().await
        }));
        assert!(left.as_mut().now_or_never().is_none());
        let before = Instant::now();
        link.close(before + limit).await;
        assert!(before.elapsed() <= limit + Duration::from_millis(1), "{:?}", before.elapsed());
        assert_eq!(left.await.err(), Some(no_more()));
    }
}
