//! The NATS sink: publishes to JetStream. <https://docs.nats.io/using-nats/developer/develop_jetstream/publish>
//!
//! - The idempotency key travels as header `idempotency-key`. `Nats-Msg-Id` is `<namespace>/<key>`; a stream drops
//!   repeats of it within its `duplicate_window`, over all its subjects. The copy of a dead message has
//!   `<namespace>/<key>/dead`, because the message itself may be requeued.
//! - A message is accepted when a stream acknowledges it, also as a duplicate. It is rejected if it exceeds
//!   `max_payload` or the stream's own limit, has an invalid or reserved subject, or a header that NATS cannot carry.
//!   Every other outcome is `Retry`. A subject without a stream (no responders) is the destination's fault.
//! - There is one connection, which never reconnects by itself, because the client library would then send messages
//!   that were answered `Retry` long ago. A lost connection is dropped with all its messages, and the next publish
//!   makes a new one.
//! - Acknowledgements arrive in an inbox of our own and are matched by `<inbox>.<call>.<index>`. The library's own
//!   requests would keep an entry for ever for each missing answer.
//! - The number of unanswered messages is bounded, and one subject gets at most a quarter, so that a subject whose
//!   listener never answers does not block the others.

mod call;
mod credentials;
mod inbox;
mod read_messages;
pub(crate) mod source;
mod verdict;

use std::sync::Arc;

use async_nats::{ServerAddr, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use call::NatsPublish;
use credentials::Credentials;
use inbox::{MAX_UNDER_WAY, NatsAddress, NatsConnection, NatsReply};
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::networked::{Broker, Peer};
use crate::patterns::DestinationPatterns;
use crate::target::address;
use crate::tls::Tls;
use crate::window::Window;
use crate::{Away, Cause, DestinationState, Message, SinkError};

/// The limit of unanswered messages, in units of 4 KiB: 16 MiB, and 4096 messages because each takes at least one unit.
/// This is about 25 ms of a fast server's work.
const WINDOW_UNITS: usize = MAX_UNDER_WAY;
const UNIT_BYTES: usize = 4096;

/// Requests the JetStream limits of the account. Answered wherever JetStream is enabled; writes nothing.
const INFO_SUBJECT: &str = "$JS.API.INFO";

/// Requests the names of the streams that take a subject; writes nothing.
const STREAM_NAMES_SUBJECT: &str = "$JS.API.STREAM.NAMES";

/// A server or cluster with JetStream.
pub(crate) struct Nats {
    place: NatsAddress,
    tls: Tls,
    peer: Peer,
    namespace: String,
    /// The configured patterns of subjects. One that names a reserved subject explicitly allows it.
    destinations: Option<DestinationPatterns>,
    window: Window,
}

impl Nats {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the URL has a path or an invalid host, has a user in addition to a credentials file, if
    /// that file cannot be used, or if TLS has no trusted certificates.
    pub(crate) fn new(config: &SinkConfig) -> Result<Nats, SinkError> {
        let target = config.target();
        if !target.path.is_empty() {
            return Err(SinkError::url(format!("the URL of a nats sink has no path: `{}`", target.address())));
        }
        let credentials = match config.credentials_file() {
            None => Credentials::User(target.user.clone(), target.password.clone()),
            Some(_) if target.user.is_some() || target.password.is_some() => {
                let detail = "a nats sink logs in by its `credentials_file` or as the user in its URL, not both";
                return Err(SinkError::option("credentials_file", detail));
            }
            Some(file) => Credentials::File(file.to_owned()),
        };
        credentials
            .check()
            .map_err(|detail| SinkError::option("credentials_file", format!("`credentials_file`: {detail}")))?;
        // Built here if it is certainly needed; a server may require TLS in any case.
        let tls = target.scheme.tls || config.tls().ca_file().is_some();
        let place = NatsAddress {
            servers: Vec::new(),
            credentials,
            tls: tls.then(|| config.tls().client_config()).transpose()?,
            tls_required: target.scheme.tls,
        };
        let server = |(host, port): &(String, u16)| {
            let address = address(host, *port);
            let wrong = |_| SinkError::url(format!("`{address}` is no address of a NATS server"));
            format!("nats://{address}").parse::<ServerAddr>().map_err(wrong)
        };
        Ok(Nats {
            place: NatsAddress { servers: target.hosts.iter().map(server).collect::<Result<_, _>>()?, ..place },
            tls: config.tls().clone(),
            peer: Peer::new(config),
            namespace: config.namespace().to_owned(),
            destinations: config.destinations().cloned(),
            window: Window::new(WINDOW_UNITS, UNIT_BYTES),
        })
    }
}

#[async_trait]
impl Broker for Nats {
    type Connection = NatsConnection;

    const KIND: &'static str = "nats";

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        self.check_subject(destination)
    }

    /// Connects to one of the servers and subscribes to an inbox.
    async fn connect(&self) -> Result<NatsConnection, Away> {
        let connected = NatsConnection::connect(&self.place, self.peer.answer_timeout / 2).await;
        connected.map_err(|away| Away { detail: self.tls.explain(away.detail), ..away })
    }

    async fn publish(
        &self,
        connection: &Arc<NatsConnection>,
        batch: Vec<Message>,
        answers: &Answers,
        deadline: Instant,
    ) {
        let mut call = NatsPublish::new(self, connection, &batch, answers.clone());
        if timeout_at(deadline, call.run()).await.is_err() {
            call.give_up();
        }
    }

    async fn ask(&self, connection: &NatsConnection, _deadline: Instant) -> Result<(), Away> {
        match request(connection, INFO_SUBJECT, Bytes::new()).await? {
            NatsReply::Message(_, message) => {
                verdict::jetstream_is_on(&message).map_err(|detail| Away::new(Cause::Refused, detail))
            }
            // The server answered; this user may just not request the limits.
            NatsReply::Denied(..) => Ok(()),
        }
    }

    async fn look_for(
        &self,
        connection: &NatsConnection,
        subject: &str,
        _deadline: Instant,
    ) -> Result<DestinationState, Away> {
        let question = serde_json::json!({ "subject": subject }).to_string();
        Ok(match request(connection, STREAM_NAMES_SUBJECT, question.into()).await? {
            NatsReply::Message(_, message) => verdict::stream_state(&message),
            NatsReply::Denied(..) => {
                DestinationState::Unknown(format!("this user may not publish to {STREAM_NAMES_SUBJECT}"))
            }
        })
    }
}

/// Sends a request, and waits for its answer.
async fn request(connection: &NatsConnection, subject: impl Into<Subject>, payload: Bytes) -> Result<NatsReply, Away> {
    let subject: Subject = subject.into();
    let mut route = connection.open();
    let reply = connection.reply(route.call, 0);
    connection.client.publish_with_reply(subject, reply, payload).await.map_err(|error| error.to_string())?;
    route.replies.recv().await.ok_or_else(|| connection.end_words().into())
}

impl Nats {
    /// Checks a subject: no empty tokens or wildcards, and none of the server's own subjects, unless it is named.
    fn check_subject(&self, subject: &str) -> Result<(), String> {
        check_form(subject)?;
        // Otherwise a task could ask JetStream to delete a stream, change a key-value bucket, or answer another client.
        if is_reserved(subject)
            && !self.destinations.as_ref().is_some_and(|patterns| patterns.allow_explicitly(subject))
        {
            return Err(format!(
                "`{subject}` is reserved for the server and its services, like every subject that begins with `$` or `_`: only a sink whose `destinations` name it may publish to it"
            ));
        }
        Ok(())
    }
}

/// Whether a subject belongs to the server or its services.
fn is_reserved(subject: &str) -> bool {
    subject.starts_with(['$', '_'])
}

fn check_form(subject: &str) -> Result<(), String> {
    let good = |token: &str| {
        !token.is_empty()
            && token != "*"
            && token != ">"
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if !subject.split('.').all(good) {
        return Err(format!("`{}` is no subject that can be published to", subject.escape_debug()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nats(allowed: Option<&str>) -> Nats {
        let config = SinkConfig::parse("nats://127.0.0.1:1").unwrap();
        let allowed = allowed.map(|pattern| DestinationPatterns::new(vec![pattern.to_owned()]).unwrap());
        Nats::new(&config.with_destinations(allowed)).unwrap()
    }

    #[test]
    fn only_subjects_that_allow_a_publish_pass_the_check() {
        let any = nats(None);
        for good in ["a", "orders.timeout", "a.*b.>c", "a.$KV.b", "größe.1"] {
            assert_eq!(any.check_subject(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "a\tb", "a\r\nPING"] {
            assert!(any.check_subject(bad).is_err(), "{bad}");
        }
        for bad in [
            "$JS.API.STREAM.DELETE.S",
            "$SYS.REQ.SERVER.PING",
            "$KV.bucket.key",
            "$O.b.C.c",
            "$MQTT.x",
            "_INBOX.a",
            "_R_.a",
        ] {
            assert!(any.check_subject(bad).is_err(), "{bad}");
            assert!(nats(Some("*")).check_subject(bad).is_err(), "{bad}, which `*` does not name");
        }
        assert_eq!(nats(Some("$KV.bucket.*")).check_subject("$KV.bucket.key"), Ok(()));
        assert!(nats(Some("$KV.bucket.*")).check_subject("$KV.other.key").is_err());
    }
}
