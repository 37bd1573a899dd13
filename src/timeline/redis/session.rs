//! One connection for commands, and what is known of its health.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use punctual_sinks::redis_access::Commands;
use redis::aio::MultiplexedConnection;
use tokio_util::sync::CancellationToken;

use super::durable::WaitConnection;

/// Answers in a row that may fail to come in time before the connection is given up.
const SILENCES: u32 = 3;

/// A connection for commands, and what is known of its health.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) commands: Arc<Commands>,
    broken: CancellationToken,
    reason: Arc<OnceLock<String>>,
    silences: Arc<AtomicU32>,
    /// Who says when what was written here is kept, or why nobody can.
    pub(super) witness: Option<Result<Arc<WaitConnection>, String>>,
}

impl Session {
    pub(super) fn new(commands: Commands) -> Session {
        let commands = Arc::new(commands);
        let (broken, reason, silences) = (CancellationToken::new(), Arc::default(), Arc::default());
        Session { commands, broken, reason, silences, witness: None }
    }

    pub(super) fn broken(&self) -> bool {
        self.broken.is_cancelled()
    }

    /// Returns once it is given up: why.
    pub(super) async fn lost(&self) -> String {
        self.broken.cancelled().await;
        self.reason()
    }

    /// Who says when what was written here is kept; else why nobody can.
    pub(super) fn witness(&self) -> Result<&WaitConnection, &str> {
        match &self.witness {
            Some(Ok(witness)) => Ok(witness),
            Some(Err(detail)) => Err(detail),
            None => Err("nobody was asked to say when something is kept"),
        }
    }

    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.commands.connection.clone()
    }

    /// Gives the connection up; the keeper makes a new one.
    pub(super) fn break_off(&self, reason: &str) {
        self.reason.get_or_init(|| reason.to_owned());
        self.broken.cancel();
    }

    pub(super) fn answered(&self) {
        self.silences.store(0, Ordering::Relaxed);
    }

    pub(super) fn timed_out(&self, timeout: Duration) {
        if self.silences.fetch_add(1, Ordering::Relaxed) + 1 >= SILENCES {
            self.break_off(&format!("{SILENCES} answers in a row did not come within {timeout:?}"));
        }
    }

    pub(super) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_default()
    }
}
