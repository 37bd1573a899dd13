//! One producer of librdkafka: its messages, the health of its brokers, and its end.
//!
//! librdkafka reconnects by itself and would send its messages later. Therefore a producer ends, with all its messages,
//! once its brokers have all been unreachable for a while and none answers a request. The next publish makes a new one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{MutexGuard, RwLock};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use super::context::{BrokerHealth, Inbox, KafkaContext, State, Ticket};
use super::settings::Settings;
use super::{Kafka, verdict};
use crate::native::HeaderList;
use crate::networked::Broker as _;
use crate::{Away, Fault, Message, link};

/// How long a first connection may fail: a host name can have several addresses, and librdkafka tries the next one
/// soon.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause between two checks of abandoned messages.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A producer, until it ends.
pub(crate) struct Producer {
    /// `None` only during drop.
    client: Option<ThreadedProducer<KafkaContext>>,
    health: Arc<BrokerHealth>,
    /// How long all brokers may be unreachable before the producer ends.
    patience: Duration,
    /// Held by the caller that asks whether a broker is back.
    asking: Mutex<()>,
    /// Whether it accepts messages. Held for reading while a message is handed over, so that none is handed over after
    /// the end.
    open: RwLock<bool>,
    /// Messages of publishes that were dropped.
    left: parking_lot::Mutex<Vec<DroppedPublish>>,
}

/// The messages of a dropped publish: `held` of them must have a report in `inbox` by `until`.
pub(super) struct DroppedPublish {
    pub(super) inbox: Arc<Inbox>,
    pub(super) held: usize,
    pub(super) until: Instant,
}

impl Producer {
    /// Makes a producer and waits until a broker answers, at most for `limit`. It reconnects by itself, and ends once
    /// all brokers have been unreachable for `patience`. See [`ask`](Producer::ask) for `topic`.
    pub(super) async fn connect(
        client: ClientConfig,
        settings: Arc<Settings>,
        topic: Option<String>,
        patience: Duration,
        limit: Duration,
    ) -> Result<Producer, Away> {
        let producer = Producer::make(client, settings, patience).await?;
        let deadline = Instant::now() + limit;
        // Asks twice. The first answer comes from a broker of the URL and names the brokers of the cluster. An answer
        // of one of these makes librdkafka request a producer id at once, instead of half a second later.
        for is_first in [true, false] {
            tokio::select! {
                answer = producer.ask(topic.clone(), deadline - Instant::now()) => match answer {
                    Err(away) if is_first => return Err(away),
                    _ => {}
                },
                () = producer.health.lost(FIRST_ANSWER_TIMEOUT) => {
                    return Err(producer.away().unwrap_or_else(|| "the connection was lost".to_owned().into()));
                }
            }
        }
        Ok(producer)
    }

    /// Makes a producer without brokers and drops it, to find out whether librdkafka accepts the settings together.
    pub(super) fn try_out(mut client: ClientConfig, settings: &Settings) -> Result<(), String> {
        client.remove("bootstrap.servers");
        // It would log a warning.
        client.set_log_level(RDKafkaLogLevel::Emerg);
        let made: Result<BaseProducer, KafkaError> = client.create();
        match made {
            Ok(client) => {
                drop(on_thread(move || drop(client)));
                Ok(())
            }
            Err(error) => Err(refusal(error, settings)),
        }
    }

    async fn make(client: ClientConfig, settings: Arc<Settings>, patience: Duration) -> Result<Producer, String> {
        let made = on_thread(move || {
            let health = Arc::new(BrokerHealth::new());
            let context = KafkaContext { health: Arc::clone(&health), settings: Arc::clone(&settings) };
            match client.create_with_context(context) {
                Ok(client) => Ok(Producer {
                    client: Some(client),
                    health,
                    patience,
                    asking: Mutex::new(()),
                    open: RwLock::new(true),
                    left: parking_lot::Mutex::default(),
                }),
                Err(error) => Err(refusal(error, &settings)),
            }
        });
        made.await.unwrap_or_else(|_| Err("the client library did not finish".to_owned()))
    }

    /// Hands a message over. Returns the ticket with the error if librdkafka does not take the message.
    pub(super) fn send(&self, message: &Message, ticket: Ticket) -> Result<(), (RDKafkaErrorCode, Box<Ticket>)> {
        let open = self.open.read();
        if !*open {
            return Err((RDKafkaErrorCode::PurgeQueue, Box::new(ticket)));
        }
        let mut headers = OwnedHeaders::new_with_capacity(6 + message.headers.len());
        // `check` has decoded them.
        for (key, value) in HeaderList::of(message, Kafka::KIND).unwrap_or_default() {
            headers = headers.insert(Header { key: &key, value: value.as_deref() });
        }
        for (key, value) in message.all_headers() {
            headers = headers.insert(Header { key, value: Some(value.as_bytes()) });
        }
        let mut record = BaseRecord::with_opaque_to(&message.destination, Box::new(ticket))
            .key(message.record_key.as_ref().unwrap_or(&message.task))
            .headers(headers);
        if !message.is_tombstone {
            record = record.payload(&message.payload[..]);
        }
        self.client().send(record).map_err(|(error, record)| {
            (error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail), record.delivery_opaque)
        })
    }

    /// Asks a broker for the metadata of the cluster and one topic. See [`metadata`](Producer::metadata).
    pub(super) async fn ask(&self, topic: Option<String>, limit: Duration) -> Result<(), Away> {
        self.metadata(topic, limit).await.map(drop)
    }

    /// The names of all topics that this user may write to or describe.
    pub(super) async fn topics(&self, limit: Duration) -> Result<Vec<String>, Away> {
        self.metadata(None, limit).await
    }

    /// Requests the metadata of the cluster and one topic from a broker, and returns the topics in it. librdkafka
    /// refreshes this topic for ever, so it should be one that is published to; `None` requests all topics. Creates no
    /// topic.
    async fn metadata(&self, topic: Option<String>, limit: Duration) -> Result<Vec<String>, Away> {
        let client = self.client().clone();
        let asked = on_thread(move || {
            let ask = || client.client().fetch_metadata(topic.as_deref(), limit / 2);
            // If one broker does not answer, another one may. A transport failure can also mean that no connection had
            // completed its login by then.
            let metadata = ask().or_else(|error| match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::OperationTimedOut | RDKafkaErrorCode::BrokerTransportFailure) => ask(),
                _ => Err(error),
            })?;
            Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
        });
        match asked.await {
            Ok(Ok(topics)) => {
                self.health.set_well();
                Ok(topics)
            }
            Ok(Err(error)) => Err(self.why_unanswered(&error)),
            Err(_) => Err("the client library did not finish".to_owned().into()),
        }
    }

    fn why_unanswered(&self, error: &KafkaError) -> Away {
        match (self.away(), error.rdkafka_error_code()) {
            (Some(away), _) => away,
            (None, Some(code)) => verdict::detail(code).into(),
            (None, None) => error.to_string().into(),
        }
    }

    /// Waits until the producer has ended: all brokers have been unreachable for `patience` and none answers a request.
    pub(super) async fn lost(&self, topic: Option<&str>) {
        loop {
            self.health.lost(self.patience).await;
            if !self.check_or_end(topic).await {
                return;
            }
        }
    }

    /// Whether the producer can be used. If its brokers seem unreachable for too long, it asks them, because librdkafka
    /// does not tell when they are back. Ends the producer if none answers.
    pub(super) async fn check_or_end(&self, topic: Option<&str>) -> bool {
        let _one = self.asking.lock().await;
        if self.health.overdue(self.patience) && self.ask(topic.map(str::to_owned), self.patience).await.is_err() {
            link::Connection::end(self);
        }
        link::Connection::alive(self)
    }

    /// The last error from librdkafka, if any. Other brokers may still work.
    pub(super) fn away(&self) -> Option<Away> {
        self.health.away()
    }

    /// The current trouble with the brokers, if any.
    pub(super) fn trouble(&self) -> Option<(Fault, String)> {
        self.health.trouble()
    }

    /// The outcome of messages that the producer held when it ended.
    pub(super) fn end_of(&self) -> (Fault, String) {
        self.trouble().unwrap_or_else(|| {
            let sink = self.health.state() == State::Ended(Fault::Sink);
            (if sink { Fault::Sink } else { Fault::Unclear }, "the connection was given up".to_owned())
        })
    }

    fn client(&self) -> &ThreadedProducer<KafkaContext> {
        self.client.as_ref().expect("it is there until it is dropped")
    }
}

impl link::Connection for Producer {
    /// Until it ends; see [`check_or_end`](Producer::check_or_end).
    fn alive(&self) -> bool {
        !matches!(self.health.state(), State::Ended(_))
    }

    fn end(&self) {
        let mut open = self.open.write();
        if std::mem::replace(&mut *open, false) {
            self.health.end();
            // Purged messages come back as reports.
            self.client().purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Blocks until librdkafka's threads have ended, so it must not run in a task. Other callers may still wait for
        // a report.
        if let Some(client) = self.client.take() {
            drop(on_thread(move || client.purge(PurgeConfig::default().queue().inflight())));
        }
    }
}

pub(super) fn refusal(error: KafkaError, settings: &Settings) -> String {
    match error {
        KafkaError::ClientCreation(detail) => settings.scrub(&detail),
        // The error may quote a value.
        _ => "the client library refuses its configuration".to_owned(),
    }
}

/// Runs blocking work on a new thread, because the runtime would wait for one of its own at shutdown.
pub(super) fn on_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // An error means that the caller has stopped waiting; the result is dropped here.
        done.send(run()).ok();
    };
    // Without a thread the channel closes and the caller gets an error.
    std::thread::Builder::new().name("kafka".to_owned()).spawn(work).ok();
    result
}

/// Ends the producer if messages of a dropped publish have no report in time. One thread watches all of them.
pub(super) fn end_unless_reported(producer: &Arc<Producer>, left: DroppedPublish) {
    let mut all = producer.left();
    all.push(left);
    if all.len() == 1 {
        let producer = Arc::clone(producer);
        drop(on_thread(move || while producer.awaits_what_is_left() {}));
    }
}

impl Producer {
    /// Sleeps, then returns whether messages are left that may still get a report.
    fn awaits_what_is_left(&self) -> bool {
        std::thread::sleep(STATE_CHECK_INTERVAL);
        let (mut all, now) = (self.left(), Instant::now());
        let mut late = false;
        all.retain_mut(|left| {
            left.held = left.held.saturating_sub(left.inbox.take().len());
            late |= left.held > 0 && now >= left.until;
            left.held > 0 && now < left.until
        });
        let more = !all.is_empty();
        drop(all);
        if late {
            link::Connection::end(self);
        }
        more
    }

    fn left(&self) -> MutexGuard<'_, Vec<DroppedPublish>> {
        self.left.lock()
    }
}
