//! The timeline, from outside.
//!
//! - `stage`         one timeline of each shape (in memory, Redis, Redis Cluster; 1 and 4 shards) and short words for its verbs
//! - `laws_*`        the conformance suite: one function per law, run against every shape
//! - `model`         the model check: all orders of steps to a stated depth, on the twin

#![expect(clippy::unwrap_used, reason = "a test that meets nothing where something must be has failed")]

mod laws_answers;
mod laws_bounds;
mod laws_claims;
mod laws_keys;
mod laws_time;
mod model;
pub(crate) mod stage;

/// One test per law and shape.
macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        $(mod $law {
            #[tokio::test]
            async fn in_memory() {
                super::$law(crate::timeline::stage::Stage::in_memory(1)).await;
            }

            #[tokio::test]
            async fn in_memory_with_4_shards() {
                super::$law(crate::timeline::stage::Stage::in_memory(4)).await;
            }
        })*
    };
}
pub(crate) use laws;
