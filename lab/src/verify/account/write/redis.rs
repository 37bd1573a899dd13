//! Adds entries to a Redis stream: <https://redis.io/docs/latest/commands/xadd/>

use anyhow::{Context, Result};
use async_trait::async_trait;
use redis::Client;
use redis::aio::MultiplexedConnection;
use secrecy::ExposeSecret;
use tokio::sync::Mutex;

use super::{Outgoing, Sent};
use crate::verify::{DOOR_CONSUMER, Door, Place};

pub(super) struct Writer {
    client: Client,
    stream: String,
    /// Opened again after an error; each call is sent once.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Writer {
    /// Creates the stream with its group.
    pub(super) async fn open(place: &Place, door: &Door) -> Result<Writer> {
        let client = Client::open(place.url.expose_secret()).context("the sink's address")?;
        let mut connection = client.get_multiplexed_async_connection().await.context("connecting to the sink")?;
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(&door.source).arg(DOOR_CONSUMER).arg(0).arg("MKSTREAM");
        let () = create.query_async(&mut connection).await.context("creating a group")?;
        Ok(Writer { client, stream: door.source.clone(), connection: Mutex::new(Some(connection)) })
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        Ok(kept.insert(self.client.get_multiplexed_async_connection().await?).clone())
    }
}

#[async_trait]
impl super::Writer for Writer {
    async fn send(&self, message: Outgoing) -> Result<Sent> {
        let mut connection = self.connection().await?;
        let mut add = redis::cmd("XADD");
        add.arg(&self.stream).arg("*").arg("payload").arg(message.payload);
        for (name, value) in &message.headers {
            add.arg(name).arg(value);
        }
        match add.query_async::<String>(&mut connection).await {
            Ok(id) => {
                let time = id.split_once('-').and_then(|(ms, _)| ms.parse().ok());
                Ok(Sent { is_accepted: true, time })
            }
            Err(error) => {
                *self.connection.lock().await = None;
                Err(error.into())
            }
        }
    }
}
