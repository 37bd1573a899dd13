//! Tokens with limits: every cell of the table in `docs/access.md`, and their limits on the rate and the number of pending tasks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use punctual::clock::Timestamp;
use punctual::engine::{AllowedTasks, LaneState};
use punctual::http::access::Scope;
use punctual::http::{Access, PutRate, TokenLimits};
use punctual::task::Lane;
use punctual_sinks::DestinationPatterns;
use serde_json::{Value, json};

use super::access::known;
use super::client::Answer;
use super::{NOON, Stage};

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Own,
    AnotherId,
    AnotherLane,
    AnotherDestination,
}

/// The columns of the table to the right of the request: its title, the token, and what the request is about.
const COLUMNS: [(&str, &str, About); 8] = [
    ("`read`", "reader", About::Own),
    ("`write`", "writer", About::Own),
    ("`discard`", "discarder", About::Own),
    ("`operate`", "operator", About::Own),
    ("its own", "shop", About::Own),
    ("another id", "shop", About::AnotherId),
    ("another lane", "shop", About::AnotherLane),
    ("another destination", "shop", About::AnotherDestination),
];

fn shop() -> TokenLimits {
    let allowed = AllowedTasks {
        lanes: vec!["alerts".parse().unwrap()],
        prefix: "shop.".parse().expect("a prefix"),
        destinations: Some(DestinationPatterns::new(vec!["orders.*".to_owned()]).unwrap()),
    };
    TokenLimits { allowed, ..TokenLimits::default() }
}

/// A server with a token of each scope, and one with limits.
pub(super) async fn shop_stage() -> Stage {
    stage(shop()).await
}

async fn stage(limits: TokenLimits) -> Stage {
    let unlimited = |token, scope| known(token, &[scope], TokenLimits::default());
    let access = Access::by_tokens([
        unlimited("reader", Scope::Read),
        unlimited("writer", Scope::Write),
        unlimited("discarder", Scope::Discard),
        unlimited("operator", Scope::Operate),
        known("shop", Scope::ALL, limits),
    ]);
    Stage::start_with(|terms| terms.access = access).await
}

impl Stage {
    pub(super) async fn ask(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {token}");
        let kind = if path.ends_with("batch") { "application/x-ndjson" } else { "application/json" };
        let headers = [("authorization", bearer.as_str()), ("content-type", kind)];
        self.send(method, path, if body.is_empty() { &headers[..1] } else { &headers }, body).await
    }
}

/// The rows of the table: the request, and its cells.
fn rows() -> Vec<(String, Vec<String>)> {
    let page = include_str!("../../docs/access.md");
    let (_, table) = page.split_once("| request | ").expect("the table");
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut lines = table.lines();
    let titles = cells(lines.next().unwrap());
    assert_eq!(titles[..8], COLUMNS.map(|(title, ..)| title));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[1].trim_matches('`').to_owned(), row[2..10].to_vec())).collect()
}

fn task(about: About) -> Value {
    let destination = if about == About::AnotherDestination { "session:alice" } else { "orders.a" };
    let lane = if about == About::AnotherLane { "default" } else { "alerts" };
    json!({"schedule": {"in": "1h"}, "message": {"destination": destination}, "lane": lane})
}

#[tokio::test]
async fn every_cell_of_the_table_holds() {
    let stage = stage(shop()).await;
    let rows = rows();
    let routes: Vec<&str> = super::access::NEEDS.iter().filter(|need| need.2 != '-').map(|need| need.1).collect();
    assert_eq!(rows.len(), routes.len(), "every route that needs a token has a row");
    for (request, cells) in rows {
        let (method, path) = request.split_once(' ').unwrap();
        assert!(super::access::NEEDS.iter().any(|need| (need.0, need.1) == (method, path)), "{request}");
        for ((title, token, about), cell) in COLUMNS.into_iter().zip(&cells) {
            let found = outcome(&stage, method, path, token, about).await;
            if cell.is_empty() {
                assert!(
                    ["POST /v1/tasks", "POST /v1/preview", "GET /v1/stats", "GET /metrics"].contains(&&*request)
                        || path.starts_with("/v1/lanes"),
                    "{request} can be about {title}"
                );
            } else {
                assert_eq!(found, cell.trim_matches('`'), "{request}, {title}");
            }
        }
    }
}

/// `yes`, `left out`, or the code of the problem.
async fn outcome(stage: &Stage, method: &str, path: &str, token: &str, about: About) -> String {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Each call uses an id of its own, because a requeued occurrence remains under its id.
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let id = &format!("{}.{call}", if about == About::AnotherId { "other" } else { "shop" });
    let lane = if about == About::AnotherLane { "default" } else { "alerts" };
    let mut task = task(about);
    // The task to read or cancel was put with `writer`, which may put any task.
    let is_bulk = ["/v1/tasks:cancel", "/v1/tasks:pause", "/v1/tasks:resume"].contains(&path);
    if method == "GET" || method == "DELETE" || path.starts_with("/v1/tasks/{id}/") || is_bulk {
        if path.ends_with("/skip") {
            task["schedule"] = json!({"every": "1h"});
        }
        assert!(stage.ask("writer", "PUT", &format!("/v1/tasks/{id}"), &task.to_string()).await.status < 300);
    }
    stage.timeline.edit(super::shard(), |twin| twin.dead_records.clear());
    stage.timeline.edit(super::shard(), |twin| twin.dead = Default::default());
    let key = stage.make_dead(id, -10, "rejected", lane).to_string();
    show_lane(stage, lane);
    let body = match (method, path) {
        ("PUT", _) | ("POST", "/v1/tasks") => task.to_string(),
        ("POST", "/v1/tasks:batch") => {
            task["id"] = json!(id);
            format!("{task}\n")
        }
        ("POST", "/v1/preview") => json!({"schedule": {"in": "1h"}}).to_string(),
        ("POST", "/v1/dead:requeue" | "/v1/dead:discard") => json!({"all": true}).to_string(),
        ("POST", _) if is_bulk => json!({"prefix": id}).to_string(),
        ("POST", _) => "{}".to_owned(),
        _ => String::new(),
    };
    let called = match (method, path) {
        ("GET", "/v1/tasks") => format!("/v1/tasks?contains={id}"),
        ("GET", "/v1/upcoming") => format!("/v1/upcoming?prefix={id}"),
        _ => path.to_owned(),
    };
    let answer = stage
        .ask(token, method, &called.replace("{id}", id).replace("{key}", &key).replace("{lane}", lane), &body)
        .await;
    if answer.status >= 300 {
        return answer.problem().1;
    }
    let is_there = match path {
        "/v1/tasks:batch" => {
            let line = &answer.lines()[0];
            return line["error"]["code"].as_str().unwrap_or("yes").to_owned();
        }
        "/v1/tasks" if method == "GET" => answer.json()["items"].as_array().unwrap().len() == 1,
        "/v1/upcoming" | "/v1/dead" => answer.json()["items"].as_array().unwrap().len() == 1,
        _ if is_bulk => answer.json()["matched"] == 1,
        "/v1/dead:requeue" => answer.json()["requeued"] == 1,
        "/v1/dead:discard" => answer.json()["discarded"] == 1,
        "/v1/stats" | "/v1/tasks:count" => answer.json()["lanes"].get(lane).is_some(),
        _ => true,
    };
    let left = stage.timeline.twin(super::shard()).dead_records.len();
    assert_eq!(
        left == 0,
        is_there
            && (path.ends_with("queue")
                || path.ends_with("discard")
                || method == "DELETE" && path.starts_with("/v1/dead")),
        "{path}"
    );
    if is_there { "yes".to_owned() } else { "left out".to_owned() }
}

fn show_lane(stage: &Stage, lane: &str) {
    let lane: Lane = lane.parse().unwrap();
    stage.state.lock().unwrap().lanes =
        vec![LaneState { head: Some(Timestamp::from_millis(NOON)), waiting: 1, ..LaneState::new(lane) }];
}

#[tokio::test]
async fn a_batch_line_for_a_foreign_task_is_refused_and_other_lines_succeed() {
    let stage = stage(shop()).await;
    let line = |id: &str| {
        let mut task = task(About::Own);
        task["id"] = json!(id);
        format!("{task}\n")
    };
    let body: String =
        (1..=9).map(|n| line(&if n == 7 { "other.1".to_owned() } else { format!("shop.{n}") })).collect();
    let lines = stage.ask("shop", "POST", "/v1/tasks:batch", &body).await.lines();
    assert_eq!(
        (&lines[6]["line"], &lines[6]["id"], &lines[6]["error"]["code"]),
        (&json!(7), &json!("other.1"), &json!("foreign_id"))
    );
    assert_eq!(lines.iter().filter(|line| line["result"] == "created").count(), 8);
    assert_eq!(stage.timeline.twin(super::shard()).tasks.len(), 8);
}

#[tokio::test]
async fn a_post_without_lane_and_id_gets_the_first_lane_and_prefix_of_its_token() {
    let stage = stage(shop()).await;
    let bare = json!({"schedule": {"in": "1h"}, "message": {"destination": "orders.a"}}).to_string();
    let answer = stage.ask("shop", "POST", "/v1/tasks", &bare).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("shop.") && answer.header("location") == Some(&format!("/v1/tasks/{id}")), "{answer:?}");
    assert_eq!(stage.ask("shop", "GET", &format!("/v1/tasks/{id}"), "").await.json()["lane"], "alerts");
    // The same idempotency key of another caller is another task.
    let under = async |token: &str| {
        let headers = [
            ("authorization", &*format!("Bearer {token}")),
            ("content-type", "application/json"),
            ("idempotency-key", "order-1"),
        ];
        stage.send("POST", "/v1/tasks", &headers, &bare).await.json()["id"].as_str().unwrap().to_owned()
    };
    let (own, again, others) = (under("shop").await, under("shop").await, under("writer").await);
    assert!(own == again && !own.ends_with(&others), "{own} {others}");
}

#[tokio::test]
async fn a_token_is_refused_a_foreign_lane_whether_the_lane_exists_or_not() {
    let stage = stage(shop()).await;
    for lane in ["default", "nowhere"] {
        let mut task = task(About::Own);
        task["lane"] = json!(lane);
        let answer = stage.ask("shop", "PUT", "/v1/tasks/shop.1", &task.to_string()).await;
        assert_eq!(answer.problem(), (403, "foreign_lane".to_owned()), "{lane}");
    }
    // The destination of a lane counts like one that the message names; `alerts` has none.
    let none = json!({"schedule": {"in": "1h"}, "message": {}, "lane": "alerts"}).to_string();
    let answer = stage.ask("shop", "PUT", "/v1/tasks/shop.1", &none).await;
    assert_eq!(answer.problem(), (422, "invalid".to_owned()));
}

#[tokio::test]
async fn a_limited_token_sees_no_lanes_sinks_or_dead_of_others() {
    let stage = stage(shop()).await;
    show_lane(&stage, "default");
    let of = async |token: &str, path: &str| stage.ask(token, "GET", path, "").await.json();
    let (own, all) = (of("shop", "/v1/stats").await, of("reader", "/v1/stats").await);
    assert!(own.get("instances").is_none() && all["instances"].is_array(), "{own} {all}");
    assert_eq!((&own["lanes"], &own["sinks"], own.get("dead")), (&json!({}), &json!({}), None));
    assert_eq!((all["lanes"]["default"]["waiting"].as_u64(), all["dead"].as_u64()), (Some(1), Some(0)));
    assert_eq!(of("shop", "/readyz").await, json!({"ready": true}));
    assert!(of("reader", "/readyz").await.get("timeline").is_some());
}

#[tokio::test]
async fn a_token_is_refused_puts_above_its_rate_or_its_pending_maximum() {
    let rate = PutRate { puts: 3, per: std::time::Duration::from_secs(3600) };
    let limits = TokenLimits { puts: Some(rate), ..shop() };
    let line = |n: usize| {
        format!("{{\"id\":\"shop.{n}\",\"schedule\":{{\"in\":\"1h\"}},\"message\":{{\"destination\":\"orders.a\"}}}}\n")
    };
    let first = stage(limits).await;
    let lines = first.ask("shop", "POST", "/v1/tasks:batch", &(0..5).map(line).collect::<String>()).await.lines();
    let counted = lines.iter().fold(BTreeMap::<String, usize>::new(), |mut counts, line| {
        *counts.entry(line["error"]["code"].as_str().unwrap_or("put").to_owned()).or_default() += 1;
        counts
    });
    assert_eq!(counted, BTreeMap::from([("put".to_owned(), 3), ("too_many_puts".to_owned(), 2)]));
    let answer = first.ask("shop", "PUT", "/v1/tasks/shop.9", &task(About::Own).to_string()).await;
    assert_eq!(answer.problem(), (429, "too_many_puts".to_owned()));
    assert!(answer.header("retry-after").and_then(|s| s.parse::<u64>().ok()).is_some_and(|s| (1..=1201).contains(&s)));
    assert_eq!(first.ask("writer", "PUT", "/v1/tasks/a", &task(About::Own).to_string()).await.status, 201);

    let second = stage(TokenLimits { pending_max: Some(2), ..shop() }).await;
    show_lane(&second, "alerts");
    let put = async |id: &str| {
        second.ask("shop", "PUT", &format!("/v1/tasks/shop.{id}"), &task(About::Own).to_string()).await
    };
    assert_eq!(put("1").await.status, 201);
    let answer = put("2").await;
    assert_eq!(answer.problem(), (429, "full".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_cursor_never_reveals_a_dead_occurrence_of_others() {
    let stage = stage(shop()).await;
    for (n, id) in ["shop.a", "bank.secret", "shop.b", "bank.other", "shop.c", "bank.last"].into_iter().enumerate() {
        stage.make_dead(id, -100 + i64::try_from(n).unwrap(), "rejected", "alerts");
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..9 {
        let page = stage.ask("shop", "GET", &format!("/v1/dead?limit=1{cursor}"), "").await.json();
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["task"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        assert!(!next.contains("bank"), "{next}");
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ["shop.a", "shop.b", "shop.c"]);
}

#[tokio::test]
async fn a_prefix_is_one_of_ids_and_not_of_keys() {
    let allowed = AllowedTasks { prefix: "shop:".parse().expect("a prefix"), ..AllowedTasks::default() };
    let stage = stage(TokenLimits { allowed, ..TokenLimits::default() }).await;
    let key = stage.make_dead("shop", -10, "rejected", "alerts");
    stage.make_dead("shop:1", -10, "rejected", "alerts");
    assert_eq!(stage.ask("shop", "GET", &format!("/v1/dead/{key}"), "").await.problem().1, "unknown");
    let items = stage.ask("shop", "GET", "/v1/dead", "").await.json()["items"].as_array().unwrap().clone();
    assert_eq!(items.iter().map(|item| item["task"].as_str().unwrap()).collect::<Vec<_>>(), ["shop:1"]);
    assert_eq!(stage.ask("shop", "POST", "/v1/dead:discard", r#"{"all":true}"#).await.json()["discarded"], 1);
    assert!(stage.timeline.twin(super::shard()).dead_records.contains_key(key.to_string().as_str()));
}

#[tokio::test]
async fn a_requeue_counts_as_a_put() {
    let rate = PutRate { puts: 2, per: std::time::Duration::from_secs(3600) };
    let stage = stage(TokenLimits { puts: Some(rate), ..shop() }).await;
    let keys = ["shop.1", "shop.2", "shop.3"].map(|id| stage.make_dead(id, -10, "rejected", "alerts"));
    assert_eq!(
        stage.ask("shop", "POST", "/v1/dead:requeue", r#"{"all":true}"#).await.problem(),
        (403, "limited_token".to_owned())
    );
    let requeue = async |key: &punctual::task::Key| {
        let answer = stage.ask("shop", "POST", &format!("/v1/dead/{key}/requeue"), "{}").await;
        if answer.status == 200 { "requeued".to_owned() } else { answer.problem().1 }
    };
    let answers = [requeue(&keys[0]).await, requeue(&keys[1]).await, requeue(&keys[2]).await];
    assert_eq!(answers, ["requeued", "requeued", "too_many_puts"]);
}

#[tokio::test]
async fn a_foreign_destination_gets_403_and_an_invalid_destination_gets_422() {
    let stage = stage(shop()).await;
    let put = async |token: &str, destination: &str| {
        let task = json!({"schedule": {"in": "1h"}, "message": {"destination": destination}, "lane": "alerts"});
        stage.ask(token, "PUT", "/v1/tasks/shop.1", &task.to_string()).await.problem()
    };
    assert_eq!(put("shop", "$SYS.a").await, (403, "foreign_destination".to_owned()));
    assert_eq!(put("writer", "$SYS.a").await, (422, "invalid".to_owned()));
}
