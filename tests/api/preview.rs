//! When a schedule would be due.

use serde_json::json;

use super::{NOON, Stage};

#[tokio::test]
async fn a_preview_shows_the_dues_a_put_would_have_and_puts_nothing() {
    let stage = Stage::start().await;
    let schedule = r#"{"cron":"0 30 9 * * MON-FRI","zone":"Europe/Berlin","spread":"10m","limit":3}"#;
    let shown = stage.post("/v1/preview", &format!(r#"{{"schedule":{schedule},"id":"a"}}"#)).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    assert_eq!(stage.get("/v1/tasks/a").await.status, 404);
    let put = stage.put("a", &format!(r#"{{"schedule":{schedule},"message":{{}}}}"#)).await.json();
    let shown = shown.json();
    let shown = shown["next"].as_array().unwrap();
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[0], json!({"due": put["due"], "due_ms": put["due_ms"]}));
    assert_eq!(json!(shown[1..]), put["next"]);
}

#[tokio::test]
async fn a_preview_counts_from_the_requested_time_or_from_now() {
    let stage = Stage::start().await;
    let now = stage.post("/v1/preview", r#"{"schedule":{"in":"1m"}}"#).await.json();
    assert_eq!(now, json!({"next": [{"due": "2026-11-21T12:01:00.000Z", "due_ms": NOON + 60_000}]}));
    let then = r#"{"schedule":{"every":"1h"},"from":"2030-01-01T00:00:00Z","count":2}"#;
    let then = stage.post("/v1/preview", then).await.json();
    let dues: Vec<_> = then["next"].as_array().unwrap().iter().map(|next| next["due"].as_str().unwrap()).collect();
    assert_eq!(dues, ["2030-01-01T01:00:00.000Z", "2030-01-01T02:00:00.000Z"]);
}
