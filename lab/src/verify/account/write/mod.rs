//! Sends messages to a door with the broker's own client library: each once, whatever becomes of it.
mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;

use crate::verify::{Door, Kind, Place};

/// How long a broker may take to confirm a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a broker may take to create what a door reads.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// A message for a door.
#[derive(Clone, Debug)]
pub(in crate::verify) struct Outgoing {
    /// The key of the record in Kafka, and the `message_id` in RabbitMQ; the other brokers do not get it.
    pub(super) name: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) payload: String,
    /// The time that the message names, if it is the producer that sets one; in ms.
    pub(super) now: i64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug)]
pub(in crate::verify) struct Sent {
    /// Whether the broker has confirmed it; otherwise it may have it all the same.
    pub(super) is_accepted: bool,
    /// The time from which the door counts, in ms, if it is known here.
    pub(super) time: Option<i64>,
}

/// A connection of users to the source of a door.
#[async_trait]
pub(in crate::verify) trait Writer: Send + Sync {
    /// Sends a message once. Whether the broker has it is unknown after an error.
    async fn send(&self, message: Outgoing) -> Result<Sent>;
}

/// Creates the source of the campaign's door, and connects to it.
pub(in crate::verify) async fn open(place: &Place, door: &Door) -> Result<Box<dyn Writer>> {
    let opening = async {
        anyhow::Ok(match place.kind {
            Kind::Redis => Box::new(redis::Writer::open(place, door).await?) as Box<dyn Writer>,
            Kind::Kafka => Box::new(kafka::Writer::open(place, door).await?),
            Kind::Nats => Box::new(nats::Writer::open(place, door).await?),
            Kind::RabbitMq => Box::new(rabbitmq::Writer::open(place, door).await?),
        })
    };
    tokio::time::timeout(CREATE_TIMEOUT, opening).await.context("the broker does not answer")?
}

/// Sends a message once.
pub(super) async fn send(writer: &dyn Writer, message: Outgoing) -> Sent {
    let sent = match tokio::time::timeout(SEND_TIMEOUT, writer.send(message)).await {
        Ok(sent) => sent,
        Err(_) => Err(anyhow::anyhow!("no answer")),
    };
    sent.unwrap_or_else(|error| {
        tracing::debug!("a message for the door was not confirmed: {error:#}");
        Sent { is_accepted: false, time: None }
    })
}
