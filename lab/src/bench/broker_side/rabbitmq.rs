//! RabbitMQ queues: <https://www.rabbitmq.com/docs/consumers>

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout};

use super::{ANSWER_TIMEOUT, BrokerSide, Take};

/// A RabbitMQ server with queues.
pub(super) struct Queues {
    connection: Connection,
    admin_channel: Channel,
}

impl Queues {
    pub(super) async fn open(url: &SecretString) -> Result<Queues> {
        let url = address(url.expose_secret());
        let connection = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connection.context("connecting to RabbitMQ")?;
        let admin_channel = connection.create_channel().await.context("opening a channel")?;
        Ok(Queues { connection, admin_channel })
    }
}

/// A URL without a virtual host, or with an empty one, means `/`.
fn address(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    match host.split_once('/') {
        None => format!("{url}/%2f"),
        Some((_, "")) => format!("{url}%2f"),
        Some(_) => url.to_owned(),
    }
}

#[async_trait]
impl BrokerSide for Queues {
    async fn make(&self, destination: &str) -> Result<()> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declaring = self.admin_channel.queue_declare(destination.into(), options, FieldTable::default());
        timeout(ANSWER_TIMEOUT, declaring).await.context("RabbitMQ does not answer")?.context("declaring a queue")?;
        Ok(())
    }

    async fn make_source(&self, destination: &str) -> Result<String> {
        Ok(destination.to_owned())
    }

    /// Correct only for a queue without consumers, because delivered messages are not counted.
    async fn held(&self, destination: &str) -> Result<u64> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declaring = self.admin_channel.queue_declare(destination.into(), options, FieldTable::default());
        let queue = timeout(ANSWER_TIMEOUT, declaring).await.context("RabbitMQ does not answer")?;
        Ok(queue.context("looking at a queue")?.message_count().into())
    }

    async fn follow(&self, destination: &str, take: Take<'_>) -> Result<()> {
        let channel = self.connection.create_channel().await.context("opening a channel")?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consuming = channel.basic_consume(destination.into(), "".into(), options, FieldTable::default());
        let mut deliveries = consuming.await.context("consuming a queue")?;
        while let Some(delivery) = deliveries.next().await {
            let (delivery, now) = (delivery.context("consuming a queue")?, Instant::now());
            let key = delivery.properties.message_id().as_ref().map(|key| key.as_str());
            take(key.unwrap_or_default(), now);
        }
        bail!("RabbitMQ has ended the subscription")
    }
}
