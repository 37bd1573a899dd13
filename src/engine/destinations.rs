//! Which destinations of a sink are at fault: known by name once something failed there, forgotten when all is well.
//!
//! A destination is at fault when its sink says so (unknown, without a stream, not authorised), or when it has accepted
//! nothing since a failure while the sink accepts elsewhere. At fault for longer than `patience`, its messages are dead;
//! one is tried every few seconds, until one is accepted.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How often one message is tried at a destination that is given up.
const TRIAL: Duration = Duration::from_secs(5);

/// How long a destination without trouble is remembered: longer than any occurrence is retried.
const MEMORY: Duration = Duration::from_secs(600);

/// Destinations remembered at most; beyond that the ones without news for longest are forgotten.
const MOST: usize = 10_000;

/// The destinations of one sink that had trouble lately.
pub(super) struct Destinations {
    patience: Duration,
    standings: HashMap<String, Standing>,
    /// When the message was sent that any destination accepted last.
    accepted: Option<Instant>,
}

struct Standing {
    /// Since when nothing was accepted here, after a failure.
    failing: Option<Instant>,
    /// The sink itself said that the fault is the destination's.
    told: bool,
    /// When the message was sent that was accepted last.
    accepted: Option<Instant>,
    /// When a message was last let through to a destination that is given up.
    trial: Option<Instant>,
    words: String,
    news: Instant,
}

/// What is known of a destination when a message fails there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standpoint {
    /// It has accepted something that was sent after this occurrence failed first: the fault is the message's.
    pub(super) others_accepted: bool,
    /// It is at fault, and has been for longer than `patience`.
    pub(super) given_up: bool,
}

/// Whether a message may be sent to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Yes.
    Open,
    /// No: it is given up; the broker's words.
    GivenUp(String),
}

impl Destinations {
    /// All is well; destinations that fail are borne with for `patience`.
    pub(super) fn new(patience: Duration) -> Destinations {
        Destinations { patience, standings: HashMap::new(), accepted: None }
    }

    /// A message sent at `sent` was accepted.
    pub(super) fn accepted(&mut self, destination: &str, sent: Instant) {
        self.accepted = self.accepted.max(Some(sent));
        let Some(standing) = self.standings.get_mut(destination) else { return };
        standing.accepted = standing.accepted.max(Some(sent));
        standing.news = Instant::now();
        if standing.failing.is_some_and(|since| since <= sent) || standing.told {
            (standing.failing, standing.told, standing.trial) = (None, false, None);
        }
    }

    /// A message failed that had first failed at `first_failure`; `told`: the sink says that it is the destination.
    pub(super) fn failed(
        &mut self,
        destination: &str,
        first_failure: Instant,
        now: Instant,
        told: bool,
        words: &str,
    ) -> Standpoint {
        self.forget(now);
        let accepted = self.accepted;
        let standing = self.standings.entry(destination.to_owned()).or_insert_with(|| Standing {
            failing: None,
            told: false,
            accepted: None,
            trial: None,
            words: String::new(),
            news: now,
        });
        let since = *standing.failing.get_or_insert(now);
        standing.told |= told;
        standing.news = now;
        words.clone_into(&mut standing.words);
        // Nothing was accepted here since: what the sink accepted since, it accepted elsewhere.
        let elsewhere = accepted.is_some_and(|accepted| accepted >= since);
        Standpoint {
            others_accepted: standing.accepted.is_some_and(|accepted| accepted > first_failure),
            given_up: (standing.told || elsewhere) && now.duration_since(since) >= self.patience,
        }
    }

    /// Whether a newly claimed message may be sent; of those for a destination that is given up, one every five seconds.
    pub(super) fn gate(&mut self, destination: &str, now: Instant) -> Gate {
        let (patience, accepted) = (self.patience, self.accepted);
        let Some(standing) = self.standings.get_mut(destination) else { return Gate::Open };
        let Some(since) = standing.failing else { return Gate::Open };
        let at_fault = standing.told || accepted.is_some_and(|accepted| accepted >= since);
        if !at_fault || now.duration_since(since) < patience {
            return Gate::Open;
        }
        if standing.trial.is_none_or(|last| now.duration_since(last) >= TRIAL) {
            standing.trial = Some(now);
            return Gate::Open;
        }
        Gate::GivenUp(standing.words.clone())
    }

    /// Whether nothing failed lately: then nobody needs to ask the gate.
    pub(super) fn all_well(&self) -> bool {
        self.standings.is_empty()
    }

    fn forget(&mut self, now: Instant) {
        if self.standings.len() < 64 {
            return;
        }
        self.standings.retain(|_, standing| now.duration_since(standing.news) < MEMORY);
        if self.standings.len() >= MOST {
            let mut news: Vec<Instant> = self.standings.values().map(|standing| standing.news).collect();
            news.sort_unstable();
            let old = news[news.len() / 2];
            self.standings.retain(|_, standing| standing.news > old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_destination_that_the_sink_names_is_given_up_after_patience_and_then_tried_every_five_seconds() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        assert!(!all.failed("gone", start, start, true, "no such topic").given_up);
        assert_eq!(all.gate("gone", at(start, 29)), Gate::Open, "not yet");
        assert!(all.failed("gone", start, at(start, 30), true, "no such topic").given_up);
        assert_eq!(all.gate("gone", at(start, 31)), Gate::Open, "the first trial");
        assert_eq!(all.gate("gone", at(start, 32)), Gate::GivenUp("no such topic".into()));
        assert_eq!(all.gate("gone", at(start, 36)), Gate::Open, "the next trial");
        assert_eq!(all.gate("other", at(start, 36)), Gate::Open);
        all.accepted("gone", at(start, 36));
        assert_eq!(all.gate("gone", at(start, 37)), Gate::Open, "one was accepted: all is well");
    }

    #[test]
    fn a_silent_destination_is_at_fault_only_while_the_sink_accepts_elsewhere() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        assert!(!all.failed("slow", start, start, false, "no answer").given_up);
        assert!(!all.failed("slow", start, at(start, 60), false, "no answer").given_up, "the sink accepts nobody");
        all.accepted("other", at(start, 61));
        assert!(all.failed("slow", start, at(start, 62), false, "no answer").given_up);
    }

    #[test]
    fn others_count_only_when_they_were_sent_after_the_first_failure() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        all.failed("busy", at(start, 10), at(start, 10), false, "nack");
        all.accepted("busy", at(start, 9));
        assert!(!all.failed("busy", at(start, 10), at(start, 11), false, "nack").others_accepted);
        all.accepted("busy", at(start, 12));
        assert!(all.failed("busy", at(start, 10), at(start, 13), false, "nack").others_accepted);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        for n in 0..MOST as u64 * 2 {
            all.failed(&n.to_string(), start, start + Duration::from_millis(n), false, "nack");
        }
        assert!(all.standings.len() <= MOST);
    }
}
