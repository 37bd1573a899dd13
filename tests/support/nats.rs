//! nats-server with JetStream for tests, and a client that shares no code with the one under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use punctual_lab::servers::start_nats;
use serde_json::{Value, json};

use super::server::Server;

/// A nats-server for one test, with JetStream in its own folder.
pub(crate) struct NatsServer {
    /// The process.
    pub(crate) server: Server,
}

impl NatsServer {
    /// Starts a server; `config` is appended to its configuration file.
    pub(crate) fn start(config: &str) -> NatsServer {
        NatsServer { server: Server::of(async || start_nats(config).await) }
    }

    /// `nats://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.server.port)
    }

    /// A client for the test.
    pub(crate) fn connect(&self) -> NatsClient {
        NatsClient::connect(self.server.port, None)
    }
}

/// A NATS client on one blocking socket, written for the tests: <https://docs.nats.io/reference/nats-protocol>.
///
/// Every reply must arrive within 10 s. Errors panic, except in [`try_jetstream`](NatsClient::try_jetstream).
pub(crate) struct NatsClient {
    socket: BufReader<TcpStream>,
    subscriptions: u64,
}

/// A message as the server delivers it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    /// From the line `NATS/1.0 503`.
    pub(crate) status: Option<u16>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
}

/// A message as a stream stores it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
    /// When the stream stored it, by the server's clock, in nanoseconds since 1970.
    pub(crate) stored_ns: i64,
    /// Its number in the stream, from 1.
    pub(crate) sequence: u64,
}

impl Stored {
    /// A header; the case of its name does not matter.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl NatsClient {
    /// Connects to 127.0.0.1, with user and password if given.
    pub(crate) fn connect(port: u16, user: Option<(&str, &str)>) -> NatsClient {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection to nats-server");
        socket.set_nodelay(true).expect("a socket option");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket option");
        let mut client = NatsClient { socket: BufReader::new(socket), subscriptions: 0 };
        let mut options = json!({"verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "lang": "test", "version": "0", "name": "test"});
        if let Some((user, password)) = user {
            options["user"] = user.into();
            options["pass"] = password.into();
        }
        assert!(client.said().starts_with("INFO "), "a nats-server answers");
        client.write(format!("CONNECT {options}\r\nPING\r\n").as_bytes());
        assert_eq!(client.said(), "PONG");
        client
    }

    /// Subscribes; [`next`](NatsClient::next) returns the messages.
    pub(crate) fn subscribe(&mut self, subject: &str) {
        self.subscriptions += 1;
        let id = self.subscriptions;
        self.write(format!("SUB {subject} {id}\r\nPING\r\n").as_bytes());
        // Returns once the server knows the subscription. The server may send a PING first.
        let mut line = self.said();
        while line == "PING" {
            self.write(b"PONG\r\n");
            line = self.said();
        }
        assert_eq!(line, "PONG");
    }

    /// Publishes, with headers if there are any.
    pub(crate) fn publish(&mut self, subject: &str, reply: &str, headers: &[(&str, &str)], payload: &[u8]) {
        let mut lines = String::from("NATS/1.0\r\n");
        headers.iter().for_each(|(name, value)| lines.push_str(&format!("{name}: {value}\r\n")));
        lines.push_str("\r\n");
        let mut frame = if headers.is_empty() {
            format!("PUB {subject} {reply} {}\r\n", payload.len()).into_bytes()
        } else {
            let total = lines.len() + payload.len();
            format!("HPUB {subject} {reply} {} {total}\r\n{lines}", lines.len()).into_bytes()
        };
        frame.extend_from_slice(payload);
        frame.extend_from_slice(b"\r\n");
        self.write(&frame);
    }

    /// Sends a request and waits for the reply; no other subscription may be active.
    fn try_request(&mut self, subject: &str, payload: &[u8]) -> io::Result<Delivered> {
        let inbox = format!("_INBOX.test{}", self.subscriptions);
        self.subscribe(&inbox);
        self.publish(subject, &inbox, &[], payload);
        let answer = self.try_next()?;
        self.write(format!("UNSUB {}\r\n", self.subscriptions).as_bytes());
        Ok(answer)
    }

    /// The next message of any subscription.
    pub(crate) fn next(&mut self) -> Delivered {
        self.try_next().expect("a message of nats-server")
    }

    fn try_next(&mut self) -> io::Result<Delivered> {
        loop {
            let line = self.line()?;
            let detail: Vec<&str> = line.split_ascii_whitespace().collect();
            let length = |text: &str| text.parse::<usize>().expect("a length");
            match detail[..] {
                ["PING"] => self.write(b"PONG\r\n"),
                ["PONG"] => {}
                ["MSG", subject, _, length_] => return self.read(subject, None, 0, length(length_)),
                ["MSG", subject, _, reply, length_] => return self.read(subject, Some(reply), 0, length(length_)),
                ["HMSG", subject, _, head, total] => return self.read(subject, None, length(head), length(total)),
                ["HMSG", subject, _, reply, head, total] => {
                    return self.read(subject, Some(reply), length(head), length(total));
                }
                _ => panic!("nats-server says {line}"),
            }
        }
    }

    /// Sends a request to JetStream's API; an error panics.
    pub(crate) fn jetstream(&mut self, verb: &str, request: &Value) -> Value {
        self.try_jetstream(verb, request).unwrap_or_else(|detail| panic!("$JS.API.{verb} {request}: {detail}"))
    }

    /// Sends a request to JetStream's API when there may be no responder. After an error the client cannot be used
    /// again.
    pub(crate) fn try_jetstream(&mut self, verb: &str, request: &Value) -> Result<Value, String> {
        let answer = self.try_request(&format!("$JS.API.{verb}"), request.to_string().as_bytes());
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == Some(503) {
            return Err("nobody answers for JetStream".to_owned());
        }
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
        if answer.get("error").is_some() { Err(answer.to_string()) } else { Ok(answer) }
    }

    /// Creates a stream in a file, with a duplicate window of two minutes. `more` adds or replaces settings
    /// (`json!({"max_msg_size": 100})`).
    pub(crate) fn create_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        let two_minutes = 120_000_000_000_u64;
        let mut stream =
            json!({"name": name, "subjects": subjects, "storage": "file", "duplicate_window": two_minutes});
        for (key, value) in more.as_object().into_iter().flatten() {
            stream[key] = value.clone();
        }
        self.jetstream(&format!("STREAM.CREATE.{name}"), &stream);
    }

    /// Number of messages in a stream.
    pub(crate) fn stream_length(&mut self, name: &str) -> u64 {
        self.jetstream(&format!("STREAM.INFO.{name}"), &json!({}))["state"]["messages"].as_u64().expect("a number")
    }

    /// Every message of a stream, in order. Uses one push consumer without acknowledgements: 20 000 messages take well
    /// under a second.
    pub(crate) fn stream_messages(&mut self, name: &str) -> Vec<Stored> {
        let (deliver, answer) =
            (format!("_INBOX.all{}", self.subscriptions), format!("_INBOX.ask{}", self.subscriptions));
        let config = json!({"deliver_subject": &deliver, "ack_policy": "none", "deliver_policy": "all",
            "replay_policy": "instant", "mem_storage": true});
        let request = json!({"stream_name": name, "config": config});
        self.subscribe(&deliver);
        self.subscribe(&answer);
        let ask = format!("$JS.API.CONSUMER.CREATE.{name}");
        self.publish(&ask, &answer, &[], request.to_string().as_bytes());
        let (mut stored, mut created) = (Vec::new(), None);
        // The reply may arrive after the first messages.
        while created.as_ref().is_none_or(|(pending, _)| stored.len() < *pending) {
            let message = self.next();
            if message.subject != answer {
                stored.push(Stored::from_delivered(message));
                continue;
            }
            let answer: Value = serde_json::from_slice(&message.payload).expect("JetStream answers in JSON");
            let pending = answer["num_pending"].as_u64().unwrap_or_else(|| panic!("no consumer: {answer}"));
            let consumer = answer["name"].as_str().expect("a name").to_owned();
            created = Some((usize::try_from(pending).expect("a count"), consumer));
        }
        let ids = self.subscriptions;
        self.write(format!("UNSUB {ids}\r\nUNSUB {}\r\n", ids - 1).as_bytes());
        let consumer = created.expect("the loop ends with it").1;
        self.jetstream(&format!("CONSUMER.DELETE.{name}.{consumer}"), &json!({}));
        stored
    }

    fn read(&mut self, subject: &str, reply: Option<&str>, head: usize, total: usize) -> io::Result<Delivered> {
        let mut bytes = vec![0; total + 2];
        self.socket.read_exact(&mut bytes)?;
        bytes.truncate(total);
        let payload = bytes.split_off(head);
        let text = String::from_utf8(bytes).expect("headers are text");
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.get(9..12)).and_then(|status| status.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        Ok(Delivered { subject: subject.to_owned(), reply: reply.map(str::to_owned), status, headers, payload })
    }

    fn said(&mut self) -> String {
        self.line().expect("a line of nats-server")
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.socket.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).expect("nats-server takes a frame");
    }
}

impl Stored {
    /// `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<number>.<time>.<pending>[.<token>]`.
    fn from_delivered(message: Delivered) -> Stored {
        let reply = message.reply.expect("a stream's message has a reply subject");
        let tokens: Vec<&str> = reply.split('.').collect();
        let first = if tokens.len() > 9 { 7 } else { 5 };
        let number = |at: usize| tokens[at].parse::<u64>().unwrap_or_else(|_| panic!("`{reply}` is no ack subject"));
        Stored {
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
            sequence: number(first),
            stored_ns: i64::try_from(number(first + 2)).expect("a time of this century"),
        }
    }
}
