//! `GET /v1/tasks`: pages, filters, and what a token with limits sees.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual::engine::AllowedTasks;
use punctual::http::TokenLimits;
use punctual::http::access::Scope;
use serde_json::{Value, json};

use super::access::known;
use super::{NOON, Stage};
use crate::support::have;
use crate::support::redis::RedisServer;

fn line(id: &str, schedule: &Value, lane: &str) -> String {
    let message = json!({"destination": "orders.report", "payload": 1});
    format!("{}\n", json!({"id": id, "schedule": schedule, "message": message, "lane": lane}))
}

fn ids(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// All ids of a list, sorted; each page but the last has a cursor.
async fn all<T: punctual::timeline::Timeline>(stage: &Stage<T>, query: &str) -> (Vec<String>, usize) {
    let (mut found, mut path, mut pages) = (Vec::new(), format!("/v1/tasks?{query}"), 0);
    loop {
        let answer = stage.get(&path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        found.extend(ids(&page));
        pages += 1;
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/tasks?{query}&cursor={cursor}");
    }
    found.sort();
    (found, pages)
}

#[tokio::test]
async fn tasks_are_listed_in_pages_and_selected_by_filters() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/v1/tasks").await.json(), json!({"items": []}));
    let mut body: String = (0..950).map(|n| line(&format!("order-{n:03}"), &json!({"in": "1h"}), "default")).collect();
    body += &line("late", &json!({"at": "2026-11-21T11:00:00Z"}), "default");
    body += &line("now", &json!({"in": "0s"}), "alerts");
    let put = stage.batch(&body).await;
    assert_eq!(put.status, 200, "{put:?}");
    let (every, pages) = all(&stage, "limit=100").await;
    assert_eq!(every.iter().collect::<BTreeSet<_>>().len(), 952);
    assert!(pages >= 9, "{pages}");
    let late = json!({"id": "late", "lane": "default", "status": "scheduled", "due": "2026-11-21T11:00:00.000Z",
        "due_ms": NOON - 3_600_000, "overdue": true});
    assert_eq!(stage.get("/v1/tasks?status=overdue").await.json(), json!({"items": [late]}));
    let claimed = stage.claim("i.1").await;
    assert_eq!(claimed.occurrences.len(), 1);
    let flying = json!({"id": "late", "lane": "default", "status": "in_flight", "due": "2026-11-21T11:00:00.000Z",
        "due_ms": NOON - 3_600_000});
    assert_eq!(stage.get("/v1/tasks?status=in_flight&lane=default").await.json(), json!({"items": [flying]}));
    for (query, expected) in [
        ("lane=alerts", &["now"][..]),
        (
            "prefix=order-00&limit=1000",
            &[
                "order-000",
                "order-001",
                "order-002",
                "order-003",
                "order-004",
                "order-005",
                "order-006",
                "order-007",
                "order-008",
                "order-009",
            ],
        ),
        ("contains=949", &["order-949"]),
        ("due_to=2026-11-21T12:00:00Z", &["late"]),
        ("due_from=2026-11-21T12:00:00Z&due_to=2026-11-21T12:00:01Z", &["now"]),
        ("prefix=nothing", &[]),
    ] {
        assert_eq!(all(&stage, query).await.0, expected, "{query}");
    }
}

#[tokio::test]
async fn a_list_with_faults_or_a_cursor_of_another_server_is_refused() {
    let stage = Stage::start().await;
    for (query, pointer) in [
        ("status=late", "/status"),
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("prefix=", "/prefix"),
        ("cursor=x", "/cursor"),
        ("cursor=0.default.1", "/cursor"),
        ("lane=none", "/lane"),
        ("due_from=now", "/due_from"),
        ("sort=due", "/sort"),
    ] {
        let answer = stage.get(&format!("/v1/tasks?{query}")).await;
        assert_eq!((answer.status, answer.json()["errors"][0]["pointer"].as_str()), (422, Some(pointer)), "{query}");
    }
    let gone = stage.get("/v1/tasks?cursor=0.default.5.0000abcd").await;
    assert_eq!((gone.status, gone.json()["code"].as_str()), (410, Some("cursor_gone")), "{gone:?}");
}

/// The position in a list belongs to the process of Redis: another one has its tasks in another order.
#[tokio::test]
async fn after_a_restart_of_redis_a_list_begins_again() {
    if !have("redis-server") {
        return;
    }
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let stage = Stage::over(&redis).await;
    let body: String = (0..2000).map(|n| line(&format!("t{n}"), &json!({"in": "1h"}), "default")).collect();
    assert_eq!(stage.batch(&body).await.status, 200);
    let first = stage.get("/v1/tasks?limit=100").await.json();
    let cursor = first["next_cursor"].as_str().expect("more follow").to_owned();
    assert_eq!(stage.get(&format!("/v1/tasks?cursor={cursor}")).await.status, 200);
    redis.server.restart();
    let mut status = 0;
    for _ in 0..300 {
        status = stage.get(&format!("/v1/tasks?cursor={cursor}")).await.status;
        if status != 503 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status, 410);
    let (every, _) = all(&stage, "limit=1000").await;
    assert_eq!(every.into_iter().collect::<BTreeSet<_>>().len(), 2000, "begun again it ends");
}

/// A stage with the tokens `boss`, and `own` for ids that begin with `shop.`, in the lane `default`.
pub(super) async fn stage_with_limited_token() -> Stage {
    let allowed = AllowedTasks {
        lanes: vec!["default".parse().unwrap()],
        prefix: "shop.".parse().unwrap(),
        ..AllowedTasks::default()
    };
    let limits = TokenLimits { allowed, ..TokenLimits::default() };
    let tokens = [known("own", &[Scope::Read], limits), known("boss", Scope::ALL, TokenLimits::default())];
    Stage::start_with(|terms| terms.access = punctual::http::Access::by_tokens(tokens)).await
}

#[tokio::test]
async fn a_limited_token_lists_only_its_own_tasks() {
    let stage = stage_with_limited_token().await;
    let body: String = ["shop.1", "shop.2", "other.1"]
        .map(|id| line(id, &json!({"in": "1h"}), "default"))
        .into_iter()
        .chain([line("shop.3", &json!({"in": "1h"}), "alerts")])
        .collect();
    let bearer = |token: &str| format!("Bearer {token}");
    let put = stage
        .client
        .send(
            "POST",
            "/v1/tasks:batch",
            &[("authorization", &bearer("boss")), ("content-type", "application/x-ndjson")],
            &body,
        )
        .await;
    assert_eq!(put.status, 200, "{put:?}");
    let listed = async |token: &str, query: &str| {
        stage.client.send("GET", &format!("/v1/tasks?{query}"), &[("authorization", &bearer(token))], "").await
    };
    for (query, expected) in [
        ("", &["shop.1", "shop.2"][..]),
        ("prefix=shop.1", &["shop.1"]),
        ("prefix=s", &["shop.1", "shop.2"]),
        ("prefix=other", &[]),
        ("contains=other", &[]),
    ] {
        let mut found = ids(&listed("own", query).await.json());
        found.sort();
        assert_eq!(found, expected, "{query}");
    }
    let foreign = listed("own", "lane=alerts").await;
    assert_eq!((foreign.status, foreign.json()["code"].as_str()), (403, Some("foreign_lane")));
    assert_eq!(ids(&listed("boss", "").await.json()).len(), 4);
}
