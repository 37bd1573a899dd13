//! Whether the sinks would accept messages for the destinations of lanes, and for the one of `--destination`.

use futures_util::future::join_all;
use punctual_sinks::DestinationState;
use tokio::time::timeout;

use super::finding::{CheckFailure, Finding, Kind};
use super::{TIMEOUT_MARGIN, Wanted, kind_and_detail, sink_url};
use crate::config::Config;
use crate::engine::EngineSink;

/// Looks for the destinations of the lanes of this sink. A missing one is a warning, because the broker may make it at
/// the first message. The wanted one must be there.
pub(super) async fn look(config: &Config, name: &str, sink: &EngineSink, wanted: Option<Wanted<'_>>) -> Vec<Finding> {
    let lanes = config.lanes.iter().filter(|(_, lane)| lane.sink == name);
    let looks = lanes.filter_map(|(lane, section)| {
        let of_lane = [&section.destination, &section.dead_destination].into_iter().flatten().map(String::as_str);
        let wanted = wanted.filter(|wanted| wanted.lane == lane.as_str()).map(|wanted| wanted.name);
        let names: Vec<&str> = of_lane.filter(|name| wanted != Some(name)).collect();
        let is_any = !names.is_empty() || wanted.is_some();
        is_any.then(|| look_of_lane(config, lane.as_str(), sink_url(name), sink, names, wanted))
    });
    join_all(looks).await
}

async fn look_of_lane(
    config: &Config,
    lane: &str,
    url: String,
    sink: &EngineSink,
    names: Vec<&str>,
    wanted: Option<&str>,
) -> Finding {
    let option = format!("lanes.{lane}.sink");
    let (mut found, mut warnings, mut failure) = (Vec::new(), Vec::new(), None);
    for name in names.into_iter().chain(wanted) {
        let limit = sink.sink.answer_timeout() + TIMEOUT_MARGIN;
        match timeout(limit, sink.sink.look_for(name)).await {
            Ok(Ok(DestinationState::Exists)) => found.push(format!("`{name}` takes messages")),
            Ok(Ok(DestinationState::Unknown(detail))) => {
                found.push(format!("`{name}`: not known: {detail}"));
            }
            Ok(Ok(DestinationState::Missing(detail))) if wanted == Some(name) => {
                failure = Some(CheckFailure::new(config, &option, Kind::Missing, format!("`{name}`: {detail}")));
            }
            Ok(Ok(DestinationState::Missing(detail))) => {
                let hint = "make it, or its messages are dead after `patience`".to_owned();
                warnings.push((format!("messages for `{name}` would be refused: {detail}"), Some(hint)));
            }
            Ok(Err(error)) => {
                let (kind, detail) = kind_and_detail(error);
                failure = Some(CheckFailure::new(config, &url, kind, detail));
            }
            Err(_) => {
                let detail = format!("`{name}`: no answer within {limit:?}");
                failure = Some(CheckFailure::new(config, &url, Kind::Unreachable, detail));
            }
        }
    }
    let found = if found.is_empty() { "no destination was found".to_owned() } else { found.join(", ") };
    Finding { of: format!("lane {lane}"), result: failure.map_or(Ok(found), Err), warnings }
}

/// The failure if the wanted destination is in a lane that is not configured.
pub(super) fn unknown_lane(config: &Config, wanted: Wanted<'_>) -> Option<Finding> {
    let lane = wanted.lane;
    if config.lanes.keys().any(|known| known.as_str() == lane) {
        return None;
    }
    let configured: Vec<_> = config.lanes.keys().map(|lane| format!("`{lane}`")).collect();
    let detail = format!("the lane `{lane}` is not configured; configured are {}", configured.join(", "));
    let trouble = CheckFailure::new(config, "lanes", Kind::Configuration, detail);
    Some(Finding { of: format!("lane {lane}"), result: Err(trouble), warnings: Vec::new() })
}
