//! One producer of the client library: what it holds, whether its brokers are there, and how it ends.
//!
//! The library connects again by itself and would send later what it holds. So a producer whose brokers have all been
//! gone for a while, none of which answers when asked, is ended with all that it holds, and whoever publishes next
//! makes a new one.

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

use super::context::{Health, Inbox, KafkaContext, State, Ticket};
use super::settings::Settings;
use super::verdict;
use crate::{Away, Fault, Message, link};

/// How long a first connection may be refused: a name can have more addresses than one, and the next is tried soon.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);

/// How often a thread looks for what was left behind.
const LOOK: Duration = Duration::from_millis(250);

/// A producer, until it is ended.
pub(crate) struct Producer {
    /// None only while it is dropped.
    client: Option<ThreadedProducer<KafkaContext>>,
    health: Arc<Health>,
    /// How long all brokers may be gone before it is given up.
    patience: Duration,
    /// Held by the one who asks whether a broker is back.
    asking: Mutex<()>,
    /// Whether it takes messages. Held for reading while one is handed over: none is once it is ended.
    open: RwLock<bool>,
    /// What calls left behind that nobody listens to any more.
    left: parking_lot::Mutex<Vec<Left>>,
}

/// The messages of a call that was dropped: so many are to be back in its inbox by then.
pub(super) struct Left {
    pub(super) inbox: Arc<Inbox>,
    pub(super) away: usize,
    pub(super) until: Instant,
}

impl Producer {
    /// Makes one and waits until a broker answers, at most for `limit`. It connects again by itself, and is given up
    /// when all brokers have been gone for `patience`. It is asked for `topic`, see [`ask`](Producer::ask).
    pub(super) async fn connect(
        client: ClientConfig,
        settings: Arc<Settings>,
        topic: Option<String>,
        patience: Duration,
        limit: Duration,
    ) -> Result<Producer, Away> {
        let producer = Producer::make(client, settings, patience).await?;
        // Twice: the first answer comes from a broker of the URL and leads to those of the cluster. The answer of one
        // of these makes the library ask for a producer id at once; it would look after half a second otherwise.
        for _ in 0..2 {
            tokio::select! {
                answer = producer.ask(topic.clone(), limit / 2) => answer?,
                () = producer.health.lost(FIRST_PATIENCE) => {
                    return Err(producer.away().unwrap_or_else(|| "the connection was lost".to_owned().into()));
                }
            }
        }
        Ok(producer)
    }

    /// Makes one that has nobody to connect to, and drops it: what the library says of settings that do not go
    /// together.
    pub(super) fn try_out(mut client: ClientConfig, settings: &Settings) -> Result<(), String> {
        client.remove("bootstrap.servers");
        // It would warn of that.
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
            let health = Arc::new(Health::new());
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
        made.await.unwrap_or_else(|_| Err("the client library came to no end".to_owned()))
    }

    /// Hands a message over; gives the ticket back if the library does not take it, with what it says.
    pub(super) fn send(&self, message: &Message, ticket: Ticket) -> Result<(), (RDKafkaErrorCode, Box<Ticket>)> {
        let open = self.open.read();
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

    /// Asks a broker for the cluster's brokers and one topic: an answer that no cache gives. The library asks for that
    /// topic for ever after, so it is to be one that is published to; without any it is asked for all. Creates none.
    pub(super) async fn ask(&self, topic: Option<String>, limit: Duration) -> Result<(), Away> {
        let client = self.client().clone();
        let asked = on_thread(move || {
            let ask = || client.client().fetch_metadata(topic.as_deref(), limit / 2).map(drop);
            // If one broker is silent, another may not be.
            ask().or_else(|error| match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::OperationTimedOut) => ask(),
                _ => Err(error),
            })
        });
        match asked.await {
            Ok(Ok(())) => {
                self.health.set_well();
                Ok(())
            }
            Ok(Err(error)) => Err(match (self.away(), error.rdkafka_error_code()) {
                (Some(away), _) => away,
                (None, Some(code)) => verdict::detail(code).into(),
                (None, None) => error.to_string().into(),
            }),
            Err(_) => Err("the client library came to no end".to_owned().into()),
        }
    }

    /// Waits until all brokers have been gone for long enough and none answers, or it is ended; it is ended then.
    pub(super) async fn lost(&self, topic: Option<&str>) {
        loop {
            self.health.lost(self.patience).await;
            if !self.there(topic).await {
                return;
            }
        }
    }

    /// Whether it can be used. If its brokers seem to have been gone for too long it asks: the library does not tell
    /// when they are back. Ends it if none answers.
    pub(super) async fn there(&self, topic: Option<&str>) -> bool {
        let _one = self.asking.lock().await;
        if self.health.overdue(self.patience) && self.ask(topic.map(str::to_owned), self.patience).await.is_err() {
            link::Connection::end(self);
        }
        link::Connection::alive(self)
    }

    /// What the library said last of what is wrong, if anything is; it need not be all brokers.
    pub(super) fn away(&self) -> Option<Away> {
        self.health.away()
    }

    /// What is wrong with the brokers, if anything is known to be.
    pub(super) fn trouble(&self) -> Option<(Fault, String)> {
        self.health.trouble()
    }

    /// What a message is told that the producer had when it ended.
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
    /// Until it is ended; see [`there`](Producer::there).
    fn alive(&self) -> bool {
        !matches!(self.health.state(), State::Ended(_))
    }

    fn end(&self) {
        let mut open = self.open.write();
        if std::mem::replace(&mut *open, false) {
            self.health.end();
            // What is purged comes back as reports.
            self.client().purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // It waits for the library's threads, which no task may do. Somebody else may still wait for an answer.
        if let Some(client) = self.client.take() {
            drop(on_thread(move || client.purge(PurgeConfig::default().queue().inflight())));
        }
    }
}

fn refusal(error: KafkaError, settings: &Settings) -> String {
    match error {
        KafkaError::ClientCreation(detail) => settings.scrub(&detail),
        // Which may quote a value.
        _ => "the client library refuses its configuration".to_owned(),
    }
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

/// Ends the producer if what was left behind is not back in time. One thread looks after all of that.
pub(super) fn end_unless_back(producer: &Arc<Producer>, left: Left) {
    let mut all = producer.left();
    all.push(left);
    if all.len() == 1 {
        let producer = Arc::clone(producer);
        drop(on_thread(move || while producer.awaits_what_is_left() {}));
    }
}

impl Producer {
    /// Sleeps for a while. Whether anything is left that may still come back.
    fn awaits_what_is_left(&self) -> bool {
        std::thread::sleep(LOOK);
        let (mut all, now) = (self.left(), Instant::now());
        let mut late = false;
        all.retain_mut(|left| {
            left.away = left.away.saturating_sub(left.inbox.take().len());
            late |= left.away > 0 && now >= left.until;
            left.away > 0 && now < left.until
        });
        let more = !all.is_empty();
        drop(all);
        if late {
            link::Connection::end(self);
        }
        more
    }

    fn left(&self) -> MutexGuard<'_, Vec<Left>> {
        self.left.lock()
    }
}
