//! `/v1/tasks`: puts a task whose id the server generates.
//!
//! With an `Idempotency-Key` the id follows from the key, so that a request can be repeated. While the task exists, a
//! repeated request changes nothing, and one with another body is refused. Without a key, every request creates a task.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{Extension, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use uuid::{NoContext, Uuid};

use super::caller::Caller;
use super::openapi::{self, BODY, LIMITED_PUT, TIMELINE};
use super::problem::Problem;
use super::server::body;
use super::tasks::PutView;
use super::{Api, tasks};
use crate::clock::Timestamp;
use crate::task::{Fault, TaskId};
use crate::timeline::PutMode;

/// The header that makes a request repeatable.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Maximum length of a key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// `POST`: creates the task. A repeated request with the same key changes nothing.
#[utoipa::path(
    post,
    path = "/v1/tasks",
    operation_id = "post_task",
    summary = "Put a task with a generated id",
    description = "With an `Idempotency-Key`, the id is derived from the key. While the task exists, a repeated \
        request is `unchanged`, also with `in`, and another body is refused. Without a key, every request \
        creates a task.",
    tag = "tasks",
    params(("idempotency-key" = Option<String>, Header, nullable = false, pattern = "^(\"[!-~]{1,255}\"|[!-~]{1,255})$", example = "order-1",
        description = "Makes the request repeatable; surrounding double quotes do not count."), body::Trace),
    request_body(content = openapi::task::TaskSchema,
        example = json!({"schedule": {"in": "15m"}, "message": {"destination": "orders.timeout", "payload": {"order": 1}}})),
    responses(
        (status = 201, body = PutView, description = "The task was created.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "0bafe221-56d2-898c-943b-86040446d366", "result": "created", "status": "scheduled",
                "due": "2026-11-21T12:15:00.000Z", "due_ms": 1_795_263_300_000_i64, "next": []})),
        (status = 200, body = PutView, description = "It exists already.",
            headers(("location" = String, description = "The path of the task.")),
            example = json!({"id": "0bafe221-56d2-898c-943b-86040446d366", "result": "unchanged", "status": "scheduled",
                "due": "2026-11-21T12:15:00.000Z", "due_ms": 1_795_263_300_000_i64, "next": []})),
    ),
    extensions(("x-codes" = json!([BODY, TIMELINE, LIMITED_PUT, &["busy", "in_flight", "key_reused"]].concat()))),
)]
pub(super) async fn post(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let prefix = caller.prefix();
    let id = key(request.headers()).map(|key| match key {
        // With the prefix, so that callers with the same key do not learn of each other.
        Some(key) => id(prefix, id_of_key(&[prefix.as_bytes(), key].concat())),
        None => id(prefix, new_id(api.intake.clock().now())),
    });
    tasks::put_one(&api, &caller, PutMode::Post, id, request).await
}

/// The key, without the quotes that the header may contain.
fn key(headers: &HeaderMap) -> Result<Option<&[u8]>, Fault> {
    let fault = |detail: &str| {
        Err(Fault { pointer: format!("/{IDEMPOTENCY_KEY}"), code: "bad_idempotency_key", detail: detail.to_owned() })
    };
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return fault("the header `Idempotency-Key` is repeated");
    }
    let value = value.as_bytes();
    let key = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    if !(1..=MAX_KEY_BYTES).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        return fault("an idempotency key is 1 to 255 visible ASCII characters");
    }
    Ok(Some(key))
}

/// The id for a key: a version 8 UUID, made of the first 16 bytes of its SHA-256.
fn id_of_key(key: &[u8]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(&SHA256, key).as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// A new id: a version 7 UUID with the timeline's time.
fn new_id(now: Timestamp) -> Uuid {
    let ms = u64::try_from(now.as_millis()).unwrap_or(0);
    let nanos = u32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    Uuid::new_v7(uuid::Timestamp::from_unix(NoContext, ms / 1000, nanos))
}

fn id(prefix: &str, uuid: Uuid) -> TaskId {
    // A prefix begins an id and leaves room for a UUID.
    format!("{prefix}{uuid}").parse().expect("a prefix and a UUID are an id")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_key_is_taken_with_and_without_quotes() {
        let read = |values: &[&'static [u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
            }
            key(&headers).map(|key| key.map(<[u8]>::to_vec)).map_err(|fault| (fault.pointer, fault.code))
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"order-1"]), Ok(Some(b"order-1".to_vec())));
        assert_eq!(read(&[b"\"order-1\""]), Ok(Some(b"order-1".to_vec())));
        assert_eq!(read(&[b"\""]), Ok(Some(b"\"".to_vec())));
        assert_eq!(read(&[&[b'x'; 255]]), Ok(Some(vec![b'x'; 255])));
        for bad in [&[&b""[..]][..], &[b"\"\""], &[b"a b"], &[b"\xc3\xa4"], &[&[b'x'; 256]], &[b"a", b"a"]] {
            assert_eq!(read(bad), Err(("/idempotency-key".to_owned(), "bad_idempotency_key")), "{bad:?}");
        }
    }

    #[test]
    fn generated_ids_have_the_promised_uuid_versions() {
        // printf %s order-1 | sha256sum, with the bits of version and variant.
        assert_eq!(id_of_key(b"order-1").to_string(), "0bafe221-56d2-898c-943b-86040446d366");
        let now = Timestamp::from_millis(1_795_262_400_123);
        let (one, other) = (new_id(now), new_id(now));
        assert_ne!(one, other);
        assert_eq!(one.get_version_num(), 7);
        assert_eq!(one.get_timestamp().unwrap().to_unix(), (1_795_262_400, 123_000_000));
    }
}
