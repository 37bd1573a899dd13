//! One connection for commands, and its health.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use punctual_sinks::redis_access::Commands;
use redis::aio::MultiplexedConnection;
use tokio_util::sync::CancellationToken;

use super::wait_connection::WaitConnection;

/// After this many response timeouts in a row the connection is given up.
const SILENCES: u32 = 3;

/// A connection for commands, and its health.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) commands: Arc<Commands>,
    broken: CancellationToken,
    reason: Arc<OnceLock<String>>,
    silences: Arc<AtomicU32>,
    /// The connection that confirms writes, or why Redis cannot confirm them.
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

    /// Waits until the connection is given up; returns the reason.
    pub(super) async fn lost(&self) -> String {
        self.broken.cancelled().await;
        self.reason()
    }

    /// The connection that confirms writes, or why there is none.
    pub(super) fn witness(&self) -> Result<&WaitConnection, &str> {
        match &self.witness {
            Some(Ok(witness)) => Ok(witness),
            Some(Err(detail)) => Err(detail),
            None => Err("no durability is configured"),
        }
    }

    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.commands.connection.clone()
    }

    /// Gives the connection up. The link task makes a new one.
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
