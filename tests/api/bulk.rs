//! `POST /v1/tasks:cancel`, `:pause` and `:resume`: counts, filters, refused requests, and what a token with
//! limits changes.

use std::time::Duration;

use serde_json::{Value, json};

use super::tokens::shop_stage;
use super::{NOON, Stage};

async fn put(stage: &Stage, ids: &[&str], schedule: &Value, lane: &str) {
    for id in ids {
        let task = json!({"schedule": schedule, "message": {"destination": "orders.report"}, "lane": lane});
        assert_eq!(stage.put(id, &task.to_string()).await.status, 201, "{id}");
    }
}

async fn ask(stage: &Stage, verb: &str, body: Value) -> Value {
    let answer = stage.post(&format!("/v1/tasks:{verb}"), &body.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn changed(done: u64, in_flight: u64, unchanged: u64) -> Value {
    let matched = done + in_flight + unchanged;
    json!({"matched": matched, "done": done, "in_flight": in_flight, "unchanged": unchanged, "gone": 0, "more": false})
}

#[tokio::test]
async fn what_matches_is_counted_paused_resumed_and_cancelled() {
    let stage = Stage::start().await;
    put(&stage, &["order-1", "order-2"], &json!({"in": "1h"}), "default").await;
    put(&stage, &["order-3"], &json!({"in": "0s"}), "alerts").await;
    put(&stage, &["invoice-1"], &json!({"every": "1h"}), "default").await;
    let counted = ask(&stage, "cancel", json!({"prefix": "order-", "dry_run": true})).await;
    let mut sample: Vec<_> = counted["sample"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    sample.sort_unstable();
    assert_eq!((&counted["matched"], sample), (&json!(3), vec!["order-1", "order-2", "order-3"]));
    assert_eq!(counted.get("done"), None);
    assert_eq!(ask(&stage, "pause", json!({"lane": "default", "note": "wrong"})).await, changed(3, 0, 0));
    assert_eq!(ask(&stage, "pause", json!({"all": true})).await, changed(1, 0, 3));
    let task = stage.get("/v1/tasks/order-1").await.json();
    assert_eq!((&task["status"], &task["pause"]["note"]), (&json!("paused"), &json!("wrong")));
    stage.clock.advance(Duration::from_secs(5 * 3600 + 60));
    assert_eq!(ask(&stage, "resume", json!({"prefix": "invoice-", "missed": "skip"})).await, changed(1, 0, 0));
    assert_eq!(stage.get("/v1/tasks/invoice-1").await.json()["due_ms"], json!(NOON + 6 * 3_600_000));
    assert_eq!(ask(&stage, "resume", json!({"status": "paused"})).await, changed(3, 0, 0));
    // Two are in flight, and may still arrive.
    let claimed = stage.claim("i.1").await;
    assert_eq!(claimed.occurrences.len(), 2, "those of the lane default");
    assert_eq!(ask(&stage, "pause", json!({"prefix": "order-"})).await, changed(1, 2, 0));
    assert_eq!(
        ask(&stage, "cancel", json!({"contains": "-", "due_to": "2026-11-21T13:00:00.001Z"})).await,
        changed(1, 2, 0)
    );
    // The two in flight are listed until their claim ends.
    assert_eq!(ask(&stage, "cancel", json!({"all": true})).await, changed(1, 2, 0));
    let metrics = stage.get("/metrics").await.body;
    for line in [
        r#"punctual_actions_total{action="pause_tasks",result="done"} 5"#,
        r#"punctual_actions_total{action="cancel_tasks",result="in_flight"} 4"#,
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test]
async fn a_bulk_request_without_a_filter_changes_nothing() {
    let stage = Stage::start().await;
    put(&stage, &["a"], &json!({"in": "1h"}), "default").await;
    for verb in ["cancel", "pause", "resume"] {
        for (body, code) in [
            ("{}", "missing_field"),
            (r#"{"all":false}"#, "missing_field"),
            (r#"{"all":true,"prefix":"a"}"#, "exclusive_fields"),
            (r#"{"all":true,"ids":["a"]}"#, "unknown_field"),
            (r#"{"lane":"nobody"}"#, "unknown_lane"),
            (r#"{"status":"dead"}"#, "bad_value"),
            (r#"{"all":true,"cursor":"x"}"#, "bad_value"),
        ] {
            let refused = stage.post(&format!("/v1/tasks:{verb}"), body).await;
            assert_eq!(refused.status, 422, "{verb} {body}: {refused:?}");
            assert_eq!(refused.json()["errors"][0]["code"], json!(code), "{verb} {body}");
        }
    }
    assert_eq!(stage.get("/v1/tasks/a").await.json()["status"], json!("scheduled"));
}

#[tokio::test]
async fn a_token_with_limits_changes_its_own_tasks() {
    let stage = shop_stage().await;
    for (id, lane) in [("shop.1", "alerts"), ("shop.2", "default"), ("other.1", "alerts")] {
        let task = json!({"schedule": {"in": "1h"}, "message": {"destination": "orders.a"}, "lane": lane});
        let put = stage.ask("writer", "PUT", &format!("/v1/tasks/{id}"), &task.to_string()).await;
        assert_eq!(put.status, 201, "{put:?}");
    }
    let ask = async |body: &str| {
        let answer = stage.ask("shop", "POST", "/v1/tasks:cancel", body).await;
        (answer.status, answer.json())
    };
    assert_eq!(ask(r#"{"all":true,"dry_run":true}"#).await.1["sample"], json!(["shop.1"]));
    assert_eq!(ask(r#"{"prefix":"other."}"#).await.1["matched"], json!(0));
    assert_eq!(ask(r#"{"lane":"default"}"#).await.1["code"], json!("foreign_lane"));
    assert_eq!(ask(r#"{"all":true}"#).await.1["done"], json!(1));
    for id in ["shop.2", "other.1"] {
        assert_eq!(stage.ask("reader", "GET", &format!("/v1/tasks/{id}"), "").await.status, 200, "{id}");
    }
}
