//! The dialect `celery`: tasks of Celery, which writes a `countdown` as an `eta`; without one they are due at once. <https://docs.celeryq.dev/en/stable/internals/protocol.html>
//!
//! - The header `eta` is the due, the header `id` the id of the task.
//! - The option `exchanges` names, for each exchange that a message came by, the exchange that its task is published
//!   to. The routing key stays.

use std::time::Duration;

use punctual_sinks::native::HeaderValue;
use punctual_sinks::source::Incoming;

use super::foreign::{ForeignTask, after, destination_by_exchange, header, iso_time};
use super::{Instruction, Rejection, id_of_foreign_name};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::task::When;

/// Reads a message.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let destination = destination_by_exchange(door, message)?;
    let when = match header(message, "eta") {
        None | Some(HeaderValue::Other) => after(message, now, Duration::ZERO)?,
        Some(eta) => {
            let text = eta.text().unwrap_or_default();
            let bad = || Rejection::new("bad_time", format!("the header `eta` is a time in ISO 8601, not `{text}`"));
            When::At(iso_time(&text).ok_or_else(bad)?)
        }
    };
    let id = match header(message, "id") {
        Some(HeaderValue::Text(id)) if !id.is_empty() => Some(id_of_foreign_name(door, id.as_bytes())),
        _ => None,
    };
    let id = id.transpose().map_err(|fault| Rejection::of(&[fault]))?;
    ForeignTask { id, ..ForeignTask::new(door, intake, message, now, when, destination) }.put()
}
