//! Error texts on a terminal: configurations, usage, an instance that is not running.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use super::{punctual, read};

/// A configuration file, and variables.
struct Broken {
    name: &'static str,
    file: &'static [u8],
    environment: &'static [(&'static str, &'static str)],
}

const fn file(name: &'static str, file: &'static [u8]) -> Broken {
    Broken { name, file, environment: &[] }
}

const fn variables(name: &'static str, environment: &'static [(&'static str, &'static str)]) -> Broken {
    Broken { name, file: b"[redis]\nurl = \"memory:\"\n[sinks.a]\nurl = \"stdout:\"\n", environment }
}

const BROKEN: &[Broken] = &[
    file("two faults in one file", b"[claim]\nleese = \"20s\"\nbatch = 5000\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("no TOML", b"[claim]\nlease = 20s\nbatch = \n[sinks.a]\nurl = \"stdout:\"\n"),
    file("no TOML where a sink is named", b"[sinks.a]\nurl = kafka://me:hunter2@h\n[lanes.default]\nsink = a\n[claim]\nleese = 1\n"),
    file("a log filter that is none", b"[log]\nfilter = \"punctual=wran\"\n[claim]\nbatch = 5000\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("an option twice", b"[claim]\nlease = \"20s\"\nlease = \"21s\"\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("an unknown section", b"[clam]\nlease = \"20s\"\n[sink.a]\nurl = \"stdout:\"\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("an empty unknown section", b"[clam]\n[timelines]\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("a value where a section belongs", b"redis = \"redis://:hunter2@h\"\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("a number too large", b"[claim]\nbatch = 99999999999999999999\nin_flight = 1000001\n[sinks.a]\nurl = \"stdout:\"\n"),
    file("wrong types", b"[claim]\nlease = 20\nbatch = [1]\ngrace = 2026-01-01\n[http]\nconnections = 1.5\n[sinks.a]\nurl = true\n"),
    file("empty values", b"[claim]\nlease = \"\"\nbatch = \"\"\n[http]\nlisten = \"\"\nbody_limit = \"\"\n[redis]\nurl = \"\"\n[sinks.a]\nurl = \"\"\n"),
    file("no UTF-8", b"[claim]\nlease = \"20s\" # f\xfcnf\n"),
    file("no sink", b"[redis]\nurl = \"memory:\"\n"),
    file("a sink without a URL, a lane without a sink", b"[sinks.a]\n[sinks.b]\nurl = \"stdout:\"\n[lanes.x]\nsink = \"c\"\n"),
    file("URLs that lead nowhere", b"[redis]\nurl = \"http://me:hunter2@h\"\n[sinks.a]\nurl = \"sqs://me:hunter2@h\"\n[sinks.b]\nurl = \"hunter2\"\n[lanes.default]\nsink = \"a\"\n"),
    file("an open address without a token", b"[http]\nlisten = \"0.0.0.0:7171\"\n[sinks.a]\nurl = \"stdout:\"\n"),
    variables("a misspelt variable", &[("PUNCTUAL__REDIS__ULR", "redis://h"), ("PUNCTUAL__CLAIMS__LEASE", "20s")]),
    variables(
        "a variable that is nearly one",
        &[("PUNCTUAL_REDIS_URL", "redis://h"), ("PUNCTUAL__CLAIM_LEASE", "20s"), ("PUNCTAUL__CLAIM__BATCH", "7")],
    ),
    variables("a sink by a variable that is nearly one", &[("PUNCTUAL_SINKS_ORDERS_URL", "stdout:")]),
    variables("an empty variable", &[("PUNCTUAL__CLAIM__LEASE", ""), ("PUNCTUAL__CLAIM__BATCH", "")]),
];

/// Runs in a folder of its own, which may contain `punctual.toml`.
fn run_in(dir: &std::path::Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = punctual(arguments);
    command.current_dir(dir).envs(environment.iter().copied());
    let run = read(command.output().unwrap());
    assert_eq!(run.out, "", "{arguments:?}");
    format!("{}exit code {}\n", run.err, run.code.unwrap())
}

#[test]
fn configuration_errors_name_their_place_and_suggest_a_correction() {
    let mut reported = String::new();
    for Broken { name, file, environment } in BROKEN {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("punctual.toml"), file).unwrap();
        let said = run_in(dir.path(), &["check", "--offline"], environment);
        assert!(said.ends_with("exit code 2\n") && !said.contains("hunter2"), "{name}: {said}");
        writeln!(reported, "## {name}\n{said}").unwrap();
    }
    insta::assert_snapshot!("configurations", reported);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let mut reported = String::new();
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("punctual.toml");
    writeln!(reported, "## not there\n{}", run_in(dir.path(), &["check", "--config", "other.toml"], &[])).unwrap();
    std::fs::create_dir(&here).unwrap();
    writeln!(reported, "## a folder\n{}", run_in(dir.path(), &["check"], &[])).unwrap();
    std::fs::remove_dir(&here).unwrap();
    let line = "{\"id\":\"a\",\"schedule\":{\"in\":\"1h\"},\"message\":{}}\n";
    std::fs::write(&here, line.repeat(30)).unwrap();
    writeln!(reported, "## tasks\n{}", run_in(dir.path(), &["check"], &[])).unwrap();
    std::fs::write(&here, line.repeat(30_000)).unwrap();
    writeln!(reported, "## many tasks\n{}", run_in(dir.path(), &["check"], &[])).unwrap();
    insta::assert_snapshot!("files", reported);
    std::fs::write(&here, "").unwrap();
    std::fs::set_permissions(&here, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root can read everything.
    if std::fs::read(&here).is_err() {
        let said = run_in(dir.path(), &["check"], &[]);
        assert!(said.contains("cannot read the configuration file `punctual.toml`: Permission denied"), "{said}");
    }
}

#[test]
fn a_variable_that_is_not_utf_8_is_named_without_its_value() {
    let mut command = punctual(&["check", "--offline", "--sink", "stdout:"]);
    let run = read(command.env("PUNCTUAL__REDIS__URL", OsStr::from_bytes(b"redis://:hunter\xfc@h")).output().unwrap());
    assert_eq!(run.code, Some(2), "{}{}", run.out, run.err);
    assert!(run.err.contains("PUNCTUAL__REDIS__URL: the value of this variable is not UTF-8"), "{}", run.err);
    assert!(!run.err.contains("hunter"), "{}", run.err);
    // Variables of other programs may contain anything.
    let mut command = punctual(&["check", "--offline", "--sink", "stdout:"]);
    let run = read(command.env("PUNCTUAL_OTHERS", OsStr::from_bytes(b"\xfc")).output().unwrap());
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

/// A byte order mark and other line endings are no faults; line numbers stay correct.
#[test]
fn a_configuration_file_may_have_a_byte_order_mark_and_crlf_line_endings() {
    let dir = tempfile::tempdir().unwrap();
    for (text, code) in [
        ("\u{feff}[redis]\r\nurl = \"memory:\"\r\n[sinks.a]\r\nurl = \"stdout:\"\r\n", 0),
        ("\u{feff}[redis]\r\nurl = \"memory:\"\r\n[sinks.a]\r\nurl = \"stdout:\"\r\nur = 1\r\n", 2),
    ] {
        std::fs::write(dir.path().join("punctual.toml"), text).unwrap();
        let run = read(punctual(&["check", "--offline"]).current_dir(dir.path()).output().unwrap());
        assert_eq!(run.code, Some(code), "{}{}", run.out, run.err);
        assert!(code == 0 || run.err.contains("`sinks.a.ur` (punctual.toml:5): "), "{}", run.err);
    }
}

#[test]
fn usage_errors_suggest_the_right_usage() {
    let dir = tempfile::tempdir().unwrap();
    let mut reported = String::new();
    for arguments in [
        &["sreve"][..],
        &["serve", "--snik", "stdout:"],
        &["task", "put", "a"],
        &["task", "put", "a", "--in", "5m", "--every", "5m"],
        &["task", "get"],
        &["preview"],
        &["preview", "--every", "5m", "--count", "many"],
        &["preview", "--cron", "0 9 * * MON", "--zone", "Europe/Berln"],
        &["preview", "--cron", "0 0 30 2 *"],
        &["preview", "--every", "1h", "--spread", "2h", "--id", "a b"],
        &["completions", "cmd"],
    ] {
        writeln!(reported, "$ punctual {}\n{}", arguments.join(" "), run_in(dir.path(), arguments, &[])).unwrap();
    }
    insta::assert_snapshot!("usage", reported);
}

#[test]
fn an_unreachable_instance_is_reported_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let mut reported = String::new();
    // No server listens on port 1.
    for arguments in [
        &["task", "get", "a", "--url", "http://127.0.0.1:1"][..],
        &["task", "put", "a", "--in", "5m", "--url", "http://me:hunter2@127.0.0.1:1"],
        &["task", "cancel", "a", "--url", "nowhere"],
    ] {
        writeln!(reported, "$ punctual {}\n{}", arguments.join(" "), run_in(dir.path(), arguments, &[])).unwrap();
    }
    insta::assert_snapshot!("instance", reported);
}
