//! The callbacks of librdkafka. Delivery reports go to the inbox of their publish, errors update the health of the
//! brokers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rdkafka::ClientContext;
use rdkafka::Statistics;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::settings::Settings;
use crate::window::WindowPermit;
use crate::{Away, Cause, Fault};

/// Collects the delivery reports of one publish.
#[derive(Default)]
pub(super) struct Inbox {
    reports: Mutex<Vec<Report>>,
    arrived: Notify,
}

/// The delivery report of one message: its index in the batch and the error code.
pub(super) type Report = (usize, RDKafkaErrorCode);

/// Travels with a message through librdkafka. It holds the message's permit of the window until librdkafka lets go of the
/// message, even if the publish has ended.
pub(super) struct Ticket {
    pub(super) inbox: Arc<Inbox>,
    pub(super) index: usize,
    pub(super) permit: WindowPermit,
}

/// Whether the brokers are reachable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Well,
    /// All brokers have been unreachable since this time, according to librdkafka.
    Down(Instant),
    /// This producer has ended, with the brokers at fault or for an unclear reason.
    Ended(Fault),
}

/// The health of the brokers.
pub(super) struct BrokerHealth {
    state: watch::Sender<State>,
    last_error: Mutex<LastError>,
    /// Whether there are errors to forget once a broker answers.
    troubled: AtomicBool,
    /// Whether a consumer got partitions since this was last read.
    pub(super) is_assigned: AtomicBool,
    /// The partitions that a consumer has.
    pub(super) partitions: Mutex<BTreeSet<i32>>,
}

/// The last error from librdkafka.
#[derive(Clone, Default)]
struct LastError {
    detail: String,
    /// Set if a broker refused the login, or after an error of TLS.
    unwanted: Option<Cause>,
}

/// The callbacks of a producer or a consumer.
pub(super) struct KafkaContext {
    pub(super) health: Arc<BrokerHealth>,
    pub(super) settings: Arc<Settings>,
}

impl Inbox {
    /// Removes and returns the reports.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports.lock())
    }

    /// Waits until a report arrives.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn put(&self, report: Report) {
        let mut reports = self.reports.lock();
        reports.push(report);
        // One wake-up for all reports until the receiver runs.
        if reports.len() == 1 {
            self.arrived.notify_one();
        }
    }
}

impl ProducerContext for KafkaContext {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let code = match result {
            Ok(_) => {
                self.health.set_well();
                RDKafkaErrorCode::NoError
            }
            Err((error, _)) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
        };
        let Ticket { inbox, index, permit } = *ticket;
        drop(permit);
        inbox.put((index, code));
    }
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let text = self.settings.scrub(text);
        // All other errors are reported by the breaker, once instead of every second.
        if facility == "CONFWARN" && self.settings.is_new(&text) {
            tracing::warn!(facility, detail = text, "kafka's client library warns");
        } else {
            tracing::debug!(facility, severity = ?level, detail = text, "kafka's client library");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        let detail = self.settings.scrub(reason);
        tracing::debug!(?code, detail, "kafka's client library reports an error");
        self.health.hear(code, detail);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn stats(&self, _statistics: Statistics) {}
}

impl BrokerHealth {
    pub(super) fn new() -> BrokerHealth {
        BrokerHealth {
            state: watch::Sender::new(State::Well),
            last_error: Mutex::default(),
            troubled: AtomicBool::new(false),
            is_assigned: AtomicBool::new(false),
            partitions: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Notes an error from librdkafka.
    fn hear(&self, code: RDKafkaErrorCode, detail: String) {
        use RDKafkaErrorCode as Code;
        let unwanted = match code {
            Code::Authentication | Code::SaslAuthenticationFailed => Some(Cause::LogIn),
            // There is one code for all TLS errors; the text of OpenSSL tells them apart.
            Code::SSL if detail.contains("certificate verify failed") => Some(Cause::Untrusted),
            Code::SSL => Some(Cause::Unreachable),
            _ => None,
        };
        let mut last = self.last_error();
        // Keep the most useful error: a refusal explains more than the lost connection after it, and that explains more
        // than `AllBrokersDown`.
        if unwanted.is_some() || last.detail.is_empty() || !(last.unwanted.is_some() || code == Code::AllBrokersDown) {
            *last = LastError { detail, unwanted };
        }
        drop(last);
        match code {
            Code::AllBrokersDown => self.change(|state| state == State::Well, State::Down(Instant::now())),
            Code::Fatal => self.change(|state| !matches!(state, State::Ended(_)), State::Ended(Fault::Sink)),
            _ => {}
        }
        // Set last; otherwise an error that arrives while a broker answers would never be forgotten.
        self.troubled.store(true, Ordering::SeqCst);
    }

    /// A broker has answered.
    pub(super) fn set_well(&self) {
        if self.troubled.load(Ordering::Relaxed) && self.troubled.swap(false, Ordering::SeqCst) {
            *self.last_error() = LastError::default();
            self.change(|state| matches!(state, State::Down(_)), State::Well);
        }
    }

    /// Ends the producer. The brokers are at fault only if all of them are unreachable; otherwise older errors are no
    /// reason.
    pub(super) fn end(&self) {
        if self.state() == State::Well {
            *self.last_error() = LastError::default();
        }
        self.change(|state| state == State::Well, State::Ended(Fault::Unclear));
        self.change(|state| matches!(state, State::Down(_)), State::Ended(Fault::Sink));
    }

    /// Whether all brokers have been unreachable for `patience`, or one refused the login and no other is left.
    pub(super) fn overdue(&self, patience: Duration) -> bool {
        matches!(self.state(), State::Down(since) if since.elapsed() >= self.patience(patience))
    }

    fn patience(&self, patience: Duration) -> Duration {
        if self.last_error().unwanted.is_some() { Duration::ZERO } else { patience }
    }

    /// Waits until [`overdue`](BrokerHealth::overdue) or until the producer has ended.
    pub(super) async fn lost(&self, patience: Duration) {
        let mut state = self.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            let changed = state.changed();
            // The sender lives as long as `self`.
            match now {
                State::Ended(_) => return,
                State::Well => drop(changed.await),
                State::Down(since) => {
                    tokio::select! {
                        biased;
                        _ = changed => {}
                        () = tokio::time::sleep_until(since + self.patience(patience)) => return,
                    }
                }
            }
        }
    }

    /// The current trouble, if any: all brokers are unreachable, one refused the login, or there was an error of TLS.
    pub(super) fn trouble(&self) -> Option<(Fault, String)> {
        let LastError { detail, unwanted } = self.last_error().clone();
        let fault = match self.state() {
            State::Down(_) | State::Ended(Fault::Sink) => Fault::Sink,
            State::Well | State::Ended(_) if unwanted.is_some() => Fault::Unclear,
            State::Well | State::Ended(_) => return None,
        };
        (!detail.is_empty()).then_some((fault, detail))
    }

    /// The last error from librdkafka, if any. Other brokers may still work.
    pub(super) fn away(&self) -> Option<Away> {
        let LastError { detail, unwanted } = self.last_error().clone();
        (!detail.is_empty()).then(|| Away::new(unwanted.unwrap_or(Cause::Unreachable), detail))
    }

    fn change(&self, from: impl Fn(State) -> bool, to: State) {
        self.state.send_if_modified(|state| {
            let changes = from(*state);
            *state = if changes { to } else { *state };
            changes
        });
    }

    fn last_error(&self) -> MutexGuard<'_, LastError> {
        self.last_error.lock()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use rdkafka::types::RDKafkaErrorCode as Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn brokers_count_as_lost_only_after_all_were_down_for_the_patience() {
        let (health, patience) = (BrokerHealth::new(), Duration::from_secs(1));
        health.hear(Code::BrokerTransportFailure, "connection refused".to_owned());
        let away = Away::new(Cause::Unreachable, "connection refused");
        assert_eq!((health.trouble(), health.away()), (None, Some(away)));
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        assert_eq!(health.trouble(), Some((Fault::Sink, "connection refused".to_owned())));
        let mut lost = Box::pin(health.lost(patience));
        tokio::time::advance(patience / 2).await;
        assert!(lost.as_mut().now_or_never().is_none());
        health.set_well();
        tokio::time::advance(patience).await;
        assert!(lost.as_mut().now_or_never().is_none());
        assert_eq!((health.trouble(), health.away()), (None, None));
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        tokio::time::advance(patience).await;
        assert!(lost.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_login_or_a_fatal_error_ends_the_wait_for_the_brokers_at_once() {
        let health = BrokerHealth::new();
        health.hear(Code::Authentication, "invalid password".to_owned());
        health.hear(Code::BrokerTransportFailure, "disconnected".to_owned());
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        assert!(health.lost(Duration::from_secs(1)).now_or_never().is_some());
        assert!(health.overdue(Duration::from_secs(1)));
        assert_eq!(health.trouble(), Some((Fault::Sink, "invalid password".to_owned())));
        assert_eq!(health.away(), Some(Away::new(Cause::LogIn, "invalid password")));
        let health = BrokerHealth::new();
        health.hear(Code::Fatal, "out of order".to_owned());
        assert_eq!(health.trouble(), Some((Fault::Sink, "out of order".to_owned())));
        health.set_well();
        assert!(health.state() == State::Ended(Fault::Sink));
    }

    #[tokio::test(start_paused = true)]
    async fn kafka_is_at_fault_only_if_all_brokers_are_down_at_the_end() {
        let health = BrokerHealth::new();
        health.hear(Code::BrokerTransportFailure, "connection refused".to_owned());
        health.end();
        assert!(health.state() == State::Ended(Fault::Unclear) && health.trouble().is_none());
        let health = BrokerHealth::new();
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        assert!(!health.overdue(Duration::from_secs(1)));
        health.end();
        assert_eq!(health.trouble(), Some((Fault::Sink, "1/1 brokers are down".to_owned())));
        let health = BrokerHealth::new();
        health.hear(Code::SSL, "certificate of one of three".to_owned());
        assert_eq!(health.trouble(), Some((Fault::Unclear, "certificate of one of three".to_owned())));
        health.hear(Code::SSL, "ssl3_get_server_certificate: certificate verify failed".to_owned());
        assert_eq!(health.away().map(|away| away.cause), Some(Cause::Untrusted));
    }
}
