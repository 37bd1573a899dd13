//! Removes destinations from a user's sink.

use std::time::Duration;

use anyhow::{Context, bail};
use secrecy::{ExposeSecret, SecretString};

use super::Kind;

/// How long the sink may take.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Removes destinations with their messages; for NATS, `names` are streams.
///
/// # Errors
/// If the sink does not confirm that.
pub async fn remove(kind: Kind, url: &SecretString, names: &[String]) -> anyhow::Result<()> {
    let url = url.expose_secret();
    let removing = async {
        match kind {
            Kind::Redis => redis(url, names).await,
            Kind::Kafka => kafka(url, names).await,
            Kind::RabbitMq => rabbitmq(url, names).await,
            Kind::Nats => nats(url, names).await,
        }
    };
    match tokio::time::timeout(REMOVE_TIMEOUT, removing).await {
        Ok(removed) => removed,
        Err(_) => bail!("no answer within {REMOVE_TIMEOUT:?}"),
    }
}

async fn redis(url: &str, names: &[String]) -> anyhow::Result<()> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut pipe = redis::pipe();
    for name in names {
        pipe.cmd("UNLINK").arg(name).ignore();
    }
    let () = pipe.query_async(&mut connection).await?;
    Ok(())
}
async fn kafka(url: &str, names: &[String]) -> anyhow::Result<()> {
    use rdkafka::admin::{AdminClient, AdminOptions};
    use rdkafka::client::DefaultClientContext;

    let servers = url.trim_start_matches("kafka://").to_owned();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", servers).set("log_level", "0");
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let options = AdminOptions::new().operation_timeout(Some(REMOVE_TIMEOUT));
    let removed = admin.delete_topics(&names, &options).await.context("removing topics")?;
    removed
        .into_iter()
        .try_for_each(|topic| topic.map(|_| ()).map_err(|(name, error)| anyhow::anyhow!("`{name}`: {error}")))
}
async fn rabbitmq(url: &str, names: &[String]) -> anyhow::Result<()> {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let url = match host.split_once('/') {
        None => format!("{url}/%2f"),
        Some((_, "")) => format!("{url}%2f"),
        Some(_) => url.to_owned(),
    };
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    for name in names {
        channel.queue_delete(name.as_str().into(), lapin::options::QueueDeleteOptions::default()).await?;
    }
    Ok(connection.close(200, "done".into()).await?)
}
async fn nats(url: &str, names: &[String]) -> anyhow::Result<()> {
    let client = async_nats::connect(url).await?;
    let jetstream = async_nats::jetstream::new(client);
    for name in names {
        jetstream.delete_stream(name).await.context("removing the stream")?;
    }
    Ok(())
}
