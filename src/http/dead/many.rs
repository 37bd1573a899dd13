//! `/v1/dead:requeue` and `/v1/dead:discard`: bulk requests for dead occurrences.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use tracing::info;

use super::views::{DiscardedView, RequeuedView};
use super::{check_lane, cursor_text, filter_for, parse_cursor, reasons};
use crate::clock::Timestamp;
use crate::engine::dead::bulk::{BulkPosition, BulkResult};
use crate::http::caller::Caller;
use crate::http::openapi::{BODY, TIMELINE};
use crate::http::problem::Problem;
use crate::http::server::body;
use crate::http::{Api, openapi, query};
use crate::task::Lane;
use crate::task::spec::{self, BulkRequest, Fault};
use crate::timeline::DeadFilter;

/// `POST`: requeues all matching occurrences.
#[utoipa::path(
    post,
    path = "/v1/dead:requeue",
    operation_id = "requeue_many_dead",
    summary = "Requeue dead occurrences in bulk",
    description = "Requeues all matching occurrences that were dead when the request began: those of a filter, or all \
        with `\"all\": true`. They are due now, under their old keys. If the time limit ends the request early, `more` is true and the next request \
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
    let bulk = read(&api, &caller, request).await?;
    if bulk.dry_run {
        let (matched, next_cursor) = bulk.count(&api, &caller).await?;
        let view = RequeuedView {
            matched: Some(matched),
            more: next_cursor.is_some(),
            next_cursor,
            ..RequeuedView::default()
        };
        return Ok(Json(view).into_response());
    }
    let result = api.intake.requeue_all(&bulk.filter, bulk.from.clone(), api.limits.timeline_timeout).await?;
    bulk.check_lane(&api, &caller, &result)?;
    bulk.log("requeue", &caller, &result);
    api.metrics.requeue("requeued", result.done);
    api.metrics.requeue("in_flight", result.in_flight);
    api.metrics.requeue("unserved", result.unserved);
    api.metrics.requeue("unreadable", result.unreadable);
    let next_cursor = result.next.as_ref().map(position_text);
    let view = RequeuedView {
        matched: None,
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
    description = "Deletes all matching occurrences that were dead when the request began: those of a filter, or all \
        with `\"all\": true`. If the time limit ends the request early, `more` is true and the next request continues with `next_cursor`.",
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
    let bulk = read(&api, &caller, request).await?;
    if bulk.dry_run {
        let (matched, next_cursor) = bulk.count(&api, &caller).await?;
        let view = DiscardedView { matched: Some(matched), discarded: 0, more: next_cursor.is_some(), next_cursor };
        return Ok(Json(view).into_response());
    }
    let result = api.intake.discard_all(&bulk.filter, bulk.from.clone(), api.limits.timeline_timeout).await?;
    bulk.check_lane(&api, &caller, &result)?;
    bulk.log("discard", &caller, &result);
    api.metrics.discard("discarded", result.done);
    let next_cursor = result.next.as_ref().map(position_text);
    let view = DiscardedView { matched: None, discarded: result.done, more: next_cursor.is_some(), next_cursor };
    Ok(Json(view).into_response())
}

/// A bulk request of one caller.
struct Bulk {
    filter: DeadFilter,
    /// Where it continues.
    from: Option<BulkPosition>,
    dry_run: bool,
}

impl Bulk {
    /// The number of matches, and where to continue counting.
    async fn count(&self, api: &Api, caller: &Caller) -> Result<(u64, Option<String>), Problem> {
        let result = api.intake.count_dead(&self.filter, self.from.clone(), api.limits.timeline_timeout).await?;
        self.check_lane(api, caller, &result)?;
        Ok((result.done, result.next.as_ref().map(position_text)))
    }

    /// Logs what a request has changed.
    fn log(&self, action: &'static str, caller: &Caller, result: &BulkResult) {
        if result.done == 0 {
            return;
        }
        let by = caller.name().unwrap_or("-");
        let DeadFilter { lane, prefix, reason, from, to } = &self.filter;
        let (lane, reason) = (lane.as_ref().map(Lane::as_str), reason.as_deref());
        let (from, to) = (from.map(|from| from.to_string()), to.map(|to| to.to_string()));
        let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let BulkResult { done, in_flight, .. } = result;
        info!(target: "punctual::audit", action, by, lane, prefix, reason, from, to, done, in_flight, "dead occurrences changed");
    }

    /// If nothing matches, the name of the lane may be mistyped.
    fn check_lane(&self, api: &Api, caller: &Caller, result: &BulkResult) -> Result<(), Problem> {
        if *result == BulkResult::default() && self.from.is_none() {
            return check_lane(api, caller, self.filter.lane.as_ref());
        }
        Ok(())
    }
}

async fn read(api: &Api, caller: &Caller, request: Request) -> Result<Bulk, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::small_json(&parts.headers, body, api).await?;
    let BulkRequest { filter, dry_run } = spec::read_bulk(&body, &reasons()).map_err(Problem::invalid)?;
    let from =
        filter.cursor.as_deref().map(read_position).transpose().map_err(|fault| Problem::invalid(vec![fault]))?;
    Ok(Bulk { filter: filter_for(caller, filter), from, dry_run })
}

/// Where a bulk request continues, as a cursor: the start of the scan, a tilde, the last position.
fn position_text(position: &BulkPosition) -> String {
    format!("{}~{}", position.until.as_millis(), position.after.as_ref().map(cursor_text).unwrap_or_default())
}

fn read_position(cursor: &str) -> Result<BulkPosition, Fault> {
    let (until, after) = cursor.split_once('~').ok_or_else(query::bad_cursor)?;
    let until = Timestamp::from_millis(until.parse().map_err(|_| query::bad_cursor())?);
    let after = if after.is_empty() { None } else { Some(parse_cursor(after)?) };
    Ok(BulkPosition { after, until })
}
