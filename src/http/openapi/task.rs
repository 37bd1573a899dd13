//! The schema of tasks for the OpenAPI document. No value of these types is ever made.
//!
//! A test compares their members with those that the parser of tasks knows.

#![expect(dead_code, reason = "only for the OpenAPI document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A task: what to publish, and when.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Task)]
pub(in crate::http) struct TaskSchema {
    schedule: ScheduleSchema,
    message: MessageSchema,
    /// The lane that it waits in, as configured; without it, `default`.
    #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$")]
    lane: String,
    #[schema(required = false)]
    retry: Retry,
    #[schema(required = false)]
    catch_up: CatchUpSchema,
}

/// A line of a batch: a task with its id.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Line)]
pub(in crate::http) struct LineSchema {
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
    id: String,
    schedule: ScheduleSchema,
    message: MessageSchema,
    /// The lane that it waits in, as configured; without it, `default`.
    #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$")]
    lane: String,
    #[schema(required = false)]
    retry: Retry,
    #[schema(required = false)]
    catch_up: CatchUpSchema,
}

/// The request of a preview.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Preview)]
pub(in crate::http) struct PreviewSchema {
    schedule: ScheduleSchema,
    /// The id of the task. Required with a `spread`, which depends on it.
    #[schema(required = false, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
    id: String,
    /// The time of the put; the default is now.
    #[schema(required = false, format = DateTime)]
    from: String,
    /// Maximum number of dues.
    #[schema(required = false, minimum = 1, maximum = 100, default = 5)]
    count: u32,
}

/// An empty body.
#[derive(ToSchema)]
#[schema(as = NothingMore)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct NothingMore {}

/// Why a task is paused.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TaskPauseRequest)]
pub(in crate::http) struct TaskPauseSchema {
    /// At most 200 characters in one line.
    #[schema(required = false, max_length = 200)]
    note: String,
}

/// How a task is resumed.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TaskResumeRequest)]
pub(in crate::http) struct TaskResumeSchema {
    /// What happens to the occurrences that it missed.
    #[schema(required = false, default = "catch_up")]
    missed: MissedSchema,
}

/// `catch_up`: the `catch_up` of the task decides. `skip`: they are passed over.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Missed)]
pub(in crate::http) enum MissedSchema {
    CatchUp,
    Skip,
}

/// Which occurrence is skipped.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SkipRequest)]
pub(in crate::http) struct SkipSchema {
    /// The due that the task must have; without it, whichever it has.
    #[schema(required = false, format = DateTime)]
    due: String,
}

/// Why a lane is paused, and until when.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LanePauseRequest)]
pub(in crate::http) struct LanePauseSchema {
    /// At most 200 characters in one line.
    #[schema(required = false, max_length = 200)]
    note: String,
    /// When the pause ends by itself.
    #[schema(required = false, format = DateTime)]
    until: String,
}

/// Selects dead occurrences, by at least one of `lane`, `reason`, `from` and `to`, or with `"all": true`.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadFilter)]
pub(in crate::http) struct DeadFilterSchema {
    /// All of them. Excludes the members that select.
    #[schema(required = false, default = false)]
    all: bool,
    /// Counts the matches and changes nothing.
    #[schema(required = false, default = false)]
    dry_run: bool,
    /// Of this lane.
    #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$")]
    lane: String,
    /// With this reason.
    #[schema(required = false, value_type = super::enums::ReasonSchema)]
    reason: String,
    /// Died at this time or later.
    #[schema(required = false, format = DateTime)]
    from: String,
    /// Died before this time.
    #[schema(required = false, format = DateTime)]
    to: String,
    /// The `next_cursor` of the previous answer.
    #[schema(required = false)]
    cursor: String,
}

/// When a task is due: once (`at`, `in`), at an interval (`every`), or by `cron`. Durations are whole numbers with
/// `ms`, `s`, `m`, `h` or `d`, longer units first, also joined: `1h30m`.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Schedule)]
pub(in crate::http) enum ScheduleSchema {
    At(At),
    In(In),
    Every(Every),
    Cron(Cron),
}

/// Once, at a time. A time in the past is due at once, with this time in its key.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct At {
    #[schema(format = DateTime, example = "2026-12-24T18:00:00Z")]
    at: String,
}

/// Once, this long after the put. With a repeated PUT the time starts again.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct In {
    #[schema(pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2, example = "15m")]
    r#in: String,
}

/// At `start` and then at an interval; without `start` counted from the put.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Every {
    #[schema(pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2, example = "30s")]
    every: String,
    #[schema(required = false, format = DateTime)]
    start: String,
    /// No occurrence is due later than this. At least one must fit.
    #[schema(required = false, format = DateTime)]
    end: String,
    /// Maximum number of occurrences.
    #[schema(required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    limit: u64,
    /// Delays each occurrence by less than this. The delay depends only on id and time. Shorter than the shortest gap.
    #[schema(required = false, pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2)]
    spread: String,
}

/// By a cron expression of five fields, or six with seconds first, or a nickname such as `@daily`.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Cron {
    #[schema(max_length = 512, example = "0 30 9 * * MON-FRI")]
    cron: String,
    /// A name of the IANA time zone database; the default is UTC.
    #[schema(required = false, example = "Europe/Berlin")]
    zone: String,
    /// No occurrence is due earlier than this.
    #[schema(required = false, format = DateTime)]
    start: String,
    /// No occurrence is due later than this. At least one must fit.
    #[schema(required = false, format = DateTime)]
    end: String,
    /// Maximum number of occurrences.
    #[schema(required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    limit: u64,
    /// Delays each occurrence by less than this. The delay depends only on id and time. Shorter than the shortest gap.
    #[schema(required = false, pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2)]
    spread: String,
}

/// The message to publish, with `payload`, or `payload_base64`, or neither.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Message)]
pub(in crate::http) enum MessageSchema {
    Json(JsonMessage),
    Bytes(BytesMessage),
}

/// A message with any JSON, or without a payload.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct JsonMessage {
    /// Topic, subject, `exchange/routing-key`, queue or stream; the default is that of the lane.
    #[schema(required = false, min_length = 1, max_length = 1024)]
    destination: String,
    /// The key for Kafka's partitioner; the default is the task's id.
    #[schema(required = false, max_length = 1024)]
    key: String,
    /// Up to 64 headers, with up to 16 KiB of names and values, unless configured otherwise. Names starting `punctual-`
    /// or `nats-`, and `idempotency-key`, `payload`, `content-type`, `cc` and `bcc` are reserved.
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// More headers, in the form of a broker. Only in answers, for tasks that a door has read from a message.
    #[schema(required = false, read_only)]
    native: NativeHeadersSchema,
    /// Any JSON, published byte for byte as in the request; up to 512 KiB unless configured otherwise.
    #[schema(required = false)]
    payload: serde_json::Value,
    /// Whether the message has no value at all, as a tombstone of Kafka. Then there is no payload, or it is null. For
    /// lanes with a Kafka sink only.
    #[schema(required = false)]
    tombstone: bool,
}

/// Headers in the form of a broker, which says more than a text for each name.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NativeHeaders)]
pub(in crate::http) struct NativeHeadersSchema {
    /// The kind of broker. Only a sink of this kind publishes them.
    kind: String,
    /// The encoded headers.
    #[schema(content_encoding = "base64")]
    base64: String,
}

/// A message with bytes that are not JSON.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct BytesMessage {
    /// As in `JsonMessage`.
    #[schema(required = false, min_length = 1, max_length = 1024)]
    destination: String,
    /// As in `JsonMessage`.
    #[schema(required = false, max_length = 1024)]
    key: String,
    /// As in `JsonMessage`.
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// As in `JsonMessage`.
    #[schema(required = false, read_only)]
    native: NativeHeadersSchema,
    /// In standard base64.
    #[schema(content_encoding = "base64")]
    payload_base64: String,
    /// The media type of `payload_base64`.
    #[schema(required = false, min_length = 1, max_length = 1024)]
    content_type: String,
}

/// How often a failed publish is retried. All pauses together take at most 30 s, and less than the shortest gap.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Retry {
    #[schema(required = false, minimum = 0, maximum = 4_294_967_295_i64, default = 3)]
    max: u32,
    #[schema(
        required = false,
        pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
        min_length = 2,
        default = "200ms"
    )]
    interval: String,
    #[schema(
        required = false,
        pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
        min_length = 2,
        default = "500ms"
    )]
    jitter: String,
}

/// How to handle occurrences that are overdue by more than a minute. `once` publishes the oldest, `all` the oldest and
/// the newest 100, `none` none of them. The minute and the 100 can be configured.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = CatchUp)]
pub(in crate::http) enum CatchUpSchema {
    Once,
    All,
    None,
}
