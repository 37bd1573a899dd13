//! Reads a JetStream stream: <https://docs.nats.io/nats-concepts/jetstream>

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Error};
use futures_util::StreamExt;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{Inlet, ReadHeaders};
use crate::verify::Place;

/// The server drops repeats within this time; later copies are kept and compared. It must not be zero.
const WINDOW: Duration = Duration::from_millis(100);

/// How long the server keeps messages.
const KEPT: Duration = Duration::from_secs(1800);

/// Poll timeout before the server is asked whether there are more messages.
const POLL: Duration = Duration::from_millis(300);

/// Timeout of a reply of the server.
const ANSWER: Duration = Duration::from_secs(3);

/// Creates one stream for all subjects.
pub(super) async fn attach(place: &Place, inlet: Arc<Inlet>) -> Result<()> {
    let config = Config {
        name: stream_name(place),
        subjects: place.read(),
        storage: StorageType::File,
        duplicate_window: WINDOW,
        max_age: KEPT,
        ..Config::default()
    };
    let (jetstream, name) = (connect(place).await.map_err(anyhow::Error::from_boxed)?, config.name.clone());
    jetstream.create_stream(config).await.context("making a stream")?;
    let place = place.clone();
    tokio::spawn(async move {
        let mut last = 0;
        while inlet.goes_on(read(&place, &name, &mut last, &inlet)).await {}
    });
    Ok(())
}

/// The name of the stream; it is enough to remove it.
pub(in crate::verify) fn stream_name(place: &Place) -> String {
    let first = place.destinations.first().map_or("", String::as_str);
    let name: String = first.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("verify_{name}")
}

async fn connect(place: &Place) -> Result<Context, Error> {
    let options = ConnectOptions::new().connection_timeout(ANSWER).request_timeout(Some(ANSWER));
    let client = options.ping_interval(ANSWER).connect(place.url.expose_secret()).await?;
    let mut jetstream = jetstream::new(client);
    jetstream.set_timeout(ANSWER);
    Ok(jetstream)
}

async fn read(place: &Place, name: &str, last: &mut u64, inlet: &Inlet) -> Result<(), Error> {
    let jetstream = tokio::time::timeout(ANSWER, connect(place)).await??;
    let stream = jetstream.get_stream(name).await?;
    let from = DeliverPolicy::ByStartSequence { start_sequence: *last + 1 };
    let config = pull::Config { deliver_policy: from, ack_policy: AckPolicy::None, ..pull::Config::default() };
    let consumer = stream.create_consumer(config).await?;
    loop {
        let asking = consumer.batch().max_messages(1000).expires(POLL).messages();
        let mut messages = tokio::time::timeout(ANSWER, asking).await??;
        let mut any = false;
        // A server that is gone never reports that there are no more.
        while let Some(message) = tokio::time::timeout(ANSWER, messages.next()).await? {
            let message = message?;
            let info = message.info()?;
            if info.stream_sequence <= *last {
                continue;
            }
            (any, *last) = (true, info.stream_sequence);
            let stamp = info.published.unix_timestamp_nanos().div_euclid(1_000_000);
            let header = |name: &str| message.headers.as_ref()?.get(name).map(|value| value.as_str());
            let headers = ReadHeaders {
                key: header("idempotency-key"),
                trace: header("traceparent"),
                rejected: header("punctual-rejected"),
            };
            inlet.take(&message.subject, headers, &message.payload, i64::try_from(stamp).ok(), false);
        }
        if !any {
            let began = Instant::now();
            let end = tokio::time::timeout(ANSWER, stream.get_info()).await??.state.last_sequence;
            if end <= *last { inlet.nothing_more(began) } else { inlet.unknown() }
        }
    }
}
