//! The batch: lines are answered in order, whatever they contain and however they arrive. A long answer may end with
//! counts.

use std::time::Duration;

use punctual::timeline::Verb;
use punctual::timeline::memory::InjectedFault;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{NOON, Stage};

fn line(id: &str, seconds: u32) -> String {
    format!("{{\"id\":\"{id}\",\"schedule\":{{\"in\":\"{seconds}s\"}},\"message\":{{}}}}\n")
}

fn created(line: u64, id: &str, seconds: i64) -> Value {
    json!({"line": line, "id": id, "result": "created", "due_ms": NOON + seconds * 1000})
}

#[tokio::test]
async fn a_bad_batch_line_does_not_affect_other_lines() {
    let stage = Stage::start().await;
    let lines = [
        line("a", 1),
        "\n".to_owned(),
        "nonsense\n".to_owned(),
        "{\"id\":\"b\",\"schedule\":{},\"message\":{}}\r\n".to_owned(),
        "{\"schedule\":{\"in\":\"1s\"},\"message\":{}}\n".to_owned(),
        "{\"id\":\"c\",\"schedule\":{\"in\":\"1s\"},\"message\":{},\"lane\":\"none\"}\n".to_owned(),
        line("d", 2).replace('\n', "\r\n"),
        line("e", 3).trim_end().to_owned(),
    ];
    let answer = stage.batch(&lines.concat()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/x-ndjson"));
    let answers = answer.lines();
    let numbers: Vec<_> = answers.iter().map(|answer| answer["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 3, 4, 5, 6, 7, 8], "an empty line is none");
    assert_eq!(
        (&answers[0], &answers[5], &answers[6]),
        (&created(1, "a", 1), &created(7, "d", 2), &created(8, "e", 3))
    );
    for (index, id, status, code, pointer) in [
        (1, Value::Null, 400, "malformed", ""),
        (2, json!("b"), 422, "invalid", "/schedule"),
        (3, Value::Null, 422, "invalid", "/id"),
        (4, json!("c"), 422, "invalid", "/lane"),
    ] {
        let (answer, error) = (&answers[index], &answers[index]["error"]);
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!((&error["status"], &error["code"]), (&json!(status), &json!(code)), "{answer}");
        assert_eq!(error["errors"][0]["pointer"], pointer, "{answer}");
        assert!(answer.get("result").is_none());
    }
    for (id, status) in [("a", 200), ("b", 404), ("c", 404), ("d", 200), ("e", 200)] {
        assert_eq!(stage.get(&format!("/v1/tasks/{id}")).await.status, status, "{id}");
    }
    let text = stage.metrics.text();
    assert!(text.contains("punctual_puts_total{result=\"created\"} 3"), "{text}");
    assert!(text.contains("punctual_puts_total{result=\"invalid\"} 3"), "{text}");
}

/// Some editors write a byte-order mark at the beginning of a file. Within a text it is an ordinary character.
#[tokio::test]
async fn a_byte_order_mark_at_the_beginning_is_skipped() {
    let stage = Stage::start().await;
    let answers = stage.batch(&format!("\u{feff}{}\u{feff}{}", line("a", 1), line("b", 1))).await.lines();
    assert_eq!(answers[0], created(1, "a", 1));
    assert_eq!(answers[1]["error"]["code"], "malformed", "{answers:?}");
    let task = "\u{feff}{\"schedule\":{\"in\":\"1s\"},\"message\":{}}";
    assert_eq!(stage.put("c", task).await.status, 201);
}

#[tokio::test]
async fn a_task_with_a_delay_of_zero_is_due_now() {
    let stage = Stage::start().await;
    assert_eq!(stage.batch(&line("a", 0)).await.lines(), [created(1, "a", 0)]);
}

#[tokio::test]
async fn thousands_of_lines_are_answered_in_order() {
    let stage = Stage::start().await;
    let lines: String = (0..5000).map(|i| line(&format!("t{i}"), 1 + i % 7)).collect();
    let answers = stage.batch(&lines).await.lines();
    assert_eq!(answers.len(), 5000);
    for (i, answer) in (0..).zip(&answers) {
        assert_eq!(*answer, created(i + 1, &format!("t{i}"), i64::try_from(1 + i % 7).unwrap()));
    }
}

#[tokio::test]
async fn an_id_that_comes_several_times_keeps_its_order() {
    let stage = Stage::start().await;
    let answers = stage.batch(&[line("a", 1), line("b", 1), line("a", 2), line("a", 3)].concat()).await.lines();
    let results: Vec<_> = answers.iter().map(|answer| answer["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["created", "created", "replaced", "replaced"]);
    assert_eq!(stage.get("/v1/tasks/a").await.json()["due_ms"], NOON + 3000);
}

#[tokio::test]
async fn a_batch_line_that_is_too_long_is_skipped() {
    let stage = Stage::start_with(|terms| terms.api.body = 2000).await;
    let long = format!(
        "{{\"id\":\"long\",\"schedule\":{{\"in\":\"1s\"}},\"message\":{{\"payload\":\"{}\"}}}}\n",
        "x".repeat(300_000)
    );
    let answers =
        stage.batch(&[line("a", 1), long.clone(), line("b", 1), long.trim_end().to_owned()].concat()).await.lines();
    assert_eq!(answers.len(), 4);
    assert_eq!((&answers[0], &answers[2]), (&created(1, "a", 1), &created(3, "b", 1)));
    for (index, line) in [(1, 2), (3, 4)] {
        assert_eq!(answers[index]["line"], line);
        assert_eq!(answers[index]["error"]["code"], "too_large");
    }
}

#[tokio::test]
async fn every_fault_of_a_batch_line_is_reported_at_once_including_its_lane() {
    let stage = Stage::start().await;
    let line = "{\"id\":\"a\",\"schedule\":{\"in\":\"soon\"},\"message\":{},\"lane\":\"none\"}\n";
    let answers = stage.batch(line).await.lines();
    let mut pointers: Vec<_> =
        answers[0]["error"]["errors"].as_array().unwrap().iter().map(|f| &f["pointer"]).collect();
    pointers.sort_by_key(|pointer| pointer.to_string());
    assert_eq!(pointers, [&json!("/lane"), &json!("/schedule/in")]);
}

#[tokio::test]
async fn a_batch_answer_shortens_long_text_from_a_bad_line() {
    let stage = Stage::start().await;
    let long = "~".repeat(100_000);
    let answer = stage.batch(&format!("{{\"id\":\"{long}\",\"{long}\":1}}\n{{\"a\":{{}}}}\n")).await;
    let answers = answer.lines();
    assert_eq!((answers.len(), answers[0]["id"].as_str().unwrap()), (2, &*"~".repeat(256)));
    let errors = answers[0]["error"]["errors"].as_array().unwrap();
    assert!(errors.iter().any(|fault| fault["code"] == "unknown_field"), "{answer:?}");
    assert!(answer.body.len() < 4000, "{} bytes", answer.body.len());
}

#[tokio::test]
async fn a_refusal_of_the_timeline_is_reported_on_each_line_of_a_batch() {
    let stage = Stage::start().await;
    stage.timeline.fail_next(Verb::Put, InjectedFault::Refused("OOM".into()));
    let answer = stage.batch(&[line("a", 1), line("b", 1)].concat()).await;
    assert_eq!(answer.status, 200);
    let codes: Vec<_> = answer.lines().iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(codes, ["timeline_refused", "timeline_refused"]);
}

/// As most clients do: the whole body first, then the answer. The socket's buffers hold neither of them.
#[tokio::test]
async fn a_client_that_reads_only_after_it_has_written_gets_counts_and_faults() {
    let stage = Stage::start().await;
    let mut stream = stage.connect().await;
    let count = 60_000;
    let lines: String = (1..=count)
        .map(|n| if n % 1000 == 0 { "nonsense\n".to_owned() } else { line(&format!("task-{n}"), 1) })
        .collect();
    let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{lines}", lines.len());
    let sent = tokio::time::timeout(Duration::from_secs(60), stream.write_all(request.as_bytes())).await;
    sent.expect("it does not stand still").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answers = super::Answer::read(&bytes).lines();
    let last = answers.last().unwrap();
    let from = last["counted_from_line"].as_u64().unwrap();
    assert!(from > 5000 && last["counts"]["created"].as_u64().unwrap() + from > count - 61, "{last}");
    assert_eq!(answers.iter().filter(|answer| answer["error"].is_object()).count(), 60, "every fault is listed");
    assert_eq!(stage.timeline.twin(super::shard()).tasks.len() as u64, count - 60);
}

#[tokio::test]
async fn the_mode_of_the_answers_can_be_chosen() {
    let stage = Stage::start().await;
    for (mode, status) in [("each", 200), ("end", 200), ("soon", 422), ("", 422)] {
        let path = format!("/v1/tasks:batch?answers={mode}");
        let answer = stage.call("POST", &path, "application/x-ndjson", &line("a", 1)).await;
        assert_eq!((answer.status, answer.lines().len()), (status, 1), "{mode}");
    }
}

#[tokio::test]
async fn answers_come_while_lines_are_still_sent() {
    let stage = Stage::start().await;
    let mut stream = stage.connect().await;
    let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut read = String::new();
    for id in ["a", "b", "c"] {
        let line = line(id, 1);
        // A line in two parts.
        for part in [&line[..10], &line[10..]] {
            stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
        while !read.contains(&format!("\"id\":\"{id}\"")) {
            let mut buffer = [0; 4096];
            let count = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await.unwrap().unwrap();
            assert_ne!(count, 0, "closed after {read}");
            read.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
}

#[tokio::test]
async fn a_batch_that_stalls_is_ended_and_answered_with_an_error() {
    let stage = Stage::start_with(|terms| terms.api.body_timeout = Duration::from_millis(200)).await;
    let mut stream = stage.connect().await;
    let line = line("a", 1);
    let head = "POST /v1/tasks:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}{:x}\r\n{line}\r\n", line.len()).as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answers = super::Answer::read(&bytes).lines();
    assert_eq!(answers[0], created(1, "a", 1));
    assert_eq!((answers.len(), &answers[1]["error"]["code"]), (2, &json!("too_slow")));
}
