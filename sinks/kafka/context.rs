//! What the client library calls: delivery reports go to the inbox of their call, errors to what is known of the brokers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
use crate::window::Room;

/// Where the answers to one call's messages go.
#[derive(Default)]
pub(super) struct Inbox {
    reports: Mutex<Vec<Report>>,
    arrived: Notify,
}

/// The delivery report of one message: index into the batch, and what was said.
pub(super) type Report = (usize, RDKafkaErrorCode);

/// What travels with a message through the library. It keeps the message's room in the window for as long as that holds
/// it, whoever still waits for the answer.
pub(super) struct Ticket {
    pub(super) inbox: Arc<Inbox>,
    pub(super) index: usize,
    pub(super) room: Room,
}

/// Whether the brokers are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Well,
    /// All have been gone since then, as far as the library has told.
    Down(Instant),
    /// They are no business of this producer any more.
    Ended,
}

/// What is known of the brokers.
pub(super) struct Health {
    state: watch::Sender<State>,
    said: Mutex<Said>,
    /// Whether there is something to forget once all is well.
    troubled: AtomicBool,
}

/// What the library said last of what is wrong.
#[derive(Clone, Default)]
struct Said {
    words: String,
    /// Whether somebody did not want us: a log-in or a certificate was refused.
    unwanted: bool,
}

/// What the library calls.
pub(super) struct Context {
    pub(super) health: Arc<Health>,
    pub(super) settings: Arc<Settings>,
}

impl Inbox {
    /// What has come since the last time.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something has come.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn put(&self, report: Report) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.push(report);
        // One wake-up for as many as have come when it takes effect.
        if reports.len() == 1 {
            self.arrived.notify_one();
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let code = match result {
            Ok(_) => {
                self.health.set_well();
                RDKafkaErrorCode::NoError
            }
            Err((error, _)) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown),
        };
        let Ticket { inbox, index, room } = *ticket;
        drop(room);
        inbox.put((index, code));
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let text = self.settings.scrub(text);
        // Of the rest the breaker tells, once and not every second.
        if facility == "CONFWARN" {
            tracing::warn!(facility, "kafka's client library: {text}");
        } else {
            tracing::debug!(facility, ?level, "kafka's client library: {text}");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        let words = self.settings.scrub(reason);
        tracing::debug!(?code, "kafka's client library: {words}");
        self.health.hear(code, words);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn stats(&self, _statistics: Statistics) {}
}

impl Health {
    pub(super) fn new() -> Health {
        Health { state: watch::Sender::new(State::Well), said: Mutex::default(), troubled: AtomicBool::new(false) }
    }

    pub(super) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Takes down what the library says is wrong.
    fn hear(&self, code: RDKafkaErrorCode, words: String) {
        use RDKafkaErrorCode as Code;
        self.troubled.store(true, Ordering::SeqCst);
        let unwanted = matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL);
        let mut said = self.said();
        // What somebody refused explains more than the connection that was lost with it, and that more than the sum.
        if unwanted || said.words.is_empty() || !(said.unwanted || code == Code::AllBrokersDown) {
            *said = Said { words, unwanted };
        }
        drop(said);
        match code {
            Code::AllBrokersDown => self.change(|state| state == State::Well, State::Down(Instant::now())),
            Code::Fatal => self.end(),
            _ => {}
        }
    }

    /// A broker has answered.
    pub(super) fn set_well(&self) {
        if self.troubled.load(Ordering::Relaxed) && self.troubled.swap(false, Ordering::SeqCst) {
            *self.said() = Said::default();
            self.change(|state| matches!(state, State::Down(_)), State::Well);
        }
    }

    pub(super) fn end(&self) {
        self.state.send_replace(State::Ended);
    }

    /// Waits until all brokers have been gone for so long, or one did not want us and none is left, or it is ended.
    pub(super) async fn lost(&self, patience: Duration) {
        let mut state = self.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            let changed = state.changed();
            // The sender lives as long as this does.
            match now {
                State::Ended => return,
                State::Well => drop(changed.await),
                State::Down(since) => {
                    let patience = if self.said().unwanted { Duration::ZERO } else { patience };
                    tokio::select! {
                        biased;
                        _ = changed => {}
                        () = tokio::time::sleep_until(since + patience) => return,
                    }
                }
            }
        }
    }

    /// What is wrong with the brokers, if anything is known to be.
    pub(super) fn trouble(&self) -> Option<String> {
        let Said { words, unwanted } = self.said().clone();
        ((self.state() != State::Well || unwanted) && !words.is_empty()).then_some(words)
    }

    /// What the library said last of what is wrong, if anything is; it need not be all brokers.
    pub(super) fn words(&self) -> Option<String> {
        let words = self.said().words.clone();
        (!words.is_empty()).then_some(words)
    }

    fn change(&self, from: impl Fn(State) -> bool, to: State) {
        self.state.send_if_modified(|state| {
            let changes = from(*state);
            *state = if changes { to } else { *state };
            changes
        });
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use rdkafka::types::RDKafkaErrorCode as Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_brokers_may_be_gone_for_a_while_and_be_back() {
        let (health, patience) = (Health::new(), Duration::from_secs(1));
        health.hear(Code::BrokerTransportFailure, "connection refused".to_owned());
        assert_eq!((health.trouble(), health.words().as_deref()), (None, Some("connection refused")));
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        assert_eq!(health.trouble().as_deref(), Some("connection refused"));
        let mut lost = Box::pin(health.lost(patience));
        tokio::time::advance(patience / 2).await;
        assert!(lost.as_mut().now_or_never().is_none());
        health.set_well();
        tokio::time::advance(patience).await;
        assert!(lost.as_mut().now_or_never().is_none());
        assert_eq!((health.trouble(), health.words()), (None, None));
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        tokio::time::advance(patience).await;
        assert!(lost.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_one_who_does_not_want_us() {
        let health = Health::new();
        health.hear(Code::Authentication, "invalid password".to_owned());
        health.hear(Code::BrokerTransportFailure, "disconnected".to_owned());
        health.hear(Code::AllBrokersDown, "1/1 brokers are down".to_owned());
        assert!(health.lost(Duration::from_secs(1)).now_or_never().is_some());
        assert_eq!(health.trouble().as_deref(), Some("invalid password"));
        let health = Health::new();
        health.hear(Code::Fatal, "out of order".to_owned());
        assert!(health.state() == State::Ended && health.trouble().as_deref() == Some("out of order"));
        health.set_well();
        assert!(health.state() == State::Ended);
    }
}
