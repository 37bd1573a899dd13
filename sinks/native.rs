//! Native headers: the headers of a message in the form of its broker. They say more than a text for each name: numbers,
//! tables, values that are no text, names that are repeated, and the properties of RabbitMQ.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Message;
#[cfg(feature = "rabbitmq")]
use crate::networked::Broker as _;
#[cfg(feature = "rabbitmq")]
use crate::rabbitmq::native as amqp;

/// The error text for a message that a sink refuses because of its native headers.
pub const NOT_DECODED: &str = "its native headers cannot be decoded";

/// What names of headers may contain beside letters and digits. <https://www.rfc-editor.org/rfc/rfc9110#name-tokens>
const TOKEN_SIGNS: &[u8] = b"!#$%&'*+-.^_`|~";

/// Native headers as a task stores them. Only a sink of the same kind can publish them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Native {
    /// The kind of broker.
    pub kind: String,
    /// The encoded headers.
    pub bytes: Bytes,
}

/// Native headers of a message that was read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NativeHeaders {
    /// Properties and headers of RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(Box<lapin::BasicProperties>),
    /// The headers of Kafka or NATS.
    List(HeaderList),
}

/// Names and values in their order. A name may be repeated, and in Kafka a value may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderList {
    /// The kind of broker.
    pub kind: &'static str,
    /// The headers.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// Nothing, bytes, a truth, a time, a list or a table.
    Other,
}

impl NativeHeaders {
    /// The kind of broker.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(_) => crate::rabbitmq::Rabbit::KIND,
            NativeHeaders::List(list) => list.kind,
        }
    }

    /// Number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => properties.headers().as_ref().map_or(0, |table| table.inner().len()),
            NativeHeaders::List(list) => list.headers.len(),
        }
    }

    /// Whether there is no header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the headers, in order.
    pub fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => {
                let table = properties.headers().as_ref();
                Box::new(table.into_iter().flat_map(|table| table.inner().keys().map(|name| name.as_str())))
            }
            NativeHeaders::List(list) => Box::new(list.headers.iter().map(|(name, _)| name.as_str())),
        }
    }

    /// The value of a header; of the first one if the name is repeated.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<HeaderValue<'_>> {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => amqp::value(properties, name),
            NativeHeaders::List(list) => {
                let (_, value) = list.headers.iter().find(|(known, _)| known == name)?;
                Some(value.as_deref().map_or(HeaderValue::Other, HeaderValue::of))
            }
        }
    }

    /// Keeps the headers whose name in lower case is accepted.
    #[must_use]
    pub fn retain(self, keeps: impl Fn(&str) -> bool) -> NativeHeaders {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => NativeHeaders::RabbitMq(Box::new(amqp::retain(*properties, keeps))),
            NativeHeaders::List(HeaderList { kind, mut headers }) => {
                headers.retain(|(name, _)| keeps(&name.to_ascii_lowercase()));
                NativeHeaders::List(HeaderList { kind, headers })
            }
        }
    }

    /// Gives a header this value.
    #[must_use]
    pub fn with(self, name: &str, value: &HeaderValue<'_>) -> NativeHeaders {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => {
                NativeHeaders::RabbitMq(Box::new(amqp::with(*properties, name, value)))
            }
            NativeHeaders::List(HeaderList { kind, mut headers }) => {
                headers.retain(|(known, _)| known != name);
                headers.push((name.to_owned(), value.text().map(|text| Bytes::copy_from_slice(text.as_bytes()))));
                NativeHeaders::List(HeaderList { kind, headers })
            }
        }
    }

    /// After how many ms RabbitMQ drops the message from a queue, as its producer wrote it.
    #[must_use]
    pub fn expiration(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => {
                properties.expiration().as_ref().map(lapin::types::ShortString::as_str)
            }
            NativeHeaders::List(_) => None,
        }
    }

    /// The same without an expiration.
    #[must_use]
    pub fn without_expiration(self) -> NativeHeaders {
        match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => {
                NativeHeaders::RabbitMq(Box::new(amqp::without_expiration(&properties)))
            }
            NativeHeaders::List(list) => NativeHeaders::List(list),
        }
    }

    /// The form that a task stores.
    #[must_use]
    pub fn encode(&self) -> Native {
        let bytes = match self {
            #[cfg(feature = "rabbitmq")]
            NativeHeaders::RabbitMq(properties) => amqp::encode(properties),
            NativeHeaders::List(list) => list.encode(),
        };
        Native { kind: self.kind().to_owned(), bytes }
    }
}

impl HeaderValue<'_> {
    /// A text, if these bytes are one.
    #[must_use]
    pub fn of(bytes: &[u8]) -> HeaderValue<'_> {
        std::str::from_utf8(bytes).map_or(HeaderValue::Other, |text| HeaderValue::Text(text.into()))
    }

    /// As text, if it is a text or a number.
    #[must_use]
    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            HeaderValue::Text(text) => Some(Cow::Borrowed(text)),
            HeaderValue::Integer(number) => Some(number.to_string().into()),
            HeaderValue::Float(number) => Some(number.to_string().into()),
            HeaderValue::Other => None,
        }
    }
}

impl HeaderList {
    /// Native headers, if these say more than a text for each name.
    #[must_use]
    pub fn if_needed(kind: &'static str, headers: Vec<(String, Option<Bytes>)>) -> Option<NativeHeaders> {
        let is_text = |value: &Option<Bytes>| value.as_deref().is_some_and(|value| std::str::from_utf8(value).is_ok());
        let mut names = HashSet::new();
        let is_token =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || TOKEN_SIGNS.contains(&byte));
        let is_needed = headers.iter().any(|(name, value)| !is_text(value) || !is_token(name) || !names.insert(name));
        is_needed.then_some(NativeHeaders::List(HeaderList { kind, headers }))
    }

    /// Those that a message has for a sink of this kind.
    ///
    /// # Errors
    /// What is wrong, if they cannot be decoded.
    pub fn of(message: &Message, kind: &str) -> Result<Vec<(String, Option<Bytes>)>, String> {
        let Some(native) = message.native.as_ref().filter(|native| native.kind == kind) else { return Ok(Vec::new()) };
        HeaderList::decode(native.bytes.clone()).ok_or_else(|| NOT_DECODED.to_owned())
    }

    /// Each name and each value behind its length in four bytes. The length of a value is one more than that of its bytes; 0
    /// means that it is missing.
    fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        for (name, value) in &self.headers {
            bytes.put_u32(length(name.len()));
            bytes.put_slice(name.as_bytes());
            bytes.put_u32(value.as_ref().map_or(0, |value| length(value.len() + 1)));
            bytes.put_slice(value.as_deref().unwrap_or_default());
        }
        bytes.freeze()
    }

    /// Decodes the bytes of [`encode`](NativeHeaders::encode); `None` if they are no such list.
    #[must_use]
    pub fn decode(mut bytes: Bytes) -> Option<Vec<(String, Option<Bytes>)>> {
        let mut headers = Vec::new();
        while bytes.has_remaining() {
            let name = take(&mut bytes, 0)??;
            headers.push((String::from_utf8(name.to_vec()).ok()?, take(&mut bytes, 1)?));
        }
        Some(headers)
    }
}

/// Takes a value behind its length, which is this much larger; `Some(None)` if it is missing.
fn take(bytes: &mut Bytes, more: usize) -> Option<Option<Bytes>> {
    let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
    let Some(length) = length.checked_sub(more) else { return Some(None) };
    (length <= bytes.len()).then(|| Some(bytes.split_to(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> HeaderList {
        let value = |bytes: &'static [u8]| Some(Bytes::from_static(bytes));
        let headers =
            [("a", value(b"1")), ("a", value(b"2")), ("binary", value(b"\xff\0")), ("none", None), ("", value(b""))];
        HeaderList { kind: "kafka", headers: headers.map(|(name, value)| (name.to_owned(), value)).into() }
    }

    #[test]
    fn a_list_is_the_same_after_decoding_and_no_other_bytes_are_one() {
        let encoded = NativeHeaders::List(list()).encode();
        assert_eq!(encoded.kind, "kafka");
        assert_eq!(HeaderList::decode(encoded.bytes.clone()), Some(list().headers));
        let decoded = |length: usize| HeaderList::decode(encoded.bytes.slice(..length));
        let ends = (0..encoded.bytes.len()).filter(|length| decoded(*length).is_some()).count();
        assert_eq!(ends, list().headers.len(), "it can be cut between headers alone");
        assert_eq!(HeaderList::decode(Bytes::from_static(b"\xff\xff\xff\xff")), None);
    }

    #[test]
    fn headers_are_left_out_and_set_by_name() {
        let native = NativeHeaders::List(list()).retain(|name| name != "a").with("none", &HeaderValue::Integer(-3));
        assert_eq!(native.len(), 3);
        assert_eq!(native.value("none"), Some(HeaderValue::Text("-3".into())));
        assert_eq!((native.value("a"), native.value("binary")), (None, Some(HeaderValue::Other)));
    }
}
