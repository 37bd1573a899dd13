//! Calls a running instance: HTTP/1.1, plain or over TLS, a connection for each call, no proxy, nothing followed.
//!
//! Bodies go out while answers come in, since a batch is answered while it is sent. No message shows a token, or what may
//! be a password in a URL.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use punctual_sinks::Tls;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Failure;
use crate::config::SecretUrl;

/// The variable that a token is given by: as an argument every user of the machine would see it.
const TOKEN: &str = "PUNCTUAL_TOKEN";

/// For a connection, its TLS handshake included.
const CONNECT: Duration = Duration::from_secs(10);

/// For the head of an answer; longer than an instance lets its timeline take.
pub(super) const HEAD: Duration = Duration::from_secs(30);

/// For the rest of an answer to come.
const BODY: Duration = Duration::from_secs(30);

/// Bytes of an answer at most: far more than a task is.
const LONGEST: usize = 64 << 20;

/// Which instance, and as whom.
#[derive(Args)]
pub(super) struct Target {
    /// The instance's API
    #[arg(
        long,
        value_name = "URL",
        env = "PUNCTUAL_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7171"
    )]
    url: String,
    /// File that holds a token of the instance; without it the variable PUNCTUAL_TOKEN may hold one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities to trust over https, in place of the system's
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_CA_FILE", hide_env_values = true)]
    ca_file: Option<PathBuf>,
}

/// A body that is sent.
pub(super) type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

/// An answer of the API.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
}

/// Somebody who calls one instance.
pub(super) struct Client {
    shown: String,
    host: String,
    port: u16,
    authority: String,
    /// What stands before `/v1`.
    base: String,
    tls: Option<TlsConnector>,
    ca_file: Option<PathBuf>,
    token: Option<HeaderValue>,
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub(super) struct NoAnswer {
    words: String,
    hint: Option<String>,
}

impl Client {
    /// Reads what is said of the instance; calls nobody.
    pub(super) fn new(target: &Target) -> Result<Client, Failure> {
        let shown = SecretUrl::new(target.url.clone()).to_string();
        let wrong = |words: &str| Failure::usage(anyhow!("cannot call an instance at `{shown}`: {words}"));
        let whole = "a URL is expected such as `http://127.0.0.1:7171`";
        // The words of the parser may quote what is a password.
        let uri: Uri = target.url.parse().map_err(|_| wrong(whole))?;
        let over_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong(whole)),
        };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err(wrong("it takes a token, no user or password").hint(how_to_give_a_token()));
        }
        if uri.query().is_some() {
            return Err(wrong("it takes no query"));
        }
        let tls = over_tls.then(|| connector(target)).transpose()?;
        Ok(Client {
            host: uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if over_tls { 443 } else { 80 }),
            base: uri.path().trim_end_matches('/').to_owned(),
            authority,
            tls,
            ca_file: target.ca_file.clone(),
            token: token(target)?,
            shown,
        })
    }

    /// The URL without what may be a user and password.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Sends one request and returns its answer when that begins.
    ///
    /// # Errors
    /// When none comes within its time.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Outgoing,
        content_type: &'static str,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("punctual/", env!("CARGO_PKG_VERSION")));
        if !content_type.is_empty() {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(body).map_err(|error| self.no_answer(&error))?;
        let connected = timeout(CONNECT, self.connect()).await;
        let stream = connected.map_err(|_| self.no_answer(&late("no connection", CONNECT)))??;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.no_answer(&error))?;
        // Ends with the answer; what goes wrong with it is told where the answer is read.
        tokio::spawn(async move { connection.await.map_err(|error| tracing::debug!(%error, "a connection ended")) });
        match timeout(HEAD, sender.send_request(request)).await {
            Ok(answered) => answered.map_err(|error| self.no_answer(&error)),
            Err(_) => Err(self.no_answer(&late("no answer", HEAD))),
        }
    }

    /// Sends one request and returns its whole answer.
    ///
    /// # Errors
    /// When none comes within its time.
    pub(super) async fn call(&self, method: Method, path: &str, body: Option<String>) -> Result<Answer, NoAnswer> {
        let content_type = if body.is_some() { "application/json" } else { "" };
        let body = http_body_util::Full::from(body.unwrap_or_default()).map_err(io::Error::other).boxed_unsync();
        self.whole(self.send(method, path, body, content_type).await?).await
    }

    /// All of an answer that has begun.
    pub(super) async fn whole(&self, response: Response<Incoming>) -> Result<Answer, NoAnswer> {
        let status = response.status().as_u16();
        let read = timeout(BODY, http_body_util::Limited::new(response.into_body(), LONGEST).collect()).await;
        let body = match read {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return Err(self.no_answer(error.as_ref())),
            Err(_) => return Err(self.no_answer(&late("the answer is not whole", BODY))),
        };
        Ok(Answer { status, text: String::from_utf8_lossy(&body).into_owned() })
    }

    /// What an answer that is no success says, as a failure; `words` are the instance's.
    pub(super) fn refused(&self, status: u16, doing: &str, words: &str) -> Failure {
        let failure = Failure::failed(match words {
            "" => anyhow!("{doing}: `{}` answered {status}", self.shown),
            words => anyhow!("{doing}: {words}"),
        });
        match status {
            401 if self.token.is_none() => failure.hint(how_to_give_a_token()),
            401 => failure.hint(format!("`{}` has other tokens: {}", self.shown, how_to_give_a_token())),
            403 => {
                failure.hint("`scope` in the section of this token in the instance's configuration says what it may")
            }
            409 => failure.hint("its occurrence ends in a moment: try again"),
            503 => failure.hint("nothing takes effect after this answer: try again"),
            _ => failure,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, NoAnswer> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| NoAnswer {
            hint: Some(
                "start an instance with `punctual serve`, or name one with `--url` or `PUNCTUAL_URL`".to_owned(),
            ),
            ..self.no_answer(&error)
        })?;
        stream.set_nodelay(true).map_err(|error| self.no_answer(&error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = match self.host.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(self.host.clone()).map_err(|error| self.no_answer(&error))?,
        };
        let stream = tls.connect(name, stream).await.map_err(|error| self.no_answer(&error))?;
        Ok(Box::new(stream))
    }

    /// What an error means, and what to do about it.
    pub(super) fn no_answer(&self, error: &(dyn Error + 'static)) -> NoAnswer {
        let mut words = error.to_string();
        let (mut hint, mut next) = (None, Some(error));
        while let Some(cause) = next {
            next = cause.source();
            let said = cause.to_string();
            if !words.contains(&said) {
                words.push_str(&format!(": {said}"));
            }
            let spoken = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let tls = spoken.and_then(|error| error.downcast_ref()).or(cause.downcast_ref::<rustls::Error>());
            let http = cause.downcast_ref::<hyper::Error>();
            hint = match tls {
                Some(rustls::Error::InvalidCertificate(_)) => Some(match &self.ca_file {
                    Some(file) => format!("trusted are the authorities in `{}` alone", file.display()),
                    None => {
                        "trusted are the authorities of the system; `--ca-file` or `PUNCTUAL_CA_FILE` names a file \
                             with others"
                            .to_owned()
                    }
                }),
                Some(rustls::Error::InvalidMessage(_)) => {
                    Some("it speaks no TLS, maybe plain HTTP: try `http://` in place of `https://`".to_owned())
                }
                _ if http.is_some_and(hyper::Error::is_parse) && self.tls.is_none() => {
                    Some("it speaks no plain HTTP, maybe TLS: try `https://` in place of `http://`".to_owned())
                }
                _ => hint,
            };
        }
        NoAnswer { words, hint }
    }
}

impl NoAnswer {
    /// As a failure of what was being done.
    pub(super) fn while_doing(self, doing: &str, client: &Client) -> Failure {
        let failure = Failure::failed(anyhow!("{doing} at `{}`: {}", client.shown(), self.words));
        match self.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// What bytes go over.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn late(what: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {limit:?}"))
}

fn how_to_give_a_token() -> String {
    format!("the variable `{TOKEN}`, or a file that `--token-file` names, holds a token")
}

fn connector(target: &Target) -> Result<TlsConnector, Failure> {
    let tls = target.ca_file.as_deref().map_or_else(|| Ok(Tls::default()), Tls::from_ca_file);
    let failed = |error: &dyn Display| {
        Failure::usage(anyhow!("{error}")).hint("`--ca-file` or `PUNCTUAL_CA_FILE` names a PEM file with authorities")
    };
    let mut config = tls.and_then(|tls| tls.client_config()).map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The header that carries the token.
fn token(target: &Target) -> Result<Option<HeaderValue>, Failure> {
    let (place, token) = match &target.token_file {
        Some(file) => {
            let read = std::fs::read_to_string(file)
                .map_err(|error| Failure::usage(anyhow!("cannot read the token in `{}`: {error}", file.display())))?;
            (format!("`{}`", file.display()), read)
        }
        None => match std::env::var(TOKEN) {
            Ok(token) => (format!("`{TOKEN}`"), token),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => return Err(no_token(&format!("`{TOKEN}`"))),
        },
    };
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(no_token(&place));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| no_token(&place))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

fn no_token(place: &str) -> Failure {
    Failure::usage(anyhow!("{place} holds no token: one word of visible ASCII characters is expected"))
}
