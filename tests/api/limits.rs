//! Limits of size, time and number, and the end of a server.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::{Answer, Stage};

const HEAD: &str =
    "PUT /v1/tasks/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
const TASK: &str = r#"{"schedule":{"in":"1s"},"message":{}}"#;

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_announced_or_not() {
    let stage = Stage::start_with(|terms| terms.api.body = 1000).await;
    let large = format!("{{\"schedule\":{{\"in\":\"1s\"}},\"message\":{{\"payload\":\"{}\"}}}}", "x".repeat(5000));
    assert_eq!(stage.put("a", &large).await.problem(), (413, "too_large".into()));
    // Announced: refused before the body is sent.
    let mut stream = stage.connect().await;
    stream.write_all(format!("{HEAD}content-length: 5000\r\nexpect: 100-continue\r\n\r\n").as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).problem(), (413, "too_large".into()));
    // Not announced: refused when the limit is exceeded.
    let mut stream = stage.connect().await;
    let chunk = "x".repeat(800);
    let chunks = format!("{:x}\r\n{chunk}\r\n", chunk.len()).repeat(2);
    stream.write_all(format!("{HEAD}transfer-encoding: chunked\r\n\r\n{chunks}").as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).problem(), (413, "too_large".into()));
}

#[tokio::test]
async fn a_request_without_a_payload_has_at_most_16_kib() {
    let stage = Stage::start().await;
    let padded = |json: &str, length: usize| format!("{json}{}", " ".repeat(length - json.len()));
    for (path, json) in [
        ("/v1/preview", r#"{"schedule":{"in":"1s"}}"#),
        ("/v1/dead:requeue", "{}"),
        ("/v1/dead:discard", "{}"),
        ("/v1/dead/a:1/requeue", "{}"),
    ] {
        let large = stage.post(path, &padded(json, (16 << 10) + 1)).await;
        assert_eq!(large.problem(), (413, "too_large".into()), "{path}");
        assert_ne!(stage.post(path, &padded(json, 16 << 10)).await.status, 413, "{path}");
    }
}

/// While one unfinished body takes most of the memory for bodies, large puts are refused, and long lines of a batch
/// wait. Small requests are not affected.
#[tokio::test]
async fn bodies_under_way_share_a_budget() {
    let stage = Stage::start_with(|terms| terms.api.bodies = 1 << 20).await;
    let task = |bytes: usize| {
        let payload = "x".repeat(bytes);
        format!("{{\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"payload\":\"{payload}\"}}}}")
    };
    let large = task(500_000);
    let padded = format!("{}{}", task(10), " ".repeat(1_000_000));
    let begun = Instant::now();
    let mut slow = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "the slow body never got the memory");
        let mut stream = stage.connect().await;
        let head = format!("{HEAD}content-length: {}\r\n\r\n{}", padded.len(), &padded[..padded.len() - 1]);
        stream.write_all(head.as_bytes()).await.unwrap();
        // Until the server has read the slow body, either that or the put `b` may be refused, by chance. Repeat until it
        // is the put.
        let (mut other, mut refused) = (200, false);
        while other < 300 && !refused && begun.elapsed() < Duration::from_secs(60) {
            other = stage.put("b", &large).await.status;
            refused = timeout(Duration::from_millis(20), stream.read(&mut [0; 12])).await.is_ok();
        }
        if other >= 300 && !refused {
            break stream;
        }
    };
    assert_eq!(stage.put("b", &large).await.problem(), (503, "busy".into()));
    assert_eq!(stage.put("c", &task(10_000)).await.status, 201);
    let line = |id: &str, bytes: usize| task(bytes).replacen('{', &format!("{{\"id\":\"{id}\","), 1);
    let lines: String = (0..100).map(|id| line(&format!("d{id}"), 200) + "\n").collect();
    let answers = stage.batch(&lines).await;
    assert_eq!(answers.body.matches("created").count(), 100, "{answers:?}");
    // A long line of a batch waits until others have ended.
    let mut batch = stage.connect().await;
    let lines = format!("{}\n{}\n", line("e", 10), line("g", 400_000));
    let head = "POST /v1/tasks:batch?answers=each HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n";
    batch.write_all(format!("{head}content-length: {}\r\n\r\n{lines}", lines.len()).as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    while !String::from_utf8_lossy(&answers).contains("created") {
        assert_ne!(batch.read_buf(&mut answers).await.unwrap(), 0);
    }
    assert!(timeout(Duration::from_millis(200), batch.read_buf(&mut answers)).await.is_err());
    slow.write_all(b" ").await.unwrap();
    let mut bytes = Vec::new();
    slow.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).status, 201);
    batch.read_to_end(&mut answers).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answers).matches("created").count(), 2);
    assert!(stage.put("b", &large).await.status < 300);
    let lines: String = (0..9).map(|id| line(&format!("f{id}"), 400_000) + "\n").collect();
    let answers = stage.batch(&lines).await;
    assert_eq!(answers.body.matches("created").count(), 9, "lines wait for each other: {answers:?}");
}

/// A byte now and then would keep the memory for a long line for ever.
#[tokio::test]
async fn a_long_line_that_comes_too_slowly_ends_its_batch() {
    let stage = Stage::start_with(|terms| terms.api.body_timeout = Duration::from_millis(500)).await;
    let mut stream = stage.connect().await;
    let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ncontent-length: 500000\r\n\r\n";
    stream.write_all(format!("{head}{}", "x".repeat(20_000)).as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..600 {
        let sent = stream.write_all(b"x").await;
        let read = timeout(Duration::from_millis(50), stream.read_buf(&mut answers)).await;
        if sent.is_err() || matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    assert!(String::from_utf8_lossy(&answers).contains("\"too_slow\""), "{}", String::from_utf8_lossy(&answers));
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_refused() {
    let stage = Stage::start_with(|terms| terms.api.body_timeout = Duration::from_millis(100)).await;
    let mut stream = stage.connect().await;
    stream.write_all(format!("{HEAD}content-length: 100\r\n\r\n{{").as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).problem(), (408, "too_slow".into()));
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let stage = Stage::start_with(|terms| terms.server.header_timeout = Duration::from_millis(100)).await;
    for begun in ["", "GET /healthz HT"] {
        let mut stream = stage.connect().await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await.expect("closed").ok();
    }
}

#[tokio::test]
async fn a_client_that_takes_no_answers_is_cut_off() {
    let stage = Stage::start_with(|terms| terms.server.write_timeout = Duration::from_millis(300)).await;
    let mut stream = stage.connect().await;
    let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let lines = "nonsense\n".repeat(5000);
    let chunk = format!("{:x}\r\n{lines}\r\n", lines.len());
    // Sends without reading, until the server disconnects.
    let cut =
        timeout(Duration::from_secs(60), async { while stream.write_all(chunk.as_bytes()).await.is_ok() {} }).await;
    assert!(cut.is_ok(), "still connected");
}

#[tokio::test]
async fn a_connection_above_the_limit_waits_while_all_others_are_busy() {
    let stage = Stage::start_with(|terms| terms.server.connections = 1).await;
    let mut first = stage.connect().await;
    let head = format!("{HEAD}content-length: {}\r\nexpect: 100-continue\r\n\r\n", TASK.len());
    first.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body once it handles the request.
    assert_ne!(first.read(&mut [0; 64]).await.unwrap(), 0);
    let mut second = Box::pin(stage.get("/healthz"));
    assert!(timeout(Duration::from_millis(300), &mut second).await.is_err());
    first.write_all(TASK.as_bytes()).await.unwrap();
    assert_eq!(second.await.status, 200);
}

/// Clients that hold all connections, silent or between two requests, keep nobody out.
#[tokio::test]
async fn the_connection_that_is_idle_longest_makes_room() {
    let stage = Stage::start_with(|terms| {
        terms.server.connections = 3;
        terms.server.header_timeout = Duration::from_secs(3600);
    })
    .await;
    let mut kept = Vec::new();
    for number in 0..3 {
        let mut stream = stage.connect().await;
        if number != 1 {
            let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        } else {
            stream.write_all(b"GET /hea").await.unwrap();
        }
        kept.push(stream);
    }
    for _ in 0..9 {
        let answer = timeout(Duration::from_secs(10), stage.get("/healthz")).await.expect("an answer");
        assert_eq!(answer.status, 200);
    }
    // The one that was idle longest is closed.
    let read = timeout(Duration::from_secs(10), kept[0].read(&mut [0; 64])).await.expect("closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn probes_have_an_address_of_their_own() {
    let stage = Stage::start_with(|terms| terms.server.connections = 1).await;
    let _place = stage.connect().await;
    for (path, status) in
        [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/stats", 404), ("/openapi.json", 404)]
    {
        let mut stream = stage.probes.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(Answer::read(&bytes).status, status, "{path}");
    }
}

#[tokio::test]
async fn a_stop_finishes_current_requests_and_accepts_no_new_connection() {
    let stage = Stage::start().await;
    let (idle, mut busy) = (stage.connect().await, stage.connect().await);
    let head = format!("{HEAD}content-length: {}\r\n\r\n", TASK.len());
    busy.write_all(head.as_bytes()).await.unwrap();
    // Once this later request is answered, the server has also read the head of the one before.
    assert_eq!(stage.get("/healthz").await.status, 200);
    stage.stop.cancel();
    while stage.server.is_finished() || tokio::net::TcpStream::connect(stage.client.0).await.is_ok() {
        assert!(!stage.server.is_finished(), "it does not wait for the request under way");
        tokio::task::yield_now().await;
    }
    busy.write_all(TASK.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    busy.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).status, 201);
    drop(idle);
    assert!(stage.end().await);
}

/// A byte each second would put the stop off until its deadline.
#[tokio::test]
async fn a_stop_does_not_wait_for_requests_that_have_not_arrived() {
    let hour = Duration::from_secs(3600);
    let stage = Stage::start_with(|terms| {
        (terms.deadline, terms.server.header_timeout, terms.api.body_timeout) = (hour, hour, hour);
    })
    .await;
    let (mut head, mut body) = (stage.connect().await, stage.connect().await);
    head.write_all(b"GET /heal").await.unwrap();
    body.write_all(format!("{HEAD}content-length: 100\r\n\r\n{{").as_bytes()).await.unwrap();
    let mut batch = stage.connect().await;
    let lines = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
    batch.write_all(lines.as_bytes()).await.unwrap();
    assert_eq!(stage.get("/healthz").await.status, 200);
    assert!(timeout(Duration::from_secs(60), stage.end()).await.expect("it ends"));
}

#[tokio::test]
async fn a_stop_cuts_off_requests_that_exceed_its_deadline() {
    let stage = Stage::start_with(|terms| terms.deadline = Duration::from_millis(200)).await;
    let mut busy = stage.connect().await;
    busy.write_all(format!("{HEAD}content-length: 100\r\n\r\n{{").as_bytes()).await.unwrap();
    assert_eq!(stage.get("/healthz").await.status, 200);
    let begun = Instant::now();
    assert!(!stage.end().await, "cut off");
    assert!(begun.elapsed() < Duration::from_secs(10));
}
