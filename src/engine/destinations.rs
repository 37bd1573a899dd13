//! Which destinations of a sink are at fault: known by name once something failed there, forgotten when all is well.
//!
//! A destination is at fault when its sink says so (unknown, without a stream, not authorised), or when it has accepted
//! nothing since a failure while the sink accepts elsewhere. When messages have failed there for `patience`, it is given
//! up: its messages are dead; one is tried every few seconds, until one is accepted. Only failures that were seen count:
//! time in which nothing was tried, or in which the whole sink was absent, is no evidence against a destination.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a destination fails, of which the sink itself says nothing, before it is at fault: others are accepted there a
/// moment after a nack or a change of leader.
const FAULT_DELAY: Duration = Duration::from_secs(2);

/// How often one message is tried at a destination that is given up.
const TRIAL_INTERVAL: Duration = Duration::from_secs(5);

/// How long a destination without trouble is remembered: longer than any occurrence is retried.
const MEMORY: Duration = Duration::from_secs(600);

/// How often what is remembered is gone through.
const SWEEP: Duration = Duration::from_secs(10);

/// Destinations remembered at most; beyond that the ones without news for longest are forgotten.
const MAX_DESTINATIONS: usize = 10_000;

/// The destinations of one sink that had trouble lately.
pub(super) struct Destinations {
    patience: Duration,
    standings: HashMap<String, DestinationHealth>,
    /// When the message was sent that any destination accepted last.
    accepted: Option<Instant>,
    swept: Option<Instant>,
}

struct DestinationHealth {
    /// The first and the last failure since something was accepted here.
    failing: Option<(Instant, Instant)>,
    /// The sink itself said that the fault is the destination's.
    told: bool,
    /// When the message was sent that was accepted last.
    accepted: Option<Instant>,
    /// When a message was last let through to a destination that is given up.
    trial: Option<Instant>,
    detail: String,
    news: Instant,
}

impl DestinationHealth {
    fn new(now: Instant) -> DestinationHealth {
        DestinationHealth { failing: None, told: false, accepted: None, trial: None, detail: String::new(), news: now }
    }

    fn forgive(&mut self) {
        (self.failing, self.told, self.trial) = (None, false, None);
    }

    /// Since when it fails; a failure that is long past, with nothing tried since, is forgiven.
    fn failing_since(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        if self.failing.is_some_and(|(_, last)| now.duration_since(last) > patience.max(TRIAL_INTERVAL * 2)) {
            self.forgive();
        }
        self.failing.map(|(first, _)| first)
    }

    /// Whether it is at fault, and failures were seen for so long. `accepted`: the sink's, anywhere.
    fn at_fault_for(&self, accepted: Option<Instant>, span: Duration) -> bool {
        let Some((first, last)) = self.failing else { return false };
        // Nothing was accepted here since: what the sink accepted since, it accepted elsewhere.
        let at_fault = self.told || accepted.is_some_and(|accepted| accepted >= first);
        at_fault && last.duration_since(first) >= span
    }

    fn given_up(&self, accepted: Option<Instant>, patience: Duration) -> bool {
        self.at_fault_for(accepted, patience)
    }

    fn at_fault(&self, accepted: Option<Instant>, patience: Duration) -> bool {
        self.at_fault_for(accepted, if self.told { Duration::ZERO } else { FAULT_DELAY.min(patience) })
    }
}

/// What is known of a destination when a message fails there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureContext {
    /// It has accepted something that was sent after this occurrence failed first: the fault is the message's.
    pub(super) others_accepted: bool,
    /// It is at fault, given up or not.
    pub(super) at_fault: bool,
    /// It is at fault, and has failed for as long as `patience`.
    pub(super) given_up: bool,
    /// The sink has accepted nothing anywhere since this occurrence failed first, for as long as `patience`.
    pub(super) sink_silent: bool,
}

/// Whether a message may be sent to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Yes.
    Open,
    /// If there is room among what is held for it: it is at fault.
    AtFault,
    /// Yes: it is given up, and this is the one that is tried.
    Trial,
    /// No: it is given up; the broker's words.
    GivenUp(String),
}

impl Destinations {
    /// All is well; destinations that fail are borne with for `patience`.
    pub(super) fn new(patience: Duration) -> Destinations {
        Destinations { patience, standings: HashMap::new(), accepted: None, swept: None }
    }

    /// A message sent at `sent` was accepted. Whether its destination failed before, and is forgiven.
    pub(super) fn accepted(&mut self, destination: &str, sent: Instant) -> bool {
        self.accepted = self.accepted.max(Some(sent));
        let Some(standing) = self.standings.get_mut(destination) else { return false };
        standing.accepted = standing.accepted.max(Some(sent));
        standing.news = Instant::now();
        let forgiven = standing.failing.is_some_and(|(first, _)| first <= sent) || standing.told;
        if forgiven {
            standing.forgive();
        }
        self.sweep(Instant::now());
        forgiven
    }

    /// How long a destination may be at fault before its messages are dead.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// The whole sink is absent: what failed lately says nothing of destinations.
    pub(super) fn forgive_all(&mut self) {
        self.standings.values_mut().for_each(DestinationHealth::forgive);
    }

    /// A message failed that had first failed at `first_failure`; `told`: the sink says that it is the destination.
    pub(super) fn failed(
        &mut self,
        destination: &str,
        first_failure: Instant,
        now: Instant,
        told: bool,
        detail: &str,
    ) -> FailureContext {
        self.sweep(now);
        let (accepted, patience) = (self.accepted, self.patience);
        let standing = self.standings.entry(destination.to_owned()).or_insert_with(|| DestinationHealth::new(now));
        let since = standing.failing_since(now, patience).unwrap_or(now);
        standing.failing = Some((since, now));
        standing.told |= told;
        standing.news = now;
        detail.clone_into(&mut standing.detail);
        FailureContext {
            others_accepted: standing.accepted.is_some_and(|accepted| accepted > first_failure),
            at_fault: standing.at_fault(accepted, patience),
            given_up: standing.given_up(accepted, patience),
            sink_silent: accepted.is_none_or(|accepted| accepted < first_failure)
                && now.duration_since(first_failure) >= patience,
        }
    }

    /// Whether a newly claimed message may be sent; of those for a destination that is given up, one every five seconds.
    /// One that is `spared` is not to be dead yet, whatever is known of its destination.
    pub(super) fn gate(&mut self, destination: &str, spared: bool, now: Instant) -> Gate {
        let (patience, accepted) = (self.patience, self.accepted);
        let Some(standing) = self.standings.get_mut(destination) else { return Gate::Open };
        if standing.failing_since(now, patience).is_none() || !standing.at_fault(accepted, patience) {
            return Gate::Open;
        }
        if spared || !standing.given_up(accepted, patience) {
            return Gate::AtFault;
        }
        if standing.trial.is_none_or(|last| now.duration_since(last) >= TRIAL_INTERVAL) {
            standing.trial = Some(now);
            return Gate::Trial;
        }
        Gate::GivenUp(standing.detail.clone())
    }

    /// Whether nothing failed lately: then nobody needs to ask the gate.
    pub(super) fn all_well(&self) -> bool {
        self.standings.is_empty()
    }

    fn sweep(&mut self, now: Instant) {
        let full = self.standings.len() >= MAX_DESTINATIONS;
        if !full && self.swept.is_some_and(|last| now.duration_since(last) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        self.standings.retain(|_, standing| now.duration_since(standing.news) < MEMORY);
        if self.standings.len() >= MAX_DESTINATIONS {
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
        assert!(!all.failed("gone", start, at(start, 15), true, "no such topic").given_up);
        assert_eq!(all.gate("gone", false, at(start, 29)), Gate::AtFault, "not yet");
        assert!(all.failed("gone", start, at(start, 30), true, "no such topic").given_up);
        assert_eq!(all.gate("gone", true, at(start, 31)), Gate::AtFault, "one that is spared is no trial");
        assert_eq!(all.gate("gone", false, at(start, 31)), Gate::Trial, "the first trial");
        assert_eq!(all.gate("gone", false, at(start, 32)), Gate::GivenUp("no such topic".into()));
        assert_eq!(all.gate("gone", false, at(start, 36)), Gate::Trial, "the next trial");
        assert_eq!(all.gate("other", false, at(start, 36)), Gate::Open);
        assert!(all.accepted("gone", at(start, 36)));
        assert!(!all.accepted("gone", at(start, 36)) && !all.accepted("other", at(start, 36)), "no news");
        assert_eq!(all.gate("gone", false, at(start, 37)), Gate::Open, "one was accepted: all is well");
    }

    #[test]
    fn a_silent_destination_is_at_fault_only_while_the_sink_accepts_elsewhere() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        for seconds in [0, 20, 40, 60] {
            let standpoint = all.failed("slow", start, at(start, seconds), false, "no answer");
            assert!(!standpoint.given_up, "the sink accepts nobody");
            assert_eq!(standpoint.sink_silent, seconds >= 30, "then it is the sink that is absent");
        }
        all.accepted("other", at(start, 61));
        let standpoint = all.failed("slow", start, at(start, 62), false, "no answer");
        assert!(standpoint.given_up && !standpoint.sink_silent);
    }

    #[test]
    fn one_that_fails_now_and_then_is_not_at_fault() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        let after = |millis| start + Duration::from_millis(millis);
        assert!(!all.failed("busy", after(0), after(0), false, "nack").at_fault);
        all.accepted("other", after(10));
        assert!(!all.failed("busy", after(0), after(1900), false, "nack").at_fault, "a moment only");
        assert_eq!(all.gate("busy", false, after(1900)), Gate::Open);
        assert!(all.failed("busy", after(0), after(2000), false, "nack").at_fault);
        assert_eq!(all.gate("busy", false, after(2000)), Gate::AtFault);
    }

    #[test]
    fn time_in_which_nothing_was_tried_is_no_evidence() {
        let start = Instant::now();
        let mut all = Destinations::new(PATIENCE);
        all.failed("quiet", start, start, true, "no responders");
        all.accepted("other", at(start, 40));
        assert_eq!(all.gate("quiet", false, at(start, 45)), Gate::Open, "one failure, long ago");
        assert!(!all.failed("quiet", at(start, 50), at(start, 50), true, "no responders").given_up);

        all.failed("busy", start, at(start, 51), true, "no responders");
        all.failed("busy", start, at(start, 71), true, "no responders");
        all.forgive_all();
        assert!(!all.failed("busy", start, at(start, 91), true, "no responders").given_up, "the sink was absent");
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
        for n in 0..MAX_DESTINATIONS as u64 * 2 {
            all.failed(&n.to_string(), start, start + Duration::from_millis(n), false, "nack");
        }
        assert!(all.standings.len() <= MAX_DESTINATIONS);
    }
}
