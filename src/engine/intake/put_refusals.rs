//! Whether the timeline refuses puts, for `/readyz` and the log.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::timeline::{PutAnswer, PutResult, TimelineError};

/// How long a refused put is reported. After that, a put has to be tried again to learn the state.
const MAX_REFUSED_TIME: Duration = Duration::from_secs(5);

/// A successful put ends the report only this long after the last refusal, because at the limit of its memory Redis
/// refuses every other put.
const MIN_REFUSED_TIME: Duration = Duration::from_secs(1);

/// What an error of Redis means for the tasks that wait. A full Redis refuses only what needs memory, and claims and
/// settles need none.
fn consequence(detail: &str) -> &'static str {
    match detail.split(' ').next().unwrap_or_default() {
        "OOM" => "waiting tasks are still published",
        "NOREPLICAS" | "MISCONF" | "BUSY" | "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => {
            "it refuses all writes, so nothing is published either"
        }
        _ => "other calls may be refused, too",
    }
}

/// Maximum number of servers whose refusals are remembered.
const MAX_NODES: usize = 100;

/// What is known of refused puts.
#[derive(Default)]
pub(super) struct PutRefusals {
    /// The servers of the timeline that refused a put or did not confirm one. A server leaves the map once it accepts a
    /// put at least [`MIN_REFUSED_TIME`] after its last refusal. The key is the number of the server, `None` if there is
    /// only one.
    refusing: Mutex<BTreeMap<Option<u64>, Refusing>>,
}

/// A server that refuses puts or does not confirm them.
struct Refusing {
    since: Instant,
    last: Instant,
    /// Its last error text.
    detail: String,
}

impl PutRefusals {
    /// The error text of a put that this server refused, if that was lately.
    pub(super) fn lately(&self, node: Option<u64>) -> Option<String> {
        let refusing = self.refusing.lock();
        let lately = refusing.get(&node).filter(|refusing| refusing.last.elapsed() < MAX_REFUSED_TIME)?;
        Some(lately.detail.clone())
    }

    /// Notes that this server refused or did not confirm a put, and logs the first one.
    pub(super) fn note(&self, node: Option<u64>, error: &TimelineError) {
        let (TimelineError::Refused(detail) | TimelineError::Unconfirmed(detail)) = error else { return };
        let (now, mut refusing) = (Instant::now(), self.refusing.lock());
        let since = refusing.get(&node).map(|refusing| refusing.since);
        refusing.insert(node, Refusing { since: since.unwrap_or(now), last: now, detail: detail.clone() });
        if since.is_some() {
            return;
        }
        if refusing.len() > MAX_NODES {
            // The number of a server that was replaced is smaller than that of its successor.
            refusing.pop_first();
        }
        drop(refusing);
        if matches!(error, TimelineError::Unconfirmed(_)) {
            warn!(detail, "redis does not confirm writes; puts are answered 503 timeline_unknown");
        } else {
            warn!(detail, "redis refuses puts; {}", consequence(detail));
        }
    }

    /// Notes that this server accepts puts. Only a written task counts, because a full Redis still answers
    /// `unchanged`.
    pub(super) fn answered(&self, node: Option<u64>, answers: &[PutAnswer]) {
        let written = |answer: &PutAnswer| matches!(answer.result, PutResult::Created | PutResult::Replaced);
        if !answers.iter().any(written) {
            return;
        }
        let mut refusing = self.refusing.lock();
        let Some(known) = refusing.get(&node).filter(|known| known.last.elapsed() >= MIN_REFUSED_TIME) else { return };
        let outage_s = known.since.elapsed().as_secs();
        refusing.remove(&node);
        info!(outage_s, "redis accepts puts again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_redis_is_reported_as_still_publishing() {
        for (detail, expected) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", "are still published"),
            ("NOREPLICAS Not enough good replicas to write.", "nothing is published either"),
            ("MISCONF Redis is configured to save RDB snapshots", "nothing is published either"),
            ("BUSY Redis is busy running a script.", "nothing is published either"),
            ("READONLY You can't write against a read only replica.", "nothing is published either"),
            ("NOPERM this user has no permissions to run the 'hset' command", "may be refused, too"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "may be refused, too"),
        ] {
            assert!(consequence(detail).contains(expected), "{detail}");
        }
    }
}
