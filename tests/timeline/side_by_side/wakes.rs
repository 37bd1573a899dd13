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
    /// Compares all notifications that both sides sent, in any order, because a script may notify several lanes. A put in
    /// two rounds may notify differently on each side; these differences are allowed.
    pub(super) async fn compare(
        self,
        (only_redis_may_send, only_twin_may_send): (&[String], &[String]),
        timeout: Duration,
    ) -> Result<(), TestCaseError> {
        let Wakes { mut memory, mut redis } = self;
        let (mut expected, mut unexpected) = (Vec::new(), Vec::new());
        while let Ok(wake) = memory.try_recv() {
            expected.push(wake_text(wake));
        }
        expected.retain(|wake| !only_twin_may_send.contains(wake));
        while !expected.is_empty() {
            let Ok(Ok(wake)) = tokio::time::timeout(timeout, redis.recv()).await else {
                return Err(TestCaseError::fail(format!("nobody was woken for {expected:?}, but for {unexpected:?}")));
            };
            let wake = wake_text(wake);
            match expected.iter().position(|other| *other == wake) {
                Some(place) => drop(expected.swap_remove(place)),
                None => unexpected.push(wake),
            }
        }
        while let Ok(wake) = redis.try_recv() {
            unexpected.push(wake_text(wake));
        }
        unexpected.retain(|wake| !only_redis_may_send.contains(wake) && !only_twin_may_send.contains(wake));
        prop_assert!(unexpected.is_empty(), "woken for nothing: {unexpected:?}");
        Ok(())
    }
}
