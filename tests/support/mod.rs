//! The harness: real servers on free ports in folders of their own, ended with the test process whatever ends it.

pub(crate) mod nats;
pub(crate) mod redis;
pub(crate) mod server;

use std::io::Write;

/// Whether a program is there; says loudly that the test is skipped if not. With `PUNCTUAL_TEST_STRICT=1` it panics.
///
/// Use it as `if !have("nats-server") { return; }`.
pub(crate) fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(program).is_file())
    });
    if !found {
        assert!(
            std::env::var("PUNCTUAL_TEST_STRICT").as_deref() != Ok("1"),
            "`{program}` is missing: run `make setup`"
        );
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        // Not eprintln!, which the test runner would capture: a skip must be seen, and is counted by its first word.
        writeln!(std::io::stderr(), "SKIPPED {name}: `{program}` is not installed").expect("stderr takes a line");
    }
    found
}
