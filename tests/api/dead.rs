//! Dead occurrences over HTTP: list, show, requeue and discard, one by one and in bulk.

use std::time::Duration;

use punctual::clock::{Clock, Timestamp};
use punctual::task::{Key, Lane, Message, Payload, Record, Schedule, Task, When};
use punctual::timeline::DeadRecord;
use punctual::timeline::Verb;
use punctual::timeline::memory::InjectedFault;
use serde_json::{Value, json};

use super::{NOON, Stage, shard};

impl Stage {
    /// Adds an occurrence that died `after` ms after noon.
    pub(super) fn make_dead(&self, task: &str, after: i64, reason: &str, lane: &str) -> Key {
        let key = Key { task: task.parse().unwrap(), due: Timestamp::from_millis(NOON + 3_600_000) };
        let when = When::At(key.due);
        let schedule = Schedule { when, end: None, limit: None, spread: None };
        let payload = Payload::Json(r#"{"order": 1}"#.into());
        let message = Message { destination: Some("orders.report".into()), payload, ..Message::default() };
        let task = Task { schedule, message, retry: None, catch_up: None };
        let lane: Lane = lane.parse().unwrap();
        let record = Record::new(task, lane, Timestamp::from_millis(NOON)).of_dead(key.clone()).encode();
        let dead_record = DeadRecord { record, reason: reason.into(), detail: "message too large".into() };
        self.timeline.edit(shard(), |twin| {
            twin.dead.set(key.to_string().into(), NOON + after);
            twin.dead_records.insert(key.to_string().into(), dead_record);
        });
        key
    }

    async fn tasks_of(&self, query: &str) -> Vec<String> {
        let listed = self.get(&format!("/v1/dead{query}")).await;
        assert_eq!(listed.status, 200, "{listed:?}");
        tasks(&listed.json())
    }

    fn dead_left(&self) -> usize {
        self.timeline.twin(shard()).dead_records.len()
    }
}

fn tasks(listed: &Value) -> Vec<String> {
    listed["items"].as_array().unwrap().iter().map(|item| item["task"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_dead_are_listed_the_oldest_first() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/v1/dead").await.json(), json!({"items": []}));
    stage.make_dead("b", 20, "rejected", "default");
    stage.make_dead("a", 30, "too late", "alerts");
    stage.make_dead("c", 10, "retries", "default");
    let listed = stage.get("/v1/dead?limit=1").await.json();
    let due = NOON + 3_600_000;
    let first = json!({"key": format!("c:{due}"), "task": "c", "due": "2026-11-21T13:00:00.000Z", "due_ms": due,
        "lane": "default", "destination": "orders.report", "reason": "retries", "detail": "message too large",
        "died": "2026-11-21T12:00:00.010Z", "died_ms": NOON + 10});
    assert_eq!(listed["items"], json!([first]));
    let mut all = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let listed = stage.get(&format!("/v1/dead{query}")).await.json();
        all.extend(tasks(&listed));
        let Some(cursor) = listed["next_cursor"].as_str() else { break };
        query = format!("?limit=2&cursor={cursor}");
    }
    assert_eq!(all, ["c", "b", "a"]);
    for (query, meant) in [
        ("?lane=alerts", &["a"][..]),
        ("?reason=too+late", &["a"]),
        ("?reason=too%20late&lane=default", &[]),
        ("?from=2026-11-21T12:00:00.020Z", &["b", "a"]),
        ("?to=2026-11-21T12:00:00.020Z", &["c"]),
        ("?from=2026-11-21T13:00:00.015%2B01:00&to=2026-11-21T12:00:00.025Z", &["b"]),
    ] {
        assert_eq!(stage.tasks_of(query).await, meant, "{query}");
    }
}

#[tokio::test]
async fn a_few_among_many_dead_are_found() {
    let stage = Stage::start().await;
    for number in 0..3000 {
        stage.make_dead(&format!("a{number}"), number, "rejected", "default");
    }
    stage.make_dead("last", 3000, "poison", "default");
    assert_eq!(stage.tasks_of("?reason=poison").await, ["last"]);
    assert_eq!(stage.tasks_of("").await.len(), 100);
    assert_eq!(stage.tasks_of("?limit=1000").await.len(), 1000);
}

#[tokio::test]
async fn a_dead_occurrence_is_shown_with_its_message_byte_for_byte() {
    let stage = Stage::start().await;
    let key = stage.make_dead("a.b:c-1", 20, "rejected", "alerts");
    for path in [key.to_string(), key.to_string().replace(':', "%3A")] {
        let shown = stage.get(&format!("/v1/dead/{path}")).await;
        assert!(shown.body.contains(r#"{"order": 1}"#), "{shown:?}");
        let shown = shown.json();
        assert_eq!((&shown["key"], &shown["lane"]), (&json!(key.to_string()), &json!("alerts")));
        assert_eq!((&shown["reason"], &shown["detail"]), (&json!("rejected"), &json!("message too large")));
        assert_eq!(shown["message"]["destination"], "orders.report");
    }
    assert_eq!(stage.get(&format!("/v1/dead/b:{NOON}")).await.problem(), (404, "unknown".into()));
}

#[tokio::test]
async fn a_dead_record_of_another_version_is_listed_and_not_shown() {
    let stage = Stage::start().await;
    let key = stage.make_dead("a", 20, "poison", "default");
    stage.timeline.edit(shard(), |twin| {
        let dead_record = twin.dead_records.get_mut(key.to_string().as_str()).unwrap();
        dead_record.record = [&[9], &dead_record.record[1..]].concat().into();
    });
    let listed = stage.get("/v1/dead").await.json();
    assert_eq!((&listed["items"][0]["task"], &listed["items"][0]["reason"]), (&json!("a"), &json!("poison")));
    assert_eq!(stage.get(&format!("/v1/dead/{key}")).await.problem(), (500, "unreadable".into()));
}

#[tokio::test]
async fn a_requeued_occurrence_waits_under_its_key() {
    let stage = Stage::start().await;
    let key = stage.make_dead("a", 20, "rejected", "default");
    let path = format!("/v1/dead/{key}/requeue");
    let requeued = stage.post(&path, "").await;
    assert_eq!((requeued.status, requeued.json()), (200, json!({"key": key.to_string(), "result": "requeued"})));
    let again = stage.post(&path, "{}").await;
    assert_eq!((again.problem(), &again.json()["key"]), ((409, "in_flight".into()), &json!(key.to_string())));
    let claimed = stage.claim("i1.1").await;
    assert_eq!(claimed.occurrences[0].member.key(claimed.occurrences[0].due), key);
    assert_eq!(stage.post("/v1/dead/b:5/requeue", "{}").await.problem(), (404, "unknown".into()));
    let text = stage.metrics.text();
    for line in [
        "punctual_requeues_total{result=\"requeued\"} 1",
        "punctual_requeues_total{result=\"in_flight\"} 1",
        "punctual_requeues_total{result=\"unknown\"} 1",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
}

#[tokio::test]
async fn a_discarded_occurrence_is_gone_and_cannot_be_discarded_again() {
    let stage = Stage::start().await;
    let path = format!("/v1/dead/{}", stage.make_dead("a", 20, "rejected", "default"));
    let gone = stage.call("DELETE", &path, "", "").await;
    assert_eq!((gone.status, &gone.json()["result"]), (200, &json!("discarded")));
    assert_eq!(stage.call("DELETE", &path, "", "").await.problem(), (404, "unknown".into()));
    assert_eq!((stage.dead_left(), stage.get(&path).await.status), (0, 404));
}

#[tokio::test]
async fn a_task_that_is_gone_names_its_dead_occurrence() {
    let stage = Stage::start().await;
    let key = stage.make_dead("gone", 0, "rejected", "default").to_string();
    stage.make_dead("gone:1", 0, "rejected", "default");
    stage.clock.advance(Duration::from_secs(1));
    stage.state.lock().unwrap().dead = 2;
    for method in ["GET", "DELETE"] {
        let answer = stage.call(method, "/v1/tasks/gone", "", "").await;
        assert_eq!((answer.status, &answer.json()["dead_key"]), (404, &json!(key)), "{method}");
        assert_eq!(stage.call(method, "/v1/tasks/go", "", "").await.json().get("dead_key"), None, "{method}");
    }
    // The newest one of several pages.
    for number in 0..400 {
        stage.make_dead(&format!("other-{number}"), 10 + number, "rejected", "default");
    }
    stage.make_dead("newest", 900, "rejected", "default");
    stage.state.lock().unwrap().dead = 403;
    assert!(stage.get("/v1/tasks/newest").await.json()["dead_key"].is_string());
    // Among many the search would take long.
    stage.state.lock().unwrap().dead = 1001;
    assert_eq!(stage.get("/v1/tasks/gone").await.json().get("dead_key"), None);
}

#[tokio::test]
async fn many_are_requeued_by_lane_reason_and_time() {
    let stage = Stage::start().await;
    for number in 0..2500 {
        stage.make_dead(&format!("a{number}"), number % 7, "destination", "default");
    }
    stage.make_dead("other-lane", 1, "destination", "alerts");
    stage.make_dead("other-reason", 1, "rejected", "default");
    stage.make_dead("too-new", 90, "destination", "default");
    stage.clock.advance(Duration::from_millis(100));
    // Its task has that very due.
    stage.put("a7", r#"{"schedule":{"at":"2026-11-21T13:00:00Z"},"message":{}}"#).await;
    let filter =
        r#"{"lane":"default","reason":"destination","from":"2026-11-21T12:00:00Z","to":"2026-11-21T12:00:00.050Z"}"#;
    let dry = filter.replacen('{', r#"{"dry_run":true,"#, 1);
    let matched = stage.post("/v1/dead:requeue", &dry).await.json();
    assert_eq!(matched, json!({"matched": 2500, "requeued": 0, "in_flight": 0, "more": false}));
    let matched = stage.post("/v1/dead:discard", &dry).await.json();
    assert_eq!((matched, stage.dead_left()), (json!({"matched": 2500, "discarded": 0, "more": false}), 2503));
    let done = stage.post("/v1/dead:requeue", filter).await.json();
    assert_eq!(done, json!({"requeued": 2499, "in_flight": 1, "more": false}));
    assert_eq!(stage.tasks_of("").await, ["a7", "other-lane", "other-reason", "too-new"]);
    assert_eq!(stage.claim("i1.1").await.occurrences.len(), 1000);
    assert!(stage.metrics.text().contains("punctual_requeues_total{result=\"requeued\"} 2499"));
    let done = stage.post("/v1/dead:discard", r#"{"reason":"destination"}"#).await.json();
    assert_eq!(done, json!({"discarded": 3, "more": false}));
    assert_eq!(stage.tasks_of("").await, ["other-reason"]);
    assert_eq!(stage.post("/v1/dead:discard", r#"{"all":true}"#).await.json(), json!({"discarded": 1, "more": false}));
    assert_eq!(stage.dead_left(), 0);
}

#[tokio::test]
async fn a_discard_that_exceeds_one_request_continues_with_a_cursor() {
    let stage = Stage::start_with(|terms| terms.api.timeline_timeout = Duration::ZERO).await;
    for number in 0..2500 {
        stage.make_dead(&format!("a{number}"), number, "rejected", "default");
    }
    stage.clock.advance(Duration::from_secs(10));
    let (mut done, mut body, mut rounds) = (0, r#"{"all":true}"#.to_owned(), 0);
    loop {
        let answer = stage.post("/v1/dead:discard", &body).await.json();
        done += answer["discarded"].as_u64().unwrap();
        rounds += 1;
        assert_eq!(answer["more"] == true, answer["next_cursor"].is_string(), "{answer}");
        let Some(cursor) = answer["next_cursor"].as_str() else { break };
        // An occurrence that dies in the meantime is not included.
        stage.clock.advance(Duration::from_secs(1));
        stage.make_dead("new", stage.clock.now().as_millis() - NOON, "rejected", "default");
        body = json!({"all": true, "cursor": cursor}).to_string();
    }
    assert_eq!(done, 2500);
    assert!(rounds > 2500 / 64, "the time is checked before each part of 64: {rounds}");
    assert_eq!(stage.tasks_of("").await, ["new"]);
}

#[tokio::test]
async fn a_requeue_cut_short_by_the_timeline_reports_how_many_it_requeued() {
    let stage = Stage::start().await;
    for number in 0..3 {
        stage.make_dead(&format!("a{number}"), number, "rejected", "default");
    }
    stage.clock.advance(Duration::from_secs(1));
    // The second of three.
    stage.timeline.fail_next(Verb::Requeue, InjectedFault::Nothing);
    stage.timeline.fail_next(Verb::Requeue, InjectedFault::Refused("OOM".into()));
    let reported = stage.post("/v1/dead:requeue", r#"{"all":true}"#).await;
    let done = reported.json();
    assert_eq!((reported.status, &done["more"]), (200, &json!(true)), "{done}");
    assert_eq!((&done["requeued"], stage.dead_left()), (&json!(1), 2));
    let body = json!({"all": true, "cursor": done["next_cursor"]}).to_string();
    let done = stage.post("/v1/dead:requeue", &body).await.json();
    assert_eq!((&done["more"], stage.dead_left()), (&json!(false), 0));
    stage.make_dead("b", 0, "rejected", "default");
    stage.timeline.set_link_down("refused");
    assert_eq!(stage.post("/v1/dead:requeue", r#"{"all":true}"#).await.problem(), (503, "timeline_unavailable".into()));
    assert_eq!(stage.get("/v1/dead").await.problem(), (503, "timeline_unavailable".into()));
}
