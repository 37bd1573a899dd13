//! The stdout sink: one JSON object per line.
//!
//! - The key is field `key`. A message is accepted when its line is flushed. None is ever rejected.
//! - `{"key","task","due","destination","headers","payload"}`: `due` in epoch milliseconds; `headers` are the task's
//!   own; `payload` is the JSON of the message with spaces for line breaks. A payload that is not JSON is in
//!   `payload_base64`, with `content_type`. An empty payload has neither field.
//! - One thread writes whole lines, so that a reader that has stopped reading blocks nothing else. Lines that it cannot
//!   write within `answer_timeout` are `Retry`. Lines that it has not started by then are never written.
//! - A failed write may leave an incomplete line; the next line then starts on a new line.

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::BoxStream;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use crate::answers::Answers;
use crate::link::{PublishTracker, deadline, no_answer};
use crate::{Away, Fault, Message, Outcome, Sink, SinkError, Trouble};

/// Lines are written and flushed in blocks of 256 KiB, so that a batch of large payloads is not in memory twice.
const BLOCK_BYTES: usize = 256 * 1024;

/// A sink that writes lines, by default to stdout.
pub struct StdoutSink {
    inner: Arc<Inner>,
}

struct Inner {
    blocks: mpsc::Sender<Block>,
    answer_timeout: Duration,
    publishes: PublishTracker,
    broken: Arc<AtomicBool>,
}

/// Lines to write and flush, and where to report the result.
struct Block {
    lines: Vec<u8>,
    done: oneshot::Sender<Result<(), String>>,
}

impl StdoutSink {
    /// Writes to stdout of this process.
    ///
    /// # Errors
    /// If the writing thread cannot be started.
    pub fn new(answer_timeout: Duration) -> Result<StdoutSink, SinkError> {
        StdoutSink::to(std::io::stdout(), answer_timeout)
    }

    /// Writes to `writer` from a thread that ends with the sink.
    ///
    /// # Errors
    /// If this thread cannot be started.
    pub fn to(writer: impl Write + Send + 'static, answer_timeout: Duration) -> Result<StdoutSink, SinkError> {
        // Capacity 1: a block that waits behind the current one stays in its publish, so that dropping the publish
        // still withdraws it.
        let (blocks, inbox) = mpsc::channel(1);
        let broken = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("stdout sink".to_owned());
        let seen = Arc::clone(&broken);
        thread
            .spawn(move || write_blocks(writer, inbox, &seen))
            .map_err(|error| SinkError::url(format!("cannot start the thread that writes to stdout: {error}")))?;
        Ok(StdoutSink {
            inner: Arc::new(Inner { blocks, answer_timeout, publishes: PublishTracker::default(), broken }),
        })
    }
}

#[async_trait]
impl Sink for StdoutSink {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (inner, deadline) = (Arc::clone(&self.inner), deadline(self.inner.answer_timeout));
        Answers::stream(batch.len(), |answers| async move {
            let _pass = match inner.publishes.enter() {
                Ok(pass) => pass,
                Err(trouble) => return answers.give_up(trouble.fault, &trouble.detail),
            };
            if tokio::time::timeout_at(deadline, publish(&inner, batch, &answers)).await.is_err() {
                answers.give_up(Fault::Unanswered, &no_answer("stdout:", inner.answer_timeout));
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let unreachable = |detail: String| Away::from(detail).of_sink("stdout:");
        self.inner.publishes.check_open().map_err(|trouble| unreachable(trouble.detail))?;
        // Reported once, because only another write can show whether the pipe has a reader again.
        if self.inner.broken.swap(false, Ordering::Relaxed) {
            let detail = "the last write failed: broken pipe".to_owned();
            return Err(unreachable(detail));
        }
        Ok(())
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        self.inner.publishes.shut(deadline).await
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    fn kind(&self) -> &'static str {
        "stdout"
    }

    fn needs_destination(&self) -> bool {
        false
    }
}

/// Writes the batch block by block and answers each block when it is flushed.
async fn publish(inner: &Inner, batch: Vec<Message>, answers: &Answers) {
    let mut messages = batch.iter().peekable();
    let mut next = 0;
    while messages.peek().is_some() {
        let first = next;
        let mut lines = Vec::new();
        while lines.len() < BLOCK_BYTES
            && let Some(message) = messages.next()
        {
            write_line(&mut lines, message);
            next += 1;
        }
        let (done, written) = oneshot::channel();
        let Ok(place) = inner.blocks.reserve().await else {
            return answers.give_up(Fault::Sink, "the thread that writes has ended");
        };
        answers.handed(next);
        place.send(Block { lines, done });
        let outcome = match written.await {
            Ok(Ok(())) => Outcome::Accepted,
            Ok(Err(detail)) => Outcome::Retry(Trouble::open(Fault::Sink, detail)),
            Err(_) => Outcome::Retry(Trouble::open(Fault::Sink, "the thread that writes has ended")),
        };
        (first..next).for_each(|index| answers.set(index, outcome.clone()));
        // The thread may be so fast that this loop never waits. Yield, so that answers are reported before more is
        // written.
        tokio::task::yield_now().await;
    }
}

/// The writing thread. It skips blocks whose publish has ended, because their messages were answered `Retry`.
fn write_blocks(mut writer: impl Write, mut inbox: mpsc::Receiver<Block>, broken: &AtomicBool) {
    let mut torn = false;
    while let Some(block) = inbox.blocking_recv() {
        if block.done.is_closed() {
            continue;
        }
        let written = (if torn { writer.write_all(b"\n") } else { Ok(()) })
            .and_then(|()| writer.write_all(&block.lines))
            .and_then(|()| writer.flush());
        torn = written.is_err();
        let broken_pipe = written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        broken.store(broken_pipe, Ordering::Relaxed);
        // An error means that the publish has ended and its messages were answered `Retry`. The reader will see the
        // same keys again.
        block.done.send(written.map_err(|error| format!("cannot write to stdout: {error}"))).ok();
    }
}

/// The line of one message.
#[derive(Serialize)]
struct Line<'a> {
    key: &'a str,
    task: &'a str,
    due: i64,
    destination: &'a str,
    headers: Headers<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
}

/// The task's own headers as an object.
struct Headers<'a>(&'a [(String, String)]);

impl Serialize for Headers<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The payload if it is JSON. Line breaks can only be between tokens, where a space has the same meaning.
fn json(payload: &[u8]) -> Option<Cow<'_, RawValue>> {
    let json: &RawValue = serde_json::from_slice(payload).ok()?;
    if !json.get().contains(['\n', '\r']) {
        return Some(Cow::Borrowed(json));
    }
    RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok().map(Cow::Owned)
}

fn write_line(lines: &mut Vec<u8>, message: &Message) {
    let payload = json(&message.payload);
    let encoded = payload.is_none() && !message.payload.is_empty();
    let line = Line {
        key: &message.key,
        task: &message.task,
        due: message.due_ms,
        destination: &message.destination,
        headers: Headers(&message.headers),
        payload,
        payload_base64: encoded.then(|| STANDARD.encode(&message.payload)),
        content_type: message.content_type.as_deref().filter(|_| encoded),
    };
    serde_json::to_writer(&mut *lines, &line).expect("text, numbers and JSON always serialise into memory");
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::StreamExt;

    use super::*;

    fn message(key: &str, payload: &str) -> Message {
        Message {
            key: key.to_owned(),
            task: "t".to_owned(),
            due_ms: 7,
            attempt: 2,
            destination: "d".to_owned(),
            record_key: None,
            native: None,
            headers: vec![("tenant".to_owned(), "a\"b".to_owned())],
            is_tombstone: false,
            content_type: Some("text/plain".to_owned()),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        }
    }

    fn line(payload: &str) -> String {
        let mut lines = Vec::new();
        write_line(&mut lines, &message("t:7", payload));
        String::from_utf8(lines).expect("text")
    }

    #[test]
    fn a_message_is_one_line_of_json() {
        let start = r#"{"key":"t:7","task":"t","due":7,"destination":"d","headers":{"tenant":"a\"b"}"#;
        assert_eq!(line("{\"a\": 1.0}"), format!("{start},\"payload\":{{\"a\": 1.0}}}}\n"));
        assert_eq!(line("[1,\r\n2]"), format!("{start},\"payload\":[1,  2]}}\n"));
        assert_eq!(line("x y"), format!("{start},\"payload_base64\":\"eCB5\",\"content_type\":\"text/plain\"}}\n"));
        assert_eq!(line(""), format!("{start}}}\n"));
    }

    /// A writer that fails once after three bytes, then blocks until it is released.
    struct Moody {
        text: Arc<parking_lot::Mutex<Vec<u8>>>,
        fail: bool,
        go: std::sync::mpsc::Receiver<()>,
    }

    impl Write for Moody {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut text = self.text.lock();
            if self.fail && !text.is_empty() {
                self.fail = false;
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            let length = if self.fail { 3 } else { bytes.len() };
            text.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.go.recv().map_err(|_| std::io::ErrorKind::Other.into())
        }
    }

    #[tokio::test]
    async fn a_broken_or_blocked_reader_is_a_retry_and_the_next_line_is_whole() {
        let text = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (let_go, go) = std::sync::mpsc::channel();
        let writer = Moody { text: Arc::clone(&text), fail: true, go };
        // Long if an answer is expected, short if none is.
        let (long, short) = (Duration::from_secs(30), Duration::from_millis(200));
        let mut sink = StdoutSink::to(writer, long).unwrap();
        let one = |sink: &StdoutSink, key: &str| sink.publish(vec![message(key, "1")]).collect::<Vec<_>>();

        let broken = one(&sink, "a").await;
        assert!(matches!(&broken[..], [(0, Outcome::Retry(t))] if t.fault == Fault::Sink && !t.definite), "{broken:?}");
        assert!(sink.check().await.is_err());
        assert!(
            sink.check().await.is_ok(),
            "only a write can show that somebody reads again: one has to be let through"
        );

        Arc::get_mut(&mut sink.inner).unwrap().answer_timeout = short;
        let blocked = one(&sink, "b").await;
        assert!(matches!(&blocked[..], [(0, Outcome::Retry(t))] if t.fault == Fault::Unanswered), "{blocked:?}");
        let waiting = one(&sink, "c").await;
        assert!(matches!(&waiting[..], [(0, Outcome::Retry(_))]), "{waiting:?}");

        Arc::get_mut(&mut sink.inner).unwrap().answer_timeout = long;
        let_go.send(()).unwrap();
        let_go.send(()).unwrap();
        assert_eq!(one(&sink, "d").await, [(0, Outcome::Accepted)]);
        assert!(sink.check().await.is_ok());
        let text = String::from_utf8(text.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines.len(),
            3,
            "the torn line, b, and d, but not c, which was given up before it was begun: {text}"
        );
        assert!(lines[1].contains("\"key\":\"b\"") && lines[2].contains("\"key\":\"d\""), "{text}");
        sink.close(Duration::from_secs(1)).await.unwrap();
        assert!(matches!(&one(&sink, "e").await[..], [(0, Outcome::Retry(t))] if t.definite && t.fault == Fault::Sink));
    }
}
