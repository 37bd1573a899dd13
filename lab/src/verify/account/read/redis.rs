//! Reads Redis Streams: <https://redis.io/docs/latest/commands/xread/>

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{Inlet, ReadHeaders};
use crate::verify::Place;

/// How long the server may wait for a message, and the timeout of its reply.
const BLOCK_MS: u64 = 300;
const ANSWER: Duration = Duration::from_secs(5);

/// Creates nothing: a stream begins with its first message.
pub(super) async fn attach(place: &Place, inlet: Arc<Inlet>) -> Result<()> {
    let client = Client::open(place.url.expose_secret()).context("the sink's address")?;
    connect(&client).await.context("connecting to the sink")?;
    // The last message that was read, by stream.
    let mut last: BTreeMap<String, String> = place.read().into_iter().map(|name| (name, "0-0".to_owned())).collect();
    tokio::spawn(async move { while inlet.goes_on(read(&client, &mut last, &inlet)).await {} });
    Ok(())
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWER)).set_response_timeout(Some(ANSWER));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn read(client: &Client, last: &mut BTreeMap<String, String>, inlet: &Inlet) -> RedisResult<()> {
    let mut connection = connect(client).await?;
    let mut unspent = 0;
    loop {
        let mut ask = redis::cmd("XREAD");
        ask.arg("COUNT").arg(1000).arg("BLOCK").arg(BLOCK_MS).arg("STREAMS");
        ask.arg(last.keys().collect::<Vec<_>>()).arg(last.values().collect::<Vec<_>>());
        let began = Instant::now();
        let reply: Option<StreamReadReply> = ask.query_async(&mut connection).await?;
        let Some(reply) = reply else {
            inlet.nothing_more(began);
            continue;
        };
        for stream in reply.keys {
            for entry in stream.ids {
                let header = |name: &str| entry.get::<String>(name);
                let (key, trace, rejected) =
                    (header("idempotency-key"), header("traceparent"), header("punctual-rejected"));
                let headers =
                    ReadHeaders { key: key.as_deref(), trace: trace.as_deref(), rejected: rejected.as_deref() };
                let payload: Vec<u8> = entry.get("payload").unwrap_or_default();
                let stamp = entry.id.split_once('-').and_then(|(ms, _)| ms.parse().ok());
                inlet.take(&stream.key, headers, &payload, stamp, false);
                unspent += 1;
                last.insert(stream.key.clone(), entry.id);
            }
        }
        if unspent >= 1000 {
            unspent = 0;
            for (name, id) in &*last {
                let () = redis::cmd("XTRIM").arg(name).arg("MINID").arg(id).query_async(&mut connection).await?;
            }
        }
    }
}
