//! A connection to one Redis: its socket, and the handle for commands.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::away;
use crate::away::Away;

/// Keep-alive settings of a socket.
#[derive(Clone, Copy, Debug)]
pub struct RedisSocket {
    /// A silent peer is probed after this time, three times.
    pub probe_after: Duration,
    /// The pause between two probes.
    pub probe_every: Duration,
    /// How long the peer may take to acknowledge sent data. Linux only.
    pub acknowledged_in: Duration,
    /// Whether data that is unsent when the connection is dropped is discarded. Otherwise the system sends it later.
    pub discard_unsent: bool,
}

impl RedisSocket {
    /// Sends small writes at once, and detects a dead peer.
    pub(super) fn prepare(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let keepalive = TcpKeepalive::new().with_time(self.probe_after).with_interval(self.probe_every).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.acknowledged_in))?;
        if self.discard_unsent { socket.set_linger(Some(Duration::ZERO)) } else { Ok(()) }
    }
}

/// A connection for commands. Dropping it ends the task that drives it.
pub struct Commands {
    /// The handle for any number of concurrent callers.
    pub connection: MultiplexedConnection,
    /// The server that it leads to.
    server: (String, u16),
    driver: JoinHandle<()>,
    /// Set by `end`. The driver notices the end only when it is next polled; until then the connection must not look
    /// alive.
    ended: AtomicBool,
}

impl Commands {
    /// Logs in, and drives the connection from now on.
    pub(super) async fn log_in(
        server: &(String, u16),
        login: &RedisConnectionInfo,
        stream: Box<dyn Stream>,
        config: AsyncConnectionConfig,
    ) -> Result<Commands, Away> {
        let made = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = made.map_err(|error| away(&error))?;
        let driver = tokio::spawn(driver);
        Ok(Commands { connection, server: server.clone(), driver, ended: AtomicBool::new(false) })
    }

    /// Name or address of the server that it leads to, and its port.
    pub fn server(&self) -> &(String, u16) {
        &self.server
    }

    /// Whether the connection seems usable.
    pub fn alive(&self) -> bool {
        !self.ended.load(Ordering::SeqCst) && !self.driver.is_finished()
    }

    /// Ends the connection at once, for all its users.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.driver.abort();
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
