//! Checks whether a Redis, or each node of a cluster, is reachable, accepts the login, accepts writes, and is set up to keep
//! its data.
//!
//! Stores the scripts in the cache of Redis, writes no key and stores no layout.

use std::sync::Arc;

use punctual_sinks::{Away, Cause, RedisAccess, redis_access};
use redis::{Cmd, Value};
use tokio::time::timeout;

use super::check_cluster;
use super::cluster::{self, SlotsError, ask_slots};
use super::connector::{SOCKET, connection};
use super::durable::{ConfirmError, can_confirm};
use super::rights::{self, RightsError};
use super::server::{Advice, ServerState};
use super::session::{CallError, Session, detail};
use super::time::Time;
use super::{RedisConfig, RedisError, access};
use crate::task::Shard;
use crate::timeline::keys::{self, Keys};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCheck {
    /// Whether a timeline of this namespace exists there; its layout is the configured one.
    pub begun: bool,
    /// The version; `None` if Redis does not report it.
    pub version: Option<String>,
    /// The masters of a cluster, each with the number of its shards; empty for one Redis.
    pub masters: Vec<(String, usize)>,
    /// Settings that are dangerous for a timeline.
    pub advice: Vec<Advice>,
}

/// Why this Redis cannot store the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerCheckError {
    /// Redis is unreachable, or refuses commands.
    Away(Away),
    /// The URL is wrong, another layout is stored, another node serves the slots, the server of a cluster URL is in no
    /// cluster, or Redis cannot confirm writes.
    Redis(RedisError),
}

/// Checks whether this Redis can store the timeline, and whether its user has all rights. Each step is limited by the
/// timeout of a connection or a response.
///
/// # Errors
/// Why it cannot.
pub async fn check_server(config: &RedisConfig) -> Result<ServerCheck, ServerCheckError> {
    let access = access(config).map_err(ServerCheckError::Redis)?;
    let keys: Vec<Keys> = Shard::all(config.shards).map(|shard| Keys::new(&config.namespace, shard)).collect();
    if access.is_cluster() {
        return check_cluster::check(config, &access, &keys).await;
    }
    let commands = access.connect(SOCKET, connection(), config.connect_timeout).await;
    let session = Session::new(commands.map_err(ServerCheckError::Away)?, Time::of_server(Arc::default()));
    let slots = ask_slots(&session, &cluster::slots(&config.namespace, &keys), config.response_timeout).await;
    slots.map_err(|unserved| match unserved {
        SlotsError::Elsewhere { error, passes: false } => ServerCheckError::Redis(error),
        SlotsError::Elsewhere { error, passes: true } => refused(error.to_string()),
        SlotsError::Unanswered(failure) => away(failure),
    })?;
    let begun = check_layout(config, &session).await?;
    let ServerState { version, advice } = check_master(config, &access, &session, &keys, &keys[..1]).await?;
    Ok(ServerCheck { begun, version, masters: Vec::new(), advice })
}

/// Whether the timeline exists there.
///
/// # Errors
/// There is one of another layout, or Redis does not answer.
pub(super) async fn check_layout(config: &RedisConfig, session: &Session) -> Result<bool, ServerCheckError> {
    let get = redis::cmd("GET").arg(keys::layout(&config.namespace)).to_owned();
    match session.ask(&get, config.response_timeout, None).await.map_err(away)? {
        Value::Nil => Ok(false),
        found => {
            let found: String = redis::from_redis_value(found).unwrap_or_else(|_| "something else".to_owned());
            if keys::is_own_layout(&found, config.shards) {
                return Ok(true);
            }
            let (namespace, wanted) = (config.namespace.clone(), keys::layout_value(config.shards));
            let found = keys::split_layout(&found).0.to_owned();
            Err(ServerCheckError::Redis(RedisError::Layout { namespace, found, wanted }))
        }
    }
}

/// Checks writes, subscriptions to the wake-ups of all shards, rights and durability at a master that has `own` shards.
/// Returns its version and the settings that are dangerous.
pub(super) async fn check_master(
    config: &RedisConfig,
    access: &RedisAccess,
    session: &Session,
    all: &[Keys],
    own: &[Keys],
) -> Result<ServerState, ServerCheckError> {
    let ask = async |command: &Cmd| session.ask(command, config.response_timeout, None).await;
    if let Some(keys) = own.first() {
        // With XX this writes nothing, because the key does not exist. A replica, a full server, or one whose disk failed
        // refuses it nevertheless.
        ask(redis::cmd("SET").arg(keys.nothing()).arg("").arg("XX")).await.map_err(away)?;
    }
    let names: Vec<String> = all.iter().map(Keys::wake).chain([keys::beats(&config.namespace)]).collect();
    let subscribed = access.subscribe(&session.commands, SOCKET, config.connect_timeout).await;
    let mut subscription = subscribed.map_err(ServerCheckError::Away)?;
    match timeout(config.response_timeout, subscription.subscribe(names)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(refused(format!("cannot subscribe to its channels: {error}"))),
        Err(_) => {
            let detail = format!("no answer within {:?}", config.response_timeout);
            return Err(ServerCheckError::Away(detail.into()));
        }
    }
    if let Some(keys) = own.first() {
        rights::check(session, keys, config.response_timeout).await.map_err(|failure| match failure {
            RightsError::Missing(detail) => refused(detail),
            RightsError::Call(failure) => away(failure),
        })?;
    }
    match can_confirm(config.durability, session, None, config.response_timeout).await {
        Ok(()) => {}
        Err(ConfirmError::Unsupported(detail)) => return Err(ServerCheckError::Redis(RedisError::Durability(detail))),
        Err(ConfirmError::Temporary(detail)) => return Err(ServerCheckError::Away(detail.into())),
    }
    let info = match ask(&redis::cmd("INFO")).await {
        Ok(info) => redis::from_redis_value::<String>(info).map_err(|error| error.to_string()),
        Err(failure) => Err(failure.to_string()),
    };
    Ok(match info {
        Ok(info) => ServerState::read(&info, config.durability),
        Err(detail) => ServerState { version: None, advice: vec![Advice::untold(&detail)] },
    })
}

pub(super) fn refused(detail: String) -> ServerCheckError {
    ServerCheckError::Away(Away::new(Cause::Refused, detail))
}

pub(super) fn away(failure: CallError) -> ServerCheckError {
    ServerCheckError::Away(match failure {
        CallError::Refused(error) => Away::new(redis_access::cause(error.code()), detail(&error)),
        CallError::Unanswered(detail) | CallError::Ended(detail) | CallError::Unsent(detail) => detail.into(),
    })
}
