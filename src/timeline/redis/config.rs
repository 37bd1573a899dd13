//! The settings of the timeline in Redis, and why they, or this Redis, cannot be used.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Password, RedisAccess, Tls};
use secrecy::{ExposeSecret, SecretString};

use super::durable::Durability;
use super::server::Advice;
use crate::clock::ManualClock;
use crate::task::Namespace;

/// The beginning of [`RedisError::Unfit`].
pub const NOT_SET_UP: &str = "Redis is not set up to keep tasks";

/// Address and settings of the timeline in Redis.
#[derive(Clone)]
pub struct RedisConfig {
    /// Parsed by [`RedisAccess::parse`]: `redis://[[user]:password@]host[:port][/db]`, also with TLS, with Sentinels or
    /// of a cluster. May contain a password.
    pub url: SecretString,
    /// The trusted certificates, if the connection uses TLS.
    pub tls: Tls,
    /// A file with the password of the user in the URL, which then has none. It is read for each login.
    pub password_file: Option<PathBuf>,
    /// Takes the place of the password in the URL. It is read for each login.
    pub password: Option<Password>,
    /// The password of the Sentinels.
    pub sentinel_password: Option<SecretString>,
    /// Separates installations that share one Redis.
    pub namespace: Namespace,
    /// Number of shards, at least 1. The first instance that connects fixes it for the installation.
    pub shards: u16,
    /// The clock of the scripts, for tests; `None` is the clock of Redis.
    pub time: Option<Arc<ManualClock>>,
    /// Where a write must have arrived before it is answered.
    pub durability: Durability,
    /// Refuse a Redis that is not set up to keep tasks, with [`RedisError::Unfit`].
    pub strict: bool,
    /// Timeout of one attempt to connect.
    pub connect_timeout: Duration,
    /// Timeout of a reply. After three timeouts in a row the connection is replaced.
    pub response_timeout: Duration,
}

impl RedisConfig {
    /// A configuration with the default timeouts: 2 s to connect, 3 s for a reply.
    #[must_use]
    pub fn new(url: &str, namespace: Namespace, shards: u16) -> RedisConfig {
        RedisConfig {
            url: url.into(),
            tls: Tls::default(),
            password_file: None,
            password: None,
            sentinel_password: None,
            namespace,
            shards: shards.max(1),
            time: None,
            durability: Durability::default(),
            strict: false,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(3),
        }
    }
}

impl std::fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &self.url)
            .field("tls", &self.tls)
            .field("namespace", &self.namespace)
            .field("shards", &self.shards)
            .field("durability", &self.durability)
            .field("strict", &self.strict)
            .field("given_time", &self.time.is_some())
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish()
    }
}

/// Why a configuration is not usable, or why this Redis is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisError {
    /// The URL cannot be parsed. The error does not repeat it, because it may contain a password.
    #[error("the URL of Redis cannot be parsed: {0}")]
    Url(String),
    /// Another layout or another number of shards is stored in this Redis.
    #[error(
        "this Redis has a timeline of {} under the namespace `{namespace}`, and {} are configured: set `timeline.shards` to \
         the number it was made with, or another namespace (stored: `{found}`, expected: `{wanted}`)",
        shards_of(found),
        shards_of(wanted)
    )]
    Layout {
        /// The namespace.
        namespace: Namespace,
        /// The stored value: `<layout version> <shards>`.
        found: String,
        /// The value that this instance would store.
        wanted: String,
    },
    /// This Redis cannot confirm writes.
    #[error("{0}")]
    Durability(String),
    /// This node does not serve the slots of all shards. Carries its error text.
    #[error(
        "this node of a Redis Cluster does not serve the slots of all shards (`{0}`): a URL of a cluster begins with \
         `redis+cluster://` and names at least two of its nodes, as in `redis+cluster://10.0.0.1:6379,10.0.0.2:6379`"
    )]
    Cluster(String),
    /// The URL names a cluster, and this server is not in cluster mode.
    #[error("the Redis at `{0}` is not in cluster mode: its URL begins with `redis://`, or `rediss://` over TLS")]
    NoCluster(String),
    /// This Redis is not set up to keep tasks, and `strict` is set.
    #[error("{NOT_SET_UP}:{}", described(.0))]
    Unfit(Vec<Advice>),
}

/// The number of shards in a stored layout, as text.
fn shards_of(layout: &str) -> String {
    layout.split_once(' ').map_or_else(|| "an unknown layout".to_owned(), |(_, shards)| format!("{shards} shards"))
}

fn described(advice: &[Advice]) -> String {
    advice.iter().map(|advice| format!("\n  {}\n    hint: {}", advice.detail, advice.hint)).collect()
}

/// Parses the address of Redis.
pub(super) fn access(config: &RedisConfig) -> Result<RedisAccess, RedisError> {
    let url = config.url.expose_secret();
    let access = match &config.password_file {
        Some(file) => RedisAccess::parse_with_password_file(url, file, &config.tls),
        None => RedisAccess::parse(url, &config.tls),
    };
    let replaced = |access: RedisAccess| match &config.password {
        Some(password) => access.with_password(password.clone()),
        None => access,
    };
    access
        .map(replaced)
        .and_then(|access| access.with_sentinel_password(config.sentinel_password.clone()))
        .map_err(|error| RedisError::Url(error.to_string()))
}
