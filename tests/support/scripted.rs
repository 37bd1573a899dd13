//! A relay in front of a real Redis that answers some commands itself. It replies as servers in other states or of
//! other versions do, which a test cannot bring about.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A command of a client: the number of its connection, and its words.
pub(crate) struct Asked<'a> {
    /// The connection's number, in order of arrival.
    pub(crate) connection: usize,
    /// The words.
    pub(crate) words: &'a [String],
}

impl Asked<'_> {
    /// Whether it is this command; case does not matter.
    pub(crate) fn is(&self, command: &str) -> bool {
        self.words[0].eq_ignore_ascii_case(command)
    }
}

/// Reply instead of the server's, in wire format; `None` lets the server reply.
type Answer = dyn Fn(&Asked) -> Option<String> + Send + Sync;

/// Whether the reply to this command is lost.
type Loses = dyn Fn(&Asked) -> bool + Send + Sync;

/// The relay. Its threads end with their connections, or with the test process.
pub(crate) struct Scripted {
    /// The port it listens on, on 127.0.0.1.
    pub(crate) port: u16,
    server: Arc<AtomicU16>,
    connections: Arc<Mutex<HashMap<usize, TcpStream>>>,
}

impl Scripted {
    /// Listens in front of the server on this port. `answer` may block: it delays no other connection.
    pub(crate) fn before(server: u16, answer: impl Fn(&Asked) -> Option<String> + Send + Sync + 'static) -> Scripted {
        Scripted::losing(server, answer, |_| false)
    }

    /// The same; where `loses` says so, the server runs the command, and the connection ends without its reply.
    pub(crate) fn losing(
        server: u16,
        answer: impl Fn(&Asked) -> Option<String> + Send + Sync + 'static,
        loses: impl Fn(&Asked) -> bool + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (answer, loses): (Arc<Answer>, Arc<Loses>) = (Arc::new(answer), Arc::new(loses));
        let (connections, server) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicU16::new(server)));
        let (known, leads_to) = (Arc::clone(&connections), Arc::clone(&server));
        std::thread::spawn(move || {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            for client in listener.incoming().map_while(Result::ok) {
                let (answer, loses, known) = (Arc::clone(&answer), Arc::clone(&loses), Arc::clone(&known));
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let copy = client.try_clone().expect("a socket");
                let server = leads_to.load(Ordering::Relaxed);
                known.lock().expect("nobody panics holding it").insert(number, copy);
                // An error means that one side has closed; then close both.
                std::thread::spawn(move || {
                    drop(relay(number, &client, server, &*answer, &*loses));
                    drop(client.shutdown(Shutdown::Both));
                    known.lock().expect("nobody panics holding it").remove(&number);
                });
            }
        });
        Scripted { port, server, connections }
    }

    /// `redis://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads new connections to the server on this port.
    pub(crate) fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::Relaxed);
    }

    /// Cuts the connections with the chosen numbers.
    pub(crate) fn cut(&self, chosen: impl Fn(usize) -> bool) {
        let connections = self.connections.lock().expect("nobody panics holding it");
        for (_, client) in connections.iter().filter(|(number, _)| chosen(**number)) {
            drop(client.shutdown(Shutdown::Both));
        }
    }
}

/// Serves one connection: a command, its reply, the next command.
fn relay(connection: usize, client: &TcpStream, server: u16, answer: &Answer, loses: &Loses) -> std::io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    for socket in [client, &server] {
        socket.set_nodelay(true)?;
    }
    let (mut commands, mut answers) = (BufReader::new(client.try_clone()?), BufReader::new(server.try_clone()?));
    let (mut to_client, mut to_server) = (client, &server);
    loop {
        let mut raw = Vec::new();
        let mut words = Vec::new();
        read_value(&mut commands, &mut raw, &mut words)?;
        let asked = Asked { connection, words: &words };
        if let Some(answer) = answer(&asked) {
            to_client.write_all(answer.as_bytes())?;
            continue;
        }
        to_server.write_all(&raw)?;
        // A replica of the server sends `PSYNC`.
        if asked.is("SUBSCRIBE") || asked.is("PSYNC") {
            // From here on the server sends without requests.
            let (mut to_server, mut commands) = (server.try_clone()?, commands);
            std::thread::spawn(move || std::io::copy(&mut commands, &mut to_server));
            return std::io::copy(&mut answers, &mut to_client).map(drop);
        }
        let mut reply = Vec::new();
        read_value(&mut answers, &mut reply, &mut Vec::new())?;
        if loses(&asked) {
            return Ok(());
        }
        to_client.write_all(&reply)?;
    }
}

/// Reads one value of the protocol: its bytes, and the strings in it.
fn read_value(from: &mut impl BufRead, raw: &mut Vec<u8>, words: &mut Vec<String>) -> std::io::Result<()> {
    let begin = raw.len();
    if from.read_until(b'\n', raw)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8_lossy(&raw[begin + 1..]).trim().to_owned();
    let number = || line.parse::<i64>().map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidData));
    match raw[begin] {
        b'*' => (0..number()?).try_for_each(|_| read_value(from, raw, words)),
        b'$' => {
            let Ok(length) = u64::try_from(number()?) else { return Ok(()) };
            let start = raw.len();
            from.by_ref().take(length + 2).read_to_end(raw)?;
            let end = raw.len().saturating_sub(2).max(start);
            words.push(String::from_utf8_lossy(&raw[start..end]).into_owned());
            Ok(())
        }
        _ => Ok(()),
    }
}
