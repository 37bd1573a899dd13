//! Reads the bodies of requests within their limits: media type, size, time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use tokio::time::timeout;
use utoipa::IntoParams;

use crate::http::Api;
use crate::http::problem::Problem;
use crate::http::server::body_budget::{FREE_BYTES, HeldBytes};
use crate::task::{Fault, Traceparent};

/// The mark that some editors write at the beginning of a file. It is no part of the text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A body, or the first line of one, without a byte-order mark.
pub(in crate::http) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Checks that the body has one of these media types, in UTF-8, and is not compressed.
///
/// A body without a media type is refused: a browser may send such a body to another origin without a preflight
/// request, and then any page could use an API on loopback.
pub(in crate::http) fn check_media_type(headers: &HeaderMap, accepted: &[&str]) -> Result<(), Problem> {
    let given = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let content_type = given(header::CONTENT_TYPE);
    let mut parts = content_type.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| part.strip_prefix("charset=")).map(|charset| charset.trim_matches('"'));
    let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let encoding =
        encodings.map(|value| value.to_str().unwrap_or("?")).find(|value| !value.eq_ignore_ascii_case("identity"));
    let wanted = accepted.first().unwrap_or(&"");
    let detail = if media.is_empty() {
        format!("the request has no content-type, `{wanted}` is expected")
    } else if !accepted.contains(&media) {
        format!("the content-type is `{media}`, `{wanted}` is expected")
    } else if let Some(charset) = charset.filter(|charset| !["utf-8", "utf8", "us-ascii"].contains(charset)) {
        format!("the charset is `{charset}`, UTF-8 is expected")
    } else if let Some(encoding) = encoding {
        format!("the content-encoding is `{encoding}`; send the body as it is, without an encoding")
    } else {
        return Ok(());
    };
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail))
}

/// A body that was read, and what it holds of the budget.
pub(in crate::http) struct WholeBody {
    pub(in crate::http) bytes: Bytes,
    pub(in crate::http) held: HeldBytes,
}

/// Reads the whole JSON body of a request, within the limits.
pub(in crate::http) async fn json(headers: &HeaderMap, body: Body, api: &Api) -> Result<WholeBody, Problem> {
    check_media_type(headers, &["application/json"])?;
    whole(headers, body, api.limits.body, api).await
}

/// Reads the whole JSON body of a request that has no payload, such as a preview, a filter, a pause or a skip. It has
/// at most 16 KiB, so it needs none of the budget.
pub(in crate::http) async fn small_json(headers: &HeaderMap, body: Body, api: &Api) -> Result<Bytes, Problem> {
    check_media_type(headers, &["application/json"])?;
    Ok(whole(headers, body, api.limits.body.min(FREE_BYTES), api).await?.bytes)
}

/// What the path and the small JSON body of a request say.
pub(in crate::http) async fn path_and_small_json<A, B>(
    api: &Api,
    path: Result<A, Fault>,
    request: Request,
    read_body: impl FnOnce(&[u8]) -> Result<B, Vec<Fault>>,
) -> Result<(A, B), Problem> {
    let (parts, body) = request.into_parts();
    let body = small_json(&parts.headers, body, api).await?;
    Problem::both_or_faults(path, read_body(&body))
}

/// The trace header in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(in crate::http) struct Trace {
    /// The trace of the request, as defined by W3C Trace Context. The messages get the same one. An invalid one is ignored.
    #[param(required = false, nullable = false, example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: String,
}

/// The trace of a request. An invalid or repeated `traceparent` counts as none, as the standard requires.
pub(in crate::http) fn trace(headers: &HeaderMap) -> Option<Traceparent> {
    let mut given = headers.get_all(Traceparent::HEADER).iter();
    let trace = given.next()?.to_str().ok()?.parse().ok();
    trace.filter(|_| given.next().is_none())
}

/// The whole body, at most `limit` bytes, received in time.
async fn whole(headers: &HeaderMap, body: Body, limit: usize, api: &Api) -> Result<WholeBody, Problem> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // Refused before the body is read, so that a client that waits for `100 Continue` need not send it.
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let limit_time = api.limits.body_timeout;
    match timeout(limit_time, collect(body, limit, api.bodies.open())).await {
        Ok(read) => read,
        Err(_) => Err(too_slow(limit_time)),
    }
}

async fn collect(body: Body, limit: usize, mut held: HeldBytes) -> Result<WholeBody, Problem> {
    let mut parts = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| broken(&error))?;
        if whole.len() + part.len() > limit {
            return Err(too_large(limit));
        }
        held.hold(whole.len() + part.len())?;
        whole.extend_from_slice(&part);
    }
    let bytes = Bytes::from(whole);
    let text = bytes.slice(bytes.len() - without_byte_order_mark(&bytes).len()..);
    Ok(WholeBody { bytes: text, held })
}

/// The largest body is either the option, or fixed for requests without a payload.
pub(in crate::http) fn too_large(limit: usize) -> Problem {
    let whose = if limit == FREE_BYTES { "" } else { ", the `http.body_limit` of this instance" };
    let detail = format!("it has more than {limit} bytes{whose}");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
}

pub(in crate::http) fn too_slow(limit: Duration) -> Problem {
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "too_slow",
        format!("the body did not come within {limit:?}, the `http.body_timeout` of this instance"),
    )
}

pub(in crate::http) fn broken(error: &axum::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "broken", format!("the body broke off: {error}"))
}
