//! Native headers of RabbitMQ: the properties of a message, with its headers in their types.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::source::OF_DELIVERY;
use crate::native::HeaderValue;

/// Headers that route a message to more queues.
const ROUTING: [&str; 2] = ["cc", "bcc"];

/// Copies these properties.
macro_rules! copy {
    ($from:ident, $($property:ident $with:ident),*) => {{
        let copy = BasicProperties::default();
        $(let copy = match $from.$property() {
            Some(value) => copy.$with(value.to_owned()),
            None => copy,
        };)*
        copy
    }};
}

/// The properties of a message that travel on. The user is left out, because the server refuses a user who is not the
/// publisher. Also left out are the cluster, the delivery mode, headers that route to more queues, and headers of this
/// delivery.
pub(super) fn of(properties: &BasicProperties) -> BasicProperties {
    let kept = without_expiration(properties);
    let kept = match properties.expiration() {
        Some(expiration) => kept.with_expiration(expiration.clone()),
        None => kept,
    };
    retain(kept, |name| !ROUTING.contains(&name) && !OF_DELIVERY.contains(&name))
}

/// Copies the properties except expiration, delivery mode, user and cluster. Keeps all headers.
pub(crate) fn without_expiration(properties: &BasicProperties) -> BasicProperties {
    copy!(
        properties,
        content_type with_content_type,
        content_encoding with_content_encoding,
        headers with_headers,
        priority with_priority,
        correlation_id with_correlation_id,
        reply_to with_reply_to,
        message_id with_message_id,
        timestamp with_timestamp,
        kind with_type,
        app_id with_app_id
    )
}

/// The value of a header.
pub(crate) fn value<'a>(properties: &'a BasicProperties, name: &str) -> Option<HeaderValue<'a>> {
    let value = properties.headers().as_ref()?.inner().get(name)?;
    Some(match value {
        AMQPValue::LongString(text) => HeaderValue::of(text.as_bytes()),
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().into()),
        AMQPValue::Float(number) => HeaderValue::Float(f64::from(*number)),
        AMQPValue::Double(number) => HeaderValue::Float(*number),
        other => integer(other).map_or(HeaderValue::Other, HeaderValue::Integer),
    })
}

/// A whole number.
pub(super) fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(number) => i64::from(*number),
        AMQPValue::ShortShortUInt(number) => i64::from(*number),
        AMQPValue::ShortInt(number) => i64::from(*number),
        AMQPValue::ShortUInt(number) => i64::from(*number),
        AMQPValue::LongInt(number) => i64::from(*number),
        AMQPValue::LongUInt(number) => i64::from(*number),
        AMQPValue::LongLongInt(number) => *number,
        _ => return None,
    })
}

/// Keeps the headers whose name in lower case is accepted.
pub(crate) fn retain(properties: BasicProperties, keeps: impl Fn(&str) -> bool) -> BasicProperties {
    let Some(table) = properties.headers() else { return properties };
    let kept = table.inner().iter().filter(|(name, _)| keeps(&name.as_str().to_ascii_lowercase()));
    let kept: BTreeMap<ShortString, AMQPValue> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    properties.with_headers(FieldTable::from(kept))
}

/// Gives a header this value.
pub(crate) fn with(properties: BasicProperties, name: &str, value: &HeaderValue<'_>) -> BasicProperties {
    let mut table = properties.headers().clone().unwrap_or_default();
    let value = match value {
        HeaderValue::Text(text) => AMQPValue::LongString(text.as_bytes().into()),
        HeaderValue::Integer(number) => AMQPValue::LongLongInt(*number),
        HeaderValue::Float(number) => AMQPValue::Double(*number),
        HeaderValue::Other => AMQPValue::Void,
    };
    table.insert(name.into(), value);
    properties.with_headers(table)
}

/// Encodes properties as in a header frame.
pub(crate) fn encode(properties: &BasicProperties) -> Bytes {
    let written = gen_properties(properties)(Vec::new().into());
    written.map(|context| context.write.into()).unwrap_or_default()
}

/// Decodes the bytes of [`encode`]; `None` if they are no properties.
pub(super) fn decode(bytes: &[u8]) -> Option<BasicProperties> {
    parse_properties(bytes).ok().filter(|(rest, _)| rest.is_empty()).map(|(_, properties)| properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> BasicProperties {
        let mut inner = FieldTable::default();
        inner.insert("none".into(), AMQPValue::Void);
        let mut table = FieldTable::default();
        for (name, value) in [
            ("lang", AMQPValue::LongString("py".into())),
            ("retries", AMQPValue::LongInt(0)),
            ("eta", AMQPValue::Void),
            ("timelimit", AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Double(1.5)].into())),
            ("stamps", AMQPValue::FieldTable(inner)),
            ("CC", AMQPValue::FieldArray(vec![AMQPValue::LongString("other".into())].into())),
        ] {
            table.insert(name.into(), value);
        }
        BasicProperties::default()
            .with_headers(table)
            .with_content_type("application/json".into())
            .with_correlation_id("c1".into())
            .with_reply_to("r1".into())
            .with_priority(3)
            .with_timestamp(1_795_262_400)
            .with_expiration("5000".into())
            .with_user_id("guest".into())
            .with_delivery_mode(1)
    }

    #[test]
    fn properties_are_the_same_after_decoding_and_no_part_of_their_bytes_is_any() {
        let bytes = encode(&properties());
        assert_eq!(decode(&bytes), Some(properties()));
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()));
        assert!(decode(&[bytes.as_ref(), b"x"].concat()).is_none());
    }

    #[test]
    fn what_the_server_would_refuse_or_route_elsewhere_does_not_travel_on() {
        let kept = of(&properties());
        assert_eq!((kept.user_id(), kept.delivery_mode(), kept.priority()), (&None, &None, &Some(3)));
        assert_eq!((value(&kept, "CC"), value(&kept, "retries")), (None, Some(HeaderValue::Integer(0))));
        assert_eq!(kept.expiration().as_ref().map(ShortString::as_str), Some("5000"));
        assert_eq!(without_expiration(&kept).expiration(), &None);
    }
}
