//! A connection to an instance's API: single requests, or a streaming batch.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::tasks::id;

/// Timeout of an answer, or of the next part of one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Lines per write.
const LINES_PER_WRITE: u64 = 200;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// One connection.
pub(super) struct ApiConnection {
    sender: SendRequest<Body>,
    api: SocketAddr,
    /// Drives the connection; dropping it ends it.
    _driver: JoinSet<()>,
}

/// Tasks to put.
#[derive(Clone, Debug)]
pub(super) struct Puts {
    pub(super) prefix: String,
    pub(super) count: u64,
    /// The task without its id, as JSON without the braces.
    pub(super) body: String,
}

impl Puts {
    fn line(&self, number: u64) -> String {
        format!("{{\"id\":\"{}\",{}}}\n", id(&self.prefix, number), self.body)
    }

    fn lines(&self, from: u64) -> Bytes {
        let lines = (from..self.count.min(from + LINES_PER_WRITE)).map(|number| self.line(number));
        lines.collect::<String>().into()
    }
}

impl ApiConnection {
    /// Connects.
    ///
    /// # Errors
    /// If the instance does not listen.
    pub(super) async fn open(api: SocketAddr) -> anyhow::Result<ApiConnection> {
        let stream = TcpStream::connect(api).await.context("cannot reach the instance")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
        Ok(ApiConnection { sender, api, _driver: driver })
    }

    /// Puts each task in a request of its own.
    ///
    /// # Errors
    /// If one is not created.
    pub(super) async fn put_each(&mut self, puts: &Puts) -> anyhow::Result<()> {
        for number in 0..puts.count {
            let id = id(&puts.prefix, number);
            let status = self.put_one(&id, &puts.body).await?;
            ensure!(status.is_success(), "the put of `{id}` is answered {status}");
        }
        Ok(())
    }

    /// Puts one task; returns how that is answered.
    ///
    /// # Errors
    /// If it is not answered.
    pub(super) async fn put_one(&mut self, id: &str, body: &str) -> anyhow::Result<StatusCode> {
        let body = Full::new(Bytes::from(format!("{{{body}}}"))).boxed_unsync();
        let answer = self.send(Method::PUT, &format!("/v1/tasks/{id}"), "application/json", body).await?;
        let status = answer.status();
        // The connection is free again once the answer is read.
        timeout(ANSWER_TIMEOUT, answer.into_body().collect()).await??;
        Ok(status)
    }

    /// Puts all in one batch and reads the answers meanwhile. Returns the number of answered lines.
    ///
    /// # Errors
    /// If it is not answered with success.
    pub(super) async fn put_batch(&mut self, puts: Puts) -> anyhow::Result<u64> {
        let parts = stream::unfold((puts, 0), |(puts, from)| async move {
            (from < puts.count).then(|| (Ok(Frame::data(puts.lines(from))), (puts, from + LINES_PER_WRITE)))
        });
        let body = StreamBody::new(parts).boxed_unsync();
        let answer = self.send(Method::POST, "/v1/tasks:batch", "application/x-ndjson", body).await?;
        ensure!(answer.status().is_success(), "the batch is answered {}", answer.status());
        let mut answer = answer.into_body();
        let mut lines = 0;
        while let Some(frame) = timeout(ANSWER_TIMEOUT, answer.frame()).await.context("no answer to a batch")? {
            if let Ok(data) = frame?.into_data() {
                lines += data.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
        }
        Ok(lines)
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        media: &str,
        body: Body,
    ) -> anyhow::Result<Response<hyper::body::Incoming>> {
        let request = Request::builder().method(method).uri(path).header("host", self.api.to_string());
        let request = request.header("content-type", media).body(body)?;
        let asking = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let Ok(answer) = timeout(ANSWER_TIMEOUT, asking).await else { bail!("no answer within {ANSWER_TIMEOUT:?}") };
        answer.context("cannot ask the instance")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_lines_of_json() {
        let puts = Puts { prefix: "b".to_owned(), count: 3, body: "\"message\":{}".to_owned() };
        let text = puts.lines(0);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 3);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!(line["message"], serde_json::json!({}));
        }
        assert!(puts.lines(3).is_empty());
    }
}
