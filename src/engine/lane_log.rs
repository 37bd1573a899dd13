//! What the log says of one lane. Events that can come a million at once are counted (see `event_log`).

use std::time::Duration;

use punctual_sinks::{Fault, Trouble};
use tokio::time::Instant;
use tracing::{error, warn};

use crate::engine::claiming::judge::Reason;
use crate::engine::context::LaneContext;
use crate::engine::destinations::Health;
use crate::engine::event_log::{Deaths, LOG_PAUSE};

impl LaneContext {
    /// Logs a death: the first one for each reason and destination at once, the others each minute with their number.
    pub(super) fn log_death(&self, reason: Reason, destination: &str, detail: &str) {
        if let Some(deaths) = self.deaths.lock().add(reason, destination, detail, Instant::now()) {
            self.log_deaths(&deaths);
        }
    }

    fn log_deaths(&self, deaths: &Deaths) {
        let lane = self.lane.as_str();
        let Deaths { reason, count, destinations, named, detail } = deaths;
        let reason = reason.as_str();
        error!(
            lane,
            reason,
            destination = named,
            destinations,
            deaths = count,
            detail,
            hint = format!("once the cause is mended: `punctual dead requeue --lane {lane} --reason '{reason}'`"),
            "occurrences are dead; they are not retried"
        );
    }

    /// Logs that messages fail at a destination, that it turned at fault or that it is given up. Callers can make up names,
    /// so further ones in a minute are counted.
    pub(super) fn log_destination(&self, destination: &str, health: Health, patience: Duration, trouble: &Trouble) {
        let (lane, sink, detail) = (self.lane.as_str(), &*self.sink.name, trouble.detail.as_str());
        let log = match health {
            Health::GivenUp => &self.sink.given_up_log,
            Health::AtFault => &self.sink.at_fault_log,
            Health::Failing | Health::Well => &self.sink.failing_log,
        };
        let others = match log.lock().add(Instant::now()) {
            Some(others) => others,
            None => return,
        };
        let makes_it_refuse = matches!(trouble.fault, Fault::Refusing | Fault::Unavailable);
        let waits = makes_it_refuse || self.waits_forever && health < Health::GivenUp;
        if waits {
            warn!(
                sink,
                lane, destination, detail, others, "destination refuses messages; they wait until it accepts one"
            );
        } else if health == Health::GivenUp {
            let hint = "once it is repaired, `punctual dead requeue` with reason `destination` publishes them";
            warn!(
                sink,
                lane,
                destination,
                detail,
                others,
                lane_waits_forever = self.waits_forever,
                hint,
                "destination is given up; from now on its messages are dead at once, but for one trial every 5 s"
            );
        } else if health == Health::Failing {
            let hint = "once another destination accepts messages, the log says whether this one is at fault";
            warn!(
                sink,
                lane,
                destination,
                detail,
                others,
                hint,
                "messages keep failing at a destination, and no other one has accepted any meanwhile"
            );
        } else {
            warn!(
                sink,
                lane,
                destination,
                detail,
                ?patience,
                others,
                "destination is at fault; unless it accepts a message, its messages are dead after `patience`"
            );
        }
    }

    /// Logs that occurrences were passed over by their own catch-up, at most once a minute.
    pub(super) fn log_passed_over(&self, occurrences: u64) {
        let counted = self.passed_over.lock().add(occurrences, Instant::now());
        self.warn_passed_over(counted);
    }

    fn warn_passed_over(&self, occurrences: Option<u64>) {
        if let Some(occurrences) = occurrences {
            let hint = "they were overdue by more than `claim.grace`; `catch_up: all` publishes all of them";
            warn!(lane = self.lane.as_str(), occurrences, hint, "occurrences were passed over by their catch-up");
        }
    }

    /// Logs that dead occurrences were dropped because the lane has too many, at most once a minute.
    pub(super) fn log_dropped(&self, occurrences: u64) {
        let counted = self.dropped.lock().add(occurrences, Instant::now());
        self.error_dropped(counted);
    }

    fn error_dropped(&self, occurrences: Option<u64>) {
        if let Some(occurrences) = occurrences {
            let hint = "raise `dead.cap` and `dead.cap_bytes`, or requeue or discard the dead of this lane";
            error!(
                lane = self.lane.as_str(),
                occurrences, hint, "the oldest dead occurrences were dropped; they are lost"
            );
        }
    }

    /// Logs what was counted since the last lines, if a minute is over, or `at_once`.
    pub(super) fn log_counted(&self, at_once: bool) {
        let now = Instant::now();
        let deaths = self.deaths.lock().take_unlogged(now, at_once);
        deaths.iter().for_each(|deaths| self.log_deaths(deaths));
        let passed_over = self.passed_over.lock().take_count(now, at_once);
        self.warn_passed_over(passed_over);
        let dropped = self.dropped.lock().take_count(now, at_once);
        self.error_dropped(dropped);
    }

    /// Counts a copy, and logs a failed one at most once a minute.
    pub(super) fn count_copy(&self, copied: Result<(), &str>) {
        let Err(detail) = copied else {
            self.metrics.dead_copied.inc();
            return;
        };
        self.metrics.dead_not_copied.inc();
        if self.copy_log.passes(LOG_PAUSE) {
            let (lane, destination) = (self.lane.as_str(), self.dead_destination.as_deref());
            warn!(
                lane,
                destination, detail, "dead-letter destination refuses copies; recording the dead without a copy"
            );
        }
    }
}
