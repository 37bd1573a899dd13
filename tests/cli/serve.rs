//! `punctual serve`: its start and its end.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use super::{log, punctual, read, run, serve, wait_for};
use crate::support;
use crate::support::http::Api;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::server::{free_port, signal_pid};

#[test]
fn an_instance_logs_its_name_and_a_signal_stops_it_in_order() {
    for signal in ["TERM", "INT"] {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let arguments = ["serve", "--redis", "memory:", "--sink", "stdout:", "--listen", &listen];
        let child = punctual(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        signal_pid(child.id(), signal);
        let run = read(child.wait_with_output().unwrap());
        assert_eq!((run.code, run.out.as_str()), (Some(0), ""), "{}", run.err);
        for detail in [
            "instance=\"",
            "serving",
            "tasks are kept in memory",
            &format!("signal received; finishing current requests and publishes signal=\"SIG{signal}\""),
            "namespace=default",
            "lanes=\"default -> default\"",
            "stopped",
        ] {
            assert!(run.err.contains(detail), "no `{detail}` in {}", run.err);
        }
    }
}

/// Silent clients take all places. They leave the files that Redis and the sinks need, and do not keep probes out.
#[test]
fn the_limit_of_open_files_is_raised_and_leaves_some_for_redis_and_the_sinks() {
    let config = "probe_listen = \"127.0.0.1:0\"\n[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"stdout:\"\n";
    let limited = ["prlimit", "--nofile=64:300"].map(str::to_owned);
    let mut instance = Punctual::start_unready_in(&limited, config);
    instance.until("serving", |instance| !instance.log_lines(&["serving probes and metrics"]).is_empty());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", instance.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().collect::<Vec<_>>()[3..5], ["300", "300"]);
    let warned = instance.log_lines(&[" WARN ", "files=300", "connections=172", "wanted=4096"]);
    assert_eq!(warned.len(), 1, "{}", instance.log());
    let line = instance.log_lines(&["serving probes and metrics"]).remove(0);
    let port = line.rsplit_once("127.0.0.1:").unwrap().1.trim_end_matches('"').parse().unwrap();
    let _kept: Vec<_> = (0..200).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, instance.port)).unwrap()).collect();
    for api in [Api::new(port), instance.api()] {
        assert_eq!(api.send("GET", "/healthz", None).unwrap().status, 200);
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", instance.pid())).unwrap().count();
    assert!(descriptors < 300 - 100, "{descriptors}");
}

#[test]
fn a_second_signal_stops_the_instance_at_once() {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let arguments = ["serve", "--redis", "memory:", "--sink", "stdout:", "--listen", &listen];
    let child = punctual(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    // A request whose body never arrives; a stop waits two seconds for it.
    let head = "PUT /v1/tasks/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // `100 Continue` shows that the server waits for the body.
    std::io::Read::read_exact(&mut stream, &mut [0; 12]).unwrap();
    signal_pid(child.id(), "INT");
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    signal_pid(child.id(), "INT");
    let run = read(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("error: SIGINT received again: ended at once"), "{}", run.err);
}

#[test]
fn a_port_that_is_taken_is_a_failure() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let run = run(&["serve", "--redis", "memory:", "--sink", "stdout:", "--listen", &listen]);
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains(&format!("error: cannot listen on `{listen}`: ")), "{}", run.err);
}

#[test]
fn another_number_of_shards_is_refused() {
    if !support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let arguments = ["serve", "--redis", &redis.url(), "--sink", "stdout:", "--listen", "127.0.0.1:0"];
    let child = punctual(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut connection = redis.connect();
    loop {
        let layout: Option<String> =
            ::redis::cmd("GET").arg("punctual:{default}:layout").query(&mut connection).unwrap();
        if layout.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    signal_pid(child.id(), "TERM");
    let first = read(child.wait_with_output().unwrap());
    let other = read(punctual(&arguments).env("PUNCTUAL__TIMELINE__SHARDS", "7").output().unwrap());
    assert!(matches!(first.code, Some(0) | None), "{:?} {}", first.code, first.err);
    assert_eq!(other.code, Some(2), "{}", other.err);
    assert!(other.err.contains("`1 4`") && other.err.contains("`1 7`"), "{}", other.err);
}

/// Takes more than five seconds: Redis is stopped for six, longer than a start once waited for it.
#[test]
fn another_number_of_shards_is_refused_also_if_redis_answers_late() {
    if !support::have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    ::redis::cmd("SET").arg("punctual:{default}:layout").arg("1 9").exec(&mut redis.connect()).unwrap();
    redis.server.signal("STOP");
    let arguments = ["serve", "--redis", &redis.url(), "--sink", "stdout:", "--listen", "127.0.0.1:0"];
    let child = punctual(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The instance serves while it waits for its Redis, which then turns out to have another number of shards.
    std::thread::sleep(Duration::from_secs(6));
    redis.server.signal("CONT");
    let run = read(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("`1 9`") && run.err.contains("`1 4`"), "{}", run.err);
}

#[test]
fn a_second_instance_of_the_same_kind_has_another_name() {
    let names: Vec<String> = (0..2)
        .map(|_| {
            let server = serve(&[]);
            let log = wait_for(&server.log(), "instance=\"");
            log.split("instance=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned()
        })
        .collect();
    assert_ne!(names[0], names[1]);
    assert!(!log(&serve(&[])).contains("ERROR"));
}
