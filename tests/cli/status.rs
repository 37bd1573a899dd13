//! `punctual status`, `lane pause` and `lane resume` with a running instance.

use serde_json::{Value, json};

use super::task::fake_server;
use super::{run, serve, url};

#[test]
fn the_status_is_a_row_for_each_lane() {
    let server = serve(&[]);
    let url = url(&server);
    assert_eq!(run(&["task", "put", "a", "--in", "1h", "--url", &url]).code, Some(0));
    // The numbers are those of the last second.
    let mut shown = run(&["status", "--url", &url]);
    for _ in 0..500 {
        if shown.out.contains("        1 ") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        shown = run(&["status", "--url", &url]);
    }
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[0].starts_with("redis up   instance ") && !lines[0].contains("dead"), "{}", shown.out);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[2]), ["default", "default", "1", "0", "0", "0", "0", "-", "-"]);
    assert_eq!(lines.len(), 3, "nothing is wrong: {}", shown.out);
    let json = run(&["status", "--json", "--url", &url]);
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["lanes"]["default"]["waiting"], 1);
}

#[test]
fn the_status_says_what_is_wrong() {
    let mut stats = json!({
        "instance": "i0", "version": "0", "now": "2026-11-21T12:01:05.000Z", "as_of": "2026-11-21T12:00:00.000Z", "dead": 3,
        "timeline": {"status": "down", "detail": "connection \u{1b}[2Jrefused", "lost": "2026-11-21T11:00:00.000Z"},
        "lanes": {
            "default": {"sink": "orders", "waiting": 7, "overdue": 2, "in_flight": 1, "paused": 0, "head": null, "oldest_ms": 1_795_262_400_000_i64,
                "published_per_s": 41.6, "lateness_ms": {"p50": 0.7, "p99": 2.4}},
            "old": {"sink": null, "waiting": 4, "overdue": 0, "in_flight": 0, "paused": 0, "head": null, "oldest_ms": null},
        },
        "instances": [
            {"id": "i0", "version": "0", "lanes": ["default"], "unavailable_sinks": ["mail"]},
            {"id": "i1", "version": "1", "lanes": [], "unavailable_sinks": ["mail"]},
            {"id": "i2", "version": "", "lanes": ["default"], "unavailable_sinks": []},
        ],
        "doors": {
            "orders-in": {"kind": "kafka", "from": "punctual.in", "status": "up"},
            "waiting": {"kind": "rabbitmq", "from": "orders", "status": "unavailable", "detail": "there is no queue 'orders'"},
        },
        "sinks": {
            "mail": {"kind": "nats", "breaker": "open", "detail": "login refused"},
            "news": {"kind": "nats", "breaker": "closed", "unanswered_s": 3.2},
            "orders": {"kind": "kafka", "breaker": "closed", "failing_count": 12, "failing": [{"destination": "orders.cancel",
                "status": "refusing", "since": "2026-11-21T12:00:53.000Z", "waiting": 5, "detail": "the queue is full"}]},
        },
    });
    let url = fake_server("200 OK", stats.to_string().as_bytes());
    let shown = run(&["status", "--url", &url]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for line in [
        "redis down   instance i0 0 and 2 more   dead 3 (punctual dead list)",
        "instance i1: its version is 1",
        "instance i1: sink mail: unavailable",
        "instance i2: its version is unknown",
        "the numbers are as of 2026-11-21T12:00:00.000Z",
        "the timeline was lost at 2026-11-21T11:00:00.000Z: all tasks that waited then are gone",
        "lane old: this instance does not serve it, 4 tasks wait",
        "door orders-in: kafka punctual.in, up",
        "door waiting: rabbitmq orders, unavailable: there is no queue 'orders'",
        "sink mail: unavailable: login refused",
        "sink news: it has answered none of the messages under way for 3 s",
        "sink orders: orders.cancel refusing since 2026-11-21T12:00:53.000Z, 5 in flight: the queue is full",
        "sink orders: 11 more destinations fail",
    ] {
        assert!(shown.out.lines().any(|shown| shown == line), "no `{line}` in {}", shown.out);
    }
    assert!(shown.out.lines().any(|line| line.starts_with("default") && line.ends_with("  1m5s")), "{}", shown.out);
    assert!(!shown.out.contains('\u{1b}'));
    // Redis was never reached, so 0 would be a guess.
    stats["as_of"].take();
    let unknown = run(&["status", "--url", &fake_server("200 OK", stats.to_string().as_bytes())]);
    let default: Vec<&str> =
        unknown.out.lines().find(|line| line.starts_with("default")).unwrap().split_whitespace().collect();
    assert_eq!(default[2..6], ["-"; 4], "{}", unknown.out);
    let wrong = run(&["status", "--url", &fake_server("200 OK", b"<html>")]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""));
}

#[test]
fn a_lane_is_paused_shown_and_resumed() {
    let server = serve(&[]);
    let url = url(&server);
    let paused =
        run(&["lane", "pause", "default", "--note", "broker moves", "--until", "2100-01-01T00:00:00Z", "--url", &url]);
    assert_eq!((paused.code, paused.out.as_str()), (Some(0), "paused default\n"), "{}", paused.err);
    assert_eq!(run(&["task", "put", "a", "--in", "1ms", "--url", &url]).code, Some(0));
    let mut shown = run(&["status", "--url", &url]);
    for _ in 0..500 {
        if shown.out.contains("lane default: paused since ") && shown.out.contains("        1         1 ") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        shown = run(&["status", "--url", &url]);
    }
    assert!(shown.out.contains(" until 2100-01-01T00:00:00.000Z: broker moves\n"), "{}", shown.out);
    let task = run(&["task", "get", "a", "--json", "--url", &url]).out;
    let task: Value = serde_json::from_str(&task).unwrap();
    assert_eq!((&task["lane_paused"], &task["overdue"]), (&json!(true), &json!(true)));
    let log = super::log(&server);
    assert!(!log.contains("\"payload\"") && log.contains("lane paused or resumed"), "{log}");
    let resumed = run(&["lane", "resume", "default", "--url", &url]);
    assert_eq!((resumed.code, resumed.out.as_str()), (Some(0), "resumed default\n"), "{}", resumed.err);
    super::wait_for(&server.log(), "\"task\":\"a\"");
    let again = run(&["lane", "resume", "default", "--json", "--url", &url]);
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again, json!({"lane": "default", "result": "unchanged", "in_flight": 0}));
    let unknown = run(&["lane", "pause", "nobody", "--url", &url]);
    assert!(unknown.code == Some(1) && unknown.err.contains("the lane `nobody` is not configured"), "{}", unknown.err);
    let span = run(&["lane", "pause", "default", "--until", "1h", "--url", &url]);
    assert_eq!((span.code, span.out.as_str()), (Some(0), "paused default\n"), "{}", span.err);
    let past = run(&["lane", "pause", "default", "--until", "2020-01-01T00:00:00Z", "--url", &url]);
    assert!(past.code == Some(1) && past.err.contains("`until` is not in the future"), "{}", past.err);
}
