//! The dialect `x-delay`: messages for RabbitMQ's plugin of delayed messages, whose producers stay as they are.
//! <https://github.com/rabbitmq/rabbitmq-delayed-message-exchange>
//!
//! - The header `x-delay` is the delay in ms. Without it, or if it is not above 0, the message is due at once.
//! - The option `exchanges` names, for each exchange that a message came by, the exchange that its task is published
//!   to. The routing key stays.
//! - The published message has the negated delay in `x-delay`, as the plugin writes it.

use std::time::Duration;

use punctual_sinks::headers::TASK;
use punctual_sinks::native::HeaderValue;
use punctual_sinks::source::Incoming;

use super::foreign::{ForeignTask, after, destination_by_exchange, header};
use super::{Instruction, Rejection};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;

const DELAY: &str = "x-delay";

/// Reads a message.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let destination = destination_by_exchange(door, message)?;
    let delay = delay(header(message, DELAY))?;
    if delay.is_zero() && message.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TASK)) {
        let detail = "punctual has published it, and it is due at once: it would come again and again";
        return Err(Rejection::new("loop", detail));
    }
    let negated = i64::try_from(delay.as_millis()).map_or(i64::MIN, |ms| -ms);
    let headers = if delay.is_zero() { Vec::new() } else { vec![(DELAY, HeaderValue::Integer(negated))] };
    let when = after(message, now, delay)?;
    ForeignTask { headers, ..ForeignTask::new(door, intake, message, now, when, destination) }.put()
}

/// The delay, as the plugin reads it. Zero is at once.
///
/// # Errors
/// If it is a text that is no whole number, with which the plugin crashes, or a float that is not finite.
fn delay(value: Option<HeaderValue<'_>>) -> Result<Duration, Rejection> {
    let bad = |text: &str| Rejection::new("bad_delay", format!("`{DELAY}` is a whole number of ms, not `{text}`"));
    let ms = match value {
        Some(HeaderValue::Integer(ms)) => i128::from(ms),
        Some(HeaderValue::Text(text)) => text.trim().parse().map_err(|_| bad(&text))?,
        // A conversion from a float saturates.
        Some(HeaderValue::Float(ms)) if ms.is_finite() => ms.trunc() as i128,
        Some(HeaderValue::Float(ms)) => return Err(bad(&ms.to_string())),
        Some(HeaderValue::Other) | None => 0,
    };
    Ok(Duration::from_millis(u64::try_from(ms.max(0)).unwrap_or(u64::MAX)))
}
