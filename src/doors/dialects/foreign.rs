//! What the dialects of other programs have in common: such a message becomes one message that is published once, with its body
//! and with all headers that the sink of its lane can publish.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_sinks::headers as sink_headers;
use punctual_sinks::native::{HeaderValue, NativeHeaders};
use punctual_sinks::source::Incoming;

use super::{Instruction, Rejection, body, id_of_place, native};
use crate::clock::Timestamp;
use crate::doors::Door;
use crate::engine::Intake;
use crate::engine::intake::NewTask;
use crate::task::spec::{self, is_header, is_name};
use crate::task::{Message, Payload, Schedule, Task, TaskId, When};

/// A task from such a message.
pub(super) struct ForeignTask<'a> {
    pub(super) door: &'a Door,
    pub(super) intake: &'a Intake,
    pub(super) message: &'a Incoming,
    pub(super) now: Timestamp,
    /// Its id, if the message names one.
    pub(super) id: Option<TaskId>,
    pub(super) when: When,
    pub(super) destination: String,
    /// The record key of Kafka.
    pub(super) key: Option<String>,
    /// Headers that the message gets, in text and in native form.
    pub(super) headers: Vec<(&'static str, HeaderValue<'static>)>,
    /// Whether its expiration is left out.
    pub(super) drops_expiration: bool,
}

impl<'a> ForeignTask<'a> {
    /// A task whose message names no id and keeps its headers.
    pub(super) fn new(
        door: &'a Door,
        intake: &'a Intake,
        message: &'a Incoming,
        now: Timestamp,
        when: When,
        destination: String,
    ) -> ForeignTask<'a> {
        let (id, key, headers, drops_expiration) = (None, None, Vec::new(), false);
        ForeignTask { door, intake, message, now, id, when, destination, key, headers, drops_expiration }
    }

    /// The instruction to put it.
    ///
    /// # Errors
    /// Why the message is rejected.
    pub(super) fn put(self) -> Result<Instruction, Rejection> {
        let ForeignTask { door, intake, message, .. } = self;
        let names_id = self.id.is_some();
        let id = self.id.clone().map_or_else(|| id_of_place(door, message), Ok);
        let id = id.map_err(|fault| Rejection::of(&[fault]))?;
        for (name, text) in [("destination", Some(&self.destination)), ("key", self.key.as_ref())] {
            if text.is_some_and(|text| !text.is_empty() && !is_name(text)) {
                let detail = format!("the {name} of the message is too long, or holds a control character");
                return Err(Rejection::new("bad_value", detail));
            }
        }
        let lane = door.default_lane();
        let native = native(door, intake, &lane, message, |native| self.adapt(native))?;
        let headers = if native.is_some() { BTreeMap::new() } else { self.text_headers()? };
        let (destination, payload) = (Some(self.destination.clone()), self.payload()?);
        let of_task = Message { destination, key: self.key.clone(), headers, native, payload };
        let schedule = Schedule { when: self.when, end: None, limit: None, spread: None };
        let task = Task { schedule, message: of_task, retry: None, catch_up: door.catch_up };
        super::put(door, intake, NewTask { id, lane, task, trace: None }, names_id, self.now)
    }

    /// The native headers of the task.
    fn adapt(&self, native: NativeHeaders) -> NativeHeaders {
        // The payload has the content type (an empty one loses it), so a list of headers does not repeat it. In RabbitMQ
        // the content type is a property: a header with this name is an ordinary header, and stays.
        let type_is_header = matches!(native, NativeHeaders::List(_));
        let native = native.retain(|name| !type_is_header || name != sink_headers::CONTENT_TYPE);
        let native = self.headers.iter().fold(native, |native, (name, value)| native.with(name, value));
        if self.drops_expiration { native.without_expiration() } else { native }
    }

    /// The headers of the task as text. Those that no message can have are left out.
    ///
    /// # Errors
    /// If there are too many, or they are too large.
    fn text_headers(&self) -> Result<BTreeMap<String, String>, Rejection> {
        let text = |value: &[u8]| std::str::from_utf8(value).ok().map(str::to_owned);
        let of_message = self.message.headers.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?)));
        let mut headers: BTreeMap<String, String> = of_message.collect();
        for (name, value) in &self.headers {
            headers.extend(value.text().map(|text| ((*name).to_owned(), text.into_owned())));
        }
        headers.retain(|name, value| is_header(name, value));
        let bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        match spec::unfit_headers(headers.len(), bytes, &self.door.limits) {
            Some((code, detail)) => Err(Rejection::new(code, detail)),
            None => Ok(headers),
        }
    }

    /// The body, byte for byte.
    ///
    /// # Errors
    /// If it is too large.
    fn payload(&self) -> Result<Payload, Rejection> {
        let body = body(self.door, self.message).map_err(|fault| Rejection::of(&[fault]))?;
        let Some(bytes) = body else { return Ok(Payload::Tombstone) };
        // For RabbitMQ the source writes the property here, and leaves out a header with this name.
        let texts =
            self.message.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(sink_headers::CONTENT_TYPE));
        let mut texts = texts.filter_map(|(_, value)| String::from_utf8(value.to_vec()).ok());
        let content_type = texts.next().filter(|text| is_name(text));
        Ok(if bytes.is_empty() { Payload::Empty } else { Payload::Raw { bytes, content_type } })
    }
}

/// The value of a header; `None` if there is none.
pub(super) fn header<'a>(message: &'a Incoming, name: &str) -> Option<HeaderValue<'a>> {
    match message.native.as_ref().and_then(|native| native.value(name)) {
        Some(value) => Some(value),
        None => message.headers.iter().find(|(known, _)| known == name).map(|(_, value)| HeaderValue::of(value)),
    }
}

/// The schedule of a message that is due this long after it was sent; if that is not known, after it is put.
///
/// # Errors
/// If that is no due.
pub(super) fn after(message: &Incoming, now: Timestamp, delay: Duration) -> Result<When, Rejection> {
    let due = message.time_ms.map_or(now, Timestamp::from_millis).plus(delay);
    if !due.is_valid_due() {
        return Err(Rejection::new("out_of_range", format!("it would be due at {due}")));
    }
    Ok(if message.time_ms.is_some() || delay.is_zero() { When::At(due) } else { When::In(delay) })
}

/// A time in ISO 8601. It is in UTC if it has no offset.
pub(super) fn iso_time(text: &str) -> Option<Timestamp> {
    let time = spec::parse_time(text).or_else(|| spec::parse_time(&format!("{text}Z")));
    time.filter(|time| time.is_valid_due())
}

/// The destination of a message: what `exchanges` names for the exchange that it came by, and its routing key.
///
/// # Errors
/// If `exchanges` does not have it.
pub(super) fn destination_by_exchange(door: &Door, message: &Incoming) -> Result<String, Rejection> {
    let (exchange, key) = message.route.as_ref().map_or(("", ""), |(exchange, key)| (exchange.as_str(), key.as_str()));
    match door.exchanges.get(exchange).map(String::as_str) {
        // A queue, through the default exchange.
        Some("") if !key.contains('/') => Ok(key.to_owned()),
        Some(to) => Ok(format!("{to}/{key}")),
        None => {
            let detail = format!("it came by the exchange `{exchange}`, which `exchanges` does not have");
            Err(Rejection::new("unknown_exchange", detail))
        }
    }
}
