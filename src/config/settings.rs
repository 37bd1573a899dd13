//! The resulting configuration for people to read: each option with its value and where it came from.

use serde_json::Value as Json;

use super::layers::{Entry, Value, holds_secret};
use super::{Config, Origin, SecretUrl};
use crate::task::duration;

/// An option with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its path, `claim.lease`.
    pub path: String,
    /// Its value as written. Secrets are `***`, and URLs have neither user nor password.
    pub value: Json,
    /// Where it was set.
    pub origin: Origin,
    /// The option that determines it, if it was not set itself.
    pub follows: Option<String>,
}

impl Setting {
    /// The value of a layer.
    pub(super) fn new(path: &str, entry: &Entry) -> Setting {
        let value = match &entry.value {
            Value::Text(text) if holds_secret(path) => Json::from(if text.is_empty() { "" } else { "***" }),
            Value::Text(text) if path.ends_with("url") => {
                Json::from(SecretUrl::new(text.trim().to_owned()).to_string())
            }
            _ if holds_secret(path) => Json::from("***"),
            Value::Text(text) => Json::from(text.clone()),
            Value::Whole(number) => Json::from(*number),
            Value::Flag(flag) => Json::from(*flag),
            Value::List(texts) => Json::from(texts.clone()),
            // A configuration without faults has none of these.
            Value::Other(kind) => Json::from(*kind),
            Value::Section | Value::Unreadable => Json::Null,
        };
        Setting { path: path.to_owned(), value, origin: entry.origin.clone(), follows: None }
    }

    /// The option as a line of TOML; names with dots are quoted.
    #[must_use]
    pub fn toml(&self) -> String {
        match self.path.split_once(".properties.") {
            Some((sink, name)) => {
                format!("{sink}.properties.{} = {}", in_toml(&Json::from(name)), in_toml(&self.value))
            }
            None => format!("{} = {}", self.path, in_toml(&self.value)),
        }
    }
}

/// A value as TOML: the same as JSON but for one control character.
fn in_toml(value: &Json) -> String {
    value.to_string().replace('\u{7f}', "\\u007f")
}

impl Config {
    /// Every option with its value: those that were set, the defaults, and those of sinks and lanes that follow others.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = self.settings.clone();
        let mut follow = |path: String, value: String, followed: Option<&str>| {
            let origin =
                followed.and_then(|followed| self.settings.get(followed)).map(|setting| setting.origin.clone());
            let (value, origin) = (Json::from(value), origin.unwrap_or(Origin::Default));
            let follows = followed.map(str::to_owned);
            settings.entry(path.clone()).or_insert(Setting { path, value, origin, follows });
        };
        for (name, sink) in &self.sinks {
            let path = |key: &str| format!("sinks.{name}.{key}");
            follow(path("answer_timeout"), duration::format(sink.answer_timeout), Some("sinks.answer_timeout"));
            follow(path("patience"), duration::format(sink.patience), Some("sinks.patience"));
        }
        for (name, lane) in &self.lanes {
            follow(format!("lanes.{name}.sink"), lane.sink.clone(), None);
        }
        settings.into_values().collect()
    }
}
