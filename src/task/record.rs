//! The stored form of a task: encodes and decodes it. The offsets are in `layout.rs`.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;

use super::layout::{ANCHOR, CREATED, FLAGS, RECURRING, REQUEUED, RESETS, REVISION, TAIL, TRACED, UPDATED, VERSION};
use super::{CatchUp, Key, Lane, Message, Payload, RetryPolicy, Schedule, StoredHeaders, Task, Traceparent, When};
use crate::clock::Timestamp;

/// Maximum nesting depth of a body. It is far more than any task needs, even in a newer version. Without a maximum,
/// damaged bytes could overflow the stack of a thread.
const MAX_DEPTH: usize = 64;

/// A stored task: the part of the server, and the part of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of puts that created or replaced it, from 1.
    pub revision: u32,
    /// When it was first put.
    pub created: Timestamp,
    /// When it was last replaced.
    pub updated: Timestamp,
    /// The time of the put from which the schedule counts.
    pub anchor: Timestamp,
    /// The lane it waits in.
    pub lane: Lane,
    /// For a requeued occurrence: the key it is published with.
    pub requeued: Option<Key>,
    /// The user's part.
    pub task: Task,
    /// The trace of the request that put it. All its messages carry it.
    pub trace: Option<Traceparent>,
}

/// Why a record cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A newer version of punctual wrote it.
    #[error("the record has layout version {0}, this version reads 1")]
    Version(u8),
    /// It is truncated, or not a record.
    #[error("the record is damaged: {0}")]
    Damaged(String),
}

impl Record {
    /// The record of a task that is put at `now` into `lane`.
    #[must_use]
    pub fn new(task: Task, lane: Lane, now: Timestamp) -> Record {
        Record { revision: 1, created: now, updated: now, anchor: now, lane, requeued: None, task, trace: None }
    }

    /// Whether more occurrences may follow. A requeued occurrence is a one-shot, whatever the schedule of its task.
    #[must_use]
    pub fn is_recurring(&self) -> bool {
        self.requeued.is_none() && self.task.schedule.is_recurring()
    }

    /// The record to store when the occurrence with this key is dead; a requeue uses it as it is. It has the same
    /// message, as a one-shot that keeps its key.
    #[must_use]
    pub fn of_dead(&self, key: Key) -> Record {
        Record { requeued: Some(key), ..self.clone() }
    }

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(256 + self.task.message.payload.len());
        bytes.put_u8(VERSION);
        bytes.put_u8(self.flags());
        bytes.put_u32(self.revision);
        for time in [self.created, self.updated, self.anchor] {
            bytes.put_i64(time.as_millis());
        }
        put_short(&mut bytes, self.lane.as_str());
        if let Some(key) = &self.requeued {
            put_short(&mut bytes, &key.to_string());
        }
        let mut writer = bytes.writer();
        rmp_serde::encode::write_named(&mut writer, &self.task).expect("plain data, written to memory");
        let mut bytes = writer.into_inner();
        if let Some(trace) = &self.trace {
            bytes.put_slice(trace.as_bytes());
        }
        bytes.freeze()
    }

    /// Decodes the bytes of [`encode`](Record::encode). The payload is a slice of `bytes`, not a copy.
    ///
    /// Unknown fields of the body are ignored.
    ///
    /// # Errors
    /// If a newer version wrote it, or it is damaged.
    pub fn decode(bytes: &Bytes) -> Result<Record, RecordError> {
        let header = RecordHeader::read(bytes)?;
        let mut body = rmp_serde::Deserializer::from_read_ref(header.body);
        body.set_max_depth(MAX_DEPTH);
        let body = Body::deserialize(&mut body).map_err(damaged)?;
        Ok(Record {
            revision: header.revision,
            created: header.created,
            updated: header.updated,
            anchor: header.anchor,
            lane: header.lane.parse().map_err(damaged)?,
            requeued: header.key.map(str::parse).transpose().map_err(damaged)?,
            task: body.into_task(bytes),
            trace: header.trace,
        })
    }

    fn flags(&self) -> u8 {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        flag(self.is_recurring(), RECURRING)
            | flag(matches!(self.task.schedule.when, When::In(_)), RESETS)
            | flag(self.requeued.is_some(), REQUEUED)
            | flag(self.trace.is_some(), TRACED)
    }
}

/// The header of a record, decoded without the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader<'a> {
    /// Number of puts that created or replaced the task, from 1.
    pub revision: u32,
    /// When it was first put.
    pub created: Timestamp,
    /// When it was last replaced.
    pub updated: Timestamp,
    /// The time of the put from which the schedule counts.
    pub anchor: Timestamp,
    /// The lane it waits in.
    pub lane: &'a str,
    /// For a requeued occurrence: the key it is published with.
    pub key: Option<&'a str>,
    /// Lane and body, which are equal exactly when two puts are equal.
    pub tail: &'a [u8],
    /// The body.
    pub body: &'a [u8],
    /// The trace of the request that put it.
    pub trace: Option<Traceparent>,
    /// See [`layout::RECURRING`](super::layout::RECURRING) and the other flags.
    pub flags: u8,
}

impl<'a> RecordHeader<'a> {
    /// Decodes the header of a record.
    ///
    /// # Errors
    /// If a newer version wrote the record, or it is truncated.
    pub fn read(bytes: &'a [u8]) -> Result<RecordHeader<'a>, RecordError> {
        match bytes.first() {
            None => return Err(RecordError::Damaged("it is empty".into())),
            Some(&VERSION) => {}
            Some(&version) => return Err(RecordError::Version(version)),
        }
        let (fixed, tail) = bytes.split_at_checked(TAIL).ok_or_else(cut_off)?;
        let time =
            |at: Range<usize>| number::<8>(fixed, at).map(|number| Timestamp::from_millis(i64::from_be_bytes(number)));
        let flags = fixed[FLAGS];
        let (tail, trace) = take_trace(tail, flags)?;
        let (lane, rest) = take_short(tail)?;
        let (key, body) = match flags & REQUEUED {
            0 => (None, rest),
            _ => take_short(rest).map(|(key, body)| (Some(key), body))?,
        };
        Ok(RecordHeader {
            revision: u32::from_be_bytes(number(fixed, REVISION)?),
            created: time(CREATED)?,
            updated: time(UPDATED)?,
            anchor: time(ANCHOR)?,
            lane,
            key,
            tail,
            body,
            trace,
            flags,
        })
    }
}

/// The record that replaces `old`: it keeps `created`, and its revision is one more.
///
/// # Errors
/// If one of the two cannot be decoded.
pub fn replacing(new: &[u8], old: &[u8]) -> Result<Bytes, RecordError> {
    RecordHeader::read(new)?;
    let old = RecordHeader::read(old)?;
    let mut bytes = BytesMut::from(new);
    bytes[REVISION].copy_from_slice(&old.revision.wrapping_add(1).to_be_bytes());
    bytes[CREATED].copy_from_slice(&old.created.as_millis().to_be_bytes());
    Ok(bytes.freeze())
}

/// Writes a name behind one byte with its length. Lanes have up to 32 bytes, keys up to 216.
fn put_short(bytes: &mut BytesMut, name: &str) {
    bytes.put_u8(u8::try_from(name.len()).expect("names and keys are shorter than 256 bytes"));
    bytes.put_slice(name.as_bytes());
}

fn take_short(bytes: &[u8]) -> Result<(&str, &[u8]), RecordError> {
    let (length, rest) = bytes.split_first().ok_or_else(cut_off)?;
    let (name, rest) = rest.split_at_checked(usize::from(*length)).ok_or_else(cut_off)?;
    Ok((std::str::from_utf8(name).map_err(damaged)?, rest))
}

/// Splits the user's part from the trace behind it. A trace that cannot be decoded counts as none: it only serves
/// tracing, and a newer version may store other traces.
fn take_trace(tail: &[u8], flags: u8) -> Result<(&[u8], Option<Traceparent>), RecordError> {
    if flags & TRACED == 0 {
        return Ok((tail, None));
    }
    let (tail, trace) = tail.split_last_chunk().ok_or_else(cut_off)?;
    Ok((tail, Traceparent::from_bytes(*trace).ok()))
}

fn number<const N: usize>(bytes: &[u8], at: Range<usize>) -> Result<[u8; N], RecordError> {
    bytes.get(at).and_then(|slice| slice.try_into().ok()).ok_or_else(cut_off)
}

fn cut_off() -> RecordError {
    RecordError::Damaged("it is cut off".into())
}

fn damaged(error: impl std::fmt::Display) -> RecordError {
    RecordError::Damaged(error.to_string())
}

/// A [`Task`] whose payload is borrowed from the encoded bytes, so that it is not copied.
#[derive(Deserialize)]
struct Body<'a> {
    schedule: Schedule,
    #[serde(borrow)]
    message: BodyMessage<'a>,
    #[serde(default)]
    retry: Option<RetryPolicy>,
    #[serde(default)]
    catch_up: Option<CatchUp>,
}

#[derive(Deserialize)]
struct BodyMessage<'a> {
    #[serde(default)]
    destination: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    native: Option<StoredHeaders>,
    #[serde(borrow, default)]
    payload: BodyPayload<'a>,
}

#[derive(Default, Deserialize)]
enum BodyPayload<'a> {
    #[default]
    Empty,
    Tombstone,
    Json(#[serde(borrow)] &'a serde_bytes::Bytes),
    Raw {
        #[serde(borrow)]
        bytes: &'a serde_bytes::Bytes,
        #[serde(default)]
        content_type: Option<String>,
    },
}

impl Body<'_> {
    /// The task. Its payload is a slice of `whole`, which contains the borrowed one.
    fn into_task(self, whole: &Bytes) -> Task {
        let message = self.message;
        let payload = match message.payload {
            BodyPayload::Empty => Payload::Empty,
            BodyPayload::Tombstone => Payload::Tombstone,
            BodyPayload::Json(bytes) => Payload::Json(whole.slice_ref(bytes)),
            BodyPayload::Raw { bytes, content_type } => Payload::Raw { bytes: whole.slice_ref(bytes), content_type },
        };
        let (destination, key, headers, native) = (message.destination, message.key, message.headers, message.native);
        Task {
            schedule: self.schedule,
            message: Message { destination, key, headers, native, payload },
            retry: self.retry,
            catch_up: self.catch_up,
        }
    }
}

/// serde for byte strings as MessagePack `bin`.
pub(super) mod raw {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::task) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(in crate::task) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| Bytes::from(bytes.into_vec()))
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
