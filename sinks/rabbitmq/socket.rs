//! The socket that lapin's connection runs on. It decides which bytes are sent.
//!
//! lapin cannot take back a message that it was given, and goes on sending on a channel that either side has closed,
//! which ends the whole connection. This socket drops the messages of an abandoned channel and all frames behind a
//! channel's close (see [`Frames`]). Once it is cut, it sends nothing at all.

use std::future::ready;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use bytes::{Buf, BytesMut};
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::frames::Frames;

/// Maximum number of bytes that are accepted from lapin at once. Messages that lapin still buffers can be dropped.
const WRITE_BYTES: usize = 256 * 1024;

/// TCP, or TLS over it.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Our handle of the socket. Dropping it cuts the socket.
pub(super) struct Socket(Arc<State>);

/// lapin's handle of the socket.
#[derive(Clone)]
pub(super) struct LapinSocket(Arc<State>);

struct State {
    /// `None` once it is cut.
    open: Mutex<Option<Open>>,
    reader: AtomicWaker,
    heard: Mutex<Instant>,
}

struct Open {
    transport: Box<dyn Transport>,
    frames: Frames,
    outbox: BytesMut,
    /// What lapin may read.
    inbox: BytesMut,
}

impl Socket {
    pub(super) fn new(transport: Box<dyn Transport>) -> Socket {
        let open = Open { transport, frames: Frames::default(), outbox: BytesMut::new(), inbox: BytesMut::new() };
        let (open, heard) = (Mutex::new(Some(open)), Mutex::new(Instant::now()));
        Socket(Arc::new(State { open, reader: AtomicWaker::new(), heard }))
    }

    /// A handle for lapin.
    pub(super) fn for_lapin(&self) -> LapinSocket {
        LapinSocket(Arc::clone(&self.0))
    }

    /// Closes the connection at once. Nothing more is sent, whatever lapin has buffered.
    pub(super) fn cut(&self) {
        drop(self.0.open.lock().take());
        self.0.reader.wake();
    }

    /// Whether it is cut.
    pub(super) fn is_cut(&self) -> bool {
        self.0.open.lock().is_none()
    }

    /// Sends no new message on this channel from here on.
    pub(super) fn give_up(&self, channel: u16) {
        if let Some(open) = &mut *self.0.open.lock() {
            open.frames.give_up(channel);
        }
    }

    /// When the server last sent something.
    pub(super) fn heard(&self) -> Instant {
        *self.0.heard.lock()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.cut();
    }
}

impl State {
    /// Runs an action unless the socket is cut.
    fn poll<T>(&self, act: impl FnOnce(&mut Open) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut *self.open.lock() {
            Some(open) => act(open),
            None => Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was given up"))),
        }
    }
}

impl Open {
    fn poll_write_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            let written = ready!(Pin::new(&mut self.transport).poll_write(context, &self.outbox))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outbox.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl futures_io::AsyncRead for LapinSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.reader.register(context.waker());
        self.0.poll(|open| {
            while open.inbox.is_empty() {
                let mut read = ReadBuf::new(into);
                ready!(Pin::new(&mut open.transport).poll_read(context, &mut read))?;
                *self.0.heard.lock() = Instant::now();
                if read.filled().is_empty() {
                    return Poll::Ready(Ok(0));
                }
                open.frames.receive(read.filled(), &mut open.inbox).map_err(io::Error::other)?;
            }
            let length = open.inbox.len().min(into.len());
            into[..length].copy_from_slice(&open.inbox[..length]);
            open.inbox.advance(length);
            Poll::Ready(Ok(length))
        })
    }
}

impl futures_io::AsyncWrite for LapinSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll(|open| {
            ready!(open.poll_write_out(context))?;
            let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
            open.frames.send(bytes, &mut open.outbox);
            // Pending bytes are written before more are accepted.
            if let Poll::Ready(Err(error)) = open.poll_write_out(context) {
                return Poll::Ready(Err(error));
            }
            Poll::Ready(Ok(bytes.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|open| {
            ready!(open.poll_write_out(context))?;
            Pin::new(&mut open.transport).poll_flush(context)
        })
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|open| Pin::new(&mut open.transport).poll_shutdown(context))
    }
}

/// Tokio's reactor, with our sockets.
#[derive(Clone, Debug)]
pub(super) struct LapinReactor(Tokio);

/// The runtime for lapin: that of the caller.
pub(super) fn runtime() -> async_rs::Runtime<RuntimeParts<Tokio, LapinReactor>> {
    let tokio = Tokio::current();
    async_rs::Runtime::new(RuntimeParts::new(tokio.clone(), LapinReactor(tokio)))
}

impl Reactor for LapinReactor {
    type TcpStream = LapinSocket;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures_io::AsyncRead + futures_io::AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(&self, _: SocketAddr) -> impl Future<Output = io::Result<LapinSocket>> + Send + 'static {
        // lapin is given a connected socket.
        ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
