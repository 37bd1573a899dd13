//! The layout of a timeline: its version and its number of shards, stored in Redis. Instances with different layouts do
//! not see each other's tasks, so an instance refuses a Redis that stores another one.

use std::time::Duration;

use redis::{Cmd, Value};

use super::RedisError;
use super::session::Session;
use crate::task::Namespace;
use crate::timeline::keys;

/// How often the stored layout is read, because somebody may empty Redis or restore an old backup. Together with the
/// glances this stays within the idle budget.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The layout of this instance, and where it is stored.
#[derive(Clone)]
pub(super) struct Layout {
    /// The URL for logs, without user and password.
    address: String,
    namespace: Namespace,
    key: String,
    wanted: String,
    response_timeout: Duration,
}

impl Layout {
    pub(super) fn new(address: &str, namespace: &Namespace, shards: u16, response_timeout: Duration) -> Layout {
        Layout {
            address: address.to_owned(),
            key: keys::layout(namespace),
            wanted: keys::layout_value(shards),
            namespace: namespace.clone(),
            response_timeout,
        }
    }

    /// Stores this layout if Redis has none. In that case it also logs an error if a layout was `known` to be stored.
    /// The inner error means that another layout is stored.
    pub(super) async fn check(&self, session: &Session, known: bool) -> Result<Result<(), RedisError>, String> {
        let get = redis::cmd("GET").arg(&self.key).to_owned();
        let mut found = self.ask(session, &get).await?;
        if found == Value::Nil {
            if known {
                tracing::error!(
                    address = self.address,
                    namespace = %self.namespace,
                    hint = "Redis was emptied or has evicted keys; its tasks may be lost",
                    "the layout of the timeline is gone from redis; writing it again"
                );
            }
            // SET is sent only if needed: a full Redis would refuse it although the layout is stored.
            self.ask(session, redis::cmd("SET").arg(&self.key).arg(&self.wanted).arg("NX")).await?;
            found = self.ask(session, &get).await?;
        }
        let found = match found {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => format!("{other:?}"),
        };
        if found == self.wanted {
            return Ok(Ok(()));
        }
        Ok(Err(RedisError::Layout { namespace: self.namespace.clone(), found, wanted: self.wanted.clone() }))
    }

    /// Reads the stored layout again and again, and stores it if it is missing. Returns once another one is stored.
    pub(super) async fn changed(&self, session: &Session) -> RedisError {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            // Without an answer, the calls of others notice that the connection is lost.
            if let Ok(Err(error)) = self.check(session, true).await {
                return error;
            }
        }
    }

    async fn ask(&self, session: &Session, command: &Cmd) -> Result<Value, String> {
        session.ask(command, self.response_timeout, None).await.map_err(|failure| failure.to_string())
    }
}
