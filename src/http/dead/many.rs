//! `/v1/dead:requeue` and `/v1/dead:discard`: bulk requests for dead occurrences.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};

use super::views::{DiscardedView, RequeuedView};
use super::{bad_cursor, cursor_text, filter_for, parse_cursor, reasons};
use crate::clock::Timestamp;
use crate::engine::dead::bulk::BulkPosition;
use crate::http::caller::Caller;
use crate::http::openapi::{BODY, TIMELINE};
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::http::{Api, openapi};
use crate::task::spec::{self, Fault};
use crate::timeline::DeadFilter;

/// `POST`: requeues all matching occurrences.
#[utoipa::path(
    post,
    path = "/v1/dead:requeue",
    operation_id = "requeue_many_dead",
    summary = "Requeue dead occurrences in bulk",
    description = "Requeues all matching occurrences that were dead when the request began; `{}` matches all. They are \
        due now, under their old keys. If the time limit ends the request early, `more` is true and the next request \
        continues with `next_cursor`.",
    tag = "dead",
    request_body(content = openapi::task::DeadFilterSchema, example = json!({"lane": "default", "reason": "destination"})),
    responses((status = 200, body = RequeuedView, description = "The result.",
        example = json!({"requeued": 12, "in_flight": 0, "more": false}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["limited_token"]].concat()))),
)]
pub(in crate::http) async fn requeue(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    caller.check_bulk_requeue()?;
    let (filter, from) = read(&api, &caller, request).await?;
    let result = api.intake.requeue_all(&filter, from, api.limits.timeline_timeout).await?;
    api.metrics.requeue("requeued", result.done);
    api.metrics.requeue("in_flight", result.in_flight);
    api.metrics.requeue("unserved", result.unserved);
    api.metrics.requeue("unreadable", result.unreadable);
    let next_cursor = result.next.as_ref().map(position_text);
    let view = RequeuedView {
        requeued: result.done,
        in_flight: result.in_flight,
        unserved: result.unserved,
        unreadable: result.unreadable,
        more: next_cursor.is_some(),
        next_cursor,
    };
    Ok(Json(view).into_response())
}

/// `POST`: deletes all matching occurrences.
#[utoipa::path(
    post,
    path = "/v1/dead:discard",
    operation_id = "discard_many_dead",
    summary = "Discard dead occurrences in bulk",
    description = "Deletes all matching occurrences that were dead when the request began; `{}` matches all. If the \
        time limit ends the request early, `more` is true and the next request continues with `next_cursor`.",
    tag = "dead",
    request_body(content = openapi::task::DeadFilterSchema, example = json!({"reason": "rejected", "to": "2026-12-01T00:00:00Z"})),
    responses((status = 200, body = DiscardedView, description = "The result.",
        example = json!({"discarded": 12, "more": false}))),
    extensions(("x-codes" = json!([BODY, TIMELINE].concat()))),
)]
pub(in crate::http) async fn discard(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let (filter, from) = read(&api, &caller, request).await?;
    let result = api.intake.discard_all(&filter, from, api.limits.timeline_timeout).await?;
    api.metrics.discard("discarded", result.done);
    let next_cursor = result.next.as_ref().map(position_text);
    Ok(Json(DiscardedView { discarded: result.done, more: next_cursor.is_some(), next_cursor }).into_response())
}

async fn read(api: &Api, caller: &Caller, request: Request) -> Result<(DeadFilter, Option<BulkPosition>), Problem> {
    let (parts, body) = request.into_parts();
    let body = body::small_json(&parts.headers, body, api).await?;
    let filter = spec::read_filter(&body, &reasons(), None).map_err(Problem::invalid)?;
    let from =
        filter.cursor.as_deref().map(read_position).transpose().map_err(|fault| Problem::invalid(vec![fault]))?;
    Ok((filter_for(caller, filter), from))
}

/// Where a bulk request continues, as a cursor: the start of the scan, a tilde, the last position.
fn position_text(position: &BulkPosition) -> String {
    format!("{}~{}", position.until.as_millis(), position.after.as_ref().map(cursor_text).unwrap_or_default())
}

fn read_position(cursor: &str) -> Result<BulkPosition, Fault> {
    let (until, after) = cursor.split_once('~').ok_or_else(bad_cursor)?;
    let until = Timestamp::from_millis(until.parse().map_err(|_| bad_cursor())?);
    let after = if after.is_empty() { None } else { Some(parse_cursor(after)?) };
    Ok(BulkPosition { after, until })
}
