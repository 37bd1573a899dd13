//! `punctual task put -f FILE` without an id: every line is a task. Lines are sent while answers arrive, and memory
//! holds only those under way.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc as blocking;
use std::time::Duration;

use anyhow::anyhow;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Response};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::client::{Client, courteous};
use super::fault::{FaultView, faults};
use super::feed::{MAX_PARTS, Progress, open, paced, read};
use super::out::{self, Printable};
use super::program::Signals;
use super::{Failure, say, tell};

/// If this program did not read answers for longer, that may be why the instance ended the batch.
const SLOW_READER_TIME: Duration = Duration::from_secs(1);

/// After a signal: how long printing the answers may take. Printing the summary may take five times as long.
const SHOW_TIMEOUT: Duration = Duration::from_secs(1);

/// Half of the time without an answer after which the batch fails; far longer than an instance's own timeouts.
const HALF_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of one answer, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

const NO_BATCH: &str = "its answer is not one to a batch; is it an instance of punctual?";

/// The answer to one line.
#[derive(Deserialize)]
struct LineAnswer {
    line: u64,
    #[serde(default)]
    id: Option<Printable>,
    #[serde(default)]
    result: Option<Printable>,
    #[serde(default)]
    overdue: bool,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    detail: Printable,
    #[serde(default)]
    errors: Vec<FaultView>,
}

/// Output while the batch is under way.
enum Shown {
    Answers(Vec<u8>),
    Failed(String),
}

/// The state of the batch.
struct Tally {
    json: bool,
    bar: ProgressBar,
    shown: Option<mpsc::Sender<Shown>>,
    /// The longest time that the output was blocked.
    held: Duration,
    /// The numbers of the non-blank lines, each of which gets an answer.
    lines: blocking::Receiver<u64>,
    /// The line of the next answer, once it is known.
    next: Option<u64>,
    /// The beginning of an incomplete answer.
    rest: Vec<u8>,
    line: u64,
    put: BTreeMap<Printable, u64>,
    overdue: u64,
    failed: u64,
}

/// Why a batch ended early.
enum Ended {
    Failed(String),
    Signal(&'static str),
}

/// Puts every line of a file; `-` is stdin.
pub(super) async fn put(client: &Client, file: &Path, json: bool) -> Result<(), Failure> {
    let doing = format!("cannot put the tasks of `{}`", file.display());
    let (input, size) = open(file)?;
    // From here on only threads of their own may block, otherwise signals would be ignored.
    let mut signals = Signals::listen()?;
    let progress = Arc::new(Progress::default());
    let (parts, inbox) = mpsc::channel(MAX_PARTS);
    let (numbers, lines) = blocking::channel();
    let reading = Arc::clone(&progress);
    std::thread::spawn(move || read(input, &parts, &numbers, &reading));
    let (begun, begins) = watch::channel(false);
    let body = courteous(begins.clone(), paced(inbox, begins));
    let sent =
        client.send(Method::POST, "/v1/tasks:batch?answers=each", &[(CONTENT_TYPE, "application/x-ndjson")], body);
    let sent = tokio::select! {
        sent = sent => sent,
        signal = signals.next() => return Err(Failure::failed(anyhow!("{doing}: {signal} received, nothing was answered"))),
    };
    let response = sent.map_err(|error| error.while_doing(&doing, client))?;
    if !response.status().is_success() {
        let answer = client.whole(response).await.map_err(|error| error.while_doing(&doing, client))?;
        return Err(super::api_caller::refused(client, &answer, &doing, json));
    }
    begun.send_replace(true);
    let bar = bar(json, size);
    let (shown, inbox) = mpsc::channel(MAX_PARTS);
    let (tell_end, mut end) = oneshot::channel();
    let showing = bar.clone();
    std::thread::spawn(move || tell_end.send(show(inbox, &showing)).ok());
    let mut tally = Tally::new(json, bar, shown, lines);
    let followed = async {
        let ended = tally.follow(client, response, &progress).await.map_err(Ended::Failed);
        tally.shown = None;
        (ended, (&mut end).await)
    };
    let (ended, written) = tokio::select! {
        done = followed => done,
        signal = signals.next() => (Err(Ended::Signal(signal)), Ok(Ok(()))),
    };
    if matches!(ended, Err(Ended::Signal(_))) {
        tally.shown = None;
        timeout(SHOW_TIMEOUT, end).await.ok();
        std::thread::spawn(|| {
            // Far longer than printing the summary takes, unless its reader is blocked too.
            std::thread::sleep(5 * SHOW_TIMEOUT);
            std::process::exit(1);
        });
    }
    tally.bar.finish_and_clear();
    tally.conclude(ended, written.unwrap_or(Ok(())), client, file, &doing)
}

/// Prints the output, however slowly it is read. If the reader has gone, the tasks are put nevertheless.
fn show(mut inbox: mpsc::Receiver<Shown>, bar: &ProgressBar) -> Result<(), Failure> {
    let mut written = Ok(());
    while let Some(shown) = inbox.blocking_recv() {
        match shown {
            Shown::Answers(lines) => written = written.and(out::json_lines(&String::from_utf8_lossy(&lines))),
            // A hidden bar need not be suspended.
            Shown::Failed(detail) if bar.is_hidden() => tell(&detail),
            Shown::Failed(detail) => bar.suspend(|| tell(&detail)),
        }
    }
    written
}

fn bar(json: bool, size: Option<u64>) -> ProgressBar {
    let target = match json && io::stdout().is_terminal() {
        // The answers already show progress there.
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let template = if size.is_some() { "{wide_bar} {percent:>3} %  {msg}" } else { "{spinner} {msg}" };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(size, target).with_style(style)
}

impl Tally {
    fn new(json: bool, bar: ProgressBar, shown: mpsc::Sender<Shown>, lines: blocking::Receiver<u64>) -> Tally {
        let (rest, put) = (Vec::new(), BTreeMap::new());
        Tally {
            json,
            bar,
            shown: Some(shown),
            held: Duration::ZERO,
            lines,
            next: None,
            rest,
            line: 0,
            put,
            overdue: 0,
            failed: 0,
        }
    }

    /// Reads the answers until they end as expected; otherwise returns why they did not.
    async fn follow(
        &mut self,
        client: &Client,
        response: Response<Incoming>,
        progress: &Progress,
    ) -> Result<(), String> {
        let mut body = response.into_body();
        let mut owed = false;
        loop {
            let part = match timeout(HALF_ANSWER_TIMEOUT, body.frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    return Err(match progress.broken.get() {
                        Some(detail) => format!("the file cannot be read further: {detail}"),
                        None => self.given_up(&client.no_answer(&error).to_string()),
                    });
                }
                Ok(None) => break,
                Err(_) if owed => return Err(format!("no answer within {:?}", HALF_ANSWER_TIMEOUT * 2)),
                Err(_) => {
                    owed = self.next_line().is_some();
                    continue;
                }
            };
            owed = false;
            self.take(&part).await?;
            self.draw(progress);
        }
        if !self.rest.is_empty() {
            return Err(NO_BATCH.to_owned());
        }
        let all = progress.ended.load(Ordering::Acquire) && self.next_line().is_none();
        if all { Ok(()) } else { Err(self.given_up("the instance ended the batch early")) }
    }

    /// Reads a part of the answers.
    async fn take(&mut self, part: &[u8]) -> Result<(), String> {
        let before = self.rest.len();
        self.rest.extend_from_slice(part);
        let Some(end) = part.iter().rposition(|&byte| byte == b'\n') else {
            return if self.rest.len() > MAX_ANSWER_BYTES { Err(NO_BATCH.to_owned()) } else { Ok(()) };
        };
        let rest = self.rest.split_off(before + end + 1);
        let mut lines = std::mem::replace(&mut self.rest, rest);
        let (mut failed, mut taken, mut done) = (String::new(), 0, Ok(()));
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            done = self.answer(line, &mut failed);
            if done.is_err() {
                break;
            }
            taken += line.len();
        }
        if self.json {
            lines.truncate(taken);
            self.show(Shown::Answers(lines)).await;
        }
        if !failed.is_empty() {
            self.show(Shown::Failed(failed)).await;
        }
        done
    }

    /// Reads the answer to one line; errors are appended to `failed`.
    fn answer(&mut self, line: &[u8], failed: &mut String) -> Result<(), String> {
        let answer: LineAnswer = serde_json::from_slice(line).map_err(|_| NO_BATCH.to_owned())?;
        if self.next_line() != Some(answer.line) {
            // A problem at a line that was not sent reports the end of the batch.
            return Err(answer.error.map_or_else(|| NO_BATCH.to_owned(), |error| self.given_up(error.detail.as_str())));
        }
        (self.line, self.next) = (answer.line, None);
        match (answer.result, answer.error) {
            (Some(result), None) => {
                *self.put.entry(result).or_default() += 1;
                self.overdue += u64::from(answer.overdue);
            }
            (_, error) => {
                self.failed += 1;
                failed.push_str(&detail(answer.line, answer.id.as_ref(), error));
            }
        }
        Ok(())
    }

    fn next_line(&mut self) -> Option<u64> {
        self.next = self.next.or_else(|| self.lines.try_recv().ok());
        self.next
    }

    async fn show(&mut self, shown: Shown) {
        let since = Instant::now();
        if let Some(to) = &self.shown {
            to.send(shown).await.ok();
        }
        self.held = self.held.max(since.elapsed());
    }

    /// Why the instance ended the batch, with the likely reason.
    fn given_up(&self, detail: &str) -> String {
        match self.held {
            held if held < SLOW_READER_TIME => detail.to_owned(),
            held => format!(
                "{detail}; the answers were not read for {} s, and an instance waits as long as its `http.body_timeout`",
                held.as_secs()
            ),
        }
    }

    fn draw(&self, progress: &Progress) {
        let (lines, bytes) = (progress.lines.load(Ordering::Relaxed), progress.bytes.load(Ordering::Relaxed));
        let share = u128::from(bytes) * u128::from(self.answered()) / u128::from(lines.max(1));
        self.bar.set_position(u64::try_from(share).unwrap_or(bytes));
        self.bar.set_message(format!("{} lines answered, {} failed", self.answered(), self.failed));
    }

    fn answered(&self) -> u64 {
        self.put.values().sum::<u64>() + self.failed
    }

    /// Prints the total; fails unless every line succeeded.
    fn conclude(
        self,
        ended: Result<(), Ended>,
        written: Result<(), Failure>,
        client: &Client,
        file: &Path,
        doing: &str,
    ) -> Result<(), Failure> {
        let overdue = (self.overdue > 0).then(|| format!("{} of them overdue, due at once", self.overdue));
        let results = self.put.iter().map(|(result, count)| format!("{count} {result}")).chain(overdue);
        let results: Vec<_> = results.collect();
        let put: u64 = self.put.values().sum();
        let tasks = if put == 1 { "task" } else { "tasks" };
        let total =
            format!("put {put} {tasks}: {}\n", if results.is_empty() { "none".into() } else { results.join(", ") });
        let printed = match self.json {
            true => {
                tell(&total);
                Ok(())
            }
            false => say(&total),
        };
        let answered = self.answered();
        let known = match self.line {
            0 => "no line was answered".to_owned(),
            line => format!("all lines up to {line} are answered, {put} of them put and {} failed", self.failed),
        };
        let beyond = "later lines may have been put or not";
        let retry_hint = "put the file again from there, or as a whole: an equal task is `unchanged`, but the time of \
                          an `in` starts again";
        match ended {
            Err(Ended::Failed(detail)) => {
                Err(Failure::failed(anyhow!("{doing} at `{}`: {detail}; {known}, {beyond}", client.shown()))
                    .hint(retry_hint))
            }
            Err(Ended::Signal(signal)) => {
                Err(Failure::failed(anyhow!("{doing}: {signal} received; {known}, {beyond}")).hint(retry_hint))
            }
            Ok(()) if self.failed == 0 => written.and(printed),
            Ok(()) => {
                written.and(printed)?;
                let failure =
                    Failure::failed(anyhow!("{} of {answered} lines of `{}` failed", self.failed, file.display()));
                let hint = "without an id every line of the file is a task with its `id`";
                Err(if put == 0 { failure.hint(hint) } else { failure })
            }
        }
    }
}

/// The error of one line.
fn detail(line: u64, id: Option<&Printable>, error: Option<Problem>) -> String {
    let id = id.map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let (detail, errors) = error.map(|error| (error.detail, error.errors)).unwrap_or_default();
    format!("line {line}{id}: {detail}{}\n", faults(&errors))
}
