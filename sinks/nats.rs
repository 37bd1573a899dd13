//! The NATS sink: publishes to JetStream. <https://docs.nats.io/using-nats/developer/develop_jetstream/publish>
//!
//! - Key: header `idempotency-key`. `Nats-Msg-Id` is `<namespace>/<key>`, by which a stream drops repeats within its
//!   `duplicate_window`, across every subject that it takes.
//! - Accepted when a stream acknowledges the message, also as a duplicate. Rejected: what is over `max_payload` or over
//!   the stream's own limit for one message, an invalid or reserved subject, a header that NATS cannot carry. All else
//!   is `Retry`; a subject that no stream takes (no responders) is the destination's fault.
//! - One connection. It never reconnects by itself, since the client library would then send what was answered `Retry`
//!   long ago: a lost connection is given up with all that it held, and the next publish makes a new one.
//! - Acknowledgements come to an inbox of our own and are matched by `<inbox>.<call>.<index>`: the library's own
//!   requests keep an entry for ever for each one that is never answered.
//! - What is unanswered at once is bounded, and one subject has a quarter of that at most: a subject on which something
//!   listens that never answers does not hold up the others.

mod credentials;
mod inbox;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::{ServerAddr, StatusCode, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use credentials::Credentials;
use futures_util::stream::BoxStream;
use inbox::{Connection, MOST_UNDER_WAY, Place, Reply, Route};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{self, Connection as _, Door, Link};
use crate::target::address;
use crate::tls::Tls;
use crate::{Fault, Message, Outcome, Sink, SinkError, Trouble};

/// What may be unanswered at once, in units of 4 KiB: 16 MiB, and 4096 messages, since each takes a unit at least. That
/// is some 25 ms of a fast server's work.
const WINDOW_UNITS: usize = MOST_UNDER_WAY;
const UNIT: usize = 4096;

/// What of the window one subject can take, over all calls.
const SHARE_UNITS: usize = WINDOW_UNITS / 4;

/// Asks for the account's JetStream limits: answered wherever JetStream is on, and writes nothing.
const INFO_SUBJECT: &str = "$JS.API.INFO";

/// A sink that publishes to NATS JetStream.
pub struct NatsSink {
    inner: Arc<Inner>,
}

struct Inner {
    place: Place,
    tls: Tls,
    address: String,
    answer_timeout: Duration,
    namespace: String,
    window: Arc<Semaphore>,
    shares: Shares,
    link: Link<Connection>,
    door: Door,
}

impl NatsSink {
    /// A sink for a server or a cluster; connects when it is first used.
    ///
    /// # Errors
    /// [`SinkError::Config`] when the URL has a path or a host that is none, when it has a user besides a credentials file,
    /// when that cannot be used, or when there is nobody to trust over TLS.
    pub fn new(config: &SinkConfig) -> Result<NatsSink, SinkError> {
        let target = config.target();
        if !target.path.is_empty() {
            return Err(SinkError::Config(format!("the URL of a nats sink has no path: `{}`", target.address())));
        }
        let credentials = match config.credentials_file() {
            None => Credentials::User(target.user.clone(), target.password.clone()),
            Some(_) if target.user.is_some() || target.password.is_some() => {
                let words = "a nats sink logs in by its `credentials_file` or as the user in its URL, not both";
                return Err(SinkError::Config(words.to_owned()));
            }
            Some(file) => Credentials::File(file.to_owned()),
        };
        credentials.check().map_err(|words| SinkError::Config(format!("`credentials_file`: {words}")))?;
        // Made here where it is needed for sure; a server may require TLS all the same.
        let tls = target.scheme.tls || config.tls().ca_file().is_some();
        let place = Place {
            servers: Vec::new(),
            credentials,
            tls: tls.then(|| config.tls().client_config()).transpose()?,
            tls_required: target.scheme.tls,
        };
        let server = |(host, port): &(String, u16)| {
            let address = address(host, *port);
            let wrong = |_| SinkError::Config(format!("`{address}` is no address of a NATS server"));
            format!("nats://{address}").parse::<ServerAddr>().map_err(wrong)
        };
        let inner = Inner {
            place: Place { servers: target.hosts.iter().map(server).collect::<Result<_, _>>()?, ..place },
            tls: config.tls().clone(),
            address: target.address(),
            answer_timeout: config.answer_timeout(),
            namespace: config.namespace().to_owned(),
            window: Arc::new(Semaphore::new(WINDOW_UNITS)),
            shares: Shares::default(),
            link: Link::new(),
            door: Door::new(),
        };
        Ok(NatsSink { inner: Arc::new(inner) })
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (inner, deadline) = (Arc::clone(&self.inner), link::deadline(self.inner.answer_timeout));
        Answers::stream(batch.len(), move |answers| async move {
            let _pass = match inner.door.enter() {
                Ok(pass) => pass,
                Err(trouble) => return answers.give_up(trouble.fault, &trouble.words),
            };
            let connection = match timeout_at(deadline, inner.link.get(inner.connect())).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(trouble)) => return answers.give_up(trouble.fault, &trouble.words),
                Err(_) => return answers.give_up(Fault::Sink, &inner.no_answer()),
            };
            let mut call = Call::new(&inner, &connection, &batch, answers.clone());
            if timeout_at(deadline, call.run()).await.is_err() {
                for (index, words) in call.strange.drain() {
                    answers.set(index, Outcome::Retry(Trouble::open(Fault::Destination, words)));
                }
                answers.give_up(Fault::Unclear, &inner.no_answer());
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let unreachable = |words| SinkError::Unreachable { address: self.inner.address.clone(), words };
        self.inner.door.look().map_err(|trouble| unreachable(trouble.words))?;
        let asked = timeout_at(link::deadline(self.inner.answer_timeout), async {
            let connection = self.inner.link.get(self.inner.connect()).await.map_err(|trouble| trouble.words)?;
            let mut route = connection.open();
            let (client, reply) = (&connection.client, connection.reply(route.call, 0));
            client.publish_with_reply(INFO_SUBJECT, reply, Bytes::new()).await.map_err(|error| error.to_string())?;
            match route.replies.recv().await {
                Some(Reply::Message(_, message)) => jetstream_is_on(&message),
                // The server has answered; asking for limits is simply not among what this user may do.
                Some(Reply::Denied(..)) => Ok(()),
                None => Err(connection.end_words()),
            }
        });
        let answered = asked.await.unwrap_or_else(|_| Err(self.inner.no_answer()));
        answered.map_err(unreachable)
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        let until = Instant::now() + deadline;
        let shut = self.inner.door.shut(deadline).await;
        self.inner.link.close(until).await;
        shut
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    fn kind(&self) -> &'static str {
        "nats"
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_subject(destination)
    }
}

/// The share of the window of each subject that something is under way to.
#[derive(Default)]
struct Shares(Mutex<HashMap<String, Weak<Semaphore>>>);

impl Shares {
    fn of(&self, subject: &str) -> Arc<Semaphore> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(subject).and_then(Weak::upgrade) {
            return share;
        }
        // Those that nobody holds go before there would be room for more.
        if shares.len() == shares.capacity() {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(SHARE_UNITS));
        shares.insert(subject.to_owned(), Arc::downgrade(&share));
        share
    }
}

/// What a message takes of the window until it is answered: of its subject's share, and of the whole.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// One publish: hands messages over within the window and takes in their answers.
struct Call<'a> {
    inner: &'a Inner,
    connection: &'a Connection,
    batch: &'a [Message],
    answers: Answers,
    route: Route,
    /// Room in the window of each message that is under way.
    held: Vec<Option<Room>>,
    /// Answers that are no acknowledgement: something other than a stream listens on the subject.
    strange: HashMap<usize, String>,
}

impl<'a> Call<'a> {
    fn new(inner: &'a Inner, connection: &'a Connection, batch: &'a [Message], answers: Answers) -> Call<'a> {
        let route = connection.open();
        let held = batch.iter().map(|_| None).collect();
        Call { inner, connection, batch, answers, route, held, strange: HashMap::new() }
    }

    async fn run(&mut self) {
        let mut subject = Subject::from("");
        let mut share = self.inner.shares.of("");
        for (index, message) in self.batch.iter().enumerate() {
            let headers =
                match check_subject(&message.destination).and_then(|()| header_map(&self.inner.namespace, message)) {
                    Ok(headers) => headers,
                    Err(words) => {
                        self.answers.set(index, Outcome::Reject(words));
                        continue;
                    }
                };
            if subject.as_str() != message.destination {
                subject = Subject::from(message.destination.as_str());
                share = self.inner.shares.of(&subject);
            }
            self.held[index] = self.room(&share, size(message)).await;
            if self.route.lost || !self.connection.alive() {
                return self.finish().await;
            }
            let reply = self.connection.reply(self.route.call, index);
            self.answers.handed(index + 1);
            let payload = message.payload.clone();
            let client = &self.connection.client;
            let handed = client.publish_with_reply_and_headers(subject.clone(), reply, headers, payload).await;
            if let Err(error) = handed {
                self.refused(index, &error);
            }
        }
        self.finish().await;
    }

    /// Waits for room in the window for a message of this size, and takes in answers meanwhile, which make some. Ends
    /// without when the connection is lost.
    async fn room(&mut self, share: &Arc<Semaphore>, size: usize) -> Option<Room> {
        while let Ok(reply) = self.route.replies.try_recv() {
            self.take(reply);
        }
        let units = size.div_ceil(UNIT).clamp(1, SHARE_UNITS);
        let units = u32::try_from(units).expect("at most the window");
        let own = self.acquire(share, units).await?;
        let window = Arc::clone(&self.inner.window);
        let whole = self.acquire(&window, units).await?;
        Some((own, whole))
    }

    async fn acquire(&mut self, room: &Arc<Semaphore>, units: u32) -> Option<OwnedSemaphorePermit> {
        let mut acquiring = pin!(Arc::clone(room).acquire_many_owned(units));
        loop {
            tokio::select! {
                biased;
                permit = &mut acquiring => return Some(permit.expect("the window is never closed")),
                () = self.next_reply() => if self.route.lost { return None },
            }
        }
    }

    async fn next_reply(&mut self) {
        match self.route.replies.recv().await {
            Some(reply) => self.take(reply),
            None => self.route.lost = true,
        }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Message(index, message) if index < self.batch.len() => match outcome(&message) {
                Ok(outcome) => self.set(index, outcome),
                Err(words) => {
                    self.held[index] = None;
                    self.strange.insert(index, words);
                }
            },
            Reply::Message(..) => {}
            Reply::Denied(subject, words) => {
                for index in 0..self.batch.len() {
                    if self.held[index].is_some() && self.batch[index].destination == subject {
                        let trouble = Trouble::definite(Fault::Destination, words.clone());
                        self.set(index, Outcome::Retry(trouble));
                    }
                }
            }
        }
    }

    /// The library did not take the message.
    fn refused(&mut self, index: usize, error: &async_nats::client::PublishError) {
        let limit = self.connection.client.max_payload();
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => {
                self.set(index, Outcome::Reject(format!("headers and payload are over the server's {limit} bytes")));
            }
            PublishErrorKind::InvalidSubject => {
                self.set(index, Outcome::Reject(format!("`{}` is no subject", self.batch[index].destination)));
            }
            PublishErrorKind::Send => {
                self.set(index, Outcome::Retry(Trouble::definite(Fault::Sink, self.connection.end_words())));
            }
        }
    }

    /// Takes in answers until there is one for each message, or none can come any more.
    async fn finish(&mut self) {
        while !self.answers.complete() && !self.route.lost {
            self.next_reply().await;
        }
        self.answers.give_up(Fault::Sink, &self.connection.end_words());
    }

    fn set(&mut self, index: usize, outcome: Outcome) {
        self.held[index] = None;
        self.answers.set(index, outcome);
    }
}

/// About how many bytes the message takes on the wire; 256 for the headers that are always there.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    message.payload.len() + own + 2 * message.key.len() + message.destination.len() + 256
}

/// A subject to publish to: tokens that are neither empty nor wildcards, and not the server's own.
fn check_subject(subject: &str) -> Result<(), String> {
    let good = |token: &str| {
        !token.is_empty()
            && token != "*"
            && token != ">"
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if !subject.split('.').all(good) {
        return Err(format!("`{}` is no subject that can be published to", subject.escape_debug()));
    }
    // Else a task could ask JetStream to delete a stream.
    if ["$JS.", "$SYS.", "_INBOX."].iter().any(|own| subject.starts_with(own)) {
        return Err(format!("`{subject}` is a subject of the server's own"));
    }
    Ok(())
}

fn header_map(namespace: &str, message: &Message) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    let value = |value: &str| value.parse::<HeaderValue>().map_err(|error| error.to_string());
    map.insert(NATS_MESSAGE_ID, value(&format!("{namespace}/{}", message.key))?);
    for (name, text) in message.all_headers() {
        let known: HeaderName =
            name.parse().map_err(|_| format!("`{}` is no name of a header", name.escape_debug()))?;
        map.append(known, value(&text)?);
    }
    Ok(map)
}

/// What a stream says of a message it was offered.
#[derive(Deserialize)]
struct Ack<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
}

/// An error of JetStream; <https://github.com/nats-io/nats-server/blob/main/server/errors.json> has them all.
#[derive(Deserialize)]
struct ApiError<'a> {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u16,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// What an answer says of its message: the only classifier. An error is an answer that is no acknowledgement.
fn outcome(reply: &async_nats::Message) -> Result<Outcome, String> {
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        let words = "no responders: no stream takes this subject, or it has no leader";
        return Ok(Outcome::Retry(Trouble::definite(Fault::Destination, words)));
    }
    let ack = serde_json::from_slice::<Ack<'_>>(&reply.payload).ok();
    let strange = || "something other than a stream answers on this subject".to_owned();
    let ack = ack.filter(|ack| ack.error.is_some() || (ack.seq > 0 && !ack.stream.is_empty())).ok_or_else(strange)?;
    Ok(ack.error.map_or(Outcome::Accepted, |error| refusal(&error)))
}

fn refusal(error: &ApiError<'_>) -> Outcome {
    let mut words = error.description.clone().into_owned();
    // Writing to a string cannot fail.
    write!(words, " ({} {})", error.code, error.err_code).ok();
    let retry = |fault, definite| Outcome::Retry(Trouble { fault, definite, words: words.clone() });
    match error.err_code {
        // Message size, or header size, exceeds the maximum.
        10054 | 10097 => Outcome::Reject(words),
        // The stream is full and discards new messages. What else makes its store fail may have been stored elsewhere.
        10077 => retry(Fault::Destination, error.description.contains("maximum")),
        // Sealed; offline; the stream, message id, sequence or subject sequence that was expected is not there.
        10109 | 10118 | 10060 | 10070 | 10071 | 10164 => retry(Fault::Destination, true),
        // Resources of the account, the server's store or memory; JetStream off, off for the account, or unavailable.
        10002 | 10023 | 10028 | 10047 | 10076 | 10039 | 10008 => retry(Fault::Sink, true),
        // Too many messages under way inside the server.
        10167 => retry(Fault::Unclear, true),
        // The same message is being stored already.
        10158 | 10201 => retry(Fault::Unclear, false),
        // What no code tells comes from replication: it may be stored after all.
        _ => retry(Fault::Destination, false),
    }
}

fn jetstream_is_on(reply: &async_nats::Message) -> Result<(), String> {
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return Err("the server has no JetStream".to_owned());
    }
    match serde_json::from_slice::<Ack<'_>>(&reply.payload).ok().and_then(|ack| ack.error) {
        Some(error) if matches!(error.err_code, 10039 | 10076) => Err(error.description.into_owned()),
        // Whatever else it says, it is there: streams take messages without the account's numbers too.
        _ => Ok(()),
    }
}

impl Inner {
    fn no_answer(&self) -> String {
        link::no_answer(&self.address, self.answer_timeout)
    }

    /// Connects to one of the servers and subscribes to an inbox, within half of the answer timeout.
    async fn connect(&self) -> Result<Connection, Trouble> {
        let limit = self.answer_timeout / 2;
        Connection::connect(&self.place, limit).await.map_err(|words| {
            let words = self.tls.explain(words);
            Trouble::definite(Fault::Sink, format!("cannot connect to `{}`: {words}", self.address))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: Option<StatusCode>, payload: &str) -> async_nats::Message {
        async_nats::Message {
            subject: Subject::from("_INBOX.x.1.0"),
            reply: None,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    fn refused(err_code: u16, description: &str) -> Outcome {
        let payload = format!(
            r#"{{"error":{{"code":400,"err_code":{err_code},"description":"{description}"}},"stream":"S","seq":0}}"#
        );
        outcome(&reply(None, &payload)).expect("an acknowledgement")
    }

    #[test]
    fn every_answer_has_its_outcome() {
        use Fault::{Destination, Sink, Unclear};
        for accepted in [r#"{"stream":"S","seq":1}"#, r#"{"stream":"S","seq":7,"duplicate":true,"domain":"d"}"#] {
            assert_eq!(outcome(&reply(None, accepted)), Ok(Outcome::Accepted));
        }
        let nobody = outcome(&reply(Some(StatusCode::NO_RESPONDERS), ""));
        assert!(matches!(nobody, Ok(Outcome::Retry(Trouble { fault: Destination, definite: true, .. }))));
        for strange in ["", "pong", "{}", "[]", r#"{"stream":"","seq":1}"#, r#"{"success":true}"#] {
            assert!(outcome(&reply(None, strange)).is_err(), "{strange}");
        }
        assert_eq!(
            refused(10054, "message size exceeds maximum allowed"),
            Outcome::Reject("message size exceeds maximum allowed (400 10054)".to_owned())
        );
        assert!(matches!(refused(10097, "header size exceeds maximum allowed of 64k"), Outcome::Reject(_)));
        for (err_code, description, fault, definite) in [
            (10077, "maximum messages exceeded", Destination, true),
            (10077, "maximum bytes exceeded", Destination, true),
            (10077, "store is closed", Destination, false),
            (10109, "invalid operation on sealed stream", Destination, true),
            (10118, "stream is offline", Destination, true),
            (10060, "expected stream does not match", Destination, true),
            (10070, "wrong last msg ID: x", Destination, true),
            (10071, "wrong last sequence: 1", Destination, true),
            (10164, "wrong last sequence", Destination, true),
            (10002, "resource limits exceeded for account", Sink, true),
            (10023, "insufficient resources", Sink, true),
            (10028, "insufficient memory resources available", Sink, true),
            (10047, "insufficient storage resources available", Sink, true),
            (10076, "jetstream not enabled", Sink, true),
            (10039, "jetstream not enabled for account", Sink, true),
            (10008, "JetStream system temporarily unavailable", Sink, true),
            (10167, "too many requests", Unclear, true),
            (10158, "duplicate message id is in process", Unclear, false),
            (10201, "duplicate message id is in process", Unclear, false),
            (10041, "raft error", Destination, false),
            (0, "raft: not leader", Destination, false),
            (65000, "something new", Destination, false),
        ] {
            let words = format!("{description} (400 {err_code})");
            let expected = Outcome::Retry(Trouble { fault, definite, words });
            assert_eq!(refused(err_code, description), expected);
        }
    }

    #[test]
    fn only_subjects_that_can_be_published_to_pass() {
        for good in ["a", "orders.timeout", "a.*b.>c", "$KV.bucket.key", "größe.1"] {
            assert_eq!(check_subject(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "a\tb", "a\r\nPING", "$JS.API.STREAM.DELETE.S"] {
            assert!(check_subject(bad).is_err(), "{bad}");
        }
    }
}
