//! JetStream, with one stream of the same name per subject: <https://docs.nats.io/nats-concepts/jetstream>

use anyhow::{Context as _, Result, bail};
use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use futures_util::StreamExt;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::{ANSWER_TIMEOUT, BrokerSide, Take};

/// Maximum number of messages that a door has not acknowledged: more than its two batches.
const MAX_ACK_PENDING: i64 = 10_000;

/// A NATS server with streams.
pub(super) struct Streams {
    context: Context,
}

impl Streams {
    pub(super) async fn open(url: &SecretString) -> Result<Streams> {
        let options = ConnectOptions::new().connection_timeout(ANSWER_TIMEOUT).request_timeout(Some(ANSWER_TIMEOUT));
        let client = options.connect(url.expose_secret()).await.context("connecting to NATS")?;
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER_TIMEOUT);
        Ok(Streams { context })
    }
}

#[async_trait]
impl BrokerSide for Streams {
    async fn make(&self, destination: &str) -> Result<()> {
        let config = Config {
            name: destination.to_owned(),
            subjects: vec![destination.to_owned()],
            storage: StorageType::File,
            ..Config::default()
        };
        self.context.create_stream(config).await.context("making a stream")?;
        Ok(())
    }

    async fn make_source(&self, destination: &str) -> Result<String> {
        let stream = self.context.get_stream(destination).await.context("looking at a stream")?;
        let config = pull::Config {
            durable_name: Some("punctual".to_owned()),
            max_ack_pending: MAX_ACK_PENDING,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.context("making a consumer")?;
        Ok(format!("{destination}/punctual"))
    }

    async fn held(&self, destination: &str) -> Result<u64> {
        let stream = self.context.get_stream(destination).await.context("looking at a stream")?;
        Ok(stream.cached_info().state.messages)
    }

    async fn follow(&self, destination: &str, take: Take<'_>) -> Result<()> {
        let stream = self.context.get_stream(destination).await.context("looking at a stream")?;
        let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let consumer = stream.create_consumer(config).await.context("making a consumer")?;
        let mut messages = consumer.messages().await.context("reading a stream")?;
        while let Some(message) = messages.next().await {
            let (message, now) = (message.context("reading a stream")?, Instant::now());
            let key = message.headers.as_ref().and_then(|headers| headers.get("idempotency-key"));
            take(key.map(|key| key.as_str()).unwrap_or_default(), now);
        }
        bail!("NATS has ended the subscription")
    }
}
