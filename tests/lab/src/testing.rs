//! What tests ask of the machine: whether programs are there, and patience.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::servers;

/// Whether a program is there; says loudly that the test is skipped if not. With `PUNCTUAL_TEST_STRICT=1` it panics.
///
/// Use it as `if !have("nats-server") { return; }`.
pub fn have(program: &str) -> bool {
    let found = have_quietly(program);
    if !found {
        skip(program);
    }
    found
}

/// The same for a program that a test does without: nothing is skipped but what it would say besides.
pub fn have_quietly(program: &str) -> bool {
    servers::is_there(program) || Path::new("/usr/sbin").join(program).is_file()
}

/// Whether all is there that a Kafka server needs; says loudly that the test is skipped if not.
pub fn have_kafka() -> bool {
    let found = servers::have_kafka();
    if !found {
        skip("java, or Kafka's jars");
    }
    found
}

/// Says loudly that the test is skipped since something is missing. With `PUNCTUAL_TEST_STRICT=1` it panics.
pub fn skip(missing: &str) {
    assert!(std::env::var("PUNCTUAL_TEST_STRICT").as_deref() != Ok("1"), "`{missing}` is missing: run `make setup`");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // The first word of the line is what `make test` counts.
    say(&format!("SKIPPED {name}: `{missing}` is not installed"));
}

/// Says something that `make test` shows, also of tests that pass.
pub fn say(line: &str) {
    // Not eprintln!, which the test runner would capture.
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("stderr takes a line");
}

/// Waits until something holds, asking every 10 ms; whether it did within the limit.
pub fn patient(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs something asynchronous to its end on a thread of its own, whether or not this one is part of a runtime.
pub fn block_on<T: Send>(act: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(act())
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
