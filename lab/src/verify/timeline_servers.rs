//! Connections to the servers of the timeline, without proxies and without any code of punctual.

use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult, Value};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Mutex;

/// One Redis, or the nodes of a cluster.
#[derive(Debug)]
pub(super) struct TimelineServers {
    servers: Vec<(Client, Mutex<Option<MultiplexedConnection>>)>,
    /// Timeout of a connection, and of an answer.
    limit: Duration,
}

impl TimelineServers {
    /// Does not connect.
    ///
    /// # Errors
    /// If a URL is malformed.
    pub(super) fn new(urls: &[SecretString], limit: Duration) -> RedisResult<TimelineServers> {
        let server = |url: &SecretString| Ok((Client::open(url.expose_secret())?, Mutex::default()));
        Ok(TimelineServers { servers: urls.iter().map(server).collect::<RedisResult<_>>()?, limit })
    }

    /// Sends each command to all servers, and returns the first answer to each that is no error: of a cluster, only the node
    /// with the key of a command runs it.
    ///
    /// # Errors
    /// If a command has no such answer.
    pub(super) async fn ask<T: FromRedisValue>(&self, commands: &[Cmd]) -> RedisResult<Vec<T>> {
        let all = join_all((0..self.servers.len()).map(|number| self.ask_one(number, commands))).await;
        let mut answers: Vec<Option<Value>> = vec![None; commands.len()];
        let mut failed = None;
        for of_server in all {
            match of_server {
                Ok(of_server) => {
                    for (answer, found) in answers.iter_mut().zip(of_server) {
                        match found {
                            Ok(found) => _ = answer.get_or_insert(found),
                            Err(error) => failed = Some(error),
                        }
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        let none = || failed.clone().unwrap_or_else(|| RedisError::from((redis::ErrorKind::Io, "no server")));
        let read = |answer: Option<Value>| Ok(redis::from_redis_value(answer.ok_or_else(none)?)?);
        answers.into_iter().map(read).collect()
    }

    async fn ask_one(&self, number: usize, commands: &[Cmd]) -> RedisResult<Vec<RedisResult<Value>>> {
        let (client, connection) = &self.servers[number];
        let mut guard = connection.lock().await;
        let mut connection = match guard.take() {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.limit))
                    .set_response_timeout(Some(self.limit));
                client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        commands.iter().for_each(|command| _ = pipe.add_command(command.clone()));
        // A failed connection is not used again.
        let answers = pipe.query_async(&mut connection).await?;
        *guard = Some(connection);
        Ok(answers)
    }
}

/// A command with its arguments.
pub(super) fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}
