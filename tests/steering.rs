//! Operators and producers steer tasks of two instances while they publish: what an answer says is what consumers get.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::outage::{DURABLE, PUBLISH_LIMIT, Servers};
use crate::support::http::Api;
use crate::support::published::Published;
use crate::support::punctual::Punctual;
use crate::support::{have, patient};

/// Number of tasks that each verb changes: `PUNCTUAL_STEERING_TASKS`, else 2000.
static TASKS: LazyLock<usize> = LazyLock::new(|| match std::env::var("PUNCTUAL_STEERING_TASKS") {
    Ok(tasks) => tasks.parse().expect("PUNCTUAL_STEERING_TASKS is a number"),
    Err(_) => 2000,
});

fn missing_servers() -> bool {
    !have("redis-server") || !have("redis-cli")
}

/// The time of Redis, in ms.
fn now_ms(servers: &Servers) -> i64 {
    let (seconds, micros): (i64, i64) = ::redis::cmd("TIME").query(&mut servers.timeline.connect()).unwrap();
    seconds * 1000 + micros / 1000
}

/// A time as the API reads it.
fn time(ms: i64) -> String {
    punctual::clock::Timestamp::from_millis(ms).to_string()
}

/// Puts a task for each id, all in one batch. `schedule` gets the number of the task.
fn put(api: &Api, name: &str, count: usize, schedule: impl Fn(usize) -> Value) {
    let line = |n: usize| {
        let message = json!({"destination": "out", "payload": n});
        format!("{}\n", json!({"id": format!("{name}-{n}"), "schedule": schedule(n), "message": message}))
    };
    let lines: String = (0..count).map(line).collect();
    let answer = api.send("POST", "/v1/tasks:batch", Some(&lines)).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.text.contains("\"error\""), "{}", answer.text);
}

/// The published keys of each task.
fn keys(published: &[Published]) -> BTreeMap<&str, Vec<&str>> {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for message in published {
        keys.entry(message.parts().0).or_default().push(&message.key);
    }
    keys
}

/// Calls the API once for each task, alternating between the instances. Returns the status and the body of each answer.
fn call_each(apis: &[Api; 2], name: &str, method: &str, verb: &str) -> Vec<(u16, Value)> {
    let call = |n: usize| {
        let path = format!("/v1/tasks/{name}-{n}{verb}");
        let answer = apis[n % 2].send(method, &path, (method == "POST").then_some("{}")).expect("an answer");
        (answer.status, answer.json())
    };
    let mut answers = vec![(0, Value::Null); *TASKS];
    // In an order of its own, so that some are due before their call and some behind it.
    for n in (0..*TASKS).map(|n| n * 1009 % *TASKS) {
        answers[n] = call(n);
    }
    answers
}

/// Cancels all tasks whose ids begin with this. Returns the sums of the answers.
fn cancel_all(api: &Api, prefix: &str) -> BTreeMap<String, u64> {
    let (mut sums, mut body) = (BTreeMap::new(), json!({"prefix": prefix}));
    loop {
        let answer = api.send("POST", "/v1/tasks:cancel", Some(&body.to_string())).expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        for name in ["matched", "done", "in_flight", "unchanged", "gone"] {
            *sums.entry(name.to_owned()).or_default() += answer[name].as_u64().unwrap();
        }
        match answer["next_cursor"].as_str() {
            Some(cursor) => body["cursor"] = json!(cursor),
            None => return sums,
        }
    }
}

/// Takes more than five seconds: 6000 tasks become due over three seconds or more while they are changed.
#[test]
fn cancels_pauses_and_triggers_race_with_publishes() {
    if missing_servers() {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let instances = [Punctual::start(&servers.config()), Punctual::start(&servers.config())];
    let apis = instances.each_ref().map(Punctual::api);
    // Measure how long a call takes. The tasks become due about as fast as three callers change them, on a slow machine
    // too.
    let begun = now_ms(&servers);
    (0..200).for_each(|_| drop(apis[0].send("GET", "/v1/tasks/nobody", None).expect("an answer")));
    let micros_per_task = ((now_ms(&servers) - begun) * 1000 * 3 / 200).max(1500);
    let begun = now_ms(&servers);
    put(&apis[0], "warm-up", *TASKS, |_| json!({"in": "1h"}));
    let start = now_ms(&servers) + 500 + 4 * (now_ms(&servers) - begun);
    let spread = |n: usize| json!({"at": time(start + i64::try_from(n).unwrap() * micros_per_task / 1000)});
    put(&apis[0], "cancel", *TASKS, spread);
    put(&apis[0], "pause", *TASKS, spread);
    put(&apis[0], "trigger", *TASKS, |_| json!({"every": format!("{}s", TASKS.div_ceil(2000)), "limit": 1000}));
    std::thread::sleep(Duration::from_millis(u64::try_from(start - now_ms(&servers)).unwrap_or(0)));
    let (cancelled, paused, triggered) = std::thread::scope(|scope| {
        let cancels = scope.spawn(|| call_each(&apis, "cancel", "DELETE", ""));
        let pauses = scope.spawn(|| call_each(&apis, "pause", "POST", "/pause"));
        let triggers = scope.spawn(|| call_each(&apis, "trigger", "POST", "/trigger"));
        (cancels.join().unwrap(), pauses.join().unwrap(), triggers.join().unwrap())
    });
    // Cancel the recurring tasks and the tasks of the warm-up. Claims under way still end.
    for prefix in ["trigger-", "warm-up-"] {
        cancel_all(&apis[0], prefix);
    }
    let stats = |api: &Api| api.send("GET", "/v1/stats", None).expect("an answer").json();
    let at_rest = || {
        let lane = stats(&apis[0])["lanes"]["default"].clone();
        lane["in_flight"] == json!(0) && lane["waiting"] == json!(0)
    };
    assert!(patient(PUBLISH_LIMIT, at_rest), "{}", stats(&apis[0]));
    let published = servers.published();
    let keys = keys(&published);
    let of = |name: &str, n: usize| keys.get(format!("{name}-{n}").as_str()).cloned().unwrap_or_default();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..*TASKS {
        // A cancel that names no key: no message. One that names a key: that one at most. Unknown: it was published before.
        let (status, answer) = &cancelled[n];
        let (messages, named) = (of("cancel", n), answer["key"].as_str());
        match (status, named) {
            (200, None) => assert!(messages.is_empty(), "{answer}: {messages:?}"),
            (200, Some(key)) => assert!(messages.iter().all(|message| *message == key), "{answer}: {messages:?}"),
            _ => assert_eq!((*status, messages.len()), (404, 1), "{answer}"),
        }
        *counts.entry(format!("cancel {status} {}", named.is_some())).or_default() += 1;
        let (status, answer) = &paused[n];
        let (messages, named) = (of("pause", n), answer["in_flight"].as_str());
        match (status, named) {
            (200, None) => assert!(messages.is_empty(), "{answer}: {messages:?}"),
            (200, Some(key)) => assert_eq!(messages, [key], "{answer}"),
            _ => assert_eq!((*status, messages.len()), (404, 1), "{answer}"),
        }
        *counts.entry(format!("pause {status} {}", named.is_some())).or_default() += 1;
        // A trigger has a key of its own, which comes once; or it is refused because another one is in flight.
        let (status, answer) = &triggered[n];
        let (messages, key) = (of("trigger", n), answer["key"].as_str().unwrap_or_default());
        assert_eq!(messages.iter().collect::<BTreeSet<_>>().len(), messages.len(), "a key came twice: {messages:?}");
        match status {
            200 => assert_eq!(messages.iter().filter(|message| **message == key).count(), 1, "{answer}: {messages:?}"),
            _ => assert_eq!((*status, &answer["code"]), (409, &json!("in_flight")), "{answer}"),
        }
        *counts.entry(format!("trigger {status} {}", answer["result"])).or_default() += 1;
    }
    crate::support::say(&format!("steering: {counts:?}"));
    assert!(counts["cancel 200 false"] > 100 && counts["pause 200 false"] > 100, "{counts:?}");
    assert!(counts[r#"trigger 200 "triggered""#] > *TASKS / 2, "{counts:?}");
}

/// Takes more than five seconds: 2000 tasks become due over two seconds.
#[test]
fn a_bulk_cancel_races_with_publishes() {
    if missing_servers() {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let instances = [Punctual::start(&servers.config()), Punctual::start(&servers.config())];
    let apis = instances.each_ref().map(Punctual::api);
    let start = now_ms(&servers) + 1000;
    put(&apis[0], "bulk", *TASKS, |n| json!({"at": time(start + i64::try_from(n).unwrap())}));
    put(&apis[0], "other", 10, |_| json!({"at": time(start)}));
    std::thread::sleep(Duration::from_millis(u64::try_from(start + 300 - now_ms(&servers)).unwrap_or(0)));
    let sums = cancel_all(&apis[1], "bulk-");
    let sum = |name: &str| sums[name];
    assert_eq!(sum("matched"), sum("done") + sum("in_flight") + sum("gone"), "{sums:?}");
    assert_eq!(sum("unchanged"), 0);
    std::thread::sleep(Duration::from_millis(3000));
    let published = servers.published();
    let keys = keys(&published);
    let messages = u64::try_from(keys.iter().filter(|(task, _)| task.starts_with("bulk-")).count()).unwrap();
    assert!(keys.values().all(|keys| keys.len() == 1), "a task came twice");
    // A task that counts as `done` has no message. Every other task has at most one.
    assert!(messages <= *TASKS as u64 - sum("done"), "{messages} messages, {sums:?}");
    assert!(messages >= *TASKS as u64 - sum("done") - sum("in_flight"), "{messages} messages, {sums:?}");
    assert!(sum("done") > 100, "{sums:?}");
    assert_eq!(keys.keys().filter(|task| task.starts_with("other-")).count(), 10, "others are published");
    crate::support::say(&format!("steering: bulk cancel {sums:?}, {messages} messages"));
    let log = instances[1].log_lines(&["tasks changed", "cancel"]);
    assert!(!log.is_empty() && log[0].contains("bulk-"), "{log:?}");
}

/// Takes more than five seconds: Redis is restarted.
#[test]
fn a_list_and_a_bulk_request_begin_again_after_a_restart_of_redis() {
    if missing_servers() {
        return;
    }
    let mut servers = Servers::start(DURABLE, &[]);
    let mut instance = Punctual::start(&servers.config());
    let api = instance.api();
    put(&api, "task", 3000, |_| json!({"in": "1h"}));
    let page = api.send("GET", "/v1/tasks?limit=100", None).expect("an answer").json();
    let cursor = page["next_cursor"].as_str().expect("more follow").to_owned();
    servers.timeline.server.kill();
    servers.timeline.server.restart();
    // The instance notices the loss by the first call, or before.
    let mut lost = None;
    instance.until("connected again", |instance| {
        let answer = instance.api().send("GET", &format!("/v1/tasks?limit=100&cursor={cursor}"), None);
        lost = Some(answer.expect("an answer"));
        lost.as_ref().is_some_and(|lost| lost.status != 503)
    });
    let lost = lost.expect("it was asked");
    assert_eq!((lost.status, &lost.json()["code"]), (410, &json!("cursor_gone")), "{lost:?}");
    let cancel = json!({"prefix": "task-", "cursor": cursor}).to_string();
    let lost = api.send("POST", "/v1/tasks:cancel", Some(&cancel)).expect("an answer");
    assert_eq!((lost.status, &lost.json()["code"]), (410, &json!("cursor_gone")), "{lost:?}");
    // Begun again it ends.
    let (mut done, mut body) = (0, json!({"prefix": "task-"}));
    loop {
        let answer = api.send("POST", "/v1/tasks:cancel", Some(&body.to_string())).expect("an answer").json();
        done += answer["done"].as_u64().expect("a number");
        match answer["next_cursor"].as_str() {
            Some(cursor) => body["cursor"] = json!(cursor),
            None => break,
        }
    }
    assert_eq!(done, 3000);
    let left = api.send("GET", "/v1/tasks", None).expect("an answer").json();
    assert_eq!(left, json!({"items": []}));
}

#[test]
fn a_user_who_may_not_scan_gets_no_lists_and_all_else_works() {
    if missing_servers() {
        return;
    }
    let servers = Servers::start(&[], &[]);
    let user = ["SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-zscan"];
    ::redis::cmd("ACL").arg(&user).exec(&mut servers.timeline.connect()).unwrap();
    let config = servers.config().replacen("redis://", "redis://app:secret@", 1);
    let instance = Punctual::start(&config);
    let api = instance.api();
    put(&api, "task", 3, |n| json!({"in": if n == 0 { "1ms" } else { "1h" }}));
    let body = json!({"prefix": "task-"}).to_string();
    for (method, path, body) in [("GET", "/v1/tasks", None), ("POST", "/v1/tasks:cancel", Some(body.as_str()))] {
        let refused = api.send(method, path, body).expect("an answer");
        assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("timeline_refused")), "{refused:?}");
    }
    // Lists by due, counts and pauses need no scan.
    for (method, path) in [("GET", "/v1/upcoming"), ("GET", "/v1/tasks:count"), ("POST", "/v1/tasks/task-1/pause")] {
        let answer = api.send(method, path, (method == "POST").then_some("{}")).expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    assert!(patient(PUBLISH_LIMIT, || servers.published().len() == 1), "what is due is published");
    assert_eq!(instance.api().ready().expect("an answer").status, 200);
}
