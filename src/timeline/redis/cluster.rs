//! Checks that a server serves all slots of a timeline. A node of a Redis Cluster may serve only some of them.

use std::time::Duration;

use futures_util::future::join_all;

use super::RedisError;
use super::session::{CallError, Session, detail};
use crate::task::Namespace;
use crate::timeline::keys::{self, Keys};

/// Why a server does not serve a slot.
pub(super) enum SlotsError {
    /// Another node serves it, or will serve it.
    Elsewhere {
        /// The error to report.
        error: RedisError,
        /// Whether the cluster may only be starting, so that a later attempt can succeed.
        passes: bool,
    },
    /// The server replied with another error, or not at all.
    Unanswered(CallError),
}

/// One key that never exists for each slot: the slot of the namespace, and the slot of each shard.
pub(super) fn slots(namespace: &Namespace, keys: &[Keys]) -> Vec<String> {
    std::iter::once(keys::nothing(namespace)).chain(keys.iter().map(Keys::nothing)).collect()
}

/// Deletes each of these keys, all at once. Because they do not exist, the replies also show slots that are being
/// migrated.
pub(super) async fn ask_slots(session: &Session, keys: &[String], timeout: Duration) -> Result<(), SlotsError> {
    let commands: Vec<_> = keys.iter().map(|key| redis::cmd("DEL").arg(key).to_owned()).collect();
    let answers = join_all(commands.iter().map(|command| session.ask(command, timeout, None))).await;
    // The first failure in the order of shards, so that the next attempt reports the same one.
    let failed = answers.into_iter().find_map(Result::err);
    failed.map_or(Ok(()), Err).map_err(|failure| match failure {
        CallError::Refused(error) if matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN") => {
            SlotsError::Elsewhere { passes: error.code() == "CLUSTERDOWN", error: RedisError::Cluster(detail(&error)) }
        }
        failure => SlotsError::Unanswered(failure),
    })
}
