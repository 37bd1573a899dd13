//! One connection for commands, and its health.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use punctual_sinks::redis_access::Commands;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ServerError, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::expiry::CallExpiry;
use super::time::Time;
use super::wait_connection::WaitConnection;

/// After this many response timeouts in a row the connection is given up.
const MAX_SILENCES: u32 = 3;

/// A connection for commands, and its health.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) commands: Arc<Commands>,
    /// The clock of the server.
    pub(super) time: Time,
    /// Whether the server is a node of a cluster, of which this timeline uses several.
    in_cluster: bool,
    broken: CancellationToken,
    reason: Arc<OnceLock<String>>,
    silences: Arc<AtomicU32>,
    pub(super) confirmations: Confirmations,
    /// The process behind the connection, once it was asked for.
    pub(super) process: Arc<OnceCell<u32>>,
}

/// Who confirms the writes of a session.
#[derive(Clone)]
pub(super) enum Confirmations {
    /// The configuration needs no confirmation.
    NotNeeded,
    /// This second connection waits for them.
    By(Arc<WaitConnection>),
    /// Redis cannot confirm writes, for this reason.
    Impossible(String),
}

impl Session {
    pub(super) fn new(commands: Commands, time: Time) -> Session {
        Session {
            commands: Arc::new(commands),
            time,
            in_cluster: false,
            broken: CancellationToken::new(),
            reason: Arc::default(),
            silences: Arc::default(),
            confirmations: Confirmations::NotNeeded,
            process: Arc::default(),
        }
    }

    /// The session of a node of a cluster: that it does not serve a slot does not end it.
    pub(super) fn in_cluster(self) -> Session {
        Session { in_cluster: true, ..self }
    }

    /// A session with another connection to the same server.
    pub(super) fn beside(&self, commands: Commands) -> Session {
        Session { in_cluster: self.in_cluster, ..Session::new(commands, self.time.clone()) }
    }

    /// Whether both are the same connection.
    pub(super) fn is_same(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.commands, &other.commands)
    }

    /// Whether the last call had no answer in time.
    pub(super) fn is_silent(&self) -> bool {
        self.silences.load(Ordering::Relaxed) > 0
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
    pub(super) fn confirmations(&self) -> Result<&WaitConnection, &str> {
        match &self.confirmations {
            Confirmations::By(connection) => Ok(connection),
            Confirmations::Impossible(detail) => Err(detail),
            Confirmations::NotNeeded => Err("no durability is configured"),
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

    fn note_answer(&self) {
        self.silences.store(0, Ordering::Relaxed);
    }

    pub(super) fn note_silence(&self, timeout: Duration) {
        if self.silences.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SILENCES {
            self.break_off(&format!("{MAX_SILENCES} answers in a row did not come within {timeout:?}"));
        }
    }

    pub(super) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_default()
    }

    /// Takes a sample of the server's clock. Before the first one the estimate has no bound.
    pub(super) async fn ask_time(&self, timeout: Duration) -> Result<(), CallError> {
        let sent = Instant::now();
        let time = self.ask(&redis::cmd("TIME"), timeout, None).await?;
        let time = redis::from_redis_value::<(i64, i64)>(time);
        let (seconds, micros) = time.map_err(|error| CallError::Unanswered(error.to_string()))?;
        self.time.observe(sent, seconds * 1_000_000 + micros);
        Ok(())
    }

    /// Sends a command and waits for the reply until `timeout` has passed or `expiry` ends, whichever is later.
    pub(super) async fn ask(
        &self,
        command: &Cmd,
        timeout: Duration,
        expiry: Option<&CallExpiry>,
    ) -> Result<Value, CallError> {
        let mut connection = self.connection();
        let answer = connection.send_packed_command(command);
        tokio::pin!(answer);
        let answer = match tokio::time::timeout(timeout, &mut answer).await {
            Ok(answer) => Some(answer),
            Err(_) => {
                self.note_silence(timeout);
                match expiry {
                    None => None,
                    Some(expiry) => tokio::select! {
                        answer = &mut answer => Some(answer),
                        () = expiry.surely_past() => None,
                    },
                }
            }
        };
        match answer {
            None => Err(CallError::Unanswered(format!("no answer within {timeout:?}"))),
            Some(Ok(Value::ServerError(error))) => Err(self.refused(error)),
            Some(Ok(value)) => {
                self.note_answer();
                Ok(value)
            }
            Some(Err(error)) => match ServerError::try_from(error) {
                Ok(error) => Err(self.refused(error)),
                Err(error) => {
                    let reason = error.to_string();
                    self.break_off(&reason);
                    Err(CallError::Ended(reason))
                }
            },
        }
    }

    fn refused(&self, error: ServerError) -> CallError {
        self.note_answer();
        // Redis before 7.0 wraps an error that a script met into a message of its own.
        let read_only_in_script =
            error.code() == "ERR" && error.details().is_some_and(|details| details.contains("-READONLY"));
        // In a cluster, the routes decide.
        if self.in_cluster {
            return CallError::Refused(error);
        }
        // The server has become a replica, or no longer serves a slot. The address may already lead to its successor,
        // so connect again. The next connection checks all slots.
        if read_only_in_script || matches!(error.code(), "READONLY" | "MASTERDOWN" | "MOVED" | "ASK" | "CLUSTERDOWN") {
            self.break_off(&detail(&error));
        }
        CallError::Refused(error)
    }
}

/// Why a command has no usable reply.
pub(super) enum CallError {
    /// The server replied with an error: nothing was written.
    Refused(ServerError),
    /// No usable reply arrived in time. The server may still run the command.
    Unanswered(String),
    /// The connection ended. The server has run the command, or it never will, because it reads nothing more from a
    /// connection that it has closed. What a proxy still passes on arrives while the next connection logs in and loads
    /// the scripts.
    Ended(String),
    /// The command was not sent.
    Unsent(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Refused(error) => f.write_str(&detail(error)),
            CallError::Unanswered(reason) | CallError::Ended(reason) | CallError::Unsent(reason) => f.write_str(reason),
        }
    }
}

/// The error text of the server, beginning with its code.
pub(super) fn detail(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}
