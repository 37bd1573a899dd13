//! `POST /v1/tasks/{id}/trigger`, `/skip`, and `/resume` with `missed`: answers and codes.

use std::time::Duration;

use punctual::http::access::Scope;
use punctual::http::{Access, PutRate, TokenLimits};
use serde_json::json;

use super::access::known;
use super::{NOON, Stage};

const HOURLY: &str = r#"{"schedule":{"every":"1h"},"message":{"destination":"orders.report","payload":1}}"#;
const ONCE: &str = r#"{"schedule":{"in":"1h"},"message":{"destination":"orders.report","payload":1}}"#;

#[tokio::test]
async fn a_trigger_names_its_key_and_a_skip_the_due_that_follows() {
    let stage = Stage::start().await;
    stage.put("a", HOURLY).await;
    let skipped = stage.post("/v1/tasks/a/skip", "").await;
    let expected = json!({"id": "a", "result": "skipped", "key": format!("a:{}", NOON + 3_600_000),
        "due": "2026-11-21T14:00:00.000Z", "due_ms": NOON + 7_200_000});
    assert_eq!((skipped.status, skipped.json()), (200, expected));
    let key = format!("a:{}", NOON + 1);
    for result in ["triggered", "unchanged"] {
        let triggered = stage.post("/v1/tasks/a/trigger", "{}").await;
        let expected =
            json!({"id": "a", "result": result, "key": key, "due": "2026-11-21T12:00:00.001Z", "due_ms": NOON + 1});
        assert_eq!((triggered.status, triggered.json()), (200, expected));
    }
    // The skipped occurrence stays skipped after the trigger.
    let task = stage.get("/v1/tasks/a?next=1").await.json();
    assert_eq!(task["next"][0]["due_ms"], json!(NOON + 7_200_000));
    assert_eq!(task["counts"]["passed_over"], json!(1));
    stage.clock.advance(Duration::from_millis(1));
    stage.claim("i.1").await;
    for path in ["/v1/tasks/a/trigger", "/v1/tasks/a/skip"] {
        let refused = stage.post(path, "{}").await;
        assert_eq!(
            (refused.problem(), refused.json()["key"].clone()),
            ((409, "in_flight".to_owned()), json!(key)),
            "{path}"
        );
    }
    let metrics = stage.get("/metrics").await.body;
    for line in [
        r#"punctual_actions_total{action="trigger_task",result="triggered"} 1"#,
        r#"punctual_actions_total{action="trigger_task",result="in_flight"} 1"#,
        r#"punctual_actions_total{action="skip_task",result="skipped"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test]
async fn what_cannot_be_triggered_or_skipped_is_refused_with_a_code() {
    let stage = Stage::start().await;
    stage.put("a", HOURLY).await;
    stage.put("once", ONCE).await;
    let next = json!(format!("a:{}", NOON + 3_600_000));
    for (path, body, status, code) in [
        ("nobody/trigger", "", 404, "unknown"),
        ("nobody/skip", "", 404, "unknown"),
        ("once/skip", "", 409, "last"),
        ("a/skip", r#"{"due":"2026-11-21T14:00:00Z"}"#, 409, "not_next"),
        ("a/skip", r#"{"due":"tomorrow"}"#, 422, "invalid"),
        ("a/skip", r#"{"due_ms":1}"#, 422, "invalid"),
        ("a/trigger", r#"{"due":"2026-11-21T14:00:00Z"}"#, 422, "invalid"),
        ("a/resume", r#"{"missed":"all"}"#, 422, "invalid"),
        ("a%20b/trigger", "", 422, "invalid"),
    ] {
        let refused = stage.post(&format!("/v1/tasks/{path}"), body).await;
        assert_eq!(refused.problem(), (status, code.to_owned()), "{path} {body}");
        if code == "not_next" {
            assert_eq!(refused.json()["key"], next);
        }
    }
    assert_eq!(stage.get("/v1/tasks/a").await.json()["due_ms"], json!(NOON + 3_600_000), "nothing has happened");
}

#[tokio::test]
async fn a_recurring_task_is_resumed_without_what_it_missed_and_a_one_shot_with_it() {
    let stage = Stage::start().await;
    for (id, body) in [("a", HOURLY), ("once", ONCE)] {
        stage.put(id, body).await;
        assert_eq!(stage.post(&format!("/v1/tasks/{id}/pause"), "").await.status, 200);
    }
    // Nothing was missed yet.
    let resumed = stage.post("/v1/tasks/a/resume", r#"{"missed":"skip"}"#).await.json();
    assert_eq!((&resumed["result"], &resumed["due_ms"]), (&json!("resumed"), &json!(NOON + 3_600_000)));
    stage.post("/v1/tasks/a/pause", "").await;
    stage.clock.advance(Duration::from_secs(5 * 3600 + 60));
    for (id, due) in [("a", NOON + 6 * 3_600_000), ("once", NOON + 3_600_000)] {
        let resumed = stage.post(&format!("/v1/tasks/{id}/resume"), r#"{"missed":"skip"}"#).await.json();
        assert_eq!((&resumed["result"], &resumed["due_ms"]), (&json!("resumed"), &json!(due)), "{id}");
    }
    assert_eq!(stage.get("/v1/tasks/a").await.json()["counts"]["passed_over"], json!(1));
    let unchanged = stage.post("/v1/tasks/a/resume", r#"{"missed":"skip"}"#).await.json();
    assert_eq!((&unchanged["result"], &unchanged["due_ms"]), (&json!("unchanged"), &json!(NOON + 6 * 3_600_000)));
}

#[tokio::test]
async fn a_trigger_counts_as_a_put_of_its_token() {
    let rate = PutRate { puts: 1, per: Duration::from_secs(3600) };
    let limits = TokenLimits { puts: Some(rate), ..TokenLimits::default() };
    let access = Access::by_tokens([known("few", &[Scope::Write], limits)]);
    let stage = Stage::start_with(|terms| terms.access = access).await;
    assert_eq!(stage.ask("few", "PUT", "/v1/tasks/a", HOURLY).await.status, 201);
    let refused = stage.ask("few", "POST", "/v1/tasks/a/trigger", "{}").await;
    assert_eq!(refused.problem(), (429, "too_many_puts".to_owned()));
    assert_eq!(stage.ask("few", "POST", "/v1/tasks/a/skip", "{}").await.status, 200, "it publishes nothing");
}
