//! `punctual task export`: its lines put the same tasks again.

use serde_json::{Value, json};

use super::task::{fake_server, fake_server_by_path};
use super::{Run, run, run_with, serve, url};

#[test]
fn an_export_puts_the_same_tasks_into_another_instance() {
    let (from, to) = (serve(&[]), serve(&[]));
    let (from, to) = (url(&from), url(&to));
    let lines = [
        json!({"id": "in", "schedule": {"in": "1h"}, "message": {"headers": {"kind": "x"}, "payload": {"n": [1, null]}}}),
        json!({"id": "at", "schedule": {"at": "2100-01-01T00:00:00.000Z"}, "message": {"payload_base64": "AP8="}}),
        json!({"id": "every", "schedule": {"every": "1h", "limit": 9, "spread": "1m"}, "message": {"payload": "ü\n"}}),
        json!({"id": "cron", "schedule": {"cron": "0 9 * * *", "zone": "Europe/Berlin"}, "message": {"key": "k"},
            "retry": {"max": 2}, "catch_up": "all"}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(run_with(&["task", "put", "-f", "-", "--url", &from], &lines).code, Some(0));
    // A payload in several lines.
    let put = run(&["task", "put", "wide", "--in", "1h", "--payload", "{\"n\":\r\n 1.0}", "--url", &from]);
    assert_eq!(put.code, Some(0), "{}", put.err);

    let exported = run(&["task", "export", "--url", &from]);
    assert_eq!((exported.code, exported.err.as_str()), (Some(0), "exported 5\n"));
    assert_eq!(exported.out.lines().count(), 5, "{}", exported.out);
    let put = run_with(&["task", "put", "-f", "-", "--url", &to], &exported.out);
    assert_eq!(put.code, Some(0), "{}{}", put.out, put.err);
    for id in ["in", "at", "every", "cron", "wide"] {
        let [old, new] =
            [&from, &to].map(|url| shown(&run(&["task", "get", id, "--next", "3", "--json", "--url", url])));
        for part in ["due", "next", "message", "lane", "retry", "catch_up"] {
            assert_eq!(new[part], old[part], "{id}, {part}");
        }
    }
    let again = run(&["task", "export", "--contains", "er", "--url", &to]);
    assert_eq!((again.out.lines().count(), again.err.as_str()), (1, "exported 1\n"), "{}", again.out);
    let line: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&line["id"], &line["schedule"]["limit"]), (&json!("every"), &json!(9)));
}

#[test]
fn an_export_has_more_tasks_than_a_page() {
    let server = serve(&[]);
    let url = url(&server);
    let line =
        |n: usize| format!("{{\"id\":\"t-{n:04}\",\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"payload\":{n}}}}}\n");
    let lines: String = (0..2500).map(line).collect();
    assert_eq!(run_with(&["task", "put", "-f", "-", "--url", &url], &lines).code, Some(0));
    let exported = run(&["task", "export", "--url", &url]);
    assert_eq!(exported.code, Some(0), "{}", exported.err);
    let mut payloads: Vec<u64> = exported
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["message"]["payload"].as_u64().unwrap())
        .collect();
    payloads.sort_unstable();
    assert_eq!(payloads, (0..2500).collect::<Vec<_>>());
}

#[test]
fn an_export_says_what_it_leaves_out_and_what_has_begun() {
    let url = fake_server_by_path(|request| match request.split(['/', '?', ' ']).nth(4) {
        Some("limit=1000") => {
            ("200 OK", br#"{"items":[{"id":"every"},{"id":"once"},{"id":"paused"},{"id":"new"}]}"#.to_vec())
        }
        Some("new") => ("500 Internal Server Error", br#"{"code":"unreadable","detail":"written by 9.0"}"#.to_vec()),
        Some(id) => {
            let mut task = json!({
                "id": id, "status": "in_flight", "due": "2026-11-21T12:00:00.000Z", "in_flight": format!("{id}:1"),
                "created": "2026-11-21T11:00:00.000Z", "updated": "2026-11-21T11:00:00.000Z", "revision": 1,
                "schedule": {"at": "2026-11-21T12:00:00.000Z"}, "message": {}, "lane": "default",
            });
            match id {
                "every" => {
                    task["schedule"] = json!({"every": "1h"});
                    task["counts"] = json!({"accepted": 0, "dead": 0, "passed_over": 0});
                }
                // A list shows it as in flight.
                "paused" => task["pause"] = json!({"at": "2026-11-21T12:00:00.000Z"}),
                _ => {}
            }
            ("200 OK", task.to_string().into_bytes())
        }
        None => panic!("{request}"),
    });
    let exported = run(&["task", "export", "--url", &url]);
    let ids: Vec<_> =
        exported.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!((exported.code, ids), (Some(1), vec![json!("every"), json!("once")]), "{}", exported.err);
    let said = "cannot export the task `new`: written by 9.0
exported 2
left out 1 that are paused, because an import would run them; `--status paused` exports them
1 of them recur and are overdue or in flight; their lines begin with the due after that
1 of them are due once, and are overdue or in flight: an import publishes them, perhaps a second time
1 tasks cannot be read and are missing in the export
";
    assert_eq!(exported.err.replace("error: ", ""), said);
    let wrong = run(&["task", "export", "--url", &fake_server("200 OK", b"{\"items\":[{\"id\":\"a\"}]}")]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""), "{}", wrong.err);
}

fn shown(run: &Run) -> Value {
    assert_eq!(run.code, Some(0), "{}", run.err);
    serde_json::from_str(&run.out).unwrap()
}
