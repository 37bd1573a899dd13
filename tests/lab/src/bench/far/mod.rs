//! The far side of a sink: its destinations are made, counted and read here by its own client library.
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

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(15);

/// Is told the idempotency key of each message that is read, and when it came.
pub(super) type Take<'a> = &'a (dyn Fn(&str, Instant) + Send + Sync);

/// What stands on the other side of a sink.
#[async_trait]
pub(super) trait BrokerSide: Send + Sync {
    /// Makes a destination that nobody else uses.
    async fn make(&self, destination: &str) -> anyhow::Result<()>;

    /// How many messages a destination holds.
    async fn held(&self, destination: &str) -> anyhow::Result<u64>;

    /// Reads a destination from its first message on, each as soon as it is there; ends only when it fails.
    async fn follow(&self, destination: &str, take: Take<'_>) -> anyhow::Result<()>;
}

/// Connects to the far side.
///
/// # Errors
/// When it does not answer.
pub(super) async fn open(kind: Kind, url: &SecretString) -> anyhow::Result<Arc<dyn BrokerSide>> {
    let opening = async {
        let far: Arc<dyn BrokerSide> = match kind {
            Kind::Redis => Arc::new(redis::Streams::open(url).await?),
            Kind::Kafka => Arc::new(kafka::Topics::open(url)?),
            Kind::Nats => Arc::new(nats::Streams::open(url).await?),
            Kind::RabbitMq => Arc::new(rabbitmq::Queues::open(url).await?),
        };
        anyhow::Ok(far)
    };
    match tokio::time::timeout(ANSWER, opening).await {
        Ok(opened) => opened,
        Err(_) => anyhow::bail!("no answer of the sink within {ANSWER:?}"),
    }
}

/// Removes destinations from a sink of the user's.
///
/// # Errors
/// When it does not say that they are gone.
pub(super) async fn remove(kind: Kind, url: &SecretString, names: &[String]) -> anyhow::Result<()> {
    servers::remove(kind, url, names).await
}
