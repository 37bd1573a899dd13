//! Malformed HTTP, and bodies that arrive too slowly.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::bad_input::{JSON, NDJSON, TASK, keys};
use super::{Answer, Stage, document};
use crate::support::have;
use crate::support::redis::RedisServer;

/// Each is answered or disconnected, nothing is stored, and the next request is answered.
#[tokio::test]
async fn malformed_http_is_answered_or_cut_off_and_harms_no_other_request() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let (stage, mut connection) = (Stage::over(&redis).await, redis.connect());
    let before = keys(&mut connection);
    let head = "PUT /v1/tasks/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    for (bytes, statuses) in [
        ("nonsense\r\n\r\n".to_owned(), &[400][..]),
        ("\0\u{1}\u{2}\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), &[400]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), &[400, 404]),
        (format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 20)), &[400, 414, 431]),
        (format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1 << 20)), &[400, 431]),
        (format!("GET /healthz HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(5000)), &[400, 431]),
        ("GET /healthz HTTP/1.1\r\nx : y\r\n\r\n".to_owned(), &[400]),
        // Without a length there is no body.
        (format!("{head}\r\n{TASK}"), &[400]),
        (format!("{head}content-length: -1\r\n\r\n{TASK}"), &[400]),
        (format!("{head}content-length: 1\r\ncontent-length: 2\r\n\r\n{TASK}"), &[400]),
        (format!("{head}content-length: 99999999999999999999\r\n\r\n{TASK}"), &[400]),
        (format!("{head}content-length: 18446744073709551615\r\n\r\n{TASK}"), &[400, 413, 431]),
        (format!("{chunked}zz\r\n{TASK}\r\n0\r\n\r\n"), &[400]),
        (format!("{chunked}-1\r\n{TASK}\r\n0\r\n\r\n"), &[400]),
        (format!("{chunked}fffffffffffffffff\r\n{TASK}\r\n"), &[400, 413]),
        (format!("{chunked}5\r\n{TASK}\r\n0\r\n\r\n"), &[400]),
        // Truncated.
        (format!("{head}content-length: 1000\r\n\r\n{TASK}"), &[400]),
        (format!("{chunked}ff\r\n{TASK}"), &[400]),
    ] {
        let about = format!("{bytes:.200}");
        let (mut from, mut to) = stage.connect().await.into_split();
        let sending = tokio::spawn(async move {
            // It may have been refused before all of it was sent. The shutdown tells that the rest never arrives.
            drop(to.write_all(bytes.as_bytes()).await);
            drop(to.shutdown().await);
        });
        let mut answer = Vec::new();
        let read = timeout(Duration::from_secs(30), from.read_to_end(&mut answer)).await;
        read.unwrap_or_else(|_| panic!("{about} is not ended")).ok();
        sending.await.unwrap();
        if !answer.is_empty() {
            let status = Answer::read(&answer).status;
            assert!(statuses.contains(&status), "{about} is answered {status}");
        }
        assert_eq!(keys(&mut connection), before, "{about} left something");
    }
    assert_eq!(stage.put("a", TASK).await.status, 201);
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_leaves_nothing_in_redis() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let patience = Duration::from_millis(200);
    let (stage, mut connection) =
        (Stage::over_with(&redis, |terms| terms.api.body_timeout = patience).await, redis.connect());
    let before = keys(&mut connection);
    for (path, kind) in [("/v1/tasks", JSON), ("/v1/preview", JSON), ("/v1/tasks:batch", NDJSON)] {
        let mut stream = stage.connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n");
        let half = &TASK[..TASK.len() / 2];
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{half}", TASK.len()).as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let answer = Answer::read(&bytes);
        document::check("POST", path, &answer);
        match kind {
            NDJSON => assert_eq!(answer.lines()[0]["error"]["code"], "too_slow", "{answer:?}"),
            _ => assert_eq!(answer.problem(), (408, "too_slow".into())),
        }
        assert_eq!(keys(&mut connection), before, "{path} left something");
    }
}
