//! The broker behind a sink: creates, counts and reads its destinations with its own client library.
mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use tokio::time::Instant;

use crate::servers::{self, Kind};

/// Timeout of a reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A callback for [`BrokerSide::follow`]: called with the idempotency key and arrival time of each message.
pub(super) type Take<'a> = &'a (dyn Fn(&str, Instant) + Send + Sync);

/// A broker, seen from the consumer's side.
#[async_trait]
pub(super) trait BrokerSide: Send + Sync {
    /// Creates a destination of the bench's own.
    async fn make(&self, destination: &str) -> anyhow::Result<()>;

    /// Creates what else a door needs to read a destination from its first message on. Returns the `from` of the door.
    async fn make_source(&self, destination: &str) -> anyhow::Result<String>;

    /// Number of messages in a destination.
    async fn held(&self, destination: &str) -> anyhow::Result<u64>;

    /// Reads a destination from its first message on, each as soon as it arrives. Ends only with an error.
    async fn follow(&self, destination: &str, take: Take<'_>) -> anyhow::Result<()>;
}

/// Connects to a broker.
///
/// # Errors
/// If it does not answer.
pub(super) async fn open(kind: Kind, url: &SecretString) -> anyhow::Result<Arc<dyn BrokerSide>> {
    let opening = async {
        let broker_side: Arc<dyn BrokerSide> = match kind {
            Kind::Redis => Arc::new(redis::Streams::open(url).await?),
            Kind::Kafka => Arc::new(kafka::Topics::open(url)?),
            Kind::Nats => Arc::new(nats::Streams::open(url).await?),
            Kind::RabbitMq => Arc::new(rabbitmq::Queues::open(url).await?),
        };
        anyhow::Ok(broker_side)
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, opening).await {
        Ok(opened) => opened,
        Err(_) => anyhow::bail!("no answer of the sink within {ANSWER_TIMEOUT:?}"),
    }
}

/// Removes destinations from a user's broker.
///
/// # Errors
/// If it does not confirm that.
pub(super) async fn remove(kind: Kind, url: &SecretString, names: &[String]) -> anyhow::Result<()> {
    servers::remove(kind, url, names).await
}
