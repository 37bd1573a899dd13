//! A proxy between an instance and a server that does to connections what networks do.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// How many bytes one direction of a connection may hold back. Beyond that the sender has to wait, as with full network buffers.
const MAX_HELD_BYTES: usize = 16 << 20;

/// What happens to all data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It passes.
    #[default]
    Pass,
    /// New connections are refused.
    Refuse,
    /// No data arrives, and neither side gets an error; new connections get no answer.
    BlackHole,
    /// All data arrives this much later.
    Delay(Duration),
    /// All data is held back, and arrives when this mode ends, even if its sender has closed the connection.
    Late,
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the instance to the server.
    Up,
    /// From the server to the instance.
    Down,
}

/// The state that connections follow; the numbers count events.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    mode: Mode,
    cuts: u64,
    /// How often each direction of every connection was closed.
    halves: [u64; 2],
}

/// Counters.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    bytes: AtomicU64,
    late: AtomicU64,
}

/// A proxy for connections to one server.
#[derive(Debug)]
pub(super) struct Proxy {
    /// Its port on 127.0.0.1.
    pub(super) port: u16,
    state: watch::Sender<State>,
    counts: Arc<Counts>,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// Listens; the server, `host:port`, need not be running yet.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) async fn start(server: String) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (state, seen) = watch::channel(State::default());
        let counts = Arc::new(Counts::default());
        let listening = tokio::spawn(listen(listener, server, seen, Arc::clone(&counts)));
        Ok(Proxy { port, state, counts, listening })
    }

    /// Sets the mode, also for existing connections.
    pub(super) fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    /// Resets every connection; held data is lost. Returns how many there were.
    pub(super) fn cut(&self) -> u64 {
        self.state.send_modify(|state| state.cuts += 1);
        self.open()
    }

    /// Closes one direction of every connection, after all earlier data has arrived. Returns how many there were.
    pub(super) fn close_direction(&self, way: Way) -> u64 {
        self.state.send_modify(|state| state.halves[way as usize] += 1);
        self.open()
    }

    /// Number of open connections.
    pub(super) fn open(&self) -> u64 {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Bytes that were sent through it so far.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that reached the server after their sender had closed its end.
    pub(super) fn late(&self) -> u64 {
        self.counts.late.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, server: String, state: watch::Receiver<State>, counts: Arc<Counts>) {
    let mut carried = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    carried.spawn(carry(client, server.clone(), state.clone(), Arc::clone(&counts)));
                }
                // No file descriptor is left; one will be free later.
                Err(_) => sleep(Duration::from_millis(20)).await,
            },
            Some(_) = carried.join_next() => {}
        }
    }
}

/// Carries one connection to its end.
async fn carry(mut client: TcpStream, server: String, state: watch::Receiver<State>, counts: Arc<Counts>) {
    let begun = *state.borrow();
    if begun.mode == Mode::Refuse {
        return reset(&client);
    }
    counts.open.fetch_add(1, Ordering::Relaxed);
    let upstream = tokio::select! {
        upstream = reach(&server, state.clone()) => upstream.ok(),
        () = until_cut(begun, state.clone()) => None,
    };
    match upstream {
        None => reset(&client),
        Some(mut upstream) => {
            let (client_reads, client_writes) = client.split();
            let (server_reads, server_writes) = upstream.split();
            let pipe = |way| Pipe { way, begun, state: state.clone(), counts: &counts };
            let whole = tokio::select! {
                _ = async {
                    let (up, down) = (pipe(Way::Up), pipe(Way::Down));
                    tokio::join!(up.pump(client_reads, server_writes), down.pump(server_reads, client_writes))
                } => true,
                () = until_cut(begun, state.clone()) => false,
            };
            if !whole {
                reset(&client);
                reset(&upstream);
            }
        }
    }
    counts.open.fetch_sub(1, Ordering::Relaxed);
}

/// Connects to the server, once it is not in a black hole.
async fn reach(server: &str, mut state: watch::Receiver<State>) -> io::Result<TcpStream> {
    state.wait_for(|state| state.mode != Mode::BlackHole).await.map_err(io::Error::other)?;
    let upstream = TcpStream::connect(server).await?;
    upstream.set_nodelay(true)?;
    Ok(upstream)
}

/// Waits until a cut that comes after the state `begun`, or until the proxy is gone.
async fn until_cut(begun: State, mut state: watch::Receiver<State>) {
    let known = state.wait_for(|state| state.cuts != begun.cuts).await;
    drop(known);
}

/// Resets a connection.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "a connection could not be reset; it ends with a normal close");
    }
}

/// One direction of a connection.
struct Pipe<'a> {
    way: Way,
    /// The state when the connection was made.
    begun: State,
    state: watch::Receiver<State>,
    counts: &'a Counts,
}

impl Pipe<'_> {
    /// Moves bytes until the sender has closed its end and all its data has arrived, or the receiver is gone.
    async fn pump(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        let (mut held_bytes, mut ended, mut buffer) = (0, false, vec![0; 64 << 10]);
        loop {
            let State { mode, halves, .. } = *self.state.borrow_and_update();
            ended |= halves[self.way as usize] != self.begun.halves[self.way as usize];
            let next = match mode {
                Mode::BlackHole | Mode::Late => None,
                _ => held.front().map(|(due, _)| *due),
            };
            if ended && held.is_empty() && mode != Mode::BlackHole {
                // An error means that the receiver is gone.
                return to.shutdown().await.unwrap_or_default();
            }
            tokio::select! {
                changed = self.state.changed() => if changed.is_err() { return },
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                    let Some((_, bytes)) = held.pop_front() else { continue };
                    held_bytes -= bytes.len();
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                    if ended && self.way == Way::Up {
                        self.counts.late.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                }
                read = from.read(&mut buffer), if !ended && mode != Mode::BlackHole && held_bytes < MAX_HELD_BYTES => {
                    let Ok(count @ 1..) = read else {
                        ended = true;
                        continue;
                    };
                    self.counts.bytes.fetch_add(count as u64, Ordering::Relaxed);
                    let wait = if let Mode::Delay(wait) = mode { wait } else { Duration::ZERO };
                    held_bytes += count;
                    held.push_back((Instant::now() + wait, buffer[..count].to_vec()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy, and a server behind it.
    async fn field() -> (Proxy, TcpListener) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (Proxy::start(server.local_addr().unwrap().to_string()).await.unwrap(), server)
    }

    /// A connection that has carried a byte, so that both of its halves exist.
    async fn pair(proxy: &Proxy, server: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port)).await.unwrap();
        let mut upstream = server.accept().await.unwrap().0;
        client.write_all(b"!").await.unwrap();
        assert_eq!(read(&mut upstream, 1).await, b"!");
        (client, upstream)
    }

    async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// No data has arrived, and none arrives for a moment.
    async fn silent(stream: &mut TcpStream) -> bool {
        tokio::time::timeout(Duration::from_millis(50), stream.read(&mut [0])).await.is_err()
    }

    #[tokio::test]
    async fn a_passing_proxy_keeps_the_order_in_both_directions_and_forwards_the_end() {
        let (proxy, server) = field().await;
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let sending = async {
            client.write_all(&sent).await.unwrap();
            assert_eq!(read(&mut client, 2).await, b"ok");
        };
        let receiving = async {
            assert!(read(&mut upstream, sent.len()).await == sent);
            upstream.write_all(b"ok").await.unwrap();
        };
        tokio::join!(sending, receiving);
        assert_eq!((proxy.open(), proxy.bytes(), proxy.late()), (1, sent.len() as u64 + 3, 0));
        drop(client);
        assert_eq!(upstream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_cut_ends_every_connection_and_new_ones_are_refused() {
        let (proxy, server) = field().await;
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        proxy.set(Mode::Refuse);
        assert_eq!(proxy.cut(), 1);
        assert!(client.read(&mut [0]).await.is_err(), "no farewell");
        assert!(upstream.read(&mut [0]).await.is_err(), "no farewell");
        let mut next = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port)).await.unwrap();
        assert!(matches!(next.read(&mut [0]).await, Ok(0) | Err(_)));
        proxy.set(Mode::Pass);
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        client.write_all(b"again").await.unwrap();
        assert_eq!(read(&mut upstream, 5).await, b"again");
    }

    #[tokio::test]
    async fn a_black_hole_passes_no_bytes_even_after_a_cut() {
        let (proxy, server) = field().await;
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        proxy.set(Mode::BlackHole);
        client.write_all(b"lost").await.unwrap();
        upstream.write_all(b"lost").await.unwrap();
        let mut next = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port)).await.unwrap();
        assert!(silent(&mut upstream).await && silent(&mut client).await && silent(&mut next).await);
        proxy.cut();
        assert!(upstream.read(&mut [0]).await.is_err() && client.read(&mut [0]).await.is_err());
        assert!(next.read(&mut [0]).await.is_err());
    }

    #[tokio::test]
    async fn delayed_bytes_arrive_in_order_and_not_too_early() {
        let (proxy, server) = field().await;
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        let wait = Duration::from_millis(60);
        proxy.set(Mode::Delay(wait));
        let sent = Instant::now();
        client.write_all(b"one").await.unwrap();
        assert_eq!(read(&mut upstream, 3).await, b"one");
        assert!(sent.elapsed() >= wait);
        client.write_all(b"two").await.unwrap();
        while proxy.bytes() < 7 {
            tokio::task::yield_now().await;
        }
        proxy.set(Mode::Pass);
        client.write_all(b"three").await.unwrap();
        assert_eq!(read(&mut upstream, 8).await, b"twothree");
    }

    #[tokio::test]
    async fn late_bytes_arrive_although_their_sender_has_closed() {
        let (proxy, server) = field().await;
        let (mut client, mut upstream) = pair(&proxy, &server).await;
        proxy.set(Mode::Late);
        client.write_all(b"late").await.unwrap();
        upstream.write_all(b"answer").await.unwrap();
        assert!(silent(&mut upstream).await && silent(&mut client).await);
        drop(client);
        assert!(silent(&mut upstream).await);
        proxy.set(Mode::Pass);
        assert_eq!(read(&mut upstream, 4).await, b"late");
        assert_eq!(upstream.read(&mut [0]).await.unwrap_or_default(), 0);
        assert_eq!(proxy.late(), 4);
    }

    #[tokio::test]
    async fn a_half_closed_connection_still_carries_the_other_direction() {
        for way in [Way::Up, Way::Down] {
            let (proxy, server) = field().await;
            let (client, upstream) = pair(&proxy, &server).await;
            let (mut closed, mut open) = if way == Way::Up { (upstream, client) } else { (client, upstream) };
            assert_eq!(proxy.close_direction(way), 1);
            assert_eq!(closed.read(&mut [0]).await.unwrap(), 0);
            closed.write_all(b"still").await.unwrap();
            assert_eq!(read(&mut open, 5).await, b"still");
        }
    }
}
