//! What AMQP can carry, where it goes, and how it is handed over.

use std::borrow::Cow;

use super::connection::Channel;
use super::frames::{self, Properties, SHORT};
use crate::{Message, headers};

/// Exchange and routing key.
pub(super) type Address<'a> = (&'a str, &'a str);

/// Exchange and routing key of a destination; without `/` a queue, by the exchange without a name.
pub(super) fn target(destination: &str) -> Address<'_> {
    destination.split_once('/').unwrap_or(("", destination))
}

/// As [`target`], if there can be such.
pub(super) fn check_target(destination: &str) -> Result<Address<'_>, String> {
    let (exchange, key) = target(destination);
    if exchange.is_empty() && key.is_empty() {
        return Err("it names neither an exchange nor a queue".to_owned());
    }
    if exchange.len() > SHORT || key.len() > SHORT {
        return Err(format!("exchange and routing key have {SHORT} bytes at most each"));
    }
    Ok((exchange, key))
}

/// Whether AMQP can carry it; where it goes.
pub(super) fn check(message: &Message, most: usize) -> Result<Address<'_>, String> {
    let target = check_target(&message.destination)?;
    let name = message.headers.iter().map(|(name, _)| name).find(|name| name.len() > SHORT);
    if let Some(name) = name {
        return Err(format!("the header `{name}` has a name of more than {SHORT} bytes"));
    }
    if message.key.len() > SHORT || message.content_type.as_ref().is_some_and(|text| text.len() > SHORT) {
        return Err(format!("key and content type have {SHORT} bytes at most each"));
    }
    let headers: usize = message.all_headers().map(|(name, value)| name.len() + value.len() + 6).sum();
    // Beside the headers there is a frame's frame, and three texts.
    if headers + 1024 > most { Err(format!("the headers do not fit into a frame of {most} bytes")) } else { Ok(target) }
}

pub(super) fn hand_over(channel: &mut Channel, message: &Message, most: usize) -> u64 {
    let own_place = [headers::KEY, headers::CONTENT_TYPE];
    let headers: Vec<(&str, Cow<'_, str>)> =
        message.all_headers().filter(|(name, _)| !own_place.contains(name)).collect();
    let content_type = message.content_type.as_deref();
    channel.publish(|bytes, number| {
        bytes.reserve(size(message));
        let properties = Properties { content_type, message_id: &message.key, headers: &headers };
        frames::write_message(bytes, number, target(&message.destination), true, &properties, &message.payload, most);
    })
}

/// About how many bytes the message takes on the wire; 256 for what is always there.
pub(super) fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    message.payload.len() + own + message.key.len() + message.destination.len() + 256
}
