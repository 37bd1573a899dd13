//! What AMQP can carry, where a message goes, and how it is handed to lapin.

use std::pin::Pin;

use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, ShortString};
use lapin::{BasicProperties, Channel};

use super::refusal::Refusal;
use super::{Rabbit, native};
use crate::native::NOT_DECODED;
use crate::networked::Broker as _;
use crate::{Message, headers as names};

/// Maximum length of names, keys and properties in AMQP, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 255;

/// The delivery mode of a message that survives a restart of the server.
const PERSISTENT: u8 = 2;

/// The publish of one message: polling it hands the message to lapin and waits for the acknowledgement.
pub(super) type Publishing = Pin<Box<dyn Future<Output = lapin::Result<Confirmed>> + Send>>;

/// An acknowledgement.
pub(super) struct Confirmed {
    /// Whether the server acknowledged the message, with or without a return.
    pub(super) acked: bool,
    /// A returned message: this one or another one, because lapin reports a return with the next acknowledgement.
    pub(super) returned: Option<Returned>,
}

/// A returned message, as the server names it.
#[derive(Clone)]
pub(super) struct Returned {
    pub(super) exchange: String,
    pub(super) key: String,
    pub(super) message_id: Option<String>,
    pub(super) refusal: Refusal,
}

/// Exchange and routing key.
pub(super) type ExchangeAndKey<'a> = (&'a str, &'a str);

/// Exchange and routing key of a destination. Without `/` it is a queue, reached through the default exchange.
pub(super) fn target(destination: &str) -> ExchangeAndKey<'_> {
    destination.split_once('/').unwrap_or(("", destination))
}

/// Like [`target`], with a check of the destination.
pub(super) fn check_target(destination: &str) -> Result<ExchangeAndKey<'_>, String> {
    let (exchange, key) = target(destination);
    if exchange.is_empty() && key.is_empty() {
        return Err("it names neither an exchange nor a queue".to_owned());
    }
    if exchange.len() > MAX_TEXT_BYTES || key.len() > MAX_TEXT_BYTES {
        return Err(format!("exchange and routing key have {MAX_TEXT_BYTES} bytes at most each"));
    }
    Ok((exchange, key))
}

/// Checks that AMQP can carry a message; returns where it goes.
pub(super) fn check(message: &Message, most: usize) -> Result<ExchangeAndKey<'_>, String> {
    let target = check_target(&message.destination)?;
    let name = message.headers.iter().map(|(name, _)| name).find(|name| name.len() > MAX_TEXT_BYTES);
    if let Some(name) = name {
        return Err(format!("the header `{name}` has a name of more than {MAX_TEXT_BYTES} bytes"));
    }
    if message.key.len() > MAX_TEXT_BYTES
        || message.content_type.as_ref().is_some_and(|text| text.len() > MAX_TEXT_BYTES)
    {
        return Err(format!("key and content type have {MAX_TEXT_BYTES} bytes at most each"));
    }
    if native_properties(message).is_err() {
        return Err(NOT_DECODED.to_owned());
    }
    let headers: usize = message.all_headers().map(|(name, value)| name.len() + value.len() + 6).sum();
    let headers = headers + message.native_bytes();
    // In addition to the headers, the frame has its own header and three texts.
    if headers + 1024 > most { Err(format!("the headers do not fit into a frame of {most} bytes")) } else { Ok(target) }
}

/// Publishes a message on a channel; lapin gets it at the first poll.
pub(super) fn publishing(channel: &Channel, message: &Message) -> Publishing {
    // `check` has decoded them.
    let mut properties = native_properties(message).ok().flatten().unwrap_or_default();
    let mut headers = properties.headers().clone().unwrap_or_default();
    if message.is_dead_copy() {
        // It stays in its queue.
        properties = native::without_expiration(&properties);
    }
    if let Some(id) = properties.message_id() {
        headers.insert(names::MESSAGE_ID.into(), AMQPValue::LongString(id.as_str().into()));
    }
    for (name, value) in message.all_headers() {
        if ![names::KEY, names::CONTENT_TYPE].contains(&name) {
            headers.insert(name.into(), AMQPValue::LongString(value.into_owned().into()));
        }
    }
    properties =
        properties.with_message_id(message.key.as_str().into()).with_delivery_mode(PERSISTENT).with_headers(headers);
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(content_type.as_str().into());
    }
    let (exchange, key) = target(&message.destination);
    let (exchange, key): (ShortString, ShortString) = (exchange.into(), key.into());
    let (channel, payload) = (channel.clone(), message.payload.clone());
    Box::pin(async move {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirmation = channel.basic_publish(exchange, key, options, &payload, properties).await?.await?;
        Ok(Confirmed { acked: confirmation.is_ack(), returned: confirmation.take_message().map(returned) })
    })
}

/// The native headers of a message; `None` if they are of another kind.
///
/// # Errors
/// If they cannot be decoded.
fn native_properties(message: &Message) -> Result<Option<BasicProperties>, ()> {
    let native = message.native.as_ref().filter(|native| native.kind == Rabbit::KIND);
    native.map(|native| native::decode(&native.bytes).ok_or(())).transpose()
}

fn returned(message: BasicReturnMessage) -> Returned {
    let text = |text: &ShortString| text.as_str().to_owned();
    Returned {
        exchange: text(&message.exchange),
        key: text(&message.routing_key),
        message_id: message.properties.message_id().as_ref().map(text),
        refusal: Refusal { code: message.reply_code, detail: text(&message.reply_text) },
    }
}

/// Approximate size of the message on the wire, in bytes; 256 for the fixed part.
pub(super) fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    let own = own + message.native_bytes();
    message.payload.len() + own + message.key.len() + message.destination.len() + 256
}
