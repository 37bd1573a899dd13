//! What a server answers about the hash slots of a timeline. A node of a Redis Cluster may have only some of them.

use std::time::Duration;

use futures_util::future::join_all;
use redis::ServerError;

use super::RedisError;
use super::session::{CallError, Session, detail};
use crate::task::Namespace;
use crate::timeline::keys::{self, Keys};

/// Name or address of a server, and its port.
pub(super) type Server = (String, u16);

/// The detail while the cluster moves a slot to another node.
pub(super) const IS_MOVING: &str = "its slot is being moved to another node";

/// Why a server does not serve a slot.
pub(super) enum SlotsError {
    /// This node does not serve it. Another one does or will, or none.
    Elsewhere {
        /// The error to report.
        error: RedisError,
        /// Whether the cluster may only be starting, so that a later attempt can succeed.
        passes: bool,
    },
    /// The server replied with another error, or not at all.
    Unanswered(CallError),
}

/// What a server says about a slot.
pub(super) enum SlotAnswer {
    /// It has the slot.
    Here,
    /// It has the slot, which is being moved to another node. No node serves all its calls until the move ends.
    Moving,
    /// This server has the slot.
    At(Server),
    /// It does not know, or does not answer.
    Unknown(String),
}

/// One key that never exists for each slot: the slots of the shards, and the slot of the namespace.
pub(super) fn slots(namespace: &Namespace, keys: &[Keys]) -> Vec<String> {
    keys.iter().map(Keys::nothing).chain([keys::nothing(namespace)]).collect()
}

/// Whether the server is a node of a cluster. Outside a cluster, two independent servers in one URL would be two timelines.
pub(super) async fn is_in_cluster(session: &Session, timeout: Duration) -> Result<bool, String> {
    let info = session.ask(redis::cmd("INFO").arg("cluster"), timeout, None).await;
    let info: String = redis::from_redis_value(info.map_err(|failure| failure.to_string())?).unwrap_or_default();
    Ok(info.contains("cluster_enabled:1"))
}

/// Deletes each of these keys, all at once, and returns an answer for each. Because they do not exist, the answers also
/// show slots that are being moved. A delete is the one write that a full Redis allows; a replica refuses it.
async fn delete_all(
    session: &Session,
    keys: impl IntoIterator<Item = &str>,
    timeout: Duration,
) -> Vec<Result<(), CallError>> {
    let commands: Vec<_> = keys.into_iter().map(|key| redis::cmd("DEL").arg(key).to_owned()).collect();
    let answers = join_all(commands.iter().map(|command| session.ask(command, timeout, None))).await;
    answers.into_iter().map(|answer| answer.map(drop)).collect()
}

/// Checks that a server has the slots of all these keys, which never exist.
pub(super) async fn ask_slots(session: &Session, keys: &[String], timeout: Duration) -> Result<(), SlotsError> {
    let answers = delete_all(session, keys.iter().map(String::as_str), timeout).await;
    // The first failure in the order of shards, so that the next attempt reports the same one.
    let failed = answers.into_iter().find_map(Result::err);
    failed.map_or(Ok(()), Err).map_err(|failure| match failure {
        CallError::Refused(error) if matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN") => {
            SlotsError::Elsewhere { passes: error.code() == "CLUSTERDOWN", error: RedisError::Cluster(detail(&error)) }
        }
        failure => SlotsError::Unanswered(failure),
    })
}

/// Asks a node of a cluster who has the slots of these keys, which never exist.
pub(super) async fn probe(
    session: &Session,
    keys: impl IntoIterator<Item = &str>,
    timeout: Duration,
) -> Vec<SlotAnswer> {
    let keys: Vec<&str> = keys.into_iter().collect();
    // Not the timeout of each command: the connection of a slow node would be given up after three of them.
    let Ok(answers) = tokio::time::timeout(timeout, delete_all(session, keys.iter().copied(), Duration::MAX)).await
    else {
        return keys.iter().map(|_| SlotAnswer::Unknown(format!("no answer within {timeout:?}"))).collect();
    };
    let read = |answer| match answer {
        Ok(()) => SlotAnswer::Here,
        Err(CallError::Refused(error)) => match error.code() {
            "ASK" | "TRYAGAIN" => SlotAnswer::Moving,
            "MOVED" => moved_to(&error, session).map_or_else(|| SlotAnswer::Unknown(detail(&error)), SlotAnswer::At),
            _ => SlotAnswer::Unknown(detail(&error)),
        },
        Err(failure) => SlotAnswer::Unknown(failure.to_string()),
    };
    answers.into_iter().map(read).collect()
}

/// The server that a `MOVED` names: `<slot> <host>:<port>`. Without a host it is the one that was asked, and `?` stands
/// for a host that the cluster does not know. <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>
pub(super) fn moved_to(error: &ServerError, asked: &Session) -> Option<Server> {
    read_moved(error.details()?, &asked.commands.server().0)
}

fn read_moved(details: &str, asked: &str) -> Option<Server> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "?" => return None,
        "" => asked,
        host => host,
    };
    Some((host.to_owned(), port.parse().ok().filter(|port| *port != 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_a_moved_names_is_read() {
        for (details, server) in [
            ("3999 127.0.0.1:6381", Some(("127.0.0.1", 6381))),
            ("3999 redis-2.internal:6381", Some(("redis-2.internal", 6381))),
            ("3999 ::1:6381", Some(("::1", 6381))),
            ("3999 [::1]:6381", Some(("::1", 6381))),
            ("3999 :6381", Some(("asked", 6381))),
            ("3999 ?:6381", None),
            ("3999 127.0.0.1:0", None),
            ("3999 127.0.0.1", None),
            ("3999", None),
        ] {
            let expected = server.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(read_moved(details, "asked"), expected, "{details}");
        }
    }
}
