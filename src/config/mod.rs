//! What an instance is told: [`Config`], checked, from defaults, a file, the environment and flags.
//!
//! `default.toml` is both the defaults and their documentation. Unknown options are faults, and all faults are told at
//! once, each with the place it came from. Secrets do not show in `Debug` nor in any message.

mod hints;
mod layers;
mod read;
mod secret;
mod sections;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use crate::engine::{EngineConfig, EngineLane};
use crate::http::ApiLimits;
use crate::http::access::KnownToken;
use crate::http::server::ServerLimits;
use crate::task::{Lane, Namespace};
use crate::timeline::redis::Durability;
use layers::Layers;
use read::ConfigReader;

pub use layers::{DEFAULTS, Origin};
pub use secret::SecretUrl;
pub use settings::Setting;

/// The name of the sink that `--sink` sets, and of the lane that always exists.
pub const DEFAULT_NAME: &str = "default";

/// Bytes of a configuration file at most: one of tasks was hardly meant, and is a fault in each of its lines.
const MOST_BYTES: u64 = 1 << 20;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The checked configuration of an instance.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where tasks wait.
    pub redis: SecretUrl,
    /// Where what was written has to be before it is answered.
    pub durability: Durability,
    /// Whether a Redis that is not set up to keep tasks is refused.
    pub strict: bool,
    /// The password of the Sentinels before it.
    pub sentinel_password: Option<SecretString>,
    /// The authorities to trust over TLS; without it those of the system.
    pub ca_file: Option<PathBuf>,
    /// `[timeline]`
    pub timeline: TimelineSection,
    /// `[claim]` and `[dead]`, for an instance without a name.
    pub engine: EngineConfig,
    /// `[http]` and `[limits]`
    pub http: HttpSection,
    /// `[tokens.NAME]`; without any, everybody who reaches the API may do everything.
    pub tokens: BTreeMap<String, KnownToken>,
    /// `[sinks.NAME]`, at least one.
    pub sinks: BTreeMap<String, SinkSection>,
    /// `[lanes.NAME]`; `default` is always among them, and every sink named is there.
    pub lanes: BTreeMap<Lane, EngineLane>,
    /// How long a stop waits for what is under way.
    pub shutdown: Duration,
    /// `[log]`
    pub log: LogSection,
    /// What can be used, but is hardly meant.
    pub warnings: Vec<ConfigFault>,
    /// Everything that was said, and the defaults.
    settings: BTreeMap<String, Setting>,
}

/// `[timeline]`
#[derive(Clone, Debug)]
pub struct TimelineSection {
    /// Part of every key.
    pub namespace: Namespace,
    /// 1 to 256.
    pub shards: u16,
}

/// `[http]`, with `[limits]`.
#[derive(Clone, Debug)]
pub struct HttpSection {
    /// Where the API listens; beyond loopback only with tokens.
    pub listen: SocketAddr,
    /// The certificate chain and the key to serve TLS with, both PEM files; without them plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Limits of one request, and of the task in it.
    pub api: ApiLimits,
    /// Limits of connections.
    pub server: ServerLimits,
}

/// `[sinks.NAME]`
#[derive(Clone, Debug)]
pub struct SinkSection {
    /// What and where it is.
    pub url: SecretUrl,
    /// At most half the lease.
    pub answer_timeout: Duration,
    /// How long a destination may refuse while others accept.
    pub patience: Duration,
    /// A user's JWT and key; NATS alone has these.
    pub credentials_file: Option<PathBuf>,
    /// Of the Sentinels before a Redis.
    pub sentinel_password: Option<SecretString>,
    /// Options of the client library by its own names; Kafka's alone has these. Values may be secrets.
    pub properties: BTreeMap<String, SecretString>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSection {
    /// What is logged: `info`, or by room.
    pub filter: String,
    /// Whether each line is a JSON object.
    pub json: bool,
}

/// What may be said about the configuration besides the defaults.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file: its path as given, and its text.
    pub file: Option<(String, String)>,
    /// The environment; what does not begin with `PUNCTUAL__` is passed by.
    pub environment: Vec<(String, String)>,
    /// Flags: their name, the option they set (`redis.url`), the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// Names alone: any of it may hold passwords.
impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = self.environment.iter().map(|(name, _)| name).filter(|name| name.starts_with(layers::PREFIX));
        f.debug_struct("Sources")
            .field("file", &self.file.as_ref().map(|(path, _)| path))
            .field("environment", &ours.collect::<Vec<_>>())
            .field("flags", &self.flags.iter().map(|(flag, ..)| flag).collect::<Vec<_>>())
            .finish()
    }
}

/// One thing wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The option, `claim.lease`; empty when a file cannot be read at all.
    pub path: String,
    /// Where it was said.
    pub origin: Origin,
    /// What is wrong; without secrets.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, &self.origin) {
            // Of a file as a whole, whose name the words say.
            (path, Origin::Default | Origin::Flag(_)) if path.is_empty() => f.write_str(&self.detail)?,
            (path, origin) if path.is_empty() => write!(f, "{origin}: {}", self.detail)?,
            (path, Origin::Default) => write!(f, "`{path}`: {}", self.detail)?,
            (path, origin) => write!(f, "`{path}` ({origin}): {}", self.detail)?,
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// A configuration that cannot be used: every fault of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration cannot be used:\n{}", .0.iter().map(|fault| format!("  {}", fault.to_string().replace('\n', "\n  "))).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<ConfigFault>);

impl Sources {
    /// Takes in a file and the environment of this process. Without a path, `punctual.toml` if there is one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn gather(file: Option<&Path>) -> Result<Sources, ConfigError> {
        let path = file.unwrap_or(Path::new("punctual.toml"));
        let fault = |origin, detail| ConfigError(vec![ConfigFault { path: String::new(), origin, detail, hint: None }]);
        let shown = path.display().to_string();
        let origin = if file.is_some() { Origin::Flag("--config") } else { Origin::Default };
        let file = match read_file(path) {
            Ok(bytes) if bytes.len() as u64 > MOST_BYTES => {
                let detail = format!("`{shown}` is larger than {MOST_BYTES} bytes: that is no configuration");
                return Err(fault(origin, detail));
            }
            Ok(bytes) => match layers::text_of(bytes) {
                Ok(text) => Some((shown, text)),
                Err(line) => {
                    let origin = Origin::File { path: shown, line };
                    return Err(fault(origin, "this line is not UTF-8, which the whole file has to be".to_owned()));
                }
            },
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(fault(origin, format!("cannot read the configuration file `{shown}`: {error}")));
            }
        };
        let mut environment = Vec::new();
        let mut faults = Vec::new();
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            match value.into_string() {
                Ok(value) => environment.push((name, value)),
                Err(_) if name.starts_with(layers::PREFIX) => {
                    let detail = "what this variable holds is not UTF-8".to_owned();
                    let origin = Origin::Environment(name);
                    faults.push(ConfigFault { path: String::new(), origin, detail, hint: None });
                }
                Err(_) => {}
            }
        }
        match faults.is_empty() {
            true => Ok(Sources { file, environment, flags: Vec::new() }),
            false => Err(ConfigError(faults)),
        }
    }
}

/// What a file holds, or as much of it as shows that it is no configuration.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Config {
    /// Lays the sources over the defaults and checks the result.
    ///
    /// # Errors
    /// Every fault there is.
    pub fn load(sources: Sources) -> Result<Config, ConfigError> {
        Ok(Config::load_and(sources, |_| Ok(()))?.0)
    }

    /// The same, and builds something of it, whose faults are told with the others, all at once. What is built of a
    /// configuration that has faults itself is not used.
    ///
    /// # Errors
    /// Every fault there is.
    pub fn load_and<T>(
        sources: Sources,
        build: impl FnOnce(&Config) -> Result<T, Vec<ConfigFault>>,
    ) -> Result<(Config, T), ConfigError> {
        let mut layers = Layers::defaults();
        if let Some((path, text)) = &sources.file {
            layers.file(path, text);
        }
        layers.environment(sources.environment);
        for (flag, path, value) in sources.flags {
            layers.flag(flag, path, value);
        }
        let mut reader = ConfigReader::new(layers);
        let config = Config::read(&mut reader);
        let mut faults = reader.into_faults();
        let built = build(&config).map_err(|found| faults.extend(found));
        match built {
            Ok(built) if faults.is_empty() => Ok((config, built)),
            _ => Err(ConfigError(faults)),
        }
    }

    /// A fault of an option, with the place where it was said.
    pub fn fault(&self, path: &str, detail: impl Into<String>) -> ConfigFault {
        let origin = self.settings.get(path).map_or(Origin::Default, |setting| setting.origin.clone());
        ConfigFault { path: path.to_owned(), origin, detail: detail.into(), hint: None }
    }

    /// Reads everything. Where a fault was noted something stands in, so that the rest can be looked at all the same.
    fn read(r: &mut ConfigReader) -> Config {
        let schemes = ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "memory"];
        let redis = r.url("redis.url", &schemes);
        let (sentinel_password, ca_file) = (r.secret("redis.sentinel_password"), r.file("tls.ca_file"));
        let (durability, strict) = (sections::durability(r), r.flag("redis.strict"));
        let namespace = r.text("timeline.namespace", |text| text.parse::<Namespace>().map_err(|bad| bad.to_string()));
        let shards = u16::try_from(r.whole("timeline.shards", 1, 256)).unwrap_or(1);
        let engine = sections::engine(r);
        let http = sections::http(r);
        let tokens = sections::tokens(r, &http);
        let sinks = sections::sinks(r, engine.lease);
        let lanes = sections::lanes(r, &sinks);
        let shutdown = r.duration("shutdown.deadline", SECOND, HOUR);
        let log = sections::log(r);
        let timeline = TimelineSection { namespace: namespace.unwrap_or_default(), shards };
        let mut config = Config {
            // With Sentinels nothing else can be wrong about it.
            redis: redis.unwrap_or_else(|| SecretUrl::new("redis+sentinel://unknown/unknown".to_owned())),
            durability,
            strict,
            sentinel_password,
            ca_file,
            timeline,
            engine,
            http,
            tokens,
            sinks,
            lanes,
            shutdown,
            log,
            warnings: Vec::new(),
            settings: r.settings(),
        };
        config.warnings = config.idle_sinks();
        config.warnings.extend(config.tokens_in_the_clear());
        config
    }

    fn tokens_in_the_clear(&self) -> Option<ConfigFault> {
        let clear = !self.http.listen.ip().is_loopback() && self.http.tls.is_none();
        let detail = "this is no loopback address, and without TLS whoever listens on the way reads the tokens";
        let hint = "`http.certificate_file` and `http.key_file`, unless something before it speaks TLS";
        clear.then(|| ConfigFault { hint: Some(hint.to_owned()), ..self.fault("http.listen", detail) })
    }

    fn idle_sinks(&self) -> Vec<ConfigFault> {
        let idle = self.sinks.keys().filter(|name| self.lanes.values().all(|lane| lane.sink != **name));
        let detail = "no lane uses this sink, so that nothing is published to it";
        let told = idle.map(|name| ConfigFault {
            hint: Some(format!("a section `[lanes.NAME]` with `sink = \"{name}\"`")),
            ..self.fault(&format!("sinks.{name}.url"), detail)
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests;
