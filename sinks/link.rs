//! What the sinks that have a connection share: one that is made when needed and made anew when lost ([`Link`]), and the
//! door that `close` shuts ([`Door`]).
//!
//! A connection is made by whoever needs it first; the others wait for that attempt and share its outcome, so that a
//! broker that is down sees one attempt at a time. Nothing reconnects while nobody publishes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::{Fault, SinkError, Trouble};

/// How long an `answer_timeout` is kept short, so that the last answers are out when it has passed: a twentieth, at most
/// 100 ms.
pub(crate) fn deadline(answer_timeout: Duration) -> Instant {
    Instant::now() + answer_timeout - (answer_timeout / 20).min(Duration::from_millis(100))
}

/// Words for what had no answer in time.
pub(crate) fn no_answer(address: &str, answer_timeout: Duration) -> String {
    format!("no answer from `{address}` within {answer_timeout:?}")
}

/// A connection that may be lost.
pub(crate) trait Connection: Send + Sync + 'static {
    /// Whether it can still be used, as far as is known.
    fn alive(&self) -> bool;

    /// Ends it at once, for all who hold it.
    fn end(&self);
}

/// One connection, made when it is needed.
pub(crate) struct Link<C> {
    slot: Mutex<Slot<C>>,
}

struct Slot<C> {
    connection: Option<Arc<C>>,
    failed: Option<(Instant, Trouble)>,
}

impl<C: Connection> Link<C> {
    pub(crate) fn new() -> Link<C> {
        Link { slot: Mutex::new(Slot { connection: None, failed: None }) }
    }

    /// The connection; made by `connect` if there is none.
    pub(crate) async fn get(&self, connect: impl Future<Output = Result<C, Trouble>>) -> Result<Arc<C>, Trouble> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        if let Some(connection) = slot.connection.take_if(|connection| !connection.alive()) {
            connection.end();
        }
        if let Some(connection) = &slot.connection {
            return Ok(Arc::clone(connection));
        }
        if let Some((at, trouble)) = &slot.failed
            && *at > asked
        {
            return Err(trouble.clone());
        }
        match connect.await {
            Ok(connection) => Ok(Arc::clone(slot.connection.insert(Arc::new(connection)))),
            Err(trouble) => {
                slot.failed = Some((Instant::now(), trouble.clone()));
                Err(trouble)
            }
        }
    }

    /// Ends the connection, if there is one.
    pub(crate) async fn end(&self) {
        if let Some(connection) = self.slot.lock().await.connection.take() {
            connection.end();
        }
    }
}

/// Lets publishes in until it is shut, and knows when the last of them has left.
pub(crate) struct Door {
    shut: AtomicBool,
    inside: Arc<Semaphore>,
}

/// More publishes than this at once find the door shut; far beyond what any instance has under way.
const PLACES: u32 = 1 << 20;

impl Door {
    pub(crate) fn new() -> Door {
        Door { shut: AtomicBool::new(false), inside: Arc::new(Semaphore::new(PLACES as usize)) }
    }

    /// A pass to hold while publishing.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        let closed = || Trouble::definite(Fault::Sink, "the sink is closed");
        let pass = Arc::clone(&self.inside).try_acquire_owned().map_err(|_| closed())?;
        // Looked at after the pass is held: `shut` waits for it otherwise.
        if self.shut.load(Ordering::SeqCst) { Err(closed()) } else { Ok(pass) }
    }

    /// Lets nobody in any more and waits for those inside.
    pub(crate) async fn shut(&self, limit: Duration) -> Result<(), SinkError> {
        self.shut.store(true, Ordering::SeqCst);
        let all = tokio::time::timeout(limit, self.inside.acquire_many(PLACES)).await;
        all.map(drop).map_err(|_| SinkError::Timeout { doing: "flushing what is under way", limit })
    }
}
