//! Reads a stream by a consumer group: `XREADGROUP GROUP <group> punctual`.
//! <https://redis.io/docs/latest/commands/xreadgroup/>
//!
//! - Stream and group exist already. All instances are the one consumer `punctual`, so no consumers of dead instances remain.
//! - An entry that is not acknowledged comes again, to any instance, once it has been idle for a minute (`XAUTOCLAIM`).
//! - The id of an entry begins with the time at which Redis took it, unless the producer chose the id.
//! - The field `payload` is the body; all others are headers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use redis::{Cmd, FromRedisValue, Value};
use tokio::time::{Instant, timeout};

use super::verdict::{detail, needs_new_connection};
use super::{RedisStreams, StreamsConnection};
use crate::link::{Connection as _, SharedConnection};
use crate::networked::Broker;
use crate::redis_access::cause;
use crate::source::{Incoming, Receipt, Source, SourceError, SourceOptions};
use crate::{Away, SinkConfig, SinkError};

/// The consumer of all instances.
const CONSUMER: &str = "punctual";

/// The field with the body.
const PAYLOAD: &str = "payload";

/// How long a read waits for an entry.
const BLOCK: Duration = Duration::from_secs(1);

/// Maximum number of entries of one read, so that its reply is not too large for most streams.
const MAX_COUNT: usize = 100;

/// How long an entry must be idle to be claimed, and how often such entries are looked for.
const MIN_IDLE: Duration = Duration::from_secs(60);
const CLAIM_INTERVAL: Duration = Duration::from_secs(15);

/// A stream and a consumer group.
pub(crate) struct StreamSource {
    streams: RedisStreams,
    stream: String,
    group: String,
    delete: bool,
    /// A read blocks its connection.
    reading: SharedConnection<StreamsConnection>,
    writing: SharedConnection<StreamsConnection>,
    /// Number of entries of the next read: halved when a connection is lost, because the reply may have been too large.
    count: AtomicUsize,
    claims: Mutex<IdleClaims>,
    /// The ids of entries that were read here and are not acknowledged yet. While the door waits they look idle.
    unacknowledged: Mutex<HashSet<String>>,
}

/// The search for idle entries.
struct IdleClaims {
    /// When it may go on.
    next: Instant,
    /// Where it goes on.
    cursor: String,
}

/// The fields of an entry, names and values in turn; `None` if the entry was deleted.
type Fields = Option<Vec<Vec<u8>>>;

/// A stream and its entries.
type Entries = (String, Vec<(String, Fields)>);

impl StreamSource {
    /// Reads the options. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if `from` does not name stream and group, or the URL cannot be used.
    pub(crate) fn new(config: &SinkConfig, options: &SourceOptions) -> Result<StreamSource, SinkError> {
        let Some((stream, group)) = options
            .from
            .rsplit_once('/')
            .filter(|(stream, group)| super::check_stream(stream).is_ok() && !group.is_empty())
        else {
            return Err(SinkError::option("from", "a stream and its consumer group are expected: `STREAM/GROUP`"));
        };
        Ok(StreamSource {
            streams: RedisStreams::new(config)?,
            stream: stream.to_owned(),
            group: group.to_owned(),
            delete: options.delete,
            reading: SharedConnection::new(),
            writing: SharedConnection::new(),
            count: AtomicUsize::new(MAX_COUNT),
            claims: Mutex::new(IdleClaims { next: Instant::now(), cursor: "0-0".to_owned() }),
            unacknowledged: Mutex::default(),
        })
    }

    /// Sends a command that may block for `block`.
    async fn ask<T: FromRedisValue>(
        &self,
        link: &SharedConnection<StreamsConnection>,
        command: &Cmd,
        block: Duration,
    ) -> Result<T, SourceError> {
        let peer = self.streams.peer();
        let connect = async { self.streams.connect().await.map_err(|away| peer.not_connected(away)) };
        let connection = link.get(connect).await?;
        let mut commands = connection.commands.connection.clone();
        let answer = timeout(block + peer.answer_timeout, commands.req_packed_command(command)).await;
        let value = match answer {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                connection.end();
                return Err(Away::from(format!("the connection to `{}` was lost: {error}", peer.address)).into());
            }
            Err(_) => {
                connection.end();
                return Err(Away::from(peer.no_answer()).into());
            }
        };
        if needs_new_connection(&value) {
            connection.end();
        }
        if let Value::ServerError(error) = &value {
            return Err(match error.code() {
                "NOGROUP" | "WRONGTYPE" | "NOPERM" | "ERR" => SourceError::Missing(detail(error)),
                code => Away::new(cause(code), detail(error)).into(),
            });
        }
        let unreadable = |error| SourceError::Missing(format!("the answer cannot be read: {error}"));
        redis::from_redis_value(value).map_err(unreadable)
    }

    /// Claims entries that an instance has read and not acknowledged for long, if it is time to look for them.
    async fn claim_idle(&self, count: usize) -> Result<Vec<Incoming>, SourceError> {
        let (now, cursor) = (Instant::now(), self.claims.lock().cursor.clone());
        if self.claims.lock().next > now {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("XAUTOCLAIM");
        command.arg(&self.stream).arg(&self.group).arg(CONSUMER).arg(MIN_IDLE.as_millis().to_string());
        command.arg(&cursor).arg("COUNT").arg(count);
        // Redis 7 adds the ids of deleted entries, which it has removed from the group.
        // Some of them may be acknowledged before the answer is read.
        let held = self.unacknowledged.lock().clone();
        let answer: Vec<Value> = self.ask(&self.reading, &command, Duration::ZERO).await?;
        let mut answer = answer.into_iter();
        let read =
            |value: Option<Value>| value.ok_or_else(|| SourceError::Missing("an answer without a cursor".into()));
        let broken = |error| SourceError::Missing(format!("the answer to XAUTOCLAIM cannot be read: {error}"));
        let cursor: String = redis::from_redis_value(read(answer.next())?).map_err(broken)?;
        let entries: Vec<Option<(String, Fields)>> = redis::from_redis_value(read(answer.next())?).map_err(broken)?;
        let mut claims = self.claims.lock();
        // At the end of the list it waits; until then it goes on at the next read.
        claims.next = if cursor == "0-0" { now + CLAIM_INTERVAL } else { now };
        claims.cursor = cursor;
        let others = entries.into_iter().flatten().filter(|(id, _)| !held.contains(id));
        Ok(others.filter_map(|(id, fields)| incoming(id, fields)).collect())
    }

    async fn read(&self, count: usize) -> Result<Vec<Incoming>, SourceError> {
        let idle = self.claim_idle(count).await?;
        if !idle.is_empty() {
            return Ok(idle);
        }
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.group).arg(CONSUMER).arg("COUNT").arg(count);
        command.arg("BLOCK").arg(BLOCK.as_millis().to_string()).arg("STREAMS").arg(&self.stream).arg(">");
        let streams: Option<Vec<Entries>> = self.ask(&self.reading, &command, BLOCK).await?;
        let entries = streams.into_iter().flatten().flat_map(|(_, entries)| entries);
        Ok(entries.filter_map(|(id, fields)| incoming(id, fields)).collect())
    }
}

/// The message of an entry, unless the entry was deleted.
fn incoming(id: String, fields: Fields) -> Option<Incoming> {
    let mut fields = fields?.into_iter();
    let (mut headers, mut body) = (Vec::new(), None);
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match String::from_utf8_lossy(&name).into_owned() {
            name if name == PAYLOAD => body = Some(Bytes::from(value)),
            name => headers.push((name, Bytes::from(value))),
        }
    }
    let time_ms = id.split('-').next().and_then(|time| time.parse().ok());
    // An entry always has a value, if only an empty one.
    let body = Some(body.unwrap_or_default());
    Some(Incoming { receipt: Receipt(id.clone()), place: id, time_ms, body, headers, ..Incoming::default() })
}

#[async_trait]
impl Source for StreamSource {
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let count = self.count.load(Ordering::Relaxed).clamp(1, max.clamp(1, MAX_COUNT));
        let read = self.read(count).await;
        match &read {
            Ok(read) => {
                self.unacknowledged.lock().extend(read.iter().map(|message| message.place.clone()));
                self.count.store((2 * count).min(MAX_COUNT), Ordering::Relaxed);
            }
            Err(SourceError::Away(_)) => self.count.store(count / 2, Ordering::Relaxed),
            Err(SourceError::Missing(_)) => {}
        }
        read
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError> {
        let ids: Vec<String> = receipts.into_iter().map(|receipt| receipt.0).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("XACK");
        command.arg(&self.stream).arg(&self.group).arg(&ids);
        let _number: i64 = self.ask(&self.writing, &command, Duration::ZERO).await?;
        {
            let mut held = self.unacknowledged.lock();
            ids.iter().for_each(|id| _ = held.remove(id));
        }
        if self.delete {
            let mut command = redis::cmd("XDEL");
            command.arg(&self.stream).arg(&ids);
            let _number: i64 = self.ask(&self.writing, &command, Duration::ZERO).await?;
        }
        Ok(())
    }

    async fn check(&self) -> Result<Vec<String>, SourceError> {
        let (stream, group) = (&self.stream, &self.group);
        let create = format!("create it: `XGROUP CREATE {stream} {group} 0 MKSTREAM`");
        let mut command = redis::cmd("XINFO");
        command.arg("GROUPS").arg(stream);
        let groups: Vec<Vec<Value>> = match self.ask(&self.writing, &command, Duration::ZERO).await {
            Err(SourceError::Missing(detail)) if detail.contains("no such key") => {
                return Err(SourceError::Missing(format!("there is no stream `{stream}`; {create}")));
            }
            groups => groups?,
        };
        // Each is a list of names and values: `name`, the name of the group, ...
        let named = Value::BulkString(group.clone().into_bytes());
        if groups.iter().any(|group| group.get(1) == Some(&named)) {
            return Ok(Vec::new());
        }
        Err(SourceError::Missing(format!("the stream `{stream}` has no group `{group}`; {create}")))
    }

    async fn close(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        tokio::join!(self.reading.close(until), self.writing.close(until));
    }

    fn kind(&self) -> &'static str {
        RedisStreams::KIND
    }
}
