//! Calls a running instance: HTTP/1.1, with or without TLS, one connection per call, no proxy, no redirects.
//!
//! A body is sent while the answer arrives, because a batch is answered while it is sent. No message shows a token, or
//! a possible password in a URL.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::target::{self, Address, ApiTarget};
use super::{Failure, tell};

/// Timeout of a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of the head of an answer, counted from the last part of the body that was accepted. Longer than an
/// instance's timeout for its timeline.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the rest of an answer.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a long body waits for the answer to begin. A refused client need not send it, and one that sends it
/// nevertheless might miss the refusal. A proxy may want the body first.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A larger body is long: the default limit of an instance.
const LONG_BODY_BYTES: usize = 1 << 20;

/// Maximum size of an answer, in bytes; far more than a task.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The body of a request.
pub(super) type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

/// An answer of the API.
pub(super) struct ApiAnswer {
    pub(super) status: u16,
    pub(super) text: String,
}

/// A client for one instance.
pub(super) struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    ca_file: Option<PathBuf>,
    token: Option<HeaderValue>,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(super) struct NoAnswer {
    detail: String,
    hint: Option<String>,
}

impl Client {
    /// Reads the target; does not connect.
    pub(super) fn new(target: &ApiTarget) -> Result<Client, Failure> {
        let address = target.address()?;
        let tls = if address.over_tls { Some(target.connector()?) } else { None };
        let token = target.token()?;
        if token.is_some() && !address.over_tls && !address.is_here() {
            tell(&format!("warning: the token is sent to `{}` without encryption; use `https://`\n", address.shown));
        }
        Ok(Client { address, tls, ca_file: target.ca_file().map(Into::into), token })
    }

    /// The URL without a possible user and password.
    pub(super) fn shown(&self) -> &str {
        &self.address.shown
    }

    /// Sends a request and returns its answer as soon as it begins.
    ///
    /// # Errors
    /// If no answer arrives in time.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: Outgoing,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address.base))
            .header(HOST, &self.address.authority)
            .header(USER_AGENT, concat!("punctual/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&taken);
        let body = body.map_frame(move |frame| {
            counted.fetch_add(1, Ordering::Relaxed);
            frame
        });
        let request = request.body(body).map_err(|error| self.no_answer(&error))?;
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let stream = connected.map_err(|_| self.no_answer(&late("no connection", CONNECT_TIMEOUT)))??;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.no_answer(&error))?;
        // Ends with the answer; its errors appear where the answer is read.
        tokio::spawn(async move { connection.await.map_err(|error| tracing::debug!(%error, "a connection ended")) });
        match while_moving(sender.send_request(request), HEAD_TIMEOUT, &taken).await {
            Some(answered) => answered.map_err(|error| self.no_answer(&error)),
            None => Err(self.no_answer(&late("no answer", HEAD_TIMEOUT))),
        }
    }

    /// Sends a request with these headers and returns the whole answer.
    ///
    /// # Errors
    /// If no answer arrives in time.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: Option<String>,
    ) -> Result<ApiAnswer, NoAnswer> {
        let Some(body) = body else {
            let nothing = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
            return self.whole(self.send(method, path, headers, nothing).await?).await;
        };
        let length = body.len();
        // Keeps the sender until the whole answer has arrived, so that nothing more is sent in the meantime.
        let (_begun, begins) = watch::channel(length <= LONG_BODY_BYTES);
        let body = courteous(begins, stream::iter([Ok(Bytes::from(body))]));
        let length = length.to_string();
        let headers = [headers, &[(CONTENT_TYPE, "application/json"), (CONTENT_LENGTH, &length)]].concat();
        self.whole(self.send(method, path, &headers, body).await?).await
    }

    /// Reads the rest of an answer.
    pub(super) async fn whole(&self, response: Response<Incoming>) -> Result<ApiAnswer, NoAnswer> {
        let status = response.status().as_u16();
        let read =
            timeout(BODY_TIMEOUT, http_body_util::Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect()).await;
        let body = match read {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return Err(self.no_answer(error.as_ref())),
            Err(_) => return Err(self.no_answer(&late("the answer is not whole", BODY_TIMEOUT))),
        };
        // An answer that is not text does not come from an instance; treat it as empty.
        Ok(ApiAnswer { status, text: String::from_utf8(body.into()).unwrap_or_default() })
    }

    /// The failure for an answer with an error status; `detail` is the instance's text.
    pub(super) fn refused(&self, status: u16, doing: &str, detail: &str) -> Failure {
        let failure = Failure::failed(match detail {
            "" => anyhow!("{doing}: `{}` answered {status}", self.address.shown),
            detail => anyhow!("{doing}: {detail}"),
        });
        match status {
            401 if self.token.is_none() => failure.hint(target::how_to_give_a_token()),
            401 => {
                failure.hint(format!("`{}` has other tokens: {}", self.address.shown, target::how_to_give_a_token()))
            }
            403 => failure.hint(
                "the section of this token in the instance's configuration says what it may: `scope`, `prefix`, `lanes` and \
                 `destinations`",
            ),
            412 => failure.hint("`punctual task get` shows the task as it is now, with its `etag`"),
            409 => failure.hint("its occurrence ends in a moment: try again"),
            503 => failure.hint("try again; a request that changes something takes no effect after this answer"),
            _ => failure,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Duplex>, NoAnswer> {
        let stream = TcpStream::connect((self.address.host.as_str(), self.address.port)).await;
        let stream = stream.map_err(|error| NoAnswer {
            hint: Some(
                "start an instance with `punctual serve`, or name one with `--url` or `PUNCTUAL_URL`".to_owned(),
            ),
            ..self.no_answer(&error)
        })?;
        stream.set_nodelay(true).map_err(|error| self.no_answer(&error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = match self.address.host.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(self.address.host.clone()).map_err(|error| self.no_answer(&error))?,
        };
        let stream = tls.connect(name, stream).await.map_err(|error| self.no_answer(&error))?;
        Ok(Box::new(stream))
    }

    /// The meaning of an error, with a hint.
    pub(super) fn no_answer(&self, error: &(dyn Error + 'static)) -> NoAnswer {
        let mut detail = error.to_string();
        let (mut hint, mut next) = (None, Some(error));
        while let Some(cause) = next {
            next = cause.source();
            let text = cause.to_string();
            if !detail.contains(&text) {
                detail.push_str(&format!(": {text}"));
            }
            let io_cause = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let tls = io_cause.and_then(|error| error.downcast_ref()).or(cause.downcast_ref::<rustls::Error>());
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
        NoAnswer { detail, hint }
    }
}

impl NoAnswer {
    /// The failure of an operation.
    pub(super) fn while_doing(self, doing: &str, client: &Client) -> Failure {
        let failure = Failure::failed(anyhow!("{doing} at `{}`: {}", client.shown(), self.detail));
        match self.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// A stream to an instance.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A body that waits a moment for the answer to begin.
pub(super) fn courteous(
    mut begun: watch::Receiver<bool>,
    parts: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Outgoing {
    let parts = stream::once(async move {
        timeout(CONTINUE_TIMEOUT, begun.wait_for(|&begun| begun)).await.ok();
        parts
    });
    StreamBody::new(parts.flatten().map_ok(Frame::data)).boxed_unsync()
}

/// Waits for an answer. Gives up when `taken` has not changed for `limit`, but may notice that up to `limit` later.
async fn while_moving<T>(answer: impl Future<Output = T>, limit: Duration, taken: &AtomicU64) -> Option<T> {
    let mut answer = pin!(answer);
    loop {
        let before = taken.load(Ordering::Relaxed);
        match timeout(limit, &mut answer).await {
            Ok(answer) => return Some(answer),
            Err(_) if taken.load(Ordering::Relaxed) > before => {}
            Err(_) => return None,
        }
    }
}

fn late(what: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_client_waits_for_an_answer_while_the_server_still_reads_the_body() {
        let (second, taken) = (Duration::from_secs(1), AtomicU64::new(0));
        let answer = async {
            for _ in 0..100 {
                tokio::time::sleep(second).await;
                taken.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(while_moving(answer, second * 10, &taken).await, Some(()));
        assert_eq!(while_moving(tokio::time::sleep(second * 11), second * 10, &taken).await, None);
    }
}
