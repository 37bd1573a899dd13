//! Helpers of tests: whether programs are installed, waiting with a limit, lines for `make test`, and running a future.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::servers;

/// Whether a program is installed; prints that the test is skipped if not. With `PUNCTUAL_TEST_STRICT=1` it panics.
///
/// Use it as `if !have("nats-server") { return; }`.
pub fn have(program: &str) -> bool {
    let found = have_quietly(program);
    if !found {
        skip(program);
    }
    found
}

/// The same without the message, for a program that a test can do without.
pub fn have_quietly(program: &str) -> bool {
    servers::is_there(program) || Path::new("/usr/sbin").join(program).is_file()
}

/// Whether Kafka can be started; prints that the test is skipped if not.
pub fn have_kafka() -> bool {
    let found = servers::have_kafka();
    if !found {
        skip("java, or Kafka's jars");
    }
    found
}

/// Prints that the test is skipped because something is missing. With `PUNCTUAL_TEST_STRICT=1` it panics.
pub fn skip(missing: &str) {
    assert!(std::env::var("PUNCTUAL_TEST_STRICT").as_deref() != Ok("1"), "`{missing}` is missing: run `make setup`");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // `make test` counts lines that begin with this word.
    say(&format!("SKIPPED {name}: `{missing}` is not installed"));
}

/// Prints a line that `make test` shows even for tests that pass.
pub fn say(line: &str) {
    // Not eprintln!, which the test runner would capture.
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("stderr takes a line");
}

/// Waits until a condition holds, checking every 10 ms. Returns whether it did within the limit.
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

/// Runs a future to its end on a new thread, whether or not this one belongs to a runtime.
pub fn block_on<T: Send>(act: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(act())
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
