//! The NATS sink: publishes to JetStream. <https://docs.nats.io/using-nats/developer/develop_jetstream/publish>
//!
//! - Key: header `idempotency-key`. `Nats-Msg-Id` is `<namespace>/<key>`, by which a stream drops repeats within its
//!   `duplicate_window`, across every subject that it takes; of a copy of a dead message `<namespace>/<key>/dead`, since
//!   the message itself may come yet.
//! - Accepted when a stream acknowledges the message, also as a duplicate. Rejected: what is over `max_payload` or over
//!   the stream's own limit for one message, an invalid or reserved subject, a header that NATS cannot carry. All else
//!   is `Retry`; a subject that no stream takes (no responders) is the destination's fault.
//! - One connection. It never reconnects by itself, since the client library would then send what was answered `Retry`
//!   long ago: a lost connection is given up with all that it held, and the next publish makes a new one.
//! - Acknowledgements come to an inbox of our own and are matched by `<inbox>.<call>.<index>`: the library's own
//!   requests keep an entry for ever for each one that is never answered.
//! - What is unanswered at once is bounded, and one subject has a quarter of that at most: a subject on which something
//!   listens that never answers does not hold up the others.

mod call;
mod credentials;
mod inbox;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_nats::ServerAddr;
use async_trait::async_trait;
use bytes::Bytes;
use call::Call;
use credentials::Credentials;
use futures_util::stream::BoxStream;
use inbox::{Connection, MOST_UNDER_WAY, Place, Reply};
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{self, Door, Link};
use crate::target::address;
use crate::tls::Tls;
use crate::window::Window;
use crate::{Away, Cause, Fault, Message, Outcome, Sink, SinkError};

/// What may be unanswered at once, in units of 4 KiB: 16 MiB, and 4096 messages, since each takes a unit at least. That
/// is some 25 ms of a fast server's work.
const WINDOW_UNITS: usize = MOST_UNDER_WAY;
const UNIT: usize = 4096;

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
    window: Window,
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
            window: Window::new(WINDOW_UNITS, UNIT),
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
                Ok(Err(away)) => return answers.give_up(Fault::Sink, &away.words),
                Err(_) => return answers.give_up(Fault::Sink, &inner.no_answer()),
            };
            let mut call = Call::new(&inner, &connection, &batch, answers);
            if timeout_at(deadline, call.run()).await.is_err() {
                call.give_up();
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let refused = |words: String| Away::new(Cause::Refused, words);
        let address = &self.inner.address;
        self.inner.door.look().map_err(|trouble| refused(trouble.words).of_sink(address))?;
        let asked = timeout_at(link::deadline(self.inner.answer_timeout), async {
            let connection = self.inner.link.get(self.inner.connect()).await?;
            let mut route = connection.open();
            let (client, reply) = (&connection.client, connection.reply(route.call, 0));
            client.publish_with_reply(INFO_SUBJECT, reply, Bytes::new()).await.map_err(|error| error.to_string())?;
            match route.replies.recv().await {
                Some(Reply::Message(_, message)) => verdict::jetstream_is_on(&message).map_err(refused),
                // The server has answered; asking for limits is simply not among what this user may do.
                Some(Reply::Denied(..)) => Ok(()),
                None => Err(connection.end_words().into()),
            }
        });
        let answered = asked.await.unwrap_or_else(|_| Err(self.inner.no_answer().into()));
        answered.map_err(|away| away.of_sink(address))
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

impl Inner {
    fn no_answer(&self) -> String {
        link::no_answer(&self.address, self.answer_timeout)
    }

    /// Connects to one of the servers and subscribes to an inbox, within half of the answer timeout.
    async fn connect(&self) -> Result<Connection, Away> {
        let limit = self.answer_timeout / 2;
        Connection::connect(&self.place, limit).await.map_err(|away| {
            let words = self.tls.explain(away.words);
            Away { words, ..away }.behind(format!("cannot connect to `{}`: ", self.address))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
