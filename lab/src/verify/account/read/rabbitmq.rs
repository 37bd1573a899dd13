//! Consumes RabbitMQ queues: <https://www.rabbitmq.com/docs/consumers>

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::stream::select_all;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout};

use super::{Inlet, ReadHeaders};
use crate::verify::Place;

/// Maximum number of messages without acknowledgement.
const PREFETCH: u16 = 500;

/// Poll timeout before the server is asked whether there are more messages.
const POLL: Duration = Duration::from_millis(300);

/// Timeout of a reply of the server.
const ANSWER: Duration = Duration::from_secs(5);

/// Declares the queues, durable, and reads them.
pub(super) async fn attach(place: &Place, inlet: Arc<Inlet>) -> Result<()> {
    let url = address(place.url.expose_secret());
    let queues = place.read();
    let declaring = async {
        let channel = Connection::connect(&url, ConnectionProperties::default()).await?.create_channel().await?;
        for queue in &queues {
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
        }
        lapin::Result::Ok(())
    };
    timeout(2 * ANSWER, declaring).await.context("RabbitMQ does not answer")?.context("declaring queues")?;
    tokio::spawn(async move { while inlet.goes_on(read(&url, &queues, &inlet)).await {} });
    Ok(())
}

/// Without a virtual host, or with an empty one, a URL means `/`. A heartbeat detects a broken connection.
pub(in crate::verify::account) fn address(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let url = match host.split_once('/') {
        None => format!("{url}/%2f"),
        Some((_, "")) => format!("{url}%2f"),
        Some(_) => url.to_owned(),
    };
    format!("{url}?heartbeat=4")
}

async fn read(url: &str, queues: &[String], inlet: &Inlet) -> Result<()> {
    let connection = timeout(ANSWER, Connection::connect(url, ConnectionProperties::default())).await??;
    let channel = timeout(ANSWER, connection.create_channel()).await??;
    let asking = timeout(ANSWER, connection.create_channel()).await??;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let mut consumers = Vec::new();
    for queue in queues {
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default());
        consumers.push(timeout(ANSWER, consumer).await??);
    }
    let mut deliveries = select_all(consumers);
    // When the check began that found the queues empty.
    let mut empty = None;
    loop {
        let delivery = match timeout(POLL, deliveries.next()).await {
            Ok(Some(delivery)) => delivery?,
            Ok(None) => anyhow::bail!("RabbitMQ ended the subscription"),
            // Messages that were under way at that time have arrived.
            Err(_) => {
                if let Some(began) = empty {
                    inlet.nothing_more(began);
                }
                let began = Instant::now();
                empty = timeout(ANSWER, is_empty(&asking, queues)).await??.then_some(began);
                continue;
            }
        };
        empty = None;
        let key = delivery.properties.message_id().as_ref().map(|key| key.as_str());
        let table = delivery.properties.headers().as_ref();
        let header = |name: &str| match table?.inner().get(name) {
            Some(AMQPValue::LongString(text)) => Some(String::from_utf8_lossy(text.as_bytes())),
            _ => None,
        };
        let (trace, rejected) = (header("traceparent"), header("punctual-rejected"));
        let headers = ReadHeaders { key, trace: trace.as_deref(), rejected: rejected.as_deref() };
        inlet.take(delivery.routing_key.as_str(), headers, &delivery.data, None, delivery.redelivered);
        timeout(ANSWER, delivery.ack(BasicAckOptions::default())).await??;
    }
}

/// Whether all messages in the queues were delivered.
async fn is_empty(channel: &Channel, queues: &[String]) -> lapin::Result<bool> {
    for queue in queues {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
        if queue.message_count() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
