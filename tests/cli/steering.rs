//! `punctual task pause`, `resume`, `trigger`, `skip`, `cancel` and conditional puts.

use serde_json::{Value, json};

use super::{run, run_with, serve, url, wait_for};

#[test]
fn a_task_is_paused_and_resumed() {
    let server = serve(&[]);
    let url = url(&server);
    for id in ["a", "b"] {
        assert_eq!(run(&["task", "put", id, "--at", "2100-01-01T00:00:00Z", "--url", &url]).code, Some(0));
    }
    let paused = run(&["task", "pause", "a", "b", "--note", "wrong figures", "--url", &url]);
    let lines = "paused a, due 2100-01-01T00:00:00.000Z\npaused b, due 2100-01-01T00:00:00.000Z\n";
    assert_eq!((paused.code, paused.out.as_str()), (Some(0), lines), "{}", paused.err);
    assert_eq!(run(&["task", "pause", "a", "--url", &url]).out, "a is paused already\n");
    let task: Value = serde_json::from_str(&run(&["task", "get", "a", "--json", "--url", &url]).out).unwrap();
    assert_eq!((&task["status"], &task["pause"]["note"]), (&json!("paused"), &json!("wrong figures")));
    let put = run(&["task", "put", "b", "--in", "1ms", "--url", &url]);
    assert!(put.out.starts_with("replaced b, due ") && put.out.ends_with("; it stays paused\n"), "{}", put.out);
    let listed = run(&["task", "list", "--status", "paused", "--url", &url]).out;
    assert!(listed.lines().count() == 2 && listed.contains("a  default  paused  2100-"), "{listed}");
    let counted = run(&["task", "count", "--url", &url]).out;
    assert!(counted.lines().nth(1).unwrap().ends_with(" 0         0          0       2"), "{counted}");
    let exported = run(&["task", "export", "--url", &url]);
    assert!(exported.out.is_empty() && exported.err.contains("left out 2 that are paused"), "{}", exported.err);
    assert_eq!(run(&["task", "export", "--status", "paused", "--url", &url]).out.lines().count(), 2);
    assert!(!super::log(&server).contains("\"task\":\"b\""));

    let resumed = run(&["task", "resume", "b", "a", "--url", &url]);
    assert!(resumed.code == Some(0) && resumed.out.starts_with("resumed b, due "), "{}{}", resumed.out, resumed.err);
    wait_for(&server.log(), "\"task\":\"b\"");
    assert_eq!(run(&["task", "resume", "a", "--url", &url]).out, "a was not paused\n");
    let unknown = run(&["task", "pause", "nobody", "--url", &url]);
    assert!(unknown.code == Some(1) && unknown.err.contains("there is no task `nobody`"), "{}", unknown.err);
    let long = run(&["task", "pause", "a", "--note", &"x".repeat(201), "--url", &url]);
    assert!(long.code == Some(1) && long.err.contains("at most 200 characters"), "{}", long.err);
}

#[test]
fn a_task_is_triggered_and_skipped() {
    let server = serve(&[]);
    let url = url(&server);
    let put = run(&["task", "put", "a", "--every", "1h", "--start", "2100-01-01T00:00:00Z", "--url", &url]);
    assert_eq!(put.code, Some(0), "{}", put.err);
    let skipped = run(&["task", "skip", "a", "--url", &url]);
    let line = "skipped a:4102444800000, due 2100-01-01T01:00:00.000Z\n";
    assert_eq!((skipped.code, skipped.out.as_str()), (Some(0), line), "{}", skipped.err);
    let triggered = run(&["task", "trigger", "a", "--url", &url]);
    let key = triggered.out.strip_prefix("triggered ").unwrap_or_else(|| panic!("{}{}", triggered.out, triggered.err));
    wait_for(&server.log(), &format!("\"key\":\"{}\"", key.trim_end()));
    // The skipped occurrence stays skipped.
    let task: Value = serde_json::from_str(&run(&["task", "get", "a", "--json", "--url", &url]).out).unwrap();
    assert_eq!(task["due"], json!("2100-01-01T01:00:00.000Z"), "{task}");
    let audit = super::log(&server);
    assert!(audit.contains("task triggered") && audit.contains("occurrence skipped"), "{audit}");
    let other = run(&["task", "skip", "a", "--due", "2100-01-01T00:00:00Z", "--url", &url]);
    assert!(other.code == Some(1) && other.err.contains("the next occurrence is"), "{}", other.err);
    let json = run(&["task", "skip", "a", "--due", "2100-01-01T01:00:00Z", "--json", "--url", &url]).out;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["result"], json!("skipped"));

    let unknown = run(&["task", "trigger", "nobody", "a", "--url", &url]);
    assert!(unknown.out.starts_with("triggered a:"), "{}{}", unknown.out, unknown.err);
    let errors = ["error: cannot trigger the task `nobody`: there is no task `nobody`", "error: 1 of 2 tasks failed"];
    assert_eq!((unknown.code, unknown.err.lines().collect::<Vec<_>>()), (Some(1), errors.to_vec()));
    assert_eq!(run(&["task", "put", "once", "--at", "2100-01-01T00:00:00Z", "--url", &url]).code, Some(0));
    let last = run(&["task", "skip", "once", "--url", &url]);
    assert!(last.code == Some(1) && last.err.contains("is the last one: cancel the task instead"), "{}", last.err);
    assert_eq!(run(&["task", "pause", "a", "--url", &url]).code, Some(0));
    let resumed = run(&["task", "resume", "a", "--skip-missed", "--url", &url]);
    assert!(resumed.out.starts_with("resumed a, due 2100-"), "{}{}", resumed.out, resumed.err);
}

#[test]
fn all_tasks_that_match_are_counted_paused_resumed_and_cancelled() {
    let server = serve(&[]);
    let url = url(&server);
    let line =
        |n: usize| format!("{{\"id\":\"order-{n}\",\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"payload\":1}}}}\n");
    let lines: String = (0..1200).map(line).collect();
    assert_eq!(run_with(&["task", "put", "-f", "-", "--url", &url], &lines).code, Some(0));
    assert_eq!(run(&["task", "put", "other", "--in", "1h", "--url", &url]).code, Some(0));
    let with = |arguments: &[&str]| run(&[&["task"], arguments, &["--url", &url]].concat());
    let counted = with(&["cancel", "--prefix", "order-", "--dry-run"]);
    assert!(counted.code == Some(0) && counted.out.starts_with("1200 match: order-"), "{}{}", counted.out, counted.err);
    assert!(counted.out.ends_with(" ...\n") && counted.out.split_whitespace().count() == 13, "{}", counted.out);
    // It asks back, and there is no terminal.
    let asked = with(&["cancel", "--prefix", "order-"]);
    assert_eq!((asked.code, asked.out.as_str()), (Some(2), ""), "{}", asked.err);
    assert!(
        asked.err.contains("1200 tasks would be cancelled") && asked.err.contains("hint: `--yes`"),
        "{}",
        asked.err
    );
    let paused = with(&["pause", "--prefix", "order-", "--yes", "--note", "wrong figures"]);
    assert_eq!((paused.code, paused.out.as_str()), (Some(0), "paused 1200\n"), "{}", paused.err);
    assert_eq!(with(&["pause", "--all", "--yes"]).out, "paused 1; 1200 were paused already\n");
    let resumed = with(&["resume", "--status", "paused", "--yes", "--json"]);
    let expected = json!({"matched": 1201, "done": 1201, "in_flight": 0, "unchanged": 0, "gone": 0});
    assert_eq!(serde_json::from_str::<Value>(&resumed.out).unwrap(), expected, "{}", resumed.err);
    assert_eq!(with(&["cancel", "--prefix", "order-", "--yes"]).out, "cancelled 1200\n");
    assert_eq!(with(&["cancel", "--prefix", "order-"]).out, "cancelled 0\n", "nothing to ask about");
    assert_eq!(with(&["list"]).out.lines().count(), 1);
    assert!(super::log(&server).contains("tasks changed"));
    // By id, several at once.
    assert_eq!(with(&["put", "b", "--in", "1h"]).code, Some(0));
    let cancelled = with(&["cancel", "other", "nobody", "b"]);
    assert_eq!((cancelled.code, cancelled.out.as_str()), (Some(1), "cancelled other\ncancelled b\n"));
    assert!(cancelled.err.contains("nobody") && cancelled.err.ends_with("1 of 3 tasks failed\n"), "{}", cancelled.err);
    for wrong in
        [&["cancel"][..], &["cancel", "a", "--all"], &["cancel", "a", "--dry-run"], &["pause", "--all", "--lane", "x"]]
    {
        assert_eq!(with(wrong).code, Some(2), "{wrong:?}");
    }
    let lane = with(&["cancel", "--lane", "nobody", "--yes"]);
    assert!(lane.code == Some(1) && lane.err.contains("the lane `nobody` is not configured"), "{}", lane.err);
}

#[test]
fn a_task_is_put_only_if_it_is_the_one_that_was_read() {
    let server = serve(&[]);
    let url = url(&server);
    let put = |more: &[&str]| run(&[&["task", "put", "a", "--in", "1h", "--url", &url], more].concat());
    assert_eq!(put(&["--if-absent"]).code, Some(0));
    let exists = put(&["--if-absent"]);
    assert!(exists.code == Some(1) && exists.err.contains("there is such a task"), "{}", exists.err);
    let task: Value = serde_json::from_str(&run(&["task", "get", "a", "--json", "--url", &url]).out).unwrap();
    // A shell has removed the quotes, or not.
    let tag = task["etag"].as_str().unwrap().to_owned();
    let bare = tag.trim_matches('"').to_owned();
    assert_eq!(put(&["--if-match", &bare, "--text", "b"]).code, Some(0));
    let changed = put(&["--if-match", &tag, "--text", "c"]);
    assert!(changed.code == Some(1) && changed.err.contains("has another entity tag, or is gone"), "{}", changed.err);
    assert!(changed.err.contains("hint: `punctual task get`"), "{}", changed.err);
    assert_eq!(put(&["--if-match", &tag, "--if-absent"]).code, Some(2));
}
