//! The second connection of a session, on which it waits until Redis confirms its writes.
//!
//! Which writes a wait confirms depends on the version of Redis. Before 7.2, it is every write of the server up to the end of
//! the connection's last command. Since 7.2, it is only the last write of the connection itself. Therefore
//! each wait follows a small write on the same connection, which comes after every write that was answered before.
//!
//! All callers that ask while a wait runs share the next wait. If the second connection is lost, another one
//! is made to the same process and the wait is repeated there. Calls on the first connection are not affected.

use std::sync::Weak;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::cluster::IS_MOVING;
use super::connector::Connector;
use super::durable::{Durability, MAX_WAIT};
use super::node::Node;
use super::nodes::Nodes;
use super::session::{CallError, Session};

/// Writes a field and deletes it again, so that nothing is left. It begins with HDEL because a full Redis allows HDEL
/// as the first write of a script, and after it the others.
const WRITE: &str =
    "redis.call('HDEL', KEYS[1], '') redis.call('HSET', KEYS[1], '', '') return redis.call('HDEL', KEYS[1], '')";

/// How often an idle connection is used, so that no proxy or firewall closes it.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before the next attempt to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Confirms writes of a session.
pub(super) struct WaitConnection {
    waiters: mpsc::UnboundedSender<Waiter>,
    waiting: AbortHandle,
}

struct Waiter {
    until: Instant,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Drop for WaitConnection {
    fn drop(&mut self) {
        self.waiting.abort();
    }
}

impl WaitConnection {
    /// Waits on `wait_session`, a second connection to the process of `session`.
    pub(super) fn new(
        connector: &Connector,
        session: &Session,
        wait_session: Session,
        nodes: Weak<Nodes>,
        node: Weak<Node>,
    ) -> Self {
        let (waiters, receiver) = mpsc::unbounded_channel();
        debug_assert!(session.confirmations().is_err(), "otherwise both would keep each other alive");
        let (connector, main_session) = (connector.clone(), session.clone());
        let task = WaitTask { connector, main_session, wait_session, nodes, node };
        WaitConnection { waiters, waiting: tokio::spawn(task.serve(receiver)).abort_handle() }
    }

    /// Returns once every write that was answered before this call is confirmed, or an error text if it is not.
    pub(super) async fn confirm(&self, durability: Durability, until: Instant) -> Result<(), String> {
        let (answer, said) = oneshot::channel();
        let lost = || "the connection was lost meanwhile".to_owned();
        self.waiters.send(Waiter { until, answer }).map_err(|_| lost())?;
        match timeout_at(until, said).await {
            Ok(said) => said.unwrap_or_else(|_| Err(lost())),
            Err(_) => Err(durability.not_reached().to_owned()),
        }
    }
}

/// The task that waits on the second connection.
struct WaitTask {
    connector: Connector,
    /// The session whose writes are confirmed.
    main_session: Session,
    wait_session: Session,
    nodes: Weak<Nodes>,
    node: Weak<Node>,
}

impl WaitTask {
    /// Answers callers until the session is lost.
    async fn serve(mut self, mut waiters: mpsc::UnboundedReceiver<Waiter>) {
        while !self.main_session.broken() {
            let first = tokio::select! {
                first = waiters.recv() => first,
                () = tokio::time::sleep(KEEPALIVE_INTERVAL) => {
                    if let Err(CallError::Unanswered(reason) | CallError::Ended(reason)) =
                        self.send(&redis::cmd("PING"), Duration::ZERO).await {
                        self.renew(&reason).await;
                    }
                    continue;
                }
            };
            let Some(first) = first else { return };
            let mut together = vec![first];
            while let Ok(next) = waiters.try_recv() {
                together.push(next);
            }
            self.answer(together).await;
        }
    }

    /// Waits once for all callers. If the connection is lost, it repeats the wait on another one.
    async fn answer(&mut self, mut together: Vec<Waiter>) {
        let result = loop {
            together.retain(|waiter| !waiter.answer.is_closed());
            let Some(until) = together.iter().map(|waiter| waiter.until).max() else { return };
            match self.wait(until).await {
                Err(CallError::Unanswered(reason) | CallError::Ended(reason)) if !self.main_session.broken() => {
                    self.renew(&reason).await;
                }
                Ok(true) => break Ok(()),
                Ok(false) => break Err(self.connector.durability.not_reached().to_owned()),
                Err(failure) => break Err(failure.to_string()),
            }
        };
        for waiter in together {
            // An error means that the caller has stopped waiting.
            drop(waiter.answer.send(result.clone()));
        }
    }

    /// Whether the writes are confirmed before `until`.
    async fn wait(&self, until: Instant) -> Result<bool, CallError> {
        self.write().await?;
        let left = until.saturating_duration_since(Instant::now());
        let durability = self.connector.durability;
        let answer = self.send(&durability.wait(left), left.min(MAX_WAIT)).await?;
        Ok(durability.is_reached(&answer))
    }

    /// Makes the small write, with a key of a slot that the node has.
    async fn write(&self) -> Result<(), CallError> {
        let node = self.nodes.upgrade().zip(self.node.upgrade());
        let slots = node.map(|(nodes, node)| nodes.routes.slots_of(&node)).unwrap_or_default();
        let mut result = Err(CallError::Unsent(IS_MOVING.to_owned()));
        for slot in slots {
            let mut write = redis::cmd("EVAL");
            write.arg(WRITE).arg(1).arg(self.connector.nothing(slot));
            result = self.send(&write, Duration::ZERO).await.map(drop);
            match &result {
                // Another slot of the node may not be moving.
                Err(CallError::Refused(error)) if matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN") => {}
                _ => break,
            }
        }
        result
    }

    /// Sends a command. Waits for `longer` in addition to the usual response timeout.
    async fn send(&self, command: &Cmd, longer: Duration) -> Result<Value, CallError> {
        let answer = self.wait_session.ask(command, longer + self.connector.response_timeout, None).await;
        if matches!(answer, Err(CallError::Refused(_))) && self.wait_session.broken() {
            // The server has become a replica, so the writes of the session may be lost.
            self.main_session.break_off(&self.wait_session.reason());
        }
        answer
    }

    /// Makes another connection to the same process.
    async fn renew(&mut self, reason: &str) {
        tracing::debug!(reason, "lost the connection that confirms writes; reconnecting");
        while !self.main_session.broken() {
            if let Ok(wait_session) = self.connector.second_session(&self.main_session).await {
                let response_timeout = self.connector.response_timeout;
                match (
                    server_process(&self.main_session, response_timeout).await,
                    server_process(&wait_session, response_timeout).await,
                ) {
                    (Ok(one), Ok(other)) if one == other => {
                        self.wait_session = wait_session;
                        return;
                    }
                    (Ok(_), Ok(_)) => self.main_session.break_off(TWO_SERVERS),
                    _ => {}
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

/// The error if the second connection leads to another process.
pub(super) const TWO_SERVERS: &str = "two connections to it lead to two servers";

/// The `run_id` of the server's process, which changes at each restart.
pub(super) async fn server_process(session: &Session, response_timeout: Duration) -> Result<String, CallError> {
    let info = session.ask(redis::cmd("INFO").arg("server"), response_timeout, None).await?;
    let info: String = redis::from_redis_value(info).unwrap_or_default();
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned());
    id.ok_or_else(|| CallError::Unanswered("its `INFO` has no `run_id`".to_owned()))
}
