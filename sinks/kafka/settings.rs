//! The settings of librdkafka: brokers, trusted certificates, login, and the options that this sink relies on.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use secrecy::ExposeSecret;

use crate::SinkError;
use crate::config::SinkConfig;
use crate::target::address;

/// The largest message that librdkafka hands to a broker: 64 MiB. The broker has its own, usually lower limit. A broker
/// closes the connection on a request above 100 MiB, with all messages under way.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Properties that must not be set, and why.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("the URL names the brokers", &["bootstrap.servers", "metadata.broker.list"]),
    ("the URL says it: `kafka+ssl://` is TLS, a user means a login", &["security.protocol"]),
    ("a message is accepted when every replica in sync has it", &["acks", "request.required.acks"]),
    ("a message that the library sends again must arrive once", &["enable.idempotence"]),
    ("it follows from the sink's `answer_timeout`", &["delivery.timeout.ms", "message.timeout.ms"]),
    ("accepted messages would not be reported", &["delivery.report.only.error"]),
    ("one message that is refused would end all others", &["enable.gapless.guarantee"]),
    ("this sink has no transactions", &["transactional.id", "transaction.timeout.ms"]),
    ("messages would go nowhere", &["test.mock.num.brokers", "test.mock.broker.rtt"]),
    ("it is an address in memory", &["ut_handle_ProduceResponse"]),
    ("it would run code that can drop and change messages", &["plugin.library.paths"]),
    (
        "it would load code into this process",
        &["ssl.engine.location", "ssl.engine.id", "ssl_engine_callback_data", "ssl.providers"],
    ),
    (
        "the library is built without Kerberos, which runs a command for its tickets",
        &[
            "sasl.kerberos.service.name",
            "sasl.kerberos.principal",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.keytab",
            "sasl.kerberos.min.time.before.relogin",
        ],
    ),
    ("the sink limits the messages under way itself", &["queue.buffering.max.messages", "queue.buffering.max.kbytes"]),
];

/// Pairs of properties of which only one is set: two names of one property, or two ways to give trusted certificates.
const ALIASES: &[(&str, &str)] = &[
    ("linger.ms", "queue.buffering.max.ms"),
    ("compression.type", "compression.codec"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("ssl.ca.pem", "ssl.ca.location"),
];

/// The supported login mechanisms. librdkafka is built without Kerberos, and OAuth tokens are not supported.
const MECHANISMS: &[&str] = &["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// The settings of librdkafka, and the secrets to remove from its messages.
pub(super) struct Settings {
    pub(super) client: ClientConfig,
    /// Whether librdkafka asks the brokers to create unknown topics.
    pub(super) creates_topics: bool,
    secrets: Vec<String>,
    /// Warnings that were logged already.
    warned: Mutex<HashSet<String>>,
}

impl Settings {
    /// Reads the configuration of a sink.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the URL has a path, or a user without a password; or if a property is unknown, has an
    /// invalid value, or must not be set. The text contains the name of the property, never its value.
    pub(super) fn new(config: &SinkConfig) -> Result<Settings, SinkError> {
        let (target, properties) = (config.target(), config.properties());
        let wrong = |detail: String| Err(SinkError::url(detail));
        let property = |name: &str, detail: String| Err(SinkError::option(format!("properties.{name}"), detail));
        if !target.path.is_empty() {
            return wrong(format!("the URL of a kafka sink has no path: `{}`", target.address()));
        }
        if target.user.is_some() && target.password.is_none() && !properties.contains_key("sasl.password") {
            return wrong(format!("the URL of `{}` names a user without a password", target.address()));
        }
        for name in properties.keys() {
            if let Some((why, _)) = FORBIDDEN.iter().find(|(_, names)| names.contains(&name.as_str())) {
                return property(name, format!("the property `{name}` cannot be set: {why}"));
            }
            // Checked one by one, because librdkafka's own error would quote the value.
            let mut one = ClientConfig::new();
            one.set(name, properties[name].expose_secret());
            if let Err(error) = one.create_native_config() {
                return property(
                    name,
                    match error {
                        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) => {
                            format!("the client library of Kafka has no property `{name}`")
                        }
                        _ => format!("the client library of Kafka refuses the value of the property `{name}`"),
                    },
                );
            }
        }
        let creates_topics = properties.get("allow.auto.create.topics");
        let mut settings = Settings {
            client: ClientConfig::new(),
            creates_topics: creates_topics.is_some_and(|value| ["true", "t", "1"].contains(&value.expose_secret())),
            secrets: secrets(config),
            warned: Mutex::default(),
        };
        let mut set = |name: &str, value: String| {
            let alias = ALIASES.iter().find(|(one, _)| *one == name).map_or(name, |(_, other)| other);
            if !properties.contains_key(name) && !properties.contains_key(alias) {
                settings.client.set(name, value);
            }
        };
        defaults(config, &mut set);
        let sasl = target.user.is_some() || properties.keys().any(|name| name.starts_with("sasl."));
        let protocol = match (sasl, target.scheme.tls) {
            (false, false) => "plaintext",
            (false, true) => "ssl",
            (true, false) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        set("security.protocol", protocol.to_owned());
        if sasl {
            set("sasl.mechanism", "PLAIN".to_owned());
        }
        if let Some(user) = &target.user {
            set("sasl.username", user.clone());
        }
        if let Some(password) = &target.password {
            let password = password.read().map_err(|detail| SinkError::option("password_file", detail))?;
            set("sasl.password", password.expose_secret().to_owned());
        }
        if let Some(pem) = config.tls().ca_pem().filter(|_| target.scheme.tls) {
            set("ssl.ca.pem", String::from_utf8_lossy(pem).into_owned());
        }
        for (name, value) in properties {
            let value = value.expose_secret();
            if name.starts_with("sasl.mechanism") && !MECHANISMS.contains(&value) {
                return property(name, format!("the property `{name}` can be {}", MECHANISMS.join(", ")));
            }
            settings.client.set(name, value);
        }
        settings.client.set_log_level(RDKafkaLogLevel::Info);
        Ok(settings)
    }

    /// The settings of the second producer, with one message per record batch.
    pub(super) fn alone(&self) -> ClientConfig {
        let mut client = self.client.clone();
        client.set("batch.num.messages", "1");
        // After a refusal an idempotent producer waits until all messages under way are answered.
        client.set("enable.idempotence", "false");
        client
    }

    /// A text from librdkafka with all secrets replaced.
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    /// Whether this warning is new. Each new producer repeats its warnings.
    pub(super) fn is_new(&self, warning: &str) -> bool {
        self.warned.lock().insert(warning.to_owned())
    }
}

/// The defaults of properties that are not set.
fn defaults(config: &SinkConfig, set: &mut impl FnMut(&str, String)) {
    let hosts: Vec<String> = config.target().hosts.iter().map(|(host, port)| address(host, *port)).collect();
    let ms = |duration: Duration| duration.as_millis().to_string();
    let timeout = config.answer_timeout();
    set("bootstrap.servers", hosts.join(","));
    set("client.id", "punctual".to_owned());
    set("acks", "all".to_owned());
    set("enable.idempotence", "true".to_owned());
    set("delivery.timeout.ms", ms(delivery_timeout(timeout)));
    // As in Java's clients; librdkafka's default would put the same key into another partition.
    set("partitioner", "murmur2_random".to_owned());
    // Send at once. Under load, batches still grow while earlier ones are under way.
    set("linger.ms", "0".to_owned());
    set("socket.nagle.disable", "true".to_owned());
    set("socket.keepalive.enable", "true".to_owned());
    set("message.max.bytes", MAX_MESSAGE_BYTES.to_string());
    // librdkafka requests the topic's metadata repeatedly, which would create a topic that is unknown or deleted.
    set("allow.auto.create.topics", "false".to_owned());
    // Report an unknown topic at once; each later publish asks again.
    set("topic.metadata.propagation.max.ms", "0".to_owned());
    // librdkafka accepts no less than 1 s.
    set("socket.connection.setup.timeout.ms", ms((timeout / 3).clamp(Duration::from_secs(1), Duration::from_secs(10))));
    set("reconnect.backoff.max.ms", "500".to_owned());
    set("enable.metrics.push", "false".to_owned());
    set("log.connection.close", "false".to_owned());
}

/// How much longer than the delivery timeout librdkafka may hold a message: it checks timeouts once a second, and once
/// more for messages under way. A short answer timeout has no room for all of that, so there it is less.
fn slack(answer_timeout: Duration) -> Duration {
    Duration::from_millis(2100).min(answer_timeout * 3 / 10)
}

/// How long librdkafka tries to deliver a message; a publish has the same duration, before that, to hand its messages over.
fn delivery_timeout(answer_timeout: Duration) -> Duration {
    (answer_timeout - slack(answer_timeout)) / 2
}

/// The longest time that librdkafka holds a message.
pub(super) fn longest(answer_timeout: Duration) -> Duration {
    delivery_timeout(answer_timeout) + slack(answer_timeout)
}

/// Parts of the names of properties that are secret.
const SECRET: &[&str] = &["password", "secret", "key", "pem", "jaas", "oauthbearer", "token"];

/// Values that must not appear in errors or logs.
fn secrets(config: &SinkConfig) -> Vec<String> {
    let secret = |name: &str| SECRET.iter().any(|part| name.contains(part));
    let properties = config.properties().iter().filter(|(name, _)| secret(name)).map(|(_, value)| value);
    let password = config.target().password.as_ref().and_then(|password| password.read().ok());
    let all = properties.chain(&password).map(|value| value.expose_secret().to_owned());
    all.filter(|value| !value.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kafka::Kafka;

    fn settings(url: &str, properties: &[(&str, &str)]) -> Result<Settings, String> {
        let properties: BTreeMap<_, _> =
            properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let config = SinkConfig::parse(url).expect("a good URL").with_properties(properties);
        Settings::new(&config).map_err(|error| error.to_string())
    }

    fn refused(url: &str, properties: &[(&str, &str)]) -> String {
        settings(url, properties).err().unwrap_or_else(|| panic!("{url} {properties:?} is accepted"))
    }

    #[test]
    fn url_and_properties_become_settings() {
        let plain = settings("kafka://a,[::1]:9", &[]).expect("good settings").client;
        assert_eq!(plain.get("bootstrap.servers"), Some("a:9092,[::1]:9"));
        assert_eq!(plain.get("security.protocol"), Some("plaintext"));
        let secure = settings("kafka+ssl://u:p%40ss@a", &[("sasl.mechanism", "SCRAM-SHA-512"), ("linger.ms", "5")]);
        let secure = secure.expect("good settings").client;
        let expected = [
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.password", "p@ss"),
            ("linger.ms", "5"),
            ("delivery.timeout.ms", "2450"),
        ];
        for (name, value) in expected {
            assert_eq!(secure.get(name), Some(value));
        }
        let other_name = settings("kafka://u:p@a", &[("queue.buffering.max.ms", "9"), ("sasl.mechanisms", "PLAIN")]);
        let other_name = other_name.expect("good settings").client;
        assert_eq!((other_name.get("linger.ms"), other_name.get("sasl.mechanism")), (None, None));
        assert_eq!(settings("kafka://u:p@a", &[]).expect("good settings").client.get("sasl.mechanism"), Some("PLAIN"));
    }

    #[test]
    fn an_unusable_property_is_named_without_its_value() {
        for (_, names) in FORBIDDEN {
            for name in *names {
                let detail = refused("kafka://h", &[(name, "hunter2")]);
                assert!(detail.starts_with(&format!("the property `{name}` cannot be set: ")), "{detail}");
                assert!(!detail.contains("hunter2"), "{detail}");
            }
        }
        assert_eq!(
            refused("kafka://h", &[("no.such", "hunter2")]),
            "the client library of Kafka has no property `no.such`"
        );
        let detail = refused("kafka://h", &[("socket.timeout.ms", "hunter2")]);
        assert_eq!(detail, "the client library of Kafka refuses the value of the property `socket.timeout.ms`");
        assert!(refused("kafka://user@h", &[]).contains("without a password"));
        assert!(refused("kafka://h/path", &[]).contains("has no path"));
    }

    #[test]
    fn secrets_quoted_by_the_client_library_are_masked() {
        let properties = [("ssl.key.password", "123456"), ("linger.ms", "10"), ("compression.codec", "zstd")];
        let settings = settings("kafka://u:true@h", &properties).expect("good settings");
        let detail = settings.scrub("no `true` after 10 ms, zstd, no 123456");
        assert_eq!(detail, "no `***` after 10 ms, zstd, no ***");
        assert!(settings.is_new("deprecated") && !settings.is_new("deprecated"));
    }

    #[test]
    fn only_sasl_mechanisms_that_the_client_library_supports_are_allowed() {
        let properties = [("sasl.username", "u"), ("sasl.password", "p")];
        let user = settings("kafka://h", &properties).expect("good settings").client;
        assert_eq!(
            (user.get("sasl.mechanism"), user.get("security.protocol")),
            (Some("PLAIN"), Some("sasl_plaintext"))
        );
        for name in ["sasl.mechanism", "sasl.mechanisms"] {
            for other in ["GSSAPI", "OAUTHBEARER"] {
                let detail = refused("kafka://u:p@h", &[(name, other)]);
                assert_eq!(detail, format!("the property `{name}` can be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"));
            }
        }
    }

    #[test]
    fn conflicting_settings_are_refused_when_the_sink_is_created() {
        let conflicts = [
            ("retries", "0"),
            ("max.in.flight.requests.per.connection", "10"),
            ("linger.ms", "60000"),
            ("ssl.ca.location", "/nowhere/to/be/found.pem"),
        ];
        for (name, value) in conflicts {
            let properties = BTreeMap::from([(name.to_owned(), value.into())]);
            let config = SinkConfig::parse("kafka+ssl://u:hunter2@h").expect("a good URL").with_properties(properties);
            let detail = Kafka::new(&config).err().unwrap_or_else(|| panic!("{name} is accepted")).to_string();
            assert!(detail.starts_with("the client library of Kafka refuses its settings: "), "{detail}");
            assert!(!detail.contains("hunter2"), "{detail}");
            eprintln!("{detail}");
        }
    }

    #[test]
    fn the_library_gives_up_before_the_answer_timeout() {
        for (timeout, tries, longest) in
            [(100, 35, 65), (3000, 1050, 1950), (7000, 2450, 4550), (30_000, 13_950, 16_050)]
        {
            let timeout = Duration::from_millis(timeout);
            assert_eq!(delivery_timeout(timeout), Duration::from_millis(tries));
            assert_eq!(super::longest(timeout), Duration::from_millis(longest));
        }
    }
}
