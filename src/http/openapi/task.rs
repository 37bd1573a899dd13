//! What the reader of tasks takes, in the document's words: nothing is ever made of these types.
//!
//! A test holds their members against those that the reader knows.

#![expect(dead_code, reason = "they only stand in the document")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A task: what to publish, and when.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Task)]
pub(in crate::http) struct TaskSchema {
    schedule: ScheduleSchema,
    message: MessageSchema,
    /// The line of due tasks that it waits in, as configured; `default` where none is named.
    #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$", default = "default")]
    lane: String,
    #[schema(required = false)]
    retry: Retry,
    #[schema(required = false)]
    catch_up: CatchUpSchema,
}

/// What a preview is asked.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Preview)]
pub(in crate::http) struct PreviewSchema {
    schedule: ScheduleSchema,
    /// The task that would have it; needed where there is a `spread`, which depends on it.
    #[schema(required = false, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
    id: String,
    /// When it would be put; now where nothing is said.
    #[schema(required = false, format = DateTime)]
    from: String,
    /// How many dues are shown at most.
    #[schema(required = false, minimum = 1, maximum = 100, default = 5)]
    count: u32,
}

/// Which of the dead are meant; what is not said means any.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadFilter)]
pub(in crate::http) struct DeadFilterSchema {
    /// Of this lane.
    #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$")]
    lane: String,
    /// Dead for this reason.
    #[schema(required = false, value_type = super::words::ReasonSchema)]
    reason: String,
    /// Buried then or later.
    #[schema(required = false, format = DateTime)]
    from: String,
    /// Buried before.
    #[schema(required = false, format = DateTime)]
    to: String,
    /// The `next_cursor` of the answer before.
    #[schema(required = false)]
    cursor: String,
}

/// When a task is due: once (`at`, `in`), every so often (`every`), or by `cron`. Durations are whole numbers with
/// `ms`, `s`, `m`, `h` or `d`, the longer unit first, also joined: `1h30m`.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Schedule)]
pub(in crate::http) enum ScheduleSchema {
    At(At),
    In(In),
    Every(Every),
    Cron(Cron),
}

/// Once, at a time. One that has passed is due at once, under the key of the time asked for.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct At {
    #[schema(format = DateTime, example = "2026-12-24T18:00:00Z")]
    at: String,
}

/// Once, so long after the put; a repeated PUT counts anew.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct In {
    #[schema(pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2, example = "15m")]
    r#in: String,
}

/// At `start` and then every so often; without `start` counted from the put.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Every {
    #[schema(pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2, example = "30s")]
    every: String,
    #[schema(required = false, format = DateTime)]
    start: String,
    /// No occurrence is due later; it leaves room for one.
    #[schema(required = false, format = DateTime)]
    end: String,
    /// How many occurrences may come due.
    #[schema(required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    limit: u64,
    /// Puts each occurrence off by less than this, by an amount that depends on id and time alone; shorter than the
    /// shortest gap.
    #[schema(required = false, pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2)]
    spread: String,
}

/// By a cron expression of five fields, or six with seconds first, or a nickname such as `@daily`.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Cron {
    #[schema(max_length = 512, example = "0 30 9 * * MON-FRI")]
    cron: String,
    /// A name of the IANA time zone database; UTC where none is named.
    #[schema(required = false, example = "Europe/Berlin")]
    zone: String,
    /// No occurrence is due earlier.
    #[schema(required = false, format = DateTime)]
    start: String,
    /// No occurrence is due later; it leaves room for one.
    #[schema(required = false, format = DateTime)]
    end: String,
    /// How many occurrences may come due.
    #[schema(required = false, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    limit: u64,
    /// Puts each occurrence off by less than this, by an amount that depends on id and time alone; shorter than the
    /// shortest gap.
    #[schema(required = false, pattern = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length = 2)]
    spread: String,
}

/// What is published: `payload`, or `payload_base64`, or nothing.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Message)]
pub(in crate::http) struct MessageSchema {
    /// Topic, subject, `exchange/routing-key`, queue or stream; the lane's where none is named.
    #[schema(required = false, min_length = 1, max_length = 1024)]
    destination: String,
    /// What Kafka partitions by; the task's id where none is named.
    #[schema(required = false, max_length = 1024)]
    key: String,
    /// Up to 64, with up to 16 KiB of names and values, unless configured otherwise. Names starting `punctual-` or
    /// `nats-`, and `idempotency-key`, `payload`, `content-type`, `cc` and `bcc` are punctual's own.
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// Any JSON, published byte for byte as it stands in the request; up to 512 KiB unless configured otherwise.
    #[schema(required = false)]
    payload: serde_json::Value,
    /// Bytes that are not JSON, in standard base64.
    #[schema(required = false, content_encoding = "base64")]
    payload_base64: String,
    /// The media type of `payload_base64`.
    #[schema(required = false, min_length = 1, max_length = 1024)]
    content_type: String,
}

/// How often a publish that failed is tried again; together at most 30 s, and less than the shortest gap.
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

/// What becomes of occurrences that are overdue by more than a minute: the oldest is published, up to 100 are, or none.
/// The minute and the 100 may be configured otherwise.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = CatchUp)]
pub(in crate::http) enum CatchUpSchema {
    Once,
    All,
    None,
}
