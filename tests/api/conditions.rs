//! `if-match` and `if-none-match` of puts and cancels, and the entity tag of a task.

use serde_json::json;

use super::Stage;
use super::client::Answer;

fn task(payload: u32) -> String {
    json!({"schedule": {"in": "1h"}, "message": {"destination": "orders.report", "payload": payload}}).to_string()
}

impl Stage {
    async fn put_if(&self, id: &str, name: &str, value: &str, body: &str) -> Answer {
        let headers = [("content-type", "application/json"), (name, value)];
        self.send("PUT", &format!("/v1/tasks/{id}"), &headers, body).await
    }

    async fn tag(&self, id: &str) -> String {
        let answer = self.get(&format!("/v1/tasks/{id}")).await;
        let tag = answer.header("etag").unwrap().to_owned();
        assert_eq!(answer.json()["etag"], json!(tag));
        tag
    }
}

#[tokio::test]
async fn of_two_editors_with_one_entity_tag_one_succeeds() {
    let stage = Stage::start().await;
    stage.put("a", &task(1)).await;
    let tag = stage.tag("a").await;
    assert_eq!(tag, "\"1795262400000-1\"");
    assert_eq!(stage.put_if("a", "if-match", &tag, &task(2)).await.status, 200);
    let lost = stage.put_if("a", "if-match", &tag, &task(3)).await;
    assert_eq!(lost.problem(), (412, "changed".to_owned()));
    assert_eq!(stage.get("/v1/tasks/a").await.json()["message"]["payload"], json!(2));
    let cancelled = stage.send("DELETE", "/v1/tasks/a", &[("if-match", &tag)], "").await;
    assert_eq!(cancelled.problem(), (412, "changed".to_owned()));
    // Deleted and put anew it is another task.
    let tag = stage.tag("a").await;
    assert_eq!(stage.delete("a").await.status, 200);
    assert_eq!(stage.put_if("a", "if-match", &tag, &task(4)).await.problem(), (412, "changed".to_owned()));
    stage.clock.advance(std::time::Duration::from_millis(1));
    stage.put("a", &task(4)).await;
    assert_eq!(stage.put_if("a", "if-match", &tag, &task(5)).await.problem(), (412, "changed".to_owned()));
    let tag = stage.tag("a").await;
    assert_eq!(stage.send("DELETE", "/v1/tasks/a", &[("if-match", &tag)], "").await.status, 200);
    let gone = stage.send("DELETE", "/v1/tasks/a", &[("if-match", &tag)], "").await;
    assert_eq!(gone.problem(), (404, "unknown".to_owned()));
}

#[tokio::test]
async fn a_task_is_put_only_if_there_is_none() {
    let stage = Stage::start().await;
    assert_eq!(stage.put_if("a", "if-none-match", "*", &task(1)).await.status, 201);
    for payload in [1, 2] {
        let exists = stage.put_if("a", "if-none-match", "*", &task(payload)).await;
        assert_eq!(exists.problem(), (412, "exists".to_owned()));
    }
}

#[tokio::test]
async fn another_form_of_a_condition_is_refused() {
    let stage = Stage::start().await;
    stage.put("a", &task(1)).await;
    for (name, value) in
        [("if-match", "*"), ("if-match", "\"x\""), ("if-match", "W/\"1-1\""), ("if-none-match", "\"1-1\"")]
    {
        let refused = stage.put_if("a", name, value, &task(2)).await;
        let errors = refused.json()["errors"].clone();
        assert_eq!((refused.status, &errors[0]["pointer"]), (422, &json!(format!("/{name}"))), "{value}");
    }
    let refused = stage.send("DELETE", "/v1/tasks/a", &[("if-match", "*")], "").await;
    assert_eq!(refused.problem(), (422, "invalid".to_owned()));
    assert_eq!(stage.get("/v1/tasks/a").await.json()["revision"], json!(1));
}
