//! Publishes to a RabbitMQ queue, with confirms: <https://www.rabbitmq.com/docs/confirms>

use anyhow::{Context, Result};
use async_trait::async_trait;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use secrecy::ExposeSecret;
use tokio::sync::Mutex;

use super::{Outgoing, Sent};
use crate::verify::account::read::rabbitmq_address;
use crate::verify::{Door, Place};

pub(super) struct Writer {
    url: String,
    queue: String,
    /// Opened again after an error.
    channel: Mutex<Option<Channel>>,
}

impl Writer {
    /// Declares the queue, durable.
    pub(super) async fn open(place: &Place, door: &Door) -> Result<Writer> {
        let url = rabbitmq_address(place.url.expose_secret());
        let channel = connect(&url).await.context("connecting to RabbitMQ")?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(door.source.as_str().into(), options, FieldTable::default()).await?;
        Ok(Writer { url, queue: door.source.clone(), channel: Mutex::new(Some(channel)) })
    }

    async fn channel(&self) -> Result<Channel> {
        let mut kept = self.channel.lock().await;
        if let Some(channel) = kept.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        Ok(kept.insert(connect(&self.url).await?).clone())
    }
}

async fn connect(url: &str) -> lapin::Result<Channel> {
    let channel = Connection::connect(url, ConnectionProperties::default()).await?.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

#[async_trait]
impl super::Writer for Writer {
    async fn send(&self, message: Outgoing) -> Result<Sent> {
        let channel = self.channel().await?;
        let seconds = message.now.div_euclid(1000);
        // The end of the second that the property names, as docs/doors.md says.
        let time = Some(seconds * 1000 + 999);
        let mut headers = FieldTable::default();
        for (name, value) in &message.headers {
            headers.insert((*name).into(), AMQPValue::LongString(value.as_str().into()));
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(message.name.as_str().into())
            .with_timestamp(u64::try_from(seconds)?)
            .with_headers(headers);
        let options = BasicPublishOptions::default();
        let publish = channel.basic_publish(
            "".into(),
            self.queue.as_str().into(),
            options,
            message.payload.as_bytes(),
            properties,
        );
        let confirmed = async { publish.await?.await };
        let is_accepted = confirmed.await.is_ok_and(|confirmation| confirmation.is_ack());
        Ok(Sent { is_accepted, time })
    }
}
