//! `punctual task put -f FILE` without an id: every line is a task. Lines go out while their answers come in, and no more
//! of either is held than is under way.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Response};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::client::{Client, Outgoing};
use super::serve::Signals;
use super::task::{FaultView, faults};
use super::{Failure, say, tell};

/// Bytes that are read at once, and parts that wait to be sent at most.
const PART: usize = 64 << 10;
const PARTS: usize = 8;

/// How long the first line waits for the answer to begin: who is refused anyway need not send. Something between the two
/// may want the lines first.
const COURTESY: Duration = Duration::from_secs(1);

/// How long no answer may come while one is owed, twice: far longer than an instance lets its timeline take.
const STALL: Duration = Duration::from_secs(30);

/// Bytes of one answer at most.
const LONGEST: usize = 16 << 20;

const NO_BATCH: &str = "it answers what is no answer to a batch; is it an instance of punctual?";

/// How far the file has been read.
#[derive(Default)]
struct Progress {
    /// The last line that is not blank; blank ones are not answered.
    line: AtomicU64,
    bytes: AtomicU64,
    ended: AtomicBool,
    broken: OnceLock<String>,
}

/// An answer to a line.
#[derive(Deserialize)]
struct LineAnswer {
    line: u64,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    result: Option<String>,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
    #[serde(default)]
    errors: Vec<FaultView>,
}

/// What is known to have happened.
struct Tally {
    json: bool,
    bar: ProgressBar,
    /// The beginning of an answer whose end has not come yet.
    rest: Vec<u8>,
    line: u64,
    put: BTreeMap<String, u64>,
    failed: u64,
}

/// Why a batch ended before its end.
enum Ended {
    Words(String),
    Signal(&'static str),
}

/// Puts every line of a file, `-` being stdin.
pub(super) async fn put(client: &Client, file: &Path, json: bool) -> Result<(), Failure> {
    let doing = format!("cannot put the tasks of `{}`", file.display());
    let mut signals = Signals::listen()?;
    let (input, size) = open(file)?;
    let progress = Arc::new(Progress::default());
    let (parts, inbox) = mpsc::channel(PARTS);
    let (begun, begin) = oneshot::channel();
    // A thread of its own: a read of stdin cannot be broken off, and must not hold the end up.
    let reading = Arc::clone(&progress);
    std::thread::spawn(move || read(input, &parts, &reading));
    let sent = client.send(Method::POST, "/v1/tasks:batch", body(inbox, begin), "application/x-ndjson");
    let sent = tokio::select! {
        sent = sent => sent,
        signal = signals.next() => return Err(Failure::failed(anyhow!("{doing}: {signal} received, nothing was answered"))),
    };
    let response = sent.map_err(|error| error.while_doing(&doing, client))?;
    if !response.status().is_success() {
        let answer = client.whole(response).await.map_err(|error| error.while_doing(&doing, client))?;
        return Err(super::task::refused(client, &answer, &doing, json));
    }
    begun.send(()).ok();
    let mut tally = Tally::new(json, size);
    let ended = tokio::select! {
        ended = tally.follow(client, response, &progress) => ended.map_err(Ended::Words),
        signal = signals.next() => Err(Ended::Signal(signal)),
    };
    tally.bar.finish_and_clear();
    tally.conclude(ended, client, file, &doing)
}

fn open(file: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let opened = std::fs::File::open(file).and_then(|opened| {
        let metadata = opened.metadata()?;
        if metadata.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok((opened, metadata)) }
    });
    let (opened, metadata) = opened.map_err(|error| {
        Failure::usage(anyhow::Error::from(error).context(format!("cannot read the tasks from `{}`", file.display())))
    })?;
    Ok((Box::new(opened), metadata.is_file().then_some(metadata.len())))
}

/// Reads to the end, as fast as parts are taken.
fn read(mut input: Box<dyn Read + Send>, parts: &mpsc::Sender<io::Result<Bytes>>, progress: &Progress) {
    let (mut line, mut buffer) = (1, vec![0; PART]);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return progress.ended.store(true, Ordering::Release),
            Ok(length) => {
                for (number, piece) in buffer[..length].split(|&byte| byte == b'\n').enumerate() {
                    line += u64::from(number > 0);
                    if !piece.trim_ascii().is_empty() {
                        progress.line.store(line, Ordering::Release);
                    }
                }
                progress.bytes.fetch_add(length as u64, Ordering::Relaxed);
                if parts.blocking_send(Ok(Bytes::copy_from_slice(&buffer[..length]))).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                progress.broken.set(error.to_string()).ok();
                parts.blocking_send(Err(error)).ok();
                return;
            }
        }
    }
}

fn body(inbox: mpsc::Receiver<io::Result<Bytes>>, begin: oneshot::Receiver<()>) -> Outgoing {
    let parts = stream::once(async move {
        timeout(COURTESY, begin).await.ok();
        stream::unfold(inbox, |mut inbox| async { Some((inbox.recv().await?, inbox)) })
    });
    StreamBody::new(parts.flatten().map_ok(Frame::data)).boxed_unsync()
}

impl Tally {
    fn new(json: bool, size: Option<u64>) -> Tally {
        let target = match json && io::stdout().is_terminal() {
            // The answers show there already.
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let template = if size.is_some() { "{wide_bar} {percent:>3} %  {msg}" } else { "{spinner} {msg}" };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(size, target).with_style(style);
        Tally { json, bar, rest: Vec::new(), line: 0, put: BTreeMap::new(), failed: 0 }
    }

    /// Takes the answers in, until they end as they should; otherwise says why not.
    async fn follow(
        &mut self,
        client: &Client,
        response: Response<Incoming>,
        progress: &Progress,
    ) -> Result<(), String> {
        let mut body = response.into_body();
        let mut owed = false;
        loop {
            let part = match timeout(STALL, body.frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    return Err(match progress.broken.get() {
                        Some(words) => format!("the file cannot be read further: {words}"),
                        None => client.no_answer(&error).to_string(),
                    });
                }
                Ok(None) => break,
                Err(_) if owed => return Err(format!("no answer within {:?}", STALL * 2)),
                Err(_) => {
                    owed = self.line < progress.line.load(Ordering::Acquire);
                    continue;
                }
            };
            owed = false;
            self.take(&part)?;
            self.show(progress);
        }
        if !self.rest.is_empty() {
            return Err(NO_BATCH.to_owned());
        }
        let all = progress.ended.load(Ordering::Acquire) && self.line >= progress.line.load(Ordering::Acquire);
        if all { Ok(()) } else { Err("the instance ended it before its end".to_owned()) }
    }

    /// Takes a part of the answers in.
    fn take(&mut self, part: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(part);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if self.rest.len() - whole > LONGEST {
            return Err(NO_BATCH.to_owned());
        }
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        if self.json {
            // A reader that went away is no reason to put less.
            io::stdout().lock().write_all(&lines).ok();
        }
        let mut told = String::new();
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let answer: LineAnswer = serde_json::from_slice(line).map_err(|_| NO_BATCH.to_owned())?;
            self.line = answer.line;
            match (answer.result, answer.error) {
                (Some(result), None) => *self.put.entry(result).or_default() += 1,
                (_, error) => {
                    self.failed += 1;
                    told.push_str(&words(answer.line, answer.id.as_deref(), error));
                }
            }
        }
        if !told.is_empty() {
            self.bar.suspend(|| tell(&told));
        }
        Ok(())
    }

    fn show(&self, progress: &Progress) {
        let (lines, bytes) = (progress.line.load(Ordering::Relaxed), progress.bytes.load(Ordering::Relaxed));
        let share = u128::from(bytes) * u128::from(self.line) / u128::from(lines.max(1));
        self.bar.set_position(u64::try_from(share).unwrap_or(bytes));
        self.bar.set_message(format!("{} lines answered, {} failed", self.answered(), self.failed));
    }

    fn answered(&self) -> u64 {
        self.put.values().sum::<u64>() + self.failed
    }

    /// The total, and whether all is well.
    fn conclude(self, ended: Result<(), Ended>, client: &Client, file: &Path, doing: &str) -> Result<(), Failure> {
        let results: Vec<_> = self.put.iter().map(|(result, count)| format!("{count} {result}")).collect();
        let put: u64 = self.put.values().sum();
        let total =
            format!("put {put} tasks: {}\n", if results.is_empty() { "none".into() } else { results.join(", ") });
        if self.json {
            tell(&total)
        } else {
            say(&total)
        }
        let answered = self.answered();
        let known = match self.line {
            0 => "no line was answered".to_owned(),
            line => format!("all lines up to {line} are answered, {put} of them put and {} failed", self.failed),
        };
        let beyond = "what comes after may have been put or not";
        let again = "put it again from there, or as a whole: a task that stands as it is stays `unchanged`, though with \
                     `in` its time begins anew";
        match ended {
            Err(Ended::Words(words)) => {
                Err(Failure::failed(anyhow!("{doing} at `{}`: {words}; {known}, {beyond}", client.shown())).hint(again))
            }
            Err(Ended::Signal(signal)) => {
                Err(Failure::failed(anyhow!("{doing}: {signal} received; {known}, {beyond}")).hint(again))
            }
            Ok(()) if self.failed == 0 => Ok(()),
            Ok(()) => {
                let failure =
                    Failure::failed(anyhow!("{} of {answered} lines of `{}` failed", self.failed, file.display()));
                let hint = "without an id every line of the file is a task with its `id`";
                Err(if put == 0 { failure.hint(hint) } else { failure })
            }
        }
    }
}

/// What went wrong with a line.
fn words(line: u64, id: Option<&str>, error: Option<Problem>) -> String {
    let id = id.map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let (detail, errors) = error.map(|error| (error.detail, error.errors)).unwrap_or_default();
    format!("line {line}{id}: {detail}{}\n", faults(&errors))
}
