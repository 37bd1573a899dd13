//! `punctual task put | get | cancel | list | upcoming | count` against a running instance.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::{Value, json};

use super::{punctual, read, run, run_with, serve, url, wait_for};
use crate::support::patient;

#[test]
fn a_task_is_put_shown_and_cancelled() {
    let server = serve(&[]);
    let url = url(&server);
    let put = run(&["task", "put", "a", "--in", "1h", "--payload", "{\"n\": 1.0}", "--url", &url]);
    assert_eq!((put.code, put.err.as_str()), (Some(0), ""));
    assert!(put.out.starts_with("created a, due 20"), "{}", put.out);
    let shown = run(&["task", "get", "a", "--url", &url, "--json"]);
    assert!(shown.code == Some(0) && shown.out.contains("\"payload\":{\"n\": 1.0}"), "{}", shown.out);
    let shown = run(&["task", "get", "a", "--url", &url]);
    assert!(shown.out.contains("\"status\": \"scheduled\""), "{}", shown.out);
    let cancelled = run(&["task", "cancel", "a", "--url", &url]);
    assert_eq!((cancelled.code, cancelled.out.as_str()), (Some(0), "cancelled a\n"));
    for command in ["get", "cancel"] {
        let again = run(&["task", command, "a", "--url", &url]);
        assert_eq!((again.code, again.out.as_str()), (Some(1), ""));
        assert!(again.err.contains("error: cannot ") && again.err.contains("there is no task `a`"), "{}", again.err);
    }
}

#[test]
fn every_kind_of_schedule_can_be_put() {
    let server = serve(&[]);
    let url = url(&server);
    for (id, arguments, schedule) in [
        ("at", &["--at", "2100-01-01T00:00:00Z"][..], json!({"at": "2100-01-01T00:00:00.000Z"})),
        ("every", &["--every", "1m30s"], json!({"every": "1m30s"})),
        (
            "cron",
            &["--cron", "0 9 * * MON", "--zone", "Europe/Berlin"],
            json!({"cron": "0 9 * * MON", "zone": "Europe/Berlin"}),
        ),
    ] {
        let arguments =
            [&["task", "put", id, "--destination", "d", "--lane", "default", "--url", &url, "--json"], arguments]
                .concat();
        let put = run(&arguments);
        assert_eq!(put.code, Some(0), "{}", put.err);
        let answer: Value = serde_json::from_str(&put.out).unwrap();
        assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &json!("created")));
        let shown = run(&["task", "get", id, "--url", &url, "--json"]);
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(shown["schedule"], schedule);
        assert_eq!(shown["message"], json!({"destination": "d"}));
    }
    let every = run(&["task", "put", "every", "--every", "2m", "--url", &url]);
    assert!(every.out.starts_with("replaced every, due 20") && every.out.contains("\nthen 20"), "{}", every.out);
}

#[test]
fn a_task_comes_from_a_file_or_from_stdin_and_is_published() {
    let server = serve(&[]);
    let url = url(&server);
    let task = r#"{"schedule":{"in":"100ms"},"message":{"payload":"from a file"}}"#;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), task).unwrap();
    let put = run(&["task", "put", "one", "-f", file.path().to_str().unwrap(), "--url", &url]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let put = run_with(&["task", "put", "two", "-f", "-", "--url", &url], &task.replace("a file", "stdin"));
    assert_eq!(put.code, Some(0), "{}", put.err);
    wait_for(&server.log(), "\"payload\":\"from a file\"");
    wait_for(&server.log(), "\"payload\":\"from stdin\"");
    let metrics = || ureq::get(format!("{url}/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
    for line in [
        "punctual_timeline_calls_total{verb=\"put\",result=\"ok\"} 2",
        "punctual_claimed_total{lane=\"default\"} 2",
        "punctual_published_total{sink=\"default\",outcome=\"accepted\"} 2",
        "punctual_lateness_seconds_count{lane=\"default\"} 2",
        "punctual_puts_total{result=\"created\"} 2",
    ] {
        // Metrics are updated after the output.
        assert!(patient(Duration::from_secs(30), || metrics().contains(line)), "no {line} in {}", metrics());
    }
}

#[test]
fn every_part_of_a_task_has_a_flag() {
    let server = serve(&[]);
    let url = url(&server);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"n": 1.0}"#).unwrap();
    let payload = format!("@{}", file.path().to_str().unwrap());
    let put = run(&[
        "task",
        "put",
        "a",
        "--cron",
        "0 9 * * *",
        "--zone",
        "Europe/Berlin",
        "--start",
        "2099-11-22T00:00:00Z",
        "--end",
        "2099-12-01T00:00:00Z",
        "--limit",
        "3",
        "--spread",
        "1s",
        "--payload",
        &payload,
        "--header",
        "kind=x=y",
        "--key",
        "k",
        "--destination",
        "d",
        "--retry-max",
        "2",
        "--catch-up",
        "all",
        "--url",
        &url,
    ]);
    let begin = "created a, due 2099-11-22T08:00:00.";
    assert!(put.code == Some(0) && put.out.starts_with(begin), "{}{}", put.out, put.err);
    assert!(put.out.contains("  2099-11-22 09:00:00 +01:00 Europe/Berlin\nthen 2099-11-23T08:00:00."), "{}", put.out);
    let task: Value = serde_json::from_str(&run(&["task", "get", "a", "--json", "--url", &url]).out).unwrap();
    let schedule = json!({"cron": "0 9 * * *", "zone": "Europe/Berlin", "start": "2099-11-22T00:00:00.000Z",
        "end": "2099-12-01T00:00:00.000Z", "limit": 3, "spread": "1s"});
    assert_eq!(task["schedule"], schedule);
    let message = json!({"destination": "d", "key": "k", "headers": {"kind": "x=y"}, "payload": {"n": 1.0}});
    assert_eq!((&task["message"], &task["retry"]["max"], &task["catch_up"]), (&message, &json!(2), &json!("all")));
    let text = run(&["task", "put", "b", "--in", "1h", "--text", "say \"hi\"", "--url", &url]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    let task: Value = serde_json::from_str(&run(&["task", "get", "b", "--json", "--url", &url]).out).unwrap();
    assert_eq!(task["message"]["payload"], "say \"hi\"");
    // The address as people type it.
    let port = url.rsplit_once(':').unwrap().1;
    for typed in [port.to_owned(), format!(":{port}"), format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
        assert_eq!(run(&["task", "get", "b", "--url", &typed]).code, Some(0), "{typed}");
    }
}

#[test]
fn a_time_of_long_ago_is_refused_without_past_and_shown_as_overdue() {
    let server = serve(&[]);
    let url = url(&server);
    let typed = ["task", "put", "a", "--at", "2020-01-01T00:00:00Z", "--url", &url];
    let refused = run(&typed);
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
    for detail in ["`--at 2020-01-01T00:00:00Z` is more than a day ago", "hint: with `--past`"] {
        assert!(refused.err.contains(detail), "no `{detail}` in {}", refused.err);
    }
    let put = run(&[&typed[..], &["--past"]].concat());
    let shown = "created a, due 2020-01-01T00:00:00.000Z; it is overdue and due at once\n";
    assert_eq!((put.code, put.out.as_str()), (Some(0), shown), "{}", put.err);
    let line = r#"{"id":"b","schedule":{"at":"2020-01-01T00:00:00Z"},"message":{}}"#;
    let batch = run_with(&["task", "put", "-f", "-", "--url", &url], line);
    let shown = "put 1 task: 1 created, 1 of them overdue, due at once\n";
    assert_eq!((batch.code, batch.out.as_str()), (Some(0), shown), "{}", batch.err);
    // The command does not judge a text that is no time; the instance refuses it.
    let unread = run(&["task", "put", "c", "--at", "yesterday", "--url", &url]);
    assert!(unread.code == Some(1) && unread.err.contains("/schedule/at: "), "{}", unread.err);
}

#[test]
fn a_refused_put_shows_the_errors_of_the_instance() {
    let server = serve(&[]);
    let url = url(&server);
    let refused = run(&["task", "put", "-a", "--in", "soon", "--lane", "UP", "--url", &url][..]);
    assert_eq!(refused.code, Some(2), "an id that looks like a flag: {}", refused.err);
    let refused = run(&["task", "put", "a/b", "--in", "soon", "--lane", "UP", "--url", &url]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    for detail in ["error: cannot put the task `a/b`: ", "\n  /id: ", "\n  /schedule/in: ", "\n  /lane: "] {
        assert!(refused.err.contains(detail), "no `{detail}` in {}", refused.err);
    }
    let json = run(&["task", "put", "a", "--in", "soon", "--url", &url, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["code"], "invalid");
    assert_eq!(json.code, Some(1));
}

#[test]
fn a_bad_payload_a_missing_file_and_an_absent_instance_have_own_errors() {
    let payload = run(&["task", "put", "a", "--in", "1s", "--payload", "hello"]);
    assert_eq!(payload.code, Some(2));
    assert!(
        payload.err.contains("error: the payload is not JSON") && payload.err.contains("\nhint: "),
        "{}",
        payload.err
    );
    let file = run(&["task", "put", "a", "-f", "/nowhere"]);
    assert!(file.code == Some(2) && file.err.contains("cannot read the task from `/nowhere`"), "{}", file.err);
    let both = run(&["task", "put", "a", "--in", "1s", "--at", "2100-01-01T00:00:00Z"]);
    assert!(both.code == Some(2), "{}", both.err);
    let nobody = format!("http://127.0.0.1:{}", crate::support::server::free_port());
    let away = run(&["task", "get", "a", "--url", &nobody]);
    assert_eq!(away.code, Some(1));
    assert!(away.err.contains(&format!("error: cannot show the task `a` at `{nobody}`: ")), "{}", away.err);
    assert!(away.err.contains("\nhint: start an instance with `punctual serve`"), "{}", away.err);
}

/// The address of a server with one fixed answer.
pub(super) fn fake_server(status: &'static str, body: &[u8]) -> String {
    let body = body.to_vec();
    fake_server_by_path(move |_| (status, body.clone()))
}

/// Starts a server. `answer` gets the first line of each request, and returns the status and the body.
pub(super) fn fake_server_by_path(answer: impl Fn(&str) -> (&'static str, Vec<u8>) + Send + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = head.next().and_then(Result::ok).unwrap_or_default();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let (status, body) = answer(&first);
            stream
                .write_all(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes())
                .unwrap();
            stream.write_all(&body).unwrap();
        }
    });
    place
}

#[test]
fn task_commands_report_a_server_that_is_not_an_instance() {
    for (status, body) in [
        ("200 OK", &b"<html>log in</html>"[..]),
        ("200 OK", b""),
        ("200 OK", b"{}"),
        ("200 OK", b"[1]"),
        ("200 OK", b"{\"status\":\"\xff\"}"),
        ("302 Found", b""),
        ("502 Bad Gateway", b"<html>sorry</html>"),
    ] {
        let place = fake_server(status, body);
        for arguments in [&["get", "a"][..], &["cancel", "a"], &["put", "a", "--in", "1h"]] {
            for json in [&[][..], &["--json"]] {
                let reported = run(&[&["task"], arguments, &["--url", &place], json].concat());
                assert_eq!(
                    (reported.code, reported.out.as_str()),
                    (Some(1), ""),
                    "{status} {arguments:?}: {}",
                    reported.err
                );
                assert!(reported.err.contains(&format!("`{place}` answered {}", &status[..3])), "{}", reported.err);
            }
        }
    }
}

#[test]
fn control_characters_from_tasks_and_servers_are_shown_escaped() {
    let (esc, line) = ("\\u001b[2J", "\\nforged: ");
    for (status, body, arguments) in [
        (
            "200 OK",
            format!("{{\"result\":\"created{esc}{line}\",\"due\":\"{esc}{line}\"}}"),
            &["put", "a", "--in", "1h"][..],
        ),
        ("422 No", format!("{{\"detail\":\"{esc}{line}\",\"errors\":[]}}"), &["cancel", "a"]),
        ("200 OK", "{\"status\":\"\u{9b}2J\"}".to_owned(), &["get", "a"]),
        ("404 No", "{}".to_owned(), &["get", "\u{1b}[2J\nforged: "]),
    ] {
        let place = fake_server(status, body.as_bytes());
        let reported = run(&[&["task"], arguments, &["--url", &place]].concat());
        let text = reported.out + &reported.err;
        assert!(!text.contains(['\u{1b}', '\u{9b}']) && !text.contains("\nforged"), "{text:?}");
        assert!(text.contains("\\u001b[2J") || text.contains("\\u009b2J"), "{text:?}");
    }
}

/// A full disk is reported; a closed pipe is no failure.
#[test]
fn data_that_cannot_be_written_is_a_failure() {
    let server = serve(&[]);
    let url = url(&server);
    assert_eq!(run(&["task", "put", "a", "--in", "1h", "--url", &url]).code, Some(0));
    for arguments in [
        &["task", "get", "a", "--url", &url][..],
        &["task", "get", "a", "--url", &url, "--json"],
        &["completions", "bash"],
        &["man"],
        &["preview", "--every", "5m"],
        &["config", "--redis", "memory:", "--sink", "stdout:"],
        &["check", "--offline", "--redis", "memory:", "--sink", "stdout:"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let reported = read(
            punctual(arguments)
                .stdout(full)
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
                .wait_with_output()
                .unwrap(),
        );
        assert_eq!(reported.code, Some(1), "{arguments:?}: {}", reported.err);
        assert!(
            reported.err.contains("error: cannot write to stdout: No space left"),
            "{arguments:?}: {}",
            reported.err
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(punctual(arguments).stdout(writer).status().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_task_that_is_too_large_is_reported_with_the_limit() {
    let server = serve(&[]);
    let task =
        format!("\u{feff}{{\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"payload\":\"{}\"}}}}", "x".repeat(16 << 20));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &task).unwrap();
    let url = url(&server);
    let put = ["task", "put", "a", "-f", file.path().to_str().unwrap(), "--url", &url];
    let reported = run(&put);
    assert!(reported.code == Some(1) && reported.err.contains("more than 1048576 bytes"), "{}", reported.err);
    // A byte order mark is not part of the task.
    std::fs::write(file.path(), task.replace(&"x".repeat(16 << 20), "x")).unwrap();
    let reported = run(&put);
    assert_eq!(reported.code, Some(0), "{}", reported.err);
}

#[test]
fn tasks_are_listed_in_lines_and_as_json() {
    let server = serve(&[]);
    let url = url(&server);
    let lines: String = (0..1500)
        .map(|n| format!("{{\"id\":\"order-{n}\",\"schedule\":{{\"in\":\"1h\"}},\"message\":{{}}}}\n"))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let put = run(&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &url]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let all = run(&["task", "list", "--limit", "5000", "--url", &url]);
    assert_eq!((all.code, all.err.as_str()), (Some(0), ""));
    let ids: std::collections::BTreeSet<&str> = all.out.lines().filter_map(|line| line.split("  ").next()).collect();
    assert_eq!(ids.len(), 1500);
    let first = all.out.lines().next().unwrap();
    assert!(first.contains("  default  scheduled  20"), "{first}");
    let some = run(&["task", "list", "--limit", "3", "--url", &url]);
    assert_eq!((some.code, some.err.as_str()), (Some(0), "there are more: `--limit` says how many are shown\n"));
    assert_eq!(some.out.lines().count(), 3);
    let one = run(&["task", "list", "--json", "--contains", "1499", "--status", "scheduled", "--url", &url]);
    let one: serde_json::Value = serde_json::from_str(&one.out).unwrap();
    assert_eq!(
        (&one["id"], &one["lane"], &one["status"]),
        (&"order-1499".into(), &"default".into(), &"scheduled".into())
    );
    let none = run(&["task", "list", "--lane", "defualt", "--url", &url]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("the lane `defualt` is not configured; configured are `default`"), "{}", none.err);
}

#[test]
fn what_is_upcoming_is_shown_by_due() {
    let server = serve(&[]);
    let url = url(&server);
    let put = |id: &str, wait: &str| {
        let put = run(&["task", "put", id, "--in", wait, "--url", &url]);
        assert_eq!(put.code, Some(0), "{}", put.err);
    };
    for (id, wait) in [("third", "3h"), ("first", "1h"), ("second", "2h")] {
        put(id, wait);
    }
    let shown = run(&["task", "upcoming", "--url", &url]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    let ids: Vec<&str> = shown.out.lines().map(|line| line.split("  ").nth(1).unwrap()).collect();
    assert_eq!(ids, ["first", "second", "third"]);
    let local = run(&["task", "upcoming", "--zone", "Asia/Kolkata", "--limit", "1", "--url", &url]);
    assert!(local.out.contains(" +05:30 Asia/Kolkata  first  default\n"), "{}", local.out);
    let listed = run(&["task", "list", "--zone", "Asia/Kolkata", "--url", &url]);
    assert!(listed.out.lines().all(|line| line.ends_with(" +05:30 Asia/Kolkata")), "{}", listed.out);
    let nowhere = run(&["task", "list", "--zone", "Mars", "--url", &url]);
    assert!(nowhere.code == Some(2) && nowhere.err.contains("a name of the IANA database"), "{}", nowhere.err);
    let some = run(&["task", "upcoming", "--limit", "1", "--url", &url]);
    assert_eq!(some.out.lines().count(), 1);
    assert!(some.err.starts_with("there are more"), "{}", some.err);
    let one = run(&["task", "upcoming", "--json", "--prefix", "sec", "--url", &url]);
    let one: serde_json::Value = serde_json::from_str(&one.out).unwrap();
    assert_eq!((&one["items"][0]["id"], &one["more"]), (&"second".into(), &false.into()));
    let next = run(&["task", "get", "second", "--next", "3", "--url", &url]);
    assert!(next.out.contains("\"next\": []"), "a task that is due once has no other due: {}", next.out);
    assert_eq!(run(&["task", "get", "second", "--next", "101", "--url", &url]).code, Some(1));
    let none = run(&["task", "upcoming", "--lane", "defualt", "--url", &url]);
    assert_eq!(none.code, Some(1));
}

#[test]
fn tasks_are_counted_in_a_table() {
    let server = serve(&[]);
    let url = url(&server);
    for (id, due) in [("a", "2100-01-01T00:30:00Z"), ("b", "2100-01-01T01:30:00Z"), ("c", "2100-01-01T01:59:59Z")] {
        assert_eq!(run(&["task", "put", id, "--at", due, "--url", &url]).code, Some(0));
    }
    let hours = ["--from", "2100-01-01T00:00:00Z", "--to", "2100-01-01T02:00:00Z", "--windows", "2"];
    let shown = run(&[&["task", "count", "--url", &url][..], &hours].concat());
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""));
    let words: Vec<Vec<&str>> = shown.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1], ["default", "3", "0", "0", "0"], "{}", shown.out);
    assert_eq!(words[4], ["2100-01-01T00:00:00.000Z", "2100-01-01T01:00:00.000Z", "1"], "{}", shown.out);
    assert_eq!(words[5], ["2100-01-01T01:00:00.000Z", "2100-01-01T02:00:00.000Z", "2"], "{}", shown.out);
    let json = run(&["task", "count", "--json", "--lane", "default", "--url", &url]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["lanes"]["default"]["waiting"], 3);
    assert_eq!(run(&["task", "count", "--windows", "2", "--url", &url]).code, Some(2));
}
