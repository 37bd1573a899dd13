//! The member `message`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::Limits;
use super::object::{self, Field, Object, Path};
use crate::task::{Message, Payload};

/// Maximum length of a destination, a key or a content type, in bytes; more than any broker accepts for a name.
const MAX_NAME_BYTES: usize = 1024;

/// Maximum length of a header's name, in bytes: RabbitMQ's short strings.
const MAX_HEADER_NAME_BYTES: usize = 255;

/// Names that punctual or a sink writes itself, and `cc` and `bcc`, by which RabbitMQ routes; case is ignored.
const RESERVED: [&str; 5] = ["idempotency-key", "payload", "content-type", "cc", "bcc"];
const RESERVED_PREFIXES: [&str; 2] = ["punctual-", "nats-"];

/// Parses a message.
pub(super) fn read(field: Field<'_, '_>, limits: &Limits) -> Option<Message> {
    let mut object = field.object()?;
    let destination = object.optional("destination", |field| name(field, 1));
    let key = object.optional("key", |field| name(field, 0));
    let headers = object.optional("headers", |field| headers(field, limits));
    let payload = payload(&mut object, limits);
    object.end();
    Some(Message { destination, key, headers: headers.unwrap_or_default(), native: None, payload })
}

/// Whether a text can be a destination, a key or a content type: 1 to 1024 bytes without control characters.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Parses a text of `low` to 1024 bytes without control characters.
fn name(field: Field<'_, '_>, low: usize) -> Option<String> {
    let text = field.text()?;
    if text.len() < low || text.len() > MAX_NAME_BYTES {
        let detail = format!("it has {} bytes, {low} to {MAX_NAME_BYTES} are allowed", text.len());
        return field.path.fault("bad_value", detail);
    }
    if text.chars().any(char::is_control) {
        return field.path.fault("bad_value", "it holds a control character");
    }
    Some(text.into_owned())
}

fn headers(field: Field<'_, '_>, limits: &Limits) -> Option<BTreeMap<String, String>> {
    let path = field.path;
    let members = field.object()?.into_members();
    if let Some((code, detail)) = too_many_headers(members.len(), limits) {
        path.fault::<()>(code, detail);
    }
    let mut headers = BTreeMap::new();
    let mut bytes = 0;
    for (name, raw) in members {
        let path = path.member(&name);
        check_header_name(&name, path);
        let Some(value) = Field { raw, path }.text() else { continue };
        if value.chars().any(char::is_control) {
            path.fault::<()>("bad_header", "the value holds a line break or another control character");
        }
        bytes += name.len() + value.len();
        headers.insert(name.clone().into_owned(), value.into_owned());
    }
    if let Some((code, detail)) = too_large_headers(bytes, limits) {
        path.fault::<()>(code, detail);
    }
    Some(headers)
}

/// The code and the detail of the fault, if a message has more headers than the limits allow.
fn too_many_headers(count: usize, limits: &Limits) -> Option<(&'static str, String)> {
    let detail = || format!("there are {count} headers, `limits.headers` allows {}", limits.headers);
    (count > limits.headers).then(|| ("too_many", detail()))
}

/// The code and the detail of the fault, if names and values of all headers have more bytes than the limits allow.
fn too_large_headers(bytes: usize, limits: &Limits) -> Option<(&'static str, String)> {
    let detail = || format!("all headers have {bytes} bytes, `limits.header_bytes` allows {}", limits.header_bytes);
    (bytes > limits.header_bytes).then(|| ("too_large", detail()))
}

/// The code and the detail of the first fault of so many headers, whose names and values have so many bytes together.
#[must_use]
pub fn unfit_headers(count: usize, bytes: usize, limits: &Limits) -> Option<(&'static str, String)> {
    too_many_headers(count, limits).or_else(|| too_large_headers(bytes, limits))
}

/// Whether a header can be one of a message: its name and value follow the rules, and punctual writes none of that name.
#[must_use]
pub fn is_header(name: &str, value: &str) -> bool {
    is_header_name(name) && !is_reserved(name) && !value.chars().any(char::is_control)
}

fn is_header_name(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_HEADER_NAME_BYTES).contains(&name.len()) && name.bytes().all(token)
}

/// Whether no message may have a header of this name: punctual or a sink writes it, or RabbitMQ routes by it.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    RESERVED.contains(&&*lower) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
}

fn check_header_name(name: &str, path: Path<'_>) {
    if !is_header_name(name) {
        let detail = format!(
            "`{}` is not a header name: 1 to {MAX_HEADER_NAME_BYTES} letters, digits and !#$%&'*+-.^_`|~",
            object::shown(name)
        );
        path.fault::<()>("bad_header", detail);
        return;
    }
    if is_reserved(name) {
        let detail = format!("`{}` is reserved: punctual, a sink or a broker uses it", object::shown(name));
        path.fault::<()>("reserved_header", detail);
    }
}

/// Parses `payload`, or `payload_base64` with an optional `content_type`, or `tombstone` with no payload or null, or
/// none of them.
fn payload(object: &mut Object<'_, '_>, limits: &Limits) -> Payload {
    let tombstone = object.optional("tombstone", |field| field.truth()).unwrap_or_default();
    let (path, json, raw) = (object.path, object.has("payload"), object.has("payload_base64"));
    if json && raw {
        path.fault::<()>("exclusive_fields", "only one of `payload` and `payload_base64` is allowed");
    }
    if object.has("content_type") && !raw {
        let detail = "`content_type` goes with `payload_base64` only; a `payload` is application/json";
        path.member("content_type").fault::<()>("not_applicable", detail);
    }
    let content_type = object.optional("content_type", |field| name(field, 1));
    let json = object.optional("payload", |field| {
        let json = field.raw.get();
        fits(json.len(), limits, field.path)?;
        Some(Payload::Json(Bytes::copy_from_slice(json.as_bytes())))
    });
    let raw = object.optional("payload_base64", |field| {
        let bytes = match STANDARD.decode(field.text()?.as_bytes()) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => return field.path.fault("bad_base64", format!("it is not standard base64: {error}")),
        };
        fits(bytes.len(), limits, field.path)?;
        Some(Payload::Raw { bytes, content_type })
    });
    let is_null = matches!(&json, Some(Payload::Json(bytes)) if &bytes[..] == b"null");
    if tombstone && (raw.is_some() || (json.is_some() && !is_null)) {
        let detail = "a tombstone has no payload, or the payload null";
        path.member("tombstone").fault::<()>("exclusive_fields", detail);
    }
    if tombstone { Payload::Tombstone } else { json.or(raw).unwrap_or_default() }
}

fn fits(bytes: usize, limits: &Limits, path: Path<'_>) -> Option<()> {
    if bytes > limits.payload {
        let detail = format!("the payload has {bytes} bytes, `limits.payload` allows {}", limits.payload);
        return path.fault("too_large", detail);
    }
    Some(())
}
