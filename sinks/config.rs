//! Which sink to use, from a URL: the one place that knows every kind of sink.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use crate::memory::MemorySink;
use crate::redis_streams::RedisStreamsSink;
use crate::stdout::StdoutSink;
use crate::{Sink, SinkError};

/// Where to publish to and how; the URL's password is kept out of `Debug`, errors and logs.
#[derive(Clone)]
pub struct SinkConfig {
    target: Target,
    answer_timeout: Duration,
    namespace: String,
}

/// A URL, taken apart.
#[derive(Clone)]
pub(crate) struct Target {
    /// What kind of sink it is, as in the URL: `nats`, `redis`, `stdout`, `memory`.
    pub(crate) scheme: &'static str,
    /// Name or address, and port.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<SecretString>,
    /// What stands behind the first `/` of the path; empty if nothing does.
    pub(crate) path: String,
}

/// Every kind of sink, its default port (0: it has no address), and what builds it. A new sink is a line here.
const KINDS: &[(&str, u16, Builder)] = &[
    #[cfg(feature = "nats")]
    ("nats", 4222, |config| Ok(Arc::new(crate::nats::NatsSink::new(config)?))),
    ("redis", 6379, |config| Ok(Arc::new(RedisStreamsSink::new(config)?))),
    ("stdout", 0, |config| Ok(Arc::new(StdoutSink::new(config.answer_timeout)?))),
    // Keeps nothing: who wants to receive builds a `MemorySink` and keeps it.
    ("memory", 0, |config| Ok(Arc::new(MemorySink::new(0, config.answer_timeout)))),
];

type Builder = fn(&SinkConfig) -> Result<Arc<dyn Sink>, SinkError>;

/// Schemes that other builds or versions have a sink for.
const ABSENT: &[(&str, &str)] = &[
    ("kafka", "this build of punctual has no Kafka sink"),
    ("amqp", "this build of punctual has no RabbitMQ sink"),
    ("amqps", "this build of punctual has no RabbitMQ sink"),
    ("nats", "this build of punctual has no NATS sink: it was built without the feature `nats`"),
    ("rediss", "this build of punctual has no Redis Streams sink with TLS"),
    ("tls", "this build of punctual has no NATS sink with TLS"),
];

impl SinkConfig {
    /// How long a publish can be without an answer, unless [`with_answer_timeout`](SinkConfig::with_answer_timeout)
    /// says otherwise.
    pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

    /// Reads a URL: `nats://[user:password@]host[:port][,host[:port]...]` (a user without a password is a token),
    /// `redis://[[user]:password@]host[:port][/database]`, `stdout:` or `memory:`. Connects to nothing.
    ///
    /// # Errors
    /// [`SinkError::Config`] when there is no such sink, or the URL is malformed. The text never quotes the URL.
    pub fn parse(url: &str) -> Result<SinkConfig, SinkError> {
        let target = Target::parse(url.trim()).map_err(SinkError::Config)?;
        Ok(SinkConfig { target, answer_timeout: SinkConfig::ANSWER_TIMEOUT, namespace: "default".to_owned() })
    }

    /// Sets the longest time for which a publish can be without an answer: 100 ms or longer, at most half the lease.
    #[must_use]
    pub fn with_answer_timeout(mut self, answer_timeout: Duration) -> SinkConfig {
        self.answer_timeout = answer_timeout;
        self
    }

    /// Sets what keeps installations on one broker apart; brokers that deduplicate do so by namespace and key.
    #[must_use]
    pub fn with_namespace(mut self, namespace: &str) -> SinkConfig {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Builds the sink. It connects when it is first used: the other side need not be up.
    ///
    /// # Errors
    /// [`SinkError::Config`] when an option cannot be used.
    pub fn build(&self) -> Result<Arc<dyn Sink>, SinkError> {
        if self.answer_timeout < Duration::from_millis(100) {
            let words = format!("an answer timeout of {:?} is too short: 100 ms is the least", self.answer_timeout);
            return Err(SinkError::Config(words));
        }
        let kind = KINDS.iter().find(|kind| kind.0 == self.target.scheme);
        kind.expect("parse takes only what is in the table").2(self)
    }

    /// What kind of sink it is: `nats`, `redis`, `stdout`, `memory`.
    pub fn kind(&self) -> &'static str {
        self.target.scheme
    }

    /// The URL without user and password, for people to read.
    pub fn address(&self) -> String {
        self.target.address()
    }

    /// See [`with_answer_timeout`](SinkConfig::with_answer_timeout).
    pub fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// See [`with_namespace`](SinkConfig::with_namespace).
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}

impl fmt::Debug for SinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SinkConfig")
            .field("address", &self.address())
            .field("answer_timeout", &self.answer_timeout)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Target {
    fn parse(url: &str) -> Result<Target, String> {
        let known = || KINDS.iter().map(|kind| example(kind.0, kind.1)).collect::<Vec<_>>().join(", ");
        // What is no scheme may be a secret: it is not quoted.
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            return Err(format!("a sink is named by a URL: {}", known()));
        };
        let Some(&(scheme, port, _)) = KINDS.iter().find(|kind| kind.0 == scheme) else {
            let absent = ABSENT.iter().find(|(absent, _)| *absent == scheme).map(|(_, words)| (*words).to_owned());
            let words = match absent {
                Some(words) => words,
                None if rest.starts_with("//") => format!("there is no sink for `{scheme}://`"),
                None => "a sink is named by a URL".to_owned(),
            };
            return Err(format!("{words}; the sinks of this build are {}", known()));
        };
        if port == 0 {
            let target = Target { scheme, hosts: Vec::new(), user: None, password: None, path: String::new() };
            return if matches!(rest, "" | "//") { Ok(target) } else { Err(format!("`{scheme}:` takes no address")) };
        }
        let malformed = |words: &str| format!("the URL of a {scheme} sink {words}, as in `{}`", example(scheme, port));
        let rest = rest.strip_prefix("//").ok_or_else(|| malformed("has `//` behind its scheme"))?;
        if rest.contains(['?', '#']) {
            return Err(malformed("has no parameters: options have settings of their own"));
        }
        // The last `@`: a password may hold one that nobody encoded.
        let (user_info, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = hosts.split(',').map(|host| parse_host(host, port)).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or_else(|| malformed("names hosts and ports"))?;
        let (user, password) = user_info.map_or((None, None), |text| match text.split_once(':') {
            Some((user, password)) => (Some(user), Some(password)),
            None => (Some(text), None),
        });
        let decode = |text: &str| decode(text).ok_or_else(|| malformed("has `%` only before two hex digits"));
        let user = user.filter(|user| !user.is_empty()).map(decode).transpose()?;
        let password = password.map(decode).transpose()?.map(SecretString::from);
        Ok(Target { scheme, hosts, user, password, path: path.to_owned() })
    }

    /// The URL without user and password.
    pub(crate) fn address(&self) -> String {
        if self.hosts.is_empty() {
            return format!("{}:", self.scheme);
        }
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| address(host, *port)).collect();
        let slash = if self.path.is_empty() { "" } else { "/" };
        format!("{}://{}{slash}{}", self.scheme, hosts.join(","), self.path)
    }
}

/// Host and port as they are written: `[::1]:6379`.
pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn example(scheme: &str, port: u16) -> String {
    if port == 0 { format!("`{scheme}:`") } else { format!("`{scheme}://127.0.0.1:{port}`") }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

fn parse_host(text: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None if port.is_empty() => default_port,
        None => return None,
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.chars().all(good)).then(|| (host.to_owned(), port))
}

/// Resolves `%41`.
fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        decoded.push(match byte {
            b'%' => u8::try_from(hex(bytes.next()?)? * 16 + hex(bytes.next()?)?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn refused(url: &str) -> String {
        SinkConfig::parse(url).expect_err(url).to_string()
    }

    #[test]
    fn a_url_is_taken_apart() {
        let target = Target::parse("redis://us%40er:p%3Aw@d@[::1],host:7000/3").expect("a good URL");
        assert_eq!(target.hosts, [("::1".to_owned(), 6379), ("host".to_owned(), 7000)]);
        assert_eq!(target.user.as_deref(), Some("us@er"));
        assert_eq!(target.password.as_ref().map(|password| password.expose_secret()), Some("p:w@d"));
        assert_eq!(target.address(), "redis://[::1]:6379,host:7000/3");
        assert_eq!(SinkConfig::parse("stdout:").expect("a good URL").address(), "stdout:");
    }

    #[test]
    fn what_cannot_be_used_is_told_with_what_can() {
        assert!(refused("kafka://h").starts_with("this build of punctual has no Kafka sink; the sinks of this build"));
        assert!(refused("amqp://h").contains("has no RabbitMQ sink"));
        assert!(refused("sqs://h").starts_with("there is no sink for `sqs://`; the sinks of this build are"));
        assert!(refused("sqs://h").contains("`redis://127.0.0.1:6379`, `stdout:`, `memory:`"));
        for bad in
            ["redis:host", "redis://", "redis://h:0", "redis://h:x", "redis://h?db=1", "redis://%zz@h", "stdout:x"]
        {
            assert!(refused(bad).contains("`redis") || refused(bad).contains("`stdout:`"), "{bad}: {}", refused(bad));
        }
        let short = SinkConfig::parse("memory:").expect("a good URL").with_answer_timeout(Duration::from_millis(9));
        assert!(short.build().is_err());
    }

    #[test]
    fn secrets_are_never_shown() {
        let config = SinkConfig::parse("redis://user:hunter2@h").expect("a good URL");
        assert!(!format!("{config:?} {}", config.address()).contains("hunter2"));
        for url in ["redis://user:hunter2@", "hunter2@h", "hunter2:4222", "user:hunter2@h", "sqs://u:hunter2@h"] {
            assert!(!refused(url).contains("hunter2"), "{url}: {}", refused(url));
        }
        for url in ["redis://u:hunter2@h?x", "redis://hunter2:x:y", "redis://u:hunter2%@h"] {
            assert!(!refused(url).contains("hunter2"), "{url}: {}", refused(url));
        }
    }
}
