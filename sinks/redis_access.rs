//! How to reach and log in to a Redis, for the sink and for the timeline: directly, through Sentinels, or at a node of
//! a cluster, with or without TLS. <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
//!
//! [`RedisAccess::connect`] asks the Sentinels for the master, one after the other, until one names a server that
//! reports itself to be a master. A Sentinel that does not answer delays the next one by a part of the limit only; then
//! both are asked in parallel. A connection does not follow a failover: a caller that gets `READONLY`, or loses the connection, makes a
//! new one.

mod connection;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::PubSub;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, Value};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use self::connection::Stream;
pub use self::connection::{Commands, RedisSocket};
use crate::away::{Away, Cause};
use crate::redis_replies::LimitedReplies;
use crate::target::{Scheme, Target, address};
use crate::tls::Tls;
use crate::{Password, SinkError};

/// The URL schemes of Redis.
pub(crate) const SERVER: Scheme = Scheme::plain("redis", 6379);
pub(crate) const SERVER_TLS: Scheme = Scheme::over_tls("rediss", 6379);
pub(crate) const SENTINEL: Scheme = Scheme::plain("redis+sentinel", 26379).as_in("/mymaster");
pub(crate) const SENTINEL_TLS: Scheme = Scheme::over_tls("rediss+sentinel", 26379).as_in("/mymaster");

pub(crate) const CLUSTER: Scheme = Scheme::plain("redis+cluster", 6379);
pub(crate) const CLUSTER_TLS: Scheme = Scheme::over_tls("rediss+cluster", 6379);

/// The address of a Redis, and the login. `Debug` shows no secret.
#[derive(Clone)]
pub struct RedisAccess {
    target: Target,
    /// The name of the master for the Sentinels; `None` if the URL names the server itself.
    master: Option<String>,
    database: i64,
    sentinel_password: Option<SecretString>,
    connector: Option<TlsConnector>,
    tls: Tls,
}

/// The scheme of the URL of a Redis, and the rest behind its colon.
fn scheme_of(url: &str) -> Result<(Scheme, &str), SinkError> {
    let schemes = [SERVER, SERVER_TLS, SENTINEL, SENTINEL_TLS, CLUSTER, CLUSTER_TLS];
    let url = url.trim();
    let (name, rest) = url.split_once(':').unwrap_or((url, ""));
    let Some(scheme) = schemes.into_iter().find(|scheme| scheme.name == name) else {
        let known: Vec<_> = schemes.iter().map(|scheme| scheme.example()).collect();
        return Err(SinkError::url(format!("a Redis is named by a URL: {}", known.join(", "))));
    };
    Ok((scheme, rest))
}

fn is_of_cluster(target: &Target) -> bool {
    target.scheme == CLUSTER || target.scheme == CLUSTER_TLS
}

impl RedisAccess {
    /// Parses `redis://[[user]:password@]host[:port][/database]`, `rediss://` for TLS, and
    /// `redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]...]/master[/database]`,
    /// `rediss+sentinel://` for TLS to Sentinels and master, `redis+cluster://[[user]:password@]host[:port][,host...]` and
    /// `rediss+cluster://` for nodes of a cluster. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the URL is malformed (the text never quotes it), or if TLS has no trusted certificates.
    pub fn parse(url: &str, tls: &Tls) -> Result<RedisAccess, SinkError> {
        let (scheme, rest) = scheme_of(url)?;
        RedisAccess::new(Target::parse(scheme, rest).map_err(SinkError::url)?, tls)
    }

    /// Like [`parse`](RedisAccess::parse), with a file that contains the password of the user in the URL. It is read for
    /// each login.
    ///
    /// # Errors
    /// As `parse`; also if the URL has a password, or the file cannot be read.
    pub fn parse_with_password_file(url: &str, path: &Path, tls: &Tls) -> Result<RedisAccess, SinkError> {
        let wrong = |detail| SinkError::option("password_file", detail);
        let password = Password::in_file(path);
        password.read().map_err(wrong)?;
        let (scheme, rest) = scheme_of(url)?;
        let mut target = Target::parse(scheme, rest).map_err(SinkError::url)?;
        target.set_password(password).map_err(wrong)?;
        RedisAccess::new(target, tls)
    }

    /// Replaces the password in the URL, if there is one, by another source, which is asked at each login.
    #[must_use]
    pub fn with_password(mut self, password: Password) -> RedisAccess {
        self.target.replace_password(password);
        self
    }

    pub(crate) fn new(target: Target, tls: &Tls) -> Result<RedisAccess, SinkError> {
        let wrong = |detail: String| SinkError::url(format!("{detail}, as in {}", target.scheme.example()));
        let through_sentinels = target.scheme.name.ends_with("sentinel");
        let (master, database) = match target.path.split_once('/') {
            Some((master, database)) if through_sentinels => (Some(master), database),
            None if through_sentinels => (Some(target.path.as_str()), ""),
            _ => (None, target.path.as_str()),
        };
        // The client library would then log in as `default`, which usually has all permissions.
        if target.user.is_some() && target.password.is_none() {
            let detail = "the URL of a Redis has a password behind its user; without a user it is `:password@`";
            return Err(wrong(detail.to_owned()));
        }
        if master == Some("") {
            return Err(wrong("the URL of a Redis behind Sentinels names its master".to_owned()));
        }
        let is_cluster = is_of_cluster(&target);
        if master.is_none() && !is_cluster && target.hosts.len() > 1 {
            let detail = "a Redis has one host; several hosts are for Sentinels, or for a cluster: `redis+cluster://`";
            return Err(wrong(detail.to_owned()));
        }
        let number = if database.is_empty() { Some(0) } else { database.parse().ok().filter(|number| *number >= 0) };
        let number = number.ok_or_else(|| SinkError::url(format!("`{database}` is no number of a Redis database")))?;
        if is_cluster && number != 0 {
            return Err(wrong("a Redis Cluster has database 0 only".to_owned()));
        }
        let connector = target.scheme.tls.then(|| tls.client_config()).transpose()?;
        Ok(RedisAccess {
            master: master.map(str::to_owned),
            database: number,
            sentinel_password: None,
            connector: connector.map(|config| TlsConnector::from(Arc::new(config))),
            tls: tls.clone(),
            target,
        })
    }

    /// Sets the password of the Sentinels.
    ///
    /// # Errors
    /// [`SinkError::Config`] if there are no Sentinels.
    pub fn with_sentinel_password(mut self, password: Option<SecretString>) -> Result<RedisAccess, SinkError> {
        if password.is_some() && self.master.is_none() {
            let detail = "`sentinel_password` is for a Redis behind Sentinels: its URL begins with `redis+sentinel`";
            return Err(SinkError::option("sentinel_password", detail));
        }
        self.sentinel_password = password;
        Ok(self)
    }

    /// Whether the URL names nodes of a cluster. [`connect_to`](RedisAccess::connect_to) connects to one of them.
    pub fn is_cluster(&self) -> bool {
        is_of_cluster(&self.target)
    }

    /// The hosts in the URL, each with its port.
    pub fn servers(&self) -> &[(String, u16)] {
        &self.target.hosts
    }

    /// The address of a server, for logs and errors.
    pub fn address_of(&self, server: &(String, u16)) -> String {
        address(&server.0, server.1)
    }

    /// Whether its connections use TLS.
    pub fn over_tls(&self) -> bool {
        self.target.scheme.tls
    }

    /// The URL without user and password, for logs and errors.
    pub fn address(&self) -> String {
        self.target.address()
    }

    /// Connects and logs in. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// Why that did not succeed within `limit`.
    pub async fn connect(
        &self,
        socket: RedisSocket,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Commands, Away> {
        // A server without TLS takes our handshake for an incomplete command, and waits for the rest.
        let hint = if self.connector.is_some() { ", if it speaks TLS there at all" } else { "" };
        let silent = || Away::new(Cause::Unreachable, format!("no answer within {limit:?}{hint}"));
        let until = Instant::now() + limit;
        let Some(master) = &self.master else {
            let [server, ..] = &self.target.hosts[..] else { return Err("the URL names no host".to_owned().into()) };
            let made = timeout_at(until, self.log_in_at(server, socket, config));
            return made.await.unwrap_or_else(|_| Err(silent()));
        };
        let mut attempts = Vec::new();
        for sentinel in &self.target.hosts {
            let attempt = timeout_at(until, self.connect_by(sentinel, master, socket, config.clone()));
            let named =
                |away: Away| away.with_prefix(format!("by the sentinel `{}`: ", address(&sentinel.0, sentinel.1)));
            attempts.push(async move { attempt.await.unwrap_or_else(|_| Err(silent())).map_err(named) });
        }
        // The last Sentinel has more than half of the time left, and a working first one has all of it.
        let parts = u32::try_from(2 * attempts.len()).unwrap_or(u32::MAX);
        first_of(attempts, limit / parts.max(1)).await
    }

    /// Connects to this server and logs in there as the URL says. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// Why that did not succeed within `limit`.
    pub async fn connect_to(
        &self,
        server: &(String, u16),
        socket: RedisSocket,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Commands, Away> {
        let made = timeout(limit, self.log_in_at(server, socket, config)).await;
        made.unwrap_or_else(|_| Err(Away::new(Cause::Unreachable, format!("no answer within {limit:?}"))))
    }

    /// Another connection to the server of `commands`, logged in. It does not ask the Sentinels, which might name
    /// another server by now. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// Why that did not succeed within `limit`.
    pub async fn connect_beside(
        &self,
        commands: &Commands,
        socket: RedisSocket,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Commands, Away> {
        let server = commands.server();
        let made = timeout(limit, self.log_in_at(server, socket, config)).await;
        let made = made.unwrap_or_else(|_| Err(format!("no answer within {limit:?}").into()));
        made.map_err(|away| self.of_master(server, away))
    }

    /// A connection for subscriptions to the server of `commands`, logged in. It does not ask the Sentinels, which
    /// might name another server by now. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// Why that did not succeed within `limit`.
    pub async fn subscribe(&self, commands: &Commands, socket: RedisSocket, limit: Duration) -> Result<PubSub, Away> {
        let server = commands.server();
        let subscribing = async {
            let stream = self.stream(server, socket).await?;
            PubSub::new(&self.login()?, stream).await.map_err(|error| away(&error))
        };
        let silent = |_| Err(format!("no answer within {limit:?}").into());
        let made = timeout(limit, subscribing).await.unwrap_or_else(silent);
        made.map_err(|away| self.of_master(server, away))
    }

    /// A connection to the server that this Sentinel names.
    async fn connect_by(
        &self,
        sentinel: &(String, u16),
        master: &str,
        socket: RedisSocket,
        config: AsyncConnectionConfig,
    ) -> Result<Commands, Away> {
        let server = self.ask_sentinel(sentinel, socket, master).await?;
        let made = self.log_in_at(&server, socket, config).await;
        let commands = made.map_err(|away| self.of_master(&server, away))?;
        // A Sentinel may learn of a failover late.
        let role = redis::cmd("ROLE").query_async::<Value>(&mut commands.connection.clone()).await;
        if let Ok(Value::Array(role)) = role
            && !matches!(role.first(), Some(Value::BulkString(role)) if role == b"master")
        {
            return Err("the server that it names is no master".to_owned().into());
        }
        Ok(commands)
    }

    async fn log_in_at(
        &self,
        server: &(String, u16),
        socket: RedisSocket,
        config: AsyncConnectionConfig,
    ) -> Result<Commands, Away> {
        let stream = self.stream(server, socket).await?;
        Commands::log_in(server, &self.login()?, stream, config).await
    }

    /// Adds the address of a server that the URL does not contain.
    fn of_master(&self, server: &(String, u16), away: Away) -> Away {
        match self.master {
            None => away,
            Some(_) => away.with_prefix(format!("the master `{}`: ", address(&server.0, server.1))),
        }
    }

    async fn ask_sentinel(
        &self,
        sentinel: &(String, u16),
        socket: RedisSocket,
        master: &str,
    ) -> Result<(String, u16), Away> {
        let stream = self.stream(sentinel, socket).await?;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &self.sentinel_password {
            login = login.set_password(password.expose_secret());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let commands = Commands::log_in(sentinel, &login, stream, config).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(master);
        let answer = ask.query_async::<Option<(String, u16)>>(&mut commands.connection.clone()).await;
        let describe = |error: RedisError| match error.code() {
            // A plain Redis does not know the command.
            Some("ERR") => format!("the server there is no Sentinel: {error}").into(),
            _ => away(&error),
        };
        answer.map_err(describe)?.ok_or_else(|| format!("it knows no master `{master}`").into())
    }

    async fn stream(&self, server: &(String, u16), socket: RedisSocket) -> Result<Box<dyn Stream>, Away> {
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        socket.prepare(&stream).map_err(|error| error.to_string())?;
        let Some(connector) = &self.connector else { return Ok(Box::new(LimitedReplies::new(stream))) };
        let name = ServerName::try_from(server.0.clone());
        let name = name.map_err(|_| format!("`{}` is no name that a certificate could have", server.0))?;
        let connecting = connector.connect(name, stream).await;
        Ok(Box::new(LimitedReplies::new(connecting.map_err(|error| self.tls.away(&error))?)))
    }

    /// User and password. The password is read now, because it may have been replaced.
    fn login(&self) -> Result<RedisConnectionInfo, Away> {
        let mut info = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.target.user {
            // Redis 7.2 and newer would refuse `CLIENT SETINFO` to a user with minimal permissions, and log that.
            info = info.set_username(user).set_skip_set_lib_name();
        }
        if let Some(password) = &self.target.password {
            info = info.set_password(password.for_login()?.expose_secret());
        }
        Ok(info)
    }
}

impl std::fmt::Debug for RedisAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisAccess").field("address", &self.address()).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// The result of the first successful attempt; otherwise the errors of all. The next attempt starts when one has
/// failed, or when `pause` passes without a result. Earlier attempts continue in parallel.
async fn first_of<T, A: Future<Output = Result<T, Away>>>(attempts: Vec<A>, pause: Duration) -> Result<T, Away> {
    let mut attempts = attempts.into_iter();
    let mut under_way: FuturesUnordered<A> = attempts.next().into_iter().collect();
    let mut failed = Vec::new();
    loop {
        match timeout(pause, under_way.next()).await {
            Ok(Some(Ok(made))) => return Ok(made),
            Ok(Some(Err(away))) => failed.push(away),
            Ok(None) => return Err(Away::of_all(failed)),
            Err(_) => {}
        }
        under_way.extend(attempts.next());
    }
}

/// The kind of failure that this error code means.
pub fn cause(code: &str) -> Cause {
    match code {
        "NOAUTH" | "WRONGPASS" => Cause::LogIn,
        _ => Cause::Refused,
    }
}

/// The failure of an attempt to connect.
fn away(error: &RedisError) -> Away {
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) => Away::new(Cause::LogIn, format!("user or password are wrong: {error}")),
        // The parser's own text has several lines and lists bytes.
        (ErrorKind::Parse, _) => "the server there is no Redis, or expects TLS".to_owned().into(),
        // The reply to `SELECT`, or to a request to a Sentinel.
        (_, Some(code)) => Away::new(cause(code), error.to_string()),
        (_, None) => error.to_string().into(),
    }
}

#[cfg(test)]
mod tests;
