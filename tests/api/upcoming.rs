//! `GET /v1/upcoming`, `/v1/tasks:count` and `?next=`: the tasks of all lanes that come due next, their number, and the
//! next dues of one task.

use serde_json::{Value, json};

use super::list::stage_with_limited_token;
use super::{NOON, Stage};

/// Puts tasks: id, seconds from noon, lane.
async fn put<T: punctual::timeline::Timeline>(stage: &Stage<T>, tasks: &[(&str, i64, &str)]) {
    let line = |(id, seconds, lane): &(&str, i64, &str)| {
        let at = punctual::clock::Timestamp::from_millis(NOON + seconds * 1000).to_string();
        let message = json!({"destination": "orders.report", "payload": 1});
        format!("{}\n", json!({"id": id, "schedule": {"at": at}, "message": message, "lane": lane}))
    };
    let answer = stage.batch(&tasks.iter().map(line).collect::<String>()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn ids(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn what_waits_is_listed_by_due_over_all_lanes() {
    let stage = Stage::start().await;
    let nothing = json!({"now": "2026-11-21T12:00:00.000Z", "items": [], "more": false});
    assert_eq!(stage.get("/v1/upcoming").await.json(), nothing);
    let several: Vec<String> = (0..150).map(|n| format!("n{n:03}")).collect();
    let lane = |n: usize| if n.is_multiple_of(2) { "default" } else { "alerts" };
    let mut tasks: Vec<(&str, i64, &str)> =
        several.iter().enumerate().map(|(n, id)| (id.as_str(), 100 + i64::try_from(n).unwrap(), lane(n))).collect();
    tasks.extend([("b", 60, "default"), ("a", 60, "alerts"), ("late", -60, "alerts"), ("claimed", -90, "default")]);
    put(&stage, &tasks).await;
    let claimed = stage.claim("i.1").await;
    assert_eq!(claimed.occurrences.len(), 1, "it is in flight, so it is not listed");

    let mut expected = vec!["late", "a", "b"];
    expected.extend(several.iter().map(String::as_str));
    let all = stage.get("/v1/upcoming?limit=1000").await.json();
    assert_eq!((ids(&all), &all["more"]), (expected.clone(), &json!(false)));
    let late = json!({"id": "late", "lane": "alerts", "due": "2026-11-21T11:59:00.000Z", "due_ms": NOON - 60_000,
        "overdue": true});
    assert_eq!(all["items"][0], late);

    let first = stage.get("/v1/upcoming").await.json();
    assert_eq!((ids(&first), &first["more"]), (expected[..100].to_vec(), &json!(true)));
    let last = first["items"][99]["due"].as_str().unwrap();
    let rest = stage.get(&format!("/v1/upcoming?from={last}")).await.json();
    assert_eq!((ids(&rest), &rest["more"]), (expected[99..].to_vec(), &json!(false)));

    let some = stage.get("/v1/upcoming?lane=alerts&prefix=n00").await.json();
    assert_eq!(ids(&some), ["n001", "n003", "n005", "n007", "n009"]);
    for (query, pointer) in [("limit=0", "/limit"), ("lane=none", "/lane"), ("from=soon", "/from"), ("to=1", "/to")] {
        let answer = stage.get(&format!("/v1/upcoming?{query}")).await;
        assert_eq!((answer.status, answer.json()["errors"][0]["pointer"].as_str()), (422, Some(pointer)), "{query}");
    }
}

#[tokio::test]
async fn a_limited_token_sees_only_its_own_upcoming_tasks() {
    let stage = stage_with_limited_token().await;
    for (id, lane) in [("shop.1", "default"), ("other.1", "default"), ("shop.2", "alerts")] {
        let task = json!({"schedule": {"in": "1h"}, "message": {"destination": "a", "payload": 1}, "lane": lane});
        let headers = [("authorization", "Bearer boss"), ("content-type", "application/json")];
        let answer = stage.client.send("PUT", &format!("/v1/tasks/{id}"), &headers, &task.to_string()).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let listed = async |token: &str, query: &str| {
        let bearer = format!("Bearer {token}");
        stage.client.send("GET", &format!("/v1/upcoming?{query}"), &[("authorization", &bearer)], "").await
    };
    assert_eq!(ids(&listed("own", "").await.json()), ["shop.1"]);
    assert_eq!(ids(&listed("own", "prefix=other").await.json()), Vec::<&str>::new());
    assert_eq!(ids(&listed("boss", "").await.json()).len(), 3);
    let foreign = listed("own", "lane=alerts").await;
    assert_eq!((foreign.status, foreign.json()["code"].as_str()), (403, Some("foreign_lane")));
}

#[tokio::test]
async fn the_next_dues_of_a_task_are_shown_up_to_its_limit() {
    let stage = Stage::start().await;
    let next = async |schedule: Value, query: &str| {
        let task = json!({"schedule": schedule, "message": {"destination": "orders.report", "payload": 1}});
        let put = stage.put("x", &task.to_string()).await;
        assert!(put.status < 300, "{put:?}");
        let answer = stage.get(&format!("/v1/tasks/x{query}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let shown = answer.json()["next"].clone();
        shown.as_array().map(|dues| dues.iter().map(|due| due["due_ms"].as_i64().unwrap() - NOON).collect::<Vec<_>>())
    };
    let hour = 3_600_000;
    let hourly = json!({"every": "1h"});
    assert_eq!(next(hourly.clone(), "").await, None, "only if they are asked for");
    // It waits for one o'clock.
    assert_eq!(next(hourly.clone(), "?next=3").await, Some(vec![2 * hour, 3 * hour, 4 * hour]));
    assert_eq!(next(json!({"every": "1h", "limit": 3}), "?next=9").await, Some(vec![2 * hour, 3 * hour]));
    assert_eq!(next(json!({"every": "1h", "end": "2026-11-21T14:30:00Z"}), "?next=9").await, Some(vec![2 * hour]));
    assert_eq!(
        next(json!({"cron": "0 30 8 * * *", "zone": "Europe/Berlin"}), "?next=1").await,
        Some(vec![(24 + 19) * hour + hour / 2]),
    );
    assert_eq!(next(json!({"in": "1h"}), "?next=5").await, Some(vec![]));
    for query in ["next=0", "next=101", "next=x", "then=1"] {
        assert_eq!(stage.get(&format!("/v1/tasks/x?{query}")).await.status, 422, "{query}");
    }
    // For a task in flight, the next dues begin after the claimed one.
    assert_eq!(next(json!({"every": "1h", "start": "2026-11-21T12:00:01Z"}), "?next=1").await, Some(vec![hour + 1000]));
    stage.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(stage.claim("i.1").await.occurrences.len(), 1);
    let flying = stage.get("/v1/tasks/x?next=2").await.json();
    let dues: Vec<i64> =
        flying["next"].as_array().unwrap().iter().map(|due| due["due_ms"].as_i64().unwrap() - NOON).collect();
    assert_eq!((flying["due_ms"].as_i64().unwrap() - NOON, dues), (1000, vec![hour + 1000, 2 * hour + 1000]));
}

#[tokio::test]
async fn tasks_are_counted_by_lane_and_by_due() {
    let stage = Stage::start().await;
    let lane = |waiting: u64, overdue: u64, in_flight: u64| json!({"waiting": waiting, "overdue": overdue, "in_flight": in_flight, "paused": 0});
    let nothing =
        json!({"now": "2026-11-21T12:00:00.000Z", "lanes": {"alerts": lane(0, 0, 0), "default": lane(0, 0, 0)}});
    assert_eq!(stage.get("/v1/tasks:count").await.json(), nothing);
    put(&stage, &[("claimed", -90, "default")]).await;
    assert_eq!(stage.claim("i.1").await.occurrences.len(), 1);
    put(&stage, &[("a", 0, "default"), ("b", 1800, "alerts"), ("c", 3599, "default"), ("d", 3600, "default")]).await;
    put(&stage, &[("late", -60, "alerts")]).await;
    let hour = "from=2026-11-21T12:00:00Z&to=2026-11-21T13:00:00Z";
    let window = |from: &str, to: &str, waiting: u64| json!({"from": format!("2026-11-21T{from}.000Z"), "to": format!("2026-11-21T{to}.000Z"), "waiting": waiting});
    let all = stage.get(&format!("/v1/tasks:count?{hour}&windows=2")).await.json();
    assert_eq!(all["lanes"], json!({"alerts": lane(2, 1, 0), "default": lane(3, 0, 1)}));
    let halves = json!([window("12:00:00", "12:30:00", 1), window("12:30:00", "13:00:00", 2)]);
    assert_eq!(all["windows"], halves);
    let one = stage.get(&format!("/v1/tasks:count?lane=alerts&{hour}")).await.json();
    assert_eq!(one["lanes"], json!({"alerts": lane(2, 1, 0)}));
    assert_eq!(one["windows"], json!([window("12:00:00", "13:00:00", 1)]));
    for (query, pointer) in [
        ("lane=none", "/lane"),
        ("windows=2", "/from"),
        ("from=2026-11-21T12:00:00Z", "/to"),
        (&format!("{hour}&windows=121"), "/windows"),
        ("from=2026-11-21T13:00:00Z&to=2026-11-21T12:00:00Z", "/to"),
        ("status=overdue", "/status"),
    ] {
        let answer = stage.get(&format!("/v1/tasks:count?{query}")).await;
        assert_eq!((answer.status, answer.json()["errors"][0]["pointer"].as_str()), (422, Some(pointer)), "{query}");
    }
}
