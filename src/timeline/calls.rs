//! Counts and times the calls of a timeline.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::TimelineError;
use crate::clock::ClockStep;
use crate::metrics::Metrics;

string_enum! {
    /// The verbs of a timeline. Each is a method of [`Timeline`](super::Timeline) and a script with the same name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[expect(missing_docs, reason = "each is the method of that name")]
    pub enum Verb {
        Put = "put",
        Cancel = "cancel",
        Get = "get",
        Claim = "claim",
        ClaimSuspects = "claim_suspects",
        Settle = "settle",
        Extend = "extend",
        Reap = "reap",
        Glance = "glance",
        Requeue = "requeue",
        Discard = "discard",
        Browse = "browse",
        Show = "show",
        Scan = "scan",
        Upcoming = "upcoming",
        Count = "count",
        Pause = "pause",
        PauseLane = "pause_lane",
        MoveDue = "move_due",
    }
}

/// Counts calls by verb and result and times them, once it has been given the metrics.
#[derive(Default)]
pub(super) struct Calls(OnceLock<Arc<Metrics>>);

impl Calls {
    /// Sets the metrics. Only the first call has an effect.
    pub(super) fn count_in(&self, metrics: Arc<Metrics>) {
        metrics.timeline_verbs(Verb::ALL.iter().map(|verb| verb.as_str()));
        if self.0.set(metrics).is_err() {
            tracing::debug!("the calls of this timeline are counted elsewhere already");
        }
    }

    /// Counts and logs that the timeline's clock was set.
    pub(super) fn clock_stepped(&self, step: ClockStep) {
        let ClockStep { before, after } = step;
        tracing::warn!(
            %before,
            %after,
            hint = "tasks wait for the new time; keep that clock right by NTP. A machine that slept sees the same",
            "the clock of redis was set"
        );
        if let Some(metrics) = self.0.get() {
            metrics.clock_steps.inc();
        }
    }

    /// Counts a call that a node of a cluster refused because of its slot.
    pub(super) fn redirected(&self, kind: &'static str) {
        if let Some(metrics) = self.0.get() {
            metrics.redirect(kind);
        }
    }

    /// Counts that the stored timeline is lost.
    pub(super) fn timeline_lost(&self) {
        if let Some(metrics) = self.0.get() {
            metrics.timeline_lost.inc();
        }
    }

    /// Runs a call and counts it.
    pub(super) async fn count<T>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<T, TimelineError>>,
    ) -> Result<T, TimelineError> {
        let begun = Instant::now();
        let answer = call.await;
        if let Some(metrics) = self.0.get() {
            let result = answer.as_ref().map_or_else(TimelineError::as_str, |_| "ok");
            metrics.timeline_call(verb.as_str(), result, begun.elapsed().as_secs_f64());
        }
        answer
    }
}
