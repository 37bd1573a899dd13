//! Making a connection: host after host, TLS, user, virtual host.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::frames::{self, Method, Said};
use crate::target::address;
use crate::{Away, SinkError, Tls};

/// Where to log in, and as whom.
pub(super) struct Login {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: String,
    pub(super) password: SecretString,
    pub(super) vhost: String,
    pub(super) tls: Option<Trust>,
    /// How often each side says that it lives, in seconds: twice in this time.
    pub(super) heartbeat: u16,
}

/// What carries a connection.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection that is logged in.
pub(super) struct Session {
    pub(super) wire: Box<dyn Wire>,
    /// What came and was not read yet.
    pub(super) inbox: BytesMut,
    /// The longest frame in either direction, in bytes.
    pub(super) frame: usize,
    /// The highest number of a channel.
    pub(super) channels: u16,
    /// How often each side says that it lives, in seconds: twice in this time.
    pub(super) heartbeat: u16,
}

/// The longest frame that we want: a message of the usual size fits into one, and a long one leaves room for others.
const FRAME: u32 = 128 * 1024;

/// The shortest that a server may want: <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>, `frame-min-size`.
const LEAST_FRAME: u32 = 4096;

/// The highest number of a channel that we want, and the least that we need.
const CHANNELS: u16 = 2047;
const LEAST_CHANNELS: u16 = 4;

/// What is read at once, in bytes.
const READ: usize = 64 * 1024;

impl Login {
    /// Connects to one of the hosts, in their order, and logs in.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Session, Away> {
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
            all.push(if self.hosts.len() == 1 { away } else { away.behind(format!("{}: ", address(host, *port))) });
        }
        Err(Away::of_all(all))
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<Session, Away> {
        let stream = TcpStream::connect((host, port)).await.map_err(words)?;
        stream.set_nodelay(true).map_err(words)?;
        // What the system has not sent when the connection ends is not sent any more: it was given up.
        stream.set_zero_linger().map_err(words)?;
        let wire: Box<dyn Wire> = match &self.tls {
            None => Box::new(stream),
            Some(trust) => {
                let name = ServerName::try_from(host.to_owned()).map_err(words)?;
                let connecting = trust.connector.connect(name, stream);
                Box::new(connecting.await.map_err(|error| trust.tls.away(&error))?)
            }
        };
        let most = FRAME as usize;
        let mut session = Session {
            wire,
            inbox: BytesMut::with_capacity(READ),
            frame: most,
            channels: CHANNELS,
            heartbeat: self.heartbeat,
        };
        session.wire.write_all(frames::PROTOCOL).await.map_err(words)?;
        self.log_in(&mut session).await?;
        Ok(session)
    }

    async fn log_in(&self, session: &mut Session) -> Result<(), Away> {
        loop {
            match session.hear().await? {
                Said::Start => {
                    let start = Method::StartOk { user: &self.user, password: self.password.expose_secret() };
                    session.say(&[start]).await?;
                }
                Said::Tune { channels, frame, heartbeat } => {
                    // 0 is no limit; or that the server wants no heartbeats, but it sends them to whom that does.
                    let frame = if frame == 0 { FRAME } else { frame.min(FRAME) };
                    session.frame = frame as usize;
                    session.channels = if channels == 0 { CHANNELS } else { channels.min(CHANNELS) };
                    session.heartbeat = if heartbeat == 0 { self.heartbeat } else { heartbeat.min(self.heartbeat) };
                    if frame < LEAST_FRAME {
                        return Err(
                            format!("the server allows frames of {frame} bytes, less than {LEAST_FRAME}").into()
                        );
                    }
                    if session.channels < LEAST_CHANNELS {
                        return Err(format!("the server allows {channels} channels, less than {LEAST_CHANNELS}").into());
                    }
                    let (channels, heartbeat) = (session.channels, session.heartbeat);
                    let tune = Method::TuneOk { channels, frame, heartbeat };
                    session.say(&[tune, Method::Open { vhost: &self.vhost }]).await?;
                }
                Said::Opened => return Ok(()),
                Said::Closed(refusal) => return Err(Away::new(refusal.of_log_in(), refusal.to_string())),
                _ => {}
            }
        }
    }
}

impl Session {
    async fn say(&mut self, methods: &[Method<'_>]) -> Result<(), String> {
        let mut bytes = Vec::new();
        methods.iter().for_each(|method| frames::write_method(&mut bytes, 0, method));
        self.wire.write_all(&bytes).await.map_err(words)?;
        self.wire.flush().await.map_err(words)
    }

    async fn hear(&mut self) -> Result<Said, String> {
        loop {
            if let Some((_, said, length)) = frames::read(&self.inbox, self.frame)? {
                self.inbox.advance(length);
                return Ok(said);
            }
            if self.wire.read_buf(&mut self.inbox).await.map_err(words)? == 0 {
                return Err("the server closed the connection during log-in".to_owned());
            }
        }
    }
}

/// Whom to trust, ready for the handshake.
pub(super) struct Trust {
    tls: Tls,
    connector: TlsConnector,
}

impl Trust {
    /// # Errors
    /// [`SinkError::Config`] when nobody could be trusted.
    pub(super) fn new(tls: &Tls) -> Result<Trust, SinkError> {
        let connector = TlsConnector::from(Arc::new(tls.client_config()?));
        Ok(Trust { tls: tls.clone(), connector })
    }
}

fn words(error: impl Display) -> String {
    error.to_string()
}
