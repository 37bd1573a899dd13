//! The Redis Streams sink: `XADD <destination> *`, pipelined on one connection.
//! <https://redis.io/docs/latest/commands/xadd/>
//!
//! - The idempotency key travels as field `idempotency-key`. Field `payload` is the payload; every header is a field.
//! - A message is accepted when Redis has answered with the id of the entry. It is rejected if the destination is
//!   empty or starts with `punctual:`, or if the payload exceeds the server's `proto-max-bulk-len`. Every other outcome
//!   is `Retry`.
//! - Streams are not trimmed. Only one Redis node is supported; a cluster answers `MOVED`, which is the destination's
//!   fault.
//! - The connection is made when needed. It is replaced when it is lost, or when an answer such as `READONLY` or
//!   `NOAUTH` shows that another one might help. It is also replaced when a call times out and nothing was answered for
//!   half of the answer timeout, because a half-open socket gives no sign.

pub(crate) mod source;
mod verdict;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use self::verdict::{detail, needs_new_connection, outcome};
use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{self, Connection as _};
use crate::networked::{Broker, Peer};
use crate::redis_access::{Commands, RedisAccess, RedisSocket};
use crate::{Away, DestinationState, Fault, Message, Outcome, SinkError, headers};

/// A pipeline has at most 1000 commands or 1 MiB. One pipeline is encoded while Redis processes the one before. So the
/// encoded form of 4 MiB of large payloads is never in memory as a whole.
const PIPELINE_COMMANDS: usize = 1000;
const PIPELINE_BYTES: usize = 1 << 20;

/// 1 MiB is the minimum of `proto-max-bulk-len`, 512 MiB its default.
const MIN_BULK_BYTES: usize = 1 << 20;
const DEFAULT_BULK_BYTES: usize = 512 << 20;

/// The prefix of the scheduler's own keys, which are no valid destinations.
const OWN_KEYS: &str = "punctual:";

/// One Redis, or the master behind Sentinels.
pub(crate) struct RedisStreams {
    access: RedisAccess,
    peer: Peer,
}

impl RedisStreams {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`SinkError::Config`] if [`RedisAccess::new`] refuses the URL, or if there is a `sentinel_password` without
    /// Sentinels.
    pub(crate) fn new(config: &SinkConfig) -> Result<RedisStreams, SinkError> {
        let access = RedisAccess::new(config.target().clone(), config.tls())?;
        let access = access.with_sentinel_password(config.sentinel_password().cloned())?;
        let peer = Peer { address: access.address(), ..Peer::new(config) };
        Ok(RedisStreams { access, peer })
    }
}

#[async_trait]
impl Broker for RedisStreams {
    type Connection = StreamsConnection;

    const KIND: &'static str = "redis";

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_stream(destination)
    }

    /// Connects and logs in, within a third of the answer timeout.
    async fn connect(&self) -> Result<StreamsConnection, Away> {
        let answer_timeout = self.peer.answer_timeout;
        // No timeouts here, because each publish has its own deadline.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let probe = Duration::from_secs(1).max(answer_timeout / 4);
        // When the connection is given up, unanswered messages are already `Retry`, so unsent ones must not be sent
        // later.
        let socket = RedisSocket {
            probe_after: probe,
            probe_every: probe,
            acknowledged_in: answer_timeout,
            discard_unsent: true,
        };
        let commands = self.access.connect(socket, config, answer_timeout / 3).await?;
        tracing::debug!(address = %self.peer.address, "connected");
        Ok(StreamsConnection { commands, last_answer: Mutex::new(Instant::now()), max_bulk: OnceCell::new() })
    }

    async fn publish(
        &self,
        connection: &Arc<StreamsConnection>,
        batch: Vec<Message>,
        answers: &Answers,
        deadline: Instant,
    ) {
        if timeout_at(deadline, publish(connection, batch, answers)).await.is_err() {
            connection.end_if_silent_for(self.peer.answer_timeout / 2);
            answers.give_up(Fault::Unanswered, &self.peer.no_answer());
        }
    }

    async fn look_for(
        &self,
        connection: &StreamsConnection,
        stream: &str,
        deadline: Instant,
    ) -> Result<DestinationState, Away> {
        let (mut commands, mut kind) = (connection.commands.connection.clone(), redis::cmd("TYPE"));
        kind.arg(stream);
        match timeout_at(deadline, commands.req_packed_command(&kind)).await {
            // The first message makes the stream.
            Ok(Ok(Value::SimpleString(kind))) if ["none", "stream"].contains(&kind.as_str()) => {
                Ok(DestinationState::Exists)
            }
            Ok(Ok(Value::SimpleString(kind))) => {
                Ok(DestinationState::Missing(format!("the key is no stream but a {kind}")))
            }
            Ok(Ok(Value::ServerError(error))) => Ok(DestinationState::Unknown(detail(&error))),
            Ok(Ok(_)) => Ok(DestinationState::Unknown("Redis gave no type".to_owned())),
            Ok(Err(error)) => Err(error.to_string().into()),
            Err(_) => Err(self.peer.no_answer().into()),
        }
    }

    async fn ask(&self, connection: &StreamsConnection, deadline: Instant) -> Result<(), Away> {
        let (mut commands, ping) = (connection.commands.connection.clone(), redis::cmd("PING"));
        match timeout_at(deadline, commands.req_packed_command(&ping)).await {
            Ok(Ok(Value::ServerError(error))) => {
                Err(Away::new(crate::redis_access::cause(error.code()), detail(&error)))
            }
            Ok(Ok(_)) => {
                connection.answered();
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string().into()),
            Err(_) => {
                connection.end_if_silent_for(self.peer.answer_timeout / 2);
                Err(self.peer.no_answer().into())
            }
        }
    }
}

/// Sends the batch as pipelines, two of them under way, and answers each one when Redis has.
async fn publish(connection: &Arc<StreamsConnection>, batch: Vec<Message>, answers: &Answers) {
    // The server's limit is requested only if a payload may exceed it. On a payload above its limit the server closes
    // the connection, and its error is lost.
    let large = batch.iter().any(|message| message.payload.len() > MIN_BULK_BYTES);
    let max_bulk = if large { connection.max_bulk().await } else { MIN_BULK_BYTES };
    let mut messages: VecDeque<(usize, Message)> = batch.into_iter().enumerate().collect();
    let mut under_way = FuturesOrdered::new();
    while !messages.is_empty() || !under_way.is_empty() {
        // Order is kept: the connection sends pipelines in the order in which they are first polled.
        if under_way.len() < 2 && !messages.is_empty() {
            let (pipeline, indices) = next_pipeline(&mut messages, max_bulk, answers);
            if !indices.is_empty() {
                let connection = Arc::clone(connection);
                under_way.push_back(async move {
                    let mut commands = connection.commands.connection.clone();
                    let replies = commands.req_packed_commands(&pipeline, 0, indices.len()).await;
                    (replies, indices)
                });
            }
            if under_way.len() < 2 && !messages.is_empty() {
                continue;
            }
        }
        let Some((replies, indices)) = under_way.next().await else { continue };
        match replies {
            Ok(replies) => {
                connection.answered();
                // A new connection may lead to the new primary, or log in successfully.
                if replies.iter().any(needs_new_connection) {
                    connection.end();
                }
                for (index, reply) in indices.into_iter().zip(replies) {
                    answers.set(index, outcome(Ok(reply)));
                }
            }
            Err(error) => {
                connection.end();
                let outcome = outcome(Err(error));
                indices.into_iter().for_each(|index| answers.set(index, outcome.clone()));
                return answers.give_up(Fault::Sink, "the connection was lost");
            }
        }
    }
}

/// Takes messages off the front until a pipeline is full. Answers messages that must not be sent.
fn next_pipeline(
    messages: &mut VecDeque<(usize, Message)>,
    max_bulk: usize,
    answers: &Answers,
) -> (redis::Pipeline, Vec<usize>) {
    let mut pipeline = redis::Pipeline::new();
    let (mut indices, mut bytes) = (Vec::new(), 0);
    while let Some((index, message)) = messages.pop_front() {
        if let Some(detail) = unfit(&message, max_bulk) {
            answers.set(index, Outcome::Reject(detail));
            continue;
        }
        let size = size(&message);
        if !indices.is_empty() && (bytes + size > PIPELINE_BYTES || indices.len() == PIPELINE_COMMANDS) {
            messages.push_front((index, message));
            break;
        }
        bytes += size;
        pipeline.add_command(xadd(&message, size));
        indices.push(index);
        answers.handed(index + 1);
    }
    (pipeline, indices)
}

/// Checks that a key can be a user's stream.
fn check_stream(destination: &str) -> Result<(), String> {
    if destination.is_empty() || destination.starts_with(OWN_KEYS) {
        return Err(format!("`{destination}` cannot be a stream: it is empty or starts with `{OWN_KEYS}`"));
    }
    Ok(())
}

/// Why a message must not be sent.
fn unfit(message: &Message, max_bulk: usize) -> Option<String> {
    if let Err(detail) = check_stream(&message.destination) {
        return Some(detail);
    }
    let length = message.payload.len();
    (length > max_bulk).then(|| format!("{length} bytes are over the server's `proto-max-bulk-len` of {max_bulk}"))
}

/// Approximate size of the command, in bytes; 256 for names, lengths and the fixed fields.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    message.payload.len() + own + 2 * message.key.len() + message.destination.len() + 256
}

fn xadd(message: &Message, size: usize) -> redis::Cmd {
    let mut command = redis::Cmd::with_capacity(15 + 2 * message.headers.len(), size);
    command.arg("XADD").arg(&message.destination).arg("*");
    command.arg(headers::KEY).arg(&message.key).arg("payload").arg(&message.payload[..]);
    for (name, value) in message.all_headers().filter(|(name, _)| *name != headers::KEY) {
        command.arg(name).arg(value.as_bytes());
    }
    command
}

/// A connection, and when it was last answered.
pub(crate) struct StreamsConnection {
    commands: Commands,
    last_answer: Mutex<Instant>,
    max_bulk: OnceCell<usize>,
}

impl link::Connection for StreamsConnection {
    fn alive(&self) -> bool {
        self.commands.alive()
    }

    fn end(&self) {
        self.commands.end();
    }
}

impl StreamsConnection {
    fn answered(&self) {
        *self.last_answer.lock() = Instant::now();
    }

    /// The largest payload that the server accepts, requested once. The default if the server does not tell.
    async fn max_bulk(&self) -> usize {
        let ask = || async {
            let mut ask = redis::cmd("CONFIG");
            ask.arg("GET").arg("proto-max-bulk-len");
            let answer = ask.query_async::<(String, usize)>(&mut self.commands.connection.clone()).await;
            answer.map_or(DEFAULT_BULK_BYTES, |(_, limit)| limit)
        };
        *self.max_bulk.get_or_init(ask).await
    }

    /// Ends a connection without answers; one that answers other publishes is only slow.
    fn end_if_silent_for(&self, limit: Duration) {
        if self.last_answer.lock().elapsed() >= limit {
            self.end();
        }
    }
}
