//! Copies of messages that a door rejects, for the destination `rejected`.
//!
//! A copy has the body and the headers of the message, and says why it was rejected. If the broker refuses the copy,
//! the door sends it without body and headers. A consumer can mend a copy and send it again. A door that reads a copy
//! only acknowledges it.

use bytes::Bytes;
use punctual_sinks::source::Incoming;
use punctual_sinks::{Message, headers};

use super::dialects::Rejection;
use super::{ABOUT_TASK, Door};

/// Headers of a copy: the code, its explanation, and where the message was.
pub(super) const CODE: &str = "punctual-rejected";
const DETAIL: &str = "punctual-rejected-detail";
const FROM: &str = "punctual-rejected-from";

/// A copy has no header that begins like this: headers of another copy, and headers that are commands to NATS.
const NOT_COPIED_PREFIXES: [&str; 3] = [CODE, "nats-", "kv-"];

/// The copy of a message; `whole` is whether with body and headers.
pub(super) fn copy(door: &Door, destination: &str, message: &Incoming, why: &Rejection, whole: bool) -> Message {
    let mut copy = Message {
        // Brokers that deduplicate drop a second copy.
        key: format!("{}/{}/rejected", door.name, message.place),
        task: String::new(),
        due_ms: 0,
        attempt: 1,
        destination: destination.to_owned(),
        record_key: message.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()).map(str::to_owned),
        native: None,
        headers: Vec::new(),
        content_type: None,
        payload: Bytes::new(),
        is_tombstone: false,
    };
    if whole {
        let native = message.native.clone().map(|native| native.retain(is_copied).without_expiration().encode());
        // Native headers have those that are text, too.
        let as_text = if native.is_some() { &[] } else { message.headers.as_slice() };
        copy.native = native;
        for (name, value) in as_text {
            let (lower, value) = (name.to_ascii_lowercase(), String::from_utf8_lossy(value).into_owned());
            if lower == headers::CONTENT_TYPE {
                copy.content_type = Some(value);
            } else if is_copied(&lower) {
                copy.headers.push((name.clone(), value));
            }
        }
        copy.payload = message.body.clone().unwrap_or_default();
    }
    let from = format!("{} {}", door.from, message.place);
    for (name, value) in [(CODE, why.code), (DETAIL, why.detail.as_str()), (FROM, from.as_str())] {
        copy.headers.push((name.to_owned(), value.to_owned()));
    }
    copy
}

/// Whether a copy has this header, by its name in lower case. The sink writes the payload, and what is about a task.
fn is_copied(name: &str) -> bool {
    !ABOUT_TASK.contains(&name) && name != "payload" && !NOT_COPIED_PREFIXES.iter().any(|of| name.starts_with(of))
}
