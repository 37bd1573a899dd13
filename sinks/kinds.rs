//! Every kind of sink, and the choice of one by its URL. This is the only place that knows them all.

use std::sync::Arc;
use std::time::Duration;

use crate::allow_list::AllowList;
use crate::config::SinkConfig;
use crate::memory::MemorySink;
use crate::networked::{Broker, Networked};
use crate::redis_access;
use crate::redis_streams::RedisStreams;
use crate::redis_streams::source::StreamSource;
use crate::source::{Source, SourceOptions};
use crate::stdout::StdoutSink;
use crate::target::{Scheme, Target};
use crate::{Sink, SinkError};

/// A kind of sink with one of its URL schemes.
struct Kind {
    scheme: Scheme,
    /// The same as [`Sink::kind`].
    name: &'static str,
    build: fn(&SinkConfig) -> Result<Arc<dyn Sink>, SinkError>,
}

/// Every kind of sink. A new kind is a new line here.
#[rustfmt::skip]
const KINDS: &[Kind] = &[
    #[cfg(feature = "kafka")]
    Kind { scheme: Scheme::plain("kafka", 9092), name: "kafka", build: |config| Ok(Arc::new(Networked::new(crate::kafka::Kafka::new(config)?))) },
    #[cfg(feature = "kafka")]
    Kind { scheme: Scheme::over_tls("kafka+ssl", 9092), name: "kafka", build: |config| Ok(Arc::new(Networked::new(crate::kafka::Kafka::new(config)?))) },
    #[cfg(feature = "nats")]
    Kind { scheme: Scheme::plain("nats", 4222), name: "nats", build: |config| Ok(Arc::new(Networked::new(crate::nats::Nats::new(config)?))) },
    #[cfg(feature = "nats")]
    Kind { scheme: Scheme::over_tls("tls", 4222), name: "nats", build: |config| Ok(Arc::new(Networked::new(crate::nats::Nats::new(config)?))) },
    #[cfg(feature = "rabbitmq")]
    Kind { scheme: Scheme::plain("amqp", 5672), name: "rabbitmq", build: |config| Ok(Arc::new(Networked::new(crate::rabbitmq::Rabbit::new(config)?))) },
    #[cfg(feature = "rabbitmq")]
    Kind { scheme: Scheme::over_tls("amqps", 5671), name: "rabbitmq", build: |config| Ok(Arc::new(Networked::new(crate::rabbitmq::Rabbit::new(config)?))) },
    Kind { scheme: redis_access::SERVER, name: "redis", build: |config| Ok(Arc::new(Networked::new(RedisStreams::new(config)?))) },
    Kind { scheme: redis_access::SERVER_TLS, name: "redis", build: |config| Ok(Arc::new(Networked::new(RedisStreams::new(config)?))) },
    Kind { scheme: redis_access::SENTINEL, name: "redis", build: |config| Ok(Arc::new(Networked::new(RedisStreams::new(config)?))) },
    Kind { scheme: redis_access::SENTINEL_TLS, name: "redis", build: |config| Ok(Arc::new(Networked::new(RedisStreams::new(config)?))) },
    Kind { scheme: Scheme::bare("stdout"), name: "stdout", build: |config| Ok(Arc::new(StdoutSink::new(config.answer_timeout())?)) },
    // Keeps no messages. A program that wants to receive them builds a `MemorySink` itself.
    Kind { scheme: Scheme::bare("memory"), name: "memory", build: |config| Ok(Arc::new(MemorySink::new(0, config.answer_timeout()))) },
];

/// Schemes of sinks that this build or version does not have.
const NOT_BUILT: &[(&str, &str)] = &[
    ("kafka", "this build of punctual has no Kafka sink: it was built without the feature `kafka`"),
    ("kafka+ssl", "this build of punctual has no Kafka sink: it was built without the feature `kafka`"),
    ("amqp", "this build of punctual has no RabbitMQ sink: it was built without the feature `rabbitmq`"),
    ("amqps", "this build of punctual has no RabbitMQ sink: it was built without the feature `rabbitmq`"),
    ("nats", "this build of punctual has no NATS sink: it was built without the feature `nats`"),
    ("redis+cluster", "a Redis Streams sink needs one Redis, because a stream is on one node of a cluster"),
    ("rediss+cluster", "a Redis Streams sink needs one Redis, because a stream is on one node of a cluster"),
    ("tls", "this build of punctual has no NATS sink: it was built without the feature `nats`"),
];

impl SinkConfig {
    /// Parses a URL: `kafka://[user:password@]host[:port][,host[:port]...]` (`kafka+ssl://` over TLS),
    /// `nats://[user:password@]host[:port][,host[:port]...]` (a user without a password is a token; `tls://` for TLS),
    /// `amqp://[user:password@]host[:port][,host[:port]...][/virtual host]` (`amqps://` over TLS),
    /// `redis://[[user]:password@]host[:port][/database]` and its variants (see [`redis_access`]), `stdout:` or
    /// `memory:`. Does not connect.
    ///
    /// # Errors
    /// [`SinkError::Config`] if there is no such sink or the URL is malformed. The text never quotes the URL.
    pub fn parse(url: &str) -> Result<SinkConfig, SinkError> {
        Ok(SinkConfig::new(parse(url.trim()).map_err(SinkError::url)?))
    }

    /// Builds the sink. It connects when it is first used, so the broker need not be running yet.
    ///
    /// # Errors
    /// [`SinkError::Config`] if an option cannot be used.
    pub fn build(&self) -> Result<Arc<dyn Sink>, SinkError> {
        if self.answer_timeout() < Duration::from_millis(100) {
            let detail = format!("an answer timeout of {:?} is too short: 100 ms is the least", self.answer_timeout());
            return Err(SinkError::url(detail));
        }
        let kind = self.kind();
        let none_of = |option: &str, what: &str, who: &str| {
            Err(SinkError::option(option, format!("a {kind} sink has no `{what}`: only {who} does")))
        };
        match self.options_of_one_kind() {
            (Some(name), ..) if kind != "kafka" => {
                return none_of(&format!("properties.{name}"), "properties", "Kafka");
            }
            (_, true, _) if kind != "nats" => return none_of("credentials_file", "credentials_file", "NATS"),
            (.., true) if kind != "redis" => return none_of("sentinel_password", "sentinel_password", "Redis"),
            _ => {}
        }
        let sink = (self.entry().build)(self)?;
        Ok(match self.destinations() {
            Some(allowed) => Arc::new(AllowList::new(sink, allowed.clone())),
            None => sink,
        })
    }

    /// A source that reads from the same broker, with the same login. It connects when it is first used.
    ///
    /// # Errors
    /// [`SinkError::Config`] if this kind cannot be read from, or an option cannot be used.
    pub fn source(&self, options: &SourceOptions) -> Result<Arc<dyn Source>, SinkError> {
        match self.kind() {
            RedisStreams::KIND => Ok(Arc::new(StreamSource::new(self, options)?)),
            #[cfg(feature = "kafka")]
            crate::kafka::Kafka::KIND => Ok(Arc::new(crate::kafka::source::KafkaSource::new(self, options)?)),
            #[cfg(feature = "rabbitmq")]
            crate::rabbitmq::Rabbit::KIND => Ok(Arc::new(crate::rabbitmq::source::RabbitSource::new(self, options)?)),
            #[cfg(feature = "nats")]
            crate::nats::Nats::KIND => Ok(Arc::new(crate::nats::source::NatsSource::new(self, options)?)),
            kind => Err(SinkError::option("sink", format!("no door can read from {kind}"))),
        }
    }

    /// The kind of sink: `kafka`, `rabbitmq`, `nats`, `redis`, `stdout`, `memory`.
    pub fn kind(&self) -> &'static str {
        self.entry().name
    }

    /// Whether its connections use TLS, or may use it: a NATS server can require TLS by itself.
    pub fn over_tls(&self) -> bool {
        self.target().scheme.tls || self.kind() == "nats"
    }

    fn entry(&self) -> &'static Kind {
        let kind = KINDS.iter().find(|kind| kind.scheme.name == self.target().scheme.name);
        kind.expect("parse takes only what is in the table")
    }
}

/// Parses the URL of any kind of sink.
fn parse(url: &str) -> Result<Target, String> {
    let url = &match url.split_once(':') {
        // As people type them.
        None if ["stdout", "memory"].contains(&url) => format!("{url}:"),
        Some(("rabbitmq", rest)) => format!("amqp:{rest}"),
        Some(("rabbitmqs", rest)) => format!("amqps:{rest}"),
        _ => url.to_owned(),
    };
    let known = || KINDS.iter().map(|kind| kind.scheme.example()).collect::<Vec<_>>().join(", ");
    // Text without a scheme may be a secret, so it is not quoted.
    let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        return Err(format!("a sink is named by a URL: {}", known()));
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.scheme.name == scheme) else {
        let not_built =
            NOT_BUILT.iter().find(|(not_built, _)| *not_built == scheme).map(|(_, detail)| (*detail).to_owned());
        let detail = match not_built {
            Some(detail) => detail,
            None if rest.starts_with("//") => format!("there is no sink for `{scheme}://`"),
            None => "a sink is named by a URL".to_owned(),
        };
        return Err(format!("{detail}; the sinks of this build are {}", known()));
    };
    Target::parse(kind.scheme, rest)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn refused(url: &str) -> String {
        SinkConfig::parse(url).expect_err(url).to_string()
    }

    #[test]
    fn a_sink_url_is_split_into_hosts_user_and_password() {
        let target = parse("redis://us%40er:p%3Aw@d@[::1],host:7000/3").expect("a good URL");
        assert_eq!(target.hosts, [("::1".to_owned(), 6379), ("host".to_owned(), 7000)]);
        assert_eq!(target.user.as_deref(), Some("us@er"));
        let password = target.password.as_ref().map(|password| password.read().expect("a password"));
        assert_eq!(password.as_ref().map(ExposeSecret::expose_secret), Some("p:w@d"));
        assert_eq!(target.address(), "redis://[::1]:6379,host:7000/3");
        assert_eq!(SinkConfig::parse("stdout:").expect("a good URL").address(), "stdout:");
    }

    #[test]
    fn sinks_are_named_as_people_type_them() {
        let address = |url: &str| SinkConfig::parse(url).map(|config| (config.kind(), config.address()));
        assert!(address("stdout").is_ok_and(|found| found == ("stdout", "stdout:".to_owned())));
        #[cfg(feature = "rabbitmq")]
        assert!(address("rabbitmq://h").is_ok_and(|found| found == ("rabbitmq", "amqp://h:5672".to_owned())));
        assert!(address("nowhere").is_err());
    }

    #[test]
    fn an_unusable_url_is_refused_with_the_supported_forms() {
        #[cfg(not(feature = "kafka"))]
        assert!(refused("kafka://h").starts_with("this build of punctual has no Kafka sink: it was built without"));
        #[cfg(not(feature = "rabbitmq"))]
        assert!(refused("amqp://h").contains("has no RabbitMQ sink"));
        assert!(refused("sqs://h").starts_with("there is no sink for `sqs://`; the sinks of this build are"));
        for known in ["`redis://127.0.0.1:6379`", "`rediss://", "`redis+sentinel://", "`stdout:`, `memory:`"] {
            assert!(refused("sqs://h").contains(known), "{known}: {}", refused("sqs://h"));
        }
        for bad in
            ["redis:host", "redis://", "redis://h:0", "redis://h:x", "redis://h?db=1", "redis://%zz@h", "stdout:x"]
        {
            assert!(refused(bad).contains("`redis") || refused(bad).contains("`stdout:`"), "{bad}: {}", refused(bad));
        }
        let short = SinkConfig::parse("memory:").expect("a good URL").with_answer_timeout(Duration::from_millis(9));
        assert!(short.build().is_err());
    }

    #[test]
    fn a_sink_url_never_shows_its_secrets() {
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
