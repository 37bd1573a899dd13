//! A task written as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use crate::task::duration::format;
use crate::task::{Lane, Message, Payload, RetryPolicy, Schedule, Task, When};

/// The task as JSON in the form that [`read`](super::read) takes, with `lane`; payloads byte for byte.
#[must_use]
pub fn write(task: &Task, lane: &Lane) -> Box<RawValue> {
    let mut object = Object::default();
    object.raw("schedule", &schedule(&task.schedule));
    object.raw("message", &message(&task.message));
    object.text("lane", lane.as_str());
    if let Some(policy) = &task.retry {
        object.raw("retry", &retry(policy));
    }
    if let Some(policy) = task.catch_up {
        object.text("catch_up", policy.as_str());
    }
    RawValue::from_string(object.end()).expect("every part was written as JSON")
}

fn schedule(schedule: &Schedule) -> String {
    let mut object = Object::default();
    let start = match &schedule.when {
        When::At(at) => {
            object.text("at", &at.to_string());
            None
        }
        When::In(span) => {
            object.text("in", &format(*span));
            None
        }
        When::Every { gap, start } => {
            object.text("every", &format(*gap));
            *start
        }
        When::Cron { expression, zone, start } => {
            object.text("cron", expression);
            object.may("zone", zone.as_deref());
            *start
        }
    };
    object.may("start", start.map(|time| time.to_string()).as_deref());
    object.may("end", schedule.end.map(|time| time.to_string()).as_deref());
    if let Some(limit) = schedule.limit {
        object.raw("limit", &limit.to_string());
    }
    object.may("spread", schedule.spread.map(format).as_deref());
    object.end()
}

fn message(message: &Message) -> String {
    let mut object = Object::default();
    object.may("destination", message.destination.as_deref());
    object.may("key", message.key.as_deref());
    if !message.headers.is_empty() {
        let mut headers = Object::default();
        for (name, value) in &message.headers {
            headers.text(name, value);
        }
        object.raw("headers", &headers.end());
    }
    match &message.payload {
        Payload::Empty => {}
        // It was JSON when it was put; should it be damaged, it is still shown.
        Payload::Json(bytes) => match serde_json::from_slice::<&RawValue>(bytes) {
            Ok(json) => object.raw("payload", json.get()),
            Err(_) => object.text("payload_base64", &STANDARD.encode(bytes)),
        },
        Payload::Raw { bytes, content_type } => {
            object.text("payload_base64", &STANDARD.encode(bytes));
            object.may("content_type", content_type.as_deref());
        }
    }
    object.end()
}

fn retry(policy: &RetryPolicy) -> String {
    let mut object = Object::default();
    object.raw("max", &policy.max.to_string());
    object.text("interval", &format(policy.interval));
    object.text("jitter", &format(policy.jitter));
    object.end()
}

/// Members of a JSON object, in the order they are added.
#[derive(Default)]
struct Object(String);

impl Object {
    /// Adds a value that is JSON already.
    fn raw(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&quoted(name));
        self.0.push(':');
        self.0.push_str(value);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &quoted(value));
    }

    fn may(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
