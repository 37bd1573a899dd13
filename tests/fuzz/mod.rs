//! Whatever is read from outside, against any input: a file each for task JSON, cron, records, batches and configuration,
//! with what holds whatever stands there.
//!
//! `make test` replays the corpus, `tests/fuzz/corpus/<target>/`, and makes a few hundred inputs more, the same ones each
//! time; `make fuzz` makes new ones for a minute each. An input that breaks a rule is made as small as it gets and written
//! to the corpus, so that it is replayed from then on: mend the fault, then give the file a name that says what it was.

mod config;
mod cron;
mod input;
mod ndjson;
mod record;
mod task_json;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tokio::time::Instant;

use crate::support::say;

/// Whether a rule holds for an input, and which does not.
type Verdict = Result<(), TestCaseError>;

/// One reader.
struct Target {
    /// The folder of its corpus.
    name: &'static str,
    /// The rules, for any input.
    check: fn(&[u8]) -> Verdict,
    /// Inputs in the form that it reads, more or less.
    written: fn() -> BoxedStrategy<Vec<u8>>,
    /// What stands in such inputs, put in anywhere.
    detail: &'static [&'static str],
    /// Inputs made in `make test`.
    inputs: u32,
}

/// An input that takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// Inputs between two looks at the clock.
const BATCH: u32 = 50;

/// A file of the corpus has fewer bytes.
const LARGEST: usize = 4096;

impl Target {
    /// Replays the corpus, then makes inputs until there were enough of them.
    fn run(self) {
        let (now, beats) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
        let (name, held) = (self.name, Arc::clone(&now));
        let working = std::thread::spawn(move || self.work(&held, &beats.0));
        // In a thread of its own, since an input that never ends is a finding, too.
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
                .unwrap_or_else(|_| Err(TestCaseError::fail("it panicked, as told above")))
        };
        let corpus = corpus(self.name);
        assert!(corpus.len() >= 20, "{}: a corpus of {} files", self.name, corpus.len());
        for (path, input) in &corpus {
            if let Err(broken) = checked(input) {
                panic!("{}: {broken}", path.display());
            }
        }
        let seconds =
            std::env::var("PUNCTUAL_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
        let seed = std::env::var("PUNCTUAL_FUZZ_SEED").map_or(1, |text| text.parse().expect("a number"));
        let inputs = input::any(corpus.into_iter().map(|(_, input)| input).collect(), self.detail, (self.written)());
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

/// A runner that makes the same inputs of the same two numbers.
fn runner(seed: u64, made: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..12].copy_from_slice(&made.to_le_bytes());
    let config = Config { cases: BATCH, failure_persistence: None, max_shrink_iters: 5000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name)
}

/// The files of a target's corpus in the order of their names.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(folder(name)).expect("a corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let input = fs::read(&path).expect("a file");
        assert!(input.len() < LARGEST, "{}: {} bytes", path.display(), input.len());
        (path, input)
    };
    paths.into_iter().map(read).collect()
}

/// Writes an input to the corpus; says where it stands.
fn keep(name: &str, input: &[u8]) -> String {
    let hash = input.iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(*byte));
    let path = folder(name).join(format!("found-{hash:08x}"));
    match fs::write(&path, input) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("{} (not written: {error})", path.display()),
    }
}

#[test]
fn a_task_of_json_is_read_the_same_again_or_its_faults_have_places() {
    task_json::TARGET.run();
}

#[test]
fn cron_rises_and_names_what_a_walker_finds() {
    cron::TARGET.run();
}

#[test]
fn a_record_reads_back_whatever_its_bytes_are() {
    record::TARGET.run();
}

#[test]
fn a_batch_is_answered_line_by_line_however_it_is_cut() {
    ndjson::TARGET.run();
}

#[test]
fn a_configuration_tells_its_faults_with_their_places_and_never_a_secret() {
    config::TARGET.run();
}
