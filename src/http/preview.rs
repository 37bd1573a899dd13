//! `/v1/preview`: when a schedule would be due, without putting anything.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::openapi::{self, BODY};
use super::problem::Problem;
use super::server::body;
use super::tasks::Due;
use crate::task::spec;

/// The answer of a preview.
#[derive(Serialize, ToSchema)]
#[schema(as = Dues)]
struct PreviewView {
    /// The first dues, in order.
    next: Vec<Due>,
}

/// `POST`: the first dues of a schedule.
#[utoipa::path(
    post,
    path = "/v1/preview",
    operation_id = "preview",
    summary = "When a schedule would be due",
    description = "Computed as for tasks; nothing is put.",
    tag = "tasks",
    request_body(content = openapi::task::PreviewSchema,
        example = json!({"schedule": {"cron": "0 30 9 * * MON-FRI", "zone": "Europe/Berlin"}, "count": 2})),
    responses((status = 200, body = PreviewView, description = "The first dues.", example = json!({"next": [
        {"due": "2026-11-23T08:30:00.000Z", "due_ms": 1_795_422_600_000_i64},
        {"due": "2026-11-24T08:30:00.000Z", "due_ms": 1_795_509_000_000_i64},
    ]}))),
    extensions(("x-codes" = json!([BODY, &["internal", "busy"]].concat()))),
)]
pub(super) async fn preview(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::small_json(&parts.headers, body, &api).await?;
    let now = api.intake.clock().now();
    let zone = api.zone.clone();
    let dues = move || spec::read_preview(&body, now, zone.as_deref())?.dues().map_err(|fault| vec![fault]);
    let dues = api.blocking.run(dues).await?.map_err(Problem::invalid)?;
    let next = dues.into_iter().map(Due::from).collect();
    Ok(Json(PreviewView { next }).into_response())
}
