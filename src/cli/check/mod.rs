//! `punctual check`: checks that an instance would start and reach everything in its configuration.
//!
//! It reads the configuration, connects, logs in, and looks for the destinations of lanes and for what doors read and write.
//! It publishes nothing that a queue or stream would keep, and writes nothing. The checks of the timeline, of each sink
//! with its lanes, and of each door run in parallel. Each has a time limit, and all findings are reported.

mod destinations;
mod finding;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use futures_util::future::join_all;
use punctual_sinks::source::SourceError;
use punctual_sinks::{Cause, DestinationState, SinkError};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use self::finding::{CheckFailure, Finding, Kind, faults_as_json};
use super::parts::Parts;
use super::program::{Failure, runtime};
use super::{SourceArguments, say, serve};
use crate::config::{Config, ConfigError, ConfigFault};
use crate::doors::Door;
use crate::engine::EngineSink;
use crate::timeline::redis::{NOT_SET_UP, RedisError, ServerCheckError, check_server};

/// What a check may take in addition to its own limit.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// Time limit for Redis: two connections, and some replies.
const TIMELINE_TIMEOUT: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "Examples:
  punctual check --config punctual.toml
  punctual check --offline --json
  punctual check --destination orders.cancel --lane mail

Exit codes: 0 no check failed (there may be warnings), 1 another failure, 2 the configuration is wrong, 3 a server cannot be \
     reached, 4 a login was refused, 5 a certificate is not trusted. Of several failures, the first one in the output decides.";

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    sources: SourceArguments,
    /// Read the configuration alone, and connect to nothing
    #[arg(long)]
    offline: bool,
    /// Also check that messages for this topic, queue, subject or stream would be accepted
    #[arg(long, value_name = "NAME", conflicts_with = "offline")]
    destination: Option<String>,
    /// The lane of that destination, which decides the sink
    #[arg(long, value_name = "LANE", default_value = "default", requires = "destination")]
    lane: String,
    /// Show what was found as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: CheckArguments) -> Result<(), Failure> {
    let CheckArguments { sources, offline, destination, lane, json } = arguments;
    let runtime = runtime()?;
    let wanted = destination.as_deref().map(|name| Wanted { name, lane: &lane });
    let findings = match find(&runtime, sources, offline, wanted) {
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

/// The destination of `--destination`.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    name: &'a str,
    lane: &'a str,
}

fn find(
    runtime: &Runtime,
    sources: SourceArguments,
    offline: bool,
    wanted: Option<Wanted<'_>>,
) -> Result<Vec<Finding>, ConfigError> {
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
        findings.extend(runtime.block_on(ask_all(&config, &parts, wanted)));
    }
    Ok(findings)
}

/// Checks that the address of the API belongs to this machine. The port is not tried, because an instance may be using
/// it.
fn look_at_listener(config: &Config) -> Result<(), CheckFailure> {
    let address = SocketAddr::new(config.http.listen.ip(), 0);
    let detail = |error| format!("cannot listen on `{}`: {error}", address.ip());
    TcpListener::bind(address)
        .map(drop)
        .map_err(|error| CheckFailure::new(config, "http.listen", Kind::Configuration, detail(error)))
}

async fn ask_all(config: &Config, parts: &Parts, wanted: Option<Wanted<'_>>) -> Vec<Finding> {
    let sinks = parts.sinks.iter().map(|(name, sink)| async move {
        let finding = ask_sink(config, name, sink).await;
        // Without a connection, its destinations have the same failure.
        let lanes = match finding.result {
            Ok(_) => destinations::look(config, name, sink, wanted).await,
            Err(_) => Vec::new(),
        };
        std::iter::once(finding).chain(lanes).collect::<Vec<_>>()
    });
    let doors = parts.doors.iter().map(|door| ask_door(config, door));
    let (timeline, sinks, doors) = tokio::join!(ask_timeline(config, parts), join_all(sinks), join_all(doors));
    let unknown = wanted.and_then(|wanted| destinations::unknown_lane(config, wanted));
    std::iter::once(timeline).chain(sinks.into_iter().flatten()).chain(doors).chain(unknown).collect()
}

async fn ask_timeline(config: &Config, parts: &Parts) -> Finding {
    let of = "timeline".to_owned();
    if config.redis.scheme() == "memory" {
        let found = "memory: tasks end with the instance".to_owned();
        return Finding { of, result: Ok(found), warnings: Vec::new() };
    }
    let trouble = |option, kind, detail: String| Finding {
        of: of.clone(),
        result: Err(CheckFailure::new(config, option, kind, detail)),
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
                RedisError::Url(_) | RedisError::Cluster(_) | RedisError::NoCluster(_) => "redis.url",
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
    let masters: Vec<String> =
        found.masters.iter().map(|(address, shards)| format!("`{address}` ({shards} shards)")).collect();
    let masters = if masters.is_empty() { String::new() } else { format!(", masters {}", masters.join(", ")) };
    let result = match config.strict && !found.advice.is_empty() {
        true => Err(CheckFailure::new(config, "redis.strict", Kind::Configuration, NOT_SET_UP.to_owned())),
        false => Ok(format!("{}: {version}, {timeline}{masters}", config.redis)),
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
            Err(CheckFailure::new(config, &sink_url(name), kind, detail))
        }
    };
    Finding { of: format!("sink {name}"), result, warnings: Vec::new() }
}

async fn ask_door(config: &Config, door: &Door) -> Finding {
    let limit = door.sink.answer_timeout() + TIMEOUT_MARGIN;
    let path = |key: &str| format!("doors.{}.{key}", door.name);
    let url = sink_url(&config.doors[&door.name].sink);
    let mut warnings = Vec::new();
    let result = match timeout(limit, door.source.check()).await {
        Ok(Ok(found)) => match missing(door, door.rejected.as_deref()).await {
            Some(detail) => Err(CheckFailure::new(config, &path("rejected"), Kind::Missing, detail)),
            None => {
                warnings.extend(found.into_iter().map(|warning| (warning, None)));
                Ok(format!("{}: {}", door.from, door.source.kind()))
            }
        },
        Ok(Err(SourceError::Away(away))) => Err(CheckFailure::new(config, &url, kind(away.cause), away.detail)),
        Ok(Err(SourceError::Missing(detail))) => {
            Err(CheckFailure::new(config, &path("from"), Kind::Unreadable, detail))
        }
        Err(_) => {
            let detail = format!("no answer within {limit:?}");
            Err(CheckFailure::new(config, &url, Kind::Unreachable, detail))
        }
    };
    if result.is_ok()
        && let Some(detail) = missing(door, door.to.as_deref()).await
    {
        let hint = format!("make it, or messages are dead after `patience`; `{}` names it", path("to"));
        warnings.push((format!("messages would be refused: {detail}"), Some(hint)));
    }
    Finding { of: format!("door {}", door.name), result, warnings }
}

/// Why a destination of a door would refuse messages; `None` if it would not, or that cannot be known.
async fn missing(door: &Door, destination: Option<&str>) -> Option<String> {
    let destination = destination?;
    match timeout(door.sink.answer_timeout() + TIMEOUT_MARGIN, door.sink.look_for(destination)).await {
        Ok(Ok(DestinationState::Missing(detail))) => Some(format!("`{destination}`: {detail}")),
        _ => None,
    }
}

/// The option with the address of a sink.
fn sink_url(name: &str) -> String {
    format!("sinks.{name}.url")
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
        Cause::Refused => Kind::Refused,
    }
}
