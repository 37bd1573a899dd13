//! Feeds arbitrary input to parsers of input from outside. There is a file each for task JSON, cron, records, batches
//! and configuration, with the rules that must hold for any input.
//!
//! `make test` replays the corpus, `tests/fuzz/corpus/<target>.txt`, and generates a few hundred more inputs, the same
//! ones each time. `make fuzz` generates new inputs for a minute per target. An input that breaks a rule is shrunk and
//! added to the corpus, so that later runs replay it: fix the fault, then name the input after it.

mod config;
mod cron;
mod input;
mod ndjson;
mod record;
mod task_json;

use std::fs;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tokio::time::Instant;

use crate::support::say;

/// Whether the rules hold for an input; an error names the broken one.
type Verdict = Result<(), TestCaseError>;

/// One reader.
struct Target {
    /// Name of its corpus.
    name: &'static str,
    /// Checks the rules for any input.
    check: fn(&[u8]) -> Verdict,
    /// Generates inputs in the reader's format, with and without faults.
    written: fn() -> BoxedStrategy<Vec<u8>>,
    /// Pieces of such inputs, inserted anywhere.
    dictionary: &'static [&'static str],
    /// Number of inputs that `make test` generates.
    inputs: u32,
}

/// An input that takes longer is taken to loop forever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Inputs between two looks at the clock.
const BATCH: u32 = 50;

/// Every input of the corpus has fewer bytes.
const MAX_INPUT_BYTES: usize = 4096;

impl Target {
    /// Replays the corpus, then generates inputs.
    fn run(self) {
        let (now, beats) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
        let (name, held) = (self.name, Arc::clone(&now));
        let working = std::thread::spawn(move || self.work(&held, &beats.0));
        // Runs in a thread of its own, because an input that loops forever is a finding, too.
        loop {
            match beats.1.recv_timeout(PATIENCE) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let input = now.lock().unwrap().clone();
                    panic!("{name}: no end within {PATIENCE:?} of {}", keep(name, &input));
                }
            }
        }
        if let Err(panicked) = working.join() {
            std::panic::resume_unwind(panicked);
        }
    }

    fn work(self, now: &Mutex<Vec<u8>>, beats: &mpsc::Sender<()>) {
        let checked = |input: &[u8]| {
            input.clone_into(&mut now.lock().unwrap());
            beats.send(()).unwrap();
            catch_unwind(|| (self.check)(input))
                .unwrap_or_else(|_| Err(TestCaseError::fail("it panicked, as reported above")))
        };
        let corpus = corpus(self.name);
        assert!(corpus.len() >= 20, "{}: a corpus of {} inputs", self.name, corpus.len());
        for (label, input) in &corpus {
            if let Err(broken) = checked(input) {
                panic!("{label}: {broken}");
            }
        }
        let seconds =
            std::env::var("PUNCTUAL_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
        let seed = std::env::var("PUNCTUAL_FUZZ_SEED").map_or(1, |text| text.parse().expect("a number"));
        let inputs =
            input::any(corpus.into_iter().map(|(_, input)| input).collect(), self.dictionary, (self.written)());
        let (begun, mut made) = (Instant::now(), 0);
        let enough = |made: u32| match seconds {
            None => made >= self.inputs,
            Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
        };
        while !enough(made) {
            let mut runner = runner(seed, made);
            match runner.run(&inputs, |input| checked(&input)) {
                Ok(()) => made += BATCH,
                Err(TestError::Abort(why)) => panic!("{}: {why}", self.name),
                Err(TestError::Fail(broken, input)) => {
                    let path = keep(self.name, &input);
                    panic!("{}: seed {seed}, input {path}: {broken}\n{}", self.name, input.escape_ascii());
                }
            }
        }
        if seconds.is_some() {
            say(&format!("fuzz: {}: {made} inputs in {:?}, seed {seed}", self.name, begun.elapsed()));
        }
    }
}

/// A runner that generates the same inputs for the same two numbers.
fn runner(seed: u64, made: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..12].copy_from_slice(&made.to_le_bytes());
    let config = Config { cases: BATCH, failure_persistence: None, max_shrink_iters: 5000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// The corpus of a target: one file, an input a line.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name).with_extension("txt")
}

/// Names and inputs of a target's corpus.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let text = fs::read_to_string(file(name)).expect("a corpus");
    let read = |line: &str| {
        let (label, input) = line.split_once(' ').expect("a name and an input");
        let input = if name == "record" { from_hex(input) } else { unescape(input) };
        assert!(input.len() < MAX_INPUT_BYTES, "{label}: {} bytes", input.len());
        (label.to_owned(), input)
    };
    text.lines().filter(|line| !line.starts_with('#')).map(read).collect()
}

/// Adds an input to the corpus and returns its name.
fn keep(name: &str, input: &[u8]) -> String {
    let hash = input.iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(*byte));
    let written = match name {
        "record" => input.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => escape(input),
    };
    let label = format!("found-{hash:08x}");
    let line = format!("{label} {written}\n");
    let added =
        fs::OpenOptions::new().append(true).open(file(name)).and_then(|mut file| file.write_all(line.as_bytes()));
    match added {
        Ok(()) => format!("{label} of {}", file(name).display()),
        Err(error) => format!("{label} (not written: {error})"),
    }
}

/// The bytes with the escapes of Rust, but quotes as they are.
fn escape(input: &[u8]) -> String {
    let escaped =
        |byte: &u8| if b"'\"".contains(byte) { char::from(*byte).to_string() } else { byte.escape_ascii().to_string() };
    input.iter().map(escaped).collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut input) = (Vec::new(), text.bytes());
    while let Some(byte) = input.next() {
        bytes.push(match byte {
            b'\\' => match input.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'\\') => b'\\',
                Some(b'x') => {
                    let digits: Vec<u8> = input.by_ref().take(2).collect();
                    from_hex(std::str::from_utf8(&digits).expect("two hex digits"))[0]
                }
                other => panic!("an unknown escape {other:?} in {text}"),
            },
            byte => byte,
        });
    }
    bytes
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two hex digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

#[test]
fn an_input_of_the_corpus_survives_its_escapes() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(unescape(&escape(&all)), all);
    assert_eq!(unescape("a\\n\\x00\\\\'"), b"a\n\0\\'");
}

#[test]
fn a_json_task_reads_back_unchanged_or_its_faults_have_places() {
    task_json::TARGET.run();
}

#[test]
fn cron_times_increase_and_equal_the_result_of_a_step_by_step_search() {
    cron::TARGET.run();
}

#[test]
fn a_record_of_any_bytes_that_decodes_reads_back_unchanged() {
    record::TARGET.run();
}

#[test]
fn a_batch_is_answered_line_by_line_however_its_body_is_split() {
    ndjson::TARGET.run();
}

#[test]
fn a_configuration_reports_faults_with_their_places_and_shows_no_secret() {
    config::TARGET.run();
}
