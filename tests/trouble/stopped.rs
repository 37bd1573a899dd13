//! An instance that is stopped until its lease expires, and then continues: of cancelled tasks it publishes only the
//! keys that the answers to the cancels had named.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::support::punctual::Punctual;
use crate::support::scripted::Scripted;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

/// A sink that delays all messages for a while.
fn held_back(sink: &RedisServer) -> (Scripted, Arc<AtomicBool>) {
    let hold = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&hold);
    let relay = Scripted::before(sink.server.port, move |asked| {
        while asked.words.iter().any(|word| word.eq_ignore_ascii_case("XADD") || word == "out")
            && held.load(Ordering::Relaxed)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    });
    (relay, hold)
}

fn config(timeline: &RedisServer, lanes: &str) -> String {
    format!("[redis]\nurl = \"{}\"\n[claim]\nlease = \"3s\"\n{lanes}", timeline.url())
}

/// Law 9: `cancelled` with `handed_out` names the one key that a stopped holder may still publish. No other message of
/// that task comes, and a task that was not cancelled is published. Law 4: a later settle of the holder has no effect.
#[test]
fn a_stopped_holder_of_a_cancelled_task_publishes_only_the_reported_key() {
    if !have("redis-server") || !have("redis-cli") {
        return;
    }
    let (timeline, sink) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (relay, hold) = held_back(&sink);
    let lanes = format!(
        "[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"1500ms\"\n[lanes.default]\nsink = \"default\"\n[lanes.held]\nsink = \"default\"\n",
        relay.url()
    );
    let frozen = Punctual::start(&config(&timeline, &lanes));
    // It serves another lane and reaps all lanes.
    let other = "[sinks.default]\nurl = \"memory:\"\nanswer_timeout = \"1s\"\n[lanes.default]\nsink = \"default\"\n";
    let other = Punctual::start(&config(&timeline, other));
    let mut left = StoredKeys::new(&timeline, 4, &["default", "held"]);

    let put = |id: &str, schedule: Value| {
        let message = json!({"destination": "out", "payload": {"task": id}});
        let task = json!({"schedule": schedule, "lane": "held", "message": message});
        let answer = frozen.api().put(id, &task.to_string()).unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
    };
    // All are due at once, so that one claim holds them.
    let (seconds, micros): (i64, i64) = ::redis::cmd("TIME").query(&mut timeline.connect()).unwrap();
    let at = jiff::Timestamp::from_millisecond(seconds * 1000 + micros / 1000 + 2000).unwrap().to_string();
    put("once", json!({"at": at}));
    put("every", json!({"every": "1s", "start": at}));
    put("kept", json!({"at": at}));
    let id = frozen.id();
    let caught = patient(SOON, || left.held_by(&id).len() == 3);
    assert!(caught, "{:?}\n{}", left.held_by(&id), frozen.log());
    let dues: BTreeMap<String, i64> = left.held_by(&id).into_iter().collect();
    frozen.signal("STOP");
    assert!(patient(SOON, || left.held_by(&id).is_empty()), "nobody reaps\n{}", other.log());

    let mut reported = BTreeMap::new();
    for task in ["once", "every"] {
        let answer = other.api().send("DELETE", &format!("/v1/tasks/{task}"), None).unwrap().json();
        let key = format!("{task}:{}", dues[task]);
        let expected = json!({"id": task, "result": "cancelled", "handed_out": true, "key": key});
        assert_eq!(answer, expected);
        reported.insert(task, key);
        assert_eq!(other.api().send("GET", &format!("/v1/tasks/{task}"), None).unwrap().status, 404);
    }
    // The messages that it had sent arrive now, and it resumes.
    hold.store(false, Ordering::Relaxed);
    frozen.signal("CONT");
    left.until_nothing_is_left(SOON);
    // Long enough for the next occurrence of the task that is due every second, which must not come.
    std::thread::sleep(Duration::from_secs(3));
    let mut published: BTreeMap<String, usize> = BTreeMap::new();
    for entry in sink.stream("out") {
        let key = entry.text("idempotency-key").unwrap().to_owned();
        assert_eq!(entry.text("payload").unwrap(), format!("{{\"task\":\"{}\"}}", key.split(':').next().unwrap()));
        *published.entry(key).or_default() += 1;
    }
    let allowed: Vec<&String> = reported.values().collect();
    let kept = format!("kept:{}", dues["kept"]);
    assert!(published.contains_key(&kept), "{published:?}\n{}", frozen.log());
    assert!(published.keys().all(|key| *key == kept || allowed.contains(&key)), "{published:?}, reported {allowed:?}");
    for log in [frozen.log_lines(&[" ERROR "]), other.log_lines(&[" ERROR "])] {
        assert!(log.is_empty(), "{log:?}");
    }
    say(&format!("trouble, a stopped holder: reported {allowed:?}; published {published:?}"));
}
