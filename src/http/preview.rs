//! `/v1/preview`: when a schedule would be due, without putting anything.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::Problem;
use super::tasks::Due;
use super::{Api, body};
use crate::task::spec;

/// What a preview answers.
#[derive(Serialize)]
struct PreviewView {
    next: Vec<Due>,
}

/// `POST`: the first dues of a schedule.
pub(super) async fn preview(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body, &api.limits).await?;
    let preview = spec::read_preview(&body, api.intake.clock().now()).map_err(Problem::invalid)?;
    let dues = preview.dues().map_err(|fault| Problem::invalid(vec![fault]))?;
    let next = dues.into_iter().map(Due::from).collect();
    Ok(Json(PreviewView { next }).into_response())
}
