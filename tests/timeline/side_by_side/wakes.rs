//! Notifications of both timelines.

use std::time::Duration;

use proptest::prop_assert;
use proptest::test_runner::TestCaseError;
use punctual::timeline::Wake;
use tokio::sync::broadcast;

/// What both sides send.
pub(super) struct Wakes {
    pub(super) memory: broadcast::Receiver<Wake>,
    pub(super) redis: broadcast::Receiver<Wake>,
}

pub(super) fn wake_text(wake: Wake) -> String {
    format!("{} {} {}", wake.shard, wake.lane, wake.due.as_millis())
}

impl Wakes {
    /// Compares all notifications that both sides sent, in any order, because a script may notify several lanes.
    pub(super) async fn compare(
        self,
        (in_rounds, not_in_rounds): (&[String], &[String]),
        patience: Duration,
    ) -> Result<(), TestCaseError> {
        let Wakes { mut memory, mut redis } = self;
        let (mut missing, mut more) = (Vec::new(), Vec::new());
        while let Ok(wake) = memory.try_recv() {
            missing.push(wake_text(wake));
        }
        missing.retain(|wake| !not_in_rounds.contains(wake));
        while !missing.is_empty() {
            let Ok(Ok(wake)) = tokio::time::timeout(patience, redis.recv()).await else {
                return Err(TestCaseError::fail(format!("nobody was woken for {missing:?}, but for {more:?}")));
            };
            let wake = wake_text(wake);
            match missing.iter().position(|other| *other == wake) {
                Some(place) => drop(missing.swap_remove(place)),
                None => more.push(wake),
            }
        }
        while let Ok(wake) = redis.try_recv() {
            more.push(wake_text(wake));
        }
        more.retain(|wake| !in_rounds.contains(wake) && !not_in_rounds.contains(wake));
        prop_assert!(more.is_empty(), "woken for nothing: {more:?}");
        Ok(())
    }
}
