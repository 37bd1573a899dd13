//! Feeds arbitrary input to everything that punctual reads from outside. There is a file each for task JSON, cron,
//! records, batches and configuration, with the rules that must hold for any input.
//!
//! `make test` replays the corpus, `tests/fuzz/corpus/<target>/`, and generates a few hundred more inputs, the same
//! ones each time. `make fuzz` generates new inputs for a minute per target. An input that breaks a rule is shrunk and
//! written to the corpus, so that later runs replay it: fix the fault, then name the file after it.

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

/// Whether the rules hold for an input; an error names the broken one.
type Verdict = Result<(), TestCaseError>;

/// One reader.
struct Target {
    /// Folder of its corpus.
    name: &'static str,
    /// Checks the rules for any input.
    check: fn(&[u8]) -> Verdict,
    /// Generates inputs in the reader's format, with and without faults.
    written: fn() -> BoxedStrategy<Vec<u8>>,
    /// Pieces of such inputs, inserted anywhere.
    detail: &'static [&'static str],
    /// Number of inputs that `make test` generates.
    inputs: u32,
}

/// An input that takes longer is taken to loop forever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Inputs between two looks at the clock.
const BATCH: u32 = 50;

/// Every file of the corpus has fewer bytes.
const LARGEST: usize = 4096;

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

/// A runner that generates the same inputs for the same two numbers.
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

/// Files of a target's corpus, sorted by name.
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

/// Writes an input to the corpus and returns its path.
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
