//! What is refused, and in which words: status, code, and every fault with its place.

use super::Stage;

/// Method, path, content type, body; status, code, and the faults as (pointer, code).
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    u16,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const JSON: &str = "application/json";
const TASK: &str = r#"{"schedule":{"in":"1s"},"message":{}}"#;

const CASES: &[Case] = &[
    ("PUT", "/v1/tasks/a", JSON, "", 400, "malformed", &[("", "not_json")]),
    ("PUT", "/v1/tasks/a", JSON, r#"{"schedule":"#, 400, "malformed", &[("", "not_json")]),
    ("PUT", "/v1/tasks/a", JSON, "[]", 422, "invalid", &[("", "wrong_type")]),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        "{}",
        422,
        "invalid",
        &[("/schedule", "missing_field"), ("/message", "missing_field")],
    ),
    (
        "PUT",
        "/v1/tasks/-a",
        JSON,
        r#"{"schedule":{"in":"soon"},"message":{"payload":1,"payload_base64":"aGk="},"lane":"A","colour":1}"#,
        422,
        "invalid",
        &[
            ("/id", "bad_id"),
            ("/schedule/in", "bad_duration"),
            ("/message", "exclusive_fields"),
            ("/lane", "bad_lane"),
            ("/colour", "unknown_field"),
        ],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"id":"b","schedule":{"in":"1s"},"message":{}}"#,
        422,
        "invalid",
        &[("/id", "unknown_field")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"1s"},"message":{},"lane":"none"}"#,
        422,
        "invalid",
        &[("/lane", "unknown_lane")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"1s"},"message":{},"lane":"alerts"}"#,
        422,
        "invalid",
        &[("/message/destination", "missing_field")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"cron":"0 0 31 2 *"},"message":{}}"#,
        422,
        "invalid",
        &[("/schedule/cron", "never_due")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"cron":"x"},"message":{}}"#,
        422,
        "invalid",
        &[("/schedule/cron", "bad_cron")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"cron":"@daily","zone":"Mars/Olympus"},"message":{}}"#,
        422,
        "invalid",
        &[("/schedule/zone", "bad_zone")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"1s"},"message":{"headers":{"Nats-Msg-Id":"x"}}}"#,
        422,
        "invalid",
        &[("/message/headers/Nats-Msg-Id", "reserved_header")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"soon"},"message":{"payload":1},"lane":"alerts"}"#,
        422,
        "invalid",
        &[("/schedule/in", "bad_duration"), ("/message/destination", "missing_field")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"1s"},"message":{"destination":7},"lane":"alerts"}"#,
        422,
        "invalid",
        &[("/message/destination", "wrong_type")],
    ),
    (
        "PUT",
        "/v1/tasks/a",
        JSON,
        r#"{"schedule":{"in":"1s"},"message":7,"lane":"none","retry":[]}"#,
        422,
        "invalid",
        &[("/message", "wrong_type"), ("/retry", "wrong_type"), ("/lane", "unknown_lane")],
    ),
    ("PUT", "/v1/tasks/a%2Fb", JSON, TASK, 422, "invalid", &[("/id", "bad_id")]),
    ("PUT", "/v1/tasks/%FF", JSON, TASK, 422, "invalid", &[("/id", "bad_id")]),
    ("GET", "/v1/tasks/a%20b", "", "", 422, "invalid", &[("/id", "bad_id")]),
    ("DELETE", "/v1/tasks/!a", "", "", 422, "invalid", &[("/id", "bad_id")]),
    ("PUT", "/v1/tasks/a", "", TASK, 415, "unsupported_media_type", &[]),
    ("PUT", "/v1/tasks/a", "application/x-www-form-urlencoded", TASK, 415, "unsupported_media_type", &[]),
    ("POST", "/v1/tasks:batch", JSON, TASK, 415, "unsupported_media_type", &[]),
    ("POST", "/v1/tasks/a", JSON, TASK, 405, "no_method", &[]),
    ("GET", "/v1/tasks:batch", "", "", 405, "no_method", &[]),
    ("GET", "/v1/tasks/", "", "", 404, "no_route", &[]),
    ("GET", "/nowhere", "", "", 404, "no_route", &[]),
];

#[tokio::test]
async fn bad_input_is_refused_with_every_fault_and_its_place() {
    let stage = Stage::start().await;
    for &(method, path, content_type, body, status, code, faults) in CASES {
        let answer = stage.call(method, path, content_type, body).await;
        assert_eq!(answer.problem(), (status, code.to_owned()), "{method} {path} {body}: {answer:?}");
        let json = answer.json();
        let mut errors: Vec<_> = json["errors"].as_array().into_iter().flatten().collect();
        errors.sort_by_key(|error| faults.iter().position(|(pointer, _)| error["pointer"] == *pointer));
        let found: Vec<_> =
            errors.iter().map(|error| (error["pointer"].as_str().unwrap(), error["code"].as_str().unwrap())).collect();
        assert_eq!(found, faults, "{method} {path} {body}: {json}");
    }
    assert_eq!(stage.get("/v1/tasks/a").await.status, 404, "what is refused is not put");
}

#[tokio::test]
async fn a_method_that_is_not_taken_names_those_that_are() {
    let stage = Stage::start().await;
    let answer = stage.call("POST", "/v1/tasks/a", "application/json", TASK).await;
    let allowed = answer.head.lines().find(|line| line.starts_with("allow:")).unwrap();
    for method in ["put", "get", "delete"] {
        assert!(allowed.contains(method), "{allowed}");
    }
}
