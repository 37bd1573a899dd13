//! The dialect `masstransit`: what MassTransit sends to its scheduler with `UseMessageScheduler`, over RabbitMQ.
//! <https://masstransit.io/documentation/configuration/scheduling>
//!
//! - The body is an envelope in JSON. Its `messageType` names `ScheduleMessage` or `CancelScheduledMessage`.
//! - The token of the scheduled message is the id of the task.
//! - The published envelope is the one that was read, with the scheduled message in it. It goes to the exchange that
//!   `destination` names, as each of MassTransit's endpoints has one.

use std::collections::BTreeMap;

use bytes::Bytes;
use punctual_sinks::source::Incoming;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::foreign::{ForeignTask, iso_time};
use super::{Instruction, Rejection, id_of_foreign_name};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::task::When;

/// The ends of the names of the two messages.
const SCHEDULE: &str = ":ScheduleMessage";
const CANCEL: &str = ":CancelScheduledMessage";

/// The header of the envelope with the token of a scheduled message.
const TOKEN: &str = "MT-Scheduling-TokenId";

/// An envelope; its members are published as they are.
type Envelope = BTreeMap<String, Box<RawValue>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleMessage {
    /// The token.
    correlation_id: String,
    scheduled_time: String,
    payload_type: Box<RawValue>,
    destination: String,
    payload: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelScheduledMessage {
    token_id: String,
}

/// Reads a message.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    let body = message.body.as_deref().unwrap_or_default();
    let mut envelope: Envelope = serde_json::from_slice(body).map_err(bad_body)?;
    let types: Vec<String> = member(&envelope, "messageType")?;
    let is_of = |end: &str| types.iter().any(|name| name.ends_with(end));
    let id = |token: &str| {
        id_of_foreign_name(door, token.to_ascii_lowercase().as_bytes()).map_err(|fault| Rejection::of(&[fault]))
    };
    if is_of(CANCEL) {
        let cancel: CancelScheduledMessage = member(&envelope, "message")?;
        return Ok(Instruction::Cancel(id(&cancel.token_id)?));
    }
    if !is_of(SCHEDULE) {
        let detail = format!("`messageType` is neither `ScheduleMessage` nor `CancelScheduledMessage`: {types:?}");
        return Err(Rejection::new("bad_body", detail));
    }
    let schedule: ScheduleMessage = member(&envelope, "message")?;
    let bad_time = || Rejection::new("bad_time", format!("`scheduledTime` is no time: `{}`", schedule.scheduled_time));
    let when = When::At(iso_time(&schedule.scheduled_time).ok_or_else(bad_time)?);
    let Some(exchange) = exchange(&schedule.destination) else {
        return Err(Rejection::new("no_destination", format!("`destination` is no queue: `{}`", schedule.destination)));
    };
    let id = id(&schedule.correlation_id)?;
    let mut headers: BTreeMap<String, Box<RawValue>> =
        if envelope.contains_key("headers") { member(&envelope, "headers")? } else { BTreeMap::new() };
    headers.insert(TOKEN.to_owned(), raw(&schedule.correlation_id.replace('-', "")));
    envelope.insert("headers".to_owned(), raw(&headers));
    envelope.insert("messageType".to_owned(), schedule.payload_type);
    envelope.insert("message".to_owned(), schedule.payload);
    envelope.insert("destinationAddress".to_owned(), raw(&schedule.destination));
    let message = &Incoming { body: Some(Bytes::from(raw(&envelope).get().to_owned())), ..message.clone() };
    // Every endpoint has an exchange with its name, which takes any routing key.
    let task = ForeignTask::new(door, intake, message, now, when, format!("{exchange}/"));
    ForeignTask { id: Some(id), ..task }.put()
}

fn member<'a, T: Deserialize<'a>>(envelope: &'a Envelope, name: &str) -> Result<T, Rejection> {
    let missing = || Rejection::new("bad_body", format!("the envelope has no `{name}`"));
    serde_json::from_str(envelope.get(name).ok_or_else(missing)?.get()).map_err(bad_body)
}

fn bad_body(error: serde_json::Error) -> Rejection {
    Rejection::new("bad_body", format!("the body is no envelope of MassTransit in JSON: {error}"))
}

fn raw<T: serde::Serialize>(value: &T) -> Box<RawValue> {
    to_raw_value(value).expect("texts and members are JSON")
}

/// The exchange of an address: `rabbitmq://HOST/VHOST/NAME`, `queue:NAME` or `exchange:NAME`, with options behind `?`.
fn exchange(address: &str) -> Option<&str> {
    let (address, _) = address.split_once('?').unwrap_or((address, ""));
    let name = match address.split_once(':')? {
        ("queue" | "exchange", name) => name,
        ("rabbitmq" | "rabbitmqs" | "amqp" | "amqps", rest) => rest.strip_prefix("//")?.rsplit_once('/')?.1,
        _ => return None,
    };
    (!name.is_empty() && !name.contains(['/', '%'])).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_an_exchange() {
        for (address, name) in [
            ("rabbitmq://localhost/orders", Some("orders")),
            ("rabbitmq://localhost/shop/orders?bind=true&queue=orders", Some("orders")),
            ("queue:orders", Some("orders")),
            ("exchange:Shop:Cancel?type=topic", Some("Shop:Cancel")),
            ("topic:orders", None),
            ("rabbitmq://localhost/", None),
            ("rabbitmq://localhost/a%2fb", None),
            ("orders", None),
            ("", None),
        ] {
            assert_eq!(exchange(address), name, "{address}");
        }
    }
}
