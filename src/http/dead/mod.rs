//! `/v1/dead`: lists, shows, requeues and discards dead occurrences.

pub(super) mod many;
mod views;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tracing::info;
use utoipa::IntoParams;

use self::views::{DeadListView, DeadView, DoneView, WholeDeadView, whole_view};
use super::caller::Caller;
use super::openapi::enums::ReasonSchema;
use super::openapi::task::NothingMore;
use super::openapi::{BODY, TIMELINE};
use super::problem::Problem;
use super::server::body;
use super::{Api, json, query};
use crate::engine::Reason;
use crate::engine::dead::RequeueError;
use crate::task::record::RecordError;
use crate::task::spec::{self, Fault, Filter};
use crate::task::{Key, Lane, id::BadName};
use crate::timeline::{DeadCursor, DeadFilter, RequeueAnswer};

/// Default number of entries.
const DEFAULT_LIMIT: usize = 100;

/// Maximum number of entries.
const MAX_LIMIT: u64 = 1000;

/// An idempotency key in a path.
type KeyInPath = Result<Path<String>, PathRejection>;

/// The path parameter in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct DeadKey {
    /// The idempotency key, `<task id>:<due in ms>`.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}:[1-9][0-9]{0,14}$", example = "order-1:1795266000000")]
    key: String,
}

/// The query parameters of a list in the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
struct ListQuery {
    /// Of this lane.
    #[param(required = false, nullable = false, pattern = "^[a-z0-9-]{1,32}$", example = "default")]
    lane: Option<String>,
    /// With this reason.
    #[param(required = false, nullable = false, value_type = ReasonSchema, example = "rejected")]
    reason: Option<String>,
    /// Died at this time or later. A `+` has to be written `%2B`.
    #[param(required = false, nullable = false, format = DateTime)]
    from: Option<String>,
    /// Died before this time.
    #[param(required = false, nullable = false, format = DateTime)]
    to: Option<String>,
    /// Maximum number of entries.
    #[param(required = false, nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(required = false, nullable = false)]
    cursor: Option<String>,
}

/// `GET`: lists dead occurrences, the oldest first.
#[utoipa::path(
    get,
    path = "/v1/dead",
    operation_id = "list_dead",
    summary = "List dead occurrences",
    description = "The oldest first. A page may be empty although later entries match. The list \
        ends when `next_cursor` is missing.",
    tag = "dead",
    params(ListQuery),
    responses((status = 200, body = DeadListView, description = "A page of the list.",
        example = json!({"items": [{"key": "order-1:1795266000000", "task": "order-1", "due": "2026-11-21T13:00:00.000Z",
            "due_ms": 1_795_266_000_000_i64, "lane": "default", "destination": "orders.report", "reason": "rejected",
            "detail": "message too large", "died": "2026-11-21T13:00:00.012Z", "died_ms": 1_795_266_000_012_i64}]}))),
    extensions(("x-codes" = json!([TIMELINE, &["invalid"]].concat()))),
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, Problem> {
    let asked = query::as_json(request.uri())?;
    let filter = spec::read_filter(asked.as_bytes(), &reasons(), MAX_LIMIT).map_err(Problem::invalid)?;
    let after =
        filter.cursor.as_deref().map(parse_cursor).transpose().map_err(|fault| Problem::invalid(vec![fault]))?;
    let (limit, is_first) = (filter.limit.unwrap_or(DEFAULT_LIMIT), after.is_none());
    let filter = filter_for(&caller, filter);
    let page = api.intake.dead(&filter, after, limit, api.limits.timeline_timeout / 2).await?;
    if is_first && page.dead.is_empty() && page.next.is_none() {
        check_lane(&api, &caller, filter.lane.as_ref())?;
    }
    let next_cursor = page.next.as_ref().map(cursor_text);
    let items = page.dead.into_iter().map(DeadView::from).collect();
    Ok(Json(DeadListView { items, next_cursor }).into_response())
}

/// `GET`: one dead occurrence, with its message.
#[utoipa::path(
    get,
    path = "/v1/dead/{key}",
    operation_id = "show_dead",
    summary = "Get a dead occurrence",
    tag = "dead",
    params(DeadKey),
    responses((status = 200, body = WholeDeadView, description = "The dead occurrence.",
        example = json!({"key": "order-1:1795266000000", "task": "order-1", "due": "2026-11-21T13:00:00.000Z",
            "due_ms": 1_795_266_000_000_i64, "lane": "default", "destination": "orders.report", "reason": "rejected",
            "detail": "message too large", "died": "2026-11-21T13:00:00.012Z", "died_ms": 1_795_266_000_012_i64,
            "message": {"destination": "orders.report", "payload": {"order": 1}}}))),
    extensions(("x-codes" = json!([TIMELINE, &["unknown", "invalid", "unreadable"]].concat()))),
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    key: KeyInPath,
) -> Result<Response, Problem> {
    let key = own_key(&caller, read_key(key)?)?;
    let Some((dead, record)) = api.intake.dead_one(&key).await? else { return Err(unknown(&key)) };
    match whole_view(dead, &record) {
        Ok(view) => Ok(json(StatusCode::OK, view)),
        Err(error) => Err(Problem::unreadable(&error)),
    }
}

/// `DELETE`: deletes one dead occurrence.
#[utoipa::path(
    delete,
    path = "/v1/dead/{key}",
    operation_id = "discard_dead",
    summary = "Discard a dead occurrence",
    tag = "dead",
    params(DeadKey),
    responses((status = 200, body = DoneView, description = "It was deleted.",
        example = json!({"key": "order-1:1795266000000", "result": "discarded"}))),
    extensions(("x-codes" = json!([TIMELINE, &["unknown", "invalid"]].concat()))),
)]
pub(super) async fn discard(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    key: KeyInPath,
) -> Result<Response, Problem> {
    let key = own_key(&caller, read_key(key)?)?;
    if !api.intake.discard(&key, api.limits.timeline_timeout).await? {
        api.metrics.discard("unknown", 1);
        return Err(unknown(&key));
    }
    api.metrics.discard("discarded", 1);
    let by = caller.name().unwrap_or("-");
    info!(target: "punctual::audit", %key, by, "dead occurrence discarded");
    Ok(Json(DoneView { key: key.to_string(), result: "discarded" }).into_response())
}

/// `POST`: requeues one dead occurrence.
#[utoipa::path(
    post,
    path = "/v1/dead/{key}/requeue",
    operation_id = "requeue_dead",
    summary = "Requeue a dead occurrence",
    description = "Makes the occurrence due now, under its old key. The body is empty or `{}`. A content-type is \
        required in both cases; otherwise a page of another site could send the request.",
    tag = "dead",
    params(DeadKey),
    request_body(content = NothingMore, example = json!({})),
    responses((status = 200, body = DoneView, description = "It is due now.",
        example = json!({"key": "order-1:1795266000000", "result": "requeued"}))),
    extensions(("x-codes" = json!([BODY, TIMELINE, &["full", "too_many_puts", "unknown", "in_flight", "unreadable"]].concat()))),
)]
pub(super) async fn requeue(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    key: KeyInPath,
    request: Request,
) -> Result<Response, Problem> {
    let (key, ()) = body::path_and_small_json(&api, key_of(key), request, spec::read_nothing).await?;
    let key = own_key(&caller, key)?;
    caller.count_put(&api)?;
    let requeued = api.intake.requeue(&key, api.limits.timeline_timeout).await;
    match requeued.map_err(|error| not_requeued(&api, &caller, error))? {
        RequeueAnswer::Requeued => {
            api.metrics.requeue("requeued", 1);
            let by = caller.name().unwrap_or("-");
            info!(target: "punctual::audit", %key, by, "dead occurrence requeued");
            Ok(Json(DoneView { key: key.to_string(), result: "requeued" }).into_response())
        }
        RequeueAnswer::InFlight => {
            api.metrics.requeue("in_flight", 1);
            let detail =
                format!("the occurrence `{key}` waits or is in flight: it was requeued, or its task has that due");
            let problem = Problem::new(StatusCode::CONFLICT, "in_flight", detail);
            Err(Problem { key: Some(key.to_string().into()), ..problem })
        }
        RequeueAnswer::Unknown => {
            api.metrics.requeue("unknown", 1);
            Err(unknown(&key))
        }
        RequeueAnswer::Unreadable => {
            Err(not_requeued(&api, &caller, RecordError::Damaged("its entry is damaged".to_owned()).into()))
        }
    }
}

/// If nothing is dead in a lane that is not configured, its name may be mistyped. A caller that may not use the lane
/// learns nothing about the others.
fn check_lane(api: &Api, caller: &Caller, lane: Option<&Lane>) -> Result<(), Problem> {
    match lane.filter(|lane| caller.may_use(lane)) {
        Some(lane) => Ok(api.intake.check_lane(lane)?),
        None => Ok(()),
    }
}

fn not_requeued(api: &Api, caller: &Caller, error: RequeueError) -> Problem {
    match error {
        RequeueError::UnknownLane(error) => {
            api.metrics.requeue("unserved", 1);
            // A caller with lanes of its own learns nothing about the others.
            let lanes = if caller.may_use(error.lane()) { format!(": {error}") } else { String::new() };
            Problem::fault(
                "/lane",
                "unknown_lane",
                format!("the occurrence stays dead, its lane is not configured{lanes}"),
            )
        }
        RequeueError::Record(error) => {
            api.metrics.requeue("unreadable", 1);
            Problem::unreadable(&error)
        }
        RequeueError::Timeline(error) => error.into(),
    }
}

/// The words for a reason.
fn reasons() -> Vec<&'static str> {
    Reason::ALL.iter().map(|reason| reason.as_str()).collect()
}

/// The filter of a request, limited to task ids that the caller may use.
fn filter_for(caller: &Caller, filter: Filter) -> DeadFilter {
    let Filter { lane, reason, from, to, .. } = filter;
    DeadFilter { lane, reason, prefix: caller.prefix().to_owned(), from, to }
}

/// A position as a cursor.
fn cursor_text(cursor: &DeadCursor) -> String {
    format!("{}.{}", cursor.died.as_millis(), cursor.key)
}

fn parse_cursor(cursor: &str) -> Result<DeadCursor, Fault> {
    let read = || {
        let (died, key) = cursor.split_once('.')?;
        let died = crate::clock::Timestamp::from_millis(died.parse().ok()?);
        Some(DeadCursor { died, key: key.parse().ok()? })
    };
    read().ok_or_else(query::bad_cursor)
}

fn read_key(key: KeyInPath) -> Result<Key, Problem> {
    key_of(key).map_err(|fault| Problem::invalid(vec![fault]))
}

/// Returns the key if the caller may use its task id; otherwise 404, as if nothing were dead under this key.
fn own_key(caller: &Caller, key: Key) -> Result<Key, Problem> {
    if caller.owns(&key.task) { Ok(key) } else { Err(unknown(&key)) }
}

fn key_of(key: KeyInPath) -> Result<Key, Fault> {
    let fault = |detail: String| Fault { pointer: "/key".to_owned(), code: "bad_key", detail };
    let Path(key) = key.map_err(|_| fault("the key in the path cannot be read".to_owned()))?;
    // Not quoted, because it may have any length.
    let expected = |_: BadName| fault("an idempotency key is expected: `<task id>:<due in ms>`".to_owned());
    key.parse().map_err(expected)
}

fn unknown(key: &Key) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown", format!("there is no dead occurrence `{key}`"))
}
