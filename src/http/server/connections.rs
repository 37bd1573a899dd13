//! Tracks the connections of a server: whether each one waits for a request, receives it, or answers it.
//!
//! At the maximum number, the connection that has waited longest for a request is closed for a new one. Its client
//! loses little, and a client with many connections cannot block others. A stop does not wait for requests that have
//! not arrived.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// What a connection does while its request has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It has no request, or only the beginning of a head.
    Idle,
    /// It has a head, and the body has not ended.
    Receiving,
}

/// The connections whose requests have not arrived: first those without a request, then by the time in their phase.
#[derive(Default)]
pub(in crate::http) struct ClientConnections(Mutex<Unarrived>);

#[derive(Default)]
struct Unarrived {
    next: u64,
    closers: BTreeMap<(Phase, u64), CancellationToken>,
}

impl ClientConnections {
    /// A connection that has just been accepted. It is closed when the token is cancelled.
    pub(in crate::http) fn open(self: &Arc<ClientConnections>, close: CancellationToken) -> Arc<ClientConnection> {
        let connection = ClientConnection { all: Arc::clone(self), close, listed_as: Mutex::default() };
        connection.enter(Some(Phase::Idle));
        Arc::new(connection)
    }

    /// Closes the connection that has waited longest for a request, if there is one.
    pub(in crate::http) fn close_idlest(&self) {
        let mut unarrived = self.0.lock();
        if let Some(first) = unarrived.closers.first_entry().filter(|first| first.key().0 == Phase::Idle) {
            first.remove().cancel();
        }
    }

    /// Closes every connection whose request has not arrived.
    pub(in crate::http) fn close_unarrived(&self) {
        let unarrived = std::mem::take(&mut self.0.lock().closers);
        unarrived.into_values().for_each(|close| close.cancel());
    }
}

/// One connection.
pub(in crate::http) struct ClientConnection {
    all: Arc<ClientConnections>,
    close: CancellationToken,
    /// Where it is listed while its request has not arrived.
    listed_as: Mutex<Option<(Phase, u64)>>,
}

impl ClientConnection {
    fn enter(&self, phase: Option<Phase>) {
        let mut listed_as = self.listed_as.lock();
        let mut all = self.all.0.lock();
        if let Some(former) = listed_as.take() {
            all.closers.remove(&former);
        }
        if let Some(phase) = phase {
            all.next += 1;
            let entered = (phase, all.next);
            all.closers.insert(entered, self.close.clone());
            *listed_as = Some(entered);
        }
    }

    /// The body of a request has ended, or nobody reads it any more.
    fn received(&self) {
        let receives = matches!(*self.listed_as.lock(), Some((Phase::Receiving, _)));
        if receives {
            self.enter(None);
        }
    }

    /// The head of a request has arrived. The result notices when the body has ended.
    pub(in crate::http) fn track_request(self: &Arc<ClientConnection>, request: Request<Incoming>) -> Request {
        let ended = request.body().is_end_stream();
        self.enter((!ended).then_some(Phase::Receiving));
        if ended {
            return request.map(Body::new);
        }
        request.map(|body| Body::new(ReceivedBody { body, connection: Arc::clone(self) }))
    }

    /// The answer of that request. The connection is idle again when it has been sent.
    pub(in crate::http) fn track_answer(self: &Arc<ClientConnection>, answer: Response) -> Response {
        let answered = Answered(Arc::clone(self));
        answer.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _until_the_body_is_dropped = &answered;
                frame
            }))
        })
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.enter(None);
    }
}

/// Held by the body of an answer.
struct Answered(Arc<ClientConnection>);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.enter(Some(Phase::Idle));
    }
}

/// The body of a request, of which the connection learns the end.
struct ReceivedBody {
    body: Incoming,
    connection: Arc<ClientConnection>,
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        self.connection.received();
    }
}

impl HttpBody for ReceivedBody {
    type Data = hyper::body::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || (frame.is_ready() && self.body.is_end_stream()) {
            self.connection.received();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_without_a_request_for_longest_is_closed() {
        let all = Arc::new(ClientConnections::default());
        let tokens = [(); 3].map(|()| CancellationToken::new());
        let open: Vec<_> = tokens.iter().map(|token| all.open(token.clone())).collect();
        let closed = || tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>();
        open[0].enter(None);
        drop(open[0].track_answer(Response::default()));
        all.close_idlest();
        assert_eq!(closed(), [false, true, false], "the first had a request since");
        open[2].enter(Some(Phase::Receiving));
        all.close_idlest();
        all.close_idlest();
        assert_eq!(closed(), [true, true, false], "the last has a request");
        all.close_unarrived();
        assert_eq!(closed(), [true, true, true]);
    }

    #[test]
    fn a_stop_does_not_close_a_connection_with_an_answer_under_way() {
        let all = Arc::new(ClientConnections::default());
        let token = CancellationToken::new();
        let connection = all.open(token.clone());
        connection.enter(None);
        let answer = connection.track_answer(Response::default());
        all.close_unarrived();
        assert!(!token.is_cancelled());
        drop(answer);
        drop(connection);
        assert!(all.0.lock().closers.is_empty(), "nothing is left behind");
    }
}
