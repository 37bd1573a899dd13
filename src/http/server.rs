//! Accepts connections and serves a router on them, over TLS or not, within limits of time and number, until it is told
//! to stop.
//!
//! A stop lets requests under way end; what has not ended by the deadline is cut off.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::tls::ServerTls;

/// How long to wait after an accept that failed, most likely because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What connections may take at most.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// For the head of a request to come, and for a TLS handshake; also how long a connection may be idle.
    pub header_timeout: Duration,
    /// For a client to take any of what is written to it.
    pub write_timeout: Duration,
    /// At once; more wait to be accepted.
    pub connections: usize,
}

/// Serves `router` on what `listener` accepts, over TLS where there is a certificate to do so with, until `stop`; then
/// waits for requests under way, at most `deadline`. Returns whether all of them ended by themselves.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
    deadline: Duration,
) -> bool {
    let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
    let room = Arc::new(Semaphore::new(limits.connections));
    let acceptor = tls.as_ref().map(ServerTls::acceptor);
    let _following = tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.follow())));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let (acceptor, router, stop, cut) = (acceptor.clone(), router.clone(), stop.clone(), cut.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = connection(stream, acceptor, router, limits, stop) => {}
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    let ended = timeout(deadline, connections.wait()).await.is_ok();
    cut.cancel();
    connections.wait().await;
    ended
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

/// Shakes hands where TLS is spoken, and serves what follows.
async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    // An answer would be held for ever for a client that takes nothing.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let stream = Box::pin(stream);
    let Some(acceptor) = acceptor else { return requests(stream, router, limits, stop).await };
    let shaken = tokio::select! {
        // Nothing was asked yet.
        () = stop.cancelled() => return,
        shaken = timeout(limits.header_timeout, acceptor.accept(stream)) => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => requests(stream, router, limits, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Bytes that a connection may hold read and not yet taken; a head is no longer. It is kept as long as the connection.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// Serves the requests of a connection, one after the other.
async fn requests<S>(stream: S, router: Router, limits: ServerLimits, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(io, TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // Broken connections and slow clients are everyday things, and theirs to report.
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
