//! Redis Streams: <https://redis.io/docs/latest/commands/xread/>

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use secrecy::SecretString;
use tokio::time::Instant;

use super::{BrokerSide, Take};
use crate::bench::probe::connect;

/// How long the server may wait for a message, in ms.
const BLOCK_MS: u64 = 1000;

/// A Redis server with streams.
pub(super) struct Streams {
    url: SecretString,
    connection: MultiplexedConnection,
}

impl Streams {
    pub(super) async fn open(url: &SecretString) -> anyhow::Result<Streams> {
        Ok(Streams { url: url.clone(), connection: connect(url).await? })
    }
}

#[async_trait]
impl BrokerSide for Streams {
    /// Creates nothing: a stream begins with its first message.
    async fn make(&self, _destination: &str) -> anyhow::Result<()> {
        Ok(())
    }

    async fn make_source(&self, destination: &str) -> anyhow::Result<String> {
        let mut make = redis::cmd("XGROUP");
        make.arg("CREATE").arg(destination).arg("punctual").arg(0).arg("MKSTREAM");
        let () = make.query_async(&mut self.connection.clone()).await?;
        Ok(format!("{destination}/punctual"))
    }

    async fn held(&self, destination: &str) -> anyhow::Result<u64> {
        Ok(redis::cmd("XLEN").arg(destination).query_async(&mut self.connection.clone()).await?)
    }

    async fn follow(&self, destination: &str, take: Take<'_>) -> anyhow::Result<()> {
        // A connection of its own, because it blocks.
        let mut connection = connect(&self.url).await?;
        let mut last = "0-0".to_owned();
        loop {
            let mut ask = redis::cmd("XREAD");
            ask.arg("COUNT").arg(1000).arg("BLOCK").arg(BLOCK_MS).arg("STREAMS").arg(destination).arg(&last);
            let reply: Option<StreamReadReply> = ask.query_async(&mut connection).await?;
            let now = Instant::now();
            for entry in reply.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids) {
                let key: Option<String> = entry.get("idempotency-key");
                take(key.as_deref().unwrap_or_default(), now);
                last = entry.id;
            }
        }
    }
}
