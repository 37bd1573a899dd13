//! How a Redis is named and reached, for the sink and for whoever else keeps something there: straight or through
//! Sentinels, with TLS or without, as which user. <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
//!
//! Sentinels are asked for the master whenever a connection is made, one after the other until one has named a server
//! that says itself that it is a master. A connection follows no failover: whoever is told `READONLY` on it, or loses it,
//! makes a new one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, Value};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::SinkError;
use crate::target::{Scheme, Target, address};
use crate::tls::Tls;

/// The schemes of a Redis' URL.
pub(crate) const SERVER: Scheme = Scheme::plain("redis", 6379);
pub(crate) const SERVER_TLS: Scheme = Scheme::over_tls("rediss", 6379);
pub(crate) const SENTINEL: Scheme = Scheme::plain("redis+sentinel", 26379).as_in("/mymaster");
pub(crate) const SENTINEL_TLS: Scheme = Scheme::over_tls("rediss+sentinel", 26379).as_in("/mymaster");

/// A Redis: where it is, and how to get in. Shows no secret.
#[derive(Clone)]
pub struct RedisAccess {
    target: Target,
    /// What Sentinels call the master; without it the one host is the server itself.
    master: Option<String>,
    database: i64,
    sentinel_password: Option<SecretString>,
    connector: Option<TlsConnector>,
    tls: Tls,
}

/// How a dead peer is noticed, and what becomes of what is unsent.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// The silence after which the other side is probed, three times.
    pub probe_after: Duration,
    /// Between two probes.
    pub probe_every: Duration,
    /// How long the other side may take to acknowledge what was sent. Only Linux.
    pub acknowledged_in: Duration,
    /// Whether what is unsent when the connection is dropped is thrown away. Else it is sent later.
    pub discard_unsent: bool,
}

/// A connection for commands; the task that drives it ends with it.
pub struct Commands {
    /// For any number of callers at once.
    pub connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Commands {
    /// Whether the connection can still be used, as far as is known.
    pub fn alive(&self) -> bool {
        !self.driver.is_finished()
    }

    /// Ends the connection at once, for all who hold it.
    pub fn end(&self) {
        self.driver.abort();
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl RedisAccess {
    /// Reads `redis://[[user]:password@]host[:port][/database]`, `rediss://` for TLS, and
    /// `redis+sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]...]/master[/database]`, `rediss+sentinel://` for
    /// TLS to Sentinels and master alike. Connects to nothing.
    ///
    /// # Errors
    /// [`SinkError::Config`] when the URL is malformed; the text never quotes it. Or when TLS has nobody to trust.
    pub fn parse(url: &str, tls: &Tls) -> Result<RedisAccess, SinkError> {
        let schemes = [SERVER, SERVER_TLS, SENTINEL, SENTINEL_TLS];
        let (name, rest) = url.split_once(':').unwrap_or((url, ""));
        let Some(scheme) = schemes.iter().find(|scheme| scheme.name == name) else {
            let known: Vec<_> = schemes.iter().map(|scheme| scheme.example()).collect();
            return Err(SinkError::Config(format!("a Redis is named by a URL: {}", known.join(", "))));
        };
        RedisAccess::new(Target::parse(*scheme, rest).map_err(SinkError::Config)?, tls)
    }

    pub(crate) fn new(target: Target, tls: &Tls) -> Result<RedisAccess, SinkError> {
        let wrong = |words: String| SinkError::Config(format!("{words}, as in {}", target.scheme.example()));
        let through_sentinels = target.scheme.name.ends_with("sentinel");
        let (master, database) = match target.path.split_once('/') {
            Some((master, database)) if through_sentinels => (Some(master), database),
            None if through_sentinels => (Some(target.path.as_str()), ""),
            _ => (None, target.path.as_str()),
        };
        if master == Some("") {
            return Err(wrong("the URL of a Redis behind Sentinels names its master".to_owned()));
        }
        if master.is_none() && target.hosts.len() > 1 {
            return Err(wrong("a Redis has one host; several are those of its Sentinels".to_owned()));
        }
        let number = if database.is_empty() { Some(0) } else { database.parse().ok().filter(|number| *number >= 0) };
        let number =
            number.ok_or_else(|| SinkError::Config(format!("`{database}` is no number of a Redis database")))?;
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

    /// Sets the password of the Sentinels themselves.
    ///
    /// # Errors
    /// [`SinkError::Config`] when there are no Sentinels.
    pub fn with_sentinel_password(mut self, password: Option<SecretString>) -> Result<RedisAccess, SinkError> {
        if password.is_some() && self.master.is_none() {
            let words = "`sentinel_password` is for a Redis behind Sentinels: its URL begins with `redis+sentinel`";
            return Err(SinkError::Config(words.to_owned()));
        }
        self.sentinel_password = password;
        Ok(self)
    }

    /// The URL without user and password, for people to read.
    pub fn address(&self) -> String {
        self.target.address()
    }

    /// Connects and logs in. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// In words, when that did not succeed within `limit`.
    pub async fn connect(
        &self,
        socket: Socket,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Commands, String> {
        let mut failed = Vec::new();
        for door in &self.target.hosts {
            match self.in_time(limit, self.connect_by(door, socket, config.clone())).await {
                Ok(commands) => return Ok(commands),
                Err(words) => failed.push(self.named(door, words)),
            }
        }
        Err(failed.join("; "))
    }

    /// Opens a connection for subscriptions and logs in. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// In words, when that did not succeed within `limit`.
    pub async fn subscribe(&self, socket: Socket, limit: Duration) -> Result<PubSub, String> {
        let mut failed = Vec::new();
        for door in &self.target.hosts {
            let subscribing = async {
                let stream = self.stream_by(door, socket).await?;
                PubSub::new(&self.log_in(), stream).await.map_err(|error| words(&error))
            };
            match self.in_time(limit, subscribing).await {
                Ok(subscription) => return Ok(subscription),
                Err(words) => failed.push(self.named(door, words)),
            }
        }
        Err(failed.join("; "))
    }

    /// Each Sentinel has its part of the time, so that one that is silent does not keep us from the next.
    async fn in_time<T>(&self, limit: Duration, attempt: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let limit = limit / u32::try_from(self.target.hosts.len()).unwrap_or(u32::MAX).max(1);
        // A server without TLS waits for the rest of what it takes for a command.
        let hint = if self.connector.is_some() { ", if it speaks TLS there at all" } else { "" };
        timeout(limit, attempt).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}{hint}")))
    }

    fn named(&self, door: &(String, u16), words: String) -> String {
        if self.master.is_none() { words } else { format!("by the sentinel `{}`: {words}", address(&door.0, door.1)) }
    }

    async fn connect_by(
        &self,
        door: &(String, u16),
        socket: Socket,
        config: AsyncConnectionConfig,
    ) -> Result<Commands, String> {
        let stream = self.stream_by(door, socket).await?;
        let made = MultiplexedConnection::new_with_config(&self.log_in(), stream, config).await;
        let (connection, driver) = made.map_err(|error| words(&error))?;
        let commands = Commands { connection, driver: tokio::spawn(driver) };
        if self.master.is_some() {
            // Sentinels may be the last to know of a failover.
            let role = redis::cmd("ROLE").query_async::<Value>(&mut commands.connection.clone()).await;
            if let Ok(Value::Array(role)) = role
                && !matches!(role.first(), Some(Value::BulkString(role)) if role == b"master")
            {
                return Err("the server that it names is no master".to_owned());
            }
        }
        Ok(commands)
    }

    /// A socket to the server that this host is, or that this Sentinel names.
    async fn stream_by(&self, door: &(String, u16), socket: Socket) -> Result<Box<dyn Stream>, String> {
        let Some(master) = &self.master else { return self.stream(door, socket).await };
        let server = self.ask_sentinel(door, socket, master).await?;
        let stream = self.stream(&server, socket).await;
        stream.map_err(|words| format!("the master `{}`: {words}", address(&server.0, server.1)))
    }

    async fn ask_sentinel(
        &self,
        sentinel: &(String, u16),
        socket: Socket,
        master: &str,
    ) -> Result<(String, u16), String> {
        let stream = self.stream(sentinel, socket).await?;
        let mut log_in = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &self.sentinel_password {
            log_in = log_in.set_password(password.expose_secret());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let made = MultiplexedConnection::new_with_config(&log_in, stream, config).await;
        let (connection, driver) = made.map_err(|error| words(&error))?;
        let commands = Commands { connection, driver: tokio::spawn(driver) };
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(master);
        let answer = ask.query_async::<Option<(String, u16)>>(&mut commands.connection.clone()).await;
        answer.map_err(|error| words(&error))?.ok_or_else(|| format!("it knows no master `{master}`"))
    }

    async fn stream(&self, server: &(String, u16), socket: Socket) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        socket.prepare(&stream).map_err(|error| error.to_string())?;
        let Some(connector) = &self.connector else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(server.0.clone());
        let name = name.map_err(|_| format!("`{}` is no name that a certificate could have", server.0))?;
        let connecting = connector.connect(name, stream).await;
        Ok(Box::new(connecting.map_err(|error| self.tls.explain(format!("TLS: {error}")))?))
    }

    fn log_in(&self) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default().set_db(self.database);
        if let Some(user) = &self.target.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.target.password {
            info = info.set_password(password.expose_secret());
        }
        info
    }
}

impl std::fmt::Debug for RedisAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisAccess").field("address", &self.address()).field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Socket {
    /// Small writes leave at once, and a dead peer is noticed.
    fn prepare(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let keepalive = TcpKeepalive::new().with_time(self.probe_after).with_interval(self.probe_every).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.acknowledged_in))?;
        if self.discard_unsent { socket.set_linger(Some(Duration::ZERO)) } else { Ok(()) }
    }
}

fn words(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => format!("the log-in was refused, user or password are wrong: {error}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<RedisAccess, String> {
        RedisAccess::parse(url, &Tls::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_redis_is_named_straight_or_by_its_sentinels() {
        let straight = parse("rediss://me:hunter2@h/3").expect("a good URL");
        assert_eq!((straight.master.as_deref(), straight.database), (None, 3));
        assert!(straight.connector.is_some());
        let sentinels = parse("redis+sentinel://me:hunter2@a,b:7/main/2").expect("a good URL");
        assert_eq!((sentinels.master.as_deref(), sentinels.database), (Some("main"), 2));
        assert_eq!(sentinels.target.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 7)]);
        assert_eq!(sentinels.address(), "redis+sentinel://a:26379,b:7/main/2");
        assert!(!format!("{sentinels:?}{straight:?}").contains("hunter2"));
        let password = Some(SecretString::from("hunter3"));
        assert!(straight.with_sentinel_password(password.clone()).is_err());
        let sentinels = sentinels.with_sentinel_password(password).expect("Sentinels");
        assert!(!format!("{sentinels:?}").contains("hunter3"));
    }

    #[test]
    fn what_cannot_be_used_is_told_without_quoting_it() {
        for (url, words) in [
            ("redis://:hunter2@a,b", "one host"),
            ("redis+sentinel://:hunter2@a,b", "names its master"),
            ("redis+sentinel://:hunter2@a/", "names its master"),
            ("redis+sentinel://:hunter2@a/m/x", "`x` is no number"),
            ("redis://:hunter2@a/-1", "`-1` is no number"),
            ("redis://:hunter2@a?db=1", "no parameters"),
            ("hunter2", "a Redis is named by a URL"),
        ] {
            let refused = parse(url).expect_err(url);
            assert!(refused.contains(words) && !refused.contains("hunter2"), "{url}: {refused}");
        }
    }
}
