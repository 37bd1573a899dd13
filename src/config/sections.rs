//! Reads the sections with rules of their own, and checks the rules between sections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::read::{ConfigReader, list};
use super::{DAY, DEFAULT_NAME, HOUR, HttpSection, LogSection, SECOND, SinkSection};
use crate::clock::Timestamp;
use crate::engine::{DestinationPatterns, EngineConfig, EngineLane};
use crate::http::ApiLimits;
use crate::http::server::ServerLimits;
use crate::task::{CatchUpLimits, Lane, Limits, duration, local_time};
use crate::timeline::DeadCap;
use crate::timeline::redis::Durability;

/// `redis.durability`
pub(super) fn durability(r: &mut ConfigReader) -> Durability {
    let known: Vec<&str> = Durability::ALL.iter().map(|durability| durability.as_str()).collect();
    let read = r.text("redis.durability", |text| {
        Durability::of(text).ok_or_else(|| format!("one of {} is expected", list(&known)))
    });
    read.unwrap_or_default()
}

/// `[claim]` and `[dead]`. `grace` must exceed the lease plus 1 s, so that the occurrences of a killed instance are not
/// passed over.
pub(super) fn engine(r: &mut ConfigReader) -> EngineConfig {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let lease = r.duration("claim.lease", SECOND, HOUR);
    let grace = r.duration("claim.grace", Duration::ZERO, 365 * DAY);
    let back = lease + SECOND;
    if !r.is_wrong("claim.lease") && !r.is_wrong("claim.grace") && grace <= back {
        let (grace, back, lease) = (duration::format(grace), duration::format(back), duration::format(lease));
        let detail = format!(
            "{grace} is not longer than `claim.lease` ({lease}) plus 1 s: the occurrences of a killed instance would be passed over"
        );
        r.fault_by("claim.grace", "claim.lease", detail, Some(format!("more than {back}, or a shorter lease")));
    }
    EngineConfig {
        instance: String::new(),
        lease,
        batch: number(r.whole("claim.batch", 1, 1000)),
        in_flight: number(r.whole("claim.in_flight", 1, 1_000_000)),
        in_flight_bytes: r.size("claim.in_flight_bytes", 1 << 20, 1 << 36),
        catch_up: CatchUpLimits { grace, catch_up_max: small(r.whole("claim.catch_up_max", 0, 1_000_000)) },
        poison_limit: small(r.whole("claim.poison_limit", 1, 1000)),
        dead_keep: r.duration("dead.keep", HOUR, 3650 * DAY),
        dead_cap: DeadCap {
            entries: r.whole("dead.cap", 1, 1 << 32),
            bytes: r.size("dead.cap_bytes", 1 << 20, 1 << 36) as u64,
        },
    }
}

/// `[http]` and `[limits]`
pub(super) fn http(r: &mut ConfigReader) -> HttpSection {
    let listen = r.address("http.listen").unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let probe_listen = r.optional_address("http.probe_listen");
    let tls = match (r.file("http.certificate_file"), r.file("http.key_file")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            r.fault("http.certificate_file", "a certificate needs its key".into(), Some("`http.key_file`".into()));
            None
        }
        (None, Some(_)) => {
            r.fault("http.key_file", "a key needs its certificate".into(), Some("`http.certificate_file`".into()));
            None
        }
    };
    let (body, body_timeout) =
        (r.size("http.body_limit", 1 << 10, 1 << 30), r.duration("http.body_timeout", SECOND, HOUR));
    let bodies = r.size("http.bodies", 1 << 20, 1 << 40);
    if bodies < body && !r.is_wrong("http.bodies") && !r.is_wrong("http.body_limit") {
        let detail = format!("{bodies} bytes hold not even one body of `http.body_limit`, {body} bytes");
        r.fault_by("http.bodies", "http.body_limit", detail, Some(format!("`http.bodies = {body}`")));
    }
    let server = ServerLimits {
        header_timeout: r.duration("http.header_timeout", SECOND, HOUR),
        write_timeout: body_timeout,
        connections: usize::try_from(r.whole("http.connections", 1, 1 << 20)).unwrap_or(1),
    };
    let timeline_timeout = r.duration("http.timeline_timeout", Duration::from_millis(100), HOUR);
    HttpSection {
        listen,
        probe_listen,
        tls,
        api: ApiLimits { body, bodies, body_timeout, timeline_timeout, task: limits(r, body) },
        server,
    }
}

/// The bytes of a body besides payload and headers: the schedule and all names.
const MESSAGE_OVERHEAD_BYTES: usize = 8 << 10;

/// `[limits]`. A body must hold the largest payload in base64, and the largest headers.
fn limits(r: &mut ConfigReader, body: usize) -> Limits {
    let payload = r.size("limits.payload", 1, 8 << 20);
    let headers = usize::try_from(r.whole("limits.headers", 0, 1000)).unwrap_or(0);
    let header_bytes = r.size("limits.header_bytes", 0, 256 << 10);
    let needed = payload.div_ceil(3) * 4 + header_bytes + MESSAGE_OVERHEAD_BYTES;
    let options = ["limits.payload", "limits.header_bytes", "http.body_limit"];
    if needed > body && !options.iter().any(|option| r.is_wrong(option)) {
        let detail =
            format!("{payload} bytes, in base64 and with headers, do not fit into `http.body_limit`, {body} bytes");
        r.fault_by("limits.payload", "http.body_limit", detail, Some(format!("`http.body_limit = {needed}`")));
    }
    Limits { payload, headers, header_bytes }
}

/// `[tasks]`: the zone of cron schedules that name none; `None` is UTC.
pub(super) fn zone(r: &mut ConfigReader) -> Option<String> {
    let zone = r.text("tasks.zone", |text| match local_time(Timestamp::MIN_DUE, text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a time zone is expected, such as `Europe/Berlin`".to_owned()),
    });
    zone.filter(|zone| zone != "UTC")
}

/// `[log]`
pub(super) fn log(r: &mut ConfigReader) -> LogSection {
    let filter = r.text("log.filter", |text| crate::telemetry::filter(text).map(|_| text.to_owned()));
    let json = r.text("log.format", |text| match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err("a format is expected: `text` or `json`".to_owned()),
    });
    LogSection { filter: filter.unwrap_or_default(), json: json.unwrap_or_default() }
}

/// `[sinks.NAME]`. A sink whose URL cannot be parsed is a fault and left out.
pub(super) fn sinks(r: &mut ConfigReader, lease: Duration) -> BTreeMap<String, SinkSection> {
    let mut sinks = BTreeMap::new();
    let (shortest, longest) = (Duration::from_millis(100), HOUR);
    let common = (r.duration("sinks.answer_timeout", shortest, longest), r.duration("sinks.patience", SECOND, DAY));
    let names = r.names("sinks");
    if names.is_empty() {
        let hint = "`--sink nats://127.0.0.1:4222`, or a section `[sinks.NAME]` with its `url`";
        r.fault("sinks", "there is no sink to publish to".into(), Some(hint.into()));
    }
    for name in names {
        if let Err(bad) = name.parse::<Lane>() {
            r.fault(&format!("sinks.{name}"), bad.to_string(), None);
        }
        let path = |key: &str| format!("sinks.{name}.{key}");
        if !r.has(&path("url")) {
            r.fault(&path("url"), "a sink needs a URL, such as `nats://127.0.0.1:4222`".into(), None);
        }
        let own = r.has(&path("answer_timeout"));
        let answer_timeout = if own { r.duration(&path("answer_timeout"), shortest, longest) } else { common.0 };
        let patience = if r.has(&path("patience")) { r.duration(&path("patience"), SECOND, DAY) } else { common.1 };
        let option = if own { path("answer_timeout") } else { "sinks.answer_timeout".to_owned() };
        if answer_timeout * 2 > lease && !r.is_wrong("claim.lease") && !r.is_wrong(&option) {
            let (answer, half) = (duration::format(answer_timeout), duration::format(lease / 2));
            let detail = format!(
                "{answer} is more than half of `claim.lease`, {}: a publish would outlive its claim",
                duration::format(lease)
            );
            r.fault_by(&option, "claim.lease", detail, Some(format!("at most {half}, or a longer lease")));
        }
        if let Some(url) = r.url(&path("url"), &[]) {
            let section = SinkSection {
                url,
                answer_timeout,
                patience,
                destinations: r.texts(&path("destinations"), DestinationPatterns::new),
                credentials_file: r.file(&path("credentials_file")),
                password_file: r.file(&path("password_file")),
                sentinel_password: r.secret(&path("sentinel_password")),
                properties: r.properties(&name),
            };
            sinks.insert(name, section);
        }
    }
    sinks
}

/// `[lanes.NAME]`, and `default`, which always exists.
pub(super) fn lanes(r: &mut ConfigReader, sinks: &BTreeMap<String, SinkSection>) -> BTreeMap<Lane, EngineLane> {
    let mut lanes = BTreeMap::new();
    let there = r.names("sinks");
    let usual = match there.as_slice() {
        [only] => Some(only.clone()),
        several => several.iter().find(|name| *name == DEFAULT_NAME).cloned(),
    };
    let mut names = r.names("lanes");
    if !names.iter().any(|name| name == DEFAULT_NAME) {
        names.push(DEFAULT_NAME.to_owned());
    }
    for name in names {
        let path = |key: &str| format!("lanes.{name}.{key}");
        let sink = match r.text(&path("sink"), |text| Ok(text.to_owned())) {
            Some(sink) if there.contains(&sink) => Some(sink),
            Some(sink) => {
                r.unknown_name(&path("sink"), &sink, &there);
                None
            }
            None if r.is_wrong(&path("sink")) => None,
            // Without any sink this fault was already reported.
            None if usual.is_none() && !sinks.is_empty() => {
                // The lane `default` exists even if the configuration does not name it.
                let detail = format!("the lane `{name}` needs a sink, and there are several");
                r.fault_by(&path("sink"), "sinks", detail, Some(format!("one of {}", list(&there))));
                None
            }
            None => usual.clone(),
        };
        let mut destination = |key: &str| {
            r.text(&path(key), |text| match text.is_empty() {
                true => Err("a destination is expected".into()),
                false => Ok(text.to_owned()),
            })
        };
        let (destination, dead_destination) = (destination("destination"), destination("dead_destination"));
        if dead_destination.is_some() && dead_destination == destination {
            let detail = "it is the lane's own destination: copies of dead messages would look like messages";
            r.fault(&path("dead_destination"), detail.into(), None);
        }
        let patience = r.text(&path("patience"), |text| match text {
            "forever" => Ok(()),
            _ => Err("a lane knows `forever` only; a duration is set at its sink".into()),
        });
        let waits_forever = patience.is_some();
        match name.parse::<Lane>() {
            Ok(lane) => {
                let settings = |sink| EngineLane { sink, destination, dead_destination, waits_forever };
                lanes.extend(sink.map(|sink| (lane, settings(sink))));
            }
            Err(bad) => r.fault(&format!("lanes.{name}"), bad.to_string(), None),
        }
    }
    lanes
}
