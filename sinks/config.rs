//! Where and how to publish: the address of a sink and its options.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::patterns::DestinationPatterns;
use crate::target::Target;
use crate::tls::Tls;
use crate::{Password, SinkError};

/// Where and how to publish. The password of the URL does not appear in `Debug`, errors or logs.
#[derive(Clone)]
pub struct SinkConfig {
    target: Target,
    answer_timeout: Duration,
    namespace: String,
    tls: Tls,
    credentials_file: Option<PathBuf>,
    sentinel_password: Option<SecretString>,
    properties: BTreeMap<String, SecretString>,
    destinations: Option<DestinationPatterns>,
}

impl SinkConfig {
    /// The default of [`with_answer_timeout`](SinkConfig::with_answer_timeout).
    pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

    /// The configuration of a target, with the defaults of all options.
    pub(crate) fn new(target: Target) -> SinkConfig {
        SinkConfig {
            target,
            answer_timeout: SinkConfig::ANSWER_TIMEOUT,
            namespace: "default".to_owned(),
            tls: Tls::default(),
            credentials_file: None,
            sentinel_password: None,
            properties: BTreeMap::new(),
            destinations: None,
        }
    }

    /// Sets the longest time that a publish may take: at least 100 ms, at most half the lease.
    #[must_use]
    pub fn with_answer_timeout(mut self, answer_timeout: Duration) -> SinkConfig {
        self.answer_timeout = answer_timeout;
        self
    }

    /// Sets the namespace that separates installations on one broker. Brokers deduplicate by namespace and key.
    #[must_use]
    pub fn with_namespace(mut self, namespace: &str) -> SinkConfig {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Sets the trusted certificates for TLS; the default is those of the system.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> SinkConfig {
        self.tls = tls;
        self
    }

    /// Sets a file with a user's credentials, as `nsc` writes them. Only for NATS.
    #[must_use]
    pub fn with_credentials_file(mut self, path: impl Into<PathBuf>) -> SinkConfig {
        self.credentials_file = Some(path.into());
        self
    }

    /// Sets a file with the password of the user in the URL. It is read for each login.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the URL has a password, the sink has no login, or the file cannot be read.
    pub fn with_password_file(mut self, path: &std::path::Path) -> Result<SinkConfig, SinkError> {
        let password = Password::in_file(path);
        let wrong = |detail| SinkError::option("password_file", detail);
        password.read().map_err(wrong)?;
        self.target.set_password(password).map_err(wrong)?;
        Ok(self)
    }

    /// Replaces the password in the URL, if there is one, by another source, which is asked at each login.
    #[must_use]
    pub fn with_password(mut self, password: Password) -> SinkConfig {
        self.target.replace_password(password);
        self
    }

    /// Sets the password of the Sentinels. Only for a Redis behind Sentinels.
    #[must_use]
    pub fn with_sentinel_password(mut self, password: Option<SecretString>) -> SinkConfig {
        self.sentinel_password = password;
        self
    }

    /// Sets options of the client library by its own names. Only for Kafka. Values may be secrets.
    #[must_use]
    pub fn with_properties(mut self, properties: BTreeMap<String, SecretString>) -> SinkConfig {
        self.properties = properties;
        self
    }

    /// Sets the destinations that it may publish to; `None` means all. For NATS, patterns that begin with `$` or `_` also
    /// name subjects that are refused otherwise.
    #[must_use]
    pub fn with_destinations(mut self, destinations: Option<DestinationPatterns>) -> SinkConfig {
        self.destinations = destinations;
        self
    }

    /// The URL without user and password, for logs and errors.
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

    /// See [`with_tls`](SinkConfig::with_tls).
    pub(crate) fn tls(&self) -> &Tls {
        &self.tls
    }

    /// See [`with_credentials_file`](SinkConfig::with_credentials_file).
    #[cfg(feature = "nats")]
    pub(crate) fn credentials_file(&self) -> Option<&std::path::Path> {
        self.credentials_file.as_deref()
    }

    /// See [`with_sentinel_password`](SinkConfig::with_sentinel_password).
    pub(crate) fn sentinel_password(&self) -> Option<&SecretString> {
        self.sentinel_password.as_ref()
    }

    /// The options that only one kind of sink has: the name of a property, and whether there are a credentials file and a
    /// password of Sentinels.
    pub(crate) fn options_of_one_kind(&self) -> (Option<&str>, bool, bool) {
        let property = self.properties.keys().next().map(String::as_str);
        (property, self.credentials_file.is_some(), self.sentinel_password.is_some())
    }

    /// See [`with_destinations`](SinkConfig::with_destinations).
    pub(crate) fn destinations(&self) -> Option<&DestinationPatterns> {
        self.destinations.as_ref()
    }

    /// See [`with_properties`](SinkConfig::with_properties).
    #[cfg(feature = "kafka")]
    pub(crate) fn properties(&self) -> &BTreeMap<String, SecretString> {
        &self.properties
    }
}

impl fmt::Debug for SinkConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SinkConfig")
            .field("address", &self.address())
            .field("answer_timeout", &self.answer_timeout)
            .field("namespace", &self.namespace)
            .field("tls", &self.tls)
            .field("credentials_file", &self.credentials_file)
            .field("properties", &self.properties.keys())
            .finish_non_exhaustive()
    }
}
