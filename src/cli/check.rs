//! `punctual check`: checks that an instance would start and reach everything in its configuration.
//!
//! It reads the configuration, connects and logs in. It publishes no message and writes nothing. All checks run in
//! parallel, each with a time limit, and all findings are reported.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use futures_util::future::join_all;
use punctual_sinks::{Cause, SinkError};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::parts::Parts;
use super::program::{Failure, runtime};
use super::{SourceArguments, say, serve};
use crate::config::{Config, ConfigError, ConfigFault};
use crate::engine::EngineSink;
use crate::timeline::redis::{NOT_SET_UP, RedisError, ServerCheckError, check_server};

/// What a check may take in addition to its own limit.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// Time limit for Redis: two connections, and some replies.
const TIMELINE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 no check failed (there may be warnings), 1 another failure, 2 the configuration is \
                        wrong, 3 a server cannot be reached, 4 a login was refused, 5 a certificate is not trusted. Of \
                        several failures, the first one in the output decides."
)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    sources: SourceArguments,
    /// Read the configuration alone, and connect to nothing
    #[arg(long)]
    offline: bool,
    /// Show what was found as JSON
    #[arg(long)]
    json: bool,
}

/// The result of one check.
struct Finding {
    /// `configuration`, `timeline`, or `sink <name>`.
    of: String,
    result: Result<String, Trouble>,
    /// What works but is probably not intended: text and hint.
    warnings: Vec<(String, Option<String>)>,
}

/// Why a check failed.
struct Trouble {
    kind: Kind,
    /// The option, and where it was set.
    fault: ConfigFault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Other,
    Configuration,
    Unreachable,
    LogIn,
    Untrusted,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Other => 1,
            Kind::Configuration => 2,
            Kind::Unreachable => 3,
            Kind::LogIn => 4,
            Kind::Untrusted => 5,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Other => "other",
            Kind::Configuration => "configuration",
            Kind::Unreachable => "unreachable",
            Kind::LogIn => "log_in",
            Kind::Untrusted => "untrusted",
        }
    }

    /// The beginning of the error text.
    fn detail(self) -> &'static str {
        match self {
            Kind::Other => "it takes nothing",
            Kind::Configuration => "it cannot be used",
            Kind::Unreachable => "it cannot be reached",
            Kind::LogIn => "the login was refused",
            Kind::Untrusted => "its certificate is not trusted",
        }
    }

    fn hint(self, option: &str) -> Option<String> {
        match self {
            Kind::Other | Kind::Configuration => None,
            Kind::Unreachable => Some(format!("start it, or name another address in `{option}`")),
            Kind::LogIn => Some(format!("the user and the password are in `{option}`")),
            Kind::Untrusted => Some("`tls.ca_file` names a file with the authorities to trust".to_owned()),
        }
    }
}

pub(super) fn run(arguments: CheckArguments) -> Result<(), Failure> {
    let CheckArguments { sources, offline, json } = arguments;
    let runtime = runtime()?;
    let findings = match find(&runtime, sources, offline) {
        Ok(findings) => findings,
        Err(error) => {
            if json {
                say(&format!("{:#}\n", faults_as_json(&error)))?;
            }
            return Err(error.into());
        }
    };
    let failed: Vec<_> = findings.iter().filter_map(|finding| finding.result.as_ref().err()).collect();
    let code = failed.first().map_or(0, |trouble| trouble.kind.code());
    if json {
        let result = if failed.is_empty() { "ok" } else { "failed" };
        let checks: Vec<_> = findings.iter().map(Finding::as_json).collect();
        say(&format!("{:#}\n", json!({"result": result, "exit_code": code, "checks": checks})))?;
    } else {
        say(&findings.iter().map(Finding::as_text).collect::<String>())?;
    }
    match failed.len() {
        0 => Ok(()),
        count => Err(Failure::failed(anyhow!("{count} of {} checks failed", findings.len())).code(code)),
    }
}

fn find(runtime: &Runtime, sources: SourceArguments, offline: bool) -> Result<Vec<Finding>, ConfigError> {
    let sources = sources.sources()?;
    let file = sources.file.as_ref().map_or_else(|| "no file".to_owned(), |(path, _)| path.clone());
    // Sinks may need the runtime to be built.
    let inside = runtime.enter();
    let (config, parts) = Config::load_and(sources, Parts::build)?;
    drop(inside);
    let warnings = config.warnings.iter().chain(&parts.warnings).map(|warning| {
        let detail = ConfigFault { hint: None, ..warning.clone() };
        (detail.to_string(), warning.hint.clone())
    });
    let result = if offline { Ok(file) } else { look_at_listener(&config).map(|()| file) };
    let mut findings = vec![Finding { of: "configuration".to_owned(), result, warnings: warnings.collect() }];
    if !offline {
        findings.extend(runtime.block_on(ask_all(&config, &parts)));
    }
    Ok(findings)
}

/// Checks that the address of the API belongs to this machine. The port is not tried, because an instance may be using
/// it.
fn look_at_listener(config: &Config) -> Result<(), Trouble> {
    let address = SocketAddr::new(config.http.listen.ip(), 0);
    let detail = |error| format!("cannot listen on `{}`: {error}", address.ip());
    TcpListener::bind(address)
        .map(drop)
        .map_err(|error| Trouble::new(config, "http.listen", Kind::Configuration, detail(error)))
}

async fn ask_all(config: &Config, parts: &Parts) -> Vec<Finding> {
    let sinks = parts.sinks.iter().map(|(name, sink)| ask_sink(config, name, sink));
    let (timeline, sinks) = tokio::join!(ask_timeline(config, parts), join_all(sinks));
    std::iter::once(timeline).chain(sinks).collect()
}

async fn ask_timeline(config: &Config, parts: &Parts) -> Finding {
    let of = "timeline".to_owned();
    if config.redis.scheme() == "memory" {
        let found = "memory: tasks end with the instance".to_owned();
        return Finding { of, result: Ok(found), warnings: Vec::new() };
    }
    let trouble = |option, kind, detail: String| Finding {
        of: of.clone(),
        result: Err(Trouble::new(config, option, kind, detail)),
        warnings: Vec::new(),
    };
    let found = match timeout(TIMELINE_TIMEOUT, check_server(&serve::redis_config(config, &parts.tls))).await {
        Err(_) => return trouble("redis.url", Kind::Unreachable, format!("no answer within {TIMELINE_TIMEOUT:?}")),
        Ok(Err(ServerCheckError::Away(away))) => return trouble("redis.url", kind(away.cause), away.detail),
        Ok(Err(ServerCheckError::Redis(error))) => {
            let option = match error {
                RedisError::Layout { .. } => "timeline.shards",
                RedisError::Durability(_) => "redis.durability",
                RedisError::Unfit(_) => "redis.strict",
                RedisError::Url(_) | RedisError::Cluster(_) => "redis.url",
            };
            return trouble(option, Kind::Configuration, error.to_string());
        }
        Ok(Ok(found)) => found,
    };
    let namespace = &config.timeline.namespace;
    let timeline = match found.begun {
        true => format!("a timeline of {} shards under the namespace `{namespace}`", config.timeline.shards),
        false => format!("no timeline under the namespace `{namespace}` yet"),
    };
    let version = found.version.map_or_else(|| "Redis".to_owned(), |version| format!("Redis {version}"));
    let result = match config.strict && !found.advice.is_empty() {
        true => Err(Trouble::new(config, "redis.strict", Kind::Configuration, NOT_SET_UP.to_owned())),
        false => Ok(format!("{}: {version}, {timeline}", config.redis)),
    };
    let warnings = found.advice.into_iter().map(|advice| (advice.detail, Some(advice.hint.to_owned())));
    Finding { of, result, warnings: warnings.collect() }
}

async fn ask_sink(config: &Config, name: &str, sink: &EngineSink) -> Finding {
    let sink = &sink.sink;
    let limit = sink.answer_timeout() + TIMEOUT_MARGIN;
    let checked = timeout(limit, sink.check()).await;
    let silent = SinkError::Timeout { doing: "connecting", limit };
    let result = match checked.unwrap_or(Err(silent)) {
        Ok(()) => Ok(match config.sinks[name].url.to_string() {
            // `memory:` and `stdout:` need no kind.
            url if url.ends_with(':') => url,
            url => format!("{url}: {}", sink.kind()),
        }),
        Err(error) => {
            let (kind, detail) = kind_and_detail(error);
            Err(Trouble::new(config, &format!("sinks.{name}.url"), kind, detail))
        }
    };
    Finding { of: format!("sink {name}"), result, warnings: Vec::new() }
}

/// The kind and the text of a sink's error.
fn kind_and_detail(error: SinkError) -> (Kind, String) {
    match error {
        SinkError::Config { detail, .. } => (Kind::Configuration, detail),
        SinkError::Away { away, .. } => (kind(away.cause), away.detail),
        SinkError::Timeout { .. } => (Kind::Unreachable, error.to_string()),
    }
}

fn kind(cause: Cause) -> Kind {
    match cause {
        Cause::Unreachable => Kind::Unreachable,
        Cause::LogIn => Kind::LogIn,
        Cause::Untrusted => Kind::Untrusted,
        Cause::Refused => Kind::Other,
    }
}

impl Trouble {
    fn new(config: &Config, option: &str, kind: Kind, detail: String) -> Trouble {
        // The kind's own text already says this.
        let detail = detail.strip_prefix("cannot connect to ").unwrap_or(&detail);
        let detail = format!("{}: {detail}", kind.detail());
        Trouble { kind, fault: ConfigFault { hint: kind.hint(option), ..config.fault(option, detail) } }
    }
}

impl Finding {
    fn as_text(&self) -> String {
        let mut text = String::new();
        let mut line = |state: &str, detail: &str, hint: Option<&str>| {
            text += &format!("{state:<8} {:<16} {}\n", self.of, detail.replace('\n', "\n    "));
            text += &hint.map(|hint| format!("{:<8} {:<16} hint: {hint}\n", "", "")).unwrap_or_default();
        };
        match &self.result {
            Ok(found) => line("ok", found, None),
            Err(trouble) => {
                let detail = ConfigFault { hint: None, ..trouble.fault.clone() }.to_string();
                line("failed", &detail, trouble.fault.hint.as_deref());
            }
        }
        for (detail, hint) in &self.warnings {
            line("warning", detail, hint.as_deref());
        }
        text
    }

    fn as_json(&self) -> Value {
        let (check, name) = match self.of.split_once(' ') {
            Some((check, name)) => (check, Some(name)),
            None => (self.of.as_str(), None),
        };
        let warnings: Vec<_> =
            self.warnings.iter().map(|(detail, hint)| json!({"detail": detail, "hint": hint})).collect();
        let mut object = json!({"check": check, "warnings": warnings});
        if let Some(name) = name {
            object["name"] = name.into();
        }
        match &self.result {
            Ok(found) => {
                object["result"] = "ok".into();
                object["found"] = found.as_str().into();
            }
            Err(trouble) => {
                object["result"] = "failed".into();
                object["kind"] = trouble.kind.name().into();
                object["fault"] = fault_as_json(&trouble.fault);
            }
        }
        object
    }
}

fn fault_as_json(fault: &ConfigFault) -> Value {
    let origin = fault.origin.to_string();
    json!({"option": fault.path, "origin": origin, "detail": fault.detail, "hint": fault.hint})
}

/// A configuration with faults: nothing else was checked.
fn faults_as_json(error: &ConfigError) -> Value {
    let faults: Vec<_> = error.0.iter().map(fault_as_json).collect();
    let check = json!({"check": "configuration", "result": "failed", "kind": "configuration", "faults": faults});
    json!({"result": "failed", "exit_code": Kind::Configuration.code(), "checks": [check]})
}
