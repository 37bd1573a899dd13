//! The member `message`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::Limits;
use super::object::{self, Faults, Object, Place};
use crate::task::{Message, Payload};

/// Bytes of a destination, a key or a content type at most: more than any broker takes for a name.
const LONGEST_NAME: usize = 1024;

/// Bytes of a header's name at most: RabbitMQ's short strings.
const LONGEST_HEADER_NAME: usize = 255;

/// Names that punctual or a sink writes itself, in any case of letters.
const RESERVED: [&str; 5] = ["idempotency-key", "payload", "content-type", "cc", "bcc"];
const RESERVED_PREFIXES: [&str; 2] = ["punctual-", "nats-"];

/// Reads a message.
pub(super) fn read(raw: &RawValue, place: &Place<'_>, limits: &Limits, faults: &mut Faults) -> Option<Message> {
    let mut object = Object::read(raw, place, faults)?;
    let destination = object.may("destination", place, faults, |raw, place, faults| name(raw, 1, place, faults));
    let key = object.may("key", place, faults, |raw, place, faults| name(raw, 0, place, faults));
    let headers = object.may("headers", place, faults, |raw, place, faults| headers(raw, place, limits, faults));
    let payload = payload(&mut object, place, limits, faults);
    object.end(place, faults);
    Some(Message { destination, key, headers: headers.unwrap_or_default(), payload })
}

/// A text of `low` to 1024 bytes without control characters.
fn name(raw: &RawValue, low: usize, place: &Place<'_>, faults: &mut Faults) -> Option<String> {
    let text = object::text(raw, place, faults)?;
    if text.len() < low || text.len() > LONGEST_NAME {
        let detail = format!("it has {} bytes, {low} to {LONGEST_NAME} are allowed", text.len());
        return faults.add(place, "bad_value", detail);
    }
    if text.chars().any(char::is_control) {
        return faults.add(place, "bad_value", "it holds a control character");
    }
    Some(text.into_owned())
}

fn headers(
    raw: &RawValue,
    place: &Place<'_>,
    limits: &Limits,
    faults: &mut Faults,
) -> Option<BTreeMap<String, String>> {
    let members = Object::read(raw, place, faults)?.into_members();
    if members.len() > limits.headers {
        let detail = format!("there are {} headers, {} are allowed", members.len(), limits.headers);
        faults.add::<()>(place, "too_many", detail);
    }
    let mut headers = BTreeMap::new();
    let mut bytes = 0;
    for (name, raw) in members {
        let place = place.member(&name);
        check_header_name(&name, &place, faults);
        let Some(value) = object::text(raw, &place, faults) else { continue };
        if value.chars().any(char::is_control) {
            faults.add::<()>(&place, "bad_header", "the value holds a line break or another control character");
        }
        bytes += name.len() + value.len();
        headers.insert(name.clone().into_owned(), value.into_owned());
    }
    if bytes > limits.header_bytes {
        let detail = format!("all headers together have {bytes} bytes, {} are allowed", limits.header_bytes);
        faults.add::<()>(place, "too_large", detail);
    }
    Some(headers)
}

fn check_header_name(name: &str, place: &Place<'_>, faults: &mut Faults) {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !(1..=LONGEST_HEADER_NAME).contains(&name.len()) || !name.bytes().all(token) {
        let detail = format!(
            "`{}` is not a header name: 1 to {LONGEST_HEADER_NAME} letters, digits and !#$%&'*+-.^_`|~",
            object::shown(name)
        );
        return faults.add(place, "bad_header", detail).unwrap_or(());
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&&*lower) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
        let detail = format!("`{}` is written by punctual or a sink itself", object::shown(name));
        faults.add::<()>(place, "reserved_header", detail);
    }
}

/// `payload`, or `payload_base64` with perhaps a `content_type`, or nothing.
fn payload(object: &mut Object<'_>, place: &Place<'_>, limits: &Limits, faults: &mut Faults) -> Payload {
    let (json, raw) = (object.has("payload"), object.has("payload_base64"));
    if json && raw {
        let detail = "only one of `payload` and `payload_base64` can stand here";
        faults.add::<()>(place, "exclusive_fields", detail);
    }
    if object.has("content_type") && !raw {
        let detail = "`content_type` goes with `payload_base64` only; a `payload` is application/json";
        faults.add::<()>(&place.member("content_type"), "not_applicable", detail);
    }
    let content_type = object.may("content_type", place, faults, |raw, place, faults| name(raw, 1, place, faults));
    let json = object.may("payload", place, faults, |raw, place, faults| {
        fits(raw.get().len(), limits, place, faults)?;
        Some(Payload::Json(Bytes::copy_from_slice(raw.get().as_bytes())))
    });
    let raw = object.may("payload_base64", place, faults, |raw, place, faults| {
        let bytes = match STANDARD.decode(object::text(raw, place, faults)?.as_bytes()) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => return faults.add(place, "bad_base64", format!("it is not standard base64: {error}")),
        };
        fits(bytes.len(), limits, place, faults)?;
        Some(Payload::Raw { bytes, content_type })
    });
    json.or(raw).unwrap_or_default()
}

fn fits(bytes: usize, limits: &Limits, place: &Place<'_>, faults: &mut Faults) -> Option<()> {
    if bytes > limits.payload {
        let detail = format!("the payload has {bytes} bytes, {} are allowed", limits.payload);
        return faults.add(place, "too_large", detail);
    }
    Some(())
}
