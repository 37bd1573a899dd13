//! A server that follows a test's script: what RabbitMQ does rarely or never.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpSocket;

/// Called for each message that arrives.
type Act = dyn Fn(&Peer, &Seen) -> io::Result<()> + Send + Sync;

/// A server on a thread of its own. Everything but messages it answers as RabbitMQ does.
pub(super) struct Scripted {
    pub(super) port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    tune: Tune,
    act: Box<Act>,
    /// Number of messages on all connections.
    messages: AtomicUsize,
    /// While this is set, the server answers the next message of each connection with `blocked` and reads nothing more.
    blocked: AtomicBool,
}

/// Connection parameters that the server asks for.
#[derive(Clone, Copy)]
pub(super) struct Tune {
    pub(super) channels: u16,
    pub(super) frame: u32,
    pub(super) heartbeat: u16,
    /// Whether it sends heartbeats.
    pub(super) beats: bool,
}

pub(super) const USUAL: Tune = Tune { channels: 2047, frame: 131_072, heartbeat: 60, beats: true };

/// A message that arrived.
pub(super) struct Seen {
    pub(super) channel: u16,
    /// Its number on the channel, from 1.
    pub(super) tag: u64,
    /// Number of earlier messages on all connections.
    pub(super) before: usize,
}

/// The client, as the server sees it.
#[derive(Clone)]
pub(super) struct Peer(Arc<Mutex<TcpStream>>);

impl Scripted {
    /// Starts a server. `act` gets every message except those of a check. The server's socket buffer is small.
    pub(super) fn start(tune: Tune, act: impl Fn(&Peer, &Seen) -> io::Result<()> + Send + Sync + 'static) -> Scripted {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("a small buffer");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let listener = socket.listen(64).expect("it listens").into_std().expect("a listener");
        listener.set_nonblocking(false).expect("it waits");
        let port = listener.local_addr().expect("an address").port();
        let shared = Shared { tune, act: Box::new(act), messages: 0.into(), blocked: false.into() };
        let shared = Arc::new(shared);
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.expect("a connection"), Arc::clone(&serving));
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Scripted { port, shared }
    }

    /// Number of messages that have arrived.
    pub(super) fn messages(&self) -> usize {
        self.shared.messages.load(Ordering::SeqCst)
    }

    /// With `true`, the server reads nothing after the next message, until it is called with `false`.
    pub(super) fn block(&self, blocked: bool) {
        self.shared.blocked.store(blocked, Ordering::SeqCst);
    }
}

impl Shared {
    /// Serves one connection, until the client disconnects at the latest.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let peer = Peer(Arc::new(Mutex::new(stream.try_clone()?)));
        let mut protocol = [0; 8];
        stream.read_exact(&mut protocol)?;
        peer.method(0, 10, 10, &[0, 9, 0, 0, 0, 0, 0, 0, 0, 5, b'P', b'L', b'A', b'I', b'N', 0, 0, 0, 0])?;
        if self.tune.beats {
            let peer = peer.clone();
            std::thread::spawn(move || {
                while peer.frame(8, 0, &[]).is_ok() {
                    std::thread::sleep(Duration::from_millis(300));
                }
            });
        }
        let mut tags = vec![0_u64; 65_536];
        let mut of_a_check = false;
        let mut left = 0;
        loop {
            let (kind, channel, payload) = read_frame(&mut stream)?;
            let ids = [0, 2].map(|at| payload.get(at..at + 2).map_or(0, |id| u16::from_be_bytes([id[0], id[1]])));
            let done = match (kind, ids) {
                (1, [10, 11]) => self.tune(&peer).map(|()| false),
                (1, [10, 40]) => peer.method(0, 10, 41, &[0]).map(|()| false),
                (1, [10, 50]) => return peer.method(0, 10, 51, &[]),
                (1, [20, 10]) => peer.method(channel, 20, 11, &[0; 4]).map(|()| false),
                (1, [20, 40]) => {
                    tags[usize::from(channel)] = 0;
                    peer.method(channel, 20, 41, &[]).map(|()| false)
                }
                (1, [85, 10]) => peer.method(channel, 85, 11, &[]).map(|()| false),
                (1, [40, 10]) => peer.method(channel, 40, 11, &[]).map(|()| false),
                (1, [60, 40]) => {
                    tags[usize::from(channel)] += 1;
                    // A check publishes with neither exchange nor routing key.
                    of_a_check = payload[6..8] == [0, 0];
                    self.wait_while_blocked(&peer).map(|()| false)
                }
                (2, _) => {
                    left = u64::from_be_bytes(payload[4..12].try_into().expect("eight bytes"));
                    Ok(left == 0)
                }
                (3, _) => {
                    left -= payload.len() as u64;
                    Ok(left == 0)
                }
                _ => Ok(false),
            }?;
            let tag = tags[usize::from(channel)];
            if done && of_a_check {
                peer.ack(channel, tag, false)?;
            } else if done {
                let before = self.messages.fetch_add(1, Ordering::SeqCst);
                (self.act)(&peer, &Seen { channel, tag, before })?;
            }
        }
    }

    fn tune(&self, peer: &Peer) -> io::Result<()> {
        let Tune { channels, frame, heartbeat, .. } = self.tune;
        let arguments = [&channels.to_be_bytes()[..], &frame.to_be_bytes(), &heartbeat.to_be_bytes()].concat();
        peer.method(0, 10, 30, &arguments)
    }

    fn wait_while_blocked(&self, peer: &Peer) -> io::Result<()> {
        if self.blocked.load(Ordering::SeqCst) {
            // A delay as on a long line: messages sent before the client learns of the block are in both sides'
            // buffers.
            std::thread::sleep(Duration::from_millis(100));
            peer.method(0, 10, 60, &short("low on patience"))?;
            while self.blocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            // The client may be gone; what it sent before is still read.
            peer.method(0, 10, 61, &[]).ok();
        }
        Ok(())
    }
}

impl Peer {
    pub(super) fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().expect("no panic").write_all(bytes)
    }

    /// Closes the connection without a close frame.
    pub(super) fn leave(&self) -> io::Result<()> {
        self.0.lock().expect("no panic").shutdown(Shutdown::Both)
    }

    pub(super) fn frame(&self, kind: u8, channel: u16, payload: &[u8]) -> io::Result<()> {
        self.raw(&frame(kind, channel, payload))
    }

    pub(super) fn method(&self, channel: u16, class: u16, id: u16, arguments: &[u8]) -> io::Result<()> {
        self.frame(1, channel, &[&class.to_be_bytes(), &id.to_be_bytes(), arguments].concat())
    }

    pub(super) fn ack(&self, channel: u16, tag: u64, multiple: bool) -> io::Result<()> {
        self.method(channel, 60, 80, &[&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat())
    }

    pub(super) fn nack(&self, channel: u16, tag: u64, multiple: bool) -> io::Result<()> {
        self.method(channel, 60, 120, &[&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat())
    }

    /// Closes a channel.
    pub(super) fn close(&self, channel: u16, code: u16, detail: &str) -> io::Result<()> {
        self.method(channel, 20, 40, &refusal(code, detail))
    }

    /// Announces a returned message, without its header and body.
    pub(super) fn announce_return(&self, channel: u16, exchange: &str, key: &str) -> io::Result<()> {
        let code = 312_u16.to_be_bytes();
        self.method(channel, 60, 50, &[&code[..], &short("NO_ROUTE"), &short(exchange), &short(key)].concat())
    }

    /// Returns a message without a body.
    pub(super) fn return_message(&self, channel: u16, exchange: &str, key: &str, message_id: &str) -> io::Result<()> {
        self.announce_return(channel, exchange, key)?;
        let head = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];
        self.frame(2, channel, &[&head[..], &short(message_id)].concat())
    }
}

pub(super) fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[0xce]].concat()
}

/// Arguments of a close.
pub(super) fn refusal(code: u16, detail: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], &short(detail), &[0; 4]].concat()
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("short")][..], text.as_bytes()].concat()
}

fn read_frame(stream: &mut TcpStream) -> io::Result<(u8, u16, Vec<u8>)> {
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    let mut payload = vec![0; size + 1];
    stream.read_exact(&mut payload)?;
    assert_eq!(payload.pop(), Some(0xce), "the end of a frame");
    Ok((head[0], u16::from_be_bytes([head[1], head[2]]), payload))
}
