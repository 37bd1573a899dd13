//! Stats, health and readiness.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use punctual::clock::Timestamp;
use punctual::engine::{BreakerState, FailingDestination, InstanceState, LaneState, PublishRate, SinkState};
use punctual::timeline::Link;
use serde_json::json;

use super::{NOON, Stage};

fn lane(name: &str, sink: Option<&str>) -> LaneState {
    LaneState {
        sink: sink.map(str::to_owned),
        head: sink.map(|_| Timestamp::from_millis(NOON + 1)),
        oldest: sink.map(|_| Timestamp::from_millis(NOON - 60_000)),
        waiting: 3,
        overdue: 1,
        in_flight: 2,
        published: PublishRate {
            per_second: 12.34,
            lateness: sink.map(|_| (Duration::from_millis(1), Duration::from_micros(2449))),
        },
        ..LaneState::new(name.parse().unwrap())
    }
}

#[tokio::test]
async fn stats_show_lanes_sinks_and_the_timeline() {
    let stage = Stage::start().await;
    {
        let mut state = stage.state.lock().unwrap();
        state.lanes = vec![lane("default", Some("orders")), lane("old", None)];
        let open = BreakerState::Open { detail: "connection refused".into(), failures: 2 };
        state.sinks =
            vec![SinkState::new("orders", "nats", open), SinkState::new("out", "stdout", BreakerState::Closed)];
        state.dead = 7;
        state.instances = vec![Arc::new(InstanceState {
            id: "i0".into(),
            version: "0.1.0".into(),
            lanes: BTreeSet::from(["default".parse().unwrap()]),
            unavailable_sinks: vec!["orders".into()],
        })];
    }
    let stats = stage.get("/v1/stats").await.json();
    assert_eq!(stats["instance"], "i0");
    assert_eq!(stats["timeline"], json!({"status": "up"}));
    let expected = json!({"sink": "orders", "waiting": 3, "overdue": 1, "in_flight": 2, "paused": 0,
        "head": "2026-11-21T12:00:00.001Z", "head_ms": NOON + 1, "oldest_ms": NOON - 60_000, "published_per_s": 12.3,
        "lateness_ms": {"p50": 1.0, "p99": 2.4}});
    assert_eq!(stats["lanes"]["default"], expected);
    assert_eq!((&stats["lanes"]["old"]["sink"], stats["lanes"]["old"].get("lateness_ms")), (&json!(null), None));
    let instance = json!({"id": "i0", "version": "0.1.0", "lanes": ["default"], "unavailable_sinks": ["orders"]});
    assert_eq!(stats["instances"], json!([instance]));
    assert_eq!(stats["sinks"]["orders"], json!({"kind": "nats", "breaker": "open", "detail": "connection refused"}));
    assert_eq!(stats["sinks"]["out"], json!({"kind": "stdout", "breaker": "closed"}));
    assert_eq!(stats["dead"], 7);

    // Unavailable sinks and unserved lanes do not prevent puts.
    let ready = stage.get("/readyz").await;
    assert_eq!(ready.status, 200);
    assert_eq!(ready.json()["unavailable_sinks"], json!({"orders": "connection refused"}));
    assert_eq!(ready.json()["unserved_lanes"], json!(["old"]));
}

#[tokio::test]
async fn stats_name_failing_destinations_and_readyz_counts_them() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/readyz").await.json()["failing_destinations"], json!({}));
    let failing = FailingDestination {
        destination: "orders.cancel".into(),
        status: "at_fault",
        failing_for: Duration::from_secs(12),
        detail: "no such topic".into(),
    };
    let sink = SinkState::new("orders", "kafka", BreakerState::Closed);
    stage.state.lock().unwrap().sinks = vec![SinkState { failing_count: 101, failing: vec![(failing, 7)], ..sink }];
    let shown = &stage.get("/v1/stats").await.json()["sinks"]["orders"];
    assert_eq!(shown["failing_count"], 101);
    let expected = json!([{"destination": "orders.cancel", "status": "at_fault", "since": "2026-11-21T11:59:48.000Z",
        "waiting": 7, "detail": "no such topic"}]);
    assert_eq!(shown["failing"], expected);
    assert_eq!(stage.get("/readyz").await.json()["failing_destinations"], json!({"orders": 101}));
}

#[tokio::test]
async fn stats_tell_their_age_while_redis_is_unavailable() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/v1/stats").await.json().get("as_of"), None);
    stage.state.lock().unwrap().as_of = Some(Timestamp::from_millis(NOON - 60_000));
    assert_eq!(stage.get("/v1/stats").await.json()["as_of"], "2026-11-21T11:59:00.000Z");
}

#[tokio::test]
async fn an_instance_is_ready_only_while_it_can_accept_tasks() {
    let stage = Stage::start().await;
    assert_eq!(stage.get("/readyz").await.status, 200);
    stage.state.lock().unwrap().link = Link::Down("redis://me:hunter2@host: refused".into());
    let answer = stage.get("/readyz").await;
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &json!(false)));
    assert!(!answer.body.contains("hunter2"), "{answer:?}");
    assert_eq!(stage.get("/healthz").await.status, 200, "another start would not bring Redis back");
}

#[tokio::test]
async fn an_instance_is_unhealthy_once_a_loop_hangs() {
    let stage = Stage::start().await;
    for (seconds, status) in [(29, 200), (30, 503)] {
        stage.state.lock().unwrap().slowest_loop = Some(("claim default".into(), Duration::from_secs(seconds)));
        let answer = stage.get("/healthz").await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["slowest_loop"], "claim default");
    }
}

#[tokio::test]
async fn metrics_are_open_metrics_text() {
    let stage = Stage::start().await;
    let answer = stage.get("/metrics").await;
    assert!(answer.head.contains("content-type: application/openmetrics-text"));
    assert!(answer.body.contains("punctual_timeline_up 1") && answer.body.ends_with("# EOF\n"), "{answer:?}");
}
