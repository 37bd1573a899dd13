//! The dialect `expiration`: messages in a queue of RabbitMQ in which they wait until they expire. Producers and queues stay as
//! they are. <https://www.rabbitmq.com/docs/ttl>
//!
//! - A message is due after the smaller of its property `expiration` and the option `delay`, the `x-message-ttl` of the queue.
//! - The option `to` is where the queue dead-letters to.

use std::time::Duration;

use punctual_sinks::native::NativeHeaders;
use punctual_sinks::source::Incoming;

use super::foreign::{ForeignTask, after};
use super::{Instruction, Rejection};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;

/// Reads a message.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let expiration = message.native.as_ref().and_then(NativeHeaders::expiration);
    let expiration = expiration.and_then(|text| text.parse().ok()).map(Duration::from_millis);
    let Some(delay) = expiration.into_iter().chain(door.delay).min() else {
        let detail = "the message has no `expiration`, and the door no `delay`";
        return Err(Rejection::new("no_delay", detail));
    };
    let Some(destination) = door.to.clone() else {
        return Err(Rejection::new("no_destination", "the door has no `to`"));
    };
    let when = after(message, now, delay)?;
    let task = ForeignTask::new(door, intake, message, now, when, destination);
    ForeignTask { drops_expiration: true, ..task }.put()
}
