//! A task as it waits in the timeline: what is written of it, and read; `layout.rs` says where what stands.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;

use super::layout::{ANCHOR, CREATED, FLAGS, RECURRING, REQUEUED, RESETS, REVISION, TAIL, TRACED, UPDATED, VERSION};
use super::{CatchUp, Key, Lane, Message, Payload, RetryPolicy, Schedule, Task, Traceparent, When};
use crate::clock::Timestamp;

/// How deep the values of a body may stand in one another: far deeper than a task's, also of a newer version. What is
/// damaged may seem deeper than a thread has stack for.
const DEEPEST: usize = 64;

/// A task as it waits in the timeline: what the server resolved, and what the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How often it was put with another content since it was created, from 1.
    pub revision: u32,
    /// When it was first put.
    pub created: Timestamp,
    /// When it was last replaced.
    pub updated: Timestamp,
    /// The time of the put that the schedule counts from.
    pub anchor: Timestamp,
    /// The lane it waits in.
    pub lane: Lane,
    /// Of a requeued occurrence, the key it is published with.
    pub requeued: Option<Key>,
    /// What the user asked for.
    pub task: Task,
    /// The trace of the request that put it; every copy of its messages carries it.
    pub trace: Option<Traceparent>,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Written by a version of punctual that this one does not know.
    #[error("the record has layout version {0}, this version reads 1")]
    Version(u8),
    /// Cut off, or not a record at all.
    #[error("the record is damaged: {0}")]
    Damaged(String),
}

impl Record {
    /// The record of a task put at `now` into `lane`.
    #[must_use]
    pub fn new(task: Task, lane: Lane, now: Timestamp) -> Record {
        Record { revision: 1, created: now, updated: now, anchor: now, lane, requeued: None, task, trace: None }
    }

    /// Whether more occurrences may follow: a requeued one is a one-shot, whatever its task's schedule.
    #[must_use]
    pub fn is_recurring(&self) -> bool {
        self.requeued.is_none() && self.task.schedule.is_recurring()
    }

    /// The record to bury when the occurrence with this key is dead, and which requeue puts back as it is: the same
    /// message, as a one-shot that keeps its key.
    #[must_use]
    pub fn buried(&self, key: Key) -> Record {
        Record { requeued: Some(key), ..self.clone() }
    }

    /// The bytes that stand in the timeline.
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

    /// Reads what [`encode`](Record::encode) wrote. The payload is a slice of `bytes`, not a copy.
    ///
    /// Fields of the body that this version does not know are left out.
    ///
    /// # Errors
    /// When it was written by a newer version, or is damaged.
    pub fn decode(bytes: &Bytes) -> Result<Record, RecordError> {
        let header = Header::read(bytes)?;
        let mut body = rmp_serde::Deserializer::from_read_ref(header.body);
        body.set_max_depth(DEEPEST);
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

/// A record's header, read where it stands: what scripts look at, without the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// How often the task was put with another content since it was created, from 1.
    pub revision: u32,
    /// When it was first put.
    pub created: Timestamp,
    /// When it was last replaced.
    pub updated: Timestamp,
    /// The time of the put that the schedule counts from.
    pub anchor: Timestamp,
    /// The name of the lane it waits in.
    pub lane: &'a str,
    /// Of a requeued occurrence, the key it is published with.
    pub key: Option<&'a str>,
    /// Lane and body, equal exactly when the same was asked for: what puts compare.
    pub tail: &'a [u8],
    /// The body.
    pub body: &'a [u8],
    /// The trace of the request that put it.
    pub trace: Option<Traceparent>,
    /// [`layout::RECURRING`](super::layout::RECURRING) and the others.
    pub flags: u8,
}

impl<'a> Header<'a> {
    /// Reads the header of an encoded record.
    ///
    /// # Errors
    /// When the record was written by a newer version, or is cut off.
    pub fn read(bytes: &'a [u8]) -> Result<Header<'a>, RecordError> {
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
        Ok(Header {
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

/// The record `new` as it stands in the place of `old`: `created` is kept, the revision is one more.
///
/// # Errors
/// When either cannot be read.
pub fn replacing(new: &[u8], old: &[u8]) -> Result<Bytes, RecordError> {
    Header::read(new)?;
    let old = Header::read(old)?;
    let mut bytes = BytesMut::from(new);
    bytes[REVISION].copy_from_slice(&old.revision.wrapping_add(1).to_be_bytes());
    bytes[CREATED].copy_from_slice(&old.created.as_millis().to_be_bytes());
    Ok(bytes.freeze())
}

/// Writes a name with one byte of length before it: lanes have up to 32 bytes, keys up to 216.
fn put_short(bytes: &mut BytesMut, name: &str) {
    bytes.put_u8(u8::try_from(name.len()).expect("names and keys are shorter than 256 bytes"));
    bytes.put_slice(name.as_bytes());
}

fn take_short(bytes: &[u8]) -> Result<(&str, &[u8]), RecordError> {
    let (length, rest) = bytes.split_first().ok_or_else(cut_off)?;
    let (name, rest) = rest.split_at_checked(usize::from(*length)).ok_or_else(cut_off)?;
    Ok((std::str::from_utf8(name).map_err(damaged)?, rest))
}

/// Parts what was asked for from the trace behind it. One that cannot be read counts as none: it only serves tracing,
/// and a newer version may keep others.
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

/// A [`Task`] whose payload is borrowed from the bytes it is read from, so that it needs no copy.
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
    #[serde(borrow, default)]
    payload: BodyPayload<'a>,
}

#[derive(Default, Deserialize)]
enum BodyPayload<'a> {
    #[default]
    Empty,
    Json(#[serde(borrow)] &'a serde_bytes::Bytes),
    Raw {
        #[serde(borrow)]
        bytes: &'a serde_bytes::Bytes,
        #[serde(default)]
        content_type: Option<String>,
    },
}

impl Body<'_> {
    /// The task; its payload is a slice of `whole`, in which the borrowed one stands.
    fn into_task(self, whole: &Bytes) -> Task {
        let message = self.message;
        let payload = match message.payload {
            BodyPayload::Empty => Payload::Empty,
            BodyPayload::Json(bytes) => Payload::Json(whole.slice_ref(bytes)),
            BodyPayload::Raw { bytes, content_type } => Payload::Raw { bytes: whole.slice_ref(bytes), content_type },
        };
        let (destination, key, headers) = (message.destination, message.key, message.headers);
        Task {
            schedule: self.schedule,
            message: Message { destination, key, headers, payload },
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
