//! `punctual dead list | show | requeue | discard` against a running instance.

use serde_json::Value;

use super::task::fake_server;
use super::{run, serve, url, wait_for};

/// Overdue by years, with catch-up none: dead as soon as it is claimed.
const TOO_LATE: &str =
    r#"{"schedule":{"at":"2020-01-01T00:00:00Z"},"message":{"payload":{"n": 1.0}},"catch_up":"none"}"#;

/// An instance with this many dead occurrences, `t0` and so on.
fn with_dead(count: usize) -> (crate::support::server::Server, String) {
    let server = serve(&[]);
    let url = url(&server);
    let lines: String =
        (0..count).map(|n| format!("{}\n", TOO_LATE.replacen('{', &format!("{{\"id\":\"t{n}\","), 1))).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let put = run(&["task", "put", "-f", file.path().to_str().unwrap(), "--url", &url]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    for _ in 0..1000 {
        if list(&url).len() == count {
            return (server, url);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{:?}", list(&url));
}

fn list(url: &str) -> Vec<Value> {
    let listed = run(&["dead", "list", "--json", "--limit", "5000", "--url", url]);
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""), "{}", listed.out);
    listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn key(number: usize) -> String {
    format!("t{number}:1577836800000")
}

#[test]
fn the_dead_are_listed_and_shown() {
    let (_server, url) = with_dead(3);
    let listed = run(&["dead", "list", "--url", &url]);
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = listed.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", listed.out);
    for number in 0..3 {
        assert!(lines.iter().any(|line| line.starts_with(&format!("{}  20", key(number)))), "{}", listed.out);
    }
    assert!(lines[0].ends_with("  default  -  too late: overdue by more than its catch-up allows"), "{}", lines[0]);
    let first = run(&["dead", "list", "--limit", "1", "--reason", "too late", "--lane", "default", "--url", &url]);
    assert_eq!((first.code, first.out.lines().count()), (Some(0), 1));
    assert_eq!(first.err, "there are more: `--limit` says how many are shown\n");
    for none in [
        &["--reason", "poison"][..],
        &["--lane", "default", "--reason", "poison"],
        &["--to", "2026-01-01T00:00:00+01:00"],
    ] {
        let listed = run(&[&["dead", "list", "--url", &url], none].concat());
        assert_eq!((listed.code, listed.out.as_str(), listed.err.as_str()), (Some(0), "", ""), "{none:?}");
    }
    let shown = run(&["dead", "show", &key(1), "--url", &url]);
    assert!(shown.code == Some(0) && shown.out.contains("\"reason\": \"too late\""), "{}", shown.out);
    let shown = run(&["dead", "show", &key(1), "--url", &url, "--json"]);
    assert!(shown.out.contains("\"payload\":{\"n\": 1.0}"), "byte for byte: {}", shown.out);
}

#[test]
fn a_requeued_occurrence_is_published_under_its_key() {
    let (server, url) = with_dead(4);
    let one = run(&["dead", "requeue", &key(0), "--url", &url]);
    assert_eq!((one.code, one.out, one.err.as_str()), (Some(0), format!("requeued {}\n", key(0)), ""));
    wait_for(&server.log(), &format!("\"key\":\"{}\"", key(0)));
    // A failure of one does not stop the others.
    let some = run(&["dead", "requeue", "none:5", &key(1), "a", "--url", &url]);
    assert_eq!((some.code, some.out), (Some(1), format!("requeued {}\n", key(1))));
    for detail in ["`none:5`: there is no dead occurrence `none:5`", "the dead occurrence `a`: /key: "] {
        assert!(some.err.contains(detail), "no `{detail}` in {}", some.err);
    }
    let rest = run(&["dead", "requeue", "--reason", "too late", "--yes", "--url", &url, "--json"]);
    assert_eq!((rest.code, rest.out.as_str()), (Some(0), "{\"in_flight\":0,\"requeued\":2}\n"), "{}", rest.err);
    wait_for(&server.log(), &format!("\"key\":\"{}\"", key(3)));
    assert!(list(&url).is_empty());
    let audit = super::log(&server);
    assert!(audit.contains("dead occurrence requeued") && audit.contains("dead occurrences changed"), "{audit}");
}

#[test]
fn a_discarded_occurrence_is_gone_and_cannot_be_discarded_again() {
    let (server, url) = with_dead(3);
    let one = run(&["dead", "discard", &key(0), "--url", &url, "--json"]);
    assert_eq!(one.code, Some(0), "{}", one.err);
    assert_eq!(serde_json::from_str::<Value>(&one.out).unwrap()["result"], "discarded");
    let again = run(&["dead", "discard", &key(0), "--url", &url]);
    assert!(
        again.code == Some(1) && again.err.contains("error: cannot discard the dead occurrence `t0:"),
        "{}",
        again.err
    );
    let none = run(&["dead", "discard", "--lane", "default", "--reason", "poison", "--url", &url]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), "discarded 0\n"));
    let all = run(&["dead", "discard", "--all", "--yes", "--url", &url]);
    assert_eq!((all.code, all.out.as_str()), (Some(0), "discarded 2\n"));
    assert!(list(&url).is_empty());
    let audit = super::log(&server);
    assert!(audit.contains("dead occurrence discarded") && audit.contains("dead occurrences changed"), "{audit}");
}

#[test]
fn many_are_changed_only_after_their_number_was_confirmed() {
    let (_server, url) = with_dead(3);
    for (command, done) in [("requeue", "requeued"), ("discard", "discarded")] {
        let dry = run(&["dead", command, "--lane", "default", "--dry-run", "--url", &url]);
        assert_eq!((dry.code, dry.out), (Some(0), format!("3 match; nothing was {done}\n")), "{}", dry.err);
        let dry = run(&["dead", command, "--all", "--dry-run", "--json", "--url", &url]);
        assert_eq!((dry.code, dry.out.as_str()), (Some(0), "{\"matched\":3}\n"));
        // Tests have no terminal to type on.
        let refused = run(&["dead", command, "--all", "--url", &url]);
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""));
        assert!(refused.err.contains("3 dead occurrences") && refused.err.contains("`--yes`"), "{}", refused.err);
    }
    assert_eq!(list(&url).len(), 3);
}

#[test]
fn a_lane_that_is_neither_configured_nor_has_dead_is_named_with_those_there_are() {
    let (_server, url) = with_dead(1);
    for arguments in [&["list"][..], &["requeue", "--yes"], &["discard", "--yes"], &["discard", "--dry-run"]] {
        let refused = run(&[&["dead"], arguments, &["--lane", "defualt", "--url", &url]].concat());
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{arguments:?}");
        let detail = "the lane `defualt` is not configured; configured are `default`";
        assert!(refused.err.contains(detail), "{arguments:?}: {}", refused.err);
    }
}

#[test]
fn a_requeue_with_wait_tells_that_none_died_again() {
    // A requeued occurrence is published whatever its catch-up, so it does not die again as `too late`.
    let (_server, url) = with_dead(2);
    let requeued = run(&["dead", "requeue", &key(0), "--wait", "300ms", "--url", &url]);
    let expected = format!("requeued {}\nnone died again within 300ms\n", key(0));
    assert_eq!((requeued.code, requeued.out), (Some(0), expected), "{}", requeued.err);
    let wrong = run(&["dead", "requeue", "--all", "--wait", "soon", "--url", &url]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(2), ""));
}

#[test]
fn bulk_requeue_and_discard_need_an_explicit_and_valid_selection() {
    for command in ["requeue", "discard"] {
        for arguments in [&[][..], &["a:1", "--all"], &["a:1", "--lane", "x"], &["--all", "--reason", "poison"]] {
            let reported = run(&[&["dead", command, "--url", "http://127.0.0.1:1"], arguments].concat());
            assert_eq!(
                (reported.code, reported.out.as_str()),
                (Some(2), ""),
                "{command} {arguments:?}: {}",
                reported.err
            );
        }
    }
    let server = serve(&[]);
    let wrong = run(&["dead", "requeue", "--reason", "rejectd", "--from", "yesterday", "--url", &url(&server)]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""));
    for detail in ["error: cannot requeue the dead: ", "\n  /reason: ", "did you mean `rejected`", "\n  /from: "] {
        assert!(wrong.err.contains(detail), "no `{detail}` in {}", wrong.err);
    }
    assert_eq!(run(&["dead", "list", "--limit", "0"]).code, Some(2));
}

#[test]
fn dead_commands_report_a_server_that_is_not_an_instance() {
    for (status, body) in [("200 OK", &b"<html>log in</html>"[..]), ("200 OK", b"{}"), ("502 Bad Gateway", b"sorry")] {
        let place = fake_server(status, body);
        for arguments in [&["list"][..], &["show", "a:1"], &["requeue", "a:1"], &["discard", "--all", "--yes"]] {
            let reported = run(&[&["dead"], arguments, &["--url", &place]].concat());
            assert_eq!(
                (reported.code, reported.out.as_str()),
                (Some(1), ""),
                "{status} {arguments:?}: {}",
                reported.err
            );
            assert!(reported.err.contains(&format!("`{place}` answered {}", &status[..3])), "{}", reported.err);
        }
    }
    let item = r#"{"key":"\u001b[2J","died":"","reason":"\n","detail":"forged\u009b"}"#;
    let place = fake_server("200 OK", format!("{{\"items\":[{item}]}}").as_bytes());
    let reported = run(&["dead", "list", "--url", &place]);
    assert!(
        reported.code == Some(0) && !reported.out.contains(['\u{1b}', '\u{9b}']) && reported.out.lines().count() == 1,
        "{:?}",
        reported.out
    );
}
