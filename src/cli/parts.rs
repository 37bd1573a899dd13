//! Builds the parts of an instance before it connects, so that all their faults are reported together with those of the
//! configuration.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use punctual_sinks::{Password, RedisAccess, SinkConfig, SinkError, Tls};

use crate::config::{Config, ConfigFault, DoorSection, SinkSection};
use crate::doors::Door;
use crate::engine::{EngineSink, LaneRequirements};
use crate::http::server::tls::{ServerTls, TlsFault};
use crate::task::Lane;
use crate::timeline::redis::Durability;

/// The parts of an instance except its timeline.
pub(super) struct Parts {
    /// The trusted certificates.
    pub(super) tls: Tls,
    /// The sinks by name. They connect when they are first used.
    pub(super) sinks: BTreeMap<String, EngineSink>,
    pub(super) rules: BTreeMap<Lane, LaneRequirements>,
    /// They connect when they are first used.
    pub(super) doors: Vec<Door>,
    /// The TLS settings of the listener, if any.
    pub(super) listener: Option<ServerTls>,
    /// Settings that work but are probably not intended.
    pub(super) warnings: Vec<ConfigFault>,
}

impl Parts {
    /// Builds all parts.
    ///
    /// # Errors
    /// Everything that cannot be used, with its position.
    pub(super) fn build(config: &Config) -> Result<Parts, Vec<ConfigFault>> {
        let mut faults = Vec::new();
        let tls = config.ca_file.as_deref().map_or_else(|| Ok(Tls::default()), Tls::from_ca_file);
        let tls = tls.unwrap_or_else(|error| {
            faults.push(config.fault("tls.ca_file", error.to_string()));
            Tls::trusting_none(config.ca_file.as_deref().unwrap_or(Path::new("")))
        });
        let timeline_over_tls = look_at_redis(config, &tls).unwrap_or_else(|fault| {
            faults.push(fault);
            false
        });
        let sinks = build_sinks(config, &tls, &mut faults);
        let rules = lane_rules(config, &sinks, &mut faults);
        let doors = build_doors(config, &tls, &sinks, &mut faults);
        let listener = listener_tls(config).unwrap_or_else(|found| {
            faults.extend(found);
            None
        });
        let over_tls =
            |section: &SinkSection| SinkConfig::parse(section.url.expose()).is_ok_and(|sink| sink.over_tls());
        let mut warnings = Vec::new();
        if config.ca_file.is_some() && !timeline_over_tls && !config.sinks.values().any(over_tls) {
            let detail = "no URL uses TLS, so no certificate is checked";
            let hint = "`rediss://`, `kafka+ssl://`, `amqps://`, `tls://`".to_owned();
            warnings.push(ConfigFault { hint: Some(hint), ..config.fault("tls.ca_file", detail) });
        }
        if faults.is_empty() { Ok(Parts { tls, sinks, rules, doors, listener, warnings }) } else { Err(faults) }
    }
}

/// Whether the timeline's connections use TLS; a fault if the URL cannot be used.
fn look_at_redis(config: &Config, tls: &Tls) -> Result<bool, ConfigFault> {
    let sentinels = "redis.sentinel_password";
    if config.redis.scheme() == "memory" {
        if config.durability != Durability::Memory {
            return Err(config.fault("redis.durability", "a timeline in memory has neither replica nor disk"));
        }
        if config.strict {
            return Err(config.fault("redis.strict", "a timeline in memory keeps no task when the process ends"));
        }
        if config.password_file.is_some() {
            return Err(config.fault("redis.password_file", "a timeline in memory has no login"));
        }
        return match config.sentinel_password {
            Some(_) => Err(config.fault(sentinels, "a timeline in memory has no Sentinels")),
            None => Ok(false),
        };
    }
    let access = match &config.password_file {
        Some(file) => RedisAccess::parse_with_password_file(config.redis.expose(), file, tls),
        None => RedisAccess::parse(config.redis.expose(), tls),
    };
    let access = access
        .map_err(|error| match &error {
            SinkError::Config { option, .. } => config.fault(&format!("redis.{option}"), error.to_string()),
            _ => config.fault("redis.url", error.to_string()),
        })?
        .with_sentinel_password(config.sentinel_password.clone())
        .map_err(|error| config.fault(sentinels, error.to_string()))?;
    Ok(access.over_tls())
}

/// Certificate and key of the API.
fn listener_tls(config: &Config) -> Result<Option<ServerTls>, Vec<ConfigFault>> {
    let Some((certificate, key)) = &config.http.tls else { return Ok(None) };
    let describe = |fault: TlsFault| match &fault {
        TlsFault::Certificate(detail) => config.fault("http.certificate_file", detail.as_str()),
        TlsFault::Key(detail) => config.fault("http.key_file", detail.as_str()),
    };
    let loaded = ServerTls::load(certificate, key).map(Some);
    loaded.map_err(|faults| faults.into_iter().map(describe).collect())
}

fn build_sinks(config: &Config, tls: &Tls, faults: &mut Vec<ConfigFault>) -> BTreeMap<String, EngineSink> {
    let mut sinks = BTreeMap::new();
    for (name, section) in &config.sinks {
        match sink_config(config, tls, name, section).and_then(|sink| sink.build()) {
            Ok(sink) => {
                sinks.insert(name.clone(), EngineSink { sink, patience: section.patience });
            }
            Err(error) => {
                let option = if let SinkError::Config { option, .. } = &error { option } else { "url" };
                faults.push(config.fault(&format!("sinks.{name}.{option}"), error.to_string()));
            }
        }
    }
    sinks
}

/// The configuration of a sink, and of the doors that read from its broker.
fn sink_config(config: &Config, tls: &Tls, name: &str, section: &SinkSection) -> Result<SinkConfig, SinkError> {
    let sink = SinkConfig::parse(section.url.expose())?;
    let sink = match &section.password_file {
        Some(file) => sink.with_password_file(file)?,
        None => sink,
    };
    let in_file = config.url_in_file(&format!("sinks.{name}.url")).and_then(Password::in_url);
    let sink = match in_file {
        Some(password) => sink.with_password(password),
        None => sink,
    };
    let sink = sink
        .with_answer_timeout(section.answer_timeout)
        .with_namespace(config.timeline.namespace.as_str())
        .with_tls(tls.clone())
        .with_sentinel_password(section.sentinel_password.clone())
        .with_destinations(section.destinations.clone())
        .with_properties(section.properties.clone());
    Ok(match &section.credentials_file {
        Some(file) => sink.with_credentials_file(file),
        None => sink,
    })
}

/// Options of a door that only another kind of broker has.
fn options_of_another_broker(config: &Config, name: &str, door: &DoorSection, kind: &str) -> Vec<ConfigFault> {
    let path = |key: &str| format!("doors.{name}.{key}");
    let has = |key: &str| config.settings().iter().any(|setting| setting.path == path(key));
    let options = [
        ("dialect", door.dialect.broker().is_some(), door.dialect.broker().unwrap_or(kind)),
        ("group", has("group"), "kafka"),
        ("delete", door.source.delete, "redis"),
    ];
    let wrong = options.into_iter().filter(|(_, is_set, of)| *is_set && *of != kind);
    wrong
        .map(|(key, _, of)| config.fault(&path(key), format!("this is only for {of}, and the sink is {kind}")))
        .collect()
}

fn build_doors(
    config: &Config,
    tls: &Tls,
    sinks: &BTreeMap<String, EngineSink>,
    faults: &mut Vec<ConfigFault>,
) -> Vec<Door> {
    let mut doors = Vec::new();
    for (name, section) in &config.doors {
        // A missing or faulty sink has been reported already.
        let (Some(of_sink), Some(sink)) = (config.sinks.get(&section.sink), sinks.get(&section.sink)) else { continue };
        let sink = Arc::clone(&sink.sink);
        if let Some(Err(detail)) = section.rejected.as_deref().map(|rejected| sink.check_destination(rejected)) {
            faults.push(config.fault(&format!("doors.{name}.rejected"), detail));
        }
        faults.extend(options_of_another_broker(config, name, section, sink.kind()));
        match sink_config(config, tls, &section.sink, of_sink).and_then(|sink| sink.source(&section.source)) {
            Ok(source) => doors.push(Door {
                name: name.clone(),
                source,
                from: section.source.from.clone(),
                dialect: section.dialect,
                sink,
                rejected: section.rejected.clone(),
                batch: section.source.batch,
                lane: section.lane.clone(),
                destination: section.destination.clone(),
                exchanges: section.exchanges.clone(),
                to: section.to.clone(),
                delay: section.delay,
                catch_up: section.catch_up,
                max_overdue: section.drops_past.then_some(config.engine.catch_up.grace),
                allowed: section.allowed.clone(),
                limits: config.http.api.task,
                zone: config.zone.clone(),
                timeline_timeout: config.http.api.timeline_timeout,
            }),
            Err(error) => {
                let option = if let SinkError::Config { option, .. } = &error { option } else { "sink" };
                faults.push(config.fault(&format!("doors.{name}.{option}"), error.to_string()));
            }
        }
    }
    doors
}

/// Whether a task of each lane must name a destination: if the lane has none and its sink needs one. A lane whose
/// destination its sink can never accept is a fault.
fn lane_rules(
    config: &Config,
    sinks: &BTreeMap<String, EngineSink>,
    faults: &mut Vec<ConfigFault>,
) -> BTreeMap<Lane, LaneRequirements> {
    let mut rules = BTreeMap::new();
    for (lane, section) in &config.lanes {
        let sink = sinks.get(&section.sink).map(|sink| &sink.sink);
        for (option, destination) in
            [("destination", &section.destination), ("dead_destination", &section.dead_destination)]
        {
            if let (Some(sink), Some(destination)) = (sink, destination)
                && let Err(detail) = sink.check_destination(destination)
            {
                faults.push(config.fault(&format!("lanes.{lane}.{option}"), detail));
            }
        }
        let needed = sink.is_some_and(|sink| sink.needs_destination());
        let destination_required = section.destination.is_none() && needed;
        let destination = section.destination.clone();
        rules.insert(lane.clone(), LaneRequirements { destination, destination_required, sink: sink.cloned() });
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    fn with_lanes(flags: &[(&'static str, &str)]) -> Config {
        let flags = flags.iter().map(|(path, value)| ("--set", *path, (*value).to_owned())).collect();
        Config::load(Sources { flags, ..Sources::default() }).unwrap()
    }

    #[tokio::test]
    async fn a_destination_is_required_if_the_sink_needs_one_and_the_lane_has_none() {
        for (url, needed) in [("stdout:", false), ("redis://127.0.0.1:1", true), ("nats://127.0.0.1:1", true)] {
            for destination in [None, Some(("lanes.default.destination", "a"))] {
                let flags: Vec<_> = [("sinks.default.url", url)].into_iter().chain(destination).collect();
                let config = with_lanes(&flags);
                let parts = Parts::build(&config).map_err(|faults| format!("{faults:?}")).unwrap();
                let required: Vec<bool> = parts.rules.values().map(|rule| rule.destination_required).collect();
                assert_eq!(required, [needed && destination.is_none()], "{url}");
            }
        }
    }

    #[tokio::test]
    async fn all_lanes_whose_sink_never_publishes_to_their_destination_are_reported() {
        let config = with_lanes(&[
            ("sinks.default.url", "redis://127.0.0.1:1"),
            ("sinks.other.url", "nats://127.0.0.1:1"),
            ("lanes.default.destination", "punctual:{default:0}:tasks"),
            ("lanes.good.destination", "orders"),
            ("lanes.dead.dead_destination", "punctual:{default:0}:tasks"),
            ("lanes.bad.sink", "other"),
            ("lanes.bad.destination", "orders.*"),
        ]);
        let faults = Parts::build(&config).err().unwrap();
        let detail: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(detail[0].starts_with("`lanes.bad.destination` (--set): `orders.*` is no subject"), "{detail:?}");
        assert!(
            detail[2].starts_with("`lanes.default.destination` (--set): `punctual:{default:0}:tasks`"),
            "{detail:?}"
        );
        assert!(detail[1].starts_with("`lanes.dead.dead_destination` (--set): "), "{detail:?}");
        assert_eq!(detail.len(), 3, "{detail:?}");
    }

    #[tokio::test]
    async fn faults_of_sinks_and_of_the_file_are_reported_together_with_their_places() {
        let text = "[tls]\nca_file = \"nowhere.pem\"\n[claim]\nleese = \"1s\"\n[redis]\nurl = \"redis://h/x\"\n\
                    [sinks.a]\nurl = \"nats://me:hunter2@h/path\"\n\
                    [sinks.b]\nurl = \"nats://h\"\ncredentials_file = \"nowhere.creds\"\n\
                    [sinks.c]\nurl = \"redis://h\"\n[sinks.c.properties]\nsasl.password = \"hunter2\"\n\
                    [sinks.d]\nurl = \"redis://h\"\nsentinel_password = \"hunter2\"\n[lanes.default]\nsink = \"a\"";
        let sources = Sources { file: Some(("p.toml".into(), text.into())), ..Sources::default() };
        let faults = Config::load_and(sources, Parts::build).err().unwrap().to_string();
        for line in [
            "`claim.leese` (p.toml:4): there is no such option",
            "`tls.ca_file` (p.toml:2): cannot read the certificates in `nowhere.pem`",
            "`redis.url` (p.toml:6): `x` is no number of a Redis database",
            "`sinks.a.url` (p.toml:8): the URL of a nats sink has no path",
            "`sinks.b.credentials_file` (p.toml:11): `credentials_file`: cannot read the credentials in `nowhere.creds`",
            "`sinks.c.properties.sasl.password` (p.toml:15): a redis sink has no `properties`: only Kafka does",
            "`sinks.d.sentinel_password` (p.toml:18): `sentinel_password` is for a Redis behind Sentinels",
        ] {
            assert!(faults.contains(line), "no `{line}` in:\n{faults}");
        }
        assert!(!faults.contains("hunter2"), "{faults}");
    }

    #[cfg(feature = "kafka")]
    #[tokio::test]
    async fn faults_of_doors_are_reported_with_their_places() {
        let text = "[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"redis://h\"\n[sinks.k]\nurl = \"kafka://h\"\n\
                    [lanes.default]\nsink = \"a\"\n\
                    [doors.none]\n[doors.UP]\nsink = \"b\"\nfrom = \"x/y\"\nrejected = \"\"\n\
                    [doors.one]\nsink = \"a\"\nfrom = \"x\"\nrejected = \"punctual:{default:0}:tasks\"\ndialect = \"etf1\"\ngroup = \"g\"\n\
                    [doors.two]\nsink = \"k\"\nfrom = \"a b\"\nrejected = \"r\"\ndelete = true\nbatch = 0\npast = \"keep\"\n\
                    [doors.three]\nsink = \"a\"\nfrom = \"in/g\"\nrejected = \"in\"\nlane = \"nowhere\"\ndialect = \"morse\"\nsnik = 1\n";
        let faults = faults_of(text);
        for line in [
            "`doors.none.sink` (p.toml:9): a door needs the `sink`",
            "`doors.none.from`",
            "`doors.none.rejected`",
            "`doors.UP` (p.toml:11): a name is 1 to 32",
            "`doors.UP.sink` (p.toml:11): `b` is not configured, only `a`, `k`",
            "`doors.one.from` (p.toml:16): a stream and its consumer group are expected",
            "`doors.one.rejected` (p.toml:17): `punctual:{default:0}:tasks` cannot be a stream",
            "`doors.one.dialect` (p.toml:18): this is only for kafka, and the sink is redis",
            "`doors.one.group` (p.toml:19): this is only for kafka",
            "`doors.two.from` (p.toml:22): `a b` is no name of a topic",
            "`doors.two.delete` (p.toml:24): this is only for redis, and the sink is kafka",
            "`doors.two.batch` (p.toml:25): ",
            "`doors.two.past` (p.toml:26): `put` or `drop` is expected",
            "`doors.three.rejected` (p.toml:30): the door would read its own rejected messages again",
            "`doors.three.lane` (p.toml:31): `nowhere` is not configured",
            "`doors.three.dialect` (p.toml:32): `morse`: one of `own`, `etf1`, `sky`, ",
            "`doors.three.snik` (p.toml:33): there is no such option",
        ] {
            assert!(faults.contains(line), "no `{line}` in:\n{faults}");
        }
    }

    #[cfg(feature = "rabbitmq")]
    #[tokio::test]
    async fn faults_of_the_options_for_rabbitmq_are_reported_with_their_places() {
        let door =
            |name: &str, more: &str| format!("[doors.{name}]\nsink = \"r\"\nfrom = \"in\"\nrejected = \"\"\n{more}\n");
        let text = "[redis]\nurl = \"memory:\"\n[sinks.r]\nurl = \"amqp://h\"\n[lanes.default]\nsink = \"r\"\n"
            .to_owned()
            + &door("a", "dialect = \"x-delay\"")
            + &door("b", "dialect = \"celery\"\nexchanges = [\"in\"]")
            + &door("c", "dialect = \"celery\"\nexchanges = [\"in=in\"]")
            + &door("d", "dialect = \"celery\"\nexchanges = [\"in=a/b\"]")
            + &door("e", "dialect = \"celery\"\nexchanges = [\"in=a\", \"in=b\"]")
            + &door("f", "dialect = \"expiration\"")
            + &door("g", "exchanges = [\"in=out\"]\nto = \"a/b\"\ndelay = \"1s\"")
            + &door("i", "dialect = \"expiration\"\nto = \"/in\"")
            + &door("h", "dialect = \"expiration\"\nto = \"a/b\"\ndelay = \"50d\"")
            + &door("j", "dialect = \"expiration\"\nto = \"a/b\"\ndestination = \"c\"")
            + &door("k", "dialect = \"expire\"\nto = \"a/b\"\nexchanges = [\"in=out\"]");
        let faults = faults_of(&text);
        for line in [
            "`doors.a.exchanges` (p.toml:8): the dialect `x-delay` needs `exchanges`, such as ",
            "`doors.b.exchanges` (p.toml:17): `in` is not `FROM=TO`, such as ",
            "`doors.c.exchanges` (p.toml:23): the door would read what it publishes to the exchange `in`",
            "`doors.d.exchanges` (p.toml:29): `in=a/b`: an exchange with `/` in its name",
            "`doors.e.exchanges` (p.toml:35): the exchange `in` is repeated",
            "`doors.f.to` (p.toml:37): where the queue dead-letters to is expected",
            "`doors.g.exchanges` (p.toml:45): this is only for the dialects `x-delay` and `celery`",
            "`doors.g.to` (p.toml:46): this is only for the dialect `expiration`",
            "`doors.g.delay` (p.toml:47): this is only for the dialect `expiration`",
            "`doors.i.to` (p.toml:53): the door would read what it publishes",
            "`doors.h.delay` (p.toml:60): `50d`: a duration from 1ms to ",
            "`doors.j.destination` (p.toml:67): this is only for the dialects `own` and `etf1`",
            "`doors.k.dialect` (p.toml:72): `expire`: one of `own`, ",
        ] {
            assert!(faults.contains(line), "no `{line}` in:\n{faults}");
        }
        assert!(!faults.contains("doors.k.to") && !faults.contains("doors.k.exchanges"), "{faults}");
    }

    fn faults_of(text: &str) -> String {
        let sources = Sources { file: Some(("p.toml".into(), text.into())), ..Sources::default() };
        Config::load_and(sources, Parts::build).err().unwrap().to_string()
    }

    #[tokio::test]
    async fn a_sentinel_password_without_sentinels_is_reported_with_its_line() {
        for (redis, detail) in [
            ("url = \"redis://h\"\n", "3): `sentinel_password` is for a Redis behind Sentinels"),
            ("\n", "3): `sentinel_password` is for a Redis behind Sentinels"),
            ("url = \"memory:\"\n", "3): a timeline in memory has no Sentinels"),
        ] {
            let text = format!("[redis]\n{redis}sentinel_password = \"hunter2\"\n[sinks.a]\nurl = \"stdout:\"\n");
            let faults = faults_of(&text);
            let line = format!("`redis.sentinel_password` (p.toml:{detail}");
            assert!(faults.contains(&line) && !faults.contains("hunter2"), "no `{line}` in:\n{faults}");
        }
    }

    #[tokio::test]
    async fn a_memory_timeline_refuses_durability_and_strict() {
        for (option, detail) in [
            (
                "durability = \"replica\"",
                "`redis.durability` (p.toml:3): a timeline in memory has neither replica nor disk",
            ),
            ("strict = true", "`redis.strict` (p.toml:3): a timeline in memory keeps no task when the process ends"),
        ] {
            let text = format!("[redis]\nurl = \"memory:\"\n{option}\n[sinks.a]\nurl = \"stdout:\"\n");
            let faults = faults_of(&text);
            assert!(faults.contains(detail), "no `{detail}` in:\n{faults}");
        }
    }

    #[tokio::test]
    async fn an_unreadable_ca_file_is_reported_as_one_fault() {
        let mut text = "[tls]\nca_file = \"nowhere.pem\"\n[redis]\nurl = \"rediss://h\"\n".to_owned();
        for scheme in ["rediss", "rediss+sentinel", "kafka+ssl", "amqps", "tls"] {
            let known = SinkConfig::parse(&format!("{scheme}://h")).is_ok();
            let path = if scheme.ends_with("sentinel") { "/main" } else { "" };
            let name = scheme.replace('+', "-");
            text += &if known { format!("[sinks.{name}]\nurl = \"{scheme}://h{path}\"\n") } else { String::new() };
        }
        let faults = faults_of(&(text + "[lanes.default]\nsink = \"rediss\"\n"));
        assert_eq!(faults.lines().count(), 2, "{faults}");
        assert!(faults.contains("`tls.ca_file` (p.toml:2): cannot read the certificates"), "{faults}");
    }

    #[tokio::test]
    async fn a_ca_file_is_a_warning_if_no_url_uses_tls() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(file.path(), key.cert.pem()).unwrap();
        let ca_file = file.path().display().to_string();
        for (redis, sink, warns) in [
            ("redis://h", "redis://h", true),
            ("memory:", "stdout:", true),
            ("rediss://h", "stdout:", false),
            ("memory:", "rediss+sentinel://h/main", false),
            ("memory:", "nats://h", false),
        ] {
            let mut flags = vec![("redis.url", redis), ("sinks.default.url", sink), ("tls.ca_file", ca_file.as_str())];
            flags.extend((sink != "stdout:").then_some(("lanes.default.destination", "a")));
            let config = with_lanes(&flags);
            let parts = Parts::build(&config).map_err(|faults| format!("{faults:?}")).unwrap();
            let warnings: Vec<_> = parts.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(warnings.len(), usize::from(warns), "{redis} {sink}: {warnings:?}");
            let line = "`tls.ca_file` (--set): no URL uses TLS";
            assert!(warnings.iter().all(|warning| warning.starts_with(line)), "{warnings:?}");
        }
    }

    #[cfg(feature = "kafka")]
    #[tokio::test]
    async fn a_property_refused_by_the_client_library_is_reported_without_its_value() {
        for (name, value) in [("no.such.property", "hunter2"), ("linger.ms", "hunter2"), ("acks", "hunter2")] {
            let text = format!(
                "[sinks.a]\nurl = \"kafka://h\"\n[sinks.a.properties]\n\"client.id\" = \"me\"\n\"{name}\" = \"{value}\"\n"
            );
            let sources = Sources { file: Some(("p.toml".into(), text)), ..Sources::default() };
            let faults = Config::load_and(sources, Parts::build).err().unwrap().to_string();
            let place = format!("`sinks.a.properties.{name}` (p.toml:5): the ");
            assert!(faults.contains(&place) && !faults.contains("hunter2"), "no `{place}` in:\n{faults}");
        }
    }
}
