//! The timeline, from outside.
//!
//! - `stage`         one timeline of each kind (in memory, Redis, Redis Cluster; 1 and 4 shards) and short forms of its
//!   verbs
//! - `shared`        the Redis servers that tests share, with the user of docs/operations.md
//! - `laws_*`        the conformance suite: one function per law, run against every kind
//! - `raw`           the state in Redis, converted to the twin's types
//! - `side_by_side`  random verbs on the twin and on Redis: compares every answer and the whole state
//! - `model`         the model check: all orders of steps to a stated depth, on the twin

mod laws_answers;
mod laws_bounds;
mod laws_claims;
mod laws_dead;
mod laws_ends;
mod laws_keys;
mod laws_list;
mod laws_moves;
mod laws_pause;
mod laws_revisions;
mod laws_suspects;
mod laws_time;
mod model;
mod raw;
mod shared;
mod side_by_side;
pub(crate) mod stage;

/// One test per law and kind of timeline; one for all laws in a cluster, whose servers take seconds to start.
macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        $(mod $law {
            use crate::timeline::shared::Shape;
            use crate::timeline::stage::Stage;

            #[tokio::test]
            async fn in_memory() {
                super::$law(Stage::in_memory(1)).await;
            }

            #[tokio::test]
            async fn in_memory_with_4_shards() {
                super::$law(Stage::in_memory(4)).await;
            }

            #[tokio::test]
            async fn in_redis() {
                if let Some(stage) = Stage::in_redis(Shape::Plain, 1).await {
                    super::$law(stage).await;
                }
            }

            #[tokio::test]
            async fn in_redis_with_4_shards() {
                if let Some(stage) = Stage::in_redis(Shape::Plain, 4).await {
                    super::$law(stage).await;
                }
            }
        })*

        #[tokio::test]
        async fn all_in_redis_cluster() {
            use crate::timeline::shared::{Shape, shared_server};

            let Some(_server) = shared_server(Shape::Cluster) else { return };
            for shards in [1, 4] {
                $(
                    println!("{} with {shards} shards", stringify!($law));
                    $law(Stage::in_redis(Shape::Cluster, shards).await.unwrap()).await;
                )*
            }
        }
    };
}
pub(crate) use laws;
