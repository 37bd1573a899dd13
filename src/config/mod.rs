//! The configuration of an instance: [`Config`], checked, from defaults, a file, the environment and flags.
//!
//! `default.toml` contains both the defaults and their documentation. Unknown options are faults. All faults are
//! reported at once, each with its position. Secrets appear neither in `Debug` nor in any message.

mod doors;
mod hints;
mod layers;
mod read;
mod secret;
mod sections;
mod settings;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use crate::engine::{DestinationPatterns, EngineConfig, EngineLane};
use crate::http::ApiLimits;
use crate::http::access::KnownToken;
use crate::http::server::ServerLimits;
use crate::task::{Lane, Namespace};
use crate::timeline::redis::Durability;
use layers::Layers;
use read::ConfigReader;

pub use doors::DoorSection;
pub use layers::{DEFAULTS, Origin};
pub use secret::SecretUrl;
pub use settings::Setting;

/// The name of the sink that `--sink` sets, and of the lane that always exists.
pub const DEFAULT_NAME: &str = "default";

/// Maximum size of a configuration file, in bytes. A file with tasks, given by mistake, would have a fault on every
/// line.
const MAX_FILE_BYTES: u64 = 1 << 20;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The checked configuration of an instance.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where tasks wait.
    pub redis: SecretUrl,
    /// Where a write must have arrived before it is answered.
    pub durability: Durability,
    /// Whether to refuse a Redis that is not set up to keep tasks.
    pub strict: bool,
    /// A file with the password of the user in the URL of Redis.
    pub password_file: Option<PathBuf>,
    /// The password of the Sentinels.
    pub sentinel_password: Option<SecretString>,
    /// The trusted authorities for TLS; the default is those of the system.
    pub ca_file: Option<PathBuf>,
    /// `[timeline]`
    pub timeline: TimelineSection,
    /// `[claim]` and `[dead]`. The id of the instance is still empty.
    pub engine: EngineConfig,
    /// `[http]` and `[limits]`
    pub http: HttpSection,
    /// `[tasks]`: the zone of cron schedules that name none; `None` is UTC.
    pub zone: Option<String>,
    /// `[tokens.NAME]`. Without any, every client that reaches the API may do everything.
    pub tokens: BTreeMap<String, KnownToken>,
    /// `[sinks.NAME]`, at least one.
    pub sinks: BTreeMap<String, SinkSection>,
    /// `[doors.NAME]`
    pub doors: BTreeMap<String, DoorSection>,
    /// `[lanes.NAME]`. It always contains `default`, and every named sink exists.
    pub lanes: BTreeMap<Lane, EngineLane>,
    /// How long a stop waits for current requests and publishes.
    pub shutdown: Duration,
    /// `[log]`
    pub log: LogSection,
    /// Settings that work but are probably not intended.
    pub warnings: Vec<ConfigFault>,
    /// All settings, including the defaults.
    settings: BTreeMap<String, Setting>,
}

/// The number of shards on one Redis, unless the configuration says otherwise.
const SHARDS: u16 = 4;

/// The number of shards in a cluster, unless the configuration says otherwise.
const SHARDS_IN_A_CLUSTER: u16 = 64;

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
    /// The address of the API. Other addresses than loopback require tokens.
    pub listen: SocketAddr,
    /// Another address, for probes and metrics only; without TLS. Other addresses than loopback require tokens.
    pub probe_listen: Option<SocketAddr>,
    /// Certificate chain and key for TLS, both PEM files; `None` is plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Limits of one request and of the task in it.
    pub api: ApiLimits,
    /// Limits of connections.
    pub server: ServerLimits,
}

/// `[sinks.NAME]`
#[derive(Clone, Debug)]
pub struct SinkSection {
    /// Address and kind.
    pub url: SecretUrl,
    /// How long to wait for the answer to a message; at most half the lease.
    pub answer_timeout: Duration,
    /// How long a destination may be at fault while others accept messages.
    pub patience: Duration,
    /// The destinations that it may publish to; `None` means all.
    pub destinations: Option<DestinationPatterns>,
    /// A user's JWT and key. Only for NATS.
    pub credentials_file: Option<PathBuf>,
    /// The password of the user in the URL.
    pub password_file: Option<PathBuf>,
    /// The password of the Sentinels of a Redis.
    pub sentinel_password: Option<SecretString>,
    /// Options of the client library by its own names. Only for Kafka. Values may be secrets.
    pub properties: BTreeMap<String, SecretString>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSection {
    /// The log filter: `info`, or by module.
    pub filter: String,
    /// Whether each line is a JSON object.
    pub json: bool,
}

/// The sources of a configuration in addition to the defaults.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file: its path as given, and its text.
    pub file: Option<(String, String)>,
    /// The environment. A variable without the prefix `PUNCTUAL__` sets nothing, and is a fault if its name is nearly
    /// that of an option.
    pub environment: Vec<(String, String)>,
    /// Flags: their name, the option they set (`redis.url`), the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// Shows names only, because every value may contain passwords.
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

/// One fault of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The option, `claim.lease`; empty for a fault of a file, of a line that is not TOML, or of a variable.
    pub path: String,
    /// Where it was set.
    pub origin: Origin,
    /// What is wrong, without secrets.
    pub detail: String,
    /// How to fix it.
    pub hint: Option<String>,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, &self.origin) {
            // A file that cannot be used; the text names it.
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

/// All faults of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration cannot be used:\n{}", .0.iter().map(|fault| format!("  {}", fault.to_string().replace('\n', "\n  "))).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<ConfigFault>);

impl Sources {
    /// Reads a file and the environment of this process. Without a path it reads `punctual.toml`, if it exists.
    ///
    /// # Errors
    /// If the file cannot be read, is too large or is not UTF-8, or if a variable of punctual is not UTF-8.
    pub fn gather(file: Option<&Path>) -> Result<Sources, ConfigError> {
        let path = file.unwrap_or(Path::new("punctual.toml"));
        let fault = |origin, detail| ConfigError(vec![ConfigFault { path: String::new(), origin, detail, hint: None }]);
        let shown = path.display().to_string();
        let origin = if file.is_some() { Origin::Flag("--config") } else { Origin::Default };
        let file = match read_file(path) {
            Ok(bytes) if bytes.len() as u64 > MAX_FILE_BYTES => {
                let detail = format!("`{shown}` is larger than {MAX_FILE_BYTES} bytes: that is no configuration");
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
                    let detail = "the value of this variable is not UTF-8".to_owned();
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

/// The content of a file, or enough of it to show that it is no configuration.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Config {
    /// Adds the sources on top of the defaults and checks the result.
    ///
    /// # Errors
    /// All faults.
    pub fn load(sources: Sources) -> Result<Config, ConfigError> {
        Ok(Config::load_and(sources, |_| Ok(()))?.0)
    }

    /// Also builds something from the configuration, and reports its faults together with the others. A result built
    /// from a configuration with faults is not used.
    ///
    /// # Errors
    /// All faults.
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

    /// A fault of an option, with the place where it was set.
    pub fn fault(&self, path: &str, detail: impl Into<String>) -> ConfigFault {
        let origin = self.settings.get(path).map_or(Origin::Default, |setting| setting.origin.clone());
        ConfigFault { path: path.to_owned(), origin, detail: detail.into(), hint: None }
    }

    /// Reads all sections. A value with a fault is replaced by a placeholder, so that the rest can still be checked.
    fn read(r: &mut ConfigReader) -> Config {
        let schemes =
            ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "memory"];
        let redis = r.url("redis.url", &schemes);
        let (sentinel_password, ca_file) = (r.secret("redis.sentinel_password"), r.file("tls.ca_file"));
        let password_file = r.file("redis.password_file");
        let (durability, strict) = (sections::durability(r), r.boolean("redis.strict"));
        let namespace = r.text("timeline.namespace", |text| text.parse::<Namespace>().map_err(|bad| bad.to_string()));
        let is_cluster = redis.as_ref().is_some_and(|url| url.scheme().ends_with("+cluster"));
        let shards = match u16::try_from(r.whole("timeline.shards", 0, 256)) {
            Ok(0) | Err(_) => {
                if is_cluster {
                    SHARDS_IN_A_CLUSTER
                } else {
                    SHARDS
                }
            }
            Ok(shards) => shards,
        };
        let engine = sections::engine(r);
        let http = sections::http(r);
        let zone = sections::zone(r);
        let sinks = sections::sinks(r, engine.lease);
        let lanes = sections::lanes(r, &sinks);
        let namespace = namespace.unwrap_or_default();
        let doors = doors::doors(r, &namespace, &sinks, &lanes);
        let tokens = tokens::tokens(r, &http, &lanes);
        let shutdown = r.duration("shutdown.deadline", SECOND, HOUR);
        let log = sections::log(r);
        let timeline = TimelineSection { namespace, shards };
        let mut config = Config {
            // A placeholder for a wrong URL: other checks of the URL do not apply to Sentinels, so it has no second fault.
            redis: redis.unwrap_or_else(|| SecretUrl::new("redis+sentinel://unknown/unknown".to_owned())),
            durability,
            strict,
            password_file,
            sentinel_password,
            ca_file,
            timeline,
            engine,
            http,
            zone,
            tokens,
            sinks,
            doors,
            lanes,
            shutdown,
            log,
            warnings: Vec::new(),
            settings: r.settings(),
        };
        config.warnings = config.idle_sinks();
        config.warnings.extend(config.tokens_in_the_clear());
        config.warnings.extend(config.readable_secrets());
        config
    }

    /// Reads the URL of an option again whenever it is called, if a file has set it: the file may have a new password.
    /// `None` if the URL was set elsewhere.
    pub fn url_in_file(&self, option: &str) -> Option<impl Fn() -> Option<SecretString> + Send + Sync + use<>> {
        let Origin::File { path, .. } = self.settings.get(option)?.origin.clone() else { return None };
        let names: Vec<String> = option.split('.').map(str::to_owned).collect();
        Some(move || {
            let text = layers::text_of(read_file(Path::new(&path)).ok()?).ok()?;
            let table = toml::Value::Table(text.parse().ok()?);
            let value = names.iter().try_fold(&table, |value, name| value.get(name));
            value?.as_str().map(|url| url.trim().into())
        })
    }

    fn tokens_in_the_clear(&self) -> Option<ConfigFault> {
        let clear = !self.http.listen.ip().is_loopback() && self.http.tls.is_none();
        let detail = "this is not a loopback address, and without TLS the tokens can be read on the network";
        let hint = "`http.certificate_file` and `http.key_file`, unless a proxy in front of it speaks TLS";
        clear.then(|| ConfigFault { hint: Some(hint.to_owned()), ..self.fault("http.listen", detail) })
    }

    /// Files with secrets that every user of the machine may read. A file that cannot be found is reported elsewhere.
    fn readable_secrets(&self) -> Vec<ConfigFault> {
        let key = self.http.tls.iter().map(|(_, key)| ("http.key_file".to_owned(), key));
        let credentials = self.sinks.iter().filter_map(|(name, sink)| {
            Some((format!("sinks.{name}.credentials_file"), sink.credentials_file.as_ref()?))
        });
        let passwords = self
            .sinks
            .iter()
            .filter_map(|(name, sink)| Some((format!("sinks.{name}.password_file"), sink.password_file.as_ref()?)));
        let of_redis = self.password_file.iter().map(|file| ("redis.password_file".to_owned(), file));
        let all = key.chain(credentials).chain(passwords).chain(of_redis);
        let readable = all.filter(|(_, file)| std::fs::metadata(file).is_ok_and(|file| others_may_read(&file)));
        let warnings = readable.map(|(path, file)| ConfigFault {
            hint: Some(format!("chmod o-r {}", file.display())),
            ..self.fault(&path, "every user of this machine may read this file")
        });
        warnings.collect()
    }

    fn idle_sinks(&self) -> Vec<ConfigFault> {
        let is_read = |name: &String| self.doors.values().any(|door| door.sink == *name);
        let idle =
            self.sinks.keys().filter(|name| self.lanes.values().all(|lane| lane.sink != **name) && !is_read(name));
        let detail = "no lane uses this sink, so nothing is published to it";
        let warnings = idle.map(|name| ConfigFault {
            hint: Some(format!("a section `[lanes.NAME]` with `sink = \"{name}\"`")),
            ..self.fault(&format!("sinks.{name}.url"), detail)
        });
        warnings.collect()
    }
}

/// Whether every user of the machine may read a file.
pub fn others_may_read(file: &std::fs::Metadata) -> bool {
    file.mode() & 0o004 != 0
}

#[cfg(test)]
mod tests;
