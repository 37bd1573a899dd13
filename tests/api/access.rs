//! Tokens and scopes: every route with every kind of token, and invalid tokens.

use aws_lc_rs::digest::{SHA256, digest};
use punctual::http::access::{KnownToken, Scope};
use punctual::http::{Access, TokenLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Stage;
use super::client::Answer;

/// What each route requires according to this test: `-` nothing, `r` the scope read, `w` the scope
/// write, `d` the scope discard, `o` the scope operate.
pub(super) const NEEDS: &[(&str, &str, char)] = &[
    ("GET", "/v1/tasks/{id}", 'r'),
    ("PUT", "/v1/tasks/{id}", 'w'),
    ("DELETE", "/v1/tasks/{id}", 'w'),
    ("POST", "/v1/tasks/{id}/pause", 'w'),
    ("POST", "/v1/tasks/{id}/resume", 'w'),
    ("POST", "/v1/tasks/{id}/trigger", 'w'),
    ("POST", "/v1/tasks/{id}/skip", 'w'),
    ("GET", "/v1/tasks", 'r'),
    ("POST", "/v1/tasks:cancel", 'o'),
    ("POST", "/v1/tasks:pause", 'o'),
    ("POST", "/v1/tasks:resume", 'o'),
    ("GET", "/v1/tasks:count", 'r'),
    ("GET", "/v1/upcoming", 'r'),
    ("POST", "/v1/tasks", 'w'),
    ("POST", "/v1/tasks:batch", 'w'),
    ("POST", "/v1/lanes/{lane}/pause", 'o'),
    ("POST", "/v1/lanes/{lane}/resume", 'o'),
    ("POST", "/v1/preview", 'r'),
    ("GET", "/v1/dead", 'r'),
    ("GET", "/v1/dead/{key}", 'r'),
    ("DELETE", "/v1/dead/{key}", 'd'),
    ("POST", "/v1/dead/{key}/requeue", 'w'),
    ("POST", "/v1/dead:requeue", 'w'),
    ("POST", "/v1/dead:discard", 'd'),
    ("GET", "/v1/stats", 'r'),
    ("GET", "/metrics", 'r'),
    ("GET", "/healthz", '-'),
    ("GET", "/readyz", '-'),
    ("GET", "/openapi.json", '-'),
];

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

/// The paths in a router's `Debug` output, without those of its fallbacks.
pub(super) fn paths(router: &str) -> Vec<String> {
    let (routes, _) = router.split_once("fallback_router: ").expect("its fallbacks");
    let listed = routes.split("RouteId(").filter_map(|route| route.split_once("): \"")?.1.split_once('"'));
    listed.map(|(path, _)| path.to_owned()).collect()
}

pub(super) fn known(token: &str, scopes: &[Scope], limits: TokenLimits) -> KnownToken {
    KnownToken {
        name: token.to_owned(),
        sha256: digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap(),
        scopes: scopes.to_vec(),
        limits,
    }
}

pub(super) fn access() -> Access {
    let unlimited = |token, scopes: &[Scope]| known(token, scopes, TokenLimits::default());
    Access::by_tokens([
        unlimited("reader", &[Scope::Read]),
        unlimited("writer", &[Scope::Write]),
        unlimited("discarder", &[Scope::Discard]),
        unlimited("operator", &[Scope::Operate]),
        unlimited("boss", Scope::ALL),
    ])
}

async fn stage() -> Stage {
    Stage::start_with(|terms| terms.access = access()).await
}

/// Sends a request without a body, with these header lines.
async fn call(stage: &Stage, method: &str, target: &str, headers: &str) -> Answer {
    let mut stream = stage.connect().await;
    let head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    Answer::read(&bytes)
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn every_route_requires_its_own_scope_and_no_other() {
    let stage = stage().await;
    assert!(stage.paths.len() >= 6 && stage.paths.contains(&"/v1/tasks/{id}".to_owned()), "{:?}", stage.paths);
    let tokens = [
        ("", ""),
        ("unknown", ""),
        ("reader", "r"),
        ("writer", "w"),
        ("discarder", "d"),
        ("operator", "o"),
        ("boss", "rwdo"),
    ];
    for path in &stage.paths {
        for method in METHODS {
            let as_known = if method == "HEAD" { "GET" } else { method };
            let need = NEEDS.iter().find(|(known, route, _)| (*known, *route) == (as_known, path)).map(|need| need.2);
            for (token, has) in tokens {
                let target = path.replace("{id}", "a").replace("{key}", "a:1").replace("{lane}", "default");
                let headers = if token.is_empty() { String::new() } else { bearer(token) };
                let answer = call(&stage, method, &target, &headers).await;
                let what = format!("{method} {path} by `{token}`: {answer:?}");
                // A route that this table does not know requires all scopes.
                let allowed = match need {
                    Some('-') => true,
                    Some(scope) => has.contains(scope),
                    None => has == "rwdo",
                };
                let code = match (allowed, token) {
                    (true, _) => {
                        assert_eq!(need.is_none(), answer.status == 405, "{what}");
                        assert!(![401, 403].contains(&answer.status), "{what}");
                        assert!(!answer.head.contains("www-authenticate"), "{what}");
                        continue;
                    }
                    (false, "") => (401, "no_token"),
                    (false, "unknown") => (401, "unknown_token"),
                    (false, _) => (403, "missing_scope"),
                };
                assert_eq!(answer.status, code.0, "{what}");
                assert_eq!(code.0 == 401, answer.head.contains("\r\nwww-authenticate: bearer\r\n"), "{what}");
                if method != "HEAD" {
                    assert_eq!(answer.problem(), (code.0, code.1.to_owned()), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_path_that_leads_nowhere_needs_a_token_of_any_scope() {
    let stage = stage().await;
    for target in ["/", "/v1/task/a", "/v1/tasks/a/b", "//v1/stats"] {
        assert_eq!(call(&stage, "GET", target, "").await.problem(), (401, "no_token".to_owned()), "{target}");
        for token in ["reader", "writer"] {
            let answer = call(&stage, "GET", target, &bearer(token)).await;
            assert_eq!(answer.problem(), (404, "no_route".to_owned()), "{target}");
        }
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_or_method_leads_past_the_guard() {
    let stage = stage().await;
    for target in [
        "http://h/v1/stats",
        "/v1/tasks/../stats",
        "//v1/stats",
        "/v1/stats/",
        "/V1/stats",
        "/v1/%73tats",
        "/v1/tasks%3Abatch",
        "/v1/dead%3Arequeue",
        "/v1/dead/%2e%2e",
        "/v1/tasks/%2e%2e%2fstats",
        "/v1/stats;x",
        "/v1/stats?x",
    ] {
        for method in METHODS {
            for over in ["", "x-http-method-override: GET\r\n"] {
                let answer = call(&stage, method, target, over).await;
                assert_eq!(answer.status, 401, "{method} {target} {over}: {answer:?}");
            }
        }
        for method in ["PUT", "POST", "DELETE"] {
            let answer = call(&stage, method, target, &bearer("reader")).await;
            assert!([403, 404].contains(&answer.status), "{method} {target}: {answer:?}");
        }
    }
    // No header turns a get into a cancel; that would be 403.
    let over = format!("{}x-http-method-override: DELETE\r\n", bearer("reader"));
    assert_eq!(call(&stage, "GET", "/v1/tasks/a", &over).await.status, 404);
}

#[tokio::test]
async fn a_token_is_accepted_only_in_the_authorization_header() {
    let stage = stage().await;
    for headers in ["authorization: bearer reader\r\n", "Authorization:   BEARER \t reader  \r\n"] {
        assert_eq!(call(&stage, "GET", "/v1/stats", headers).await.status, 200, "{headers}");
    }
    for (target, headers, code) in [
        ("/v1/stats?token=reader", "", "no_token"),
        ("/v1/stats?access_token=reader", "", "no_token"),
        ("/v1/stats?authorization=Bearer%20reader", "", "no_token"),
        ("/v1/stats", "cookie: token=reader\r\n", "no_token"),
        ("/v1/stats", "x-api-key: reader\r\n", "no_token"),
        ("/v1/stats", "authorization: reader\r\n", "no_token"),
        ("/v1/stats", "authorization: Bearer\r\n", "no_token"),
        ("/v1/stats", "authorization: Bearer \r\n", "no_token"),
        ("/v1/stats", "authorization: Basic reader\r\n", "no_token"),
        ("/v1/stats", "authorization: Bearer reader\r\nauthorization: Bearer boss\r\n", "no_token"),
        ("/v1/stats", "authorization: Bearer readers\r\n", "unknown_token"),
        ("/v1/stats", "authorization: Bearer reade\r\n", "unknown_token"),
        ("/v1/stats", "authorization: Bearer Reader\r\n", "unknown_token"),
        ("/v1/stats", "authorization: Bearer reader boss\r\n", "unknown_token"),
        ("/v1/stats", "authorization: Bearer \"reader\"\r\n", "unknown_token"),
    ] {
        let answer = call(&stage, "GET", target, headers).await;
        assert_eq!(answer.problem(), (401, code.to_owned()), "{target} {headers}");
    }
    // A hash is no token either.
    let hash: String = digest(&SHA256, b"reader").as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(call(&stage, "GET", "/v1/stats", &bearer(&hash)).await.status, 401);
}

#[tokio::test]
async fn a_request_without_permission_is_refused_before_its_body_is_read() {
    let stage = stage().await;
    let waits = "expect: 100-continue\r\ncontent-length: 9\r\n";
    for (method, target, kind) in
        [("PUT", "/v1/tasks/a", "application/json"), ("POST", "/v1/tasks:batch", "application/x-ndjson")]
    {
        for (token, status) in
            [("", 401), ("authorization: Bearer no\r\n", 401), ("authorization: Bearer reader\r\n", 403)]
        {
            // A body that never arrives, and a client that sends it only on request.
            let answer = call(&stage, method, target, &format!("content-type: {kind}\r\n{token}{waits}")).await;
            assert_eq!(answer.problem().0, status, "{method} {target}");
        }
    }
    assert_eq!(stage.get("/readyz").await.status, 200);
    let requests = stage.metrics.text();
    let counted = "punctual_http_requests_total{route=\"/v1/tasks/{id}\",status=\"401\"} 2";
    assert!(requests.contains(counted), "{requests}");
}

#[tokio::test]
async fn an_unready_instance_shows_the_reason_only_to_a_reader_token() {
    let stage = stage().await;
    stage.state.lock().unwrap().link = punctual::timeline::Link::Down("cannot reach 10.0.0.7:6379".into());
    for (headers, reported) in
        [("", false), (&bearer("no")[..], false), (&bearer("writer"), false), (&bearer("reader"), true)]
    {
        let answer = call(&stage, "GET", "/readyz", headers).await;
        assert_eq!((answer.status, answer.body.contains("10.0.0.7")), (503, reported), "{answer:?}");
        assert!(reported || answer.body == r#"{"ready":false}"#, "{answer:?}");
    }
}

#[tokio::test]
async fn without_tokens_everybody_may_do_everything() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/v1/stats").await.status, 200);
    assert_eq!(call(&stage, "DELETE", "/v1/tasks/a", &bearer("any")).await.status, 404);
}

/// A browser sends requests of a page of another site with that page's origin.
#[tokio::test]
async fn no_page_of_another_site_may_do_anything() {
    let (open, guarded) = (Stage::start().await, stage().await);
    for stage in [&open, &guarded] {
        for (origin, status) in [
            ("", 200),
            ("origin: http://localhost\r\n", 200),
            ("origin: https://LOCALHOST\r\n", 200),
            ("origin: http://evil.example\r\n", 403),
            ("origin: http://localhost.evil.example\r\n", 403),
            ("origin: http://localhost:8080\r\n", 403),
            ("origin: null\r\n", 403),
            ("origin: \r\n", 403),
            ("origin: http://localhost\r\norigin: http://evil.example\r\n", 403),
        ] {
            let answer = call(stage, "GET", "/v1/stats", &format!("{origin}{}", bearer("reader"))).await;
            assert_eq!(answer.status, status, "{origin}: {answer:?}");
            assert!(status == 200 || answer.problem().1 == "foreign_origin", "{answer:?}");
        }
    }
}

/// For a browser, a page whose own name resolves to loopback is the same site.
#[tokio::test]
async fn on_loopback_or_without_tokens_no_page_of_another_name_may_do_anything() {
    let (open, guarded) = (Stage::start().await, stage().await);
    let loopback = Stage::start_with(|terms| terms.access = access().on_loopback(true)).await;
    let ask = async |stage: &Stage, host: &str| {
        let mut stream = stage.connect().await;
        let head = format!("GET /v1/stats HTTP/1.1\r\nconnection: close\r\n{}{host}\r\n", bearer("reader"));
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Answer::read(&bytes)
    };
    for host in ["localhost", "LocalHost:7171", "127.0.0.1", "127.0.0.1:7171", "[::1]", "[::1]:7171", "10.1.2.3:80"] {
        assert_eq!(ask(&open, &format!("host: {host}\r\n")).await.status, 200, "{host}");
    }
    assert_eq!(ask(&open, "").await.status, 200, "no host");
    for host in ["evil.example:7171", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a b", "["] {
        let host = format!("host: {host}\r\n");
        assert_eq!(ask(&open, &host).await.problem(), (403, "foreign_host".to_owned()), "{host}");
        assert_eq!(ask(&guarded, &host).await.status, 200, "{host}: its token says enough");
        assert_eq!(ask(&loopback, &host).await.problem(), (403, "foreign_host".to_owned()), "{host}");
    }
    assert_eq!(ask(&loopback, "host: localhost\r\n").await.status, 200);
    assert_eq!(ask(&open, "host: localhost\r\nhost: evil.example\r\n").await.status, 403);
}

#[test]
fn no_hash_of_a_token_shows() {
    let shown = format!("{:?}", known("reader", &[Scope::Read], TokenLimits::default()));
    assert!(
        shown.starts_with("KnownToken { name: \"reader\", scopes: [Read], limits: ") && !shown.contains("sha256"),
        "{shown}"
    );
    assert_eq!(format!("{:?}", access()), "Access { on_loopback: false, .. }");
}
