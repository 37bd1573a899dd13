//! Removes from a sink of the user's what a campaign made there.

use std::time::Duration;

use anyhow::{Context, bail};
use secrecy::ExposeSecret;

use super::{Kind, Place};

/// How long the sink may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Removes the destinations, with what they hold.
///
/// # Errors
/// When the sink does not say that they are gone.
pub(super) async fn remove(place: &Place) -> anyhow::Result<()> {
    let removing = async {
        match place.kind {
            Kind::Redis => redis(place).await,
            #[cfg(feature = "kafka")]
            Kind::Kafka => kafka(place).await,
            #[cfg(feature = "rabbitmq")]
            Kind::RabbitMq => rabbitmq(place).await,
            #[cfg(feature = "nats")]
            Kind::Nats => nats(place).await,
            #[cfg(not(all(feature = "kafka", feature = "nats", feature = "rabbitmq")))]
            other => bail!("this punctual was built without {}", other.name()),
        }
    };
    match tokio::time::timeout(LIMIT, removing).await {
        Ok(removed) => removed,
        Err(_) => bail!("no answer within {LIMIT:?}"),
    }
}

async fn redis(place: &Place) -> anyhow::Result<()> {
    let client = redis::Client::open(place.url.expose_secret())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut pipe = redis::pipe();
    for name in &place.destinations {
        pipe.cmd("UNLINK").arg(name).ignore();
    }
    let () = pipe.query_async(&mut connection).await?;
    Ok(())
}

#[cfg(feature = "kafka")]
async fn kafka(place: &Place) -> anyhow::Result<()> {
    use rdkafka::admin::{AdminClient, AdminOptions};
    use rdkafka::client::DefaultClientContext;

    let servers = place.url.expose_secret().trim_start_matches("kafka://").to_owned();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", servers).set("log_level", "0");
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let names: Vec<&str> = place.destinations.iter().map(String::as_str).collect();
    let options = AdminOptions::new().operation_timeout(Some(LIMIT));
    let removed = admin.delete_topics(&names, &options).await.context("removing topics")?;
    removed
        .into_iter()
        .try_for_each(|topic| topic.map(|_| ()).map_err(|(name, error)| anyhow::anyhow!("`{name}`: {error}")))
}

#[cfg(feature = "rabbitmq")]
async fn rabbitmq(place: &Place) -> anyhow::Result<()> {
    let url = place.url.expose_secret();
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let url = match host.split_once('/') {
        None => format!("{url}/%2f"),
        Some((_, "")) => format!("{url}%2f"),
        Some(_) => url.to_owned(),
    };
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    for name in &place.destinations {
        channel.queue_delete(name.as_str().into(), lapin::options::QueueDeleteOptions::default()).await?;
    }
    Ok(connection.close(200, "done".into()).await?)
}

#[cfg(feature = "nats")]
async fn nats(place: &Place) -> anyhow::Result<()> {
    let client = async_nats::connect(place.url.expose_secret()).await?;
    let jetstream = async_nats::jetstream::new(client);
    jetstream.delete_stream(super::account::stream_name(place)).await.context("removing the stream")?;
    Ok(())
}
