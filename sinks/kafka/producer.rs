//! One producer of the client library: what it holds, whether its brokers are there, and how it ends.
//!
//! The library connects again by itself and would send later what it holds. So a producer whose brokers have all been
//! gone for a while is ended with all that it holds, and whoever publishes next makes a new one.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::oneshot;

use super::context::{Context, Health, Inbox, State, Ticket};
use super::settings::Settings;
use super::verdict;
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
                () = producer.health.lost(Duration::ZERO) => {
                    return Err(producer.trouble().unwrap_or_else(|| "the connection was lost".to_owned()));
                }
            }
        }
        Ok(producer)
    }

    async fn make(client: ClientConfig, settings: Arc<Settings>, patience: Duration) -> Result<Producer, String> {
        let made = on_thread(move || {
            let health = Arc::new(Health::new());
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
            Ok(Err(error)) => Err(match (self.health.words(), error.rdkafka_error_code()) {
                (Some(words), _) => words,
                (None, Some(code)) => verdict::words(code),
                (None, None) => error.to_string(),
            }),
            Err(_) => Err("the client library came to no end".to_owned()),
        }
    }

    /// Waits until all brokers have been gone for long enough, or it is ended.
    pub(super) async fn lost(&self) {
        self.health.lost(self.patience).await;
    }

    /// What is wrong with the brokers, if anything is known to be.
    pub(super) fn trouble(&self) -> Option<String> {
        self.health.trouble()
    }

    fn client(&self) -> &ThreadedProducer<Context> {
        self.client.as_ref().expect("it is there until it is dropped")
    }
}

impl link::Connection for Producer {
    fn alive(&self) -> bool {
        match self.health.state() {
            State::Well => true,
            State::Down(since) => since.elapsed() < self.patience,
            State::Ended => false,
        }
    }

    fn end(&self) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *open, false) {
            self.health.end();
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
