//! The answers to requests for one task, word by word.

use std::time::Duration;

use punctual::clock::Timestamp;
use punctual::timeline::Verb;
use punctual::timeline::memory::InjectedFault;
use punctual::timeline::{DeadCap, RestOfClaim, Settle, Settlement, Timeline, Token, Verdict};
use serde_json::json;

use super::{NOON, Stage, shard};

const ONCE: &str = r#"{"schedule":{"at":"2026-11-21T12:00:10Z"},"message":{"payload":{"a":1}}}"#;

#[tokio::test]
async fn a_put_is_answered_created_replaced_or_unchanged() {
    let stage = Stage::start().await;
    let created = stage.put("a", ONCE).await;
    assert_eq!(created.status, 201);
    let due = json!({"id": "a", "result": "created", "status": "scheduled", "due": "2026-11-21T12:00:10.000Z",
        "due_ms": NOON + 10_000, "next": []});
    assert_eq!(created.json(), due);
    let again = stage.put("a", ONCE).await;
    assert_eq!((again.status, again.json()["result"].as_str()), (200, Some("unchanged")));
    let other = stage.put("a", &ONCE.replace("12:00:10", "12:00:20")).await;
    assert_eq!((other.status, other.json()["result"].as_str()), (200, Some("replaced")));
    assert_eq!(other.json()["due_ms"], NOON + 20_000);
    let text = stage.metrics.text();
    for line in [
        "punctual_puts_total{result=\"created\"} 1",
        "punctual_puts_total{result=\"unchanged\"} 1",
        "punctual_puts_total{result=\"replaced\"} 1",
        "punctual_http_requests_total{route=\"/v1/tasks/{id}\",status=\"201\"} 1",
        "punctual_http_requests_total{route=\"/v1/tasks/{id}\",status=\"200\"} 2",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
}

#[tokio::test]
async fn a_task_that_is_due_for_a_second_or_more_is_overdue() {
    let stage = Stage::start().await;
    let put = |at: &str| format!(r#"{{"schedule":{{"at":"{at}"}},"message":{{}}}}"#);
    let late = stage.put("late", &put("2026-11-21T11:59:59Z")).await.json();
    assert_eq!((&late["overdue"], &late["status"]), (&json!(true), &json!("scheduled")));
    let near = stage.put("near", &put("2026-11-21T11:59:59.001Z")).await.json();
    assert_eq!(near.get("overdue"), None, "{near}");
    let line = format!(r#"{{"id":"line",{}"#, put("2020-01-01T00:00:00Z").trim_start_matches('{'));
    assert_eq!(stage.batch(&line).await.lines()[0]["overdue"], true);
    let overdue = async |id: &str| stage.get(&format!("/v1/tasks/{id}")).await.json().get("overdue").cloned();
    assert_eq!((overdue("late").await, overdue("near").await), (Some(json!(true)), None));
    stage.clock.advance(Duration::from_millis(1));
    assert_eq!(overdue("near").await, Some(json!(true)));
    stage.claim("i1.1").await;
    assert_eq!(overdue("near").await, None, "it is in flight");
}

#[tokio::test]
async fn a_task_in_flight_shows_its_failed_attempts() {
    let stage = Stage::start().await;
    stage.put("failing", ONCE).await;
    assert_eq!(stage.get("/v1/tasks/failing").await.json().get("attempts"), None, "it waits");
    stage.clock.advance(Duration::from_secs(10));
    stage.claim("i1.1").await;
    let shown = stage.get("/v1/tasks/failing").await.json();
    assert_eq!((&shown["attempts"], &shown["last_error"]), (&json!(3), &json!("no such topic")));
}

#[tokio::test]
async fn a_task_shows_that_the_sink_of_its_lane_is_unavailable() {
    let stage = Stage::start().await;
    stage.put("well", ONCE).await;
    stage.put("waits", r#"{"schedule":{"in":"10s"},"lane":"alerts","message":{"destination":"pages"}}"#).await;
    assert_eq!(stage.get("/v1/tasks/well").await.json().get("sink_unavailable"), None);
    assert_eq!(stage.get("/v1/tasks/waits").await.json()["sink_unavailable"], json!(true));
}

#[tokio::test]
async fn an_answer_shows_the_dues_that_follow() {
    let stage = Stage::start().await;
    let every = stage.put("e", r#"{"schedule":{"every":"30s","limit":3},"message":{}}"#).await.json();
    assert_eq!(every["due_ms"], NOON + 30_000);
    let second = json!({"due": "2026-11-21T12:01:00.000Z", "due_ms": NOON + 60_000});
    assert_eq!(every["next"], json!([second, {"due": "2026-11-21T12:01:30.000Z", "due_ms": NOON + 90_000}]));
    let cron = r#"{"schedule":{"cron":"0 30 9 * * MON-FRI","zone":"Europe/Berlin"},"message":{}}"#;
    let cron = stage.put("c", cron).await.json();
    assert_eq!(cron["due"], "2026-11-23T08:30:00.000Z");
    let next: Vec<_> = cron["next"].as_array().unwrap().iter().map(|next| next["due"].as_str().unwrap()).collect();
    assert_eq!(next, ["2026-11-24T08:30:00.000Z", "2026-11-25T08:30:00.000Z", "2026-11-26T08:30:00.000Z"]);
    // An unchanged task counts from its own put.
    stage.clock.advance(Duration::from_secs(7));
    let again = stage.put("e", r#"{"schedule":{"every":"30s","limit":3},"message":{}}"#).await.json();
    assert_eq!((&again["result"], &again["next"][0]), (&json!("unchanged"), &second));
    // One of the occurrences that its limit allows has already come due.
    stage.timeline.edit(super::shard(), |twin| {
        let counts = punctual::task::Counts { accepted: 1, ..Default::default() };
        twin.counts.insert("e".parse().unwrap(), counts);
    });
    let again = stage.put("e", r#"{"schedule":{"every":"30s","limit":3},"message":{}}"#).await.json();
    assert_eq!((&again["result"], &again["next"]), (&json!("unchanged"), &json!([second])));
}

#[tokio::test]
async fn a_repeated_put_with_in_moves_the_due() {
    let stage = Stage::start().await;
    let task = r#"{"schedule":{"in":"15m"},"message":{}}"#;
    assert_eq!(stage.put("a", task).await.json()["due_ms"], NOON + 900_000);
    stage.clock.advance(Duration::from_secs(60));
    let again = stage.put("a", task).await.json();
    assert_eq!((&again["result"], &again["due_ms"]), (&json!("replaced"), &json!(NOON + 960_000)));
}

#[tokio::test]
async fn a_get_returns_the_task_and_its_payload_as_they_were_put() {
    let stage = Stage::start().await;
    // The payload keeps its bytes: spaces, a number that no double can hold, an escape, a repeated name.
    let payload = r#"{"b" : 12345678901234567890123, "a":"\u00e9", "a": 1.10}"#;
    let task = format!(
        r#"{{"schedule":{{"every":"1h"}},"message":{{"destination":"d","headers":{{"tenant":"acme"}},"payload":{payload}}},"lane":"alerts","retry":{{"max":1,"interval":"1s","jitter":"0s"}},"catch_up":"all"}}"#
    );
    assert_eq!(stage.put("a.b:c-1", &task).await.status, 201);
    stage.clock.advance(Duration::from_secs(1));
    let shown = stage.get("/v1/tasks/a.b:c-1").await;
    assert_eq!(shown.status, 200);
    assert!(shown.head.contains("content-type: application/json"));
    assert!(shown.body.contains(payload), "{}", shown.body);
    let json = shown.json();
    for (name, value) in [
        ("id", json!("a.b:c-1")),
        ("status", json!("scheduled")),
        ("due", json!("2026-11-21T13:00:00.000Z")),
        ("due_ms", json!(NOON + 3_600_000)),
        ("created", json!("2026-11-21T12:00:00.000Z")),
        ("updated", json!("2026-11-21T12:00:00.000Z")),
        ("revision", json!(1)),
        ("counts", json!({"accepted": 0, "dead": 0, "passed_over": 0})),
        ("lane", json!("alerts")),
        ("schedule", json!({"every": "1h"})),
        ("retry", json!({"max": 1, "interval": "1s", "jitter": "0s"})),
        ("catch_up", json!("all")),
    ] {
        assert_eq!(json[name], value, "{name} in {json}");
    }
    assert_eq!(stage.get("/v1/tasks/other").await.problem(), (404, "unknown".into()));
    let head = stage.call("HEAD", "/v1/tasks/a.b:c-1", "", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn a_cancel_answers_whether_the_task_was_waiting_or_in_flight() {
    let stage = Stage::start().await;
    stage.put("a", ONCE).await;
    let cancelled = stage.delete("a").await;
    assert_eq!((cancelled.status, cancelled.json()), (200, json!({"id": "a", "result": "cancelled"})));
    assert_eq!(stage.delete("a").await.problem(), (404, "unknown".into()));
    assert_eq!(stage.get("/v1/tasks/a").await.status, 404);

    stage.put("a", ONCE).await;
    stage.clock.set(Timestamp::from_millis(NOON + 10_000));
    assert_eq!(stage.claim("i1.1").await.occurrences.len(), 1);
    let key = format!("a:{}", NOON + 10_000);
    let held = stage.get("/v1/tasks/a").await.json();
    assert_eq!((&held["status"], &held["in_flight"]), (&json!("in_flight"), &json!(key)));
    assert_eq!(stage.delete("a").await.json(), json!({"id": "a", "result": "in_flight", "key": key}));
    assert_eq!(stage.get("/v1/tasks/a").await.status, 404);
}

/// Puts `a`, claims it when it is due, and settles it with this verdict.
async fn settled(verdict: Verdict) -> Stage {
    let stage = Stage::start().await;
    stage.put("a", ONCE).await;
    stage.clock.set(Timestamp::from_millis(NOON + 10_000));
    let claimed = stage.claim("i1.1").await;
    let [occurrence] = claimed.occurrences.as_slice() else { panic!("{claimed:?}") };
    let settle = Settle {
        token: Token("i1.1".into()),
        verdicts: vec![Settlement { member: occurrence.member.clone(), due: occurrence.due, verdict }],
        rest: RestOfClaim::Keep,
        lease: Duration::from_secs(15),
        dead_cap: DeadCap::of(100),
        quiet: false,
    };
    stage.timeline.settle(shard(), &"default".parse().unwrap(), settle).await.unwrap();
    stage
}

#[tokio::test]
async fn a_get_reports_that_no_instance_could_read_the_record() {
    let stage = settled(Verdict::Unreadable).await;
    let shown = stage.get("/v1/tasks/a").await.json();
    assert_eq!((&shown["status"], &shown["unreadable"]), (&json!("scheduled"), &json!(true)));
    stage.put("a", ONCE).await;
    assert_eq!(stage.get("/v1/tasks/a").await.json().get("unreadable"), Some(&json!(true)), "nothing was written");
    stage.put("a", &ONCE.replace("\"a\":1", "\"a\":2")).await;
    assert_eq!(stage.get("/v1/tasks/a").await.json().get("unreadable"), None);
}

#[tokio::test]
async fn a_cancel_reports_a_key_that_was_handed_out() {
    let stage = settled(Verdict::Back { begun: true }).await;
    let key = format!("a:{}", NOON + 10_000);
    let cancelled = json!({"id": "a", "result": "cancelled", "key": key, "handed_out": true});
    assert_eq!(stage.delete("a").await.json(), cancelled);
}

#[tokio::test]
async fn a_put_never_gives_another_message_the_key_in_flight() {
    let stage = Stage::start().await;
    stage.put("a", ONCE).await;
    stage.clock.set(Timestamp::from_millis(NOON + 10_000));
    stage.claim("i1.1").await;
    let key = format!("a:{}", NOON + 10_000);
    let refused = stage.put("a", &ONCE.replace("\"a\":1", "\"a\":2")).await;
    assert_eq!(refused.problem(), (409, "in_flight".into()));
    assert_eq!(refused.json()["key"], key.as_str());
    let moved = stage.put("a", &ONCE.replace("12:00:10", "12:00:30")).await;
    let reported = json!({"id": "a", "result": "replaced", "status": "in_flight", "due": "2026-11-21T12:00:30.000Z",
        "due_ms": NOON + 30_000, "next": [], "in_flight": key});
    assert_eq!((moved.status, moved.json()), (200, reported));
    // The new due comes next, while the former one is still in flight.
    let shown = stage.get("/v1/tasks/a").await.json();
    assert_eq!((&shown["due_ms"], &shown["in_flight"]), (&json!(NOON + 30_000), &json!(key)));
}

#[tokio::test]
async fn a_503_names_its_reason_and_no_secret() {
    let stage = Stage::start().await;
    stage.timeline.fail_next(Verb::Put, InjectedFault::Refused("OOM command not allowed".into()));
    let refused = stage.put("a", ONCE).await;
    assert_eq!(refused.problem(), (503, "timeline_refused".into()));
    assert!(refused.body.contains("OOM command not allowed") && refused.head.contains("retry-after: 1"), "{refused:?}");

    stage.timeline.set_link_down("cannot reach redis://me:hunter2@redis:6379: refused");
    for answer in [stage.put("a", ONCE).await, stage.get("/v1/tasks/a").await, stage.delete("a").await] {
        assert_eq!(answer.problem(), (503, "timeline_unavailable".into()));
        assert!(!answer.body.contains("hunter2") && answer.body.contains("redis:6379"), "{answer:?}");
    }
    stage.timeline.set_link_up();

    stage.timeline.fail_next(Verb::Put, InjectedFault::ReplyLost);
    let mut lost = Box::pin(stage.put("a", ONCE));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut lost).await;
    assert!(early.is_err(), "answered before it was sure: {early:?}");
    // Repeated, because it may not have been called yet.
    let answer = async {
        loop {
            stage.clock.advance(Duration::from_secs(6));
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(50), &mut lost).await {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), answer).await.expect("an answer");
    assert_eq!(answer.problem(), (503, "timeline_unknown".into()));
}
