//! Reads typed values from the layers and collects all faults, so that they are reported at once.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::hints::nearest;
use super::layers::{Entry, Layers, PROPERTIES, TOO_LARGE, Value, is_secret};
use super::{ConfigFault, Origin, SecretUrl, Setting};
use crate::task::duration;

/// Reads values. A value that cannot be parsed is a fault and is replaced by a placeholder that is never used.
pub(super) struct ConfigReader {
    layers: Layers,
}

/// Parses an address as people type it: `127.0.0.1:7171`, `localhost:7171`, `7171` (both on loopback), or `:7171` (on all
/// interfaces).
fn parse_address(text: &str) -> Option<SocketAddr> {
    let port = |text: &str| text.parse::<u16>().ok();
    match text.split_once(':') {
        None => port(text).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Some(("", rest)) if port(rest).is_some() => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(rest)?))),
        Some(("localhost", rest)) => port(rest).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Some(_) => text.parse().ok(),
    }
}

/// What to write instead of a host and a port.
fn with_scheme(text: &str, schemes: &[&str]) -> String {
    let port = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match (port, schemes.first()) {
        // A user or a password must not be shown.
        (Some(_), Some(scheme)) if !text.contains(['@', '/']) => format!("; did you mean `{scheme}://{text}`?"),
        _ => String::new(),
    }
}

impl ConfigReader {
    pub(super) fn new(layers: Layers) -> ConfigReader {
        ConfigReader { layers }
    }

    /// The faults so far. If there are none, every value is valid.
    pub(super) fn into_faults(self) -> Vec<ConfigFault> {
        self.layers.faults
    }

    /// All values in printable form, and where they came from.
    pub(super) fn settings(&self) -> BTreeMap<String, Setting> {
        self.layers.values.iter().map(|(path, entry)| (path.clone(), Setting::new(path, entry))).collect()
    }

    pub(super) fn names(&self, section: &str) -> Vec<String> {
        self.layers.names(section).into_iter().collect()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.layers.values.contains_key(path)
    }

    /// A text that `parse` accepts.
    pub(super) fn text<T>(&mut self, path: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.value(path, |value| match value {
            Value::Text(text) => parse(text),
            // It may be the secret without its quotes.
            Value::Whole(_) if is_secret(path) => Err("a string is expected, not this number".to_owned()),
            other => Err(format!("a string is expected, not {}", shown(other))),
        })
    }

    /// Texts: an array of strings, or one string with spaces between them, for variables have no arrays. `None` if it is
    /// not set.
    pub(super) fn texts<T>(&mut self, path: &str, parse: impl Fn(Vec<String>) -> Result<T, String>) -> Option<T> {
        self.value(path, |value| match value {
            Value::List(texts) => parse(texts.clone()),
            Value::Text(text) => parse(text.split_whitespace().map(str::to_owned).collect()),
            other => Err(format!("an array of strings is expected, not {}", shown(other))),
        })
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, path: &str) -> bool {
        let read = self.value(path, |value| match value {
            Value::Flag(flag) => Ok(*flag),
            Value::Text(text) if text == "true" => Ok(true),
            Value::Text(text) if text == "false" => Ok(false),
            other => Err(format!("`true` or `false` is expected, not {}", shown(other))),
        });
        read.unwrap_or_default()
    }

    /// A duration from `from` to `to`.
    pub(super) fn duration(&mut self, path: &str, from: Duration, to: Duration) -> Duration {
        let read = self.text(path, |text| {
            let span = duration::parse(text).map_err(|bad| bad.to_string())?;
            match from <= span && span <= to {
                true => Ok(span),
                false => {
                    let (from, to) = (duration::format(from), duration::format(to));
                    Err(format!("`{text}`: a duration from {from} to {to} is expected"))
                }
            }
        });
        read.unwrap_or(from)
    }

    /// A whole number from `from` to `to`.
    pub(super) fn whole(&mut self, path: &str, from: u64, to: u64) -> u64 {
        self.number(path, from, to, |text| text.parse().ok(), "a whole number")
    }

    /// A number of bytes from `from` to `to`.
    pub(super) fn size(&mut self, path: &str, from: u64, to: u64) -> usize {
        usize::try_from(self.number(path, from, to, size, "a number of bytes, such as `16MiB`,")).unwrap_or(usize::MAX)
    }

    pub(super) fn address(&mut self, path: &str) -> Option<SocketAddr> {
        let expected = "an address is expected, such as `127.0.0.1:7171`; port 0 takes a free one";
        self.text(path, |text| parse_address(text).ok_or_else(|| expected.to_owned()))
    }

    /// An address; empty means none.
    pub(super) fn optional_address(&mut self, path: &str) -> Option<SocketAddr> {
        let expected = "an address is expected, such as `127.0.0.1:7172`, or nothing";
        let parse = |text: &str| {
            if text.is_empty() { Ok(None) } else { parse_address(text).map(Some).ok_or_else(|| expected.to_owned()) }
        };
        self.text(path, parse).flatten()
    }

    pub(super) fn url(&mut self, path: &str, schemes: &[&str]) -> Option<SecretUrl> {
        self.text(path, |text| {
            // A value from a file often ends with a line break.
            let text = text.trim();
            // As people type them.
            let url = if ["stdout", "memory"].contains(&text) { format!("{text}:") } else { text.to_owned() };
            let url = SecretUrl::new(url);
            match schemes.is_empty() || schemes.contains(&url.scheme()) {
                true if !url.scheme().is_empty() => Ok(url),
                _ if schemes.is_empty() => Err("a URL is expected, such as `nats://127.0.0.1:4222`".into()),
                _ => Err(format!("a URL is expected that begins with {}{}", list(schemes), with_scheme(text, schemes))),
            }
        })
    }

    /// A text that is never shown; empty means none.
    pub(super) fn secret(&mut self, path: &str) -> Option<SecretString> {
        self.text(path, |text| Ok((!text.is_empty()).then(|| SecretString::from(text)))).flatten()
    }

    /// The path of a file; empty means none.
    pub(super) fn file(&mut self, path: &str) -> Option<PathBuf> {
        let read = self.text(path, |text| match text.trim() {
            "" => Ok(None),
            text if text.contains(['\n', '\r']) || text.contains("BEGIN ") => {
                Err("the path of a file is expected, not its contents".to_owned())
            }
            text => Ok(Some(PathBuf::from(text))),
        });
        read.flatten()
    }

    /// The client library's options of a sink, as text that is never shown.
    pub(super) fn properties(&mut self, sink: &str) -> BTreeMap<String, SecretString> {
        let mut properties = BTreeMap::new();
        for name in self.layers.properties(sink) {
            let path = format!("sinks.{sink}.{PROPERTIES}.{name}");
            let read = self.value(&path, |value| match value {
                Value::Text(text) => Ok(text.clone()),
                Value::Whole(number) => Ok(number.to_string()),
                Value::Flag(flag) => Ok(flag.to_string()),
                other => Err(format!("a string, a whole number or a boolean is expected, not {}", shown(other))),
            });
            properties.extend(read.map(|text| (name, SecretString::from(text))));
        }
        properties
    }

    /// Notes a fault of a path, with the place where it or its section was set.
    pub(super) fn fault(&mut self, path: &str, detail: String, hint: Option<String>) {
        self.fault_by(path, path, detail, hint);
    }

    /// Notes a fault of `path`, with the place of `cause` if `path` was not set itself.
    pub(super) fn fault_by(&mut self, path: &str, cause: &str, detail: String, hint: Option<String>) {
        let place = self.layers.place(path).or_else(|| self.layers.place(cause));
        let origin = place.unwrap_or(Origin::Default);
        self.layers.faults.push(ConfigFault { path: path.to_owned(), origin, detail, hint });
    }

    /// Whether a fault of this option was noted, so that its placeholder is not compared with other values.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        let unreadable = self.layers.values.get(path).is_some_and(|entry| entry.value == Value::Unreadable);
        unreadable || self.layers.faults.iter().any(|fault| fault.path == path)
    }

    /// Notes that `path` names something that is not in `there`.
    pub(super) fn unknown_name(&mut self, path: &str, name: &str, there: &[String]) {
        let hint = nearest(name, there.iter().cloned()).map(|near| format!("did you mean `{near}`?"));
        let detail = match there {
            [] => format!("`{name}` is not configured, nor is any other"),
            _ => format!("`{name}` is not configured, only {}", list(there)),
        };
        self.fault(path, detail, hint);
    }

    fn number(&mut self, path: &str, from: u64, to: u64, parse: fn(&str) -> Option<u64>, what: &str) -> u64 {
        let read = self.value(path, |value| {
            let number = match value {
                Value::Whole(number) => u64::try_from(*number).ok(),
                Value::Text(text) => parse(text.trim()),
                Value::Flag(_) | Value::List(_) | Value::Other(_) | Value::Section | Value::Unreadable => None,
            };
            number
                .filter(|number| (from..=to).contains(number))
                .ok_or_else(|| format!("{what} from {from} to {to} is expected, not {}", shown(value)))
        });
        read.unwrap_or(from)
    }

    fn value<T>(&mut self, path: &str, read: impl FnOnce(&Value) -> Result<T, String>) -> Option<T> {
        let Entry { value, origin } = self.layers.values.get(path)?;
        // Already reported.
        if *value == Value::Unreadable {
            return None;
        }
        match read(value) {
            Ok(value) => Some(value),
            Err(detail) => {
                let detail = match value {
                    Value::Text(text) if text.trim().is_empty() => empty(&detail),
                    Value::Text(text) if !is_secret(path) && !detail.starts_with('`') => {
                        format!("`{text}`: {detail}")
                    }
                    _ => detail,
                };
                let origin = origin.clone();
                self.layers.faults.push(ConfigFault { path: path.to_owned(), origin, detail, hint: None });
                None
            }
        }
    }
}

/// The error text for a missing value.
fn empty(detail: &str) -> String {
    match detail.strip_prefix("`` is not a duration: ") {
        Some(rest) => rest.to_owned(),
        None => format!("it is empty: {}", detail.split_once(", not ").map_or(detail, |(expected, _)| expected)),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Text(_) => "this text".to_owned(),
        Value::Whole(number) => format!("the number {number}"),
        Value::Flag(_) => "this boolean".to_owned(),
        Value::List(_) => "this array".to_owned(),
        Value::Other(TOO_LARGE) => format!("a {TOO_LARGE}"),
        Value::Other(kind) => format!("this {kind}"),
        Value::Section => "a section".to_owned(),
        Value::Unreadable => "what is no TOML".to_owned(),
    }
}

/// Names in backticks, joined.
pub(super) fn list<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text {
        text if text.ends_with("KiB") => (text.trim_end_matches("KiB"), 1 << 10),
        text if text.ends_with("MiB") => (text.trim_end_matches("MiB"), 1 << 20),
        text => (text, 1),
    };
    number.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}
