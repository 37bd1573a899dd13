//! Reads `[tokens.NAME]`: the hash of each token, its scopes, and what it is limited to.

use std::collections::BTreeMap;
use std::time::Duration;

use super::HttpSection;
use super::read::ConfigReader;
use crate::engine::{AllowedTasks, DestinationPatterns, EngineLane, IdPrefix};
use crate::http::access::{KnownToken, Scope};
use crate::http::{PutRate, TokenLimits};
use crate::task::Lane;

/// The units of a rate.
const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3600)];

/// `[tokens.NAME]`. Required unless the API and the probes listen on loopback.
pub(super) fn tokens(
    r: &mut ConfigReader,
    http: &HttpSection,
    lanes: &BTreeMap<Lane, EngineLane>,
) -> BTreeMap<String, KnownToken> {
    let names = r.names("tokens");
    let addresses = [
        ("http.listen", Some(http.listen), "do everything"),
        ("http.probe_listen", http.probe_listen, "read the metrics"),
    ];
    for (path, listen, may) in addresses {
        if let Some(listen) = listen.filter(|listen| names.is_empty() && !listen.ip().is_loopback()) {
            let detail =
                format!("`{listen}` is not a loopback address, and without tokens every client there may {may}");
            let hint = "a section `[tokens.NAME]` with `sha256` and `scope`, or `127.0.0.1`";
            r.fault(path, detail, Some(hint.into()));
        }
    }
    let (mut tokens, mut hashes) = (BTreeMap::new(), BTreeMap::new());
    for name in names {
        if let Err(bad) = name.parse::<Lane>() {
            r.fault(&format!("tokens.{name}"), bad.to_string(), None);
        }
        let path = |key: &str| format!("tokens.{name}.{key}");
        for key in ["sha256", "scope"] {
            if !r.has(&path(key)) {
                r.fault(&path(key), format!("a token needs its `{key}`"), None);
            }
        }
        let sha256 = r.text(&path("sha256"), |text| match sha256(text.trim()) {
            Some(OF_NOTHING) => Err("it is the SHA-256 of an empty text: was the variable empty?".to_owned()),
            Some(sha256) => Ok(sha256),
            None => Err("the SHA-256 of the token is expected, 64 hexadecimal digits".to_owned()),
        });
        let scopes = r.text(&path("scope"), scopes);
        if let Some(other) = sha256.as_ref().and_then(|sha256| hashes.insert(*sha256, name.clone())) {
            r.fault(&path("sha256"), format!("it is the token of `tokens.{other}` too: its scopes would add up"), None);
        }
        let limits = limits(r, &name, lanes);
        if let (Some(sha256), Some(scopes)) = (sha256, scopes) {
            tokens.insert(name.clone(), KnownToken { name, sha256, scopes, limits });
        }
    }
    tokens
}

/// What a token is limited to.
fn limits(r: &mut ConfigReader, name: &str, configured: &BTreeMap<Lane, EngineLane>) -> TokenLimits {
    let path = |key: &str| format!("tokens.{name}.{key}");
    let pending_max = path("pending_max");
    let pending_max = r.has(&pending_max).then(|| r.whole(&pending_max, 1, 1 << 40));
    TokenLimits { allowed: allowed(r, "tokens", name, configured), pending_max, puts: r.text(&path("puts"), put_rate) }
}

/// The tasks that a token or a door may use: `lanes`, `prefix` and `destinations` of a section.
pub(super) fn allowed(
    r: &mut ConfigReader,
    section: &str,
    name: &str,
    configured: &BTreeMap<Lane, EngineLane>,
) -> AllowedTasks {
    let path = |key: &str| format!("{section}.{name}.{key}");
    let lanes = r.texts(&path("lanes"), |names| {
        if names.is_empty() {
            return Err("the names of lanes are expected".to_owned());
        }
        let lanes = names.iter().map(|name| name.parse::<Lane>().map_err(|bad| format!("`{name}`: {bad}")));
        lanes.collect::<Result<Vec<_>, _>>()
    });
    if let Some(unknown) = lanes.iter().flatten().find(|lane| !configured.contains_key(lane)) {
        let there: Vec<String> = configured.keys().map(ToString::to_string).collect();
        r.unknown_name(&path("lanes"), unknown.as_str(), &there);
    }
    let prefix = r.text(&path("prefix"), str::parse::<IdPrefix>);
    if lanes.is_some() && prefix.is_none() && !r.is_wrong(&path("prefix")) {
        let who = section.trim_end_matches('s');
        let detail = format!("without `prefix` the {who} could replace and cancel tasks of other lanes by their ids");
        r.fault(&path("lanes"), detail, Some(format!("`prefix = \"{name}.\"`")));
    }
    AllowedTasks {
        lanes: lanes.unwrap_or_default(),
        prefix: prefix.unwrap_or_default(),
        destinations: r.texts(&path("destinations"), DestinationPatterns::new),
    }
}

/// `500/s`, `30/m`, `100/h`
fn put_rate(text: &str) -> Result<PutRate, String> {
    let read = || {
        let (puts, unit) = text.trim().split_once('/')?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let puts = puts.parse().ok().filter(|puts| *puts > 0)?;
        Some(PutRate { puts, per: Duration::from_secs(*seconds) })
    };
    read().ok_or_else(|| "a rate is expected, such as `500/s`, `30/m` or `100/h`".to_owned())
}

/// The SHA-256 of an empty text, which is no valid token.
const OF_NOTHING: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41,
    0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

fn sha256(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(pair[0])? * 16 + digit(pair[1])?;
    }
    Some(bytes)
}

/// The words of a scope, separated by spaces.
fn scopes(text: &str) -> Result<Vec<Scope>, String> {
    let scopes: Option<Vec<Scope>> = text.split_whitespace().map(Scope::of).collect();
    let known: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
    let expected = || format!("one or several of `{}` are expected, separated by spaces", known.join("`, `"));
    scopes.filter(|scopes| !scopes.is_empty()).ok_or_else(expected)
}
