//! Probes each sink: at the start, while its breaker is open, and after a whole batch without an answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::clock::Backoff;
use crate::engine::breaker::BreakerState;
use crate::engine::context::{Context, SinkContext};
use crate::engine::event_log::{LOG_PAUSE, LineBudget};
use crate::engine::state;
use crate::engine::throttle::Throttle;

/// The first pause between probes.
const MIN_PROBE_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause between probes.
const MAX_PROBE_PAUSE: Duration = Duration::from_secs(5);

/// Timeout of the probe after a batch without an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A sink that answers none of the messages under way for this long is logged.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);

/// How often a sink is looked at for that.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Probes a sink while its breaker is open, and when the breaker asks for it. Ends with the engine.
pub(super) async fn run(context: Arc<Context>, sink: Arc<SinkContext>) {
    let probing = async {
        first_probe(&sink).await;
        let mut changes = sink.breaker.state.subscribe();
        // Whether the log already says that the sink answers probes, since it became unavailable.
        let mut logged = false;
        let mut outage = None;
        let silences = Throttle::default();
        loop {
            let state = changes.borrow_and_update().clone();
            match state {
                BreakerState::Open { detail, failures } => {
                    let outage = outage.get_or_insert_with(|| Outage::new(&detail));
                    logged &= failures > 0;
                    logged |= probe(&sink, &detail, failures, logged).await;
                    outage.report(&context, &sink);
                }
                state => {
                    if state == BreakerState::Closed {
                        outage = None;
                    }
                    tokio::select! {
                        changed = changes.changed() => if changed.is_err() { return },
                        () = sink.breaker.probe_request.notified() => examine(&sink).await,
                        () = tokio::time::sleep(SILENCE_CHECK_INTERVAL) => report_silence(&sink, &silences),
                    }
                }
            }
        }
    };
    tokio::select! {
        () = probing => {}
        () = context.closed.cancelled() => {}
    }
}

/// A time in which the sink is unavailable.
struct Outage {
    since: Instant,
    /// The cause that the log names.
    logged: String,
    /// Limits log lines about other causes.
    causes: LineBudget,
    /// Limits log lines that repeat it.
    log: Throttle,
}

impl Outage {
    fn new(detail: &str) -> Outage {
        let log = Throttle::default();
        // Its beginning is logged elsewhere.
        log.pause(LOG_PAUSE);
        Outage { since: Instant::now(), logged: detail.to_owned(), causes: LineBudget::default(), log }
    }

    /// Logs that the sink is still unavailable and how late its tasks are by now: once a minute, and if the cause is
    /// another one.
    fn report(&mut self, context: &Context, sink: &SinkContext) {
        let BreakerState::Open { detail, .. } = sink.breaker.state() else { return };
        let is_other = cause(&detail) != cause(&self.logged) && self.causes.add(Instant::now()).is_some();
        if !is_other && !self.log.passes(LOG_PAUSE) {
            return;
        }
        detail.clone_into(&mut self.logged);
        let (oldest_due, overdue) = state::lateness(context, sink);
        let (outage_s, oldest_due_s) = (self.since.elapsed().as_secs(), oldest_due.as_secs());
        warn!(sink = sink.name, outage_s, overdue, oldest_due_s, detail, "the sink is still unavailable");
    }
}

/// The cause in an error text. A publish and a probe name the sink's address before it, in different sentences.
fn cause(detail: &str) -> &str {
    detail.split_once("`: ").map_or(detail, |(_, cause)| cause)
}

/// The first probe, at the start and without a pause.
async fn first_probe(sink: &SinkContext) {
    match sink.sink.check().await {
        Ok(()) => sink.breaker.first_probe_succeeded(),
        Err(error) => {
            warn!(sink = sink.name, detail = %error, "the sink is unavailable; its lanes are not claimed until it answers");
            sink.breaker.probed(Err(error.to_string()));
        }
    }
}

/// Probes an unavailable sink once, after the pause. Returns whether it answered. Only the first answer of an outage is
/// logged, because a sink that answers probes but no messages is probed again and again.
async fn probe(sink: &SinkContext, detail: &str, failures: u32, logged: bool) -> bool {
    if failures == 0 {
        warn!(sink = sink.name, detail, "the sink is unavailable; its lanes are not claimed until it answers");
    }
    tokio::time::sleep(backoff(failures, rand::random())).await;
    let result = sink.sink.check().await.map_err(|error| error.to_string());
    match &result {
        Ok(()) if logged => debug!(sink = sink.name, "the sink answers a probe again; trying one more batch"),
        Ok(()) => info!(sink = sink.name, "the sink answers a probe; trying one batch"),
        Err(detail) => debug!(sink = sink.name, detail, "the sink is still unavailable"),
    }
    let answers = result.is_ok();
    sink.breaker.probed(result);
    answers
}

/// Logs that the sink is silent, once a minute. Only after `answer_timeout` the messages count as unanswered.
fn report_silence(sink: &SinkContext, log: &Throttle) {
    let silent = sink.unanswered_for().filter(|silent| *silent >= SILENCE);
    if let Some(silent) = silent.filter(|_| log.passes(LOG_PAUSE)) {
        let (unanswered_s, answer_timeout) = (silent.as_secs(), sink.sink.answer_timeout());
        warn!(sink = sink.name, unanswered_s, ?answer_timeout, "the sink answers none of the messages under way");
    }
}

/// Probes a sink after a whole batch without an answer.
async fn examine(sink: &SinkContext) {
    let detail = match tokio::time::timeout(PROBE_TIMEOUT, sink.sink.check()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("neither messages nor a probe of {PROBE_TIMEOUT:?} were answered"),
    };
    sink.trip(&detail);
}

/// The pause before the next probe: doubles from 200 ms to 5 s, and `random` (0 to 1) takes off up to half.
fn backoff(failures: u32, random: f64) -> Duration {
    Backoff::new(MIN_PROBE_PAUSE, MAX_PROBE_PAUSE).after(failures).mul_f64(1.0 - random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_waits_double_up_to_5_s_and_jitter_shortens_them_by_half_at_most() {
        assert_eq!(backoff(0, 0.0), Duration::from_millis(200));
        assert_eq!(backoff(3, 0.0), Duration::from_millis(1600));
        assert_eq!(backoff(40, 0.0), MAX_PROBE_PAUSE);
        assert_eq!(backoff(40, 1.0), MAX_PROBE_PAUSE / 2);
    }
}
