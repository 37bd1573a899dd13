//! `punctual dead requeue --wait`: what died again after a requeue.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anyhow::anyhow;
use hyper::Method;

use super::{DeadView, ManyArguments};
use crate::cli::api_caller::{ApiCaller, PageView, with_query};
use crate::cli::status::StatsView;
use crate::cli::{Failure, say};
use crate::task::duration;

/// Maximum number of pages that are read.
const MAX_PAGES: usize = 100;

/// How many causes are shown.
const MAX_CAUSES: usize = 10;

/// Parses a duration for clap.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

/// The time of the instance, in RFC 3339.
pub(super) async fn time_of(caller: &ApiCaller<'_>) -> Result<String, Failure> {
    let (_, stats) = caller.call::<StatsView>(Method::GET, "/v1/stats", None, "cannot ask for the time").await?;
    Ok(stats.now.as_str().to_owned())
}

/// Waits, then shows which of the requeued occurrences died again, and where messages still fail: those may die later.
/// After a requeue by filter these are all that died since then in the lane of the filter.
///
/// # Errors
/// If any died, or messages fail at a destination or a sink of the lane, so that a script notices.
pub(super) async fn died_since(
    caller: &ApiCaller<'_>,
    arguments: &ManyArguments,
    begun: &str,
    wait: Duration,
) -> Result<(), Failure> {
    tokio::time::sleep(wait).await;
    let keys: HashSet<&str> = arguments.keys.iter().map(String::as_str).collect();
    let mut causes: BTreeMap<String, u64> = BTreeMap::new();
    let begun = Some(begun.to_owned());
    let (mut cursor, mut pages) = (None::<String>, 0);
    loop {
        let parameters = [("from", &begun), ("lane", &arguments.filter.lane), ("cursor", &cursor)];
        let path = with_query("/v1/dead?limit=1000", parameters);
        let (_, page) = caller.call::<PageView>(Method::GET, &path, None, "cannot list the dead").await?;
        let dead = page.items.iter().filter_map(|item| serde_json::from_str::<DeadView>(item.get()).ok());
        for dead in dead.filter(|dead| keys.is_empty() || keys.contains(dead.key.as_str())) {
            *causes.entry(format!("{}: {}", dead.reason, dead.detail)).or_default() += 1;
        }
        cursor = page.next_cursor;
        pages += 1;
        if cursor.is_none() || pages >= MAX_PAGES {
            break;
        }
    }
    let (_, stats) = caller.call::<StatsView>(Method::GET, "/v1/stats", None, "cannot show what still fails").await?;
    let failing = stats.sink_troubles(arguments.filter.lane.as_deref());
    let failing: String = failing.lines().map(|line| format!("\n  {line}")).collect();
    let (total, waited) = (causes.values().sum::<u64>(), duration::format(wait));
    if total == 0 && failing.is_empty() {
        return if arguments.call.json { Ok(()) } else { say(&format!("none died again within {waited}\n")) };
    }
    let mut causes: Vec<(String, u64)> = causes.into_iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let causes = causes.iter().take(MAX_CAUSES).map(|(cause, count)| format!("\n  {count} x {cause}"));
    let died = match total {
        0 => format!("none died again within {waited}"),
        _ => format!("{total} died again within {waited}:{}", causes.collect::<String>()),
    };
    let failing = if failing.is_empty() { failing } else { format!("messages still wait for an answer:{failing}") };
    Err(Failure::failed(match (total, failing.as_str()) {
        (0, _) => anyhow!("{failing}\n{died}"),
        (_, "") => anyhow!("{died}"),
        _ => anyhow!("{died}\n{failing}"),
    }))
}
