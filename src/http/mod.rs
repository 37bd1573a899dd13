//! The HTTP API: one file per resource, every error a [`Problem`].
//!
//! It reads requests within limits of size and time, passes them to the [`Intake`], and writes the answers. It decides
//! nothing about tasks.

pub mod access;
mod batch;
mod caller;
mod dead;
mod lanes;
mod openapi;
mod post;
mod preview;
mod problem;
mod query;
pub mod server;
mod state;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::doors::DoorState;
use crate::engine::{EngineState, FailedAttempt, Intake};
use crate::metrics::Metrics;
use crate::task::{Lane, Limits, TaskId};

pub use access::Access;
pub use caller::{PutRate, TokenLimits};
pub use openapi::openapi;
pub use problem::Problem;
pub use server::blocking::BlockingPool;
pub use server::body_budget::BodyBudget;

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct ApiLimits {
    /// Maximum size of a body or of a line of a batch, in bytes.
    pub body: usize,
    /// Maximum size of all bodies under way together, not counting the first 16 KiB of each, in bytes.
    pub bodies: usize,
    /// How long a body, or the next part of a batch, may take to arrive.
    pub body_timeout: Duration,
    /// How long the timeline may take to answer.
    pub timeline_timeout: Duration,
    /// The limits of one task.
    pub task: Limits,
}

/// Returns the last failed publish of a task's occurrence.
pub type FindFailedAttempt = Box<dyn Fn(&TaskId) -> Option<FailedAttempt> + Send + Sync>;

/// Answers a question about a lane.
pub type AskAboutLane = Box<dyn Fn(&Lane) -> bool + Send + Sync>;

/// The parts that the API uses.
pub struct Api {
    /// The API of the engine for tasks.
    pub intake: Intake,
    /// Returns the state of the engine.
    pub engine: Box<dyn Fn() -> EngineState + Send + Sync>,
    /// Returns the last failed publish of a task's occurrence, if this instance holds it.
    pub failed_attempt: FindFailedAttempt,
    /// Whether a lane was paused a moment ago.
    pub is_lane_paused: AskAboutLane,
    /// Whether the sink of a lane is unavailable.
    pub is_sink_unavailable: AskAboutLane,
    /// Returns the state of the doors.
    pub doors: Box<dyn Fn() -> Vec<DoorState> + Send + Sync>,
    /// The configured tokens.
    pub access: Access,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The limits of requests.
    pub limits: ApiLimits,
    /// The zone of cron schedules that name none; `None` is UTC.
    pub zone: Option<String>,
    /// The instance id, for stats.
    pub instance: String,
    /// The memory for bodies under way.
    pub bodies: BodyBudget,
    /// The threads for what may take long.
    pub blocking: BlockingPool,
}

impl Api {
    /// The router of an address for probes only: `/healthz`, `/readyz` and `/metrics`.
    pub fn probe_router(self: &Arc<Api>, access: Access) -> Router {
        let routes = OpenApiRouter::new()
            .routes(routes!(state::healthz))
            .routes(routes!(state::readyz))
            .routes(routes!(state::metrics));
        self.serve_routes(routes.split_for_parts().0, access)
    }

    /// The router of all routes.
    pub fn router(self: &Arc<Api>) -> Router {
        self.serve_routes(routes().split_for_parts().0, self.access.clone())
    }

    fn serve_routes(self: &Arc<Api>, router: Router<Arc<Api>>, access: Access) -> Router {
        let api = Arc::clone(self);
        router
            .fallback(no_route)
            .method_not_allowed_fallback(no_method)
            .layer(middleware::from_fn_with_state(access, access::guard))
            .layer(middleware::from_fn_with_state(Arc::clone(&api), count))
            .with_state(api)
    }
}

/// The routes with their OpenAPI descriptions.
fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(openapi::more())
        .routes(routes!(tasks::put, tasks::get, tasks::cancel))
        .routes(routes!(tasks::list::list, post::post))
        .routes(routes!(tasks::pause::pause))
        .routes(routes!(tasks::pause::resume))
        .routes(routes!(tasks::moves::trigger))
        .routes(routes!(tasks::moves::skip))
        .routes(routes!(tasks::upcoming::upcoming))
        .routes(routes!(tasks::count::count))
        .routes(routes!(batch::put))
        .routes(routes!(tasks::bulk::cancel))
        .routes(routes!(tasks::bulk::pause))
        .routes(routes!(tasks::bulk::resume))
        .routes(routes!(lanes::pause))
        .routes(routes!(lanes::resume))
        .routes(routes!(preview::preview))
        .routes(routes!(dead::list))
        .routes(routes!(dead::show, dead::discard))
        .routes(routes!(dead::requeue))
        .routes(routes!(dead::many::requeue))
        .routes(routes!(dead::many::discard))
        .routes(routes!(state::stats))
        .routes(routes!(state::healthz))
        .routes(routes!(state::readyz))
        .routes(routes!(state::metrics))
        .routes(routes!(openapi::document))
}

async fn no_route(request: Request) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", format!("there is nothing at `{}`", request.uri().path()))
}

async fn no_method(method: Method, request: Request) -> Problem {
    let detail = format!("`{}` does not take {method}", request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", detail)
}

/// Counts requests by route, never by path, because paths contain ids.
async fn count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().and_then(|path| access::route(path.as_str()));
    let response = next.run(request).await;
    api.metrics.request(route.unwrap_or("other"), response.status().as_u16());
    response
}

/// An answer with finished JSON.
fn json(status: StatusCode, text: String) -> Response {
    let mut response = (status, Body::from(text)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
