//! Accepts connections and serves a router on them, with or without TLS, within limits of time and number, until it is
//! stopped.
//!
//! A stop lets current requests end. A request that has not arrived completely two seconds after the stop is aborted.
//! So is one that is not answered by the deadline.

pub(in crate::http) mod blocking;
pub(in crate::http) mod body;
pub(in crate::http) mod body_budget;
mod connections;
pub mod tls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::http::server::connections::{ClientConnection, ClientConnections};
use crate::http::server::tls::ServerTls;

/// The pause after a failed accept; usually no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a full server looks for a connection to close for the next one.
const CLOSE_IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// How long a stop waits for requests to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// How long the head of a request and a TLS handshake may take; also how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long a client may accept no data of an answer.
    pub write_timeout: Duration,
    /// Maximum number of connections. For another one, the one that has been idle longest is closed; without any idle
    /// one, it waits.
    pub connections: usize,
}

/// Serves `router` on the connections of `listener` until `stop`, over TLS if there is a certificate. Then waits for
/// current requests, at most `deadline`. Returns whether all of them ended in time.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
    deadline: Duration,
) -> bool {
    let (tasks, cut) = (TaskTracker::new(), CancellationToken::new());
    let (slots, connections) = (Arc::new(Semaphore::new(limits.connections)), Arc::new(ClientConnections::default()));
    let acceptor = tls.as_ref().map(ServerTls::acceptor);
    let _following = tls.map(|tls| AbortOnDropHandle::new(tokio::spawn(tls.follow())));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &slots, &connections) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let (acceptor, router, stop, close) =
                    (acceptor.clone(), router.clone(), stop.clone(), cut.child_token());
                let connection = connections.open(close.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        biased;
                        () = close.cancelled() => {}
                        () = serve_connection(stream, acceptor, router, limits, stop, connection) => {}
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
    tasks.close();
    let all_end = async {
        if timeout(ARRIVAL_TIMEOUT, tasks.wait()).await.is_err() {
            connections.close_unarrived();
            tasks.wait().await;
        }
    };
    let ended = timeout(deadline, all_end).await.is_ok();
    cut.cancel();
    tasks.wait().await;
    ended
}

/// Accepts the next connection, and waits for a free slot.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    connections: &ClientConnections,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    if let Ok(permit) = Arc::clone(slots).try_acquire_owned() {
        return Ok((stream, permit));
    }
    loop {
        connections.close_idlest();
        if let Ok(permit) = timeout(CLOSE_IDLE_INTERVAL, Arc::clone(slots).acquire_owned()).await {
            return Ok((stream, permit.map_err(io::Error::other)?));
        }
    }
}

/// Makes the TLS handshake, if any, and serves the connection.
async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
    connection: Arc<ClientConnection>,
) {
    // Otherwise an answer would stay in memory for ever if a client does not read it.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let stream = Box::pin(stream);
    let Some(acceptor) = acceptor else { return requests(stream, router, limits, stop, connection).await };
    let shaken = tokio::select! {
        // There is no request yet.
        () = stop.cancelled() => return,
        shaken = timeout(limits.header_timeout, acceptor.accept(stream)) => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => requests(stream, router, limits, stop, connection).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Size of a connection's read buffer, in bytes, and so the maximum size of a head. The buffer lives as long as the
/// connection.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// Serves the requests of a connection, one after the other.
async fn requests<S>(
    stream: S,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
    connection: Arc<ClientConnection>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (answer, connection) = (routes.call(connection.track_request(request)), Arc::clone(&connection));
        async move { answer.await.map(|answer| connection.track_answer(answer)) }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(io, service);
    tokio::pin!(http);
    let result = tokio::select! {
        result = http.as_mut() => result,
        () = stop.cancelled() => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    // Broken connections and slow clients are normal, and it is up to the client to report them.
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
