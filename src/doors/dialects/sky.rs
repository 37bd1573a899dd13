//! The dialect `sky`: records for the Kafka message scheduler of sky-uk, whose producers stay as they are.
//! <https://github.com/sky-uk/kafka-message-scheduler>
//!
//! - The record key is the id of the schedule. A record without a value cancels it.
//! - The value is the schedule: JSON with base64, or Avro's binary encoding without a schema.
//!   <https://avro.apache.org/docs/1.12.0/specification/#binary-encoding>
//! - The message has the key, value and headers of the schedule.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use punctual_sinks::native::HeaderList;
use punctual_sinks::source::Incoming;
use serde::Deserialize;

use super::foreign::ForeignTask;
use super::{Instruction, Rejection, id_of_record_key};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::task::When;

/// A message, and when it is due in epoch milliseconds.
#[derive(Debug, PartialEq, Eq)]
struct SkySchedule {
    time: i64,
    topic: String,
    key: Bytes,
    value: Option<Bytes>,
    headers: Vec<(String, Bytes)>,
}

/// Reads a record.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, record: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let id = id_of_record_key(door, record)?;
    let Some(body) = record.body.clone() else { return Ok(Instruction::Cancel(id)) };
    let bad = |detail: String| Rejection::new("bad_body", detail);
    let schedule = if body.first() == Some(&b'{') {
        of_json(&body).map_err(|error| bad(format!("the value is no schedule in JSON: {error}")))?
    } else {
        of_avro(body).ok_or_else(|| bad("the value is no schedule in JSON or in Avro".to_owned()))?
    };
    let SkySchedule { time, topic: destination, key, value, headers } = schedule;
    let Ok(key) = String::from_utf8(key.to_vec()) else {
        return Err(bad("the key of the message is no text in UTF-8".to_owned()));
    };
    let due = Timestamp::from_millis(time);
    if !due.is_valid_due() {
        let (first, last) = (Timestamp::MIN_DUE, Timestamp::MAX_DUE);
        return Err(Rejection::new("out_of_range", format!("`time` is {time}: not from {first} to {last}")));
    }
    let list = headers.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    let native = HeaderList::if_needed(door.source.kind(), list);
    let message = &Incoming { body: value, headers, native, ..record.clone() };
    let task = ForeignTask::new(door, intake, message, now, When::At(due), destination);
    ForeignTask { id: Some(id), key: Some(key), ..task }.put()
}

/// The same in JSON.
#[derive(Deserialize)]
struct JsonSchedule {
    time: i64,
    topic: String,
    key: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
}

fn of_json(body: &[u8]) -> Result<SkySchedule, String> {
    let schedule: JsonSchedule = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let decode = |text: String| STANDARD.decode(text).map(Bytes::from).map_err(|error| error.to_string());
    let headers = schedule.headers.unwrap_or_default().into_iter();
    Ok(SkySchedule {
        time: schedule.time,
        topic: schedule.topic,
        key: decode(schedule.key)?,
        value: schedule.value.map(decode).transpose()?,
        headers: headers.map(|(name, value)| Ok((name, decode(value)?))).collect::<Result<_, String>>()?,
    })
}

/// `None` if the bytes are not exactly a schedule.
fn of_avro(mut body: Bytes) -> Option<SkySchedule> {
    let time = long(&mut body)?;
    let topic = text(&mut body)?;
    let (key, value) = (string(&mut body)?, optional(&mut body)?);
    // Three versions of the scheduler write nothing, a map, or an optional map.
    let plain = || {
        let mut rest = body.clone();
        map(&mut rest).filter(|_| rest.is_empty())
    };
    let in_union = || {
        let mut rest = body.clone();
        let is_some = long(&mut rest)? == 1;
        map(&mut rest).filter(|_| is_some && rest.is_empty())
    };
    let headers = if body.is_empty() { Vec::new() } else { plain().or_else(in_union)? };
    Some(SkySchedule { time, topic, key, value, headers })
}

/// A whole number: seven bits in each byte, the lowest first, and the sign in the lowest bit.
fn long(bytes: &mut Bytes) -> Option<i64> {
    let mut number: u64 = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
        }
    }
    None
}

/// Bytes behind their length.
fn string(bytes: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(long(bytes)?).ok()?;
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

fn text(bytes: &mut Bytes) -> Option<String> {
    String::from_utf8(string(bytes)?.to_vec()).ok()
}

/// A union of null and bytes.
fn optional(bytes: &mut Bytes) -> Option<Option<Bytes>> {
    match long(bytes)? {
        0 => Some(None),
        1 => string(bytes).map(Some),
        _ => None,
    }
}

/// A map in blocks. The last one is empty; one with a number below 0 has its size behind it.
fn map(bytes: &mut Bytes) -> Option<Vec<(String, Bytes)>> {
    let mut entries = Vec::new();
    loop {
        let count = long(bytes)?;
        if count == 0 {
            return Some(entries);
        }
        if count < 0 {
            long(bytes)?;
        }
        for _ in 0..count.unsigned_abs() {
            entries.push((text(bytes)?, string(bytes)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule in Avro: 2026-11-21 12:01 UTC, the topic `orders`, the key `k`, and this end.
    fn avro(end: &[u8]) -> Bytes {
        // 1 795 262 460 000 is 3 590 524 920 000 with its sign, in groups of seven bits.
        [&b"\xc0\xc1\xd9\xdf\xbf\x68"[..], b"\x0corders", b"\x02k", end].concat().into()
    }

    #[test]
    fn a_schedule_in_avro_is_read_to_its_last_byte() {
        let header = |name: &str| (name.to_owned(), Bytes::from_static(b"v"));
        for (end, value, headers) in [
            (&b"\0"[..], None, vec![]),
            (b"\x02\x04hi", Some("hi"), vec![]),
            (b"\x02\x04hi\0", Some("hi"), vec![]),
            (b"\x02\x04hi\x02\x02a\x02v\0", Some("hi"), vec![header("a")]),
            // A block with its size.
            (b"\x02\x04hi\x03\x10\x02a\x02v\x02b\x02v\0", Some("hi"), vec![header("a"), header("b")]),
            // An optional map.
            (b"\x02\x04hi\x02\x02\x02a\x02v\0", Some("hi"), vec![header("a")]),
            (b"\x02\x04hi\x02\0", Some("hi"), vec![]),
        ] {
            let read = of_avro(avro(end)).unwrap_or_else(|| panic!("{end:?}"));
            let expected = SkySchedule {
                time: 1_795_262_460_000,
                topic: "orders".to_owned(),
                key: Bytes::from_static(b"k"),
                value: value.map(|text| Bytes::from_static(text.as_bytes())),
                headers,
            };
            assert_eq!(read, expected, "{end:?}");
        }
        let whole = avro(b"\x02\x04hi\x02\x02a\x02v\0");
        let cut = (0..whole.len()).filter(|length| of_avro(whole.slice(..*length)).is_some());
        assert_eq!(cut.collect::<Vec<_>>(), [avro(b"\x02\x04hi").len()], "only without headers");
        assert_eq!(of_avro(avro(b"\x02\x04hi\0\0")), None);
        assert_eq!(of_avro(Bytes::from_static(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")), None);
    }

    #[test]
    fn a_schedule_in_json_has_base64() {
        let json = br#"{"time": 1, "topic": "t", "key": "aw==", "value": "aGk=", "headers": {"a": "dg=="}, "more": 1}"#;
        let read = of_json(json).unwrap();
        assert_eq!((read.key, read.value), (Bytes::from_static(b"k"), Some(Bytes::from_static(b"hi"))));
        assert_eq!(read.headers, [("a".to_owned(), Bytes::from_static(b"v"))]);
        for headers in ["", r#", "headers": null"#] {
            let json = format!(r#"{{"time": 1, "topic": "t", "key": "", "value": null{headers}}}"#);
            assert!(of_json(json.as_bytes()).unwrap().value.is_none());
        }
        assert!(of_json(br#"{"time": 1, "topic": "t", "key": "?"}"#).is_err());
        assert!(of_json(b"{").is_err());
    }
}
