//! The consumer: reads everything in the sink with the sink's own client library during the campaign.
mod kafka;
pub(super) use self::kafka::client as kafka_client;
mod nats;
pub(in crate::verify) use self::nats::stream_name;
mod rabbitmq;
pub(super) use self::rabbitmq::address as rabbitmq_address;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::by_message::BY_MESSAGE;
use super::clock::Clock;
use super::ledger::{self, Ledger, Message, name_in};
use crate::verify::{Kind, Place};

/// The headers of a message that are read.
struct ReadHeaders<'a> {
    key: Option<&'a str>,
    trace: Option<&'a str>,
    /// Why a door rejected the message.
    rejected: Option<&'a str>,
}

/// When the first and the last check began that found no more messages.
#[derive(Clone, Copy)]
struct QuietChecks {
    first_began: Instant,
    last_began: Instant,
}

impl QuietChecks {
    fn show(self, time: Duration, since: Instant) -> bool {
        self.first_began.elapsed() >= time && self.last_began >= since
    }
}

/// Receives the messages that were read.
pub(super) struct Inlet {
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) clock: Arc<Clock>,
    /// All destinations of tasks.
    destinations: Vec<String>,
    /// The destination for rejected messages, if there is a door.
    rejected: Option<String>,
    /// Whether the sink stamps messages with the timeline's own time.
    stamped: bool,
    /// The checks that found no more messages, since the last message.
    quiet: Mutex<Option<QuietChecks>>,
    stop: CancellationToken,
}

impl Inlet {
    pub(super) fn new(ledger: Arc<Mutex<Ledger>>, clock: Arc<Clock>, place: &Place, stop: CancellationToken) -> Inlet {
        let destinations = place.destinations.clone();
        let rejected = place.door.as_ref().map(|door| door.rejected.clone());
        Inlet { ledger, clock, destinations, rejected, stamped: place.same_clock, quiet: Mutex::new(None), stop }
    }

    /// A message was read from a destination; `stamp` is when the sink accepted it, in ms, if it says so.
    fn take(&self, destination: &str, headers: ReadHeaders<'_>, payload: &[u8], stamp: Option<i64>, again: bool) {
        let stamp = stamp.filter(|_| self.stamped).unwrap_or_else(|| self.clock.at_latest());
        let key = headers.key.unwrap_or_default().to_owned();
        let (trace, rejected) = (headers.trace.map(str::to_owned), headers.rejected.map(str::to_owned));
        let payload = String::from_utf8_lossy(payload).into_owned();
        *self.quiet.lock() = None;
        let message = Message { key, payload, trace, rejected, stamp, again };
        let mut ledger = self.ledger.lock();
        let is_rejected = self.rejected.as_deref() == Some(destination);
        let named = ledger::destination(&message.payload, &self.destinations);
        if !is_rejected && destination != named {
            let evidence = format!("in `{destination}`, for `{named}`: {:.200}", message.payload);
            ledger.violations.add("wrong_destination", &message.key, evidence);
        }
        match name_in(&message.payload).filter(|name| is_rejected || name.starts_with(BY_MESSAGE)) {
            Some(name) => ledger.saw_by_message(name, &message, is_rejected),
            None => ledger.saw(&message),
        }
    }

    /// A check of the sink that began at `began` found no more messages. It says nothing about messages that came
    /// meanwhile.
    fn nothing_more(&self, began: Instant) {
        let mut quiet = self.quiet.lock();
        let first_began = quiet.map_or(began, |quiet| quiet.first_began);
        *quiet = Some(QuietChecks { first_began, last_began: began });
    }

    /// The sink did not answer, so there may be more messages.
    fn unknown(&self) {
        *self.quiet.lock() = None;
    }

    /// Runs a reader until it is stopped or fails; returns whether it should start again.
    async fn goes_on<E: std::fmt::Display>(&self, reading: impl Future<Output = Result<(), E>>) -> bool {
        let outcome = tokio::select! {
            () = self.stop.cancelled() => return false,
            outcome = reading => outcome,
        };
        self.unknown();
        if let Err(error) = outcome {
            tracing::debug!(%error, "the sink cannot be read");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        true
    }

    /// Whether the sink has had no more messages for `time`, and a check that found none began after `since`.
    pub(super) fn is_quiet(&self, time: Duration, since: Instant) -> bool {
        self.quiet.lock().is_some_and(|quiet| quiet.show(time, since))
    }
}

/// Creates the destinations, and reads them until it is stopped.
pub(super) async fn attach(place: &Place, inlet: Arc<Inlet>) -> anyhow::Result<()> {
    match place.kind {
        Kind::Redis => redis::attach(place, inlet).await,
        Kind::Kafka => kafka::attach(place, inlet).await,
        Kind::Nats => nats::attach(place, inlet).await,
        Kind::RabbitMq => rabbitmq::attach(place, inlet).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timeline was empty after the check had begun, so a message may have come that the check did not see.
    #[tokio::test(start_paused = true)]
    async fn a_check_that_began_before_the_timeline_was_empty_shows_nothing() {
        let (second, first_began) = (Duration::from_secs(1), Instant::now());
        tokio::time::advance(second).await;
        let empty_since = Instant::now();
        tokio::time::advance(second * 9).await;
        let checks = |last_began| QuietChecks { first_began, last_began };
        assert!(!checks(first_began).show(second * 2, empty_since));
        assert!(checks(empty_since + second).show(second * 2, empty_since));
        assert!(!checks(empty_since + second).show(second * 11, empty_since));
    }
}
