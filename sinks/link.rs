//! What the sinks that have a connection share: one that is made when needed and made anew when lost ([`SharedConnection`]), and the
//! door that `close` shuts ([`Door`]).
//!
//! A connection is made by whoever needs it first; the others wait for that attempt and share its outcome, so that a
//! broker that is down sees one attempt at a time. Nothing reconnects while nobody publishes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{Away, Cause, SinkError, Trouble};

/// How long an `answer_timeout` is kept short, so that the last answers are out when it has passed: a twentieth, at most
/// 100 ms.
pub(crate) fn deadline(answer_timeout: Duration) -> Instant {
    Instant::now() + answer_timeout - (answer_timeout / 20).min(Duration::from_millis(100))
}

/// Words for what had no answer in time.
pub(crate) fn no_answer(address: &str, answer_timeout: Duration) -> String {
    format!("no answer from `{address}` within {answer_timeout:?}")
}

fn closed() -> Trouble {
    no_more().into()
}

fn no_more() -> Away {
    Away::new(Cause::Refused, "the sink is closed")
}

/// A connection that may be lost.
pub(crate) trait Connection: Send + Sync + 'static {
    /// Whether it can still be used, as far as is known.
    fn alive(&self) -> bool;

    /// Ends it at once, for all who hold it.
    fn end(&self);
}

/// One connection, made when it is needed, until the link is closed.
pub(crate) struct SharedConnection<C> {
    slot: Mutex<Slot<C>>,
    closed: watch::Sender<bool>,
}

struct Slot<C> {
    connection: Option<Arc<C>>,
    failed: Option<(Instant, Away)>,
}

impl<C: Connection> SharedConnection<C> {
    pub(crate) fn new() -> SharedConnection<C> {
        SharedConnection {
            slot: Mutex::new(Slot { connection: None, failed: None }),
            closed: watch::Sender::new(false),
        }
    }

    /// The connection; made by `connect` if there is none.
    pub(crate) async fn get(&self, connect: impl Future<Output = Result<C, Away>>) -> Result<Arc<C>, Away> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        if *self.closed.borrow() {
            return Err(no_more());
        }
        if let Some(connection) = slot.connection.take_if(|connection| !connection.alive()) {
            connection.end();
        }
        if let Some(connection) = &slot.connection {
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
            Ok(connection) => Ok(Arc::clone(slot.connection.insert(Arc::new(connection)))),
            Err(away) => {
                slot.failed = Some((Instant::now(), away.clone()));
                Err(away)
            }
        }
    }

    /// Ends the connection, if there is one, and makes none any more; takes no longer than `until`.
    pub(crate) async fn close(&self, until: Instant) {
        self.closed.send_replace(true);
        // Whoever keeps the slot for longer is connecting, has no connection, and will get none.
        if let Ok(mut slot) = timeout_at(until, self.slot.lock()).await
            && let Some(connection) = slot.connection.take()
        {
            connection.end();
        }
    }
}

/// Lets publishes in until it is shut, and knows when the last of them has left.
#[derive(Default)]
pub(crate) struct Door(TaskTracker);

impl Door {
    /// A pass to hold while publishing.
    pub(crate) fn enter(&self) -> Result<TaskTrackerToken, Trouble> {
        let pass = self.0.token();
        // Looked at after the pass is held: `shut` waits for it otherwise.
        self.look().map(|()| pass)
    }

    /// Whether it still lets in; for what close need not wait for.
    pub(crate) fn look(&self) -> Result<(), Trouble> {
        if self.0.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Lets nobody in any more and waits for those inside.
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
    async fn a_closed_link_has_no_connection_and_makes_none() {
        let link = SharedConnection::new();
        let wire = link.get(connect()).await.expect("a connection");
        link.close(Instant::now()).await;
        assert!(!wire.alive());
        assert_eq!(link.get(connect()).await.err(), Some(no_more()));
    }

    /// Of two who are connecting one waits for an answer that never comes, the other is not even looked after.
    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_no_connection_that_is_being_made() {
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
