//! `traceparent`: kept if valid, ignored if not, shown by get.

use serde_json::Value;

use super::*;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn shown(stage: &Stage, id: &str) -> Value {
    stage.get(&format!("/v1/tasks/{id}")).await.json()["traceparent"].clone()
}

#[tokio::test]
async fn a_look_shows_the_trace_of_the_put_and_a_repeat_keeps_the_first() {
    let stage = Stage::start().await;
    let json = ("content-type", "application/json");
    let task = r#"{"schedule":{"cron":"@daily"},"message":{"payload":1}}"#;
    let other = TRACE.replace("4bf9", "5bf9");
    for (trace, result) in [(TRACE, "created"), (&other, "unchanged")] {
        let put = stage.send("PUT", "/v1/tasks/a", &[json, ("Traceparent", trace)], task).await;
        assert_eq!(put.json()["result"], result);
        assert_eq!(shown(&stage, "a").await, TRACE);
    }
    let ndjson = ("content-type", "application/x-ndjson");
    let lines = r#"{"id":"b","schedule":{"in":"1m"},"message":{}}
{"id":"c","schedule":{"in":"1m"},"message":{}}
"#;
    let batch = stage.send("POST", "/v1/tasks:batch", &[ndjson, ("traceparent", TRACE)], lines).await;
    assert_eq!(batch.lines().len(), 2);
    let post = stage.send("POST", "/v1/tasks", &[json, ("traceparent", TRACE)], task).await.json();
    for id in ["b", "c", post["id"].as_str().unwrap()] {
        assert_eq!(shown(&stage, id).await, TRACE);
    }
    stage.put("a", r#"{"schedule":{"in":"1m"},"message":{}}"#).await;
    assert_eq!(shown(&stage, "a").await, Value::Null, "replaced by a request that is part of no trace");
}

#[tokio::test]
async fn an_invalid_trace_header_of_a_put_is_ignored() {
    let stage = Stage::start().await;
    let json = ("content-type", "application/json");
    let other = TRACE.replace("4bf9", "5bf9");
    let upper = TRACE.to_uppercase();
    let rows: [&[&str]; 5] = [&["x"], &[&upper], &["ÿ"], &[""], &[TRACE, &other]];
    for (row, traces) in rows.into_iter().enumerate() {
        let mut headers = vec![json];
        headers.extend(traces.iter().map(|trace| ("traceparent", *trace)));
        let path = format!("/v1/tasks/a{row}");
        let put = stage.send("PUT", &path, &headers, r#"{"schedule":{"in":"1m"},"message":{}}"#).await;
        assert_eq!(put.status, 201, "{traces:?}: {put:?}");
        assert_eq!(shown(&stage, &format!("a{row}")).await, Value::Null, "{traces:?}");
    }
}
