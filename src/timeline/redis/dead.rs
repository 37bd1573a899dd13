//! The requests for dead occurrences.

use bytes::Bytes;

use super::call::Call;
use super::reply::{Fields, Reply, broken};
use super::request::Request;
use crate::clock::Timestamp;
use crate::task::{Key, Lane};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{
    BrowseRequest, Browsed, Dead, DeadCursor, DeadRecord, MAX_BROWSED, MAX_BROWSED_BYTES, RequeueAnswer, TimelineError,
};

/// Returns a dead occurrence to its lane.
pub(super) struct Requeue<'a> {
    pub(super) key: &'a Key,
    pub(super) died: Option<Timestamp>,
    pub(super) not_after: Timestamp,
}

impl Request for Requeue<'_> {
    type Answer = RequeueAnswer;

    const SCRIPT: &'static Script = &scripts::REQUEUE;
    const IS_FOR_USER: bool = true;
    /// When a call is sent twice, the first one may have requeued it.
    const UNSURE: &'static [Code] = &[Code::InFlight, Code::Unknown];

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        call.time("not_after", self.not_after)
            .arg("parent", self.key.task.as_str())
            .time("due", self.key.due)
            .time("died", self.died)
            .arg("wake", keys.wake())
            .lanes(lanes);
    }

    fn decode(&self, reply: Reply) -> Result<RequeueAnswer, TimelineError> {
        match reply.code {
            Code::Requeued => Ok(RequeueAnswer::Requeued),
            Code::InFlight => Ok(RequeueAnswer::InFlight),
            Code::Unknown => Ok(RequeueAnswer::Unknown),
            Code::Unreadable => Ok(RequeueAnswer::Unreadable),
            _ => Err(reply.unexpected()),
        }
    }
}

/// Deletes a dead occurrence.
pub(super) struct Discard<'a> {
    pub(super) key: &'a Key,
    pub(super) died: Option<Timestamp>,
    pub(super) not_after: Timestamp,
}

impl Request for Discard<'_> {
    type Answer = bool;

    const SCRIPT: &'static Script = &scripts::DISCARD;
    const IS_FOR_USER: bool = true;
    /// When a call is sent twice, the first one may have deleted it.
    const UNSURE: &'static [Code] = &[Code::Unknown];

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        call.time("not_after", self.not_after).arg("key", self.key.to_string()).time("died", self.died);
    }

    fn decode(&self, reply: Reply) -> Result<bool, TimelineError> {
        match reply.code {
            Code::Discarded => Ok(true),
            Code::Unknown => Ok(false),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Request for BrowseRequest {
    type Answer = Browsed;

    const SCRIPT: &'static Script = &scripts::BROWSE;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        let (filter, after) = (&self.filter, self.after.as_ref());
        call.time("after", after.map(|cursor| cursor.died))
            .arg("after_key", after.map(|cursor| cursor.key.to_string()).unwrap_or_default())
            .time("from", filter.from)
            .time("to", filter.to)
            .arg("lane", filter.lane.as_ref().map(Lane::as_str).unwrap_or_default())
            .arg("reason", filter.reason.as_deref().unwrap_or_default())
            .arg("max", self.max.clamp(1, MAX_BROWSED))
            .arg("max_bytes", MAX_BROWSED_BYTES)
            .flag("whole", self.whole)
            .arg("prefix", &filter.prefix);
    }

    fn decode(&self, mut reply: Reply) -> Result<Browsed, TimelineError> {
        if reply.code != Code::Browsed {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let (died, key) = (fields.optional_time()?, fields.optional_text()?);
        let last = match (died, key) {
            (Some(died), Some(key)) => Some(cursor(&key, died)?),
            _ => None,
        };
        let mut found = fields.list()?;
        let mut dead = Vec::with_capacity(found.left() / 3);
        while found.left() > 0 {
            dead.push(one(&mut found, self.whole)?);
        }
        Ok(Browsed { dead, last })
    }
}

/// Reads one dead occurrence.
pub(super) struct Show<'a> {
    pub(super) key: &'a Key,
}

impl Request for Show<'_> {
    type Answer = Option<Dead>;

    const SCRIPT: &'static Script = &scripts::SHOW;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        call.arg("key", self.key.to_string());
    }

    fn decode(&self, mut reply: Reply) -> Result<Option<Dead>, TimelineError> {
        match reply.code {
            Code::Unknown => Ok(None),
            Code::Shown => {
                let cursor = DeadCursor { died: reply.fields().time()?, key: self.key.clone() };
                Ok(Some(Dead { cursor, dead_record: dead_record(&reply.fields().bytes()?) }))
            }
            _ => Err(reply.unexpected()),
        }
    }
}

/// Reads key, time of death and entry.
fn one(fields: &mut Fields, whole: bool) -> Result<Dead, TimelineError> {
    let (key, died, value) = (fields.text()?, fields.time()?, fields.bytes()?);
    Ok(Dead { cursor: cursor(&key, died)?, dead_record: dead_record(&value).filter(|_| whole) })
}

fn cursor(key: &str, died: Timestamp) -> Result<DeadCursor, TimelineError> {
    Ok(DeadCursor { died, key: key.parse().map_err(|_| broken("an invalid key of a dead occurrence"))? })
}

/// Parses what `settle` wrote: four bytes of length, the record, the reason, a line break, the error text. Returns
/// `None` if it is damaged, so that one damaged entry does not hide the others.
fn dead_record(value: &Bytes) -> Option<DeadRecord> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (record, text) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let text = String::from_utf8_lossy(text);
    let (reason, detail) = text.split_once('\n')?;
    Some(DeadRecord { record: value.slice_ref(record), reason: reason.to_owned(), detail: detail.to_owned() })
}
