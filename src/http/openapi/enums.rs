//! The words in answers, for the OpenAPI document. No value of these types is ever made.

#![expect(dead_code, reason = "only for the OpenAPI document")]

use utoipa::ToSchema;

/// What a put did.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PutResult)]
pub(in crate::http) enum PutResultSchema {
    Created,
    Replaced,
    Unchanged,
}

/// `cancelled`: no publish of it starts from now on. `in_flight`: the occurrence in flight may still be delivered.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum CancelResult {
    Cancelled,
    InFlight,
}

/// Whether an occurrence of the task is being published, or the task is paused.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum Status {
    Scheduled,
    InFlight,
    Paused,
}

/// `overdue`: it waits although it was due at least 1 s ago.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum ListStatus {
    Scheduled,
    Overdue,
    InFlight,
    Paused,
}

/// `degraded`: some shards are not reachable, or one of several servers refused the last puts. `refusing`: it is reachable
/// and refused the last puts.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum TimelineStatus {
    Up,
    Degraded,
    Refusing,
    Down,
}

/// `waiting`: the timeline, or the destination for rejected messages, accepts nothing; `unavailable`: the source cannot be
/// read.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DoorStatus)]
pub(in crate::http) enum DoorStatusSchema {
    Up,
    Waiting,
    Unavailable,
}

/// `open`: the sink is unavailable; `half-open`: one batch is tried.
#[derive(ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Breaker)]
pub(in crate::http) enum BreakerSchema {
    Closed,
    HalfOpen,
    Open,
}

/// `each`: while lines are still being sent. `end`: once the body has ended.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum AnswersMode {
    Each,
    End,
}

/// `failing`: messages fail there. `refusing`: it is full or overloaded, and its messages wait. `at_fault`: the destination is the cause. `given_up`: its messages are dead at once.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum FailingStatus {
    Failing,
    Refusing,
    AtFault,
    GivenUp,
}

/// Why an occurrence is dead.
#[derive(ToSchema)]
#[schema(as = Reason)]
pub(in crate::http) enum ReasonSchema {
    #[serde(rename = "rejected")]
    Rejected,
    #[serde(rename = "retries")]
    Retries,
    #[serde(rename = "destination")]
    Destination,
    #[serde(rename = "poison")]
    Poison,
    #[serde(rename = "too late")]
    TooLate,
}

/// `unchanged`: it is paused already, or is to be resumed and was not paused.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum TaskPauseResult {
    Paused,
    Resumed,
    Unchanged,
}

/// `unchanged`: it was due already.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum TriggerResult {
    Triggered,
    Unchanged,
}

/// The occurrence is passed over.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum SkipResult {
    Skipped,
}

/// `unchanged`: it was not paused.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum LaneResult {
    Paused,
    Resumed,
    Unchanged,
}

/// `requeued`: it is due now. `discarded`: it is deleted.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum DeadResult {
    Requeued,
    Discarded,
}
