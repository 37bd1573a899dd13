//! Tasks with generated ids, and repeated requests: over the timeline in memory and over Redis.

use std::collections::HashSet;
use std::time::Duration;

use punctual::timeline::Timeline;

use super::{NOON, Stage};
use crate::support::have;
use crate::support::redis::RedisServer;

const TASK: &str = r#"{"schedule":{"in":"15m"},"message":{"payload":{"a":1}}}"#;

/// The id for the key `order-1`: the first 16 bytes of its SHA-256 as a version 8 UUID.
const ORDER_1: &str = "0bafe221-56d2-898c-943b-86040446d366";

/// One test per case and timeline.
macro_rules! on_both_timelines {
    ($($law:ident),* $(,)?) => {
        $(mod $law {
            use super::*;

            #[tokio::test]
            async fn in_memory() {
                super::$law(Stage::start().await).await;
            }

            #[tokio::test]
            async fn in_redis() {
                if have("redis-server") {
                    let redis = RedisServer::start(&[]);
                    super::$law(Stage::over(&redis).await).await;
                }
            }
        })*
    };
}

on_both_timelines![
    a_repeat_under_its_key_changes_nothing,
    another_body_under_a_key_is_refused,
    a_post_after_a_cancel_creates_the_task_again,
    only_one_of_several_simultaneous_posts_creates_the_task,
    without_a_key_every_request_makes_a_task,
];

async fn a_repeat_under_its_key_changes_nothing<T: Timeline>(stage: Stage<T>) {
    let first = stage.post_under("order-1", TASK).await;
    assert_eq!((first.status, first.json()["result"].as_str()), (201, Some("created")));
    assert_eq!(first.json()["id"], ORDER_1);
    assert_eq!(first.header("location"), Some(format!("/v1/tasks/{ORDER_1}").as_str()));
    // This holds for `in` too, although a repeated put would start the time anew.
    stage.clock.advance(Duration::from_secs(60));
    for key in ["order-1", "\"order-1\""] {
        let again = stage.post_under(key, TASK).await;
        assert_eq!((again.status, again.json()["result"].as_str()), (200, Some("unchanged")));
        assert_eq!(
            (again.json()["id"].as_str(), again.json()["due_ms"].as_i64()),
            (Some(ORDER_1), Some(NOON + 900_000))
        );
        assert_eq!(again.json()["next"], serde_json::json!([]), "nothing follows what is due once");
        assert_eq!(again.header("location"), first.header("location"));
    }
    let shown = stage.get(&format!("/v1/tasks/{ORDER_1}")).await.json();
    assert_eq!((shown["revision"].as_u64(), shown["due_ms"].as_i64()), (Some(1), Some(NOON + 900_000)));
}

async fn another_body_under_a_key_is_refused<T: Timeline>(stage: Stage<T>) {
    stage.post_under("order-1", TASK).await;
    for other in [TASK.replace("\"a\":1", "\"a\":2"), TASK.replace("15m", "16m")] {
        assert_eq!(stage.post_under("order-1", &other).await.problem(), (422, "key_reused".into()));
    }
    let shown = stage.get(&format!("/v1/tasks/{ORDER_1}")).await.json();
    assert_eq!((&shown["message"]["payload"]["a"], &shown["revision"]), (&1.into(), &1.into()));
    assert_eq!(stage.post_under("order-2", &TASK.replace("15m", "16m")).await.status, 201);
}

async fn a_post_after_a_cancel_creates_the_task_again<T: Timeline>(stage: Stage<T>) {
    stage.post_under("order-1", TASK).await;
    assert_eq!(stage.delete(ORDER_1).await.status, 200);
    stage.clock.advance(Duration::from_secs(60));
    let again = stage.post_under("order-1", &TASK.replace("\"a\":1", "\"a\":2")).await;
    assert_eq!((again.status, again.json()["due_ms"].as_i64()), (201, Some(NOON + 960_000)));
}

async fn only_one_of_several_simultaneous_posts_creates_the_task<T: Timeline>(stage: Stage<T>) {
    let client = stage.client;
    let repeats: Vec<_> =
        (0..20).map(|_| tokio::spawn(async move { client.post_under("order-1", TASK).await })).collect();
    let mut statuses = Vec::new();
    for repeat in repeats {
        let answer = repeat.await.unwrap();
        assert_eq!(
            (answer.json()["id"].as_str(), answer.json()["due_ms"].as_i64()),
            (Some(ORDER_1), Some(NOON + 900_000))
        );
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!((statuses[19], &statuses[..19]), (201, &[200; 19][..]));
}

async fn without_a_key_every_request_makes_a_task<T: Timeline>(stage: Stage<T>) {
    let mut ids = HashSet::new();
    for _ in 0..3 {
        let answer = stage.post("/v1/tasks", TASK).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        // A version 7 UUID begins with its time.
        assert!(id.len() == 36 && id.as_bytes()[14] == b'7', "{id}");
        assert_eq!(i64::from_str_radix(&id.replace('-', "")[..12], 16).unwrap(), NOON, "{id}");
        assert_eq!(stage.get(&format!("/v1/tasks/{id}")).await.status, 200);
        ids.insert(id);
    }
    assert_eq!(ids.len(), 3);
}
