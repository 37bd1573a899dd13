//! `punctual task put -f FILE` without an id: one task per line, answered while lines are sent.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{PUNCTUAL, punctual, read, run, run_with, serve, url};
use crate::support;

/// This many tasks; every hundredth is invalid.
fn lines(count: usize) -> String {
    (1..=count).fold(String::new(), |mut text, n| {
        match n % 100 {
            0 => writeln!(text, "{{\"id\":\"t{n}\",\"schedule\":{{\"in\":\"soon\"}},\"message\":{{\"payload\":{n}}}}}"),
            _ => writeln!(text, "{{\"id\":\"t{n}\",\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"payload\":{n}}}}}"),
        }
        .unwrap();
        text
    })
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn lines_that_are_wrong_are_named_and_all_others_put() {
    let server = serve(&[]);
    let file = file(&lines(20_000));
    let path = file.path().to_str().unwrap();
    let put = run(&["task", "put", "-f", path, "--url", &url(&server)]);
    assert_eq!((put.code, put.out.as_str()), (Some(1), "put 19800 tasks: 19800 created\n"), "{}", put.err);
    let reported: Vec<_> = put.err.lines().filter(|line| line.starts_with("line ")).collect();
    assert_eq!(reported.len(), 200, "{}", put.err);
    for (n, line) in reported.iter().enumerate() {
        let n = (n + 1) * 100;
        assert!(line.starts_with(&format!("line {n} (`t{n}`): /schedule/in: ")), "{line}");
    }
    assert!(put.err.ends_with(&format!("error: 200 of 20000 lines of `{path}` failed\n")), "{}", put.err);
    assert!(!put.err.contains('\u{1b}') && !put.err.contains('%'), "no bar where nobody looks: {}", put.err);
    let shown = run(&["task", "get", "t19999", "--url", &url(&server)]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
}

#[test]
fn a_batch_with_json_prints_the_answers_unchanged_to_stdout() {
    let server = serve(&[]);
    let file = file(&format!("\n{}\n", lines(300)));
    let put = run(&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &url(&server), "--json"]);
    assert_eq!(put.code, Some(1), "{}", put.err);
    let answers: Vec<Value> = put.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<_> = answers.iter().map(|answer| answer["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (2..=301).collect::<Vec<u64>>(), "blank lines are passed by, the others answered in order");
    assert_eq!(answers[99]["error"]["code"], "invalid");
    assert!(put.err.contains("put 297 tasks: 297 created\n"), "{}", put.err);
}

#[test]
fn a_batch_from_stdin_is_answered_while_stdin_is_still_open() {
    let server = serve(&[]);
    let url = url(&server);
    let put = run_with(&["task", "put", "-f", "-", "--url", &url], lines(50).trim_end());
    assert_eq!((put.code, put.out.as_str(), put.err.as_str()), (Some(0), "put 50 tasks: 50 created\n", ""));
    // A line is answered before the next one is sent.
    let mut child = punctual(&["task", "put", "-f", "-", "--url", &url, "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for line in lines(3).lines() {
        writeln!(to, "{line}").unwrap();
        let mut answer = String::new();
        from.read_line(&mut answer).unwrap();
        assert!(answer.contains("\"result\":\"replaced\""), "{answer}");
    }
    drop(to);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_batch_file_that_is_empty_malformed_or_missing_is_explained() {
    let server = serve(&[]);
    let url = url(&server);
    let empty = file("\n\n");
    let put = run(&["task", "put", "-f", empty.path().to_str().unwrap(), "--url", &url]);
    assert_eq!((put.code, put.out.as_str(), put.err.as_str()), (Some(0), "put 0 tasks: none\n", ""));
    let one = file("{\n  \"schedule\": {\"in\": \"1h\"},\n  \"message\": {}\n}\n");
    let put = run(&["task", "put", "-f", one.path().to_str().unwrap(), "--url", &url]);
    assert_eq!(put.code, Some(1));
    assert!(put.err.contains("\nhint: without an id every line of the file is a task"), "{}", put.err);
    for path in ["/nowhere", "/tmp"] {
        let put = run(&["task", "put", "-f", path, "--url", &url]);
        assert_eq!(put.code, Some(2), "{}", put.err);
        assert!(put.err.starts_with(&format!("error: cannot read the tasks from `{path}`: ")), "{}", put.err);
    }
}

/// A server that answers a batch up to a line and then disconnects.
fn gone_after(answers: usize) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while head.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")
            .unwrap();
        head.read_exact(&mut [0; 4096]).unwrap();
        for n in 1..=answers {
            let answer = format!("{{\"line\":{n},\"id\":\"t{n}\",\"result\":\"created\",\"due_ms\":1}}\n");
            write!(stream, "{:x}\r\n{answer}\r\n", answer.len()).unwrap();
        }
        // All data arrives before the end.
        stream.shutdown(Shutdown::Write).unwrap();
        std::io::copy(&mut head, &mut std::io::sink()).ok();
    });
    port
}

#[test]
fn a_batch_reports_its_last_answered_line_when_the_instance_goes_away() {
    let file = file(&lines(20_000));
    let path = file.path().to_str().unwrap();
    let place = format!("http://127.0.0.1:{}", gone_after(70));
    let put = run(&["task", "put", "-f", path, "--url", &place]);
    assert_eq!((put.code, put.out.as_str()), (Some(1), "put 70 tasks: 70 created\n"), "{}", put.err);
    assert!(put.err.contains(&format!("error: cannot put the tasks of `{path}` at `{place}`: ")), "{}", put.err);
    let known = "all lines up to 70 are answered, 70 of them put and 0 failed, later lines may have been put or not";
    assert!(put.err.contains(known) && put.err.contains("\nhint: put the file again from there"), "{}", put.err);
}

#[test]
fn a_killed_instance_ends_a_batch_from_an_open_stdin() {
    let mut server = serve(&[]);
    let mut child = punctual(&["task", "put", "-f", "-", "--url", &url(&server), "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    to.write_all(lines(10).as_bytes()).unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..10 {
        from.read_line(&mut String::new()).unwrap();
    }
    server.kill();
    // stdin stays open; the command does not wait for it.
    let run = read(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains("all lines up to 10 are answered, 10 of them put and 0 failed"), "{}", run.err);
    drop(to);
}

#[test]
fn an_interrupted_batch_reports_its_last_answered_line() {
    let server = serve(&[]);
    let mut child = punctual(&["task", "put", "-f", "-", "--url", &url(&server), "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    to.write_all(lines(10).as_bytes()).unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..10 {
        from.read_line(&mut String::new()).unwrap();
    }
    support::server::signal_pid(child.id(), "INT");
    let run = read(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains("SIGINT received; all lines up to 10 are answered"), "{}", run.err);
    drop(to);
}

/// A server that answers a batch after its last line with a fixed text.
fn fake_server(answer: &'static str) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
        // A chunked body ends with an empty line too.
        while head.next().unwrap().unwrap() != "0" {}
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len()).unwrap();
    });
    place
}

/// Takes more than five seconds: the program is run fourteen times.
#[test]
fn a_batch_reports_a_server_that_does_not_answer_like_an_instance() {
    let file = file(&lines(4));
    let [first, second, last] =
        ["1", "2", "4"].map(|line| format!("{{\"line\":{line},\"result\":\"created\",\"due_ms\":1}}\n"));
    for (answer, put, detail) in [
        ("<html>".to_owned(), 0, "its answer is not one to a batch"),
        ("<html>\n".to_owned(), 0, "its answer is not one to a batch"),
        // Lines without an answer, one that is answered twice, and an answer without a line.
        (format!("{first}{last}"), 1, "its answer is not one to a batch"),
        (format!("{first}{second}{first}"), 2, "its answer is not one to a batch"),
        (last.replace('4', "18446744073709551615"), 0, "its answer is not one to a batch"),
        (format!("{first}{second}"), 2, "the instance ended the batch early"),
        (format!("{first}{{\"line\":5,\"error\":{{\"detail\":\"so be it\"}}}}\n"), 1, "so be it"),
    ] {
        let place = fake_server(answer.clone().leak());
        let reported = run(&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &place]);
        assert_eq!(reported.code, Some(1), "{answer}: {}", reported.err);
        assert!(reported.err.contains(&format!("at `{place}`: {detail}")), "{answer}: {}", reported.err);
        assert!(reported.out.starts_with(&format!("put {put} task")), "{answer}: {}", reported.out);
        let place = fake_server(answer.clone().leak());
        let reported = run(&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &place, "--json"]);
        assert!(reported.out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{}", reported.out);
    }
}

#[test]
fn control_characters_from_tasks_and_servers_are_shown_escaped() {
    let server = serve(&[]);
    let forged = r#"{"id":"\u001b[31mx\nline 9: forged","schedule":{"in":"1h"},"message":{}}"#;
    let put = run_with(&["task", "put", "-f", "-", "--url", &url(&server)], forged);
    assert_eq!(put.code, Some(1));
    assert!(!put.err.contains('\u{1b}') && put.err.contains("line 1 (`\\u001b[31mx\\u000aline 9: "), "{}", put.err);
    let place = fake_server("{\"line\":1,\"result\":\"\\u001b[2Jcreated\",\"due_ms\":1}\n");
    let put = run_with(&["task", "put", "-f", "-", "--url", &place], forged);
    assert_eq!((put.code, put.out.as_str()), (Some(0), "put 1 task: 1 \\u001b[2Jcreated\n"), "{}", put.err);
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_task() {
    let server = serve(&[]);
    let put = run_with(&["task", "put", "-f", "-", "--url", &url(&server)], &format!("\u{feff}{}", lines(2)));
    assert_eq!((put.code, put.out.as_str()), (Some(0), "put 2 tasks: 2 created\n"), "{}", put.err);
}

#[test]
fn answers_that_cannot_be_written_are_a_failure_after_all_are_put() {
    let server = serve(&[]);
    let (file, url) = (file(&lines(99)), url(&server));
    let batch = ["task", "put", "-f", file.path().to_str().unwrap(), "--url", &url, "--json"];
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let put = read(punctual(&batch).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    assert_eq!(put.code, Some(1), "{}", put.err);
    let detail = "put 99 tasks: 99 created\nerror: cannot write to stdout: No space left";
    assert!(put.err.starts_with(detail), "{}", put.err);
    // A reader that closes the pipe has read enough: this is no failure.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let put = read(punctual(&batch).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    assert_eq!((put.code, put.err.as_str()), (Some(0), "put 99 tasks: 99 replaced\n"));
}

/// Far more output than a pipe holds, and nobody reads it.
#[test]
fn a_signal_ends_a_batch_although_its_output_is_not_read() {
    let server = serve(&[]);
    let (good, bad) = (file(&lines(60_000)), file(&"{}\n".repeat(60_000)));
    for (file, json) in [(&good, &["--json"][..]), (&bad, &[])] {
        let url = url(&server);
        let arguments = [&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &url], json].concat();
        let mut child = punctual(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut seen = [0];
        match json {
            [] => child.stderr.as_mut().unwrap().read_exact(&mut seen).unwrap(),
            _ => child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap(),
        }
        // Time for the pipe to fill; otherwise the test shows less.
        std::thread::sleep(Duration::from_secs(1));
        support::server::signal_pid(child.id(), "INT");
        let code = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            child.try_wait().unwrap()
        });
        let code = code.unwrap_or_else(|| {
            child.kill().unwrap();
            panic!("it goes on after SIGINT: {arguments:?}")
        });
        assert_eq!(code.code(), Some(1));
        if json.len() == 1 {
            let mut reported = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut reported).unwrap();
            assert!(reported.contains("SIGINT received; all lines up to "), "{reported}");
        }
    }
}

#[test]
fn a_signal_ends_a_put_that_waits_for_its_file_to_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut child = punctual(&["task", "put", "-f", path.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    // It may not wait yet; it must end in any case.
    std::thread::sleep(Duration::from_millis(500));
    support::server::signal_pid(child.id(), "TERM");
    let code = (0..3000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        child.try_wait().unwrap()
    });
    child.kill().ok();
    assert!(code.is_some_and(|code| !code.success()), "it goes on after SIGTERM: {code:?}");
}

/// An instance with short timeouts.
fn impatient() -> crate::support::punctual::Punctual {
    crate::support::punctual::Punctual::start_unready(
        "body_timeout = \"3s\"\n[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"stdout:\"\n",
    )
}

#[test]
fn a_batch_ends_after_a_long_pause_without_an_error_for_a_further_line() {
    let instance = impatient();
    let url = format!("http://127.0.0.1:{}", instance.port);
    let mut child = punctual(&["task", "put", "-f", "-", "--url", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    to.write_all(lines(1).as_bytes()).unwrap();
    // stdin stays open until the end.
    let put = read(child.wait_with_output().unwrap());
    drop(to);
    assert_eq!((put.code, put.out.as_str()), (Some(1), "put 1 task: 1 created\n"), "{}", put.err);
    let known = "all lines up to 1 are answered, 1 of them put and 0 failed";
    assert!(!put.err.contains("line 2: ") && put.err.contains(known) && put.err.contains("within 3s"), "{}", put.err);
}

#[test]
fn a_batch_shows_a_progress_bar_on_a_terminal() {
    if !support::have("script") {
        return;
    }
    let server = serve(&[]);
    let file = file(&lines(20_000));
    let command = format!("{PUNCTUAL} task put -f {} --url {} >/dev/null", file.path().display(), url(&server));
    let seen = Command::new("script").args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").output().unwrap();
    let seen = read(seen);
    assert_eq!(seen.code, Some(1), "{}{}", seen.out, seen.err);
    assert!(seen.out.contains(" %  ") && seen.out.contains(" lines answered, "), "{}", seen.out);
    assert!(seen.out.contains("line 100 (`t100`): ") && seen.out.contains("error: 200 of 20000 lines"), "{}", seen.out);
}
