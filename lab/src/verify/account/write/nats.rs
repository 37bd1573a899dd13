//! Publishes to a JetStream stream: <https://docs.nats.io/nats-concepts/jetstream>

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use async_trait::async_trait;
use secrecy::ExposeSecret;

use super::{Outgoing, SEND_TIMEOUT, Sent};
use crate::verify::{DOOR_CONSUMER, Door, Place};

/// How long the server waits for an acknowledgement before it delivers the message again.
const ACK_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of messages without an acknowledgement: more than the batches of all instances.
const MAX_ACK_PENDING: i64 = 10_000;

pub(super) struct Writer {
    context: Context,
    subject: String,
}

impl Writer {
    /// Creates the stream, of the same name as its subject, and its consumer.
    pub(super) async fn open(place: &Place, door: &Door) -> Result<Writer> {
        let client = ConnectOptions::new().connect(place.url.expose_secret()).await.context("connecting to NATS")?;
        let mut context = jetstream::new(client);
        context.set_timeout(SEND_TIMEOUT);
        let config = Config {
            name: door.source.clone(),
            subjects: vec![door.source.clone()],
            storage: StorageType::File,
            ..Config::default()
        };
        let stream = context.create_stream(config).await.context("creating a stream")?;
        let config = pull::Config {
            durable_name: Some(DOOR_CONSUMER.to_owned()),
            ack_wait: ACK_WAIT,
            max_ack_pending: MAX_ACK_PENDING,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.context("creating a consumer")?;
        Ok(Writer { context, subject: door.source.clone() })
    }
}

#[async_trait]
impl super::Writer for Writer {
    async fn send(&self, message: Outgoing) -> Result<Sent> {
        let mut headers = HeaderMap::new();
        message.headers.iter().for_each(|(name, value)| headers.insert(*name, value.as_str()));
        let publish = self.context.publish_with_headers(self.subject.clone(), headers, message.payload.into());
        publish.await?.await?;
        // The server names the time to readers only.
        Ok(Sent { is_accepted: true, time: None })
    }
}
