//! Checks the OpenAPI document: every example, every member, every route.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Stage;
use super::document::{self, DOCUMENT, Operation, faults, operations};

const NDJSON: &str = "application/x-ndjson";

#[tokio::test]
async fn the_document_is_openapi_3_1() {
    let shown = Stage::start().await.get("/openapi.json").await;
    assert_eq!(shown.json(), *DOCUMENT);
    assert!(DOCUMENT["openapi"].as_str().unwrap().starts_with("3.1."), "{}", DOCUMENT["openapi"]);
    let ids: BTreeSet<_> = operations().iter().map(|known| known.value["operationId"].to_string()).collect();
    assert_eq!(ids.len(), operations().len());
    assert!(!shown.body.contains("x-codes"));
}

#[test]
fn every_operation_has_examples_that_fit_its_schemas() {
    for Operation { method, path, value } in operations() {
        let body = &value["requestBody"]["content"];
        assert_eq!(body.is_object(), matches!(method.as_str(), "PUT" | "POST"), "{method} {path}");
        let responses = value["responses"].as_object().unwrap().values().map(|response| &response["content"]);
        for content in [body].into_iter().chain(responses).filter_map(Value::as_object).flatten() {
            let (kind, content) = content;
            let example = content.get("example").unwrap_or_else(|| panic!("{method} {path}: no example of {kind}"));
            assert_eq!(faults(&content["schema"], example), [""; 0], "{method} {path}: {example}");
        }
    }
    let line = |at: &Value| at["content"][NDJSON]["example"].as_str().unwrap().lines().next().unwrap().to_owned();
    let batch = &DOCUMENT["paths"]["/v1/tasks:batch"]["post"];
    for (at, schema) in [(&batch["requestBody"], "Line"), (&batch["responses"]["200"], "LineAnswer")] {
        let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
        assert_eq!(faults(&schema, &serde_json::from_str(&line(at)).unwrap()), [""; 0]);
    }
}

/// Sends the requests in the order of this table. Each is answered exactly like its example. Of `/v1/upcoming`,
/// `/v1/stats`, `/metrics` and `/openapi.json` the test compares only the status.
#[tokio::test]
async fn every_example_is_answered_as_documented() {
    const ALL: &[(&str, &str, u16)] = &[
        ("PUT", "/v1/tasks/{id}", 201),
        ("PUT", "/v1/tasks/{id}", 200),
        ("GET", "/v1/tasks/{id}", 200),
        ("POST", "/v1/tasks/{id}/pause", 200),
        ("POST", "/v1/tasks/{id}/resume", 200),
        ("GET", "/v1/tasks", 200),
        ("GET", "/v1/upcoming", 200),
        ("GET", "/v1/tasks:count", 200),
        ("POST", "/v1/tasks:cancel", 200),
        ("POST", "/v1/tasks:pause", 200),
        ("POST", "/v1/tasks:resume", 200),
        ("POST", "/v1/tasks/{id}/skip", 200),
        ("POST", "/v1/tasks/{id}/trigger", 200),
        ("DELETE", "/v1/tasks/{id}", 200),
        ("POST", "/v1/tasks", 201),
        ("POST", "/v1/tasks", 200),
        ("POST", "/v1/tasks:batch", 200),
        ("POST", "/v1/lanes/{lane}/pause", 200),
        ("POST", "/v1/lanes/{lane}/resume", 200),
        ("POST", "/v1/preview", 200),
        ("GET", "/v1/dead", 200),
        ("GET", "/v1/dead/{key}", 200),
        ("POST", "/v1/dead/{key}/requeue", 200),
        ("DELETE", "/v1/dead/{key}", 200),
        ("POST", "/v1/dead:requeue", 200),
        ("POST", "/v1/dead:discard", 200),
        ("GET", "/v1/stats", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
    ];
    let (stage, mut seen) = (Stage::start().await, BTreeSet::new());
    for &(method, path, status) in ALL {
        let known = operations().into_iter().find(|known| known.method == method && known.path == path).unwrap();
        seen.insert((method.to_owned(), path.to_owned()));
        if path.starts_with("/v1/dead") {
            make_dead(&stage, path);
        }
        let (mut headers, mut target) = (Vec::new(), path.to_owned());
        for parameter in known.value["parameters"].as_array().into_iter().flatten() {
            let example = parameter.get("example").or(parameter["schema"].get("example"));
            let (name, place) = (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
            if place == "query" {
                let mark = if target.contains('?') { '&' } else { '?' };
                target.extend(example.map(|example| format!("{mark}{name}={}", text(example))));
                continue;
            }
            // Conditions have no example, because what fits depends on what was put before.
            if place == "header" && example.is_none() && parameter["required"] != true {
                continue;
            }
            let example = example.unwrap().as_str().unwrap();
            match place {
                "path" => target = target.replace(&format!("{{{name}}}"), example),
                _ => headers.push((name, example)),
            }
        }
        let content = known.value["requestBody"]["content"].as_object().and_then(|kinds| kinds.iter().next());
        let body = content.map_or(String::new(), |(kind, content)| {
            headers.push(("content-type", kind));
            text(&content["example"])
        });
        let answer = stage.send(method, &target, &headers, &body).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        let kind = answer.header("content-type").unwrap();
        let example = &known.value["responses"][status.to_string()]["content"][kind]["example"];
        if path.starts_with("/v1/tasks")
            || path.starts_with("/v1/dead")
            || path.starts_with("/v1/lanes")
            || path == "/v1/preview"
            || path == "/readyz"
            || path == "/healthz"
        {
            let said = if kind == NDJSON { Value::from(answer.body.as_str()) } else { answer.json() };
            assert_eq!(said, *example, "{method} {path}");
        }
    }
    let all: BTreeSet<_> = operations().into_iter().map(|known| (known.method, known.path)).collect();
    assert_eq!(seen, all);
}

/// The dead occurrences in the examples: one, or twelve.
fn make_dead(stage: &Stage, path: &str) {
    stage.clock.set(punctual::clock::Timestamp::from_millis(super::NOON + 7_200_000));
    stage.timeline.edit(super::shard(), |twin| *twin = Default::default());
    let (many, reason) = (path.contains(':'), if path == "/v1/dead:requeue" { "destination" } else { "rejected" });
    stage.make_dead("order-1", 3_600_012, reason, "default");
    for number in 2..=if many { 12 } else { 1 } {
        stage.make_dead(&format!("order-{number}"), 3_600_012, reason, "default");
    }
}

fn text(example: &Value) -> String {
    example.as_str().map_or_else(|| example.to_string(), str::to_owned)
}

/// Compares the members in the document with those that the parser lists in its error for an unknown one.
#[tokio::test]
async fn the_document_and_the_reader_know_the_same_members() {
    let stage = Stage::start().await;
    let odd = "quite-another-member";
    let task =
        format!(r#"{{"{odd}":1,"schedule":{{"in":"1s","{odd}":1}},"message":{{"{odd}":1}},"retry":{{"{odd}":1}}}}"#);
    let reported = stage.put("a", &task).await.json();
    let line = stage.batch(&task).await.lines().remove(0);
    let preview = stage.post("/v1/preview", &format!(r#"{{"{odd}":1}}"#)).await.json();
    let filter = stage.post("/v1/dead:requeue", &format!(r#"{{"{odd}":1}}"#)).await.json();
    for (problem, place, schemas) in [
        (&reported, "", &["Task"][..]),
        (&line["error"], "", &["Line"]),
        (&preview, "", &["Preview"]),
        (&filter, "", &["DeadFilter"]),
        (&reported, "/schedule", &["At", "In", "Every", "Cron"]),
        (&reported, "/message", &["JsonMessage", "BytesMessage"]),
        (&reported, "/retry", &["Retry"]),
    ] {
        let mut errors = problem["errors"].as_array().unwrap().iter();
        let fault = errors.find(|fault| fault["pointer"] == format!("{place}/{odd}")).unwrap();
        let known = fault["detail"].as_str().unwrap().split_once("known are ").unwrap().1;
        let known: BTreeSet<_> = known.split(", ").map(|name| name.trim_matches('`')).collect();
        let members = schemas.iter().map(|schema| &DOCUMENT["components"]["schemas"][schema]);
        let members: Vec<_> = members.collect();
        assert!(members.iter().all(|schema| schema["additionalProperties"] == false), "{schemas:?}");
        let documented: BTreeSet<_> = members
            .iter()
            .flat_map(|schema| schema["properties"].as_object().unwrap())
            .filter(|(_, property)| property["readOnly"] != true)
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(known, documented, "{schemas:?}");
    }
}

#[tokio::test]
async fn the_document_describes_exactly_the_existing_routes() {
    let stage = Stage::start().await;
    let routes: BTreeSet<_> = stage.paths.iter().cloned().collect();
    let known: BTreeSet<_> = operations().into_iter().map(|known| known.path).collect();
    assert_eq!(routes, known);
    for path in &routes {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"] {
            let answer = stage
                .call(method, &path.replace("{id}", "a").replace("{key}", "a:1").replace("{lane}", "default"), "", "")
                .await;
            let known = operations().iter().any(|known| known.method == method && known.path == *path);
            assert_eq!(answer.status != 405, known, "{method} {path}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn the_document_marks_the_operations_that_require_a_token() {
    let stage = Stage::start_with(|terms| terms.access = super::access::access()).await;
    for Operation { method, path, value } in operations() {
        let answer = stage
            .call(&method, &path.replace("{id}", "a").replace("{key}", "a:1").replace("{lane}", "default"), "", "")
            .await;
        let scopes = match super::access::NEEDS.iter().find(|need| (need.0, need.1) == (&method, &path)).unwrap().2 {
            '-' => json!([]),
            'r' => json!([{"token": ["read"]}]),
            'd' => json!([{"token": ["discard"]}]),
            'o' => json!([{"token": ["operate"]}]),
            _ => json!([{"token": ["write"]}]),
        };
        assert_eq!(value["security"], scopes, "{method} {path}");
        let open = scopes == json!([]);
        assert_eq!(answer.status == 401, !open, "{method} {path}: {answer:?}");
        assert_eq!(value["responses"]["401"].is_object(), !open, "{method} {path}");
        assert!(value["responses"]["403"].is_object(), "{method} {path}");
    }
}

#[test]
fn the_document_shows_the_extra_members_and_headers_of_a_problem() {
    let put = &DOCUMENT["paths"]["/v1/tasks/{id}"]["put"];
    let example = |status: &str| &put["responses"][status]["content"]["application/problem+json"]["example"];
    assert!(example("422")["errors"][0]["pointer"].is_string(), "{}", example("422"));
    assert!(example("409")["key"].is_string(), "{}", example("409"));
    for (status, header) in [("401", "www-authenticate"), ("503", "retry-after")] {
        assert!(put["responses"][status]["headers"][header].is_object(), "{status}");
    }
    let named = |operation: &Operation| {
        let parameters = operation.value["parameters"].as_array().into_iter().flatten();
        parameters.filter(|parameter| parameter["name"] == "traceparent").count() == 1
    };
    let traced: Vec<_> =
        operations().into_iter().filter(named).map(|known| known.value["operationId"].clone()).collect();
    assert_eq!(traced, ["post_task", "put_task", "put_tasks"]);
}

#[test]
fn an_idempotency_key_may_be_quoted() {
    let parameters = DOCUMENT["paths"]["/v1/tasks"]["post"]["parameters"].as_array().unwrap();
    let key = parameters.iter().find(|parameter| parameter["name"] == "idempotency-key").unwrap();
    let long = "k".repeat(255);
    for good in [long.clone(), format!("\"{long}\"")] {
        assert_eq!(faults(&key["schema"], &json!(good)), [""; 0]);
    }
    for bad in ["", "a b", &format!("{long}k")] {
        assert_ne!(faults(&key["schema"], &json!(bad)), [""; 0], "{bad}");
    }
}

#[test]
fn a_line_answer_must_have_a_complete_result_or_an_error() {
    let schema = json!({"$ref": "#/components/schemas/LineAnswer"});
    let done = json!({"line": 1, "id": "a", "result": "created", "due_ms": 1});
    assert_eq!(faults(&schema, &done), [""; 0]);
    for lost in ["id", "result", "due_ms"] {
        let mut less = done.clone();
        less.as_object_mut().unwrap().remove(lost);
        assert_ne!(faults(&schema, &less), [""; 0], "{lost}");
    }
    let mut odd = done;
    odd["result"] = json!("lost");
    assert_ne!(faults(&schema, &odd), [""; 0]);
}

#[test]
fn a_message_has_json_or_bytes_or_neither() {
    let schema = json!({"$ref": "#/components/schemas/Message"});
    let text = json!({"payload_base64": "aGk=", "content_type": "text/plain"});
    for good in [json!({}), json!({"payload": null}), json!({"payload_base64": "aGk="}), text] {
        assert_eq!(faults(&schema, &good), [""; 0]);
    }
    let both = json!({"payload": 1, "payload_base64": "aGk="});
    for bad in [both, json!({"content_type": "text/plain"}), json!({"payload": 1, "content_type": "text/plain"})] {
        assert_ne!(faults(&schema, &bad), [""; 0], "{bad}");
    }
}

#[tokio::test]
async fn an_answer_that_the_document_does_not_know_is_found() {
    let mut answer = Stage::start().await.get("/healthz").await;
    let check = |answer: &super::Answer| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| document::check("GET", "/healthz", answer))).is_ok()
    };
    assert!(check(&answer));
    let body = std::mem::replace(&mut answer.body, r#"{"healthy":true,"colour":1}"#.into());
    assert!(!check(&answer));
    answer.body = body;
    answer.status = 204;
    assert!(!check(&answer));
}
