//! Makes a connection: host after host, TLS, user, virtual host.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, ConnectionProperties};
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::frames::MAX_FRAME_BYTES;
use super::refusal::Refusal;
use super::socket::{Socket, Transport, runtime};
use crate::target::address;
use crate::{Away, Cause, Password, SinkError, Tls};

/// The highest channel number to negotiate, and the minimum number of channels.
const MAX_CHANNEL: u16 = 2047;
const MIN_CHANNELS: u16 = 4;

/// Addresses and login.
pub(super) struct Login {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: String,
    pub(super) password: Password,
    pub(super) vhost: String,
    pub(super) tls: Option<TrustedCertificates>,
    /// Heartbeat interval to negotiate, in seconds; each side sends two in this time.
    pub(super) heartbeat: u16,
}

/// A connection that is logged in, and its socket.
pub(super) struct LoggedIn {
    pub(super) lapin: lapin::Connection,
    pub(super) socket: Socket,
}

impl Login {
    /// Connects to one of the hosts, in order, and logs in.
    pub(super) async fn connect(&self, limit: Duration) -> Result<LoggedIn, Away> {
        let until = Instant::now() + limit;
        let mut all = Vec::new();
        for (tried, (host, port)) in self.hosts.iter().enumerate() {
            let left = u32::try_from(self.hosts.len() - tried).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(Instant::now()) / left;
            let away = match timeout(share, self.connect_to(host, *port)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(away)) => away,
                Err(_) => format!("no answer within {share:.1?}").into(),
            };
            all.push(if self.hosts.len() == 1 {
                away
            } else {
                away.with_prefix(format!("{}: ", address(host, *port)))
            });
        }
        Err(Away::of_all(all))
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<LoggedIn, Away> {
        let socket = Socket::new(self.transport(host, port).await?);
        let for_lapin = socket.for_lapin();
        let connect = async move |_, _| Ok(AsyncTcpStream::Plain(for_lapin.clone()));
        let properties = ConnectionProperties::default().with_client_property("product".into(), "punctual".into());
        let connected = lapin::Connection::connector(self.uri(host, port)?, runtime(), connect, properties).await;
        let lapin = connected.map_err(|error| match Refusal::of(&error) {
            Some(refusal) => Away::new(refusal.of_log_in(), refusal.to_string()),
            None => Away::new(Cause::Unreachable, error.to_string()),
        })?;
        let channels = lapin.configuration().channel_max();
        if channels < MIN_CHANNELS {
            return Err(format!("the server allows {channels} channels, less than {MIN_CHANNELS}").into());
        }
        Ok(LoggedIn { lapin, socket })
    }

    async fn transport(&self, host: &str, port: u16) -> Result<Box<dyn Transport>, Away> {
        let stream = TcpStream::connect((host, port)).await.map_err(detail)?;
        stream.set_nodelay(true).map_err(detail)?;
        // When the connection ends, the system drops unsent bytes, because their messages were given up.
        stream.set_zero_linger().map_err(detail)?;
        let Some(trust) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(detail)?;
        let connecting = trust.connector.connect(name, stream);
        Ok(Box::new(connecting.await.map_err(|error| trust.tls.away(&error))?))
    }

    fn uri(&self, host: &str, port: u16) -> Result<AMQPUri, Away> {
        let password = self.password.for_login()?.expose_secret().to_owned();
        Ok(AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo { username: self.user.clone(), password },
                host: host.to_owned(),
                port,
            },
            vhost: self.vhost.clone(),
            query: AMQPQueryString {
                frame_max: Some(MAX_FRAME_BYTES),
                channel_max: Some(MAX_CHANNEL),
                heartbeat: Some(self.heartbeat),
                ..AMQPQueryString::default()
            },
        })
    }
}

/// The trusted certificates, ready for the handshake.
pub(super) struct TrustedCertificates {
    tls: Tls,
    connector: TlsConnector,
}

impl TrustedCertificates {
    /// # Errors
    /// [`SinkError::Config`] if there are no trusted certificates.
    pub(super) fn new(tls: &Tls) -> Result<TrustedCertificates, SinkError> {
        let connector = TlsConnector::from(Arc::new(tls.client_config()?));
        Ok(TrustedCertificates { tls: tls.clone(), connector })
    }
}

fn detail(error: impl Display) -> String {
    error.to_string()
}
