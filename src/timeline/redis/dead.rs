//! The verbs that read dead occurrences.

use bytes::Bytes;

use super::RedisTimeline;
use super::reply::{Fields, broken};
use crate::clock::Timestamp;
use crate::task::{Key, Lane, Shard};
use crate::timeline::scripts::{self, Code};
use crate::timeline::{
    BrowseRequest, Browsed, Dead, DeadCursor, DeadRecord, MAX_BROWSED, MAX_BROWSED_BYTES, TimelineError,
};

impl RedisTimeline {
    pub(super) async fn browse_dead(&self, shard: Shard, request: &BrowseRequest) -> Result<Browsed, TimelineError> {
        let keys = self.keys(shard)?;
        let filter = &request.filter;
        let call = self
            .script(&scripts::BROWSE, keys, &[keys.dead(), keys.dead_records()])
            .again()
            .arg(or_nothing(request.after.as_ref().map(|cursor| cursor.buried)))
            .arg(request.after.as_ref().map(|cursor| cursor.key.to_string()).unwrap_or_default())
            .arg(or_nothing(filter.from))
            .arg(or_nothing(filter.to))
            .arg(filter.lane.as_ref().map(Lane::as_str).unwrap_or_default())
            .arg(filter.reason.as_deref().unwrap_or_default())
            .arg(request.max.clamp(1, MAX_BROWSED))
            .arg(MAX_BROWSED_BYTES)
            .arg(if request.whole { "1" } else { "" })
            .arg(&filter.prefix);
        let mut reply = self.call(call, None).await?;
        if reply.code != Code::Browsed {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let (buried, key) = (fields.optional_time()?, fields.optional_text()?);
        let last = match (buried, key) {
            (Some(buried), Some(key)) => Some(cursor(&key, buried)?),
            _ => None,
        };
        let mut found = fields.list()?;
        let mut dead = Vec::with_capacity(found.left() / 3);
        while found.left() > 0 {
            dead.push(one(&mut found, request.whole)?);
        }
        Ok(Browsed { dead, last })
    }

    pub(super) async fn show_dead(&self, shard: Shard, key: &Key) -> Result<Option<Dead>, TimelineError> {
        let keys = self.keys(shard)?;
        let call = self.script(&scripts::SHOW, keys, &[keys.dead(), keys.dead_records()]).again().arg(key.to_string());
        let mut reply = self.call(call, None).await?;
        match reply.code {
            Code::Unknown => Ok(None),
            Code::Shown => {
                let cursor = DeadCursor { buried: reply.fields().time()?, key: key.clone() };
                Ok(Some(Dead { cursor, dead_record: dead_record(&reply.fields().bytes()?) }))
            }
            _ => Err(reply.unexpected()),
        }
    }
}

/// A time as scripts take it, "" for none.
pub(super) fn or_nothing(time: Option<Timestamp>) -> String {
    time.map(|time| time.as_millis().to_string()).unwrap_or_default()
}

/// Reads key, burial time and entry.
fn one(fields: &mut Fields, whole: bool) -> Result<Dead, TimelineError> {
    let (key, buried, value) = (fields.text()?, fields.time()?, fields.bytes()?);
    Ok(Dead { cursor: cursor(&key, buried)?, dead_record: dead_record(&value).filter(|_| whole) })
}

fn cursor(key: &str, buried: Timestamp) -> Result<DeadCursor, TimelineError> {
    Ok(DeadCursor { buried, key: key.parse().map_err(|_| broken("an invalid key of a dead occurrence"))? })
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
