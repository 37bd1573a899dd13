//! One producer of the client library: what it holds, whether its brokers are there, and how it ends.
//!
//! The library connects again by itself and would send later what it holds. So a producer whose brokers have all been
//! gone for a while is ended with all that it holds, and whoever publishes next makes a new one.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Statistics};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::settings::Settings;
use super::verdict;
use crate::window::Room;
use crate::{Message, link};

/// A producer, until it is ended.
pub(super) struct Producer {
    /// None only while it is dropped.
    client: Option<ThreadedProducer<Context>>,
    health: Arc<Health>,
    /// How long all brokers may be gone before it is given up.
    patience: Duration,
    /// Whether it takes messages. Held for reading while one is handed over: none is once it is ended.
    open: RwLock<bool>,
}

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Well,
    /// All brokers have been gone since then, as far as the library has told.
    Down(Instant),
    Ended,
}

/// What is known of the brokers.
struct Health {
    state: watch::Sender<State>,
    /// What the library said last of what is wrong, and whether somebody did not want us.
    last: Mutex<(String, bool)>,
}

/// What the library calls.
pub(super) struct Context {
    health: Arc<Health>,
    settings: Arc<Settings>,
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
        use RDKafkaErrorCode as Code;
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        tracing::debug!(?code, "kafka's client library: {}", self.settings.scrub(reason));
        let unwanted = matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL);
        let mut last = self.health.last.lock().unwrap_or_else(PoisonError::into_inner);
        match code {
            Code::AllBrokersDown => {
                let down = State::Down(Instant::now());
                self.health.state.send_if_modified(|state| {
                    let well = *state == State::Well;
                    *state = if well { down } else { *state };
                    well
                });
                if last.0.is_empty() {
                    last.0 = reason.to_owned();
                }
            }
            // What somebody refused explains more than the connection that was lost with it.
            _ if unwanted || !last.1 => *last = (self.settings.scrub(reason), unwanted),
            _ => {}
        }
        if code == Code::Fatal {
            self.health.state.send_replace(State::Ended);
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn stats(&self, _statistics: Statistics) {}
}

impl Health {
    fn set_well(&self) {
        if matches!(*self.state.borrow(), State::Down(_)) {
            self.state.send_if_modified(|state| {
                let down = matches!(*state, State::Down(_));
                *state = if down { State::Well } else { *state };
                down
            });
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        }
    }

    fn last(&self) -> (String, bool) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Producer {
    /// Makes one and waits until a broker answers, at most for `limit`. It connects again by itself, and is given up when
    /// all brokers have been gone for `patience`.
    pub(super) async fn connect(
        client: ClientConfig,
        settings: Arc<Settings>,
        patience: Duration,
        limit: Duration,
    ) -> Result<Producer, String> {
        let producer = Producer::make(client, settings, patience).await?;
        // Twice: the first answer comes from a broker of the URL and leads to those of the cluster. The answer of one of
        // these makes the library ask for a producer id at once; it would look after half a second otherwise.
        for _ in 0..2 {
            tokio::select! {
                answer = producer.ask(limit / 2) => answer?,
                () = producer.lost_for(Duration::ZERO) => return Err(producer.health.last().0),
            }
        }
        Ok(producer)
    }

    async fn make(client: ClientConfig, settings: Arc<Settings>, patience: Duration) -> Result<Producer, String> {
        let made = on_thread(move || {
            let last = Mutex::default();
            let health = Arc::new(Health { state: watch::Sender::new(State::Well), last });
            let context = Context { health: Arc::clone(&health), settings: Arc::clone(&settings) };
            match client.create_with_context(context) {
                Ok(client) => Ok(Producer { client: Some(client), health, patience, open: RwLock::new(true) }),
                Err(KafkaError::ClientCreation(words)) => Err(settings.scrub(&words)),
                // Which may quote a value.
                Err(_) => Err("the client library refuses its configuration".to_owned()),
            }
        });
        made.await.unwrap_or_else(|_| Err("the client library came to no end".to_owned()))
    }

    /// Hands a message over; gives the ticket back if the library does not take it, with what it says.
    pub(super) fn send(&self, message: &Message, ticket: Ticket) -> Result<(), (RDKafkaErrorCode, Box<Ticket>)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return Err((RDKafkaErrorCode::PurgeQueue, Box::new(ticket)));
        }
        let mut headers = OwnedHeaders::new_with_capacity(6 + message.headers.len());
        for (key, value) in message.all_headers() {
            headers = headers.insert(Header { key, value: Some(value.as_bytes()) });
        }
        let record = BaseRecord::with_opaque_to(&message.destination, Box::new(ticket))
            .key(message.record_key.as_ref().unwrap_or(&message.task))
            .payload(&message.payload[..])
            .headers(headers);
        self.client().send(record).map_err(|(error, record)| {
            (error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail), record.delivery_opaque)
        })
    }

    /// Asks a broker for the cluster's brokers and topics: an answer that no cache gives. Creates no topic.
    pub(super) async fn ask(&self, limit: Duration) -> Result<(), String> {
        let client = self.client().clone();
        let asked = on_thread(move || client.client().fetch_metadata(None, limit).map(drop));
        match asked.await {
            Ok(Ok(())) => {
                self.health.set_well();
                Ok(())
            }
            Ok(Err(error)) => Err(match (self.health.last().0, error.rdkafka_error_code()) {
                (words, _) if !words.is_empty() => words,
                (_, Some(code)) => verdict::words(code),
                (_, None) => "no answer that the client library knows".to_owned(),
            }),
            Err(_) => Err("the client library came to no end".to_owned()),
        }
    }

    /// Waits until all brokers have been gone for long enough, or it is ended.
    pub(super) async fn lost(&self) {
        self.lost_for(self.patience).await;
    }

    async fn lost_for(&self, patience: Duration) {
        let mut state = self.health.state.subscribe();
        loop {
            let now = *state.borrow_and_update();
            let changed = state.changed();
            // The sender lives as long as the producer does.
            match now {
                State::Ended => return,
                State::Well => drop(changed.await),
                State::Down(since) => {
                    let patience = if self.health.last().1 { Duration::ZERO } else { patience };
                    tokio::select! {
                        _ = changed => {}
                        () = tokio::time::sleep_until(since + patience) => return,
                    }
                }
            }
        }
    }

    /// What is wrong with the brokers, if anything is known to be.
    pub(super) fn trouble(&self) -> Option<String> {
        let well = *self.health.state.borrow() == State::Well;
        let (words, unwanted) = self.health.last();
        ((!well || unwanted) && !words.is_empty()).then_some(words)
    }

    fn client(&self) -> &ThreadedProducer<Context> {
        self.client.as_ref().expect("it is there until it is dropped")
    }
}

impl link::Connection for Producer {
    fn alive(&self) -> bool {
        match *self.health.state.borrow() {
            State::Well => true,
            State::Down(since) => since.elapsed() < self.patience,
            State::Ended => false,
        }
    }

    fn end(&self) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *open, false) {
            self.health.state.send_replace(State::Ended);
            let client = self.client().clone();
            // What is purged comes back as reports.
            drop(on_thread(move || purge(&client)));
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // It waits for the library's threads, which no task may do. Somebody else may still wait for an answer.
        if let Some(client) = self.client.take() {
            drop(on_thread(move || purge(&client)));
        }
    }
}

fn purge(client: &ThreadedProducer<Context>) {
    client.purge(PurgeConfig::default().queue().inflight());
}

/// Runs what blocks on a thread of its own; the runtime's would be waited for at its end.
fn on_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Nobody waits any more: what was made is dropped here.
        done.send(run()).ok();
    };
    // Without a thread the caller learns from the closed channel.
    std::thread::Builder::new().name("kafka".to_owned()).spawn(work).ok();
    result
}

/// Ends the producer if not so many messages are back in the inbox by then.
pub(super) fn end_unless_back(producer: &Arc<Producer>, inbox: Arc<Inbox>, away: usize, after: Duration) {
    let producer = Arc::clone(producer);
    drop(on_thread(move || {
        std::thread::sleep(after);
        if inbox.take().len() < away {
            link::Connection::end(&*producer);
        }
    }));
}
