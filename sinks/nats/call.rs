//! One publish to NATS: hands messages over within the window and collects their answers.

use std::collections::HashMap;
use std::pin::pin;

use async_nats::Subject;
use async_nats::client::PublishErrorKind;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};

use super::inbox::{NatsConnection, NatsReply, Route};
use super::verdict::outcome;
use super::{Nats, is_reserved};
use crate::answers::Answers;
use crate::link::Connection as _;
use crate::native::HeaderList;
use crate::networked::Broker as _;
use crate::window::{WindowPermit, WindowShare};
use crate::{Fault, Message, Outcome, Trouble};

/// One publish.
pub(super) struct NatsPublish<'a> {
    broker: &'a Nats,
    connection: &'a NatsConnection,
    batch: &'a [Message],
    answers: Answers,
    route: Route,
    /// The permit that each message under way holds.
    held: Vec<Option<WindowPermit>>,
    /// Answers that are no acknowledgements: the listener on the subject is not a stream.
    strange: HashMap<usize, String>,
}

impl<'a> NatsPublish<'a> {
    pub(super) fn new(
        broker: &'a Nats,
        connection: &'a NatsConnection,
        batch: &'a [Message],
        answers: Answers,
    ) -> NatsPublish<'a> {
        let route = connection.open();
        let held = batch.iter().map(|_| None).collect();
        NatsPublish { broker, connection, batch, answers, route, held, strange: HashMap::new() }
    }

    /// Ends when every message is answered, or no more answers can arrive.
    pub(super) async fn run(&mut self) {
        let mut subject = Subject::from("");
        let mut share = self.broker.window.share("", 1);
        for (index, message) in self.batch.iter().enumerate() {
            let headers = match self
                .broker
                .check_subject(&message.destination)
                .and_then(|()| header_map(&self.broker.namespace, message))
            {
                Ok(headers) => headers,
                Err(detail) => {
                    self.answers.set(index, Outcome::Reject(detail));
                    continue;
                }
            };
            if subject.as_str() != message.destination {
                subject = Subject::from(message.destination.as_str());
                share = self.broker.window.share(&message.destination, self.batch.len());
            }
            self.held[index] = self.permit(&mut share, size(message)).await;
            if self.route.closed || !self.connection.alive() {
                drop(share);
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
        // Let other publishes hand over their messages while this one waits for answers.
        drop(share);
        self.finish().await;
    }

    /// Waits for a permit of the window. Handles answers in the meantime, because they free permits. Returns `None` if the
    /// connection is lost.
    async fn permit(&mut self, share: &mut WindowShare, size: usize) -> Option<WindowPermit> {
        while let Ok(reply) = self.route.replies.try_recv() {
            self.take(reply);
        }
        let mut permit = pin!(self.broker.window.acquire(share, size));
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return Some(permit),
                () = self.next_reply() => if self.route.closed { return None },
            }
        }
    }

    async fn next_reply(&mut self) {
        match self.route.replies.recv().await {
            Some(reply) => self.take(reply),
            None => self.route.closed = true,
        }
    }

    fn take(&mut self, reply: NatsReply) {
        match reply {
            NatsReply::Message(index, message) if index < self.batch.len() => match outcome(&message) {
                Ok(outcome) => self.set(index, outcome),
                Err(detail) => {
                    self.held[index] = None;
                    self.strange.insert(index, detail);
                }
            },
            NatsReply::Message(..) => {}
            NatsReply::Denied(subject, detail) => {
                for index in 0..self.batch.len() {
                    if self.held[index].is_some() && self.batch[index].destination == subject {
                        let trouble = Trouble::definite(Fault::Destination, detail.clone());
                        self.set(index, Outcome::Retry(trouble));
                    }
                }
            }
        }
    }

    /// The client library did not take the message.
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

    /// Handles answers until every message has one, or no more can arrive.
    async fn finish(&mut self) {
        while !self.answers.complete() && !self.route.closed {
            self.next_reply().await;
        }
        self.answers.give_up(Fault::Sink, &self.connection.end_words());
    }

    /// The deadline has passed.
    pub(super) fn give_up(&mut self) {
        for (index, detail) in self.strange.drain() {
            self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Destination, detail)));
        }
        self.answers.give_up(Fault::Unanswered, &self.broker.peer.no_answer());
    }

    fn set(&mut self, index: usize, outcome: Outcome) {
        self.held[index] = None;
        self.answers.set(index, outcome);
    }
}

/// Approximate size of the message on the wire, in bytes; 256 for the fixed headers.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    message.payload.len() + own + message.native_bytes() + 2 * message.key.len() + message.destination.len() + 256
}

fn header_map(namespace: &str, message: &Message) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    let value = |value: &str| value.parse::<HeaderValue>().map_err(|error| error.to_string());
    let copy = if message.is_dead_copy() { "/dead" } else { "" };
    map.insert(NATS_MESSAGE_ID, value(&format!("{namespace}/{}{copy}", message.key))?);
    let native = HeaderList::of(message, Nats::KIND)?;
    let native =
        native.iter().filter_map(|(name, value)| Some((name.as_str(), String::from_utf8_lossy(value.as_deref()?))));
    for (name, text) in native.chain(message.all_headers()) {
        // Headers that begin with `kv-` delete keys of a key-value bucket, and the stream of a bucket can take ordinary
        // subjects, too. So they are allowed only for reserved subjects, which a sink must name explicitly.
        if name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("kv-")) && !is_reserved(&message.destination) {
            return Err(format!("`{name}` is a header of key-value buckets"));
        }
        let known: HeaderName =
            name.parse().map_err(|_| format!("`{}` is no name of a header", name.escape_debug()))?;
        map.append(known, value(&text)?);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::DEAD_REASON;

    /// Otherwise a stream would drop the requeued message as a duplicate of its copy.
    #[test]
    fn a_dead_letter_copy_has_its_own_deduplication_id() {
        let mut message = Message {
            key: "a:1".into(),
            task: "a".into(),
            due_ms: 1,
            attempt: 1,
            destination: "orders".into(),
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: bytes::Bytes::new(),
        };
        let named = |message: &Message, name: &str| header_map("n", message).unwrap().get(name).unwrap().to_string();
        assert_eq!(named(&message, "Nats-Msg-Id"), "n/a:1");
        message.headers.push((DEAD_REASON.to_owned(), "rejected".to_owned()));
        assert_eq!(
            (named(&message, "Nats-Msg-Id"), named(&message, "idempotency-key")),
            ("n/a:1/dead".into(), "a:1".into())
        );
    }
}
