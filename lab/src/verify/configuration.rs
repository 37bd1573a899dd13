//! The configuration of instances under attack.

use std::net::SocketAddr;

use secrecy::{ExposeSecret, SecretString};

use super::TimelinePlace;
use super::account::DOOR;

/// The configuration of an instance with this address, with short timeouts. All URLs may contain passwords. `door` has
/// the options `from` and `rejected` of its door.
pub(super) fn configuration(
    api: SocketAddr,
    timeline: &TimelinePlace,
    redis: &SecretString,
    sinks: &[(&str, &SecretString)],
    lane_sinks: &[(&str, &str)],
    door: Option<&(String, &str)>,
) -> anyhow::Result<String> {
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::to_string(text);
    // Without `durability`, a failover may lose writes that were answered.
    let is_cluster = redis.expose_secret().starts_with("redis+cluster:");
    let durable = if is_cluster { "durability = \"replica\"\n" } else { "" };
    let mut text = format!(
        "[http]\nlisten = \"{api}\"\n[redis]\nurl = {}\n{durable}[timeline]\nnamespace = \"{}\"\nshards = {}\n\
         [claim]\nlease = \"3s\"\ngrace = \"1h\"\npoison_limit = 1000\n[shutdown]\ndeadline = \"5s\"\n\
         [log]\nformat = \"json\"\n",
        quoted(redis.expose_secret())?,
        timeline.namespace,
        timeline.shards
    );
    for (name, url) in sinks {
        text += &format!("[sinks.{name}]\nurl = {}\nanswer_timeout = \"1s\"\n", quoted(url.expose_secret())?);
    }
    for (lane, sink) in lane_sinks {
        text += &format!("[lanes.{lane}]\nsink = \"{sink}\"\n");
    }
    if let Some((from, rejected)) = door {
        text += &format!("[doors.{DOOR}]\nsink = \"default\"\nfrom = \"{from}\"\nrejected = \"{rejected}\"\n");
    }
    Ok(text)
}
