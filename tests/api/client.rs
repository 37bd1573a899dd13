//! A client that writes bytes and parses answers.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::document;

/// The address of an API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client(pub(super) SocketAddr);

/// A parsed answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Client {
    pub(super) async fn put(&self, id: &str, task: &str) -> Answer {
        self.call("PUT", &format!("/v1/tasks/{id}"), "application/json", task).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "", "").await
    }

    pub(super) async fn delete(&self, id: &str) -> Answer {
        self.call("DELETE", &format!("/v1/tasks/{id}"), "", "").await
    }

    pub(super) async fn batch(&self, lines: &str) -> Answer {
        self.call("POST", "/v1/tasks:batch", "application/x-ndjson", lines).await
    }

    pub(super) async fn post(&self, path: &str, body: &str) -> Answer {
        self.call("POST", path, "application/json", body).await
    }

    /// Posts a task with an idempotency key.
    pub(super) async fn post_under(&self, key: &str, task: &str) -> Answer {
        self.send("POST", "/v1/tasks", &[("content-type", "application/json"), ("idempotency-key", key)], task).await
    }

    /// Sends one request on a new connection; an empty content type is omitted.
    pub(super) async fn call(&self, method: &str, path: &str, content_type: &str, body: &str) -> Answer {
        let kind = [("content-type", content_type)];
        self.send(method, path, if content_type.is_empty() { &[] } else { &kind }, body).await
    }

    /// Sends one request on a new connection; the answer must be in the OpenAPI document.
    pub(super) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        let (mut from, mut to) = self.connect().await.into_split();
        let request = [head.as_bytes(), body.as_bytes()].concat();
        // Sent while the answer is read; the server may refuse before it has all.
        let sending = tokio::spawn(async move { to.write_all(&request).await.map(|()| to) });
        let mut bytes = Vec::new();
        let read = from.read_to_end(&mut bytes).await;
        sending.abort();
        assert!(read.is_ok() || !bytes.is_empty(), "{read:?}");
        let answer = Answer::read(&bytes);
        document::check(method, path, &answer);
        answer
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.0).await.unwrap()
    }
}

impl Answer {
    pub(super) fn read(bytes: &[u8]) -> Answer {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Answer { status, head, body }
    }

    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn lines(&self) -> Vec<Value> {
        self.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Status and code of a problem; checks its form.
    pub(super) fn problem(&self) -> (u16, String) {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status, "{json}");
        assert_eq!(json["type"], "about:blank");
        assert!(
            json["title"].is_string() && json["detail"].as_str().is_some_and(|detail| !detail.is_empty()),
            "{json}"
        );
        (self.status, json["code"].as_str().unwrap().to_owned())
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}
