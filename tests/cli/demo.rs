//! `punctual demo`: every occurrence once and on time, and nothing left behind, however it ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{Run, punctual, read};
use crate::support::server::{free_port, signal_pid};
use crate::support::{self, redis::RedisServer};

/// The numbers of the table by name; also compares them with the messages.
fn checked(run: &Run) -> u64 {
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let number = |name: &str| {
        let line =
            run.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {}", run.out));
        line[name.len()..].trim().trim_end_matches(" ms").parse::<u64>().unwrap()
    };
    let messages: Vec<Value> = run.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let keys: BTreeSet<_> = messages.iter().map(|message| message["key"].as_str().unwrap().to_owned()).collect();
    let expected = number("expected");
    assert_eq!((number("published"), number("distinct keys"), number("early")), (expected, expected, 0));
    assert_eq!((messages.len() as u64, keys.len() as u64), (expected, expected), "what is counted is what is printed");
    assert!(number("lateness p50") <= number("lateness p99") && number("lateness p99") <= number("lateness max"));
    expected
}

fn run(arguments: &[&str]) -> Run {
    read(punctual(&[&["demo"], arguments].concat()).output().unwrap())
}

/// Starts a demo and reads until its first message.
fn begin(arguments: &[&str]) -> (Child, BufReader<ChildStdout>, ChildStderr, String) {
    let mut child =
        punctual(&[&["demo"], arguments].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let err = child.stderr.take().unwrap();
    let mut text = String::new();
    while !text.contains("{\"key\"") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    (child, out, err, text)
}

fn end((mut child, mut out, mut err, mut text): (Child, BufReader<ChildStdout>, ChildStderr, String)) -> Run {
    let mut errors = String::new();
    out.read_to_string(&mut text).unwrap();
    err.read_to_string(&mut errors).unwrap();
    Run { code: child.wait().unwrap().code(), out: text, err: errors }
}

#[test]
fn a_demo_in_memory_counts_every_occurrence_once() {
    let run = || run(&["--redis", "memory:", "--seconds", "2", "--tasks", "50"]);
    let first = run();
    assert!(first.out.contains("tasks wait in the memory of this process;"), "{}", first.out);
    assert_eq!(first.out.matches("\n  curl ").count(), 3, "{}", first.out);
    assert_eq!(first.err, "");
    // 50, every 500 ms from begin to end, and the two seconds between; fewer if the machine paused just before the
    // begin.
    let all = 50 + 5 + 2;
    assert!(checked(&first) == all || (0..4).any(|_| checked(&run()) == all), "never {all}");
}

#[test]
fn a_demo_without_a_redis_server_reports_it_and_works() {
    let empty = tempfile::tempdir().unwrap();
    let output = punctual(&["demo", "--seconds", "1", "--json"]).env("PATH", empty.path()).output().unwrap();
    let run = read(output);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let count: Value = serde_json::from_str(run.out.lines().last().unwrap()).unwrap();
    assert!(count["expected"].as_u64() >= Some(103), "{count}");
    assert_eq!((&count["published"], &count["distinct_keys"]), (&count["expected"], &count["expected"]));
    let output = punctual(&["demo", "--seconds", "1"]).env("PATH", empty.path()).output().unwrap();
    assert!(read(output).out.contains("since no redis-server is installed here"));
}

#[test]
fn a_demo_starts_its_own_redis_server_and_stops_it() {
    if !support::have("redis-server") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let run = || read(punctual(&["demo", "--seconds", "2"]).env("TMPDIR", temp.path()).output().unwrap());
    let first = run();
    assert!(first.out.contains("tasks wait in a private redis-server on port "), "{}", first.out);
    assert_eq!(first.err, "", "nothing to complain about");
    let all = 100 + 5 + 2;
    assert!(checked(&first) == all || (0..4).any(|_| checked(&run()) == all), "never {all}");
    assert_eq!(left_in(&temp), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_demo_ends_with_its_table() {
    for redis in [&["--redis", "memory:"][..], &[]] {
        if redis.is_empty() && !support::have("redis-server") {
            return;
        }
        let demo = begin(&[redis, &["--seconds", "3600", "--tasks", "100000"]].concat());
        std::thread::sleep(Duration::from_millis(700));
        signal_pid(demo.0.id(), "INT");
        assert!(checked(&end(demo)) > 0);
    }
}

#[test]
fn a_demo_shows_the_output_of_a_redis_server_that_exits_at_once() {
    let (bin, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = bin.path().join("redis-server");
    std::fs::write(&file, "#!/bin/sh\necho no memory for a redis\nexit 1\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.path().display());
    let run = read(punctual(&["demo"]).env("PATH", path).env("TMPDIR", temp.path()).output().unwrap());
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("no memory for a redis") && run.err.contains("\nhint: `--redis memory:`"), "{}", run.err);
    assert_eq!(left_in(&temp), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_demo_leaves_no_redis_server_behind() {
    if !support::have("redis-server") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let mut child = punctual(&["demo", "--seconds", "3600"])
        .env("TMPDIR", temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("private redis-server on port ") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let port: u16 = text.split("on port ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..3000 {
        if left_in(&temp).is_empty() {
            assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("left behind: {:?}", left_in(&temp));
}

#[test]
fn a_demo_on_a_redis_of_yours_leaves_no_task_behind() {
    if !support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let demo = begin(&["--redis", &redis.url(), "--seconds", "60", "--tasks", "500"]);
    signal_pid(demo.0.id(), "TERM");
    checked(&end(demo));
    let keys: Vec<String> = ::redis::cmd("KEYS").arg("*").query(&mut redis.connect()).unwrap();
    let tasks: Vec<_> = keys.iter().filter(|key| key.contains(":tasks") || key.contains(":due:")).collect();
    assert!(tasks.is_empty(), "{tasks:?}");
}

/// Takes more than five seconds: the demo waits so long for a Redis that may only be starting.
#[test]
fn an_absent_redis_is_a_failure_with_a_hint_and_without_the_password() {
    let run = run(&["--redis", &format!("redis://me:hunter2@127.0.0.1:{}", free_port())]);
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("error: cannot reach Redis at `redis://***@127.0.0.1:"), "{}", run.err);
    assert!(run.err.contains("\nhint: ") && !run.err.contains("hunter2"), "{}", run.err);
}

fn left_in(temp: &tempfile::TempDir) -> Vec<PathBuf> {
    std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
}
