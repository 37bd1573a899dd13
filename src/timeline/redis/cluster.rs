//! Whether a server serves every slot that a timeline uses: one of a Redis Cluster may serve some of them.

use std::time::Duration;

use futures_util::future::join_all;

use super::RedisError;
use super::call::{CallError, detail};
use super::session::Session;
use crate::task::Namespace;
use crate::timeline::keys::{self, Keys};

/// Why a server does not serve a slot.
pub(super) enum Slots {
    /// Another one does, or will; `passes`: the cluster may just not be together yet.
    Elsewhere {
        /// What is said of it.
        error: RedisError,
        /// Whether waiting may help.
        passes: bool,
    },
    /// It said something else, or nothing.
    Unanswered(CallError),
}

/// A key that never exists for each slot: the one of the namespace's own keys, and one for each shard.
pub(super) fn slots(namespace: &Namespace, keys: &[Keys]) -> Vec<String> {
    std::iter::once(keys::nothing(namespace)).chain(keys.iter().map(Keys::nothing)).collect()
}

/// Asks for each of these keys, all at once. One that does not exist shows a slot that is on its way elsewhere, too.
pub(super) async fn ask_slots(session: &Session, keys: &[String], timeout: Duration) -> Result<(), Slots> {
    let commands: Vec<_> = keys.iter().map(|key| redis::cmd("DEL").arg(key).to_owned()).collect();
    let answers = join_all(commands.iter().map(|command| session.ask(command, timeout, None))).await;
    // The first in the order of shards, so that the next attempt says the same.
    let failed = answers.into_iter().find_map(Result::err);
    failed.map_or(Ok(()), Err).map_err(|failure| match failure {
        CallError::Refused(error) if matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN") => {
            Slots::Elsewhere { passes: error.code() == "CLUSTERDOWN", error: RedisError::Cluster(detail(&error)) }
        }
        failure => Slots::Unanswered(failure),
    })
}
