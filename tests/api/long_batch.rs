//! Long batches to a running instance with a real Redis: in order, in bounded memory, and through an outage.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, say};

/// Survives kill -9 with everything that was answered.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// Timeout of an answer: a generous deadline, not an expectation.
const SOON: Duration = Duration::from_secs(60);

/// A batch that is sent while its answers are read.
struct Batch {
    to: OwnedWriteHalf,
    answers: mpsc::UnboundedReceiver<Value>,
}

impl Batch {
    async fn begin(instance: &Punctual) -> Batch {
        let stream = TcpStream::connect(("127.0.0.1", instance.port)).await.unwrap();
        let (from, mut to) = stream.into_split();
        let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        to.write_all(head.as_bytes()).await.unwrap();
        let (answered, answers) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(from).lines();
            // Besides answers there are the head and the chunk sizes, each on a line.
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.starts_with('{') {
                    answered.send(serde_json::from_str(&line).unwrap()).unwrap();
                }
            }
        });
        Batch { to, answers }
    }

    async fn send(&mut self, lines: &str) {
        self.to.write_all(format!("{:x}\r\n{lines}\r\n", lines.len()).as_bytes()).await.unwrap();
    }

    /// Ends the body.
    async fn end(&mut self) {
        self.to.write_all(b"0\r\n\r\n").await.unwrap();
    }

    /// The next answer; `None` after the last one.
    async fn answer(&mut self) -> Option<Value> {
        timeout(SOON, self.answers.recv()).await.expect("an answer in time")
    }
}

fn config(redis: &RedisServer) -> String {
    format!("[redis]\nurl = \"{}\"\n[sinks.default]\nurl = \"memory:\"\n", redis.url())
}

fn line(id: &str) -> String {
    format!("{{\"id\":\"{id}\",\"schedule\":{{\"in\":\"9h\"}},\"message\":{{}}}}\n")
}

#[tokio::test]
async fn a_batch_is_answered_line_by_line_while_redis_dies_and_comes_back() {
    if !have("redis-server") {
        return;
    }
    let mut redis = RedisServer::start(DURABLE);
    let instance = Punctual::start(&config(&redis));
    let mut batch = Batch::begin(&instance).await;
    let (mut sent, mut answers) = (0_u64, Vec::<Value>::new());
    // Fifty lines at a time, before the answers to the last fifty are read, so that some are always under way.
    let (mut phase, mut since) = (0, 0);
    while phase < 3 {
        let lines: String = (0..50)
            .map(|_| {
                sent += 1;
                line(&format!("t{sent}"))
            })
            .collect();
        batch.send(&lines).await;
        while (answers.len() as u64) + 50 < sent {
            let answer = batch.answer().await.expect("it goes on");
            since += usize::from(answer.get("error").is_some() == (phase == 1));
            answers.push(answer);
        }
        if since >= 200 {
            match phase {
                0 => redis.server.kill(),
                1 => redis.server.restart(),
                _ => {}
            }
            (phase, since) = (phase + 1, 0);
        }
    }
    batch.end().await;
    while let Some(answer) = batch.answer().await {
        answers.push(answer);
    }
    assert_eq!(answers.len() as u64, sent);
    let (api, mut codes) = (instance.api(), std::collections::BTreeMap::<String, u32>::new());
    for (number, answer) in (1_u64..).zip(&answers) {
        assert_eq!((answer["line"].as_u64(), answer["id"].as_str()), (Some(number), Some(&*format!("t{number}"))));
        let said = answer["result"].as_str().or(answer["error"]["code"].as_str()).unwrap();
        *codes.entry(said.to_owned()).or_default() += 1;
        let there = api.send("GET", &format!("/v1/tasks/t{number}"), None).unwrap().status;
        match said {
            "created" => assert_eq!(there, 200, "{answer} is lost"),
            // The answer says that it may or may not have taken effect.
            "timeline_unknown" => assert!([200, 404].contains(&there), "{answer}: {there}"),
            _ => assert_eq!((answer["error"]["status"].as_u64(), there), (Some(503), 404), "{answer}"),
        }
    }
    assert!(codes["created"] >= 400 && codes.len() >= 2, "{codes:?}");
}

#[tokio::test]
async fn a_hundred_thousand_lines_are_answered_in_order_and_in_bounded_memory() {
    const LINES: u64 = 100_000;
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    // The first option belongs to the section `http`: a slow Redis must not cause refusals here.
    let instance = Punctual::start(&format!("timeline_timeout = \"60s\"\n{}", config(&redis)));
    let mut batch = Batch::begin(&instance).await;
    let bad = |number: u64| number.is_multiple_of(100);
    // Twice the allowed memory, if all of it were kept.
    let payload = format!("{{\"payload\":\"{}\"}}", "x".repeat(2000));
    for thousand in 0..LINES / 1000 {
        let numbers = thousand * 1000 + 1..=(thousand + 1) * 1000;
        let text = |number: u64| match bad(number) {
            true => line(&format!("t{number}")).replace("9h", "soon"),
            false => line(&format!("t{number}")).replace("{}", &payload),
        };
        let lines: String = numbers.map(text).collect();
        let mut sending = Box::pin(batch.send(&lines));
        // While Redis is stopped, no task is put, so the instance must stop reading. Then Redis continues.
        if thousand == 0 {
            redis.server.signal("STOP");
        }
        if timeout(Duration::from_millis(300), &mut sending).await.is_err() {
            redis.server.signal("CONT");
            sending.await;
        }
    }
    redis.server.signal("CONT");
    batch.end().await;
    for number in 1..=LINES {
        let answer = batch.answer().await.expect("an answer to each line");
        assert_eq!((answer["line"].as_u64(), answer["id"].as_str()), (Some(number), Some(&*format!("t{number}"))));
        match bad(number) {
            true => assert_eq!(answer["error"]["errors"][0]["pointer"], "/schedule/in", "{answer}"),
            false => assert_eq!(answer["result"], "created", "{answer}"),
        }
    }
    assert_eq!(batch.answer().await, None);
    let most = instance.memory("VmHWM");
    say(&format!("100,000 lines: at most {} MiB held", most >> 20));
    assert!(most < 100 << 20, "{} MiB were held", most >> 20);
}
